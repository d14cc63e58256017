//! What the client writes, byte by byte, against the worked examples of the protocol.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common_client;

use std::sync::Arc;

use common_client::sha256::sha256;
use common_client::{BASE, Config, FakeWorker, HANDLE};
use oxcart_backend::{Buffers, Registry, StreamOptions, Work, place_all};
use oxcart_rpc::wire::Command;
use oxcart_tensor::ops::{MulMat, Precision};
use oxcart_tensor::{DType, Graph, TensorId};

/// c = a x b with names and precision as in the examples.
fn product() -> (Graph, [TensorId; 3]) {
    let mut graph = Graph::new();
    let a = graph.leaf(DType::F32, [4, 2]).unwrap();
    let b = graph.leaf(DType::F32, [4, 1]).unwrap();
    let op = MulMat { accumulate: Precision::F32, ..MulMat::default() };
    let c = graph.apply(op, &[Some(a), Some(b)]).unwrap();
    for (id, name) in [(a, "a"), (b, "b"), (c, "c")] {
        graph.set_name(id, name).unwrap();
    }
    graph.expand(c).unwrap();
    (graph, [a, b, c])
}

/// Runs the product twice and gives what the worker saw.
fn run_product(dialect: &str) -> FakeWorker {
    let worker = FakeWorker::start(Config { alloc_size: 8, ..Config::new(dialect) });
    let registry = worker.connect().unwrap();
    let device = registry.devices().remove(0);
    let (mut graph, [a, b, c]) = product();
    let mut buffers = Buffers::new();
    place_all(&mut graph, &[a, b, c], &device.buffer_type(), &mut buffers).unwrap();
    buffers.set(graph.tensor(b).unwrap(), 0, &1.0_f32.to_le_bytes().repeat(4)).unwrap();
    let stream = Arc::clone(&device).open(&StreamOptions::default()).unwrap();
    let work = Work { nodes: graph.range(0..1).unwrap(), buffers: &buffers };
    let mut plan = stream.plan(work).unwrap().unwrap();
    plan.compute().unwrap();
    plan.compute().unwrap();
    stream.synchronize().unwrap();
    worker
}

/// The examples use other ids; everything else must be the same.
fn with_ids_of_the_example(message: &[u8], head: usize) -> Vec<u8> {
    let mut bytes = message.to_vec();
    let mut exchange = |at: usize, mine: u64, theirs: u64| {
        assert_eq!(bytes[at..at + 8], mine.to_le_bytes(), "at {at:#x}");
        bytes[at..at + 8].copy_from_slice(&theirs.to_le_bytes());
    };
    exchange(head, 3, 0x3333);
    let records = head + 12;
    for (place, mine, theirs) in [(0, 1, 0x1111), (1, 2, 0x2222), (2, 3, 0x3333)] {
        exchange(records + 296 * place, mine, theirs);
    }
    exchange(records + 592 + 124, 1, 0x1111);
    exchange(records + 592 + 132, 2, 0x2222);
    bytes
}

#[test]
fn the_sum_is_sha256() {
    assert_eq!(sha256(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

#[test]
fn a_graph_of_version_7_is_that_of_the_example() {
    let worker = run_product("7.0");
    let graphs = worker.of(Command::GraphCompute);
    assert_eq!(graphs.len(), 1);
    let bytes = with_ids_of_the_example(&graphs[0].bytes, 17);
    assert_eq!(bytes.len(), 917);
    assert_eq!(sha256(&bytes), "5edfbeec905aa5752f31c4885745289c0d4e9797b9ab5de61f74506c99bab7bd");
    let again = worker.of(Command::GraphRecompute);
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].bytes, [0x10, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn a_graph_of_version_2_is_that_of_the_example() {
    let worker = run_product("2.0");
    let graphs = worker.of(Command::GraphCompute);
    assert_eq!(graphs.len(), 2, "there is no shorter way to say it again");
    assert_eq!(graphs[0], graphs[1]);
    let bytes = with_ids_of_the_example(&graphs[0].bytes, 13);
    assert_eq!(bytes.len(), 913);
    assert_eq!(sha256(&bytes), "eb44bc433fd9953ab1b5eaa7e791b53e0f26319f013d646fa886e17619c3c3f1");
}

#[test]
fn hello_has_the_form_of_its_version() {
    let new = FakeWorker::start(Config::new("7.0"));
    new.connect().unwrap();
    let hello = new.of(Command::Hello).remove(0).bytes;
    assert_eq!(hello, [&[0x0e, 0x18][..], &[0; 7 + 24]].concat());
    let old = FakeWorker::start(Config::new("2.0"));
    old.connect().unwrap();
    assert_eq!(old.of(Command::Hello).remove(0).bytes, [0x0e, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn data_travels_as_bytes_of_a_buffer() {
    for (dialect, size, flag) in [("2.0", 320, 0), ("5.1", 320, 0), ("7.0", 321, 1)] {
        let worker = run_product(dialect);
        let set = worker.of(Command::SetTensor).remove(0);
        assert_eq!(set.bytes[..9], [&[6][..], &u64::to_le_bytes(size)].concat());
        let body = set.body();
        let word = |at: usize| u32::from_le_bytes(body[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().unwrap());
        assert_eq!(word(8), 24, "bytes");
        assert_eq!((long(12), long(220)), (HANDLE, BASE + 0x20));
        assert_eq!([20, 24, 28, 32].map(word), [16, 1, 1, 1]);
        assert_eq!([36, 40, 44, 48].map(word), [1, 16, 16, 16]);
        assert_eq!(body[52..124], [0; 72]);
        assert_eq!(body[292..304 + flag], vec![0; 12 + flag], "no use count, flag and offset 0");
        assert_eq!(body[304 + flag..], 1.0_f32.to_le_bytes().repeat(4));
    }
}

#[test]
fn requests_name_a_device_where_the_dialect_does() {
    let worker = FakeWorker::start(Config { devices: 2, ..Config::new("7.0") });
    let registry = worker.connect().unwrap();
    let devices = registry.devices();
    assert_eq!(devices.len(), 2);
    assert_eq!(devices[1].name(), format!("RPC1[{}]", worker.endpoint()));
    devices[1].memory().unwrap();
    devices[1].buffer_type().allocate_bytes(256).unwrap();
    assert_eq!(worker.of(Command::GetDeviceMemory)[0].body(), [1, 0, 0, 0]);
    assert_eq!(worker.of(Command::GetAlignment)[1].body(), [1, 0, 0, 0]);
    let alloc = [&[1, 0, 0, 0][..], &256_u64.to_le_bytes()].concat();
    assert_eq!(worker.of(Command::AllocBuffer)[0].body(), alloc);
    let base = worker.of(Command::BufferGetBase)[0].body().to_vec();
    assert_eq!(base, HANDLE.to_le_bytes());
    let freed = worker.wait_for(Command::FreeBuffer, 1);
    assert_eq!(freed[0].body(), HANDLE.to_le_bytes());
    let cleared = [&HANDLE.to_le_bytes()[..], &[0]].concat();
    assert_eq!(worker.of(Command::BufferClear)[0].body(), cleared, "new memory is zero");
}
