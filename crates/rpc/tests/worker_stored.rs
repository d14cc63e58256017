//! What counts for a stored graph is what it takes, measured with an allocator that counts. That looks at the process as a
//! whole, so this program has one test.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::{Fixture, Peer};
use oxcart_cpu::CpuDevice;
use oxcart_rpc::wire::{Command, Dialect, OpCode, TensorRecord, kept_graph_bytes};
use oxcart_tally::live_bytes;
use oxcart_testdev::Config as DeviceConfig;

const SCALAR: [u32; 4] = [1, 1, 1, 1];

/// Where leaves lie.
struct Place {
    handle: u64,
    base: u64,
}

impl Place {
    fn new(peer: &mut Peer) -> Place {
        let handle = peer.alloc(64);
        Place { handle, base: peer.base(handle) }
    }

    fn leaf(&self, peer: &Peer, id: u64) -> TensorRecord {
        peer.tensor(id, SCALAR, (self.handle, self.base))
    }

    /// A node beside the leaves, of one or two numbers.
    fn node(&self, peer: &Peer, op: OpCode, id: u64, numbers: u32, sources: &[u64]) -> TensorRecord {
        peer.node(op, id, [1, numbers, 1, 1], (self.handle, self.base + 32), sources)
    }
}

/// Nodes, and all tensors.
type Shape = (Vec<u64>, Vec<TensorRecord>);

/// A shape's name, and what makes it.
type Named<'a> = (&'a str, &'a dyn Fn(&Peer) -> Shape);

fn chain(peer: &Peer, place: &Place, nodes: u64) -> Shape {
    let ids: Vec<u64> = (2..2 + nodes).collect();
    let mut tensors = vec![place.leaf(peer, 1)];
    tensors.extend(ids.iter().map(|&id| place.node(peer, OpCode::Add, id, 1, &[1, 1])));
    (ids, tensors)
}

fn without_sources(peer: &Peer, place: &Place, nodes: u64) -> Shape {
    let arange = |id| {
        let mut node = place.node(peer, OpCode::Arange, id, 1, &[]);
        // From 0 to 1 by 1.
        (node.params[1], node.params[2]) =
            (1_f32.to_bits().cast_signed().into(), 1_f32.to_bits().cast_signed().into());
        node
    };
    let ids: Vec<u64> = (1..=nodes).collect();
    let tensors = ids.iter().map(|&id| arange(id)).collect();
    (ids, tensors)
}

/// Each node has seven leaves of its own, or all have the same.
fn with_many_sources(peer: &Peer, place: &Place, nodes: u64, own: bool) -> Shape {
    let (mut ids, mut tensors) = (Vec::new(), Vec::new());
    for number in 0..nodes {
        let first = if own { 1000 + 10 * number } else { 1000 };
        let sources: Vec<u64> = (first..first + 7).collect();
        if own || number == 0 {
            tensors.extend(sources.iter().map(|&id| place.leaf(peer, id)));
        }
        tensors.push(place.node(peer, OpCode::RwkvWkv7, 1_000_000 + number, 2, &sources));
        ids.push(1_000_000 + number);
    }
    (ids, tensors)
}

fn with_long_names(peer: &Peer, place: &Place, nodes: u64) -> Shape {
    let (ids, mut tensors) = chain(peer, place, nodes);
    tensors.iter_mut().for_each(|tensor| tensor.set_name(&"n".repeat(63)));
    (ids, tensors)
}

fn with_many_buffers(peer: &Peer, place: &Place, others: &[Place]) -> Shape {
    let (mut ids, mut tensors) = (Vec::new(), Vec::new());
    for (id, other) in (1000..).step_by(2).zip(others) {
        tensors.push(other.leaf(peer, id));
        tensors.push(place.node(peer, OpCode::Add, id + 1, 1, &[id, id]));
        ids.push(id + 1);
    }
    (ids, tensors)
}

#[test]
fn what_counts_for_a_stored_graph_is_what_it_takes() {
    let mut wrong = Vec::new();
    let cpu =
        Fixture::with(DeviceConfig::default(), |config| config.devices = vec![CpuDevice::new().unwrap()]);
    // It has all ops, and computes nothing.
    let null = Fixture::with(DeviceConfig { null: true, ..DeviceConfig::default() }, |_| {});
    for (device, fixture) in [("without plans", null), ("with plans", cpu)] {
        let mut peer = fixture.newest();
        let place = Place::new(&mut peer);
        let others: Vec<Place> = (0..2000).map(|_| Place::new(&mut peer)).collect();
        // What the process holds and what the worker counts while a graph is stored.
        let measure = |peer: &mut Peer, (ids, tensors): Shape| {
            assert!(peer.compute(&ids, &tensors), "{:?}", fixture.events());
            drop((ids, tensors));
            // What the device notes for tests is no part of it.
            fixture.device.take_log();
            (live_bytes(), usize::try_from(fixture.counters().stored_bytes).unwrap())
        };
        let shapes: [Named<'_>; 9] = [
            ("500 nodes", &|peer| chain(peer, &place, 500)),
            ("4,000 nodes", &|peer| chain(peer, &place, 4000)),
            // Too many for one turn, so that there are several plans.
            ("20,000 nodes", &|peer| chain(peer, &place, 20_000)),
            ("70,000 nodes", &|peer| chain(peer, &place, 70_000)),
            ("nodes without sources", &|peer| without_sources(peer, &place, 3000)),
            ("nodes with seven sources", &|peer| with_many_sources(peer, &place, 3000, false)),
            ("nodes with seven leaves", &|peer| with_many_sources(peer, &place, 1000, true)),
            ("long names", &|peer| with_long_names(peer, &place, 1500)),
            ("many buffers", &|peer| with_many_buffers(peer, &place, &others)),
        ];
        for (what, shape) in shapes {
            // The first time, memory may be taken that stays: scratch of the device, and the room of lists.
            let all = shape(&peer);
            measure(&mut peer, all);
            let next_to_nothing = chain(&peer, &place, 1);
            let before = measure(&mut peer, next_to_nothing);
            let all = shape(&peer);
            let offered = kept_graph_bytes(peer.graph_body(&all.0, &all.1).len());
            let after = measure(&mut peer, all);
            let (takes, counts) = (after.0 - before.0, after.1 - before.1);
            let line = format!("{what}, {device}: takes {takes} bytes, counts {counts}");
            println!("{line}");
            // Clients that keep graphs in slots count them without plans.
            let is_more_than_offered = device == "without plans" && counts > offered;
            if takes > counts || counts > takes + takes / 5 || is_more_than_offered {
                wrong.push(line);
            }
        }
    }
    let (takes, counts) = in_slots();
    let line = format!("60 graphs in slots: takes {takes} bytes, counts {counts}");
    println!("{line}");
    if takes > counts || counts > takes + takes / 5 {
        wrong.push(line);
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The same for many graphs in slots: what they take, and what they count.
fn in_slots() -> (usize, usize) {
    let fixture =
        Fixture::with(DeviceConfig::default(), |config| config.devices = vec![CpuDevice::new().unwrap()]);
    let mut peer = Peer::connect(fixture.auto, Dialect::own());
    let place = Place::new(&mut peer);
    let mut fill = |slots: u16, nodes| {
        for slot in 0..slots {
            let (ids, tensors) = chain(&peer, &place, nodes);
            let body = [&slot.to_le_bytes()[..], &peer.graph_body(&ids, &tensors)].concat();
            peer.send(Command::GraphKeep, &body);
        }
        assert!(peer.is_alive(), "{:?}", fixture.events());
        (live_bytes(), usize::try_from(fixture.counters().stored_bytes).unwrap())
    };
    fill(60, 300);
    let before = fill(60, 1);
    let after = fill(60, 300);
    (after.0 - before.0, after.1 - before.1)
}
