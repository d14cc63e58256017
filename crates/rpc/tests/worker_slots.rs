//! Graphs that a worker keeps in slots for clients of Oxcart. `docs/threats.md` says which threat each test answers.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::io::Read;
use std::sync::Arc;

use common::{Fixture, Peer, patient};
use oxcart_backend::{Buffers, Device, Registry, StreamOptions, Work, place_all};
use oxcart_rpc::client::{Options, RemoteRegistry};
use oxcart_rpc::wire::{
    Command, Dialect, Interruption, MAX_KEPT_GRAPHS, NO_CAPABILITIES, NotDelivered, OpCode, TensorRecord,
    kept_graph_bytes, offers_kept_graphs,
};
use oxcart_rpc::worker::Limits;
use oxcart_tensor::{DType, Graph};

const SCALAR: [u32; 4] = [1, 1, 1, 1];

fn own(fixture: &Fixture) -> Peer {
    Peer::connect(fixture.auto, Dialect::own())
}

/// A number, and graphs that add something to it: the one with number `n` adds `n`.
struct Counter {
    handle: u64,
    base: u64,
}

impl Counter {
    const MOST: u16 = 300;

    fn new(peer: &mut Peer) -> Counter {
        let handle = peer.alloc(32 * (1 + u64::from(Counter::MOST)));
        let counter = Counter { handle, base: peer.base(handle) };
        peer.set_floats(&counter.record(peer, 0), &[0.0]);
        for number in 1..Counter::MOST {
            peer.set_floats(&counter.record(peer, number), &[f32::from(number)]);
        }
        counter
    }

    /// Where a number is; first of all the sum.
    fn record(&self, peer: &Peer, number: u16) -> TensorRecord {
        let id = 1 + u64::from(number);
        peer.tensor(id, SCALAR, (self.handle, self.base + 32 * u64::from(number)))
    }

    fn body(&self, peer: &Peer, number: u16) -> Vec<u8> {
        let (sum, term) = (self.record(peer, 0), self.record(peer, number));
        let node =
            peer.node(OpCode::Add, 1000, SCALAR, (self.handle, self.base), &[1, 1 + u64::from(number)]);
        peer.graph_body(&[1000], &[sum, term, node])
    }

    fn keep(&self, peer: &mut Peer, slot: u16, number: u16) {
        let body = [&slot.to_le_bytes()[..], &self.body(peer, number)].concat();
        peer.send(Command::GraphKeep, &body);
    }

    /// The sum, which is answered behind all that was sent before.
    fn sum(&self, peer: &mut Peer) -> f32 {
        let record = self.record(peer, 0);
        peer.floats(&record)[0]
    }
}

fn run(peer: &mut Peer, slot: u16) {
    peer.send(Command::GraphRun, &slot.to_le_bytes());
}

#[test]
fn graphs_in_slots_are_computed_in_any_order() {
    let fixture = Fixture::new();
    let mut peer = own(&fixture);
    let counter = Counter::new(&mut peer);
    for (slot, number) in [(0, 1), (7, 2), (255, 4)] {
        counter.keep(&mut peer, slot, number);
    }
    assert_eq!(counter.sum(&mut peer), 7.0);
    for slot in [255, 0, 255, 7, 255] {
        run(&mut peer, slot);
    }
    assert_eq!(counter.sum(&mut peer), 7.0 + 3.0 * 4.0 + 1.0 + 2.0);
    // With the last graph of the device they have nothing to do.
    let device = peer.device();
    let body = counter.body(&peer, 100);
    peer.send(Command::GraphCompute, &body);
    run(&mut peer, 0);
    peer.send(Command::GraphRecompute, &device);
    assert_eq!(counter.sum(&mut peer), 22.0 + 201.0);
    // What is put into a slot replaces what was there.
    counter.keep(&mut peer, 7, 50);
    run(&mut peer, 7);
    assert_eq!(counter.sum(&mut peer), 223.0 + 100.0);
    let counters = fixture.counters();
    assert_eq!((counters.graphs, counters.recomputes), (5, 8), "{counters}");
}

#[test]
fn slots_with_nothing_in_them_are_refused() {
    let fixture = Fixture::new();
    type Refused = fn(&mut Peer, &Counter) -> (Command, Vec<u8>);
    let refused: [(&str, Refused); 8] = [
        ("nothing ever there", |_, _| (Command::GraphRun, vec![0, 0])),
        ("another slot", |peer, counter| {
            counter.keep(peer, 1, 1);
            (Command::GraphRun, vec![0, 0])
        }),
        ("dropped", |peer, counter| {
            counter.keep(peer, 1, 1);
            peer.send(Command::GraphDrop, &[1, 0]);
            (Command::GraphRun, vec![1, 0])
        }),
        ("nothing to drop", |_, _| (Command::GraphDrop, vec![1, 0])),
        ("a buffer of it is gone", |peer, counter| {
            counter.keep(peer, 1, 1);
            peer.free(counter.handle);
            (Command::GraphRun, vec![1, 0])
        }),
        ("the last graph is in no slot", |peer, counter| {
            let body = counter.body(peer, 1);
            peer.send(Command::GraphCompute, &body);
            (Command::GraphRun, vec![0, 0])
        }),
        ("a graph in a slot is not the last one", |peer, counter| {
            counter.keep(peer, 0, 1);
            (Command::GraphRecompute, peer.device())
        }),
        ("half a slot", |_, _| (Command::GraphKeep, vec![0])),
    ];
    for (what, prepare) in refused {
        let mut peer = own(&fixture);
        let counter = Counter::new(&mut peer);
        let (command, body) = prepare(&mut peer, &counter);
        assert!(peer.is_alive(), "{what}: refused too early");
        println!("{what}");
        peer.assert_refused(command, &body);
    }
    // Slots are of a connection.
    let (mut one, other) = (own(&fixture), own(&fixture));
    let counter = Counter::new(&mut one);
    counter.keep(&mut one, 3, 1);
    assert_eq!(counter.sum(&mut one), 1.0);
    other.assert_refused(Command::GraphRun, &[3, 0]);
    run(&mut one, 3);
    assert_eq!(counter.sum(&mut one), 2.0);
    drop(one);
    fixture.until_empty();
    assert_eq!(fixture.counters().stored_bytes, 0);
}

#[test]
fn the_number_of_slots_is_bounded() {
    let fixture = Fixture::new();
    let mut peer = own(&fixture);
    let counter = Counter::new(&mut peer);
    let most = u16::try_from(MAX_KEPT_GRAPHS).unwrap();
    for slot in 0..most {
        counter.keep(&mut peer, slot, 1);
    }
    for slot in 0..most {
        run(&mut peer, slot);
    }
    assert_eq!(counter.sum(&mut peer), 2.0 * f32::from(most));
    for slot in [most, u16::MAX] {
        for command in [Command::GraphKeep, Command::GraphRun, Command::GraphDrop] {
            let mut peer = own(&fixture);
            let counter = Counter::new(&mut peer);
            let graph = if command == Command::GraphKeep { counter.body(&peer, 1) } else { Vec::new() };
            peer.assert_refused(command, &[&slot.to_le_bytes()[..], &graph].concat());
        }
    }
}

/// Other dialects have no slots, and no one is told of them but who asks as clients of Oxcart do.
#[test]
fn slots_are_between_oxcarts_alone() {
    let fixture = Fixture::new();
    for dialect in common::dialects() {
        for command in [Command::GraphKeep, Command::GraphRun, Command::GraphDrop] {
            fixture.connect(dialect).assert_refused(command, &[0, 0]);
        }
    }
    let offered = |fixture: &Fixture, capabilities: &[u8]| {
        let mut peer = Peer { stream: common::dial(fixture.auto), dialect: Dialect::own() };
        peer.send(Command::Hello, capabilities);
        let reply = peer.reply().unwrap();
        offers_kept_graphs(reply[4..].try_into().unwrap())
    };
    assert_eq!(offered(&fixture, &NO_CAPABILITIES), Some(32 << 20));
    assert_eq!(offered(&fixture, &[1; 24]), None);
    let small = Fixture::limited(Limits { client_bytes: 64 << 10, ..patient() });
    assert_eq!(offered(&small, &NO_CAPABILITIES), Some(32 << 10));
}

/// A client may keep what is offered, as it counts that itself; and it may not keep more than it may hold.
#[test]
fn what_is_offered_can_be_kept() {
    let limits = Limits { client_bytes: 64 << 10, ..patient() };
    let fixture = Fixture::limited(limits);
    let mut peer = own(&fixture);
    let counter = Counter::new(&mut peer);
    let one = kept_graph_bytes(counter.body(&peer, 1).len());
    let most = u16::try_from((32 << 10) / one).unwrap();
    assert!(most > 3);
    for round in 0..3 {
        for slot in 0..most {
            counter.keep(&mut peer, slot, 1 + round);
        }
        // What is dropped leaves room for others.
        peer.send(Command::GraphDrop, &[0, 0]);
        counter.keep(&mut peer, 200, 1);
        peer.send(Command::GraphDrop, &200_u16.to_le_bytes());
        counter.keep(&mut peer, 0, 1 + round);
        assert!(counter.sum(&mut peer) > 0.0);
    }
    let held = fixture.counters().stored_bytes;
    assert!(held <= 64 << 10, "{held}");
    for slot in most..250 {
        counter.keep(&mut peer, slot, 1);
    }
    peer.assert_closed("more than a client may hold");
    assert_eq!(fixture.counters().refusals.get("limit"), Some(&1));
    fixture.until_empty();
}

/// However many graphs take turns, and however little the worker keeps: the client knows what is kept.
#[test]
fn client_and_worker_agree_on_what_is_kept() {
    for (client_bytes, sent_again) in [(64 << 20, false), (64 << 10, true), (44 << 10, true)] {
        let fixture = Fixture::limited(Limits { client_bytes, ..patient() });
        let registry = RemoteRegistry::connect(&fixture.auto.to_string(), &Options::default()).unwrap();
        let device = registry.devices().remove(0);
        let stream = Arc::clone(&device).open(&StreamOptions::default()).unwrap();
        let make = |number| {
            let one = Doubling::new(&device, 1 + number % 7_u16);
            let plan = stream.plan(one.work()).unwrap().unwrap();
            Some((one, plan))
        };
        let mut all: Vec<_> = (0..40).map(make).collect();
        let mut computed = 0;
        for round in 0..4 {
            for at in (0..40).map(|at| (at * 7 + round * 3) % 40) {
                // Now and then a buffer goes, and with it what uses it.
                if round == 2 && at % 5 == 0 {
                    all[at] = None;
                }
                let Some((one, plan)) = &mut all[at] else { continue };
                plan.compute().unwrap();
                computed += 1;
                if at % 4 == 0 {
                    assert_eq!(one.result(), f32::from(1_u16 << one.nodes));
                }
            }
        }
        let sent = |command| registry.traffic().of(command).messages;
        assert_eq!(sent(Command::GraphKeep) + sent(Command::GraphRun), computed);
        assert_eq!(sent(Command::GraphKeep) > 40, sent_again, "{}", sent(Command::GraphKeep));
        assert_eq!(sent(Command::GraphCompute) + sent(Command::GraphRecompute), 0);
        // All of them go with their buffers.
        drop(all);
        device.memory().unwrap();
        assert_eq!(fixture.counters().stored_bytes, 0, "{}", fixture.counters());
        assert!(registry.failure().is_none());
    }
}

/// What a worker says in the place of an answer once it was asked for a graph that it has not kept; then it goes on.
#[track_caller]
fn assert_not_kept(peer: &mut Peer) {
    peer.send(Command::GetAlignment, &[0; 4]);
    let mut said = [0; 8 + Interruption::BYTES];
    peer.stream.read_exact(&mut said).unwrap();
    assert_eq!(said[..8], Interruption::LENGTH.to_le_bytes());
    let said = Interruption::decode(said[8..].try_into().unwrap()).unwrap();
    assert_eq!(said, Interruption { number: 0, why: NotDelivered::NotKept });
    peer.send(Command::Resume, &[]);
}

/// A worker that has room for buffers, but for no graph of a `Counter` nor of a `Doubling`.
fn without_room_for_graphs() -> Fixture {
    let measure = Fixture::new();
    let mut peer = own(&measure);
    Counter::new(&mut peer);
    let known = usize::try_from(measure.counters().stored_bytes).unwrap();
    Fixture::limited(Limits { stored_bytes: 2 * known, ..patient() })
}

/// Where others leave no room, a graph is computed and not kept. Its client learns that when it asks for it, and keeps all that it has.
#[test]
fn a_graph_that_is_not_kept_ends_no_session() {
    let fixture = without_room_for_graphs();
    let mut peer = own(&fixture);
    let counter = Counter::new(&mut peer);
    let before = fixture.counters().stored_bytes;
    counter.keep(&mut peer, 3, 1);
    assert_eq!(counter.sum(&mut peer), 1.0, "it is computed");
    assert_eq!(fixture.counters().stored_bytes, before, "and not kept");
    // A client takes it to be there, and may drop it.
    peer.send(Command::GraphDrop, &[3, 0]);
    assert_eq!(counter.sum(&mut peer), 1.0);
    counter.keep(&mut peer, 3, 1);
    run(&mut peer, 3);
    run(&mut peer, 3);
    assert_not_kept(&mut peer);
    assert_eq!(counter.sum(&mut peer), 2.0, "nothing was computed since");
    let body = counter.body(&peer, 1);
    peer.send(Command::GraphCompute, &body);
    assert_eq!(counter.sum(&mut peer), 3.0);
    assert_eq!(fixture.counters().refusals.get("not_kept"), Some(&1));
    // What the client knows not to be there is as wrong to name as ever.
    peer.assert_refused(Command::GraphRun, &[3, 0]);
}

/// Our client loses what was under way, once, and then sends graphs whole.
#[test]
fn a_client_goes_on_without_kept_graphs() {
    let fixture = without_room_for_graphs();
    let registry = RemoteRegistry::connect(&fixture.auto.to_string(), &Options::default()).unwrap();
    let device = registry.devices().remove(0);
    let one = Doubling::new(&device, 3);
    let compute = || {
        let stream = Arc::clone(&device).open(&StreamOptions::default()).unwrap();
        let mut plan = stream.plan(one.work()).unwrap().unwrap();
        plan.compute().and_then(|()| plan.compute()).and_then(|()| stream.synchronize())
    };
    let error = compute().unwrap_err();
    assert!(matches!(error, oxcart_backend::Error::Interrupted { .. }), "{error}");
    for _ in 0..10 {
        compute().unwrap();
        assert_eq!(one.result(), 8.0, "its buffers are there");
    }
    let sent = |command| registry.traffic().of(command).messages;
    assert_eq!((sent(Command::GraphKeep), sent(Command::GraphCompute)), (1, 20));
    assert!(registry.failure().is_none());
}

/// A client that keeps much makes way for one that has little: it loses its graphs, of which it learns when it asks for one.
#[test]
fn graphs_in_slots_make_way_for_those_who_have_less() {
    let measure = Fixture::new();
    let mut peer = own(&measure);
    let counter = Counter::new(&mut peer);
    counter.keep(&mut peer, 0, 1);
    assert_eq!(counter.sum(&mut peer), 1.0);
    let one = usize::try_from(measure.counters().stored_bytes).unwrap();
    let fixture = Fixture::limited(Limits { stored_bytes: 8 * one, ..patient() });
    let mut greedy = own(&fixture);
    let kept = Counter::new(&mut greedy);
    let mut slots = 0;
    while usize::try_from(fixture.counters().stored_bytes).unwrap() <= 7 * one {
        kept.keep(&mut greedy, slots, 1);
        slots += 1;
        assert_eq!(kept.sum(&mut greedy), f32::from(slots));
    }
    let mut honest = own(&fixture);
    let counter = Counter::new(&mut honest);
    for round in 1..4 {
        counter.keep(&mut honest, 0, 1);
        run(&mut honest, 0);
        assert_eq!(counter.sum(&mut honest), 2.0 * round as f32);
    }
    // Its memory stays; only graphs went.
    assert_eq!(kept.sum(&mut greedy), f32::from(slots));
    run(&mut greedy, 0);
    assert_not_kept(&mut greedy);
    kept.keep(&mut greedy, 0, 1);
    assert_eq!(kept.sum(&mut greedy), f32::from(slots + 1));
    run(&mut honest, 0);
    assert_eq!(counter.sum(&mut honest), 7.0);
}

/// A graph that doubles a number so many times.
struct Doubling {
    graph: Graph,
    buffers: Buffers,
    last: oxcart_tensor::TensorId,
    nodes: u16,
}

impl Doubling {
    fn new(device: &Arc<dyn Device>, nodes: u16) -> Doubling {
        let (mut graph, mut buffers) = (Graph::new(), Buffers::new());
        let first = graph.leaf(DType::F32, [1]).unwrap();
        let mut last = first;
        for _ in 0..nodes {
            last = graph.add(last, last).unwrap();
        }
        graph.expand(last).unwrap();
        let all: Vec<_> = graph.ids().collect();
        place_all(&mut graph, &all, &device.buffer_type(), &mut buffers).unwrap();
        buffers.set(graph.tensor(first).unwrap(), 0, &1_f32.to_le_bytes()).unwrap();
        Doubling { graph, buffers, last, nodes }
    }

    fn work(&self) -> Work<'_> {
        let nodes = self.graph.range(0..self.graph.nodes().len()).unwrap();
        Work { nodes, buffers: &self.buffers }
    }

    fn result(&self) -> f32 {
        let bytes = self.buffers.bytes(self.graph.tensor(self.last).unwrap()).unwrap();
        f32::from_le_bytes(bytes.try_into().unwrap())
    }
}
