//! Q2_K: sixteen groups of 16 values, two bits each, with 4-bit scales and minimums.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{LEN, affine_groups, group_sums, requantize_affine, scale_codes};
use crate::dtype::DType;
use crate::quant::float::StoredF16;
use crate::quant::pack::{pack_crumbs, unpack_crumbs};
use crate::quant::scan::mean_square;
use crate::quant::search::{Affine, AffineSearch, Distance, balanced, positive};
use crate::quant::{Block, Encode, EncodeWeighted, Importance};

const GROUPS: usize = 16;
const TOP: u8 = 3;
const TOP_SCALE: u8 = 15;

/// `value = scale * group scale * code - min * group min`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockQ2K {
    /// Scale (low nibble) and minimum (high nibble) of each group.
    pub scales: [u8; 16],
    /// In each run of 128 elements, byte `i` holds elements `i`, `i + 32`, `i + 64` and `i + 96`, lowest bits first.
    pub crumbs: [u8; 64],
    /// Multiplies every group scale.
    pub scale: StoredF16,
    /// Multiplies every group minimum.
    pub min: StoredF16,
}

const _: () = assert!(size_of::<BlockQ2K>() == DType::Q2_K.block_bytes());

impl BlockQ2K {
    /// The block for group scales and minimums that are already in their nibbles.
    fn new(values: &[f32], scale: f32, min: f32, scales: [u8; GROUPS], mut codes: [u8; LEN]) -> Self {
        let (scale, min) = (StoredF16::new(scale), StoredF16::new(min));
        let groups = values.chunks_exact(16).zip(codes.chunks_exact_mut(16));
        for ((values, codes), nibbles) in groups.zip(scales) {
            let group_scale = scale.get() * f32::from(nibbles & 15);
            let group_min = min.get() * f32::from(nibbles >> 4);
            requantize_affine(values, group_scale, group_min, TOP, codes);
        }
        Self { scales, crumbs: pack_crumbs(&codes), scale, min }
    }
}

impl Block for BlockQ2K {
    const DTYPE: DType = DType::Q2_K;

    fn decode(&self, out: &mut [f32]) {
        let (scale, min) = (self.scale.get(), self.min.get());
        let codes = unpack_crumbs(&self.crumbs);
        for ((codes, nibbles), out) in codes.chunks_exact(16).zip(self.scales).zip(out.chunks_exact_mut(16)) {
            let scale = scale * f32::from(nibbles & 15);
            let min = min * f32::from(nibbles >> 4);
            for (out, &code) in out.iter_mut().zip(codes) {
                *out = scale * f32::from(code) - min;
            }
        }
    }
}

impl Encode for BlockQ2K {
    fn encode(values: &[f32]) -> Self {
        let search =
            AffineSearch { top: TOP, first: -0.5, step: 0.1, last: 15, distance: Distance::Magnitude };
        let weights = std::array::from_fn(|e| values[e].abs());
        let mut codes = [0; LEN];
        let groups: [Affine; GROUPS] = affine_groups(values, &weights, search, &mut codes);
        let (scale, scales) = scale_codes(groups.map(|group| group.scale), TOP_SCALE);
        let (min, mins) = scale_codes(groups.map(|group| group.min), TOP_SCALE);
        Self::new(values, scale, min, std::array::from_fn(|j| scales[j] | mins[j] << 4), codes)
    }
}

impl EncodeWeighted for BlockQ2K {
    fn encode_weighted(values: &[f32], importance: Importance<'_>) -> Self {
        let weights: [f32; LEN] = balanced(values, importance.weights, mean_square(values));
        let group_weights: [f32; GROUPS] = group_sums(&weights);
        let mut codes = [0; LEN];
        let groups = affine_groups::<GROUPS>(values, &weights, AffineSearch::weighted(TOP), &mut codes);
        let (mut scales, mut mins) = ([0; GROUPS], [0; GROUPS]);
        let scale = positive(&groups.map(|group| group.scale), &group_weights, TOP_SCALE, &mut scales);
        let min = positive(&groups.map(|group| group.min), &group_weights, TOP_SCALE, &mut mins);
        Self::new(values, scale, min, std::array::from_fn(|j| scales[j] | mins[j] << 4), codes)
    }
}
