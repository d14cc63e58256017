//! Functions of vectors that no processor has an instruction for.

use crate::simd::Simd;

/// The exponential, within two units in the last place; 0 below -103.98, infinity above 88.73, NaN for NaN. Where
/// [`Simd::mul_add`] rounds once, all instruction sets give the same bits.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::F32) -> S::F32 {
    // Beyond these the result is zero or infinite anyway. The operand order lets NaN through.
    let x = s.min(s.splat(89.0), s.max(s.splat(-104.5), x));
    let n = s.round(s.mul(x, s.splat(std::f32::consts::LOG2_E)));
    // ln 2 in two parts, the first with so few bits that its product with n is exact.
    let r = s.sub(x, s.mul(n, s.splat(355.0 / 512.0)));
    let r = s.mul_add(n, s.splat(2.121_944_4e-4), r);
    let mut p = s.splat(1.987_569_2e-4);
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1] {
        p = s.mul_add(p, r, s.splat(coefficient));
    }
    let p = s.add(s.mul_add(p, s.mul(r, r), r), s.splat(1.0));
    s.scale(p, n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Compiled, Level, MAX_LANES, for_each_level};

    #[inline(always)]
    fn exp_lanes<S: Simd>(s: S, values: &mut [f32; MAX_LANES]) {
        for lanes in values.chunks_exact_mut(S::LANES) {
            let y = exp(s, s.load(lanes));
            s.store(y, lanes);
        }
    }

    const EXP: Compiled<fn(&mut [f32; MAX_LANES])> =
        for_each_level!(exp_lanes: fn(values: &mut [f32; MAX_LANES]));

    #[test]
    fn every_set_with_fused_multiply_adds_gives_the_same_bits() {
        let fused: Vec<_> = Level::available().into_iter().filter(|&level| level != Level::Scalar).collect();
        for step in 0..200_000 {
            let x = [-110.0 + step as f32 * 0.001_03; MAX_LANES];
            let results = fused.iter().map(|&level| {
                let mut lanes = x;
                EXP.at(level)(&mut lanes);
                lanes.map(f32::to_bits)
            });
            let results: Vec<_> = results.collect();
            assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "exp({})", x[0]);
        }
    }

    #[test]
    fn exp_is_within_two_units() {
        for level in Level::available() {
            let exp = |x: f32| {
                let mut lanes = [x; MAX_LANES];
                EXP.at(level)(&mut lanes);
                lanes[MAX_LANES - 1]
            };
            for step in 0..40_000 {
                let x = -104.0 + step as f32 * 0.004_83;
                let (found, exact) = (exp(x), f64::from(x).exp());
                let unit = f64::from(f32::from_bits((exact as f32).to_bits() + 1)) - f64::from(exact as f32);
                let error = (f64::from(found) - exact).abs() / unit;
                assert!(
                    error <= 2.0 || found.is_infinite() && exact > 3.402e38,
                    "{level}: exp({x}) is {error} units off"
                );
            }
            assert_eq!(exp(f32::NEG_INFINITY), 0.0);
            assert_eq!(exp(-200.0), 0.0);
            assert_eq!(exp(0.0), 1.0);
            assert_eq!(exp(f32::INFINITY), f32::INFINITY);
            assert!(exp(f32::NAN).is_nan());
        }
    }
}
