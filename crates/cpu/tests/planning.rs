//! Planning takes time that grows with a graph, not with its square: as many buffers as a client may have, and a node for every
//! eight of them.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use oxcart_backend::{Buffers, Device, StreamOptions, Work, allocate};
use oxcart_cpu::CpuDevice;
use oxcart_tensor::graph::Storage;
use oxcart_tensor::ops::{Grouping, SsmScan};
use oxcart_tensor::{DType, Graph, TensorId};

const NODES: usize = 8192;

/// A graph whose every tensor has a buffer of its own.
fn graph_of(nodes: usize, device: &Arc<CpuDevice>) -> (Graph, Buffers) {
    let (mut graph, mut buffers) = (Graph::new(), Buffers::new());
    let bind = |graph: &mut Graph, buffers: &mut Buffers, tensor: TensorId| {
        let buffer = allocate(&device.buffer_type(), 64).unwrap();
        let (len, id) = (buffer.len(), buffers.add(buffer));
        graph.bind(tensor, Storage { buffer: id, offset: 0 }, len).unwrap();
    };
    for _ in 0..nodes {
        // The op with most sources that must all be there.
        let types = [DType::F32; 6].into_iter().chain([DType::I32]);
        let sources: Vec<_> = types.map(|dtype| graph.leaf(dtype, [1]).unwrap()).collect();
        sources.iter().for_each(|&source| bind(&mut graph, &mut buffers, source));
        let slots: Vec<_> = sources.into_iter().map(Some).collect();
        let op = SsmScan { snapshots: 1, grouping: Grouping::Neighbours };
        let node = graph.apply(op, &slots).unwrap();
        bind(&mut graph, &mut buffers, node);
        graph.expand(node).unwrap();
    }
    (graph, buffers)
}

#[test]
fn many_buffers_and_nodes_are_planned_in_little_time() {
    let device = CpuDevice::new().unwrap();
    let stream = Arc::clone(&device).open(&StreamOptions::threads(1)).unwrap();
    // The least of a few times: a machine that is busy otherwise may let a thread wait, but not always.
    let planning = |nodes: usize| {
        let (graph, buffers) = graph_of(nodes, &device);
        assert_eq!(buffers.iter().count(), 8 * nodes);
        let work = || Work { nodes: graph.range(0..nodes).unwrap(), buffers: &buffers };
        let plan = |_| {
            let start = Instant::now();
            let plan = stream.plan(work()).unwrap().unwrap();
            (start.elapsed(), plan)
        };
        let (took, mut plan) = (0..4).map(plan).min_by_key(|(took, _)| *took).unwrap();
        plan.compute().unwrap();
        took
    };
    let (few, many) = (planning(NODES / 8), planning(NODES));
    // Hundredths of a second, and eight times as long; a search through all buffers for each tensor took nine seconds, and 64 times as
    // long.
    let most = 32 * few + Duration::from_secs(5);
    assert!(many < most, "{few:?} for an eighth of it, {many:?} for all");
}
