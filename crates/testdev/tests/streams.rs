//! Streams of work: order, events, copies between streams, errors.
//!
//! Jobs of a slow stream are held up a little, so that code which does not wait for it sees old bytes. Where a test must
//! be sure that something has not happened yet, it holds a lock that the stream runs into.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{EXPECTED, Example, Plain, numbers, visible};
use oxcart_backend::{
    Buffer, Buffers, Device, Error, HostWrite, Pending, Place, Route, Stream, Work, allocate, copy_async,
};
use oxcart_tensor::{DType, Graph};
use oxcart_testdev::{Config, TestDevice};

const DELAY: Duration = Duration::from_millis(40);

fn asynchronous(name: &str, delay: Duration) -> Arc<TestDevice> {
    TestDevice::new(Config { asynchronous: true, delay, ..Config::accelerator(name) })
}

fn slow() -> Arc<TestDevice> {
    asynchronous("slow", DELAY)
}

fn quick() -> Arc<TestDevice> {
    asynchronous("quick", Duration::ZERO)
}

fn place(device: &Arc<TestDevice>, len: usize) -> Place {
    Place { buffer: allocate(&device.buffer_type(), len).unwrap(), offset: 0, len }
}

/// Where a stream stops when it writes there, for as long as the test holds the memory.
struct Gate(Place);

impl Gate {
    fn new() -> Gate {
        Gate(Place { buffer: visible(1), offset: 0, len: 1 })
    }

    fn close(&self) -> HostWrite<'_> {
        self.0.buffer.host().unwrap().write().unwrap()
    }

    /// Makes a stream stop here if it is closed.
    fn put(&self, stream: &dyn Stream) {
        stream.set_async(&self.0, vec![1]).unwrap();
    }
}

#[test]
fn calls_on_one_stream_take_effect_in_order() {
    let device = slow();
    let (stream, place, gate) = (device.stream(), place(&device, 4), Gate::new());
    let closed = gate.close();
    gate.put(&*stream);
    let before = stream.get_async(&place).unwrap();
    stream.set_async(&place, vec![1; 4]).unwrap();
    let between = stream.get_async(&place).unwrap();
    stream.set_async(&place, vec![2; 2]).unwrap();
    let after = stream.get_async(&place).unwrap();
    assert!(matches!(after, Pending::Waiting(_)));
    assert_eq!(place.bytes().unwrap(), [0; 4]);
    drop(closed);
    assert_eq!(after.wait().unwrap(), [2, 2, 1, 1]);
    assert_eq!(between.wait().unwrap(), [1; 4]);
    assert_eq!(before.wait().unwrap(), [0; 4]);
}

#[test]
fn synchronizing_waits_for_everything() {
    let device = slow();
    let (stream, place) = (device.stream(), place(&device, 1));
    for value in 1..4 {
        stream.set_async(&place, vec![value]).unwrap();
    }
    stream.synchronize().unwrap();
    assert_eq!(place.bytes().unwrap(), [3]);
}

#[test]
fn a_synchronous_stream_is_always_done() {
    let device = TestDevice::new(Config::default());
    let (stream, place) = (device.stream(), place(&device, 2));
    stream.set_async(&place, vec![5]).unwrap();
    assert!(matches!(stream.get_async(&place).unwrap(), Pending::Ready(bytes) if bytes == [5, 0]));
    stream.synchronize().unwrap();
    let point = stream.record().unwrap();
    stream.finish(point).unwrap();
    quick().stream().wait_for(&*stream, point).unwrap();
}

#[test]
fn a_stream_waits_for_a_point_of_another() {
    let (slow, quick) = (slow(), quick());
    let (writer, reader, place, gate) = (slow.stream(), quick.stream(), place(&slow, 1), Gate::new());
    let closed = gate.close();
    gate.put(&*writer);
    writer.set_async(&place, vec![1]).unwrap();
    // Without waiting the reader is too early.
    assert_eq!(reader.get_async(&place).unwrap().wait().unwrap(), [0]);
    reader.wait_for(&*writer, writer.record().unwrap()).unwrap();
    let in_time = reader.get_async(&place).unwrap();
    drop(closed);
    assert_eq!(in_time.wait().unwrap(), [1]);
}

#[test]
fn a_point_is_finished_when_its_stream_has_come_that_far() {
    let slow = slow();
    let (stream, place) = (slow.stream(), place(&slow, 1));
    for value in [1, 2] {
        stream.set_async(&place, vec![value]).unwrap();
        let point = stream.record().unwrap();
        let gate = Gate::new();
        let closed = gate.close();
        gate.put(&*stream);
        stream.set_async(&place, vec![99]).unwrap();
        stream.finish(point).unwrap();
        // What comes after the point is not waited for.
        assert_eq!(place.bytes().unwrap(), [value]);
        drop(closed);
    }
}

#[test]
fn points_grow_and_finish_in_any_order_of_asking() {
    let slow = slow();
    let stream = slow.stream();
    let points: Vec<_> = (0..3).map(|_| stream.record().unwrap()).collect();
    assert!(points.is_sorted_by(|a, b| a < b));
    for &point in points.iter().rev() {
        stream.finish(point).unwrap();
    }
}

#[test]
fn streams_copy_by_themselves() {
    let (slow, quick) = (slow(), quick());
    // Neither the target nor the source is asked in vain: one of them offers copies from others, the other one to others.
    let eager = TestDevice::new(Config {
        asynchronous: true,
        delay: DELAY,
        copies_out: true,
        ..Config::accelerator("eager")
    });
    for (from, to) in [(&slow, &quick), (&quick, &slow), (&eager, &quick), (&eager, &eager)] {
        let (source_stream, target_stream) = (from.stream(), to.stream());
        let (source, target) = (place(from, 4), place(to, 4));
        source_stream.set_async(&source, vec![1; 4]).unwrap();
        let route = copy_async(&*source_stream, &source, &*target_stream, &target).unwrap();
        assert_eq!(route, None);
        // The source may not be overwritten before it was copied, nor the copy be read before it was made.
        source_stream.set_async(&source, vec![2; 4]).unwrap();
        let copied = target_stream.get_async(&target).unwrap();
        assert_eq!(copied.wait().unwrap(), [1; 4]);
        source_stream.synchronize().unwrap();
        assert_eq!(source.bytes().unwrap(), [2; 4]);
    }
}

#[test]
fn other_streams_are_waited_for() {
    let (slow, host) = (slow(), TestDevice::new(Config::default()));
    let (slow_stream, host_stream) = (slow.stream(), host.stream());
    let (there, here) = (place(&slow, 4), place(&host, 4));
    slow_stream.set_async(&there, vec![3; 4]).unwrap();
    let route = copy_async(&*slow_stream, &there, &*host_stream, &here).unwrap();
    assert_eq!((route, here.bytes().unwrap()), (Some(Route::HostTarget), vec![3; 4]));
    here.write(&[4; 4]).unwrap();
    slow_stream.set_async(&there, vec![5; 4]).unwrap();
    let route = copy_async(&*host_stream, &here, &*slow_stream, &there).unwrap();
    // The bytes are taken at once and written in the order of the target's stream.
    here.write(&[6; 4]).unwrap();
    slow_stream.synchronize().unwrap();
    assert_eq!((route, there.bytes().unwrap()), (Some(Route::Staged), vec![4; 4]));
}

#[test]
fn a_copy_that_does_not_fit_is_refused_at_once() {
    let (a, b) = (slow(), quick());
    let (source, target) = (place(&a, 4), place(&b, 3));
    let (from, to) = (a.stream(), b.stream());
    let refused = copy_async(&*from, &source, &*to, &target);
    assert!(matches!(refused, Err(Error::OutOfBounds { .. })));
    from.synchronize().unwrap();
    to.synchronize().unwrap();
    let nothing_to_do = copy_async(&*from, &source, &*to, &source).unwrap();
    assert_eq!(nothing_to_do, Some(Route::Direct));
    let refused = to.set_async(&target.part(1, 1).unwrap(), vec![1, 2]);
    assert!(matches!(refused, Err(Error::OutOfBounds { size: 1, .. })));
}

#[test]
fn a_graph_is_computed_while_the_caller_goes_on() {
    let device = slow();
    let (stream, example) = (device.stream(), Example::new(&device));
    let nodes = example.graph.range(0..example.graph.nodes().len()).unwrap();
    let work = Work { nodes, buffers: &example.buffers };
    assert!(stream.plan(work).unwrap().is_none());
    let gate = Gate::new();
    let closed = gate.close();
    gate.put(&*stream);
    stream.compute(work).unwrap();
    assert_eq!(example.values(example.out), [0.0, 0.0]);
    drop(closed);
    let out = example.buffers.place_of(example.graph.tensor(example.out).unwrap()).unwrap();
    assert_eq!(numbers(&stream.get_async(&out).unwrap().wait().unwrap()), EXPECTED);

    example.set(example.b, &[0.0; 4]);
    stream.compute_and_wait(work).unwrap();
    assert_eq!(example.values(example.out), [4.0, 9.0]);
}

#[test]
fn what_failed_is_told_when_synchronizing_and_the_stream_goes_on() {
    let device = slow();
    let (stream, good) = (device.stream(), place(&device, 4));
    let outside = Place { offset: 4, ..good.clone() };
    stream.set_async(&outside, vec![1]).unwrap();
    stream.set_async(&good, vec![2; 4]).unwrap();
    assert!(matches!(stream.synchronize(), Err(Error::OutOfBounds { offset: 4, .. })));
    assert_eq!(good.bytes().unwrap(), [2; 4]);
    stream.synchronize().unwrap();
    // What a caller waits for itself is told to that caller.
    assert!(stream.get_async(&outside).unwrap().wait().is_err());
    stream.synchronize().unwrap();
}

#[test]
fn a_panic_in_a_job_is_an_error_like_any_other() {
    let device = quick();
    let stream = device.stream();
    let panics: Arc<dyn Buffer> = Arc::new(Plain { panics: true, ..Plain::new(visible(4)) });
    stream.set_async(&Place { buffer: panics, offset: 0, len: 4 }, vec![1]).unwrap();
    assert!(matches!(stream.synchronize(), Err(Error::Panicked { .. })));
    let place = place(&device, 1);
    stream.set_async(&place, vec![1]).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(place.bytes().unwrap(), [1]);
}

#[test]
fn an_op_that_the_device_does_not_know_fails_alone() {
    let device = TestDevice::new(Config {
        asynchronous: true,
        ops: Some(vec!["ADD"]),
        ..Config::accelerator("adder")
    });
    let (stream, example) = (device.stream(), Example::new(&device));
    let nodes = |range| example.graph.range(range).unwrap();
    stream.compute(Work { nodes: nodes(0..2), buffers: &example.buffers }).unwrap();
    let failed = stream.synchronize().unwrap_err();
    assert_eq!(failed.to_string(), "adder does not support MUL (node_1)");
    stream.compute_and_wait(Work { nodes: nodes(0..1), buffers: &example.buffers }).unwrap();
    assert_eq!(example.values(example.sum), [11.0, 18.0, 33.0, 44.0]);
    assert_eq!(device.take_log(), [example.sum, example.sum]);
}

#[test]
fn memory_of_others_is_not_read() {
    let (mine, other) = (common::gpu("mine"), common::gpu("other"));
    let example = Example::new(&other);
    let nodes = example.graph.range(0..1).unwrap();
    let refused = mine.stream().compute(Work { nodes, buffers: &example.buffers });
    assert!(matches!(refused, Err(Error::Unsupported { device, .. }) if device == "mine"));
}

#[test]
fn a_dropped_stream_finishes_its_work() {
    let device = slow();
    let place = place(&device, 1);
    let stream = device.stream();
    stream.set_async(&place, vec![8]).unwrap();
    drop(stream);
    assert_eq!(place.bytes().unwrap(), [8]);
}

#[test]
fn streams_of_one_device_do_not_wait_for_each_other() {
    let device = quick();
    let (held, free, gate) = (device.stream(), device.stream(), Gate::new());
    let closed = gate.close();
    gate.put(&*held);
    let place = place(&device, 1);
    free.set_async(&place, vec![1]).unwrap();
    free.synchronize().unwrap();
    assert_eq!(place.bytes().unwrap(), [1]);
    drop(closed);
    held.synchronize().unwrap();
}

#[test]
fn an_empty_graph_is_computed_at_once() {
    let device = TestDevice::new(Config::default());
    let mut graph = Graph::new();
    graph.leaf(DType::F32, [1]).unwrap();
    let work = Work { nodes: graph.range(0..0).unwrap(), buffers: &Buffers::new() };
    device.stream().compute_and_wait(work).unwrap();
    assert!(device.take_log().is_empty());
}
