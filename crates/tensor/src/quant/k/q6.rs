//! Q6_K: sixteen groups of 16 values, six bits each, with 8-bit signed scales.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{LEN, requantize_symmetric, symmetric_groups};
use crate::dtype::DType;
use crate::quant::float::StoredF16;
use crate::quant::pack::{pack_crumbs, pack_nibbles, unpack_crumbs, unpack_nibbles};
use crate::quant::scan::{first_extreme, round_even};
use crate::quant::search::{NEGLIGIBLE, squares, symmetric};
use crate::quant::{Block, Encode, EncodeWeighted, Importance};

const GROUPS: usize = 16;
const HALF: u8 = 32;

/// `value = scale * group scale * (code - 32)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockQ6K {
    /// The lower four bits: in each run of 128 elements, byte `i` holds elements `i` (low) and `i + 64` (high).
    pub nibbles: [u8; 128],
    /// The upper two bits: in each run of 128 elements, byte `i` holds elements `i`, `i + 32`, `i + 64`, `i + 96`.
    pub crumbs: [u8; 64],
    /// One scale per group.
    pub scales: [i8; 16],
    /// Multiplies every group scale.
    pub scale: StoredF16,
}

const _: () = assert!(size_of::<BlockQ6K>() == DType::Q6_K.block_bytes());

impl BlockQ6K {
    fn search(values: &[f32], weights: &[f32; LEN]) -> Self {
        let mut codes = [0; LEN];
        let scales = symmetric_groups(symmetric, values, weights, HALF, &mut codes);
        let mut block =
            Self { nibbles: [0; 128], crumbs: [0; 64], scales: [0; GROUPS], scale: StoredF16::default() };
        let extreme = first_extreme(&scales);
        if extreme.abs() < NEGLIGIBLE {
            return block;
        }
        let inverse = -128.0 / extreme;
        block.scale = StoredF16::new(1.0 / inverse);
        block.scales = scales.map(|scale| round_even(inverse * scale).min(127) as i8);
        let groups = values.chunks_exact(16).zip(codes.chunks_exact_mut(16));
        for ((values, codes), group_scale) in groups.zip(block.scales) {
            let scale = block.scale.get() * f32::from(group_scale);
            requantize_symmetric(values, scale, i32::from(HALF), codes);
        }
        pack_nibbles::<64>(&codes.map(|code| code & 15), &mut block.nibbles);
        block.crumbs = pack_crumbs(&codes.map(|code| code >> 4));
        block
    }
}

impl Block for BlockQ6K {
    const DTYPE: DType = DType::Q6_K;

    fn decode(&self, out: &mut [f32]) {
        let scale = self.scale.get();
        let mut low = [0; LEN];
        unpack_nibbles::<64>(&self.nibbles, &mut low);
        let high = unpack_crumbs(&self.crumbs);
        let codes = low.chunks_exact(16).zip(high.chunks_exact(16));
        for (((low, high), out), group_scale) in codes.zip(out.chunks_exact_mut(16)).zip(self.scales) {
            let scale = scale * f32::from(group_scale);
            for ((out, low), high) in out.iter_mut().zip(low).zip(high) {
                *out = scale * f32::from((low | high << 4) as i8 - HALF as i8);
            }
        }
    }
}

impl Encode for BlockQ6K {
    fn encode(values: &[f32]) -> Self {
        Self::search(values, &squares(values))
    }
}

impl EncodeWeighted for BlockQ6K {
    /// Unlike its siblings this format takes the importance as it is.
    fn encode_weighted(values: &[f32], importance: Importance<'_>) -> Self {
        Self::search(values, &std::array::from_fn(|e| importance.weights[e]))
    }
}
