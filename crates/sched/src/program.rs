//! What a graph does when it runs, read from it once.
//!
//! A graph is larger than the near caches, and many of its nodes do not run: they relabel memory, or were not asked
//! for. So the passes of the scheduler and of the planner do not each walk the graph; they walk this list, which has
//! what they all need of a node next to what they need of its sources.
//!
//! Invariant: the list says what the graph says. Code that gives a node another source, or the graph another leaf, does
//! the same here ([`Program::exchange`], [`Program::add_leaf`]).

use std::ops::Range;

use oxcart_tensor::graph::{BufferId, Flags};
use oxcart_tensor::{Graph, TensorId, TensorRef};

/// A node that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Running {
    pub(crate) id: TensorId,
    /// Whose memory it writes to: its own, or that of what it is a view of.
    pub(crate) root: TensorId,
    /// Its place in the order of the graph.
    pub(crate) position: u32,
    /// Where the list of what it reads ends.
    reads_end: u32,
    home: Home,
}

/// A source of a node that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Read {
    pub(crate) source: TensorId,
    /// Whose memory it shows.
    pub(crate) root: TensorId,
    home: Home,
    /// Which of the node's sources it is.
    pub(crate) slot: u8,
    /// Whether the node could write its result over it, if no other node needs it: the op allows that, and it begins
    /// where its root does and has the layout of the result.
    pub(crate) is_replaceable: bool,
}

/// The buffer that a tensor came with, if it did, in four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Home(u32);

impl Home {
    const NONE: Home = Home(u32::MAX);

    fn of(tensor: TensorRef<'_>) -> Home {
        tensor.buffer().map_or(Home::NONE, |buffer| Home(buffer.0))
    }

    fn buffer(self) -> Option<BufferId> {
        (self != Home::NONE).then_some(BufferId(self.0))
    }
}

impl Running {
    /// The buffer it came with.
    pub(crate) fn buffer(&self) -> Option<BufferId> {
        self.home.buffer()
    }

    pub(crate) fn is_view(&self) -> bool {
        self.root != self.id
    }
}

impl Read {
    /// The buffer the source came with.
    pub(crate) fn buffer(&self) -> Option<BufferId> {
        self.home.buffer()
    }

    pub(crate) fn is_view(&self) -> bool {
        self.root != self.source
    }
}

/// Something whose contents come from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leaf {
    pub(crate) id: TensorId,
    home: Home,
    pub(crate) flags: Flags,
}

impl Leaf {
    fn of(tensor: TensorRef<'_>) -> Leaf {
        Leaf { id: tensor.id(), home: Home::of(tensor), flags: tensor.flags() }
    }

    /// The buffer it came with.
    pub(crate) fn buffer(&self) -> Option<BufferId> {
        self.home.buffer()
    }
}

/// A node that is computed and that no node reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unread {
    pub(crate) id: TensorId,
    pub(crate) root: TensorId,
}

/// The nodes that run, in the order they do, and what there is besides.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Program {
    running: Vec<Running>,
    /// What nodes read, one node after the other.
    reads: Vec<Read>,
    /// Leaves in order.
    pub(crate) leaves: Vec<Leaf>,
    /// Leaves that stand among the nodes.
    pub(crate) parameters: Vec<Leaf>,
    /// Nodes that are views, whether they run or not.
    pub(crate) views: Vec<TensorId>,
    /// Roots that hold an output.
    pub(crate) outputs: Vec<TensorId>,
    pub(crate) unread: Vec<Unread>,
    /// Whether there are nodes that compute something but were not asked for.
    pub(crate) skips_nodes: bool,
}

impl Program {
    /// Lists what a graph does, its nodes taken in the order of these positions. Keeps the memory of the list before.
    pub(crate) fn read(&mut self, graph: &Graph, positions: impl Iterator<Item = usize>) {
        self.clear();
        let leaves = graph.leaves().iter().filter_map(|&id| graph.tensor(id).ok());
        self.leaves.extend(leaves.map(Leaf::of));
        for position in positions {
            if let Ok(node) = graph.tensor(graph.nodes()[position]) {
                self.read_node(node, position);
            }
        }
    }

    fn clear(&mut self) {
        self.running.clear();
        self.reads.clear();
        self.leaves.clear();
        self.parameters.clear();
        self.views.clear();
        self.outputs.clear();
        self.unread.clear();
        self.skips_nodes = false;
    }

    /// Called for every node, from one place.
    #[inline(always)]
    fn read_node(&mut self, node: TensorRef<'_>, position: usize) {
        let (id, root, flags) = (node.id(), node.root().id(), node.flags());
        if node.is_leaf() {
            self.parameters.push(Leaf::of(node));
            return;
        }
        if root != id {
            self.views.push(id);
        }
        if flags.contains(Flags::OUTPUT) {
            self.outputs.push(root);
        }
        if flags.contains(Flags::COMPUTE) && node.graph().use_count(id) == 0 {
            self.unread.push(Unread { id, root });
        }
        if !flags.contains(Flags::COMPUTE) {
            self.skips_nodes |= node.computes();
        } else if node.computes() {
            for (slot, source) in (0..).zip(node.sources()) {
                let Some(source) = source else { continue };
                let (root, home) = (source.root().id(), Home::of(source));
                let is_replaceable =
                    node.fits_over(slot.into()) && source.view().is_none_or(|view| view.offset == 0);
                self.reads.push(Read { source: source.id(), root, home, slot, is_replaceable });
            }
            // Graphs hold no more tensors than `u32` counts, and refuse to have more sources.
            let (position, reads_end) = (position as u32, self.reads.len() as u32);
            self.running.push(Running { id, root, position, reads_end, home: Home::of(node) });
        }
    }

    pub(crate) fn running(&self) -> &[Running] {
        &self.running
    }

    /// Where in the list of all reads those of a node are, given by its place among the nodes that run.
    pub(crate) fn reads_of(&self, index: usize) -> Range<usize> {
        let start = index.checked_sub(1).map_or(0, |before| self.running[before].reads_end);
        start as usize..self.running[index].reads_end as usize
    }

    /// What a node reads.
    pub(crate) fn reads(&self, index: usize) -> &[Read] {
        &self.reads[self.reads_of(index)]
    }

    /// One of all reads.
    pub(crate) fn read_at(&self, at: usize) -> Read {
        self.reads[at]
    }

    /// All nodes that run, each with what it reads.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Running, &[Read])> {
        let mut start = 0;
        self.running.iter().map(move |node| {
            let end = node.reads_end as usize;
            (node, &self.reads[std::mem::replace(&mut start, end)..end])
        })
    }

    /// Lets a node read a leaf of the same layout that has no buffer yet instead of what it read.
    pub(crate) fn exchange(&mut self, at: usize, leaf: TensorId) {
        let Read { slot, is_replaceable, .. } = self.reads[at];
        self.reads[at] = Read { source: leaf, root: leaf, home: Home::NONE, slot, is_replaceable };
    }

    /// Adds a leaf that has no buffer yet.
    pub(crate) fn add_leaf(&mut self, leaf: TensorRef<'_>) {
        self.leaves.push(Leaf::of(leaf));
    }

    /// Leaves in order that came without a buffer.
    pub(crate) fn unplaced_leaves(&self) -> impl Iterator<Item = &Leaf> {
        self.leaves.iter().filter(|leaf| leaf.home == Home::NONE)
    }
}
