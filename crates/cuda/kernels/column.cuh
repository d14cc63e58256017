// Columns for products with few of them: rounded to bytes in blocks of 32, or plain numbers, laid out so that neighbouring
// lanes read neighbouring bytes of shared memory.
#pragma once

#include "base.cuh"

const int WARPS = 8;
const int ROWS = 2;

struct MatvecPart {
    u64 weights;
    u64 y;
    u64 bias;      // 0 for none; one number per row
    u64 residual;  // 0 for none; laid out as y
    i64 rows;
    i64 y_stride;  // elements from column to column of results
};

struct MatvecParams {
    MatvecPart part[3];
    i64 sets;       // of two rows, of all parts; where `gated`, of a row of the first part and one of the second
    i64 row_bytes;
    i64 k;
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
    i32 slot_bytes, second_at;
    i32 columns;    // real ones
    i32 prepared;
    i32 gated;
    i32 glu;
    i32 early;      // weights may be read before the kernel before has ended
    i32 norms;      // whether x is normalized first
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

// The factor that makes the squares of a column's numbers one on average.
DEVICE float norm_factor(const float* x, i64 k, float eps) {
    float squares = 0.0f;
#pragma unroll 4
    for (i64 i = 4 * threadIdx.x; i < k; i += 4 * blockDim.x) {
        F4 four = *(const F4*)(x + i);
        squares += four.x * four.x + four.y * four.y + four.z * four.z + four.w * four.w;
    }
    return 1.0f / sqrtf(block_sum(squares) / (float)k + eps);
}

DEVICE void column_to_bytes(const MatvecParams& p, const float* x, u8* column) {
    int halves = (int)(p.k / 16), pairs = (int)((p.k + 63) / 64);
    float factor = p.norms ? norm_factor(x, p.k, p.eps) : 1.0f;
#pragma unroll 1
    for (int first = 0; first < halves; first += blockDim.x) {
        int h = first + threadIdx.x;
        bool real = h < halves;
        HalfUnit half;
        load_16(half, x + 16 * (real ? h : 0));
        if (p.norms) {
            HalfUnit weight;
            if (p.norm) load_16(weight, (const float*)p.norm + 16 * (real ? h : 0));
#pragma unroll
            for (int i = 0; i < 16; i++) {
                half.x[i] *= factor;
                if (p.norm) half.x[i] *= weight.x[i];
            }
        }
        bytes_of(half, real, h, column, pairs);
    }
}


// A column of plain numbers in shared memory: in pieces of 4, of which plane i holds those that follow each other in a
// piece of `PER` numbers.
template <int PER> DEVICE void column_to_floats(const MatvecParams& p, const float* x, u8* column) {
    float factor = p.norms ? norm_factor(x, p.k, p.eps) : 1.0f;
    int pieces = (int)(p.k / PER);
#pragma unroll 4
    for (int i = threadIdx.x; i < (int)(p.k / 4); i += blockDim.x) {
        F4 four = ((const F4*)x)[i];
        if (p.norms) {
            four.x *= factor, four.y *= factor, four.z *= factor, four.w *= factor;
            if (p.norm) {
                F4 w = ((const F4*)p.norm)[i];
                four.x *= w.x, four.y *= w.y, four.z *= w.z, four.w *= w.w;
            }
        }
        int plane = i % (PER / 4), piece = i / (PER / 4);
        *(F4*)(column + 16 * (plane * pieces + piece)) = four;
    }
}
