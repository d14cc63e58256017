//! Rows picked and placed by number, and copies that take blocks apart or make them: the twins of `rows.cu`.

use oxcart_tensor::{DType, Op, TensorRef};
use zerocopy::{Immutable, IntoBytes};

use super::count;
use crate::driver::Address;
use crate::images::Family;
use crate::plan::{Builder, Done, Refused, Tensor};

/// Elements that a thread takes apart or packs at a time.
const UNIT: usize = 32;

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct RowsParams {
    a: Tensor,
    rows: Tensor,
    y: Tensor,
    count: i64,
    width: i64,
    faults: u64,
}

/// Whether kernels can make blocks of this type.
fn is_made(dtype: DType) -> bool {
    use DType::{IQ4_NL, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
    matches!(dtype, Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | IQ4_NL)
}

pub(super) fn add(node: TensorRef<'_>, b: &mut Builder<'_>) -> Done {
    let values = node.source(0).ok_or(Refused::Unsupported)?;
    let (a, rows, y) = (b.source(node, 0)?, b.source(node, 1)?, b.tensor(node)?);
    let faults = b.faults();
    let params = |count: usize, width: usize| RowsParams {
        a,
        rows,
        y,
        count: count as i64,
        width: width as i64,
        faults,
    };
    match node.op() {
        Op::GetRows(_) => {
            let (elements, width) = (node.layout().elements(), node.ne()[0]);
            if values.dtype().is_quantized() {
                let params = params(elements / UNIT, width / UNIT);
                b.launch_each(Family::Rows, "get_rows_blocks", elements / UNIT, 128, &params);
            } else {
                b.launch_each(Family::Rows, "get_rows", elements, 256, &params(elements, width));
            }
        }
        Op::SetRows(_) => {
            let (elements, width) = (values.layout().elements(), values.ne()[0]);
            if elements == 0 {
                return Ok(());
            }
            if node.dtype().is_quantized() {
                if !is_made(node.dtype()) {
                    return Err(Refused::Unsupported);
                }
                let params = params(elements / UNIT, width / UNIT);
                b.launch_each(Family::Rows, "set_rows_blocks", elements / UNIT, 128, &params);
            } else {
                b.launch_each(Family::Rows, "set_rows", elements, 256, &params(elements, width));
            }
        }
        _ => {
            b.fill(Address(y.data), 0, node.byte_len());
            b.launch_each(Family::Rows, "get_rows_back", node.ne()[0], 256, &params(0, 0));
        }
    }
    Ok(())
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct RecodeParams {
    a: Tensor,
    y: Tensor,
    count: i64,
    width: i64,
    packed: i32,
    unused: i32,
}

/// A copy from blocks to numbers.
pub(super) fn decode(node: TensorRef<'_>, b: &mut Builder<'_>) -> Done {
    let source = node.source(0).ok_or(Refused::Unsupported)?;
    if node.dtype() != DType::F32 || !source.dtype().decodes() {
        return Err(Refused::Unsupported);
    }
    let (a, y) = (b.source(node, 0)?, b.tensor(node)?);
    let units = source.layout().elements() / UNIT;
    let params = RecodeParams {
        a,
        y,
        count: units as i64,
        width: (source.ne()[0] / UNIT) as i64,
        packed: node.layout().is_contiguous().into(),
        unused: 0,
    };
    b.launch_each(Family::Rows, "decode", units, 128, &params);
    Ok(())
}

/// A copy from numbers to blocks.
pub(super) fn encode(node: TensorRef<'_>, b: &mut Builder<'_>) -> Done {
    let source = node.source(0).ok_or(Refused::Unsupported)?;
    if !is_made(node.dtype()) || !matches!(source.dtype(), DType::F32 | DType::F16 | DType::BF16) {
        return Err(Refused::Unsupported);
    }
    let (a, y) = (b.source(node, 0)?, b.tensor(node)?);
    let blocks = count(source) as usize / UNIT;
    let params = RecodeParams { a, y, count: blocks as i64, width: 0, packed: 1, unused: 0 };
    b.launch_each(Family::Rows, "encode", blocks, 128, &params);
    Ok(())
}
