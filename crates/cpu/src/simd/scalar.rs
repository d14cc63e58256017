//! One lane, portable: what every other instruction set is tested against.

use half::{bf16, f16};

use super::{Level, Simd};

/// No instruction set in particular.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scalar;

impl Simd for Scalar {
    const LEVEL: Level = Level::Scalar;
    const LANES: usize = 1;
    type F32 = f32;

    #[inline(always)]
    fn splat(self, x: f32) -> f32 {
        x
    }
    #[inline(always)]
    fn load(self, from: &[f32]) -> f32 {
        from[0]
    }
    #[inline(always)]
    fn store(self, v: f32, to: &mut [f32]) {
        to[0] = v;
    }
    #[inline(always)]
    fn load_f16(self, from: &[f16]) -> f32 {
        from[0].to_f32()
    }
    #[inline(always)]
    fn load_bf16(self, from: &[bf16]) -> f32 {
        from[0].to_f32()
    }
    #[inline(always)]
    fn splat_f16(self, x: f16) -> f32 {
        x.to_f32()
    }
    #[inline(always)]
    fn load_i8(self, from: &[i8]) -> f32 {
        f32::from(from[0])
    }
    #[inline(always)]
    fn add(self, a: f32, b: f32) -> f32 {
        a + b
    }
    #[inline(always)]
    fn sub(self, a: f32, b: f32) -> f32 {
        a - b
    }
    #[inline(always)]
    fn mul(self, a: f32, b: f32) -> f32 {
        a * b
    }
    #[inline(always)]
    fn div(self, a: f32, b: f32) -> f32 {
        a / b
    }
    /// Rounds twice: a fused one would be a library call on processors without it.
    #[inline(always)]
    fn mul_add(self, a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }
    #[inline(always)]
    fn max(self, a: f32, b: f32) -> f32 {
        if a > b { a } else { b }
    }
    #[inline(always)]
    fn min(self, a: f32, b: f32) -> f32 {
        if a < b { a } else { b }
    }
    #[inline(always)]
    fn round(self, a: f32) -> f32 {
        a.round_ties_even()
    }
    #[inline(always)]
    fn pow2(self, n: f32) -> f32 {
        f32::from_bits(((n as i32 + 127) as u32) << 23)
    }
    #[inline(always)]
    fn where_greater(self, a: f32, b: f32, yes: f32, no: f32) -> f32 {
        if a > b { yes } else { no }
    }
    #[inline(always)]
    fn sum(self, v: f32) -> f32 {
        v
    }
    #[inline(always)]
    fn fold_four(self, v: [f32; 4]) -> [f32; 4] {
        v
    }
    #[inline(always)]
    fn largest(self, v: f32) -> f32 {
        v
    }
}
