//! How fast matrix products are, as parts of what this processor and its memory can do.
//!
//! `cargo bench -p oxcart-cpu --bench matmul -- [types=q4_0+f32] [level=avx2] [threads=2] [m=4096] [k=4096] [n=512] [mv=1]
//! [widths=1+2+4+8+16+32] [mib=256] [seconds=2] [clock=cpu]`
//!
//! For each type two products are timed, as often as fits the time, medians printed:
//! - matrix times matrix (`n` columns), in operations per second, where a multiplication and an addition are two. The
//!   ceiling is a loop that does nothing but multiply-adds in registers, on all threads: of floats for float types, of
//!   8-bit integers for quantized ones (`vpdpbusd`, or `vpmaddubsw` + `vpmaddwd` + `vpaddd` with AVX2).
//! - matrix times vector (`mv` columns), in bytes of weights per second. The ceiling is a sum over as much memory, on
//!   all threads.
//!
//! Then products of the same weights with few columns, what decoding several sequences at once needs: for each of `widths`,
//! operations per second, and how many times as many columns are done in a second as one column at a time. All widths are
//! timed in turns, the best of each is taken. `n=0`, `mv=0` or `widths=` leaves a part out. Weights for few columns are several
//! matrices, `mib` MiB in all; so many that none is still in a cache, unless less is asked for.
//!
//! Ceilings are measured right before and after each product, because machines get slower and faster. Each number is the
//! best of three tries, of ceilings and products alike.
#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]
#![allow(missing_docs, clippy::unwrap_used, reason = "not part of the library")]

#[path = "shared/ceiling.rs"]
mod ceiling;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ceiling::{Sweep, operations, seconds_of};
use oxcart_backend::{Buffers, Device, Plan, Stream, StreamOptions, Work, allocate};
use oxcart_cpu::{CpuDevice, Level};
use oxcart_tensor::graph::Storage;
use oxcart_tensor::quant::encode_row_at_run_time;
use oxcart_tensor::{DType, Graph, TensorId};

struct Options {
    types: Vec<DType>,
    levels: Vec<Level>,
    threads: usize,
    m: usize,
    k: usize,
    n: usize,
    mv: usize,
    widths: Vec<usize>,
    mib: usize,
    seconds: f64,
    cpu_time: bool,
}

impl Options {
    fn read() -> Options {
        let mut options = Options {
            types: [
                "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q4_K", "q5_K", "q6_K", "q2_K", "q3_K",
                "iq4_nl", "iq4_xs",
            ]
            .map(|name| name.parse().unwrap())
            .to_vec(),
            levels: Level::available().into_iter().rev().take(1).collect(),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            m: 4096,
            k: 4096,
            n: 512,
            mv: 1,
            widths: vec![1, 2, 4, 8, 16, 32],
            mib: 256,
            seconds: 2.0,
            cpu_time: false,
        };
        for argument in std::env::args().skip(1) {
            let Some((name, value)) = argument.split_once('=') else { continue };
            let number = || value.parse::<usize>().unwrap();
            match name {
                "types" => options.types = value.split('+').map(|name| name.parse().unwrap()).collect(),
                "level" => {
                    options.levels = Level::available();
                    options.levels.retain(|level| value == "all" || level.to_string() == value);
                }
                "threads" => options.threads = number(),
                "m" => options.m = number(),
                "k" => options.k = number(),
                "n" => options.n = number(),
                "mv" => options.mv = number(),
                "widths" => {
                    let widths = value.split('+').filter(|width| !width.is_empty());
                    options.widths = widths.map(|width| width.parse().unwrap()).collect();
                }
                "mib" => options.mib = number(),
                "clock" => options.cpu_time = value == "cpu",
                "seconds" => options.seconds = value.parse().unwrap(),
                _ => panic!("unknown option {name}"),
            }
        }
        options
    }
}

fn main() {
    let options = Options::read();
    println!(
        "m={} k={} n={} mv={}, {} threads",
        options.m, options.k, options.n, options.mv, options.threads
    );
    println!(
        "{:8} {:8} {:>10} {:>10} {:>8} {:>8} {:>10} {:>8}",
        "level", "type", "Gop/s", "peak", "of peak", "GB/s", "memory", "of mem"
    );
    for &level in &options.levels {
        for &dtype in options.types.iter().filter(|_| options.n > 0 || options.mv > 0) {
            bench(&options, level, dtype);
        }
    }
    if options.widths.is_empty() {
        return;
    }
    print!("\n{:8} {:8}", "level", "type");
    options.widths.iter().for_each(|width| print!(" {:>7} {:>6}", format!("n={width}"), "times"));
    println!();
    for &level in &options.levels {
        for &dtype in &options.types {
            few(&options, level, dtype);
        }
    }
}

/// Prints Gop/s for each width, and columns per second in parts of what the first width would give one at a time.
fn few(options: &Options, level: Level, dtype: DType) {
    let &Options { m, k, threads, seconds, .. } = options;
    let matrices = (options.mib << 20).div_ceil(dtype.row_bytes(k).unwrap() * m);
    let product =
        |width: &usize| (*width, f64::MAX, Product::new(level, threads, dtype, [k, m, matrices], *width));
    let mut products: Vec<_> = options.widths.iter().map(product).collect();
    let start = Instant::now();
    let mut rounds = 0;
    while rounds < TRIES || start.elapsed().as_secs_f64() < seconds {
        for (_, best, product) in &mut products {
            *best = best.min(product.seconds(options));
        }
        rounds += 1;
    }
    print!("{level:8} {dtype:8}");
    let (first_width, first, _) = &products[0];
    for (width, best, _) in &products {
        let count = 2.0 * (m * k * matrices * width) as f64;
        let times = (*width as f64 / best) / (*first_width as f64 / first);
        print!(" {:7.1} {times:6.2}", count / best / 1e9);
    }
    println!();
}

/// Prints how near products with many columns and with one come to the ceilings.
fn bench(options: &Options, level: Level, dtype: DType) {
    let &Options { m, k, n, mv, threads, seconds, .. } = options;
    let time = Duration::from_secs_f64(seconds);
    let mut matrix = NOT_MEASURED;
    if n > 0 {
        let mut product = Product::new(level, threads, dtype, [k, m, 1], n);
        let count = 2.0 * (m * k * n) as f64;
        matrix = alternate(
            time,
            || operations(level, dtype.is_quantized(), threads),
            || count / product.seconds(options),
        );
    }
    let mut vector = NOT_MEASURED;
    if mv > 0 {
        let bytes = dtype.row_bytes(k).unwrap() * m;
        let matrices = (options.mib << 20).div_ceil(bytes);
        let mut product = Product::new(level, threads, dtype, [k, m, matrices], mv);
        let sweep = Sweep::new(bytes * matrices);
        let count = (bytes * matrices) as f64;
        vector = alternate(time, || sweep.speed(threads), || count / product.seconds(options));
    }
    println!(
        "{:8} {:8} {:10.1} {:10.1} {:8.2} {:8.2} {:10.2} {:8.2}",
        level,
        dtype,
        matrix.speed / 1e9,
        matrix.ceiling / 1e9,
        matrix.part,
        vector.speed / 1e9,
        vector.ceiling / 1e9,
        vector.part
    );
}

/// A ceiling and what was reached, and the part of the one that the other is.
#[derive(Clone, Copy)]
struct Reached {
    ceiling: f64,
    speed: f64,
    part: f64,
}

const NOT_MEASURED: Reached = Reached { ceiling: f64::NAN, speed: f64::NAN, part: f64::NAN };

/// Tries for one number, the best of which counts: now and then two threads share a core for a while, or something else runs.
const TRIES: usize = 3;

/// Measures a ceiling and a speed in turns, and gives the medians: of each, and of the parts, every speed being compared
/// with the ceilings right before and after it.
fn alternate(time: Duration, mut ceiling: impl FnMut() -> f64, mut speed: impl FnMut() -> f64) -> Reached {
    let start = Instant::now();
    let mut ceiling = || (0..TRIES).map(|_| ceiling()).fold(0.0, f64::max);
    let mut speed = || (0..TRIES).map(|_| speed()).fold(0.0, f64::max);
    let (mut ceilings, mut speeds, mut parts) = (vec![ceiling()], Vec::new(), Vec::new());
    while speeds.len() < 3 || start.elapsed() < time {
        let reached = speed();
        let (before, after) = (ceilings[ceilings.len() - 1], ceiling());
        speeds.push(reached);
        ceilings.push(after);
        parts.push(2.0 * reached / (before + after));
    }
    Reached { ceiling: median(ceilings), speed: median(speeds), part: median(parts) }
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// A graph of one product, ready to run.
struct Product {
    plan: Box<dyn Plan>,
    _stream: Box<dyn Stream>,
}

impl Product {
    fn new(level: Level, threads: usize, dtype: DType, [k, m, matrices]: [usize; 3], n: usize) -> Product {
        let stream = CpuDevice::with_level(level).open(&StreamOptions::threads(threads)).unwrap();
        let mut graph = Graph::new();
        let a = graph.leaf(dtype, [k, m, matrices, 1]).unwrap();
        let b = graph.leaf(DType::F32, [k, n, matrices, 1]).unwrap();
        let y = graph.mul_mat(a, b).unwrap();
        graph.expand(y).unwrap();
        let mut buffers = Buffers::new();
        let mut place = |id: TensorId, contents: Option<Vec<u8>>| {
            let len = graph.tensor(id).unwrap().byte_len();
            let buffer = allocate(&stream.device().buffer_type(), len).unwrap();
            let pattern = contents.unwrap_or_else(|| vec![0; 4096]);
            for at in (0..len).step_by(pattern.len()) {
                buffer.write(at, &pattern[..pattern.len().min(len - at)]).unwrap();
            }
            let storage = Storage { buffer: buffers.add(Arc::clone(&buffer)), offset: 0 };
            graph.bind(id, storage, len).unwrap();
        };
        let values = |count: usize| -> Vec<f32> {
            (0..count).map(|i| ((i * 2_654_435_761) % 1000) as f32 / 500.0 - 1.0).collect()
        };
        let mut row = vec![0; dtype.row_bytes(k).unwrap()];
        encode_row_at_run_time(dtype, &values(k), &mut row).unwrap();
        place(a, Some(row));
        let mut row = vec![0; 4 * k];
        encode_row_at_run_time(DType::F32, &values(k), &mut row).unwrap();
        place(b, Some(row));
        place(y, None);
        let nodes = graph.range(0..graph.nodes().len()).unwrap();
        let plan = stream.plan(Work { nodes, buffers: &buffers }).unwrap().unwrap();
        Product { plan, _stream: stream }
    }

    /// How long one run takes.
    fn seconds(&mut self, options: &Options) -> f64 {
        let all = seconds_of(options.cpu_time, || self.plan.compute().unwrap());
        if options.cpu_time { all / options.threads as f64 } else { all }
    }
}
