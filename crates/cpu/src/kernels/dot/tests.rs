//! Every type at every level: scalar against exact sums of decoded rows, the others against scalar.

use half::f16;
use oxcart_tensor::DType;
use oxcart_tensor::quant::{
    dequantize_row, encode_row_at_run_time, from_bf16, quantize_row, to_bf16, to_f16,
};

use super::{dot, encode};
use crate::simd::Level;

/// Types that can be weights.
fn weights() -> impl Iterator<Item = (DType, DType)> {
    DType::all().filter_map(|dtype| Some((dtype, dtype.dot_partner()?)))
}

/// Random numbers, the same every time.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 ^ self.0 >> 29).wrapping_mul(0x94D0_49BB_1331_11EB) >> 20
    }

    pub fn values(&mut self, len: usize) -> Vec<f32> {
        let uniform = |bits: u64| (bits % (1 << 24)) as f32 / (1 << 23) as f32 - 1.0;
        (0..len).map(|_| uniform(self.next()) + uniform(self.next()) * uniform(self.next())).collect()
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

pub fn quantized(dtype: DType, values: &[f32]) -> Vec<u8> {
    let mut row = vec![0; dtype.row_bytes(values.len()).unwrap()];
    let importance = vec![1.0; values.len()];
    quantize_row(dtype, values, Some(&importance), &mut row).unwrap();
    row
}

pub fn encoded(partner: DType, values: &[f32], level: Level) -> Vec<u8> {
    let mut row = vec![0xAA; partner.row_bytes(values.len()).unwrap()];
    encode(partner, level).unwrap()(values, &mut row);
    row
}

/// Checks a dot product at every level against the scalar one. Sums of integers are the same everywhere, so that the
/// error is one of the last sums of numbers alone; it is measured in parts of `magnitude`.
fn check_levels(dtype: DType, row: &[u8], acts: &[u8], magnitude: f64, what: &str) {
    let expected = dot(dtype, Level::Scalar).unwrap()(row, acts);
    for level in Level::available() {
        let found = dot(dtype, level).unwrap()(row, acts);
        let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
        let error = (f64::from(found) - f64::from(expected)).abs();
        assert!(
            same || error <= 1e-6 * magnitude,
            "{dtype} on {level}, {what}, {} bytes: {found}, not {expected}",
            row.len()
        );
    }
}

/// The sum of the magnitudes of all products.
fn magnitude(dtype: DType, partner: DType, row: &[u8], acts: &[u8]) -> f64 {
    let (w, a) = (decoded(dtype, row), decoded_partner(partner, acts));
    w.iter().zip(&a).map(|(w, a)| (f64::from(*w) * a).abs()).sum()
}

#[test]
fn every_level_agrees_with_scalar_on_random_rows() {
    let mut random = Random(2);
    for (dtype, partner) in weights() {
        for len in lengths(dtype) {
            let row = quantized(dtype, &random.values(len));
            let acts = encoded(partner, &random.values(len), Level::Scalar);
            let magnitude = magnitude(dtype, partner, &row, &acts);
            check_levels(dtype, &row, &acts, magnitude, "random");
        }
    }
}

fn half_at(bytes: &[u8], at: usize) -> f64 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f64()
}

/// Activations as numbers; for Q8_1 as a multiple of the sum that the block claims to have.
fn decoded_partner(partner: DType, row: &[u8]) -> Vec<f64> {
    let codes = |block: &[u8], start: usize, scale: f64| -> Vec<f64> {
        block[start..].iter().map(|&code| f64::from(code as i8) * scale).collect()
    };
    row.chunks_exact(partner.block_bytes())
        .flat_map(|block| match partner {
            DType::F32 => vec![f64::from(f32::from_le_bytes(block.try_into().unwrap()))],
            DType::F16 => vec![half_at(block, 0)],
            DType::BF16 => {
                vec![f64::from(f32::from_bits(u32::from(block[1]) << 24 | u32::from(block[0]) << 16))]
            }
            DType::Q8_0 => codes(block, 2, half_at(block, 0)),
            DType::Q8_1 => codes(block, 4, half_at(block, 0)),
            DType::Q8_K => {
                let scale = f32::from_le_bytes(block[..4].try_into().unwrap());
                codes(&block[..260], 4, f64::from(scale))
            }
            other => panic!("{other} is no partner"),
        })
        .collect()
}

fn decoded(dtype: DType, row: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; row.len() / dtype.block_bytes() * dtype.block_len()];
    dequantize_row(dtype, row, &mut values).unwrap();
    values
}

/// Row lengths: one block, an odd number of blocks, many; for plain numbers also ones that fill no vector.
fn lengths(dtype: DType) -> Vec<usize> {
    if dtype.is_quantized() {
        [1, 2, 3, 5, 8, 17].map(|blocks| blocks * dtype.block_len()).to_vec()
    } else {
        vec![1, 7, 16, 31, 33, 64, 65, 127, 256, 1023]
    }
}

/// Checks a dot product of finite rows against the exact one; the bound is on the sum of magnitudes.
fn check_exact(dtype: DType, partner: DType, row: &[u8], acts: &[u8], bound: f64) {
    let (w, a) = (decoded(dtype, row), decoded_partner(partner, acts));
    let terms = w.iter().zip(&a).map(|(w, a)| f64::from(*w) * a);
    let (exact, magnitude) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
    let found = f64::from(dot(dtype, Level::Scalar).unwrap()(row, acts));
    let error = (found - exact).abs();
    assert!(error <= bound * magnitude, "{dtype}, {} elements: {found}, not {exact}", w.len());
}

#[test]
fn every_weight_type_has_a_dot_product_and_its_partner_an_encoder() {
    for level in Level::available() {
        for dtype in DType::all() {
            assert_eq!(dot(dtype, level).is_some(), dtype.dot_partner().is_some(), "{dtype}");
        }
        assert!(weights().all(|(_, partner)| encode(partner, level).is_some()));
        assert!(encode(DType::Q4_0, level).is_none());
    }
}

#[test]
fn scalar_agrees_with_decoded_rows() {
    let mut random = Random(1);
    for (dtype, partner) in weights() {
        for len in lengths(dtype) {
            let row = quantized(dtype, &random.values(len));
            let acts = encoded(partner, &random.values(len), Level::Scalar);
            // Q8_1 keeps its sum as an f16 of its own, which is not the sum of what its codes stand for.
            let bound = if partner == DType::Q8_1 { 2e-3 } else { 1e-6 };
            check_exact(dtype, partner, &row, &acts, bound);
        }
    }
}
