//! Fused nodes against the same nodes one by one: an intermediate result that is an output is never fused away.

use oxcart_tensor::ops::{RopeMode, Unary};
use oxcart_tensor::{DType, Graph, TensorId, ops};

use crate::kernels::testing::{CpuDevice, Level, Tensor, compute_graph};

/// Nodes that a test makes of leaves: intermediate results, and those it looks at.
type Nodes = (Vec<TensorId>, Vec<TensorId>);

/// Numbers of a float type that look random.
fn noise(ne: [usize; 4], seed: u64) -> Tensor {
    Tensor::noise(DType::F32, ne, seed)
}

/// Checks that the first `nodes` nodes are computed in one go, and that this changes nothing.
fn check(nodes: usize, sources: &[Tensor], build: &dyn Fn(&mut Graph, &[TensorId]) -> Nodes) {
    let mut graph = Graph::new();
    let leaves: Vec<_> =
        sources.iter().map(|source| graph.leaf_with_layout(source.layout).unwrap()).collect();
    for id in build(&mut graph, &leaves).1 {
        graph.expand(id).unwrap();
    }
    let all: Vec<_> =
        graph.nodes().iter().map(|&id| graph.tensor(id).unwrap()).filter(|node| node.computes()).collect();
    assert_eq!(CpuDevice::with_level(Level::Scalar).fused(&all), Some(nodes), "not fused");
    let sources: Vec<_> = sources.iter().collect();
    for level in Level::available() {
        let run = |threads, apart| {
            let build = |graph: &mut Graph, leaves: &[TensorId]| {
                let (intermediate, wanted) = build(graph, leaves);
                if apart {
                    intermediate.iter().for_each(|&id| graph.mark_output(id).unwrap());
                }
                wanted
            };
            compute_graph(level, threads, &sources, None, &build).unwrap()
        };
        let expected = run(1, true);
        for threads in [1, 2, 3] {
            assert!(run(threads, false) == expected, "{level}, {threads} threads");
        }
    }
}

#[test]
fn norm_and_weights() {
    for (ne, weights) in [
        ([300, 90, 1, 1], [300, 1, 1, 1]),
        ([64, 5, 3, 2], [64, 1, 3, 1]),
        ([130, 3, 2, 1], [130, 3, 1, 1]),
        ([1, 3, 2, 1], [1, 1, 1, 1]),
    ] {
        check(2, &[noise(ne, 1), noise(weights, 2)], &|graph, leaves| {
            let norm = graph.rms_norm(leaves[0], 1e-5).unwrap();
            let y = graph.mul(norm, leaves[1]).unwrap();
            (vec![norm], vec![y])
        });
    }
}

#[test]
fn sum_norm_and_weights() {
    let ne = [257, 90, 1, 1];
    check(3, &[noise(ne, 1), noise(ne, 2), noise([257, 1, 1, 1], 3)], &|graph, leaves| {
        let sum = graph.add(leaves[0], leaves[1]).unwrap();
        let norm = graph.rms_norm(sum, 1e-6).unwrap();
        let y = graph.mul(norm, leaves[2]).unwrap();
        let later = graph.add(sum, y).unwrap();
        (vec![norm], vec![later, y, sum])
    });
    let ne = [100, 3, 1, 1];
    check(2, &[noise(ne, 1), noise(ne, 2)], &|graph, leaves| {
        let sum = graph.add(leaves[0], leaves[1]).unwrap();
        let norm = graph.rms_norm(sum, 1e-6).unwrap();
        (vec![sum], vec![norm, sum])
    });
}

#[test]
fn activation_and_gate() {
    let ne = [301, 70, 1, 1];
    for function in [Unary::Silu, Unary::Gelu, Unary::GeluErf, Unary::GeluQuick] {
        check(2, &[noise(ne, 1), noise(ne, 2)], &|graph, leaves| {
            let activated = graph.unary(leaves[0], function).unwrap();
            let y = graph.mul(leaves[1], activated).unwrap();
            (vec![activated], vec![y])
        });
    }
}

#[test]
fn rotated_keys_into_a_cache() {
    let positions: Vec<_> = (0..20).map(|i| 3 * i).collect();
    let rows: Vec<_> = (0..20i64).rev().collect();
    for dtype in [DType::F32, DType::F16, DType::Q8_0] {
        let sources = [
            noise([32, 4, 20, 1], 1),
            Tensor::i32(20, &positions),
            Tensor::packed(DType::I64, 20, &rows),
            Tensor::noise(dtype, [128, 40], 2),
        ];
        check(2, &sources, &|graph, leaves| {
            let rope = ops::Rope { n_ctx_orig: 512, ..ops::Rope::new(32, RopeMode::Neox, 10_000.0) };
            let rotated = graph.apply(rope, &[Some(leaves[0]), Some(leaves[1]), None]).unwrap();
            let flat = graph.reshape(rotated, [128, 20, 1, 1]).unwrap();
            let y = graph.apply(ops::SetRows, &[Some(flat), Some(leaves[2]), Some(leaves[3])]).unwrap();
            (vec![rotated], vec![y])
        });
    }
}

#[test]
fn what_other_nodes_read_is_not_fused_away() {
    let mut graph = Graph::new();
    let a = graph.leaf(DType::F32, [8, 2, 1, 1]).unwrap();
    let w = graph.leaf(DType::F32, [8, 1, 1, 1]).unwrap();
    let norm = graph.rms_norm(a, 1e-5).unwrap();
    let y = graph.mul(norm, w).unwrap();
    let z = graph.add(norm, y).unwrap();
    graph.expand(z).unwrap();
    let all: Vec<_> = graph.nodes().iter().map(|&id| graph.tensor(id).unwrap()).collect();
    assert_eq!(CpuDevice::with_level(Level::Scalar).fused(&all), None);
}

#[test]
fn products_of_the_same_activations() {
    let k = 512;
    for (dtype, columns) in [
        (DType::Q8_0, 1),
        (DType::Q8_0, 3),
        (DType::Q8_0, 9),
        (DType::Q4_K, 2),
        (DType::Q4_1, 75),
        (DType::F16, 1),
    ] {
        let weights = |rows: usize, seed| Tensor::noise(dtype, [k, rows], seed);
        let sources = [weights(33, 1), weights(70, 2), weights(16, 3), noise([k, columns, 1, 1], 4)];
        let sources: Vec<_> = sources.iter().collect();
        let mut graph = Graph::new();
        let leaves: Vec<_> =
            sources.iter().map(|source| graph.leaf_with_layout(source.layout).unwrap()).collect();
        for &weights in &leaves[..3] {
            let y = graph.mul_mat(weights, leaves[3]).unwrap();
            graph.expand(y).unwrap();
        }
        let all: Vec<_> = graph.nodes().iter().map(|&id| graph.tensor(id).unwrap()).collect();
        assert_eq!(CpuDevice::with_level(Level::Scalar).fused(&all), Some(3), "{dtype}");
        for level in Level::available() {
            let run = |threads, which: &[usize]| {
                let build = |graph: &mut Graph, leaves: &[TensorId]| {
                    which.iter().map(|&i| graph.mul_mat(leaves[i], leaves[3]).unwrap()).collect()
                };
                compute_graph(level, threads, &sources, None, &build).unwrap().results
            };
            let alone: Vec<_> = (0..3).flat_map(|i| run(1, &[i])).collect();
            for threads in [1, 2, 3] {
                assert!(
                    run(threads, &[0, 1, 2]) == alone,
                    "{level}, {dtype}, {columns} columns, {threads} threads"
                );
            }
        }
    }
}

#[test]
fn a_product_with_the_result_of_another_waits_for_it() {
    let (a, b) = (noise([64, 64, 1, 1], 1), noise([64, 40, 1, 1], 2));
    for level in Level::available() {
        let one = |graph: &mut Graph, leaves: &[TensorId]| vec![graph.mul_mat(leaves[0], leaves[1]).unwrap()];
        let first = compute_graph(level, 1, &[&a, &b], None, &one).unwrap().results;
        let expected = compute_graph(level, 1, &[&first[0], &b], None, &one).unwrap().results;
        for threads in [1, 2, 3] {
            let both = |graph: &mut Graph, leaves: &[TensorId]| {
                let first = graph.mul_mat(leaves[0], leaves[1]).unwrap();
                vec![graph.mul_mat(first, leaves[1]).unwrap()]
            };
            let found = compute_graph(level, threads, &[&a, &b], None, &both).unwrap().results;
            assert!(found == expected, "{level}, {threads} threads");
        }
    }
}
