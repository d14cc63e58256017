//! IQ1_S and IQ1_M: eight values at a time from a grid with levels -1, 0, 1, moved up or down by an eighth.

use half::f16;
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::BLOCK_LEN;
use super::codec::{SHIFT, Shifted, ShiftedCode};
use super::fit::{Fitted, encode};
use super::lattice::G1;
use crate::dtype::DType;
use crate::quant::{Block, Encode, EncodeWeighted, Importance};

/// Eight groups of 32 with one scale and one shift each.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockIq1S {
    /// Scale of the block, an `f16`.
    pub d: U16,
    /// Lower eight bits of the point of each eight elements.
    pub points_low: [[u8; 4]; 8],
    /// Per group: four times three upper point bits, three bits of scale, and whether the shift goes down.
    pub groups: [U16; 8],
}

/// Sixteen groups of 16 with one scale each, and a shift for each eight elements.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockIq1M {
    /// Lower eight bits of the point of each eight elements.
    pub points_low: [u8; 32],
    /// Per eight elements: three upper point bits, and whether the shift goes down.
    pub points_high: [u8; 16],
    /// Four times three bits of scale; the uppermost four bits are a quarter of the block's scale.
    pub scales: [U16; 4],
}

const _: () = {
    assert!(size_of::<BlockIq1S>() == DType::IQ1_S.block_bytes());
    assert!(size_of::<BlockIq1M>() == DType::IQ1_M.block_bytes());
};

const S: Shifted = Shifted { octets: 4, one_shift: true };
const M: Shifted = Shifted { octets: 2, one_shift: false };

fn decode_octet(scale: f32, point: usize, down: bool, out: &mut [f32]) {
    let shift = if down { -SHIFT } else { SHIFT };
    for (out, &level) in out.iter_mut().zip(&G1.points()[point]) {
        *out = scale * (f32::from(level) + shift);
    }
}

impl Block for BlockIq1S {
    const DTYPE: DType = DType::IQ1_S;

    fn decode(&self, out: &mut [f32]) {
        let d = f16::from_bits(self.d.get()).to_f32();
        for ((low, group), out) in self.points_low.iter().zip(&self.groups).zip(out.chunks_exact_mut(32)) {
            let group = group.get();
            let scale = d * f32::from(2 * (group >> 12 & 7) + 1);
            for (l, (&low, out)) in low.iter().zip(out.chunks_exact_mut(8)).enumerate() {
                let point = usize::from(low) | usize::from(group >> (3 * l) & 7) << 8;
                decode_octet(scale, point, group >> 15 == 1, out);
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
        let octets = fitted.codes.as_chunks::<4>().0;
        let group = |g: usize| {
            let top = u16::from(octets[g][0].down) << 3 | u16::from(fitted.scales[g]);
            U16::new(octets[g].iter().rev().fold(top, |packed, code| packed << 3 | code.point >> 8))
        };
        BlockIq1S {
            d: fitted.d.to_bits().into(),
            points_low: std::array::from_fn(|g| octets[g].map(|code| code.point as u8)),
            groups: std::array::from_fn(group),
        }
    }
}

impl Block for BlockIq1M {
    const DTYPE: DType = DType::IQ1_M;

    fn decode(&self, out: &mut [f32]) {
        let bits = self.scales.iter().rev().fold(0, |bits, scales| bits << 4 | scales.get() >> 12);
        let d = f16::from_bits(bits).to_f32();
        for (i, out) in out.chunks_exact_mut(8).take(BLOCK_LEN / 8).enumerate() {
            let scale = d * f32::from(2 * (self.scales[i / 8].get() >> (3 * (i / 2 % 4)) & 7) + 1);
            let high = self.points_high[i / 2] >> (4 * (i % 2));
            let point = usize::from(self.points_low[i]) | usize::from(high & 7) << 8;
            decode_octet(scale, point, high & 8 != 0, out);
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
        let high = |code: ShiftedCode| u8::from(code.down) << 3 | (code.point >> 8) as u8;
        let pairs = fitted.codes.as_chunks::<2>().0;
        let scales = |i: usize| {
            let top = fitted.d.to_bits() >> (4 * i) & 15;
            let groups = &fitted.scales[4 * i..4 * i + 4];
            U16::new(groups.iter().rev().fold(top, |packed, &scale| packed << 3 | u16::from(scale)))
        };
        BlockIq1M {
            points_low: fitted.codes.map(|code| code.point as u8),
            points_high: std::array::from_fn(|i| high(pairs[i][0]) | high(pairs[i][1]) << 4),
            scales: std::array::from_fn(scales),
        }
    }
}
