//! The order in which nodes run, and how often each tensor is read.
//!
//! Invariant: in the order, a source comes before its users, no tensor stands twice, and a node with
//! [`Flags::COMPUTE`] has it on all the nodes it reads that an op makes. Work lists are explicit: no input makes this recurse.

use super::{Flags, Graph, TensorId};
use crate::error::Error;

/// Place of a tensor that is in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// Position among the leaves.
    Leaf(usize),
    /// Position among the nodes.
    Node(usize),
}

/// A [`Slot`] or none, in four bytes: the position, doubled, plus one for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place(u32);

impl Place {
    const NONE: Place = Place(u32::MAX);

    /// There are at most `MAX_TENSORS` positions, so doubling fits.
    fn new(position: usize, is_node: bool) -> Place {
        Place((position as u32) << 1 | u32::from(is_node))
    }

    fn slot(self) -> Option<Slot> {
        let position = (self.0 >> 1) as usize;
        match self {
            Place::NONE => None,
            Place(packed) if packed & 1 == 1 => Some(Slot::Node(position)),
            Place(_) => Some(Slot::Leaf(position)),
        }
    }
}

/// Leaves and nodes that have been put in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Order {
    nodes: Vec<TensorId>,
    leaves: Vec<TensorId>,
    /// Per tensor, its place. May be shorter than the arena.
    slots: Vec<Place>,
    /// Per tensor, how many source places of ordered nodes name it.
    uses: Vec<u32>,
}

impl Order {
    pub(super) fn slot(&self, id: TensorId) -> Option<Slot> {
        self.slots.get(id.index()).copied().and_then(Place::slot)
    }

    pub(super) fn held_bytes(&self) -> usize {
        let ids = self.nodes.capacity() + self.leaves.capacity();
        ids * size_of::<TensorId>()
            + self.slots.capacity() * size_of::<Place>()
            + self.uses.capacity() * size_of::<u32>()
    }

    pub(super) fn shrink_to_fit(&mut self) {
        self.nodes.shrink_to_fit();
        self.leaves.shrink_to_fit();
        self.slots.shrink_to_fit();
        self.uses.shrink_to_fit();
    }

    /// Makes room for an arena's tensors, and for as many to come as the arena itself has room for.
    fn grow(&mut self, tensors: usize, room: usize) {
        if self.slots.capacity() < tensors {
            self.slots.reserve_exact(room - self.slots.len());
            self.uses.reserve_exact(room - self.uses.len());
        }
        self.slots.resize(tensors, Place::NONE);
        self.uses.resize(tensors, 0);
    }

    /// Keeps use counts and leaves right when an ordered node reads `new` instead of `old`.
    pub(super) fn exchange(&mut self, node: TensorId, old: TensorId, new: TensorId, tensors: usize) {
        if self.slot(node).is_none() {
            return;
        }
        if self.slots.len() < tensors {
            self.grow(tensors, tensors);
        }
        self.uses[old.index()] -= 1;
        self.uses[new.index()] += 1;
        if self.slot(new).is_none() {
            self.slots[new.index()] = Place::new(self.leaves.len(), false);
            self.leaves.push(new);
        }
    }

    fn place(&mut self, id: TensorId, is_leaf: bool, sources: &[Option<TensorId>]) {
        let list = if is_leaf { &mut self.leaves } else { &mut self.nodes };
        self.slots[id.index()] = Place::new(list.len(), !is_leaf);
        list.push(id);
        for source in sources.iter().flatten() {
            self.uses[source.index()] += 1;
        }
    }
}

impl Graph {
    /// Nodes in the order they run.
    pub fn nodes(&self) -> &[TensorId] {
        &self.order.nodes
    }

    /// Leaves that ordered nodes read, in the order they were met.
    pub fn leaves(&self) -> &[TensorId] {
        &self.order.leaves
    }

    /// Where a tensor stands in the order.
    pub fn slot(&self, id: TensorId) -> Option<Slot> {
        self.order.slot(id)
    }

    /// How many source places of ordered nodes name this tensor; a node that reads it twice counts twice.
    pub fn use_count(&self, id: TensorId) -> u32 {
        self.order.uses.get(id.index()).copied().unwrap_or(0)
    }

    /// Puts `id` and everything it needs in order, depth first, sources from left to right, and marks it to be
    /// computed.
    pub fn expand(&mut self, id: TensorId) -> Result<(), Error> {
        self.expand_uncomputed(id)?;
        self.mark_computed(id);
        Ok(())
    }

    /// Puts `id` and everything it needs in order without asking for it to be computed: nodes that nothing else
    /// needs are skipped when the graph runs.
    pub fn expand_uncomputed(&mut self, id: TensorId) -> Result<(), Error> {
        self.tensor(id)?;
        self.order.grow(self.len(), self.links.capacity());
        // Tensors on the way from `id` down, with the next source of each to look at.
        let mut path = Vec::new();
        let mut next = Some(id);
        loop {
            path.extend(next.take().filter(|&id| self.order.slot(id).is_none()).map(|id| (id, 0_usize)));
            let Some((id, place)) = path.last_mut() else { return Ok(()) };
            let sources = &self.sources[self.links[id.index()].sources()];
            if let Some(&source) = sources.get(*place) {
                *place += 1;
                next = source;
            } else {
                let id = *id;
                let links = &self.links[id.index()];
                let is_leaf = links.is_leaf && !links.flags.contains(Flags::PARAM);
                self.order.place(id, is_leaf, sources);
                path.pop();
            }
        }
    }

    /// Puts several alternatives in order, of which only the chosen one is computed.
    pub fn expand_select(&mut self, alternatives: &[TensorId], chosen: usize) -> Result<(), Error> {
        let Some(&id) = alternatives.get(chosen) else {
            return Err(Error::NoSuchAlternative { index: chosen, count: alternatives.len() });
        };
        for &alternative in alternatives {
            self.expand_uncomputed(alternative)?;
        }
        self.mark_computed(id);
        Ok(())
    }

    /// Puts one tensor at the end of the order, exactly as given; for graphs whose order comes from elsewhere. Its
    /// sources must be in order already.
    pub fn append(&mut self, id: TensorId, compute: bool) -> Result<(), Error> {
        let tensor = self.tensor(id)?;
        if self.order.slot(id).is_some() {
            return Err(Error::AlreadyInOrder { id });
        }
        let unordered = tensor.source_ids().iter().flatten().find(|&&s| self.order.slot(s).is_none());
        if let Some(&source_id) = unordered {
            return Err(Error::OutOfOrder { id, source_id });
        }
        self.expand_uncomputed(id)?;
        if compute {
            self.mark_computed(id);
        }
        Ok(())
    }

    /// Marks `id` and the nodes it needs. A node that is marked already has marked sources.
    fn mark_computed(&mut self, id: TensorId) {
        let mut pending = vec![id];
        while let Some(id) = pending.pop() {
            let tensor = self.at(id);
            if tensor.is_leaf() || tensor.has(Flags::COMPUTE) {
                continue;
            }
            pending.extend(tensor.source_ids().iter().flatten());
            self.links[id.index()].flags |= Flags::COMPUTE;
        }
    }

    /// Forgets the order and what is computed; the tensors stay.
    pub fn clear_order(&mut self) {
        self.order = Order::default();
        for links in &mut self.links {
            links.flags = links.flags.without(Flags::COMPUTE);
        }
    }

    /// The nodes at the given positions of the order; use counts are those of the whole graph.
    pub fn range(&self, positions: std::ops::Range<usize>) -> Option<NodeRange<'_>> {
        let nodes = self.order.nodes.get(positions.clone())?;
        Some(NodeRange { graph: self, nodes, first: positions.start })
    }
}

/// Consecutive nodes of a graph, a sub-graph that owns nothing.
#[derive(Clone, Copy, Debug)]
pub struct NodeRange<'a> {
    graph: &'a Graph,
    nodes: &'a [TensorId],
    first: usize,
}

impl<'a> NodeRange<'a> {
    /// The graph they belong to.
    pub const fn graph(&self) -> &'a Graph {
        self.graph
    }

    /// The nodes, in order.
    pub const fn nodes(&self) -> &'a [TensorId] {
        self.nodes
    }

    /// Positions in the order of the whole graph.
    pub fn positions(&self) -> std::ops::Range<usize> {
        self.first..self.first + self.nodes.len()
    }

    /// Tensors that nodes of the range read and that no node of the range makes, each once.
    pub fn inputs(&self) -> Vec<TensorId> {
        let mut seen = std::collections::HashSet::new();
        let positions = self.positions();
        let is_inside =
            |id| matches!(self.graph.slot(id), Some(Slot::Node(place)) if positions.contains(&place));
        self.nodes
            .iter()
            .flat_map(|&id| self.graph.at(id).source_ids().iter().flatten().copied())
            .filter(|&source| !is_inside(source) && seen.insert(source))
            .collect()
    }
}
