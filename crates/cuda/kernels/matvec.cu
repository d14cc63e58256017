// Products of a matrix with one or a few columns: what decoding is made of.
//
// Such a product reads every weight once and does little with it, so it is as fast as memory is read. A warp takes two rows
// at a time and streams them through shared memory, so that all reads are whole lines and many are under way, and takes blocks
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
    static DEVICE_METHOD void prepare(const MatvecParams& p, const float* x, u8* column) { column_to_bytes(p, x, column); }

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

// Two rows of a set: where they are, and which they are.
struct Set {
    const u8 *first, *second;
    int part;
    i64 row;
    bool pair;  // whether the second row exists
};

DEVICE Set set_of(const MatvecParams& p, i64 set, i64 expert_offset) {
    Set out;
    if (p.gated) {
        out.part = 0, out.row = set, out.pair = true;
        out.first = (const u8*)p.part[0].weights + expert_offset + set * p.row_bytes;
        out.second = (const u8*)p.part[1].weights + expert_offset + set * p.row_bytes;
        return out;
    }
    i64 rest = set;
    int part = 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        i64 sets = (p.part[i].rows + 1) / 2;
        if (part == i && rest >= sets) rest -= sets, part = i + 1;
    }
    MatvecPart own = part == 0 ? p.part[0] : part == 1 ? p.part[1] : p.part[2];
    out.part = part, out.row = 2 * rest, out.pair = 2 * rest + 1 < own.rows;
    out.first = (const u8*)own.weights + expert_offset + out.row * p.row_bytes;
    out.second = out.first + (out.pair ? p.row_bytes : 0);
    return out;
}

// Begins to read a step: some elements of both rows of a set.
template <class M> DEVICE void begin_step(const MatvecParams& p, Slots& slots, int step, int steps, int chunks, i64 first_set, i64 stride, i64 expert_offset) {
    if (step >= steps) {
        slots.fill(step, nullptr, nullptr, 0, 0);
        return;
    }
    Set set = set_of(p, first_set + step / chunks * stride, expert_offset);
    i64 start = (i64)(step % chunks) * p.chunk, count = at_most(p.chunk, p.k - start);
    i64 offset = start / M::BLOCK * M::BYTES, bytes = count / M::BLOCK * M::BYTES;
    const u8 *a = set.first + offset, *b = set.second + offset;
    // Whole pieces of 16 bytes around what is wanted; there are always some bytes to spare after the end.
    u32 most = (u32)at_least((i64)((u64)a & 15) + bytes, (i64)((u64)b & 15) + bytes);
    slots.fill(step, (const u8*)((u64)a & ~(u64)15), (const u8*)((u64)b & ~(u64)15), (most + 15) / 16 * 16, p.second_at);
}

template <class M, int COLUMNS> DEVICE void matvec(const MatvecParams& p) {
    // Shared memory: barriers, columns, slots.
    u64* barriers = (u64*)dynamic_shared;
    u8* columns = dynamic_shared + 512;
    int column_size = M::bytes(p);
    u8* slot_memory = columns + (COLUMNS * column_size + 127) / 128 * 128;
    int warp = warp_number();
    Slots slots = {slot_memory + warp * p.slots * p.slot_bytes, barriers + 4 * warp, (u32)p.slot_bytes, p.slots};
    slots.begin();
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
    // Sets go round the blocks first, so that all multiprocessors have the same to do.
    i64 first_set = blockIdx.x + (i64)gridDim.x * warp, stride = (i64)gridDim.x * WARPS;
    int sets = first_set < p.sets ? (int)((p.sets - 1 - first_set) / stride + 1) : 0;
    int chunks = (int)((p.k + p.chunk - 1) / p.chunk), steps = sets * chunks;
    if (!waited && !p.early) {
        wait_for_previous();
        waited = true;
    }
#pragma unroll 1
    for (int step = 0; step < p.slots; step++) begin_step<M>(p, slots, step, steps, chunks, first_set, stride, expert_offset);
    if (!waited) wait_for_previous();

    if (COLUMNS > 1 || p.prepared) {
        const U4* from = (const U4*)(p.x + (i64)blockIdx.y * COLUMNS * column_size);
        int real = (int)at_most(COLUMNS, p.columns - (i64)blockIdx.y * COLUMNS);
        for (int i = threadIdx.x; i < real * column_size / 16; i += blockDim.x) ((U4*)columns)[i] = from[i];
    } else {
        M::prepare(p, (const float*)(p.x + x_offset), columns);
    }
    __syncthreads();

    float sum[ROWS][COLUMNS];
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        if (step % chunks == 0) {
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) sum[0][c] = sum[1][c] = 0.0f;
        }
        i64 set_number = first_set + step / chunks * stride;
        Set set = set_of(p, set_number, expert_offset);
        int start = step % chunks * p.chunk, count = (int)at_most(p.chunk, p.k - start);
        i64 offset = (i64)start / M::BLOCK * M::BYTES;
        const u8* slot = slots.wait(step);
        M::template multiply<COLUMNS>(p, slot + ((u64)(set.first + offset) & 15), slot + p.second_at + ((u64)(set.second + offset) & 15), columns, start, count, sum);
        __syncwarp();
        begin_step<M>(p, slots, step + p.slots, steps, chunks, first_set, stride, expert_offset);
        if (step % chunks != chunks - 1) continue;
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) sum[0][c] = warp_sum(sum[0][c]), sum[1][c] = warp_sum(sum[1][c]);
        // Lane 2 c + r has row r of column c; where rows are gated by each other, lane 2 c has both.
        float value = 0.0f, gate = 0.0f;
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            if (lane_number() == 2 * c) value = sum[0][c], gate = sum[1][c];
            if (lane_number() == 2 * c + 1) value = sum[1][c];
        }
        int r = lane_number() & 1;
        i64 column = (i64)blockIdx.y * COLUMNS + lane_number() / 2;
        bool real = lane_number() < 2 * COLUMNS && (column < p.columns || p.ids) && (r == 0 || (set.pair && !p.gated));
        if (!real) continue;
        MatvecPart part = set.part == 0 ? p.part[0] : set.part == 1 ? p.part[1] : p.part[2];
        i64 row = set.row + r, place = column * part.y_stride + row;
        if (part.bias) value += ((const float*)part.bias)[row];
        if (COLUMNS == 1 && p.gated) {
            if (p.part[1].bias) gate += ((const float*)p.part[1].bias)[row];
            value = gated(p.glu, F32, value, gate, p.alpha, p.limit);
        }
        if (part.residual) value += ((const float*)part.residual)[place];
        ((float*)part.y)[place] = value;
    }
}

// One type at a time (`ONLY`), so that a card loads what its model needs; all of them for the emulated card.
#define MATVEC(name, M, COLUMNS) \
    KERNEL(matvec_##name##_##COLUMNS, MatvecParams, 256) { matvec<M, COLUMNS>(p); }
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
