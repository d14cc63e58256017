//! Several clients at a time. `docs/threats.md` says which threat each test answers.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::io::Write;
use std::time::{Duration, Instant};

use common::{Example, Fixture, PATIENCE, Peer, announcement, dial};
use oxcart_rpc::wire::{Command, Dialect, OpCode, TensorRecord};
use oxcart_testdev::Config as DeviceConfig;

/// A graph of many matrix products, which takes the slow device many minutes, and one that is ten times as fast more than one.
fn long_graph(peer: &mut Peer) -> (Vec<u64>, Vec<TensorRecord>) {
    let (side, count) = (256, 40_000);
    let handle = peer.alloc(1 << 19);
    let base = peer.base(handle);
    let a = peer.tensor(1, [side, side, 1, 1], (handle, base));
    let mut tensors = vec![a];
    let nodes: Vec<u64> = (10..10 + count).collect();
    for &id in &nodes {
        tensors.push(peer.node(OpCode::MulMat, id, [side, side, 1, 1], (handle, base + (1 << 18)), &[1, 1]));
    }
    (nodes, tensors)
}

/// Sends a long graph and does not wait for it.
fn submit(fixture: &Fixture, peer: &mut Peer) {
    let (nodes, tensors) = long_graph(peer);
    let body = peer.graph_body(&nodes, &tensors);
    let before = fixture.device.begun();
    peer.send(Command::GraphCompute, &body);
    fixture.until("the long graph has begun", |fixture| fixture.device.begun() > before);
}

/// Sends the worked example and does not wait for it.
fn submit_example(peer: &mut Peer) {
    let example = Example::new(peer);
    let body = example.peer.graph_body(&[0x3333], &[example.a, example.b, example.c]);
    peer.send(Command::GraphCompute, &body);
}

#[test]
fn slow_clients_block_no_other() {
    let fixture = Fixture::new();
    let _silent: Vec<_> = (0..20).map(|_| dial(fixture.auto)).collect();
    let mut begun = dial(fixture.auto);
    begun.write_all(&[14]).unwrap();
    let mut middle = fixture.newest();
    let handle = middle.alloc(1 << 20);
    let base = middle.base(handle);
    let record = middle.tensor(1, [1 << 18, 1, 1, 1], (handle, base));
    // A tensor of which half arrives: its buffer stays locked, which affects no other client.
    let start = middle.set_body(&record, 0, &[1; 1000]);
    middle.stream.write_all(&announcement(Command::SetTensor as u8, 305 + (1 << 20))).unwrap();
    middle.stream.write_all(&start).unwrap();
    let mut graph = fixture.classic();
    graph.stream.write_all(&announcement(Command::GraphCompute as u8, 1 << 20)).unwrap();
    for _ in 0..10 {
        graph.stream.write_all(&[0]).unwrap();
        fixture.assert_serves();
    }
}

#[test]
fn a_long_graph_shares_its_device() {
    let fixture = Fixture::new();
    let mut hog = fixture.newest();
    submit(&fixture, &mut hog);
    for _ in 0..3 {
        // Memory at once, though the long graph's turn does not end; graphs by turns.
        let held = fixture.device.hold();
        let mut other = fixture.classic();
        let handle = other.alloc(4096);
        let base = other.base(handle);
        let record = other.tensor(1, [4, 1, 1, 1], (handle, base));
        other.set_floats(&record, &[1., 2., 3., 4.]);
        assert_eq!(other.floats(&record), [1., 2., 3., 4.]);
        drop(held);
        let sum = other.node(OpCode::Add, 2, [4, 1, 1, 1], (handle, base + 64), &[1, 1]);
        assert!(other.compute(&[2], &[record, sum]));
        assert_eq!(other.floats(&sum), [2., 4., 6., 8.]);
    }
    assert_eq!(fixture.counters().graphs, 3, "the long graph is still running");
}

#[test]
fn the_graph_of_a_client_that_left_is_stopped() {
    let fixture = Fixture::new();
    for reset in [false, true] {
        for dialect in [Dialect::classic(), Dialect::newest()] {
            let mut leaver = fixture.connect(dialect);
            submit(&fixture, &mut leaver);
            // Commands that follow must not hide that the client is gone.
            let device = leaver.device();
            leaver.send(Command::GetAlignment, &device);
            if reset {
                socket2::SockRef::from(&leaver.stream).set_linger(Some(Duration::ZERO)).unwrap();
            }
            drop(leaver);
            // One second is promised; this machine may be busy with other things. The whole graph takes longer than is waited for.
            fixture.until_empty();
        }
    }
    let counters = fixture.counters();
    assert_eq!((counters.cancelled, counters.graphs), (4, 0), "{counters}");
    fixture.assert_serves();
}

#[test]
fn a_client_that_leaves_while_waiting_leaves_the_queue() {
    let fixture = Fixture::new();
    let mut hog = fixture.newest();
    submit(&fixture, &mut hog);
    for _ in 0..5 {
        submit_example(&mut fixture.newest());
    }
    fixture.until("only one is left", |fixture| fixture.counters().connected == 1);
    drop(hog);
    fixture.until_empty();
    fixture.assert_serves();
}

/// Not even a turn that takes long keeps those who left.
#[test]
fn a_client_that_leaves_does_not_wait_for_a_long_turn() {
    let device = DeviceConfig { asynchronous: true, ..DeviceConfig::accelerator("X") };
    let fixture = Fixture::with(device, |_| {});
    // The turn does not end before the others have left.
    let held = fixture.device.hold();
    let mut hog = fixture.newest();
    submit_example(&mut hog);
    fixture.until("the turn has begun", |fixture| fixture.device.begun() == 1);
    for _ in 0..5 {
        submit_example(&mut fixture.newest());
    }
    fixture.until("only one is left", |fixture| fixture.counters().connected == 1);
    assert_eq!(fixture.counters().graphs, 0, "the turn is not over");
    drop(held);
    assert!(hog.is_alive());
}

#[test]
fn many_clients_get_right_results() {
    for device in
        [DeviceConfig::default(), DeviceConfig { asynchronous: true, ..DeviceConfig::accelerator("X") }]
    {
        let fixture = Fixture::with(device, |_| {});
        std::thread::scope(|scope| {
            for number in 0..8 {
                let fixture = &fixture;
                scope.spawn(move || {
                    let dialect = common::dialects()[number % 5];
                    for _ in 0..10 {
                        let mut peer = fixture.connect(dialect);
                        for _ in 0..10 {
                            Example::new(&mut peer).check();
                        }
                    }
                });
            }
        });
        fixture.until_empty();
        assert!(fixture.counters().refusals.is_empty());
    }
}

#[test]
fn shutdown_waits_for_a_graph_and_then_no_longer() {
    let fixture = Fixture::new();
    let mut peer = fixture.newest();
    submit(&fixture, &mut peer);
    let (start, grace) = (Instant::now(), Duration::from_millis(300));
    let counters = fixture.shutdown(grace);
    assert!(start.elapsed() >= grace && start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    assert_eq!((counters.connected, counters.cancelled), (0, 1), "{counters}");
}
