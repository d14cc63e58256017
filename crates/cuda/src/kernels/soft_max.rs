//! Softmax and what is made of it: the twins of `soft_max.cu`.

use oxcart_tensor::{Op, TensorRef};
use zerocopy::{Immutable, IntoBytes};

use crate::images::Family;
use crate::plan::{Builder, Done, Refused, Tensor};

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct SoftMaxParams {
    a: Tensor,
    mask: Tensor,
    sinks: Tensor,
    y: Tensor,
    rows: i64,
    scale: f32,
    max_bias: f32,
    m0: f32,
    m1: f32,
    heads_log2: i32,
    unused: i32,
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct LossParams {
    logits: Tensor,
    targets: Tensor,
    y: Tensor,
    gradient: Tensor,
    rows: i64,
    scratch: u64,
}

/// What slopes of heads are powers of: both bases, and the logarithm of the number of heads that the first is for.
pub(super) fn slopes(max_bias: f32, heads: usize) -> (f32, f32, i32) {
    let log2 = heads.max(1).ilog2();
    let power = (1_u64 << log2) as f32;
    (2_f32.powf(-max_bias / power), 2_f32.powf(-(max_bias / 2.0) / power), log2 as i32)
}

pub(super) fn add(node: TensorRef<'_>, b: &mut Builder<'_>) -> Done {
    let family = Family::SoftMax;
    match *node.op() {
        Op::SoftMax(op) => {
            let (a, y) = (b.source(node, 0)?, b.tensor(node)?);
            let mask = if node.source(1).is_some() { b.source(node, 1)? } else { Tensor::NONE };
            let sinks = if node.source(2).is_some() { b.source(node, 2)? } else { Tensor::NONE };
            let (m0, m1, heads_log2) = slopes(op.max_bias, node.ne()[2]);
            let (len, rows) = (node.ne()[0], node.layout().elements() / node.ne()[0].max(1));
            let params = SoftMaxParams {
                a,
                mask,
                sinks,
                y,
                rows: rows as i64,
                scale: op.scale,
                max_bias: op.max_bias,
                m0,
                m1,
                heads_log2,
                unused: 0,
            };
            b.launch_rows(family, "soft_max", rows, len, 1024, &params);
        }
        Op::SoftMaxBack(op) => {
            let (a, mask, y) = (b.source(node, 0)?, b.source(node, 1)?, b.tensor(node)?);
            let (len, rows) = (node.ne()[0], node.layout().elements() / node.ne()[0].max(1));
            let params = SoftMaxParams {
                a,
                mask,
                sinks: Tensor::NONE,
                y,
                rows: rows as i64,
                scale: op.scale,
                max_bias: 0.0,
                m0: 0.0,
                m1: 0.0,
                heads_log2: 0,
                unused: 0,
            };
            b.launch_rows(family, "soft_max_back", rows, len, 1024, &params);
        }
        Op::CrossEntropyLoss(_) => {
            let source = node.source(0).ok_or(Refused::Unsupported)?;
            let (logits, targets, mut y) = (b.source(node, 0)?, b.source(node, 1)?, b.tensor(node)?);
            let rows = source.layout().elements() / source.ne()[0].max(1);
            let blocks = rows.clamp(1, 256);
            let scratch = b.scratch(blocks * size_of::<f64>()).0;
            y.ne[1] = blocks as i64;
            let params =
                LossParams { logits, targets, y, gradient: Tensor::NONE, rows: rows as i64, scratch };
            b.launch(family, "cross_entropy", ([blocks as u32, 1, 1], 256, 0), &params);
            b.launch(family, "cross_entropy_sum", ([1, 1, 1], 256, 0), &params);
        }
        Op::CrossEntropyLossBack(_) => {
            let (gradient, logits, targets) = (b.source(node, 0)?, b.source(node, 1)?, b.source(node, 2)?);
            let rows = node.layout().elements() / node.ne()[0].max(1);
            let params =
                LossParams { logits, targets, y: b.tensor(node)?, gradient, rows: rows as i64, scratch: 0 };
            b.launch(family, "cross_entropy_back", ([rows.clamp(1, 1 << 30) as u32, 1, 1], 256, 0), &params);
        }
        _ => return Err(Refused::Unsupported),
    }
    Ok(())
}
