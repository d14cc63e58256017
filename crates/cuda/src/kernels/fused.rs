//! Neighbouring nodes that few launches compute, where one by one they would be many.
//!
//! - Products that read the same columns are one launch, or share the conversion of their columns; a norm before them is done
//!   on the way, a bias and a residual after them, and where one gates the other, the gated unit; of many columns on Hopper,
//!   what is gated goes to the product after it as 16-bit numbers.
//! - Rotations of queries and keys and the writes of keys and values to their caches are one launch, with the attention of a
//!   single token if that is what they are for.
//!
//! A node may be computed earlier than its place in the order: only where no node in between touches what it writes, or
//! writes what it reads. An intermediate result that is never written has one reader, is not an output and not a view.

mod memory;
mod products;
mod rotation;

use oxcart_tensor::graph::Flags;
use oxcart_tensor::{Op, TensorRef};

use crate::plan::{Builder, Refused};

/// Nodes that follow each other, and which of them have been done ahead of their turn.
pub(super) struct Nodes<'n, 'g> {
    pub(super) list: &'n [TensorRef<'g>],
    pub(super) done: Vec<bool>,
    /// What the first of them write, as far as that was asked for.
    writes: Vec<Vec<memory::Span>>,
}

/// How far ahead nodes are looked for.
const WINDOW: usize = 16;

impl<'n, 'g> Nodes<'n, 'g> {
    pub(super) fn new(list: &'n [TensorRef<'g>]) -> Nodes<'n, 'g> {
        Nodes { list, done: vec![false; list.len()], writes: Vec::new() }
    }

    /// Nodes after one that are still to be done, not too far away.
    fn ahead(&self, from: usize) -> impl Iterator<Item = (usize, TensorRef<'g>)> + '_ {
        let end = self.list.len().min(from + 1 + WINDOW);
        (from + 1..end).filter(|&at| !self.done[at]).map(|at| (at, self.list[at]))
    }

    /// The node that reads a result, if it is the only one and the result need not exist.
    fn only_reader(&self, from: usize) -> Option<(usize, TensorRef<'g>)> {
        let node = self.list[from];
        if !is_passing(node) {
            return None;
        }
        let reads = |reader: TensorRef<'_>| reader.source_ids().iter().flatten().any(|&id| id == node.id());
        self.ahead(from).find(|&(_, reader)| reads(reader))
    }
}

/// Whether only one node reads a result, so that it need not exist.
fn is_passing(node: TensorRef<'_>) -> bool {
    node.graph().use_count(node.id()) == 1 && !node.has(Flags::OUTPUT) && node.view().is_none()
}

/// Adds the steps of a node together with others, and marks all of them as done; says whether it did.
pub(super) fn add(nodes: &mut Nodes<'_, '_>, at: usize, b: &mut Builder<'_>) -> Result<bool, Refused> {
    match nodes.list[at].op() {
        Op::RmsNorm(_) => products::after_norm(nodes, at, b),
        Op::MulMat(_) => products::add(nodes, at, b),
        Op::Rope(_) | Op::SetRows(_) => rotation::add(nodes, at, b),
        _ => Ok(false),
    }
}
