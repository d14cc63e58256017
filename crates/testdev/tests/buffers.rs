//! Memory: placing tensors, reading and writing them.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod common;

use std::sync::Arc;

use common::{Plain, gpu, hidden, visible};
use oxcart_backend::{Buffer, BufferType, Buffers, Device, Error, MultiBuffer, Usage, allocate, place_all};
use oxcart_tensor::graph::BufferId;
use oxcart_tensor::{DType, Graph, TensorId};
use oxcart_testdev::{Config, TestBuffer, TestDevice};

fn prepared(buffer: &Arc<dyn Buffer>) -> usize {
    buffer.as_any().downcast_ref::<TestBuffer>().unwrap().prepared_tensors()
}

fn contents(buffer: &dyn Buffer) -> Vec<u8> {
    let mut out = vec![0; buffer.len()];
    buffer.read(0, &mut out).unwrap();
    out
}

#[test]
fn a_buffer_starts_zeroed_and_is_cleared_and_filled() {
    for buffer in [hidden(&gpu("GPU"), 8), visible(8)] {
        assert_eq!(contents(&*buffer), [0; 8]);
        buffer.clear(7).unwrap();
        buffer.fill(2, 3, 9).unwrap();
        assert_eq!(contents(&*buffer), [7, 7, 9, 9, 9, 7, 7, 7]);
        buffer.fill(8, 0, 1).unwrap();
        assert!(matches!(buffer.fill(6, 3, 1), Err(Error::OutOfBounds { offset: 6, len: 3, size: 8, .. })));
    }
}

#[test]
fn usage_is_remembered() {
    let buffer = hidden(&gpu("GPU"), 8);
    assert_eq!(buffer.usage(), Usage::Any);
    for usage in [Usage::Weights, Usage::Compute, Usage::Any] {
        buffer.set_usage(usage);
        assert_eq!(buffer.usage(), usage);
    }
}

#[test]
fn no_bytes_are_a_buffer_too() {
    let device = TestDevice::new(Config { capacity: 0, ..Config::accelerator("GPU") });
    let buffer = hidden(&device, 0);
    assert!(buffer.is_empty());
    buffer.clear(1).unwrap();
    buffer.write(0, &[]).unwrap();
    assert!(matches!(buffer.read(0, &mut [0]), Err(Error::OutOfBounds { .. })));
    assert!(matches!(allocate(&device.buffer_type(), 1), Err(Error::OutOfMemory { .. })));
}

#[test]
fn nothing_larger_than_the_largest_buffer_is_asked_for() {
    let device = TestDevice::new(Config { max_size: 100, ..Config::accelerator("GPU") });
    assert_eq!(hidden(&device, 100).len(), 100);
    assert!(matches!(allocate(&device.buffer_type(), 101), Err(Error::OutOfMemory { size: 101, .. })));
}

#[test]
fn several_buffers_act_as_one() {
    let device = gpu("GPU");
    let parts = vec![hidden(&device, 4), hidden(&device, 8)];
    parts[0].init_tensor(one_tensor().0.tensor(one_tensor().1).unwrap()).unwrap();
    let whole = MultiBuffer::new(parts.clone()).unwrap();
    whole.set_usage(Usage::Weights);
    whole.clear(3).unwrap();
    whole.reset().unwrap();
    assert_eq!(prepared(&parts[0]), 0);
    assert_eq!((whole.len(), whole.usage()), (12, Usage::Weights));
    assert!(parts.iter().all(|part| part.usage() == Usage::Weights));
    assert_eq!((contents(&*parts[0]), contents(&*parts[1])), (vec![3; 4], vec![3; 8]));
    assert_eq!(whole.parts().len(), 2);
    assert!(parts[0].parts().is_empty());
    assert!(matches!(whole.read(0, &mut [0]), Err(Error::Unsupported { .. })));
    drop(whole);
    assert_eq!(device.allocated_bytes(), 12);
    drop(parts);
    assert_eq!(device.allocated_bytes(), 0);
}

fn one_tensor() -> (Graph, TensorId) {
    let mut graph = Graph::new();
    let id = graph.leaf(DType::F32, [1]).unwrap();
    (graph, id)
}

/// Three leaves of 40, 60 and 20 bytes, the second one with two views.
fn leaves() -> (Graph, [TensorId; 5]) {
    let mut graph = Graph::new();
    let a = graph.leaf(DType::F32, [10]).unwrap();
    let b = graph.leaf(DType::F32, [15]).unwrap();
    let c = graph.leaf(DType::F32, [5]).unwrap();
    let view = graph.view(b, [5], &[], 20).unwrap();
    let again = graph.view(view, [2], &[], 8).unwrap();
    (graph, [a, b, c, view, again])
}

#[test]
fn placed_tensors_do_not_share_bytes() {
    let device = TestDevice::new(Config { alignment: 32, padding: 3, ..Config::accelerator("GPU") });
    let (mut graph, ids) = leaves();
    let mut buffers = Buffers::new();
    let new = place_all(&mut graph, &ids, &device.buffer_type(), &mut buffers).unwrap();
    assert_eq!(new, [BufferId(0)]);
    let offsets: Vec<_> = ids.iter().map(|&id| graph.storage(id).unwrap().unwrap().offset).collect();
    // 40 + 3 bytes end at 43, 60 + 3 more at 127; views lie within what they look into.
    assert_eq!(offsets, [0, 64, 128, 84, 92]);
    assert_eq!(device.allocated_bytes(), 128 + 20 + 3);
    for (value, &id) in [1, 2, 3].iter().zip(&ids) {
        let tensor = graph.tensor(id).unwrap();
        buffers.fill(tensor, 0, tensor.layout().byte_len(), *value).unwrap();
    }
    for (value, &id) in [1, 2, 3, 2, 2].iter().zip(&ids) {
        assert!(buffers.bytes(graph.tensor(id).unwrap()).unwrap().iter().all(|byte| byte == value));
    }
}

#[test]
fn every_tensor_is_prepared_once_and_forgotten_together() {
    let device = gpu("GPU");
    let (mut graph, ids) = leaves();
    let mut buffers = Buffers::new();
    let [id] = place_all(&mut graph, &ids, &device.buffer_type(), &mut buffers).unwrap()[..] else {
        panic!("one buffer is enough");
    };
    let buffer = Arc::clone(buffers.get(id).unwrap());
    assert_eq!(prepared(&buffer), 5);
    // Those that have a place keep it, and only the views are looked at again.
    assert!(place_all(&mut graph, &ids[..3], &device.buffer_type(), &mut buffers).unwrap().is_empty());
    assert_eq!(prepared(&buffer), 5);
    buffer.reset().unwrap();
    assert_eq!(prepared(&buffer), 0);
    buffers.init_tensor(graph.tensor(ids[3]).unwrap()).unwrap();
    assert_eq!(prepared(&buffer), 1);
}

#[test]
fn a_tensor_listed_twice_has_one_place() {
    let device = gpu("GPU");
    let (mut graph, [a, ..]) = leaves();
    let mut buffers = Buffers::new();
    place_all(&mut graph, &[a, a], &device.buffer_type(), &mut buffers).unwrap();
    assert_eq!(device.allocated_bytes(), 40);
}

#[test]
fn a_full_buffer_is_followed_by_another() {
    let device = TestDevice::new(Config { alignment: 4, max_size: 100, ..Config::accelerator("GPU") });
    let (mut graph, ids) = leaves();
    let mut buffers = Buffers::new();
    let new = place_all(&mut graph, &ids, &device.buffer_type(), &mut buffers).unwrap();
    let sizes: Vec<_> = new.iter().map(|&id| buffers.get(id).unwrap().len()).collect();
    assert_eq!(sizes, [100, 20]);
    let homes: Vec<_> = ids.iter().map(|&id| graph.storage(id).unwrap().unwrap().buffer).collect();
    assert_eq!(homes, [BufferId(0), BufferId(0), BufferId(1), BufferId(0), BufferId(0)]);
}

#[test]
fn when_placing_fails_nothing_has_changed() {
    let too_large = Config { max_size: 50, ..Config::accelerator("GPU") };
    let too_full = Config { alignment: 4, max_size: 60, capacity: 110, ..Config::accelerator("GPU") };
    for config in [too_large, too_full] {
        let device = TestDevice::new(config);
        let (mut graph, ids) = leaves();
        let mut buffers = Buffers::new();
        let kept = buffers.add(visible(4));
        let failed = place_all(&mut graph, &ids, &device.buffer_type(), &mut buffers);
        assert!(matches!(failed, Err(Error::OutOfMemory { .. })));
        assert!(ids.iter().all(|&id| graph.storage(id).unwrap().is_none()));
        assert_eq!(device.allocated_bytes(), 0);
        assert_eq!((buffers.len(), buffers.get(kept).unwrap().len()), (1, 4));
    }
}

/// Memory whose buffers refuse all tensors.
#[derive(Debug)]
struct Refusing;

impl BufferType for Refusing {
    fn name(&self) -> &str {
        "refusing"
    }

    fn allocate_bytes(self: Arc<Self>, size: usize) -> Result<Arc<dyn Buffer>, Error> {
        Ok(Arc::new(Plain { refuses_tensors: true, ..Plain::new(visible(size)) }))
    }

    fn alignment(&self) -> usize {
        4
    }

    /// Less than a tensor needs, which must not be believed.
    fn alloc_size(&self, _tensor: oxcart_tensor::TensorRef<'_>) -> usize {
        1
    }
}

#[test]
fn a_refused_tensor_undoes_the_placing() {
    let refusing: Arc<dyn BufferType> = Arc::new(Refusing);
    let (mut graph, ids) = leaves();
    let mut buffers = Buffers::new();
    let failed = place_all(&mut graph, &ids, &refusing, &mut buffers);
    assert!(matches!(failed, Err(Error::Unsupported { .. })));
    assert!(buffers.is_empty());
    assert!(ids.iter().all(|&id| graph.storage(id).unwrap().is_none()));
}

#[test]
fn parts_of_a_tensor_are_set_read_and_filled() {
    let device = gpu("GPU");
    let (mut graph, [a, b, ..]) = leaves();
    let mut buffers = Buffers::new();
    place_all(&mut graph, &[a, b], &device.buffer_type(), &mut buffers).unwrap();
    let (a, b) = (graph.tensor(a).unwrap(), graph.tensor(b).unwrap());
    buffers.set(a, 36, &[1, 2, 3, 4]).unwrap();
    buffers.fill(a, 0, 2, 9).unwrap();
    let mut out = [0; 3];
    buffers.read(a, 37, &mut out).unwrap();
    assert_eq!(out, [2, 3, 4]);
    assert_eq!(buffers.bytes(a).unwrap()[..4], [9, 9, 0, 0]);
    // The buffer goes on after the tensor, but the tensor does not.
    assert!(matches!(buffers.set(a, 37, &[0; 4]), Err(Error::OutOfBounds { offset: 37, size: 40, .. })));
    assert!(matches!(buffers.read(a, usize::MAX, &mut out), Err(Error::OutOfBounds { .. })));
    assert!(matches!(buffers.fill(a, 40, 1, 0), Err(Error::OutOfBounds { .. })));
    buffers.set(a, 40, &[]).unwrap();
    assert!(buffers.bytes(b).unwrap().iter().all(|&byte| byte == 0));
}

#[test]
fn a_tensor_without_memory_is_an_error() {
    let (graph, [a, _, _, view, _]) = leaves();
    let buffers = Buffers::new();
    for id in [a, view] {
        let tensor = graph.tensor(id).unwrap();
        assert!(matches!(buffers.bytes(tensor), Err(Error::NotPlaced { id: missing, .. }) if missing == id));
        assert!(matches!(buffers.init_tensor(tensor), Err(Error::NotPlaced { .. })));
    }
    assert!(matches!(buffers.get(BufferId(0)), Err(Error::NoSuchBuffer { .. })));
}

#[test]
fn an_id_can_mean_another_buffer() {
    let mut buffers = Buffers::new();
    let id = buffers.add(visible(4));
    let clone = buffers.clone();
    buffers.replace(id, visible(8)).unwrap();
    assert_eq!((buffers.get(id).unwrap().len(), clone.get(id).unwrap().len()), (8, 4));
    assert!(matches!(buffers.replace(BufferId(1), visible(1)), Err(Error::NoSuchBuffer { .. })));
}
