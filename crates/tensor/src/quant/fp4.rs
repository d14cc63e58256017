//! MXFP4 and NVFP4: 4-bit floats times a scale that is itself a one-byte float.
//!
//! Invariant: the code table holds doubled values, so that it is made of integers; the scales are halved to match.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::pack::{pack_nibbles, unpack_nibbles};
use super::scan::largest_magnitude;
use super::{Block, Encode};
use crate::dtype::DType;

/// Twice the value of each 4-bit float: sign, two bits of exponent, one of mantissa.
pub const FP4_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// 32 4-bit floats times a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockMxfp4 {
    /// The scale as in [`half_e8m0`].
    pub exponent: u8,
    /// Byte `i` holds elements `i` (low) and `i + 16` (high), as indices of [`FP4_DOUBLED`].
    pub nibbles: [u8; 16],
}

const _: () = assert!(size_of::<BlockMxfp4>() == DType::MXFP4.block_bytes());

/// Four groups of 16 4-bit floats, each times an 8-bit float.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockNvfp4 {
    /// One scale per group, as in [`half_ue4m3`].
    pub scales: [u8; 4],
    /// In each group of 16, byte `i` holds elements `i` (low) and `i + 8` (high).
    pub nibbles: [u8; 32],
}

const _: () = assert!(size_of::<BlockNvfp4>() == DType::NVFP4.block_bytes());

/// Half of the power of two that an E8M0 byte stands for: 2^(byte - 128).
///
/// 255, which the standard calls NaN, is a number here; [`validate_row`](super::validate_row) rejects it.
pub const fn half_e8m0(byte: u8) -> f32 {
    f32::from_bits(match byte {
        0 => 1 << 21, // 2^-128 and 2^-127 are subnormal
        1 => 1 << 22,
        _ => (byte as u32 - 1) << 23,
    })
}

/// Half of the value of an unsigned E4M3 byte.
///
/// 0x7F, which the standard calls NaN, is 0. The top bit is ignored, except that 0xFF counts as 0x7F without the rule.
pub fn half_ue4m3(byte: u8) -> f32 {
    if byte == 0 || byte == 0x7F {
        return 0.0;
    }
    let (exponent, mantissa) = (u32::from(byte >> 3 & 15), f32::from(byte & 7));
    if exponent == 0 {
        mantissa * f32::from_bits((127 - 10) << 23)
    } else {
        (1.0 + mantissa / 8.0) * f32::from_bits((127 - 8 + exponent) << 23)
    }
}

/// Rounds to the nearest E4M3 number as the reference does: ties up, and nothing above 240 but the largest, 448.
fn to_ue4m3(value: f32) -> u8 {
    if value.is_nan() || value <= 0.0 {
        return 0;
    }
    let bits = value.min(448.0).to_bits();
    let exponent = (bits >> 23) as i32 - 127 + 7;
    if exponent <= 0 {
        return (value * 512.0 + 0.5).min(7.0) as u8;
    }
    // Exponent and top three mantissa bits are adjacent, so a carry out of the mantissa lands where it belongs.
    let rounded = (exponent as u32) << 3 | bits >> 20 & 7;
    let rounded = rounded + (bits >> 19 & 1);
    if rounded >= 15 << 3 { 0x7E } else { rounded as u8 }
}

/// The first code whose value is nearest.
fn nearest(value: f32, scale: f32) -> u8 {
    let (mut best, mut least) = (0, f32::INFINITY);
    for (code, &doubled) in FP4_DOUBLED.iter().enumerate() {
        let distance = (f32::from(doubled) * scale - value).abs();
        if distance < least {
            (best, least) = (code, distance);
        }
    }
    best as u8
}

fn decode_group(codes: &[u8], scale: f32, out: &mut [f32]) {
    for (out, &code) in out.iter_mut().zip(codes) {
        *out = f32::from(FP4_DOUBLED[usize::from(code)]) * scale;
    }
}

impl Block for BlockMxfp4 {
    const DTYPE: DType = DType::MXFP4;

    fn decode(&self, out: &mut [f32]) {
        let mut codes = [0; 32];
        unpack_nibbles::<16>(&self.nibbles, &mut codes);
        decode_group(&codes, half_e8m0(self.exponent), out);
    }
}

impl Encode for BlockMxfp4 {
    fn encode(values: &[f32]) -> Self {
        /// Below this the exponent would not fit its byte.
        const SMALLEST: f32 = f32::from_bits(2 << 23); // 2^-125
        let largest = largest_magnitude(values);
        if largest < SMALLEST {
            return Self { exponent: 0, nibbles: [0; 16] };
        }
        // The logarithm is rounded to f32 before it is cut, so a value just below a power of two may count as one.
        let log = f64::from(largest).log2() as f32;
        let exponent = (log.floor() as i32 - 2 + 127) as u8;
        let scale = half_e8m0(exponent);
        let codes: [u8; 32] = std::array::from_fn(|e| nearest(values[e], scale));
        let mut nibbles = [0; 16];
        pack_nibbles::<16>(&codes, &mut nibbles);
        Self { exponent, nibbles }
    }
}

impl Block for BlockNvfp4 {
    const DTYPE: DType = DType::NVFP4;

    fn decode(&self, out: &mut [f32]) {
        let mut codes = [0; 64];
        unpack_nibbles::<8>(&self.nibbles, &mut codes);
        for ((codes, scale), out) in codes.chunks_exact(16).zip(self.scales).zip(out.chunks_exact_mut(16)) {
            decode_group(codes, half_ue4m3(scale), out);
        }
    }
}

impl Encode for BlockNvfp4 {
    fn encode(values: &[f32]) -> Self {
        let scales =
            std::array::from_fn(|group| to_ue4m3(largest_magnitude(&values[16 * group..][..16]) / 6.0));
        let codes: [u8; 64] = std::array::from_fn(|e| nearest(values[e], half_ue4m3(scales[e / 16])));
        let mut nibbles = [0; 32];
        pack_nibbles::<8>(&codes, &mut nibbles);
        Self { scales, nibbles }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scale_bytes_have_their_documented_values() {
        assert_eq!(half_e8m0(128), 1.0);
        assert_eq!(half_e8m0(0), 2f32.powi(-128));
        assert_eq!(half_e8m0(255), 2f32.powi(127));
        assert_eq!(half_ue4m3(0x7E), 224.0);
        assert_eq!(half_ue4m3(0x01), 0.5 / 512.0);
        assert_eq!(half_ue4m3(0x7F), 0.0);
        assert_eq!(half_ue4m3(0xFF), 240.0);
    }

    #[test]
    fn scales_round_trip_up_to_the_gap() {
        for byte in (0..15 << 3).chain([0x7E]) {
            assert_eq!(to_ue4m3(2.0 * half_ue4m3(byte)), byte, "{byte:#x}");
        }
        assert_eq!(to_ue4m3(1e9), 0x7E);
        assert_eq!(to_ue4m3(f32::NAN), 0);
    }

    #[test]
    fn four_bit_floats_are_exact() {
        let values: [f32; 32] = std::array::from_fn(|e| f32::from(FP4_DOUBLED[e % 16]) / 2.0);
        let mut out = [0.0; 32];
        BlockMxfp4::encode(&values).decode(&mut out);
        assert_eq!(out, values);
        let values: [f32; 64] = std::array::from_fn(|e| values[e % 32]);
        let mut out = [0.0; 64];
        BlockNvfp4::encode(&values).decode(&mut out);
        assert_eq!(out, values);
    }
}
