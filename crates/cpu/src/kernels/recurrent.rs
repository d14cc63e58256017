//! State-space and RWKV recurrences.

mod conv;
mod linear;
pub(super) mod scan;
mod ssm;

use oxcart_tensor::{Op, TensorRef};

use crate::job::Kernel;
use crate::simd::Level;

/// The kernel for an op of this family.
pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    if node.layout().is_empty() {
        return Some(Kernel::NOTHING);
    }
    match node.op() {
        Op::SsmConv(_) => conv::choose(node, level),
        Op::SsmScan(op) => ssm::choose(node, *op, level),
        Op::RwkvWkv6(_) | Op::GatedLinearAttn(_) | Op::RwkvWkv7(_) => linear::choose(node, level),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
