//! Q8_0, Q8_1 and Q8_K: signed bytes that share one scale. The last two only ever hold activations: they carry sums
//! of the codes for products with formats that have an offset.
//!
//! Invariant: `sum` and `sums` say what the codes add up to, for every block made here. Blocks read from elsewhere
//! may lie; decoding does not look at the sums.

use zerocopy::little_endian::{F32, I16};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::float::StoredF16;
use super::scan::{first_extreme, inverse, largest_magnitude, ratio, round_away, round_even};
use super::{Block, Encode};
use crate::dtype::DType;

/// `value = scale * code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockQ8_0 {
    /// Step between codes.
    pub scale: StoredF16,
    /// One code per element.
    pub codes: [i8; 32],
}

const _: () = assert!(size_of::<BlockQ8_0>() == DType::Q8_0.block_bytes());

/// `value = scale * code`; for products with Q4_1 and Q5_1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockQ8_1 {
    /// Step between codes.
    pub scale: StoredF16,
    /// Sum of the codes times the step before it was rounded.
    pub sum: StoredF16,
    /// One code per element.
    pub codes: [i8; 32],
}

const _: () = assert!(size_of::<BlockQ8_1>() == DType::Q8_1.block_bytes());

/// `value = scale * code`; for products with the super-block formats.
#[derive(Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Unaligned, Immutable, KnownLayout)]
#[repr(C)]
pub struct BlockQ8K {
    /// Step between codes; negative when the extreme value is positive.
    pub scale: F32,
    /// One code per element.
    pub codes: [i8; 256],
    /// Sum of each run of 16 codes.
    pub sums: [I16; 16],
}

const _: () = assert!(size_of::<BlockQ8K>() == DType::Q8_K.block_bytes());

fn scale_and_codes(values: &[f32]) -> (f32, [i8; 32]) {
    let scale = largest_magnitude(values) / 127.0;
    let inverse = inverse(scale);
    (scale, std::array::from_fn(|e| round_away(values[e] * inverse) as i8))
}

/// What a running graph makes of the same values: the factor is rounded once, and ties go to even codes. So does the
/// reference on processors with vectors, and values with few bits, such as those of `BF16`, are often ties.
fn scale_and_codes_at_run_time(values: &[f32]) -> (f32, [i8; 32]) {
    let largest = largest_magnitude(values);
    let factor = ratio(127.0, largest);
    (largest / 127.0, std::array::from_fn(|e| round_even(values[e] * factor) as i8))
}

fn decode_scaled(codes: &[i8], scale: f32, out: &mut [f32]) {
    for (out, &code) in out.iter_mut().zip(codes) {
        *out = f32::from(code) * scale;
    }
}

impl Block for BlockQ8_0 {
    const DTYPE: DType = DType::Q8_0;

    fn decode(&self, out: &mut [f32]) {
        decode_scaled(&self.codes, self.scale.get(), out);
    }
}

impl BlockQ8_0 {
    fn new((scale, codes): (f32, [i8; 32])) -> Self {
        Self { scale: StoredF16::new(scale), codes }
    }
}

impl Encode for BlockQ8_0 {
    fn encode(values: &[f32]) -> Self {
        Self::new(scale_and_codes(values))
    }

    fn encode_at_run_time(values: &[f32]) -> Self {
        Self::new(scale_and_codes_at_run_time(values))
    }
}

impl Block for BlockQ8_1 {
    const DTYPE: DType = DType::Q8_1;

    fn decode(&self, out: &mut [f32]) {
        decode_scaled(&self.codes, self.scale.get(), out);
    }
}

impl BlockQ8_1 {
    fn new((scale, codes): (f32, [i8; 32])) -> Self {
        let sum: i32 = codes.iter().map(|&code| i32::from(code)).sum();
        Self { scale: StoredF16::new(scale), sum: StoredF16::new(sum as f32 * scale), codes }
    }
}

impl Encode for BlockQ8_1 {
    fn encode(values: &[f32]) -> Self {
        Self::new(scale_and_codes(values))
    }

    fn encode_at_run_time(values: &[f32]) -> Self {
        Self::new(scale_and_codes_at_run_time(values))
    }
}

impl BlockQ8K {
    const ZERO: Self = Self { scale: F32::ZERO, codes: [0; 256], sums: [I16::ZERO; 16] };
}

impl Block for BlockQ8K {
    const DTYPE: DType = DType::Q8_K;

    fn decode(&self, out: &mut [f32]) {
        decode_scaled(&self.codes, self.scale.get(), out);
    }
}

impl Encode for BlockQ8K {
    fn encode(values: &[f32]) -> Self {
        let inverse = ratio(-127.0, first_extreme(values));
        if inverse == 0.0 {
            return Self::ZERO;
        }
        let codes: [i8; 256] = std::array::from_fn(|e| round_even(inverse * values[e]).min(127) as i8);
        let sum = |group: usize| codes[16 * group..][..16].iter().map(|&code| i16::from(code)).sum();
        Self {
            scale: F32::new(1.0 / inverse),
            codes,
            sums: std::array::from_fn(|group| I16::new(sum(group))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_go_away_from_zero_in_files_and_to_even_codes_in_graphs() {
        let mut values = [0.0; 32];
        values[..5].copy_from_slice(&[127.0, 0.5, 1.5, 2.5, -0.5]);
        assert_eq!(BlockQ8_0::encode(&values).codes[..5], [127, 1, 2, 3, -1]);
        assert_eq!(BlockQ8_0::encode_at_run_time(&values).codes[..5], [127, 0, 2, 2, 0]);
        assert_eq!(BlockQ8_1::encode_at_run_time(&values).codes[..5], [127, 0, 2, 2, 0]);
        assert_eq!(BlockQ8_1::encode_at_run_time(&values).sum, StoredF16::new(131.0));
    }

    #[test]
    fn the_extreme_value_of_q8_k_is_code_minus_127() {
        let mut values = [0.5; 256];
        values[200] = 2.0;
        let block = BlockQ8K::encode(&values);
        assert_eq!(block.codes[200], -127);
        assert!(block.scale.get() < 0.0);
        assert_eq!(block.sums[0].get(), 16 * i16::from(block.codes[0]));
    }

    #[test]
    fn sums_of_q8_1_use_the_scale_before_rounding() {
        let values: [f32; 32] = std::array::from_fn(|e| e as f32 / 3.0);
        let block = BlockQ8_1::encode(&values);
        let sum: i32 = block.codes.iter().map(|&code| i32::from(code)).sum();
        assert_eq!(block.sum, StoredF16::new(sum as f32 * (31.0f32 / 3.0 / 127.0)));
    }

    #[test]
    fn blocks_of_zeros_have_zero_scale() {
        assert_eq!(BlockQ8K::encode(&[0.0; 256]), BlockQ8K::ZERO);
        assert_eq!(BlockQ8K::encode(&[1e-44; 256]), BlockQ8K::ZERO);
        assert_eq!(BlockQ8_0::encode(&[-0.0; 32]).scale.get(), 0.0);
    }
}
