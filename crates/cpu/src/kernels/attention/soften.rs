//! From products to weights: scale, soft cap, biases, and the running maximum and sum of a softmax.
//!
//! A row's state is the largest score so far and the sum of all `exp(score - largest)`; weights and weighted values are
//! relative to the same largest score. When it grows, what was summed before is multiplied by a factor. Scores of keys that
//! are not seen are minus infinity, whatever the product was; rows that have only those so far keep minus infinity as their
//! largest and zero as their sum.
//!
//! Invariant: weights of a tile are added in sixteen partial sums, of every sixteenth key, and those as in
//! [`sixteen`](super::sixteen). [`row`] and [`columns`] give the same bits, and so does a tile of which a row sees nothing and
//! a tile that is left out.

use std::ops::Range;

use super::super::math::exp;
use super::lens::KEYS;
use super::sixteen::fold_numbers;
use crate::simd::{MAX_LANES, Simd};

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
    for coefficient in [2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1] {
        p = s.mul_add(p, square, s.splat(coefficient));
    }
    let small = s.mul_add(s.mul(p, square), x, x);
    // NaN is not greater, and the polynomial keeps it.
    s.where_greater(magnitude, s.splat(0.625), large, small)
}

/// The exponential of one number, as vectors compute it.
#[inline(always)]
fn exp_of<S: Simd>(s: S, x: f32) -> f32 {
    let mut lanes = [0.0; MAX_LANES];
    s.store(exp(s, s.splat(x)), &mut lanes);
    lanes[0]
}

/// `a * b + c` for one number, rounded as vectors do it.
#[inline(always)]
fn mul_add_of<S: Simd>(s: S, a: f32, b: f32, c: f32) -> f32 {
    let mut lanes = [0.0; MAX_LANES];
    s.store(s.mul_add(s.splat(a), s.splat(b), s.splat(c)), &mut lanes);
    lanes[0]
}

/// The state of one row.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    pub(super) largest: f32,
    pub(super) sum: f32,
}

impl State {
    /// Nothing seen yet.
    pub(super) const EMPTY: State = State { largest: f32::NEG_INFINITY, sum: 0.0 };

    /// What was found so far, and what a later span found, become one: the factors of the weighted values of both, and the
    /// state. A NaN is never lost.
    #[inline(always)]
    pub(super) fn merge<S: Simd>(self, s: S, found: State) -> ([f32; 2], State) {
        let largest = if found.largest > self.largest { found.largest } else { self.largest };
        let base = if largest == f32::NEG_INFINITY { 0.0 } else { largest };
        let before = if self.sum.is_nan() { f32::NAN } else { exp_of(s, self.largest - base) };
        let now = if found.sum.is_nan() { f32::NAN } else { exp_of(s, found.largest - base) };
        ([before, now], State { largest, sum: mul_add_of(s, self.sum, before, found.sum * now) })
    }

    /// What weighted values are to be multiplied with in the end, a sink having taken part.
    #[inline(always)]
    pub(super) fn finish<S: Simd>(self, s: S, sink: Option<f32>) -> f32 {
        let State { largest, mut sum } = self;
        let mut factor = 1.0;
        if let Some(sink) = sink {
            if sink > largest {
                factor = exp_of(s, largest - sink);
                sum = mul_add_of(s, sum, factor, 1.0);
            } else {
                sum += exp_of(s, sink - largest);
            }
        }
        // Without a single key the result is zero.
        if sum == 0.0 { 0.0 } else { factor / sum }
    }
}

/// Turns the products of a row with a tile's keys into weights, and those of all other keys into zero. `biases` holds a value
/// to add to the score of each of the keys. Returns the new state and the factor of what was summed before.
#[inline(always)]
pub(super) fn row<S: Simd>(
    s: S,
    products: &mut [f32; KEYS],
    keys: Range<usize>,
    biases: Option<&[f32; KEYS]>,
    shaping: Shaping,
    state: State,
) -> (State, f32) {
    let hidden = s.splat(f32::NEG_INFINITY);
    let used = keys.start / MAX_LANES * MAX_LANES..keys.end.next_multiple_of(MAX_LANES);
    for i in used.clone().step_by(S::LANES) {
        let lanes = &mut products[i..][..S::LANES];
        let mut score = shaping.apply(s, s.load(lanes));
        if let Some(biases) = biases {
            let bias = s.load(&biases[i..][..S::LANES]);
            score = s.where_greater(bias, hidden, s.add(score, bias), hidden);
        }
        s.store(score, lanes);
    }
    products[used.start..keys.start].fill(f32::NEG_INFINITY);
    products[keys.end..used.end].fill(f32::NEG_INFINITY);
    let mut largest = hidden;
    for i in used.clone().step_by(S::LANES) {
        largest = s.max(s.load(&products[i..][..S::LANES]), largest);
    }
    let found = s.largest(largest);
    let largest = if found > state.largest { found } else { state.largest };
    let base = if largest == f32::NEG_INFINITY { 0.0 } else { largest };
    let factor = if largest == state.largest { 1.0 } else { exp_of(s, state.largest - base) };
    let mut sums = [0.0; MAX_LANES];
    for i in used.step_by(S::LANES) {
        let lanes = &mut products[i..][..S::LANES];
        let weight = exp(s, s.sub(s.load(lanes), s.splat(base)));
        s.store(weight, lanes);
        let sums = &mut sums[i % MAX_LANES..][..S::LANES];
        s.store(s.add(s.load(sums), weight), sums);
    }
    (State { largest, sum: mul_add_of(s, state.sum, factor, fold_numbers(&sums)) }, factor)
}

/// States of many rows, as lanes.
pub(super) struct States<'a> {
    pub(super) largest: &'a mut [f32],
    pub(super) sums: &'a mut [f32],
    /// What the weighted values summed so far are to be multiplied with.
    pub(super) factors: &'a mut [f32],
}

/// As [`row`] for many rows at once, products and biases lying key by key: `products[key][row]`. Products of other keys are
/// left alone.
#[inline(always)]
pub(super) fn columns<S: Simd>(
    s: S,
    products: &mut [f32],
    keys: Range<usize>,
    biases: Option<&[f32]>,
    shaping: Shaping,
    states: &mut States<'_>,
) {
    let rows = states.largest.len();
    let hidden = s.splat(f32::NEG_INFINITY);
    for first in (0..rows).step_by(S::LANES) {
        let before = s.load(&states.largest[first..]);
        let mut largest = before;
        for key in keys.clone() {
            let lanes = &mut products[key * rows + first..][..S::LANES];
            let mut score = shaping.apply(s, s.load(lanes));
            if let Some(biases) = biases {
                let bias = s.load(&biases[key * rows + first..][..S::LANES]);
                score = s.where_greater(bias, hidden, s.add(score, bias), hidden);
            }
            s.store(score, lanes);
            largest = s.max(score, largest);
        }
        let base = s.where_greater(largest, hidden, largest, s.splat(0.0));
        let factor = exp(s, s.sub(before, base));
        let mut sums = [s.splat(0.0); MAX_LANES];
        for tier in (0..KEYS).step_by(MAX_LANES) {
            if keys.start <= tier && tier + MAX_LANES <= keys.end {
                for (i, sum) in sums.iter_mut().enumerate() {
                    *sum = s.add(*sum, raise(s, products, (tier + i) * rows + first, base));
                }
                continue;
            }
            for (i, sum) in sums.iter_mut().enumerate() {
                if keys.contains(&(tier + i)) {
                    *sum = s.add(*sum, raise(s, products, (tier + i) * rows + first, base));
                }
            }
        }
        let found = super::sixteen::fold(s, sums);
        let sum = s.mul_add(s.load(&states.sums[first..]), factor, found);
        s.store(largest, &mut states.largest[first..]);
        s.store(sum, &mut states.sums[first..]);
        s.store(factor, &mut states.factors[first..]);
    }
}

/// Turns one vector of scores into weights.
#[inline(always)]
fn raise<S: Simd>(s: S, scores: &mut [f32], at: usize, base: S::F32) -> S::F32 {
    let lanes = &mut scores[at..][..S::LANES];
    let weight = exp(s, s.sub(s.load(lanes), base));
    s.store(weight, lanes);
    weight
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
