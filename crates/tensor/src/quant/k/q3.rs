//! Q3_K: sixteen groups of 16 values, three bits each, with 6-bit signed scales.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{LEN, group_sums, requantize_symmetric, symmetric_groups};
use crate::dtype::DType;
use crate::quant::float::StoredF16;
use crate::quant::pack::{pack_bit, pack_crumbs, unpack_bit, unpack_crumbs};
use crate::quant::scan::{first_extreme, inverse, mean_square, ratio, round_even};
use crate::quant::search::{balanced, squares, symmetric, symmetric_descent};
use crate::quant::{Block, Encode, EncodeWeighted, Importance};

const GROUPS: usize = 16;
const HALF: u8 = 4;
const HALF_SCALE: u8 = 32;

/// `value = scale * (group scale - 32) * (code - 4)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockQ3K {
    /// Bit `e / 32` of byte `e % 32` is bit 2 of the code of element `e`.
    pub high: [u8; 32],
    /// The lower two bits: in each run of 128 elements, byte `i` holds elements `i`, `i + 32`, `i + 64`, `i + 96`.
    pub crumbs: [u8; 64],
    /// Sixteen 6-bit numbers: see [`BlockQ3K::group_scales`].
    pub scales: [u8; 12],
    /// Multiplies every group scale.
    pub scale: StoredF16,
}

const _: () = assert!(size_of::<BlockQ3K>() == DType::Q3_K.block_bytes());

impl BlockQ3K {
    /// The scales of all groups, -32 to 31.
    pub fn group_scales(&self) -> [i8; GROUPS] {
        std::array::from_fn(|j| {
            let low = self.scales[j % 8] >> (4 * (j / 8)) & 15;
            let high = self.scales[8 + j % 4] >> (2 * (j / 4)) & 3;
            (low | high << 4) as i8 - HALF_SCALE as i8
        })
    }

    fn pack_scales(scales: &[u8; GROUPS]) -> [u8; 12] {
        let mut packed = [0; 12];
        for (j, scale) in scales.iter().enumerate() {
            packed[j % 8] |= (scale & 15) << (4 * (j / 8));
            packed[8 + j % 4] |= (scale >> 4) << (2 * (j / 4));
        }
        packed
    }

    /// The block for group scales that are already 6-bit numbers.
    fn new(values: &[f32], scale: f32, scales: &[u8; GROUPS], mut codes: [u8; LEN]) -> Self {
        let mut block = Self {
            high: [0; 32],
            crumbs: [0; 64],
            scales: Self::pack_scales(scales),
            scale: StoredF16::new(scale),
        };
        let groups = values.chunks_exact(16).zip(codes.chunks_exact_mut(16));
        for ((values, codes), group_scale) in groups.zip(block.group_scales()) {
            let scale = block.scale.get() * f32::from(group_scale);
            requantize_symmetric(values, scale, i32::from(HALF), codes);
        }
        block.high = pack_bit::<2>(&codes);
        block.crumbs = pack_crumbs(&codes.map(|code| code & 3));
        block
    }
}

impl Block for BlockQ3K {
    const DTYPE: DType = DType::Q3_K;

    fn decode(&self, out: &mut [f32]) {
        let scale = self.scale.get();
        let mut codes = unpack_crumbs(&self.crumbs);
        unpack_bit::<2>(&self.high, &mut codes);
        let groups = codes.chunks_exact(16).zip(out.chunks_exact_mut(16));
        for ((codes, out), group_scale) in groups.zip(self.group_scales()) {
            let scale = scale * f32::from(group_scale);
            for (out, &code) in out.iter_mut().zip(codes) {
                *out = scale * f32::from(code as i8 - HALF as i8);
            }
        }
    }
}

impl Encode for BlockQ3K {
    fn encode(values: &[f32]) -> Self {
        let weights: [f32; LEN] = squares(values);
        let mut codes = [0; LEN];
        let scales = symmetric_groups(symmetric_descent, values, &weights, HALF, &mut codes);
        let half = i32::from(HALF_SCALE);
        let inverse_scale = ratio(-f32::from(HALF_SCALE), first_extreme(&scales));
        let stored = if inverse_scale == 0.0 {
            [0; GROUPS]
        } else {
            scales.map(|scale| (round_even(inverse_scale * scale).clamp(-half, half - 1) + half) as u8)
        };
        Self::new(values, inverse(inverse_scale), &stored, codes)
    }
}

impl EncodeWeighted for BlockQ3K {
    fn encode_weighted(values: &[f32], importance: Importance<'_>) -> Self {
        let weights: [f32; LEN] = balanced(values, importance.weights, 2.0 * mean_square(values));
        let group_weights: [f32; GROUPS] = group_sums(&weights);
        let mut codes = [0; LEN];
        let scales = symmetric_groups(symmetric, values, &weights, HALF, &mut codes);
        let mut stored = [0; GROUPS];
        let scale = symmetric(&scales, &group_weights, HALF_SCALE, &mut stored);
        Self::new(values, scale, &stored, codes)
    }
}
