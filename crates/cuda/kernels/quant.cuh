// Blocks of every quantized type, taken apart in units of 32 elements.
//
// A unit is 32 small integers, four to a word in the order of elements, and what makes numbers of them: an element of half
// `h` (16 elements) is `scale[h] * q + offset[h]`. All products that this takes are exact or rounded once, as the scalar
// decoders of the tensor crate round them, so decoding is the same to the last bit. Formats say which parts they use, so
// that a kernel does no more than it must:
//   HALVES   the two halves differ; otherwise only index 0 counts
//   OFFSETS  there are offsets; otherwise they are zero
// A format says what word `k` of unit `u` of a block is (`word`), and what makes numbers of the unit (`scales`), so that a
// lane may take what the matrix instruction wants of it; `unit` is all of it.
#pragma once

#include "base.cuh"
#include "tables.cuh"

struct Scales {
    float scale[2];
    float offset[2];
};
struct Unit : Scales {
    int q[8];
};

// Words at any multiple of 2 bytes, or at any byte at all.
DEVICE u32 word_at_2(const u8* from) { return (u32)((const u16*)from)[0] | (u32)((const u16*)from)[1] << 16; }
DEVICE u32 word_at_1(const u8* from) { return (u32)from[0] | (u32)from[1] << 8 | (u32)from[2] << 16 | (u32)from[3] << 24; }
DEVICE u32 word_at_4(const u8* from) { return *(const u32*)from; }
DEVICE float half_at(const u8* from) { return from_half(*(const u16*)from); }

// Four bits to the lowest bits of four bytes.
DEVICE u32 spread_bits(u32 bits) { return (bits & 15) * 0x00204081u & 0x01010101u; }
// Four pairs of bits to the lowest bits of four bytes.
DEVICE u32 spread_pairs(u32 pairs) {
    pairs &= 255;
    return (pairs | pairs << 6 | pairs << 12 | pairs << 18) & 0x03030303u;
}
// Subtracts a constant from four bytes of less than 128.
DEVICE u32 less(u32 bytes, u32 constant) { return ((bytes | 0x80808080u) - constant) ^ 0x80808080u; }
// Four positive bytes, negated where a bit is set.
DEVICE u32 with_signs(u32 bytes, u32 signs) {
    u32 ones = spread_bits(signs);
    return (bytes ^ ones * 255) + ones;
}
// A field of seven signs, and the eighth that makes their number even.
DEVICE u32 eight_signs(u32 field) { return (field & 127) | (__popc(field & 127) & 1) << 7; }
// Looks four nibbles up in a table of sixteen bytes, in the low half of each byte of `nibbles`.
DEVICE u32 look_up(u32 nibbles, u32 t0, u32 t1, u32 t2, u32 t3) {
    u32 pick = nibbles & 0x07070707u;
    pick = (pick | pick >> 4) & 0x00ff00ffu;
    pick = (pick | pick >> 8) & 0x0000ffffu;
    u32 low = __byte_perm(t0, t1, pick), high = __byte_perm(t2, t3, pick);
    u32 upper = (nibbles >> 3 & 0x01010101u) * 255;
    return (low & ~upper) | (high & upper);
}

template <int TYPE> struct Format;

// A whole unit, from what a format says of its parts.
template <class F> struct Whole {
    static DEVICE_METHOD void unit(const u8* b, int u, Unit& out) {
#pragma unroll
        for (int k = 0; k < 8; k++) out.q[k] = (int)F::word(b, u, k);
        F::scales(b, u, out);
    }
};

template <> struct Format<Q4_0> : Whole<Format<Q4_0>> {
    static const int BLOCK = 32, BYTES = 18;
    static const bool HALVES = false, OFFSETS = true;
    static DEVICE_METHOD u32 word(const u8* b, int, int k) {
        return word_at_2(b + 2 + 4 * (k & 3)) >> 4 * (k >> 2) & 0x0f0f0f0fu;
    }
    static DEVICE_METHOD void scales(const u8* b, int, Scales& out) {
        out.scale[0] = half_at(b);
        out.offset[0] = -8.0f * out.scale[0];
    }
};

template <> struct Format<Q4_1> : Whole<Format<Q4_1>> {
    static const int BLOCK = 32, BYTES = 20;
    static const bool HALVES = false, OFFSETS = true;
    static DEVICE_METHOD u32 word(const u8* b, int, int k) {
        return word_at_4(b + 4 + 4 * (k & 3)) >> 4 * (k >> 2) & 0x0f0f0f0fu;
    }
    static DEVICE_METHOD void scales(const u8* b, int, Scales& out) {
        out.scale[0] = half_at(b);
        out.offset[0] = half_at(b + 2);
    }
};

template <> struct Format<Q5_0> : Whole<Format<Q5_0>> {
    static const int BLOCK = 32, BYTES = 22;
    static const bool HALVES = false, OFFSETS = true;
    static DEVICE_METHOD u32 word(const u8* b, int, int k) {
        u32 low = word_at_2(b + 6 + 4 * (k & 3)) >> 4 * (k >> 2) & 0x0f0f0f0fu;
        return low | spread_bits(word_at_2(b + 2) >> 4 * k) << 4;
    }
    static DEVICE_METHOD void scales(const u8* b, int, Scales& out) {
        out.scale[0] = half_at(b);
        out.offset[0] = -16.0f * out.scale[0];
    }
};

template <> struct Format<Q5_1> : Whole<Format<Q5_1>> {
    static const int BLOCK = 32, BYTES = 24;
    static const bool HALVES = false, OFFSETS = true;
    static DEVICE_METHOD u32 word(const u8* b, int, int k) {
        u32 low = word_at_4(b + 8 + 4 * (k & 3)) >> 4 * (k >> 2) & 0x0f0f0f0fu;
        return low | spread_bits(word_at_4(b + 4) >> 4 * k) << 4;
    }
    static DEVICE_METHOD void scales(const u8* b, int, Scales& out) {
        out.scale[0] = half_at(b);
        out.offset[0] = half_at(b + 2);
    }
};

template <> struct Format<Q8_0> : Whole<Format<Q8_0>> {
    static const int BLOCK = 32, BYTES = 34;
    static const bool HALVES = false, OFFSETS = false;
    static DEVICE_METHOD u32 word(const u8* b, int, int k) {
        return word_at_2(b + 2 + 4 * k);
    }
    static DEVICE_METHOD void scales(const u8* b, int, Scales& out) {
        out.scale[0] = half_at(b);
    }
};

template <> struct Format<Q1_0> : Whole<Format<Q1_0>> {
    static const int BLOCK = 128, BYTES = 18;
    static const bool HALVES = false, OFFSETS = true;
    static DEVICE_METHOD u32 word(const u8* b, int u, int k) {
        return spread_bits(word_at_2(b + 2 + 4 * u) >> 4 * k);
    }
    static DEVICE_METHOD void scales(const u8* b, int, Scales& out) {
        float d = half_at(b);
        out.scale[0] = 2.0f * d;
        out.offset[0] = -d;
    }
};

template <> struct Format<Q2_0> : Whole<Format<Q2_0>> {
    static const int BLOCK = 64, BYTES = 18;
    static const bool HALVES = false, OFFSETS = true;
    static DEVICE_METHOD u32 word(const u8* b, int u, int k) {
        return spread_pairs(b[2 + 8 * u + k]);
    }
    static DEVICE_METHOD void scales(const u8* b, int, Scales& out) {
        out.scale[0] = half_at(b);
        out.offset[0] = -out.scale[0];
    }
};

template <> struct Format<Q2_K> : Whole<Format<Q2_K>> {
    static const int BLOCK = 256, BYTES = 84;
    static const bool HALVES = true, OFFSETS = true;
    static DEVICE_METHOD u32 word(const u8* b, int u, int k) {
        return word_at_4(b + 16 + 32 * (u / 4) + 4 * k) >> 2 * (u % 4) & 0x03030303u;
    }
    static DEVICE_METHOD void scales(const u8* b, int u, Scales& out) {
        float d = half_at(b + 80), dmin = half_at(b + 82);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            u32 scale = b[2 * u + h];
            out.scale[h] = d * (float)(scale & 15);
            out.offset[h] = -(dmin * (float)(scale >> 4));
        }
    }
};

template <> struct Format<Q3_K> : Whole<Format<Q3_K>> {
    static const int BLOCK = 256, BYTES = 110;
    static const bool HALVES = true, OFFSETS = false;
    static DEVICE_METHOD u32 word(const u8* b, int u, int k) {
        u32 low = word_at_2(b + 32 + 32 * (u / 4) + 4 * k) >> 2 * (u % 4) & 0x03030303u;
        u32 high = word_at_2(b + 4 * k) >> u & 0x01010101u;
        return less(low | high << 2, 0x04040404u);
    }
    static DEVICE_METHOD void scales(const u8* b, int u, Scales& out) {
        float d = half_at(b + 108);
        const u8* scales = b + 96;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int j = 2 * u + h;
            int low = j < 8 ? scales[j] & 15 : scales[j - 8] >> 4;
            int high = scales[8 + j % 4] >> 2 * (j / 4) & 3;
            out.scale[h] = d * (float)((low | high << 4) - 32);
        }
    }
};

// Scale and minimum of sub-block `j` of a Q4_K or Q5_K block, from their twelve bytes.
DEVICE void six_bits(const u8* s, int j, int& scale, int& minimum) {
    int shift = 8 * (j & 3);
    u32 scales = word_at_4(s) >> shift, minima = word_at_4(s + 4) >> shift, rest = word_at_4(s + 8) >> shift;
    scale = j < 4 ? scales & 63 : (rest & 15) | (scales >> 2 & 48);
    minimum = j < 4 ? minima & 63 : (rest >> 4 & 15) | (minima >> 2 & 48);
}

template <> struct Format<Q4_K> : Whole<Format<Q4_K>> {
    static const int BLOCK = 256, BYTES = 144;
    static const bool HALVES = false, OFFSETS = true;
    static DEVICE_METHOD u32 word(const u8* b, int u, int k) {
        return word_at_4(b + 16 + 32 * (u / 2) + 4 * k) >> 4 * (u & 1) & 0x0f0f0f0fu;
    }
    static DEVICE_METHOD void scales(const u8* b, int u, Scales& out) {
        int scale, minimum;
        six_bits(b + 4, u, scale, minimum);
        out.scale[0] = half_at(b) * (float)scale;
        out.offset[0] = -(half_at(b + 2) * (float)minimum);
    }
};

template <> struct Format<Q5_K> : Whole<Format<Q5_K>> {
    static const int BLOCK = 256, BYTES = 176;
    static const bool HALVES = false, OFFSETS = true;
    static DEVICE_METHOD u32 word(const u8* b, int u, int k) {
        u32 low = word_at_4(b + 48 + 32 * (u / 2) + 4 * k) >> 4 * (u & 1) & 0x0f0f0f0fu;
        u32 high = word_at_4(b + 16 + 4 * k) >> u & 0x01010101u;
        return low | high << 4;
    }
    static DEVICE_METHOD void scales(const u8* b, int u, Scales& out) {
        int scale, minimum;
        six_bits(b + 4, u, scale, minimum);
        out.scale[0] = half_at(b) * (float)scale;
        out.offset[0] = -(half_at(b + 2) * (float)minimum);
    }
};

template <> struct Format<Q6_K> : Whole<Format<Q6_K>> {
    static const int BLOCK = 256, BYTES = 210;
    static const bool HALVES = true, OFFSETS = false;
    static DEVICE_METHOD u32 word(const u8* b, int u, int k) {
        int n = u / 4, t = u % 4;
        u32 low = word_at_2(b + 64 * n + 32 * (t & 1) + 4 * k) >> 4 * (t >> 1) & 0x0f0f0f0fu;
        u32 high = word_at_2(b + 128 + 32 * n + 4 * k) >> 2 * t & 0x03030303u;
        return less(low | high << 4, 0x20202020u);
    }
    static DEVICE_METHOD void scales(const u8* b, int u, Scales& out) {
        float d = half_at(b + 208);
        out.scale[0] = d * (float)(i8)b[192 + 2 * u];
        out.scale[1] = d * (float)(i8)b[193 + 2 * u];
    }
};

// Four elements of a grid of eight whose levels are 8, 25 and 43.
DEVICE u32 grid_8_25_43(u32 code) {
    u32 c = spread_pairs(code);
    return 0x08080808u + (c | c << 4) + (c >> 1 & 0x01010101u);
}

template <> struct Format<IQ2_XXS> : Whole<Format<IQ2_XXS>> {
    static const int BLOCK = 256, BYTES = 66;
    static const bool HALVES = false, OFFSETS = false;
    static DEVICE_METHOD u32 word(const u8* b, int u, int k) {
        const u8* group = b + 2 + 8 * u;
        int l = k / 2, shift = k & 1;
        u32 code = G2_XXS[group[l]], signs = eight_signs(word_at_2(group + 4) >> 7 * l);
        return with_signs(grid_8_25_43(code >> 8 * shift), signs >> 4 * shift);
    }
    static DEVICE_METHOD void scales(const u8* b, int u, Scales& out) {
        u32 word = word_at_2(b + 6 + 8 * u);
        out.scale[0] = half_at(b) * (0.5f + (float)(word >> 28)) * 0.25f;
    }
};

template <> struct Format<IQ2_XS> : Whole<Format<IQ2_XS>> {
    static const int BLOCK = 256, BYTES = 74;
    static const bool HALVES = true, OFFSETS = false;
    static DEVICE_METHOD u32 word(const u8* b, int u, int k) {
        u32 word = ((const u16*)(b + 2))[4 * u + k / 2];
        int shift = k & 1;
        return with_signs(grid_8_25_43(G2_XS[word & 511] >> 8 * shift), eight_signs(word >> 9) >> 4 * shift);
    }
    static DEVICE_METHOD void scales(const u8* b, int u, Scales& out) {
        float d = half_at(b);
        u32 scales = b[66 + u];
        out.scale[0] = d * (0.5f + (float)(scales & 15)) * 0.25f;
        out.scale[1] = d * (0.5f + (float)(scales >> 4)) * 0.25f;
    }
};

template <> struct Format<IQ2_S> : Whole<Format<IQ2_S>> {
    static const int BLOCK = 256, BYTES = 82;
    static const bool HALVES = true, OFFSETS = false;
    static DEVICE_METHOD u32 word(const u8* b, int u, int k) {
        int l = k / 2, shift = k & 1;
        u32 code = G2_S[b[2 + 4 * u + l] | ((u32)b[66 + u] >> 2 * l & 3) << 8], signs = b[34 + 4 * u + l];
        return with_signs(grid_8_25_43(code >> 8 * shift), signs >> 4 * shift);
    }
    static DEVICE_METHOD void scales(const u8* b, int u, Scales& out) {
        float d = half_at(b);
        u32 scales = b[74 + u];
        out.scale[0] = d * (0.5f + (float)(scales & 15)) * 0.25f;
        out.scale[1] = d * (0.5f + (float)(scales >> 4)) * 0.25f;
    }
};

// Four fields of three bits to four bytes.
DEVICE u32 spread_threes(u32 code) {
    return (code & 7) | (code >> 3 & 7) << 8 | (code >> 6 & 7) << 16 | (code >> 9 & 7) << 24;
}

template <> struct Format<IQ3_XXS> : Whole<Format<IQ3_XXS>> {
    static const int BLOCK = 256, BYTES = 98;
    static const bool HALVES = false, OFFSETS = false;
    static DEVICE_METHOD u32 word(const u8* b, int u, int k) {
        // Levels 4, 12, 20, 28, 36, 44, 52, 62.
        u32 c = spread_threes(G3_XXS[b[2 + 8 * u + k]]);
        u32 levels = 0x04040404u + (c << 3) + (c & c >> 1 & c >> 2 & 0x01010101u) * 2;
        return with_signs(levels, eight_signs(word_at_2(b + 66 + 4 * u) >> 7 * (k / 2)) >> 4 * (k & 1));
    }
    static DEVICE_METHOD void scales(const u8* b, int u, Scales& out) {
        u32 word = word_at_2(b + 66 + 4 * u);
        out.scale[0] = half_at(b) * (0.5f + (float)(word >> 28)) * 0.5f;
    }
};

template <> struct Format<IQ3_S> : Whole<Format<IQ3_S>> {
    static const int BLOCK = 256, BYTES = 110;
    static const bool HALVES = false, OFFSETS = false;
    static DEVICE_METHOD u32 word(const u8* b, int u, int k) {
        u32 c = spread_threes(G3_S[b[2 + 8 * u + k] | ((u32)b[66 + u] >> k & 1) << 8]);
        return with_signs(0x01010101u + (c << 1), b[74 + 4 * u + k / 2] >> 4 * (k & 1));
    }
    static DEVICE_METHOD void scales(const u8* b, int u, Scales& out) {
        u32 scale = b[106 + u / 2] >> 4 * (u & 1) & 15;
        out.scale[0] = half_at(b) * (float)(1 + 2 * scale);
    }
};

// Four elements of the ternary grid, shifted by an eighth up or down, in eighths.
DEVICE u32 shifted_grid(u32 code, bool down) {
    return less(spread_pairs(code) << 3, down ? 0x09090909u : 0x07070707u);
}

template <> struct Format<IQ1_S> : Whole<Format<IQ1_S>> {
    static const int BLOCK = 256, BYTES = 50;
    static const bool HALVES = false, OFFSETS = false;
    static DEVICE_METHOD u32 word(const u8* b, int u, int k) {
        u32 word = *(const u16*)(b + 34 + 2 * u);
        int l = k / 2;
        u32 code = G1[b[2 + 4 * u + l] | (word >> 3 * l & 7) << 8];
        return shifted_grid(code >> 8 * (k & 1), word >> 15);
    }
    static DEVICE_METHOD void scales(const u8* b, int u, Scales& out) {
        u32 word = *(const u16*)(b + 34 + 2 * u);
        out.scale[0] = half_at(b) * (float)(2 * (word >> 12 & 7) + 1) * 0.125f;
    }
};

template <> struct Format<IQ1_M> : Whole<Format<IQ1_M>> {
    static const int BLOCK = 256, BYTES = 56;
    static const bool HALVES = true, OFFSETS = false;
    static DEVICE_METHOD u32 word(const u8* b, int u, int k) {
        int l = k / 2;
        u32 h = b[32 + 2 * u + l / 2] >> 4 * (l & 1) & 15;
        u32 code = G1[b[4 * u + l] | (h & 7) << 8];
        return shifted_grid(code >> 8 * (k & 1), h >> 3);
    }
    static DEVICE_METHOD void scales(const u8* b, int u, Scales& out) {
        const u16* words = (const u16*)(b + 48);
        u32 bits = words[0] >> 12 | (words[1] >> 12) << 4 | (words[2] >> 12) << 8 | (words[3] >> 12) << 12;
        float d = from_half((u16)bits);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            u32 scale = words[u / 2] >> (6 * (u & 1) + 3 * h) & 7;
            out.scale[h] = d * (float)(2 * scale + 1) * 0.125f;
        }
    }
};

// Sixteen levels as four words: -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113.
DEVICE u32 nonlinear(u32 nibbles) { return look_up(nibbles, 0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u); }

template <> struct Format<IQ4_NL> : Whole<Format<IQ4_NL>> {
    static const int BLOCK = 32, BYTES = 18;
    static const bool HALVES = false, OFFSETS = false;
    static DEVICE_METHOD u32 word(const u8* b, int, int k) {
        return nonlinear(word_at_2(b + 2 + 4 * (k & 3)) >> 4 * (k >> 2) & 0x0f0f0f0fu);
    }
    static DEVICE_METHOD void scales(const u8* b, int, Scales& out) {
        out.scale[0] = half_at(b);
    }
};

template <> struct Format<IQ4_XS> : Whole<Format<IQ4_XS>> {
    static const int BLOCK = 256, BYTES = 136;
    static const bool HALVES = false, OFFSETS = false;
    static DEVICE_METHOD u32 word(const u8* b, int u, int k) {
        return nonlinear(word_at_4(b + 8 + 16 * u + 4 * (k & 3)) >> 4 * (k >> 2) & 0x0f0f0f0fu);
    }
    static DEVICE_METHOD void scales(const u8* b, int u, Scales& out) {
        u32 high = *(const u16*)(b + 2);
        u32 scale = (b[4 + u / 2] >> 4 * (u & 1) & 15) | (high >> 2 * u & 3) << 4;
        out.scale[0] = half_at(b) * (float)((int)scale - 32);
    }
};

template <> struct Format<TQ1_0> : Whole<Format<TQ1_0>> {
    static const int BLOCK = 256, BYTES = 54;
    static const bool HALVES = false, OFFSETS = true;
    static DEVICE_METHOD u32 word(const u8* b, int u, int k) {
        // Which byte holds the first of four neighbours, and which of its digits.
        int e = 32 * u + 4 * k, from, digit;
        if (e < 160) {
            from = e % 32, digit = e / 32;
        } else if (e < 240) {
            from = 32 + (e - 160) % 16, digit = (e - 160) / 16;
        } else {
            from = 48, digit = (e - 240) / 4;
        }
        u32 power = digit == 0 ? 1 : digit == 1 ? 3 : digit == 2 ? 9 : digit == 3 ? 27 : 81, word = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) word |= ((b[from + j] * power & 255) * 3 >> 8) << 8 * j;
        return word;
    }
    static DEVICE_METHOD void scales(const u8* b, int, Scales& out) {
        out.scale[0] = half_at(b + 52);
        out.offset[0] = -out.scale[0];
    }
};

template <> struct Format<TQ2_0> : Whole<Format<TQ2_0>> {
    static const int BLOCK = 256, BYTES = 66;
    static const bool HALVES = false, OFFSETS = true;
    static DEVICE_METHOD u32 word(const u8* b, int u, int k) {
        return word_at_2(b + 32 * (u / 4) + 4 * k) >> 2 * (u % 4) & 0x03030303u;
    }
    static DEVICE_METHOD void scales(const u8* b, int, Scales& out) {
        out.scale[0] = half_at(b + 64);
        out.offset[0] = -out.scale[0];
    }
};

// Four-bit floats, doubled: 0, 1, 2, 3, 4, 6, 8, 12 and their negatives.
DEVICE u32 doubled_fp4(u32 nibbles) { return look_up(nibbles, 0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu); }
// Half of the power of two that an exponent byte means.
DEVICE float half_e8m0(u32 e) { return __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23); }
// Half of the number that a byte of four exponent and three mantissa bits means.
DEVICE float half_ue4m3(u32 x) {
    if (x == 0 || x == 127) return 0.0f;
    u32 e = x >> 3 & 15, m = x & 7;
    return e == 0 ? (float)m * 0.0009765625f : __uint_as_float((e + 119) << 23 | m << 20);
}

template <> struct Format<MXFP4> : Whole<Format<MXFP4>> {
    static const int BLOCK = 32, BYTES = 17;
    static const bool HALVES = false, OFFSETS = false;
    static DEVICE_METHOD u32 word(const u8* b, int, int k) {
        return doubled_fp4(word_at_1(b + 1 + 4 * (k & 3)) >> 4 * (k >> 2) & 0x0f0f0f0fu);
    }
    static DEVICE_METHOD void scales(const u8* b, int, Scales& out) {
        out.scale[0] = half_e8m0(b[0]);
    }
};

template <> struct Format<NVFP4> : Whole<Format<NVFP4>> {
    static const int BLOCK = 64, BYTES = 36;
    static const bool HALVES = true, OFFSETS = false;
    static DEVICE_METHOD u32 word(const u8* b, int u, int k) {
        // Each half has its own eight bytes: low digits first, then high ones.
        return doubled_fp4(word_at_4(b + 4 + 16 * u + 8 * (k >> 2) + 4 * (k & 1)) >> 4 * (k >> 1 & 1) & 0x0f0f0f0fu);
    }
    static DEVICE_METHOD void scales(const u8* b, int u, Scales& out) {
        out.scale[0] = half_ue4m3(b[2 * u]);
        out.scale[1] = half_ue4m3(b[2 * u + 1]);
    }
};

// Four signed bytes as half precision, each times `scale` and plus `offset`, of which both halves are the same.
template <bool OFFSETS> DEVICE U2 halves_of(u32 bytes, u32 scale, u32 offset) {
    U2 out;
#ifdef OXCART_EMULATE
    u32 pair[2];
    for (int i = 0; i < 2; i++) {
        float s = from_half((u16)scale), o = OFFSETS ? from_half((u16)offset) : 0.0f;
        pair[i] = pack_half((float)(i8)(bytes >> 16 * i) * s + o, (float)(i8)(bytes >> (16 * i + 8)) * s + o);
    }
    out.x = pair[0], out.y = pair[1];
#else
    // A byte below the bits of 1,024 is as much more than it; 128 of it is what made it positive.
    u32 positive = bytes ^ 0x80808080u, low = __byte_perm(positive, 0x64646464u, 0x4140), high = __byte_perm(positive, 0x64646464u, 0x4342);
    asm("sub.f16x2 %0, %1, %2;" : "=r"(low) : "r"(low), "r"(0x64806480u));
    asm("sub.f16x2 %0, %1, %2;" : "=r"(high) : "r"(high), "r"(0x64806480u));
    if (OFFSETS) {
        asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(out.x) : "r"(low), "r"(scale), "r"(offset));
        asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(out.y) : "r"(high), "r"(scale), "r"(offset));
    } else {
        asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(out.x) : "r"(low), "r"(scale));
        asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(out.y) : "r"(high), "r"(scale));
    }
#endif
    return out;
}

// Element `e` of a unit as a number; `e` is a constant where loops are unrolled.
template <class F> DEVICE float element(const Unit& unit, int e) {
    int h = F::HALVES ? e / 16 : 0;
    float q = (float)(i8)(unit.q[e / 4] >> 8 * (e % 4));
    float scaled = __fmul_rn(q, unit.scale[h]);
    return F::OFFSETS ? __fadd_rn(scaled, unit.offset[h]) : scaled;
}

// Calls `body.run<Format>()` for the format of a quantized type.
template <class Body> DEVICE void with_format(i32 type, Body& body) {
    switch (type) {
        case Q1_0: body.template run<Format<Q1_0>>(); break;
        case Q2_0: body.template run<Format<Q2_0>>(); break;
        case Q4_0: body.template run<Format<Q4_0>>(); break;
        case Q4_1: body.template run<Format<Q4_1>>(); break;
        case Q5_0: body.template run<Format<Q5_0>>(); break;
        case Q5_1: body.template run<Format<Q5_1>>(); break;
        case Q8_0: body.template run<Format<Q8_0>>(); break;
        case Q2_K: body.template run<Format<Q2_K>>(); break;
        case Q3_K: body.template run<Format<Q3_K>>(); break;
        case Q4_K: body.template run<Format<Q4_K>>(); break;
        case Q5_K: body.template run<Format<Q5_K>>(); break;
        case Q6_K: body.template run<Format<Q6_K>>(); break;
        case IQ1_S: body.template run<Format<IQ1_S>>(); break;
        case IQ1_M: body.template run<Format<IQ1_M>>(); break;
        case IQ2_XXS: body.template run<Format<IQ2_XXS>>(); break;
        case IQ2_XS: body.template run<Format<IQ2_XS>>(); break;
        case IQ2_S: body.template run<Format<IQ2_S>>(); break;
        case IQ3_XXS: body.template run<Format<IQ3_XXS>>(); break;
        case IQ3_S: body.template run<Format<IQ3_S>>(); break;
        case IQ4_NL: body.template run<Format<IQ4_NL>>(); break;
        case IQ4_XS: body.template run<Format<IQ4_XS>>(); break;
        case TQ1_0: body.template run<Format<TQ1_0>>(); break;
        case TQ2_0: body.template run<Format<TQ2_0>>(); break;
        case MXFP4: body.template run<Format<MXFP4>>(); break;
        case NVFP4: body.template run<Format<NVFP4>>(); break;
        default: break;
    }
}

// The types that the macro takes one after another; what is instantiated per type is instantiated for these.
#define EACH_FORMAT(X)                                                                                              \
    X(q1_0, Q1_0) X(q2_0, Q2_0) X(q4_0, Q4_0) X(q4_1, Q4_1) X(q5_0, Q5_0) X(q5_1, Q5_1) X(q8_0, Q8_0)               \
    X(q2_K, Q2_K) X(q3_K, Q3_K) X(q4_K, Q4_K) X(q5_K, Q5_K) X(q6_K, Q6_K)                                           \
    X(iq1_s, IQ1_S) X(iq1_m, IQ1_M) X(iq2_xxs, IQ2_XXS) X(iq2_xs, IQ2_XS) X(iq2_s, IQ2_S)                           \
    X(iq3_xxs, IQ3_XXS) X(iq3_s, IQ3_S) X(iq4_nl, IQ4_NL) X(iq4_xs, IQ4_XS)                                         \
    X(tq1_0, TQ1_0) X(tq2_0, TQ2_0) X(mxfp4, MXFP4) X(nvfp4, NVFP4)
