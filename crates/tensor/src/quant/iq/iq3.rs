//! IQ3_XXS and IQ3_S: four magnitudes at a time from a grid with eight levels.

use half::f16;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::codec::{Signed, SignedCode, Signs};
use super::fit::{Fitted, encode};
use super::lattice::{G3_S, G3_XXS};
use super::{decode_signed, even_signs, pack_scales, pack_signs, scale_code};
use crate::dtype::DType;
use crate::quant::{Block, Encode, EncodeWeighted, Importance};

/// `value = scale * (0.5 + group scale) * 0.5 * level`, eight groups of 32; the number of negative values in each
/// octet is even.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockIq3Xxs {
    /// Multiplies every group scale; an f16.
    pub scale: U16,
    /// One point of [`G3_XXS`] for each four elements.
    pub points: [[u8; 8]; 8],
    /// For each group, bits `7 * i` and up are the field of [`even_signs`] for octet `i`; the uppermost four are the
    /// group scale.
    pub signs_and_scale: [U32; 8],
}

const _: () = assert!(size_of::<BlockIq3Xxs>() == DType::IQ3_XXS.block_bytes());

/// `value = scale * (1 + 2 * group scale) * level`, eight groups of 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockIq3S {
    /// Multiplies every group scale; an f16.
    pub scale: U16,
    /// Lower eight bits of the point of [`G3_S`] for each four elements.
    pub points_low: [[u8; 8]; 8],
    /// For each group, the uppermost bit of its eight points.
    pub points_high: [u8; 8],
    /// For each octet, bit `j` is set when element `j` is negative.
    pub signs: [[u8; 4]; 8],
    /// Group scales: nibble `g % 2` of byte `g / 2`.
    pub scales: [u8; 4],
}

const _: () = assert!(size_of::<BlockIq3S>() == DType::IQ3_S.block_bytes());

const XXS: Signed<4, 8, 256> = Signed { grid: &G3_XXS, signs: Signs::Even, octets: 4, unit: 0.25 };
const S: Signed<4, 8, 512> = Signed { grid: &G3_S, signs: Signs::Free, octets: 4, unit: 1.0 };

/// The points of a group in the order of elements.
fn group_points(octets: &[SignedCode; 4]) -> [u16; 8] {
    std::array::from_fn(|k| octets[k / 2].points[k % 2])
}

impl Block for BlockIq3Xxs {
    const DTYPE: DType = DType::IQ3_XXS;

    fn decode(&self, out: &mut [f32]) {
        let block_scale = f16::from_bits(self.scale.get()).to_f32();
        let groups = self.points.iter().zip(&self.signs_and_scale);
        for ((points, word), out) in groups.zip(out.chunks_exact_mut(32)) {
            let word = word.get();
            let scale = block_scale * (0.5 + (word >> 28) as f32) * 0.5;
            let pairs = points.as_chunks::<2>().0;
            for (i, (pair, out)) in pairs.iter().zip(out.chunks_exact_mut(8)).enumerate() {
                let levels = pair.iter().flat_map(|&point| &G3_XXS.points()[usize::from(point)]);
                decode_signed(scale, levels, even_signs((word >> (7 * i)) as u8), out);
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

impl BlockIq3Xxs {
    fn pack(fitted: Fitted<SignedCode>) -> Self {
        let groups = fitted.codes.as_chunks::<4>().0;
        BlockIq3Xxs {
            scale: fitted.d.to_bits().into(),
            points: std::array::from_fn(|g| group_points(&groups[g]).map(|point| point as u8)),
            signs_and_scale: std::array::from_fn(|g| pack_signs(fitted.scales[g], &groups[g]).into()),
        }
    }
}

impl Block for BlockIq3S {
    const DTYPE: DType = DType::IQ3_S;

    fn decode(&self, out: &mut [f32]) {
        let block_scale = f16::from_bits(self.scale.get()).to_f32();
        for (g, out) in out.chunks_exact_mut(32).take(self.signs.len()).enumerate() {
            let scale = block_scale * f32::from(1 + 2 * scale_code(&self.scales, g));
            let point = |k: usize| {
                let high = self.points_high[g] >> k & 1;
                &G3_S.points()[usize::from(self.points_low[g][k]) | usize::from(high) << 8]
            };
            for (i, (&signs, out)) in self.signs[g].iter().zip(out.chunks_exact_mut(8)).enumerate() {
                decode_signed(scale, point(2 * i).iter().chain(point(2 * i + 1)), signs, out);
            }
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
            scale: fitted.d.to_bits().into(),
            points_low: std::array::from_fn(|g| group_points(&groups[g]).map(|point| point as u8)),
            points_high: std::array::from_fn(|g| group_points(&groups[g]).iter().rev().fold(0, high)),
            signs: std::array::from_fn(|g| groups[g].map(|code| code.signs)),
            scales: pack_scales(&fitted.scales),
        }
    }
}
