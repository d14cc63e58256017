//! Quantized formats against the reference implementation, as recorded by `tools/quant_fixtures.py`.
//!
//! Set `OXCART_QUANT_FIXTURES` to a folder that the script wrote to compare a larger set than the committed one.

use std::env;
use std::fs;
use std::path::PathBuf;

use oxcart_tensor::DType;
use oxcart_tensor::quant::{
    QuantError, dequantize_row, encode_row_at_run_time, quantize_row, to_bf16, to_bf16_slice, to_f16,
    to_f16_slice,
};
use serde_json::Value;

/// Formats that may be absent, and whose search need not take the reference's path. Everything else must match.
const CODEBOOKS: [DType; 7] =
    [DType::IQ1_S, DType::IQ1_M, DType::IQ2_XXS, DType::IQ2_XS, DType::IQ2_S, DType::IQ3_XXS, DType::IQ3_S];

/// How much more error than the reference a codebook search may leave, on the mean over the rows of a flavour. Single
/// rows can be worse: both searches minimize an error that is weighted by magnitude, too, not the one measured here.
const WORSE: f64 = 1.02;
/// How much worse a single row may be.
const WORST_ROW: f64 = 1.25;

struct Fixtures {
    folder: PathBuf,
    index: Value,
}

/// The recorded conversions, as named in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flavour {
    RunTime,
    Offline,
    Weighted,
}

impl Flavour {
    const ALL: [Flavour; 3] = [Flavour::RunTime, Flavour::Offline, Flavour::Weighted];

    fn key(self) -> &'static str {
        match self {
            Flavour::RunTime => "run_time",
            Flavour::Offline => "offline",
            Flavour::Weighted => "weighted",
        }
    }
}

impl Fixtures {
    fn load() -> Self {
        let committed = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/quant");
        let folder = env::var_os("OXCART_QUANT_FIXTURES").map_or_else(|| committed.into(), PathBuf::from);
        let index = fs::read(folder.join("index.json")).expect("index.json in the fixture folder");
        Self { folder, index: serde_json::from_slice(&index).expect("index.json is JSON") }
    }

    fn bytes(&self, name: &Value) -> Vec<u8> {
        fs::read(self.folder.join(text(name))).expect("a file that the index names")
    }

    fn floats(&self, name: &Value) -> Vec<f32> {
        self.bytes(name).chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }

    fn halves(&self, name: &Value) -> Vec<u16> {
        self.bytes(name).chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect()
    }

    /// Every recorded type that is implemented, with its entry in the index.
    fn types(&self) -> impl Iterator<Item = (DType, &Value)> {
        self.index["types"].as_array().expect("a list").iter().filter_map(|entry| {
            let dtype: DType = text(&entry["dtype"]).parse().expect("a type name");
            let missing = dequantize_row(dtype, &[], &mut []) == Err(QuantError::NotDecodable { dtype });
            assert!(!missing || CODEBOOKS.contains(&dtype), "{dtype} has no decoder");
            (!missing).then_some((dtype, entry))
        })
    }

    fn row_name(&self, row: usize) -> &str {
        text(&self.index["row_names"][row])
    }
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a string")
}

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

fn root_mean_square(original: &[f32], decoded: &[f32], weights: &[f32]) -> f64 {
    let terms = original.iter().zip(decoded).zip(weights);
    let sum: f64 = terms.map(|((a, b), w)| f64::from(*w) * f64::from(a - b).powi(2)).sum();
    (sum / original.len() as f64).sqrt()
}

#[test]
fn blocks_decode_to_the_same_bits() {
    let fixtures = Fixtures::load();
    for (dtype, entry) in fixtures.types() {
        let blocks = fixtures.bytes(&entry["blocks"]);
        let expected = fixtures.floats(&entry["decoded"]);
        let mut decoded = vec![0.0; expected.len()];
        dequantize_row(dtype, &blocks, &mut decoded).unwrap();
        for (i, (found, expected)) in decoded.iter().zip(&expected).enumerate() {
            let (block, element) = (i / dtype.block_len(), i % dtype.block_len());
            assert!(
                same(*found, *expected),
                "{dtype} block {block}[{element}]: {found:e}, expected {expected:e}"
            );
        }
        println!("{dtype}: {} blocks decode alike", decoded.len() / dtype.block_len());
    }
}

#[test]
fn rows_quantize_to_the_same_bytes() {
    let fixtures = Fixtures::load();
    let rows = fixtures.floats(&fixtures.index["rows"]);
    let importance = fixtures.floats(&fixtures.index["importance"]);
    let len = fixtures.index["row_len"].as_u64().unwrap() as usize;
    let mut failures = Vec::new();
    for (dtype, entry) in fixtures.types() {
        let row_bytes = dtype.row_bytes(len).unwrap();
        let exact = !CODEBOOKS.contains(&dtype);
        for flavour in Flavour::ALL.into_iter().filter(|flavour| !entry[flavour.key()].is_null()) {
            if flavour == Flavour::RunTime && !dtype.encodes_at_run_time() {
                continue;
            }
            let all_expected = fixtures.bytes(&entry[flavour.key()]);
            let mut differing = Vec::new();
            let mut ratios = Vec::new();
            for (i, expected) in all_expected.chunks_exact(row_bytes).enumerate() {
                let row = &rows[len * i..][..len];
                let weights = &importance[len * i..][..len];
                let mut found = vec![0; row_bytes];
                match flavour {
                    Flavour::RunTime => encode_row_at_run_time(dtype, row, &mut found),
                    Flavour::Offline => quantize_row(dtype, row, None, &mut found),
                    Flavour::Weighted => quantize_row(dtype, row, Some(weights), &mut found),
                }
                .unwrap();
                if found == expected {
                    ratios.push(1.0);
                    continue;
                }
                let ours = error_of(dtype, row, &found, weights, flavour);
                let theirs = error_of(dtype, row, expected, weights, flavour);
                let block = found.chunks(dtype.block_bytes()).zip(expected.chunks(dtype.block_bytes()));
                let block = block.take_while(|(found, expected)| found == expected).count();
                ratios.push(ours / theirs);
                if exact {
                    differing.push((i, block, ours / theirs));
                }
            }
            let count = all_expected.len() / row_bytes;
            let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
            let worst = ratios.iter().copied().fold(0.0, f64::max);
            println!(
                "{dtype} {}: {} of {count} rows differ; error {mean:.4} of the reference's, worst row {worst:.4}",
                flavour.key(),
                differing.len()
            );
            if !exact && (mean.is_nan() || mean > WORSE || worst > WORST_ROW) {
                failures.push(format!(
                    "{dtype} {}: error {mean:.4} of the reference's, worst {worst:.4}",
                    flavour.key()
                ));
            }
            if let Some(&(row, block, error)) = differing.first() {
                failures.push(format!(
                    "{dtype} {}: {} of {count} rows differ, first row {row} ({}) from block {block}, error {error:.4}",
                    flavour.key(),
                    differing.len(),
                    fixtures.row_name(row),
                ));
            }
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

/// What is lost on the way through the block format; weighted, when the search was told to.
fn error_of(dtype: DType, row: &[f32], bytes: &[u8], weights: &[f32], flavour: Flavour) -> f64 {
    let mut decoded = vec![0.0; row.len()];
    dequantize_row(dtype, bytes, &mut decoded).expect("a whole row");
    let even = vec![1.0; row.len()];
    root_mean_square(row, &decoded, if flavour == Flavour::Weighted { weights } else { &even })
}

#[test]
fn numbers_round_to_the_same_halves() {
    let fixtures = Fixtures::load();
    let scalars = &fixtures.index["scalars"];
    let values = fixtures.floats(&scalars["f32"]);
    let f16 = fixtures.halves(&scalars["f16"]);
    let bf16 = fixtures.halves(&scalars["bf16"]);
    for (i, &value) in values.iter().enumerate() {
        let bits = value.to_bits();
        assert_eq!(to_f16(value).to_bits(), f16[i], "f16 of {bits:#010x}");
        assert_eq!(to_bf16(value).to_bits(), bf16[i], "bf16 of {bits:#010x}");
    }
    let mut halves = vec![half::f16::ZERO; values.len()];
    to_f16_slice(&values, &mut halves);
    assert!(halves.iter().zip(&f16).all(|(found, expected)| found.to_bits() == *expected));
    let mut halves = vec![half::bf16::ZERO; values.len()];
    to_bf16_slice(&values, &mut halves);
    assert!(halves.iter().zip(&bf16).all(|(found, expected)| found.to_bits() == *expected));
}

/// The limits the reference holds its own formats to, on its own test row.
#[test]
fn round_trips_stay_within_the_published_limits() {
    const LEN: usize = 4096;
    let row: Vec<f32> = (0..LEN).map(|i| 0.1 + 2.0 * (i as f32).cos()).collect();
    for dtype in DType::all().filter(|dtype| dtype.is_quantized() && dtype.encodes_at_run_time()) {
        let limit = match dtype {
            DType::Q2_K => 0.0075,
            DType::Q3_K => 0.004,
            DType::NVFP4 => 0.003,
            DType::TQ1_0 | DType::TQ2_0 | DType::Q2_0 => 0.01,
            DType::Q1_0 => 0.025,
            _ => 0.002,
        };
        let mut bytes = vec![0; dtype.row_bytes(LEN).unwrap()];
        quantize_row(dtype, &row, None, &mut bytes).unwrap();
        let mut decoded = vec![0.0; LEN];
        dequantize_row(dtype, &bytes, &mut decoded).unwrap();
        let sum: f64 = row.iter().zip(&decoded).map(|(a, b)| f64::from(a - b).powi(2)).sum();
        let error = sum.sqrt() / LEN as f64;
        assert!(error < limit, "{dtype}: {error} is not below {limit}");
    }
}
