//! Graphs on the emulated card beside the same graphs on the CPU device, its twin.

use std::sync::Arc;

use oxcart_backend::{Buffers, Device, Stream, StreamOptions, Usage, Work, place_all};
use oxcart_cpu::CpuDevice;
use oxcart_tensor::ops::PagedAttn;
use oxcart_tensor::quant::{dequantize_row, encode_row_at_run_time};
use oxcart_tensor::{DType, Graph, Shape, TensorId};

/// Numbers between -1 and 1 that look random.
pub(super) struct Noise(pub(super) u64);

impl Noise {
    pub(super) fn number(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(super) fn numbers(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.number()).collect()
    }
}

/// A leaf and its bytes.
#[derive(Clone)]
pub(super) struct Leaf {
    pub(super) dtype: DType,
    pub(super) ne: Shape,
    pub(super) bytes: Vec<u8>,
    /// Whether it lies in memory that holds weights.
    pub(super) usage_weights: bool,
}

impl Leaf {
    /// Numbers that look random, in any type a graph can write.
    pub(super) fn noise(dtype: DType, ne: impl Into<Shape>, seed: u64) -> Leaf {
        Leaf::scaled(dtype, ne, seed, 1.0)
    }

    /// As [`noise`](Leaf::noise), of another size.
    pub(super) fn scaled(dtype: DType, ne: impl Into<Shape>, seed: u64, scale: f32) -> Leaf {
        let ne = ne.into();
        let numbers: Vec<f32> =
            Noise(seed).numbers(ne.elements().unwrap()).iter().map(|x| x * scale).collect();
        let mut bytes = vec![0; dtype.row_bytes(numbers.len()).unwrap()];
        encode_row_at_run_time(dtype, &numbers, &mut bytes).unwrap();
        Leaf { dtype, ne, bytes, usage_weights: false }
    }

    pub(super) fn i32(ne: impl Into<Shape>, numbers: &[i32]) -> Leaf {
        let bytes = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        Leaf { dtype: DType::I32, ne: ne.into(), bytes, usage_weights: false }
    }

    pub(super) fn i64(ne: impl Into<Shape>, numbers: &[i64]) -> Leaf {
        let bytes = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        Leaf { dtype: DType::I64, ne: ne.into(), bytes, usage_weights: false }
    }
}

/// What builds a graph over leaves and says which tensors are looked at.
pub(super) type Build<'b> = &'b dyn Fn(&mut Graph, &[TensorId]) -> Vec<TensorId>;

/// Computes a graph on a stream, through a plan if it makes one, so many times; the bytes of what is looked at.
pub(super) fn compute(
    stream: &dyn Stream,
    leaves: &[Leaf],
    build: Build<'_>,
    runs: usize,
) -> Vec<(DType, Vec<u8>)> {
    let mut graph = Graph::new();
    let ids: Vec<_> = leaves.iter().map(|leaf| graph.leaf(leaf.dtype, leaf.ne).unwrap()).collect();
    let wanted = build(&mut graph, &ids);
    for &id in &wanted {
        graph.mark_output(id).unwrap();
        graph.expand(id).unwrap();
    }
    let mut buffers = Buffers::new();
    let weights: Vec<_> =
        ids.iter().zip(leaves).filter(|(_, leaf)| leaf.usage_weights).map(|(&id, _)| id).collect();
    for id in place_all(&mut graph, &weights, &stream.device().buffer_type(), &mut buffers).unwrap() {
        buffers.get(id).unwrap().set_usage(Usage::Weights);
    }
    let all: Vec<_> = graph.ids().collect();
    place_all(&mut graph, &all, &stream.device().buffer_type(), &mut buffers).unwrap();
    let work = Work { nodes: graph.range(0..graph.nodes().len()).unwrap(), buffers: &buffers };
    let mut plan = stream.plan(work).unwrap().unwrap();
    for _ in 0..runs {
        for (leaf, &id) in leaves.iter().zip(&ids) {
            buffers.set(graph.tensor(id).unwrap(), 0, &leaf.bytes).unwrap();
        }
        plan.compute().unwrap();
        stream.synchronize().unwrap();
    }
    let read = |&id: &TensorId| {
        let tensor = graph.tensor(id).unwrap();
        (tensor.dtype(), buffers.bytes(tensor).unwrap())
    };
    wanted.iter().map(read).collect()
}

pub(super) fn floats(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; bytes.len() / dtype.block_bytes() * dtype.block_len()];
    dequantize_row(dtype, bytes, &mut out).unwrap();
    out
}

/// Squared error relative to the squared size.
pub(super) fn error(found: &[f32], wanted: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let wrong: f64 = found.iter().zip(wanted).map(|(a, b)| square(a - b)).sum();
    wrong / wanted.iter().map(|&x| square(x)).sum::<f64>().max(1e-30)
}

/// Compares a graph on the emulated card with the same on the CPU; returns the kernels that ran.
pub(super) fn check(name: &str, leaves: &[Leaf], build: Build<'_>, limit: f64) -> Vec<String> {
    let Some((driver, device)) = super::super::device() else { return Vec::new() };
    let card = Arc::clone(&device).open(&StreamOptions::default()).unwrap();
    let cpu = CpuDevice::new().unwrap().open(&StreamOptions::threads(2)).unwrap();
    let wanted = compute(&*cpu, leaves, build, 1);
    let mut launches = Vec::new();
    for runs in [1, 3] {
        let found = compute(&*card, leaves, build, runs);
        launches = driver.take_launches();
        for (index, ((dtype, found), (_, wanted))) in found.iter().zip(&wanted).enumerate() {
            let wrong = error(&floats(*dtype, found), &floats(*dtype, wanted));
            assert!(wrong <= limit, "{name}: result {index} is off by {wrong:.2e}, more than {limit:.0e}");
        }
    }
    launches
}

/// Tokens of several sequences over pages that lie anywhere.
fn paged_leaves(
    dtype: DType,
    d: usize,
    (heads, key_heads): (usize, usize),
    owners: &[[i32; 2]],
    pages: usize,
) -> Vec<Leaf> {
    let sequences = 3;
    // Pages of sequences are all over the place; the last ones are not there.
    let table: Vec<i32> =
        (0..sequences * pages).map(|i| ((i * 7 + 3) % (sequences * pages)) as i32).collect();
    let cells = sequences * pages * PagedAttn::PAGE;
    vec![
        Leaf::noise(DType::F32, [d, heads, owners.len()], 1),
        Leaf::noise(dtype, [d * key_heads, cells], 2),
        Leaf::noise(dtype, [d * key_heads, cells], 3),
        Leaf::i32([pages, sequences], &table),
        Leaf::i32([2, owners.len()], owners.as_flattened()),
        Leaf::noise(DType::F32, [heads], 4),
    ]
}

#[test]
fn attention_over_pages() {
    let prompt: Vec<[i32; 2]> = (0..37).map(|t| [1, 100 + t]).collect();
    let mixed: Vec<[i32; 2]> =
        (0..21).map(|t| if t < 9 { [0, 5 + t] } else { [2 - t % 2, 200 - t] }).chain([[-1, 0]]).collect();
    let tokens: [&[[i32; 2]]; 4] = [&[[2, 300]], &[[0, 0], [1, 311], [2, 64]], &prompt, &mixed];
    let mut turn = 0;
    for owners in tokens {
        for (dtype, d, heads, limit) in [
            (DType::F16, 64, (4, 2), 1e-5),
            (DType::F16, 128, (8, 2), 1e-5),
            (DType::F16, 80, (5, 1), 1e-5),
            (DType::BF16, 128, (8, 4), 5e-5),
            (DType::Q8_0, 128, (4, 1), 1e-4),
            (DType::Q4_0, 64, (6, 3), 2e-4),
            (DType::F32, 96, (4, 2), 1e-9),
            (DType::F16, 256, (2, 1), 1e-5),
        ] {
            // Every way in turn, so that each meets every type and every kind of step, not each all others.
            let op = [(0, 0, 0.0, 0.0), (50, 0, 0.0, 0.0), (0, 64, 30.0, 8.0)][turn % 3];
            let has_sinks = turn % 2 == 1;
            turn += 1;
            let (window, chunk, softcap, max_bias) = op;
            let scale = 1.0 / (d as f32).sqrt();
            let paged = PagedAttn { key_heads: heads.1, scale, softcap, max_bias, window, chunk };
            let leaves = paged_leaves(dtype, d, heads, owners, 5);
            let name = format!("{dtype} {d} {heads:?} {op:?} {} tokens, sinks {has_sinks}", owners.len());
            let build = |graph: &mut Graph, ids: &[TensorId]| {
                let sinks = has_sinks.then_some(ids[5]);
                vec![graph.paged_attn([ids[0], ids[1], ids[2]], ids[3], ids[4], sinks, paged).unwrap()]
            };
            check(&name, &leaves, &build, limit);
        }
        // Types and ways must not keep step with each other.
        turn += 1;
    }
}
