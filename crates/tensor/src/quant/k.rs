//! The K formats: super-blocks of 256 values in groups of 16 or 32, whose small scales share one large one.
//!
//! Encoding takes three steps: a search per group for its scale, the group scales rounded to a few bits, and the
//! codes once more for the scales as they are stored.
//!
//! Invariant: groups whose stored scale is zero keep the codes of the search, although they decode to a constant.

mod q2;
mod q3;
mod q4_q5;
mod q6;

pub use q2::BlockQ2K;
pub use q3::BlockQ3K;
pub use q4_q5::{BlockQ4K, BlockQ5K, GroupScales};
pub use q6::BlockQ6K;

use super::scan::{largest_positive, ratio, round_even};
use super::search::{Affine, AffineSearch, affine};

/// Values of a super-block.
const LEN: usize = 256;

/// Searches scale and minimum of each group.
fn affine_groups<const GROUPS: usize>(
    values: &[f32],
    weights: &[f32; LEN],
    search: AffineSearch,
    codes: &mut [u8; LEN],
) -> [Affine; GROUPS] {
    let len = LEN / GROUPS;
    std::array::from_fn(|group| {
        let at = len * group..len * (group + 1);
        affine(&values[at.clone()], &weights[at.clone()], search, &mut codes[at])
    })
}

/// Searches the scale of each group of 16 with one of the searches for symmetric codes.
fn symmetric_groups(
    search: fn(&[f32], &[f32], u8, &mut [u8]) -> f32,
    values: &[f32],
    weights: &[f32; LEN],
    half: u8,
    codes: &mut [u8; LEN],
) -> [f32; 16] {
    std::array::from_fn(|group| {
        let at = 16 * group..16 * (group + 1);
        search(&values[at.clone()], &weights[at.clone()], half, &mut codes[at])
    })
}

/// The factor that gives the largest of some group scales the code `top`, and all the codes.
fn scale_codes<const GROUPS: usize>(scales: [f32; GROUPS], top: u8) -> (f32, [u8; GROUPS]) {
    let largest = largest_positive(&scales);
    let inverse = ratio(f32::from(top), largest);
    let code = |scale: f32| round_even(inverse * scale).clamp(0, i32::from(top)) as u8;
    (largest / f32::from(top), scales.map(code))
}

/// Sum of the weights of each group.
fn group_sums<const GROUPS: usize>(weights: &[f32; LEN]) -> [f32; GROUPS] {
    let len = LEN / GROUPS;
    std::array::from_fn(|group| weights[len * group..][..len].iter().fold(0.0, |sum, w| sum + w))
}

/// Codes in `0..=top` for `value = scale * code - min`; left alone when the scale is zero.
fn requantize_affine(values: &[f32], scale: f32, min: f32, top: u8, codes: &mut [u8]) {
    if scale == 0.0 {
        return;
    }
    for (code, value) in codes.iter_mut().zip(values) {
        *code = round_even((value + min) / scale).clamp(0, i32::from(top)) as u8;
    }
}

/// Codes in `-half..half`, stored with `half` added, for `value = scale * code`; left alone when the scale is zero.
fn requantize_symmetric(values: &[f32], scale: f32, half: i32, codes: &mut [u8]) {
    if scale == 0.0 {
        return;
    }
    for (code, value) in codes.iter_mut().zip(values) {
        *code = (round_even(value / scale).clamp(-half, half - 1) + half) as u8;
    }
}
