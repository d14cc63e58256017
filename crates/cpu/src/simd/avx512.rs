//! Sixteen lanes: AVX-512 with VNNI.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::{Level, Simd};

/// Proof that this processor has AVX-512 F, BW, DQ, VL and VNNI, and all that AVX2 has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// A token.
    ///
    /// # Safety
    ///
    /// The processor must have the instructions.
    #[inline(always)]
    pub(crate) const unsafe fn assume() -> Avx512 {
        Avx512(())
    }
}

impl Simd for Avx512 {
    const LEVEL: Level = Level::AVX512;
    const LANES: usize = 16;
    type F32 = __m512;

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    fn load(self, from: &[f32]) -> __m512 {
        assert!(from.len() >= Self::LANES);
        // SAFETY: the slice has enough lanes, and this token exists only where the processor has the instructions.
        unsafe { _mm512_loadu_ps(from.as_ptr()) }
    }
    #[inline(always)]
    fn store(self, v: __m512, to: &mut [f32]) {
        assert!(to.len() >= Self::LANES);
        // SAFETY: the slice has enough lanes, and this token exists only where the processor has the instructions.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), v) }
    }
    #[inline(always)]
    fn load_f16(self, from: &[f16]) -> __m512 {
        assert!(from.len() >= Self::LANES);
        // SAFETY: the slice has enough lanes, and this token exists only where the processor has the instructions.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())) }
    }
    #[inline(always)]
    fn load_bf16(self, from: &[bf16]) -> __m512 {
        assert!(from.len() >= Self::LANES);
        // SAFETY: the slice has enough lanes, and this token exists only where the processor has the instructions.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn round(self, a: __m512) -> __m512 {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    fn pow2(self, n: __m512) -> __m512 {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe {
            let exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponent))
        }
    }
    #[inline(always)]
    fn where_greater(self, a: __m512, b: __m512, yes: __m512, no: __m512) -> __m512 {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b), no, yes) }
    }
    #[inline(always)]
    fn sum(self, v: __m512) -> f32 {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe { _mm512_reduce_add_ps(v) }
    }
    #[inline(always)]
    fn largest(self, v: __m512) -> f32 {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe { _mm512_reduce_max_ps(v) }
    }
}
