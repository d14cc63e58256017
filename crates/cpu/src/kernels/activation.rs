//! Activation functions that are made of the vector exponential, lane by lane.
//!
//! They are types and not closures, because only methods can be told to become part of their caller, and vector
//! instructions outside of a function that was compiled for them are calls.

use super::chunk::Chunk;
use super::math;
use crate::simd::Simd;

/// A function of the lanes of a vector.
pub(super) trait Lanewise: Copy {
    fn at<S: Simd>(self, s: S, x: S::F32) -> S::F32;
}

/// `exp(x)`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exp;

/// `1 / (1 + exp(-x))`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sigmoid;

/// The hyperbolic tangent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tanh;

/// `x / (1 + exp(-alpha x))`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Silu {
    pub(super) alpha: f32,
}

/// `scale * x + bias`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Affine {
    pub(super) scale: f32,
    pub(super) bias: f32,
}

impl Lanewise for Exp {
    #[inline(always)]
    fn at<S: Simd>(self, s: S, x: S::F32) -> S::F32 {
        math::exp(s, x)
    }
}

/// `1 + exp(-alpha x)`.
#[inline(always)]
fn one_plus_exp_of_minus<S: Simd>(s: S, alpha: f32, x: S::F32) -> S::F32 {
    s.add(s.splat(1.0), math::exp(s, s.mul(s.splat(-alpha), x)))
}

impl Lanewise for Sigmoid {
    #[inline(always)]
    fn at<S: Simd>(self, s: S, x: S::F32) -> S::F32 {
        s.div(s.splat(1.0), one_plus_exp_of_minus(s, 1.0, x))
    }
}

impl Lanewise for Silu {
    #[inline(always)]
    fn at<S: Simd>(self, s: S, x: S::F32) -> S::F32 {
        s.div(x, one_plus_exp_of_minus(s, self.alpha, x))
    }
}

impl Lanewise for Tanh {
    #[inline(always)]
    fn at<S: Simd>(self, s: S, x: S::F32) -> S::F32 {
        let minus_x = s.sub(s.splat(0.0), x);
        let size = s.max(x, minus_x);
        // Near zero the formula below would lose all digits, so there is a polynomial in the square.
        let square = s.mul(x, x);
        let mut p = s.splat(-5.704_988_7e-3);
        for coefficient in [2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1] {
            p = s.mul_add(p, square, s.splat(coefficient));
        }
        let small = s.mul_add(s.mul(p, square), x, x);
        let (one, two) = (s.splat(1.0), s.splat(2.0));
        let large = s.sub(one, s.div(two, s.add(math::exp(s, s.mul(two, size)), one)));
        let large = s.where_greater(s.splat(0.0), x, s.sub(s.splat(0.0), large), large);
        s.where_greater(size, s.splat(0.625), large, small)
    }
}

impl Lanewise for Affine {
    #[inline(always)]
    fn at<S: Simd>(self, s: S, x: S::F32) -> S::F32 {
        s.mul_add(x, s.splat(self.scale), s.splat(self.bias))
    }
}

/// Applies a function to the first `len` lanes of a chunk; a few more, to whole vectors, do no harm.
#[inline(always)]
pub(super) fn apply<S: Simd>(s: S, f: impl Lanewise, chunk: &mut Chunk, len: usize) {
    for lanes in chunk.0[..len.next_multiple_of(S::LANES)].chunks_exact_mut(S::LANES) {
        let y = f.at(s, s.load(lanes));
        s.store(y, lanes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::chunk::CHUNK;
    use crate::simd::{Compiled, Level, for_each_level};

    #[inline(always)]
    fn silu<S: Simd>(s: S, chunk: &mut Chunk, len: usize) {
        apply(s, Silu { alpha: 1.0 }, chunk, len);
    }

    const SILU: Compiled<fn(&mut Chunk, usize)> = for_each_level!(silu: fn(chunk: &mut Chunk, len: usize));

    #[test]
    fn silu_is_near_its_definition_at_every_length() {
        let x = |i: usize| (i as f32 - 60.0) * 1.7;
        for level in Level::available() {
            for len in 1..=CHUNK {
                let mut chunk = Chunk(std::array::from_fn(x));
                SILU.at(level)(&mut chunk, len);
                for (i, &y) in chunk.0[..len].iter().enumerate() {
                    let exact = f64::from(x(i)) / (1.0 + (-f64::from(x(i))).exp());
                    let error = (f64::from(y) - exact).abs();
                    assert!(error <= 4e-7 * exact.abs() + 1e-37, "{level}: {y} instead of {exact}");
                }
            }
        }
    }

    #[inline(always)]
    fn tanh<S: Simd>(s: S, chunk: &mut Chunk, len: usize) {
        apply(s, Tanh, chunk, len);
    }

    const TANH: Compiled<fn(&mut Chunk, usize)> = for_each_level!(tanh: fn(chunk: &mut Chunk, len: usize));

    #[test]
    fn tanh_is_near_its_definition() {
        for level in Level::available() {
            for exponent in -40..5 {
                let x = |i: usize| (64.5 - i as f32) / 32.0 * 2f32.powi(exponent);
                let mut chunk = Chunk(std::array::from_fn(x));
                TANH.at(level)(&mut chunk, CHUNK);
                for (i, &y) in chunk.0.iter().enumerate() {
                    let exact = f64::from(x(i)).tanh();
                    let error = (f64::from(y) - exact).abs() / exact.abs();
                    assert!(error < 3e-7, "{level}: tanh({}) is {y} instead of {exact}", x(i));
                }
            }
            let mut chunk = Chunk::new();
            chunk.0[..5].copy_from_slice(&[f32::INFINITY, f32::NEG_INFINITY, 1e30, f32::NAN, 0.0]);
            TANH.at(level)(&mut chunk, 5);
            assert_eq!((chunk.0[0], chunk.0[1], chunk.0[2], chunk.0[4]), (1.0, -1.0, 1.0, 0.0));
            assert!(chunk.0[3].is_nan());
        }
    }

    #[test]
    fn silu_has_the_limits_of_its_formula() {
        for level in Level::available() {
            let mut chunk = Chunk::new();
            chunk.0[..4].copy_from_slice(&[f32::INFINITY, -1e30, f32::NAN, 0.0]);
            SILU.at(level)(&mut chunk, 4);
            assert_eq!(chunk.0[0], f32::INFINITY);
            assert_eq!(chunk.0[1], 0.0);
            assert!(chunk.0[2].is_nan());
            assert_eq!(chunk.0[3], 0.0);
        }
    }
}
