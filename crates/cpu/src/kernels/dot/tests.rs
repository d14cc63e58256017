//! Every type at every level: scalar against exact sums of decoded rows, the others against scalar.

use half::f16;
use oxcart_tensor::DType;
use oxcart_tensor::quant::{dequantize_row, encode_row_at_run_time, quantize_row, to_bf16};

use super::{dot, encode};
use crate::simd::Level;

/// Types that can be weights.
fn weights() -> impl Iterator<Item = (DType, DType)> {
    DType::all().filter_map(|dtype| Some((dtype, dtype.dot_partner()?)))
}

/// Random numbers, the same every time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 ^ self.0 >> 29).wrapping_mul(0x94D0_49BB_1331_11EB) >> 20
    }

    fn values(&mut self, len: usize) -> Vec<f32> {
        let uniform = |bits: u64| (bits % (1 << 24)) as f32 / (1 << 23) as f32 - 1.0;
        (0..len).map(|_| uniform(self.next()) + uniform(self.next()) * uniform(self.next())).collect()
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

fn quantized(dtype: DType, values: &[f32]) -> Vec<u8> {
    let mut row = vec![0; dtype.row_bytes(values.len()).unwrap()];
    let importance = vec![1.0; values.len()];
    quantize_row(dtype, values, Some(&importance), &mut row).unwrap();
    row
}

fn encoded(partner: DType, values: &[f32], level: Level) -> Vec<u8> {
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

/// Rows in which every block has all bytes the same, or random ones, behind scales that are small numbers.
fn extreme_rows(dtype: DType, len: usize, random: &mut Random) -> Vec<(String, Vec<u8>)> {
    let size = dtype.row_bytes(len).unwrap();
    let mut rows = vec![("random bytes".to_owned(), random.bytes(size))];
    rows.extend(
        [0x00, 0x7F, 0x80, 0x81, 0xFF].map(|byte| (format!("all bytes {byte:#x}"), vec![byte; size])),
    );
    for (_, row) in &mut rows {
        for block in row.chunks_exact_mut(dtype.block_bytes()) {
            set_scales(dtype, block, &[f16::from_f32(0.75), f16::from_f32(-1.5)]);
        }
    }
    rows
}

/// Overwrites the numbers of a block that are not integers: its scale, then what else there is.
fn set_scales(dtype: DType, block: &mut [u8], numbers: &[f16; 2]) {
    let places: &[usize] = match dtype {
        DType::Q4_1 | DType::Q5_1 | DType::Q8_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
        DType::Q2_K => &[80, 82],
        DType::Q3_K => &[108],
        DType::Q6_K => &[208],
        DType::TQ1_0 => &[52],
        DType::TQ2_0 => &[64],
        // A power of two as a byte, or bytes that are never anything but numbers.
        DType::MXFP4 => {
            block[0] = 127;
            &[]
        }
        DType::NVFP4 => &[],
        DType::IQ1_M => {
            // The upper four bits of each of four words.
            for (i, word) in block[48..].as_chunks_mut::<2>().0.iter_mut().enumerate() {
                let nibble = (numbers[0].to_bits() >> (4 * i) & 15) as u8;
                word[1] = word[1] & 15 | nibble << 4;
            }
            &[]
        }
        DType::Q8_K => {
            block[..4].copy_from_slice(&numbers[0].to_f32().to_le_bytes());
            &[]
        }
        DType::F32 => {
            block.copy_from_slice(&numbers[usize::from(block[0] % 2)].to_f32().to_le_bytes());
            &[]
        }
        DType::BF16 => {
            block.copy_from_slice(&to_bf16(numbers[usize::from(block[0] % 2)].to_f32()).to_le_bytes());
            &[]
        }
        _ => &[0],
    };
    for (&at, number) in places.iter().zip(numbers) {
        block[at..at + 2].copy_from_slice(&number.to_le_bytes());
    }
}

/// Sums as the encoder would have made them.
fn set_sums(partner: DType, acts: &mut [u8]) {
    for block in acts.chunks_exact_mut(partner.block_bytes()) {
        let sum = |codes: &[u8]| codes.iter().map(|&code| i32::from(code as i8)).sum::<i32>();
        match partner {
            DType::Q8_1 => {
                let sum = half_at(block, 0) * f64::from(sum(&block[4..]));
                block[2..4].copy_from_slice(&f16::from_f64(sum).to_le_bytes());
            }
            DType::Q8_K => {
                for group in 0..16 {
                    let sum = sum(&block[4 + 16 * group..][..16]) as i16;
                    block[260 + 2 * group..][..2].copy_from_slice(&sum.to_le_bytes());
                }
            }
            _ => {}
        }
    }
}

#[test]
fn extreme_codes_do_not_overflow() {
    let mut random = Random(3);
    for (dtype, partner) in weights() {
        let len = 3 * dtype.block_len().max(64);
        for (weight_name, row) in extreme_rows(dtype, len, &mut random) {
            for (act_name, mut acts) in extreme_rows(partner, len, &mut random) {
                set_sums(partner, &mut acts);
                let what = format!("{weight_name} times {act_name}");
                let magnitude = magnitude(dtype, partner, &row, &acts);
                // Offsets that nearly cancel each other are large.
                check_levels(dtype, &row, &acts, magnitude * 4.0, &what);
                check_exact(dtype, partner, &row, &acts, bound(partner));
            }
        }
    }
}

#[test]
fn numbers_that_are_not_finite_come_through() {
    let mut random = Random(4);
    for (dtype, partner) in weights().filter(|(dtype, _)| !matches!(dtype, DType::MXFP4 | DType::NVFP4)) {
        let len = 5 * dtype.block_len().max(32);
        let row = quantized(dtype, &random.values(len));
        let values = random.values(len);
        for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut spoiled = row.clone();
            set_scales(dtype, &mut spoiled[..dtype.block_bytes()], &[f16::from_f32(special); 2]);
            for level in Level::available() {
                let dot = dot(dtype, level).unwrap();
                let acts = encoded(partner, &values, level);
                assert!(!dot(&spoiled, &acts).is_finite(), "{dtype} weights on {level}: {special}");
                let mut values = values.clone();
                values[len - 1] = special;
                let acts = encoded(partner, &values, level);
                assert!(!dot(&row, &acts).is_finite(), "{dtype} activations on {level}: {special}");
            }
        }
    }
}

/// Rows of activations that are easy to get wrong.
fn difficult_activations() -> Vec<Vec<f32>> {
    let mut random = Random(5);
    let mut rows =
        vec![vec![0.0; 512], vec![-0.0; 512], vec![1e-44; 512], vec![-1e-39; 512], vec![3e38; 512]];
    // Halves everywhere: the largest magnitude makes the factor one.
    rows.push((0..512).map(|i| if i % 32 == 5 { -127.0 } else { i as f32 % 64.0 - 31.5 }).collect());
    // The extreme value with both signs, in both orders.
    rows.push((0..512).map(|i| if i % 7 < 3 { 2.5 } else { -2.5 }).collect());
    rows.push((0..512).map(|i| if i % 7 < 3 { -2.5 } else { 2.5 }).collect());
    for scale in [1e-30, 1e-5, 1.0, 7e4, 1e10] {
        rows.push(random.values(512).iter().map(|value| value * scale).collect());
    }
    rows
}

#[test]
fn every_level_encodes_to_the_same_bytes() {
    let partners = [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q8_1, DType::Q8_K];
    let mut rows = difficult_activations();
    for special in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut row = rows[10].clone();
        row[300] = special;
        rows.push(row);
    }
    for partner in partners {
        for (i, row) in rows.iter().enumerate() {
            let expected = encoded(partner, row, Level::Scalar);
            for level in Level::available() {
                assert_eq!(encoded(partner, row, level), expected, "{partner} on {level}, row {i}");
            }
        }
    }
}

#[test]
fn encoders_agree_with_those_of_graphs() {
    for partner in [DType::F32, DType::F16, DType::BF16, DType::Q8_K, DType::Q8_0, DType::Q8_1] {
        for (i, row) in difficult_activations().iter().enumerate() {
            let found = encoded(partner, row, Level::Scalar);
            let mut expected = vec![0; found.len()];
            encode_row_at_run_time(partner, row, &mut expected).unwrap();
            assert_eq!(found, expected, "{partner}, row {i}");
        }
    }
}

#[test]
fn codes_are_rounded_to_even() {
    let mut values = [0.0; 32];
    values[..7].copy_from_slice(&[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -127.0]);
    let block = encoded(DType::Q8_1, &values, Level::Scalar);
    assert_eq!(block[4..11].iter().map(|&code| code as i8).collect::<Vec<_>>(), [127, 0, 2, 2, 0, -2, -127]);
    assert_eq!(half_at(&block, 0), 1.0);
    assert_eq!(half_at(&block, 2), 2.0);
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

/// How far a sum may be off, in parts of the sum of all magnitudes.
fn bound(partner: DType) -> f64 {
    // Q8_1 keeps its sum as an f16 of its own, which is not the sum of what its codes stand for.
    if partner == DType::Q8_1 { 2e-3 } else { 1e-5 }
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

            check_exact(dtype, partner, &row, &acts, bound(partner));
        }
    }
}
