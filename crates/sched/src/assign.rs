//! Which backend computes each node: passes one to four.
//!
//! 1. Where memory already decides: tensors that have a place, inputs, nodes that read weights.
//! 2. Neighbours take over a decision, first those of accelerators, then all.
//! 3. Nodes move to a better backend that uses the same memory; nodes nobody decided go where most of what they read
//!    is.
//! 4. What is left follows its user, or what it is a view of.
//!
//! Views are not decided on: they are where their root is. Nodes that nobody asked for are not either.
//!
//! Invariant: after [`assign`], every node that runs has a backend that supports it, and every leaf in
//! order has one, too. Every decision keeps its cause.

use std::fmt;

use oxcart_backend::Buffers;
use oxcart_tensor::graph::Flags;
use oxcart_tensor::{Graph, Op, TensorId, TensorRef};

use crate::backends::{BackendId, Backends, Memories, Memory};
use crate::error::Error;

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
    /// It reads weights in host memory, and that backend wants to compute it all the same.
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
    /// A better backend than at first, with the same memory.
    Upgraded,
    /// What it is a view of is there.
    ViewSource,
    /// The node that reads it is there.
    Reader,
    /// Nobody computes or reads it.
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

/// A backend and why.
pub type Assignment = (BackendId, Cause);

/// Assignments by tensor.
#[derive(Clone, Debug)]
pub(crate) struct Assignments(Vec<Option<Assignment>>);

impl Assignments {
    pub(crate) fn of(&self, id: TensorId) -> Option<Assignment> {
        self.0.get(id.index()).copied().flatten()
    }

    /// As [`of`](Assignments::of); a view is where its root is.
    pub(crate) fn of_tensor(&self, tensor: TensorRef<'_>) -> Option<Assignment> {
        let of_root = || self.backend(tensor.root().id()).map(|backend| (backend, Cause::ViewSource));
        self.of(tensor.id()).or_else(of_root)
    }

    pub(crate) fn backend(&self, id: TensorId) -> Option<BackendId> {
        self.of(id).map(|(backend, _)| backend)
    }

    fn set(&mut self, id: TensorId, backend: BackendId, cause: Cause) {
        self.0[id.index()] = Some((backend, cause));
    }

    /// Makes room for a tensor that was added later.
    pub(crate) fn push(&mut self, id: TensorId, backend: BackendId, cause: Cause) {
        self.0.resize(self.0.len().max(id.index() + 1), None);
        self.set(id, backend, cause);
    }
}

/// What the passes look at.
struct Passes<'a> {
    graph: &'a Graph,
    buffers: &'a Buffers,
    backends: &'a Backends,
    memories: &'a Memories,
    offload: bool,
    assigned: Assignments,
    /// Nodes that run and have no backend yet.
    undecided: usize,
    /// Whether there are leaves without a backend, or nodes that nobody asked for.
    left_over: bool,
}

/// Runs the passes.
pub(crate) fn assign(
    graph: &Graph,
    buffers: &Buffers,
    backends: &Backends,
    memories: &Memories,
    pinned: &[(TensorId, BackendId)],
    offload: bool,
) -> Result<Assignments, Error> {
    let assigned = Assignments(vec![None; graph.len()]);
    let (undecided, left_over) = (0, false);
    let mut passes = Passes { graph, buffers, backends, memories, offload, assigned, undecided, left_over };
    for &(id, backend) in pinned {
        graph.tensor(id)?;
        passes.assigned.set(id, backend, Cause::Pinned);
    }
    passes.start_from_memory()?;
    passes.expand();
    passes.improve()?;
    passes.assign_rest()?;
    Ok(passes.assigned)
}

impl<'a> Passes<'a> {
    fn nodes(&self) -> impl DoubleEndedIterator<Item = TensorRef<'a>> + use<'a> {
        let graph = self.graph;
        graph.nodes().iter().filter_map(move |&id| graph.tensor(id).ok())
    }

    /// Leaves and views ask nothing of a device.
    fn supports(&self, backend: BackendId, node: TensorRef<'_>) -> bool {
        !node.computes() || self.backends.device(backend).supports_op(node)
    }

    /// Pass one.
    fn start_from_memory(&mut self) -> Result<(), Error> {
        let graph = self.graph;
        for &id in graph.leaves().iter().chain(graph.nodes()) {
            let tensor = graph.tensor(id)?;
            if self.assigned.of(id).is_some() {
                continue;
            }
            if !(tensor.is_leaf() || runs(tensor)) {
                self.left_over |= tensor.computes();
                continue;
            }
            match self.by_memory(tensor)? {
                Some((backend, cause)) => self.assigned.set(id, backend, cause),
                None if tensor.is_leaf() => self.left_over = true,
                None => self.undecided += 1,
            }
        }
        Ok(())
    }

    fn by_memory(&self, tensor: TensorRef<'_>) -> Result<Option<Assignment>, Error> {
        if let Some(buffer) = tensor.buffer() {
            let cause = if tensor.view().is_some() { Cause::ViewedMemory } else { Cause::Memory };
            let memory = self.memories.of_buffer(buffer);
            let backend = self.memories.best(memory, |backend| self.supports(backend, tensor));
            return backend.map(|backend| Some((backend, cause))).ok_or_else(|| self.stuck(tensor));
        }
        if tensor.has(Flags::INPUT) {
            return Ok(Some((self.backends.last(), Cause::Input)));
        }
        if !tensor.computes() {
            return Ok(None);
        }
        for (slot, source) in tensor.sources().enumerate() {
            let Some(buffer) = source.and_then(TensorRef::buffer) else { continue };
            if !self.memories.is_weights(buffer) || is_rope_factor(tensor, slot) {
                continue;
            }
            let memory = self.memories.of_buffer(buffer);
            let Some(backend) = self.memories.best(memory, |backend| self.supports(backend, tensor)) else {
                continue;
            };
            if self.offload && backend == self.backends.last() && self.memories.is_host(buffer) {
                let wants = |&b: &BackendId| {
                    self.supports(b, tensor) && self.backends.device(b).wants_offload(tensor)
                };
                if let Some(offloaded) = self.backends.before(backend).find(wants) {
                    return Ok(Some((offloaded, Cause::Offload)));
                }
            }
            return Ok(Some((backend, Cause::Weights(u8::try_from(slot).unwrap_or(u8::MAX)))));
        }
        Ok(None)
    }

    fn stuck(&self, tensor: TensorRef<'_>) -> Error {
        let buffer_type = tensor.buffer().and_then(|buffer| self.buffers.get(buffer).ok());
        Error::StuckInMemory {
            id: tensor.id(),
            name: tensor.label(),
            op: tensor.op().name(),
            buffer_type: buffer_type.map_or(String::new(), |buffer| buffer.buffer_type().name().to_owned()),
        }
    }

    /// Pass two.
    fn expand(&mut self) {
        self.spread(self.nodes(), true, Cause::AfterAccelerator);
        self.spread(self.nodes().rev(), true, Cause::BeforeAccelerator);
        self.spread(self.nodes(), false, Cause::After);
        self.spread(self.nodes().rev(), false, Cause::Before);
    }

    /// Lets each undecided node take the backend of the last decided one, if that supports it. With
    /// `accelerators_only`, the last backend spreads nothing and interrupts.
    fn spread(&mut self, nodes: impl Iterator<Item = TensorRef<'a>>, accelerators_only: bool, cause: Cause) {
        if self.undecided == 0 {
            return;
        }
        let mut current = None;
        for node in nodes.filter(|&node| runs(node)) {
            match (self.assigned.backend(node.id()), current) {
                (Some(backend), _) => {
                    current = Some(backend).filter(|&b| !(accelerators_only && b == self.backends.last()));
                }
                (None, Some(backend)) if self.supports(backend, node) => {
                    self.assigned.set(node.id(), backend, cause);
                    self.undecided -= 1;
                }
                (None, _) => {}
            }
        }
    }

    /// Whether a backend can read a tensor where it is or will be.
    fn reads(&self, backend: BackendId, tensor: TensorRef<'_>) -> bool {
        let memory = memory_of(self.memories, &self.assigned, tensor);
        memory.is_some_and(|memory| self.memories.reads(backend, memory))
    }

    /// Pass three.
    fn improve(&mut self) -> Result<(), Error> {
        if self.undecided == 0 && self.backends.ids().all(|id| self.memories.better(id).is_empty()) {
            return Ok(());
        }
        for node in self.nodes().filter(|&node| runs(node)) {
            match self.assigned.of(node.id()) {
                None => {
                    let (_, backend) = self
                        .backends
                        .ids()
                        .filter(|&backend| self.supports(backend, node))
                        .map(|backend| (self.readable_sources(backend, node), backend))
                        .reduce(|best, next| if next.0 > best.0 { next } else { best })
                        .ok_or_else(|| nobody(node))?;
                    self.assigned.set(node.id(), backend, Cause::MostInputs);
                }
                Some((_, Cause::Pinned)) => {}
                Some((current, _)) => {
                    let better = self.memories.better(current).iter().copied().find(|&backend| {
                        self.supports(backend, node)
                            && node.sources().flatten().all(|source| self.reads(backend, source))
                    });
                    if let Some(backend) = better {
                        self.assigned.set(node.id(), backend, Cause::Upgraded);
                    }
                }
            }
        }
        Ok(())
    }

    fn readable_sources(&self, backend: BackendId, node: TensorRef<'_>) -> usize {
        node.sources().flatten().filter(|source| self.reads(backend, *source)).count()
    }

    /// Pass four.
    fn assign_rest(&mut self) -> Result<(), Error> {
        if !self.left_over {
            return Ok(());
        }
        for node in self.nodes() {
            let Some(current) = self.assigned.backend(node.id()) else {
                // What nobody computes or reads stays with the last backend.
                self.assign_if_new(node.root().id(), self.backends.last(), Cause::Unused);
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

    fn assign_if_new(&mut self, id: TensorId, backend: BackendId, cause: Cause) {
        if self.assigned.of(id).is_none() {
            self.assigned.set(id, backend, cause);
        }
    }
}

/// Whether a node is computed when the graph runs: it is not just another view, and somebody asked for it.
pub(crate) fn runs(node: TensorRef<'_>) -> bool {
    node.computes() && node.has(Flags::COMPUTE)
}

/// The frequency factors of a rope are too small to draw it anywhere.
fn is_rope_factor(node: TensorRef<'_>, slot: usize) -> bool {
    slot == 2 && matches!(node.op(), Op::Rope(_) | Op::RopeBack(_))
}

/// Where a tensor is or will be; `None` as long as nobody has decided.
pub(crate) fn memory_of(
    memories: &Memories,
    assigned: &Assignments,
    tensor: TensorRef<'_>,
) -> Option<Memory> {
    if let Some(buffer) = tensor.buffer() {
        return Some(memories.of_buffer(buffer));
    }
    assigned.backend(tensor.root().id()).map(|home| memories.of_backend(home))
}

fn nobody(node: TensorRef<'_>) -> Error {
    Error::NobodyComputes { id: node.id(), op: node.op().name(), name: node.label() }
}
