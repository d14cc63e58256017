//! Rotated keys straight into the rows of a cache.
//!
//! The rotated tensor is seen as one row per token, holding all heads, and that row is what goes into the cache; a token is
//! rotated in a thread's own memory and converted from there.

use oxcart_tensor::ops::Rope;
use oxcart_tensor::quant::encode_row_at_run_time;
use oxcart_tensor::{DType, Op, TensorRef};

use super::is_passing;
use crate::job::{Fault, Job, LONGEST_WHOLE, Run, as_floats};
use crate::kernels::{rope, rows};
use crate::plan::Unit;
use crate::simd::{Level, Simd, for_each_level};

/// Slot of the row numbers.
const ROWS: usize = 3;

/// ROPE and SET_ROWS as one unit.
pub(super) fn fuse<'g>(rotated: TensorRef<'g>, placed: TensorRef<'g>, level: Level) -> Option<Unit<'g>> {
    let Op::Rope(rope) = rotated.op() else { return None };
    let (values, numbers) = (placed.source(0)?, placed.source(1)?);
    let [len, heads, tokens, batch] = rotated.ne().extents();
    let seen_by_token = values.root().id() == rotated.id()
        && values.view().is_none_or(|view| view.offset == 0)
        && values.layout().is_contiguous()
        && values.ne().extents() == [len * heads, tokens, 1, 1]
        && batch == 1;
    // No other node reads the view in between either.
    let passing = is_passing(rotated)
        && placed.graph().use_count(values.id()) == 1
        && !values.has(oxcart_tensor::graph::Flags::OUTPUT);
    let plain =
        rotated.dtype() == DType::F32 && rotated.layout().is_contiguous() && numbers.ne()[0] == tokens;
    if !(seen_by_token && passing && plain && len * heads <= LONGEST_WHOLE) {
        return None;
    }
    let run: Run = for_each_level!(rotate_into_rows: fn(job: Job<'_>) -> Result<(), Fault>).at(level);
    let kernel = rows::for_values(run, values, placed).own(rope::scratch(rope, len * heads));
    let unit = Unit::new(kernel, *rotated.op(), 2, placed)
        .source(rotated.source(0))
        .source(rotated.source(1))
        .source(rotated.source(2))
        .source(Some(numbers));
    Some(unit)
}

#[inline(always)]
fn rotate_into_rows<S: Simd>(_simd: S, job: Job<'_>) -> Result<(), Fault> {
    let (op, a, numbers, dtype) = (job.op::<Rope>(), job.src(0), job.src(ROWS), job.dst.dtype());
    let [len, heads, tokens, _] = a.ne();
    let mut rotation = rope::Rotation::new(&op, false, job.src(1), job.may(2), tokens);
    let stop = job.stop;
    let (scratch, row) = as_floats(job.own).split_at_mut(rope::angles(&op));
    let row = &mut row[..len * heads];
    let mut packed = Vec::new();
    rows::each_target(stop, numbers, &job.dst, job.share, [tokens, 1, 1], |[token, ..], mut target| {
        rotation.turn_to(token, scratch);
        for (head, part) in row.chunks_mut(len).enumerate() {
            if stop.after(len) {
                return Ok(());
            }
            rope::read(&a.row::<f32>([head, token, 0]), part);
            rotation.rotate(part, scratch);
        }
        packed.resize(target.len(), 0);
        encode_row_at_run_time(dtype, row, &mut packed)?;
        target.write(0, &packed);
        Ok(())
    })
}
