//! Random models of every architecture against the logits that llama.cpp computed.
//!
//! Needs the recorded data (`OXCART_GOLDEN`); says so and stops where it is not given.
#![allow(clippy::print_stderr, clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use oxcart_backend::{Backend, Device};
use oxcart_cpu::CpuDevice;
use oxcart_llm::model::{
    AttentionChoice, Context, ContextOptions, Encoder, EncoderOptions, Model, ModelFile, Plan, PlanOptions,
    Pooling, Split, Wanted,
};
use oxcart_tensor::DType;
use serde_json::Value;

struct Golden {
    folder: PathBuf,
    entry: Value,
}

impl Golden {
    fn all() -> Option<Vec<Golden>> {
        let Ok(root) = std::env::var("OXCART_GOLDEN") else {
            eprintln!("skipped: OXCART_GOLDEN is not set");
            return None;
        };
        let folder = Path::new(&root).join("tiny-models");
        let index = std::fs::read_to_string(folder.join("index.json")).unwrap();
        let index: Value = serde_json::from_str(&index).unwrap();
        let models = index["models"].as_array().unwrap().iter();
        Some(models.map(|entry| Golden { folder: folder.clone(), entry: entry.clone() }).collect())
    }

    fn name(&self) -> &str {
        self.entry["name"].as_str().unwrap()
    }

    fn path(&self) -> PathBuf {
        self.folder.join(self.entry["model"].as_str().unwrap())
    }

    fn is_encoder(&self) -> bool {
        self.entry["arch"].as_str().unwrap().contains("bert")
    }

    fn tokens(&self, key: &str) -> Vec<u32> {
        self.entry[key].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
    }

    fn array(&self, name: &str) -> Option<Vec<Vec<f32>>> {
        let array = self.entry["arrays"].as_array().unwrap().iter().find(|array| array["name"] == name)?;
        let bytes = std::fs::read(self.folder.join(self.entry["data"].as_str().unwrap())).unwrap();
        let number = |value: &Value| value.as_u64().unwrap() as usize;
        let (rows, width) = (number(&array["shape"][0]), number(&array["shape"][1]));
        let start = number(&array["offset"]);
        let numbers =
            bytes[start..].as_chunks::<4>().0[..rows * width].iter().map(|&b| f32::from_le_bytes(b));
        let numbers: Vec<f32> = numbers.collect();
        Some(numbers.chunks_exact(width).map(<[f32]>::to_vec).collect())
    }

    /// The least precise type of the weights.
    fn precision(&self) -> Precision {
        let types = self.entry["types"].as_object().unwrap();
        let of = |dtype: &Value| match dtype.as_str().unwrap() {
            "F32" => Precision::F32,
            "F16" => Precision::F16,
            "BF16" => Precision::Bf16,
            _ => Precision::Quantized,
        };
        types.values().map(of).max().unwrap()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Precision {
    F32,
    F16,
    Bf16,
    Quantized,
}

fn load(path: &Path, devices: usize) -> (Arc<Model>, Vec<Box<dyn Backend>>) {
    let devices: Vec<Arc<CpuDevice>> = (0..devices).map(|_| CpuDevice::new().unwrap()).collect();
    let file = ModelFile::open(path).unwrap();
    let options = PlanOptions { split: Split::Ratios(vec![1.0; devices.len()]), ..PlanOptions::default() };
    let plan = Plan::new(
        &file,
        devices.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect(),
        &options,
    );
    let model = Model::load(file, plan.unwrap(), &|_| {}).unwrap();
    let backends = devices.into_iter().map(|device| device.open("threads=1").unwrap()).collect();
    (model, backends)
}

/// How a run differs from the plainest.
#[derive(Clone, Copy, Debug)]
struct Way {
    devices: usize,
    cache_type: DType,
    attention: AttentionChoice,
    /// Tokens of the prompt per call, and per batch.
    call: usize,
    batch: usize,
}

const PLAINEST: Way =
    Way { devices: 1, cache_type: DType::F32, attention: AttentionChoice::Auto, call: 24, batch: 512 };

/// Logits after the prompt and after each token that follows.
fn decode(golden: &Golden, way: Way) -> Vec<Vec<f32>> {
    let (model, backends) = load(&golden.path(), way.devices);
    let options = ContextOptions {
        context: 256,
        batch: way.batch,
        cache_type: way.cache_type,
        attention: way.attention,
        ..ContextOptions::default()
    };
    let mut context = Context::new(model, backends, options).unwrap();
    let mut rows = Vec::new();
    for call in golden.tokens("prompt").chunks(way.call) {
        rows = context.evaluate(call, Wanted::Last).unwrap().rows().map(<[f32]>::to_vec).collect();
    }
    for token in golden.tokens("decode") {
        rows.push(context.evaluate(&[token], Wanted::Last).unwrap().row(0).to_vec());
    }
    rows
}

fn largest_difference(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    assert_eq!(a.len(), b.len());
    let pairs = a.iter().flatten().zip(b.iter().flatten());
    let worst = pairs
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |worst: f32, d| if d.is_nan() { d } else { worst.max(d) });
    assert!(!worst.is_nan());
    worst
}

fn rms(a: &[Vec<f32>], b: &[Vec<f32>]) -> f64 {
    let squares: Vec<f64> =
        a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| f64::from(a - b).powi(2)).collect();
    (squares.iter().sum::<f64>() / squares.len() as f64).sqrt()
}

/// Compares logits with what was recorded, by the tolerances that the recordings give.
fn judge(golden: &Golden, rows: &[Vec<f32>], cache_type: DType) -> Result<String, String> {
    let reference = golden.array("logits_kv_f32").unwrap();
    let worst = largest_difference(rows, &reference);
    let (holds, said) = match golden.precision() {
        Precision::F32 if cache_type == DType::F32 => (worst <= 1e-3, format!("max {worst:.1e}")),
        Precision::F32 => {
            let to_half = largest_difference(rows, &golden.array("logits_kv_f16").unwrap());
            (to_half <= 0.08, format!("max to kv_f16 {to_half:.1e}"))
        }
        Precision::F16 => (worst <= 0.06, format!("max {worst:.1e}")),
        Precision::Bf16 => (worst <= 0.3, format!("max {worst:.1e}")),
        Precision::Quantized => {
            let own = golden.entry["reference_noise"]["exact_rms"].as_f64().unwrap();
            let found = rms(rows, &golden.array("logits_exact").unwrap());
            let said = format!("rms {found:.3} (reference {own:.3}), max {worst:.2}");
            (found <= 1.5 * own && worst <= 1.2, said)
        }
    };
    if holds { Ok(said) } else { Err(said) }
}

fn check_all(what: &str, way: impl Fn(&Golden) -> Option<Way>) {
    let Some(models) = Golden::all() else { return };
    let mut failures = Vec::new();
    for golden in models.iter().filter(|golden| !golden.is_encoder()) {
        let Some(way) = way(golden) else { continue };
        let rows = decode(golden, way);
        match judge(golden, &rows, way.cache_type) {
            Ok(said) => eprintln!("{what}: {} {:?}: {said}", golden.name(), golden.precision()),
            Err(said) => failures.push(format!("{}: {said}", golden.name())),
        }
    }
    assert!(failures.is_empty(), "{what}: {failures:#?}");
}

#[test]
fn logits_with_an_f32_cache() {
    check_all("f32 cache", |_| Some(PLAINEST));
}

#[test]
fn logits_with_an_f16_cache() {
    check_all("f16 cache", |_| Some(Way { cache_type: DType::F16, ..PLAINEST }));
}

#[test]
fn logits_with_attention_in_one_op() {
    check_all("flash", |_| Some(Way { attention: AttentionChoice::Flash, ..PLAINEST }));
}

#[test]
fn logits_with_plain_attention_and_an_f16_cache() {
    let way = Way { attention: AttentionChoice::Plain, cache_type: DType::F16, ..PLAINEST };
    check_all("plain, f16 cache", |_| Some(way));
}

#[test]
fn logits_of_single_tokens() {
    check_all("one by one", |_| Some(Way { call: 1, ..PLAINEST }));
}

#[test]
fn logits_of_small_batches() {
    check_all("batches of 5", |_| Some(Way { batch: 5, ..PLAINEST }));
}

#[test]
fn logits_over_two_devices() {
    check_all("two devices", |_| Some(Way { devices: 2, ..PLAINEST }));
}

#[test]
fn logits_over_three_devices() {
    check_all("three devices", |_| Some(Way { devices: 3, cache_type: DType::F16, ..PLAINEST }));
}

/// Devices change nothing at all: the same kernels compute the same numbers elsewhere.
#[test]
fn devices_do_not_change_a_bit() {
    let Some(models) = Golden::all() else { return };
    for golden in models.iter().filter(|golden| !golden.is_encoder()) {
        let one = decode(golden, PLAINEST);
        assert_eq!(one, decode(golden, Way { devices: 3, ..PLAINEST }), "{}", golden.name());
    }
}

/// Quantized caches have no recordings; they must not be far off, and q8_0 closer than q4_0.
#[test]
fn quantized_caches_are_close() {
    let Some(models) = Golden::all() else { return };
    let mut tried = 0;
    for golden in models.iter().filter(|golden| !golden.is_encoder() && golden.precision() == Precision::F32)
    {
        let file = ModelFile::open(golden.path()).unwrap();
        if !file.hyper().head_size.is_multiple_of(32) {
            continue;
        }
        tried += 1;
        let exact = golden.array("logits_kv_f32").unwrap();
        let error = |cache_type| rms(&decode(golden, Way { cache_type, ..PLAINEST }), &exact);
        let (fine, coarse) = (error(DType::Q8_0), error(DType::Q4_0));
        eprintln!("{}: rms q8_0 {fine:.4}, q4_0 {coarse:.4}", golden.name());
        assert!(fine < 0.1 && coarse < 1.5 && fine < coarse, "{}: {fine} {coarse}", golden.name());
    }
    assert!(tried > 0);
}

/// The GELU of the reference goes through a table of half-precision numbers: a change in the last bit can move a value by
/// a whole step. Over all positions, and whatever the way of attention, that shows a little more than at the end.
#[test]
fn logits_of_all_positions() {
    let Some(models) = Golden::all() else { return };
    for golden in models.iter().filter(|golden| !golden.is_encoder() && golden.precision() == Precision::F32)
    {
        let tolerance = if golden.name().starts_with("gemma") { 3e-3 } else { 1e-3 };
        for (attention, batch) in [
            (AttentionChoice::Flash, 24),
            (AttentionChoice::Flash, 10),
            (AttentionChoice::Plain, 24),
            (AttentionChoice::Plain, 1),
        ] {
            let (model, backends) = load(&golden.path(), 1);
            let cache_type = DType::F32;
            let options =
                ContextOptions { context: 256, batch, cache_type, attention, ..ContextOptions::default() };
            let mut context = Context::new(model, backends, options).unwrap();
            let logits = context.evaluate(&golden.tokens("prompt"), Wanted::All).unwrap();
            let rows: Vec<Vec<f32>> = logits.rows().map(<[f32]>::to_vec).collect();
            let worst = largest_difference(&rows, &golden.array("prompt_logits_kv_f32").unwrap());
            eprintln!("all positions: {} {attention:?} {batch}: max {worst:.1e}", golden.name());
            assert!(worst <= tolerance, "{}: {worst}", golden.name());
        }
    }
}

#[test]
fn embeddings() {
    let Some(models) = Golden::all() else { return };
    for golden in models.iter().filter(|golden| golden.is_encoder()) {
        let tolerance = if golden.precision() == Precision::F32 { 1e-3 } else { 0.02 };
        for devices in [1, 2] {
            for (pooling, array) in [
                (Pooling::None, "token_embeddings"),
                (Pooling::Mean, "pooled_mean"),
                (Pooling::Cls, "pooled_cls"),
                (Pooling::Last, "pooled_last"),
            ] {
                let (model, backends) = load(&golden.path(), devices);
                let options = EncoderOptions { pooling: Some(pooling) };
                let mut encoder = Encoder::new(model, backends, options).unwrap();
                let reference = golden.array(array).unwrap();
                for _ in 0..2 {
                    let found = encoder.embed(&golden.tokens("prompt")).unwrap();
                    let found: Vec<Vec<f32>> =
                        found.chunks(reference[0].len()).map(<[f32]>::to_vec).collect();
                    let worst = largest_difference(&found, &reference);
                    eprintln!("{} {array} on {devices}: max {worst:.1e}", golden.name());
                    assert!(worst <= tolerance, "{}: {array} {worst}", golden.name());
                }
            }
        }
    }
}
