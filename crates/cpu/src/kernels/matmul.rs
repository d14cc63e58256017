//! Matrix products.
//!
//! Rows of activations are rounded to the partner type of the weights once ([`product`]), then multiplied. Quantized weights
//! are packed ([`pack`], [`format`]) as bytes with a scale per group ([`scales`]), a cache full at a time, so that one
//! micro-kernel per instruction set ([`micro`]) multiplies all of them with any number of columns ([`tiles`]). With few columns
//! they are multiplied where they lie ([`few`]), as plain numbers are ([`floats`]). Products of the same activations are one unit
//! ([`siblings`]).
//!
//! Invariant: the bits of a result depend on its row of weights and its row of activations alone. `docs/numerics.md` says in
//! which order it is added up.

mod cut;
mod experts;
mod few;
mod floats;
mod format;
mod hadamard;
mod method;
mod micro;
mod outer;
mod pack;
mod planes;
mod product;
mod scales;
mod siblings;
#[cfg(test)]
mod tests;
mod tiles;
mod types;

pub(super) use self::siblings::fuse as fuse_siblings;

use oxcart_tensor::ops::Hint;
use oxcart_tensor::{Op, TensorRef};

use crate::job::Kernel;
use crate::simd::Level;

/// The kernel for an op of this family.
pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    match node.op() {
        Op::MulMat(product) if product.hint == Hint::Hadamard => hadamard::choose(node, level),
        Op::MulMat(_) => planes::choose(node, level),
        Op::MulMatId(_) => experts::choose(node, level),
        Op::OutProd(_) => outer::choose(node, level),
        _ => None,
    }
}
