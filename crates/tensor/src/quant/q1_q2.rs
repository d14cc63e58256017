//! Q1_0 and Q2_0: signs, and steps of -1 to 2, times one scale.
//!
//! Invariant: element `e` is the field `e % n` of byte `e / n`, lowest bits first, where `n` fields fit a byte.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::float::StoredF16;
use super::scan::{inverse, largest_magnitude, round_away};
use super::{Block, Encode};
use crate::dtype::DType;

/// `value = scale` where the bit is set, `-scale` where it is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockQ1_0 {
    /// Mean magnitude of the values.
    pub scale: StoredF16,
    /// Bit `e % 8` of byte `e / 8` belongs to element `e`.
    pub bits: [u8; 16],
}

const _: () = assert!(size_of::<BlockQ1_0>() == DType::Q1_0.block_bytes());

/// `value = scale * (code - 1)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockQ2_0 {
    /// Largest magnitude of the values, if this crate made the block.
    pub scale: StoredF16,
    /// Bits `2 * (e % 4)` and up of byte `e / 4` belong to element `e`.
    pub crumbs: [u8; 16],
}

const _: () = assert!(size_of::<BlockQ2_0>() == DType::Q2_0.block_bytes());

impl Block for BlockQ1_0 {
    const DTYPE: DType = DType::Q1_0;

    fn decode(&self, out: &mut [f32]) {
        let scale = self.scale.get();
        for (out, byte) in out.chunks_exact_mut(8).zip(self.bits) {
            for (bit, out) in out.iter_mut().enumerate() {
                *out = if byte >> bit & 1 == 1 { scale } else { -scale };
            }
        }
    }
}

impl Encode for BlockQ1_0 {
    fn encode(values: &[f32]) -> Self {
        let sum = values.iter().fold(0.0, |sum, value| sum + value.abs());
        let mut bits = [0; 16];
        for (byte, values) in bits.iter_mut().zip(values.chunks_exact(8)) {
            for (bit, value) in values.iter().enumerate() {
                *byte |= u8::from(*value >= 0.0) << bit;
            }
        }
        Self { scale: StoredF16::new(sum / values.len() as f32), bits }
    }
}

impl Block for BlockQ2_0 {
    const DTYPE: DType = DType::Q2_0;

    fn decode(&self, out: &mut [f32]) {
        let scale = self.scale.get();
        for (out, byte) in out.chunks_exact_mut(4).zip(self.crumbs) {
            for (lane, out) in out.iter_mut().enumerate() {
                *out = f32::from((byte >> (2 * lane) & 3) as i8 - 1) * scale;
            }
        }
    }
}

impl Encode for BlockQ2_0 {
    fn encode(values: &[f32]) -> Self {
        let scale = largest_magnitude(values);
        let inverse = inverse(scale);
        let mut crumbs = [0; 16];
        for (byte, values) in crumbs.iter_mut().zip(values.chunks_exact(4)) {
            for (lane, value) in values.iter().enumerate() {
                *byte |= ((round_away(value * inverse) + 1).clamp(0, 3) as u8) << (2 * lane);
            }
        }
        Self { scale: StoredF16::new(scale), crumbs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_survive_and_zeros_count_as_positive() {
        let mut values = [1.0; 128];
        values[5] = -1.0;
        values[9] = -0.0;
        let block = BlockQ1_0::encode(&values);
        assert_eq!(block.bits[..2], [!(1 << 5), 0xFF]);
    }

    #[test]
    fn code_three_is_twice_the_scale() {
        let mut out = [0.0; 64];
        BlockQ2_0 { scale: StoredF16::new(0.5), crumbs: [0b11_10_01_00; 16] }.decode(&mut out);
        assert_eq!(out[..4], [-0.5, 0.0, 0.5, 1.0]);
    }
}
