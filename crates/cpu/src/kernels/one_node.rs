//! For tests: graphs of one node, run on every instruction set with one, two and three threads.

use std::sync::Arc;

use half::{bf16, f16};
use oxcart_backend::{Backend, Buffers, Device, Work, allocate};
use oxcart_tensor::graph::{Node, Storage};
use oxcart_tensor::{DType, Graph, Layout, Op};

use crate::{CpuDevice, Level};

/// What results are before they are computed; no kernel computes it.
const UNTOUCHED: u8 = 0xA5;

/// Numbers in memory.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    pub(super) layout: Layout,
    bytes: Vec<u8>,
}

/// Numbers from -1 to 1 that look random.
pub(super) fn noise(seed: u64) -> impl FnMut() -> f32 {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

impl Tensor {
    /// Elements in logical order from a generator, at any strides.
    pub(super) fn with_layout(layout: Layout, mut value: impl FnMut() -> f32) -> Tensor {
        let mut tensor = Tensor { layout, bytes: vec![0; layout.byte_len()] };
        let [n0, n1, n2, n3] = layout.ne().extents();
        for i in 0..n0 * n1 * n2 * n3 {
            let at = [i % n0, i / n0 % n1, i / (n0 * n1) % n2, i / (n0 * n1 * n2)];
            let x = value();
            let bytes = &mut tensor.bytes[offset(&layout, at)..];
            match layout.dtype() {
                DType::F32 => bytes[..4].copy_from_slice(&x.to_le_bytes()),
                DType::F16 => bytes[..2].copy_from_slice(&f16::from_f32(x).to_le_bytes()),
                DType::BF16 => bytes[..2].copy_from_slice(&bf16::from_f32(x).to_le_bytes()),
                DType::I32 => bytes[..4].copy_from_slice(&(x as i32).to_le_bytes()),
                other => panic!("no numbers of type {other}"),
            }
        }
        tensor
    }

    /// Packed elements from a generator.
    pub(super) fn new(dtype: DType, ne: [usize; 4], value: impl FnMut() -> f32) -> Tensor {
        Tensor::with_layout(Layout::packed(dtype, ne).unwrap(), value)
    }

    /// Packed noise.
    pub(super) fn noise(dtype: DType, ne: [usize; 4], seed: u64) -> Tensor {
        Tensor::new(dtype, ne, noise(seed))
    }

    /// Packed noise with dimension `axes[0]` fastest in memory, then `axes[1]`, and so on.
    pub(super) fn permuted(dtype: DType, ne: [usize; 4], axes: [usize; 4], seed: u64) -> Tensor {
        let stored = axes.map(|axis| ne[axis]);
        let layout = Layout::packed(dtype, stored).unwrap().permuted(axes).unwrap();
        assert_eq!(layout.ne().extents(), ne);
        Tensor::with_layout(layout, noise(seed))
    }

    pub(super) fn ne(&self) -> [usize; 4] {
        self.layout.ne().extents()
    }

    /// One element.
    pub(super) fn get(&self, at: [usize; 4]) -> f32 {
        assert!(at.iter().zip(self.ne()).all(|(&i, n)| i < n), "{at:?} is outside");
        let bytes = &self.bytes[offset(&self.layout, at)..];
        match self.layout.dtype() {
            DType::F32 => f32::from_le_bytes(bytes[..4].try_into().unwrap()),
            DType::F16 => f16::from_le_bytes(bytes[..2].try_into().unwrap()).to_f32(),
            DType::BF16 => bf16::from_le_bytes(bytes[..2].try_into().unwrap()).to_f32(),
            other => panic!("no floats of type {other}"),
        }
    }

    /// One element in double precision.
    pub(super) fn at(&self, at: [usize; 4]) -> f64 {
        f64::from(self.get(at))
    }

    /// All elements of a packed `f32` tensor.
    pub(super) fn values(&self) -> Vec<f32> {
        assert!(self.layout.is_contiguous() && self.layout.dtype() == DType::F32);
        self.bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }

    /// Whether an element of a packed `f32` tensor was never written.
    pub(super) fn is_untouched(&self, i: usize) -> bool {
        self.bytes[4 * i..4 * i + 4] == [UNTOUCHED; 4]
    }

    /// Every element is what `exact` says, within `tolerance`.
    pub(super) fn assert_near(&self, tolerance: f64, exact: impl Fn([usize; 4]) -> f64) {
        let [n0, n1, n2, n3] = self.ne();
        for i in 0..n0 * n1 * n2 * n3 {
            let at = [i % n0, i / n0 % n1, i / (n0 * n1) % n2, i / (n0 * n1 * n2)];
            let (found, exact) = (self.at(at), exact(at));
            assert!((found - exact).abs() <= tolerance, "{at:?} is {found} instead of {exact}");
        }
    }
}

fn offset(layout: &Layout, at: [usize; 4]) -> usize {
    at.iter().zip(layout.nb()).map(|(i, nb)| i * nb).sum()
}

/// The result on each instruction set. Numbers of threads must not matter.
pub(super) fn run(op: impl Into<Op>, sources: &[&Tensor]) -> Vec<Tensor> {
    try_run(op, sources, false).unwrap_or_else(|error| panic!("{error}"))
}

/// As [`run`], the result being the memory of source 0.
pub(super) fn run_in_place(op: impl Into<Op>, sources: &[&Tensor]) -> Vec<Tensor> {
    try_run(op, sources, true).unwrap_or_else(|error| panic!("{error}"))
}

/// As [`run`], where tensor data may be wrong.
pub(super) fn try_run(
    op: impl Into<Op>,
    sources: &[&Tensor],
    in_place: bool,
) -> Result<Vec<Tensor>, oxcart_backend::Error> {
    let op = op.into();
    let mut results = Vec::new();
    for level in Level::available() {
        let run = |threads| run_on(level, threads, op, sources, in_place);
        let (one, two, three) = (run(1)?, run(2)?, run(3)?);
        assert!(one.bytes == two.bytes, "{level}: two threads give another result than one");
        assert!(one.bytes == three.bytes, "{level}: three threads give another result than one");
        results.push(one);
    }
    Ok(results)
}

fn run_on(
    level: Level,
    threads: usize,
    op: Op,
    sources: &[&Tensor],
    in_place: bool,
) -> Result<Tensor, oxcart_backend::Error> {
    let backend: Box<dyn Backend> = CpuDevice::with_level(level).open(&format!("threads={threads}"))?;
    let mut graph = Graph::new();
    let ids: Vec<_> = sources.iter().map(|source| graph.leaf_with_layout(source.layout).unwrap()).collect();
    let slots: Vec<_> = ids.iter().copied().map(Some).collect();
    let node = graph.insert(Node { op, sources: &slots, in_place, dtype: None }).unwrap();
    graph.expand(node).unwrap();
    let mut buffers = Buffers::new();
    let mut place = |graph: &mut Graph, id, contents: &[u8]| {
        let capacity = contents.len().max(1);
        let buffer = allocate(&backend.device().buffer_type(), capacity).unwrap();
        buffer.write(0, contents).unwrap();
        let storage = Storage { buffer: buffers.add(Arc::clone(&buffer)), offset: 0 };
        graph.bind(id, storage, capacity).unwrap();
        buffer
    };
    let layout = *graph.tensor(node).unwrap().layout();
    let memory: Vec<_> =
        ids.iter().zip(sources).map(|(&id, source)| place(&mut graph, id, &source.bytes)).collect();
    let result = match in_place {
        true => Arc::clone(&memory[0]),
        false => place(&mut graph, node, &vec![UNTOUCHED; layout.byte_len()]),
    };
    let nodes = graph.range(0..graph.nodes().len()).unwrap();
    backend.compute_and_wait(Work { nodes, buffers: &buffers })?;
    let mut bytes = vec![0; layout.byte_len()];
    result.read(0, &mut bytes).unwrap();
    Ok(Tensor { layout, bytes })
}
