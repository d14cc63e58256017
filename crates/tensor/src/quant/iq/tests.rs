//! Comparison with what the reference library made of the same rows and blocks, and properties of any input.
//!
//! The fixtures come from `tools/iq_fixtures.py`; `OXCART_IQ_FIXTURES` names a folder with a larger set of them.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use zerocopy::FromBytes;

use super::*;
use crate::quant::{Block, Encode, EncodeWeighted, Importance};

const KINDS: [&str; 4] = ["normal", "laplace", "cosine", "outlier"];

fn fixture(name: &str) -> Vec<u8> {
    let committed = concat!(env!("CARGO_MANIFEST_DIR"), "/src/quant/iq/testdata");
    let folder = std::env::var_os("OXCART_IQ_FIXTURES").map_or_else(|| committed.into(), PathBuf::from);
    let path = folder.join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

fn decode<B: Block>(blocks: &[u8]) -> Vec<f32> {
    let blocks = <[B]>::ref_from_bytes(blocks).unwrap();
    let mut out = vec![0.0; blocks.len() * BLOCK_LEN];
    for (block, out) in blocks.iter().zip(out.chunks_exact_mut(BLOCK_LEN)) {
        block.decode(out);
    }
    out
}

fn check_decode<B: Block>() {
    let found = decode::<B>(&fixture(&format!("{}.blocks", B::DTYPE)));
    let expected = floats(&fixture(&format!("{}.f32", B::DTYPE)));
    assert_eq!(found.len(), expected.len());
    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
        assert!(
            same,
            "{} block {} element {}: {found}, not {expected}",
            B::DTYPE,
            i / BLOCK_LEN,
            i % BLOCK_LEN
        );
    }
}

#[test]
fn decoding_is_bit_identical_to_the_reference() {
    check_decode::<BlockIq1S>();
    check_decode::<BlockIq1M>();
    check_decode::<BlockIq2Xxs>();
    check_decode::<BlockIq2Xs>();
    check_decode::<BlockIq2S>();
    check_decode::<BlockIq3Xxs>();
    check_decode::<BlockIq3S>();
}

fn weighted_error(x: &[f32], y: &[f32], w: &[f32]) -> f64 {
    let term = |((x, y), w): ((&f32, &f32), &f32)| f64::from(*w) * (f64::from(*x) - f64::from(*y)).powi(2);
    x.iter().zip(y).zip(w).map(term).sum()
}

/// Requires the error of `encode` to be at most 2 % above that of the reference for each kind of row, and prints by
/// how much it is below.
fn compare<B: Block>(flavour: &str, weights: &[f32], encode: impl Fn(&[f32], &[f32]) -> B) {
    let rows = floats(&fixture("rows.f32"));
    let reference = decode::<B>(&fixture(&format!("{}.{flavour}", B::DTYPE)));
    assert_eq!((weights.len(), reference.len()), (rows.len(), rows.len()));

    let mut found = vec![0.0; rows.len()];
    let mut took = Duration::ZERO;
    let blocks = rows.chunks_exact(BLOCK_LEN).zip(weights.chunks_exact(BLOCK_LEN));
    for ((x, w), y) in blocks.zip(found.chunks_exact_mut(BLOCK_LEN)) {
        let start = Instant::now();
        let block = encode(x, w);
        took += start.elapsed();
        block.decode(y);
    }

    let part = rows.len() / KINDS.len();
    let ratios = std::array::from_fn::<_, { KINDS.len() }, _>(|kind| {
        let part = kind * part..(kind + 1) * part;
        let error = |y: &[f32]| weighted_error(&rows[part.clone()], &y[part.clone()], &weights[part.clone()]);
        (error(&found) / error(&reference)).sqrt()
    });
    let us = took.as_secs_f64() * 1e6 / (rows.len() / BLOCK_LEN) as f64;
    println!("{:8}{flavour:10}{ratios:.4?} of the reference's error, {us:.1} us per block", B::DTYPE);
    for (kind, ratio) in KINDS.iter().zip(ratios) {
        assert!(ratio < 1.02, "{} {flavour} {kind}: {ratio:.4} times the reference's error", B::DTYPE);
    }
}

fn compare_weighted<B: EncodeWeighted>() {
    let importance = floats(&fixture("importance.f32"));
    compare("weighted", &importance, |x, weights| {
        B::encode_weighted(x, Importance { weights, row_mean_square: 0.0 })
    });
}

fn compare_plain<B: Encode>() {
    let ones = vec![1.0; fixture("rows.f32").len() / 4];
    compare("plain", &ones, |x, _| B::encode(x));
}

#[test]
fn weighted_encoders_are_as_good_as_the_reference() {
    compare_weighted::<BlockIq1S>();
    compare_weighted::<BlockIq1M>();
    compare_weighted::<BlockIq2Xxs>();
    compare_weighted::<BlockIq2Xs>();
    compare_weighted::<BlockIq2S>();
    compare_weighted::<BlockIq3Xxs>();
    compare_weighted::<BlockIq3S>();
}

#[test]
fn plain_encoders_are_as_good_as_the_reference() {
    compare_plain::<BlockIq1M>();
    compare_plain::<BlockIq2S>();
    compare_plain::<BlockIq3Xxs>();
    compare_plain::<BlockIq3S>();
}

fn encode_decode<B: EncodeWeighted>(values: &[f32], weights: &[f32]) -> [f32; BLOCK_LEN] {
    let mut out = [0.0; BLOCK_LEN];
    B::encode_weighted(values, Importance { weights, row_mean_square: 0.0 }).decode(&mut out);
    out
}

fn check_sizes<B: EncodeWeighted>() {
    let (dtype, ones) = (B::DTYPE, [1.0; BLOCK_LEN]);
    let wave: [f32; BLOCK_LEN] = std::array::from_fn(|i| (i as f32).sin());
    assert_eq!(encode_decode::<B>(&[0.0; BLOCK_LEN], &ones), [0.0; BLOCK_LEN], "{dtype}");
    assert_eq!(
        encode_decode::<B>(&wave.map(|x| x * 1e-20), &ones),
        [0.0; BLOCK_LEN],
        "{dtype}: no scale is so small"
    );
    // Scales from there, where they have no precision left, to where they end; no importance at all in between.
    for (size, weight) in [(3e-6, 1.0), (1.0, 0.0), (2e4, 1.0)] {
        let values = wave.map(|x| x * size);
        let error = weighted_error(&values, &encode_decode::<B>(&values, &[weight; BLOCK_LEN]), &ones);
        let relative = error / weighted_error(&values, &[0.0; BLOCK_LEN], &ones);
        assert!(relative < 0.2, "{dtype} at {size}: {relative}");
    }
    let huge = encode_decode::<B>(&wave.map(|x| x * 1e38), &ones);
    assert!(huge.iter().zip(wave).all(|(y, x)| y.is_finite() && (y.abs() > 1e4 || x.abs() < 0.7)), "{dtype}");
}

#[test]
fn values_of_any_size_are_written_as_well_as_scales_allow() {
    check_sizes::<BlockIq1S>();
    check_sizes::<BlockIq1M>();
    check_sizes::<BlockIq2Xxs>();
    check_sizes::<BlockIq2Xs>();
    check_sizes::<BlockIq2S>();
    check_sizes::<BlockIq3Xxs>();
    check_sizes::<BlockIq3S>();
}

/// Any bytes decode without a panic, and any values encode to something finite that is not far worse than zeros.
fn check_any<B: EncodeWeighted>(bytes: &[u8], values: &[f32], weights: &[f32]) {
    B::read_from_bytes(&bytes[..size_of::<B>()]).unwrap().decode(&mut [0.0; BLOCK_LEN]);

    let out = encode_decode::<B>(values, weights);
    assert!(out.iter().all(|x| x.is_finite()), "{}", B::DTYPE);
    let (ones, zeros) = ([1.0; BLOCK_LEN], [0.0; BLOCK_LEN]);
    let weights = if weights.iter().all(|&w| w == 0.0) { &ones } else { weights };
    // The search weighs large values more than this sum does, so it may be a little worse here.
    let (error, of_zeros) = (weighted_error(values, &out, weights), weighted_error(values, &zeros, weights));
    assert!(error <= 2.0 * of_zeros, "{}: {error} against {of_zeros}", B::DTYPE);
}

fn check_any_plain<B: Encode>(values: &[f32]) {
    let mut out = [0.0; BLOCK_LEN];
    B::encode(values).decode(&mut out);
    assert!(out.iter().all(|x| x.is_finite()), "{}", B::DTYPE);
}

/// Finite values of any size, of one size, or few that are not zero.
fn any_values() -> impl Strategy<Value = Vec<f32>> {
    use proptest::num::f32::{NEGATIVE, NORMAL, POSITIVE, SUBNORMAL, ZERO};
    let value = prop_oneof![
        (POSITIVE | NEGATIVE | NORMAL | SUBNORMAL | ZERO).boxed(),
        (-1e-3f32..1e-3).boxed(),
        prop::sample::select(vec![0.0, -0.0, 1.0, -1.0, f32::MAX, f32::MIN, 1e-45, 65504.0, -1e9]).boxed(),
    ];
    let of_one_size = (-45i32..39, prop::collection::vec(-1.0f32..1.0, BLOCK_LEN))
        .prop_map(|(exponent, x)| x.iter().map(|x| x * 10f32.powi(exponent)).collect());
    prop_oneof![prop::collection::vec(value, BLOCK_LEN), of_one_size, Just(vec![0.0; BLOCK_LEN])]
}

fn any_weights() -> impl Strategy<Value = Vec<f32>> {
    let weight = prop_oneof![Just(0.0f32), 0.0f32..10.0, Just(1e-45), Just(f32::MAX)];
    prop_oneof![prop::collection::vec(weight, BLOCK_LEN), Just(vec![0.0; BLOCK_LEN])]
}

proptest! {
    #[test]
    fn any_block_decodes_and_any_values_encode(
        bytes in prop::collection::vec(any::<u8>(), 110),
        values in any_values(),
        weights in any_weights(),
    ) {
        check_any::<BlockIq1S>(&bytes, &values, &weights);
        check_any::<BlockIq1M>(&bytes, &values, &weights);
        check_any::<BlockIq2Xxs>(&bytes, &values, &weights);
        check_any::<BlockIq2Xs>(&bytes, &values, &weights);
        check_any::<BlockIq2S>(&bytes, &values, &weights);
        check_any::<BlockIq3Xxs>(&bytes, &values, &weights);
        check_any::<BlockIq3S>(&bytes, &values, &weights);
        check_any_plain::<BlockIq1M>(&values);
        check_any_plain::<BlockIq2S>(&values);
        check_any_plain::<BlockIq3Xxs>(&values);
        check_any_plain::<BlockIq3S>(&values);
    }
}
