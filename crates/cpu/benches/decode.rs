//! How fast tokens are decoded: the graph of a small transformer, one token of each of several sequences at a time, beside memory.
//!
//! `cargo bench -p oxcart-cpu --bench decode -- [types=q8_0+q4_1] [level=avx2] [threads=2] [sequences=1+2+4+8] [depth=128] [layers=30]
//! [seconds=2]`
//!
//! Shapes are those of SmolLM2-135M; weights and activations mean nothing. For each type and number of sequences it prints steps per
//! second, and tokens, and the weights of a step as bytes per second, compared with a sum over as much memory by as many threads. All are
//! timed in turns, and the best of each counts.
#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]
#![allow(missing_docs, clippy::unwrap_used, reason = "not part of the library")]

#[path = "shared/ceiling.rs"]
mod ceiling;

use std::time::Instant;

use ceiling::{Sweep, operations, seconds_of};
use oxcart_backend::{Buffers, Device, Plan, Stream, StreamOptions, Work, allocate};
use oxcart_cpu::{CpuDevice, Level};
use oxcart_tensor::graph::Storage;
use oxcart_tensor::ops::{GluKind, PagedAttn, Rope, RopeMode};
use oxcart_tensor::quant::encode_row_at_run_time;
use oxcart_tensor::{DType, Graph, Shape, TensorId};

const WIDTH: usize = 576;
const HIDDEN: usize = 1536;
const HEAD: usize = 64;
const HEADS: usize = 9;
const KEY_HEADS: usize = 3;
const VOCABULARY: usize = 49_152;

struct Options {
    types: Vec<DType>,
    level: Level,
    threads: usize,
    sequences: Vec<usize>,
    depth: usize,
    layers: usize,
    seconds: f64,
}

impl Options {
    fn read() -> Options {
        let levels = Level::available();
        let mut options = Options {
            types: vec![DType::Q8_0, DType::Q4_1],
            level: levels[levels.len() - 1],
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            sequences: vec![1, 2, 4, 8],
            depth: 128,
            layers: 30,
            seconds: 2.0,
        };
        for argument in std::env::args().skip(1) {
            let Some((name, value)) = argument.split_once('=') else { continue };
            let number = || value.parse::<usize>().unwrap();
            match name {
                "types" => options.types = value.split('+').map(|name| name.parse().unwrap()).collect(),
                "level" => options.level = levels.iter().copied().find(|l| l.to_string() == value).unwrap(),
                "threads" => options.threads = number(),
                "sequences" => options.sequences = value.split('+').map(|n| n.parse().unwrap()).collect(),
                "depth" => options.depth = number(),
                "layers" => options.layers = number(),
                "seconds" => options.seconds = value.parse().unwrap(),
                _ => panic!("unknown option {name}"),
            }
        }
        options
    }
}

fn main() {
    let options = Options::read();
    let peak = operations(options.level, true, options.threads);
    println!("{} instructions, {} threads, {:.0} Gop/s", options.level, options.threads, peak / 1e9);
    println!(
        "{:6} {:>5} {:>8} {:>9} {:>9} {:>8} {:>8} {:>7}",
        "type", "seqs", "nodes", "ms", "tokens/s", "GB/s", "memory", "of mem"
    );
    for &dtype in &options.types {
        let mut steps: Vec<Step> = options.sequences.iter().map(|&n| Step::new(&options, dtype, n)).collect();
        let sweep = Sweep::new(steps[0].weight_bytes);
        let (mut best, mut memory) = (vec![f64::INFINITY; steps.len()], 0.0f64);
        let start = Instant::now();
        while memory == 0.0 || start.elapsed().as_secs_f64() < options.seconds {
            for (best, step) in best.iter_mut().zip(&mut steps) {
                // Thread wake-ups are part of the first.
                for _ in 0..3 {
                    *best = best.min(seconds_of(false, || step.plan.compute().unwrap()));
                }
            }
            memory = memory.max(sweep.speed(options.threads));
        }
        for ((step, best), count) in steps.iter().zip(best).zip(&options.sequences) {
            let speed = step.weight_bytes as f64 / best;
            println!(
                "{:6} {:>5} {:>8} {:>9.3} {:>9.1} {:>8.2} {:>8.2} {:>7.2}",
                dtype.name(),
                count,
                step.nodes,
                best * 1e3,
                *count as f64 / best,
                speed / 1e9,
                memory / 1e9,
                speed / memory
            );
        }
    }
}

/// A step, ready to run.
struct Step {
    plan: Box<dyn Plan>,
    _stream: Box<dyn Stream>,
    weight_bytes: usize,
    nodes: usize,
}

/// A graph being made, and what is in the memory of its leaves.
struct Net {
    graph: Graph,
    leaves: Vec<(TensorId, Vec<u8>)>,
    dtype: DType,
    weight_bytes: usize,
}

impl Net {
    fn leaf(&mut self, dtype: DType, ne: impl Into<Shape>, pattern: Vec<u8>) -> TensorId {
        let id = self.graph.leaf(dtype, ne).unwrap();
        self.leaves.push((id, pattern));
        id
    }

    fn numbers(&mut self, numbers: &[i32], ne: impl Into<Shape>) -> TensorId {
        self.leaf(DType::I32, ne, numbers.iter().flat_map(|number| number.to_le_bytes()).collect())
    }

    fn product(&mut self, x: TensorId, from: usize, to: usize) -> TensorId {
        let mut row = vec![0; self.dtype.row_bytes(from).unwrap()];
        encode_row_at_run_time(self.dtype, &values(from), &mut row).unwrap();
        self.weight_bytes += row.len() * to;
        let weights = self.leaf(self.dtype, [from, to], row);
        self.graph.mul_mat(weights, x).unwrap()
    }

    fn norm(&mut self, x: TensorId) -> TensorId {
        let weights = self.leaf(DType::F32, [WIDTH], 1f32.to_le_bytes().to_vec());
        let norm = self.graph.rms_norm(x, 1e-5).unwrap();
        self.graph.mul(norm, weights).unwrap()
    }
}

fn values(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 2_654_435_761) % 1000) as f32 / 5000.0 - 0.1).collect()
}

impl Step {
    fn new(options: &Options, dtype: DType, sequences: usize) -> Step {
        let stream =
            CpuDevice::with_level(options.level).open(&StreamOptions::threads(options.threads)).unwrap();
        let mut net = Net { graph: Graph::new(), leaves: Vec::new(), dtype, weight_bytes: 0 };
        let pages = options.depth / PagedAttn::PAGE + 1;
        let cells = pages * sequences * PagedAttn::PAGE;
        let each =
            |number: &dyn Fn(i32) -> Vec<i32>| (0..sequences as i32).flat_map(number).collect::<Vec<_>>();
        let depth = options.depth as i32;
        let positions = net.numbers(&each(&|_| vec![depth]), [sequences]);
        let owners = net.numbers(&each(&|n| vec![n, depth]), [2, sequences]);
        let table =
            net.numbers(&each(&|n| (n * pages as i32..(n + 1) * pages as i32).collect()), [pages, sequences]);
        let rows = net.numbers(&each(&|n| vec![n * (pages * PagedAttn::PAGE) as i32 + depth]), [sequences]);
        let rope = Rope::new(HEAD, RopeMode::Normal, 10_000.0);
        let attention = PagedAttn {
            key_heads: KEY_HEADS,
            scale: (HEAD as f32).sqrt().recip(),
            softcap: 0.0,
            max_bias: 0.0,
            window: 0,
            chunk: 0,
        };
        let start: Vec<u8> = values(WIDTH).iter().flat_map(|x| x.to_le_bytes()).collect();
        let mut x = net.leaf(DType::F32, [WIDTH, sequences], start);
        for _ in 0..options.layers {
            let h = net.norm(x);
            let [q, k, v] = [HEADS, KEY_HEADS, KEY_HEADS].map(|heads| net.product(h, WIDTH, heads * HEAD));
            let caches = [0, 1].map(|_| net.leaf(DType::F16, [KEY_HEADS * HEAD, cells], vec![0; 64]));
            let graph = &mut net.graph;
            let [q, k] = [(q, HEADS), (k, KEY_HEADS)].map(|(x, heads)| {
                let heads = graph.reshape(x, [HEAD, heads, sequences]).unwrap();
                graph.rope(heads, positions, None, rope).unwrap()
            });
            let k = graph.reshape(k, [KEY_HEADS * HEAD, sequences]).unwrap();
            let keys = graph.set_rows(caches[0], k, rows).unwrap();
            let values = graph.set_rows(caches[1], v, rows).unwrap();
            let a = graph.paged_attn([q, keys, values], table, owners, None, attention).unwrap();
            let a = graph.reshape(a, [WIDTH, sequences]).unwrap();
            let a = net.product(a, WIDTH, WIDTH);
            x = net.graph.add(a, x).unwrap();
            let h = net.norm(x);
            let [gate, up] = [0, 1].map(|_| net.product(h, WIDTH, HIDDEN));
            let h = net.graph.glu_split(gate, up, GluKind::Swiglu).unwrap();
            let h = net.product(h, HIDDEN, WIDTH);
            x = net.graph.add(h, x).unwrap();
        }
        let h = net.norm(x);
        let y = net.product(h, WIDTH, VOCABULARY);
        net.graph.expand(y).unwrap();
        net.place(stream)
    }
}

impl Net {
    /// Puts leaves into one buffer and results into another, one after another.
    fn place(mut self, stream: Box<dyn Stream>) -> Step {
        let mut buffers = Buffers::new();
        let results: Vec<TensorId> = self.graph.nodes().to_vec();
        let results = results.into_iter().filter(|&id| {
            let node = self.graph.tensor(id).unwrap();
            !node.is_leaf() && node.view().is_none()
        });
        let groups = [self.leaves.iter().map(|(id, _)| *id).collect(), results.collect::<Vec<_>>()];
        for (group, ids) in groups.iter().enumerate() {
            let len_of = |id| self.graph.tensor(id).unwrap().byte_len().next_multiple_of(64);
            let lens: Vec<usize> = ids.iter().map(|&id| len_of(id)).collect();
            let all = lens.iter().sum();
            let buffer = allocate(&stream.device().buffer_type(), all).unwrap();
            let id_of_buffer = buffers.add(std::sync::Arc::clone(&buffer));
            let mut offset = 0;
            for (i, (&id, len)) in ids.iter().zip(lens).enumerate() {
                self.graph.bind(id, Storage { buffer: id_of_buffer, offset }, all).unwrap();
                let zeros = vec![0; 64];
                let pattern = if group == 0 { &self.leaves[i].1 } else { &zeros };
                let (end, mut at) = (offset + self.graph.tensor(id).unwrap().byte_len(), offset);
                while at < end {
                    let part = pattern.len().min(end - at);
                    buffer.write(at, &pattern[..part]).unwrap();
                    at += part;
                }
                offset += len;
            }
        }
        let nodes = self.graph.range(0..self.graph.nodes().len()).unwrap();
        let plan = stream.plan(Work { nodes, buffers: &buffers }).unwrap().unwrap();
        Step { plan, _stream: stream, weight_bytes: self.weight_bytes, nodes: self.graph.nodes().len() }
    }
}
