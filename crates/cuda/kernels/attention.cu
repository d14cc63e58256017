// Attention in one go: scores, softmax and weighted values, key by key, never a whole row of scores.
//
// A warp has 16 queries: tokens and heads that share keys, packed into one matrix. Keys and values come straight from memory
// to registers, 16 keys at a time, in the order in which the matrix instruction wants them: channels may be taken in any order
// for scores as long as queries are taken in the same, and results may be any channels as long as they are written where they
// belong. With few queries warps share the keys, and blocks too; whoever is last joins the parts. With many, warps have
// queries of their own.
//
// Which keys a query sees is said by a mask, or, where keys lie in pages, by the sequence and the position of its token. Then
// queries of one sequence go over its pages together; where a matrix has queries of several, it goes over those of each.
#include "attention.cuh"
#include "mma.cuh"
#include "quant.cuh"

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

// What a warp knows about its 16 queries: largest scores, sums, and weighted values, with rows g and g + 8 in each lane.
template <int DV> struct Found {
    float most[2], sum[2];
    float value[DV / 64][8][4];
};

DEVICE float finite_or(float x, float other) { return x == -INFINITY ? other : x; }

// Keys that are gone over together: a run of tiles of 16.
struct Range {
    i64 first, last;  // tiles
};

// Which of the tiles `first` to `last` are this block's, where blocks share them; each has some for all its warps.
const int ATTENTION_WARPS = 4;
DEVICE Range share_of(const AttentionParams& p, i64 first, i64 last) {
    i64 per = at_least((last - first + p.splits - 1) / p.splits, ATTENTION_WARPS);
    Range out = {first + blockIdx.x * per, at_most(first + (blockIdx.x + 1) * per, last)};
    return out;
}

// Goes over keys with 16 queries, once or, with pages of several sequences, once for each token.
template <int DK, int DV, int KIND, bool PAGED> DEVICE void attend(const AttentionParams& p, i64 head, i64 batch, i64 first_row, int warp, int step, Found<DV>& found) {
    int g = lane_number() / 4, j = lane_number() % 4;
    // Queries, rounded to 16 bits.
    u32 query[DK / 32][2][4];
    const u16* mask[2];
    float slope[2];
    Owner owner[2];
    i64 tokens[2];
    int d = (int)p.q.ne[0], dv = (int)p.v.ne[0];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        i64 row = first_row + g + 8 * r;
        bool real = row < p.rows;
        i64 token = real ? row / p.group : -1, h = head * p.group + (real ? row % p.group : 0);
        const float* q = (const float*)at(p.q, real ? token : 0, h, batch);
        tokens[r] = token;
        mask[r] = nullptr;
        if (PAGED) {
            Owner none = {-1, 0, 0};
            owner[r] = real ? owner_of(p, token) : none;
        } else {
            mask[r] = p.mask.data && real ? (const u16*)at(p.mask, token, h % p.mask.ne[2], batch % p.mask.ne[3]) : nullptr;
        }
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

    // Passes over keys: all queries together, or those of one token after another.
    i64 token = first_row / p.group, last_token = at_most(first_row + 15, p.rows - 1) / p.group;
    bool together = true;
    if (PAGED) {
        i32 common = __shfl_sync(ALL_LANES, owner[0].sequence, 0);
        bool alike = true;
#pragma unroll
        for (int r = 0; r < 2; r++) alike = alike && (tokens[r] < 0 || owner[r].sequence == common);
        together = __all_sync(ALL_LANES, alike);
    }
#pragma unroll 1
    for (; token <= last_token; token = together ? last_token + 1 : token + 1) {
        Range range = {0, (p.keys + 15) / 16};
        i32 sequence = -1;
        bool takes_part[2] = {tokens[0] >= 0, tokens[1] >= 0};
        if (PAGED) {
            // The keys that any of the queries of this pass sees.
            i32 least = 0x7fffffff, most = -1;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                takes_part[r] = takes_part[r] && owner[r].sequence >= 0 && (together || tokens[r] == token);
                if (takes_part[r]) {
                    least = owner[r].first < least ? owner[r].first : least;
                    most = owner[r].last > most ? owner[r].last : most;
                    sequence = owner[r].sequence;
                }
            }
#pragma unroll
            for (int s = 16; s > 0; s /= 2) {
                i32 a = __shfl_xor_sync(ALL_LANES, least, s), b = __shfl_xor_sync(ALL_LANES, most, s), c = __shfl_xor_sync(ALL_LANES, sequence, s);
                least = a < least ? a : least, most = b > most ? b : most, sequence = c > sequence ? c : sequence;
            }
            if (most < 0) continue;
            range.first = least / 16, range.last = most / 16 + 1;
        }
        if (!p.by_rows) range = share_of(p, range.first, range.last);
#pragma unroll 1
        for (i64 tile = range.first + warp; tile < range.last; tile += step) {
            i64 key = 16 * tile;
            // What is seen first: where nothing is, nothing is read.
            float bias[2][4];
            bool seen = false;
#pragma unroll
            for (int i = 0; i < 2; i++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    i64 k = key + 8 * i + 2 * j + e % 2;
                    int r = e / 2;
                    float b = -INFINITY;
                    if (PAGED) {
                        if (takes_part[r] && k >= owner[r].first && k <= owner[r].last) b = p.max_bias > 0.0f ? -slope[r] * (float)(owner[r].last - k) : 0.0f;
                    } else if (takes_part[r] && k < p.keys) {
                        b = mask[r] ? slope[r] * from_half(mask[r][k]) : 0.0f;
                    }
                    bias[i][e] = b;
                    seen = seen || b != -INFINITY;
                }
            }
            if (!__any_sync(ALL_LANES, seen)) continue;
            i64 cell = key, last_cell = p.keys - 1;
            if (PAGED) {
                cell = page_start(p, sequence, key);
                if (cell < 0) continue;
                last_cell = cell + 15;
            }
            // Keys, and values where there are registers for them, are all under way at the same time.
            const bool AHEAD = DV <= 128 && KIND != ANY;
            U4 k[2][DK / 32], value[AHEAD ? DV / 64 : 1][4];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const u8* row = at(p.k, at_most(cell + 8 * i + g, last_cell), head, batch);
#pragma unroll
                for (int c = 0; c < DK / 32; c++) k[i][c] = eight_from<KIND>(row, p.k.type, 32 * c + 8 * j, d);
            }
            const u8* rows[4];
#pragma unroll
            for (int i = 0; i < 4; i++) rows[i] = at(p.v, at_most(cell + 2 * j + i % 2 + 8 * (i / 2), last_cell), head, batch);
            if (AHEAD) {
#pragma unroll
                for (int c = 0; c < DV / 64; c++)
#pragma unroll
                    for (int i = 0; i < 4; i++) value[c][i] = eight_from<KIND>(rows[i], p.v.type, 64 * c + 8 * g, dv);
            }
            float score[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++) {
#pragma unroll
                for (int e = 0; e < 4; e++) score[i][e] = 0.0f;
#pragma unroll
                for (int c = 0; c < DK / 32; c++) {
                    multiply<KIND>(score[i], query[c][0], k[i][c].x, k[i][c].y);
                    multiply<KIND>(score[i], query[c][1], k[i][c].z, k[i][c].w);
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
#pragma unroll
            for (int c = 0; c < DV / 64; c++) {
                if (!AHEAD) {
#pragma unroll
                    for (int i = 0; i < 4; i++) value[0][i] = eight_from<KIND>(rows[i], p.v.type, 64 * c + 8 * g, dv);
                }
                const U4(&v)[4] = value[AHEAD ? c : 0];
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
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        found.sum[r] += __shfl_xor_sync(ALL_LANES, found.sum[r], 1);
        found.sum[r] += __shfl_xor_sync(ALL_LANES, found.sum[r], 2);
    }
}

// How many blocks a run of tiles is shared by.
DEVICE i64 blocks_of(const AttentionParams& p, i64 tiles) {
    i64 per = at_least((tiles + p.splits - 1) / p.splits, ATTENTION_WARPS);
    return (tiles + per - 1) / per;
}

// How many blocks have keys of some query, where blocks share them. Every thread counts for itself.
template <bool PAGED> DEVICE int blocks_with_keys(const AttentionParams& p, i64 first_row) {
    if (!PAGED) return (int)at_least(blocks_of(p, (p.keys + 15) / 16), 1);
    // Tokens may be gone over together, from the first key that any sees to the last, or one by one.
    i64 least = 0x7fffffff, last = 0, most = 1;
    i64 first = first_row / p.group, end = at_most(first_row + 15, p.rows - 1) / p.group;
    for (i64 token = first; token <= end; token++) {
        Owner owner = owner_of(p, token);
        if (owner.sequence < 0) continue;
        i64 begin = owner.first / 16, stop = owner.last / 16 + 1;
        most = at_least(most, blocks_of(p, stop - begin));
        least = at_most(least, begin), last = at_least(last, stop);
    }
    return (int)at_least(most, blocks_of(p, at_least(last - least, 0)));
}

// Writes a query's result, from numbers that are summed up.
DEVICE void write_value(const AttentionParams& p, i64 head, i64 batch, i64 row, int channel, float value) {
    i64 token = row / p.group, h = head * p.group + row % p.group;
    ((float*)p.y.data)[((batch * p.y.ne[2] + token) * p.y.ne[1] + h) * p.y.ne[0] + channel] = value;
}
template <int DK, int DV, int KIND, bool PAGED> DEVICE void attention(const AttentionParams& p) {
    wait_for_previous();
    next_may_start();
    int warp = warp_number(), g = lane_number() / 4, j = lane_number() % 4;
    i64 batch = blockIdx.z, head = blockIdx.y % p.k.ne[2], tile = blockIdx.y / p.k.ne[2];
    Found<DV> found;
    i64 first_row = p.by_rows ? (tile * ATTENTION_WARPS + warp) * 16 : tile * 16;
    int blocks = p.by_rows ? 1 : blocks_with_keys<PAGED>(p, first_row);
    if ((int)blockIdx.x >= blocks) return;
    attend<DK, DV, KIND, PAGED>(p, head, batch, first_row, p.by_rows ? 0 : warp, p.by_rows ? 1 : ATTENTION_WARPS, found);
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
        if (blocks == 1) {
            if (first_row + row < p.rows && channel < p.v.ne[0]) {
                float shrink, factor = factor_of(p, head, first_row + row, largest, weights, shrink);
                write_value(p, head, batch, first_row + row, channel, total * shrink * factor);
            }
        } else {
            part[32 + n] = total;
            if (channel == 0) part[row] = largest, part[16 + row] = weights;
        }
    }
    if (blocks == 1) return;
    // Blocks meet in memory: the last one to come joins what all found.
    __shared__ bool is_last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicInc((u32*)p.counters + unit, (u32)blocks - 1) == (u32)blocks - 1;
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    const float* parts = (const float*)p.parts + unit * p.splits * 16 * (DV + 2);
    for (int n = threadIdx.x; n < 16 * DV; n += 32 * ATTENTION_WARPS) {
        int row = n / DV, channel = n % DV;
        if (first_row + row >= p.rows || channel >= p.v.ne[0]) continue;
        float largest = -INFINITY, total = 0.0f, weights = 0.0f;
        for (int s = 0; s < blocks; s++) largest = fmaxf(largest, parts[s * 16 * (DV + 2) + row]);
        for (int s = 0; s < blocks; s++) {
            const float* other = parts + s * 16 * (DV + 2);
            float shrink = other[row] == -INFINITY ? 0.0f : fast_exp2(other[row] - largest);
            total += other[32 + n] * shrink, weights += other[16 + row] * shrink;
        }
        float shrink, factor = factor_of(p, head, first_row + row, largest, weights, shrink);
        write_value(p, head, batch, first_row + row, channel, total * shrink * factor);
    }
}

#define ATTENTION(DK, DV, kind, KIND)                                                                                    \
    KERNEL(attention_##DK##_##DV##_##kind, AttentionParams, 128) { attention<DK, DV, KIND, false>(p); }                  \
    KERNEL(paged_##DK##_##DV##_##kind, AttentionParams, 128) { attention<DK, DV, KIND, true>(p); }
#define ATTENTION_EACH(kind, KIND) ATTENTION(64, 64, kind, KIND) ATTENTION(128, 128, kind, KIND) ATTENTION(192, 128, kind, KIND) ATTENTION(256, 256, kind, KIND)
#if !defined(ONLY) || defined(ONLY_half)
ATTENTION_EACH(half, HALF)
#endif
#if !defined(ONLY) || defined(ONLY_any)
ATTENTION_EACH(any, ANY)
#endif
#if (!defined(ONLY) || defined(ONLY_brain)) && (defined(OXCART_EMULATE) || ARCH >= 800 || !defined(__CUDA_ARCH__))
ATTENTION_EACH(brain, BRAIN)
#endif
