// Products of any kind of matrix: what is not fast enough elsewhere because it is rare.
//
// Everything is multiplied and summed as 32-bit numbers. Matrices of plain numbers go tile by tile through shared memory; rows
// of blocks meet a few columns at a time.
#include "quant.cuh"

struct ProductParams {
    Tensor a, b, y;
    i64 count;
    u64 ids;  // of experts, with its strides; 0 for none
    i64 ids_nb[2];
    u64 faults;
};

const int TILE = 64, DEPTH = 16;

// y[i, j, p, q] = sum over k of a[k, i, p / r2, q / r3] b[k, j, p, q], plain numbers.
KERNEL(product_plain, ProductParams, 256) {
    wait_for_previous();
    __shared__ float left[DEPTH][TILE + 4], right[DEPTH][TILE + 4];
    i64 p2 = blockIdx.z % p.y.ne[2], q3 = blockIdx.z / p.y.ne[2];
    i64 a2 = p2 / (p.b.ne[2] / p.a.ne[2]), a3 = q3 / (p.b.ne[3] / p.a.ne[3]);
    i64 row = (i64)blockIdx.x * TILE, column = (i64)blockIdx.y * TILE;
    int x = threadIdx.x % 16, y = threadIdx.x / 16;
    i32 size_a = p.a.type == F32 ? 4 : 2, size_b = p.b.type == F32 ? 4 : 2;
    float sum[4][4] = {};
    for (i64 k = 0; k < p.a.ne[0]; k += DEPTH) {
        for (int i = threadIdx.x; i < TILE * DEPTH; i += 256) {
            int depth = i % DEPTH, line = i / DEPTH;
            bool inside = k + depth < p.a.ne[0];
            left[depth][line] = inside && row + line < p.a.ne[1] ? load(at(p.a, row + line, a2, a3) + (k + depth) * size_a, p.a.type) : 0.0f;
            right[depth][line] = inside && column + line < p.b.ne[1] ? load(at(p.b, column + line, p2, q3) + (k + depth) * size_b, p.b.type) : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int depth = 0; depth < DEPTH; depth++) {
            float l[4], r[4];
#pragma unroll
            for (int i = 0; i < 4; i++) l[i] = left[depth][4 * x + i], r[i] = right[depth][4 * y + i];
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) sum[i][j] = fmaf(l[i], r[j], sum[i][j]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            i64 m = row + 4 * x + i, n = column + 4 * y + j;
            if (m < p.y.ne[0] && n < p.y.ne[1]) *(float*)at(p.y, m, n, p2, q3) = sum[i][j];
        }
    }
}

// The product with a Hadamard matrix, which is not read: a fast transform of each column, in place in shared memory.
KERNEL(hadamard, ProductParams, 256) {
    wait_for_previous();
    float* x = (float*)dynamic_shared;
    int k = (int)p.b.ne[0];
    i64 column = blockIdx.x, p2 = blockIdx.y % p.y.ne[2], q3 = blockIdx.y / p.y.ne[2];
    const u8* from = at(p.b, column, p2, q3);
    i32 size = p.b.type == F32 ? 4 : 2;
    for (int i = threadIdx.x; i < k; i += 256) x[i] = load(from + i * size, p.b.type);
    for (int half = 1; half < k; half *= 2) {
        __syncthreads();
        for (int n = threadIdx.x; n < k / 2; n += 256) {
            int i = n / half * 2 * half + n % half;
            float a = x[i], b = x[i + half];
            x[i] = a + b, x[i + half] = a - b;
        }
    }
    __syncthreads();
    float scale = 1.0f / sqrtf((float)k);
    for (int i = threadIdx.x; i < k; i += 256) *(float*)at(p.y, i, column, p2, q3) = x[i] * scale;
}

const int FEW = 4;

// The product of a row of blocks with a few columns, lane by lane.
struct RowTimesColumns {
    const u8* row;
    const u8* column[FEW];
    i32 type;
    i64 units;
    float sum[FEW];
    template <class F> DEVICE_METHOD void run() {
        const int per = F::BLOCK / 32;
        i32 size = type == F32 ? 4 : 2;
        for (i64 u = lane_number(); u < units; u += 32) {
            Unit unit;
            F::unit(row + u / per * F::BYTES, (int)(u % per), unit);
#pragma unroll
            for (int e = 0; e < 32; e++) {
                float value = element<F>(unit, e);
#pragma unroll
                for (int c = 0; c < FEW; c++) sum[c] = fmaf(value, load(column[c] + (32 * u + e) * size, type), sum[c]);
            }
        }
    }
};

// The same for rows of blocks; a warp has one row and a few columns.
KERNEL(product_blocks, ProductParams, 128) {
    wait_for_previous();
    i64 row = (i64)blockIdx.x * 4 + warp_number(), column = (i64)blockIdx.y * FEW;
    i64 p2 = blockIdx.z % p.y.ne[2], q3 = blockIdx.z / p.y.ne[2];
    if (row >= p.a.ne[1]) return;
    RowTimesColumns body;
    body.row = at(p.a, row, p2 / (p.b.ne[2] / p.a.ne[2]), q3 / (p.b.ne[3] / p.a.ne[3]));
    body.type = p.b.type, body.units = p.a.ne[0] / 32;
#pragma unroll
    for (int c = 0; c < FEW; c++) {
        body.column[c] = at(p.b, at_most(column + c, p.b.ne[1] - 1), p2, q3);
        body.sum[c] = 0.0f;
    }
    with_format(p.a.type, body);
#pragma unroll
    for (int c = 0; c < FEW; c++) {
        float sum = warp_sum(body.sum[c]);
        if (lane_number() == 0 && column + c < p.y.ne[1]) *(float*)at(p.y, row, column + c, p2, q3) = sum;
    }
}

// y[:, s, t] = a[:, :, ids[s, t]] b[:, s mod, t], any type; a warp has one row of one expert's result.
KERNEL(product_experts, ProductParams, 128) {
    wait_for_previous();
    i64 row = (i64)blockIdx.x * 4 + warp_number(), slot = blockIdx.y, token = blockIdx.z;
    if (row >= p.a.ne[1]) return;
    i32 id = *(const i32*)((const u8*)p.ids + slot * p.ids_nb[0] + token * p.ids_nb[1]);
    if (id < 0 || id >= p.a.ne[2]) {
        report(p.faults, BAD_EXPERT);
        return;
    }
    const u8 *from = at(p.a, row, id, 0), *column = at(p.b, slot % p.b.ne[1], token, 0);
    float sum = 0.0f;
    if (p.a.type <= BF16) {
        i32 size_a = p.a.type == F32 ? 4 : 2, size_b = p.b.type == F32 ? 4 : 2;
        for (i64 k = lane_number(); k < p.a.ne[0]; k += 32) sum = fmaf(load(from + k * size_a, p.a.type), load(column + k * size_b, p.b.type), sum);
    } else {
        RowTimesColumns body;
        body.row = from, body.type = p.b.type, body.units = p.a.ne[0] / 32;
#pragma unroll
        for (int c = 0; c < FEW; c++) body.column[c] = column, body.sum[c] = 0.0f;
        with_format(p.a.type, body);
        sum = body.sum[0];
    }
    sum = warp_sum(sum);
    if (lane_number() == 0) *(float*)at(p.y, row, slot, token, 0) = sum;
}

// An element of a row of blocks.
struct OneElement {
    const u8* row;
    i64 i;
    float value;
    template <class F> DEVICE_METHOD void run() {
        Unit unit;
        F::unit(row + i / F::BLOCK * F::BYTES, (int)(i % F::BLOCK / 32), unit);
        int e = (int)(i % 32), h = F::HALVES ? e / 16 : 0;
        int word = unit.q[0];
#pragma unroll
        for (int w = 1; w < 8; w++) word = e / 4 == w ? unit.q[w] : word;
        float scale = h ? unit.scale[1] : unit.scale[0], offset = h ? unit.offset[1] : unit.offset[0];
        float q = (float)(i8)(word >> 8 * (e % 4));
        value = F::OFFSETS ? __fadd_rn(__fmul_rn(q, scale), offset) : __fmul_rn(q, scale);
    }
};

// y[i, j, p, q] = sum over k of a[i, k, p / r2, q / r3] b[j, k, p, q]
KERNEL(outer, ProductParams, 256) {
    wait_for_previous();
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        Index o = place_of(n, p.y.ne);
        i64 a2 = o.i2 / (p.b.ne[2] / p.a.ne[2]), a3 = o.i3 / (p.b.ne[3] / p.a.ne[3]);
        float sum = 0.0f;
        for (i64 k = 0; k < p.a.ne[1]; k++) {
            const u8* row = at(p.a, k, a2, a3);
            float x;
            if (p.a.type <= BF16) {
                x = load(row + o.i0 * (p.a.type == F32 ? 4 : 2), p.a.type);
            } else {
                OneElement one = {row, o.i0, 0.0f};
                with_format(p.a.type, one);
                x = one.value;
            }
            sum = fmaf(x, *(const float*)at(p.b, o.i1, k, o.i2, o.i3), sum);
        }
        *(float*)at(p.y, o.i0, o.i1, o.i2, o.i3) = sum;
    }
}

// y[j, i, b] = sum over heads of max(q[:, h, i, b] k[:, 0, j, b], 0) w[h, i, b] + mask[j, i, 0, b mod]
struct IndexerParams {
    Tensor q, k, w, mask, y;
};

KERNEL(indexer, IndexerParams, 128) {
    wait_for_previous();
    i64 key = (i64)blockIdx.x * 4 + warp_number(), token = blockIdx.y, batch = blockIdx.z;
    if (key >= p.y.ne[0]) return;
    const u8* row = at(p.k, 0, key, batch);
    float total = 0.0f;
    for (i64 h = 0; h < p.q.ne[1]; h++) {
        const u8* query = at(p.q, h, token, batch);
        float sum = 0.0f;
        if (p.k.type <= BF16) {
            i32 size = p.k.type == F32 ? 4 : 2;
            for (i64 i = lane_number(); i < p.q.ne[0]; i += 32) sum = fmaf(load(row + i * size, p.k.type), ((const float*)query)[i], sum);
        } else {
            RowTimesColumns body;
            body.row = row, body.type = F32, body.units = p.q.ne[0] / 32;
#pragma unroll
            for (int c = 0; c < FEW; c++) body.column[c] = query, body.sum[c] = 0.0f;
            with_format(p.k.type, body);
            sum = body.sum[0];
        }
        sum = warp_sum(sum);
        total = fmaf(fmaxf(sum, 0.0f), *(const float*)at(p.w, h, token, 0, batch), total);
    }
    float mask = from_half(*(const u16*)at(p.mask, key, token, 0, batch % p.mask.ne[3]));
    if (lane_number() == 0) *(float*)at(p.y, key, token, 0, batch) = total + mask;
}
