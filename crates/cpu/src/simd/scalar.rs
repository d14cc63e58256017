//! One lane, portable: what every other instruction set is tested against.

use half::{bf16, f16};

use super::{Level, Simd};

/// No instruction set in particular.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scalar;

/// `a * b + c`, rounded once, on every processor.
///
/// Where it is not known that the processor can, without its library function, which takes far longer: the product of two
/// `f32` is exact as `f64`; the sum is rounded to odd, so that rounding it once more gives what rounding once would have.
#[inline(always)]
pub(crate) fn fused(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
        return a.mul_add(b, c);
    }
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    // What the sum is too small by; not a number where the sum is not finite.
    let rest = sum - product;
    let error = (product - (sum - rest)) + (c - rest);
    let bits = sum.to_bits();
    let away = if (error > 0.0) == (sum > 0.0) { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
    let inexact = error.abs() > 0.0;
    f64::from_bits(if inexact && bits & 1 == 0 { away } else { bits }) as f32
}

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

#[cfg(test)]
mod tests {
    use super::fused;

    #[test]
    fn fused_rounds_once() {
        let mut state = 1u64;
        let mut bits = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 32) as u32
        };
        let check = |a: f32, b: f32, c: f32| {
            let (found, wanted) = (fused(a, b, c), a.mul_add(b, c));
            let same = found.to_bits() == wanted.to_bits() || found.is_nan() && wanted.is_nan();
            assert!(same, "{a:e} * {b:e} + {c:e}: {found:e}, not {wanted:e}");
        };
        for _ in 0..1_000_000 {
            let (a, b) = (f32::from_bits(bits()), f32::from_bits(bits()));
            // Any numbers, numbers that nearly cancel, and numbers near half a unit of the product.
            let near = f32::from_bits((-(a * b)).to_bits().wrapping_add(bits() % 5).wrapping_sub(2));
            let small = f32::from_bits((a * b).to_bits().wrapping_sub((24 << 23) + bits() % 3)) * 0.5;
            for c in [f32::from_bits(bits()), near, small, -small, 0.0, -0.0, 1e-45] {
                check(a, b, c);
            }
        }
        for special in [0.0, -0.0, 1.0, f32::MAX, f32::MIN_POSITIVE, 1e-45, f32::INFINITY, f32::NAN] {
            for other in [0.0, -1.0, f32::MAX, 1e-45, f32::NEG_INFINITY] {
                check(special, other, special);
                check(special, special, other);
                check(other, other, special);
            }
        }
    }
}
