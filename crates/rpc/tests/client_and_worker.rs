//! Our client with our worker: graphs, tensors and copies in every dialect give what the device itself gives.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use common::{Fixture, dialects};
use oxcart_backend::{
    Buffers, Device, Place, Registry, StreamOptions, Work, allocate, copy_place, place_all,
};
use oxcart_cpu::{CpuDevice, Level};
use oxcart_rpc::client::{Options, RemoteRegistry};
use oxcart_rpc::wire::Dialect;
use oxcart_tensor::ops::PagedAttn;
use oxcart_tensor::{DType, Graph, TensorId};
use oxcart_testdev::Config as DeviceConfig;

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
    let stream = Arc::clone(device).open(&StreamOptions::default()).unwrap();
    buffers.set(graph.tensor(a).unwrap(), 0, &bytes(32, 1.0)).unwrap();
    [2.0, 3.0].map(|seed| {
        buffers.set(graph.tensor(b).unwrap(), 0, &bytes(24, seed)).unwrap();
        let nodes = graph.range(0..graph.nodes().len()).unwrap();
        stream.compute_and_wait(Work { nodes, buffers: &buffers }).unwrap();
        buffers.bytes(graph.tensor(result).unwrap()).unwrap()
    })
}

/// A network that takes its time: every few bytes of either side come late, by another delay each.
fn slow_network(worker: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server) = (client.unwrap(), TcpStream::connect(worker).unwrap());
            for (mut from, mut to) in [
                (client.try_clone().unwrap(), server.try_clone().unwrap()),
                (server.try_clone().unwrap(), client.try_clone().unwrap()),
            ] {
                to.set_nodelay(true).unwrap();
                std::thread::spawn(move || {
                    let (mut piece, mut turn) = ([0; 536], 0);
                    while let Ok(read @ 1..) = from.read(&mut piece) {
                        turn += 1;
                        std::thread::sleep(Duration::from_millis(turn * 7 % 12));
                        if to.write_all(&piece[..read]).is_err() {
                            break;
                        }
                    }
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
        }
    });
    address
}

/// Delays, jitter and pieces of the smallest packets change nothing but the time.
#[test]
fn delays_and_small_pieces_change_nothing() {
    let fixture = Fixture::new();
    let here: Arc<dyn Device> = Arc::clone(&fixture.device) as _;
    let expected = run(&here);
    for dialect in [Dialect::classic(), Dialect::newest()] {
        let address = slow_network(fixture.address(dialect)).to_string();
        let options = Options { dialect: Some(dialect), ..Options::default() };
        let registry = RemoteRegistry::connect(&address, &options).unwrap();
        let device = registry.devices().remove(0);
        assert_eq!(run(&device), expected, "{dialect}");
        // An answer of many pieces.
        let buffer = allocate(&device.buffer_type(), 20_000).unwrap();
        let data = bytes(5000, 1.0);
        buffer.write(0, &data).unwrap();
        let mut back = vec![0; data.len()];
        buffer.read(0, &mut back).unwrap();
        assert!(back == data, "{dialect}");
        assert!(registry.failure().is_none());
    }
}

/// A clock that jumps must not end or prolong anything. Only the cache looks at it: files have no other times, and
/// which of them goes first is all that depends on it.
#[test]
fn no_wall_clock_where_time_counts() {
    let mut folders = vec![std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.extend(Some(path).filter(|path| !path.ends_with("cache")));
            } else {
                let text = std::fs::read_to_string(&path).unwrap();
                assert!(!text.contains("SystemTime"), "{} looks at the wall clock", path.display());
            }
        }
    }
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

#[test]
fn own_ops_are_for_workers_that_say_they_have_them() {
    let fixture = Fixture::new();
    let stock = fixture.address(Dialect::newest());
    let connect = |address: SocketAddr, dialect| {
        let options = Options { dialect, ..Options::default() };
        RemoteRegistry::connect(&address.to_string(), &options)
    };
    let supports = |address, dialect| {
        let device = connect(address, dialect).unwrap().devices().remove(0);
        let mut graph = Graph::new();
        let q = graph.leaf(DType::F32, [64, 2, 3]).unwrap();
        let [keys, values] = [0; 2].map(|_| graph.leaf(DType::F16, [64, 128]).unwrap());
        let table = graph.leaf(DType::I32, [2, 1]).unwrap();
        let tokens = graph.leaf(DType::I32, [2, 3]).unwrap();
        let op = PagedAttn { key_heads: 1, scale: 0.125, softcap: 0.0, max_bias: 0.0, window: 0, chunk: 0 };
        let result = graph.paged_attn([q, keys, values], table, tokens, None, op).unwrap();
        device.supports_op(graph.tensor(result).unwrap())
    };
    assert!(supports(fixture.auto, None));
    assert!(supports(fixture.auto, Some(Dialect::own())));
    assert!(!supports(fixture.auto, Some(Dialect::newest())));
    assert!(!supports(stock, None));
    let refused = connect(stock, Some(Dialect::own())).unwrap_err().to_string();
    assert!(refused.contains("version 7.0+ was asked for"), "{refused}");
}

/// A client knows whether a worker's devices add up in the same order as its own; of a worker with a device that promises nothing it knows nothing.
#[test]
fn a_worker_says_in_which_order_its_devices_add_up() {
    let arithmetic = |fixture: &Fixture| {
        let registry = RemoteRegistry::connect(&fixture.auto.to_string(), &Options::default()).unwrap();
        registry.devices()[0].arithmetic()
    };
    let cpu = || CpuDevice::new().unwrap();
    let fixture = Fixture::with(DeviceConfig::default(), |config| config.devices = vec![cpu(), cpu()]);
    assert!(cpu().arithmetic().is_some());
    assert_eq!(arithmetic(&fixture), cpu().arithmetic());
    let other = CpuDevice::with_level(Level::Scalar);
    let fixture = Fixture::with(DeviceConfig::default(), |config| config.devices = vec![cpu(), other]);
    let is_same = cpu().level() == Level::Scalar;
    assert_eq!(arithmetic(&fixture), cpu().arithmetic().filter(|_| is_same));
    let fixture = Fixture::with(DeviceConfig::default(), |config| config.devices.push(cpu()));
    assert_eq!(arithmetic(&fixture), None);
}
