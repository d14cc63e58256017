// Columns for products with few of them: rounded to bytes in blocks of 32, or plain numbers, laid out so that neighbouring
// lanes read neighbouring bytes of shared memory.
#pragma once

#include "base.cuh"
#include "part.cuh"

#ifndef WARPS_OF_BLOCK
#define WARPS_OF_BLOCK 8
#endif
const int WARPS = WARPS_OF_BLOCK;
const int ROWS = 2;

struct MatvecParams {
    Part part[3];
    i64 row_bytes;
    i32 tiles;      // of all parts
    i32 k;
    u64 x;          // columns of f32, or what `columns_to_bytes` made of them where `prepared`
    i64 x_stride;   // bytes from column to column
    u64 norm;       // weights of a norm; 0 for none
    u64 ids;        // numbers of experts; 0 for none
    i64 ids_nb[2];
    i64 expert_bytes, experts;
    i64 used;       // experts per token, columns of x per token: column c of the grid is expert c % used of token c / used
    i64 x_per_token;
    i64 x_token_stride;
    u64 faults;
    i32 chunk;      // elements of a row that are under way at a time
    i32 slots;
    i32 slot_bytes; // of a block's rows, or, on cards without a copy engine, of a warp's two
    i32 row_step;   // from row to row of a slot
    i32 tile_rows;  // 16, or 8 or fewer where a warp has one; where `gated`, half of them are the second part's
    i32 columns;    // real ones
    i32 prepared;
    i32 gated;
    i32 glu;
    i32 early;      // weights may be read before the kernel before has ended
    i32 norms;      // whether x is normalized first
    i32 aligned;    // whether every piece of a row begins at a multiple of 16 bytes
    float eps, alpha, limit;
    i32 unused;
};

// ---- columns ----

// A column of k numbers in shared memory: in pieces of 64, of which plane i holds 16 bytes each, so that neighbouring lanes
// read neighbouring bytes; then for both halves of each piece its scale and the sum of what it stands for.
DEVICE int column_bytes(int pairs) { return 80 * pairs; }

struct HalfUnit {
    float x[16];
};

DEVICE void load_16(HalfUnit& half, const float* x) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        F4 four = ((const F4*)x)[i];
        half.x[4 * i] = four.x, half.x[4 * i + 1] = four.y, half.x[4 * i + 2] = four.z, half.x[4 * i + 3] = four.w;
    }
}

// Rounds half a unit to bytes; the lane beside has the other half. Every lane takes part.
DEVICE void bytes_of(const HalfUnit& half, bool real, int h, u8* column, int pairs) {
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < 16; i++) largest = fmaxf(largest, fabsf(half.x[i]));
    largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 1));
    float factor = largest == 0.0f ? 0.0f : 127.0f / largest;
    if (!(factor <= 3.4028234e38f)) factor = 0.0f;
    u32 words[4];
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 word = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int q = __float2int_rn(half.x[4 * i + j] * factor);
            sum += q;
            word |= (u32)(q & 255) << 8 * j;
        }
        words[i] = word;
    }
    sum += __shfl_xor_sync(ALL_LANES, sum, 1);
    if (!real) return;
    int pair = h / 4, chunk = h % 4;
    U4 packed = {words[0], words[1], words[2], words[3]};
    *(U4*)(column + 16 * (chunk * pairs + pair)) = packed;
    if (h % 2 == 0) {
        float scale = largest / 127.0f;
        F2 both = {scale, scale * (float)sum};
        *(F2*)(column + 64 * pairs + 8 * ((chunk / 2) * pairs + pair)) = both;
    }
}

// The factor that makes the squares of a column's numbers one on average, from each thread's part of their sum.
DEVICE float norm_factor(const MatvecParams& p, float squares) { return 1.0f / sqrtf(block_sum(squares) / (float)p.k + p.eps); }

// A column is read COUNT times a piece per thread at once, so that all reads are under way together. Where that is not all of
// it, it is read twice, once for the norm.
DEVICE float square(const F4& x) { return x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w; }
template <int COUNT> DEVICE void pieces_of(const float* x, int first, int pieces, F4 (&out)[COUNT]) {
    F4 zero = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        int at = first + i * (int)blockDim.x;
        out[i] = at < pieces ? ((const F4*)x)[at] : zero;
    }
}
DEVICE float column_norm(const MatvecParams& p, const float* x) {
    float squares = 0.0f;
    for (int first = threadIdx.x; first < p.k / 4; first += 4 * blockDim.x) {
        F4 four[4];
        pieces_of(x, first, p.k / 4, four);
#pragma unroll
        for (int i = 0; i < 4; i++) squares += square(four[i]);
    }
    return norm_factor(p, squares);
}

// Reading takes long while blocks stream weights, so what is read is read together: first all numbers and what they are weighted
// with, then what needs them. `COUNT` halves of units per thread at once.
template <int COUNT, bool NORM> DEVICE void halves_to_bytes(const MatvecParams& p, const float* x, int first, bool at_once, float factor, u8* column) {
    int halves = p.k / 16, pairs = (p.k + 63) / 64;
    HalfUnit half[COUNT], weight[NORM ? COUNT : 1];
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        int h = first + i * blockDim.x + threadIdx.x, from = 16 * (h < halves ? h : 0);
        load_16(half[i], x + from);
        if (NORM && p.norm) load_16(weight[i], (const float*)p.norm + from);
    }
    if (NORM && at_once) {
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < 16; i++) squares += half[0].x[i] * half[0].x[i];
        factor = norm_factor(p, (int)threadIdx.x < halves ? squares : 0.0f);
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        int h = first + i * blockDim.x + threadIdx.x;
        if (NORM) {
#pragma unroll
            for (int e = 0; e < 16; e++) {
                half[i].x[e] *= factor;
                if (p.norm) half[i].x[e] *= weight[i].x[e];
            }
        }
        bytes_of(half[i], h < halves, h, column, pairs);
    }
}

// A column that is longer than what threads take at once, and that is not normalized, is read `MANY` halves of units per thread at once.
template <int MANY = 2> DEVICE void column_to_bytes(const MatvecParams& p, const float* x, u8* column) {
    int halves = p.k / 16;
    bool at_once = halves <= (int)blockDim.x;
    if (p.norms && at_once) {
        halves_to_bytes<1, true>(p, x, 0, true, 1.0f, column);
    } else if (at_once) {
        halves_to_bytes<1, false>(p, x, 0, true, 1.0f, column);
    } else if (p.norms) {
        float factor = column_norm(p, x);
#pragma unroll 1
        for (int first = 0; first < halves; first += 2 * blockDim.x) halves_to_bytes<2, true>(p, x, first, false, factor, column);
    } else {
#pragma unroll 1
        for (int first = 0; first < halves; first += MANY * blockDim.x) halves_to_bytes<MANY, false>(p, x, first, false, 1.0f, column);
    }
}

// A column of plain numbers in shared memory: in pieces of 4, of which plane i holds those that follow each other in a
// piece of `PER` numbers.
template <int PER, int COUNT> DEVICE void pieces_to_floats(const MatvecParams& p, const float* x, int first, bool at_once, float factor, u8* column) {
    int fours = p.k / 4, pieces = p.k / PER;
    F4 four[COUNT], weight[COUNT];
    pieces_of(x, first, fours, four);
    if (p.norm) pieces_of((const float*)p.norm, first, fours, weight);
    if (p.norms && at_once) {
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < COUNT; i++) squares += square(four[i]);
        factor = norm_factor(p, squares);
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        int at = first + i * blockDim.x;
        if (at >= fours) break;
        F4 x = four[i];
        if (p.norms) x.x *= factor, x.y *= factor, x.z *= factor, x.w *= factor;
        if (p.norm) x.x *= weight[i].x, x.y *= weight[i].y, x.z *= weight[i].z, x.w *= weight[i].w;
        int plane = at % (PER / 4), piece = at / (PER / 4);
        *(F4*)(column + 16 * (plane * pieces + piece)) = x;
    }
}

template <int PER> DEVICE void column_to_floats(const MatvecParams& p, const float* x, u8* column) {
    int fours = p.k / 4;
    if (fours <= 4 * (int)blockDim.x) {
        pieces_to_floats<PER, 4>(p, x, threadIdx.x, true, 1.0f, column);
        return;
    }
    float factor = p.norms ? column_norm(p, x) : 1.0f;
#pragma unroll 1
    for (int first = threadIdx.x; first < fours; first += 8 * blockDim.x) pieces_to_floats<PER, 8>(p, x, first, false, factor, column);
}
