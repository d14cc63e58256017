//! Neighbouring nodes that one kernel computes in one go, with the same result to the last bit.
//!
//! Nodes are fused only where that cannot be observed: an intermediate result that is never written has one reader, is not an
//! output and not a view, and no other node that computes lies between the two. What is known about memory is looked at
//! when the unit is bound. Products of the same activations are fused too; there all results are written.

mod add_norm;
mod rope_rows;
#[cfg(test)]
mod tests;

use oxcart_tensor::graph::Flags;
use oxcart_tensor::ops::{Glu, GluKind, Unary};
use oxcart_tensor::{DType, Op, TensorRef};

use super::{glu, matmul, norm};
use crate::job::Kernel;
use crate::plan::Unit;
use crate::simd::Level;

/// The first of these nodes together with those that follow; `None` where they are better computed one by one.
pub(crate) fn fuse<'g>(nodes: &[TensorRef<'g>], level: Level) -> Option<Unit<'g>> {
    match *nodes {
        [first, second, ..] => match (first.op(), second.op()) {
            (Op::Add(_), Op::RmsNorm(_)) => add_norm::fuse(first, second, nodes.get(2).copied(), level),
            (Op::RmsNorm(_), Op::Mul(_)) => norm_mul(first, second, level),
            (Op::Unary(_), Op::Mul(_)) => activation_mul(first, second, level),
            (Op::MulMat(_), Op::MulMat(_)) => matmul::fuse_siblings(nodes, level),
            (Op::Rope(_), Op::SetRows(_)) => rope_rows::fuse(first, second, level),
            _ => None,
        },
        _ => None,
    }
}

/// Whether only one node reads a result, so that it need not exist.
fn is_passing(node: TensorRef<'_>) -> bool {
    node.graph().use_count(node.id()) == 1 && !node.has(Flags::OUTPUT) && node.view().is_none()
}

/// The other factor of a product of which `factor` is one.
fn other_factor<'g>(product: TensorRef<'g>, factor: TensorRef<'g>) -> Option<TensorRef<'g>> {
    let (a, b) = (product.source(0)?, product.source(1)?);
    match factor.id() {
        id if id == a.id() => Some(b),
        id if id == b.id() => Some(a),
        _ => None,
    }
}

/// The weights that a normalized tensor is multiplied with: rows as long as its own, which repeat over the others.
fn weights_of<'g>(product: TensorRef<'g>, norm: TensorRef<'g>) -> Option<TensorRef<'g>> {
    let weights = other_factor(product, norm)?;
    let fits = product.layout() == norm.layout()
        && weights.dtype() == DType::F32
        && weights.ne()[0] == norm.ne()[0]
        && weights.layout().has_contiguous_rows()
        // As the second factor weights repeat; as the first they have the shape of the product.
        && (0..4).all(|dim| norm.ne()[dim].is_multiple_of(weights.ne()[dim].max(1)));
    fits.then_some(weights)
}

/// RMS_NORM and MUL.
fn norm_mul<'g>(norm: TensorRef<'g>, product: TensorRef<'g>, level: Level) -> Option<Unit<'g>> {
    let weights = weights_of(product, norm).filter(|_| is_passing(norm))?;
    let layout = product.layout();
    let kernel = Kernel::rows(norm::fused_rms_norm_mul(level), layout, layout.elements());
    let unit = Unit::new(kernel, *norm.op(), 2, product).source(norm.source(0)).source(Some(weights));
    Some(unit.row_local())
}

/// An activation and the product with its gate.
fn activation_mul<'g>(activated: TensorRef<'g>, product: TensorRef<'g>, level: Level) -> Option<Unit<'g>> {
    let kind = match activated.op() {
        Op::Unary(Unary::Silu) => GluKind::Swiglu,
        Op::Unary(Unary::Gelu) => GluKind::Geglu,
        Op::Unary(Unary::GeluErf) => GluKind::GegluErf,
        Op::Unary(Unary::GeluQuick) => GluKind::GegluQuick,
        // RELU times infinity is not what the gated unit makes of it.
        _ => return None,
    };
    let (x, gate) = (activated.source(0)?, other_factor(product, activated)?);
    let packed = |tensor: TensorRef<'_>| {
        tensor.dtype() == DType::F32 && tensor.layout().is_contiguous() && tensor.ne() == product.ne()
    };
    if !is_passing(activated) || ![x, gate, activated, product].into_iter().all(packed) {
        return None;
    }
    let kernel = Kernel::elementwise(glu::of_pairs(level), product.layout());
    let op = Glu { kind, swapped: false }.into();
    Some(Unit::new(kernel, op, 2, product).source(Some(x)).source(Some(gate)).row_local())
}
