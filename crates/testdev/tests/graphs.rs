//! Whole graphs: on another device, and on two devices at once.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod common;

use std::ops::ControlFlow;

use common::{EXPECTED, Example, gpu, numbers};
use oxcart_backend::{Buffers, Device, Error, Stream, Work, compare, copy_graph, same_buffer_type};
use oxcart_testdev::{Config, TestDevice};

fn run(stream: &dyn Stream, example: &Example) {
    let nodes = example.graph.range(0..example.graph.nodes().len()).unwrap();
    stream.compute_and_wait(Work { nodes, buffers: &example.buffers }).unwrap();
}

#[test]
fn a_copied_graph_has_the_same_tensors_and_memory_of_its_own() {
    let (here, there) = (TestDevice::new(Config::default()), gpu("GPU"));
    let example = Example::new(&here);
    run(&*here.stream(), &example);
    let copy = copy_graph(&example.graph, &example.buffers, &*there.stream()).unwrap();

    assert_eq!(copy.graph.nodes(), example.graph.nodes());
    assert_eq!(copy.graph.leaves(), example.graph.leaves());
    for id in example.graph.ids() {
        let (original, copied) = (example.graph.tensor(id).unwrap(), copy.graph.tensor(id).unwrap());
        assert_eq!((copied.op(), copied.layout()), (original.op(), original.layout()));
        assert_eq!(copy.buffers.bytes(copied).unwrap(), example.buffers.bytes(original).unwrap());
        let buffer = copy.buffers.buffer_of(copied).unwrap().unwrap();
        assert!(same_buffer_type(buffer.buffer_type(), &there.buffer_type()));
    }
    // Five tensors of their own, none of which is the view.
    assert_eq!(there.allocated_bytes(), 4 * 64 + 8);

    // The copy lives on its own.
    example.set(example.a, &[0.0; 4]);
    assert_eq!(numbers(&copy.buffers.bytes(copy.graph.tensor(example.out).unwrap()).unwrap()), EXPECTED);
    drop(copy);
    assert_eq!(there.allocated_bytes(), 0);
}

#[test]
fn a_graph_is_copied_into_several_buffers_if_it_must() {
    let here = TestDevice::new(Config::default());
    let there = TestDevice::new(Config { max_size: 64, alignment: 16, ..Config::accelerator("GPU") });
    let example = Example::new(&here);
    let copy = copy_graph(&example.graph, &example.buffers, &*there.stream()).unwrap();
    assert_eq!(copy.buffers.len(), 2);
    let nodes = copy.graph.range(0..copy.graph.nodes().len()).unwrap();
    there.stream().compute_and_wait(Work { nodes, buffers: &copy.buffers }).unwrap();
    assert_eq!(numbers(&copy.buffers.bytes(copy.graph.tensor(example.out).unwrap()).unwrap()), EXPECTED);
}

#[test]
fn a_graph_that_does_not_fit_is_not_copied() {
    let here = TestDevice::new(Config::default());
    let there = TestDevice::new(Config { capacity: 100, ..Config::accelerator("GPU") });
    let example = Example::new(&here);
    let failed = copy_graph(&example.graph, &example.buffers, &*there.stream());
    assert!(matches!(failed, Err(Error::OutOfMemory { .. })));
    assert_eq!(there.allocated_bytes(), 0);
}

#[test]
fn a_tensor_whose_buffer_is_unknown_is_not_copied() {
    let here = TestDevice::new(Config::default());
    let example = Example::new(&here);
    let failed = copy_graph(&example.graph, &Buffers::new(), &*gpu("GPU").stream());
    assert!(matches!(failed, Err(Error::NoSuchBuffer { .. })));
}

#[test]
fn two_devices_that_agree() {
    let here = TestDevice::new(Config::default());
    let example = Example::new(&here);
    for asynchronous in [false, true] {
        let there = TestDevice::new(Config { asynchronous, ..Config::accelerator("GPU") });
        let mut seen = Vec::new();
        let finished = compare(&*here.stream(), &*there.stream(), &example.graph, &example.buffers, |node| {
            assert_eq!(node.first, node.second);
            assert_eq!(node.node.id(), example.graph.nodes()[node.position]);
            seen.push(node.node.id());
            ControlFlow::Continue(())
        })
        .unwrap();
        assert!(finished);
        // The view computes nothing and is not shown.
        assert_eq!(seen, [example.sum, example.product, example.out]);
        assert_eq!(there.take_log(), seen);
    }
    assert_eq!(example.values(example.out), EXPECTED);
}

#[test]
fn looking_can_stop_early() {
    let (here, there) = (TestDevice::new(Config::default()), gpu("GPU"));
    let example = Example::new(&here);
    let mut looks = 0;
    let finished = compare(&*here.stream(), &*there.stream(), &example.graph, &example.buffers, |node| {
        looks += 1;
        if node.position == 1 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(!finished.unwrap());
    assert_eq!(looks, 2);
    assert_eq!(there.take_log(), [example.sum, example.product]);
}

#[test]
fn a_wrong_device_is_caught_at_its_first_node() {
    let here = TestDevice::new(Config::default());
    let wrong = TestDevice::new(Config { scale_error: 0.01, ..Config::accelerator("wrong") });
    let example = Example::new(&here);
    let mut culprit = None;
    let finished = compare(&*here.stream(), &*wrong.stream(), &example.graph, &example.buffers, |node| {
        let worst = numbers(&node.first)
            .iter()
            .zip(numbers(&node.second))
            .map(|(right, found)| (found - right).abs() / right.abs())
            .fold(0.0, f32::max);
        if worst > 1e-3 {
            culprit = Some((node.node.id(), worst));
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    assert!(!finished.unwrap());
    let (node, worst) = culprit.unwrap();
    assert_eq!(node, example.sum);
    assert!((0.009..0.011).contains(&worst), "{worst}");
}

#[test]
fn a_device_that_cannot_compute_a_node_is_an_error() {
    let here = TestDevice::new(Config::default());
    let there = TestDevice::new(Config { ops: Some(vec!["ADD"]), ..Config::accelerator("adder") });
    let example = Example::new(&here);
    let mut seen = 0;
    let failed = compare(&*here.stream(), &*there.stream(), &example.graph, &example.buffers, |_| {
        seen += 1;
        ControlFlow::Continue(())
    });
    assert!(matches!(failed, Err(Error::Unsupported { device, .. }) if device == "adder"));
    assert_eq!(seen, 1);
}
