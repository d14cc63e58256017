//! Rows picked and placed by number.
//!
//! Row numbers are checked before they are used. Where a row is named twice, the last one wins ([`SetRows`]) or all are
//! added in order ([`GetRowsBack`]), with any number of threads: one thread does everything that touches a byte.
//!
//! [`SetRows`]: oxcart_tensor::ops::SetRows
//! [`GetRowsBack`]: oxcart_tensor::ops::GetRowsBack

use half::{bf16, f16};
use oxcart_tensor::{DType, Op, TensorRef};

use super::copy::{
    BYTES_PER_THREAD, Blocks, Decode, Encode, PACKED_PER_THREAD, RUN, Raw, Values, stored_bytes,
};
use crate::job::{Fault, Job, Kernel, Run};
use crate::simd::{Level, Scalar, Simd, for_each_level};
use crate::view::{In, Number, Out, RowAt, Share, Src, Strided, elements};

const ROW_NUMBER: &str = "row number";

/// The kernel for an op of this family.
pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    match node.op() {
        Op::GetRows(_) => choose_get(node, level),
        Op::GetRowsBack(_) => choose_get_back(node, level),
        Op::SetRows(_) => choose_set(node, level),
        _ => None,
    }
}

fn choose_get(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    use DType::{BF16, F16, F32, I32};
    let table = node.source(0)?.dtype();
    let run: Run = match (table, node.dtype()) {
        (F32, F32) | (I32, I32) => get_plain,
        (F16, F32) => get_numbers::<f16>(level),
        (BF16, F32) => get_numbers::<bf16>(level),
        (table, F32) if table.decodes() => |job| get::<Scalar, Blocks>(Scalar, job),
        _ => return None,
    };
    Some(Kernel::elementwise(run, node.layout()))
}

fn get_numbers<D: Decode>(level: Level) -> Run {
    for_each_level!(get[D: Decode]: fn(job: Job<'_>) -> Result<(), Fault>).at(level)
}

/// Elements of a row that one thread does; whole blocks of every type.
const PIECE: usize = 8 * RUN;

/// The row of the table that becomes a row of the result.
#[inline(always)]
fn picked<'t>(table: &Src<'t>, rows: &Src<'_>, at: RowAt) -> Result<In<'t, u8>, Fault> {
    let number = rows.get::<i32>([at[0], at[1], at[2], 0]);
    let row = Fault::check(ROW_NUMBER, number.into(), table.ne()[1])?;
    Ok(table.row([row, at[1], at[2]]))
}

/// Rows of four-byte elements as they are.
fn get_plain(job: Job<'_>) -> Result<(), Fault> {
    let (table, rows) = (job.src(0), job.src(1));
    for (at, start, mut piece) in job.dst.pieces::<u32>(job.share, PIECE) {
        let row = picked(&table, &rows, at)?;
        let bytes = 4 * start..4 * (start + piece.len());
        piece.write(0, elements(row.part(bytes).slice()));
    }
    Ok(())
}

#[inline(always)]
fn get<S: Simd, D: Decode>(_simd: S, job: Job<'_>) -> Result<(), Fault> {
    let (table, rows) = (job.src(0), job.src(1));
    let dtype = table.dtype();
    for (at, start, mut piece) in job.dst.pieces::<f32>(job.share, PIECE) {
        let row = picked(&table, &rows, at)?;
        let bytes = stored_bytes(dtype, start)..stored_bytes(dtype, start + piece.len());
        D::decode(dtype, row.part(bytes).slice(), piece.slice());
    }
    Ok(())
}

fn choose_get_back(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    let gradient = node.source(0)?;
    let run = match gradient.dtype() {
        DType::F32 => get_back_numbers::<f32>(level),
        DType::F16 => get_back_numbers::<f16>(level),
        _ => return None,
    };
    let kernel = Kernel::elementwise(run, gradient.layout());
    Some(kernel.width(kernel.width.min(node.ne()[0] / COLUMNS)))
}

fn get_back_numbers<A: Number>(level: Level) -> Run {
    for_each_level!(get_back[A: Number]: fn(job: Job<'_>) -> Result<(), Fault>).at(level)
}

/// Columns that one thread does: a few cache lines.
const COLUMNS: usize = 64;

/// Each thread does some columns of all rows, so every sum has its terms in order.
#[inline(always)]
fn get_back<S: Simd, A: Number>(_simd: S, job: Job<'_>) -> Result<(), Fault> {
    let (gradient, rows, dst) = (job.src(0), job.src(1).line::<i32>([0, 0, 0]), job.dst);
    let ne = dst.ne();
    let mut terms = [0.0; COLUMNS];
    // SAFETY: any bytes make a number; see `Plain`.
    let mut stored: [A; COLUMNS] = unsafe { std::mem::zeroed() };
    for strip in job.share.of(ne[0].div_ceil(COLUMNS)) {
        let columns = strip * COLUMNS..((strip + 1) * COLUMNS).min(ne[0]);
        // SAFETY: these columns are this thread's in every row, and no handle outlives its use.
        let target = |row: usize| unsafe { dst.row::<f32>([row, 0, 0]) }.part(columns.clone());
        for row in 0..ne[1] {
            target(row).slice().fill(0.0);
        }
        let (terms, stored) = (&mut terms[..columns.len()], &mut stored[..columns.len()]);
        for i in 0..rows.len() {
            let row = Fault::check(ROW_NUMBER, rows.get(i).into(), ne[1])?;
            gradient.row::<A>([i, 0, 0]).read(columns.start, stored);
            A::widen(stored, terms);
            for (sum, term) in target(row).slice().iter_mut().zip(&*terms) {
                *sum += *term;
            }
        }
    }
    Ok(())
}

fn choose_set(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    use DType::{BF16, F16, F32, I32};
    let values = node.source(0)?;
    let run: Run = match (values.dtype(), node.dtype()) {
        (F32, F32) | (F16, F16) => |job| set(job, |_, _, from, mut to| copy_row(from, &mut to)),
        (F32, F16) => set_numbers::<f32, f16>(level),
        (F32, BF16) => set_numbers::<f32, bf16>(level),
        (F32, I32) => set_numbers::<f32, i32>(level),
        (F16, F32) => set_numbers::<f16, f32>(level),
        (F16, BF16) => set_numbers::<f16, bf16>(level),
        (F16, I32) => set_numbers::<f16, i32>(level),
        (F32, to) if to.encodes_at_run_time() => |job| set_converted::<Scalar, f32, Blocks>(Scalar, job),
        (F16, to) if to.encodes_at_run_time() => |job| set_converted::<Scalar, f16, Blocks>(Scalar, job),
        _ => return None,
    };
    let elements = values.layout().elements();
    let worth = match () {
        () if node.dtype().is_quantized() => elements / PACKED_PER_THREAD,
        () => elements * values.dtype().block_bytes() / BYTES_PER_THREAD,
    };
    Some(Kernel::new(run).width(worth.min(values.layout().ne().extents()[1..].iter().product())))
}

fn set_numbers<D: Decode, E: Encode>(level: Level) -> Run {
    for_each_level!(set_converted[D: Decode, E: Encode]: fn(job: Job<'_>) -> Result<(), Fault>).at(level)
}

fn copy_row(from: In<'_, u8>, to: &mut Out<'_, u8>) -> Result<(), Fault> {
    to.write(0, from.slice());
    Ok(())
}

#[inline(always)]
fn set_converted<S: Simd, D: Decode, E: Encode>(_simd: S, job: Job<'_>) -> Result<(), Fault> {
    let (mut values, mut packed) = (Values::new(), Raw::new());
    set(job, |from_type, to_type, from, mut to| {
        let (run, packed_run) = (stored_bytes(from_type, RUN), stored_bytes(to_type, RUN));
        for (i, stored) in from.slice().chunks(run).enumerate() {
            let values =
                D::decode(from_type, stored, &mut values.0[..stored.len() / from_type.block_bytes()]);
            to.write(i * packed_run, E::encode(to_type, values, &mut packed)?);
        }
        Ok(())
    })
}

/// Row numbers of either width.
enum Numbers<'t> {
    Wide(Strided<'t, i64>),
    Narrow(Strided<'t, i32>),
}

/// Whether a thread writes the row that starts at a byte of the target. Every thread goes through all row numbers and
/// does its own rows, so the last of equal numbers wins. Cache lines are dealt out at random, because row numbers are
/// often adjacent or far apart by the same distance.
#[inline(always)]
fn owns(share: Share, offset: usize) -> bool {
    let line = (offset / 64) as u64;
    let dealt = line.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 48;
    share.of(1 << 16).contains(&(dealt as usize))
}

/// Hands every row of values and the row of the target that it goes to to `place`, in order.
#[inline(always)]
fn set(
    job: Job<'_>,
    mut place: impl FnMut(DType, DType, In<'_, u8>, Out<'_, u8>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let (values, rows, dst) = (job.src(0), job.src(1), job.dst);
    let (from, to) = (values.dtype(), dst.dtype());
    let ([_, count, planes, volumes], [_, wide, high, _]) = (values.ne(), rows.ne());
    let nb = dst.nb();
    if values.layout().is_empty() {
        return Ok(());
    }
    for volume in 0..volumes {
        for plane in 0..planes {
            let line = [plane % wide, volume % high, 0];
            let numbers = match rows.dtype() {
                DType::I64 => Numbers::Wide(rows.line(line)),
                _ => Numbers::Narrow(rows.line(line)),
            };
            for i in 0..count {
                let number = match &numbers {
                    Numbers::Wide(numbers) => numbers.get(i),
                    Numbers::Narrow(numbers) => numbers.get(i).into(),
                };
                let row = Fault::check(ROW_NUMBER, number, dst.ne()[1])?;
                if !owns(job.share, row * nb[1] + plane * nb[2] + volume * nb[3]) {
                    continue;
                }
                // SAFETY: the place of a row decides which thread writes it, and no handle outlives its use.
                let target = unsafe { dst.row([row, plane, volume]) };
                place(from, to, values.row([i, plane, volume]), target)?;
            }
        }
    }
    Ok(())
}
