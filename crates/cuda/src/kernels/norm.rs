//! Normalization: the twins of `norm.cu`.

use oxcart_tensor::{Op, TensorRef};
use zerocopy::{Immutable, IntoBytes};

use crate::images::Family;
use crate::plan::{Builder, Done, Refused, Tensor};

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct NormParams {
    a: Tensor,
    y: Tensor,
    weight: Tensor,
    addend: Tensor,
    sum: Tensor,
    rows: i64,
    op: i32,
    weighted: i32,
    added: i32,
    eps: f32,
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct GroupNormParams {
    a: Tensor,
    y: Tensor,
    groups: i64,
    channels: i64,
    eps: f32,
    unused: i32,
}

pub(super) fn add(node: TensorRef<'_>, b: &mut Builder<'_>) -> Done {
    let (a, y) = (b.source(node, 0)?, b.tensor(node)?);
    let len = node.ne()[0];
    let rows = node.layout().elements() / len.max(1);
    let (op, eps) = match *node.op() {
        Op::Norm(norm) => (0, norm.eps),
        Op::RmsNorm(norm) => (1, norm.eps),
        Op::L2Norm(norm) => (2, norm.eps),
        Op::RmsNormBack(norm) => (3, norm.eps),
        Op::GroupNorm(norm) => {
            let channels = node.ne()[2].div_ceil(norm.groups);
            let params = GroupNormParams {
                a,
                y,
                groups: norm.groups as i64,
                channels: channels as i64,
                eps: norm.eps,
                unused: 0,
            };
            let blocks = norm.groups * node.ne()[3];
            b.launch_rows(
                Family::Norm,
                "group_norm",
                blocks,
                channels * node.ne()[0] * node.ne()[1],
                1024,
                &params,
            );
            return Ok(());
        }
        _ => return Err(Refused::Unsupported),
    };
    let mut params = NormParams {
        a,
        y,
        weight: Tensor::NONE,
        addend: Tensor::NONE,
        sum: Tensor::NONE,
        rows: rows as i64,
        op,
        weighted: 0,
        added: 0,
        eps,
    };
    let name = if op == 3 { "rms_norm_back" } else { "norm_rows" };
    if op == 3 {
        params.weight = b.source(node, 1)?;
    }
    b.launch_rows(Family::Norm, name, rows, len, 1024, &params);
    Ok(())
}
