//! From products to weights: scale, soft cap, mask, and the running maximum and sum of a softmax.
//!
//! A row's state is the largest score so far and the sum of all `exp(score - largest)`; weights and weighted values are
//! relative to the same largest score. When it grows, what was summed before is multiplied by a factor. Scores of masked
//! keys are minus infinity, whatever the product was; rows that have only those so far keep minus infinity as their
//! largest and zero as their sum.

use super::super::math::exp;
use super::cut::KEYS;
use crate::simd::Simd;

/// What happens to a product before it is a score.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shaping {
    scale: f32,
    /// Zero for none.
    softcap: f32,
}

impl Shaping {
    pub(super) fn new(scale: f32, softcap: f32) -> Shaping {
        Shaping { scale: if softcap == 0.0 { scale } else { scale / softcap }, softcap }
    }

    #[inline(always)]
    fn apply<S: Simd>(self, s: S, product: S::F32) -> S::F32 {
        let score = s.mul(product, s.splat(self.scale));
        if self.softcap == 0.0 { score } else { s.mul(s.splat(self.softcap), tanh(s, score)) }
    }
}

/// The hyperbolic tangent, within a few units in the last place.
#[inline(always)]
fn tanh<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let magnitude = s.max(x, s.sub(s.splat(0.0), x));
    // 1 - 2 / (e^2x + 1) loses digits for small x, where a polynomial in x² has few terms.
    let large =
        s.sub(s.splat(1.0), s.div(s.splat(2.0), s.add(exp(s, s.add(magnitude, magnitude)), s.splat(1.0))));
    let large = s.where_greater(x, s.splat(0.0), large, s.sub(s.splat(0.0), large));
    let square = s.mul(x, x);
    let mut p = s.splat(-5.704_988_7e-3);
    for coefficient in [2.063_908_9e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1] {
        p = s.mul_add(p, square, s.splat(coefficient));
    }
    let small = s.mul_add(s.mul(p, square), x, x);
    // NaN is not greater, and the polynomial keeps it.
    s.where_greater(magnitude, s.splat(0.625), large, small)
}

/// The state of one row.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    pub(super) largest: f32,
    pub(super) sum: f32,
}

/// Turns a row of products into weights. `biases` holds a value to add to each score, the first `count` of which count;
/// those beyond are made to take no part. Returns the new state and the factor of what was summed before.
#[inline(always)]
pub(super) fn row<S: Simd>(
    s: S,
    products: &mut [f32],
    count: usize,
    biases: Option<&[f32; KEYS]>,
    shaping: Shaping,
    state: State,
) -> (State, f32) {
    let masked = s.splat(f32::NEG_INFINITY);
    let used = count.next_multiple_of(crate::simd::MAX_LANES);
    for (i, lanes) in products[..used].chunks_exact_mut(S::LANES).enumerate() {
        let mut score = shaping.apply(s, s.load(lanes));
        if let Some(biases) = biases {
            let bias = s.load(&biases[i * S::LANES..]);
            score = s.where_greater(bias, masked, s.add(score, bias), masked);
        }
        s.store(score, lanes);
    }
    products[count..used].fill(f32::NEG_INFINITY);
    let mut largest = masked;
    for lanes in products[..used].chunks_exact(S::LANES) {
        largest = s.max(s.load(lanes), largest);
    }
    let found = s.largest(largest);
    let largest = if found > state.largest { found } else { state.largest };
    let base = if largest == f32::NEG_INFINITY { 0.0 } else { largest };
    let factor = if largest == state.largest { 1.0 } else { (state.largest - base).exp() };
    let mut sum = s.splat(0.0);
    for lanes in products[..used].chunks_exact_mut(S::LANES) {
        let weight = exp(s, s.sub(s.load(lanes), s.splat(base)));
        s.store(weight, lanes);
        sum = s.add(sum, weight);
    }
    (State { largest, sum: state.sum * factor + s.sum(sum) }, factor)
}

/// States of many rows, as lanes.
pub(super) struct States<'a> {
    pub(super) largest: &'a mut [f32],
    pub(super) sums: &'a mut [f32],
    /// What the weighted values summed so far are to be multiplied with.
    pub(super) factors: &'a mut [f32],
}

/// As [`row`] for many rows at once, products and biases lying key by key: `products[key][row]`.
#[inline(always)]
pub(super) fn columns<S: Simd>(
    s: S,
    products: &mut [f32],
    biases: Option<&[f32]>,
    shaping: Shaping,
    states: &mut States<'_>,
) {
    let rows = states.largest.len();
    let masked = s.splat(f32::NEG_INFINITY);
    for first in (0..rows).step_by(S::LANES) {
        let before = s.load(&states.largest[first..]);
        let mut largest = before;
        for (key, products) in products.chunks_exact_mut(rows).enumerate() {
            let mut score = shaping.apply(s, s.load(&products[first..]));
            if let Some(biases) = biases {
                let bias = s.load(&biases[key * rows + first..]);
                score = s.where_greater(bias, masked, s.add(score, bias), masked);
            }
            s.store(score, &mut products[first..]);
            largest = s.max(score, largest);
        }
        let base = s.where_greater(largest, masked, largest, s.splat(0.0));
        let factor = exp(s, s.sub(before, base));
        let mut sum = s.mul(s.load(&states.sums[first..]), factor);
        for products in products.chunks_exact_mut(rows) {
            let weight = exp(s, s.sub(s.load(&products[first..]), base));
            s.store(weight, &mut products[first..]);
            sum = s.add(sum, weight);
        }
        s.store(largest, &mut states.largest[first..]);
        s.store(sum, &mut states.sums[first..]);
        s.store(factor, &mut states.factors[first..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Level, MAX_LANES, for_each_level};

    #[inline(always)]
    fn tanh_lanes<S: Simd>(s: S, values: &mut [f32; MAX_LANES]) {
        for lanes in values.chunks_exact_mut(S::LANES) {
            let y = tanh(s, s.load(lanes));
            s.store(y, lanes);
        }
    }

    #[test]
    fn tanh_is_tanh() {
        for level in Level::available() {
            let function = for_each_level!(tanh_lanes: fn(values: &mut [f32; MAX_LANES])).at(level);
            let tanh = |x: f32| {
                let mut lanes = [x; MAX_LANES];
                function(&mut lanes);
                lanes[0]
            };
            for step in 0..20_000 {
                let x = (step - 10_000) as f32 * 1.1e-3;
                let exact = f64::from(x).tanh();
                assert!((f64::from(tanh(x)) - exact).abs() <= 3e-7 * exact.abs(), "{level}: tanh({x})");
            }
            for x in [0.0, 1e-30, 100.0, -100.0, f32::INFINITY, f32::NEG_INFINITY] {
                assert_eq!(tanh(x), x.tanh(), "{level}: tanh({x})");
            }
            assert!(tanh(f32::NAN).is_nan());
        }
    }
}
