//! Sums, products and their like of two tensors, and windows written into a tensor.

mod by_id;
mod plain;
mod quantized;
mod region;
mod set_aside;
#[cfg(test)]
mod tests;

use oxcart_tensor::{Op, TensorRef};

use super::chunk::Chunk;
use crate::job::Kernel;
use crate::simd::{Compiled, Level, Simd, for_each_level};

/// The kernel for an op of this family.
pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    match node.op() {
        Op::AddId(_) => by_id::choose(node, level),
        Op::Acc(_) | Op::Set(_) => region::choose(node, level),
        _ if node.source(0)?.dtype().is_quantized() => quantized::choose(node),
        _ => plain::choose(node, level),
    }
}

/// What is done to two numbers.
const COMBINE: Compiled<fn(&Op, &mut Chunk, &Chunk, usize)> =
    for_each_level!(combine: fn(op: &Op, a: &mut Chunk, b: &Chunk, len: usize));

/// Combines the first `len` numbers of `a` with those of `b`.
#[inline(always)]
fn combine<S: Simd>(_simd: S, op: &Op, a: &mut Chunk, b: &Chunk, len: usize) {
    match op {
        Op::Add(_) | Op::Add1(_) | Op::AddId(_) | Op::Acc(_) => each(a, b, len, |a, b| a + b),
        Op::Sub(_) => each(a, b, len, |a, b| a - b),
        Op::Mul(_) => each(a, b, len, |a, b| a * b),
        Op::Div(_) => each(a, b, len, |a, b| a / b),
        _ => unreachable!("the kernel of another op"),
    }
}

#[inline(always)]
fn each(a: &mut Chunk, b: &Chunk, len: usize, f: impl Fn(f32, f32) -> f32) {
    a.0[..len].iter_mut().zip(&b.0).for_each(|(a, &b)| *a = f(*a, b));
}
