//! A range of nodes as the body of GRAPH_COMPUTE. Where tensors are, it is told.
//!
//! Only what runs is sent as a node. What nodes read and do not make themselves is sent as a leaf where it lies, together
//! with what it is a view of, without the nodes that made it. So a message grows with the range, not with the graph.

use std::sync::Arc;

use oxcart_backend::{Buffers, Error};
use oxcart_tensor::graph::{Flags, NodeRange};
use oxcart_tensor::{TensorId, TensorRef};
use zerocopy::little_endian::{I32, U64};

use super::buffer::RemoteBuffer;
use super::connection::Connection;
use super::record::{leaf_record, node_record, wire_id};
use crate::wire::{Dialect, TensorRecord, encode_graph};

/// A graph ready to be sent.
#[derive(Debug)]
pub struct EncodedGraph {
    /// The body of the message.
    pub body: Arc<Vec<u8>>,
    /// Handles of the buffers that it names.
    pub buffers: Arc<[u64]>,
    /// How many nodes are to run.
    pub nodes: usize,
}

/// Handle and address of a tensor in the memory of a worker; `None` for one that is elsewhere.
pub type AddressOf<'a> = dyn Fn(TensorRef<'_>) -> Result<Option<(u64, u64)>, Error> + 'a;

/// Describes nodes, in a dialect, to a device of a worker: its number there, and its name here. Nothing to run is an empty graph.
pub fn encode_nodes(
    nodes: NodeRange<'_>,
    dialect: &'static Dialect,
    device: (u32, &str),
    address: &AddressOf<'_>,
) -> Result<EncodedGraph, Error> {
    let graph = nodes.graph();
    let mut encoder = Encoder {
        dialect,
        device: device.1,
        address,
        listed: vec![false; graph.len()],
        nodes: Vec::with_capacity(nodes.nodes().len()),
        tensors: Vec::with_capacity(2 * nodes.nodes().len()),
    };
    for &id in nodes.nodes() {
        let node = graph.tensor(id)?;
        if node.has(Flags::COMPUTE) && !node.layout().is_empty() && !node.is_leaf() {
            encoder.node(node)?;
        }
    }
    let mut body = Vec::new();
    encode_graph(&mut body, dialect, device.0, &encoder.nodes, &encoder.tensors);
    let mut buffers: Vec<u64> = encoder.tensors.iter().map(|record| record.buffer.get()).collect();
    buffers.sort_unstable();
    buffers.dedup();
    Ok(EncodedGraph { body: Arc::new(body), buffers: buffers.into(), nodes: encoder.nodes.len() })
}

/// Where a tensor is in the memory of the worker at the other end of a connection.
pub(super) fn address_at(
    tensor: TensorRef<'_>,
    buffers: &Buffers,
    connection: &Arc<Connection>,
) -> Result<Option<(u64, u64)>, Error> {
    let Some(storage) = tensor.storage() else { return Ok(None) };
    let buffer = buffers.get(storage.buffer)?;
    let Some(remote) = buffer.as_any().downcast_ref::<RemoteBuffer>() else { return Ok(None) };
    if !remote.is_of(connection) {
        return Ok(None);
    }
    let len = tensor.byte_len();
    remote.range(storage.offset, len).map(|range| {
        let live = range.buffer;
        Some((live.handle, live.base.wrapping_add(range.offset as u64)))
    })
}

struct Encoder<'a> {
    dialect: &'static Dialect,
    device: &'a str,
    address: &'a AddressOf<'a>,
    /// By position in the graph's arena.
    listed: Vec<bool>,
    nodes: Vec<U64>,
    tensors: Vec<TensorRecord>,
}

impl Encoder<'_> {
    fn node(&mut self, node: TensorRef<'_>) -> Result<(), Error> {
        for source in node.sources().flatten() {
            let is_placed = self.leaf(source)?;
            if !is_placed && node.computes() && !source.layout().is_empty() {
                return Err(self.unreadable(node, source));
            }
        }
        self.root(node)?;
        if !self.list(node.id()) {
            return Ok(());
        }
        let mut record = node_record(node, self.dialect).map_err(|error| error.error(self.device))?;
        if !self.place(node, &mut record)? && node.computes() {
            return Err(Error::NotPlaced { id: node.id(), name: node.label() });
        }
        self.nodes.push(U64::new(wire_id(node.id())));
        self.tensors.push(record);
        Ok(())
    }

    /// Lists what a node reads, unless it is listed already; says whether it is in the worker's memory.
    fn leaf(&mut self, tensor: TensorRef<'_>) -> Result<bool, Error> {
        self.root(tensor)?;
        if !self.list(tensor.id()) {
            return Ok((self.address)(tensor)?.is_some());
        }
        let mut record = leaf_record(tensor, self.dialect).map_err(|error| error.error(self.device))?;
        let is_placed = self.place(tensor, &mut record)?;
        self.tensors.push(record);
        Ok(is_placed)
    }

    /// Lists what a tensor is a view of.
    fn root(&mut self, tensor: TensorRef<'_>) -> Result<(), Error> {
        let root = tensor.root();
        if root.id() == tensor.id() || !self.list(root.id()) {
            return Ok(());
        }
        let mut record = leaf_record(root, self.dialect).map_err(|error| error.error(self.device))?;
        self.place(root, &mut record)?;
        self.tensors.push(record);
        Ok(())
    }

    /// Whether a tensor was not listed before.
    fn list(&mut self, id: TensorId) -> bool {
        self.listed.get_mut(id.index()).is_some_and(|listed| !std::mem::replace(listed, true))
    }

    /// Says where a tensor is; whatever is elsewhere is nowhere for the worker.
    fn place(&self, tensor: TensorRef<'_>, record: &mut TensorRecord) -> Result<bool, Error> {
        if self.dialect.has_use_counts {
            let uses = tensor.graph().use_count(tensor.id());
            record.use_count = I32::new(i32::try_from(uses).unwrap_or(i32::MAX));
        }
        let Some((handle, address)) = (self.address)(tensor)? else { return Ok(false) };
        record.buffer = U64::new(handle);
        record.data = U64::new(address);
        Ok(true)
    }

    fn unreadable(&self, node: TensorRef<'_>, source: TensorRef<'_>) -> Error {
        Error::Unsupported {
            device: self.device.to_owned(),
            what: format!(
                "{} ({}) of {}, which is not in its memory",
                node.label(),
                node.op().name(),
                source.label()
            ),
        }
    }
}
