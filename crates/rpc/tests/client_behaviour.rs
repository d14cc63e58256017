//! What the client sends when, and that it means what it says.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common_client;

use std::sync::Arc;

use common_client::{Config, FakeWorker, Misbehaviour, options};
use oxcart_backend::{
    Buffers, Device, Error, Place, Registry, Stream, StreamOptions, Usage, Work, allocate, place_all,
};
use oxcart_rpc::client::{Options, RemoteRegistry, Traffic};
use oxcart_rpc::wire::{Command, GraphBody, fnv1a};
use oxcart_tensor::ops::{TopK, Unary};
use oxcart_tensor::{DType, Graph, TensorId};

fn worker(dialect: &str) -> (FakeWorker, Arc<RemoteRegistry>, Arc<dyn Device>) {
    let worker = FakeWorker::start(Config::new(dialect));
    let registry = worker.connect().unwrap();
    let device = registry.devices().remove(0);
    (worker, registry, device)
}

/// A leaf and a few nodes on top of each other, all on a device.
struct Chain {
    graph: Graph,
    buffers: Buffers,
    ids: Vec<TensorId>,
}

impl Chain {
    fn new(device: &Arc<dyn Device>, nodes: usize) -> Chain {
        let mut graph = Graph::new();
        let mut ids = vec![graph.leaf(DType::F32, [16]).unwrap()];
        for _ in 0..nodes {
            ids.push(graph.sqr(*ids.last().unwrap()).unwrap());
        }
        graph.expand(*ids.last().unwrap()).unwrap();
        let mut buffers = Buffers::new();
        place_all(&mut graph, &ids, &device.buffer_type(), &mut buffers).unwrap();
        Chain { graph, buffers, ids }
    }

    fn work(&self, nodes: std::ops::Range<usize>) -> Work<'_> {
        Work { nodes: self.graph.range(nodes).unwrap(), buffers: &self.buffers }
    }
}

/// A client that has just told a worker to compute.
struct Computing {
    registry: Arc<RemoteRegistry>,
    device: Arc<dyn Device>,
    stream: Box<dyn Stream>,
    chain: Chain,
}

impl Computing {
    fn on(worker: &FakeWorker) -> Computing {
        let registry = worker.connect().unwrap();
        let device = registry.devices().remove(0);
        let stream = Arc::clone(&device).open(&StreamOptions::default()).unwrap();
        let chain = Chain::new(&device, 2);
        stream.compute(chain.work(0..2)).unwrap();
        Computing { registry, device, stream, chain }
    }
}

fn graphs(worker: &FakeWorker) -> Vec<Command> {
    let is_graph = |command: &Command| matches!(command, Command::GraphCompute | Command::GraphRecompute);
    worker.commands().into_iter().filter(is_graph).collect()
}

#[test]
fn a_graph_is_sent_once_until_something_comes_in_between() {
    use Command::{GraphCompute as Whole, GraphRecompute as Again};
    for dialect in ["3.6", "4.0.0", "5.1", "7.0"] {
        let (worker, _registry, device) = worker(dialect);
        let stream = Arc::clone(&device).open(&StreamOptions::default()).unwrap();
        let chain = Chain::new(&device, 3);
        let other = allocate(&device.buffer_type(), 100).unwrap();
        let mut plan = stream.plan(chain.work(0..3)).unwrap().unwrap();
        plan.compute().unwrap();
        plan.compute().unwrap();
        stream.compute(chain.work(0..3)).unwrap();
        other.write(0, &[1]).unwrap();
        plan.compute().unwrap();
        // Another graph takes its place.
        stream.compute(chain.work(0..2)).unwrap();
        plan.compute().unwrap();
        plan.update(chain.work(0..3)).unwrap();
        plan.compute().unwrap();
        // Some workers forget graphs when a buffer is freed, others keep one with a hole.
        drop(other);
        plan.compute().unwrap();
        plan.compute().unwrap();
        stream.synchronize().unwrap();
        assert_eq!(
            graphs(&worker),
            [Whole, Again, Again, Again, Whole, Whole, Again, Whole, Again],
            "{dialect}"
        );
    }
}

#[test]
fn devices_keep_graphs_of_their_own() {
    use Command::{GraphCompute as Whole, GraphRecompute as Again};
    let worker = FakeWorker::start(Config { devices: 2, ..Config::new("7.0") });
    let registry = worker.connect().unwrap();
    let devices = registry.devices();
    let chains: Vec<_> = devices.iter().map(|device| Chain::new(device, 2)).collect();
    let streams: Vec<_> =
        devices.iter().map(|device| Arc::clone(device).open(&StreamOptions::default()).unwrap()).collect();
    for _ in 0..2 {
        for (stream, chain) in streams.iter().zip(&chains) {
            stream.compute(chain.work(0..2)).unwrap();
        }
    }
    streams[0].synchronize().unwrap();
    assert_eq!(graphs(&worker), [Whole, Whole, Again, Again]);
    assert_eq!(worker.of(Again)[1].body(), [1, 0, 0, 0]);
    let body = worker.of(Whole)[1].body().to_vec();
    assert_eq!(GraphBody::decode(&body, registry.dialect()).unwrap().device, 1);
}

#[test]
fn only_what_the_nodes_touch_is_described() {
    let (worker, registry, device) = worker("7.0");
    let stream = Arc::clone(&device).open(&StreamOptions::default()).unwrap();
    let chain = Chain::new(&device, 5);
    stream.compute(chain.work(3..4)).unwrap();
    stream.synchronize().unwrap();
    let body = worker.of(Command::GraphCompute)[0].body().to_vec();
    let body = GraphBody::decode(&body, registry.dialect()).unwrap();
    let ids: Vec<_> = body.tensors.iter().map(|record| record.id.get()).collect();
    assert_eq!(ids, [4, 5], "a source and the node");
    assert_eq!(body.nodes.iter().map(|id| id.get()).collect::<Vec<_>>(), [5]);
    let leaf = &body.tensors[0];
    assert_eq!((leaf.op.get(), leaf.sources[0].get(), leaf.flags.get()), (0, 0, 0));
    assert_eq!(leaf.use_count.get(), 1, "of the whole graph");
    assert_eq!(body.tensors[1].flags.get(), 16);
    let uses = chain.graph.use_count(chain.ids[4]);
    assert_eq!(body.tensors[1].use_count.get(), i32::try_from(uses).unwrap());
}

#[test]
fn views_travel_with_what_they_look_into() {
    let (worker, registry, device) = worker("7.0");
    let stream = Arc::clone(&device).open(&StreamOptions::default()).unwrap();
    let mut graph = Graph::new();
    let cache = graph.leaf(DType::F32, [16, 4]).unwrap();
    let view = graph.view(cache, [16, 2], &[64], 64).unwrap();
    let result = graph.sqr(view).unwrap();
    graph.expand(result).unwrap();
    let mut buffers = Buffers::new();
    place_all(&mut graph, &[cache, result], &device.buffer_type(), &mut buffers).unwrap();
    let nodes = graph.range(0..graph.nodes().len()).unwrap();
    stream.compute_and_wait(Work { nodes, buffers: &buffers }).unwrap();
    let bytes = worker.of(Command::GraphCompute)[0].body().to_vec();
    let body = GraphBody::decode(&bytes, registry.dialect()).unwrap();
    assert_eq!(body.tensors.len(), 3);
    let [cache, view, _] = [0, 1, 2].map(|place| &body.tensors[place]);
    assert_eq!(view.view_source.get(), cache.id.get());
    assert_eq!(view.view_offset.get(), 64);
    assert_eq!(view.data.get(), cache.data.get() + 64);
    assert_eq!(view.buffer, cache.buffer);
}

#[test]
fn memory_elsewhere_is_refused_where_it_would_be_read() {
    let (worker, _registry, device) = worker("7.0");
    let stream = Arc::clone(&device).open(&StreamOptions::default()).unwrap();
    let mut chain = Chain::new(&device, 1);
    chain.graph.unbind(chain.ids[0]).unwrap();
    let error = stream.compute(chain.work(0..1)).unwrap_err().to_string();
    assert!(error.contains("not in its memory"), "{error}");
    let mut chain = Chain::new(&device, 1);
    chain.graph.unbind(chain.ids[1]).unwrap();
    assert!(stream.compute(chain.work(0..1)).is_err());
    assert_eq!(graphs(&worker), []);
}

#[test]
fn a_status_of_version_2_is_reported_and_survived() {
    let worker = FakeWorker::start(Config { status: 255, ..Config::new("2.0") });
    let Computing { registry, device, stream, .. } = Computing::on(&worker);
    let error = stream.synchronize().unwrap_err().to_string();
    assert!(error.contains("failed to compute the graph"), "{error}");
    stream.synchronize().unwrap();
    device.memory().unwrap();
    assert!(registry.failure().is_none());
}

#[test]
fn synchronizing_means_that_the_worker_is_done() {
    // The worker dies at the graph; if only sending counted, that would go unnoticed.
    let worker = FakeWorker::start(Config::fault("7.0", Command::GraphCompute, Misbehaviour::Close));
    let Computing { stream, .. } = Computing::on(&worker);
    assert!(stream.record().and_then(|point| stream.finish(point)).is_err());
    assert!(stream.synchronize().is_err());
}

/// Who uses several devices must be able to tell one that is gone from one that could not do its work.
#[test]
fn a_worker_that_is_gone_is_a_lost_device() {
    let worker = FakeWorker::start(Config::fault("7.0", Command::GraphCompute, Misbehaviour::Close));
    let Computing { device, stream, chain, .. } = Computing::on(&worker);
    let place = chain.buffers.place_of(chain.graph.tensor(chain.ids[0]).unwrap()).unwrap();
    let read = || stream.get_async(&place).and_then(|pending| pending.wait()).map(|_| ());
    for lost in [stream.synchronize(), read(), device.memory().map(|_| ()), stream.allocate(8).map(|_| ())] {
        assert!(matches!(lost, Err(Error::DeviceLost { .. })), "{lost:?}");
    }
}

/// What a node takes may depend on its sources, which the question carries.
#[test]
fn sizes_are_remembered_by_what_was_asked() {
    let (worker, _registry, device) = worker("7.0");
    let memory = device.buffer_type();
    let mut graph = Graph::new();
    let input = graph.leaf(DType::F32, [64, 3]).unwrap();
    let asked = || worker.commands().iter().filter(|&&command| command == Command::GetAllocSize).count();
    for (dtype, wanted) in [(DType::F32, 1), (DType::Q8_0, 2), (DType::F32, 2)] {
        let weights = graph.leaf(dtype, [64, 8]).unwrap();
        let product = graph.mul_mat(weights, input).unwrap();
        memory.alloc_size(graph.tensor(product).unwrap());
        assert_eq!(asked(), wanted, "{dtype}");
    }
}

#[test]
fn waiting_costs_a_round_trip_only_where_something_is_open() {
    let (worker, registry, device) = worker("7.0");
    let stream = Arc::clone(&device).open(&StreamOptions::default()).unwrap();
    let chain = Chain::new(&device, 2);
    stream.synchronize().unwrap();
    let before = registry.traffic().total().waits;
    stream.synchronize().unwrap();
    stream.finish(stream.record().unwrap()).unwrap();
    assert_eq!(registry.traffic().total().waits, before, "all was confirmed");
    stream.compute(chain.work(0..2)).unwrap();
    let point = stream.record().unwrap();
    stream.finish(point).unwrap();
    stream.finish(point).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(registry.traffic().total().waits, before + 1);
    assert_eq!(worker.commands().last(), Some(&Command::GetTensor));
    let extension = registry.extension(std::any::TypeId::of::<Traffic>()).unwrap();
    let traffic = extension.downcast::<Traffic>().unwrap();
    assert_eq!(traffic.of(Command::GraphCompute).messages, 1);
    assert_eq!(traffic.of(Command::GraphCompute).waits, 0);
}

#[test]
fn commands_of_many_threads_keep_whole() {
    for dialect in ["2.0", "7.0"] {
        let (_worker, registry, device) = worker(dialect);
        let threads: Vec<_> = (0..8_u8)
            .map(|number| {
                let device = Arc::clone(&device);
                std::thread::spawn(move || {
                    let stream = Arc::clone(&device).open(&StreamOptions::default()).unwrap();
                    let buffer = allocate(&device.buffer_type(), 50_000).unwrap();
                    for round in 0..50 {
                        let value = number.wrapping_mul(31).wrapping_add(round);
                        let place = Place { buffer: Arc::clone(&buffer), offset: 100, len: 40_000 };
                        stream.set_async(&place, vec![value; 40_000]).unwrap();
                        buffer.fill(90, 10, value).unwrap();
                        let pending = stream.get_async(&place).unwrap();
                        let mut edge = [0; 20];
                        buffer.read(90, &mut edge).unwrap();
                        assert_eq!(edge, [value; 20]);
                        assert_eq!(pending.wait().unwrap(), vec![value; 40_000]);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(registry.failure().is_none());
    }
}

#[test]
fn ranges_are_checked_here() {
    let (worker, _registry, device) = worker("7.0");
    let buffer = allocate(&device.buffer_type(), 100).unwrap();
    let before = worker.commands().len();
    for (offset, len) in [(0, 101), (100, 1), (usize::MAX, 2), (101, 0)] {
        assert!(buffer.read(offset, &mut vec![0; len]).is_err());
        assert!(buffer.write(offset, &vec![0; len]).is_err());
        assert!(buffer.fill(offset, len, 0).is_err());
        assert!(buffer.copy_from(offset, &*buffer, 0, len).is_err());
    }
    buffer.write(100, &[]).unwrap();
    buffer.read(0, &mut []).unwrap();
    assert_eq!(worker.commands().len(), before);
}

#[test]
fn fills_use_what_the_dialect_has() {
    for (dialect, expected) in
        [("2.0", Command::SetTensor), ("5.1", Command::MemsetTensor), ("7.0", Command::MemsetTensor)]
    {
        let (worker, _registry, device) = worker(dialect);
        let buffer = allocate(&device.buffer_type(), 100).unwrap();
        buffer.fill(10, 20, 7).unwrap();
        let mut back = [1; 100];
        buffer.read(0, &mut back).unwrap();
        let expected_bytes = [[0; 10].as_slice(), &[7; 20], &[0; 70]].concat();
        assert_eq!(back.as_slice(), expected_bytes);
        assert_eq!(worker.of(expected).len(), 1, "{dialect}");
        buffer.clear(3).unwrap();
        buffer.read(0, &mut back).unwrap();
        assert_eq!(back, [3; 100]);
        assert_eq!(worker.of(Command::BufferClear).len(), 2);
    }
}

#[test]
fn copies_go_through_here_only_where_the_worker_cannot() {
    // Where bytes went through here, the last write is still to be confirmed: one more read.
    for (copy_answer, reads) in [(1, 0), (0, 2)] {
        let worker = FakeWorker::start(Config { copy_answer, ..Config::new("7.0") });
        let device = worker.connect().unwrap().devices().remove(0);
        let stream = Arc::clone(&device).open(&StreamOptions::default()).unwrap();
        let place =
            |offset, len| Place { buffer: allocate(&device.buffer_type(), 200).unwrap(), offset, len };
        let (source, target) = (place(50, 100), place(60, 100));
        source.write(&[9; 100]).unwrap();
        assert!(stream.copy_in(&*stream, &source, &target).unwrap());
        stream.synchronize().unwrap();
        assert_eq!(worker.of(Command::GetTensor).len(), reads);
        assert_eq!(target.bytes().unwrap(), [9; 100]);
        // Peers copy without regard to overlap, so such copies are not left to them.
        assert!(!source.buffer.copy_from(10, &*source.buffer, 0, 100).unwrap());
        assert!(source.buffer.copy_from(100, &*source.buffer, 0, 100).unwrap() == (copy_answer == 1));
    }
}

#[test]
fn large_weights_are_asked_for_first_if_the_worker_keeps_them() {
    for (dialect, hash_answer, worker_cache, usage) in [
        ("7.0", 1, true, Usage::Weights),
        ("7.0", 0, true, Usage::Weights),
        ("7.0", 1, true, Usage::Any),
        ("7.0", 1, false, Usage::Weights),
        ("5.1", 0, true, Usage::Weights),
    ] {
        // Older workers are not told what to keep; they keep what is larger than this.
        let large = if dialect == "7.0" { 128 * 1024 + 1 } else { 10 * 1024 * 1024 + 1 };
        let worker = FakeWorker::start(Config { hash_answer, ..Config::new(dialect) });
        let options = Options { worker_cache, ..options() };
        let registry = RemoteRegistry::connect(&worker.endpoint(), &options).unwrap();
        let buffer = allocate(&registry.devices()[0].buffer_type(), large).unwrap();
        buffer.set_usage(usage);
        let data: Vec<u8> = (0..=255).cycle().take(large).collect();
        buffer.write(0, &data[..large - 1]).unwrap();
        buffer.write(0, &data).unwrap();
        buffer.read(0, &mut [0]).unwrap();
        let asked = worker.of(Command::SetTensorHash);
        let sent = worker.of(Command::SetTensor);
        if worker_cache && usage == Usage::Weights {
            assert_eq!(asked.len(), 1);
            assert_eq!(asked[0].body()[304..], fnv1a(&data).to_le_bytes());
            assert_eq!(sent.len(), if hash_answer == 1 { 1 } else { 2 });
        } else {
            assert_eq!((asked.len(), sent.len()), (0, 2));
        }
        if dialect == "7.0" {
            let flags: Vec<_> = sent.iter().map(|request| request.body()[296]).collect();
            let expected =
                if asked.len() == 1 && hash_answer == 0 { vec![0, 1] } else { vec![0; sent.len()] };
            assert_eq!(flags, expected);
        }
    }
}

#[test]
fn sizes_are_asked_where_only_the_device_knows_and_remembered() {
    for (dialect, plain, product, attention_like) in [("2.0", 1, 0, 0), ("5.1", 1, 0, 1), ("7.0", 1, 1, 1)] {
        let (worker, _registry, device) = worker(dialect);
        let kind = device.buffer_type();
        let mut graph = Graph::new();
        let odd = graph.leaf(DType::Q4_0, [64, 2]).unwrap();
        let even = graph.leaf(DType::Q4_0, [512, 2]).unwrap();
        let floats = graph.leaf(DType::F32, [512, 2]).unwrap();
        let experts = graph.leaf(DType::F32, [512, 8, 4]).unwrap();
        let rows = graph.leaf(DType::F32, [512, 1, 1]).unwrap();
        let chosen = graph.leaf(DType::I32, [2, 1]).unwrap();
        let dot = graph.mul_mat(even, floats).unwrap();
        let moe = graph.mul_mat_id(experts, rows, chosen).unwrap();
        let asked = |id| {
            let before = worker.of(Command::GetAllocSize).len();
            kind.alloc_size(graph.tensor(id).unwrap());
            kind.alloc_size(graph.tensor(id).unwrap());
            worker.of(Command::GetAllocSize).len() - before
        };
        assert_eq!(asked(odd), plain, "{dialect}");
        assert_eq!((asked(even), asked(floats)), (0, 0));
        assert_eq!(asked(dot), product);
        assert_eq!(asked(moe), attention_like);
        let mut buffers = Buffers::new();
        place_all(&mut graph, &[odd, even, floats], &kind, &mut buffers).unwrap();
        buffers.bytes(graph.tensor(floats).unwrap()).unwrap();
        let prepared = worker.of(Command::InitTensor);
        assert_eq!(prepared.len(), 1, "only rows that a device may pad");
        assert_eq!(prepared[0].body()[20..24], 64_u32.to_le_bytes());
    }
}

#[test]
fn ops_and_types_that_the_dialect_lacks_are_not_supported() {
    let mut graph = Graph::new();
    let floats = graph.leaf(DType::F32, [64, 4]).unwrap();
    let halves = graph.leaf(DType::F16, [64, 4]).unwrap();
    let best = graph.apply(TopK { k: 3 }, &[Some(floats)]).unwrap();
    let floor = graph.apply(Unary::Floor, &[Some(floats)]).unwrap();
    let relu = graph.apply(Unary::Relu, &[Some(floats)]).unwrap();
    let rows = graph.leaf(DType::I32, [4]).unwrap();
    let set = graph.set_rows(halves, floats, rows).unwrap();
    let new_type = graph.leaf(DType::NVFP4, [64, 4]).unwrap();
    let product = graph.mul_mat(new_type, floats).unwrap();
    let view = graph.reshape(floats, [4, 64]).unwrap();
    for (dialect, expected) in [("2.0", [false, false, true, false, false, true]), ("7.0", [true; 6])] {
        let (_worker, _registry, device) = worker(dialect);
        let supports = |id| device.supports_op(graph.tensor(id).unwrap());
        assert_eq!([best, floor, relu, set, product, view].map(supports), expected, "{dialect}");
        let own = device.buffer_type();
        assert!(device.supports_buffer_type(&own));
        let host: Arc<dyn oxcart_backend::BufferType> = oxcart_backend::HostBufferType::new("CPU");
        assert!(!device.supports_buffer_type(&host));
    }
}

#[test]
fn a_stream_waits_for_a_point_of_another_worker() {
    let (_one, _first, left) = worker("7.0");
    let (two, _second, right) = worker("7.0");
    let (a, b) = (
        Arc::clone(&left).open(&StreamOptions::default()).unwrap(),
        Arc::clone(&right).open(&StreamOptions::default()).unwrap(),
    );
    let chain = Chain::new(&left, 2);
    let target = Chain::new(&right, 2);
    a.compute(chain.work(0..2)).unwrap();
    b.wait_for(&*a, a.record().unwrap()).unwrap();
    b.compute(target.work(0..2)).unwrap();
    b.synchronize().unwrap();
    assert_eq!(graphs(&two).len(), 1);
}

#[test]
fn a_failed_worker_fails_those_who_wait_for_its_points() {
    let dead = FakeWorker::start(Config::fault("7.0", Command::GraphCompute, Misbehaviour::Close));
    let left = dead.connect().unwrap().devices().remove(0);
    let (_two, _second, right) = worker("7.0");
    let (a, b) = (
        Arc::clone(&left).open(&StreamOptions::default()).unwrap(),
        Arc::clone(&right).open(&StreamOptions::default()).unwrap(),
    );
    let chain = Chain::new(&left, 2);
    a.compute(chain.work(0..2)).unwrap();
    b.wait_for(&*a, a.record().unwrap()).unwrap();
    assert!(b.synchronize().is_err());
    right.memory().unwrap();
}

#[test]
fn everything_ends_when_the_last_user_leaves() {
    let (worker, registry, device) = worker("7.0");
    let buffer = allocate(&device.buffer_type(), 100).unwrap();
    let stream: Box<dyn Stream> = Arc::clone(&device).open(&StreamOptions::default()).unwrap();
    drop((registry, device, stream));
    buffer.write(0, &[1; 100]).unwrap();
    let mut back = [0; 100];
    buffer.read(0, &mut back).unwrap();
    assert_eq!(back, [1; 100]);
    drop(buffer);
    // The worker serves one client at a time, so a second connection is the proof that the first is over.
    worker.connect().unwrap();
}
