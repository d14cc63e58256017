//! What is long, and does not keep others from their turns. `docs/threats.md` says which threat each test answers.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{Fixture, Peer};
use oxcart_cpu::CpuDevice;
use oxcart_rpc::wire::{Command, OpCode};
use oxcart_testdev::Config as DeviceConfig;

/// As many nodes as a graph may have.
const NODES: u64 = 131_072;
const SCALAR: [u32; 4] = [1, 1, 1, 1];

/// A graph of very many nodes that take no time themselves.
fn large_graph(peer: &mut Peer) -> Vec<u8> {
    let handle = peer.alloc(64);
    let base = peer.base(handle);
    let ids: Vec<u64> = (2..2 + NODES).collect();
    let mut tensors = vec![peer.tensor(1, SCALAR, (handle, base))];
    tensors.extend(ids.iter().map(|&id| peer.node(OpCode::Add, id, SCALAR, (handle, base + 32), &[1, 1])));
    peer.graph_body(&ids, &tensors)
}

/// How long it takes to plan such a graph, and the longest that another peer waits for its turn to clear some memory meanwhile.
fn plan_beside_another(fixture: &Fixture) -> (Duration, Duration) {
    let planners = std::thread::available_parallelism().map_or(1, |cores| cores.get() / 2).max(1);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let plan = || {
            let mut peer = fixture.newest_from(2);
            let body = large_graph(&mut peer);
            let start = Instant::now();
            peer.send(Command::GraphCompute, &body);
            assert!(peer.is_alive());
            start.elapsed()
        };
        let plans: Vec<_> = (0..planners).map(|_| scope.spawn(plan)).collect();
        let clearing = scope.spawn(|| {
            let mut peer = fixture.newest();
            // More than is cleared without a turn.
            let handle = peer.alloc(1 << 20);
            let body = [&handle.to_le_bytes()[..], &[1]].concat();
            let mut longest = Duration::ZERO;
            while !is_over.load(Ordering::Relaxed) {
                let start = Instant::now();
                peer.ask(Command::BufferClear, &body);
                longest = longest.max(start.elapsed());
            }
            longest
        });
        let whole = plans.into_iter().map(|plan| plan.join().unwrap()).max().unwrap();
        is_over.store(true, Ordering::Relaxed);
        (whole, clearing.join().unwrap())
    })
}

#[test]
fn planning_the_largest_graph_takes_many_turns() {
    let fixture = Fixture::with(DeviceConfig { null: true, ..DeviceConfig::default() }, |_| {});
    // A machine that is busy otherwise may let a thread wait at any time, but not always.
    let mut tries = Vec::new();
    while !tries.iter().any(|(whole, longest): &(Duration, Duration)| *longest < *whole / 5) {
        assert!(tries.len() < 20, "planning took and another waited: {tries:?}");
        tries.push(plan_beside_another(&fixture));
    }
}

/// So many products, one after another, of many elements that lie in few: rows are one element apart.
fn products(peer: &mut Peer, count: u64, [k, rows, columns]: [u32; 3]) -> Vec<u8> {
    let sources = u64::from(k + rows.max(columns)) * 4;
    let handle = peer.alloc(sources + u64::from(rows) * u64::from(columns) * 4 + 64);
    let base = peer.base(handle);
    let mut a = peer.tensor(1, [k, rows, 1, 1], (handle, base));
    let mut b = peer.tensor(2, [k, columns, 1, 1], (handle, base));
    for record in [&mut a, &mut b] {
        record.nb = [4_u32, 4, 4, 4].map(Into::into);
    }
    let place = (handle, base + sources.next_multiple_of(64));
    let ids: Vec<u64> = (3..3 + count).collect();
    let mut tensors = vec![a, b];
    tensors
        .extend(ids.iter().map(|&id| peer.node(OpCode::MulMat, id, [rows, columns, 1, 1], place, &[1, 2])));
    peer.graph_body(&ids, &tensors)
}

#[test]
fn a_product_of_minutes_holds_up_no_ordinary_one() {
    let fixture =
        Fixture::with(DeviceConfig::default(), |config| config.devices = vec![CpuDevice::new().unwrap()]);
    let mut stays = fixture.newest_from(2);
    // So many that no machine is done with them soon.
    let minutes = products(&mut stays, 64, [1 << 14, 1 << 15, 1 << 11]);
    let arrived = fixture.counters().bytes_in + minutes.len() as u64;
    stays.send(Command::GraphCompute, &minutes);
    fixture.until("they are there", |fixture| fixture.counters().bytes_in >= arrived);
    std::thread::sleep(Duration::from_millis(300));
    // Four times as much as a turn, as in prompts of small models.
    let mut other = fixture.newest();
    let ordinary = products(&mut other, 1, [1 << 10, 1 << 10, 1 << 10]);
    for _ in 0..2 {
        other.send(Command::GraphCompute, &ordinary);
        assert!(other.is_alive());
    }
    assert_eq!((fixture.counters().graphs, fixture.counters().cancelled), (2, 0));
    drop(stays);
    fixture.until("the product of minutes was still being computed", |fixture| {
        fixture.counters().cancelled == 1
    });
}
