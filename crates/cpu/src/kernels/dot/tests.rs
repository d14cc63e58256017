//! Encoders: every level makes the same bytes, and those that graphs make.

use half::f16;
use oxcart_tensor::DType;
use oxcart_tensor::quant::encode_row_at_run_time;

use super::encode;
use crate::simd::Level;

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
}

fn encoded(partner: DType, values: &[f32], level: Level) -> Vec<u8> {
    let mut row = vec![0xAA; partner.row_bytes(values.len()).unwrap()];
    encode(partner, level).unwrap()(values, &mut row);
    row
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
    assert_eq!(f16::from_le_bytes([block[0], block[1]]).to_f32(), 1.0);
    assert_eq!(f16::from_le_bytes([block[2], block[3]]).to_f32(), 2.0);
}
