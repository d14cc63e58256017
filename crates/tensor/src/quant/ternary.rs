//! TQ1_0 and TQ2_0: -1, 0 or 1 times one scale per 256 values, five digits or four codes to a byte.
//!
//! Invariant: a digit is the value plus one. TQ1_0 stores `v` (the digits as one base-3 number, first digit highest)
//! as `ceil(v * 256 / 243)`, so that multiplying by 3 carries one digit after the other out of the byte.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::float::StoredF16;
use super::pack::{pack_crumbs, unpack_crumbs};
use super::scan::{inverse, largest_magnitude, round_away};
use super::{Block, Encode};
use crate::dtype::DType;

/// `value = scale * (digit - 1)`, five base-3 digits to a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockTq1_0 {
    /// Elements 0 to 239: see `RUNS`.
    pub digits: [u8; 48],
    /// Elements 240 to 255, four to a byte.
    pub last_digits: [u8; 4],
    /// Magnitude of the values that are not zero.
    pub scale: StoredF16,
}

const _: () = assert!(size_of::<BlockTq1_0>() == DType::TQ1_0.block_bytes());

/// `value = scale * (code - 1)`, two bits each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockTq2_0 {
    /// In each run of 128 elements, byte `i` holds elements `i`, `i + 32`, `i + 64` and `i + 96`, lowest bits first.
    pub crumbs: [u8; 64],
    /// Magnitude of the values that are not zero.
    pub scale: StoredF16,
}

const _: () = assert!(size_of::<BlockTq2_0>() == DType::TQ2_0.block_bytes());

/// Runs of TQ1_0 as (bytes, digits in each): byte `i` of a run holds elements `i`, `i + bytes`, `i + 2 * bytes`, ...
const RUNS: [(usize, usize); 3] = [(32, 5), (16, 5), (4, 4)];

fn scale_and_digits(values: &[f32]) -> (StoredF16, [u8; 256]) {
    let scale = largest_magnitude(values);
    let inverse = inverse(scale);
    (StoredF16::new(scale), std::array::from_fn(|e| (round_away(values[e] * inverse) + 1) as u8))
}

impl Block for BlockTq1_0 {
    const DTYPE: DType = DType::TQ1_0;

    fn decode(&self, out: &mut [f32]) {
        let scale = self.scale.get();
        let (long, short) = self.digits.split_at(32);
        let (out_long, rest) = out.split_at_mut(160);
        let (out_short, out_last) = rest.split_at_mut(80);
        for (bytes, out) in [(long, out_long), (short, out_short), (&self.last_digits, out_last)] {
            let mut power = 1u8;
            for out in out.chunks_exact_mut(bytes.len()) {
                for (out, byte) in out.iter_mut().zip(bytes) {
                    let digit = (u16::from(byte.wrapping_mul(power)) * 3) >> 8;
                    *out = f32::from(digit as i8 - 1) * scale;
                }
                power = power.wrapping_mul(3);
            }
        }
    }
}

impl Encode for BlockTq1_0 {
    fn encode(values: &[f32]) -> Self {
        let (scale, digits) = scale_and_digits(values);
        let mut bytes = [0; 52];
        let (mut element, mut byte) = (0, 0);
        for (len, count) in RUNS {
            for i in 0..len {
                let number = (0..5).fold(0u16, |number, n| {
                    number * 3 + if n < count { u16::from(digits[element + n * len + i]) } else { 0 }
                });
                bytes[byte + i] = (number * 256).div_ceil(243) as u8;
            }
            element += len * count;
            byte += len;
        }
        let (digits, last_digits) = bytes.split_at(48);
        Self {
            digits: std::array::from_fn(|i| digits[i]),
            last_digits: std::array::from_fn(|i| last_digits[i]),
            scale,
        }
    }
}

impl Block for BlockTq2_0 {
    const DTYPE: DType = DType::TQ2_0;

    fn decode(&self, out: &mut [f32]) {
        let scale = self.scale.get();
        for (out, code) in out.iter_mut().zip(unpack_crumbs(&self.crumbs)) {
            *out = f32::from(code as i8 - 1) * scale;
        }
    }
}

impl Encode for BlockTq2_0 {
    fn encode(values: &[f32]) -> Self {
        let (scale, digits) = scale_and_digits(values);
        Self { crumbs: pack_crumbs(&digits), scale }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ternary_values_are_exact() {
        let values: [f32; 256] = std::array::from_fn(|e| (e * e % 7 % 3) as f32 * 0.5 - 0.5);
        for (name, decode) in [
            ("tq1_0", (|v, out| BlockTq1_0::encode(v).decode(out)) as fn(&[f32], &mut [f32])),
            ("tq2_0", |v, out| BlockTq2_0::encode(v).decode(out)),
        ] {
            let mut out = [0.0; 256];
            decode(&values, &mut out);
            assert_eq!(out, values, "{name}");
        }
    }
}
