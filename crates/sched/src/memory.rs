//! Where the tensors of a graph lie.
//!
//! Planning has two halves. First the graph becomes blocks: how many bytes, in which pool, from when to when. A result
//! that takes over the memory of a dying source moves into its block. Then the blocks are placed: in execution order,
//! as a running allocator would ([`Strategy::Online`]), or knowing all of them beforehand ([`Strategy::Whole`]).
//!
//! Invariant: tensors whose lifetimes meet never share a byte, unless the op allows it and the source dies there.
//! [`MemoryPlan::check`] verifies it, with code of its own.
//!
//! What a lifetime is:
//! - a leaf lives from before the run, the target of a [`Transfer`] from that transfer, a result from its own step;
//! - everything lives until the last step that reads it, or writes into it through a view;
//! - outputs, parameters, and results that nothing reads live until after the run, and so do inputs unless
//!   [`Request::keep_inputs`] is off;
//! - nodes that are skipped, or that only relabel memory, neither need memory nor keep any alive.
//!
//! ```
//! use oxcart_sched::memory::{Pool, Request, Strategy, plan};
//! use oxcart_tensor::{DType, Graph};
//!
//! let mut graph = Graph::new();
//! let x = graph.leaf(DType::F32, [1024])?;
//! graph.mark_input(x)?;
//! let mut last = graph.sqr(x)?;
//! for _ in 0..10 {
//!     last = graph.sqr(last)?;
//! }
//! graph.mark_output(last)?;
//! graph.expand(last)?;
//!
//! let pools = [Pool { alignment: 64, max_size: usize::MAX }];
//! let pool_of = vec![0; graph.len()];
//! let size_of = |tensor: oxcart_tensor::TensorRef<'_>, _pool| tensor.layout().byte_len();
//! let request = Request::new(&graph, &pools, &pool_of, &size_of);
//! let plan = plan(&request, Strategy::Whole)?;
//!
//! // The input is never overwritten; all the squares share one place.
//! assert_eq!(plan.pools()[0].peak(), 2 * 4096);
//! assert_eq!(plan.pools()[0].lower_bound(), 2 * 4096);
//! assert_eq!(plan.spot(last).unwrap().offset, 4096);
//! plan.check(&request)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod blocks;
mod check;
mod error;
mod free_list;
mod lifetimes;
mod plan;
mod planner;
mod replay;
mod search;
mod timeline;
mod uses;
mod whole;

pub use check::Flaw;
pub use error::MemoryPlanError;
pub use free_list::FreeList;
pub use plan::{MemoryPlan, PoolPlan, Spot};
pub use planner::{Planner, plan};
pub use timeline::{Steps, Transfer};

use oxcart_backend::BufferType;
use oxcart_tensor::{Graph, TensorRef};

/// What the planner needs to know about one kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// What offsets must be multiples of, a power of two.
    pub alignment: usize,
    /// The largest buffer there can be; a pool that needs more is made of several.
    pub max_size: usize,
}

impl Pool {
    /// The pool of all buffers of one type.
    pub fn of(buffer_type: &dyn BufferType) -> Pool {
        Pool { alignment: buffer_type.alignment(), max_size: buffer_type.max_size() }
    }

    /// The chunk an address lies in, and the offset there.
    fn split(self, address: replay::Address) -> (usize, usize) {
        let capacity = self.chunk_capacity();
        // Most pools have one chunk, and divisions are slow.
        if address < capacity { (0, address) } else { (address / capacity, address % capacity) }
    }

    /// A size with its padding. Alignments are powers of two.
    fn padded(self, size: usize) -> Option<usize> {
        Some(size.checked_add(self.alignment - 1)? & !(self.alignment - 1))
    }

    /// Bytes of a buffer that tensors can use: a multiple of the alignment, and never none.
    fn chunk_capacity(self) -> usize {
        (self.max_size.min(usize::MAX / 2) & !(self.alignment - 1)).max(self.alignment)
    }
}

/// How blocks are placed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// In execution order, each into the smallest hole that fits, knowing nothing of what comes later. Needs the same
    /// bytes as ggml's graph allocator, and like it never lets a result replace a view.
    Online,
    /// Looking at all lifetimes first. Never needs more than [`Strategy::Online`].
    #[default]
    Whole,
}

/// Says how many bytes a tensor takes in a pool, given by its index.
pub type SizeOf<'a> = &'a dyn Fn(TensorRef<'_>, usize) -> usize;

/// A graph, the memory it may use, and when things happen.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// Leaves and nodes in order are planned, apart from those that have storage.
    pub graph: &'a Graph,
    /// The kinds of memory.
    pub pools: &'a [Pool],
    /// Per tensor, by [index](oxcart_tensor::TensorId::index), the pool it belongs to. What is said about views and
    /// about tensors with storage is not looked at.
    pub pool_of: &'a [u16],
    /// How much a tensor takes; see [`BufferType::alloc_size`].
    pub size_of: SizeOf<'a>,
    /// Which nodes run at the same time; one after the other when `None`.
    pub steps: Option<&'a Steps>,
    /// Copies between pools that happen on the way.
    pub transfers: &'a [Transfer],
    /// Whether inputs can be read again after the run. Otherwise their memory is reused after their last reader, as
    /// ggml does, and they must be given anew before each run.
    pub keep_inputs: bool,
}

impl<'a> Request<'a> {
    /// One node after the other, no transfers, inputs kept.
    pub fn new(graph: &'a Graph, pools: &'a [Pool], pool_of: &'a [u16], size_of: SizeOf<'a>) -> Request<'a> {
        Request { graph, pools, pool_of, size_of, steps: None, transfers: &[], keep_inputs: true }
    }
}

#[cfg(test)]
mod tests;
