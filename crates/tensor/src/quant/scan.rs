//! What quantizers ask of a run of values first: its extremes, and how to round.
//!
//! Invariant: results do not depend on the machine. Rounding is written with additions and comparisons, which every
//! processor does alike and in vectors, instead of library calls.

/// The signed value of the first element that is larger in magnitude than everything before it; 0 when there is none.
pub(crate) fn first_extreme(values: &[f32]) -> f32 {
    let mut extreme = 0.0f32;
    for &value in values {
        if value.abs() > extreme.abs() {
            extreme = value;
        }
    }
    extreme
}

/// The largest magnitude.
pub(crate) fn largest_magnitude(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |largest, value| largest.max(value.abs()))
}

/// The largest value, but at least 0.
pub(crate) fn largest_positive(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |largest, &value| if value > largest { value } else { largest })
}

/// Smallest and largest value. Of equal ones the first is kept, which decides the sign of a zero.
pub(crate) fn range(values: &[f32]) -> (f32, f32) {
    let first = values[0];
    values.iter().fold((first, first), |(min, max), &value| {
        (if value < min { value } else { min }, if value > max { value } else { max })
    })
}

/// Mean of the squares, summed in order.
pub(crate) fn mean_square(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |sum, x| sum + x * x) / values.len() as f32
}

/// `1 / step`, or 0 when the step is zero or so small that its reciprocal is infinite: such a block is all zeros.
pub(crate) fn inverse(step: f32) -> f32 {
    ratio(1.0, step)
}

/// `a / b`, or 0 when that is not finite.
pub(crate) fn ratio(a: f32, b: f32) -> f32 {
    let ratio = a / b;
    if ratio.is_finite() { ratio } else { 0.0 }
}

/// Nearest integer, ties to even. Beyond 2^22 the result is merely large, which is enough before a clamp.
pub(crate) fn round_even(value: f32) -> i32 {
    const UNIT_STEP: f32 = 12_582_912.0; // 1.5 * 2^23: here neighbouring f32 are 1 apart
    ((value + UNIT_STEP) - UNIT_STEP) as i32
}

/// Nearest integer, ties away from zero; for magnitudes below 2^23.
pub(crate) fn round_away(value: f32) -> i32 {
    let whole = value as i32;
    let rest = value - whole as f32;
    whole.saturating_add(i32::from(rest >= 0.5) - i32::from(rest <= -0.5))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_of_equal_extremes_wins() {
        assert_eq!(first_extreme(&[1.0, -2.0, 2.0]), -2.0);
        assert_eq!(first_extreme(&[0.0, -0.0]).to_bits(), 0);
        assert!(range(&[-0.0, 0.0]).0.is_sign_negative());
        assert_eq!(range(&[3.0, -1.0, 2.0]), (-1.0, 3.0));
    }

    #[test]
    fn a_step_without_reciprocal_has_inverse_zero() {
        assert_eq!(inverse(0.0), 0.0);
        assert_eq!(inverse(-1e-40), 0.0);
        assert_eq!(inverse(4.0), 0.25);
    }

    proptest! {
        #[test]
        fn rounding_matches_the_library(value in -4_194_303.0f32..4_194_303.0, shift in 0u32..24) {
            let value = value / (1u32 << shift) as f32;
            for value in [value, value.trunc() + 0.5, value.trunc() - 0.5, 0.499_999_97] {
                prop_assert_eq!(round_even(value), value.round_ties_even() as i32);
                prop_assert_eq!(round_away(value), value.round() as i32);
            }
        }
    }
}
