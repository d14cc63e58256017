//! Where the graph is cut: pass five.
//!
//! A split is a run of nodes on one stream. What its nodes read from memory that the stream cannot see becomes an
//! input of the split: a leaf on that stream, of the same layout, that is filled before the split runs.
//!
//! Invariant: after [`cut`], every source of every node is in memory that the node's stream can read, every node is
//! in exactly one split, and a tensor is copied to a stream once, in the first split that needs it, unless its memory
//! is written to in between.

use std::ops::Range;

use oxcart_tensor::graph::Flags;
use oxcart_tensor::{Graph, TensorId};

use crate::assign::{Assignments, Cause, memory_of};
use crate::error::Error;
use crate::program::{Program, Read};
use crate::streams::{Memories, StreamId};

/// A run of nodes on one stream.
#[derive(Clone, Debug)]
pub struct Split {
    /// Who computes it.
    pub stream: StreamId,
    /// Positions of its nodes in the order of the graph.
    pub nodes: Range<usize>,
    /// What is copied to it before it runs.
    pub inputs: Vec<SplitInput>,
    /// Other streams that can get at the same bytes without a copy and have run since this one last did. They must
    /// have finished before this split starts.
    pub after: Vec<StreamId>,
}

/// Something a split reads that was elsewhere.
#[derive(Clone, Debug)]
pub struct SplitInput {
    /// The tensor that is copied.
    pub source: TensorId,
    /// Where it is.
    pub from: StreamId,
    /// The leaves it is copied to, one for each run that may be under way at the same time.
    pub copies: Vec<TensorId>,
}

/// The graph cut, and the leaves that were added.
#[derive(Debug, Default)]
pub(crate) struct Cut {
    pub(crate) splits: Vec<Split>,
    /// Inputs of the graph with their stand-ins for the second and later runs under way.
    pub(crate) graph_inputs: Vec<(TensorId, Vec<TensorId>)>,
}

/// A copy that a split is given.
#[derive(Clone, Copy)]
struct Copied {
    leaf: TensorId,
    stream: StreamId,
    /// First position of that split.
    since: u32,
    /// The copy of the same tensor before this one, or [`NONE`].
    earlier: u32,
}

const NONE: u32 = u32::MAX;

struct Cutter<'a> {
    graph: &'a mut Graph,
    program: &'a mut Program,
    memories: &'a Memories,
    assigned: &'a mut Assignments,
    runs: usize,
    /// By tensor that the graph came with, its latest copy to any stream, in `copied`.
    latest: Vec<u32>,
    copied: Vec<Copied>,
    /// By root that the graph came with, the position after the last node that wrote through a view of it.
    written: Vec<u32>,
    cut: Cut,
}

/// Cuts the graph into splits. `runs` is how many runs may be under way at the same time.
pub(crate) fn cut(
    graph: &mut Graph,
    program: &mut Program,
    memories: &Memories,
    assigned: &mut Assignments,
    runs: usize,
) -> Result<Cut, Error> {
    let (latest, written) = (vec![NONE; graph.len()], vec![0; graph.len()]);
    let (copied, cut) = (Vec::new(), Cut::default());
    let mut cutter = Cutter { graph, program, memories, assigned, runs, latest, copied, written, cut };
    cutter.duplicate_graph_inputs()?;
    for index in 0..cutter.program.running().len() {
        cutter.visit(index)?;
    }
    if let Some(last) = cutter.cut.splits.last_mut() {
        last.nodes.end = cutter.graph.nodes().len();
    }
    cutter.order_sharers();
    Ok(cutter.cut)
}

impl Cutter<'_> {
    /// Finds out which splits must wait for streams that share memory with theirs. Runs follow each other, so what
    /// ran since a stream's last split may have run at the end of the run before.
    fn order_sharers(&mut self) {
        let order: Vec<StreamId> = self.cut.splits.iter().map(|split| split.stream).collect();
        for (index, split) in self.cut.splits.iter_mut().enumerate() {
            let earlier = order[..index].iter().rev().chain(order[index..].iter().rev());
            for &other in earlier.take_while(|&&other| other != split.stream) {
                if !split.after.contains(&other) && self.memories.are_shared(split.stream, other) {
                    split.after.push(other);
                }
            }
        }
    }

    /// With several runs under way, each has inputs of its own.
    fn duplicate_graph_inputs(&mut self) -> Result<(), Error> {
        let leaves = self.program.unplaced_leaves();
        let inputs: Vec<_> =
            leaves.filter(|leaf| leaf.flags.contains(Flags::INPUT)).map(|leaf| leaf.id).collect();
        for id in inputs {
            let home = self.assigned.stream(id).map_or_else(|| Err(Error::NoStreams), Ok)?;
            if self.runs > 1 {
                self.graph.mark_output(id)?;
            }
            let others =
                (1..self.runs).map(|run| self.twin(id, home, Cause::Input, run)).collect::<Result<_, _>>()?;
            self.cut.graph_inputs.push((id, others));
        }
        Ok(())
    }

    /// Puts a node that runs into a split. Others relabel memory or are skipped: into which split they fall does not
    /// matter.
    fn visit(&mut self, index: usize) -> Result<(), Error> {
        let node = self.program.running()[index];
        let Some(stream) = self.assigned.stream(node.id) else { return Ok(()) };
        let (reads, readable) = (self.program.reads(index), self.memories.read_by(stream));
        let is_readable = |read: &Read| {
            memory_of(self.memories, self.assigned, read).is_some_and(|memory| readable.includes(memory))
        };
        let reads_all = reads.iter().all(is_readable);
        let continues = self.cut.splits.last().is_some_and(|split| split.stream == stream);
        if !continues || (!reads_all && self.deserves_own_split(reads, stream)) {
            self.start_split(node.position as usize, stream);
        }
        if !reads_all {
            for at in self.program.reads_of(index) {
                self.bring(node.id, at, stream)?;
            }
        }
        if node.is_view() {
            self.written[node.root.index()] = node.position + 1;
        }
        Ok(())
    }

    fn start_split(&mut self, position: usize, stream: StreamId) {
        let start = if self.cut.splits.is_empty() { 0 } else { position };
        if let Some(last) = self.cut.splits.last_mut() {
            last.nodes.end = position;
        }
        let nodes = start..position + 1;
        self.cut.splits.push(Split { stream, nodes, inputs: Vec::new(), after: Vec::new() });
    }

    /// Weights that are copied for one node can make room for the next ones only if they are in splits of their own.
    fn deserves_own_split(&self, reads: &[Read], stream: StreamId) -> bool {
        let has_inputs = self.cut.splits.last().is_some_and(|split| !split.inputs.is_empty());
        has_inputs
            && reads.iter().any(|read| {
                read.buffer().is_some_and(|buffer| self.memories.is_weights(buffer))
                    && !self.reads(stream, read)
                    && self.existing_copy(read, stream).is_none()
            })
    }

    /// A copy that is still what the source's memory holds.
    fn existing_copy(&self, read: &Read, stream: StreamId) -> Option<TensorId> {
        let mut at = self.latest[read.source.index()];
        while let Some(copied) = self.copied.get(at as usize) {
            if copied.stream == stream {
                let is_fresh = self.written[read.root.index()] <= copied.since;
                return is_fresh.then_some(copied.leaf);
            }
            at = copied.earlier;
        }
        None
    }

    fn reads(&self, stream: StreamId, read: &Read) -> bool {
        let memory = memory_of(self.memories, self.assigned, read);
        memory.is_some_and(|memory| self.memories.reads(stream, memory))
    }

    /// Gives a node a copy of a source, if its stream cannot read it.
    fn bring(&mut self, node: TensorId, at: usize, stream: StreamId) -> Result<(), Error> {
        let read = self.program.read_at(at);
        if self.reads(stream, &read) {
            return Ok(());
        }
        let from = self.assigned.stream(read.root).unwrap_or(stream);
        let copy = match self.existing_copy(&read, stream) {
            Some(copy) => copy,
            None => self.copy_to(read.source, from, stream)?,
        };
        self.program.exchange(at, copy);
        Ok(self.graph.replace_source(node, read.slot.into(), copy)?)
    }

    fn copy_to(&mut self, source: TensorId, from: StreamId, stream: StreamId) -> Result<TensorId, Error> {
        let copies = (0..self.runs)
            .map(|run| self.twin(source, stream, Cause::Reader, run))
            .collect::<Result<Vec<_>, _>>()?;
        let first = copies[0];
        if let Some(split) = self.cut.splits.last_mut() {
            let (index, latest) = (self.copied.len(), &mut self.latest[source.index()]);
            // There are fewer copies and positions than tensors, whose ids fit.
            let earlier = std::mem::replace(latest, index as u32);
            let since = split.nodes.start as u32;
            self.copied.push(Copied { leaf: first, stream, since, earlier });
            split.inputs.push(SplitInput { source, from, copies });
        }
        Ok(first)
    }

    /// A leaf like `id` on a stream.
    fn twin(&mut self, id: TensorId, stream: StreamId, cause: Cause, run: usize) -> Result<TensorId, Error> {
        let original = self.graph.tensor(id)?;
        let (layout, name) = (*original.layout(), format!("{}@{}.{run}", original.label(), stream.index()));
        let twin = self.graph.leaf_with_layout(layout)?;
        // A name is for people; one that is too long is cut.
        let end = name.char_indices().map(|(i, c)| i + c.len_utf8()).take_while(|&end| end <= 63).last();
        self.graph.set_name(twin, &name[..end.unwrap_or(0)])?;
        self.graph.expand(twin)?;
        if self.runs > 1 {
            // Another run may read it at any time, so nothing else may use its memory.
            self.graph.mark_output(twin)?;
        }
        self.program.add_leaf(self.graph.tensor(twin)?);
        self.assigned.push(twin, stream, cause);
        Ok(twin)
    }
}
