//! `f32` to and from the two 16-bit floats, one number at a time or a slice at a time.
//!
//! Invariant: rounding is to nearest, ties to even, and every NaN has one outcome on every machine: as f16 it becomes
//! the quiet NaN without payload, as bf16 it keeps its upper half and is made quiet. Hardware conversions keep NaN
//! payloads, which is why they are not used alone.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// An f16 as blocks store it: little-endian, at any address.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout,
)]
#[repr(transparent)]
pub struct StoredF16(U16);

impl StoredF16 {
    /// Rounds to f16.
    #[inline(always)]
    pub fn new(value: f32) -> Self {
        Self(U16::new(to_f16(value).to_bits()))
    }

    /// The bits of the f16.
    #[inline(always)]
    pub fn bits(self) -> u16 {
        self.0.get()
    }

    /// The exact value.
    #[inline(always)]
    pub fn get(self) -> f32 {
        from_f16(f16::from_bits(self.0.get()))
    }
}

/// Rounds to f16; magnitudes from 65520 become infinite.
///
/// Without branches or calls, as is [`from_f16`]: compilers make vectors of it for any instruction set, and a call per number
/// takes longer than the arithmetic around it.
#[inline(always)]
pub fn to_f16(value: f32) -> f16 {
    const INFINITE: u32 = 143 << 23;
    const NORMAL: u32 = 113 << 23;
    let bits = value.to_bits();
    let (sign, magnitude) = (bits >> 16 & 0x8000, bits & 0x7FFF_FFFF);
    // The exponent changes its origin; half a unit, or just under it when the kept part is even, rounds. The carry may run
    // up to infinity, as it should.
    let normal = (magnitude.wrapping_sub(112 << 23).wrapping_add(0xFFF + (magnitude >> 13 & 1))) >> 13;
    // Adding 0.5 puts the last bit of a subnormal f16 at the last bit of the sum, and rounds.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let finite = if magnitude < NORMAL { subnormal } else { normal };
    let finite = if magnitude >= INFINITE { 0x7C00 } else { finite };
    let rounded = if magnitude > 0x7F80_0000 { 0x7E00 } else { finite };
    f16::from_bits((sign | rounded) as u16)
}

/// The exact value; a NaN keeps its payload.
#[inline(always)]
pub fn from_f16(value: f16) -> f32 {
    let bits = u32::from(value.to_bits());
    let (sign, magnitude) = ((bits & 0x8000) << 16, (bits & 0x7FFF) << 13);
    // With the exponent of f16 read as that of f32, numbers are too small by 2^112; multiplying puts that right for
    // subnormal ones too.
    let scaled = (f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23)).to_bits();
    let special = magnitude | 0x7F80_0000;
    f32::from_bits(sign | if magnitude >= 31 << 23 { special } else { scaled })
}

/// Rounds to bf16.
pub fn to_bf16(value: f32) -> bf16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return bf16::from_bits((bits >> 16) as u16 | 0x0040);
    }
    // Half a unit, or just under it when the kept part is even; the carry may run up to infinity, as it should.
    let rounded = bits + 0x7FFF + (bits >> 16 & 1);
    bf16::from_bits((rounded >> 16) as u16)
}

/// The exact value; a NaN keeps its payload.
pub fn from_bf16(value: bf16) -> f32 {
    f32::from_bits(u32::from(value.to_bits()) << 16)
}

fn plain_nan(value: f16) -> f16 {
    if value.is_nan() { f16::from_bits(value.to_bits() & 0x8000 | 0x7E00) } else { value }
}

/// [`to_f16`] for every value, with the processor's instructions where it has them.
///
/// # Panics
///
/// When the slices differ in length.
pub fn to_f16_slice(values: &[f32], out: &mut [f16]) {
    out.convert_from_f32_slice(values);
    for value in out {
        *value = plain_nan(*value);
    }
}

/// [`to_bf16`] for every value.
///
/// # Panics
///
/// When the slices differ in length.
pub fn to_bf16_slice(values: &[f32], out: &mut [bf16]) {
    assert_eq!(values.len(), out.len(), "source and destination differ in length");
    for (value, out) in values.iter().zip(out) {
        *out = to_bf16(*value);
    }
}

/// The exact values of f16 numbers, with the processor's instructions where it has them.
///
/// # Panics
///
/// When the slices differ in length.
pub fn from_f16_slice(values: &[f16], out: &mut [f32]) {
    values.convert_to_f32_slice(out);
}

/// [`from_bf16`] for every value.
///
/// # Panics
///
/// When the slices differ in length.
pub fn from_bf16_slice(values: &[bf16], out: &mut [f32]) {
    assert_eq!(values.len(), out.len(), "source and destination differ in length");
    for (value, out) in values.iter().zip(out) {
        *out = from_bf16(*value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_is_widened_exactly() {
        for bits in 0..=u16::MAX {
            let (found, wanted) = (from_f16(f16::from_bits(bits)), f16::from_bits(bits).to_f32());
            assert!(
                found.to_bits() == wanted.to_bits() || found.is_nan() && wanted.is_nan(),
                "{bits:#06x}: {found:e}, not {wanted:e}"
            );
        }
    }

    #[test]
    fn rounding_to_f16_is_that_of_the_library() {
        // Around every f16 and around the middle between two of them, then numbers from everywhere.
        let near = |bits: u32| (bits.saturating_sub(3)..=bits + 3).map(f32::from_bits);
        let halves = (0..0x7C01u16).map(|bits| f16::from_bits(bits).to_f32().to_bits());
        let mut values: Vec<f32> = halves.flat_map(|bits| near(bits).chain(near(bits + 0x1000))).collect();
        values.extend((0..40u32).flat_map(|shift| near((1 << 30) >> shift.min(30))));
        values.extend((0..200_000u32).map(|i| f32::from_bits(i.wrapping_mul(0x9E37_79B9))));
        values.extend([f32::NAN, f32::INFINITY, 65519.99, 65520.0, f32::MAX, f32::MIN_POSITIVE]);
        for value in values.iter().flat_map(|value| [*value, -value]) {
            let wanted = plain_nan(f16::from_f32(value));
            assert_eq!(to_f16(value).to_bits(), wanted.to_bits(), "{value:e}");
        }
    }

    #[test]
    fn every_f16_survives_the_way_through_f32() {
        for bits in 0..=u16::MAX {
            let value = f16::from_bits(bits);
            let back = to_f16(value.to_f32()).to_bits();
            let expected = if value.is_nan() { bits & 0x8000 | 0x7E00 } else { bits };
            assert_eq!(back, expected, "{bits:#06x}");
        }
    }

    #[test]
    fn every_bf16_survives_the_way_through_f32() {
        for bits in 0..=u16::MAX {
            let value = from_bf16(bf16::from_bits(bits));
            let quiet = if value.is_nan() { 0x0040 } else { 0 };
            assert_eq!(to_bf16(value).to_bits(), bits | quiet, "{bits:#06x}");
        }
    }

    #[test]
    fn ties_go_to_the_even_pattern() {
        for (value, bits) in [(1.0 + 0.5 / 1024.0, 0x3C00), (1.0 + 1.5 / 1024.0, 0x3C02), (65520.0, 0x7C00)] {
            assert_eq!(to_f16(value).to_bits(), bits, "{value}");
        }
        for (bits, rounded) in [(0x3F80_8000, 0x3F80), (0x3F81_8000, 0x3F82), (0x7F7F_8000, 0x7F80)] {
            assert_eq!(to_bf16(f32::from_bits(bits)).to_bits(), rounded, "{bits:#x}");
        }
    }

    #[test]
    fn slices_and_single_numbers_agree() {
        let values: Vec<f32> = (0..1000u32).map(|i| f32::from_bits(i.wrapping_mul(0x9E37_79B9))).collect();
        let mut halves = vec![f16::ZERO; values.len()];
        to_f16_slice(&values, &mut halves);
        let mut brains = vec![bf16::ZERO; values.len()];
        to_bf16_slice(&values, &mut brains);
        for (i, value) in values.iter().enumerate() {
            assert_eq!(halves[i].to_bits(), to_f16(*value).to_bits(), "{value}");
            assert_eq!(brains[i].to_bits(), to_bf16(*value).to_bits(), "{value}");
        }
    }
}
