//! The same graph on two devices, node by node.

use std::ops::ControlFlow;

use oxcart_tensor::{Graph, TensorRef};

use crate::copy::copy_graph;
use crate::error::Error;
use crate::stream::{Stream, Work};
use crate::table::Buffers;

/// What both devices made of one node.
#[derive(Debug)]
pub struct Comparison<'a> {
    /// Position of the node in the order.
    pub position: usize,
    /// The node.
    pub node: TensorRef<'a>,
    /// Its bytes as the first device computed them.
    pub first: Vec<u8>,
    /// Its bytes as the second device computed them.
    pub second: Vec<u8>,
}

/// Computes a graph, whose tensors all have memory that `first` can use, on `first` and a copy of it on `second`, and
/// shows each node's results to `look`, which may stop. Returns whether it looked at all of them.
pub fn compare(
    first: &dyn Stream,
    second: &dyn Stream,
    graph: &Graph,
    buffers: &Buffers,
    mut look: impl FnMut(Comparison<'_>) -> ControlFlow<()>,
) -> Result<bool, Error> {
    let copy = copy_graph(graph, buffers, second)?;
    for (position, &id) in graph.nodes().iter().enumerate() {
        for (stream, graph, buffers) in [(first, graph, buffers), (second, &copy.graph, &copy.buffers)] {
            if let Some(nodes) = graph.range(position..position + 1) {
                stream.compute_and_wait(Work { nodes, buffers })?;
            }
        }
        let node = graph.tensor(id)?;
        if !node.computes() {
            continue;
        }
        let comparison = Comparison {
            position,
            node,
            first: buffers.bytes(node)?,
            second: copy.buffers.bytes(copy.graph.tensor(id)?)?,
        };
        if look(comparison).is_break() {
            return Ok(false);
        }
    }
    Ok(true)
}
