//! What a worker plans, and how often: by a processor that counts. `docs/threats.md` says which threat each test answers.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use common::{Fixture, Peer, patient};
use oxcart_backend::{
    BufferType, Caps, Device, DeviceKind, Error, Guid, Memory, Pace, Plan, Stream, StreamOptions, Work,
};
use oxcart_cpu::CpuDevice;
use oxcart_rpc::wire::{Command, OpCode};
use oxcart_rpc::worker::Limits;
use oxcart_tensor::TensorRef;
use oxcart_testdev::Config as DeviceConfig;

/// The processor; counts plans that were made, and graphs that were computed without one.
#[derive(Debug)]
struct Counting {
    inner: Arc<CpuDevice>,
    plans: Arc<AtomicUsize>,
    without: Arc<AtomicUsize>,
}

impl Counting {
    fn new() -> Arc<Counting> {
        let inner = CpuDevice::new().unwrap();
        Arc::new(Counting { inner, plans: Arc::default(), without: Arc::default() })
    }

    fn counts(&self) -> (usize, usize) {
        (self.plans.load(Ordering::SeqCst), self.without.load(Ordering::SeqCst))
    }
}

impl Device for Counting {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn description(&self) -> &str {
        self.inner.description()
    }

    fn kind(&self) -> DeviceKind {
        self.inner.kind()
    }

    fn memory(&self) -> Result<Memory, Error> {
        self.inner.memory()
    }

    fn caps(&self) -> Caps {
        self.inner.caps()
    }

    fn open(self: Arc<Self>, _options: &StreamOptions) -> Result<Box<dyn Stream>, Error> {
        let inner = Arc::clone(&self.inner).open(&StreamOptions::threads(1))?;
        let (plans, without) = (Arc::clone(&self.plans), Arc::clone(&self.without));
        Ok(Box::new(CountingStream { device: self, inner, plans, without }))
    }

    fn buffer_type(&self) -> Arc<dyn BufferType> {
        self.inner.buffer_type()
    }

    fn supports_op(&self, node: TensorRef<'_>) -> bool {
        self.inner.supports_op(node)
    }

    fn supports_buffer_type(&self, buffer_type: &Arc<dyn BufferType>) -> bool {
        self.inner.supports_buffer_type(buffer_type)
    }

    fn pace(&self) -> Pace {
        self.inner.pace()
    }
}

#[derive(Debug)]
struct CountingStream {
    device: Arc<dyn Device>,
    inner: Box<dyn Stream>,
    plans: Arc<AtomicUsize>,
    without: Arc<AtomicUsize>,
}

impl Stream for CountingStream {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn guid(&self) -> Guid {
        self.inner.guid()
    }

    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn plan(&self, work: Work<'_>) -> Result<Option<Box<dyn Plan>>, Error> {
        self.plans.fetch_add(1, Ordering::SeqCst);
        self.inner.plan(work)
    }

    fn compute(&self, work: Work<'_>) -> Result<(), Error> {
        self.without.fetch_add(1, Ordering::SeqCst);
        self.inner.compute(work)
    }

    fn cancel_flag(&self) -> Option<Arc<AtomicBool>> {
        self.inner.cancel_flag()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn lending(device: &Arc<Counting>, limits: Limits) -> Fixture {
    let device = Arc::clone(device) as Arc<dyn Device>;
    Fixture::with(DeviceConfig::default(), |config| (config.devices, config.limits) = (vec![device], limits))
}

/// A graph of so many sums, each one more than the one before, whose result is that of the last; with a product on the way that takes
/// more than a turn.
struct Sums {
    handle: u64,
    base: u64,
    body: Vec<u8>,
}

impl Sums {
    fn new(peer: &mut Peer, nodes: u64) -> Sums {
        const SIDE: u32 = 1024;
        let scalar = [1, 1, 1, 1];
        let handle = peer.alloc(3 * u64::from(SIDE * SIDE) * 4 + 64);
        let base = peer.base(handle);
        let (one, sum, many) = (base, base + 32, base + 64);
        let square = u64::from(SIDE * SIDE) * 4;
        let mut tensors = vec![
            peer.tensor(1, scalar, (handle, one)),
            peer.tensor(2, scalar, (handle, sum)),
            peer.tensor(3, [SIDE, SIDE, 1, 1], (handle, many)),
        ];
        let ids: Vec<u64> = (4..=4 + nodes).collect();
        for (index, &id) in ids.iter().enumerate() {
            tensors.push(if index == ids.len() / 2 {
                let place = (handle, many + square);
                peer.node(OpCode::MulMat, id, [SIDE, SIDE, 1, 1], place, &[3, 3])
            } else {
                peer.node(OpCode::Add, id, scalar, (handle, sum), &[2, 1])
            });
        }
        let body = peer.graph_body(&ids, &tensors);
        peer.set_floats(&tensors[0], &[1.0]);
        peer.set_floats(&tensors[1], &[0.0]);
        Sums { handle, base, body }
    }

    fn result(&self, peer: &mut Peer) -> f32 {
        let sum = peer.tensor(2, [1, 1, 1, 1], (self.handle, self.base + 32));
        peer.floats(&sum)[0]
    }
}

/// A graph of several turns, of which one is of another lane than the others, is planned once, however often it is computed.
#[test]
fn every_slice_of_a_graph_is_planned_once() {
    let device = Counting::new();
    let fixture = lending(&device, patient());
    let mut peer = fixture.newest();
    let sums = Sums::new(&mut peer, 9000);
    peer.send(Command::GraphCompute, &sums.body);
    assert_eq!(sums.result(&mut peer), 9000.0);
    let (plans, without) = device.counts();
    assert!(plans > 3 && without == 0, "{plans} plans, {without} slices computed without one");
    let again = peer.device();
    for times in 2..4 {
        peer.send(Command::GraphRecompute, &again);
        assert_eq!(sums.result(&mut peer), 9000.0 * times as f32);
    }
    assert_eq!(device.counts(), (plans, 0));
}

/// Plans have what room is left: a graph that leaves them none is computed all the same, and they make way for what a client needs.
#[test]
fn plans_take_only_what_is_left() {
    let device = Counting::new();
    let counted = |fixture: &Fixture| usize::try_from(fixture.counters().stored_bytes).unwrap();
    // What the graph counts with plans.
    let fixture = lending(&device, patient());
    let mut peer = fixture.newest();
    let sums = Sums::new(&mut peer, 9000);
    peer.send(Command::GraphCompute, &sums.body);
    assert_eq!(sums.result(&mut peer), 9000.0);
    let whole = counted(&fixture);
    // Less than that, but enough for the graph.
    for limits in
        [Limits { client_bytes: whole - 1, ..patient() }, Limits { stored_bytes: whole - 1, ..patient() }]
    {
        let fixture = lending(&device, limits);
        let mut peer = fixture.newest();
        let sums = Sums::new(&mut peer, 9000);
        let before = device.counts();
        peer.send(Command::GraphCompute, &sums.body);
        assert_eq!(sums.result(&mut peer), 9000.0);
        let first = device.counts();
        assert!(counted(&fixture) < whole);
        // The slice without a plan is computed without one.
        assert_eq!(first.1 - before.1, 1);
        let again = peer.device();
        peer.send(Command::GraphRecompute, &again);
        assert_eq!(sums.result(&mut peer), 18_000.0);
        assert_eq!(device.counts(), (first.0, first.1 + 1));
        // The knowledge of buffers is worth more than plans.
        let held = counted(&fixture);
        let mut buffers = 0;
        while counted(&fixture) >= held {
            assert_ne!(peer.try_alloc(0).0, 0, "plans kept out a buffer: {}", fixture.counters());
            buffers += 1;
            assert!(buffers < 100_000, "plans do not make way");
        }
        peer.send(Command::GraphRecompute, &again);
        assert_eq!(sums.result(&mut peer), 27_000.0);
        assert!(device.counts().1 > first.1 + 2, "the plans are gone");
    }
}

/// A graph that no one has room for but plans is stored.
#[test]
fn plans_of_others_make_way() {
    let device = Counting::new();
    let counted = |fixture: &Fixture| usize::try_from(fixture.counters().stored_bytes).unwrap();
    let store = |fixture: &Fixture, nodes| {
        let mut peer = fixture.newest();
        let sums = Sums::new(&mut peer, nodes);
        peer.send(Command::GraphCompute, &sums.body);
        assert_eq!(sums.result(&mut peer), nodes as f32);
        (peer, sums)
    };
    let fixture = lending(&device, patient());
    let _first = store(&fixture, 9000);
    let limits = Limits { stored_bytes: counted(&fixture), ..patient() };
    let fixture = lending(&device, limits);
    let (mut first, first_sums) = store(&fixture, 9000);
    let whole = counted(&fixture);
    assert_eq!(whole, limits.stored_bytes);
    // Neither is so much smaller that a graph would make way for it.
    let (mut second, second_sums) = store(&fixture, 200);
    for (peer, sums, nodes) in [(&mut first, &first_sums, 9000.0), (&mut second, &second_sums, 200.0)] {
        let again = peer.device();
        peer.send(Command::GraphRecompute, &again);
        assert_eq!(sums.result(peer), 2.0 * nodes);
    }
}
