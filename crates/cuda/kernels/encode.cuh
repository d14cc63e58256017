// Numbers to blocks, as a running graph makes them: the conversions of the tensor crate that need no search.
//
// One thread makes one block. Arithmetic is separate operations in the order of the scalar encoders.
#pragma once

#include "base.cuh"

// The element of largest magnitude, the first of them, with its sign.
DEVICE float first_extreme(const float* x, int count) {
    float extreme = 0.0f, largest = 0.0f;
    for (int i = 0; i < count; i++) {
        if (fabsf(x[i]) > largest) largest = fabsf(x[i]), extreme = x[i];
    }
    return extreme;
}
// Reciprocals that would overflow count as zero.
DEVICE float inverse(float x) {
    float reciprocal = x == 0.0f ? 0.0f : __fdiv_rn(1.0f, x);
    return fabsf(reciprocal) <= 3.4028234e38f ? reciprocal : 0.0f;
}

DEVICE u8 code_of(float value, float top) { return (u8)(i32)fminf(value, top); }

DEVICE void encode_4_or_5(u8* block, i32 type, const float* x) {
    bool five = type == Q5_0 || type == Q5_1, centred = type == Q4_0 || type == Q5_0;
    float top = five ? 31.0f : 15.0f, half = five ? 16.0f : 8.0f, scale, base = 0.0f;
    if (centred) {
        scale = __fdiv_rn(first_extreme(x, 32), -half);
    } else {
        float least = x[0], most = x[0];
        for (int i = 1; i < 32; i++) {
            if (x[i] < least) least = x[i];
            if (x[i] > most) most = x[i];
        }
        scale = __fdiv_rn(__fsub_rn(most, least), top);
        base = least;
    }
    float factor = inverse(scale);
    u32 high = 0;
    u8 low[16];
    for (int i = 0; i < 16; i++) {
        u32 codes[2];
        for (int h = 0; h < 2; h++) {
            float v = x[i + 16 * h];
            float scaled = centred ? __fadd_rn(__fmul_rn(v, factor), half + 0.5f)
                                   : __fadd_rn(__fmul_rn(__fsub_rn(v, base), factor), 0.5f);
            codes[h] = code_of(scaled, top);
            high |= codes[h] >> 4 << (i + 16 * h);
        }
        low[i] = (u8)((codes[0] & 15) | (codes[1] & 15) << 4);
    }
    u16* words = (u16*)block;
    *words++ = to_half(scale);
    if (!centred) *words++ = to_half(base);
    if (five) *words++ = (u16)high, *words++ = (u16)(high >> 16);
    for (int i = 0; i < 8; i++) words[i] = (u16)(low[2 * i] | low[2 * i + 1] << 8);
}

DEVICE void encode_q8_0(u8* block, const float* x) {
    float largest = fabsf(first_extreme(x, 32));
    float factor = largest == 0.0f ? 0.0f : __fdiv_rn(127.0f, largest);
    if (!(factor <= 3.4028234e38f)) factor = 0.0f;
    u16* words = (u16*)block;
    words[0] = to_half(__fdiv_rn(largest, 127.0f));
    for (int i = 0; i < 16; i++) {
        i32 a = (i32)rintf(__fmul_rn(x[2 * i], factor)), b = (i32)rintf(__fmul_rn(x[2 * i + 1], factor));
        words[1 + i] = (u16)((a & 255) | (b & 255) << 8);
    }
}

// The code of the nearest of sixteen uneven levels, the upper of two equally near.
DEVICE int nearest_level(float value) {
    const float levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    int above = 0;
#pragma unroll
    for (int i = 0; i < 16; i++) above += levels[i] <= value;
    if (above == 0) return 0;
    if (above == 16) return 15;
    float lower = 0.0f, upper = 0.0f;
#pragma unroll
    for (int i = 0; i < 15; i++) {
        if (above == i + 1) lower = levels[i], upper = levels[i + 1];
    }
    return value - lower < upper - value ? above - 1 : above;
}
DEVICE float level_of(int code) {
    const float levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    float level = 0.0f;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        if (code == i) level = levels[i];
    }
    return level;
}

DEVICE void encode_iq4_nl(u8* block, const float* x) {
    float extreme = first_extreme(x, 32), qx = 0.0f, qq = 0.0f;
    u8 codes[32];
    bool empty = fabsf(extreme) < 1e-15f;
    float factor = empty ? 0.0f : __fdiv_rn(1.0f, __fdiv_rn(extreme, -127.0f));
    for (int i = 0; i < 32; i++) {
        codes[i] = empty ? 0 : (u8)nearest_level(__fmul_rn(factor, x[i]));
        float w = __fmul_rn(x[i], x[i]), q = level_of(codes[i]);
        qx = __fadd_rn(qx, __fmul_rn(__fmul_rn(w, q), x[i]));
        qq = __fadd_rn(qq, __fmul_rn(__fmul_rn(w, q), q));
    }
    u16* words = (u16*)block;
    words[0] = to_half(!empty && qq > 0.0f ? __fdiv_rn(qx, qq) : 0.0f);
    for (int i = 0; i < 8; i++) {
        u32 a = codes[2 * i] | codes[2 * i + 16] << 4, b = codes[2 * i + 1] | codes[2 * i + 17] << 4;
        words[1 + i] = (u16)(a | b << 8);
    }
}

// Elements per block and bytes of a block, of the types that can be made here; 0 for others.
DEVICE i32 encoded_block(i32 type) {
    switch (type) {
        case Q4_0: case Q4_1: case Q5_0: case Q5_1: case Q8_0: case IQ4_NL: return 32;
        default: return 0;
    }
}
DEVICE void encode_block(u8* block, i32 type, const float* x) {
    switch (type) {
        case Q8_0: encode_q8_0(block, x); break;
        case IQ4_NL: encode_iq4_nl(block, x); break;
        default: encode_4_or_5(block, type, x); break;
    }
}
