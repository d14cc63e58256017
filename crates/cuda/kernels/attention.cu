// Attention in one go: scores, softmax and weighted values, key by key, never a whole row of scores.
//
// A warp has 16 queries: tokens and heads that share keys, packed into one matrix. Keys and values come straight from memory
// to registers, 16 keys at a time, in the order in which the matrix instruction wants them: channels may be taken in any order
// for scores as long as queries are taken in the same, and results may be any channels as long as they are written where they
// belong. With few queries warps share the keys, and blocks too; whoever is last joins the parts. With many, warps have
// queries of their own.
#include "mma.cuh"
#include "quant.cuh"

struct AttentionParams {
    Tensor q, k, v, mask, y;
    u64 sinks;      // 0 for none
    i64 keys;
    i64 group;      // query heads per head of keys
    i64 rows;       // queries per head of keys: tokens times group
    i64 splits;     // blocks that share the keys of a query
    u64 parts;      // scratch memory for what they find
    u64 counters;   // zeros; they are zeros again afterwards
    float scale, softcap, max_bias, m0, m1;
    i32 heads_log2;
    i32 by_rows;    // warps have queries of their own
    i32 unused;
};

enum Kind { HALF, BRAIN, ANY };

// Eight neighbouring elements of a row as 16-bit numbers; `at` is a multiple of 8.
DEVICE U4 eight_halves(const float* x) {
    U4 out = {pack_half(x[0], x[1]), pack_half(x[2], x[3]), pack_half(x[4], x[5]), pack_half(x[6], x[7])};
    return out;
}
DEVICE U4 eight_of_blocks(const u8* row, i32 type, int at) {
    int first = at % 32;
    float x[8];
    if (type == Q8_0) {
        const u8* block = row + at / 32 * 34;
        float d = half_at(block);
        u32 low = word_at_2(block + 2 + first), high = word_at_2(block + 6 + first);
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = d * (float)(i8)(low >> 8 * i), x[4 + i] = d * (float)(i8)(high >> 8 * i);
        return eight_halves(x);
    }
    bool five = type == Q5_0 || type == Q5_1, offsets = type == Q4_1 || type == Q5_1;
    const u8* block = row + at / 32 * (type == Q4_0 ? 18 : type == Q4_1 ? 20 : type == Q5_0 ? 22 : 24);
    const u8* codes = block + (offsets ? 4 : 2) + (five ? 4 : 0);
    float d = half_at(block), base = offsets ? half_at(block + 2) : d * (five ? -16.0f : -8.0f);
    int shift = first < 16 ? 0 : 4;
    u32 low = word_at_2(codes + first % 16) >> shift & 0x0f0f0f0fu, high = word_at_2(codes + first % 16 + 4) >> shift & 0x0f0f0f0fu;
    if (five) {
        u32 bits = word_at_2(block + (offsets ? 4 : 2)) >> first;
        low |= spread_bits(bits) << 4, high |= spread_bits(bits >> 4) << 4;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = fmaf(d, (float)(low >> 8 * i & 255), base), x[4 + i] = fmaf(d, (float)(high >> 8 * i & 255), base);
    return eight_halves(x);
}
template <int KIND> DEVICE U4 eight_from(const u8* row, i32 type, int at, int count) {
    U4 zero = {0, 0, 0, 0};
    if (at >= count) return zero;
    if (KIND == ANY) return type == F16 ? *(const U4*)(row + 2 * at) : eight_of_blocks(row, type, at);
    return *(const U4*)(row + 2 * at);
}

template <int KIND> DEVICE u32 pack_pair(float low, float high) { return KIND == BRAIN ? pack_brain(low, high) : pack_half(low, high); }
template <int KIND> DEVICE void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if defined(OXCART_EMULATE) || ARCH >= 800
    if (KIND == BRAIN) {
        mma_brain(d, a, b0, b1);
        return;
    }
#endif
    mma_half(d, a, b0, b1);
}

const float LOG2_E = 1.4426950408889634f;

DEVICE float slope_of(i64 head, const AttentionParams& p) {
    if (p.max_bias <= 0.0f) return 1.0f;
    i64 power = (i64)1 << p.heads_log2;
    return head < power ? powf(p.m0, (float)(head + 1)) : powf(p.m1, (float)(2 * (head - power) + 1));
}

// What a warp knows about its 16 queries: largest scores, sums, and weighted values, with rows g and g + 8 in each lane.
template <int DV> struct Found {
    float most[2], sum[2];
    float value[DV / 64][8][4];
};

DEVICE float finite_or(float x, float other) { return x == -INFINITY ? other : x; }

template <int DK, int DV, int KIND> DEVICE void attend(const AttentionParams& p, i64 head, i64 batch, i64 first_row, i64 first_key, i64 last_key, int step, Found<DV>& found) {
    int g = lane_number() / 4, j = lane_number() % 4;
    // Queries, rounded to 16 bits.
    u32 query[DK / 32][2][4];
    const u16* mask[2];
    float slope[2];
    int d = (int)p.q.ne[0], dv = (int)p.v.ne[0];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        i64 row = first_row + g + 8 * r;
        bool real = row < p.rows;
        i64 token = real ? row / p.group : 0, h = head * p.group + (real ? row % p.group : 0);
        const float* q = (const float*)at(p.q, token, h, batch);
        mask[r] = p.mask.data && real ? (const u16*)at(p.mask, token, h % p.mask.ne[2], batch % p.mask.ne[3]) : nullptr;
        slope[r] = slope_of(h, p) * LOG2_E;
#pragma unroll
        for (int c = 0; c < DK / 32; c++) {
#pragma unroll
            for (int s = 0; s < 2; s++) {
                int channel = 32 * c + 8 * j + 4 * s;
                F4 four = {0.0f, 0.0f, 0.0f, 0.0f};
                if (real && channel < d) four.x = q[channel], four.y = q[channel + 1], four.z = q[channel + 2], four.w = q[channel + 3];
                query[c][s][r] = pack_pair<KIND>(four.x, four.y), query[c][s][2 + r] = pack_pair<KIND>(four.z, four.w);
            }
        }
        found.most[r] = -INFINITY, found.sum[r] = 0.0f;
    }
#pragma unroll
    for (int c = 0; c < DV / 64; c++)
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) found.value[c][i][e] = 0.0f;
    float scale = p.softcap != 0.0f ? p.scale / p.softcap : p.scale * LOG2_E;

#pragma unroll 1
    for (i64 key = first_key; key < last_key; key += step) {
        // Masks first: where nothing is seen, nothing is read.
        float bias[2][4];
        bool seen = false;
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                i64 k = key + 8 * i + 2 * j + e % 2;
                float b = k < p.keys && first_row + g + 8 * (e / 2) < p.rows ? 0.0f : -INFINITY;
                if (mask[e / 2] && k < p.keys) b = slope[e / 2] * from_half(mask[e / 2][k]);
                bias[i][e] = b;
                seen = seen || b != -INFINITY;
            }
        }
        if (!__any_sync(ALL_LANES, seen)) continue;
        float score[2][4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int e = 0; e < 4; e++) score[i][e] = 0.0f;
            const u8* row = at(p.k, at_most(key + 8 * i + g, p.keys - 1), head, batch);
            U4 k[DK / 32];
#pragma unroll
            for (int c = 0; c < DK / 32; c++) k[c] = eight_from<KIND>(row, p.k.type, 32 * c + 8 * j, d);
#pragma unroll
            for (int c = 0; c < DK / 32; c++) {
                multiply<KIND>(score[i], query[c][0], k[c].x, k[c].y);
                multiply<KIND>(score[i], query[c][1], k[c].z, k[c].w);
            }
        }
        float most[2] = {found.most[0], found.most[1]};
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float s = score[i][e] * scale;
                if (p.softcap != 0.0f) s = p.softcap * LOG2_E * tanhf(s);
                score[i][e] = s + bias[i][e];
                most[e / 2] = fmaxf(most[e / 2], score[i][e]);
            }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            most[r] = fmaxf(most[r], __shfl_xor_sync(ALL_LANES, most[r], 1));
            most[r] = fmaxf(most[r], __shfl_xor_sync(ALL_LANES, most[r], 2));
        }
        bool grew = most[0] > found.most[0] || most[1] > found.most[1];
        if (__any_sync(ALL_LANES, grew)) {
            float shrink[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                shrink[r] = found.most[r] == most[r] ? 1.0f : fast_exp2(found.most[r] - most[r]);
                found.sum[r] *= shrink[r], found.most[r] = most[r];
            }
#pragma unroll
            for (int c = 0; c < DV / 64; c++)
#pragma unroll
                for (int i = 0; i < 8; i++)
#pragma unroll
                    for (int e = 0; e < 4; e++) found.value[c][i][e] *= shrink[e / 2];
        }
        u32 weight[4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float w[4];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                w[e] = fast_exp2(score[i][e] - finite_or(found.most[e / 2], 0.0f));
                found.sum[e / 2] += w[e];
            }
            weight[2 * i] = pack_pair<KIND>(w[0], w[1]), weight[2 * i + 1] = pack_pair<KIND>(w[2], w[3]);
        }
        const u8* rows[4];
#pragma unroll
        for (int i = 0; i < 4; i++) rows[i] = at(p.v, at_most(key + 2 * j + i % 2 + 8 * (i / 2), p.keys - 1), head, batch);
#pragma unroll
        for (int c = 0; c < DV / 64; c++) {
            U4 v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) v[i] = eight_from<KIND>(rows[i], p.v.type, 64 * c + 8 * g, dv);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                // Channel 64 c + 8 g + i of keys 2 j and 2 j + 1, and of those eight further.
                u32 a = i / 2 == 0 ? v[0].x : i / 2 == 1 ? v[0].y : i / 2 == 2 ? v[0].z : v[0].w;
                u32 b = i / 2 == 0 ? v[1].x : i / 2 == 1 ? v[1].y : i / 2 == 2 ? v[1].z : v[1].w;
                u32 e = i / 2 == 0 ? v[2].x : i / 2 == 1 ? v[2].y : i / 2 == 2 ? v[2].z : v[2].w;
                u32 f = i / 2 == 0 ? v[3].x : i / 2 == 1 ? v[3].y : i / 2 == 2 ? v[3].z : v[3].w;
                u32 pick = i % 2 ? 0x7632 : 0x5410;
                multiply<KIND>(found.value[c][i], weight, __byte_perm(a, b, pick), __byte_perm(e, f, pick));
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        found.sum[r] += __shfl_xor_sync(ALL_LANES, found.sum[r], 1);
        found.sum[r] += __shfl_xor_sync(ALL_LANES, found.sum[r], 2);
    }
}

// Writes a query's result, from numbers that are summed up.
DEVICE void write_value(const AttentionParams& p, i64 head, i64 batch, i64 row, int channel, float value) {
    i64 token = row / p.group, h = head * p.group + row % p.group;
    ((float*)p.y.data)[((batch * p.y.ne[2] + token) * p.y.ne[1] + h) * p.y.ne[0] + channel] = value;
}
// One over the sum of weights, with the weight that belongs to no key.
DEVICE float factor_of(const AttentionParams& p, i64 head, i64 row, float most, float sum, float& shrink) {
    shrink = 1.0f;
    if (p.sinks) {
        float sink = ((const float*)p.sinks)[head * p.group + row % p.group] * LOG2_E;
        float larger = fmaxf(most, sink);
        shrink = most == -INFINITY ? 0.0f : fast_exp2(most - larger);
        sum = sum * shrink + fast_exp2(sink - larger);
    }
    return sum > 0.0f ? 1.0f / sum : 0.0f;
}

const int ATTENTION_WARPS = 4;

template <int DK, int DV, int KIND> DEVICE void attention(const AttentionParams& p) {
    wait_for_previous();
    next_may_start();
    int warp = warp_number(), g = lane_number() / 4, j = lane_number() % 4;
    i64 batch = blockIdx.z, head = blockIdx.y % p.k.ne[2], tile = blockIdx.y / p.k.ne[2];
    Found<DV> found;
    // Where keys are shared, this block's are a run of whole tiles, which warps take in turn.
    i64 tiles = (p.keys + 15) / 16, per = (tiles + p.splits - 1) / p.splits;
    i64 first = blockIdx.x * per, last = at_most(first + per, tiles), first_row = tile * 16;
    i64 first_key = 16 * (first + warp), last_key = at_most(16 * last, p.keys);
    int step = 16 * ATTENTION_WARPS;
    if (p.by_rows) first_row = (tile * ATTENTION_WARPS + warp) * 16, first_key = 0, last_key = p.keys, step = 16;
    attend<DK, DV, KIND>(p, head, batch, first_row, first_key, last_key, step, found);
    if (p.by_rows) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            i64 row = first_row + g + 8 * r;
            if (row >= p.rows) continue;
            float shrink, factor = factor_of(p, head, row, found.most[r], found.sum[r], shrink);
#pragma unroll
            for (int c = 0; c < DV / 64; c++)
#pragma unroll
                for (int i = 0; i < 8; i++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        int channel = 64 * c + 8 * (2 * j + e) + i;
                        if (channel < p.v.ne[0]) write_value(p, head, batch, row, channel, found.value[c][i][2 * r + e] * shrink * factor);
                    }
        }
        return;
    }
    // Warps meet in shared memory.
    float* most = (float*)dynamic_shared;
    float* sum = most + 16 * ATTENTION_WARPS;
    float* value = sum + 16 * ATTENTION_WARPS;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = g + 8 * r;
        if (j == 0) most[warp * 16 + row] = found.most[r], sum[warp * 16 + row] = found.sum[r];
#pragma unroll
        for (int c = 0; c < DV / 64; c++)
#pragma unroll
            for (int i = 0; i < 8; i++)
#pragma unroll
                for (int e = 0; e < 2; e++) value[(warp * 16 + row) * DV + 64 * c + 8 * (2 * j + e) + i] = found.value[c][i][2 * r + e];
    }
    __syncthreads();
    i64 unit = ((i64)batch * gridDim.y + blockIdx.y);
    float* part = (float*)p.parts + (unit * p.splits + blockIdx.x) * 16 * (DV + 2);
    for (int n = threadIdx.x; n < 16 * DV; n += 32 * ATTENTION_WARPS) {
        int row = n / DV, channel = n % DV;
        float largest = -INFINITY;
#pragma unroll
        for (int w = 0; w < ATTENTION_WARPS; w++) largest = fmaxf(largest, most[w * 16 + row]);
        float total = 0.0f, weights = 0.0f;
#pragma unroll
        for (int w = 0; w < ATTENTION_WARPS; w++) {
            float shrink = most[w * 16 + row] == -INFINITY ? 0.0f : fast_exp2(most[w * 16 + row] - largest);
            total += value[(w * 16 + row) * DV + channel] * shrink, weights += sum[w * 16 + row] * shrink;
        }
        if (p.splits == 1) {
            if (first_row + row < p.rows && channel < p.v.ne[0]) {
                float shrink, factor = factor_of(p, head, first_row + row, largest, weights, shrink);
                write_value(p, head, batch, first_row + row, channel, total * shrink * factor);
            }
        } else {
            part[32 + n] = total;
            if (channel == 0) part[row] = largest, part[16 + row] = weights;
        }
    }
    if (p.splits == 1) return;
    // Blocks meet in memory: the last one to come joins what all found.
    __shared__ bool is_last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicInc((u32*)p.counters + unit, (u32)p.splits - 1) == (u32)p.splits - 1;
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    const float* parts = (const float*)p.parts + unit * p.splits * 16 * (DV + 2);
    for (int n = threadIdx.x; n < 16 * DV; n += 32 * ATTENTION_WARPS) {
        int row = n / DV, channel = n % DV;
        if (first_row + row >= p.rows || channel >= p.v.ne[0]) continue;
        float largest = -INFINITY, total = 0.0f, weights = 0.0f;
        for (i64 s = 0; s < p.splits; s++) largest = fmaxf(largest, parts[s * 16 * (DV + 2) + row]);
        for (i64 s = 0; s < p.splits; s++) {
            const float* other = parts + s * 16 * (DV + 2);
            float shrink = other[row] == -INFINITY ? 0.0f : fast_exp2(other[row] - largest);
            total += other[32 + n] * shrink, weights += other[16 + row] * shrink;
        }
        float shrink, factor = factor_of(p, head, first_row + row, largest, weights, shrink);
        write_value(p, head, batch, first_row + row, channel, total * shrink * factor);
    }
}

#define ATTENTION(DK, DV, kind, KIND) \
    KERNEL(attention_##DK##_##DV##_##kind, AttentionParams, 128) { attention<DK, DV, KIND>(p); }
#define ATTENTION_EACH(kind, KIND) ATTENTION(64, 64, kind, KIND) ATTENTION(128, 128, kind, KIND) ATTENTION(192, 128, kind, KIND) ATTENTION(256, 256, kind, KIND)
ATTENTION_EACH(half, HALF)
ATTENTION_EACH(any, ANY)
#if defined(OXCART_EMULATE) || ARCH >= 800 || !defined(__CUDA_ARCH__)
ATTENTION_EACH(brain, BRAIN)
#endif

// ---- any shape, any type, 32-bit numbers throughout ----

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
    float slope = slope_of(h, p), most = -INFINITY, sum = 0.0f, value[WIDEST];
#pragma unroll
    for (int m = 0; m < WIDEST; m++) value[m] = 0.0f;
    float scale = p.softcap != 0.0f ? p.scale / p.softcap : p.scale;
    for (i64 key = warp; key < p.keys; key += 4) {
        float bias = mask ? slope * from_half(mask[key]) : 0.0f;
        if (bias == -INFINITY) continue;
        row_to_shared(at(p.k, key, kh, kb), p.k.type, d, row);
        float s = 0.0f;
        for (int i = lane_number(); i < d; i += 32) s = fmaf(row[i], query[i], s);
        s = warp_sum(s) * scale;
        if (p.softcap != 0.0f) s = p.softcap * tanhf(s);
        s += bias;
        __syncwarp();
        float larger = fmaxf(most, s), shrink = most == -INFINITY ? 0.0f : expf(most - larger), weight = expf(s - larger);
        most = larger, sum = sum * shrink + weight;
        row_to_shared(at(p.v, key, vh, vb), p.v.type, dv, row);
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
