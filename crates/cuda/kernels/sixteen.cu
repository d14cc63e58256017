// Columns as 16-bit numbers, and columns in the order of their experts: what comes before products of many columns.
#include "math.cuh"
#include "tiles.cuh"

struct SixteenParams {
    u64 x;
    i64 x_nb[2];     // bytes from column to column, and from token to token
    i64 per_token;   // columns of a token
    i64 k, padded;   // elements of a column, and of one of the result
    i64 columns;
    u64 to;
    u64 norm;        // weights of a norm; 0 for none
    float eps;
    i32 norms, brain;
    i32 type;        // of x
};

// One block per column. Where its numbers are 32 bits wide and begin at pieces of 16 bytes, a thread takes eight at a time.
KERNEL(columns_to_sixteen, SixteenParams, 256) {
    wait_for_previous();
    next_may_start();
    i64 c = p.per_token == p.columns ? 0 : blockIdx.x / p.per_token;
    const u8* x = (const u8*)p.x + (blockIdx.x - c * p.per_token) * p.x_nb[0] + c * p.x_nb[1];
    u16* to = (u16*)p.to + blockIdx.x * p.padded;
    bool in_pieces = p.type == F32 && (((u64)x | p.norm) & 15) == 0 && p.k == p.padded;
    int fours = in_pieces ? (int)p.k / 4 : 0;
    const F4 *of = (const F4*)x, *weights = (const F4*)p.norm;
    i32 size = p.type == F32 ? 4 : 2;
    float factor = 1.0f;
    if (p.norms) {
        float squares = 0.0f;
        for (int i = threadIdx.x; i < fours; i += blockDim.x) {
            F4 four = of[i];
            squares += four.x * four.x + four.y * four.y + four.z * four.z + four.w * four.w;
        }
        for (i64 i = 4 * fours + threadIdx.x; i < p.k; i += blockDim.x) {
            float value = load(x + i * size, p.type);
            squares += value * value;
        }
        factor = 1.0f / sqrtf(block_sum(squares) / (float)p.k + p.eps);
    }
    for (int i = threadIdx.x; i < fours / 2; i += blockDim.x) {
        u32 words[4];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            F4 four = of[2 * i + half];
            four.x *= factor, four.y *= factor, four.z *= factor, four.w *= factor;
            if (weights) {
                F4 w = weights[2 * i + half];
                four.x *= w.x, four.y *= w.y, four.z *= w.z, four.w *= w.w;
            }
            words[2 * half] = p.brain ? pack_brain(four.x, four.y) : pack_half(four.x, four.y);
            words[2 * half + 1] = p.brain ? pack_brain(four.z, four.w) : pack_half(four.z, four.w);
        }
        U4 eight = {words[0], words[1], words[2], words[3]};
        ((U4*)to)[i] = eight;
    }
    for (i64 i = 4 * fours + 2 * threadIdx.x; i < p.padded; i += 2 * blockDim.x) {
        float low = 0.0f, high = 0.0f;
        if (i < p.k) {
            low = load(x + i * size, p.type) * factor;
            if (p.norm) low *= ((const float*)p.norm)[i];
        }
        if (i + 1 < p.k) {
            high = load(x + (i + 1) * size, p.type) * factor;
            if (p.norm) high *= ((const float*)p.norm)[i + 1];
        }
        *(u32*)(to + i) = p.brain ? pack_brain(low, high) : pack_half(low, high);
    }
}

struct OrderParams {
    u64 ids;
    i64 ids_nb[2];
    i64 used, tokens, experts;
    i64 tile;        // columns of a tile
    u64 order, starts, tiles;
    u64 faults;
};

// Columns sorted by expert, keeping their order within each, by one block; where each expert's begin, and its tiles.
KERNEL(order_by_expert, OrderParams, 1024) {
    wait_for_previous();
    i32 *order = (i32*)p.order, *starts = (i32*)p.starts, *tiles = (i32*)p.tiles;
    i64 count = p.used * p.tokens;
    auto id_of = [&](i64 n) { return *(const i32*)((const u8*)p.ids + n % p.used * p.ids_nb[0] + n / p.used * p.ids_nb[1]); };
    // How many each has: a warp per expert, so that nothing depends on who comes first.
    for (i64 e = warp_number(); e < p.experts; e += blockDim.x / 32) {
        int mine = 0;
        for (i64 n = lane_number(); n < count; n += 32) mine += id_of(n) == e;
        mine = warp_sum(mine);
        if (lane_number() == 0) starts[e + 1] = mine;
    }
    for (i64 n = threadIdx.x; n < count; n += blockDim.x) {
        i32 id = id_of(n);
        if (id < 0 || id >= p.experts) report(p.faults, BAD_EXPERT);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        i32 sum = 0, tile = 0;
        starts[0] = tiles[0] = 0;
        for (i64 e = 0; e < p.experts; e++) {
            i32 own = starts[e + 1];
            sum += own, tile += (i32)((own + p.tile - 1) / p.tile);
            starts[e + 1] = sum, tiles[e + 1] = tile;
        }
    }
    __syncthreads();
    for (i64 e = warp_number(); e < p.experts; e += blockDim.x / 32) {
        i32 at = starts[e];
        for (i64 first = 0; first < count; first += 32) {
            i64 n = first + lane_number();
            bool own = n < count && id_of(n) == e;
            u32 votes = __ballot_sync(ALL_LANES, own);
            if (own) order[at + __popc(votes & ((1u << lane_number()) - 1))] = (i32)n;
            at += __popc(votes);
        }
    }
}
