//! Matrix products.
//!
//! Rows of activations are rounded to the partner type of the weights once ([`product`]), then multiplied: a few rows one
//! dot product at a time, straight from the weights; more rows in tiles ([`micro`]), for which weights are packed a cache
//! full at a time ([`pack`], [`format`]). Quantized weights become signed bytes with a scale per group ([`unpack`]), so that
//! one micro-kernel per instruction set multiplies all of them.
//!
//! Invariant: which way a result is computed depends on shapes and ids alone, never on the number of threads.

mod experts;
mod format;
mod hadamard;
mod method;
mod micro;
mod outer;
mod pack;
mod planes;
mod product;
#[cfg(test)]
mod tests;
mod types;
mod unpack;

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
