// Products of many columns on Hopper: 16-bit weights and columns, tiles of 128 columns and 128 or 256 rows.
//
// One warp fetches tiles by the copy engine, several steps ahead; two groups of four warps multiply, 64 columns each. Both
// sides tell each other by barriers which steps' memory is full and which is empty. Blocks stay and take tiles in turn, in an
// order in which those that run at the same time share rows and columns.
//
// Where one product gates another by SiLU, a tile has 128 rows of each, so that a thread has both numbers of a pair; what they come to is
// written as the 16-bit numbers that the next product takes.
//
// Only for cards of capability 9.0, and not on the emulated card.
#ifndef OXCART_EMULATE
#include "math.cuh"
#include "pipe.cuh"
#include "wgmma.cuh"

struct alignas(64) TileMap {
    u8 bytes[128];
};

struct GemmParams {
    TileMap x, w;   // columns, and rows of weights: what the copy engine needs to know
    TileMap up;     // rows of the product that is gated, by those of `w`
    u64 y;          // 16-bit numbers where one product gates another
    i64 y_step;     // elements from column to column
    i64 columns, rows, k;
    u64 bias, residual;  // 0 for none; one number per row, and laid out as y
    i64 unused[1];
};

const int COLUMNS = 128, DEPTH = 64, GROUP = 16;

DEVICE void fetch_tile(u8* to, const TileMap* map, int k, int line, u64* barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(to)), "l"(map), "r"(shared_address(barrier)), "r"(k), "r"(line) : "memory");
}
// How the matrix instruction finds a tile of 128-byte lines that are swizzled in groups of eight.
DEVICE u64 describe(const u8* tile) {
    return (u64)(shared_address(tile) >> 4 & 0x3fff) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

// Where tile number `n` is: tiles go down GROUP columns' tiles, then to the next rows.
DEVICE void tile_of(int n, int column_tiles, int row_tiles, int& column, int& row) {
    int per = GROUP * row_tiles, group = n / per, first = group * GROUP;
    int height = column_tiles - first < GROUP ? column_tiles - first : GROUP;
    column = first + n % per % height;
    row = n % per / height;
}

// Four words of each of four lanes that follow each other, turned: lane n gets the words number n of all of them.
DEVICE void turn_words(u32 (&w)[4]) {
    bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        u32 other = __shfl_xor_sync(ALL_LANES, odd ? w[i] : w[i + 1], 1);
        w[i] = odd ? other : w[i], w[i + 1] = odd ? w[i + 1] : other;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 other = __shfl_xor_sync(ALL_LANES, high ? w[i] : w[i + 2], 2);
        w[i] = high ? other : w[i], w[i + 2] = high ? w[i + 2] : other;
    }
}

// What is gated, as 16-bit numbers: of 64 columns, this warp's 16, and 128 rows from `first` on, of which eight follow each other
// or none is there.
template <bool BRAIN> DEVICE void write_gated(const GemmParams& p, const float (&d)[128], i64 column, i64 first) {
    int lane = lane_number(), j = lane % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        i64 c = column + lane / 4 + 8 * r;
#pragma unroll
        for (int i = 0; i < 16; i += 4) {
            u32 w[4];
#pragma unroll
            for (int n = 0; n < 4; n++) {
                int at = 4 * (i + n) + 2 * r;
                float low = silu(d[at]) * d[64 + at];
                float high = silu(d[at + 1]) * d[64 + at + 1];
                w[n] = BRAIN ? pack_brain(low, high) : pack_half(low, high);
            }
            turn_words(w);
            i64 m = first + 8 * (i + j);
            U4 eight = {w[0], w[1], w[2], w[3]};
            if (c < p.columns && m < p.rows) *(U4*)((u16*)p.y + c * p.y_step + m) = eight;
        }
    }
}

template <bool BRAIN, int ROWS, int STAGES, bool GATED> DEVICE void gemm(const GemmParams& p) {
    const int LEFT = COLUMNS * DEPTH * 2, RIGHT = ROWS * DEPTH * 2, OWN = GATED ? ROWS / 2 : ROWS;
    u8* memory = (u8*)(((u64)dynamic_shared + 1023) & ~(u64)1023);
    u64* full = (u64*)(memory + STAGES * (LEFT + RIGHT));
    u64* empty = full + STAGES;
    int group = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) init_barrier(full + i, 1), init_barrier(empty + i, 2);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    int column_tiles = (int)((p.columns + COLUMNS - 1) / COLUMNS), row_tiles = (int)((p.rows + OWN - 1) / OWN);
    int tiles = column_tiles * row_tiles, steps = (int)((p.k + DEPTH - 1) / DEPTH);
    wait_for_previous();
    next_may_start();
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x != 0) return;
        int stage = 0, phase = 1;
        for (int n = blockIdx.x; n < tiles; n += gridDim.x) {
            int column, row;
            tile_of(n, column_tiles, row_tiles, column, row);
            for (int step = 0; step < steps; step++) {
                wait_for(empty + stage, phase);
                expect_bytes(full + stage, LEFT + RIGHT);
                u8* to = memory + stage * (LEFT + RIGHT);
                fetch_tile(to, &p.x, step * DEPTH, column * COLUMNS, full + stage);
                // Boxes have at most 256 lines.
                fetch_tile(to + LEFT, &p.w, step * DEPTH, row * OWN, full + stage);
                if (GATED) fetch_tile(to + LEFT + RIGHT / 2, &p.up, step * DEPTH, row * OWN, full + stage);
                if (++stage == STAGES) stage = 0, phase ^= 1;
            }
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    int own = group - 1, warp = threadIdx.x % 128 / 32, g = lane_number() / 4, j = lane_number() % 4;
    int stage = 0, phase = 0;
    // Whether two neighbours of every column can be written at once.
    bool pairs = ((p.y | p.residual | (u64)p.y_step * 4) & 7) == 0;
    for (int n = blockIdx.x; n < tiles; n += gridDim.x) {
        int column, row;
        tile_of(n, column_tiles, row_tiles, column, row);
        float d[ROWS / 2];
        for (int step = 0; step < steps; step++) {
            wait_for(full + stage, phase);
            const u8* from = memory + stage * (LEFT + RIGHT);
            u64 a = describe(from + own * 64 * DEPTH * 2), b = describe(from + LEFT);
            wgmma_begins();
#pragma unroll
            for (int i = 0; i < DEPTH / 16; i++) {
                // 16 numbers are 32 bytes further within the lines.
                if (BRAIN) wgmma_brain(d, a + 2 * i, b + 2 * i, step + i > 0);
                else wgmma_half(d, a + 2 * i, b + 2 * i, step + i > 0);
            }
            wgmma_begun();
            // The step before is done; its memory may be filled again.
            wgmma_done<1>();
            if (step > 0 && threadIdx.x % 128 == 0) arrive(empty + (stage + STAGES - 1) % STAGES);
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
        wgmma_done<0>();
        if (threadIdx.x % 128 == 0) arrive(empty + (stage + STAGES - 1) % STAGES);
        if constexpr (GATED) {
            write_gated<BRAIN>(p, d, (i64)column * COLUMNS + own * 64 + warp * 16, (i64)row * OWN);
            continue;
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            i64 c = (i64)column * COLUMNS + own * 64 + warp * 16 + g + 8 * r;
            if (c >= p.columns) continue;
#pragma unroll
            for (int i = 0; i < ROWS / 8; i++) {
                i64 m = (i64)row * ROWS + 8 * i + 2 * j, place = c * p.y_step + m;
                float low = d[4 * i + 2 * r], high = d[4 * i + 2 * r + 1];
                if (pairs && m + 1 < p.rows) {
                    if (p.bias) low += ((const float*)p.bias)[m], high += ((const float*)p.bias)[m + 1];
                    if (p.residual) {
                        F2 other = *(const F2*)((const float*)p.residual + place);
                        low += other.x, high += other.y;
                    }
                    F2 both = {low, high};
                    *(F2*)((float*)p.y + place) = both;
                } else {
#pragma unroll
                    for (int n = 0; n < 2; n++) {
                        if (m + n >= p.rows) continue;
                        float value = n ? high : low;
                        if (p.bias) value += ((const float*)p.bias)[m + n];
                        if (p.residual) value += ((const float*)p.residual)[place + n];
                        ((float*)p.y)[place + n] = value;
                    }
                }
            }
        }
    }
}

KERNEL_BLOCKS(gemm_half_128, GemmParams, 384, 1) { gemm<false, 128, 6, false>(p); }
KERNEL_BLOCKS(gemm_half_256, GemmParams, 384, 1) { gemm<false, 256, 4, false>(p); }
KERNEL_BLOCKS(gemm_brain_128, GemmParams, 384, 1) { gemm<true, 128, 6, false>(p); }
KERNEL_BLOCKS(gemm_brain_256, GemmParams, 384, 1) { gemm<true, 256, 4, false>(p); }
KERNEL_BLOCKS(gemm_half_gated, GemmParams, 384, 1) { gemm<false, 256, 4, true>(p); }
KERNEL_BLOCKS(gemm_brain_gated, GemmParams, 384, 1) { gemm<true, 256, 4, true>(p); }
#endif
