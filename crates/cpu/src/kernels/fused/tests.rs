//! Fused nodes against the same nodes one by one: an intermediate result that is an output is never fused away.

use std::sync::Arc;

use oxcart_backend::{Backend, Buffers, Device, Work, allocate};
use oxcart_tensor::graph::Storage;
use oxcart_tensor::ops::{RopeMode, Unary};
use oxcart_tensor::{DType, Graph, TensorId, ops};

use super::fuse;
use crate::kernels::testing::noise;
use crate::{CpuDevice, Level};

/// Bytes that every tensor of a test gets.
const ROOM: usize = 1 << 17;

/// Runs a graph with every leaf and node in a place of its own and gives the bytes of the last node and of `also`.
fn run(
    level: Level,
    threads: usize,
    apart: bool,
    build: &dyn Fn(&mut Graph) -> (Vec<TensorId>, Vec<TensorId>),
) -> Vec<Vec<u8>> {
    let backend = CpuDevice::with_level(level).open(&format!("threads={threads}")).unwrap();
    let mut graph = Graph::new();
    let (intermediate, wanted) = build(&mut graph);
    for &id in &wanted {
        graph.expand(id).unwrap();
    }
    if apart {
        for &id in &intermediate {
            graph.mark_output(id).unwrap();
        }
    }
    let buffer = allocate(&backend.device().buffer_type(), ROOM * graph.len()).unwrap();
    let mut buffers = Buffers::new();
    let id = buffers.add(Arc::clone(&buffer));
    let ids: Vec<_> = graph.leaves().iter().chain(graph.nodes()).copied().collect();
    for (i, &tensor) in ids.iter().enumerate() {
        let (is_view, is_leaf, dtype, len) = {
            let tensor = graph.tensor(tensor).unwrap();
            (tensor.view().is_some(), tensor.is_leaf(), tensor.dtype(), tensor.layout().elements())
        };
        if is_view {
            continue;
        }
        graph.bind(tensor, Storage { buffer: id, offset: i * ROOM }, buffer.len()).unwrap();
        let bytes: Vec<u8> = match dtype {
            DType::F32 if is_leaf => noise(len, i as u32).iter().flat_map(|x| x.to_le_bytes()).collect(),
            DType::I32 => (0..len as i32).flat_map(|x| (x * 3).to_le_bytes()).collect(),
            DType::I64 => (0..len as i64).flat_map(|x| (len as i64 - 1 - x).to_le_bytes()).collect(),
            _ => continue,
        };
        buffer.write(i * ROOM, &bytes).unwrap();
    }
    let nodes = graph.range(0..graph.nodes().len()).unwrap();
    backend.compute_and_wait(Work { nodes, buffers: &buffers }).unwrap();
    wanted.iter().map(|&id| buffers.bytes(graph.tensor(id).unwrap()).unwrap()).collect()
}

fn check(nodes: usize, build: &dyn Fn(&mut Graph) -> (Vec<TensorId>, Vec<TensorId>)) {
    let mut graph = Graph::new();
    for id in build(&mut graph).1 {
        graph.expand(id).unwrap();
    }
    let all: Vec<_> =
        graph.nodes().iter().map(|&id| graph.tensor(id).unwrap()).filter(|node| node.computes()).collect();
    assert_eq!(fuse(&all, Level::Scalar).map(|unit| unit.nodes), Some(nodes), "not fused");
    for level in Level::available() {
        let expected = run(level, 1, true, build);
        for threads in [1, 3] {
            assert_eq!(run(level, threads, false, build), expected, "{level}, {threads} threads");
        }
    }
}

#[test]
fn norm_and_weights() {
    for (ne, weights) in [([300, 90, 1, 1], [300, 1, 1, 1]), ([64, 5, 3, 2], [64, 1, 3, 1])] {
        check(2, &|graph| {
            let a = graph.leaf(DType::F32, ne).unwrap();
            let w = graph.leaf(DType::F32, weights).unwrap();
            let norm = graph.rms_norm(a, 1e-5).unwrap();
            let y = graph.mul(norm, w).unwrap();
            (vec![norm], vec![y])
        });
    }
}

#[test]
fn sum_norm_and_weights() {
    check(3, &|graph| {
        let a = graph.leaf(DType::F32, [257, 90, 1, 1]).unwrap();
        let b = graph.leaf(DType::F32, [257, 90, 1, 1]).unwrap();
        let w = graph.leaf(DType::F32, [257, 1, 1, 1]).unwrap();
        let sum = graph.add(a, b).unwrap();
        let norm = graph.rms_norm(sum, 1e-6).unwrap();
        let y = graph.mul(norm, w).unwrap();
        let later = graph.add(sum, y).unwrap();
        (vec![norm], vec![later, y, sum])
    });
    check(2, &|graph| {
        let a = graph.leaf(DType::F32, [100, 3, 1, 1]).unwrap();
        let b = graph.leaf(DType::F32, [100, 3, 1, 1]).unwrap();
        let sum = graph.add(a, b).unwrap();
        let norm = graph.rms_norm(sum, 1e-6).unwrap();
        (vec![sum], vec![norm, sum])
    });
}

#[test]
fn activation_and_gate() {
    for function in [Unary::Silu, Unary::Gelu, Unary::GeluErf, Unary::GeluQuick] {
        check(2, &|graph| {
            let x = graph.leaf(DType::F32, [301, 70, 1, 1]).unwrap();
            let g = graph.leaf(DType::F32, [301, 70, 1, 1]).unwrap();
            let activated = graph.unary(x, function).unwrap();
            let y = graph.mul(g, activated).unwrap();
            (vec![activated], vec![y])
        });
    }
}

#[test]
fn rotated_keys_into_a_cache() {
    for dtype in [DType::F32, DType::F16, DType::Q8_0] {
        check(2, &|graph| {
            let a = graph.leaf(DType::F32, [32, 4, 20, 1]).unwrap();
            let positions = graph.leaf(DType::I32, [20, 1, 1, 1]).unwrap();
            let rows = graph.leaf(DType::I64, [20, 1, 1, 1]).unwrap();
            let cache = graph.leaf(dtype, [128, 40, 1, 1]).unwrap();
            let rope = ops::Rope {
                n_dims: 32,
                mode: RopeMode::Neox,
                n_ctx_orig: 512,
                freq_base: 10_000.0,
                freq_scale: 1.0,
                ext_factor: 0.0,
                attn_factor: 1.0,
                beta_fast: 32.0,
                beta_slow: 1.0,
                sections: [0; 4],
                first_channel: 0,
            };
            let rotated = graph.apply(rope, &[Some(a), Some(positions), None]).unwrap();
            let flat = graph.reshape(rotated, [128, 20, 1, 1]).unwrap();
            let y = graph.apply(ops::SetRows, &[Some(flat), Some(rows), Some(cache)]).unwrap();
            (vec![rotated], vec![y])
        });
    }
}

#[test]
fn what_somebody_else_reads_is_not_fused_away() {
    let mut graph = Graph::new();
    let a = graph.leaf(DType::F32, [8, 2, 1, 1]).unwrap();
    let w = graph.leaf(DType::F32, [8, 1, 1, 1]).unwrap();
    let norm = graph.rms_norm(a, 1e-5).unwrap();
    let y = graph.mul(norm, w).unwrap();
    let z = graph.add(norm, y).unwrap();
    graph.expand(z).unwrap();
    let all: Vec<_> = graph.nodes().iter().map(|&id| graph.tensor(id).unwrap()).collect();
    assert!(fuse(&all, Level::Scalar).is_none());
}
