//! How fast attention is: over pages (PAGED_ATTN), beside the same over one cache (FLASH_ATTN_EXT), beside memory.
//!
//! `cargo bench -p oxcart-cpu --bench attention -- [only=smollm2] [types=f16+q8_0] [level=avx2] [threads=2] [seconds=1]
//! [kinds=decode+prompt] [most=1024] [clock=cpu]`
//!
//! Decoding is one token of each of several sequences, at some depth; a prompt is 512 tokens of one sequence. Pages are in
//! random order. For decoding, bytes of keys and values per second are compared with a sum over as much memory; for prompts,
//! operations per second with a loop that only multiplies and adds floats. The three are measured in turns, the best of
//! each counts. `most` bounds a case in MiB of keys and values. With one thread, `clock=cpu` measures the time that it
//! computed for, which says more on a machine that others use too.
#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]
#![allow(missing_docs, clippy::unwrap_used, reason = "not part of the library")]

#[path = "shared/ceiling.rs"]
mod ceiling;

use std::sync::Arc;
use std::time::Instant;

use half::f16;
use oxcart_backend::{Buffer, Buffers, Device, Plan, Stream, StreamOptions, Work, allocate};
use oxcart_cpu::{CpuDevice, Level};
use oxcart_tensor::graph::{BufferId, Storage};
use oxcart_tensor::ops::{FlashAttnExt, PagedAttn, Precision};
use oxcart_tensor::quant::encode_row_at_run_time;
use oxcart_tensor::{DType, Graph, Layout, TensorId};

use ceiling::{Sweep, operations, seconds_of};

const PAGE: usize = PagedAttn::PAGE;

/// Tokens of a prompt.
const PROMPT: usize = 512;

#[derive(Clone, Copy)]
struct Model {
    name: &'static str,
    heads: usize,
    key_heads: usize,
    size: usize,
}

const MODELS: [Model; 2] = [
    Model { name: "smollm2", heads: 9, key_heads: 3, size: 64 },
    Model { name: "llama-8b", heads: 32, key_heads: 8, size: 128 },
];

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// One token of so many sequences, all with so many tokens before.
    Decode { sequences: usize, depth: usize },
    /// Tokens of one sequence, with so many before.
    Prompt { depth: usize },
}

impl Kind {
    fn all() -> Vec<Kind> {
        let mut kinds = Vec::new();
        for sequences in [1, 8, 32] {
            kinds.extend([512, 4096, 16384].map(|depth| Kind::Decode { sequences, depth }));
        }
        kinds.extend([0, 4096].map(|depth| Kind::Prompt { depth }));
        kinds
    }

    fn sequences(self) -> usize {
        match self {
            Kind::Decode { sequences, .. } => sequences,
            Kind::Prompt { .. } => 1,
        }
    }

    /// Tokens of a sequence that are computed.
    fn tokens(self) -> usize {
        match self {
            Kind::Decode { .. } => 1,
            Kind::Prompt { .. } => PROMPT,
        }
    }

    /// Keys of a sequence.
    fn keys(self) -> usize {
        match self {
            Kind::Decode { depth, .. } => depth,
            Kind::Prompt { depth } => depth + PROMPT,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Decode { .. } => "decode",
            Kind::Prompt { .. } => "prompt",
        }
    }
}

struct Options {
    models: Vec<Model>,
    types: Vec<DType>,
    kinds: Vec<Kind>,
    level: Level,
    threads: usize,
    seconds: f64,
    most_bytes: usize,
    cpu_time: bool,
}

impl Options {
    fn read() -> Options {
        let levels = Level::available();
        let mut options = Options {
            models: MODELS.to_vec(),
            types: vec![DType::F16, DType::Q8_0],
            kinds: Kind::all(),
            level: levels[levels.len() - 1],
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            seconds: 1.0,
            most_bytes: 1 << 30,
            cpu_time: false,
        };
        for argument in std::env::args().skip(1) {
            let Some((name, value)) = argument.split_once('=') else { continue };
            match name {
                "only" => options.models.retain(|model| model.name == value),
                "types" => options.types = value.split('+').map(|name| name.parse().unwrap()).collect(),
                "kinds" => options.kinds.retain(|kind| value.split('+').any(|name| name == kind.name())),
                "level" => options.level = levels.iter().copied().find(|l| l.to_string() == value).unwrap(),
                "threads" => options.threads = value.parse().unwrap(),
                "seconds" => options.seconds = value.parse().unwrap(),
                "most" => options.most_bytes = value.parse::<usize>().unwrap() << 20,
                "clock" => options.cpu_time = value == "cpu",
                _ => panic!("unknown option {name}"),
            }
        }
        options
    }
}

fn main() {
    let options = Options::read();
    println!("{} instructions, {} threads", options.level, options.threads);
    println!(
        "{:9} {:5} {:6} {:>4} {:>6} {:>10} {:>10} {:>7} {:>9} {:>9} {:>9}",
        "model", "cache", "", "seqs", "depth", "flash us", "paged us", "ratio", "reached", "ceiling", "part"
    );
    for &model in &options.models {
        for &dtype in &options.types {
            for &kind in &options.kinds {
                bench(&options, model, dtype, kind);
            }
        }
    }
}

fn bench(options: &Options, model: Model, dtype: DType, kind: Kind) {
    let row = dtype.row_bytes(model.size * model.key_heads).unwrap();
    let bytes = 2 * row * kind.sequences() * kind.keys();
    if bytes > options.most_bytes {
        return;
    }
    let mut case = Case::new(options, model, dtype, kind);
    let sweep = Sweep::new(bytes.max(1 << 20));
    let ceiling = || match kind {
        Kind::Decode { .. } => sweep.speed(options.threads),
        Kind::Prompt { .. } => operations(options.level, false, options.threads),
    };
    let (mut best, mut most) = ([f64::INFINITY; 2], 0.0f64);
    let start = Instant::now();
    let mut rounds = 0;
    while rounds < 5 || start.elapsed().as_secs_f64() < options.seconds {
        for (best, plan) in best.iter_mut().zip(&mut case.plans) {
            *best = best.min(seconds_of(options.cpu_time, || plan.compute().unwrap()));
        }
        most = most.max(ceiling());
        rounds += 1;
    }
    let (depth, amount, unit) = match kind {
        Kind::Decode { depth, .. } => (depth, bytes as f64, "GB/s"),
        Kind::Prompt { depth } => {
            let pairs = (PROMPT * depth + PROMPT * (PROMPT + 1) / 2) as f64;
            (depth, pairs * (4 * model.size * model.heads) as f64, "GF/s")
        }
    };
    let reached = amount / best[1];
    println!(
        "{:9} {:5} {:6} {:>4} {:>6} {:>10.1} {:>10.1} {:>7.2} {:>4.0} {unit} {:>4.0} {unit} {:>9.2}",
        model.name,
        dtype.name(),
        kind.name(),
        kind.sequences(),
        depth,
        best[0] * 1e6,
        best[1] * 1e6,
        best[0] / best[1],
        reached / 1e9,
        most / 1e9,
        reached / most,
    );
}

/// The same attention in two ways, over the same memory.
struct Case {
    plans: [Box<dyn Plan>; 2],
    _stream: Box<dyn Stream>,
}

/// Puts tensors into memory.
struct Places<'a> {
    stream: &'a dyn Stream,
    buffers: Buffers,
    lengths: Vec<usize>,
}

impl Places<'_> {
    fn put(&mut self, len: usize, pattern: &[u8]) -> BufferId {
        let buffer: Arc<dyn Buffer> = allocate(&self.stream.device().buffer_type(), len.max(1)).unwrap();
        for at in (0..len).step_by(pattern.len()) {
            buffer.write(at, &pattern[..pattern.len().min(len - at)]).unwrap();
        }
        self.lengths.push(len);
        self.buffers.add(buffer)
    }

    fn bind(&self, graph: &mut Graph, id: TensorId, buffer: BufferId) {
        let len = self.lengths[buffer.0 as usize];
        graph.bind(id, Storage { buffer, offset: 0 }, len).unwrap();
    }
}

fn values(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 2_654_435_761) % 1000) as f32 / 500.0 - 1.0).collect()
}

fn encoded(dtype: DType, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; dtype.row_bytes(values.len()).unwrap()];
    encode_row_at_run_time(dtype, values, &mut bytes).unwrap();
    bytes
}

fn words(words: &[i32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

impl Case {
    fn new(options: &Options, model: Model, dtype: DType, kind: Kind) -> Case {
        let device = CpuDevice::with_level(options.level);
        let stream = device.open(&StreamOptions::threads(options.threads)).unwrap();
        let mut places = Places { stream: &*stream, buffers: Buffers::new(), lengths: Vec::new() };
        let Model { heads, key_heads, size, .. } = model;
        let (sequences, tokens, keys) = (kind.sequences(), kind.tokens(), kind.keys());
        let (cells, width) = (sequences * keys, size * key_heads);
        let row = dtype.row_bytes(width).unwrap();
        let cache = encoded(dtype, &values(width * 61));
        let caches = [places.put(row * cells, &cache), places.put(row * cells, &cache)];
        let queries =
            places.put(4 * size * heads * tokens * sequences, &encoded(DType::F32, &values(size * 67)));
        let result = places.put(4 * size * heads * tokens * sequences, &[0; 64]);
        let flash = flash(&mut places, model, dtype, kind, [queries, caches[0], caches[1], result]);
        let paged = paged(&mut places, model, dtype, kind, [queries, caches[0], caches[1], result]);
        let plans = [flash, paged].map(|graph| {
            let nodes = graph.range(0..graph.nodes().len()).unwrap();
            stream.plan(Work { nodes, buffers: &places.buffers }).unwrap().unwrap()
        });
        Case { plans, _stream: stream }
    }
}

/// Sequences one after another in one cache, as a batch.
fn flash(places: &mut Places<'_>, model: Model, dtype: DType, kind: Kind, memory: [BufferId; 4]) -> Graph {
    let Model { heads, key_heads, size, .. } = model;
    let (sequences, tokens, keys) = (kind.sequences(), kind.tokens(), kind.keys());
    let mut graph = Graph::new();
    let leaf = |graph: &mut Graph, dtype: DType, ne: [usize; 4], memory| {
        // Tokens before heads, as a cache has them.
        let (block, part) = (dtype.block_bytes(), dtype.row_bytes(ne[0]).unwrap());
        let nb = [block, part * ne[2], part, part * ne[2] * ne[1]];
        let id = graph.leaf_with_layout(Layout::strided(dtype, ne, nb).unwrap()).unwrap();
        places.bind(graph, id, memory);
        id
    };
    let q = leaf(&mut graph, DType::F32, [size, tokens, heads, sequences], memory[0]);
    let [k, v] = [1, 2].map(|i| leaf(&mut graph, dtype, [size, keys, key_heads, sequences], memory[i]));
    let mut mask = Vec::new();
    for token in 0..tokens {
        let seen = keys - tokens + token;
        mask.extend((0..keys).map(|key| if key <= seen { f16::ZERO } else { f16::NEG_INFINITY }));
    }
    let bytes: Vec<_> = mask.iter().flat_map(|x| x.to_le_bytes()).collect();
    let place = places.put(bytes.len(), &bytes);
    let mask = graph.leaf(DType::F16, [keys, tokens, 1, 1]).unwrap();
    places.bind(&mut graph, mask, place);
    let scale = (size as f32).sqrt().recip();
    let op = FlashAttnExt { scale, max_bias: 0.0, softcap: 0.0, precision: Precision::Any, n_kv_max: 0 };
    let y = graph.flash_attn_ext([q, k, v], Some(mask), None, op).unwrap();
    graph.expand(y).unwrap();
    places.bind(&mut graph, y, memory[3]);
    graph
}

fn paged(places: &mut Places<'_>, model: Model, dtype: DType, kind: Kind, memory: [BufferId; 4]) -> Graph {
    let Model { heads, key_heads, size, .. } = model;
    let (sequences, tokens, keys) = (kind.sequences(), kind.tokens(), kind.keys());
    let pages = sequences * keys / PAGE;
    let mut table: Vec<_> = (0..pages as i32).collect();
    let mut state = 1u64;
    for last in (1..pages).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        table.swap(last, (state >> 33) as usize % (last + 1));
    }
    let mut places_of_tokens = Vec::new();
    for sequence in 0..sequences as i32 {
        let first = (keys - tokens) as i32;
        places_of_tokens.extend((first..keys as i32).flat_map(|position| [sequence, position]));
    }
    let mut graph = Graph::new();
    let leaf = |graph: &mut Graph, dtype, ne: [usize; 3], memory| {
        let id = graph.leaf(dtype, ne).unwrap();
        places.bind(graph, id, memory);
        id
    };
    let q = leaf(&mut graph, DType::F32, [size, heads, tokens * sequences], memory[0]);
    let caches = [1, 2].map(|i| leaf(&mut graph, dtype, [size * key_heads, keys * sequences, 1], memory[i]));
    let mut indices = |graph: &mut Graph, ne: [usize; 3], numbers: &[i32]| {
        let place = places.put(4 * numbers.len(), &words(numbers));
        let id = graph.leaf(DType::I32, ne).unwrap();
        places.bind(graph, id, place);
        id
    };
    let table = indices(&mut graph, [keys / PAGE, sequences, 1], &table);
    let tokens = indices(&mut graph, [2, tokens * sequences, 1], &places_of_tokens);
    let scale = (size as f32).sqrt().recip();
    let op = PagedAttn { key_heads, scale, softcap: 0.0, max_bias: 0.0, window: 0, chunk: 0 };
    let y = graph.paged_attn([q, caches[0], caches[1]], table, tokens, None, op).unwrap();
    graph.expand(y).unwrap();
    places.bind(&mut graph, y, memory[3]);
    graph
}
