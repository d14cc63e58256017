//! AVX2 with FMA and F16C.

use std::arch::x86_64::*;

use super::{common_lanes, each, four_halves, load, scale_words, twice};
use crate::kernels::dot::lanes::Lanes;
use crate::simd::Avx2;

/// Masks of bytes from bits.
#[inline(always)]
fn where_set(bits: u32) -> __m256i {
    // SAFETY: called by the functions of the token alone.
    unsafe {
        // Each byte gets the one of four that has its bit.
        let which = _mm256_set_epi64x(
            0x0303_0303_0303_0303,
            0x0202_0202_0202_0202,
            0x0101_0101_0101_0101,
            0x0000_0000_0000_0000,
        );
        let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(bits as i32), which);
        let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit)
    }
}

/// Sums of neighbouring words.
#[inline(always)]
fn pairs(words: __m256i) -> __m256i {
    // SAFETY: called by the functions of the token alone.
    unsafe { _mm256_madd_epi16(words, _mm256_set1_epi16(1)) }
}

impl Lanes for Avx2 {
    common_lanes!();

    #[inline(always)]
    fn add_where(self, bits: u64, value: u8, bytes: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: the instructions are there.
        unsafe {
            let value = _mm256_set1_epi8(value as i8);
            each!(|i| _mm256_add_epi8(
                bytes[i],
                _mm256_and_si256(where_set((bits >> (32 * i)) as u32), value)
            ))
        }
    }
    #[inline(always)]
    fn negate_where(self, bits: u64, bytes: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: the instructions are there.
        unsafe {
            each!(|i| {
                let mask = where_set((bits >> (32 * i)) as u32);
                _mm256_sub_epi8(_mm256_xor_si256(bytes[i], mask), mask)
            })
        }
    }
    #[inline(always)]
    fn dot_codes(self, codes: [__m256i; 2], acts: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: the instructions are there.
        unsafe { each!(|i| pairs(_mm256_maddubs_epi16(codes[i], acts[i]))) }
    }
    #[inline(always)]
    fn dot_centred(self, codes: [__m256i; 2], middle: u8, acts: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: the instructions are there. Pairs of products fit 16 bits because codes and middle are below 128.
        unsafe {
            let middle = _mm256_set1_epi8(middle as i8);
            each!(|i| {
                let words = _mm256_maddubs_epi16(codes[i], acts[i]);
                let excess = _mm256_maddubs_epi16(middle, acts[i]);
                pairs(_mm256_sub_epi16(words, excess))
            })
        }
    }
    #[inline(always)]
    fn dot_levels(self, levels: [__m256i; 2], acts: [__m256i; 2]) -> [__m256i; 2] {
        let words = self.level_words(levels, acts);
        [pairs(words[0]), pairs(words[1])]
    }
    #[inline(always)]
    fn dot_signed(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        // By way of 16 bits, because -128 has no opposite among bytes, and two products of it are too large for less.
        // SAFETY: the instructions are there.
        unsafe {
            each!(|i| {
                let low = _mm256_madd_epi16(
                    _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(a[i])),
                    _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(b[i])),
                );
                let high = _mm256_madd_epi16(_mm256_srai_epi16::<8>(a[i]), _mm256_srai_epi16::<8>(b[i]));
                _mm256_add_epi32(low, high)
            })
        }
    }
    #[inline(always)]
    fn add_words(self, to: [__m256i; 2], words: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: the instructions are there.
        unsafe { each!(|i| _mm256_add_epi32(to[i], pairs(words[i]))) }
    }
    #[inline(always)]
    fn add_scaled(
        self,
        to: [__m256i; 2],
        words: [__m256i; 2],
        scales: [__m256i; 2],
        part: usize,
    ) -> [__m256i; 2] {
        // SAFETY: the instructions are there.
        unsafe {
            each!(|i| _mm256_add_epi32(to[i], _mm256_madd_epi16(words[i], scale_words(scales, part, i))))
        }
    }
}
