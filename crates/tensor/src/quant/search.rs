//! The searches that turn a group of values into codes and a scale: which rounding of the scale loses least?
//!
//! Each takes values and weights of equal length, writes one code per value and returns the scale. They follow the
//! reference step by step, because model files are compared byte by byte; sums run in ascending order.
//!
//! Invariant: every code lies within the range the caller named, whatever the values and weights are.

use super::scan::{first_extreme, largest_positive, range, ratio, round_even};

/// The longest group any format has.
pub(crate) const MAX_GROUP: usize = 32;

/// Values smaller than this are not worth a scale.
pub(crate) const NEGLIGIBLE: f32 = 1e-15;

/// How far apart a value and its reconstruction are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Distance {
    Magnitude,
    Square,
}

impl Distance {
    fn of(self, difference: f32) -> f32 {
        match self {
            Distance::Magnitude => difference.abs(),
            Distance::Square => difference * difference,
        }
    }
}

/// Weight of each value: its importance, more for large values, but not nothing for small ones.
pub(crate) fn balanced<const N: usize>(values: &[f32], importance: &[f32], mean_square: f32) -> [f32; N] {
    std::array::from_fn(|i| importance[i] * (mean_square + values[i] * values[i]).sqrt())
}

/// Weight of each value when nothing is known: its square.
pub(crate) fn squares<const N: usize>(values: &[f32]) -> [f32; N] {
    std::array::from_fn(|i| values[i] * values[i])
}

/// The inverse scales an affine search tries: `first + k * step` codes more than the range holds, for `k = 0..=last`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AffineSearch {
    /// The largest code.
    pub(crate) top: u8,
    pub(crate) first: f32,
    pub(crate) step: f32,
    pub(crate) last: u8,
    pub(crate) distance: Distance,
}

impl AffineSearch {
    /// The search every format uses when it has importance data.
    pub(crate) const fn weighted(top: u8) -> Self {
        Self { top, first: -0.9, step: 0.05, last: 36, distance: Distance::Square }
    }
}

/// `value = scale * code - min`; `min` is not negative.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Affine {
    pub(crate) scale: f32,
    pub(crate) min: f32,
}

/// Fits a scale and an offset.
pub(crate) fn affine(values: &[f32], weights: &[f32], search: AffineSearch, codes: &mut [u8]) -> Affine {
    let top = f32::from(search.top);
    let (mut min, max) = range(values);
    min = if min > 0.0 { 0.0 } else { min };
    codes.fill(0);
    let inverse = ratio(top, max - min);
    if inverse == 0.0 {
        return Affine { scale: 0.0, min: -min };
    }

    let sum_w = weights.iter().fold(0.0, |sum, w| sum + w);
    let sum_x = values.iter().zip(weights).fold(0.0, |sum, (x, w)| sum + w * x);
    let error = |codes: &[u8], scale: f32, min: f32| {
        let terms = values.iter().zip(weights).zip(codes);
        terms.fold(0.0, |sum, ((x, w), &c)| sum + w * search.distance.of((scale * f32::from(c) + min) - x))
    };
    let quantize = |codes: &mut [u8], inverse: f32, min: f32| {
        for (code, x) in codes.iter_mut().zip(values) {
            *code = round_even(inverse * (x - min)).clamp(0, i32::from(search.top)) as u8;
        }
    };

    let mut scale = 1.0 / inverse;
    quantize(codes, inverse, min);
    let mut best = error(codes, scale, min);
    let mut candidate = [0; MAX_GROUP];
    let candidate = &mut candidate[..values.len()];
    for k in 0..=search.last {
        quantize(candidate, (search.first + search.step * f32::from(k) + top) / (max - min), min);
        let (mut sum_c, mut sum_cc, mut sum_cx) = (0.0f32, 0.0f32, 0.0f32);
        for ((x, w), &c) in values.iter().zip(weights).zip(&*candidate) {
            let c = f32::from(c);
            sum_c += w * c;
            sum_cc += w * c * c;
            sum_cx += w * c * x;
        }
        // The weighted line through (code, value), forced through zero where its offset would be positive.
        let determinant = sum_w * sum_cc - sum_c * sum_c;
        if determinant > 0.0 {
            let mut slope = (sum_w * sum_cx - sum_x * sum_c) / determinant;
            let mut offset = (sum_cc * sum_x - sum_c * sum_cx) / determinant;
            if offset > 0.0 {
                offset = 0.0;
                slope = sum_cx / sum_cc;
            }
            let found = error(candidate, slope, offset);
            if found < best {
                codes.copy_from_slice(candidate);
                (best, scale, min) = (found, slope, offset);
            }
        }
    }
    Affine { scale, min: -min }
}

/// What a set of codes `c` makes of the values `x`: the best scale is `sum_xc / sum_cc`, and it removes
/// `sum_xc^2 / sum_cc` of the weighted squared error.
#[derive(Clone, Copy, Debug, Default)]
struct Fit {
    sum_xc: f32,
    sum_cc: f32,
}

impl Fit {
    fn scale(self) -> f32 {
        if self.sum_cc > 0.0 { self.sum_xc / self.sum_cc } else { 0.0 }
    }
}

/// Signed codes of the values at one inverse scale, in `-half..half`.
fn signed_codes(values: &[f32], inverse: f32, half: i32) -> impl Iterator<Item = i32> {
    values.iter().map(move |x| round_even(inverse * x).clamp(-half, half - 1))
}

fn fit(values: &[f32], weights: &[f32], codes: impl Iterator<Item = i32>) -> Fit {
    values.iter().zip(weights).zip(codes).fold(Fit::default(), |fit, ((x, w), c)| {
        let c = c as f32;
        Fit { sum_xc: fit.sum_xc + w * x * c, sum_cc: fit.sum_cc + w * c * c }
    })
}

/// Fits a scale for codes in `-half..half`, trying some around the obvious one. Codes are stored with `half` added;
/// a group without a scale has stored codes 0.
pub(crate) fn symmetric(values: &[f32], weights: &[f32], half: u8, codes: &mut [u8]) -> f32 {
    let extreme = first_extreme(values);
    if extreme.abs() < NEGLIGIBLE {
        codes.fill(0);
        return 0.0;
    }
    let limit = i32::from(half);
    let half = f32::from(half);
    let mut inverse = -half / extreme;
    let first = fit(values, weights, signed_codes(values, inverse, limit));
    let mut scale = first.scale();
    let mut best = scale * first.sum_xc;
    for t in (-9i8..=9).filter(|&t| t != 0) {
        let candidate = -(half + 0.1 * f32::from(t)) / extreme;
        let found = fit(values, weights, signed_codes(values, candidate, limit));
        if found.sum_cc > 0.0 && found.sum_xc * found.sum_xc > best * found.sum_cc {
            inverse = candidate;
            scale = found.scale();
            best = scale * found.sum_xc;
        }
    }
    for (stored, code) in codes.iter_mut().zip(signed_codes(values, inverse, limit)) {
        *stored = (code + limit) as u8;
    }
    scale
}

/// Fits a scale for codes in `-half..half` by improving one code at a time; stored as in [`symmetric`].
pub(crate) fn symmetric_descent(values: &[f32], weights: &[f32], half: u8, codes: &mut [u8]) -> f32 {
    let extreme = first_extreme(values);
    if extreme.abs() < NEGLIGIBLE {
        codes.fill(0);
        return 0.0;
    }
    let limit = i32::from(half);
    let mut signed = [0; MAX_GROUP];
    let signed = &mut signed[..values.len()];
    for (signed, code) in signed.iter_mut().zip(signed_codes(values, -f32::from(half) / extreme, limit)) {
        *signed = code;
    }
    let scale = descend(values, weights, -limit, limit - 1, signed);
    for (stored, code) in codes.iter_mut().zip(signed) {
        *stored = (*code + limit) as u8;
    }
    scale
}

/// Fits a scale for values that are not negative, with codes in `0..=top`.
///
/// The values are group scales, and a group in which hardly a weight is positive can have been fitted with a negative
/// one. It gets code 0; the reference lets the code wrap around there and stores a meaningless scale.
pub(crate) fn positive(values: &[f32], weights: &[f32], top: u8, codes: &mut [u8]) -> f32 {
    codes.fill(0);
    let max = largest_positive(values);
    if max < NEGLIGIBLE {
        return 0.0;
    }
    let limit = i32::from(top);
    let top = f32::from(top);
    let error = |inverse: f32, cap: i32| {
        let scale = 1.0 / inverse;
        values.iter().zip(weights).fold(0.0, |sum, (x, w)| {
            let rest = x - scale * round_even(inverse * x).min(cap) as f32;
            sum + w * rest * rest
        })
    };
    let mut inverse = top / max;
    let mut best = error(inverse, i32::MAX);
    for t in (-4i8..=4).filter(|&t| t != 0) {
        let candidate = (0.1 * f32::from(t) + top) / max;
        let found = error(candidate, limit);
        if found < best {
            (best, inverse) = (found, candidate);
        }
    }
    let mut found = [0; MAX_GROUP];
    let found = &mut found[..values.len()];
    for (code, x) in found.iter_mut().zip(values) {
        *code = round_even(inverse * x).clamp(0, limit);
    }
    let scale = descend(values, weights, 0, limit, found);
    for (stored, code) in codes.iter_mut().zip(found) {
        *stored = *code as u8;
    }
    scale
}

/// Coordinate descent: moves one code at a time to where the others would like it, while that improves the fit.
/// Returns the scale.
fn descend(values: &[f32], weights: &[f32], lowest: i32, highest: i32, codes: &mut [i32]) -> f32 {
    const SWEEPS: usize = 5;
    let mut now = fit(values, weights, codes.iter().copied());
    for _ in 0..SWEEPS {
        let mut moved = false;
        for ((x, w), code) in values.iter().zip(weights).zip(&mut *codes) {
            let old = *code as f32;
            let rest = Fit { sum_xc: now.sum_xc - w * x * old, sum_cc: now.sum_cc - w * old * old };
            if !(rest.sum_xc > 0.0 && rest.sum_cc > 0.0) {
                continue;
            }
            let proposed = round_even(x * rest.sum_cc / rest.sum_xc).clamp(lowest, highest);
            let new = proposed as f32;
            let then = Fit { sum_xc: rest.sum_xc + w * x * new, sum_cc: rest.sum_cc + w * new * new };
            let better = then.sum_xc * then.sum_xc * now.sum_cc > now.sum_xc * now.sum_xc * then.sum_cc;
            if proposed != *code && then.sum_cc > 0.0 && better {
                *code = proposed;
                now = then;
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    now.scale()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn exact_grids_are_found() {
        let values: [f32; 16] = std::array::from_fn(|i| i as f32 * 0.5 - 4.0);
        let mut codes = [0; 16];
        let scale = symmetric(&values, &[1.0; 16], 8, &mut codes);
        assert_eq!(scale, 0.5);
        assert_eq!(codes, std::array::from_fn(|i| i as u8));

        let fitted = affine(&values, &[1.0; 16], AffineSearch::weighted(15), &mut codes);
        assert_eq!((fitted.scale, fitted.min), (0.5, 4.0));
        assert_eq!(codes, std::array::from_fn(|i| i as u8));

        let values = values.map(|x| x + 4.0);
        assert_eq!(positive(&values, &[1.0; 16], 15, &mut codes), 0.5);
        assert_eq!(codes, std::array::from_fn(|i| i as u8));
    }

    #[test]
    fn groups_of_zeros_have_no_scale() {
        let mut codes = [9; 16];
        assert_eq!(symmetric(&[0.0; 16], &[1.0; 16], 8, &mut codes), 0.0);
        assert_eq!(symmetric_descent(&[1e-16; 16], &[1.0; 16], 4, &mut codes), 0.0);
        assert_eq!(positive(&[0.0; 16], &[1.0; 16], 15, &mut codes), 0.0);
        assert_eq!(affine(&[0.0; 16], &[1.0; 16], AffineSearch::weighted(3), &mut codes).scale, 0.0);
        assert_eq!(codes, [0; 16]);
    }

    proptest! {
        #[test]
        fn codes_stay_in_range(
            bits in proptest::array::uniform16(any::<u32>()),
            weights in proptest::array::uniform16(0.0f32..1e3),
        ) {
            let values = bits.map(|bits| f32::from_bits(bits & 0xBFFF_FFFF));
            let mut codes = [0; 16];
            symmetric(&values, &weights, 4, &mut codes);
            prop_assert!(codes.iter().all(|&code| code < 8));
            symmetric_descent(&values, &weights, 4, &mut codes);
            prop_assert!(codes.iter().all(|&code| code < 8));
            affine(&values, &weights, AffineSearch::weighted(3), &mut codes);
            prop_assert!(codes.iter().all(|&code| code <= 3));
            positive(&values.map(f32::abs), &weights, 15, &mut codes);
            prop_assert!(codes.iter().all(|&code| code <= 15));
        }
    }
}
