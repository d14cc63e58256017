//! Which stream computes each node: passes one to four.
//!
//! 1. Where memory already decides: tensors that have a place, inputs, nodes that read weights.
//! 2. Neighbours take over a decision, first those of accelerators, then all.
//! 3. Nodes move to a better stream that uses the same memory; undecided nodes go where most of what they read is.
//! 4. What is left follows its user, or what it is a view of.
//!
//! Views are not decided on: they are where their root is. Nodes that were not asked for are not either.
//!
//! Invariant: after [`assign`], every node that runs has a stream that supports it, and every leaf in
//! order has one, too. Every decision keeps its cause.

use std::fmt;

use oxcart_backend::{Buffers, Device};
use oxcart_tensor::graph::{BufferId, Flags};
use oxcart_tensor::{Graph, Op, TensorId, TensorRef};

use crate::error::Error;
use crate::program::{Program, Read, Running};
use crate::streams::{Memories, MemoryId, StreamId, Streams};

/// Why a tensor is where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The caller said so.
    Pinned,
    /// Its own memory is there.
    Memory,
    /// The memory it is a view of is there.
    ViewedMemory,
    /// It is an input of the graph.
    Input,
    /// It reads weights that are there; the slot of that source.
    Weights(u8),
    /// It reads weights in host memory, and that stream wants to compute it all the same.
    Offload,
    /// The node before it is there, on an accelerator.
    AfterAccelerator,
    /// The node after it is there, on an accelerator.
    BeforeAccelerator,
    /// The node before it is there.
    After,
    /// The node after it is there.
    Before,
    /// Most of what it reads is there.
    MostInputs,
    /// A better stream than at first, with the same memory.
    Upgraded,
    /// What it is a view of is there.
    ViewSource,
    /// The node that reads it is there.
    Reader,
    /// It is neither computed nor read.
    Unused,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Pinned => write!(f, "pinned"),
            Cause::Memory => write!(f, "its memory"),
            Cause::ViewedMemory => write!(f, "viewed memory"),
            Cause::Input => write!(f, "input"),
            Cause::Weights(slot) => write!(f, "weights (source {slot})"),
            Cause::Offload => write!(f, "offload"),
            Cause::AfterAccelerator => write!(f, "after accelerator"),
            Cause::BeforeAccelerator => write!(f, "before accelerator"),
            Cause::After => write!(f, "after"),
            Cause::Before => write!(f, "before"),
            Cause::MostInputs => write!(f, "most inputs"),
            Cause::Upgraded => write!(f, "upgraded"),
            Cause::ViewSource => write!(f, "view source"),
            Cause::Reader => write!(f, "reader"),
            Cause::Unused => write!(f, "unused"),
        }
    }
}

/// A stream and why.
pub type Assignment = (StreamId, Cause);

/// Assignments by tensor.
#[derive(Clone, Debug)]
pub(crate) struct Assignments(Vec<Option<Assignment>>);

impl Assignments {
    pub(crate) fn of(&self, id: TensorId) -> Option<Assignment> {
        self.0.get(id.index()).copied().flatten()
    }

    /// As [`of`](Assignments::of); a view is where its root is.
    pub(crate) fn of_tensor(&self, tensor: TensorRef<'_>) -> Option<Assignment> {
        let of_root = || self.stream(tensor.root().id()).map(|stream| (stream, Cause::ViewSource));
        self.of(tensor.id()).or_else(of_root)
    }

    pub(crate) fn stream(&self, id: TensorId) -> Option<StreamId> {
        self.of(id).map(|(stream, _)| stream)
    }

    /// The stream of every tensor, in the order of their ids.
    pub(crate) fn streams(&self) -> impl Iterator<Item = Option<StreamId>> + '_ {
        self.0.iter().map(|assignment| assignment.map(|(stream, _)| stream))
    }

    fn set(&mut self, id: TensorId, stream: StreamId, cause: Cause) {
        self.0[id.index()] = Some((stream, cause));
    }

    /// Makes room for a tensor that was added later.
    pub(crate) fn push(&mut self, id: TensorId, stream: StreamId, cause: Cause) {
        self.0.resize(self.0.len().max(id.index() + 1), None);
        self.set(id, stream, cause);
    }
}

/// What the passes look at.
struct Passes<'a> {
    graph: &'a Graph,
    program: &'a Program,
    buffers: &'a Buffers,
    streams: &'a Streams,
    /// By stream, what computes there.
    devices: Vec<&'a dyn Device>,
    memories: &'a Memories,
    offload: bool,
    assigned: Assignments,
    /// Nodes that run and have no stream yet.
    undecided: usize,
    /// Whether there are leaves without a stream, or nodes that were not asked for.
    left_over: bool,
}

/// Where a graph is to run: what is known of the memory there, and what the caller wishes.
pub(crate) struct Setting<'a> {
    pub(crate) buffers: &'a Buffers,
    pub(crate) streams: &'a Streams,
    pub(crate) memories: &'a Memories,
    pub(crate) pinned: &'a [(TensorId, StreamId)],
    pub(crate) offload: bool,
}

/// Runs the passes.
pub(crate) fn assign(graph: &Graph, program: &Program, setting: &Setting<'_>) -> Result<Assignments, Error> {
    let &Setting { buffers, streams, memories, pinned, offload } = setting;
    let mut assigned = Assignments(Vec::with_capacity(graph.len() + graph.len() / 16));
    // What is left of it is for the copies that splits will need.
    assigned.0.resize(graph.len(), None);
    for &(id, stream) in pinned {
        graph.tensor(id)?;
        assigned.set(id, stream, Cause::Pinned);
    }
    let mut passes = Passes {
        graph,
        program,
        buffers,
        streams,
        devices: streams.ids().map(|id| &**streams.device(id)).collect(),
        memories,
        offload,
        assigned,
        undecided: 0,
        left_over: program.skips_nodes,
    };
    passes.start_from_memory()?;
    passes.expand();
    passes.improve()?;
    passes.assign_rest()?;
    Ok(passes.assigned)
}

impl<'a> Passes<'a> {
    fn supports(&self, stream: StreamId, node: TensorRef<'_>) -> bool {
        self.devices[stream.index()].supports_op(node)
    }

    /// Pass one.
    fn start_from_memory(&mut self) -> Result<(), Error> {
        let (graph, program) = (self.graph, self.program);
        for leaf in program.leaves.iter().chain(&program.parameters) {
            if self.assigned.of(leaf.id).is_some() {
                continue;
            }
            if let Some(buffer) = leaf.buffer() {
                // It asks nothing of a device but to be read.
                let reader = self.memories.first_reader(self.memories.of_buffer(buffer));
                let stream = reader.map_or_else(|| Err(self.stuck(leaf.id)), Ok)?;
                self.assigned.set(leaf.id, stream, Cause::Memory);
            } else if leaf.flags.contains(Flags::INPUT) {
                self.assigned.set(leaf.id, self.streams.last(), Cause::Input);
            } else {
                self.left_over = true;
            }
        }
        for (node, reads) in program.iter() {
            if self.assigned.of(node.id).is_some() {
                continue;
            }
            let decided = match node.buffer() {
                Some(buffer) => Some(self.by_own_memory(node, buffer)?),
                None => self.by_weights(graph.tensor(node.id)?, reads),
            };
            match decided {
                Some((stream, cause)) => self.assigned.set(node.id, stream, cause),
                None => self.undecided += 1,
            }
        }
        Ok(())
    }

    fn by_own_memory(&self, node: &Running, buffer: BufferId) -> Result<Assignment, Error> {
        let cause = if node.is_view() { Cause::ViewedMemory } else { Cause::Memory };
        let (memory, tensor) = (self.memories.of_buffer(buffer), self.graph.tensor(node.id)?);
        let stream = self.memories.best(memory, |stream| self.supports(stream, tensor));
        stream.map(|stream| (stream, cause)).ok_or_else(|| self.stuck(node.id))
    }

    fn by_weights(&self, node: TensorRef<'_>, reads: &[Read]) -> Option<Assignment> {
        for read in reads {
            let Some(buffer) = read.buffer() else { continue };
            if !self.memories.is_weights(buffer) || is_rope_factor(node, read.slot) {
                continue;
            }
            let memory = self.memories.of_buffer(buffer);
            let Some(stream) = self.memories.best(memory, |stream| self.supports(stream, node)) else {
                continue;
            };
            if self.offload && stream == self.streams.last() && self.memories.is_host(buffer) {
                let wants =
                    |&b: &StreamId| self.supports(b, node) && self.devices[b.index()].wants_offload(node);
                if let Some(offloaded) = self.streams.before(stream).find(wants) {
                    return Some((offloaded, Cause::Offload));
                }
            }
            return Some((stream, Cause::Weights(read.slot)));
        }
        None
    }

    #[cold]
    fn stuck(&self, id: TensorId) -> Error {
        let tensor = match self.graph.tensor(id) {
            Ok(tensor) => tensor,
            Err(error) => return error.into(),
        };
        let buffer_type = tensor.buffer().and_then(|buffer| self.buffers.get(buffer).ok());
        Error::StuckInMemory {
            id,
            name: tensor.label(),
            op: tensor.op().name(),
            buffer_type: buffer_type.map_or(String::new(), |buffer| buffer.buffer_type().name().to_owned()),
        }
    }

    /// Pass two.
    fn expand(&mut self) {
        let nodes = self.program.running();
        self.spread(nodes.iter(), true, Cause::AfterAccelerator);
        self.spread(nodes.iter().rev(), true, Cause::BeforeAccelerator);
        self.spread(nodes.iter(), false, Cause::After);
        self.spread(nodes.iter().rev(), false, Cause::Before);
    }

    /// Lets each undecided node take the stream of the last decided one, if that supports it. With
    /// `accelerators_only`, the last stream spreads nothing and interrupts.
    fn spread(&mut self, nodes: impl Iterator<Item = &'a Running>, accelerators_only: bool, cause: Cause) {
        if self.undecided == 0 {
            return;
        }
        let mut current = None;
        for node in nodes {
            match (self.assigned.stream(node.id), current) {
                (Some(stream), _) => {
                    current = Some(stream).filter(|&b| !(accelerators_only && b == self.streams.last()));
                }
                (None, Some(stream)) if self.can_compute(stream, node.id) => {
                    self.assigned.set(node.id, stream, cause);
                    self.undecided -= 1;
                }
                (None, _) => {}
            }
        }
    }

    fn can_compute(&self, stream: StreamId, node: TensorId) -> bool {
        self.graph.tensor(node).is_ok_and(|node| self.supports(stream, node))
    }

    /// Whether a stream can read a source where it is or will be.
    fn reads(&self, stream: StreamId, read: &Read) -> bool {
        let memory = memory_of(self.memories, &self.assigned, read);
        memory.is_some_and(|memory| self.memories.reads(stream, memory))
    }

    /// Pass three.
    fn improve(&mut self) -> Result<(), Error> {
        if self.undecided == 0 && self.streams.ids().all(|id| self.memories.better(id).is_empty()) {
            return Ok(());
        }
        for (&Running { id, .. }, reads) in self.program.iter() {
            match self.assigned.of(id) {
                None => {
                    let count = |stream| reads.iter().filter(|read| self.reads(stream, read)).count();
                    let (_, stream) = self
                        .streams
                        .ids()
                        .filter(|&stream| self.can_compute(stream, id))
                        .map(|stream| (count(stream), stream))
                        .reduce(|best, next| if next.0 > best.0 { next } else { best })
                        .ok_or_else(|| no_stream_for(self.graph, id))?;
                    self.assigned.set(id, stream, Cause::MostInputs);
                }
                Some((_, Cause::Pinned)) => {}
                Some((current, _)) => {
                    let better = self.memories.better(current).iter().copied().find(|&stream| {
                        self.can_compute(stream, id) && reads.iter().all(|read| self.reads(stream, read))
                    });
                    if let Some(stream) = better {
                        self.assigned.set(id, stream, Cause::Upgraded);
                    }
                }
            }
        }
        Ok(())
    }

    /// Pass four.
    fn assign_rest(&mut self) -> Result<(), Error> {
        if !self.left_over {
            return Ok(());
        }
        for &id in self.graph.nodes() {
            let node = self.graph.tensor(id)?;
            let Some(current) = self.assigned.stream(id) else {
                // What is neither computed nor read stays with the last stream.
                self.assign_if_new(node.root().id(), self.streams.last(), Cause::Unused);
                continue;
            };
            for &source in node.source_ids().iter().flatten() {
                if self.assigned.of(source).is_none() {
                    let root = self.graph.tensor(source)?.root().id();
                    self.assign_if_new(root, current, Cause::Reader);
                }
            }
        }
        Ok(())
    }

    fn assign_if_new(&mut self, id: TensorId, stream: StreamId, cause: Cause) {
        if self.assigned.of(id).is_none() {
            self.assigned.set(id, stream, cause);
        }
    }
}

/// The frequency factors of a rope are too small to draw it anywhere.
fn is_rope_factor(node: TensorRef<'_>, slot: u8) -> bool {
    slot == 2 && matches!(node.op(), Op::Rope(_) | Op::RopeBack(_))
}

/// Where a source is or will be; `None` while that is undecided.
pub(crate) fn memory_of(memories: &Memories, assigned: &Assignments, read: &Read) -> Option<MemoryId> {
    if let Some(buffer) = read.buffer() {
        return Some(memories.of_buffer(buffer));
    }
    assigned.stream(read.root).map(|home| memories.of_stream(home))
}

fn no_stream_for(graph: &Graph, id: TensorId) -> Error {
    let op = graph.tensor(id).map_or("", |node| node.op().name());
    Error::NoStreamFor { id, op, name: graph.label(id) }
}
