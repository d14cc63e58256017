// Products of a matrix with one or a few columns: what decoding is made of.
//
// Such a product reads every weight once and does little with it, so it is as fast as memory is read. A block streams some
// rows at a time through shared memory, so that all reads are whole lines and many are under way; a warp takes two of them
// apart from there. Columns are rounded to 8 bits in blocks of 32, once per block of threads, and multiplied as integers;
// with weights that are plain numbers they stay as they are.
//
// Around the product a launch does what would otherwise be launches of their own: normalizing and weighting the column
// before, adding a bias and a residual or gating one product by another after, and up to three matrices of one type that
// read the same column. Reading weights begins before the kernel before has ended.
#include "math.cuh"
#include "column.cuh"
#include "pipe.cuh"
#include "quant.cuh"

// ---- rows ----

// Two units that follow each other, from the row they are in; `at` is the pair's number within what is there.
template <class F> DEVICE void two_units(F, const u8* row, int at, Unit& a, Unit& b) {
    const int units = F::BLOCK / 32;
    F::unit(row + (2 * at) / units * F::BYTES, 2 * at % units, a);
    F::unit(row + (2 * at + 1) / units * F::BYTES, (2 * at + 1) % units, b);
}

// The usual types, with as few reads as possible. Pairs of small blocks start at multiples of four bytes.
DEVICE void two_units(Format<Q4_0>, const u8* row, int at, Unit& a, Unit& b) {
    const u32* words = (const u32*)(row + 36 * at);
    u32 w[9];
#pragma unroll
    for (int i = 0; i < 9; i++) w[i] = words[i];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 first = __byte_perm(w[i], w[i + 1], 0x5432), second = w[5 + i];
        a.q[i] = first & 0x0f0f0f0fu, a.q[4 + i] = first >> 4 & 0x0f0f0f0fu;
        b.q[i] = second & 0x0f0f0f0fu, b.q[4 + i] = second >> 4 & 0x0f0f0f0fu;
    }
    a.scale[0] = from_half((u16)w[0]), b.scale[0] = from_half((u16)(w[4] >> 16));
    a.offset[0] = -8.0f * a.scale[0], b.offset[0] = -8.0f * b.scale[0];
}

DEVICE void two_units(Format<Q8_0>, const u8* row, int at, Unit& a, Unit& b) {
    const u32* words = (const u32*)(row + 68 * at);
    u32 w[17];
#pragma unroll
    for (int i = 0; i < 17; i++) w[i] = words[i];
#pragma unroll
    for (int i = 0; i < 8; i++) a.q[i] = __byte_perm(w[i], w[i + 1], 0x5432), b.q[i] = w[9 + i];
    a.scale[0] = from_half((u16)w[0]), b.scale[0] = from_half((u16)(w[8] >> 16));
}

DEVICE void two_units(Format<Q4_K>, const u8* row, int at, Unit& a, Unit& b) {
    const u8* block = row + 144 * (at / 4);
    int i = at % 4;
    U4 head = *(const U4*)block, low = ((const U4*)(block + 16))[2 * i], high = ((const U4*)(block + 16))[2 * i + 1];
    u32 w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int j = 0; j < 8; j++) a.q[j] = w[j] & 0x0f0f0f0fu, b.q[j] = w[j] >> 4 & 0x0f0f0f0fu;
    // Scales and minima of units 2 i and 2 i + 1.
    int shift = 16 * (i & 1);
    u32 scales, minima;
    if (i < 2) {
        scales = head.y >> shift & 0x3f3fu;
        minima = head.z >> shift & 0x3f3fu;
    } else {
        u32 rest = head.w >> shift;
        scales = (rest & 0x0f0fu) | (head.y >> shift & 0xc0c0u) >> 2;
        minima = (rest >> 4 & 0x0f0fu) | (head.z >> shift & 0xc0c0u) >> 2;
    }
    float d = from_half((u16)head.x), dmin = from_half((u16)(head.x >> 16));
    a.scale[0] = d * (float)(scales & 255), b.scale[0] = d * (float)(scales >> 8);
    a.offset[0] = -(dmin * (float)(minima & 255)), b.offset[0] = -(dmin * (float)(minima >> 8));
}

// Words that start at any multiple of two bytes.
template <int N> DEVICE void words_from(const u8* from, u32* w) {
    const u32* words = (const u32*)((u64)from & ~(u64)3);
    u32 shift = (u32)((u64)from & 2) * 8, before = words[0];
#pragma unroll
    for (int i = 0; i < N; i++) {
        u32 after = words[i + 1];
        w[i] = __funnelshift_r(before, after, shift);
        before = after;
    }
}

DEVICE void two_units(Format<Q6_K>, const u8* row, int at, Unit& a, Unit& b) {
    const u8* block = row + 210 * (at / 4);
    int i = at % 4, n = i / 2, upper = i & 1;
    u32 low[16], high[8];
    words_from<16>(block + 64 * n, low);
    words_from<8>(block + 128 + 32 * n, high);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        u32 first = low[j] >> 4 * upper & 0x0f0f0f0fu, second = low[8 + j] >> 4 * upper & 0x0f0f0f0fu;
        u32 bits = high[j] >> 4 * upper;
        a.q[j] = less(first | (bits & 0x03030303u) << 4, 0x20202020u);
        b.q[j] = less(second | (bits >> 2 & 0x03030303u) << 4, 0x20202020u);
    }
    float d = half_at(block + 208);
    const i8* scales = (const i8*)block + 192 + 4 * i;
    a.scale[0] = d * (float)scales[0], a.scale[1] = d * (float)scales[1];
    b.scale[0] = d * (float)scales[2], b.scale[1] = d * (float)scales[3];
}

// The product of a unit with half a piece of a column.
template <class F> DEVICE float times(const Unit& unit, const U4& low, const U4& high, F2 scale) {
    int y[8] = {(int)low.x, (int)low.y, (int)low.z, (int)low.w, (int)high.x, (int)high.y, (int)high.z, (int)high.w};
    if (F::HALVES) {
        int first = 0, second = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) first = __dp4a(unit.q[i], y[i], first), second = __dp4a(unit.q[4 + i], y[4 + i], second);
        float sum = unit.scale[0] * (float)first + unit.scale[1] * (float)second;
        if (F::OFFSETS) {
            int ones_first = 0, ones_second = 0;
#pragma unroll
            for (int i = 0; i < 4; i++) ones_first = __dp4a(0x01010101, y[i], ones_first), ones_second = __dp4a(0x01010101, y[4 + i], ones_second);
            sum += unit.offset[0] * (float)ones_first + unit.offset[1] * (float)ones_second;
        }
        return sum * scale.x;
    }
    int first = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) first = __dp4a(unit.q[i], y[i], first);
    float sum = unit.scale[0] * (float)first * scale.x;
    return F::OFFSETS ? fmaf(unit.offset[0], scale.y, sum) : sum;
}

// How rows of blocks meet columns of bytes.
template <class F> struct Blocks {
    static const int BLOCK = F::BLOCK, BYTES = F::BYTES;
    static DEVICE_METHOD int bytes(const MatvecParams& p) { return column_bytes((int)((p.k + 63) / 64)); }
    static DEVICE_METHOD void prepare(const MatvecParams& p, const float* x, u8* column) { column_to_bytes<(BYTES > BLOCK ? 4 : 2)>(p, x, column); }

    template <int COLUMNS>
    static DEVICE_METHOD void multiply(const MatvecParams& p, const u8* slot, const u8* other, const u8* columns, int first, int count, float (&sum)[ROWS][COLUMNS]) {
        int pairs = (int)((p.k + 63) / 64), size = column_bytes(pairs), here = count / 64;
#pragma unroll 1
        for (int i = lane_number(); i < here; i += 32) {
            Unit a[ROWS], b[ROWS];
            two_units(F(), slot, i, a[0], b[0]);
            two_units(F(), other, i, a[1], b[1]);
            int pair = first / 64 + i;
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                const u8* column = columns + c * size;
                U4 y[4];
#pragma unroll
                for (int j = 0; j < 4; j++) y[j] = *(const U4*)(column + 16 * (j * pairs + pair));
                F2 low = *(const F2*)(column + 64 * pairs + 8 * pair), high = *(const F2*)(column + 64 * pairs + 8 * (pairs + pair));
#pragma unroll
                for (int r = 0; r < ROWS; r++) sum[r][c] += times<F>(a[r], y[0], y[1], low) + times<F>(b[r], y[2], y[3], high);
            }
        }
    }
};

// How rows of plain numbers meet columns of plain numbers.
template <int TYPE> struct Plain {
    static const int BLOCK = 1, BYTES = TYPE == F32 ? 4 : 2, PER = 16 / BYTES;
    static DEVICE_METHOD int bytes(const MatvecParams& p) { return (int)(4 * p.k); }
    static DEVICE_METHOD void prepare(const MatvecParams& p, const float* x, u8* column) { column_to_floats<PER>(p, x, column); }
    static DEVICE_METHOD float number(const U4& words, int i) {
        u32 word = i / (4 / BYTES) == 0 ? words.x : i / (4 / BYTES) == 1 ? words.y : i / (4 / BYTES) == 2 ? words.z : words.w;
        if (TYPE == F32) return __uint_as_float(word);
        if (TYPE == BF16) return __uint_as_float(i % 2 ? word & 0xffff0000u : word << 16);
        return from_half((u16)(i % 2 ? word >> 16 : word));
    }

    template <int COLUMNS>
    static DEVICE_METHOD void multiply(const MatvecParams& p, const u8* slot, const u8* other, const u8* columns, int first, int count, float (&sum)[ROWS][COLUMNS]) {
        int pieces = (int)(p.k / PER), here = count / PER;
#pragma unroll(COLUMNS == 1 ? 2 : 1)
        for (int i = lane_number(); i < here; i += 32) {
            U4 w[ROWS] = {((const U4*)slot)[i], ((const U4*)other)[i]};
            int piece = first / PER + i;
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
#pragma unroll
                for (int j = 0; j < PER / 4; j++) {
                    F4 y = *(const F4*)(columns + 4 * c * p.k + 16 * (j * pieces + piece));
#pragma unroll
                    for (int r = 0; r < ROWS; r++) {
                        sum[r][c] = fmaf(number(w[r], 4 * j), y.x, sum[r][c]);
                        sum[r][c] = fmaf(number(w[r], 4 * j + 1), y.y, sum[r][c]);
                        sum[r][c] = fmaf(number(w[r], 4 * j + 2), y.z, sum[r][c]);
                        sum[r][c] = fmaf(number(w[r], 4 * j + 3), y.w, sum[r][c]);
                    }
                }
            }
        }
    }
};

// Some rows of one matrix that follow each other, or, where rows are gated, half as many of two: what a block takes at a time.
struct Tile {
    const u8 *first, *second;  // where its rows begin; the second only where rows are gated
    int part, row;
    int rows, own;             // that it has, and of one matrix
};

DEVICE Tile tile_of(const MatvecParams& p, int tile, i64 expert_offset) {
    Tile out;
    int part = 0, own = p.gated ? p.tile_rows / 2 : p.tile_rows;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (part == i && tile >= p.part[i].tiles) tile -= p.part[i].tiles, part = i + 1;
    }
    const Part& of = p.part[part];
    out.part = part, out.row = tile * own, out.own = own;
    int left = of.rows - out.row;
    out.rows = own < left ? own : left;
    i64 offset = expert_offset + (i64)out.row * p.row_bytes;
    out.first = (const u8*)of.weights + offset;
    out.second = (const u8*)p.part[1].weights + offset;
    return out;
}

// Where row `r` of a tile begins.
DEVICE const u8* row_from(const MatvecParams& p, const Tile& tile, int r) {
    bool other = p.gated && r >= tile.own;
    return (other ? tile.second : tile.first) + (i64)(other ? r - tile.own : r) * p.row_bytes;
}

// The tiles of a block in turn, each in pieces of `chunk` elements: a step each.
template <class M> struct Steps {
    int tile, start;  // its number, and the first element
    DEVICE_METHOD void next(const MatvecParams& p) {
        start += p.chunk;
        if (start >= p.k) start = 0, tile += gridDim.x;
    }
    DEVICE_METHOD int offset() const { return start / M::BLOCK * M::BYTES; }
    DEVICE_METHOD int count(const MatvecParams& p) const { return p.k - start < p.chunk ? p.k - start : p.chunk; }
};

// Bytes of a block's rows on their way through shared memory.
//
// Where the card's copy engine does it by itself, one warp orders all rows of a step, several steps ahead, and the others
// tell it when they are done with one. Elsewhere every warp copies the two rows that it multiplies.
#if !defined(OXCART_EMULATE) && ARCH >= 900
#define ENGINE 1
#else
#define ENGINE 0
#endif

template <class M> struct Feed {
    u8* memory;
    u64 *full, *empty;
    Steps<M> ahead;    // the step to be fetched next
    int into;          // where it goes
    u32 phase;
#if ENGINE
    const u8* from;    // this lane's row
    int rows;          // of the tile
    bool own;          // whether this lane has one
#endif

    DEVICE_METHOD void begin(const MatvecParams& p, u8* slots, u64* barriers) {
        ahead.tile = blockIdx.x, ahead.start = 0;
        memory = slots, full = barriers, empty = barriers + p.slots, into = 0, phase = 1;
#if ENGINE
        if (threadIdx.x == 32 * WARPS) {
            for (int i = 0; i < p.slots; i++) {
                init_barrier(full + i, 1);
                init_barrier(empty + i, WARPS);
            }
            barriers_are_ready();
        }
        __syncwarp();
#else
        memory += warp_number() * p.slots * p.slot_bytes;
#endif
    }

    // Orders the next step; `waits` where its slot may still be in use. By all lanes of the warp whose task it is.
    DEVICE_METHOD void fetch(const MatvecParams& p, i64 expert_offset, bool waits) {
        bool real = ahead.tile < p.tiles;
        int offset = ahead.offset(), bytes = ahead.count(p) / M::BLOCK * M::BYTES;
#if ENGINE
        if (!real) return;
        if (ahead.start == 0) {
            Tile tile = tile_of(p, ahead.tile, expert_offset);
            from = row_from(p, tile, lane_number());
            own = lane_number() < p.tile_rows && (lane_number() < tile.own ? lane_number() : lane_number() - tile.own) < tile.rows;
            rows = p.gated ? 2 * tile.rows : tile.rows;
        }
        // Rows that do not start at pieces of 16 bytes need one more.
        u32 size = (u32)(bytes + 15 & ~15) + (p.aligned ? 0 : 16);
        if (waits) wait_for(empty + into, phase);
        if (lane_number() == 0) expect_bytes(full + into, rows * size);
        __syncwarp();
        if (own) fetch_bytes(memory + into * p.slot_bytes + lane_number() * p.row_step, (const u8*)((u64)(from + offset) & ~(u64)15), size, full + into);
#else
        if (real) {
            Tile tile = tile_of(p, ahead.tile, expert_offset);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                int row = row_of(p, tile, r);
                if (row < 0) continue;
                const u8* from = row_from(p, tile, row) + offset;
                u32 size = (u32)((u64)from & 15) + (u32)bytes;
                for (u32 i = 16 * lane_number(); i < size; i += 16 * 32) copy_16(memory + into * p.slot_bytes + r * p.row_step + i, (const u8*)((u64)from & ~(u64)15) + i);
            }
        }
        copies_begun();
#endif
        ahead.next(p);
        if (++into == p.slots) into = 0, phase ^= 1;
    }

    // Which row of a tile is row `r` of this warp's two; negative for none.
    static DEVICE_METHOD int row_of(const MatvecParams& p, const Tile& tile, int r) {
        int row = p.gated ? warp_number() : p.tile_rows > WARPS ? ROWS * warp_number() + r : r == 0 ? warp_number() : -1;
        return row < 0 || row >= tile.rows ? -1 : p.gated ? row + r * tile.own : row;
    }

    // Waits for a step in slot `at`.
    DEVICE_METHOD void wait(const MatvecParams& p, int at, u32 its_phase) {
#if ENGINE
        wait_for(full + at, its_phase);
#else
        // All but the newest `slots - 1` must be there.
        if (p.slots == 2) copies_done<1>();
        else if (p.slots == 3) copies_done<2>();
        else copies_done<3>();
        __syncwarp();
#endif
    }
};

template <class M, int COLUMNS> DEVICE void matvec(const MatvecParams& p) {
    // Shared memory: barriers, columns, slots.
    u64* barriers = (u64*)dynamic_shared;
    u8* columns = dynamic_shared + 128;
    int column_size = M::bytes(p);
    u8* slots = columns + (COLUMNS * column_size + 127) / 128 * 128;
    bool fetches = !ENGINE || warp_number() == WARPS;
    Feed<M> feed;
    feed.begin(p, slots, barriers);
    next_may_start();

    i64 expert_offset = 0, x_offset = blockIdx.y * p.x_stride;
    bool waited = false;
    if (COLUMNS == 1 && p.ids) {
        // Which rows to read is in memory that another kernel may be writing.
        wait_for_previous();
        waited = true;
        i64 slot = blockIdx.y % p.used, token = blockIdx.y / p.used;
        i32 id = *(const i32*)((const u8*)p.ids + slot * p.ids_nb[0] + token * p.ids_nb[1]);
        if (id < 0 || id >= p.experts) {
            if (threadIdx.x == 0) report(p.faults, BAD_EXPERT);
            return;
        }
        expert_offset = id * p.expert_bytes;
        x_offset = token * p.x_token_stride + slot % p.x_per_token * p.x_stride;
    }
    if (!waited && !p.early) {
        wait_for_previous();
        waited = true;
    }
    if (fetches) {
#pragma unroll 1
        for (int i = 0; i < p.slots; i++) feed.fetch(p, expert_offset, false);
    }
    if (!waited) wait_for_previous();

    if (COLUMNS > 1 || p.prepared) {
        const U4* from = (const U4*)(p.x + (i64)blockIdx.y * COLUMNS * column_size);
        int real = (int)at_most(COLUMNS, p.columns - (i64)blockIdx.y * COLUMNS);
        for (int i = threadIdx.x; i < real * column_size / 16; i += blockDim.x) ((U4*)columns)[i] = from[i];
    } else {
        M::prepare(p, (const float*)(p.x + x_offset), columns);
    }
    __syncthreads();
#if ENGINE
    if (fetches) {
#pragma unroll 1
        while (feed.ahead.tile < p.tiles) feed.fetch(p, expert_offset, true);
        return;
    }
#endif

    Steps<M> here = {(int)blockIdx.x, 0};
    int at = 0;
    u32 phase = 0;
#pragma unroll 1
    while (here.tile < p.tiles) {
        Tile tile = tile_of(p, here.tile, expert_offset);
        int first = feed.row_of(p, tile, 0), second = feed.row_of(p, tile, 1);
        // Where both rows are within a slot, and how far their starts are from pieces of 16 bytes.
        u32 start_first = (u32)(u64)row_from(p, tile, first), start_second = (u32)(u64)row_from(p, tile, second < 0 ? first : second);
        int at_first = (ENGINE ? first : 0) * p.row_step, at_second = second < 0 ? at_first : (ENGINE ? second : 1) * p.row_step;
        const Part& part = p.part[tile.part];
        // Lane 2 c + r has row r of column c; where rows are gated by each other, lane 2 c has both.
        int r = lane_number() & 1;
        i64 column = (i64)blockIdx.y * COLUMNS + lane_number() / 2;
        bool real = lane_number() < 2 * COLUMNS && (column < p.columns || p.ids) && (r == 0 ? first >= 0 : second >= 0 && !p.gated);
        i64 row = tile.row + (r == 0 ? first : second), place = column * part.y_stride + row;
        float bias = 0.0f, gate_bias = 0.0f, residual = 0.0f;
        if (real) {
            if (part.bias) bias = ((const float*)part.bias)[row];
            if (p.gated && p.part[1].bias) gate_bias = ((const float*)p.part[1].bias)[row];
            if (part.residual) residual = ((const float*)part.residual)[place];
        }
        float sum[ROWS][COLUMNS];
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) sum[0][c] = sum[1][c] = 0.0f;
#pragma unroll 1
        do {
            feed.wait(p, at, phase);
            if (first >= 0) {
                const u8* slot = feed.memory + at * p.slot_bytes;
                int offset = here.offset();
                M::template multiply<COLUMNS>(p, slot + at_first + (start_first + offset & 15), slot + at_second + (start_second + offset & 15), columns, here.start, here.count(p), sum);
            }
            __syncwarp();
#if ENGINE
            if (lane_number() == 0) arrive(feed.empty + at);
#else
            feed.fetch(p, expert_offset, false);
#endif
            if (++at == p.slots) at = 0, phase ^= 1;
            here.next(p);
        } while (here.start > 0);
        if (first < 0) continue;
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) sum[0][c] = warp_sum(sum[0][c]), sum[1][c] = warp_sum(sum[1][c]);
        float value = 0.0f, gate = 0.0f;
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            if (lane_number() == 2 * c) value = sum[0][c], gate = sum[1][c];
            if (lane_number() == 2 * c + 1) value = sum[1][c];
        }
        if (!real) continue;
        value += bias;
        if (COLUMNS == 1 && p.gated) value = gated(p.glu, F32, value, gate + gate_bias, p.alpha, p.limit);
        if (part.residual) value += residual;
        ((float*)part.y)[place] = value;
    }
}

// One type at a time (`ONLY`), so that a card loads what its model needs; all of them for the emulated card.
#define MATVEC(name, M, COLUMNS) \
    KERNEL_BLOCKS(matvec_##name##_##COLUMNS, MatvecParams, 32 * (WARPS + ENGINE), COLUMNS <= 2 ? 2 : 1) { matvec<M, COLUMNS>(p); }
#define MATVEC_FEW(name, M) MATVEC(name, M, 1) MATVEC(name, M, 4)
#ifdef FEWER
#define MATVEC_MANY(name, M) MATVEC_FEW(name, M)
#else
#define MATVEC_MANY(name, M) MATVEC(name, M, 1) MATVEC(name, M, 2) MATVEC(name, M, 4) MATVEC(name, M, 8)
#endif

#if !defined(ONLY) || defined(ONLY_f32)
MATVEC_MANY(f32, Plain<F32>)
#endif
#if !defined(ONLY) || defined(ONLY_f16)
MATVEC_MANY(f16, Plain<F16>)
#endif
#if !defined(ONLY) || defined(ONLY_bf16)
MATVEC_MANY(bf16, Plain<BF16>)
#endif
#if !defined(ONLY) || defined(ONLY_q4_0)
MATVEC_MANY(q4_0, Blocks<Format<Q4_0>>)
#endif
#if !defined(ONLY) || defined(ONLY_q4_1)
MATVEC_MANY(q4_1, Blocks<Format<Q4_1>>)
#endif
#if !defined(ONLY) || defined(ONLY_q5_0)
MATVEC_MANY(q5_0, Blocks<Format<Q5_0>>)
#endif
#if !defined(ONLY) || defined(ONLY_q5_1)
MATVEC_MANY(q5_1, Blocks<Format<Q5_1>>)
#endif
#if !defined(ONLY) || defined(ONLY_q8_0)
MATVEC_MANY(q8_0, Blocks<Format<Q8_0>>)
#endif
#if !defined(ONLY) || defined(ONLY_q2_K)
MATVEC_MANY(q2_K, Blocks<Format<Q2_K>>)
#endif
#if !defined(ONLY) || defined(ONLY_q3_K)
MATVEC_MANY(q3_K, Blocks<Format<Q3_K>>)
#endif
#if !defined(ONLY) || defined(ONLY_q4_K)
MATVEC_MANY(q4_K, Blocks<Format<Q4_K>>)
#endif
#if !defined(ONLY) || defined(ONLY_q5_K)
MATVEC_MANY(q5_K, Blocks<Format<Q5_K>>)
#endif
#if !defined(ONLY) || defined(ONLY_q6_K)
MATVEC_MANY(q6_K, Blocks<Format<Q6_K>>)
#endif
#if !defined(ONLY) || defined(ONLY_iq4_nl)
MATVEC_MANY(iq4_nl, Blocks<Format<IQ4_NL>>)
#endif
#if !defined(ONLY) || defined(ONLY_iq4_xs)
MATVEC_MANY(iq4_xs, Blocks<Format<IQ4_XS>>)
#endif
#if !defined(ONLY) || defined(ONLY_mxfp4)
MATVEC_MANY(mxfp4, Blocks<Format<MXFP4>>)
#endif
#if !defined(ONLY) || defined(ONLY_q1_0)
MATVEC_FEW(q1_0, Blocks<Format<Q1_0>>)
#endif
#if !defined(ONLY) || defined(ONLY_q2_0)
MATVEC_FEW(q2_0, Blocks<Format<Q2_0>>)
#endif
#if !defined(ONLY) || defined(ONLY_iq1_s)
MATVEC_FEW(iq1_s, Blocks<Format<IQ1_S>>)
#endif
#if !defined(ONLY) || defined(ONLY_iq1_m)
MATVEC_FEW(iq1_m, Blocks<Format<IQ1_M>>)
#endif
#if !defined(ONLY) || defined(ONLY_iq2_xxs)
MATVEC_FEW(iq2_xxs, Blocks<Format<IQ2_XXS>>)
#endif
#if !defined(ONLY) || defined(ONLY_iq2_xs)
MATVEC_FEW(iq2_xs, Blocks<Format<IQ2_XS>>)
#endif
#if !defined(ONLY) || defined(ONLY_iq2_s)
MATVEC_FEW(iq2_s, Blocks<Format<IQ2_S>>)
#endif
#if !defined(ONLY) || defined(ONLY_iq3_xxs)
MATVEC_FEW(iq3_xxs, Blocks<Format<IQ3_XXS>>)
#endif
#if !defined(ONLY) || defined(ONLY_iq3_s)
MATVEC_FEW(iq3_s, Blocks<Format<IQ3_S>>)
#endif
#if !defined(ONLY) || defined(ONLY_tq1_0)
MATVEC_FEW(tq1_0, Blocks<Format<TQ1_0>>)
#endif
#if !defined(ONLY) || defined(ONLY_tq2_0)
MATVEC_FEW(tq2_0, Blocks<Format<TQ2_0>>)
#endif
#if !defined(ONLY) || defined(ONLY_nvfp4)
MATVEC_FEW(nvfp4, Blocks<Format<NVFP4>>)
#endif
