// Attention for many queries: a block has 64 to 192 of them, which go over keys and values in shared memory together.
//
// Queries that share keys are rows of one matrix, 16 for each warp, or twice 16 where registers have room, so that what is read from
// shared memory is multiplied twice. 64 keys and their values come to shared memory at a time, the next ones while these are
// multiplied. Scores stay in registers, where they are what the second product wants. On Hopper groups of four warps multiply 64
// queries, by the matrix instruction that takes keys and values from shared memory itself, while other groups weigh their scores.
//
// Which keys a query sees is said by a mask, or, where keys lie in pages, by the sequence and the position of its token. Then
// tokens of one sequence go over its pages together, and pages that none of them sees are not read.
#include "attention.cuh"
#include "mma.cuh"
#include "pipe.cuh"
#if !defined(OXCART_EMULATE) && ARCH >= 900
#define BY_GROUPS 1
#include "wgmma.cuh"
#else
#define BY_GROUPS 0
#endif

const int PROMPT_KEYS = 64;

template <bool BRAIN> DEVICE u32 pair_of(float low, float high) { return BRAIN ? pack_brain(low, high) : pack_half(low, high); }

// ---- what queries see ----

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

// A query of a lane: what it may see, and what it found so far but for values.
struct Query {
    const u16* mask;
    float slope;
    i32 token;        // negative for none
    i32 first, last;  // the positions that it sees, where keys lie in pages; none while another segment's are gone over
    float most, sum;  // the largest score, and the sum of weights relative to it
};

// The query that is row `row` of those with this head of keys, and its channels as a lane multiplies them: channels 2 j and the next of
// each eight.
template <int D, bool BRAIN, bool PAGED> DEVICE Query query_of(const AttentionParams& p, i64 head, i64 batch, i64 row, u32 (&channels)[D / 8]) {
    bool real = row < p.rows;
    i32 token = real ? (i32)row / (i32)p.group : -1;
    i64 h = head * p.group + (real ? (i32)row % (i32)p.group : 0);
    Query out = {nullptr, slope_of(h, p) * LOG2_E, token, 0, -1, -INFINITY, 0.0f};
    if (!PAGED && real && p.mask.data) out.mask = (const u16*)at(p.mask, token, h % p.mask.ne[2], batch % p.mask.ne[3]);
    const float* q = (const float*)at(p.q, real ? token : 0, h, batch);
#pragma unroll
    for (int n = 0; n < D / 8; n++) {
        int channel = 8 * n + 2 * (lane_number() % 4);
        bool there = real && channel < p.q.ne[0];
        channels[n] = there ? pair_of<BRAIN>(q[channel], q[channel + 1]) : 0;
    }
    return out;
}

// The positions that some of a lane's queries see, and those that all do.
struct Sight {
    i32 first, last, all_first, all_last;
};

template <bool PAGED> DEVICE void look(const AttentionParams& p, const Segment& segment, Query& query, Sight& sight) {
    if (!PAGED) return;
    query.first = 0x7fffffff, query.last = -1;
    if (query.token >= segment.first_token && query.token <= segment.last_token) {
        Owner owner = owner_of(p, query.token);
        if (owner.sequence >= 0) query.first = owner.first, query.last = owner.last;
    }
    sight.first = query.first < sight.first ? query.first : sight.first, sight.last = query.last > sight.last ? query.last : sight.last;
    sight.all_first = query.first > sight.all_first ? query.first : sight.all_first, sight.all_last = query.last < sight.all_last ? query.last : sight.all_last;
}

// Whether all queries of a warp see all keys of a tile, as they are.
template <bool PAGED> DEVICE bool sees_all(const AttentionParams& p, const Sight& sight, i64 key) {
    if (PAGED) return p.max_bias <= 0.0f && __all_sync(ALL_LANES, sight.all_first <= key && sight.all_last >= key + PROMPT_KEYS - 1);
    return !p.mask.data && key + PROMPT_KEYS <= p.keys;
}

// What a mask says of keys `at`, which is even, and the next, in half precision; for keys that are not there it is minus infinity.
const u32 UNSEEN = 0xfc00;
DEVICE u32 mask_of(const AttentionParams& p, const Query& query, i64 at) {
    if (query.token < 0 || at >= p.keys) return UNSEEN << 16 | UNSEEN;
    bool both = at + 1 < p.keys;
    if (!query.mask) return both ? 0 : UNSEEN << 16;
    const u16* from = query.mask + at;
    if (both && ((u64)from & 3) == 0) return *(const u32*)from;
    return (u32)from[0] | (both ? (u32)from[1] : UNSEEN) << 16;
}

// Makes scores of keys from `key` on exponents of weights; what was found before is to be multiplied by the result. The query is the
// lower or the upper one of a lane.
template <int N, bool PAGED> DEVICE float weigh(const AttentionParams& p, Query& query, bool upper, float (&score)[4 * N], const u32 (&mask)[N], i64 key, bool all, float scale) {
    // Loop by loop, so that a loop is one run of instructions without a branch. Rounded at every step, so that it is the same whether
    // all keys are seen or not.
    if (p.softcap == 0.0f) {
#pragma unroll
        for (int i = 0; i < 2 * N; i++) {
            float& kept = score[4 * (i / 2) + 2 * upper + i % 2];
            kept = __fmul_rn(kept, scale);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 2 * N; i++) {
            float& kept = score[4 * (i / 2) + 2 * upper + i % 2];
            kept = p.softcap * LOG2_E * tanhf(__fmul_rn(kept, scale));
        }
    }
    if (!all) {
        i32 first_at = (i32)key + 2 * (lane_number() % 4);
#pragma unroll
        for (int i = 0; i < 2 * N; i++) {
            float& kept = score[4 * (i / 2) + 2 * upper + i % 2];
            float bias;
            if (PAGED) {
                i32 at = first_at + 8 * (i / 2) + i % 2;
                bias = p.max_bias > 0.0f ? -query.slope * (float)(query.last - at) : 0.0f;
                bias = at >= query.first && at <= query.last ? bias : -INFINITY;
            } else {
                bias = query.slope * from_half((u16)(i % 2 ? mask[i / 2] >> 16 : mask[i / 2]));
            }
            kept = __fadd_rn(kept, bias);
        }
    }
    float larger = query.most;
#pragma unroll
    for (int i = 0; i < 2 * N; i++) larger = fmaxf(larger, score[4 * (i / 2) + 2 * upper + i % 2]);
    larger = fmaxf(larger, __shfl_xor_sync(ALL_LANES, larger, 1));
    larger = fmaxf(larger, __shfl_xor_sync(ALL_LANES, larger, 2));
    float shrink = larger == query.most ? 1.0f : fast_exp2(query.most - larger);
    query.most = larger, query.sum = __fmul_rn(query.sum, shrink);
    return shrink;
}

// Weights of 16 keys, as the product with their values wants them.
template <bool BRAIN> DEVICE void weights_of(const float* score, Query& lower, Query& upper, u32 (&weight)[4]) {
    float base[2] = {lower.most == -INFINITY ? 0.0f : lower.most, upper.most == -INFINITY ? 0.0f : upper.most};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float w[4];
#pragma unroll
        for (int e = 0; e < 4; e++) w[e] = fast_exp2(score[4 * half + e] - base[e / 2]);
        lower.sum = __fadd_rn(lower.sum, __fadd_rn(w[0], w[1]));
        upper.sum = __fadd_rn(upper.sum, __fadd_rn(w[2], w[3]));
        weight[2 * half] = pair_of<BRAIN>(w[0], w[1]), weight[2 * half + 1] = pair_of<BRAIN>(w[2], w[3]);
    }
}

// Writes what a query found; the lane has channels 2 j and the next of each eight.
template <int D> DEVICE void write_found(const AttentionParams& p, i64 head, i64 batch, i64 row, Query& query, bool upper, const float (&found)[D / 2]) {
    float sum = query.sum;
    sum += __shfl_xor_sync(ALL_LANES, sum, 1);
    sum += __shfl_xor_sync(ALL_LANES, sum, 2);
    if (row >= p.rows) return;
    float shrink, factor = factor_of(p, head, row, query.most, sum, shrink);
    i64 of = row / p.group, h = head * p.group + row % p.group;
    float* y = (float*)p.y.data + ((batch * p.y.ne[2] + of) * p.y.ne[1] + h) * p.y.ne[0];
#pragma unroll
    for (int n = 0; n < D / 8; n++) {
        int channel = 8 * n + 2 * (lane_number() % 4);
        if (channel >= p.v.ne[0]) continue;
        const float* of_row = found + 4 * n + 2 * upper;
        F2 both = {of_row[0] * shrink * factor, of_row[1] * shrink * factor};
        *(F2*)(y + channel) = both;
    }
}

// ---- tiles ----

// Where 16 bytes (eight channels) of a row lie, so that rows that are read together do not meet in a bank; for groups, in lines of 128
// bytes, as their instruction wants it.
template <int D> DEVICE u32 place_in_tile(int row, int piece) {
    if (BY_GROUPS) return 128 * (PROMPT_KEYS * (piece / 8) + row) + 16 * (piece % 8 ^ row & 7);
    return 2 * D * row + 16 * (piece ^ (row & 7));
}

// Begins to bring a tile of keys and values, by so many warps.
template <int D, bool PAGED, int WARPS> DEVICE void begin_tile(const AttentionParams& p, i64 head, i64 batch, i32 sequence, i64 tile, u8* keys, u8* values) {
    const int PIECES = D / 8, AT_ONCE = 32 * WARPS / PIECES, LINE = BY_GROUPS ? 128 : 2 * D;
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
        if (PROMPT_KEYS % AT_ONCE != 0 && row + i >= PROMPT_KEYS) break;
        // Rows are a multiple of eight apart, so their place within a line is the same.
        bool real = row + i < left;
        copy_16_or_zero(keys + to + LINE * i, real ? k : (const u8*)p.k.data, real && k_there);
        copy_16_or_zero(values + to + LINE * i, real ? v : (const u8*)p.v.data, real && v_there);
        k += k_step, v += v_step;
    }
}

// Which queries and which head of keys a block has. The last queries see the most keys: they begin first.
DEVICE void place_of_block(int rows, i64& head, i64& row) {
    u32 n = blockIdx.x + gridDim.x * blockIdx.y;
    head = n % gridDim.y;
    row = (i64)(gridDim.x - 1 - n / gridDim.y) * rows;
}

#if !BY_GROUPS

#define PROMPT_THREADS(D) 128
#define PROMPT_BLOCKS(D) 2
const int PROMPT_WARPS = 4;
// Rows of 16 queries that a warp has.
template <int D> DEVICE constexpr int prompt_sets() { return D == 64 ? 2 : 1; }

template <bool BRAIN> DEVICE void times(float* d, const u32 (&a)[4], u32 b0, u32 b1) {
    float(&four)[4] = *(float(*)[4])d;
#if defined(OXCART_EMULATE) || ARCH >= 800
    if (BRAIN) {
        mma_brain(four, a, b0, b1);
        return;
    }
#endif
    mma_half(four, a, b0, b1);
}

template <int D, bool BRAIN, bool PAGED> DEVICE void attend_prompt(const AttentionParams& p) {
    wait_for_previous();
    next_may_start();
    const int TILE = PROMPT_KEYS * D * 2, SETS = prompt_sets<D>(), PROMPT_ROWS = 16 * SETS * PROMPT_WARPS;
    // Keys whose scores are in registers at a time.
    const int PROMPT_SCORES = 64 / SETS;
    int warp = warp_number(), lane = lane_number(), g = lane / 4, j = lane % 4;
    i64 head, block_row, batch = blockIdx.z;
    place_of_block(PROMPT_ROWS, head, block_row);
    i64 first_row = block_row + 16 * SETS * warp;
    u8 *keys = dynamic_shared, *values = dynamic_shared + 2 * TILE;

    // Of a lane's queries, 2 i and 2 i + 1 are in row i of them.
    u32 channels[SETS][D / 16][4];
    Query query[2 * SETS];
    float found[SETS][D / 2];
#pragma unroll
    for (int r = 0; r < 2 * SETS; r++) {
        u32 own[D / 8];
        query[r] = query_of<D, BRAIN, PAGED>(p, head, batch, first_row + g + 8 * r, own);
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            channels[r / 2][n / 2][r % 2 + 2 * (n % 2)] = own[n];
            found[r / 2][4 * n + 2 * (r % 2)] = found[r / 2][4 * n + 2 * (r % 2) + 1] = 0.0f;
        }
    }
    float scale = p.softcap != 0.0f ? p.scale / p.softcap : p.scale * LOG2_E;

    i64 token = block_row / p.group, last_token = at_most(block_row + PROMPT_ROWS - 1, p.rows - 1) / p.group;
#pragma unroll 1
    while (token <= last_token) {
        Segment segment = segment_from<PAGED>(p, token, last_token);
        token = segment.last_token + 1;
        if (segment.first >= segment.last) continue;
        Sight sight = {0x7fffffff, -1, 0, 0x7fffffff};
#pragma unroll
        for (int r = 0; r < 2 * SETS; r++) look<PAGED>(p, segment, query[r], sight);
        begin_tile<D, PAGED, PROMPT_WARPS>(p, head, batch, segment.sequence, segment.first, keys, values);
        copies_begun();
        int side = 0;
#pragma unroll 1
        for (i64 tile = segment.first; tile < segment.last; tile++, side ^= 1) {
            if (tile + 1 < segment.last) begin_tile<D, PAGED, PROMPT_WARPS>(p, head, batch, segment.sequence, tile + 1, keys + (side ^ 1) * TILE, values + (side ^ 1) * TILE);
            copies_begun();
            copies_done<1>();
            __syncthreads();
            i64 key = PROMPT_KEYS * tile;
            // Whether any of this warp's queries sees any of these keys, and whether all see all.
            bool any = !PAGED || __any_sync(ALL_LANES, sight.first < key + PROMPT_KEYS && sight.last >= key), all = sees_all<PAGED>(p, sight, key);
#pragma unroll 1
            for (int from = 0; any && from < PROMPT_KEYS; from += PROMPT_SCORES) {
                const u8 *k = keys + side * TILE + 2 * D * from, *v = values + side * TILE + 2 * D * from;
                float score[SETS][PROMPT_SCORES / 2];
#pragma unroll
                for (int n = 0; n < PROMPT_SCORES / 8; n++) {
#pragma unroll
                    for (int i = 0; i < SETS; i++)
#pragma unroll
                        for (int e = 0; e < 4; e++) score[i][4 * n + e] = 0.0f;
#pragma unroll
                    for (int s = 0; s < D / 16; s += 2) {
                        u32 b[4];
                        load_matrices(b, k + place_in_tile<D>(8 * n + lane % 8, 2 * s + lane / 8));
#pragma unroll
                        for (int i = 0; i < SETS; i++) {
                            times<BRAIN>(score[i] + 4 * n, channels[i][s], b[0], b[1]);
                            times<BRAIN>(score[i] + 4 * n, channels[i][s + 1], b[2], b[3]);
                        }
                    }
                }
#pragma unroll
                for (int r = 0; r < 2 * SETS; r++) {
                    u32 mask[PROMPT_SCORES / 8];
#pragma unroll
                    for (int n = 0; n < PROMPT_SCORES / 8; n++) mask[n] = PAGED || all ? 0 : mask_of(p, query[r], key + from + 8 * n + 2 * j);
                    float shrink = weigh<PROMPT_SCORES / 8, PAGED>(p, query[r], r % 2, score[r / 2], mask, key + from, all, scale);
                    if (!__any_sync(ALL_LANES, shrink != 1.0f)) continue;
#pragma unroll
                    for (int n = 0; n < D / 8; n++) found[r / 2][4 * n + 2 * (r % 2)] *= shrink, found[r / 2][4 * n + 2 * (r % 2) + 1] *= shrink;
                }
#pragma unroll
                for (int t = 0; t < PROMPT_SCORES / 16; t++) {
                    u32 weight[SETS][4];
#pragma unroll
                    for (int i = 0; i < SETS; i++) weights_of<BRAIN>(score[i] + 8 * t, query[2 * i], query[2 * i + 1], weight[i]);
#pragma unroll
                    for (int n = 0; n < D / 8; n += 2) {
                        u32 b[4];
                        load_matrices_turned(b, v + place_in_tile<D>(16 * t + lane % 16, n + lane / 16));
#pragma unroll
                        for (int i = 0; i < SETS; i++) {
                            times<BRAIN>(found[i] + 4 * n, weight[i], b[0], b[1]);
                            times<BRAIN>(found[i] + 4 * n + 4, weight[i], b[2], b[3]);
                        }
                    }
                }
            }
            __syncthreads();
        }
        copies_done<0>();
    }
#pragma unroll
    for (int r = 0; r < 2 * SETS; r++) write_found<D>(p, head, batch, first_row + g + 8 * r, query[r], r % 2, found[r / 2]);
}

#else

// Groups of four warps of a block, and tiles that are under way or multiplied. Several groups of a multiprocessor take turns with its
// matrix unit.
#define PROMPT_THREADS(D) (D == 64 ? 256 : 384)
#define PROMPT_BLOCKS(D) (D == 64 ? 2 : 1)
const int STAGES = 3;

template <bool BRAIN, int TURNED, int N> DEVICE void times(float (&d)[N], const u32 (&a)[4], u64 b, int add) {
    if (BRAIN) wgmma_brain<TURNED>(d, a, b, add);
    else wgmma_half<TURNED>(d, a, b, add);
}

// How the matrix instruction finds lines of 128 bytes that are swizzled in groups of eight; 64 channels further is the next tile.
DEVICE u64 describe(const u8* tile) {
    return (u64)(shared_address(tile) >> 4 & 0x3fff) | (u64)(PROMPT_KEYS * 128 >> 4) << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}
// What copies wrote is there for the matrix instruction.
DEVICE void copies_are_seen() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

template <int D, bool BRAIN, bool PAGED> DEVICE void attend_prompt(const AttentionParams& p) {
    wait_for_previous();
    next_may_start();
    const int TILE = PROMPT_KEYS * D * 2, WARPS = PROMPT_THREADS(D) / 32, PROMPT_ROWS = 16 * WARPS, N = PROMPT_KEYS / 8;
    int g = lane_number() / 4, j = lane_number() % 4;
    i64 head, block_row, batch = blockIdx.z;
    place_of_block(PROMPT_ROWS, head, block_row);
    i64 first_row = block_row + 16 * warp_number();
    // Of each stage, keys and then values.
    u8* memory = (u8*)(((u64)dynamic_shared + 1023) & ~(u64)1023);

    u32 channels[D / 16][4];
    Query query[2];
    float found[D / 2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        u32 own[D / 8];
        query[r] = query_of<D, BRAIN, PAGED>(p, head, batch, first_row + g + 8 * r, own);
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            channels[n / 2][r + 2 * (n % 2)] = own[n];
            found[4 * n + 2 * r] = found[4 * n + 2 * r + 1] = 0.0f;
        }
    }
    float scale = p.softcap != 0.0f ? p.scale / p.softcap : p.scale * LOG2_E;

    i64 token = block_row / p.group, last_token = at_most(block_row + PROMPT_ROWS - 1, p.rows - 1) / p.group;
#pragma unroll 1
    while (token <= last_token) {
        Segment segment = segment_from<PAGED>(p, token, last_token);
        token = segment.last_token + 1;
        if (segment.first >= segment.last) continue;
        Sight sight = {0x7fffffff, -1, 0, 0x7fffffff};
        look<PAGED>(p, segment, query[0], sight);
        look<PAGED>(p, segment, query[1], sight);
#pragma unroll
        for (int i = 0; i < STAGES - 1; i++) {
            u8* to = memory + 2 * TILE * i;
            if (segment.first + i < segment.last) begin_tile<D, PAGED, WARPS>(p, head, batch, segment.sequence, segment.first + i, to, to + TILE);
            copies_begun();
        }
        int stage = 0, last = (int)segment.last;
#pragma unroll 1
        for (int tile = (int)segment.first; tile < last; tile++) {
            i64 key = (i64)PROMPT_KEYS * tile;
            bool all = sees_all<PAGED>(p, sight, key);
            // A tile that a mask hides from all queries of the block is passed over.
            u32 mask[2][N];
            bool sees = false;
#pragma unroll
            for (int r = 0; r < 2; r++) {
#pragma unroll
                for (int n = 0; n < N; n++) {
                    mask[r][n] = PAGED || all ? 0 : mask_of(p, query[r], key + 8 * n + 2 * j);
                    sees = sees || mask[r][n] != (UNSEEN << 16 | UNSEEN);
                }
            }
            copies_done<STAGES - 2>();
            copies_are_seen();
            bool is_seen = true;
            if (PAGED) __syncthreads();
            else is_seen = __syncthreads_or(sees);
            const u8* keys = memory + 2 * TILE * stage;
            // What the tile before had may be overwritten: no group multiplies it any longer.
            int behind = stage == 0 ? STAGES - 1 : stage - 1;
            stage = stage == STAGES - 1 ? 0 : stage + 1;
            auto begin_next = [&] {
                u8* to = memory + 2 * TILE * behind;
                if (tile + STAGES - 1 < last) begin_tile<D, PAGED, WARPS>(p, head, batch, segment.sequence, tile + STAGES - 1, to, to + TILE);
                copies_begun();
            };
            if (!PAGED && !is_seen) {
                begin_next();
                continue;
            }
            float score[4 * N];
            u64 b = describe(keys);
            wgmma_begins();
#pragma unroll
            for (int s = 0; s < D / 16; s++) times<BRAIN, 0>(score, channels[s], b + 2 * (s % 4) + (s / 4) * (PROMPT_KEYS * 128 >> 4), s > 0);
            wgmma_begun();
            begin_next();
            wgmma_done<0>();
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float shrink = weigh<N, PAGED>(p, query[r], r, score, mask[r], key, all, scale);
                if (!__any_sync(ALL_LANES, shrink != 1.0f)) continue;
#pragma unroll
                for (int n = 0; n < D / 8; n++) found[4 * n + 2 * r] *= shrink, found[4 * n + 2 * r + 1] *= shrink;
            }
            u32 weight[PROMPT_KEYS / 16][4];
            b = describe(keys + TILE);
#pragma unroll
            for (int t = 0; t < PROMPT_KEYS / 16; t++) {
                weights_of<BRAIN>(score + 8 * t, query[0], query[1], weight[t]);
                wgmma_begins();
                times<BRAIN, 1>(found, weight[t], b + t * (16 * 128 >> 4), 1);
            }
            wgmma_begun();
            wgmma_done<0>();
        }
        copies_done<0>();
        __syncthreads();
    }
    write_found<D>(p, head, batch, first_row + g, query[0], false, found);
    write_found<D>(p, head, batch, first_row + g + 8, query[1], true, found);
}

#endif

#define PROMPT(D, kind, BRAIN)                                                                                                         \
    KERNEL_BLOCKS(prompt_##D##_##kind, AttentionParams, PROMPT_THREADS(D), PROMPT_BLOCKS(D)) { attend_prompt<D, BRAIN, false>(p); } \
    KERNEL_BLOCKS(prompt_paged_##D##_##kind, AttentionParams, PROMPT_THREADS(D), PROMPT_BLOCKS(D)) { attend_prompt<D, BRAIN, true>(p); }
#if !defined(ONLY) || defined(ONLY_half)
PROMPT(64, half, false)
PROMPT(128, half, false)
#endif
#if (!defined(ONLY) || defined(ONLY_brain)) && (defined(OXCART_EMULATE) || ARCH >= 800 || !defined(__CUDA_ARCH__))
PROMPT(64, brain, true)
PROMPT(128, brain, true)
#endif
