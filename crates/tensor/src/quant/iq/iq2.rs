//! IQ2_XXS, IQ2_XS and IQ2_S: eight magnitudes at a time from a grid with levels 8, 25, 43.

use half::f16;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::codec::{Signed, SignedCode, Signs};
use super::fit::{Fitted, encode};
use super::lattice::{G2_S, G2_XS, G2_XXS};
use super::{BLOCK_LEN, even_signs};
use crate::dtype::DType;
use crate::quant::{Block, Encode, EncodeWeighted, Importance};

/// Eight groups of 32 with one scale each; signs have even parity.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockIq2Xxs {
    /// Scale of the block, an `f16`.
    pub d: U16,
    /// 32 elements each.
    pub groups: [GroupIq2Xxs; 8],
}

/// 32 elements of a [`BlockIq2Xxs`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout)]
#[repr(C)]
pub struct GroupIq2Xxs {
    /// Grid point of each eight elements.
    pub points: [u8; 4],
    /// Four times seven sign bits, and the scale in the uppermost four bits.
    pub signs_and_scale: U32,
}

/// Sixteen groups of 16 with one scale each; signs have even parity.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockIq2Xs {
    /// Scale of the block, an `f16`.
    pub d: U16,
    /// Point in the lower nine bits, signs in the upper seven.
    pub octets: [U16; 32],
    /// Two groups per byte, the first in the lower four bits.
    pub scales: [u8; 8],
}

/// Sixteen groups of 16 with one scale each; signs are free.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockIq2S {
    /// Scale of the block, an `f16`.
    pub d: U16,
    /// Lower eight bits of the point of each eight elements.
    pub points_low: [u8; 32],
    /// Bit `j` of a byte is set when element `j` of eight is negative.
    pub signs: [u8; 32],
    /// Two upper point bits for each of four octets.
    pub points_high: [u8; 8],
    /// Two groups per byte, the first in the lower four bits.
    pub scales: [u8; 8],
}

const _: () = {
    assert!(size_of::<BlockIq2Xxs>() == DType::IQ2_XXS.block_bytes());
    assert!(size_of::<BlockIq2Xs>() == DType::IQ2_XS.block_bytes());
    assert!(size_of::<BlockIq2S>() == DType::IQ2_S.block_bytes());
};

const XXS: Signed<8, 3, 256> = Signed { grid: &G2_XXS, signs: Signs::Even, octets: 4, unit: 0.125 };
const XS: Signed<8, 3, 512> = Signed { grid: &G2_XS, signs: Signs::Even, octets: 2, unit: 0.125 };
const S: Signed<8, 3, 1024> = Signed { grid: &G2_S, signs: Signs::Free, octets: 2, unit: 0.125 };

fn group_scale(d: U16, code: u8) -> f32 {
    f16::from_bits(d.get()).to_f32() * (0.5 + f32::from(code)) * 0.25
}

fn decode_octet(scale: f32, point: &[i8; 8], signs: u8, out: &mut [f32]) {
    for (j, (out, &level)) in out.iter_mut().zip(point).enumerate() {
        let sign = if signs >> j & 1 == 1 { -1.0 } else { 1.0 };
        *out = scale * f32::from(level) * sign;
    }
}

impl Block for BlockIq2Xxs {
    const DTYPE: DType = DType::IQ2_XXS;

    fn decode(&self, out: &mut [f32]) {
        for (group, out) in self.groups.iter().zip(out.chunks_exact_mut(32)) {
            let packed = group.signs_and_scale.get();
            let scale = group_scale(self.d, (packed >> 28) as u8);
            for (l, (&point, out)) in group.points.iter().zip(out.chunks_exact_mut(8)).enumerate() {
                let signs = even_signs((packed >> (7 * l) & 0x7F) as u8);
                decode_octet(scale, &G2_XXS.points()[usize::from(point)], signs, out);
            }
        }
    }
}

impl EncodeWeighted for BlockIq2Xxs {
    fn encode_weighted(values: &[f32], importance: Importance<'_>) -> Self {
        encode(&XXS, values, |block| block.weights(Some(importance), 1.0), Self::pack)
    }
}

impl BlockIq2Xxs {
    fn pack(fitted: Fitted<SignedCode>) -> Self {
        let octets = fitted.codes.as_chunks::<4>().0;
        let group = |g: usize| {
            let signs = |packed, code: &SignedCode| packed << 7 | u32::from(code.signs & 0x7F);
            let packed = octets[g].iter().rev().fold(u32::from(fitted.scales[g]), signs);
            GroupIq2Xxs { points: octets[g].map(|code| code.points[0] as u8), signs_and_scale: packed.into() }
        };
        BlockIq2Xxs { d: fitted.d.to_bits().into(), groups: std::array::from_fn(group) }
    }
}

impl Block for BlockIq2Xs {
    const DTYPE: DType = DType::IQ2_XS;

    fn decode(&self, out: &mut [f32]) {
        for (i, (octet, out)) in self.octets.iter().zip(out.chunks_exact_mut(8)).enumerate() {
            let scale = group_scale(self.d, nibble(&self.scales, i / 2));
            let (point, signs) = (usize::from(octet.get() & 0x1FF), (octet.get() >> 9) as u8);
            decode_octet(scale, &G2_XS.points()[point], even_signs(signs), out);
        }
    }
}

impl EncodeWeighted for BlockIq2Xs {
    fn encode_weighted(values: &[f32], importance: Importance<'_>) -> Self {
        encode(&XS, values, |block| block.weights(Some(importance), 1.0), Self::pack)
    }
}

impl BlockIq2Xs {
    fn pack(fitted: Fitted<SignedCode>) -> Self {
        let octet = |code: SignedCode| U16::new(code.points[0] | u16::from(code.signs & 0x7F) << 9);
        BlockIq2Xs {
            d: fitted.d.to_bits().into(),
            octets: fitted.codes.map(octet),
            scales: nibbles(&fitted.scales),
        }
    }
}

impl Block for BlockIq2S {
    const DTYPE: DType = DType::IQ2_S;

    fn decode(&self, out: &mut [f32]) {
        for (i, out) in out.chunks_exact_mut(8).take(BLOCK_LEN / 8).enumerate() {
            let scale = group_scale(self.d, nibble(&self.scales, i / 2));
            let high = self.points_high[i / 4] >> (2 * (i % 4)) & 3;
            let point = usize::from(self.points_low[i]) | usize::from(high) << 8;
            decode_octet(scale, &G2_S.points()[point], self.signs[i], out);
        }
    }
}

impl Encode for BlockIq2S {
    fn encode(values: &[f32]) -> Self {
        encode(&S, values, |block| block.weights(None, 2.0), Self::pack)
    }
}

impl EncodeWeighted for BlockIq2S {
    fn encode_weighted(values: &[f32], importance: Importance<'_>) -> Self {
        encode(&S, values, |block| block.weights(Some(importance), 2.0), Self::pack)
    }
}

impl BlockIq2S {
    fn pack(fitted: Fitted<SignedCode>) -> Self {
        let octets = fitted.codes.as_chunks::<4>().0;
        let high = |packed, code: &SignedCode| packed << 2 | (code.points[0] >> 8) as u8;
        BlockIq2S {
            d: fitted.d.to_bits().into(),
            points_low: fitted.codes.map(|code| code.points[0] as u8),
            signs: fitted.codes.map(|code| code.signs),
            points_high: std::array::from_fn(|g| octets[g].iter().rev().fold(0, high)),
            scales: nibbles(&fitted.scales),
        }
    }
}

/// Scale code `group` of an array with two per byte.
fn nibble(scales: &[u8], group: usize) -> u8 {
    scales[group / 2] >> (4 * (group % 2)) & 15
}

fn nibbles(scales: &[u8; 16]) -> [u8; 8] {
    std::array::from_fn(|i| scales[2 * i] | scales[2 * i + 1] << 4)
}
