//! Graphs of one node for tests: inputs in, bytes of the result out, through the device's public face.

use std::sync::Arc;

use half::f16;
use oxcart_backend::{Buffers, Device, Error, Work, allocate};
use oxcart_tensor::graph::Storage;
use oxcart_tensor::{DType, Graph, Layout, Shape, TensorId};

use crate::{CpuDevice, Level};

/// A leaf of the graph: its layout and the bytes it lies in.
#[derive(Clone, Debug)]
pub(crate) struct Input {
    pub(crate) layout: Layout,
    pub(crate) bytes: Vec<u8>,
    pub(crate) is_param: bool,
}

impl Input {
    /// Any layout over any bytes.
    pub(crate) fn new(layout: Layout, bytes: Vec<u8>) -> Input {
        assert!(bytes.len() >= layout.byte_len());
        Input { layout, bytes, is_param: false }
    }

    /// Packed numbers of a float type, made from `f32`.
    pub(crate) fn of(dtype: DType, ne: impl Into<Shape>, values: &[f32]) -> Input {
        let layout = Layout::packed(dtype, ne).unwrap();
        assert_eq!(layout.elements(), values.len());
        Input::new(layout, encode(dtype, values))
    }

    pub(crate) fn f32(ne: impl Into<Shape>, values: &[f32]) -> Input {
        Input::of(DType::F32, ne, values)
    }

    pub(crate) fn i32(ne: impl Into<Shape>, values: &[i32]) -> Input {
        let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        Input::new(Layout::packed(DType::I32, ne).unwrap(), bytes)
    }

    /// The same bytes, seen another way.
    pub(crate) fn strided(self, ne: impl Into<Shape>, nb: [usize; 4]) -> Input {
        Input::new(Layout::strided(self.layout.dtype(), ne, nb).unwrap(), self.bytes)
    }

    /// A parameter that training changes.
    pub(crate) fn param(self) -> Input {
        Input { is_param: true, ..self }
    }
}

/// Numbers as packed elements.
pub(crate) fn encode(dtype: DType, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; dtype.row_bytes(values.len()).unwrap()];
    oxcart_tensor::quant::encode_row_at_run_time(dtype, values, &mut bytes).unwrap();
    bytes
}

/// Packed elements as numbers.
pub(crate) fn decode(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; bytes.len() / dtype.block_bytes() * dtype.block_len()];
    oxcart_tensor::quant::dequantize_row(dtype, bytes, &mut values).unwrap();
    values
}

/// Numbers between -4 and 4 that follow no pattern; every one is an f16.
pub(crate) fn noise(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_769) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        f16::from_f32((state >> 8) as f32 / (1u32 << 21) as f32 - 4.0).to_f32()
    };
    (0..count).map(|_| next()).collect()
}

/// Where the result goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Memory of its own.
    Fresh,
    /// The memory of a source with the same layout, as a memory planner may decide.
    Over(usize),
}

/// Computes the node that `build` makes of leaves like `inputs`, and gives the bytes of all leaves and of the result
/// afterwards. Of a result in the memory of a leaf these are the leaf's.
pub(crate) fn run_all(
    level: Level,
    threads: usize,
    inputs: &[Input],
    place: Place,
    build: impl FnOnce(&mut Graph, &[TensorId]) -> TensorId,
) -> Result<(Vec<Vec<u8>>, Vec<u8>), Error> {
    let backend = CpuDevice::with_level(level).open(&format!("threads={threads}"))?;
    let buffer_type = backend.device().buffer_type();
    let (mut graph, mut buffers) = (Graph::new(), Buffers::new());
    let (mut leaves, mut memory, mut storages) = (Vec::new(), Vec::new(), Vec::new());
    for input in inputs {
        let leaf = graph.leaf_with_layout(input.layout).unwrap();
        if input.is_param {
            graph.mark_param(leaf).unwrap();
        }
        let buffer = allocate(&buffer_type, input.bytes.len())?;
        buffer.write(0, &input.bytes)?;
        let storage = Storage { buffer: buffers.add(Arc::clone(&buffer)), offset: 0 };
        graph.bind(leaf, storage, input.bytes.len()).unwrap();
        leaves.push(leaf);
        memory.push(buffer);
        storages.push(storage);
    }
    let node = build(&mut graph, &leaves);
    graph.expand(node).unwrap();
    let tensor = graph.tensor(node).unwrap();
    let (root, len) = (tensor.root().id(), tensor.byte_len());
    assert!(backend.device().supports_op(tensor), "{} is not supported", tensor.op().label());
    let result = match (leaves.iter().position(|&leaf| leaf == root), place) {
        (Some(leaf), _) => Arc::clone(&memory[leaf]),
        (None, Place::Over(slot)) => {
            assert_eq!(tensor.layout(), &inputs[slot].layout, "only the same layout may be shared");
            graph.bind(node, storages[slot], len).unwrap();
            Arc::clone(&memory[slot])
        }
        (None, Place::Fresh) => {
            let buffer = allocate(&buffer_type, len)?;
            buffer.write(0, &vec![0xA5; len])?;
            graph.bind(node, Storage { buffer: buffers.add(Arc::clone(&buffer)), offset: 0 }, len).unwrap();
            buffer
        }
    };
    let nodes = graph.range(0..graph.nodes().len()).unwrap();
    backend.compute_and_wait(Work { nodes, buffers: &buffers })?;
    let contents = |buffer: &Arc<dyn oxcart_backend::Buffer>| {
        let mut bytes = vec![0; buffer.len()];
        buffer.read(0, &mut bytes).map(|()| bytes)
    };
    Ok((memory.iter().map(contents).collect::<Result<_, _>>()?, contents(&result)?))
}

/// The result of the node that `build` makes of leaves like `inputs`.
pub(crate) fn run(
    level: Level,
    threads: usize,
    inputs: &[Input],
    place: Place,
    build: impl FnOnce(&mut Graph, &[TensorId]) -> TensorId,
) -> Result<Vec<u8>, Error> {
    run_all(level, threads, inputs, place, build).map(|(_, result)| result)
}

/// Checks on every level that one thread and three, and memory of its own and that of each of `sources`, give the same
/// result; gives that of the best level.
pub(crate) fn run_every_way(
    inputs: &[Input],
    sources: &[usize],
    build: impl Fn(&mut Graph, &[TensorId]) -> TensorId,
) -> Vec<u8> {
    let mut best = Vec::new();
    for level in Level::available() {
        best = run(level, 1, inputs, Place::Fresh, &build).unwrap();
        for threads in [1, 3] {
            let places = sources.iter().map(|&slot| Place::Over(slot)).chain([Place::Fresh]);
            for place in places {
                let found = run(level, threads, inputs, place, &build).unwrap();
                let same = found.len() >= best.len() && found[..best.len()] == best;
                assert!(same, "{level}, {threads} threads, {place:?}: another result");
            }
        }
    }
    best
}
