//! Every command in every dialect, as an honest client sends it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::{Example, Fixture, Peer, dial, dialects, long, request};
use oxcart_rpc::wire::{Command, Dialect, OpCode, TensorRecord};
use oxcart_testdev::Config as DeviceConfig;
use std::io::{Read, Write};
use std::time::Duration;
use zerocopy::IntoBytes;

#[test]
fn the_worked_example_in_every_dialect() {
    let fixture = Fixture::new();
    for dialect in dialects() {
        Example::new(&mut fixture.connect(dialect)).check();
    }
    fixture.until_empty();
    let counters = fixture.counters();
    assert_eq!((counters.graphs, counters.recomputes, counters.clients), (6, 4, 5), "{counters}");
    assert!(counters.refusals.is_empty(), "{counters}");
}

#[test]
fn the_worked_example_byte_by_byte() {
    let fixture = Fixture::new();
    // 2.0.0: HELLO and its answer as they are on the wire.
    let mut stream = dial(fixture.auto);
    stream.write_all(&[0x0e, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    let mut reply = [0; 11];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply, [3, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0]);
    // 7.0.0: a client that offers a transport is told that there is none, one that offers nothing who it talks to.
    for first in [1, 0] {
        let mut stream = dial(fixture.auto);
        let mut capabilities = [0; 24];
        capabilities[0] = first;
        stream.write_all(&request(0x0e, &capabilities)).unwrap();
        let mut reply = [0; 36];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..12], [0x1c, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0]);
        let mut expected = [0; 24];
        if first == 0 {
            // Our mark, our operations, and the abilities: it can be introduced to other workers (1), has heartbeats (2), takes bytes by
            // their content (4) and keeps graphs (16) of so many KiB.
            expected[..13].copy_from_slice(b"oxcart\0\0\x01\0\0\0\x17");
            let kept = u32::from_le_bytes(reply[28..32].try_into().unwrap());
            assert!((1..=32 << 10).contains(&kept), "{kept} KiB");
            expected[16..20].copy_from_slice(&kept.to_le_bytes());
        }
        assert_eq!(reply[12..], expected);
    }
    // The sizes of the example's graphs.
    for (dialect, size) in [(Dialect::classic(), 904), (Dialect::newest(), 908)] {
        let mut peer = fixture.connect(dialect);
        let example = Example::new(&mut peer);
        let body = example.peer.graph_body(&[0x3333], &[example.a, example.b, example.c]);
        assert_eq!(body.len(), size);
    }
}

#[test]
fn auto_speaks_the_oldest_and_the_newest() {
    let fixture = Fixture::new();
    for dialect in [Dialect::classic(), Dialect::newest()] {
        Example::new(&mut Peer::connect(fixture.auto, dialect)).check();
    }
}

#[test]
fn a_graph_without_the_flag_leaves_memory_alone() {
    let fixture = Fixture::new();
    for dialect in dialects().into_iter().filter(|dialect| dialect.has_compute_flag) {
        let mut peer = fixture.connect(dialect);
        let mut example = Example::new(&mut peer);
        example.c.flags = 0.into();
        assert!(example.compute());
        assert_eq!(example.result(), [0., 0.]);
    }
}

#[test]
fn device_questions_in_every_dialect() {
    let fixture = Fixture::with(
        DeviceConfig { capacity: 1 << 30, alignment: 128, max_size: 1 << 20, ..DeviceConfig::default() },
        |config| config.max_memory = Some(1 << 21),
    );
    for dialect in dialects() {
        let mut peer = fixture.connect(dialect);
        let device = peer.device();
        assert_eq!(long(&peer.ask(Command::GetAlignment, &device)), 128);
        assert_eq!(long(&peer.ask(Command::GetMaxSize, &device)), 1 << 20);
        assert_eq!(peer.memory(), (1 << 21, 1 << 21));
        if dialect.has_devices {
            assert_eq!(peer.ask(Command::DeviceCount, &[]), [1, 0, 0, 0]);
        }
        let handle = peer.alloc(1 << 20);
        assert_eq!(peer.memory(), (1 << 20, 1 << 21));
        assert_eq!(peer.base(handle) % 128, 0);
        peer.free(handle);
        assert_eq!(peer.memory(), (1 << 21, 1 << 21));
    }
}

#[test]
fn tensors_are_written_read_filled_and_copied_in_every_dialect() {
    for host in [true, false] {
        let device = if host { DeviceConfig::default() } else { DeviceConfig::accelerator("GPU0") };
        let fixture = Fixture::with(device, |_| {});
        for dialect in dialects() {
            let mut peer = fixture.connect(dialect);
            let (handle, other) = (peer.alloc(1 << 22), peer.alloc(1 << 22));
            let (base, other_base) = (peer.base(handle), peer.base(other));
            let elements = 600_000;
            let a = peer.tensor(1, [elements, 1, 1, 1], (handle, base + 64));
            let b = peer.tensor(2, [elements, 1, 1, 1], (other, other_base));
            assert!(peer.get(&a, 0, 2_400_000).iter().all(|&byte| byte == 0), "fresh memory is zero");
            let data: Vec<u8> = (0..2_400_000_u32).map(|i| i.to_le_bytes()[1] ^ 7).collect();
            peer.set(&a, 0, &data[..1_500_000]);
            peer.set(&a, 1_500_000, &data[1_500_000..]);
            peer.set(&a, 5, &[]);
            assert_eq!(peer.get(&a, 0, 2_400_000), data);
            assert_eq!(peer.get(&a, 1000, 10), data[1000..1010]);
            assert_eq!(peer.get(&a, 2_400_000, 0), []);
            let both = [a.as_bytes(), b.as_bytes()].concat();
            assert_eq!(peer.ask(Command::CopyTensor, &both), [1]);
            assert_eq!(peer.get(&b, 0, 2_400_000), data);
            let hash = [b.as_bytes(), &[0; 16]].concat();
            assert_eq!(peer.ask(Command::SetTensorHash, &hash), [0], "there is no cache");
            peer.ask(Command::InitTensor, a.as_bytes());
            peer.ask(Command::BufferClear, &[&handle.to_le_bytes()[..], &[9]].concat());
            assert!(peer.get(&a, 0, 2_400_000).iter().all(|&byte| byte == 9));
            if dialect.has_memset {
                let body = [b.as_bytes(), &10_u64.to_le_bytes(), &20_u64.to_le_bytes(), &[0xee]].concat();
                peer.ask(Command::MemsetTensor, &body);
                let (expected, part) =
                    ([&data[..10], &[0xee; 20], &data[30..40]].concat(), peer.get(&b, 0, 40));
                assert_eq!(part, expected);
            }
            // Afterwards the stream must still be in step.
            assert!(peer.is_alive());
        }
        fixture.until_empty();
        assert!(fixture.counters().refusals.is_empty(), "{}", fixture.counters());
    }
}

#[test]
fn alloc_size_in_every_dialect() {
    let fixture = Fixture::with(DeviceConfig { padding: 100, ..DeviceConfig::default() }, |_| {});
    for dialect in dialects() {
        let mut peer = fixture.connect(dialect);
        let tensor = peer.tensor(1, [10, 3, 1, 1], (0, 0));
        let mut body = peer.with_device(tensor.as_bytes());
        if dialect.has_devices {
            body.extend([0; 10 * 296]);
        }
        assert_eq!(long(&peer.ask(Command::GetAllocSize, &body)), 120 + 100);
    }
}

#[test]
fn two_clients_of_different_dialects_at_once() {
    let fixture = Fixture::new();
    std::thread::scope(|scope| {
        for dialect in [Dialect::classic(), Dialect::newest()] {
            let fixture = &fixture;
            scope.spawn(move || {
                let mut peer = Peer::connect(fixture.auto, dialect);
                for _ in 0..200 {
                    Example::new(&mut peer).check();
                }
            });
        }
    });
    fixture.until_empty();
    assert!(fixture.counters().refusals.is_empty());
}

#[test]
fn a_long_graph_is_computed_in_order_over_many_slices() {
    let fixture = Fixture::new();
    for dialect in [Dialect::classic(), Dialect::newest()] {
        let mut peer = fixture.connect(dialect);
        let handle = peer.alloc(1 << 12);
        let base = peer.base(handle);
        let one = peer.tensor(1, [1, 1, 1, 1], (handle, base));
        peer.set_floats(&one, &[1.]);
        let mut tensors = vec![one];
        // Each adds one to the one before, back and forth between two places: more nodes than one slice has.
        let (first, count) = (10_u64, 10_000_u64);
        for i in 0..count {
            let place = (handle, base + 64 + 64 * (i % 2));
            let before = if i == 0 { 1 } else { first + i - 1 };
            tensors.push(peer.node(OpCode::Add, first + i, [1, 1, 1, 1], place, &[before, 1]));
        }
        let nodes: Vec<u64> = (first..first + count).collect();
        assert!(peer.compute(&nodes, &tensors));
        let last: TensorRecord = *tensors.last().unwrap();
        assert_eq!(peer.floats(&last), [10_001.]);
    }
}

#[test]
fn shutdown_lets_a_client_go() {
    let fixture = Fixture::new();
    let mut peer = fixture.newest();
    let _handle = peer.alloc(1000);
    let device = std::sync::Arc::clone(&fixture.device);
    let counters = fixture.shutdown(Duration::from_secs(5));
    assert_eq!((counters.connected, counters.panics, device.allocated_bytes()), (0, 0, 0));
    assert!(!peer.is_alive());
}
