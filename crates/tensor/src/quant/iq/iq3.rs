//! IQ3_XXS and IQ3_S: four magnitudes at a time from a grid with eight levels.

use half::f16;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::codec::{Signed, SignedCode, Signs};
use super::even_signs;
use super::fit::{Fitted, encode};
use super::lattice::{G3_S, G3_XXS};
use crate::dtype::DType;
use crate::quant::{Block, Encode, EncodeWeighted, Importance};

/// Eight groups of 32 with one scale each; signs have even parity.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockIq3Xxs {
    /// Scale of the block, an `f16`.
    pub d: U16,
    /// One for each four elements.
    pub points: [[u8; 8]; 8],
    /// Per group: four times seven sign bits, and the scale in the uppermost four bits.
    pub signs_and_scale: [U32; 8],
}

/// Eight groups of 32 with one scale each; signs are free.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockIq3S {
    /// Scale of the block, an `f16`.
    pub d: U16,
    /// One for each four elements.
    pub points_low: [[u8; 8]; 8],
    /// Per group: the uppermost bit of each of eight points.
    pub points_high: [u8; 8],
    /// Bit `j` of a byte is set when element `j` of eight is negative.
    pub signs: [[u8; 4]; 8],
    /// Two groups per byte, the first in the lower four bits.
    pub scales: [u8; 4],
}

const _: () = {
    assert!(size_of::<BlockIq3Xxs>() == DType::IQ3_XXS.block_bytes());
    assert!(size_of::<BlockIq3S>() == DType::IQ3_S.block_bytes());
};

const XXS: Signed<4, 8, 256> = Signed { grid: &G3_XXS, signs: Signs::Even, octets: 4, unit: 0.25 };
const S: Signed<4, 8, 512> = Signed { grid: &G3_S, signs: Signs::Free, octets: 4, unit: 1.0 };

fn decode_octet(scale: f32, points: [&[i8; 4]; 2], signs: u8, out: &mut [f32]) {
    for (j, (out, &level)) in out.iter_mut().zip(points.into_iter().flatten()).enumerate() {
        let sign = if signs >> j & 1 == 1 { -1.0 } else { 1.0 };
        *out = scale * f32::from(level) * sign;
    }
}

impl Block for BlockIq3Xxs {
    const DTYPE: DType = DType::IQ3_XXS;

    fn decode(&self, out: &mut [f32]) {
        let d = f16::from_bits(self.d.get()).to_f32();
        for ((points, packed), out) in
            self.points.iter().zip(&self.signs_and_scale).zip(out.chunks_exact_mut(32))
        {
            let packed = packed.get();
            let scale = d * (0.5 + (packed >> 28) as f32) * 0.5;
            for (l, (points, out)) in points.as_chunks().0.iter().zip(out.chunks_exact_mut(8)).enumerate() {
                let signs = even_signs((packed >> (7 * l) & 0x7F) as u8);
                let points: &[u8; 2] = points;
                decode_octet(scale, points.map(|point| &G3_XXS.points()[usize::from(point)]), signs, out);
            }
        }
    }
}

impl Encode for BlockIq3Xxs {
    fn encode(values: &[f32]) -> Self {
        encode(&XXS, values, |block| block.weights(None, 2.0), Self::pack)
    }
}

impl EncodeWeighted for BlockIq3Xxs {
    fn encode_weighted(values: &[f32], importance: Importance<'_>) -> Self {
        encode(&XXS, values, |block| block.weights(Some(importance), 2.0), Self::pack)
    }
}

/// The points of a group, four octets, in element order.
fn points(group: &[SignedCode; 4]) -> [u16; 8] {
    std::array::from_fn(|k| group[k / 2].points[k % 2])
}

impl BlockIq3Xxs {
    fn pack(fitted: Fitted<SignedCode>) -> Self {
        let groups = fitted.codes.as_chunks::<4>().0;
        let signs = |packed, code: &SignedCode| packed << 7 | u32::from(code.signs & 0x7F);
        let packed = |g: usize| groups[g].iter().rev().fold(u32::from(fitted.scales[g]), signs);
        BlockIq3Xxs {
            d: fitted.d.to_bits().into(),
            points: std::array::from_fn(|g| points(&groups[g]).map(|point| point as u8)),
            signs_and_scale: std::array::from_fn(|g| packed(g).into()),
        }
    }
}

impl Block for BlockIq3S {
    const DTYPE: DType = DType::IQ3_S;

    fn decode(&self, out: &mut [f32]) {
        let d = f16::from_bits(self.d.get()).to_f32();
        for (i, out) in out.chunks_exact_mut(8).take(32).enumerate() {
            let (g, l) = (i / 4, i % 4);
            let code = self.scales[g / 2] >> (4 * (g % 2)) & 15;
            let scale = d * (1 + 2 * code) as f32;
            let points = [2 * l, 2 * l + 1].map(|k| {
                let high = self.points_high[g] >> k & 1;
                &G3_S.points()[usize::from(self.points_low[g][k]) | usize::from(high) << 8]
            });
            decode_octet(scale, points, self.signs[g][l], out);
        }
    }
}

impl Encode for BlockIq3S {
    fn encode(values: &[f32]) -> Self {
        encode(&S, values, |block| block.weights(None, 2.0), Self::pack)
    }
}

impl EncodeWeighted for BlockIq3S {
    fn encode_weighted(values: &[f32], importance: Importance<'_>) -> Self {
        encode(&S, values, |block| block.weights(Some(importance), 2.0), Self::pack)
    }
}

impl BlockIq3S {
    fn pack(fitted: Fitted<SignedCode>) -> Self {
        let groups = fitted.codes.as_chunks::<4>().0;
        let high = |packed, point: &u16| packed << 1 | (point >> 8) as u8;
        BlockIq3S {
            d: fitted.d.to_bits().into(),
            points_low: std::array::from_fn(|g| points(&groups[g]).map(|point| point as u8)),
            points_high: std::array::from_fn(|g| points(&groups[g]).iter().rev().fold(0, high)),
            signs: std::array::from_fn(|g| groups[g].map(|code| code.signs)),
            scales: std::array::from_fn(|i| fitted.scales[2 * i] | fitted.scales[2 * i + 1] << 4),
        }
    }
}
