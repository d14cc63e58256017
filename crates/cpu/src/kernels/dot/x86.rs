//! [`Lanes`](super::lanes::Lanes) for 64-bit x86: how bytes come into registers, on both instruction sets.

mod avx2;
mod avx512;

use std::arch::x86_64::*;

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
        #[inline(always)]
        fn half(self, bits: u16) -> f32 {
            // SAFETY: the instructions are there.
            unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits)))) }
        }
    };
}
use short_lanes;
