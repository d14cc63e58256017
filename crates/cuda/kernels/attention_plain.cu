// Attention of any shape and any type, in 32-bit numbers throughout: exact, and slow.
#include "attention.cuh"
#include "quant.cuh"

// Takes a row apart into shared memory, unit by unit.
struct RowToShared {
    const u8* row;
    i64 units;
    float* to;
    template <class F> DEVICE_METHOD void run() {
        const int per = F::BLOCK / 32;
        for (i64 u = lane_number(); u < units; u += 32) {
            Unit unit;
            F::unit(row + u / per * F::BYTES, (int)(u % per), unit);
#pragma unroll
            for (int e = 0; e < 32; e++) to[32 * u + e] = element<F>(unit, e);
        }
    }
};
DEVICE void row_to_shared(const u8* row, i32 type, int count, float* to) {
    if (type <= BF16) {
        i32 size = type == F32 ? 4 : 2;
        for (int i = lane_number(); i < count; i += 32) to[i] = load(row + i * size, type);
    } else {
        RowToShared body = {row, count / 32, to};
        with_format(type, body);
    }
    __syncwarp();
}

const int WIDEST = 18;  // channels that a lane has at most

// A block has one query; its warps take keys in turn.
KERNEL(attention_plain, AttentionParams, 128) {
    wait_for_previous();
    int warp = warp_number(), d = (int)p.q.ne[0], dv = (int)p.v.ne[0];
    i64 token = blockIdx.x, h = blockIdx.y, batch = blockIdx.z;
    i64 kh = h / (p.q.ne[2] / p.k.ne[2]), vh = h / (p.q.ne[2] / p.v.ne[2]);
    i64 kb = batch / (p.q.ne[3] / p.k.ne[3]), vb = batch / (p.q.ne[3] / p.v.ne[3]);
    int room = d > dv ? d : dv;
    float* query = (float*)dynamic_shared;
    float* row = query + d + warp * room;
    const float* q = (const float*)at(p.q, token, h, batch);
    for (int i = threadIdx.x; i < d; i += blockDim.x) query[i] = q[i];
    __syncthreads();
    const u16* mask = p.mask.data ? (const u16*)at(p.mask, token, h % p.mask.ne[2], batch % p.mask.ne[3]) : nullptr;
    Owner owner = {0, 0, (i32)p.keys - 1};
    if (p.table) owner = owner_of(p, token);
    if (owner.sequence < 0) owner.last = -1;
    float slope = slope_of(h, p), most = -INFINITY, sum = 0.0f, value[WIDEST];
#pragma unroll
    for (int m = 0; m < WIDEST; m++) value[m] = 0.0f;
    float scale = p.softcap != 0.0f ? p.scale / p.softcap : p.scale;
    for (i64 key = owner.first + warp; key <= owner.last; key += 4) {
        float bias = mask ? slope * from_half(mask[key]) : p.table && p.max_bias > 0.0f ? -slope * (float)(owner.last - key) : 0.0f;
        if (bias == -INFINITY) continue;
        i64 cell = p.table ? page_start(p, owner.sequence, key) : key;
        if (cell < 0) continue;
        row_to_shared(at(p.k, cell, kh, kb), p.k.type, d, row);
        float s = 0.0f;
        for (int i = lane_number(); i < d; i += 32) s = fmaf(row[i], query[i], s);
        s = warp_sum(s) * scale;
        if (p.softcap != 0.0f) s = p.softcap * tanhf(s);
        s += bias;
        __syncwarp();
        float larger = fmaxf(most, s), shrink = most == -INFINITY ? 0.0f : expf(most - larger), weight = expf(s - larger);
        most = larger, sum = sum * shrink + weight;
        row_to_shared(at(p.v, cell, vh, vb), p.v.type, dv, row);
#pragma unroll
        for (int m = 0; m < WIDEST; m++) {
            int i = lane_number() + 32 * m;
            if (i < dv) value[m] = value[m] * shrink + weight * row[i];
        }
        __syncwarp();
    }
    // Warps meet in shared memory, over what queries and rows were in.
    __syncthreads();
    float* parts = (float*)dynamic_shared;
    if (lane_number() == 0) parts[2 * warp] = most, parts[2 * warp + 1] = sum;
#pragma unroll
    for (int m = 0; m < WIDEST; m++) {
        int i = lane_number() + 32 * m;
        if (i < dv) parts[8 + warp * dv + i] = value[m];
    }
    __syncthreads();
    float largest = p.sinks ? ((const float*)p.sinks)[h] : -INFINITY, total = 0.0f;
    for (int w = 0; w < 4; w++) largest = fmaxf(largest, parts[2 * w]);
    if (p.sinks) total = expf(((const float*)p.sinks)[h] - largest);
    for (int w = 0; w < 4; w++) total += parts[2 * w] == -INFINITY ? 0.0f : parts[2 * w + 1] * expf(parts[2 * w] - largest);
    float factor = total > 0.0f ? 1.0f / total : 0.0f;
    float* out = (float*)p.y.data + ((batch * p.y.ne[2] + token) * p.y.ne[1] + h) * p.y.ne[0];
    for (int i = threadIdx.x; i < dv; i += blockDim.x) {
        float x = 0.0f;
        for (int w = 0; w < 4; w++) x += parts[2 * w] == -INFINITY ? 0.0f : parts[8 + w * dv + i] * expf(parts[2 * w] - largest);
        out[i] = x * factor;
    }
}
