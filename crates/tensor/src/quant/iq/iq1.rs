//! IQ1_S and IQ1_M: eight values at a time from a grid with levels -1, 0, 1, all moved up or down by an eighth.
//!
//! `value = scale * (1 + 2 * group scale) * (level + shift)`.

use half::f16;
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::codec::{Shifted, ShiftedCode};
use super::fit::{Fitted, encode};
use super::lattice::G1;
use crate::dtype::DType;
use crate::quant::{Block, Encode, EncodeWeighted, Importance};

/// Eight groups of 32 with one shift each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockIq1S {
    /// Multiplies every group scale; an f16.
    pub scale: U16,
    /// Lower eight bits of the point of [`G1`] for each octet.
    pub points_low: [[u8; 4]; 8],
    /// For each group: bits `3 * i` and up are the upper three bits of point `i`, bits 12 to 14 the group scale, and
    /// bit 15 says that the shift goes down.
    pub groups: [U16; 8],
}

const _: () = assert!(size_of::<BlockIq1S>() == DType::IQ1_S.block_bytes());

/// Sixteen groups of 16, with a shift for each octet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockIq1M {
    /// Lower eight bits of the point of [`G1`] for each octet.
    pub points_low: [u8; 32],
    /// Nibble `i % 2` of byte `i / 2`: the upper three bits of point `i`, and above them whether its shift goes down.
    pub points_high: [u8; 16],
    /// Bits `3 * (g % 4)` and up of word `g / 4` are the scale of group `g`. The upper four bits of all words are the
    /// f16 that multiplies every group scale, lowest bits first.
    pub scales: [U16; 4],
}

const _: () = assert!(size_of::<BlockIq1M>() == DType::IQ1_M.block_bytes());

const S: Shifted = Shifted { octets: 4, one_shift: true };
const M: Shifted = Shifted { octets: 2, one_shift: false };

fn decode_octet(scale: f32, code: ShiftedCode, out: &mut [f32]) {
    for (out, &level) in out.iter_mut().zip(&G1.points()[usize::from(code.point)]) {
        *out = scale * (f32::from(level) + code.shift());
    }
}

impl Block for BlockIq1S {
    const DTYPE: DType = DType::IQ1_S;

    fn decode(&self, out: &mut [f32]) {
        let block_scale = f16::from_bits(self.scale.get()).to_f32();
        for ((low, word), out) in self.points_low.iter().zip(&self.groups).zip(out.chunks_exact_mut(32)) {
            let word = word.get();
            let scale = block_scale * f32::from(1 + 2 * (word >> 12 & 7));
            for (i, (&low, out)) in low.iter().zip(out.chunks_exact_mut(8)).enumerate() {
                let point = u16::from(low) | (word >> (3 * i) & 7) << 8;
                decode_octet(scale, ShiftedCode { point, down: word >> 15 == 1 }, out);
            }
        }
    }
}

impl EncodeWeighted for BlockIq1S {
    fn encode_weighted(values: &[f32], importance: Importance<'_>) -> Self {
        encode(&S, values, |block| block.weights(Some(importance), 2.0), Self::pack)
    }
}

impl BlockIq1S {
    fn pack(fitted: Fitted<ShiftedCode>) -> Self {
        let groups = fitted.codes.as_chunks::<4>().0;
        let word = |g: usize| {
            let top = u16::from(groups[g][0].down) << 3 | u16::from(fitted.scales[g]);
            U16::new(groups[g].iter().rev().fold(top, |word, code| word << 3 | code.point >> 8))
        };
        BlockIq1S {
            scale: fitted.d.to_bits().into(),
            points_low: std::array::from_fn(|g| groups[g].map(|code| code.point as u8)),
            groups: std::array::from_fn(word),
        }
    }
}

impl BlockIq1M {
    /// What multiplies every group scale.
    pub fn scale(&self) -> f16 {
        f16::from_bits(self.scales.iter().rev().fold(0, |bits, word| bits << 4 | word.get() >> 12))
    }
}

impl Block for BlockIq1M {
    const DTYPE: DType = DType::IQ1_M;

    fn decode(&self, out: &mut [f32]) {
        let block_scale = self.scale().to_f32();
        for (i, (&low, out)) in self.points_low.iter().zip(out.chunks_exact_mut(8)).enumerate() {
            let group = i / 2;
            let scale =
                block_scale * f32::from(1 + 2 * (self.scales[group / 4].get() >> (3 * (group % 4)) & 7));
            let high = self.points_high[i / 2] >> (4 * (i % 2));
            let point = u16::from(low) | u16::from(high & 7) << 8;
            decode_octet(scale, ShiftedCode { point, down: high & 8 != 0 }, out);
        }
    }
}

impl Encode for BlockIq1M {
    fn encode(values: &[f32]) -> Self {
        encode(&M, values, |block| block.weights(None, 2.0), Self::pack)
    }
}

impl EncodeWeighted for BlockIq1M {
    fn encode_weighted(values: &[f32], importance: Importance<'_>) -> Self {
        encode(&M, values, |block| block.weights(Some(importance), 2.0), Self::pack)
    }
}

impl BlockIq1M {
    fn pack(fitted: Fitted<ShiftedCode>) -> Self {
        let pairs = fitted.codes.as_chunks::<2>().0;
        let high = |code: ShiftedCode| u8::from(code.down) << 3 | (code.point >> 8) as u8;
        let word = |i: usize| {
            let top = fitted.d.to_bits() >> (4 * i) & 15;
            let scales = &fitted.scales[4 * i..4 * i + 4];
            U16::new(scales.iter().rev().fold(top, |word, &scale| word << 3 | u16::from(scale)))
        };
        BlockIq1M {
            points_low: fitted.codes.map(|code| code.point as u8),
            points_high: std::array::from_fn(|i| high(pairs[i][0]) | high(pairs[i][1]) << 4),
            scales: std::array::from_fn(word),
        }
    }
}
