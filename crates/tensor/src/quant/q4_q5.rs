//! Q4_0, Q4_1, Q5_0, Q5_1: 32 values that share one scale, and in the `_1` formats one offset.
//!
//! Invariant: a code of 4 bits is a nibble; the fifth bit of a 5-bit code is in `high`, bit `e` for element `e`.

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::float::StoredF16;
use super::pack::{pack_nibbles, unpack_nibbles};
use super::scan::{first_extreme, inverse, range};
use super::search::{AffineSearch, affine, balanced, symmetric};
use super::{Block, Encode, EncodeWeighted, Importance};
use crate::dtype::DType;

const LEN: usize = 32;

/// `value = scale * (code - 8)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockQ4_0 {
    /// Step between codes.
    pub scale: StoredF16,
    /// Byte `i` holds elements `i` (low) and `i + 16` (high).
    pub nibbles: [u8; 16],
}

const _: () = assert!(size_of::<BlockQ4_0>() == DType::Q4_0.block_bytes());

/// `value = scale * code + min`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockQ4_1 {
    /// Step between codes.
    pub scale: StoredF16,
    /// The value of code 0.
    pub min: StoredF16,
    /// Byte `i` holds elements `i` (low) and `i + 16` (high).
    pub nibbles: [u8; 16],
}

const _: () = assert!(size_of::<BlockQ4_1>() == DType::Q4_1.block_bytes());

/// `value = scale * (code - 16)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockQ5_0 {
    /// Step between codes.
    pub scale: StoredF16,
    /// Bit `e` is bit 4 of the code of element `e`.
    pub high: U32,
    /// Byte `i` holds the low bits of elements `i` (low) and `i + 16` (high).
    pub nibbles: [u8; 16],
}

const _: () = assert!(size_of::<BlockQ5_0>() == DType::Q5_0.block_bytes());

/// `value = scale * code + min`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockQ5_1 {
    /// Step between codes.
    pub scale: StoredF16,
    /// The value of code 0.
    pub min: StoredF16,
    /// Bit `e` is bit 4 of the code of element `e`.
    pub high: U32,
    /// Byte `i` holds the low bits of elements `i` (low) and `i + 16` (high).
    pub nibbles: [u8; 16],
}

const _: () = assert!(size_of::<BlockQ5_1>() == DType::Q5_1.block_bytes());

/// Scale and codes that put the extreme value on code 0, so that the side it is on gets the extra code.
fn centred(values: &[f32], half: u8) -> (f32, [u8; LEN]) {
    let half = f32::from(half);
    let scale = first_extreme(values) / -half;
    let inverse = inverse(scale);
    let top = half * 2.0 - 1.0;
    (scale, std::array::from_fn(|e| (values[e] * inverse + (half + 0.5)).min(top) as u8))
}

/// Scale, offset and codes that put the smallest value on code 0 and the largest on `top`.
fn spanned(values: &[f32], top: u8) -> (f32, f32, [u8; LEN]) {
    let top = f32::from(top);
    let (min, max) = range(values);
    let scale = (max - min) / top;
    let inverse = inverse(scale);
    (scale, min, std::array::from_fn(|e| ((values[e] - min) * inverse + 0.5).min(top) as u8))
}

fn centred_search(values: &[f32], importance: Importance<'_>, half: u8) -> (f32, [u8; LEN]) {
    let weights: [f32; LEN] = balanced(values, importance.weights, importance.row_mean_square);
    let mut codes = [0; LEN];
    (symmetric(values, &weights, half, &mut codes), codes)
}

fn spanned_search(values: &[f32], importance: Importance<'_>, top: u8) -> (f32, f32, [u8; LEN]) {
    let weights: [f32; LEN] = balanced(values, importance.weights, importance.row_mean_square);
    let mut codes = [0; LEN];
    let fitted = affine(values, &weights, AffineSearch::weighted(top), &mut codes);
    (fitted.scale, -fitted.min, codes)
}

fn low_nibbles(codes: &[u8; LEN]) -> [u8; 16] {
    let mut nibbles = [0; 16];
    pack_nibbles::<16>(&codes.map(|code| code & 15), &mut nibbles);
    nibbles
}

fn high_bits(codes: &[u8; LEN]) -> U32 {
    U32::new((0..LEN).fold(0, |bits, e| bits | u32::from(codes[e] >> 4) << e))
}

fn codes_of_nibbles(nibbles: &[u8; 16]) -> [u8; LEN] {
    let mut codes = [0; LEN];
    unpack_nibbles::<16>(nibbles, &mut codes);
    codes
}

fn codes_with_high(nibbles: &[u8; 16], high: U32) -> [u8; LEN] {
    let (low, high) = (codes_of_nibbles(nibbles), high.get());
    std::array::from_fn(|e| low[e] | ((high >> e & 1) << 4) as u8)
}

fn decode_centred(codes: &[u8; LEN], scale: StoredF16, half: i32, out: &mut [f32]) {
    let scale = scale.get();
    for (out, &code) in out.iter_mut().zip(codes) {
        *out = (i32::from(code) - half) as f32 * scale;
    }
}

fn decode_spanned(codes: &[u8; LEN], scale: StoredF16, min: StoredF16, out: &mut [f32]) {
    let (scale, min) = (scale.get(), min.get());
    for (out, &code) in out.iter_mut().zip(codes) {
        *out = f32::from(code) * scale + min;
    }
}

impl BlockQ4_0 {
    fn new((scale, codes): (f32, [u8; LEN])) -> Self {
        Self { scale: StoredF16::new(scale), nibbles: low_nibbles(&codes) }
    }
}

impl Block for BlockQ4_0 {
    const DTYPE: DType = DType::Q4_0;

    fn decode(&self, out: &mut [f32]) {
        decode_centred(&codes_of_nibbles(&self.nibbles), self.scale, 8, out);
    }
}

impl Encode for BlockQ4_0 {
    fn encode(values: &[f32]) -> Self {
        Self::new(centred(values, 8))
    }
}

impl EncodeWeighted for BlockQ4_0 {
    fn encode_weighted(values: &[f32], importance: Importance<'_>) -> Self {
        Self::new(centred_search(values, importance, 8))
    }
}

impl BlockQ4_1 {
    fn new((scale, min, codes): (f32, f32, [u8; LEN])) -> Self {
        Self { scale: StoredF16::new(scale), min: StoredF16::new(min), nibbles: low_nibbles(&codes) }
    }
}

impl Block for BlockQ4_1 {
    const DTYPE: DType = DType::Q4_1;

    fn decode(&self, out: &mut [f32]) {
        decode_spanned(&codes_of_nibbles(&self.nibbles), self.scale, self.min, out);
    }
}

impl Encode for BlockQ4_1 {
    fn encode(values: &[f32]) -> Self {
        Self::new(spanned(values, 15))
    }
}

impl EncodeWeighted for BlockQ4_1 {
    fn encode_weighted(values: &[f32], importance: Importance<'_>) -> Self {
        Self::new(spanned_search(values, importance, 15))
    }
}

impl BlockQ5_0 {
    fn new((scale, codes): (f32, [u8; LEN])) -> Self {
        Self { scale: StoredF16::new(scale), high: high_bits(&codes), nibbles: low_nibbles(&codes) }
    }
}

impl Block for BlockQ5_0 {
    const DTYPE: DType = DType::Q5_0;

    fn decode(&self, out: &mut [f32]) {
        decode_centred(&codes_with_high(&self.nibbles, self.high), self.scale, 16, out);
    }
}

impl Encode for BlockQ5_0 {
    fn encode(values: &[f32]) -> Self {
        Self::new(centred(values, 16))
    }
}

impl EncodeWeighted for BlockQ5_0 {
    fn encode_weighted(values: &[f32], importance: Importance<'_>) -> Self {
        Self::new(centred_search(values, importance, 16))
    }
}

impl BlockQ5_1 {
    fn new((scale, min, codes): (f32, f32, [u8; LEN])) -> Self {
        Self {
            scale: StoredF16::new(scale),
            min: StoredF16::new(min),
            high: high_bits(&codes),
            nibbles: low_nibbles(&codes),
        }
    }
}

impl Block for BlockQ5_1 {
    const DTYPE: DType = DType::Q5_1;

    fn decode(&self, out: &mut [f32]) {
        decode_spanned(&codes_with_high(&self.nibbles, self.high), self.scale, self.min, out);
    }
}

impl Encode for BlockQ5_1 {
    fn encode(values: &[f32]) -> Self {
        Self::new(spanned(values, 31))
    }
}

impl EncodeWeighted for BlockQ5_1 {
    fn encode_weighted(values: &[f32], importance: Importance<'_>) -> Self {
        Self::new(spanned_search(values, importance, 31))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded<B: Block>(block: &B) -> [f32; LEN] {
        let mut out = [0.0; LEN];
        block.decode(&mut out);
        out
    }

    #[test]
    fn the_extreme_value_is_exact_in_centred_formats() {
        let mut values = [0.25; LEN];
        values[7] = -4.0;
        assert_eq!(decoded(&BlockQ4_0::encode(&values))[7], -4.0);
        assert_eq!(decoded(&BlockQ5_0::encode(&values))[7], -4.0);
    }

    #[test]
    fn both_ends_are_exact_in_spanned_formats() {
        let values: [f32; LEN] = std::array::from_fn(|e| 1.0 + e as f32 / 4.0);
        let out = decoded(&BlockQ5_1::encode(&values));
        assert_eq!(out, values);
        assert_eq!(decoded(&BlockQ4_1::encode(&values))[0], 1.0);
    }

    #[test]
    fn blocks_too_small_for_a_reciprocal_are_zero() {
        let block = BlockQ4_0::encode(&[1e-40; LEN]);
        assert_eq!(block.nibbles, BlockQ4_0::encode(&[0.0; LEN]).nibbles);
        assert_eq!(decoded(&block), [0.0; LEN]);
    }
}
