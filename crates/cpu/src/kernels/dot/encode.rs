//! Rows of numbers rounded to the types that weights are multiplied with.
//!
//! The formats of 8-bit codes are made so that the value of largest magnitude gets code 127 or -127; rounding is to
//! nearest, ties to even. Every instruction set does the same operations on each value, so all make the same bytes.
//!
//! Invariant: a block with a NaN or an infinity gets codes of zero and a scale that is not finite, so that every
//! product with it is NaN. A block of zeros, or of numbers too small for a scale, is all zeros.

use half::f16;
use oxcart_tensor::quant::{BlockQ8_0, BlockQ8_1, BlockQ8K, StoredF16, to_bf16, to_f16_slice};
use zerocopy::FromBytes;

use super::Plain;
use crate::simd::Simd;

/// A magnitude as bits; they are in the order of the magnitudes, with all NaN at the end.
#[inline(always)]
fn magnitude(value: f32) -> u32 {
    value.to_bits() & 0x7FFF_FFFF
}

/// The largest magnitude; NaN if there is one.
#[inline(always)]
fn largest<const N: usize>(values: &[f32; N]) -> f32 {
    f32::from_bits(values.iter().fold(0, |largest, &value| largest.max(magnitude(value))))
}

/// What values are to be multiplied with; 0 where codes are to be 0.
#[inline(always)]
fn factor(range: f32, largest: f32) -> f32 {
    let factor = range / largest;
    if factor.is_finite() && largest.is_finite() { factor } else { 0.0 }
}

/// Codes of finite values times a factor that brings them within -127 to 127.
#[inline(always)]
fn codes<const N: usize>(values: &[f32; N], factor: f32) -> [i8; N] {
    codes_and_sum(values, factor).0
}

/// [`codes`], and their sum.
#[inline(always)]
fn codes_and_sum<const N: usize>(values: &[f32; N], factor: f32) -> ([i8; N], i32) {
    // Here neighbouring numbers are 1 apart, and the lowest bits of a number are the integer it is rounded to.
    const UNIT_STEP: f32 = 12_582_912.0;
    let (mut codes, mut sum) = ([0; N], 0i32);
    if factor != 0.0 {
        for (code, value) in codes.iter_mut().zip(values) {
            let integer = (value * factor + UNIT_STEP).to_bits().wrapping_sub(UNIT_STEP.to_bits()) as i32;
            *code = integer as i8;
            sum = sum.wrapping_add(integer);
        }
    }
    (codes, sum)
}

/// A format of activations.
pub(super) trait Activation<const N: usize>: Plain {
    fn encode(values: &[f32; N]) -> Self;
}

impl Activation<32> for BlockQ8_0 {
    #[inline(always)]
    fn encode(values: &[f32; 32]) -> Self {
        let largest = largest(values);
        BlockQ8_0 { scale: StoredF16::new(largest / 127.0), codes: codes(values, factor(127.0, largest)) }
    }
}

impl Activation<32> for BlockQ8_1 {
    #[inline(always)]
    fn encode(values: &[f32; 32]) -> Self {
        let largest = largest(values);
        let scale = largest / 127.0;
        let (codes, sum) = codes_and_sum(values, factor(127.0, largest));
        BlockQ8_1 { scale: StoredF16::new(scale), sum: StoredF16::new(sum as f32 * scale), codes }
    }
}

/// Whether the first value of largest magnitude is negative.
#[inline(always)]
fn extreme_is_negative(values: &[f32; 256], largest: f32) -> bool {
    let any = |extreme: f32| values.iter().fold(false, |any, &value| any | (value == extreme));
    match (any(largest), any(-largest)) {
        (true, true) => values.iter().find(|value| value.abs() == largest).is_some_and(|value| *value < 0.0),
        (_, negative) => negative,
    }
}

impl Activation<256> for BlockQ8K {
    #[inline(always)]
    fn encode(values: &[f32; 256]) -> Self {
        let largest = largest(values);
        let range = if extreme_is_negative(values, largest) { 127.0 } else { -127.0 };
        let factor = factor(range, largest);
        let codes = codes(values, factor);
        let mut sums = [0i16; 16];
        for (sum, codes) in sums.iter_mut().zip(codes.as_chunks::<16>().0) {
            *sum = codes.iter().map(|&code| i16::from(code)).sum();
        }
        let scale = if !largest.is_finite() {
            f32::NAN
        } else if factor == 0.0 {
            0.0
        } else {
            1.0 / factor
        };
        BlockQ8K { scale: scale.into(), codes, sums: sums.map(Into::into) }
    }
}

/// Encodes a row in blocks.
#[inline(always)]
fn rows<A: Activation<N>, const N: usize>(values: &[f32], out: &mut [u8]) {
    let out = <[A]>::mut_from_bytes(out).unwrap_or_else(|_| unreachable!("rows are whole blocks"));
    for (values, out) in values.as_chunks::<N>().0.iter().zip(out) {
        *out = A::encode(values);
    }
}

#[inline(always)]
pub(super) fn rows32<S: Simd, A: Activation<32>>(_simd: S, values: &[f32], out: &mut [u8]) {
    rows::<A, 32>(values, out);
}

#[inline(always)]
pub(super) fn rows256<S: Simd, A: Activation<256>>(_simd: S, values: &[f32], out: &mut [u8]) {
    rows::<A, 256>(values, out);
}

#[inline(always)]
pub(super) fn f32s<S: Simd>(_simd: S, values: &[f32], out: &mut [u8]) {
    for (value, out) in values.iter().zip(out.as_chunks_mut().0) {
        *out = value.to_le_bytes();
    }
}

#[inline(always)]
pub(super) fn f16s<S: Simd>(_simd: S, values: &[f32], out: &mut [u8]) {
    const AT_ONCE: usize = 256;
    // The bytes may be at any address; numbers may not.
    let mut halves = [f16::ZERO; AT_ONCE];
    for (values, out) in values.chunks(AT_ONCE).zip(out.chunks_mut(2 * AT_ONCE)) {
        let halves = &mut halves[..values.len()];
        to_f16_slice(values, halves);
        for (half, out) in halves.iter().zip(out.as_chunks_mut().0) {
            *out = half.to_bits().to_le_bytes();
        }
    }
}

#[inline(always)]
pub(super) fn bf16s<S: Simd>(_simd: S, values: &[f32], out: &mut [u8]) {
    for (value, out) in values.iter().zip(out.as_chunks_mut().0) {
        *out = to_bf16(*value).to_bits().to_le_bytes();
    }
}
