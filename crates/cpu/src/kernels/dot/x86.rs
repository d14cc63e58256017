//! [`Lanes`](super::lanes::Lanes) for 64-bit x86: how bytes come into registers, on both instruction sets.

mod avx2;
mod avx512;

pub(crate) use self::avx512::{swap_quarters, swap_words};

/// What fits a register of 16 bytes, on both instruction sets.
macro_rules! short_lanes {
    () => {
        const WRITTEN_OUT: bool = true;

        #[inline(always)]
        fn half(self, bits: u16) -> f32 {
            // SAFETY: the instructions are there.
            unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits)))) }
        }
    };
}
use short_lanes;
