//! Rows sorted: the twins of `sort.cu`.

use oxcart_tensor::ops::SortOrder;
use oxcart_tensor::{Op, TensorRef};
use zerocopy::{Immutable, IntoBytes};

use crate::images::Family;
use crate::plan::{Builder, Done, Refused, Tensor};

#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct SortParams {
    a: Tensor,
    y: Tensor,
    rows: i64,
    padded: i64,
    scratch: u64,
    block: i64,
    step: i64,
    descending: i32,
    unused: i32,
}

/// The longest row that is sorted in shared memory.
const SMALL: usize = 8192;

pub(super) fn add(node: TensorRef<'_>, b: &mut Builder<'_>) -> Done {
    let source = node.source(0).ok_or(Refused::Unsupported)?;
    let descending = match node.op() {
        Op::Argsort(sort) => sort.order == SortOrder::Descending,
        _ => true,
    };
    let (a, y) = (b.source(node, 0)?, b.tensor(node)?);
    let (len, rows) = (source.ne()[0], source.layout().elements() / source.ne()[0].max(1));
    let padded = len.next_power_of_two();
    let mut params = SortParams {
        a,
        y,
        rows: rows as i64,
        padded: padded as i64,
        scratch: 0,
        block: 0,
        step: 0,
        descending: descending.into(),
        unused: 0,
    };
    let family = Family::Sort;
    if padded <= SMALL {
        let threads = (padded as u32).next_multiple_of(32).clamp(32, 1024);
        let blocks = rows.clamp(1, 1 << 30) as u32;
        b.launch(family, "sort_small", ([blocks, 1, 1], threads, (padded * 4) as u32), &params);
        return Ok(());
    }
    params.scratch = b.scratch(rows * padded * 4).0;
    b.launch_each(family, "sort_begin", rows * padded, 256, &params);
    let mut block = 2;
    while block <= padded {
        let mut step = block / 2;
        while step > 0 {
            params.block = block as i64;
            params.step = step as i64;
            b.launch_each(family, "sort_step", rows * padded, 256, &params);
            step /= 2;
        }
        block *= 2;
    }
    b.launch_each(family, "sort_end", node.layout().elements(), 256, &params);
    Ok(())
}
