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
    const IS_AVX512: bool = true;
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
    fn splat_f16(self, x: f16) -> __m512 {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe { _mm512_cvtph_ps(_mm256_set1_epi16(x.to_bits().cast_signed())) }
    }
    #[inline(always)]
    fn load_i8(self, from: &[i8]) -> __m512 {
        assert!(from.len() >= Self::LANES);
        // SAFETY: the slice has enough lanes, and this token exists only where the processor has the instructions.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.as_ptr().cast()))) }
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
    fn scale(self, a: __m512, n: __m512) -> __m512 {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe { _mm512_scalef_ps(a, n) }
    }
    #[inline(always)]
    fn fold_four(self, [a, b, c, d]: [__m512; 4]) -> [f32; 4] {
        let mut folded = [0.0; 4];
        // SAFETY: this token exists only where the processor has the instructions, and the array has four numbers.
        unsafe {
            // Eight lanes of a and of b; of c and of d.
            let ab = _mm512_add_ps(
                _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b),
                _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b),
            );
            let cd = _mm512_add_ps(
                _mm512_shuffle_f32x4::<0b01_00_01_00>(c, d),
                _mm512_shuffle_f32x4::<0b11_10_11_10>(c, d),
            );
            // Four lanes of each.
            let fours = _mm512_add_ps(
                _mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd),
                _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd),
            );
            let twos = _mm512_add_ps(fours, _mm512_permute_ps::<0b01_00_11_10>(fours));
            let ones = _mm512_add_ps(twos, _mm512_permute_ps::<0b10_11_00_01>(twos));
            let first = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
            let all = _mm512_castps512_ps128(_mm512_permutexvar_ps(first, ones));
            _mm_storeu_ps(folded.as_mut_ptr(), all);
        }
        folded
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
