//! A real model against what llama.cpp computed: every step of recorded texts, and perplexity.
//!
//! Needs the recorded data (`OXCART_GOLDEN`) and the model (`OXCART_SMOLLM2`); says so and stops where they are not given.
#![allow(clippy::print_stderr, clippy::unwrap_used, reason = "tests")]

mod model_support;

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use model_support::Session;
use oxcart_backend::{Device, Stream, StreamOptions};
use oxcart_cpu::CpuDevice;
use oxcart_gguf::{Builder, Data, Gguf};
use oxcart_llm::model::{Model, ModelFile, Placement, PlacementOptions, Proportions};
use oxcart_llm::runner::{RunnerOptions, Wanted};
use oxcart_tensor::quant::dequantize_row;
use oxcart_tensor::{DType, Layout};
use serde_json::Value;

fn given() -> Option<(PathBuf, PathBuf)> {
    Some((oxcart_fixtures::golden()?, oxcart_fixtures::smollm2()?))
}

fn recorded(golden: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(golden.join("smollm2.json")).unwrap()).unwrap()
}

fn session(path: &Path, devices: usize, cache_type: DType) -> Session {
    let devices: Vec<Arc<CpuDevice>> = (0..devices).map(|_| CpuDevice::new().unwrap()).collect();
    let file = ModelFile::open(path).unwrap();
    let options = PlacementOptions {
        proportions: Proportions::Ratios(vec![1.0; devices.len()]),
        ..PlacementOptions::default()
    };
    let list = devices.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect();
    let placement = Placement::new(&file, list, &options).unwrap();
    let model = Model::load(file, placement, &|_| {}).unwrap();
    let streams: Vec<Box<dyn Stream>> =
        devices.into_iter().map(|device| device.open(&StreamOptions::threads(2)).unwrap()).collect();
    Session::new(model, streams, RunnerOptions { context: 1024, cache_type, ..RunnerOptions::default() })
        .unwrap()
}

fn log_sum_exp(row: &[f32]) -> f64 {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    f64::from(largest) + row.iter().map(|&x| f64::from(x - largest).exp()).sum::<f64>().ln()
}

fn largest(row: &[f32]) -> u32 {
    row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0 as u32
}

/// What a variant of the model may be off by.
struct Tolerance {
    mean: f64,
    most: f64,
    margin: f64,
    top_rms: f64,
    top_most: f64,
}

const F32: Tolerance =
    Tolerance { mean: 0.0005, most: 0.003, margin: 0.005, top_rms: 0.002, top_most: 0.005 };
const QUANTIZED: Tolerance = Tolerance { mean: 0.15, most: 1.0, margin: 1.5, top_rms: 0.8, top_most: 2.5 };

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// Feeds a recorded text and compares every step. `run` has what was recorded.
fn follow(what: &str, session: &mut Session, prompt: &[u32], run: &Value, tolerance: &Tolerance) {
    let (tokens, logprobs, margins) = (ids(&run["ids"]), numbers(&run["logprobs"]), numbers(&run["margins"]));
    session.reset();
    let mut row = session.evaluate(prompt, Wanted::Last).unwrap().remove(0);
    let top: Vec<f64> = run["last_prompt_top20"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| f64::from(row[entry[0].as_u64().unwrap() as usize]) - entry[1].as_f64().unwrap())
        .collect();
    let rms = (top.iter().map(|d| d * d).sum::<f64>() / top.len() as f64).sqrt();
    let most = top.iter().fold(0.0, |most: f64, d| most.max(d.abs()));
    assert!(
        rms <= tolerance.top_rms && most <= tolerance.top_most,
        "{what}: top 20 off by {rms} rms, {most} at most"
    );
    let mut differences = Vec::new();
    for (step, &token) in tokens.iter().enumerate() {
        let found = f64::from(row[token as usize]) - log_sum_exp(&row);
        differences.push((found - logprobs[step]).abs());
        if margins[step] > tolerance.margin {
            assert_eq!(largest(&row), token, "{what}: step {step}, margin {}", margins[step]);
        }
        row = session.evaluate(&[token], Wanted::Last).unwrap().remove(0);
    }
    let mean = differences.iter().sum::<f64>() / differences.len() as f64;
    let worst = differences.iter().copied().fold(0.0, f64::max);
    eprintln!(
        "{what}: logprobs off by {mean:.5} on average, {worst:.5} at most; top 20 by {rms:.4} rms, {most:.4} at most"
    );
    assert!(mean <= tolerance.mean && worst <= tolerance.most, "{what}: {mean} {worst}");
}

#[test]
fn recorded_texts() {
    let Some((golden, model)) = given() else { return };
    let recorded = recorded(&golden);
    for (cache, cache_type) in [("kv_f16", DType::F16), ("kv_f32", DType::F32)] {
        let mut session = session(&model, 1, cache_type);
        // All of them, in all types: tools/golden.sh full.
        for case in recorded["greedy"].as_array().unwrap().iter().take(4) {
            let prompt = ids(&case["prompt_ids"]);
            let what = format!("{cache}, prompt of {}", prompt.len());
            follow(&what, &mut session, &prompt, &case[cache], &QUANTIZED);
        }
    }
}

#[test]
fn devices_do_not_change_tokens() {
    let Some((golden, model)) = given() else { return };
    let recorded = recorded(&golden);
    let prompt = ids(&recorded["greedy"][5]["prompt_ids"]);
    let texts: Vec<Vec<u32>> = (1..=4)
        .map(|devices| {
            let mut session = session(&model, devices, DType::F16);
            let mut token = largest(&session.evaluate(&prompt, Wanted::Last).unwrap()[0]);
            let mut text = vec![token];
            for _ in 0..24 {
                token = largest(&session.evaluate(&[token], Wanted::Last).unwrap()[0]);
                text.push(token);
            }
            let splits = session.runner.prepared().unwrap().splits().len();
            // The first part of a model stays with the last device.
            assert_eq!(splits, if devices == 1 { 1 } else { devices + 1 });
            text
        })
        .collect();
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
}

#[test]
fn perplexity() {
    let Some((golden, model)) = given() else { return };
    let bytes = std::fs::read(golden.join("perplexity/text-gpl3.tokens.i32")).unwrap();
    let tokens: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|&bytes| u32::from_le_bytes(bytes)).collect();
    let mut session = session(&model, 1, DType::F16);
    let (mut sum, mut count) = (0.0, 0);
    for window in tokens.chunks_exact(512).take(4) {
        session.reset();
        let logits = session.evaluate(window, Wanted::From(0)).unwrap();
        for i in 256..511 {
            let row = &logits[i];
            sum += log_sum_exp(row) - f64::from(row[window[i + 1] as usize]);
            count += 1;
        }
        eprintln!("perplexity {:.4}", (sum / f64::from(count)).exp());
    }
    let (found, wanted) = ((sum / f64::from(count)).exp(), 18.2841);
    assert!((found / wanted - 1.0).abs() < 0.015, "{found}, recorded {wanted}");
}

/// The model with every tensor expanded to f32.
fn expand(model: &Path, folder: &Path) -> PathBuf {
    let path = folder.join("smollm2-f32.gguf");
    let file = Gguf::open(model).unwrap();
    let mut builder = Builder::like(file.header());
    for info in file.tensors().iter() {
        let layout = Layout::packed(DType::F32, info.shape()).unwrap();
        let file = &file;
        let data = Data::stream(move |out| {
            let mut bytes = vec![0; info.layout().byte_len()];
            file.read_tensor(&info, &mut bytes).unwrap();
            let mut numbers = vec![0.0; layout.elements()];
            dequantize_row(info.dtype(), &bytes, &mut numbers).unwrap();
            numbers.iter().try_for_each(|number| out.write_all(&number.to_le_bytes()))
        });
        builder.tensor(info.name(), layout, data);
    }
    builder.write(BufWriter::new(File::create(&path).unwrap())).unwrap();
    path
}

#[test]
fn recorded_texts_without_rounding() {
    let Some((golden, model)) = given() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = expand(&model, folder.path());
    let recorded = recorded(&golden);
    let mut session = session(&path, 1, DType::F32);
    let cases = recorded["requantized"]["F32"]["cases"].as_array().unwrap();
    for case in cases.iter().take(4) {
        let prompt = ids(&case["prompt_ids"]);
        follow(&format!("F32, prompt of {}", prompt.len()), &mut session, &prompt, &case["kv_f32"], &F32);
    }
}
