//! A whole device: element-wise arithmetic on `f32` in host memory, on the calling thread.
//!
//! `cargo run -p oxcart-backend --example small_device`; recorded cases of the reference are run on it by
//! `crates/cases/tests/small_device.rs`.

use std::any::Any;
use std::sync::Arc;

use oxcart_backend::{
    BufferType, Buffers, Caps, Device, DeviceKind, Error, Guid, HostBufferType, Memory, Stream,
    StreamOptions, Work, place_all, same_buffer_type,
};
use oxcart_tensor::graph::Flags;
use oxcart_tensor::{DType, Graph, Layout, Op, TensorRef};

/// What it can compute, as a function of two numbers.
fn function(op: &Op) -> Option<fn(f32, f32) -> f32> {
    match op {
        Op::Add(_) => Some(|a, b| a + b),
        Op::Sub(_) => Some(|a, b| a - b),
        Op::Mul(_) => Some(|a, b| a * b),
        Op::Div(_) => Some(|a, b| a / b),
        _ => None,
    }
}

/// The device: its memory, and nothing else.
#[derive(Debug)]
pub struct Abacus(Arc<dyn BufferType>);

impl Abacus {
    /// There may be any number of them.
    pub fn new() -> Arc<Abacus> {
        Arc::new(Abacus(HostBufferType::new("Abacus")))
    }
}

impl Device for Abacus {
    fn name(&self) -> &str {
        "Abacus"
    }

    fn description(&self) -> &str {
        "adds, subtracts, multiplies and divides"
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::Accelerator
    }

    fn memory(&self) -> Result<Memory, Error> {
        Ok(Memory { free: 1 << 20, total: 1 << 20 })
    }

    fn caps(&self) -> Caps {
        Caps::default()
    }

    fn open(self: Arc<Self>, _options: &StreamOptions) -> Result<Box<dyn Stream>, Error> {
        Ok(Box::new(Beads(self)))
    }

    fn buffer_type(&self) -> Arc<dyn BufferType> {
        Arc::clone(&self.0)
    }

    /// Nodes that only relabel memory need no work; of the others, those whose tensors are all `f32`.
    fn supports_op(&self, node: TensorRef<'_>) -> bool {
        let is_f32 = |tensor: TensorRef<'_>| tensor.layout().dtype() == DType::F32;
        !node.computes()
            || (function(node.op()).is_some() && is_f32(node) && node.sources().flatten().all(is_f32))
    }

    fn supports_buffer_type(&self, buffer_type: &Arc<dyn BufferType>) -> bool {
        same_buffer_type(buffer_type, &self.0)
    }
}

/// A stream. Its calls have taken effect when they return, so the trait's own answers to everything asynchronous are right.
#[derive(Debug)]
struct Beads(Arc<dyn Device>);

impl Stream for Beads {
    fn name(&self) -> &str {
        "Abacus"
    }

    fn guid(&self) -> Guid {
        Guid(*b"oxcart example 1")
    }

    fn device(&self) -> &Arc<dyn Device> {
        &self.0
    }

    fn compute(&self, work: Work<'_>) -> Result<(), Error> {
        for &id in work.nodes.nodes() {
            let node = work.nodes.graph().tensor(id)?;
            let is_work = node.computes() && node.has(Flags::COMPUTE) && !node.layout().is_empty();
            let (true, Some(function), Some(a), Some(b)) =
                (is_work, function(node.op()), node.source(0), node.source(1))
            else {
                continue;
            };
            let (left, right) = (work.buffers.bytes(a)?, work.buffers.bytes(b)?);
            // The result may lie in strides, with bytes between its elements that are not its own.
            let mut result = work.buffers.bytes(node)?;
            for at in indices(node.layout()) {
                let value = function(number(&left, a.layout(), at), number(&right, b.layout(), at));
                let offset = offset(node.layout(), at);
                result[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
            }
            work.buffers.set(node, 0, &result)?;
        }
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// All positions of a tensor.
fn indices(layout: &Layout) -> impl Iterator<Item = [usize; 4]> + use<> {
    let [n0, n1, n2, n3] = layout.ne().extents();
    (0..n0 * n1 * n2 * n3).map(move |i| [i % n0, i / n0 % n1, i / (n0 * n1) % n2, i / (n0 * n1 * n2)])
}

/// Where an element is. A dimension that is shorter than the result's is repeated.
fn offset(layout: &Layout, at: [usize; 4]) -> usize {
    let (ne, nb) = (layout.ne().extents(), layout.nb());
    (0..4).map(|axis| at[axis] % ne[axis] * nb[axis]).sum()
}

fn number(bytes: &[u8], layout: &Layout, at: [usize; 4]) -> f32 {
    let offset = offset(layout, at);
    bytes[offset..].first_chunk().map_or(f32::NAN, |&bytes| f32::from_le_bytes(bytes))
}

/// Adds a number to three others.
pub fn main() -> Result<(), Error> {
    let stream = Abacus::new().open(&StreamOptions::default())?;
    let (mut graph, mut buffers) = (Graph::new(), Buffers::new());
    let (a, b) = (graph.leaf(DType::F32, [3])?, graph.leaf(DType::F32, [1])?);
    let sum = graph.add(a, b)?;
    graph.expand(sum)?;
    place_all(&mut graph, &[a, b, sum], &stream.device().buffer_type(), &mut buffers)?;
    let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
    buffers.set(graph.tensor(a)?, 0, &bytes(&[1.0, 2.0, 3.0]))?;
    buffers.set(graph.tensor(b)?, 0, &bytes(&[0.5]))?;
    if let Some(nodes) = graph.range(0..graph.nodes().len()) {
        stream.compute_and_wait(Work { nodes, buffers: &buffers })?;
    }
    assert_eq!(buffers.bytes(graph.tensor(sum)?)?, bytes(&[1.5, 2.5, 3.5]));
    Ok(())
}
