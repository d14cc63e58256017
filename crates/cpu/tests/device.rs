//! The device as its users see it: memory, plans, cancellation, bad data, overlapping memory.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use oxcart_backend::{
    Buffer, Buffers, Device, DeviceKind, Error, HostBuffer, HostMemory, Registry, Stream, StreamOptions,
    Work, allocate,
};
use oxcart_cpu::{CpuDevice, CpuRegistry, CpuStream};
use oxcart_tensor::graph::Storage;
use oxcart_tensor::{DType, Graph, TensorId};

/// A graph with all its memory in one buffer, at offsets of the test's choosing.
struct Rig {
    stream: Box<dyn Stream>,
    graph: Graph,
    buffers: Buffers,
    buffer: Arc<dyn Buffer>,
}

impl Rig {
    fn new(threads: usize, bytes: usize) -> Rig {
        let device = CpuDevice::new().unwrap();
        let buffer = allocate(&device.buffer_type(), bytes).unwrap();
        let mut buffers = Buffers::new();
        buffers.add(Arc::clone(&buffer));
        let stream = device.open(&StreamOptions::threads(threads)).unwrap();
        Rig { stream, graph: Graph::new(), buffers, buffer }
    }

    fn bind(&mut self, id: TensorId, offset: usize) {
        let buffer = oxcart_tensor::graph::BufferId(0);
        self.graph.bind(id, Storage { buffer, offset }, self.buffer.len()).unwrap();
    }

    fn work(&self) -> Work<'_> {
        let nodes = self.graph.range(0..self.graph.nodes().len()).unwrap();
        Work { nodes, buffers: &self.buffers }
    }

    fn write(&self, offset: usize, values: &[f32]) {
        let bytes: Vec<_> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.buffer.write(offset, &bytes).unwrap();
    }

    fn read(&self, offset: usize, len: usize) -> Vec<f32> {
        let mut bytes = vec![0; 4 * len];
        self.buffer.read(offset, &mut bytes).unwrap();
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }

    fn stream(&self) -> &CpuStream {
        self.stream.as_any().downcast_ref().unwrap()
    }
}

fn ramp(len: usize) -> Vec<f32> {
    (0..len).map(|i| i as f32 * 0.5 - 7.0).collect()
}

fn squares(values: &[f32]) -> Vec<f32> {
    values.iter().map(|x| x * x).collect()
}

#[test]
fn the_registry_has_one_cpu() {
    let registry = CpuRegistry::new().unwrap();
    let devices = registry.devices();
    assert_eq!(devices.len(), 1);
    assert_eq!((devices[0].name(), devices[0].kind()), ("CPU", DeviceKind::Cpu));
    let memory = devices[0].memory().unwrap();
    assert!(memory.free > 0 && memory.free <= memory.total, "{memory:?}");
    assert!(!devices[0].description().is_empty());
}

#[test]
fn a_plan_runs_again_with_new_inputs_and_other_memory() {
    const LEN: usize = 40_000;
    let mut rig = Rig::new(3, 16 * LEN);
    let a = rig.graph.leaf(DType::F32, [LEN, 1, 1, 1]).unwrap();
    let y = rig.graph.sqr(a).unwrap();
    let z = rig.graph.sqr(y).unwrap();
    rig.graph.expand(z).unwrap();
    rig.bind(a, 0);
    rig.bind(y, 4 * LEN);
    rig.bind(z, 8 * LEN);
    let mut plan = rig.stream.plan(rig.work()).unwrap().unwrap();
    for shift in 0..3 {
        let values: Vec<_> = ramp(LEN).iter().map(|x| (x + shift as f32) * 1e-3).collect();
        rig.write(0, &values);
        plan.compute().unwrap();
        assert_eq!(rig.read(8 * LEN, LEN), squares(&squares(&values)));
    }
    // The same graph in another place: the plan takes it over.
    rig.bind(z, 12 * LEN);
    plan.update(rig.work()).unwrap();
    rig.write(0, &ramp(LEN));
    plan.compute().unwrap();
    assert_eq!(rig.read(12 * LEN, LEN), squares(&squares(&ramp(LEN))));
}

#[test]
fn a_result_may_overlap_its_source_in_any_way() {
    const LEN: usize = 30_000;
    for threads in [1, 2, 3] {
        for (from, to) in [(0, 0), (0, 4), (4, 0), (0, 1 << 12), (1 << 12, 0)] {
            let mut rig = Rig::new(threads, 4 * LEN + (1 << 13));
            let a = rig.graph.leaf(DType::F32, [LEN, 1, 1, 1]).unwrap();
            let y = rig.graph.sqr(a).unwrap();
            rig.graph.expand(y).unwrap();
            rig.bind(a, from);
            rig.bind(y, to);
            rig.write(from, &ramp(LEN));
            rig.stream.compute_and_wait(rig.work()).unwrap();
            assert_eq!(rig.read(to, LEN), squares(&ramp(LEN)), "{threads} threads, {from} to {to}");
        }
    }
}

#[test]
fn a_cancelled_stream_stops_and_can_go_on() {
    let mut rig = Rig::new(2, 1 << 10);
    let a = rig.graph.leaf(DType::F32, [16, 1, 1, 1]).unwrap();
    let y = rig.graph.sqr(a).unwrap();
    rig.graph.expand(y).unwrap();
    rig.bind(a, 0);
    rig.bind(y, 64);
    rig.write(0, &ramp(16));
    rig.stream().cancel();
    assert!(matches!(rig.stream.compute_and_wait(rig.work()), Err(Error::Cancelled)));
    assert_eq!(rig.read(64, 16), [0.0; 16]);
    rig.stream().resume();
    rig.stream.compute_and_wait(rig.work()).unwrap();
    assert_eq!(rig.read(64, 16), squares(&ramp(16)));
}

#[test]
fn a_bad_index_is_an_error_and_the_stream_lives_on() {
    // Wide enough that all threads take part, with more steps behind the one that fails.
    const LEN: usize = 32_768;
    let mut rig = Rig::new(3, 4 * LEN * 12 + 4096);
    let table = rig.graph.leaf(DType::F32, [LEN, 2, 1, 1]).unwrap();
    let rows = rig.graph.leaf(DType::I32, [3, 1, 1, 1]).unwrap();
    let picked = rig.graph.get_rows(table, rows).unwrap();
    let y = rig.graph.sqr(picked).unwrap();
    rig.graph.expand(y).unwrap();
    rig.bind(table, 0);
    rig.bind(picked, 8 * LEN);
    rig.bind(y, 20 * LEN);
    let rows_at = 32 * LEN;
    rig.bind(rows, rows_at);
    for (bad, index) in [("2", 2), ("-1", -1)] {
        let indices: Vec<u8> = [0, 1, index].iter().flat_map(|i: &i32| i.to_le_bytes()).collect();
        rig.buffer.write(rows_at, &indices).unwrap();
        let failed = rig.stream.compute_and_wait(rig.work()).unwrap_err().to_string();
        assert!(failed.contains(&format!("{bad} is not below 2")), "{failed}");
    }
    rig.buffer.write(rows_at, &[0; 12]).unwrap();
    rig.stream.compute_and_wait(rig.work()).unwrap();
}

#[test]
fn memory_that_is_missing_read_only_or_elsewhere_is_refused() {
    let mut rig = Rig::new(1, 256);
    let a = rig.graph.leaf(DType::F32, [16, 1, 1, 1]).unwrap();
    let y = rig.graph.sqr(a).unwrap();
    rig.graph.expand(y).unwrap();
    assert!(matches!(rig.stream.compute(rig.work()), Err(Error::NotPlaced { .. })));
    rig.bind(a, 0);
    assert!(matches!(rig.stream.compute(rig.work()), Err(Error::NotPlaced { .. })));

    let lent = HostMemory::shared(Arc::new(vec![0u8; 256]));
    let id = rig.buffers.add(HostBuffer::new(rig.buffer.buffer_type().clone(), lent));
    rig.graph.bind(y, Storage { buffer: id, offset: 0 }, 256).unwrap();
    let refused = rig.stream.compute(rig.work()).unwrap_err();
    // A vector may start anywhere; wherever it does, writing to it is refused.
    assert!(matches!(refused, Error::ReadOnly { .. } | Error::Misaligned { .. }), "{refused}");
}

#[test]
fn weights_are_used_where_they_lie() {
    #[repr(align(64))]
    struct Page([u8; 256]);
    impl AsRef<[u8]> for Page {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    let mut rig = Rig::new(2, 256);
    let mut page = Page([0; 256]);
    for (bytes, x) in page.0.chunks_exact_mut(4).zip(ramp(64)) {
        bytes.copy_from_slice(&x.to_le_bytes());
    }
    let lent = rig.stream.device().buffer_from_host(HostMemory::shared(Arc::new(page))).unwrap();
    let id = rig.buffers.add(lent);
    let a = rig.graph.leaf(DType::F32, [16, 1, 1, 1]).unwrap();
    let y = rig.graph.sqr(a).unwrap();
    rig.graph.expand(y).unwrap();
    rig.graph.bind(a, Storage { buffer: id, offset: 32 }, 256).unwrap();
    rig.bind(y, 0);
    rig.stream.compute_and_wait(rig.work()).unwrap();
    assert_eq!(rig.read(0, 16), squares(&ramp(24)[8..]));
}

#[test]
fn nodes_that_need_no_work_are_skipped() {
    let mut rig = Rig::new(1, 256);
    let a = rig.graph.leaf(DType::F32, [4, 1, 1, 1]).unwrap();
    let unused = rig.graph.sqr(a).unwrap();
    let y = rig.graph.sqr(a).unwrap();
    rig.graph.expand_uncomputed(unused).unwrap();
    rig.graph.expand(y).unwrap();
    rig.bind(a, 0);
    rig.bind(unused, 64);
    rig.bind(y, 128);
    rig.write(0, &[3.0; 4]);
    rig.stream.compute_and_wait(rig.work()).unwrap();
    assert_eq!(rig.read(64, 4), [0.0; 4]);
    assert_eq!(rig.read(128, 4), [9.0; 4]);
}

#[test]
fn sources_without_elements_need_no_memory() {
    let mut rig = Rig::new(1, 1024);
    let none = rig.buffers.add(allocate(&rig.buffer.buffer_type().clone(), 0).unwrap());
    let cache = rig.graph.leaf(DType::F32, [16, 4, 1, 1]).unwrap();
    let values = rig.graph.leaf(DType::F32, [16, 0, 1, 1]).unwrap();
    let rows = rig.graph.leaf(DType::I64, [0, 1, 1, 1]).unwrap();
    let y = rig.graph.apply(oxcart_tensor::ops::SetRows, &[Some(values), Some(rows), Some(cache)]).unwrap();
    rig.graph.expand(y).unwrap();
    rig.bind(cache, 0);
    for empty in [values, rows] {
        rig.graph.bind(empty, Storage { buffer: none, offset: 0 }, 0).unwrap();
    }
    rig.write(0, &ramp(64));
    rig.stream.compute_and_wait(rig.work()).unwrap();
    assert_eq!(rig.read(0, 64), ramp(64));
}
