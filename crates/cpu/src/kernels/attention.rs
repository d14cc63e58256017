//! Attention in one op, over one cache ([`flash`]) or over pages of many sequences ([`paged`]); its gradient, and the scores
//! of sparse attention.
//!
//! Keys are looked at in tiles, and a running maximum, sum and weighted sum of values is kept per query ([`soften`]), so the
//! scores of all keys are never in memory at once; [`walk`] goes from tile to tile. Queries that share keys and values are the
//! rows of an item ([`lens`]), whether they are tokens or heads. There are two ways to look at a tile: [`few`] rows are
//! multiplied with keys as they lie in memory ([`sixteen`]); for [`many`] rows keys and values are expanded to `f32` once and
//! small matrix products ([`product`]) do the work. Keys of 8 bits and fewer are multiplied as integers ([`codes`]).
//!
//! Invariant: both ways, on every instruction set with fused multiply-adds, give the same bits; `docs/numerics.md` has the
//! order of all sums.

mod back;
mod codes;
mod expand;
mod few;
mod flash;
mod indexer;
mod lens;
mod many;
mod paged;
mod product;
mod sixteen;
mod slots;
mod soften;
#[cfg(test)]
mod tests;
mod walk;

use oxcart_tensor::{Op, TensorRef};

use crate::job::Kernel;
use crate::simd::Level;

/// The kernel for an op of this family.
pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    match node.op() {
        Op::FlashAttnExt(_) => flash::choose(node, level),
        Op::PagedAttn(_) => paged::choose(node, level),
        Op::FlashAttnBack(_) => back::choose(node, level),
        Op::LightningIndexer(_) => indexer::choose(node, level),
        _ => None,
    }
}

/// AttentionScratch in pieces that start where vectors like it.
fn take<'a>(rest: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    let (piece, others) = std::mem::take(rest).split_at_mut(room(len));
    *rest = others;
    &mut piece[..len]
}

/// Floats that [`take`] takes.
const fn room(len: usize) -> usize {
    len.next_multiple_of(16)
}

/// Items that are enough for any number of threads; with fewer, spans of keys are cut too.
const ENOUGH_ITEMS: usize = 128;

/// The most floats that spans which are cut leave behind.
const MOST_SLOT_FLOATS: usize = 2 << 20;

/// What multiply-adds of vectors count as work; see [`Kernel::units`].
const fn multiply_adds(count: usize) -> usize {
    count / 8
}
