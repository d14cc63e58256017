//! Our client with our worker: graphs, tensors and copies in every dialect give what the device itself gives.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::sync::Arc;

use common::{Fixture, dialects};
use oxcart_backend::{Buffers, Device, Place, Registry, Work, allocate, copy_place, place_all};
use oxcart_rpc::client::{Options, RemoteRegistry};
use oxcart_tensor::{DType, Graph, TensorId};

/// A little of everything the test device can do.
fn graph() -> (Graph, [TensorId; 3]) {
    let mut graph = Graph::new();
    let a = graph.leaf(DType::F32, [8, 4]).unwrap();
    let b = graph.leaf(DType::F32, [8, 3]).unwrap();
    let product = graph.mul_mat(a, b).unwrap();
    let sum = graph.add(product, product).unwrap();
    let view = graph.view(sum, [4, 2], &[16], 16).unwrap();
    let scores = graph.sqr(view).unwrap();
    let result = graph.sum_rows(scores).unwrap();
    graph.expand(result).unwrap();
    (graph, [a, b, result])
}

fn bytes(len: usize, seed: f32) -> Vec<u8> {
    (0..len).flat_map(|i| ((i as f32) * 0.25 - seed).to_le_bytes()).collect()
}

/// What a device makes of it, computed twice with other numbers the second time.
fn run(device: &Arc<dyn Device>) -> [Vec<u8>; 2] {
    let (mut graph, [a, b, result]) = graph();
    let mut buffers = Buffers::new();
    let all: Vec<_> = graph.ids().filter(|&id| graph.tensor(id).unwrap().view().is_none()).collect();
    place_all(&mut graph, &all, &device.buffer_type(), &mut buffers).unwrap();
    let stream = Arc::clone(device).open("").unwrap();
    buffers.set(graph.tensor(a).unwrap(), 0, &bytes(32, 1.0)).unwrap();
    [2.0, 3.0].map(|seed| {
        buffers.set(graph.tensor(b).unwrap(), 0, &bytes(24, seed)).unwrap();
        let nodes = graph.range(0..graph.nodes().len()).unwrap();
        stream.compute_and_wait(Work { nodes, buffers: &buffers }).unwrap();
        buffers.bytes(graph.tensor(result).unwrap()).unwrap()
    })
}

#[test]
fn results_are_those_of_the_device_itself() {
    let fixture = Fixture::new();
    let here: Arc<dyn Device> = Arc::clone(&fixture.device) as _;
    let expected = run(&here);
    for dialect in dialects() {
        let options = Options { dialect: Some(dialect), ..Options::default() };
        let address = fixture.address(dialect).to_string();
        let registry = RemoteRegistry::connect(&address, &options).unwrap();
        let device = registry.devices().remove(0);
        assert_eq!(run(&device), expected, "{dialect}");
        let [from, to] = [(); 2].map(|()| Place {
            buffer: allocate(&device.buffer_type(), 4096).unwrap(),
            offset: 32,
            len: 1000,
        });
        from.write(&[7; 1000]).unwrap();
        copy_place(&from, &to).unwrap();
        assert_eq!(to.bytes().unwrap(), [7; 1000]);
        to.buffer.clear(3).unwrap();
        assert_eq!(to.bytes().unwrap(), [3; 1000]);
        let memory = device.memory().unwrap();
        assert!(memory.free > 0 && memory.free <= memory.total);
    }
    assert!(fixture.counters().refusals.is_empty(), "{}", fixture.counters());
}
