//! What holds for every quantized format and every input.

use oxcart_tensor::DType;
use oxcart_tensor::quant::{
    QuantError, dequantize_row, encode_row_at_run_time, quantize_row, swap_byte_order, validate_row,
};
use proptest::prelude::*;

fn all_types() -> Vec<DType> {
    DType::all().collect()
}

fn decodable() -> Vec<DType> {
    DType::all().filter(|&dtype| dequantize_row(dtype, &[], &mut []).is_ok()).collect()
}

/// Block formats that can be made from values alone.
fn block_formats() -> Vec<DType> {
    let encodable = |dtype: &DType| quantize_row(*dtype, &[], None, &mut []).is_ok();
    DType::all().filter(|dtype| dtype.is_quantized()).filter(encodable).collect()
}

/// The largest error of a format, as a fraction of the largest magnitude in the block.
fn largest_error(dtype: DType) -> f32 {
    match dtype {
        DType::Q1_0 => 1.0,
        DType::Q2_0 | DType::TQ1_0 | DType::TQ2_0 => 0.5,
        DType::Q4_0 => 1.0 / 8.0,
        DType::Q4_1 => 1.0 / 15.0,
        DType::Q5_0 => 1.0 / 16.0,
        DType::Q5_1 => 1.0 / 31.0,
        DType::Q8_0 | DType::Q8_1 | DType::Q8_K => 0.5 / 127.0,
        DType::MXFP4 | DType::NVFP4 => 0.25,
        // Searches move the scale, so that large values may lose more than half a step.
        DType::Q2_K => 0.6,
        DType::Q3_K | DType::IQ4_NL | DType::IQ4_XS => 0.3,
        DType::Q4_K => 0.2,
        DType::Q5_K => 0.1,
        DType::Q6_K => 0.06,
        _ => 1.0,
    }
}

proptest! {
    #[test]
    fn any_bytes_decode_and_valid_ones_to_numbers(
        dtype in prop::sample::select(decodable()),
        seed in prop::collection::vec(any::<u8>(), 292),
    ) {
        let bytes = &seed[..dtype.block_bytes()];
        let mut out = vec![0.0; dtype.block_len()];
        dequantize_row(dtype, bytes, &mut out).unwrap();
        // A finite scale times a code may still overflow, but it takes a NaN or an infinity to make a NaN.
        if validate_row(dtype, bytes).is_ok() {
            prop_assert!(!out.iter().any(|value| value.is_nan()));
        }
    }

    #[test]
    fn swapping_twice_changes_nothing(
        dtype in prop::sample::select(all_types()),
        seed in prop::collection::vec(any::<u8>(), 292 * 2),
    ) {
        let original = &seed[..dtype.block_bytes() * 2];
        let mut swapped = original.to_vec();
        swap_byte_order(dtype, &mut swapped).unwrap();
        swap_byte_order(dtype, &mut swapped).unwrap();
        prop_assert_eq!(swapped, original);
    }

    #[test]
    fn wrong_lengths_are_errors(
        dtype in prop::sample::select(all_types()),
        len in 0usize..600,
        bytes in 0usize..600,
        weights in 0usize..600,
    ) {
        let fits = dtype.row_bytes(len) == Some(bytes);
        let known = dequantize_row(dtype, &[], &mut []).is_ok();
        let mut row = vec![0.0; len];
        let mut packed = vec![0; bytes];
        prop_assert_eq!(dequantize_row(dtype, &packed, &mut row).is_ok(), fits && known);
        prop_assert!(quantize_row(dtype, &row, None, &mut packed).is_err() || fits);
        prop_assert!(encode_row_at_run_time(dtype, &row, &mut packed).is_err() || fits);
        let importance = vec![1.0; weights];
        let weighted = quantize_row(dtype, &row, Some(&importance), &mut packed);
        prop_assert!(weighted.is_err() || fits && weights == len);
        let whole = bytes.is_multiple_of(dtype.block_bytes());
        prop_assert_eq!(swap_byte_order(dtype, &mut packed).is_ok(), whole);
        prop_assert_eq!(validate_row(dtype, &vec![0; bytes]).is_ok(), whole);
    }

    #[test]
    fn any_finite_values_encode(
        dtype in prop::sample::select(block_formats()),
        bits in prop::collection::vec(any::<u32>(), 256),
        weights in prop::collection::vec(0.0f32..1e6, 256),
    ) {
        let len = dtype.block_len();
        let row: Vec<f32> =
            bits[..len].iter().map(|&bits| f32::from_bits(bits)).map(|v| if v.is_finite() { v } else { 0.0 }).collect();
        let mut packed = vec![0; dtype.block_bytes()];
        quantize_row(dtype, &row, None, &mut packed).unwrap();
        quantize_row(dtype, &row, Some(&weights[..len]), &mut packed).unwrap();
    }

    #[test]
    fn errors_are_bounded_by_the_step(
        dtype in prop::sample::select(block_formats()),
        units in prop::collection::vec(-1.0f32..=1.0, 256),
        exponent in -3i32..8,
    ) {
        let row: Vec<f32> = units[..dtype.block_len()].iter().map(|unit| unit * 2f32.powi(exponent)).collect();
        let largest = row.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
        let bound = largest * (largest_error(dtype) + 1.0 / 1024.0); // the scale is rounded to f16
        for at_run_time in [false, true] {
            let mut packed = vec![0; dtype.block_bytes()];
            if !at_run_time {
                quantize_row(dtype, &row, None, &mut packed).unwrap();
            } else if encode_row_at_run_time(dtype, &row, &mut packed).is_err() {
                continue;
            }
            prop_assert_eq!(validate_row(dtype, &packed), Ok(()));
            let mut back = vec![0.0; row.len()];
            dequantize_row(dtype, &packed, &mut back).unwrap();
            for (value, back) in row.iter().zip(back) {
                prop_assert!((value - back).abs() <= bound, "{}: {} became {}", dtype, value, back);
            }
        }
    }

    #[test]
    fn blocks_too_small_for_a_scale_are_zeros(
        dtype in prop::sample::select(block_formats()),
        bits in prop::collection::vec(0u32..0x0008_0000, 256),
    ) {
        let row: Vec<f32> = bits[..dtype.block_len()].iter().map(|&bits| f32::from_bits(bits)).collect();
        let mut packed = vec![0; dtype.block_bytes()];
        quantize_row(dtype, &row, None, &mut packed).unwrap();
        let mut back = vec![1.0; row.len()];
        dequantize_row(dtype, &packed, &mut back).unwrap();
        prop_assert!(back.iter().all(|&value| value == 0.0), "{}", dtype);
    }

    #[test]
    fn block_formats_take_finite_values_only(
        dtype in prop::sample::select(block_formats()),
        index in any::<prop::sample::Index>(),
        bad in prop::sample::select(vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY]),
    ) {
        let mut row = vec![0.5; dtype.block_len()];
        let index = index.index(row.len());
        row[index] = bad;
        let mut packed = vec![0xAA; dtype.block_bytes()];
        prop_assert_eq!(quantize_row(dtype, &row, None, &mut packed), Err(QuantError::NotFinite { index }));
        prop_assert!(packed.iter().all(|&byte| byte == 0xAA), "nothing is written");
    }
}

#[test]
fn plain_floats_take_anything() {
    let row = [f32::NAN, f32::INFINITY, -0.0, 1e-45];
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let mut packed = vec![0; dtype.row_bytes(row.len()).unwrap()];
        quantize_row(dtype, &row, None, &mut packed).unwrap();
        let mut back = [0.0; 4];
        dequantize_row(dtype, &packed, &mut back).unwrap();
        assert!(
            back[0].is_nan() && back[1] == f32::INFINITY && back[2].to_bits() == row[2].to_bits(),
            "{dtype}"
        );
    }
}

#[test]
fn types_that_are_not_made_of_f32_say_so() {
    for dtype in [DType::I8, DType::I16, DType::I32, DType::I64, DType::F64] {
        let row = [1.0];
        let mut packed = vec![0; dtype.block_bytes()];
        let refused = Err(QuantError::NotEncodable { dtype });
        assert_eq!(quantize_row(dtype, &row, None, &mut packed), refused);
        if dtype != DType::I32 {
            assert_eq!(encode_row_at_run_time(dtype, &row, &mut packed), refused);
        }
        assert_eq!(dequantize_row(dtype, &packed, &mut [0.0]), Err(QuantError::NotDecodable { dtype }));
    }
}

#[test]
fn importance_data_must_be_weights() {
    let row = [1.0; 32];
    let mut weights = [1.0; 32];
    let mut packed = [0; 18];
    let mut quantize = |weights: &[f32]| quantize_row(DType::Q4_0, &row, Some(weights), &mut packed);
    assert_eq!(quantize(&weights), Ok(()));
    assert_eq!(quantize(&weights[1..]), Err(QuantError::ImportanceLength { len: 32, found: 31 }));
    for bad in [-1.0, f32::NAN, f32::INFINITY] {
        weights[3] = bad;
        assert_eq!(quantize(&weights), Err(QuantError::BadImportance { index: 3 }));
    }
}

#[test]
fn integers_drop_fractions() {
    let mut bytes = [0; 20];
    let values = [2.9, -2.9, f32::NAN, 1e20, f32::NEG_INFINITY];
    encode_row_at_run_time(DType::I32, &values, &mut bytes).unwrap();
    let found: Vec<i32> =
        bytes.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    assert_eq!(found, [2, -2, 0, i32::MAX, i32::MIN]);
    assert!(encode_row_at_run_time(DType::I32, &values, &mut bytes[..19]).is_err());
}
