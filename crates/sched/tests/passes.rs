//! Each pass and each option of the scheduler, on graphs small enough to check by eye.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::ops::ControlFlow;
use std::sync::Arc;

use oxcart_backend::{Buffer, Buffers, Device, Usage, allocate};
use oxcart_sched::{Cause, Error, Observer, Options, Prepared, Scheduler};
use oxcart_tensor::graph::Storage;
use oxcart_tensor::{DType, Graph, TensorId, TensorRef};
use oxcart_testdev::{Config, TestDevice};

fn cpu() -> Arc<TestDevice> {
    TestDevice::new(Config::default())
}

fn gpu(name: &str) -> Arc<TestDevice> {
    TestDevice::new(Config::accelerator(name))
}

fn scheduler(devices: &[&Arc<TestDevice>], options: Options) -> Scheduler {
    Scheduler::new(devices.iter().map(|device| device.stream()).collect(), options).unwrap()
}

/// A graph under construction with tensors that already lie on devices.
#[derive(Default)]
struct World {
    graph: Graph,
    buffers: Buffers,
}

impl World {
    /// Weights on a device, all of one value.
    fn weights(&mut self, device: &TestDevice, name: &str, ne: [usize; 2], value: f32) -> TensorId {
        let id = self.on(&device.buffer_type(), name, ne, value);
        let storage = self.graph.storage(id).unwrap().unwrap();
        self.buffers.get(storage.buffer).unwrap().set_usage(Usage::Weights);
        id
    }

    fn on(
        &mut self,
        memory: &Arc<dyn oxcart_backend::BufferType>,
        name: &str,
        ne: [usize; 2],
        value: f32,
    ) -> TensorId {
        let id = self.graph.leaf(DType::F32, ne).unwrap();
        self.graph.set_name(id, name).unwrap();
        let len = ne[0] * ne[1] * 4;
        let buffer = allocate(memory, len).unwrap();
        let bytes: Vec<u8> = value.to_le_bytes().repeat(ne[0] * ne[1]);
        buffer.write(0, &bytes).unwrap();
        let buffer = self.buffers.add(buffer);
        self.graph.bind(id, Storage { buffer, offset: 0 }, len).unwrap();
        id
    }

    fn input(&mut self, name: &str, ne: [usize; 2]) -> TensorId {
        let id = self.graph.leaf(DType::F32, ne).unwrap();
        self.graph.set_name(id, name).unwrap();
        self.graph.mark_input(id).unwrap();
        id
    }

    fn named(&mut self, id: TensorId, name: &str) -> TensorId {
        self.graph.set_name(id, name).unwrap();
        id
    }

    fn output(&mut self, id: TensorId) {
        self.graph.mark_output(id).unwrap();
        self.graph.expand(id).unwrap();
    }
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn values(prepared: &Prepared, id: TensorId) -> Vec<f32> {
    let bytes = prepared.read(id).unwrap();
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Where each tensor went and why: `CUDA0, weights (source 0)`.
fn placed(prepared: &Prepared, id: TensorId) -> String {
    let (stream, cause) = prepared.assignment(id).unwrap();
    format!("{}, {cause}", prepared.stream_name(stream))
}

#[test]
fn nodes_go_where_their_weights_are() {
    let (first, second, cpu) = (gpu("A"), gpu("B"), cpu());
    let mut world = World::default();
    let x = world.input("x", [2, 1]);
    let w = world.weights(&first, "w", [2, 2], 1.0);
    let v = world.weights(&second, "v", [2, 2], 2.0);
    let a = world.graph.mul_mat(w, x).unwrap();
    let b = world.graph.mul_mat(v, a).unwrap();
    world.output(b);
    let mut prepared =
        scheduler(&[&first, &second, &cpu], Options::default()).prepare(world.graph, world.buffers).unwrap();

    assert_eq!(placed(&prepared, w), "A, its memory");
    assert_eq!(placed(&prepared, a), "A, weights (source 0)");
    assert_eq!(placed(&prepared, b), "B, weights (source 0)");
    assert_eq!(placed(&prepared, x), "CPU, input");
    assert_eq!(prepared.splits().len(), 2);
    assert_eq!(prepared.copy_count(), 2, "x to A, a to B");
    prepared.set_input(x, &floats(&[1.0, 2.0])).unwrap();
    prepared.compute().unwrap();
    assert_eq!(values(&prepared, b), [12.0, 12.0]);
    assert_eq!((first.take_log(), second.take_log(), cpu.take_log()), (vec![a], vec![b], vec![]));
}

#[test]
fn neighbours_of_accelerators_join_them() {
    let (fast, cpu) = (gpu("A"), cpu());
    let mut world = World::default();
    let x = world.input("x", [2, 1]);
    let before = world.graph.sqr(x).unwrap();
    let w = world.weights(&fast, "w", [2, 2], 1.0);
    let product = world.graph.mul_mat(w, before).unwrap();
    let after = world.graph.scale(product, 2.0).unwrap();
    world.output(after);
    let prepared = scheduler(&[&fast, &cpu], Options::default()).prepare(world.graph, world.buffers).unwrap();
    assert_eq!(placed(&prepared, before), "A, before accelerator");
    assert_eq!(placed(&prepared, after), "A, after accelerator");
    assert_eq!((prepared.splits().len(), prepared.copy_count()), (1, 1));
}

#[test]
fn ops_a_device_lacks_stay_away_from_it() {
    let fast = TestDevice::new(Config { ops: Some(vec!["MUL_MAT"]), ..Config::accelerator("A") });
    let cpu = cpu();
    let mut world = World::default();
    let x = world.input("x", [2, 1]);
    let w = world.weights(&fast, "w", [2, 2], 1.0);
    let a = world.graph.mul_mat(w, x).unwrap();
    let b = world.graph.sqr(a).unwrap();
    let c = world.graph.mul_mat(w, b).unwrap();
    world.output(c);
    let mut prepared =
        scheduler(&[&fast, &cpu], Options::default()).prepare(world.graph, world.buffers).unwrap();
    assert_eq!(placed(&prepared, b), "CPU, most inputs");
    assert_eq!((prepared.splits().len(), prepared.copy_count()), (3, 3));
    prepared.set_input(x, &floats(&[1.0, 2.0])).unwrap();
    prepared.compute().unwrap();
    assert_eq!(values(&prepared, c), [18.0, 18.0]);
}

#[test]
fn a_better_stream_with_the_same_memory_is_preferred() {
    // Two streams of one device: the first lacks one op, both see the same memory.
    let helper =
        TestDevice::new(Config { name: "BLAS".into(), ops: Some(vec!["MUL_MAT"]), ..Config::default() });
    let cpu = cpu();
    let mut world = World::default();
    let x = world.input("x", [2, 1]);
    let w = world.weights(&cpu, "w", [2, 2], 1.0);
    let a = world.graph.mul_mat(w, x).unwrap();
    let b = world.graph.sqr(a).unwrap();
    world.output(b);
    let prepared =
        scheduler(&[&helper, &cpu], Options::default()).prepare(world.graph, world.buffers).unwrap();
    // The helper can read host memory, so it is the first that can use the weights.
    assert_eq!(placed(&prepared, a), "BLAS, weights (source 0)");
    assert_eq!(placed(&prepared, b), "CPU, most inputs");
    assert_eq!(prepared.copy_count(), 0, "all of it is host memory");
}

#[test]
fn upgrading_needs_the_very_same_memory() {
    let device = cpu();
    let mut world = World::default();
    let x = world.input("x", [2, 1]);
    let y = world.graph.sqr(x).unwrap();
    let z = world.graph.scale(y, 2.0).unwrap();
    world.output(z);
    // Both streams are of one device; the input draws everything to the last, then it moves up.
    let mut scheduler = scheduler(&[&device, &device], Options::default());
    let last = scheduler.stream(1).unwrap();
    let graph = world.graph.clone();
    let prepared = scheduler.prepare_pinned(graph, Buffers::new(), &[(y, last)]).unwrap();
    assert_eq!(prepared.assignment(y).unwrap().1, Cause::Pinned);
    assert_eq!(prepared.assignment(z).unwrap().1, Cause::Upgraded);
    assert_eq!(prepared.copy_count(), 0);
}

#[test]
fn pins_are_obeyed() {
    let (fast, cpu) = (gpu("A"), cpu());
    let mut world = World::default();
    let x = world.input("x", [2, 1]);
    let a = world.graph.sqr(x).unwrap();
    let b = world.graph.sqr(a).unwrap();
    let c = world.graph.sqr(b).unwrap();
    world.output(c);
    let mut scheduler = scheduler(&[&fast, &cpu], Options::default());
    let (on_fast, on_cpu) = (scheduler.stream(0).unwrap(), scheduler.stream(1).unwrap());
    let pins = [(a, on_cpu), (b, on_fast), (c, on_cpu)];
    let mut prepared = scheduler.prepare_pinned(world.graph, world.buffers, &pins).unwrap();
    assert_eq!(placed(&prepared, b), "A, pinned");
    assert_eq!(
        prepared.splits().iter().map(|split| split.nodes.clone()).collect::<Vec<_>>(),
        [0..1, 1..2, 2..3]
    );
    prepared.set_input(x, &floats(&[2.0, 3.0])).unwrap();
    prepared.compute().unwrap();
    assert_eq!(values(&prepared, c), [256.0, 6561.0]);
    assert!(matches!(scheduler.stream(2), Err(Error::NoSuchStream { index: 2, count: 2 })));
}

#[test]
fn weights_in_host_memory_can_be_offloaded() {
    let fast = TestDevice::new(Config { offloads: true, ..Config::accelerator("A") });
    let cpu = cpu();
    for (tokens, offload, place) in [
        (32, true, "A, offload"),
        (1, true, "CPU, weights (source 0)"),
        (32, false, "CPU, weights (source 0)"),
    ] {
        let mut world = World::default();
        let x = world.input("x", [2, tokens]);
        let w = world.weights(&cpu, "w", [2, 2], 1.0);
        let a = world.graph.mul_mat(w, x).unwrap();
        world.output(a);
        let options = Options { offload, ..Options::default() };
        let prepared = scheduler(&[&fast, &cpu], options).prepare(world.graph, world.buffers).unwrap();
        assert_eq!(placed(&prepared, a), place, "{tokens} tokens, offload {offload}");
    }
}

#[test]
fn offloaded_weights_are_copied_in_splits_of_their_own() {
    let fast = TestDevice::new(Config { offloads: true, ..Config::accelerator("A") });
    let cpu = cpu();
    let mut world = World::default();
    let x = world.input("x", [2, 32]);
    let w = world.weights(&cpu, "w", [2, 2], 1.0);
    let v = world.weights(&cpu, "v", [2, 2], 1.0);
    let a = world.graph.mul_mat(w, x).unwrap();
    let b = world.graph.mul_mat(v, a).unwrap();
    world.output(b);
    let prepared = scheduler(&[&fast, &cpu], Options::default()).prepare(world.graph, world.buffers).unwrap();
    assert_eq!((prepared.splits().len(), prepared.copy_count()), (2, 3));
}

#[test]
fn a_tensor_is_copied_once_to_each_stream() {
    let (fast, cpu) = (gpu("A"), cpu());
    let mut world = World::default();
    let x = world.input("x", [2, 1]);
    let w = world.weights(&fast, "w", [2, 2], 1.0);
    let a = world.graph.mul_mat(w, x).unwrap();
    let b = world.graph.add(a, x).unwrap();
    let c = world.graph.mul(b, x).unwrap();
    world.output(c);
    let mut prepared =
        scheduler(&[&fast, &cpu], Options::default()).prepare(world.graph, world.buffers).unwrap();
    assert_eq!((prepared.splits().len(), prepared.copy_count()), (1, 1));
    prepared.set_input(x, &floats(&[1.0, 2.0])).unwrap();
    prepared.compute().unwrap();
    assert_eq!(values(&prepared, c), [4.0, 10.0]);
}

#[test]
fn views_follow_what_they_look_into() {
    let (fast, cpu) = (gpu("A"), cpu());
    let mut world = World::default();
    let x = world.input("x", [2, 2]);
    let w = world.weights(&fast, "w", [2, 2], 1.0);
    let a = world.graph.mul_mat(w, x).unwrap();
    let view = world.graph.view(a, [1, 2], &[8], 0).unwrap();
    let cont = world.graph.cont(view).unwrap();
    world.output(cont);
    let mut prepared =
        scheduler(&[&fast, &cpu], Options::default()).prepare(world.graph, world.buffers).unwrap();
    assert_eq!(placed(&prepared, view), "A, view source");
    prepared.set_input(x, &floats(&[1.0, 2.0, 3.0, 4.0])).unwrap();
    prepared.compute().unwrap();
    assert_eq!(values(&prepared, cont), [3.0, 7.0]);
}

#[test]
fn only_the_chosen_alternative_runs() {
    let (fast, cpu) = (gpu("A"), cpu());
    let mut world = World::default();
    let x = world.input("x", [2, 1]);
    let other = world.input("other", [2, 1]);
    let w = world.weights(&fast, "w", [2, 2], 1.0);
    let chosen = world.graph.mul_mat(w, x).unwrap();
    let doubled = world.graph.scale(other, 2.0).unwrap();
    let skipped = world.graph.mul_mat(w, doubled).unwrap();
    world.graph.mark_output(chosen).unwrap();
    world.graph.expand_select(&[chosen, skipped], 0).unwrap();
    let mut prepared =
        scheduler(&[&fast, &cpu], Options::default()).prepare(world.graph, world.buffers).unwrap();
    assert_eq!((prepared.splits().len(), prepared.copy_count()), (1, 1));
    prepared.set_input(x, &floats(&[1.0, 2.0])).unwrap();
    prepared.compute().unwrap();
    assert_eq!(values(&prepared, chosen), [3.0, 3.0]);
    assert_eq!((fast.take_log(), cpu.take_log()), (vec![chosen], vec![]));
}

#[test]
fn an_op_that_no_device_computes_is_named() {
    let fast = TestDevice::new(Config { ops: Some(vec!["MUL_MAT"]), ..Config::accelerator("A") });
    let mut world = World::default();
    let x = world.input("x", [2, 1]);
    let y = world.graph.sqr(x).unwrap();
    world.named(y, "square");
    world.output(y);
    let error = scheduler(&[&fast], Options::default()).prepare(world.graph, world.buffers).unwrap_err();
    assert_eq!(error.to_string(), "no stream can compute SQR (%1, square)");

    // A result that was put where its op cannot run.
    let mut world = World::default();
    let cpu = cpu();
    let x = world.input("x", [2, 1]);
    let cache = world.on(&fast.buffer_type(), "cache", [2, 1], 0.0);
    let stored = world.graph.cpy(x, cache).unwrap();
    world.named(stored, "stored");
    world.output(stored);
    let error =
        scheduler(&[&fast, &cpu], Options::default()).prepare(world.graph, world.buffers).unwrap_err();
    assert_eq!(error.to_string(), "stored (%2) lies in A memory, where no stream can compute CPY");
    assert!(matches!(Scheduler::new(vec![], Options::default()), Err(Error::NoStreams)));
}

#[test]
fn memory_is_kept_from_graph_to_graph() {
    let cpu = cpu();
    let graph = |len: usize| {
        let mut world = World::default();
        let x = world.input("x", [len, 1]);
        let y = world.graph.sqr(x).unwrap();
        world.output(y);
        world.graph
    };
    let mut scheduler = scheduler(&[&cpu], Options::default());
    let only = scheduler.stream(0).unwrap();
    scheduler.reserve(graph(1000), &Buffers::new()).unwrap();
    let reserved = scheduler.buffer_size(only);
    assert!(reserved >= 8000);
    assert_eq!(cpu.allocated_bytes(), reserved);
    let small = scheduler.prepare(graph(10), Buffers::new()).unwrap();
    assert_eq!(cpu.allocated_bytes(), reserved, "a smaller graph allocates nothing");
    let large = scheduler.prepare(graph(5000), Buffers::new()).unwrap();
    assert!(cpu.allocated_bytes() > reserved);
    drop((small, large));
    scheduler.reset();
    assert_eq!(cpu.allocated_bytes(), 0);
}

/// The sum of two norms, each of so many rows.
fn sum_of_norms(rows: [usize; 2]) -> (Graph, TensorId) {
    let mut graph = Graph::new();
    let norms = rows.map(|rows| {
        let x = graph.leaf(DType::F32, [4, rows]).unwrap();
        graph.mark_input(x).unwrap();
        graph.rms_norm(x, 0.0).unwrap()
    });
    graph.mark_output(norms[0]).unwrap();
    let sum = graph.add(norms[0], norms[1]).unwrap();
    graph.expand(sum).unwrap();
    (graph, sum)
}

#[test]
fn a_plan_is_kept_while_graphs_do_the_same_and_are_no_larger() {
    let mut scheduler = scheduler(&[&cpu()], Options::default());
    let mut plan = |rows| {
        let (graph, sum) = sum_of_norms(rows);
        let prepared = scheduler.prepare(graph, Buffers::new()).unwrap();
        let memory = prepared.memory();
        (memory.pools()[0].peak(), memory.spot(sum).unwrap().in_place)
    };
    let large = plan([32, 32]);
    assert_eq!(large.1, Some(1), "the second norm is used up");
    assert_eq!(plan([16, 16]), large);
    // A row that is repeated cannot be written over, though nothing is larger.
    assert_eq!(plan([32, 1]).1, None);
    assert!(plan([16, 16]).0 < large.0, "there is another plan in between");
    assert!(plan([64, 64]).0 > large.0);
    let kept = plan([16, 16]);
    scheduler.reset();
    let (graph, _) = sum_of_norms([16, 16]);
    let anew = scheduler.prepare(graph, Buffers::new()).unwrap();
    assert!(anew.memory().pools()[0].peak() < kept.0, "nothing is kept any more");
}

#[test]
fn too_little_memory_is_an_error() {
    let small = TestDevice::new(Config { capacity: 1000, ..Config::default() });
    let mut world = World::default();
    let x = world.input("x", [1000, 1]);
    let y = world.graph.sqr(x).unwrap();
    world.output(y);
    let error = scheduler(&[&small], Options::default()).prepare(world.graph, Buffers::new()).unwrap_err();
    assert!(error.to_string().starts_with("CPU cannot allocate"), "{error}");
    assert_eq!(small.allocated_bytes(), 0);
}

/// Looks at the nodes of some names, and stops at one.
struct Looker {
    wanted: Vec<&'static str>,
    stop_at: Option<&'static str>,
    seen: Vec<(String, f32)>,
}

impl Observer for Looker {
    fn wants(&mut self, node: TensorRef<'_>) -> bool {
        self.wanted.iter().any(|name| node.label() == *name)
    }

    fn look(&mut self, node: TensorRef<'_>, buffers: &Buffers) -> ControlFlow<()> {
        let bytes = buffers.bytes(node).unwrap();
        self.seen.push((node.label(), f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])));
        if self.stop_at == Some(&*node.label()) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

#[test]
fn observers_see_nodes_and_may_stop() {
    let (fast, cpu) = (gpu("A"), cpu());
    let mut world = World::default();
    let x = world.input("x", [1, 1]);
    let w = world.weights(&fast, "w", [1, 1], 3.0);
    let product = world.graph.mul_mat(w, x).unwrap();
    world.named(product, "product");
    let square = world.graph.sqr(product).unwrap();
    world.named(square, "square");
    let last = world.graph.scale(square, 0.5).unwrap();
    world.named(last, "last");
    world.output(last);
    let mut prepared =
        scheduler(&[&fast, &cpu], Options::default()).prepare(world.graph, world.buffers).unwrap();
    prepared.set_input(x, &floats(&[2.0])).unwrap();

    let mut looker = Looker { wanted: vec!["product", "last"], stop_at: None, seen: vec![] };
    assert!(prepared.compute_observed(&mut looker).unwrap());
    assert_eq!(looker.seen, [("product".to_owned(), 6.0), ("last".to_owned(), 18.0)]);

    fast.take_log();
    let mut looker = Looker { wanted: vec!["product"], stop_at: Some("product"), seen: vec![] };
    assert!(!prepared.compute_observed(&mut looker).unwrap());
    assert_eq!(fast.take_log(), [product]);
}

#[test]
fn only_inputs_can_be_set_and_only_with_their_size() {
    let cpu = cpu();
    let mut world = World::default();
    let x = world.input("x", [2, 1]);
    let y = world.graph.sqr(x).unwrap();
    world.output(y);
    let mut prepared = scheduler(&[&cpu], Options::default()).prepare(world.graph, world.buffers).unwrap();
    assert!(matches!(prepared.set_input(y, &floats(&[1.0, 1.0])), Err(Error::NotAnInput { .. })));
    assert!(matches!(prepared.set_input(x, &floats(&[1.0])), Err(Error::Device(_))));
}

#[test]
fn inputs_survive_a_run() {
    let cpu = cpu();
    let mut world = World::default();
    let x = world.input("x", [2, 1]);
    let mut last = x;
    for _ in 0..5 {
        last = world.graph.sqr(last).unwrap();
    }
    world.output(last);
    let mut prepared = scheduler(&[&cpu], Options::default()).prepare(world.graph, world.buffers).unwrap();
    prepared.set_input(x, &floats(&[1.0, 1.5])).unwrap();
    prepared.compute().unwrap();
    let first = values(&prepared, last);
    prepared.compute().unwrap();
    assert_eq!(values(&prepared, last), first);
    assert_eq!(values(&prepared, x), [1.0, 1.5]);
}

#[test]
fn the_report_can_be_read() {
    let (fast, cpu) = (gpu("A"), cpu());
    let mut world = World::default();
    let x = world.input("x", [2, 1]);
    let w = world.weights(&fast, "w", [2, 2], 1.0);
    let product = world.graph.mul_mat(w, x).unwrap();
    world.named(product, "product");
    world.output(product);
    let prepared = scheduler(&[&fast, &cpu], Options::default()).prepare(world.graph, world.buffers).unwrap();
    let expected = "\
1 splits, 1 copies
split 0 on A: 1 nodes
  <- x (8 B) from CPU
     MUL_MAT          product                  f32[2]                       weights (source 0)
";
    assert_eq!(prepared.report().to_string(), expected);
    assert!(prepared.dot().contains("A"));
    let svg = prepared.svg();
    assert!(svg.contains("split 0: 1 nodes") && svg.contains("x 8 B"), "{svg}");
    let _: Vec<Arc<dyn Buffer>> = prepared.buffers().iter().cloned().collect();
}

/// Inputs and results of the CPU that an accelerator reads lie where its transfers are fast.
#[test]
fn host_results_lie_in_memory_that_the_accelerator_offers() {
    let (gpu, cpu) = (gpu("GPU"), cpu());
    for (devices, wanted) in [(vec![&gpu, &cpu], "GPU_Host"), (vec![&cpu], "CPU")] {
        let mut world = World::default();
        let x = world.input("x", [4, 1]);
        let w = world.weights(devices[0], "w", [4, 1], 2.0);
        let y = world.graph.add(x, w).unwrap();
        world.output(y);
        let prepared = scheduler(&devices, Options::default()).prepare(world.graph, world.buffers).unwrap();
        let input = prepared.graph().storage(x).unwrap().unwrap();
        let memory = prepared.buffers().get(input.buffer).unwrap();
        assert_eq!(memory.buffer_type().name(), wanted);
    }
}

/// Inputs are set while a device that reads a copy of them still computes the run before, and that run does not see them.
#[test]
fn inputs_are_set_without_waiting_for_devices_elsewhere() {
    let (far, here) = (TestDevice::new(Config { asynchronous: true, ..Config::accelerator("far") }), cpu());
    let mut world = World::default();
    let weights = world.weights(&far, "w", [4, 4], 1.0);
    let x = world.graph.leaf(DType::F32, [4]).unwrap();
    world.graph.mark_input(x).unwrap();
    let y = world.graph.mul_mat(weights, x).unwrap();
    world.graph.mark_output(y).unwrap();
    world.graph.expand(y).unwrap();
    let mut prepared =
        scheduler(&[&far, &here], Options::default()).prepare(world.graph, world.buffers).unwrap();
    let numbers = |number: f32| [number; 4].map(f32::to_le_bytes).concat();
    let held = far.hold();
    let (done, was_done) = std::sync::mpsc::channel();
    let rest = std::thread::spawn(move || {
        prepared.set_input(x, &numbers(1.0)).unwrap();
        prepared.compute().unwrap();
        prepared.set_input(x, &numbers(2.0)).unwrap();
        done.send(()).unwrap();
        let first = prepared.read(y).unwrap();
        prepared.compute().unwrap();
        (first, prepared.read(y).unwrap())
    });
    let in_time = was_done.recv_timeout(std::time::Duration::from_secs(60));
    drop(held);
    assert!(in_time.is_ok(), "it waits for the device");
    assert_eq!(rest.join().unwrap(), (numbers(4.0), numbers(8.0)));
}
