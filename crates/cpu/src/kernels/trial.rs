//! One op on given numbers, for tests: built through the door, run on a level and a number of threads.

use std::sync::Arc;

use oxcart_backend::{Backend, Buffers, Device, Work, allocate};
use oxcart_tensor::graph::{Node, Storage};
use oxcart_tensor::quant::{dequantize_row, quantize_row};
use oxcart_tensor::{DType, Graph, Layout, Op};

use crate::{CpuDevice, Level};

/// A tensor with contents.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    pub(crate) layout: Layout,
    pub(crate) bytes: Vec<u8>,
}

impl Given {
    /// A packed tensor of these numbers, rounded to the type.
    pub(crate) fn new(dtype: DType, ne: [usize; 4], values: &[f32]) -> Given {
        let layout = Layout::packed(dtype, ne).unwrap();
        let mut bytes = vec![0; layout.byte_len()];
        let importance = vec![1.0; ne[0]];
        for (values, bytes) in values.chunks(ne[0]).zip(bytes.chunks_mut(layout.row_bytes())) {
            quantize_row(dtype, values, Some(&importance), bytes).unwrap();
        }
        Given { layout, bytes }
    }

    /// A packed tensor of integers.
    pub(crate) fn integers(ne: [usize; 4], values: &[i32]) -> Given {
        let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        Given { layout: Layout::packed(DType::I32, ne).unwrap(), bytes }
    }

    /// The same bytes under another layout.
    pub(crate) fn seen_as(self, layout: Layout) -> Given {
        assert!(layout.byte_len() <= self.bytes.len());
        Given { layout, ..self }
    }

    /// All elements in logical order, exactly.
    pub(crate) fn values(&self) -> Vec<f32> {
        let (ne, nb) = (self.layout.ne().extents(), self.layout.nb());
        let dtype = self.layout.dtype();
        let mut block = vec![0.0; dtype.block_len()];
        let mut values = Vec::new();
        for row in 0..ne[1] * ne[2] * ne[3] {
            let at = row % ne[1] * nb[1] + row / ne[1] % ne[2] * nb[2] + row / (ne[1] * ne[2]) * nb[3];
            for i in 0..ne[0] / dtype.block_len() {
                let start = at + i * nb[0];
                dequantize_row(dtype, &self.bytes[start..start + dtype.block_bytes()], &mut block).unwrap();
                values.extend_from_slice(&block);
            }
        }
        values
    }
}

/// Numbers that look random, from -1 to 1, the same on every run.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..8).for_each(|_| {
        next();
    });
    (0..len).map(|_| next()).collect()
}

/// Where the result lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Into {
    /// In memory of its own.
    Fresh,
    /// In the memory of a source, as a memory planner may decide.
    Source(usize),
}

/// The result of an op, as its bytes in memory.
pub(crate) fn run(
    op: impl std::convert::Into<Op>,
    sources: &[Option<&Given>],
    into: Into,
    level: Level,
    threads: usize,
) -> Given {
    let op = op.into();
    let backend: Box<dyn Backend> = CpuDevice::with_level(level).open(&format!("threads={threads}")).unwrap();
    let mut graph = Graph::new();
    let leaves: Vec<_> = sources
        .iter()
        .map(|source| source.map(|source| graph.leaf_with_layout(source.layout).unwrap()))
        .collect();
    let in_place = into == Into::Source(0) && op.info().in_place;
    let node = graph.insert(Node { op, sources: &leaves, in_place, dtype: None }).unwrap();
    graph.expand(node).unwrap();
    let layout = *graph.tensor(node).unwrap().layout();
    let buffer_type = backend.device().buffer_type();
    let mut buffers = Buffers::new();
    let mut places = Vec::new();
    for (leaf, source) in leaves.iter().zip(sources) {
        let (Some(leaf), Some(source)) = (leaf, source) else {
            places.push(None);
            continue;
        };
        let buffer = allocate(&buffer_type, source.bytes.len()).unwrap();
        buffer.write(0, &source.bytes).unwrap();
        let storage = Storage { buffer: buffers.add(Arc::clone(&buffer)), offset: 0 };
        graph.bind(*leaf, storage, source.bytes.len()).unwrap();
        places.push(Some((buffer, storage)));
    }
    let result = match into {
        Into::Source(slot) => {
            let (buffer, storage) = places[slot].clone().unwrap();
            if !in_place {
                graph.bind(node, storage, buffer.len()).unwrap();
            }
            buffer
        }
        Into::Fresh => {
            let buffer = allocate(&buffer_type, layout.byte_len()).unwrap();
            // Nothing may be left as it was, so start from a pattern that nothing computes.
            buffer.write(0, &vec![0xA5; layout.byte_len()]).unwrap();
            let storage = Storage { buffer: buffers.add(Arc::clone(&buffer)), offset: 0 };
            graph.bind(node, storage, layout.byte_len()).unwrap();
            buffer
        }
    };
    let nodes = graph.range(0..graph.nodes().len()).unwrap();
    backend.compute_and_wait(Work { nodes, buffers: &buffers }).unwrap();
    let mut bytes = vec![0; result.len()];
    result.read(0, &mut bytes).unwrap();
    Given { layout, bytes }
}

/// The numbers an op makes on a level, after checking that one, two and three threads make the same bytes, and so do
/// results in the memory of the `shared` sources.
pub(crate) fn settle(
    op: impl std::convert::Into<Op>,
    sources: &[Option<&Given>],
    shared: &[usize],
    level: Level,
) -> Vec<f32> {
    let op = op.into();
    let alone = run(op, sources, Into::Fresh, level, 1);
    for threads in [2, 3] {
        assert!(
            run(op, sources, Into::Fresh, level, threads).bytes == alone.bytes,
            "{level}: {threads} threads"
        );
    }
    let bits = |given: &Given| given.values().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    for &slot in shared {
        for threads in [1, 3] {
            let over = run(op, sources, Into::Source(slot), level, threads);
            assert!(bits(&over) == bits(&alone), "{level}: over source {slot}");
        }
    }
    alone.values()
}

/// The squared error of `found` against `exact`, relative to the square of `exact`.
pub(crate) fn nmse(found: &[f32], exact: &[f64]) -> f64 {
    assert_eq!(found.len(), exact.len());
    let size: f64 = exact.iter().map(|x| x * x).sum();
    let error: f64 = found.iter().zip(exact).map(|(&x, r)| (f64::from(x) - r).powi(2)).sum();
    if error == 0.0 { 0.0 } else { error / size }
}
