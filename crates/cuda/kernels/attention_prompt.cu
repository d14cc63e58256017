// Attention for many queries: a block has 64 or 128 of them, which go over keys and values in shared memory together.
//
// Queries that share keys are rows of one matrix, four warps with 16 each, or with twice 16 where registers have room, so that what
// is read from shared memory is multiplied twice. 64 keys and their values come to shared memory at a time, the next ones while
// these are multiplied. Scores stay in registers, where they are what the second product wants.
//
// Which keys a query sees is said by a mask, or, where keys lie in pages, by the sequence and the position of its token. Then
// tokens of one sequence go over its pages together, and pages that none of them sees are not read.
#include "attention.cuh"
#include "mma.cuh"
#include "pipe.cuh"

const int PROMPT_WARPS = 4, PROMPT_KEYS = 64;
// Rows of 16 queries that a warp has.
template <int D> DEVICE constexpr int prompt_sets() { return D == 64 ? 2 : 1; }

template <bool BRAIN> DEVICE u32 pair_of(float low, float high) { return BRAIN ? pack_brain(low, high) : pack_half(low, high); }
template <bool BRAIN> DEVICE void times(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if defined(OXCART_EMULATE) || ARCH >= 800
    if (BRAIN) {
        mma_brain(d, a, b0, b1);
        return;
    }
#endif
    mma_half(d, a, b0, b1);
}

// Where 16 bytes (eight channels) of a row lie, so that rows that are read together do not meet in a bank.
template <int D> DEVICE u32 place_in_tile(int row, int piece) { return 2 * D * row + 16 * (piece ^ (row & 7)); }

// Tokens of a block that follow each other and belong to one sequence, and the tiles of keys that they see.
struct Segment {
    i32 sequence;
    i64 first_token, last_token;
    i64 first, last;
};

template <bool PAGED> DEVICE Segment segment_from(const AttentionParams& p, i64 token, i64 last_token) {
    Segment out = {-1, token, last_token, 0, (p.keys + PROMPT_KEYS - 1) / PROMPT_KEYS};
    if (!PAGED) return out;
    i32 least = 0x7fffffff, most = -1;
    for (i64 t = token; t <= last_token; t++) {
        Owner owner = owner_of(p, t);
        if (t == token) out.sequence = owner.sequence;
        if (owner.sequence != out.sequence) break;
        out.last_token = t;
        if (owner.sequence < 0) continue;
        least = owner.first < least ? owner.first : least;
        most = owner.last > most ? owner.last : most;
    }
    out.first = least / PROMPT_KEYS, out.last = most < 0 ? 0 : most / PROMPT_KEYS + 1;
    if (most < 0) out.first = 0;
    return out;
}

// Begins to bring a tile of keys and values.
template <int D, bool PAGED> DEVICE void begin_tile(const AttentionParams& p, i64 head, i64 batch, i32 sequence, i64 tile, u8* keys, u8* values) {
    const int PIECES = D / 8, AT_ONCE = 32 * PROMPT_WARPS / PIECES;
    i64 cell = PROMPT_KEYS * tile, left = p.keys - cell;
    if (PAGED) {
        cell = page_start(p, sequence, cell);
        left = cell < 0 ? 0 : PROMPT_KEYS;
    }
    int row = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
    bool k_there = 8 * piece < p.k.ne[0], v_there = 8 * piece < p.v.ne[0];
    const u8 *k = at(p.k, cell + row, head, batch) + 16 * piece, *v = at(p.v, cell + row, head, batch) + 16 * piece;
    i64 k_step = AT_ONCE * p.k.nb[1], v_step = AT_ONCE * p.v.nb[1];
    u32 to = place_in_tile<D>(row, piece);
#pragma unroll
    for (int i = 0; i < PROMPT_KEYS; i += AT_ONCE) {
        // Rows are eight or sixteen apart, so their place within a line is the same.
        bool real = row + i < left;
        copy_16_or_zero(keys + to + 2 * D * i, real ? k : (const u8*)p.k.data, real && k_there);
        copy_16_or_zero(values + to + 2 * D * i, real ? v : (const u8*)p.v.data, real && v_there);
        k += k_step, v += v_step;
    }
}

template <int D, bool BRAIN, bool PAGED> DEVICE void attend_prompt(const AttentionParams& p) {
    wait_for_previous();
    next_may_start();
    const int TILE = PROMPT_KEYS * D * 2, SETS = prompt_sets<D>(), PROMPT_ROWS = 16 * SETS * PROMPT_WARPS;
    // Keys whose scores are in registers at a time.
    const int PROMPT_SCORES = 64 / SETS;
    int warp = warp_number(), lane = lane_number(), g = lane / 4, j = lane % 4;
    i64 head = blockIdx.y, batch = blockIdx.z;
    // The last queries see the most keys: they begin first.
    i64 block_row = (i64)(gridDim.x - 1 - blockIdx.x) * PROMPT_ROWS, first_row = block_row + 16 * SETS * warp;
    u8 *keys = dynamic_shared, *values = dynamic_shared + 2 * TILE;

    // Of a lane's queries, 2 i and 2 i + 1 are in row i of them.
    u32 query[SETS][D / 16][4];
    const u16* mask[2 * SETS];
    float slope[2 * SETS];
    i32 tokens[2 * SETS];
    Owner owner[2 * SETS];
#pragma unroll
    for (int r = 0; r < 2 * SETS; r++) {
        i64 row = first_row + g + 8 * r;
        bool real = row < p.rows;
        i32 token = real ? (i32)row / (i32)p.group : -1;
        i64 h = head * p.group + (real ? (i32)row % (i32)p.group : 0);
        tokens[r] = token, mask[r] = nullptr;
        Owner none = {-1, 0, -1};
        owner[r] = none;
        if (PAGED && real) owner[r] = owner_of(p, token);
        if (!PAGED && real && p.mask.data) mask[r] = (const u16*)at(p.mask, token, h % p.mask.ne[2], batch % p.mask.ne[3]);
        slope[r] = slope_of(h, p) * LOG2_E;
        const float* q = (const float*)at(p.q, real ? token : 0, h, batch);
#pragma unroll
        for (int s = 0; s < D / 16; s++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int channel = 16 * s + 8 * half + 2 * j;
                bool there = real && channel < p.q.ne[0];
                query[r / 2][s][r % 2 + 2 * half] = there ? pair_of<BRAIN>(q[channel], q[channel + 1]) : 0;
            }
        }
    }
    float most[2 * SETS], sum[2 * SETS], found[SETS][D / 8][4];
#pragma unroll
    for (int r = 0; r < 2 * SETS; r++) {
        most[r] = -INFINITY, sum[r] = 0.0f;
#pragma unroll
        for (int n = 0; n < D / 8; n++) found[r / 2][n][2 * (r % 2)] = found[r / 2][n][2 * (r % 2) + 1] = 0.0f;
    }
    float scale = p.softcap != 0.0f ? p.scale / p.softcap : p.scale * LOG2_E;

    i64 token = block_row / p.group, last_token = at_most(block_row + PROMPT_ROWS - 1, p.rows - 1) / p.group;
#pragma unroll 1
    while (token <= last_token) {
        Segment segment = segment_from<PAGED>(p, token, last_token);
        token = segment.last_token + 1;
        if (segment.first >= segment.last) continue;
        bool own[2 * SETS];
        i32 seen_first = 0x7fffffff, seen_last = -1, all_first = 0, all_last = 0x7fffffff;
#pragma unroll
        for (int r = 0; r < 2 * SETS; r++) {
            own[r] = tokens[r] >= segment.first_token && tokens[r] <= segment.last_token && (!PAGED || owner[r].sequence >= 0);
            if (PAGED) {
                i32 first = own[r] ? owner[r].first : 0x7fffffff, last = own[r] ? owner[r].last : -1;
                seen_first = first < seen_first ? first : seen_first, seen_last = last > seen_last ? last : seen_last;
                all_first = first > all_first ? first : all_first, all_last = last < all_last ? last : all_last;
            }
        }
        begin_tile<D, PAGED>(p, head, batch, segment.sequence, segment.first, keys, values);
        copies_begun();
        int side = 0;
#pragma unroll 1
        for (i64 tile = segment.first; tile < segment.last; tile++, side ^= 1) {
            if (tile + 1 < segment.last) begin_tile<D, PAGED>(p, head, batch, segment.sequence, tile + 1, keys + (side ^ 1) * TILE, values + (side ^ 1) * TILE);
            copies_begun();
            copies_done<1>();
            __syncthreads();
            i64 key = PROMPT_KEYS * tile;
            // Whether any of this warp's queries sees any of these keys, and whether all see all.
            bool any = true, all = false;
            if (PAGED) {
                any = __any_sync(ALL_LANES, seen_first < key + PROMPT_KEYS && seen_last >= key);
                all = p.max_bias <= 0.0f && __all_sync(ALL_LANES, all_first <= key && all_last >= key + PROMPT_KEYS - 1);
            } else {
                all = !p.mask.data && key + PROMPT_KEYS <= p.keys;
            }
#pragma unroll 1
            for (int from = 0; any && from < PROMPT_KEYS; from += PROMPT_SCORES) {
                const u8 *k = keys + side * TILE + 2 * D * from, *v = values + side * TILE + 2 * D * from;
                float score[SETS][PROMPT_SCORES / 8][4];
#pragma unroll
                for (int n = 0; n < PROMPT_SCORES / 8; n++) {
#pragma unroll
                    for (int i = 0; i < SETS; i++)
#pragma unroll
                        for (int e = 0; e < 4; e++) score[i][n][e] = 0.0f;
#pragma unroll
                    for (int s = 0; s < D / 16; s += 2) {
                        u32 b[4];
                        load_matrices(b, k + place_in_tile<D>(8 * n + lane % 8, 2 * s + lane / 8));
#pragma unroll
                        for (int i = 0; i < SETS; i++) {
                            times<BRAIN>(score[i][n], query[i][s], b[0], b[1]);
                            times<BRAIN>(score[i][n], query[i][s + 1], b[2], b[3]);
                        }
                    }
                }
                float base[2 * SETS];
#pragma unroll
                for (int r = 0; r < 2 * SETS; r++) {
                    float larger = most[r];
#pragma unroll
                    for (int n = 0; n < PROMPT_SCORES / 8; n++) {
#pragma unroll
                        for (int e = 0; e < 2; e++) {
                            float& kept = score[r / 2][n][2 * (r % 2) + e];
                            // Rounded at every step, so that it is the same whether all keys are seen or not.
                            float s = __fmul_rn(kept, scale);
                            if (p.softcap != 0.0f) s = p.softcap * LOG2_E * tanhf(s);
                            if (!all) {
                                i64 at = key + from + 8 * n + 2 * j + e;
                                float bias = -INFINITY;
                                if (PAGED) {
                                    if (own[r] && at >= owner[r].first && at <= owner[r].last) bias = p.max_bias > 0.0f ? -slope[r] * (float)(owner[r].last - at) : 0.0f;
                                } else if (own[r] && at < p.keys) {
                                    bias = mask[r] ? slope[r] * from_half(mask[r][at]) : 0.0f;
                                }
                                s = __fadd_rn(s, bias);
                            }
                            kept = s;
                            larger = fmaxf(larger, s);
                        }
                    }
                    larger = fmaxf(larger, __shfl_xor_sync(ALL_LANES, larger, 1));
                    larger = fmaxf(larger, __shfl_xor_sync(ALL_LANES, larger, 2));
                    float shrink = larger == most[r] ? 1.0f : fast_exp2(most[r] - larger);
                    most[r] = larger, sum[r] = __fmul_rn(sum[r], shrink);
#pragma unroll
                    for (int n = 0; n < D / 8; n++) found[r / 2][n][2 * (r % 2)] *= shrink, found[r / 2][n][2 * (r % 2) + 1] *= shrink;
                    base[r] = larger == -INFINITY ? 0.0f : larger;
                }
#pragma unroll
                for (int t = 0; t < PROMPT_SCORES / 16; t++) {
                    u32 weight[SETS][4];
#pragma unroll
                    for (int n = 0; n < 2 * SETS; n++) {
                        int i = n / 2, half = n % 2;
                        float w[4];
#pragma unroll
                        for (int e = 0; e < 4; e++) {
                            w[e] = fast_exp2(score[i][2 * t + half][e] - base[2 * i + e / 2]);
                            sum[2 * i + e / 2] = __fadd_rn(sum[2 * i + e / 2], w[e]);
                        }
                        weight[i][2 * half] = pair_of<BRAIN>(w[0], w[1]), weight[i][2 * half + 1] = pair_of<BRAIN>(w[2], w[3]);
                    }
#pragma unroll
                    for (int n = 0; n < D / 8; n += 2) {
                        u32 b[4];
                        load_matrices_turned(b, v + place_in_tile<D>(16 * t + lane % 16, n + lane / 16));
#pragma unroll
                        for (int i = 0; i < SETS; i++) {
                            times<BRAIN>(found[i][n], weight[i], b[0], b[1]);
                            times<BRAIN>(found[i][n + 1], weight[i], b[2], b[3]);
                        }
                    }
                }
            }
            __syncthreads();
        }
        copies_done<0>();
    }
#pragma unroll
    for (int r = 0; r < 2 * SETS; r++) {
        sum[r] += __shfl_xor_sync(ALL_LANES, sum[r], 1);
        sum[r] += __shfl_xor_sync(ALL_LANES, sum[r], 2);
        i64 row = first_row + g + 8 * r;
        if (row >= p.rows) continue;
        float shrink, factor = factor_of(p, head, row, most[r], sum[r], shrink);
        i64 of = row / p.group, h = head * p.group + row % p.group;
        float* y = (float*)p.y.data + ((batch * p.y.ne[2] + of) * p.y.ne[1] + h) * p.y.ne[0];
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            int channel = 8 * n + 2 * j;
            if (channel >= p.v.ne[0]) continue;
            const float* of_row = found[r / 2][n] + 2 * (r % 2);
            F2 both = {of_row[0] * shrink * factor, of_row[1] * shrink * factor};
            *(F2*)(y + channel) = both;
        }
    }
}

#define PROMPT(D, kind, BRAIN)                                                                                 \
    KERNEL_BLOCKS(prompt_##D##_##kind, AttentionParams, 128, 2) { attend_prompt<D, BRAIN, false>(p); }         \
    KERNEL_BLOCKS(prompt_paged_##D##_##kind, AttentionParams, 128, 2) { attend_prompt<D, BRAIN, true>(p); }
#if !defined(ONLY) || defined(ONLY_half)
PROMPT(64, half, false)
PROMPT(128, half, false)
#endif
#if (!defined(ONLY) || defined(ONLY_brain)) && (defined(OXCART_EMULATE) || ARCH >= 800 || !defined(__CUDA_ARCH__))
PROMPT(64, brain, true)
PROMPT(128, brain, true)
#endif
