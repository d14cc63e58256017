//! Eight lanes: AVX2 with FMA and F16C.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::{Level, Simd};

/// Proof that this processor has AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// A token.
    ///
    /// # Safety
    ///
    /// The processor must have the instructions.
    #[inline(always)]
    pub(crate) const unsafe fn assume() -> Avx2 {
        Avx2(())
    }
}

impl Simd for Avx2 {
    const LEVEL: Level = Level::AVX2;
    const LANES: usize = 8;
    type F32 = __m256;

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    fn load(self, from: &[f32]) -> __m256 {
        assert!(from.len() >= Self::LANES);
        // SAFETY: the slice has enough lanes, and this token exists only where the processor has the instructions.
        unsafe { _mm256_loadu_ps(from.as_ptr()) }
    }
    #[inline(always)]
    fn store(self, v: __m256, to: &mut [f32]) {
        assert!(to.len() >= Self::LANES);
        // SAFETY: the slice has enough lanes, and this token exists only where the processor has the instructions.
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), v) }
    }
    #[inline(always)]
    fn load_f16(self, from: &[f16]) -> __m256 {
        assert!(from.len() >= Self::LANES);
        // SAFETY: the slice has enough lanes, and this token exists only where the processor has the instructions.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().cast())) }
    }
    #[inline(always)]
    fn load_bf16(self, from: &[bf16]) -> __m256 {
        assert!(from.len() >= Self::LANES);
        // SAFETY: the slice has enough lanes, and this token exists only where the processor has the instructions.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.as_ptr().cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    fn splat_f16(self, x: f16) -> __m256 {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe { _mm256_cvtph_ps(_mm_set1_epi16(x.to_bits().cast_signed())) }
    }
    #[inline(always)]
    fn load_i8(self, from: &[i8]) -> __m256 {
        assert!(from.len() >= Self::LANES);
        // SAFETY: the slice has enough lanes, and this token exists only where the processor has the instructions.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.as_ptr().cast()))) }
    }
    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe { _mm256_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe { _mm256_div_ps(a, b) }
    }
    #[inline(always)]
    fn mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe { _mm256_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe { _mm256_min_ps(a, b) }
    }
    #[inline(always)]
    fn round(self, a: __m256) -> __m256 {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    fn pow2(self, n: __m256) -> __m256 {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe {
            let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent))
        }
    }
    #[inline(always)]
    fn where_greater(self, a: __m256, b: __m256, yes: __m256, no: __m256) -> __m256 {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe { _mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_GT_OQ>(a, b)) }
    }
    #[inline(always)]
    fn sum(self, v: __m256) -> f32 {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe {
            let half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
            _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)))
        }
    }
    #[inline(always)]
    fn fold_four(self, [a, b, c, d]: [__m256; 4]) -> [f32; 4] {
        let mut folded = [0.0; 4];
        // SAFETY: this token exists only where the processor has the instructions, and the array has four numbers.
        unsafe {
            // Four lanes of a and of b, then of c and of d.
            let ab =
                _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b));
            let cd =
                _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(c, d), _mm256_permute2f128_ps::<0x31>(c, d));
            // Two lanes of a and of c, then of b and of d.
            let pairs = _mm256_add_ps(
                _mm256_shuffle_ps::<0b01_00_01_00>(ab, cd),
                _mm256_shuffle_ps::<0b11_10_11_10>(ab, cd),
            );
            let ones = _mm256_add_ps(pairs, _mm256_movehdup_ps(pairs));
            let (ac, bd) = (_mm256_castps256_ps128(ones), _mm256_extractf128_ps::<1>(ones));
            // a, c, b, d.
            let all = _mm_shuffle_ps::<0b10_00_10_00>(ac, bd);
            _mm_storeu_ps(folded.as_mut_ptr(), _mm_permute_ps::<0b11_01_10_00>(all));
        }
        folded
    }
    #[inline(always)]
    fn largest(self, v: __m256) -> f32 {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe {
            let half = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let pair = _mm_max_ps(half, _mm_movehl_ps(half, half));
            _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)))
        }
    }
}
