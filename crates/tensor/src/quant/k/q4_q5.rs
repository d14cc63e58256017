//! Q4_K and Q5_K: eight groups of 32 values, four or five bits each, with 6-bit scales and minimums.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{LEN, affine_groups, group_sums, requantize_affine, scale_codes};
use crate::dtype::DType;
use crate::quant::float::StoredF16;
use crate::quant::pack::{pack_bit, pack_nibbles, unpack_bit, unpack_nibbles};
use crate::quant::scan::mean_square;
use crate::quant::search::{Affine, AffineSearch, Distance, balanced, positive};
use crate::quant::{Block, Encode, EncodeWeighted, Importance};

const GROUPS: usize = 8;
const GROUP: usize = LEN / GROUPS;
const TOP_SCALE: u8 = 63;

/// Scales and minimums of eight groups, six bits each, in twelve bytes.
///
/// Bytes 0 to 3 and 4 to 7 hold scales and minimums of the first four groups in their low six bits. Bytes 8 to 11
/// hold the low nibbles of scale and minimum of the others, whose upper two bits are on top of the first eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct GroupScales([u8; 12]);

impl GroupScales {
    fn pack(scales: &[u8; GROUPS], mins: &[u8; GROUPS]) -> Self {
        let mut packed = [0; 12];
        for j in 0..4 {
            packed[j] = scales[j] | scales[j + 4] >> 4 << 6;
            packed[j + 4] = mins[j] | mins[j + 4] >> 4 << 6;
            packed[j + 8] = scales[j + 4] & 15 | (mins[j + 4] & 15) << 4;
        }
        Self(packed)
    }

    /// The scales, 0 to 63.
    pub fn scales(&self) -> [u8; GROUPS] {
        let packed = &self.0;
        std::array::from_fn(|j| match j {
            0..4 => packed[j] & 63,
            _ => packed[j + 4] & 15 | packed[j - 4] >> 6 << 4,
        })
    }

    /// The minimums, 0 to 63.
    pub fn mins(&self) -> [u8; GROUPS] {
        let packed = &self.0;
        std::array::from_fn(|j| match j {
            0..4 => packed[j + 4] & 63,
            _ => packed[j + 4] >> 4 | packed[j] >> 6 << 4,
        })
    }
}

/// `value = scale * group scale * code - min * group min`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockQ4K {
    /// Multiplies every group scale.
    pub scale: StoredF16,
    /// Multiplies every group minimum.
    pub min: StoredF16,
    /// Scale and minimum of each group.
    pub groups: GroupScales,
    /// In each run of 64 elements, byte `i` holds elements `i` (low) and `i + 32` (high).
    pub nibbles: [u8; 128],
}

const _: () = assert!(size_of::<BlockQ4K>() == DType::Q4_K.block_bytes());

/// `value = scale * group scale * code - min * group min`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockQ5K {
    /// Multiplies every group scale.
    pub scale: StoredF16,
    /// Multiplies every group minimum.
    pub min: StoredF16,
    /// Scale and minimum of each group.
    pub groups: GroupScales,
    /// Bit `e / 32` of byte `e % 32` is bit 4 of the code of element `e`.
    pub high: [u8; 32],
    /// The lower bits: in each run of 64 elements, byte `i` holds elements `i` (low) and `i + 32` (high).
    pub nibbles: [u8; 128],
}

const _: () = assert!(size_of::<BlockQ5K>() == DType::Q5_K.block_bytes());

/// What both formats share: everything but how codes are packed.
struct Parts {
    scale: StoredF16,
    min: StoredF16,
    groups: GroupScales,
}

impl Parts {
    /// Rounds group scales to their 6 bits and makes the codes fit the result.
    fn new(
        values: &[f32],
        (scale, scales): (f32, [u8; GROUPS]),
        (min, mins): (f32, [u8; GROUPS]),
        top: u8,
        codes: &mut [u8; LEN],
    ) -> Self {
        let parts = Self {
            scale: StoredF16::new(scale),
            min: StoredF16::new(min),
            groups: GroupScales::pack(&scales, &mins),
        };
        for (j, (values, codes)) in values.chunks_exact(GROUP).zip(codes.chunks_exact_mut(GROUP)).enumerate()
        {
            let scale = parts.scale.get() * f32::from(scales[j]);
            let min = parts.min.get() * f32::from(mins[j]);
            requantize_affine(values, scale, min, top, codes);
        }
        parts
    }

    fn encode(values: &[f32], search: AffineSearch, codes: &mut [u8; LEN]) -> Self {
        let mut weights = [0.0; LEN];
        for (weights, values) in weights.chunks_exact_mut(GROUP).zip(values.chunks_exact(GROUP)) {
            let typical = mean_square(values).sqrt();
            for (weight, value) in weights.iter_mut().zip(values) {
                *weight = typical + value.abs();
            }
        }
        let groups = affine_groups::<GROUPS>(values, &weights, search, codes);
        let scales = scale_codes(groups.map(|group| group.scale), TOP_SCALE);
        let mins = scale_codes(groups.map(|group| group.min), TOP_SCALE);
        Self::new(values, scales, mins, search.top, codes)
    }

    fn encode_weighted(values: &[f32], importance: &[f32], top: u8, codes: &mut [u8; LEN]) -> Self {
        let weights: [f32; LEN] = balanced(values, importance, 2.0 * mean_square(values));
        let group_weights: [f32; GROUPS] = group_sums(&weights);
        let groups: [Affine; GROUPS] = affine_groups(values, &weights, AffineSearch::weighted(top), codes);
        let (mut scales, mut mins) = ([0; GROUPS], [0; GROUPS]);
        let scale = positive(&groups.map(|group| group.scale), &group_weights, TOP_SCALE, &mut scales);
        let min = positive(&groups.map(|group| group.min), &group_weights, TOP_SCALE, &mut mins);
        Self::new(values, (scale, scales), (min, mins), top, codes)
    }
}

fn decode_groups(scale: f32, min: f32, groups: &GroupScales, codes: &[u8; LEN], out: &mut [f32]) {
    let scaled = groups.scales().into_iter().zip(groups.mins());
    for ((codes, out), (group_scale, group_min)) in
        codes.chunks_exact(GROUP).zip(out.chunks_exact_mut(GROUP)).zip(scaled)
    {
        let scale = scale * f32::from(group_scale);
        let min = min * f32::from(group_min);
        for (out, &code) in out.iter_mut().zip(codes) {
            *out = scale * f32::from(code) - min;
        }
    }
}

impl BlockQ4K {
    fn new(parts: &Parts, codes: &[u8; LEN]) -> Self {
        let mut nibbles = [0; 128];
        pack_nibbles::<32>(codes, &mut nibbles);
        Self { scale: parts.scale, min: parts.min, groups: parts.groups, nibbles }
    }
}

impl Block for BlockQ4K {
    const DTYPE: DType = DType::Q4_K;

    fn decode(&self, out: &mut [f32]) {
        let mut codes = [0; LEN];
        unpack_nibbles::<32>(&self.nibbles, &mut codes);
        decode_groups(self.scale.get(), self.min.get(), &self.groups, &codes, out);
    }
}

impl Encode for BlockQ4K {
    fn encode(values: &[f32]) -> Self {
        let search = AffineSearch { top: 15, first: -1.0, step: 0.1, last: 20, distance: Distance::Square };
        let mut codes = [0; LEN];
        Self::new(&Parts::encode(values, search, &mut codes), &codes)
    }
}

impl EncodeWeighted for BlockQ4K {
    fn encode_weighted(values: &[f32], importance: Importance<'_>) -> Self {
        let mut codes = [0; LEN];
        Self::new(&Parts::encode_weighted(values, importance.weights, 15, &mut codes), &codes)
    }
}

impl BlockQ5K {
    fn new(parts: &Parts, codes: &[u8; LEN]) -> Self {
        let mut nibbles = [0; 128];
        pack_nibbles::<32>(&codes.map(|code| code & 15), &mut nibbles);
        Self { scale: parts.scale, min: parts.min, groups: parts.groups, high: pack_bit::<4>(codes), nibbles }
    }
}

impl Block for BlockQ5K {
    const DTYPE: DType = DType::Q5_K;

    fn decode(&self, out: &mut [f32]) {
        let mut codes = [0; LEN];
        unpack_nibbles::<32>(&self.nibbles, &mut codes);
        unpack_bit::<4>(&self.high, &mut codes);
        decode_groups(self.scale.get(), self.min.get(), &self.groups, &codes, out);
    }
}

impl Encode for BlockQ5K {
    fn encode(values: &[f32]) -> Self {
        let search = AffineSearch { top: 31, first: -0.5, step: 0.1, last: 15, distance: Distance::Square };
        let mut codes = [0; LEN];
        Self::new(&Parts::encode(values, search, &mut codes), &codes)
    }
}

impl EncodeWeighted for BlockQ5K {
    fn encode_weighted(values: &[f32], importance: Importance<'_>) -> Self {
        let mut codes = [0; LEN];
        Self::new(&Parts::encode_weighted(values, importance.weights, 31, &mut codes), &codes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_scales_survive_packing() {
        let scales: [u8; GROUPS] = std::array::from_fn(|j| (j as u8 * 23 + 5) & 63);
        let mins: [u8; GROUPS] = std::array::from_fn(|j| 63 - j as u8 * 9);
        let packed = GroupScales::pack(&scales, &mins);
        assert_eq!(packed.scales(), scales);
        assert_eq!(packed.mins(), mins);
    }
}
