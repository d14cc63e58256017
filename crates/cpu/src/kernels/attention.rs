//! Attention in one op, its gradient, and the scores of sparse attention.
//!
//! [`flash`] walks over keys in tiles and keeps a running maximum, sum and weighted sum of values per query
//! ([`soften`]), so the scores of all keys are never in memory at once. Queries that share keys and values are a
//! [`Cut`](cut::Cut)'s rows, whether they are tokens or heads. There are two ways to get a tile's scores: [`few`] rows
//! are multiplied with keys as they lie in memory; for [`many`] rows keys and values are expanded to `f32` once and small
//! matrix products ([`product`]) do the work. Sums are `f32` throughout, which is more than the reference keeps.

mod back;
mod cut;
mod expand;
mod few;
mod flash;
mod indexer;
mod many;
mod paged;
mod product;
mod soften;
#[cfg(test)]
mod tests;

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

/// Scratch in pieces that start where vectors like it.
fn take<'a>(rest: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    let (piece, others) = std::mem::take(rest).split_at_mut(room(len));
    *rest = others;
    &mut piece[..len]
}

/// Floats that [`take`] takes.
const fn room(len: usize) -> usize {
    len.next_multiple_of(16)
}

/// What multiply-adds of vectors count as work; see [`Kernel::units`].
const fn multiply_adds(count: usize) -> usize {
    count / 8
}
