//! Slices of f16 to and from `f32`, in integer arithmetic that the compiler turns into vectors for every instruction
//! set; a call per number or per eight would take longer than the arithmetic around it.
//!
//! Invariant: the same results as [`to_f16`](oxcart_tensor::quant::to_f16), bit for bit, and exact widening.

use half::f16;

/// Widens exactly; slices of one length.
#[inline(always)]
pub(crate) fn widen_f16(from: &[f16], to: &mut [f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        let bits = u32::from(from.to_bits());
        let (sign, magnitude) = ((bits & 0x8000) << 16, (bits & 0x7FFF) << 13);
        // With the exponent of f16 read as that of f32, numbers are too small by 2^112; multiplying puts that right for
        // subnormal ones too.
        let scaled = (f32::from_bits(magnitude) * f32::from_bits(0x7780_0000)).to_bits();
        let special = magnitude | 0x7F80_0000;
        *to = f32::from_bits(sign | if magnitude >= 0x0F80_0000 { special } else { scaled });
    }
}

/// Rounds to nearest, ties to even; slices of one length.
#[inline(always)]
pub(crate) fn narrow_f16(from: &[f32], to: &mut [f16]) {
    for (to, from) in to.iter_mut().zip(from) {
        let bits = from.to_bits();
        let (sign, magnitude) = (bits >> 16 & 0x8000, bits & 0x7FFF_FFFF);
        // The exponent changes its origin; half a unit, or just under it when the kept part is even, rounds. The carry
        // may run up to infinity, as it should.
        let normal = (magnitude.wrapping_sub(112 << 23).wrapping_add(0xFFF + (magnitude >> 13 & 1))) >> 13;
        // Adding 0.5 puts the last bit of a subnormal f16 at the last bit of the sum, and rounds.
        let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0x3F00_0000);
        let finite = if magnitude < 113 << 23 { subnormal } else { normal };
        let finite = if magnitude >= 143 << 23 { 0x7C00 } else { finite };
        let rounded = if magnitude > 0x7F80_0000 { 0x7E00 } else { finite };
        *to = f16::from_bits((sign | rounded) as u16);
    }
}

#[cfg(test)]
mod tests {
    use oxcart_tensor::quant::to_f16;

    use super::*;

    #[test]
    fn every_f16_is_widened_exactly() {
        let all: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        let mut wide = vec![0.0; all.len()];
        widen_f16(&all, &mut wide);
        for (half, wide) in all.iter().zip(wide) {
            assert!(half.to_f32().to_bits() == wide.to_bits() || half.is_nan() && wide.is_nan(), "{half:?}");
        }
    }

    #[test]
    fn rounding_is_the_same_everywhere() {
        // Around every f16 and around the middle between two of them, then numbers from everywhere.
        let near = |bits: u32| (bits.saturating_sub(3)..=bits + 3).map(f32::from_bits);
        let halves = (0..0x7C01u16).map(|bits| f16::from_bits(bits).to_f32().to_bits());
        let mut values: Vec<f32> = halves.flat_map(|bits| near(bits).chain(near(bits + 0x1000))).collect();
        values.extend((0..40u32).flat_map(|shift| near((1 << 30) >> shift.min(30))));
        values.extend((0..200_000u32).map(|i| f32::from_bits(i.wrapping_mul(0x9E37_79B9))));
        values.extend([f32::NAN, f32::INFINITY, 65519.99, 65520.0, f32::MAX, f32::MIN_POSITIVE]);
        let negative: Vec<f32> = values.iter().map(|x| -x).collect();
        for values in [values, negative] {
            let mut halves = vec![f16::ZERO; values.len()];
            narrow_f16(&values, &mut halves);
            for (value, half) in values.iter().zip(halves) {
                assert_eq!(half.to_bits(), to_f16(*value).to_bits(), "{value:e}");
            }
        }
    }
}
