// Attention for few tokens: what decoding is made of, as fast as keys and values are read.
//
// A block has one token and one head of keys, with the queries that share it, eight at most; blocks share the keys of a token,
// and the last one joins what all found. Each warp brings 16 keys and values at a time to shared memory of its own, several
// such tiles ahead, and multiplies them there by matrix instructions, of which half of the rows stay empty.
//
// Where a launch has one token, it may also turn that token's queries and key and put key and value into their caches. Old keys
// and values, and everything that is known before the token's own numbers are, are then read before the kernel before has ended;
// the token's own row never comes from the cache, so no block waits for the one that writes it.
//
// Code that runs once is as slow as it is long: what is not in the loop is kept short rather than unrolled.
#include "attention.cuh"
#include "rope.cuh"
#include "mma.cuh"
#include "pipe.cuh"

const int DECODE_WARPS = 4, DECODE_QUERIES = 8, DECODE_KEYS = 16, DECODE_STAGES = 3;

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

struct FreshParams {
    AttentionParams of;
    RopeParams rope;  // its jobs are queries, keys and values; one token
};

// What a launch with one token puts into the caches, in shared memory.
struct Fresh {
    i64 cell;        // where it goes; -1 for nowhere
    const u8 *k, *v; // as the caches have it
};

// The row of a tile that is the token's own; -1 for none.
DEVICE int own_row(const Fresh& fresh, i64 cell) { return cell >= 0 && fresh.cell >= cell && fresh.cell < cell + DECODE_KEYS ? (int)(fresh.cell - cell) : -1; }

// Puts the token's own row into a tile, in place of the zeros that the same lanes brought there.
template <int D> DEVICE void put_own(const Fresh& fresh, int own, u8* to) {
    const int PIECES = D / 8, AT_ONCE = 32 / PIECES;
    int piece = lane_number() % PIECES;
    if (own % AT_ONCE != lane_number() / PIECES) return;
    *(U4*)(to + place_in_tile<D>(own, piece)) = *(const U4*)(fresh.k + 16 * piece);
    *(U4*)(to + DECODE_KEYS * D * 2 + place_in_tile<D>(own, piece)) = *(const U4*)(fresh.v + 16 * piece);
}

// Begins to bring a tile of keys and the values after them, the token's own row only if it is known by now.
template <int D, bool PAGED, bool FRESH, bool KNOWN> DEVICE void begin_tile(const AttentionParams& p, int head, i64 batch, i32 sequence, int key, int last, const Fresh& fresh, u8* to) {
    const int PIECES = D / 8, AT_ONCE = 32 / PIECES;
    int piece = lane_number() % PIECES, row = lane_number() / PIECES;
    i64 cell = PAGED ? page_start(p, sequence, key) : key;
    bool k_there = cell >= 0 && 8 * piece < p.k.ne[0], v_there = cell >= 0 && 8 * piece < p.v.ne[0];
    const u8 *k = at(p.k, cell + row, head, batch) + 16 * piece, *v = at(p.v, cell + row, head, batch) + 16 * piece;
    // The token's own row does not come from the cache, which is being written.
    int own = FRESH ? own_row(fresh, cell) : -1;
#pragma unroll
    for (int i = 0; i < DECODE_KEYS; i += AT_ONCE) {
        bool there = key + row + i <= last && !(FRESH && row + i == own), k_real = k_there && there, v_real = v_there && there;
        copy_16_or_zero(to + place_in_tile<D>(row + i, piece), k_real ? k + i * p.k.nb[1] : (const u8*)p.k.data, k_real);
        copy_16_or_zero(to + DECODE_KEYS * D * 2 + place_in_tile<D>(row + i, piece), v_real ? v + i * p.v.nb[1] : (const u8*)p.v.data, v_real);
    }
    if (!FRESH || !KNOWN || own < 0) return;
    copies_begun();
    copies_done<0>();
    if (key + own <= last) put_own<D>(fresh, own, to);
}

// A channel of a head after its turn.
DEVICE float turned(const RopeParams& p, const F2* turns, const float* x, int channel) {
    int pairs = p.n_dims / 2, at = channel - p.first_channel;
    if (at < 0 || at >= 2 * pairs) return x[channel];
    bool second = p.mode == NORMAL ? at & 1 : at >= pairs;
    int pair = p.mode == NORMAL ? at / 2 : second ? at - pairs : at, apart = p.mode == NORMAL ? 1 : pairs;
    F2 turn = turns[pair];
    float other = x[second ? channel - apart : channel + apart], own = x[channel];
    return second ? other * turn.y + own * turn.x : own * turn.x - other * turn.y;
}

// Copies 4 bytes to shared memory without waiting.
DEVICE void copy_4(u8* to, const u8* from) {
#if !defined(OXCART_EMULATE) && ARCH >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
#else
    *(u32*)to = *(const u32*)from;
#endif
}

// Brings the queries of a head, its key and its value to shared memory, all at once: reading takes long while the kernel after this one
// already reads its weights.
template <int D> DEVICE void bring_fresh(const RopeParams& p, int head, int group, float* to) {
#pragma unroll 1
    for (int n = threadIdx.x; n < (group + 2) * D; n += 32 * DECODE_WARPS) {
        int which = n / D;
        const u8* row = which < group ? at(p.job[0].a, (i64)head * group + which, 0, 0) : which == group ? at(p.job[1].a, head, 0, 0) : (const u8*)p.job[2].a.data + 4 * head * D;
        copy_4((u8*)(to + n), row + 4 * (n % D));
    }
    copies_begun();
    copies_done<0>();
}

// Turns the queries of a head, its key too, and rounds key and value as the caches have them.
template <int D, bool BRAIN> DEVICE void take_fresh(const RopeParams& p, const float* from, int group, const F2* turns, float* queries, u16* k, u16* v) {
#pragma unroll 2
    for (int n = threadIdx.x; n < (group + 2) * D; n += 32 * DECODE_WARPS) {
        int which = n / D, channel = n % D;
        const float* row = from + which * D;
        float x = which <= group ? turned(p, turns, row, channel) : row[channel];
        if (which < group) {
            queries[n] = x;
        } else {
            (which == group ? k : v)[channel] = BRAIN ? to_brain(x) : to_half(x);
        }
    }
}

template <int D, bool BRAIN, bool PAGED, bool FRESH> DEVICE void attend_few(const AttentionParams& p, const RopeParams* rope) {
    if (!FRESH) wait_for_previous();
    next_may_start();
    const int TILE = DECODE_KEYS * D * 4, WIDE = D + 2;
    int warp = warp_number(), lane = lane_number(), g = lane / 4, j = lane % 4;
    i64 batch = blockIdx.z;
    int heads = (int)p.k.ne[2], head = blockIdx.y % heads, token = blockIdx.y / heads, group = (int)p.group;
    // The keys of the token, and of this block, in tiles.
    int seen_first = 0, last = (int)p.keys - 1;
    i32 sequence = 0;
    if (PAGED) {
        Owner owner = owner_of(p, token);
        seen_first = owner.first, last = owner.sequence < 0 ? -1 : owner.last, sequence = owner.sequence;
    }
    int first = seen_first / DECODE_KEYS, tiles = last < seen_first ? 0 : last / DECODE_KEYS + 1 - first, splits = (int)p.splits;
    int per = (tiles + splits - 1) / splits;
    per = per < 2 * DECODE_WARPS ? 2 * DECODE_WARPS : per;
    int blocks = (tiles + per - 1) / per;
    blocks = blocks < 1 ? 1 : blocks;
    if ((int)blockIdx.x >= blocks) return;
    int tile = first + blockIdx.x * per + warp, end = first + (blockIdx.x + 1) * per;
    end = end < first + tiles ? end : first + tiles;

    u8* memory = dynamic_shared + warp * DECODE_STAGES * TILE;
    // After the tiles: turns, queries, and what goes into the caches.
    F2* turns = (F2*)(dynamic_shared + DECODE_WARPS * DECODE_STAGES * TILE);
    float* queries = (float*)(turns + D / 2);
    u16 *own_k = (u16*)(queries + DECODE_QUERIES * D), *own_v = own_k + D;
    float* brought = (float*)(own_v + D);
    Fresh fresh = {-1, (const u8*)own_k, (const u8*)own_v};
    if (FRESH) fresh.cell = row_of_cache(*rope, rope->job[1], 0);
    int late = -1, late_row = -1;  // the stage whose tile has the token's own row, which is not there yet, and which row that is
#pragma unroll 1
    for (int i = 0; i < DECODE_STAGES; i++) {
        int at = tile + i * DECODE_WARPS;
        if (at < end) {
            if (FRESH && fresh.cell >= 0) {
                int row = own_row(fresh, page_start(p, sequence, DECODE_KEYS * at));
                if (row >= 0 && DECODE_KEYS * at + row <= last) late = i, late_row = row;
            }
            begin_tile<D, PAGED, FRESH, false>(p, head, batch, sequence, DECODE_KEYS * at, last, fresh, memory + i * TILE);
        }
        copies_begun();
    }
    if (FRESH) {
        if ((int)threadIdx.x < rope->n_dims / 2) turns[threadIdx.x] = turn_of(*rope, 0, threadIdx.x);
        wait_for_previous();
        bring_fresh<D>(*rope, head, group, brought);
        __syncthreads();
        take_fresh<D, BRAIN>(*rope, brought, group, turns, queries, own_k, own_v);
        __syncthreads();
        if (blockIdx.x == 0 && fresh.cell >= 0) {
            for (int n = threadIdx.x; n < 2 * D; n += 32 * DECODE_WARPS) {
                const RopeJob& job = rope->job[1 + n / D];
                ((u16*)at(job.y, fresh.cell, 0, 0))[head * D + n % D] = own_k[n];
            }
        }
        if (late >= 0) put_own<D>(fresh, late_row, memory + late * TILE);
    }
    // The query of this lane's row; rows from eight on are empty.
    u32 query[D / 16][4];
    bool real = g < group;
    i64 my_head = (i64)head * group + (real ? g : 0);
    const float* q = FRESH ? queries + (real ? g : 0) * D : (const float*)at(p.q, token, my_head, batch);
#pragma unroll
    for (int s = 0; s < D / 16; s++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int channel = 16 * s + 8 * half + 2 * j;
            // Queries need not begin at a multiple of eight bytes.
            bool there = real && channel < p.q.ne[0];
            query[s][2 * half] = there ? pair_of<BRAIN>(q[channel], q[channel + 1]) : 0, query[s][2 * half + 1] = 0;
        }
    }
    float scale = p.softcap != 0.0f ? p.scale / p.softcap : p.scale * LOG2_E, slope = slope_of(my_head, p) * LOG2_E;
    const u16* mask = !PAGED && p.mask.data ? (const u16*)at(p.mask, token, my_head % p.mask.ne[2], batch % p.mask.ne[3]) : nullptr;
    float most = -INFINITY, sum = 0.0f, found[D / 8][4];
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) found[n][e] = 0.0f;
    int slot = 0;
#pragma unroll 1
    for (; tile < end; tile += DECODE_WARPS) {
        copies_done<DECODE_STAGES - 1>();
        __syncwarp();
        const u8 *k = memory + slot * TILE, *v = k + DECODE_KEYS * D * 2;
        float score[2][4];
#pragma unroll
        for (int n = 0; n < 2; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) score[n][e] = 0.0f;
#pragma unroll
            for (int s = 0; s < D / 16; s += 2) {
                u32 b[4];
                load_matrices(b, k + place_in_tile<D>(8 * n + lane % 8, 2 * s + lane / 8));
                times<BRAIN>(score[n], query[s], b[0], b[1]);
                times<BRAIN>(score[n], query[s + 1], b[2], b[3]);
            }
        }
        float larger = most, mine[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int at = DECODE_KEYS * tile + 8 * (i / 2) + 2 * j + i % 2;
            float s = score[i / 2][i % 2] * scale;
            if (p.softcap != 0.0f) s = p.softcap * LOG2_E * tanhf(s);
            if (PAGED) {
                s = at < seen_first || at > last ? -INFINITY : p.max_bias > 0.0f ? s - slope * (float)(last - at) : s;
            } else {
                s = at > last ? -INFINITY : mask ? s + slope * from_half(mask[at]) : s;
            }
            mine[i] = s;
            larger = fmaxf(larger, s);
        }
        larger = fmaxf(larger, __shfl_xor_sync(ALL_LANES, larger, 1));
        larger = fmaxf(larger, __shfl_xor_sync(ALL_LANES, larger, 2));
        if (__any_sync(ALL_LANES, larger > most)) {
            float shrink = larger == most ? 1.0f : fast_exp2(most - larger);
            sum *= shrink, most = larger;
#pragma unroll
            for (int n = 0; n < D / 8; n++) found[n][0] *= shrink, found[n][1] *= shrink;
        }
        float base = most == -INFINITY ? 0.0f : most, w[4];
#pragma unroll
        for (int i = 0; i < 4; i++) w[i] = fast_exp2(mine[i] - base), sum += w[i];
        u32 weight[4] = {pair_of<BRAIN>(w[0], w[1]), 0, pair_of<BRAIN>(w[2], w[3]), 0};
#pragma unroll
        for (int n = 0; n < D / 8; n += 2) {
            u32 b[4];
            load_matrices_turned(b, v + place_in_tile<D>(lane % 16, n + lane / 16));
            times<BRAIN>(found[n], weight, b[0], b[1]);
            times<BRAIN>(found[n + 1], weight, b[2], b[3]);
        }
        __syncwarp();
        int ahead = tile + DECODE_STAGES * DECODE_WARPS;
        if (ahead < end) begin_tile<D, PAGED, FRESH, true>(p, head, batch, sequence, DECODE_KEYS * ahead, last, fresh, memory + slot * TILE);
        copies_begun();
        slot = slot == DECODE_STAGES - 1 ? 0 : slot + 1;
    }
    // Warps, then blocks.
    sum += __shfl_xor_sync(ALL_LANES, sum, 1);
    sum += __shfl_xor_sync(ALL_LANES, sum, 2);
    copies_done<0>();
    __syncthreads();
    float* shared = (float*)dynamic_shared;  // for each warp and query: the largest score, the sum, values
    float* own = shared + (warp * DECODE_QUERIES + g) * WIDE;
    if (j == 0) own[0] = most, own[1] = sum;
#pragma unroll
    for (int n = 0; n < D / 8; n++) {
        F2 both = {found[n][0], found[n][1]};
        *(F2*)(own + 2 + 8 * n + 2 * j) = both;
    }
    __syncthreads();
    i64 unit = batch * gridDim.y + blockIdx.y;
    float* parts = (float*)p.parts + unit * splits * DECODE_QUERIES * WIDE;
#pragma unroll 1
    for (int n = threadIdx.x; n < group * D; n += 32 * DECODE_WARPS) {
        int q = n / D, c = n % D;
        float largest = -INFINITY, total = 0.0f, weights = 0.0f;
#pragma unroll
        for (int w = 0; w < DECODE_WARPS; w++) largest = fmaxf(largest, shared[(w * DECODE_QUERIES + q) * WIDE]);
#pragma unroll
        for (int w = 0; w < DECODE_WARPS; w++) {
            const float* from = shared + (w * DECODE_QUERIES + q) * WIDE;
            float shrink = from[0] == -INFINITY ? 0.0f : fast_exp2(from[0] - largest);
            total += from[2 + c] * shrink, weights += from[1] * shrink;
        }
        if (blocks == 1) {
            float shrink, factor = factor_of(p, head, (i64)token * group + q, largest, weights, shrink);
            if (c < p.v.ne[0]) ((float*)p.y.data)[((batch * p.y.ne[2] + token) * p.y.ne[1] + (i64)head * group + q) * p.y.ne[0] + c] = total * shrink * factor;
        } else {
            float* to = parts + (blockIdx.x * DECODE_QUERIES + q) * WIDE;
            to[2 + c] = total;
            if (c == 0) to[0] = largest, to[1] = weights;
        }
    }
    if (blocks == 1) return;
    __shared__ bool is_last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicInc((u32*)p.counters + unit, (u32)blocks - 1) == (u32)blocks - 1;
    __syncthreads();
    if (!is_last) return;
    __threadfence();
#pragma unroll 1
    for (int n = threadIdx.x; n < group * D; n += 32 * DECODE_WARPS) {
        int q = n / D, c = n % D;
        float largest = -INFINITY, total = 0.0f, weights = 0.0f;
#pragma unroll 4
        for (int s = 0; s < blocks; s++) {
            const float* from = parts + (s * DECODE_QUERIES + q) * WIDE;
            float here = from[0], value = from[2 + c], weight = from[1], larger = fmaxf(largest, here);
            float old = largest == -INFINITY ? 0.0f : fast_exp2(largest - larger), fresh = here == -INFINITY ? 0.0f : fast_exp2(here - larger);
            total = total * old + value * fresh, weights = weights * old + weight * fresh, largest = larger;
        }
        float shrink, factor = factor_of(p, head, (i64)token * group + q, largest, weights, shrink);
        if (c < p.v.ne[0]) ((float*)p.y.data)[((batch * p.y.ne[2] + token) * p.y.ne[1] + (i64)head * group + q) * p.y.ne[0] + c] = total * shrink * factor;
    }
}

#define DECODE(D, kind, BRAIN)                                                                                     \
    KERNEL_BLOCKS(decode_##D##_##kind, AttentionParams, 128, 2) { attend_few<D, BRAIN, false, false>(p, nullptr); } \
    KERNEL_BLOCKS(decode_paged_##D##_##kind, AttentionParams, 128, 2) { attend_few<D, BRAIN, true, false>(p, nullptr); } \
    KERNEL_BLOCKS(decode_fresh_##D##_##kind, FreshParams, 128, 2) { attend_few<D, BRAIN, true, true>(p.of, &p.rope); }
#if !defined(ONLY) || defined(ONLY_half)
DECODE(64, half, false)
DECODE(128, half, false)
#endif
#if (!defined(ONLY) || defined(ONLY_brain)) && (defined(OXCART_EMULATE) || ARCH >= 800 || !defined(__CUDA_ARCH__))
DECODE(64, brain, true)
DECODE(128, brain, true)
#endif
