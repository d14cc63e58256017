// Products of many columns by matrix instructions, weights taken apart on the way.
//
// A block has some rows and some columns of the result. Rows of weights come to shared memory as they are; every lane takes
// whole units apart and lays them down as 16-bit numbers, from where the warp reads them as the matrix instruction wants
// them. Columns come as 16-bit numbers. The next step's bytes are under way meanwhile. Elements of a unit may be taken in any
// order, as long as weights and columns agree: a lane has eight neighbours, which are two steps of the instruction.
#include "mma.cuh"
#include "pipe.cuh"
#include "quant.cuh"
#include "tiles.cuh"

#if !defined(OXCART_EMULATE) && ARCH < 800
#define WITH_BRAIN 0
#else
#define WITH_BRAIN 1
#endif

// Sixteen-bit numbers that a type of weights is multiplied in.
template <bool BRAIN> struct Sixteen {
    static DEVICE_METHOD u32 pack(float low, float high) { return BRAIN ? pack_brain(low, high) : pack_half(low, high); }
    static DEVICE_METHOD void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if WITH_BRAIN
        if (BRAIN) {
            mma_brain(d, a, b0, b1);
            return;
        }
#endif
        mma_half(d, a, b0, b1);
    }
};

// Where piece `piece` (of four, 16 bytes each) of row `row` of a unit of 16-bit numbers lies, so that neither rows that are
// written next to each other nor those that are read together meet in a bank.
DEVICE u32 piece_at(int row, int piece) { return 64 * row + 16 * (piece ^ (row >> 1 & 3)); }

// Weights in blocks.
template <int TYPE> struct Packed {
    typedef Format<TYPE> F;
    static const bool PLAIN = false;
    static const int DEPTH = F::BLOCK == 256 ? 8 : 4;  // units of a step
    static const int BYTES = DEPTH * 32 / F::BLOCK * F::BYTES;
    typedef Sixteen<WITH_BRAIN> Numbers;
};
// Weights that are 16-bit numbers already.
template <bool BRAIN> struct Ready {
    static const bool PLAIN = true;
    static const int DEPTH = 4;
    static const int BYTES = DEPTH * 64;
    typedef Sixteen<BRAIN> Numbers;
};

// A row of raw blocks in shared memory: whole pieces of 16 bytes around it.
template <class W> DEVICE constexpr int raw_step() { return (W::BYTES + 16 + 15) / 16 * 16; }

template <class W> DEVICE void unpack_unit(const u8* row, int unit, u8* to, int place) {
    typedef typename W::F F;
    const int per = F::BLOCK / 32;
    Unit u;
    F::unit(row + unit / per * F::BYTES, unit % per, u);
#pragma unroll
    for (int piece = 0; piece < 4; piece++) {
        u32 words[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int e = 8 * piece + 2 * i;
            int h = F::HALVES ? e / 16 : 0;
            float low = (float)(i8)(u.q[e / 4] >> 8 * (e % 4)), high = (float)(i8)(u.q[e / 4] >> 8 * (e % 4 + 1));
            low = F::OFFSETS ? fmaf(low, u.scale[h], u.offset[h]) : low * u.scale[h];
            high = F::OFFSETS ? fmaf(high, u.scale[h], u.offset[h]) : high * u.scale[h];
            words[i] = W::Numbers::pack(low, high);
        }
        U4 packed = {words[0], words[1], words[2], words[3]};
        *(U4*)(to + piece_at(place, piece)) = packed;
    }
}

// WM warps beside each other have 16 rows each, WK warps behind each other every WK-th unit of the same rows; all have COLUMNS
// columns.
template <class W, int WM, int WK, int COLUMNS> DEVICE void tiles(const TilesParams& p) {
    const int ROWS = 16 * WM, THREADS = 32 * WM * WK, DEPTH = W::DEPTH;
    const int RAW = W::PLAIN ? 0 : ROWS * raw_step<W>(), RIGHT = DEPTH * COLUMNS * 64, LEFT = DEPTH * ROWS * 64;
    // Two steps' columns and raw rows (or, where they need nothing done, rows); one step's rows as numbers.
    u8* right = dynamic_shared;
    u8* raw = right + 2 * RIGHT;
    u8* left = raw + 2 * RAW;
    int warp = warp_number(), g = lane_number() / 4, j = lane_number() % 4, wm = warp % WM, wk = warp / WM;

    i64 first_row = (i64)blockIdx.y * ROWS, first_column = (i64)blockIdx.x * COLUMNS, columns = p.columns;
    const u8* weights = (const u8*)p.weights;
    const i32* order = nullptr;
    wait_for_previous();
    if (p.order) {
        // Which expert this block's columns belong to.
        const i32 *starts = (const i32*)p.starts, *begins = (const i32*)p.tiles;
        if ((i32)blockIdx.x >= begins[p.experts]) return;
        int low = 0, high = (int)p.experts;
        while (high - low > 1) {
            int middle = (low + high) / 2;
            if (begins[middle] <= (i32)blockIdx.x) low = middle;
            else high = middle;
        }
        weights += low * p.expert_bytes;
        order = (const i32*)p.order + starts[low];
        columns = starts[low + 1] - starts[low];
        first_column = (i64)((i32)blockIdx.x - begins[low]) * COLUMNS;
    }
    next_may_start();

    int units = (int)((p.k + 31) / 32), steps = (units + DEPTH - 1) / DEPTH;
    auto begin = [&](int step) {
        if (step < steps) {
            u8* to = right + (step & 1) * RIGHT;
            for (int i = threadIdx.x; i < DEPTH * COLUMNS * 4; i += THREADS) {
                int piece = i % 4, unit = i / 4 % DEPTH, column = i / (4 * DEPTH);
                i64 c = first_column + column, k = 32 * ((i64)step * DEPTH + unit) + 8 * piece;
                bool real = c < columns && k < p.k;
                i64 from = real && order ? order[c] : c;
                if (order && real) from = from / p.used * p.x_per_token + from % p.used % p.x_per_token;
                const u8* source = (const u8*)p.x + (real ? from * p.x_step + 2 * k : 0);
                copy_16_or_zero(to + (unit * COLUMNS) * 64 + piece_at(column, piece), source, real);
            }
            if (W::PLAIN) {
                u8* rows = left + (step & 1) * LEFT;
                for (int i = threadIdx.x; i < DEPTH * ROWS * 4; i += THREADS) {
                    int piece = i % 4, unit = i / 4 % DEPTH, row = i / (4 * DEPTH);
                    i64 r = first_row + row, k = 32 * ((i64)step * DEPTH + unit) + 8 * piece;
                    bool real = r < p.m && k < p.k;
                    copy_16_or_zero(rows + unit * ROWS * 64 + piece_at(row, piece), weights + (real ? r * p.row_bytes + 2 * k : 0), real);
                }
            } else {
                u8* rows = raw + (step & 1) * RAW;
                const int pieces = raw_step<W>() / 16;
                for (int i = threadIdx.x; i < ROWS * pieces; i += THREADS) {
                    int piece = i % pieces, row = i / pieces;
                    i64 r = at_most(first_row + row, p.m - 1);
                    const u8* start = (const u8*)((u64)(weights + r * p.row_bytes + (i64)step * W::BYTES) & ~(u64)15);
                    copy_16(rows + row * raw_step<W>() + 16 * piece, start + 16 * piece);
                }
            }
        }
        copies_begun();
    };

    float sum[COLUMNS / 8][4];
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) sum[n][e] = 0.0f;

    begin(0);
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        begin(step + 1);
        copies_done<1>();
        __syncthreads();
        int here = (int)at_most(DEPTH, units - step * DEPTH);
        u8* numbers = W::PLAIN ? left + (step & 1) * LEFT : left;
        if constexpr (!W::PLAIN) {
            // Each warp takes apart what it multiplies itself: 16 rows of its units.
            for (int i = lane_number(); i < 16 * DEPTH / WK; i += 32) {
                int row = i % 16, unit = i / 16 * WK + wk;
                if (unit >= here) continue;
                i64 r = at_most(first_row + 16 * wm + row, p.m - 1);
                u64 start = (u64)(weights + r * p.row_bytes + (i64)step * W::BYTES);
                const u8* from = raw + (step & 1) * RAW + (16 * wm + row) * raw_step<W>() + (start & 15);
                unpack_unit<W>(from, unit, numbers + (unit * ROWS + 16 * wm) * 64, row);
            }
            __syncwarp();
        }
#pragma unroll
        for (int u = 0; u < DEPTH / WK; u++) {
            int unit = u * WK + wk;
            if (unit >= here) continue;
            const u8* rows = numbers + (unit * ROWS + 16 * wm) * 64;
            U4 low = *(const U4*)(rows + piece_at(g, j)), high = *(const U4*)(rows + piece_at(g + 8, j));
            u32 first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
            const u8* lines = right + (step & 1) * RIGHT + unit * COLUMNS * 64;
#pragma unroll
            for (int n = 0; n < COLUMNS / 8; n++) {
                U4 x = *(const U4*)(lines + piece_at(8 * n + g, j));
                W::Numbers::multiply(sum[n], first, x.x, x.y);
                W::Numbers::multiply(sum[n], second, x.z, x.w);
            }
        }
        __syncthreads();
    }
    if (WK > 1) {
        // Warps behind each other meet in shared memory.
        float* parts = (float*)dynamic_shared;
        if (wk > 0) {
#pragma unroll
            for (int n = 0; n < COLUMNS / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) parts[((wm * (WK - 1) + wk - 1) * COLUMNS / 8 * 4 + n * 4 + e) * 32 + lane_number()] = sum[n][e];
        }
        __syncthreads();
        if (wk > 0) return;
#pragma unroll
        for (int other = 0; other < WK - 1; other++)
#pragma unroll
            for (int n = 0; n < COLUMNS / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) sum[n][e] += parts[((wm * (WK - 1) + other) * COLUMNS / 8 * 4 + n * 4 + e) * 32 + lane_number()];
    }
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            i64 row = first_row + 16 * wm + g + 8 * (e / 2), column = first_column + 8 * n + 2 * j + e % 2;
            if (row >= p.m || column >= columns) continue;
            i64 place = (order ? order[column] : column) * p.y_step + row;
            float value = sum[n][e];
            if (p.bias) value += ((const float*)p.bias)[row];
            if (p.residual) value += ((const float*)p.residual)[place];
            ((float*)p.y)[place] = value;
        }
    }
}

// Weights taken apart once for all columns, as 16-bit numbers: for cards whose matrix instruction reads shared memory itself.
template <class W> DEVICE void expand(const ExpandParams& p) {
    typedef typename W::F F;
    const int per = F::BLOCK / 32;
    wait_for_previous();
    next_may_start();
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        i64 row = n / p.units, unit = n % p.units;
        Unit u;
        F::unit((const u8*)p.weights + row * p.row_bytes + unit / per * F::BYTES, (int)(unit % per), u);
        u8* to = (u8*)p.to + row * p.to_step + 64 * unit;
#pragma unroll
        for (int piece = 0; piece < 4; piece++) {
            u32 words[4];
#pragma unroll
            for (int i = 0; i < 4; i++) words[i] = W::Numbers::pack(element<F>(u, 8 * piece + 2 * i), element<F>(u, 8 * piece + 2 * i + 1));
            U4 packed = {words[0], words[1], words[2], words[3]};
            ((U4*)to)[piece] = packed;
        }
    }
}

// One type at a time (`ONLY`), so that a card loads what its model needs; all of them for the emulated card.
#define TILES(name, W)                                                          \
    KERNEL(tiles_##name##_32, TilesParams, 128) { tiles<W, 2, 2, 32>(p); }      \
    KERNEL(tiles_##name##_64, TilesParams, 128) { tiles<W, 4, 1, 64>(p); }
#define TILES_PACKED(name, W) \
    TILES(name, W)            \
    KERNEL(expand_##name, ExpandParams, 256) { expand<W>(p); }
#if !defined(ONLY) || defined(ONLY_f16)
TILES(f16, Ready<false>)
#endif
#if (!defined(ONLY) || defined(ONLY_bf16)) && WITH_BRAIN
TILES(bf16, Ready<true>)
#endif
#if !defined(ONLY) || defined(ONLY_q1_0)
TILES_PACKED(q1_0, Packed<Q1_0>)
#endif
#if !defined(ONLY) || defined(ONLY_q2_0)
TILES_PACKED(q2_0, Packed<Q2_0>)
#endif
#if !defined(ONLY) || defined(ONLY_q4_0)
TILES_PACKED(q4_0, Packed<Q4_0>)
#endif
#if !defined(ONLY) || defined(ONLY_q4_1)
TILES_PACKED(q4_1, Packed<Q4_1>)
#endif
#if !defined(ONLY) || defined(ONLY_q5_0)
TILES_PACKED(q5_0, Packed<Q5_0>)
#endif
#if !defined(ONLY) || defined(ONLY_q5_1)
TILES_PACKED(q5_1, Packed<Q5_1>)
#endif
#if !defined(ONLY) || defined(ONLY_q8_0)
TILES_PACKED(q8_0, Packed<Q8_0>)
#endif
#if !defined(ONLY) || defined(ONLY_q2_K)
TILES_PACKED(q2_K, Packed<Q2_K>)
#endif
#if !defined(ONLY) || defined(ONLY_q3_K)
TILES_PACKED(q3_K, Packed<Q3_K>)
#endif
#if !defined(ONLY) || defined(ONLY_q4_K)
TILES_PACKED(q4_K, Packed<Q4_K>)
#endif
#if !defined(ONLY) || defined(ONLY_q5_K)
TILES_PACKED(q5_K, Packed<Q5_K>)
#endif
#if !defined(ONLY) || defined(ONLY_q6_K)
TILES_PACKED(q6_K, Packed<Q6_K>)
#endif
#if !defined(ONLY) || defined(ONLY_iq1_s)
TILES_PACKED(iq1_s, Packed<IQ1_S>)
#endif
#if !defined(ONLY) || defined(ONLY_iq1_m)
TILES_PACKED(iq1_m, Packed<IQ1_M>)
#endif
#if !defined(ONLY) || defined(ONLY_iq2_xxs)
TILES_PACKED(iq2_xxs, Packed<IQ2_XXS>)
#endif
#if !defined(ONLY) || defined(ONLY_iq2_xs)
TILES_PACKED(iq2_xs, Packed<IQ2_XS>)
#endif
#if !defined(ONLY) || defined(ONLY_iq2_s)
TILES_PACKED(iq2_s, Packed<IQ2_S>)
#endif
#if !defined(ONLY) || defined(ONLY_iq3_xxs)
TILES_PACKED(iq3_xxs, Packed<IQ3_XXS>)
#endif
#if !defined(ONLY) || defined(ONLY_iq3_s)
TILES_PACKED(iq3_s, Packed<IQ3_S>)
#endif
#if !defined(ONLY) || defined(ONLY_iq4_nl)
TILES_PACKED(iq4_nl, Packed<IQ4_NL>)
#endif
#if !defined(ONLY) || defined(ONLY_iq4_xs)
TILES_PACKED(iq4_xs, Packed<IQ4_XS>)
#endif
#if !defined(ONLY) || defined(ONLY_tq1_0)
TILES_PACKED(tq1_0, Packed<TQ1_0>)
#endif
#if !defined(ONLY) || defined(ONLY_tq2_0)
TILES_PACKED(tq2_0, Packed<TQ2_0>)
#endif
#if !defined(ONLY) || defined(ONLY_mxfp4)
TILES_PACKED(mxfp4, Packed<MXFP4>)
#endif
#if !defined(ONLY) || defined(ONLY_nvfp4)
TILES_PACKED(nvfp4, Packed<NVFP4>)
#endif
