//! A graph from the wire, rebuilt through the door.
//!
//! Only nodes that will run are made into nodes. Whatever they read that is not the result of an earlier node becomes a
//! leaf at the address the client gave it, views included: an address says all there is to say about a view. So no
//! reference is ever followed further than one step, and neither cycles nor long chains mean anything.
//!
//! Invariants: what a client says about a result must be what the door says; every tensor that a node touches lies
//! inside a buffer of the client; nothing runs unless all of the graph was accepted.

use std::collections::HashMap;
use std::sync::Arc;

use oxcart_backend::{Buffer, Buffers, Device, Error, allocate};
use oxcart_tensor::graph::{BufferId, Node, Storage};
use oxcart_tensor::ops::{GatedDeltaNet, OpInfo};
use oxcart_tensor::{Graph, Layout, Op, TensorId};
use zerocopy::little_endian::U64;

use super::refusal::Refusal;
use super::space::{Space, layout_of};
use crate::wire::{Dialect, GraphBody, NO_TENSOR, OpCode, Params, TensorRecord};

/// Bits of [`TensorRecord::flags`].
const OUTPUT_FLAG: i32 = 2;
const PARAM_FLAG: i32 = 4;
const COMPUTE_FLAG: i32 = 16;

/// Tensors or nodes that are only glanced at, and how many nodes those are in time.
pub(crate) const GLANCED: usize = 1024;
pub(crate) const GLANCES: usize = 64;

/// A graph ready to run.
#[derive(Debug)]
pub struct Rebuilt {
    /// Its nodes, all of which compute.
    pub graph: Graph,
    /// The memory of its tensors.
    pub buffers: Buffers,
    /// Handles of the buffers it uses.
    pub handles: Vec<u64>,
}

/// Rebuilds a graph for a device from what a client sent.
pub fn rebuild(
    body: &GraphBody<'_>,
    dialect: &Dialect,
    space: &Space,
    device: &Arc<dyn Device>,
) -> Result<Rebuilt, Refusal> {
    rebuild_in_parts(body, dialect, space, device, &mut |_| true)
}

/// Whether to go on with so many more nodes; it may wait before it says so.
pub(crate) type GoOn<'a> = dyn FnMut(usize) -> bool + 'a;

/// Refuses to go on with what no one waits for any more.
pub(crate) fn check_wanted(go_on: &mut GoOn<'_>, nodes: usize) -> Result<(), Refusal> {
    go_on(nodes).then_some(()).ok_or(Refusal::Failed(Error::Cancelled))
}

/// The same, asking again and again whether to go on.
pub(crate) fn rebuild_in_parts(
    body: &GraphBody<'_>,
    dialect: &Dialect,
    space: &Space,
    device: &Arc<dyn Device>,
    go_on: &mut GoOn<'_>,
) -> Result<Rebuilt, Refusal> {
    let mut records = HashMap::with_capacity(body.tensors.len());
    for many in body.tensors.chunks(GLANCED) {
        check_wanted(go_on, GLANCES)?;
        for record in many {
            let id = record.id.get();
            if id == NO_TENSOR {
                return Err(Refusal::Missing { id });
            }
            if records.insert(id, record).is_some() {
                return Err(Refusal::Duplicate { id });
            }
        }
    }
    let mut builder = Builder {
        dialect,
        space,
        device,
        records,
        made: HashMap::with_capacity(body.tensors.len()),
        graph: Graph::new(),
        buffers: Buffers::new(),
        handles: Vec::new(),
        ids: HashMap::new(),
        nowhere: None,
    };
    let mut seen = HashMap::with_capacity(body.nodes.len());
    for id in body.nodes {
        check_wanted(go_on, 1)?;
        let id = id.get();
        let record = builder.record(id)?;
        if seen.insert(id, ()).is_some() {
            return Err(Refusal::Duplicate { id });
        }
        builder.check_references(record)?;
        if !dialect.has_compute_flag || record.flags.get() & COMPUTE_FLAG != 0 {
            builder.node(record)?;
        }
    }
    for nodes in body.nodes.chunks(GLANCED) {
        check_wanted(go_on, GLANCES)?;
        builder.keep_what_is_needed_later(nodes)?;
    }
    let Builder { graph, buffers, handles, .. } = builder;
    Ok(Rebuilt { graph, buffers, handles })
}

struct Builder<'a> {
    dialect: &'a Dialect,
    space: &'a Space,
    device: &'a Arc<dyn Device>,
    records: HashMap<u64, &'a TensorRecord>,
    /// Tensors of the graph by id.
    made: HashMap<u64, TensorId>,
    graph: Graph,
    buffers: Buffers,
    /// Handle of each buffer by its id in the graph, except the one of `nowhere`.
    handles: Vec<u64>,
    /// Ids of buffers by handle.
    ids: HashMap<u64, BufferId>,
    /// Memory for tensors without elements, which need a place but no bytes.
    nowhere: Option<BufferId>,
}

impl<'a> Builder<'a> {
    fn record(&self, id: u64) -> Result<&'a TensorRecord, Refusal> {
        self.records.get(&id).copied().ok_or(Refusal::Missing { id })
    }

    /// Every id that a node names must be listed, whether the node runs or not.
    fn check_references(&self, record: &TensorRecord) -> Result<(), Refusal> {
        let named = record.sources.iter().chain([&record.view_source]).map(|id| id.get());
        for id in named.filter(|&id| id != NO_TENSOR) {
            self.record(id)?;
        }
        Ok(())
    }

    /// Adds a node, if it does anything.
    fn node(&mut self, record: &'a TensorRecord) -> Result<(), Refusal> {
        let number = record.op.get();
        let code = self.dialect.op(number).ok_or(Refusal::Op { number })?;
        if matches!(code, OpCode::None | OpCode::View | OpCode::Reshape | OpCode::Permute | OpCode::Transpose)
        {
            return Ok(());
        }
        let result = layout_of(record, self.dialect)?;
        let own = record.id.get();
        let names_itself = code == OpCode::Cpy && record.sources[1].get() == own;
        let source_ids = self.source_ids(record, code, names_itself)?;
        let first = match source_ids.first().copied().flatten() {
            Some(id) => Some(layout_of(self.record(id)?, self.dialect)?),
            None => None,
        };
        let words = record.params.map(|word| word.get());
        let op = Params { dialect: self.dialect, op: code, words, result, first, names_itself }.decode()?;
        if result.is_empty() {
            return Ok(());
        }
        let mut sources = Vec::with_capacity(source_ids.len());
        for (slot, id) in source_ids.iter().enumerate() {
            sources.push(match id {
                Some(id) => Some(self.source(*id, &op, slot, first)?),
                None => None,
            });
        }
        let in_place = op.info().in_place && self.is_in_place(record, &source_ids)?;
        let refused =
            |error: oxcart_tensor::Error| Refusal::Node { op: code.name(), reason: error.to_string() };
        let node = Node { op, sources: &sources, in_place, dtype: Some(result.dtype()) };
        let id = self.graph.insert(node).map_err(refused)?;
        self.check_result(record, id, &result, code)?;
        self.graph.append(id, true).map_err(refused)?;
        self.made.insert(own, id);
        Ok(())
    }

    /// An output, or a result that the client uses more often than this graph shows, is needed later, so no device may
    /// fuse it away. Where
    /// the dialect does not say how often, any result may be needed.
    fn keep_what_is_needed_later(&mut self, nodes: &[U64]) -> Result<(), Refusal> {
        for id in nodes {
            let (Some(&made), record) = (self.made.get(&id.get()), self.record(id.get())?) else { continue };
            let here = i64::from(self.graph.use_count(made));
            let is_output = record.flags.get() & OUTPUT_FLAG != 0;
            if is_output || !self.dialect.has_use_counts || i64::from(record.use_count.get()) > here {
                self.graph
                    .mark_output(made)
                    .map_err(|error| Refusal::Node { op: "result", reason: error.to_string() })?;
            }
        }
        Ok(())
    }

    /// Ids of the sources by slot, as the op counts them.
    fn source_ids(
        &self,
        record: &TensorRecord,
        code: OpCode,
        names_itself: bool,
    ) -> Result<Vec<Option<u64>>, Refusal> {
        let mut ids: Vec<_> =
            record.sources.iter().map(|id| Some(id.get()).filter(|&id| id != NO_TENSOR)).collect();
        if names_itself {
            ids[1] = None;
        }
        if code == OpCode::SetRows && self.dialect.is_classic {
            // The target is named only as what the result is a view of; it has the result's own place and shape.
            ids[2] = Some(record.id.get());
        }
        let info = Op::ALL.iter().find(|info| info.name == code.name());
        // A cast has one source; the copy that it is on the wire has two.
        let known = if names_itself { 1 } else { info.map_or(0, |info: &OpInfo| info.sources.len()) };
        let len = ids.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        ids.truncate(len.max(known.min(ids.len())));
        Ok(ids)
    }

    /// Whether the client made the result a view of its first source.
    fn is_in_place(&self, record: &TensorRecord, sources: &[Option<u64>]) -> Result<bool, Refusal> {
        let Some(first) = sources.first().copied().flatten() else { return Ok(false) };
        let first = self.record(first)?;
        Ok(record.view_source.get() != NO_TENSOR
            && record.buffer == first.buffer
            && record.data == first.data)
    }

    /// What a node reads: the result of an earlier node, or a leaf where the client put it.
    fn source(&mut self, id: u64, op: &Op, slot: usize, first: Option<Layout>) -> Result<TensorId, Refusal> {
        let record = self.record(id)?;
        let sums_as_stored = matches!(op, Op::Sum(_)) && slot == 0;
        let as_stored = if sums_as_stored { rows_as_stored(&layout_of(record, self.dialect)?) } else { None };
        if let Some(&made) = self.made.get(&id).filter(|_| as_stored.is_none()) {
            return Ok(made);
        }
        let mut layout = match as_stored {
            Some(layout) => layout,
            None => layout_of(record, self.dialect)?,
        };
        if let (Op::GatedDeltaNet(_), 5, Some(first)) = (op, slot, first) {
            layout = self.delta_net_state(layout, first)?;
        }
        let name = op.name();
        let refused = |error: oxcart_tensor::Error| Refusal::Node { op: name, reason: error.to_string() };
        let leaf = self.graph.leaf_with_layout(layout).map_err(refused)?;
        if slot == 0 && record.flags.get() & PARAM_FLAG != 0 {
            // Harmless if the op does not ask for it; a leaf without elements cannot be one.
            let _ = self.graph.mark_param(leaf);
        }
        self.graph.append(leaf, false).map_err(refused)?;
        self.place(leaf, record, &layout, name)?;
        if as_stored.is_none() {
            self.made.insert(id, leaf);
        }
        Ok(leaf)
    }

    /// Dialects before use counts shape the state as one row per sequence.
    fn delta_net_state(&self, state: Layout, first: Layout) -> Result<Layout, Refusal> {
        let size = first.ne()[0];
        let already = state.ne()[0] == size && state.ne()[1] == size;
        if self.dialect.has_use_counts || already || !state.is_contiguous() || size == 0 {
            return Ok(state);
        }
        let sequences = state.elements() / state.ne()[0].max(1);
        let heads = state.ne()[0] / (size * size).max(1);
        Layout::packed(state.dtype(), [size, size, heads, sequences])
            .ok()
            .filter(|layout| layout.elements() == state.elements())
            .ok_or_else(|| Refusal::Node {
                op: <GatedDeltaNet as oxcart_tensor::ops::Operation>::INFO.name,
                reason: format!("a state of {state} for heads of {size}"),
            })
    }

    /// What the client says about a result must be what the door says, and a fresh one must lie in a buffer.
    fn check_result(
        &mut self,
        record: &TensorRecord,
        id: TensorId,
        stated: &Layout,
        code: OpCode,
    ) -> Result<(), Refusal> {
        let failed = |reason: String| Refusal::Node { op: code.name(), reason };
        let made = self.graph.tensor(id).map_err(|error| failed(error.to_string()))?;
        let layout = *made.layout();
        let same_strides = (0..4).all(|dim| stated.ne()[dim] <= 1 || stated.nb()[dim] == layout.nb()[dim]);
        if layout.ne() != stated.ne() || layout.dtype() != stated.dtype() || !same_strides {
            return Err(failed(format!("the result is said to be {stated}, but is {layout}")));
        }
        let Some(storage) = made.view().and_then(|_| made.storage()) else {
            return self.place(id, record, &layout, code.name());
        };
        // The result lies in a source; the client must mean the same bytes.
        let range =
            self.space.range_of(record, &layout).map_err(|_| Refusal::NoMemory { op: code.name() })?;
        let handle = self.handles.get(storage.buffer.0 as usize).copied();
        if handle == Some(range.handle) && storage.offset == range.offset {
            return Ok(());
        }
        Err(failed("the result is not where its source is".into()))
    }

    /// Puts a tensor where the client says it is.
    fn place(
        &mut self,
        id: TensorId,
        record: &TensorRecord,
        layout: &Layout,
        op: &'static str,
    ) -> Result<(), Refusal> {
        let (buffer, offset, capacity) = if layout.is_empty() {
            (self.nowhere()?, 0, 0)
        } else {
            let range = self.space.range_of(record, layout).map_err(|refusal| match refusal {
                Refusal::Handle { .. } => Refusal::NoMemory { op },
                other => other,
            })?;
            let capacity = range.buffer.len();
            (self.buffer(range.handle, &range.buffer), range.offset, capacity)
        };
        self.graph
            .bind(id, Storage { buffer, offset }, capacity)
            .map_err(|error| Refusal::Node { op, reason: error.to_string() })
    }

    fn buffer(&mut self, handle: u64, buffer: &Arc<dyn Buffer>) -> BufferId {
        *self.ids.entry(handle).or_insert_with(|| {
            self.handles.push(handle);
            self.buffers.add(Arc::clone(buffer))
        })
    }

    fn nowhere(&mut self) -> Result<BufferId, Refusal> {
        if let Some(known) = self.nowhere {
            return Ok(known);
        }
        let buffer_type = self.device.buffer_type();
        let id = self.buffers.add(allocate(&buffer_type, buffer_type.alignment())?);
        // Handles and ids count alike; no client has this handle.
        self.handles.push(0);
        self.nowhere = Some(id);
        Ok(id)
    }
}

/// What peers' SUM adds up where elements of a row are not neighbours: as many neighbours from the start of each row. Their
/// clients compare with that.
fn rows_as_stored(layout: &Layout) -> Option<Layout> {
    let (dtype, ne, mut nb) = (layout.dtype(), layout.ne().extents(), layout.nb());
    if nb[0] == dtype.block_bytes() || layout.is_empty() {
        return None;
    }
    nb[0] = dtype.block_bytes();
    Layout::strided(dtype, ne, nb).ok()
}
