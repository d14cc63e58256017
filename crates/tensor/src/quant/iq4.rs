//! IQ4_NL and IQ4_XS: 4-bit codes into a table of unevenly spaced values.
//!
//! Invariant: `LEVELS` ascends, which the search for the nearest level relies on.

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::float::StoredF16;
use super::pack::{pack_nibbles, unpack_nibbles};
use super::scan::{first_extreme, inverse, mean_square, round_even};
use super::search::{NEGLIGIBLE, balanced, squares};
use super::{Block, Encode, EncodeWeighted, Importance};
use crate::dtype::DType;

/// The value each code stands for, before scaling.
pub const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

const GROUP: usize = 32;

/// `value = scale * LEVELS[code]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockIq4Nl {
    /// Multiplies the level.
    pub scale: StoredF16,
    /// Byte `i` holds elements `i` (low) and `i + 16` (high).
    pub nibbles: [u8; 16],
}

const _: () = assert!(size_of::<BlockIq4Nl>() == DType::IQ4_NL.block_bytes());

/// `value = scale * (group scale - 32) * LEVELS[code]`, eight groups of 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockIq4Xs {
    /// Multiplies every group scale.
    pub scale: StoredF16,
    /// Bits `2 * g` and up are the upper two bits of the scale of group `g`.
    pub scales_high: U16,
    /// The lower four bits: nibble `g % 2` of byte `g / 2`.
    pub scales_low: [u8; 4],
    /// In each group of 32, byte `i` holds elements `i` (low) and `i + 16` (high).
    pub nibbles: [u8; 128],
}

const _: () = assert!(size_of::<BlockIq4Xs>() == DType::IQ4_XS.block_bytes());

/// The code of the level nearest to `value`; the upper one of two equally near.
fn nearest(value: f32) -> u8 {
    let above = LEVELS.partition_point(|&level| f32::from(level) <= value);
    if above == 0 {
        return 0;
    }
    let Some(&upper) = LEVELS.get(above) else { return 15 };
    let (lower, upper) = (f32::from(LEVELS[above - 1]), f32::from(upper));
    if value - lower < upper - value { above as u8 - 1 } else { above as u8 }
}

fn codes_at(values: &[f32], inverse: f32) -> [u8; GROUP] {
    std::array::from_fn(|i| nearest(inverse * values[i]))
}

/// Weighted sums of level times value and of level squared; their quotient is the best scale.
fn sums(values: &[f32], weights: &[f32], codes: impl Iterator<Item = u8>) -> (f32, f32) {
    values.iter().zip(weights).zip(codes).fold((0.0, 0.0), |(sum_qx, sum_qq), ((x, w), code)| {
        let q = f32::from(LEVELS[usize::from(code)]);
        (sum_qx + w * q * x, sum_qq + w * q * q)
    })
}

/// The scale with the least weighted error among fifteen, 0 when the group is not worth one.
fn search_scale(values: &[f32], weights: &[f32]) -> f32 {
    let extreme = first_extreme(values);
    if extreme.abs() < NEGLIGIBLE {
        return 0.0;
    }
    let sums_at = |inverse: f32| sums(values, weights, values.iter().map(move |x| nearest(inverse * x)));
    let (sum_qx, sum_qq) = sums_at(1.0 / (-extreme / f32::from(LEVELS[0])));
    if sum_qq <= 0.0 {
        return 0.0;
    }
    let mut scale = sum_qx / sum_qq;
    let mut best = scale * sum_qx;
    for t in -7i8..=7 {
        let (sum_qx, sum_qq) = sums_at((f32::from(t) + f32::from(LEVELS[0])) / extreme);
        if sum_qq > 0.0 && sum_qx * sum_qx > best * sum_qq {
            scale = sum_qx / sum_qq;
            best = scale * sum_qx;
        }
    }
    scale
}

fn decode_group(nibbles: &[u8], scale: f32, out: &mut [f32]) {
    let mut codes = [0; GROUP];
    unpack_nibbles::<16>(nibbles, &mut codes);
    for (out, code) in out.iter_mut().zip(codes) {
        *out = scale * f32::from(LEVELS[usize::from(code)]);
    }
}

impl BlockIq4Nl {
    fn new(scale: f32, codes: &[u8; GROUP]) -> Self {
        let mut nibbles = [0; 16];
        pack_nibbles::<16>(codes, &mut nibbles);
        Self { scale: StoredF16::new(scale), nibbles }
    }

    fn search(values: &[f32], weights: &[f32; GROUP]) -> Self {
        let scale = search_scale(values, weights);
        Self::new(scale, &codes_at(values, inverse(scale)))
    }
}

impl Block for BlockIq4Nl {
    const DTYPE: DType = DType::IQ4_NL;

    fn decode(&self, out: &mut [f32]) {
        decode_group(&self.nibbles, self.scale.get(), out);
    }
}

impl Encode for BlockIq4Nl {
    fn encode(values: &[f32]) -> Self {
        Self::search(values, &squares(values))
    }

    /// Takes the obvious scale and fits it once.
    fn encode_at_run_time(values: &[f32]) -> Self {
        let extreme = first_extreme(values);
        if extreme.abs() < NEGLIGIBLE {
            return Self::new(0.0, &[0; GROUP]);
        }
        let codes = codes_at(values, 1.0 / (extreme / f32::from(LEVELS[0])));
        let (sum_qx, sum_qq) = sums(values, &squares::<GROUP>(values), codes.into_iter());
        Self::new(if sum_qq > 0.0 { sum_qx / sum_qq } else { 0.0 }, &codes)
    }
}

impl EncodeWeighted for BlockIq4Nl {
    fn encode_weighted(values: &[f32], importance: Importance<'_>) -> Self {
        Self::search(values, &balanced(values, importance.weights, 2.0 * mean_square(values)))
    }
}

impl BlockIq4Xs {
    /// The scale of a group, -32 to 31.
    pub fn group_scale(&self, group: usize) -> i8 {
        let low = self.scales_low[group / 2] >> (4 * (group % 2)) & 15;
        let high = self.scales_high.get() >> (2 * group) & 3;
        (low | (high as u8) << 4) as i8 - 32
    }

    fn search(values: &[f32], weights: &[f32; 256]) -> Self {
        let group_of = |all: &[f32; 256], group: usize| -> [f32; GROUP] {
            std::array::from_fn(|i| all[GROUP * group + i])
        };
        let groups = values.chunks_exact(GROUP);
        let scales: [f32; 8] = std::array::from_fn(|group| {
            search_scale(&values[GROUP * group..][..GROUP], &group_of(weights, group))
        });
        let scale = -first_extreme(&scales) / 32.0;
        let inverse_scale = inverse(scale);
        let mut block = Self {
            scale: StoredF16::new(scale),
            scales_high: U16::ZERO,
            scales_low: [0; 4],
            nibbles: [0; 128],
        };
        for (group, values) in groups.enumerate() {
            let level = round_even(inverse_scale * scales[group]).clamp(-32, 31);
            let stored = (level + 32) as u16;
            block.scales_low[group / 2] |= ((stored & 15) as u8) << (4 * (group % 2));
            block.scales_high |= U16::new(stored >> 4 << (2 * group));
            let codes = codes_at(values, inverse(scale * level as f32));
            pack_nibbles::<16>(&codes, &mut block.nibbles[16 * group..][..16]);
        }
        block
    }
}

impl Block for BlockIq4Xs {
    const DTYPE: DType = DType::IQ4_XS;

    fn decode(&self, out: &mut [f32]) {
        let scale = self.scale.get();
        let groups = self.nibbles.chunks_exact(16).zip(out.chunks_exact_mut(GROUP));
        for (group, (nibbles, out)) in groups.enumerate() {
            decode_group(nibbles, scale * f32::from(self.group_scale(group)), out);
        }
    }
}

impl Encode for BlockIq4Xs {
    fn encode(values: &[f32]) -> Self {
        Self::search(values, &squares(values))
    }
}

impl EncodeWeighted for BlockIq4Xs {
    fn encode_weighted(values: &[f32], importance: Importance<'_>) -> Self {
        Self::search(values, &balanced(values, importance.weights, 2.0 * mean_square(values)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_level_is_found_and_ties_go_up() {
        for (value, code) in
            [(-200.0, 0), (-127.0, 0), (-115.5, 1), (-116.0, 0), (0.9, 8), (101.0, 15), (500.0, 15)]
        {
            assert_eq!(nearest(value), code, "{value}");
        }
    }

    #[test]
    fn levels_are_exact() {
        let values: [f32; 256] = std::array::from_fn(|e| f32::from(LEVELS[e % 16]) * 0.25);
        let mut out = [0.0; 256];
        BlockIq4Nl::encode(&values[..32]).decode(&mut out[..32]);
        assert_eq!(out[..32], values[..32]);
        BlockIq4Nl::encode_at_run_time(&values[..32]).decode(&mut out[..32]);
        assert_eq!(out[..32], values[..32]);
        BlockIq4Xs::encode(&values).decode(&mut out);
        assert_eq!(out, values);
    }
}
