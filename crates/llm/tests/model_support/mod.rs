//! Recorded models, runs of them, and how far off a run may be.
#![allow(dead_code, reason = "each test uses some of it")]

pub(crate) mod remote;
pub(crate) mod together;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use oxcart_backend::{Device, Stream, StreamOptions};
use oxcart_cpu::CpuDevice;
use oxcart_llm::model::{Error, Model, ModelFile, Placement, PlacementOptions, Proportions};
use oxcart_llm::runner::{AttentionChoice, Piece, Runner, RunnerOptions, SequenceId, Wanted};
use oxcart_tensor::DType;
use serde_json::Value;

pub(crate) struct Golden {
    folder: PathBuf,
    pub(crate) entry: Value,
}

impl Golden {
    pub(crate) fn all() -> Option<Vec<Golden>> {
        let folder = oxcart_fixtures::golden()?.join("tiny-models");
        let index = std::fs::read_to_string(folder.join("index.json")).unwrap();
        let index: Value = serde_json::from_str(&index).unwrap();
        let models = index["models"].as_array().unwrap().iter();
        Some(models.map(|entry| Golden { folder: folder.clone(), entry: entry.clone() }).collect())
    }

    pub(crate) fn name(&self) -> &str {
        self.entry["name"].as_str().unwrap()
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.join(self.entry["model"].as_str().unwrap())
    }

    pub(crate) fn is_encoder(&self) -> bool {
        self.entry["arch"].as_str().unwrap().contains("bert")
    }

    pub(crate) fn tokens(&self, key: &str) -> Vec<u32> {
        self.entry[key].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
    }

    pub(crate) fn array(&self, name: &str) -> Option<Vec<Vec<f32>>> {
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
    pub(crate) fn precision(&self) -> Precision {
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
pub(crate) enum Precision {
    F32,
    F16,
    Bf16,
    Quantized,
}

pub(crate) fn load(path: &Path, devices: usize) -> Loaded {
    try_load(path, vec![1.0; devices]).unwrap()
}

/// A model, and streams on its devices.
pub(crate) type Loaded = (Arc<Model>, Vec<Box<dyn Stream>>);

/// A model on devices of this machine, so much of it on each.
pub(crate) fn try_load(path: &Path, ratios: Vec<f64>) -> Result<Loaded, Error> {
    let devices: Vec<Arc<CpuDevice>> = ratios.iter().map(|_| CpuDevice::new().unwrap()).collect();
    let file = ModelFile::open(path)?;
    let proportions = Proportions::Ratios(ratios);
    let options = PlacementOptions { proportions, ..PlacementOptions::default() };
    let list = devices.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect();
    let placement = Placement::new(&file, list, &options)?;
    let model = Model::load(file, placement, &|_| {})?;
    let open = |device: Arc<CpuDevice>| device.open(&StreamOptions::threads(1)).unwrap();
    Ok((model, devices.into_iter().map(open).collect()))
}

/// One sequence of a runner of its own.
pub(crate) struct Session {
    pub(crate) runner: Runner,
    pub(crate) id: SequenceId,
}

impl Session {
    pub(crate) fn new(
        model: Arc<Model>,
        streams: Vec<Box<dyn Stream>>,
        options: RunnerOptions,
    ) -> Result<Session, Error> {
        let mut runner = Runner::new(model, streams, options)?;
        let id = runner.open()?;
        Ok(Session { runner, id })
    }

    pub(crate) fn evaluate(&mut self, tokens: &[u32], wanted: Wanted) -> Result<Vec<Vec<f32>>, Error> {
        let outputs = self.runner.compute(&[Piece { sequence: self.id, tokens, wanted }])?;
        Ok(outputs.of(0).rows().map(<[f32]>::to_vec).collect())
    }

    pub(crate) fn position(&self) -> usize {
        self.runner.tokens(self.id).unwrap().len()
    }

    pub(crate) fn truncate(&mut self, position: usize) -> Result<(), Error> {
        self.runner.truncate(self.id, position)
    }

    /// Begins anew, with nothing that others could share.
    pub(crate) fn reset(&mut self) {
        self.runner.close(self.id).unwrap();
        self.id = self.runner.open().unwrap();
    }
}

/// How a run differs from the plainest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) devices: usize,
    pub(crate) cache_type: DType,
    pub(crate) attention: AttentionChoice,
    /// Tokens of the prompt per call, and per batch.
    pub(crate) call: usize,
    pub(crate) batch: usize,
}

pub(crate) const PLAINEST: Way =
    Way { devices: 1, cache_type: DType::F32, attention: AttentionChoice::Auto, call: 24, batch: 512 };

/// Logits after the prompt and after each token that follows, on CPUs.
pub(crate) fn decode(golden: &Golden, way: Way) -> Vec<Vec<f32>> {
    let (model, streams) = load(&golden.path(), way.devices);
    decode_on(golden, way, model, streams).0
}

/// As [`decode`], with a model that is loaded; returns the session, too.
pub(crate) fn decode_on(
    golden: &Golden,
    way: Way,
    model: Arc<Model>,
    streams: Vec<Box<dyn Stream>>,
) -> (Vec<Vec<f32>>, Session) {
    let options = RunnerOptions {
        context: 256,
        batch: way.batch,
        cache_type: way.cache_type,
        attention: way.attention,
        ..RunnerOptions::default()
    };
    let mut session = Session::new(model, streams, options).unwrap();
    let mut rows = Vec::new();
    for call in golden.tokens("prompt").chunks(way.call) {
        rows = session.evaluate(call, Wanted::Last).unwrap();
    }
    for token in golden.tokens("decode") {
        rows.extend(session.evaluate(&[token], Wanted::Last).unwrap());
    }
    (rows, session)
}

pub(crate) fn largest_difference(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    assert_eq!(a.len(), b.len());
    let pairs = a.iter().flatten().zip(b.iter().flatten());
    let worst = pairs
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |worst: f32, d| if d.is_nan() { d } else { worst.max(d) });
    assert!(!worst.is_nan());
    worst
}

pub(crate) fn rms(a: &[Vec<f32>], b: &[Vec<f32>]) -> f64 {
    let squares: Vec<f64> =
        a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| f64::from(a - b).powi(2)).collect();
    (squares.iter().sum::<f64>() / squares.len() as f64).sqrt()
}

/// Compares logits with what was recorded, by the tolerances that the recordings give.
pub(crate) fn judge(golden: &Golden, rows: &[Vec<f32>], cache_type: DType) -> Result<String, String> {
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
