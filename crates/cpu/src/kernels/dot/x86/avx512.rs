//! AVX-512 with VNNI.

use std::arch::x86_64::*;

use super::{common_lanes, each, four_halves, load, scale_words, twice};
use crate::kernels::dot::lanes::Lanes;
use crate::simd::Avx512;

/// A low nibble in the lower half, and the same as a high nibble in the upper half.
#[inline(always)]
fn nibble(value: u8) -> __m256i {
    // SAFETY: called by the functions of the token alone.
    unsafe { _mm256_set_m128i(_mm_set1_epi8((value << 4) as i8), _mm_set1_epi8(value as i8)) }
}

/// Sums of `levels * acts`, for levels that are all the same, or the same in each half.
///
/// The instruction wants the activations unsigned here. With the other sign bit, they are that and 128 more, so the
/// sum starts with what takes 128 off four of them.
#[inline(always)]
fn negative(levels: __m256i, acts: __m256i) -> __m256i {
    // SAFETY: called by the functions of the token alone.
    unsafe {
        let high = _mm256_set1_epi8(-128);
        let excess = _mm256_dpbusd_epi32(_mm256_setzero_si256(), high, levels);
        let start = _mm256_sub_epi32(_mm256_setzero_si256(), excess);
        _mm256_dpbusd_epi32(start, _mm256_xor_si256(acts, high), levels)
    }
}

impl Lanes for Avx512 {
    common_lanes!();

    #[inline(always)]
    fn add_where(self, bits: u64, value: u8, bytes: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: the instructions are there.
        unsafe {
            let value = _mm256_set1_epi8(value as i8);
            each!(|i| _mm256_mask_add_epi8(bytes[i], (bits >> (32 * i)) as u32, bytes[i], value))
        }
    }
    #[inline(always)]
    fn negate_where(self, bits: u64, bytes: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: the instructions are there.
        unsafe {
            let zero = _mm256_setzero_si256();
            each!(|i| _mm256_mask_sub_epi8(bytes[i], (bits >> (32 * i)) as u32, zero, bytes[i]))
        }
    }
    #[inline(always)]
    fn dot_codes(self, codes: [__m256i; 2], acts: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: the instructions are there.
        unsafe { each!(|i| _mm256_dpbusd_epi32(_mm256_setzero_si256(), codes[i], acts[i])) }
    }
    #[inline(always)]
    fn dot_centred(self, codes: [__m256i; 2], middle: u8, acts: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: the instructions are there.
        unsafe {
            let middle = _mm256_set1_epi8(middle.wrapping_neg() as i8);
            each!(|i| _mm256_dpbusd_epi32(negative(middle, acts[i]), codes[i], acts[i]))
        }
    }
    #[inline(always)]
    fn dot_nibbles(self, a: &[u8; 16], b: &[u8; 16], middle: u8, acts: [__m256i; 2]) -> [__m256i; 2] {
        let from = [a, b];
        // High nibbles stay where they are: codes of eight bits are no harder to multiply than codes of four.
        // SAFETY: the instructions are there.
        unsafe {
            let codes = each!(|i| _mm256_and_si256(twice(from[i]), nibble(15)));
            if middle == 0 {
                return self.dot_codes(codes, acts);
            }
            let middle = nibble(middle.wrapping_neg());
            each!(|i| _mm256_dpbusd_epi32(negative(middle, acts[i]), codes[i], acts[i]))
        }
    }
    #[inline(always)]
    fn total_of_nibbles(self, v: [__m256; 2]) -> f32 {
        // SAFETY: the instructions are there.
        unsafe {
            let sixteenth = _mm256_set_m128(_mm_set1_ps(1.0 / 16.0), _mm_set1_ps(1.0));
            self.total(each!(|i| _mm256_mul_ps(v[i], sixteenth)))
        }
    }
    #[inline(always)]
    fn dot_levels(self, levels: [__m256i; 2], acts: [__m256i; 2]) -> [__m256i; 2] {
        self.dot_signed(levels, acts)
    }
    #[inline(always)]
    fn dot_signed(self, a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        // The instruction wants one side unsigned: with the other sign bit, it is that and 128 more.
        // SAFETY: the instructions are there.
        let codes = unsafe { each!(|i| _mm256_xor_si256(a[i], _mm256_set1_epi8(-128))) };
        self.dot_centred(codes, 128, b)
    }
    #[inline(always)]
    fn add_words(self, to: [__m256i; 2], words: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: the instructions are there.
        unsafe { each!(|i| _mm256_dpwssd_epi32(to[i], words[i], _mm256_set1_epi16(1))) }
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
        unsafe { each!(|i| _mm256_dpwssd_epi32(to[i], words[i], scale_words(scales, part, i))) }
    }
}
