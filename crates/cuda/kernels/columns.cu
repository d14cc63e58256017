// Columns prepared once for all blocks of a product, where there are several.
#include "bands.cuh"
#include "column.cuh"

struct ColumnsParams {
    MatvecParams of;
    u64 to;
    i32 per;  // plain numbers of a piece of 16 bytes of weights; 0 for bytes
    i32 unused;
};

// Columns as `matvec` wants them in shared memory, one block each.
KERNEL(prepare_columns, ColumnsParams, 256) {
    wait_for_previous();
    next_may_start();
    const float* x = (const float*)(p.of.x + blockIdx.x * p.of.x_stride);
    if (p.per == 0) {
        column_to_bytes(p.of, x, (u8*)p.to + (i64)blockIdx.x * column_bytes((int)((p.of.k + 63) / 64)));
    } else if (p.per == 4) {
        column_to_floats<4>(p.of, x, (u8*)p.to + (i64)blockIdx.x * p.of.k * 4);
    } else {
        column_to_floats<8>(p.of, x, (u8*)p.to + (i64)blockIdx.x * p.of.k * 4);
    }
}

// Columns as `bands` wants them, one block each; those that only fill a group up are zeros.
KERNEL(band_columns, BandColumnsParams, 512) {
    wait_for_previous();
    next_may_start();
    int column = blockIdx.x % p.group;
    bool real = (int)blockIdx.x < p.columns;
    const F4* x = (const F4*)(p.x + (real ? blockIdx.x : 0) * p.x_stride);
    const F4* weights = (const F4*)p.norm;
    auto weighted = [&](F4 four, int i) {
        if (!weights) return four;
        F4 w = weights[i];
        four.x *= w.x, four.y *= w.y, four.z *= w.z, four.w *= w.w;
        return four;
    };
    float squares = 0.0f, largest = 0.0f;
    for (int i = threadIdx.x; i < p.k / 4; i += blockDim.x) {
        F4 four = x[i];
        squares += square(four);
        four = weighted(four, i);
        largest = fmaxf(largest, fmaxf(fmaxf(fabsf(four.x), fabsf(four.y)), fmaxf(fabsf(four.z), fabsf(four.w))));
    }
    float factor = p.norms ? 1.0f / sqrtf(block_sum(squares) / (float)p.k + p.eps) : 1.0f, scale = 1.0f;
    if (!p.brain) {
        // The power of two that makes the largest less than 1,024. Numbers a million times smaller still are what they are.
        u32 exponent = __float_as_uint(block_max(largest) * factor) >> 23 & 255;
        if (exponent > 20 && exponent < 250) scale = __uint_as_float((exponent - 9) << 23), factor *= __uint_as_float((263 - exponent) << 23);
    }
    if (threadIdx.x == 0) ((float*)p.scales)[blockIdx.x] = scale;
    if (!real) factor = 0.0f;
    u8* to = (u8*)p.to + blockIdx.x / p.group * p.group_bytes + 512 * (column / 8) + 64 * (column % 8);
    for (int i = threadIdx.x; i < p.k / 8; i += blockDim.x) {
        F4 low = weighted(x[2 * i], 2 * i), high = weighted(x[2 * i + 1], 2 * i + 1);
        float n[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        u32 words[4];
#pragma unroll
        for (int w = 0; w < 4; w++) {
            float first = n[2 * w] * factor, second = n[2 * w + 1] * factor;
            words[w] = p.brain ? pack_brain(first, second) : pack_half(first, second);
        }
        U4 packed = {words[0], words[1], words[2], words[3]};
        *(U4*)(to + (i64)(i / 4) * unit_bytes(p.group) + 16 * (i % 4)) = packed;
    }
}
