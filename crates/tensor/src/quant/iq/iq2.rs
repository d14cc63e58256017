//! IQ2_XXS, IQ2_XS and IQ2_S: eight magnitudes at a time from a grid with levels 8, 25, 43.
//!
//! `value = scale * (0.5 + group scale) * 0.25 * level`, with a sign.

use half::f16;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::codec::{Signed, SignedCode, Signs};
use super::fit::{Fitted, encode};
use super::lattice::{G2_S, G2_XS, G2_XXS};
use super::{decode_signed, even_signs, pack_scales, pack_signs, scale_code};
use crate::dtype::DType;
use crate::quant::{Block, Encode, EncodeWeighted, Importance};

/// Eight groups of 32; the number of negative values in each octet is even.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockIq2Xxs {
    /// Multiplies every group scale; an f16.
    pub scale: U16,
    /// The rest, group by group.
    pub groups: [GroupIq2Xxs; 8],
}

const _: () = assert!(size_of::<BlockIq2Xxs>() == DType::IQ2_XXS.block_bytes());

/// 32 elements of a [`BlockIq2Xxs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout)]
#[repr(C)]
pub struct GroupIq2Xxs {
    /// One point of [`G2_XXS`] for each octet.
    pub points: [u8; 4],
    /// Bits `7 * i` and up are the field of [`even_signs`] for octet `i`; the uppermost four are the group scale.
    pub signs_and_scale: U32,
}

/// Sixteen groups of 16; the number of negative values in each octet is even.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockIq2Xs {
    /// Multiplies every group scale; an f16.
    pub scale: U16,
    /// For each octet a point of [`G2_XS`] in the lower nine bits, and the field of [`even_signs`] above.
    pub octets: [U16; 32],
    /// Group scales: nibble `g % 2` of byte `g / 2`.
    pub scales: [u8; 8],
}

const _: () = assert!(size_of::<BlockIq2Xs>() == DType::IQ2_XS.block_bytes());

/// Sixteen groups of 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockIq2S {
    /// Multiplies every group scale; an f16.
    pub scale: U16,
    /// Lower eight bits of the point of [`G2_S`] for each octet.
    pub points_low: [u8; 32],
    /// For each octet, bit `j` is set when element `j` is negative.
    pub signs: [u8; 32],
    /// Upper two bits of each point: bits `2 * (i % 4)` and up of byte `i / 4`.
    pub points_high: [u8; 8],
    /// Group scales: nibble `g % 2` of byte `g / 2`.
    pub scales: [u8; 8],
}

const _: () = assert!(size_of::<BlockIq2S>() == DType::IQ2_S.block_bytes());

const XXS: Signed<8, 3, 256> = Signed { grid: &G2_XXS, signs: Signs::Even, octets: 4, unit: 0.125 };
const XS: Signed<8, 3, 512> = Signed { grid: &G2_XS, signs: Signs::Even, octets: 2, unit: 0.125 };
const S: Signed<8, 3, 1024> = Signed { grid: &G2_S, signs: Signs::Free, octets: 2, unit: 0.125 };

fn group_scale(scale: U16, code: u8) -> f32 {
    f16::from_bits(scale.get()).to_f32() * (0.5 + f32::from(code)) * 0.25
}

impl Block for BlockIq2Xxs {
    const DTYPE: DType = DType::IQ2_XXS;

    fn decode(&self, out: &mut [f32]) {
        for (group, out) in self.groups.iter().zip(out.chunks_exact_mut(32)) {
            let word = group.signs_and_scale.get();
            let scale = group_scale(self.scale, (word >> 28) as u8);
            for (i, (&point, out)) in group.points.iter().zip(out.chunks_exact_mut(8)).enumerate() {
                let signs = even_signs((word >> (7 * i)) as u8);
                decode_signed(scale, &G2_XXS.points()[usize::from(point)], signs, out);
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
        let groups = fitted.codes.as_chunks::<4>().0;
        let group = |g: usize| GroupIq2Xxs {
            points: groups[g].map(|code| code.points[0] as u8),
            signs_and_scale: pack_signs(fitted.scales[g], &groups[g]).into(),
        };
        BlockIq2Xxs { scale: fitted.d.to_bits().into(), groups: std::array::from_fn(group) }
    }
}

impl Block for BlockIq2Xs {
    const DTYPE: DType = DType::IQ2_XS;

    fn decode(&self, out: &mut [f32]) {
        for (i, (octet, out)) in self.octets.iter().zip(out.chunks_exact_mut(8)).enumerate() {
            let scale = group_scale(self.scale, scale_code(&self.scales, i / 2));
            let (point, signs) = (usize::from(octet.get() & 0x1FF), (octet.get() >> 9) as u8);
            decode_signed(scale, &G2_XS.points()[point], even_signs(signs), out);
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
            scale: fitted.d.to_bits().into(),
            octets: fitted.codes.map(octet),
            scales: pack_scales(&fitted.scales),
        }
    }
}

impl Block for BlockIq2S {
    const DTYPE: DType = DType::IQ2_S;

    fn decode(&self, out: &mut [f32]) {
        for (i, (&low, out)) in self.points_low.iter().zip(out.chunks_exact_mut(8)).enumerate() {
            let scale = group_scale(self.scale, scale_code(&self.scales, i / 2));
            let high = self.points_high[i / 4] >> (2 * (i % 4)) & 3;
            let point = usize::from(low) | usize::from(high) << 8;
            decode_signed(scale, &G2_S.points()[point], self.signs[i], out);
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
        let fours = fitted.codes.as_chunks::<4>().0;
        let high = |packed, code: &SignedCode| packed << 2 | (code.points[0] >> 8) as u8;
        BlockIq2S {
            scale: fitted.d.to_bits().into(),
            points_low: fitted.codes.map(|code| code.points[0] as u8),
            signs: fitted.codes.map(|code| code.signs),
            points_high: std::array::from_fn(|i| fours[i].iter().rev().fold(0, high)),
            scales: pack_scales(&fitted.scales),
        }
    }
}
