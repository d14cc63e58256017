//! What workers of protocol 2.0 cannot compute although they know the op: there they die, which takes the connection with
//! it, or answer with wrong numbers. All of it was measured on the processor of llama-cpp-python 0.3.16.
//!
//! A worker is never asked, so a client that does not know this loses all it has there.

use oxcart_tensor::ops::{Grouping, Op, RopeBack, RopeMode, ScaleMode, Unary};
use oxcart_tensor::{DType, Layout, TensorRef};

/// What about a node is too much for such a worker.
pub(super) fn beyond_old_workers(node: TensorRef<'_>) -> Option<&'static str> {
    use DType::{BF16, F16, F32, I32, I64};
    let dtype = |slot| node.source(slot).map(TensorRef::dtype);
    let lies = |slot, how: fn(&Layout) -> bool| node.source(slot).is_none_or(|source| how(source.layout()));
    let found = |is_so: bool, what| is_so.then_some(what);
    match node.op() {
        Op::Add(_) | Op::Sub(_) | Op::Mul(_) | Op::Div(_) => {
            let repeats = node.source(1).is_some_and(|second| second.ne() != node.ne());
            found(repeats && !lies(1, neighbours_touch), "with scattered numbers that are repeated")
        }
        Op::Cpy(_) | Op::Cast(_) => match (dtype(0)?, node.dtype()) {
            (I32, to) if to != I32 => Some("from i32"),
            (from, I32) if from != I32 => Some("to i32"),
            (F16, BF16) => Some("from f16 to bf16"),
            _ => None,
        },
        Op::Concat(_) => found(node.dtype().is_quantized(), "of quantized numbers"),
        Op::Unary(Unary::Gelu | Unary::GeluErf | Unary::GeluQuick | Unary::Silu)
            if dtype(0) == Some(BF16) =>
        {
            Some("of bf16")
        }
        Op::Glu(_) if dtype(0) == Some(BF16) => Some("of bf16"),
        Op::Unary(_) | Op::Glu(_) | Op::Sqr(_) | Op::Sqrt(_) | Op::Log(_) | Op::Sin(_) | Op::Cos(_) => {
            found(!lies(0, rows_in_step) || !lies(1, rows_in_step), "of rows at uneven distances")
        }
        Op::Scale(_) if node.dtype() != F32 => Some("of a type other than f32"),
        // It takes the numbers plus the product of factor and bias.
        Op::Scale(op) => found(op.bias != 0.0, "with a bias"),
        Op::Norm(_) | Op::RmsNorm(_) | Op::L2Norm(_) | Op::Pad(_) => {
            found(!lies(0, neighbours_touch), "of scattered numbers")
        }
        // It reads its gradient after it has written the result, which may lie there.
        Op::RmsNormBack(_) => Some("at all"),
        Op::MulMat(_) => {
            found(dtype(1) != Some(F32) && dtype(1) != dtype(0), "by numbers of 16 bits of another type")
        }
        Op::OutProd(_) => found(dtype(0) == Some(F16), "of f16"),
        Op::SetRows(_) if node.dtype() == I32 => Some("of i32"),
        Op::SetRows(_) => found(dtype(1) != Some(I64), "with row numbers other than i64"),
        Op::Im2col(op) => found(
            op.dtype == F16 && (dtype(0), dtype(1)) != (Some(F16), Some(F32)),
            "to f16 but for a kernel of f16 and an image of f32",
        ),
        Op::Im2colBack(_) => found(dtype(1) != Some(F32), "with a kernel of f16"),
        Op::Conv2dDw(_) => found(dtype(0) != Some(F32), "with a kernel of f16"),
        Op::ConvTranspose2d(_) => {
            let images = node.source(1).map_or(0, |images| images.ne()[3]);
            found(dtype(0) != Some(F16) || images > 1, "with a kernel of f32, or of several images")
        }
        Op::Pool1d(op) if op.window.pad != [0] || op.window.kernel != op.window.stride => {
            Some("with padding, or in steps of other than its width")
        }
        Op::Pool1d(_) => found(dtype(0) != Some(F32), "of f16"),
        Op::Upscale(op) => found(
            op.antialias
                || op.mode == ScaleMode::Bicubic
                || (op.mode == ScaleMode::Nearest && op.align_corners),
            "in this mode",
        ),
        Op::TimestepEmbedding(op) => found(!op.dim.is_multiple_of(2), "with an odd number of channels"),
        Op::FlashAttnExt(_) => found(!has_padded_mask(node), "with a mask of rows that are not padded to 64"),
        // Old workers take it for another mode and answer with wrong numbers.
        Op::Rope(rope) | Op::RopeBack(RopeBack(rope)) => {
            found(rope.mode == RopeMode::Imrope, "in mode IMROPE")
        }
        Op::SsmScan(op) => {
            let groups = node.source(4).map_or(1, |b| b.ne()[1]);
            found(op.grouping == Grouping::Neighbours && groups > 1, "with neighbouring heads in a group")
        }
        _ => None,
    }
}

/// Whether the stride says that elements of a row touch each other, even where there is only one: it is all they look at.
fn neighbours_touch(layout: &Layout) -> bool {
    layout.nb()[0] == layout.dtype().block_bytes()
}

/// Whether rows follow each other at one distance through all planes, as old kernels count them.
fn rows_in_step(layout: &Layout) -> bool {
    layout.is_contiguous() || (layout.ne()[1] > 1 && layout.is_contiguous_above(1))
}

/// Whether the mask of an attention, if it has one, has as many rows as old kernels read.
fn has_padded_mask(node: TensorRef<'_>) -> bool {
    let (Some(queries), Some(mask)) = (node.source(0), node.source(3)) else { return true };
    mask.ne()[1] >= queries.ne()[1].next_multiple_of(64)
}
