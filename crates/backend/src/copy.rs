//! A whole graph on another device.

use oxcart_tensor::Graph;

use crate::error::Error;
use crate::place::{copy_place, place_all};
use crate::stream::Stream;
use crate::table::Buffers;

/// A graph with memory of its own: every tensor has its own place, nothing is reused.
#[derive(Debug)]
pub struct GraphCopy {
    /// The same tensors, ids and order.
    pub graph: Graph,
    /// Where they are.
    pub buffers: Buffers,
}

/// Copies a graph to the device of `stream`: each tensor that has memory gets a place there, with its contents.
pub fn copy_graph(graph: &Graph, buffers: &Buffers, stream: &dyn Stream) -> Result<GraphCopy, Error> {
    let mut copy = GraphCopy { graph: graph.clone(), buffers: Buffers::new() };
    let roots: Vec<_> = graph
        .ids()
        .filter(|&id| {
            graph.tensor(id).is_ok_and(|tensor| tensor.view().is_none() && tensor.storage().is_some())
        })
        .collect();
    for &id in &roots {
        copy.graph.unbind(id)?;
    }
    let all: Vec<_> = graph.ids().collect();
    let buffer_type = stream.device().buffer_type();
    place_all(&mut copy.graph, &all, &buffer_type, &mut copy.buffers)?;
    for &id in &roots {
        let source = buffers.place_of(graph.tensor(id)?)?;
        let target = copy.buffers.place_of(copy.graph.tensor(id)?)?;
        copy_place(&source, &target)?;
    }
    Ok(copy)
}
