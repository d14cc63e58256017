//! What a dialect can say. A worker is never asked what its devices can compute: there is no such question.

use oxcart_tensor::ops::{Op, RopeBack, RopeMode};
use oxcart_tensor::{DType, TensorRef};

use super::record::{Unspeakable, node_record, shape, type_number};
use crate::wire::{Dialect, OpCode};

/// Whether a node can be described in a dialect, with all it reads.
pub(super) fn can_say(node: TensorRef<'_>, dialect: &'static Dialect) -> bool {
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
) -> Result<(), Unspeakable> {
    let refused = |what| Err(Unspeakable::Form { op: code.name(), what, dialect: dialect.name });
    let dtype = |slot| node.source(slot).map(TensorRef::dtype);
    match node.op() {
        Op::SetRows(_) if dialect.is_classic && dtype(1) != Some(DType::I64) => {
            refused("with row numbers other than i64")
        }
        Op::SetRows(_) if !dialect.has_use_counts && dtype(0) != Some(DType::F32) => {
            refused("of values other than f32")
        }
        // 3.6 is the one dialect with this op that knows only f32; it is also the last without capabilities.
        Op::Fill(_) if !dialect.has_capabilities && node.dtype() != DType::F32 => {
            refused("of a type other than f32")
        }
        Op::TimestepEmbedding(op) if dialect.is_classic && !op.dim.is_multiple_of(2) => {
            refused("with an odd number of channels")
        }
        Op::FlashAttnExt(_) if dialect.is_classic && !has_padded_mask(node) => {
            refused("with a mask of rows that are not padded to 64")
        }
        // The state has another shape there.
        Op::GatedDeltaNet(_) if !dialect.has_use_counts => refused("with a state per head"),
        Op::Rope(rope) | Op::RopeBack(RopeBack(rope))
            if !dialect.has_use_counts && rope.first_channel != 0 =>
        {
            refused("from a channel other than the first")
        }
        // Old workers take it for another mode and answer with wrong numbers.
        Op::Rope(rope) | Op::RopeBack(RopeBack(rope))
            if dialect.is_classic && rope.mode == RopeMode::Imrope =>
        {
            refused("in mode IMROPE")
        }
        Op::Dsv4HcPost(_) if dialect.answers_writes && node.source(3).is_none() => {
            refused("without its last source")
        }
        _ => Ok(()),
    }
}

/// Whether the mask of an attention, if it has one, has as many rows as old kernels read.
fn has_padded_mask(node: TensorRef<'_>) -> bool {
    let (Some(queries), Some(mask)) = (node.source(0), node.source(3)) else { return true };
    mask.ne()[1] >= queries.ne()[1].next_multiple_of(64)
}
