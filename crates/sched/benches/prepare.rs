//! How long it takes to prepare a transformer graph over four devices, beside ggml's scheduler doing the same.
//!
//! Both are timed twice: planning memory anew, and with the plan of the graph before kept, which is what happens when a
//! program makes the same graph for each batch. Assigning, splitting and placing every tensor is done anew each time.
//!
//! `cargo bench -p oxcart-sched --bench prepare` times ours from 1,000 to 64,000 nodes. With `OXCART_GGML_SOURCE` (the
//! `ggml` folder of a llama.cpp source tree) and `OXCART_REFERENCE_LIB` (the folder of the libraries built from it) it
//! also compiles `ggml_sched.c`, which builds the same graph with ggml, and runs it in between, so that both are
//! measured in one run. Best of several, because machines are noisy.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a bench prints, and stops when it cannot go on"
)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use oxcart_backend::{Buffer, Buffers, Device, Usage, allocate};
use oxcart_sched::{Options, Scheduler};
use oxcart_tensor::graph::{BufferId, Storage};
use oxcart_tensor::ops::{FlashAttnExt, GluKind, Precision, Rope, RopeMode};
use oxcart_tensor::{DType, Graph, TensorId};
use oxcart_testdev::{Config, TestDevice};

const DEVICES: usize = 4;
const EMBD: usize = 64;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD: usize = 16;
const FF: usize = 128;
const TOKENS: usize = 2;
const CONTEXT: usize = 32;
const REPEATS: usize = 20;

/// Memory of one device that leaves are put into one after another.
#[derive(Clone)]
struct Arena {
    id: BufferId,
    buffer: Arc<dyn Buffer>,
    used: usize,
}

struct Model {
    buffers: Buffers,
    weights: Vec<Arena>,
    caches: Vec<Arena>,
}

impl Model {
    fn new(devices: &[Arc<TestDevice>], layers: usize) -> Model {
        let mut buffers = Buffers::new();
        let mut arenas = |bytes: usize, usage| -> Vec<Arena> {
            devices
                .iter()
                .map(|device| {
                    let buffer = allocate(&device.buffer_type(), bytes).unwrap();
                    buffer.set_usage(usage);
                    Arena { id: buffers.add(Arc::clone(&buffer)), buffer, used: 0 }
                })
                .collect()
        };
        let (weights, caches) =
            (arenas(layers * (100 << 10), Usage::Weights), arenas(layers * (8 << 10), Usage::Any));
        Model { buffers, weights, caches }
    }

    fn build(&self, layers: usize) -> (Graph, Buffers) {
        let (mut graph, mut weights, mut caches) = (Graph::new(), self.weights.clone(), self.caches.clone());
        let g = &mut graph;
        let mut input = |dtype, ne: [usize; 2]| {
            let id = g.leaf(dtype, ne).unwrap();
            g.mark_input(id).unwrap();
            id
        };
        let mut x = input(DType::F32, [EMBD, TOKENS]);
        let positions = input(DType::I32, [TOKENS, 1]);
        let rows = input(DType::I64, [TOKENS, 1]);
        let mask = input(DType::F16, [CONTEXT, TOKENS]);
        let rope = Rope::new(HEAD, RopeMode::Normal, 10_000.0);
        let attention =
            FlashAttnExt { scale: 0.25, max_bias: 0.0, softcap: 0.0, precision: Precision::Any, n_kv_max: 0 };
        for layer in 0..layers {
            let device = (0..DEVICES).find(|d| layer < layers * (d + 1) / DEVICES).unwrap();
            let (weights, caches) = (&mut weights[device], &mut caches[device]);
            let y = weights.norm(g, x);
            let q = weights.heads(g, y, HEADS);
            let q = g.rope(q, positions, None, rope).unwrap();
            let k = weights.heads(g, y, KV_HEADS);
            let k = g.rope(k, positions, None, rope).unwrap();
            let v = weights.heads(g, y, KV_HEADS);
            let q = g.permute(q, [0, 2, 1, 3]).unwrap();
            let (k, v) = (caches.cached(g, k, rows), caches.cached(g, v, rows));
            let y = g.flash_attn_ext([q, k, v], Some(mask), None, attention).unwrap();
            let y = g.reshape(y, [EMBD, TOKENS]).unwrap();
            let y = weights.product(g, y, EMBD, EMBD);
            x = g.add(x, y).unwrap();
            let y = weights.norm(g, x);
            let (gate, up) = (weights.product(g, y, EMBD, FF), weights.product(g, y, EMBD, FF));
            let y = g.glu_split(gate, up, GluKind::Swiglu).unwrap();
            let y = weights.product(g, y, FF, EMBD);
            x = g.add(x, y).unwrap();
        }
        g.mark_output(x).unwrap();
        g.expand(x).unwrap();
        (graph, self.buffers.clone())
    }
}

impl Arena {
    fn leaf(&mut self, graph: &mut Graph, dtype: DType, ne: [usize; 2]) -> TensorId {
        let id = graph.leaf(dtype, ne).unwrap();
        let len = graph.tensor(id).unwrap().byte_len();
        graph.bind(id, Storage { buffer: self.id, offset: self.used }, self.buffer.len()).unwrap();
        self.used += len.next_multiple_of(64);
        id
    }

    fn norm(&mut self, graph: &mut Graph, x: TensorId) -> TensorId {
        let weight = self.leaf(graph, DType::F32, [EMBD, 1]);
        let x = graph.rms_norm(x, 1e-5).unwrap();
        graph.mul(x, weight).unwrap()
    }

    fn product(&mut self, graph: &mut Graph, x: TensorId, from: usize, to: usize) -> TensorId {
        let weight = self.leaf(graph, DType::F16, [from, to]);
        graph.mul_mat(weight, x).unwrap()
    }

    fn heads(&mut self, graph: &mut Graph, x: TensorId, count: usize) -> TensorId {
        let x = self.product(graph, x, EMBD, HEAD * count);
        graph.reshape(x, [HEAD, count, TOKENS]).unwrap()
    }

    /// Puts rows into a cache of this arena and returns all of it.
    fn cached(&mut self, graph: &mut Graph, x: TensorId, rows: TensorId) -> TensorId {
        let cache = self.leaf(graph, DType::F16, [HEAD * KV_HEADS, CONTEXT]);
        let x = graph.reshape(x, [HEAD * KV_HEADS, TOKENS]).unwrap();
        let cache = graph.set_rows(cache, x, rows).unwrap();
        let cache = graph.reshape(cache, [HEAD, KV_HEADS, CONTEXT]).unwrap();
        graph.permute(cache, [0, 2, 1, 3]).unwrap()
    }
}

/// Nodes and splits of a graph, and the best seconds to prepare it.
#[derive(Clone, Copy)]
struct Times {
    nodes: usize,
    splits: usize,
    /// Memory planned anew.
    plan: f64,
    /// The plan of the same graph before it kept.
    steady: f64,
}

fn ours(layers: usize) -> Times {
    let null = |config: Config| TestDevice::new(Config { null: true, reads_host: false, ..config });
    let devices = [
        null(Config::accelerator("D0")),
        null(Config::accelerator("D1")),
        null(Config::accelerator("D2")),
        null(Config::default()),
    ];
    let streams = devices.iter().map(|device| device.stream()).collect();
    let mut scheduler = Scheduler::new(streams, Options::default()).unwrap();
    let mut best = Times { nodes: 0, splits: 0, plan: f64::MAX, steady: f64::MAX };
    let memory = Model::new(&devices, layers);
    for _ in 0..REPEATS {
        // Another graph in between, so that there is no plan to keep.
        let (other, buffers) = memory.build(1);
        scheduler.prepare(other, buffers).unwrap();
        for steady in [false, true] {
            // Built anew, as a program would; ggml's side does the same.
            let (graph, buffers) = memory.build(layers);
            best.nodes = graph.nodes().len();
            let start = Instant::now();
            let prepared = scheduler.prepare(graph, buffers).unwrap();
            let took = start.elapsed().as_secs_f64();
            best.splits = prepared.splits().len();
            let time = if steady { &mut best.steady } else { &mut best.plan };
            *time = time.min(took);
        }
    }
    best
}

/// The compiled peer, if there is a ggml to compile it against.
fn peer() -> Option<PathBuf> {
    let source = PathBuf::from(std::env::var_os("OXCART_GGML_SOURCE")?);
    let library = PathBuf::from(std::env::var_os("OXCART_REFERENCE_LIB")?);
    let program = std::env::temp_dir().join(format!("oxcart-ggml-sched-{}", std::process::id()));
    let flag = |name: &str, path: &Path| format!("{name}{}", path.display());
    let built = Command::new("cc")
        .args(["-O2", "-o"])
        .arg(&program)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/ggml_sched.c"))
        .args([flag("-I", &source.join("include")), flag("-I", &source.join("src")), flag("-L", &library)])
        .args(["-lggml-base", "-lggml"])
        .arg(flag("-Wl,-rpath,", &library))
        .status();
    built.is_ok_and(|status| status.success()).then_some(program)
}

fn theirs(program: &Path, layers: usize) -> Option<Times> {
    let output = Command::new(program).args([layers.to_string(), REPEATS.to_string()]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let mut fields = text.split_whitespace();
    let (nodes, splits) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(Times { nodes, splits, plan: fields.next()?.parse().ok()?, steady: fields.next()?.parse().ok()? })
}

fn main() {
    let peer = peer();
    if peer.is_none() {
        println!("OXCART_GGML_SOURCE and OXCART_REFERENCE_LIB are not set: timing Oxcart alone");
    }
    println!("nodes splits  memory        oxcart ms  ns/node  ggml ms  ratio");
    // Numbers of layers may be given as arguments.
    let given: Vec<usize> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let sizes = if given.is_empty() { vec![34, 67, 134, 167, 267, 534, 1067, 2134] } else { given };
    for layers in sizes {
        let ours = ours(layers);
        let theirs = peer.as_deref().and_then(|program| theirs(program, layers));
        if let Some(theirs) = theirs {
            assert_eq!((theirs.nodes, theirs.splits), (ours.nodes, ours.splits), "not the same graph");
        }
        row("planned anew", ours, ours.plan, theirs.map(|theirs| theirs.plan));
        row("plan kept", ours, ours.steady, theirs.map(|theirs| theirs.steady));
    }
    if let Some(program) = peer {
        // It is in the folder for temporary files; a failure to tidy up is none of ours.
        let _ = std::fs::remove_file(program);
    }
}

fn row(memory: &str, Times { nodes, splits, .. }: Times, ours: f64, theirs: Option<f64>) {
    let per_node = ours * 1e9 / nodes as f64;
    print!("{nodes:>5} {splits:>6}  {memory:<12} {:>10.3} {per_node:>8.1}", ours * 1e3);
    if let Some(theirs) = theirs {
        print!(" {:>8.3} {:>6.2}", theirs * 1e3, theirs / ours);
    }
    println!();
}
