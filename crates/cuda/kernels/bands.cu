// Products of a matrix with some columns, nine to some dozens: several sequences at a time, and short prompts.
//
// Weights are still read once and are most of what is read, so they are streamed through shared memory as they are, and every lane
// takes apart just what the matrix instruction wants of it: eight neighbours of a row, as half precision. Columns come as half
// precision too, scaled by a power of two so that none is too large; where weights are brain floats, as those.
//
// A block has a band of 64 rows and all columns of a group. All bands in steps of a row follow each other in one long line, of
// which every block has an equal piece: pieces may begin and end within a band. Who is last with such a band adds up what all of
// its blocks found, in the order of the row.
//
// Invariant: which numbers are added in which order depends on the matrix and the number of blocks, not on the number of columns.
#include "bands.cuh"
#include "mma.cuh"
#include "pipe.cuh"
#include "quant.cuh"

#if !defined(OXCART_EMULATE) && ARCH < 800
#define WITH_BRAIN 0
#else
#define WITH_BRAIN 1
#endif

// Rows of a band. Two warps beside each other have 32 rows each; four behind each other every fourth unit of them.
const int BAND = 64, BESIDE = 2, BEHIND = 4, THREADS = 32 * BESIDE * BEHIND, SETS = 2;

// Weights and columns of 16-bit numbers.
template <bool BRAIN> struct Plain {
    static const int STEP = 4;  // units
    static constexpr DEVICE_METHOD int bytes(int units) { return 64 * units; }

    // Sixteen rows of a unit, as far as they are this lane's: eight neighbours of rows g and g + 8.
    struct Rows {
        U4 upper, lower;
    };
    // Of all sets, from where the lane's rows begin; `own` is the one of them that is number j.
    static DEVICE_METHOD void load(Rows (&rows)[SETS], const u8* const (&row)[2 * SETS], const u8*, int unit, int j) {
#pragma unroll
        for (int set = 0; set < SETS; set++) rows[set].upper = ((const U4*)(row[2 * set] + 64 * unit))[j], rows[set].lower = ((const U4*)(row[2 * set + 1] + 64 * unit))[j];
    }
    static DEVICE_METHOD void times(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if WITH_BRAIN
        if (BRAIN) {
            mma_brain(sum, a, b0, b1);
            return;
        }
#endif
        mma_half(sum, a, b0, b1);
    }
    static DEVICE_METHOD void multiply(float (&sum)[4], const Rows& rows, const U4& x) {
        const U4 &upper = rows.upper, &lower = rows.lower;
        u32 first[4] = {upper.x, lower.x, upper.y, lower.y}, second[4] = {upper.z, lower.z, upper.w, lower.w};
        times(sum, first, x.x, x.y);
        times(sum, second, x.z, x.w);
    }
};

// Weights in blocks. The four lanes that have the same rows each make out the scales of one of them, and tell each other.
template <class F> struct Packed : Plain<false> {
    static_assert(2 * SETS == 4, "a lane for each row");
    static const int STEP = 8;
    static constexpr DEVICE_METHOD int bytes(int units) { return 32 * units / F::BLOCK * F::BYTES; }
    static DEVICE_METHOD void load(Rows (&rows)[SETS], const u8* const (&row)[2 * SETS], const u8* own, int unit, int j) {
        const int per = F::BLOCK / 32;
        int u = unit % per, offset = unit / per * F::BYTES;
        Scales of;
        F::scales(own + offset, u, of);
        u32 mine = pack_half(of.scale[0], F::HALVES && !F::OFFSETS ? of.scale[1] : F::OFFSETS ? of.offset[0] : 0.0f);
        u32 other = F::HALVES && F::OFFSETS ? pack_half(of.scale[1], of.offset[1]) : 0;
        // A lane's eight numbers are all of one half.
        u32 pick = F::HALVES && !F::OFFSETS && j >= 2 ? 0x3232 : 0x1010;
#pragma unroll
        for (int i = 0; i < 2 * SETS; i++) {
            int from = (lane_number() & ~3) + i;
            u32 both = __shfl_sync(ALL_LANES, mine, from);
            if (F::HALVES && F::OFFSETS) {
                u32 second = __shfl_sync(ALL_LANES, other, from);
                both = j >= 2 ? second : both;
            }
            u32 scale = __byte_perm(both, 0, pick), add = F::OFFSETS ? __byte_perm(both, 0, 0x3232) : 0;
            U2 low = halves_of<F::OFFSETS>(F::word(row[i] + offset, u, 2 * j), scale, add), high = halves_of<F::OFFSETS>(F::word(row[i] + offset, u, 2 * j + 1), scale, add);
            U4 eight = {low.x, low.y, high.x, high.y};
            if (i % 2 == 0) rows[i / 2].upper = eight;
            else rows[i / 2].lower = eight;
        }
    }
};

// A band: rows of one matrix that follow each other.
struct Band {
    const u8* from;  // where its first row begins
    int part, row, last;
};

DEVICE Band band_of(const BandsParams& p, int tile) {
    int part = 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (part == i && tile >= p.part[i].tiles) tile -= p.part[i].tiles, part = i + 1;
    }
    Band out;
    out.part = part, out.row = BAND * tile;
    int left = p.part[part].rows - out.row;
    out.last = (left < BAND ? left : BAND) - 1;
    out.from = (const u8*)p.part[part].weights + out.row * p.row_bytes;
    return out;
}

// Where in the line a block's piece begins, and which block a place of the line belongs to.
DEVICE int begin_of(const BandsParams& p, int block) { return (int)((i64)block * p.tiles * p.steps / gridDim.x); }
DEVICE int block_of(const BandsParams& p, int place) { return (int)((((i64)place + 1) * gridDim.x - 1) / ((i64)p.tiles * p.steps)); }

// A place of the line: a step of a band.
struct Place {
    int tile, step;
    DEVICE_METHOD void next(const BandsParams& p) {
        if (++step == p.steps) step = 0, tile++;
    }
};

template <class W> DEVICE int units_of(const BandsParams& p, int step) {
    const int most = W::STEP;
    int left = p.k / 32 - step * most;
    return left < most ? left : most;
}

// Rows and columns on their way to stages, place after place; four threads have a row.
template <class W, int COLUMNS> struct Feed {
    static const int UNIT = unit_bytes(COLUMNS);
    Place at;
    const u8* row;  // of this thread

    DEVICE_METHOD void begin_rows(const BandsParams& p, u8* stage, bool is_first) {
        const int MOST = W::bytes(W::STEP);
        if (is_first || at.step == 0) {
            Band band = band_of(p, at.tile);
            int mine = threadIdx.x / 4;
            row = band.from + (mine < band.last ? mine : band.last) * p.row_bytes;
        }
        const u8* from = row + at.step * MOST;
        int shift = p.aligned ? 0 : (int)((u64)from & 15), mine = 16 * (threadIdx.x % 4);
        int bytes = shift + W::bytes(units_of<W>(p, at.step)) - mine;
        from += mine - shift;
        SharedPlace to = shared_place(stage + threadIdx.x / 4 * p.row_step + mine);
#pragma unroll
        for (int i = 0; i < MOST + 15; i += 64) {
            if (i < bytes) copy_16(to + i, from + i);
        }
    }
    // Columns of units that a row does not have are zeros.
    DEVICE_METHOD void begin_columns(const BandsParams& p, const u8* x, u8* stage) {
        const int MOST = W::STEP * UNIT, PER = 16 * THREADS;
        const u8* from = x + at.step * MOST + 16 * threadIdx.x;
        u8* to = stage + BAND * p.row_step + 16 * threadIdx.x;
        int bytes = units_of<W>(p, at.step) * UNIT;
        if (bytes == MOST) {
            SharedPlace place = shared_place(to);
#pragma unroll
            for (int i = 0; i < MOST; i += PER) copy_16(place + i, from + i);
        } else {
#pragma unroll 1
            for (int i = 16 * threadIdx.x; i < MOST; i += PER, to += PER, from += PER) copy_16_or_zero(to, i < bytes ? from : x, i < bytes);
        }
    }
};

// Sums of a band: eight columns of sixteen rows are 32 lanes of four numbers, as the matrix instruction gives them; first those of
// the first sixteen rows, then of the next. This is number `piece` of them, written to where it belongs.
template <int COLUMNS> DEVICE void write_piece(const BandsParams& p, const Band& band, int piece, const F4& sums) {
    const Part& part = p.part[band.part];
    int g = lane_number() / 4, j = lane_number() % 4;
    const float sum[4] = {sums.x, sums.y, sums.z, sums.w};
#pragma unroll
    for (int e = 0; e < 4; e++) {
        int row = 16 * (piece / (COLUMNS / 8)) + g + 8 * (e / 2), column = (int)blockIdx.y * COLUMNS + 8 * (piece % (COLUMNS / 8)) + 2 * j + e % 2;
        if (row > band.last || column >= p.columns) continue;
        i64 place = column * part.y_stride + band.row + row;
        float value = sum[e] * ((const float*)p.x_scales)[column];
        if (part.bias) value += ((const float*)part.bias)[band.row + row];
        if (part.residual) value += ((const float*)part.residual)[place];
        ((float*)part.y)[place] = value;
    }
}

// A band of which others have the rest: what this block found goes to scratch memory, and the last one adds up. Where a block's
// memory is follows from where its piece of the line begins: it shares at most its first band and its last.
template <int COLUMNS> DEVICE void share(const BandsParams& p, const Band& band, int tile, int place, const F4* sums) {
    const int PIECES = BAND / 16 * COLUMNS / 8, WARPS = THREADS / 32;
    int from = block_of(p, tile * p.steps), to = block_of(p, tile * p.steps + p.steps - 1), lane = lane_number();
    F4* parts = (F4*)p.sums + (i64)blockIdx.y * gridDim.x * 2 * PIECES * 32 + lane;
#pragma unroll
    for (int i = warp_number(); i < PIECES; i += WARPS) parts[((i64)(2 * blockIdx.x + place) * PIECES + i) * 32] = sums[32 * i + lane];
    __shared__ bool is_last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicInc((u32*)p.counters + (i64)blockIdx.y * p.tiles + tile, (u32)(to - from)) == (u32)(to - from);
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    // Only the first of these blocks may have come from a band before.
    int first = tile != begin_of(p, from) / p.steps;
#pragma unroll
    for (int i = warp_number(); i < PIECES; i += WARPS) {
        F4 sum = parts[((i64)(2 * from + first) * PIECES + i) * 32];
#pragma unroll 4
        for (int block = from + 1; block <= to; block++) {
            F4 other = parts[((i64)(2 * block) * PIECES + i) * 32];
            sum.x += other.x, sum.y += other.y, sum.z += other.z, sum.w += other.w;
        }
        write_piece<COLUMNS>(p, band, i, sum);
    }
}

template <class W, int COLUMNS> DEVICE void bands(const BandsParams& p) {
    const int UNIT = unit_bytes(COLUMNS), OF_SIDE = SETS * COLUMNS / 8;
    // Shared memory: where warps behind each other meet, then stages.
    F4* meeting = (F4*)dynamic_shared;
    u8* stages = dynamic_shared + 4 * BAND * COLUMNS;
    int lane = lane_number(), g = lane / 4, j = lane % 4, side = warp_number() % BESIDE, behind = warp_number() / BESIDE;
    int place = begin_of(p, blockIdx.x), end = begin_of(p, blockIdx.x + 1);
    Place here = {place / p.steps, place % p.steps};
    int first_tile = here.tile, begun = here.step;  // where this block's part of the band at hand begins
    const u8* x = (const u8*)p.x + blockIdx.y * p.x_group;
    Feed<W, COLUMNS> feed;
    feed.at = here;
    next_may_start();
    if (!p.early) wait_for_previous();
#pragma unroll 1
    for (int i = 0; i < p.stages - 1 && place + i < end; i++) {
        feed.begin_rows(p, stages + i * p.stage_bytes, i == 0);
        feed.at.next(p);
    }
    if (p.early) wait_for_previous();
    Place ahead = feed.at;
    feed.at = here;
#pragma unroll 1
    for (int i = 0; i < p.stages - 1; i++) {
        if (place + i < end) feed.begin_columns(p, x, stages + i * p.stage_bytes);
        feed.at.next(p);
        copies_begun();
    }
    feed.at = ahead;

    float sum[SETS][COLUMNS / 8][4] = {};
    int slot = 0;
#pragma unroll 1
    for (; place < end; place++, here.next(p)) {
        // All but the newest stages must be there.
        if (p.stages == 2) copies_done<0>();
        else if (p.stages == 3) copies_done<1>();
        else copies_done<2>();
        __syncthreads();
        if (place + p.stages - 1 < end) {
            u8* into = stages + (slot == 0 ? p.stages - 1 : slot - 1) * p.stage_bytes;
            feed.begin_rows(p, into, false);
            feed.begin_columns(p, x, into);
            feed.at.next(p);
        }
        copies_begun();

        const u8* stage = stages + slot * p.stage_bytes;
        const u8* row[2 * SETS];
#pragma unroll
        for (int i = 0; i < 2 * SETS; i++) row[i] = stage + (16 * SETS * side + 8 * i + g) * p.row_step;
        const u8* own = stage + (16 * SETS * side + 8 * j + g) * p.row_step;
        if (!p.aligned) {
            Band band = band_of(p, here.tile);
            auto shift = [&](int i) {
                int r = 16 * SETS * side + 8 * i + g;
                return ((u32)(u64)band.from + (u32)(r < band.last ? r : band.last) * (u32)p.row_bytes + (u32)(here.step * W::bytes(W::STEP))) & 15;
            };
#pragma unroll
            for (int i = 0; i < 2 * SETS; i++) row[i] += shift(i);
            own += shift(j);
        }
        int last = units_of<W>(p, here.step) - 1;
        const U4* columns = (const U4*)(stage + BAND * p.row_step) + lane;
#pragma unroll
        for (int i = 0; i < W::STEP / BEHIND; i++) {
            int unit = BEHIND * i + behind, real = unit < last ? unit : last;
            typename W::Rows rows[SETS];
            W::load(rows, row, own, real, j);
#pragma unroll
            for (int n = 0; n < COLUMNS / 8; n++) {
                U4 eight = columns[unit * (UNIT / 16) + 32 * n];
#pragma unroll
                for (int set = 0; set < SETS; set++) W::multiply(sum[set][n], rows[set], eight);
            }
        }
        slot = slot == p.stages - 1 ? 0 : slot + 1;
        if (here.step < p.steps - 1 && place < end - 1) continue;

        // The band, or the block's part of it, is done. Warps behind each other add up what they have, the last one first.
        F4* mine = meeting + side * OF_SIDE * 32 + lane;
#pragma unroll 1
        for (int turn = BEHIND - 1; turn >= 0; turn--) {
            if (behind == turn) {
#pragma unroll
                for (int i = 0; i < OF_SIDE; i++) {
                    float(&own)[4] = sum[i / (COLUMNS / 8)][i % (COLUMNS / 8)];
                    F4 all = {own[0], own[1], own[2], own[3]};
                    if (turn < BEHIND - 1) {
                        F4 other = mine[32 * i];
                        all.x += other.x, all.y += other.y, all.z += other.z, all.w += other.w;
                    }
                    mine[32 * i] = all;
                    own[0] = own[1] = own[2] = own[3] = 0.0f;
                }
            }
            __syncthreads();
        }
        Band band = band_of(p, here.tile);
        if (here.step < p.steps - 1 || begun > 0) {
            share<COLUMNS>(p, band, here.tile, here.tile != first_tile, meeting);
        } else {
#pragma unroll
            for (int i = warp_number(); i < BESIDE * OF_SIDE; i += THREADS / 32) write_piece<COLUMNS>(p, band, i, meeting[32 * i + lane]);
        }
        begun = 0;
    }
}

// One type at a time (`ONLY`), so that a card loads what its model needs; all of them for the emulated card.
#define BANDS_OF(name, W, COLUMNS) \
    KERNEL_BLOCKS(bands_##name##_##COLUMNS, BandsParams, THREADS, 2) { bands<W, COLUMNS>(p); }
#ifdef FEWER
#define BANDS(name, W) BANDS_OF(name, W, 32)
#else
#define BANDS(name, W) BANDS_OF(name, W, 16) BANDS_OF(name, W, 32) BANDS_OF(name, W, 64)
#endif
#define PACKED(name, TYPE) BANDS(name, Packed<Format<TYPE>>)
// Two steps of 64 rows and 64 columns of this type do not fit into half of a multiprocessor's memory, so columns go 32 at a time.
#ifdef FEWER
#define PACKED_NARROW(name, TYPE) PACKED(name, TYPE)
#else
#define PACKED_NARROW(name, TYPE) BANDS_OF(name, Packed<Format<TYPE>>, 16) BANDS_OF(name, Packed<Format<TYPE>>, 32)
#endif
#if !defined(ONLY) || defined(ONLY_f16)
BANDS(f16, Plain<false>)
#endif
#if (!defined(ONLY) || defined(ONLY_bf16)) && WITH_BRAIN
BANDS(bf16, Plain<true>)
#endif
#if !defined(ONLY) || defined(ONLY_q1_0)
PACKED(q1_0, Q1_0)
#endif
#if !defined(ONLY) || defined(ONLY_q2_0)
PACKED(q2_0, Q2_0)
#endif
#if !defined(ONLY) || defined(ONLY_q4_0)
PACKED(q4_0, Q4_0)
#endif
#if !defined(ONLY) || defined(ONLY_q4_1)
PACKED(q4_1, Q4_1)
#endif
#if !defined(ONLY) || defined(ONLY_q5_0)
PACKED(q5_0, Q5_0)
#endif
#if !defined(ONLY) || defined(ONLY_q5_1)
PACKED(q5_1, Q5_1)
#endif
#if !defined(ONLY) || defined(ONLY_q8_0)
PACKED_NARROW(q8_0, Q8_0)
#endif
#if !defined(ONLY) || defined(ONLY_q2_K)
PACKED(q2_K, Q2_K)
#endif
#if !defined(ONLY) || defined(ONLY_q3_K)
PACKED(q3_K, Q3_K)
#endif
#if !defined(ONLY) || defined(ONLY_q4_K)
PACKED(q4_K, Q4_K)
#endif
#if !defined(ONLY) || defined(ONLY_q5_K)
PACKED(q5_K, Q5_K)
#endif
#if !defined(ONLY) || defined(ONLY_q6_K)
PACKED(q6_K, Q6_K)
#endif
#if !defined(ONLY) || defined(ONLY_iq1_s)
PACKED(iq1_s, IQ1_S)
#endif
#if !defined(ONLY) || defined(ONLY_iq1_m)
PACKED(iq1_m, IQ1_M)
#endif
#if !defined(ONLY) || defined(ONLY_iq2_xxs)
PACKED(iq2_xxs, IQ2_XXS)
#endif
#if !defined(ONLY) || defined(ONLY_iq2_xs)
PACKED(iq2_xs, IQ2_XS)
#endif
#if !defined(ONLY) || defined(ONLY_iq2_s)
PACKED(iq2_s, IQ2_S)
#endif
#if !defined(ONLY) || defined(ONLY_iq3_xxs)
PACKED(iq3_xxs, IQ3_XXS)
#endif
#if !defined(ONLY) || defined(ONLY_iq3_s)
PACKED(iq3_s, IQ3_S)
#endif
#if !defined(ONLY) || defined(ONLY_iq4_nl)
PACKED(iq4_nl, IQ4_NL)
#endif
#if !defined(ONLY) || defined(ONLY_iq4_xs)
PACKED(iq4_xs, IQ4_XS)
#endif
#if !defined(ONLY) || defined(ONLY_tq1_0)
PACKED(tq1_0, TQ1_0)
#endif
#if !defined(ONLY) || defined(ONLY_tq2_0)
PACKED(tq2_0, TQ2_0)
#endif
#if !defined(ONLY) || defined(ONLY_mxfp4)
PACKED(mxfp4, MXFP4)
#endif
#if !defined(ONLY) || defined(ONLY_nvfp4)
PACKED(nvfp4, NVFP4)
#endif
