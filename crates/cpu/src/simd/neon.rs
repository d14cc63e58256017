//! Four lanes: NEON.

use std::arch::aarch64::*;

use half::{bf16, f16};

use super::{Level, Simd};

/// Proof that this processor has NEON; every 64-bit ARM does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Neon(());

impl Neon {
    /// A token.
    ///
    /// # Safety
    ///
    /// The processor must have the instructions.
    #[inline(always)]
    pub(crate) const unsafe fn assume() -> Neon {
        Neon(())
    }
}

impl Simd for Neon {
    const LEVEL: Level = Level::Neon;
    const LANES: usize = 4;
    type F32 = float32x4_t;

    #[inline(always)]
    fn splat(self, x: f32) -> float32x4_t {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe { vdupq_n_f32(x) }
    }
    #[inline(always)]
    fn load(self, from: &[f32]) -> float32x4_t {
        assert!(from.len() >= Self::LANES);
        // SAFETY: the slice has enough lanes, and this token exists only where the processor has the instructions.
        unsafe { vld1q_f32(from.as_ptr()) }
    }
    #[inline(always)]
    fn store(self, v: float32x4_t, to: &mut [f32]) {
        assert!(to.len() >= Self::LANES);
        // SAFETY: the slice has enough lanes, and this token exists only where the processor has the instructions.
        unsafe { vst1q_f32(to.as_mut_ptr(), v) }
    }
    #[inline(always)]
    fn load_f16(self, from: &[f16]) -> float32x4_t {
        // The vector conversion needs a type that stable Rust does not have; the library uses the scalar one.
        let mut wide = [0.0; 4];
        half::slice::HalfFloatSliceExt::convert_to_f32_slice(&from[..4], &mut wide);
        self.load(&wide)
    }
    #[inline(always)]
    fn load_bf16(self, from: &[bf16]) -> float32x4_t {
        assert!(from.len() >= Self::LANES);
        // SAFETY: the slice has enough lanes, and this token exists only where the processor has the instructions.
        unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(from.as_ptr().cast()))) }
    }
    #[inline(always)]
    fn splat_f16(self, x: f16) -> float32x4_t {
        self.splat(x.to_f32())
    }
    #[inline(always)]
    fn load_i8(self, from: &[i8]) -> float32x4_t {
        let lanes: [f32; 4] = std::array::from_fn(|i| f32::from(from[i]));
        self.load(&lanes)
    }
    #[inline(always)]
    fn add(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe { vaddq_f32(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe { vsubq_f32(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe { vmulq_f32(a, b) }
    }
    #[inline(always)]
    fn div(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe { vdivq_f32(a, b) }
    }
    #[inline(always)]
    fn mul_add(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe { vfmaq_f32(c, a, b) }
    }
    #[inline(always)]
    fn max(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
    }
    #[inline(always)]
    fn min(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe { vbslq_f32(vcltq_f32(a, b), a, b) }
    }
    #[inline(always)]
    fn round(self, a: float32x4_t) -> float32x4_t {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe { vrndnq_f32(a) }
    }
    #[inline(always)]
    fn pow2(self, n: float32x4_t) -> float32x4_t {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe {
            let exponent = vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127));
            vreinterpretq_f32_s32(vshlq_n_s32::<23>(exponent))
        }
    }
    #[inline(always)]
    fn where_greater(self, a: float32x4_t, b: float32x4_t, yes: float32x4_t, no: float32x4_t) -> float32x4_t {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe { vbslq_f32(vcgtq_f32(a, b), yes, no) }
    }
    #[inline(always)]
    fn sum(self, v: float32x4_t) -> f32 {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe { vaddvq_f32(v) }
    }
    #[inline(always)]
    fn fold_four(self, [a, b, c, d]: [float32x4_t; 4]) -> [f32; 4] {
        let mut folded = [0.0; 4];
        // SAFETY: this token exists only where the processor has the instructions, and the array has four numbers.
        unsafe {
            let two = |v: float32x4_t| vadd_f32(vget_low_f32(v), vget_high_f32(v));
            let low = vpadd_f32(two(a), two(b));
            let high = vpadd_f32(two(c), two(d));
            vst1q_f32(folded.as_mut_ptr(), vcombine_f32(low, high));
        }
        folded
    }
    #[inline(always)]
    fn largest(self, v: float32x4_t) -> f32 {
        // SAFETY: this token exists only where the processor has the instructions.
        unsafe { vmaxvq_f32(v) }
    }
}
