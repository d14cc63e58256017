//! [`Lanes`](super::lanes::Lanes) for 64-bit x86: how bytes come into registers, on both instruction sets.

mod avx2;
mod avx512;

use std::arch::x86_64::*;

/// The numbers that two blocks begin with, see [`Lanes::heads`](super::lanes::Lanes::heads).
#[inline(always)]
fn four_halves([a, b]: [&[u8; 16]; 2]) -> __m128 {
    // SAFETY: called by the functions of the tokens alone, and the arrays have 16 bytes.
    unsafe {
        let (a, b) = (_mm_loadu_si128(a.as_ptr().cast()), _mm_loadu_si128(b.as_ptr().cast()));
        _mm_cvtph_ps(_mm_blend_epi32::<2>(a, b))
    }
}

#[inline(always)]
fn load(from: &[u8; 32]) -> __m256i {
    // SAFETY: called by the functions of the tokens alone, and the array has 32 bytes.
    unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
}

#[inline(always)]
fn twice(from: &[u8; 16]) -> __m256i {
    // SAFETY: called by the functions of the tokens alone, and the array has 16 bytes.
    unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(from.as_ptr().cast())) }
}

/// What fits a register of 16 bytes, on both instruction sets.
macro_rules! short_lanes {
    () => {
        type Groups = __m128i;
        type Heads = __m128;

        #[inline(always)]
        fn groups(self, from: &[u8; 16]) -> __m128i {
            // SAFETY: the instructions are there, and the array has 16 bytes.
            unsafe { _mm_loadu_si128(from.as_ptr().cast()) }
        }
        #[inline(always)]
        fn interleaved(self, even: u64, odd: u64) -> __m128i {
            // SAFETY: the instructions are there.
            unsafe { _mm_unpacklo_epi8(_mm_cvtsi64_si128(even as i64), _mm_cvtsi64_si128(odd as i64)) }
        }
        #[inline(always)]
        fn group_field(self, groups: __m128i, shift: u32, mask: u8) -> __m128i {
            // SAFETY: the instructions are there.
            unsafe {
                let shifted = _mm_srl_epi16(groups, _mm_cvtsi32_si128(shift as i32));
                _mm_and_si128(shifted, _mm_set1_epi8(mask as i8))
            }
        }
        #[inline(always)]
        fn half(self, bits: u16) -> f32 {
            // SAFETY: the instructions are there.
            unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits)))) }
        }
        #[inline(always)]
        fn heads(self, a: [&[u8; 16]; 2], b: [&[u8; 16]; 2]) -> __m128 {
            // SAFETY: the instructions are there.
            unsafe { _mm_mul_ps(four_halves(a), four_halves(b)) }
        }
        #[inline(always)]
        fn two_heads(self, numbers: [f32; 2]) -> __m128 {
            // SAFETY: the instructions are there.
            unsafe { _mm_set_ps(0.0, numbers[1], 0.0, numbers[0]) }
        }
        #[inline(always)]
        fn no_heads(self) -> __m128 {
            // SAFETY: the instructions are there.
            unsafe { _mm_setzero_ps() }
        }
        #[inline(always)]
        fn add_heads(self, a: __m128, b: __m128) -> __m128 {
            // SAFETY: the instructions are there.
            unsafe { _mm_add_ps(a, b) }
        }
        #[inline(always)]
        fn total_seconds(self, heads: __m128) -> f32 {
            // SAFETY: the instructions are there.
            unsafe {
                let seconds = _mm_movehdup_ps(heads);
                _mm_cvtss_f32(_mm_add_ss(seconds, _mm_movehl_ps(seconds, seconds)))
            }
        }
    };
}
use short_lanes;
