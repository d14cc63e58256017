//! Sums and their like: the twins of `reduce.cu`.

use oxcart_tensor::{Op, TensorRef};
use zerocopy::{Immutable, IntoBytes};

use super::count;
use crate::driver::Address;
use crate::images::Family;
use crate::plan::{Builder, Done, Refused, Tensor};

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct ReduceParams {
    a: Tensor,
    b: Tensor,
    y: Tensor,
    rows: i64,
    count: i64,
    scratch: u64,
}

/// Blocks that sum everything up.
const PARTS: usize = 256;

pub(super) fn add(node: TensorRef<'_>, b: &mut Builder<'_>) -> Done {
    let source = node.source(0).ok_or(Refused::Unsupported)?;
    let (a, y) = (b.source(node, 0)?, b.tensor(node)?);
    let (elements, len) = (source.layout().elements(), source.ne()[0]);
    let rows = elements / len.max(1);
    let mut params = ReduceParams { a, b: Tensor::NONE, y, rows: rows as i64, count: 0, scratch: 0 };
    let family = Family::Reduce;
    match node.op() {
        Op::SumRows(_) | Op::Mean(_) => {
            params.count = i64::from(matches!(node.op(), Op::Mean(_)));
            // A row without elements has a sum too.
            params.rows = count(node);
            b.launch_rows(family, "sum_rows", node.layout().elements(), len, 256, &params);
        }
        Op::Cumsum(_) => b.launch(family, "cumsum", ([rows.clamp(1, 1 << 30) as u32, 1, 1], 32, 0), &params),
        Op::Argmax(_) => {
            params.rows = count(node);
            b.launch_rows(family, "argmax", node.layout().elements(), len, 1024, &params);
        }
        Op::Sum(_) => {
            let parts = elements.div_ceil(1024).clamp(1, PARTS);
            params.scratch = b.scratch(parts * size_of::<f64>()).0;
            params.count = elements as i64;
            b.launch(family, "sum_all", ([parts as u32, 1, 1], 256, 0), &params);
            params.count = parts as i64;
            b.launch(family, "sum_parts", ([1, 1, 1], 256, 0), &params);
        }
        Op::CountEqual(_) => {
            params.b = b.source(node, 1)?;
            params.count = elements as i64;
            b.fill(Address(y.data), 0, node.byte_len());
            b.launch_each(family, "count_equal", elements, 256, &params);
        }
        Op::RepeatBack(_) => {
            params.count = count(node);
            b.launch_each(family, "repeat_back", node.layout().elements(), 256, &params);
        }
        _ => return Err(Refused::Unsupported),
    }
    Ok(())
}
