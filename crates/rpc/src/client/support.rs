//! What can be encoded in a dialect. A worker is never asked what its devices can compute: there is no such question.

use oxcart_tensor::ops::{Op, RopeBack};
use oxcart_tensor::{DType, TensorRef};

use super::classic::beyond_old_workers;
use super::record::{RecordError, node_record, shape, type_number};
use crate::wire::{Dialect, OpCode};

/// Whether a node can be described in a dialect, with all it reads.
pub(super) fn can_encode(node: TensorRef<'_>, dialect: &'static Dialect) -> bool {
    let sources = || node.sources().flatten();
    node_record(node, dialect).is_ok()
        && sources()
            .all(|source| type_number(source.dtype(), dialect).is_ok() && shape(source.layout()).is_ok())
}

/// Refuses operations that exist in a dialect but not in this form.
pub(super) fn check_form(
    node: TensorRef<'_>,
    code: OpCode,
    dialect: &'static Dialect,
) -> Result<(), RecordError> {
    let refused = |what| Err(RecordError::Form { op: code.name(), what, dialect: dialect.name });
    let dtype = |slot| node.source(slot).map(TensorRef::dtype);
    if let Some(what) = beyond_old_workers(node).filter(|_| dialect.is_classic) {
        return refused(what);
    }
    match node.op() {
        Op::SetRows(_) if !dialect.has_use_counts && dtype(0) != Some(DType::F32) => {
            refused("of values other than f32")
        }
        // 3.6 is the one dialect with this op that knows only f32; it is also the last without capabilities.
        Op::Fill(_) if !dialect.has_capabilities && node.dtype() != DType::F32 => {
            refused("of a type other than f32")
        }
        // The state has another shape there.
        Op::GatedDeltaNet(_) if !dialect.has_use_counts => refused("with a state per head"),
        Op::Rope(rope) | Op::RopeBack(RopeBack(rope))
            if !dialect.has_use_counts && rope.first_channel != 0 =>
        {
            refused("from a channel other than the first")
        }
        Op::Dsv4HcPost(_) if dialect.answers_writes && node.source(3).is_none() => {
            refused("without its last source")
        }
        _ => Ok(()),
    }
}
