//! A single node that would take minutes stops within a second of being asked to.
//!
//! Rows that all but lie in the same place make much work out of little memory, as an attacker would.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use oxcart_backend::{Buffers, Device, Error, StreamOptions, Work, place_all};
use oxcart_cpu::CpuDevice;
use oxcart_tensor::ops::FlashAttnExt;
use oxcart_tensor::{DType, Graph, Layout, TensorId};

/// A matrix whose rows, planes and volumes begin one element after another.
fn close_rows(graph: &mut Graph, dtype: DType, ne: [usize; 4]) -> TensorId {
    let layout = Layout::strided(dtype, ne, [dtype.block_bytes(); 4]).unwrap();
    graph.leaf_with_layout(layout).unwrap()
}

fn product(graph: &mut Graph, dtype: DType) -> TensorId {
    let a = close_rows(graph, dtype, [1 << 14, 1 << 15, 1, 1]);
    let b = close_rows(graph, DType::F32, [1 << 14, 2048, 1, 1]);
    graph.mul_mat(a, b).unwrap()
}

fn attention(graph: &mut Graph) -> TensorId {
    let q = close_rows(graph, DType::F32, [128, 4096, 8, 1]);
    let k = close_rows(graph, DType::F16, [128, 1 << 18, 8, 1]);
    let op = FlashAttnExt {
        scale: 1.0,
        max_bias: 0.0,
        softcap: 0.0,
        precision: oxcart_tensor::ops::Precision::default(),
        n_kv_max: 0,
    };
    graph.flash_attn_ext([q, k, k], None, None, op).unwrap()
}

/// What is computed, and the one node of it.
type Case = (&'static str, fn(&mut Graph) -> TensorId);

const CASES: [Case; 8] = [
    ("a product of floats", |graph| product(graph, DType::F32)),
    ("a product of blocks", |graph| product(graph, DType::Q4_0)),
    ("a product with one column", |graph| {
        let a = close_rows(graph, DType::F32, [1 << 16, 1 << 22, 1, 1]);
        let b = graph.leaf(DType::F32, [1 << 16]).unwrap();
        graph.mul_mat(a, b).unwrap()
    }),
    ("an outer product", |graph| {
        let a = close_rows(graph, DType::F32, [4096, 1 << 17, 1, 1]);
        let b = close_rows(graph, DType::F32, [4096, 1 << 17, 1, 1]);
        graph.out_prod(a, b).unwrap()
    }),
    ("attention", attention),
    ("a sum", |graph| {
        let a = close_rows(graph, DType::F32, [1024, 1 << 14, 1 << 12, 1]);
        graph.sum(a).unwrap()
    }),
    ("sums of rows", |graph| {
        let a = close_rows(graph, DType::F32, [1 << 14, 1 << 22, 1, 1]);
        graph.sum_rows(a).unwrap()
    }),
    ("a recurrence", |graph| {
        let [k, v, q, gate] = [(); 4].map(|()| graph.leaf(DType::F32, [256, 2, 1 << 14]).unwrap());
        let state = graph.leaf(DType::F32, [256 * 256 * 2, 1]).unwrap();
        graph.gated_linear_attn([k, v, q, gate, state], 1.0).unwrap()
    }),
];

#[test]
fn a_long_node_stops_when_asked_to() {
    let mut late = Vec::new();
    for threads in [1, 2] {
        let device = CpuDevice::new().unwrap();
        let stream = Arc::clone(&device).open(&StreamOptions::threads(threads)).unwrap();
        let cancel = stream.cancel_flag().unwrap();
        for (name, build) in CASES {
            let mut graph = Graph::new();
            let result = build(&mut graph);
            graph.expand(result).unwrap();
            let all: Vec<_> = graph.ids().collect();
            let mut buffers = Buffers::new();
            place_all(&mut graph, &all, &device.buffer_type(), &mut buffers).unwrap();
            let nodes = graph.range(0..graph.nodes().len()).unwrap();
            let (outcome, took) = std::thread::scope(|scope| {
                let asker = scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(100));
                    cancel.store(true, Ordering::Relaxed);
                    Instant::now()
                });
                let outcome = stream.compute_and_wait(Work { nodes, buffers: &buffers });
                let ended = Instant::now();
                (outcome, ended.saturating_duration_since(asker.join().unwrap()))
            });
            assert!(matches!(outcome, Err(Error::Cancelled)), "{name}: {outcome:?}");
            // One second is promised; this machine may be busy with other things.
            if took > Duration::from_secs(2) {
                late.push(format!("{name} went on for {took:?} with {threads} threads"));
            }
            cancel.store(false, Ordering::Relaxed);
        }
    }
    assert!(late.is_empty(), "{}", late.join("\n"));
}

/// Threads agree on where to stop, whenever they are asked: many small runs, each stopped at another moment.
#[test]
fn being_stopped_at_any_moment_leaves_no_thread_waiting() {
    let device = CpuDevice::new().unwrap();
    let stream = Arc::clone(&device).open(&StreamOptions::threads(3)).unwrap();
    let cancel = stream.cancel_flag().unwrap();
    let mut graph = Graph::new();
    // Products of two phases each, packed first and then multiplied.
    let a = graph.leaf(DType::Q4_0, [256, 96]).unwrap();
    let b = graph.leaf(DType::F32, [256, 64]).unwrap();
    for _ in 0..4 {
        let product = graph.mul_mat(a, b).unwrap();
        graph.expand(product).unwrap();
    }
    let all: Vec<_> = graph.ids().collect();
    let mut buffers = Buffers::new();
    place_all(&mut graph, &all, &device.buffer_type(), &mut buffers).unwrap();
    let (over, mut stopped) = (std::sync::atomic::AtomicBool::new(false), 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut turn = 0_u32;
            while !over.load(Ordering::Relaxed) {
                turn = turn.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (0..turn >> 18).for_each(|_| std::hint::spin_loop());
                cancel.store(turn & 1 == 0, Ordering::Relaxed);
            }
        });
        for _ in 0..2000 {
            let nodes = graph.range(0..graph.nodes().len()).unwrap();
            let outcome = stream.compute_and_wait(Work { nodes, buffers: &buffers });
            stopped += u32::from(matches!(outcome, Err(Error::Cancelled)));
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(stopped > 100, "{stopped} runs were stopped");
}
