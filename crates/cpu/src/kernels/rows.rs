//! Rows picked and placed by number.
//!
//! Row numbers are checked before they are used. Where a row is named twice, the last one wins ([`SetRows`]) or all are
//! added in order ([`GetRowsBack`]), with any number of threads: one thread does everything that touches a byte.
//!
//! [`SetRows`]: oxcart_tensor::ops::SetRows
//! [`GetRowsBack`]: oxcart_tensor::ops::GetRowsBack

use half::{bf16, f16};
use oxcart_tensor::{DType, Op, TensorRef};

use super::copy::{Blocks, Decode, Encode, RUN, Raw, Values, after, stored_bytes};
use crate::job::{self, Fault, Job, Kernel, PACKING, Run, Stop};
use crate::simd::{Level, Scalar, Simd, for_each_level};
use crate::view::{Dst, In, Number, Out, RowAt, Share, Src, Strided, elements};

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
        if job.stop.after(piece.len()) {
            break;
        }
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
        if job.stop.after(piece.len()) {
            break;
        }
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
    Some(Kernel::units(run, node.ne()[0] / COLUMNS, gradient.layout().elements()))
}

fn get_back_numbers<A: Number>(level: Level) -> Run {
    for_each_level!(get_back[A: Number]: fn(job: Job<'_>) -> Result<(), Fault>).at(level)
}

/// Columns that one thread does: a few cache lines.
const COLUMNS: usize = 64;

/// Each thread does some columns of all rows, so every sum has its terms in order.
#[inline(always)]
fn get_back<S: Simd, A: Number>(_simd: S, job: Job<'_>) -> Result<(), Fault> {
    let (gradient, rows, dst, stop) = (job.src(0), job.src(1).line::<i32>([0, 0, 0]), job.dst, job.stop);
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
            if stop.after(columns.len()) {
                return Ok(());
            }
        }
        let (terms, stored) = (&mut terms[..columns.len()], &mut stored[..columns.len()]);
        for i in 0..rows.len() {
            let row = Fault::check(ROW_NUMBER, rows.get(i).into(), ne[1])?;
            gradient.row::<A>([i, 0, 0]).read(columns.start, stored);
            A::widen(stored, terms);
            for (sum, term) in target(row).slice().iter_mut().zip(&*terms) {
                *sum += *term;
            }
            if stop.after(columns.len()) {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn choose_set(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    use DType::{BF16, F16, F32, I32};
    let values = node.source(0)?;
    let run: Run = match (values.dtype(), node.dtype()) {
        (F32, F32) | (F16, F16) => |job| {
            set(job, |stop, (dtype, _), from, mut to| copy_row(stop, dtype.block_bytes(), from, &mut to))
        },
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
    Some(for_values(run, values, node))
}

/// A kernel that puts rows of values into rows of `node`.
pub(super) fn for_values(run: Run, values: TensorRef<'_>, node: TensorRef<'_>) -> Kernel {
    let elements = values.layout().elements();
    let work = match node.dtype().is_quantized() {
        true => elements.saturating_mul(PACKING),
        false => job::bytes_moved(elements * values.dtype().block_bytes()),
    };
    Kernel::rows(run, values.layout(), work).uncut()
}

fn set_numbers<D: Decode, E: Encode>(level: Level) -> Run {
    for_each_level!(set_converted[D: Decode, E: Encode]: fn(job: Job<'_>) -> Result<(), Fault>).at(level)
}

/// Copies elements of so many bytes.
fn copy_row(stop: Stop<'_>, size: usize, from: In<'_, u8>, to: &mut Out<'_, u8>) -> Result<(), Fault> {
    for part in stop.stretches(from.len() / size) {
        let bytes = part.start * size..part.end * size;
        to.write(bytes.start, from.part(bytes).slice());
    }
    Ok(())
}

#[inline(always)]
fn set_converted<S: Simd, D: Decode, E: Encode>(_simd: S, job: Job<'_>) -> Result<(), Fault> {
    let (mut values, mut packed) = (Values::new(), Raw::new());
    set(job, |stop, (from_type, to_type), from, mut to| {
        let (run, packed_run) = (stored_bytes(from_type, RUN), stored_bytes(to_type, RUN));
        for (i, stored) in from.slice().chunks(run).enumerate() {
            let len = stored.len() / from_type.block_bytes();
            if stop.after(len) {
                break;
            }
            let values = D::decode(from_type, stored, &mut values.0[..len]);
            let packed = E::encode(to_type, values, &mut packed).map_err(|fault| after(i * RUN, fault))?;
            to.write(i * packed_run, packed);
        }
        Ok(())
    })
}

/// Row numbers of either width.
enum Numbers<'t> {
    Wide(Strided<'t, i64>),
    Narrow(Strided<'t, i32>),
}

/// Places that rows of a target are dealt to.
const PLACES: usize = 1 << 16;

/// Where the row that starts at a byte of the target is dealt to; a thread writes the rows dealt to its share of the
/// places. Every thread goes through all row numbers, so the last of equal ones wins. Cache lines are dealt as if at
/// random, because row numbers are often adjacent, or all the same distance apart.
#[inline(always)]
const fn dealt_to(offset: usize) -> usize {
    let line = (offset / 64) as u64;
    (line.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 48) as usize
}

/// Hands every row of values and the row of the target that it goes to to `place`, in order.
#[inline(always)]
fn set(
    job: Job<'_>,
    mut place: impl FnMut(Stop<'_>, (DType, DType), In<'_, u8>, Out<'_, u8>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let (values, types, stop) = (job.src(0), (job.src(0).dtype(), job.dst.dtype()), job.stop);
    let [_, count, planes, volumes] = values.ne();
    if values.layout().is_empty() {
        return Ok(());
    }
    each_target(stop, job.src(1), &job.dst, job.share, [count, planes, volumes], |at, target| {
        place(stop, types, values.row(at), target)
    })
}

/// Hands every row of a tensor of values, by its place, and the row of the target that it goes to to `place`, in order:
/// the rows that are this thread's. Counts a unit for every row.
#[inline(always)]
pub(super) fn each_target(
    stop: Stop<'_>,
    rows: Src<'_>,
    dst: &Dst<'_>,
    share: Share,
    [count, planes, volumes]: RowAt,
    mut place: impl FnMut(RowAt, Out<'_, u8>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let ([_, wide, high, _], nb, own) = (rows.ne(), dst.nb(), share.of(PLACES));
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
                if stop.after(1) {
                    return Ok(());
                }
                if !own.contains(&dealt_to(row * nb[1] + plane * nb[2] + volume * nb[3])) {
                    continue;
                }
                // SAFETY: the place of a row decides which thread writes it, and no handle outlives its use.
                let target = unsafe { dst.row([row, plane, volume]) };
                place([i, plane, volume], target)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use oxcart_tensor::Layout;
    use oxcart_tensor::ops::{GetRows, GetRowsBack, SetRows};

    use super::*;
    use crate::kernels::testing::{Tensor, Trial, compute, decode, encode};

    fn bad_row(value: i64, limit: usize) -> String {
        Fault::Index { what: ROW_NUMBER, value, limit }.to_string()
    }

    #[test]
    fn rows_of_every_type_are_picked() {
        let decodes = |dtype: &DType| dtype.decodes() || *dtype == DType::I32;
        for dtype in DType::all().filter(decodes) {
            let row = 3 * dtype.block_len();
            let bytes = stored_bytes(dtype, row) + dtype.block_bytes();
            // Rows with a gap, planes before rows.
            let layout =
                Layout::strided(dtype, [row, 5, 2, 2], [dtype.block_bytes(), bytes * 4, bytes, bytes * 2]);
            let table = Tensor::pattern(layout.unwrap());
            // Row numbers seen through a stride.
            let mut rows = Tensor::i32(
                [6, 2, 2],
                &[4, 9, 0, 9, 3, 9, 1, 9, 2, 9, 2, 9, 0, 9, 1, 9, 2, 9, 3, 9, 4, 9, 0, 9],
            );
            rows.layout = Layout::strided(DType::I32, [3, 2, 2], [8, 24, 48, 96]).unwrap();
            rows.bytes.truncate(rows.layout.byte_len());
            let result = compute(GetRows, &[&table, &rows]);
            assert_eq!(result.layout.ne().extents(), [row, 3, 2, 2]);
            let picks = [4, 0, 3, 1, 2, 2, 0, 1, 2, 3, 4, 0];
            let expected = picks.iter().enumerate().flat_map(|(i, pick)| {
                let start = (pick * 4 + i / 3) * bytes;
                let stored = &table.bytes[start..start + stored_bytes(dtype, row)];
                if dtype == DType::I32 {
                    return stored.to_vec();
                }
                crate::view::raw_bytes(&decode(dtype, stored)).to_vec()
            });
            assert_eq!(result.bytes, expected.collect::<Vec<_>>(), "{dtype}");
        }
    }

    #[test]
    fn seventy_thousand_rows_and_long_ones() {
        let table = Tensor::pattern(Layout::packed(DType::F16, [4, 80_000]).unwrap());
        let picks: Vec<_> = (0..70_000).map(|i| (i * 7919) % 80_000).collect();
        let result = compute(GetRows, &[&table, &Tensor::i32(70_000, &picks)]);
        let all = table.values();
        let expected: Vec<_> = picks.iter().flat_map(|&row| &all[row as usize * 4..][..4]).copied().collect();
        assert_eq!(result.values(), expected);

        let table = Tensor::pattern(Layout::packed(DType::F32, [76_800, 3]).unwrap());
        let result = compute(GetRows, &[&table, &Tensor::i32(2, &[2, 0])]);
        let all = table.values();
        assert_eq!(result.values(), [&all[2 * 76_800..], &all[..76_800]].concat());
    }

    #[test]
    fn row_numbers_outside_are_errors() {
        let table = Tensor::pattern(Layout::packed(DType::F32, [4, 3]).unwrap());
        let gradient = Tensor::pattern(Layout::packed(DType::F32, [4, 1]).unwrap());
        for bad in [-1, 3, i32::MIN, i32::MAX] {
            let rows = Tensor::i32(1, &[bad]);
            let wide = Tensor::packed(DType::I64, 1, &[i64::from(bad)]);
            let fault = bad_row(bad.into(), 3);
            assert!(Trial::of(GetRows, &[&table, &rows]).refused().ends_with(&fault));
            assert!(Trial::of(GetRowsBack { rows: 3 }, &[&gradient, &rows]).refused().ends_with(&fault));
            assert!(Trial::of(SetRows, &[&gradient, &rows, &table]).refused().ends_with(&fault));
            assert!(Trial::of(SetRows, &[&gradient, &wide, &table]).refused().ends_with(&fault));
        }
        let beyond = Tensor::packed(DType::I64, 1, &[1i64 << 32]);
        assert!(Trial::of(SetRows, &[&gradient, &beyond, &table]).refused().ends_with(&bad_row(1 << 32, 3)));
    }

    #[test]
    fn gradients_add_up_in_order() {
        for (dtype, columns) in [(DType::F32, 200), (DType::F16, 63), (DType::F32, 1)] {
            let gradient = Tensor::pattern(Layout::packed(dtype, [columns, 5]).unwrap());
            let picks = [2, 0, 2, 2, 0];
            let result = compute(GetRowsBack { rows: 4 }, &[&gradient, &Tensor::i32(5, &picks)]);
            let terms = gradient.values();
            let mut expected = vec![0.0; 4 * columns];
            for (i, &row) in picks.iter().enumerate() {
                for column in 0..columns {
                    expected[row as usize * columns + column] += terms[i * columns + column];
                }
            }
            assert_eq!(result.values(), expected);
        }
    }

    #[test]
    fn no_gradients_leave_zeros() {
        let gradient = Tensor::pattern(Layout::packed(DType::F32, [70, 0]).unwrap());
        let result = compute(GetRowsBack { rows: 2 }, &[&gradient, &Tensor::i32(0, &[])]);
        assert_eq!(result.values(), [0.0; 140]);
    }

    #[test]
    fn rows_of_every_type_are_placed_and_others_stay() {
        for to in DType::all().filter(|dtype| dtype.encodes_at_run_time()) {
            let (row, unit) = (3 * to.block_len(), to.block_bytes());
            let bytes = stored_bytes(to, row);
            for from in [DType::F32, DType::F16] {
                let values = Tensor::pattern(Layout::packed(from, [row, 2, 4, 2]).unwrap());
                // Row numbers repeat over pairs of planes and over volumes.
                let rows = Tensor::packed(DType::I64, [2, 2, 1], &[3i64, 0, 1, 2]);
                let padded = [unit, bytes + unit, 5 * (bytes + unit), 20 * (bytes + unit)];
                let target = Tensor::pattern(Layout::strided(to, [row, 5, 4, 2], padded).unwrap());
                let result = compute(SetRows, &[&values, &rows, &target]);
                let mut expected = target.clone();
                let all = values.values();
                for (i, row_values) in all.chunks(row).enumerate() {
                    let (j, k) = (i % 2, i / 2);
                    let place = ([[3, 0], [1, 2]][k % 2][j] + 5 * k) * (bytes + unit);
                    expected.bytes[place..place + bytes].copy_from_slice(&encode(to, row_values));
                }
                assert_eq!(result, expected, "{from} to {to}");
            }
        }
    }

    #[test]
    fn the_last_of_equal_row_numbers_wins() {
        // Rows shorter than a cache line, and rows that are longer.
        for row in [1, 5, 40] {
            let values: Vec<_> = (0..300 * row).map(|i| (i / row) as f32).collect();
            let values = Tensor::packed(DType::F32, [row, 300], &values);
            let picks: Vec<_> = (0..300).map(|i| i * 31 % 50).collect();
            let target = Tensor::packed(DType::F32, [row, 60], &vec![-1.0f32; 60 * row]);
            let result = compute(SetRows, &[&values, &Tensor::i32(300, &picks), &target]);
            let last = |row: i32| picks.iter().rposition(|&pick| pick == row).map_or(-1.0, |i| i as f32);
            let expected: Vec<_> = (0..60).flat_map(|i| vec![last(i); row]).collect();
            assert_eq!(result.values(), expected);
        }
    }

    #[test]
    fn no_rows_change_nothing() {
        let values = Tensor::pattern(Layout::packed(DType::F32, [64, 0]).unwrap());
        let target = Tensor::pattern(Layout::packed(DType::Q8_0, [64, 3]).unwrap());
        let rows = Tensor::packed::<i64>(DType::I64, 0, &[]);
        assert_eq!(compute(SetRows, &[&values, &rows, &target]), target);
    }

    #[test]
    fn halves_are_placed_bit_by_bit() {
        let values = Tensor::packed(DType::F16, [3, 1], &[0x7C01u16, 0xFFFF, 0x8000]);
        let target = Tensor::packed(DType::F16, [3, 2], &[0u16; 6]);
        let result = compute(SetRows, &[&values, &Tensor::i32(1, &[1]), &target]);
        assert_eq!(result.units_as(u16::from_le_bytes), [0, 0, 0, 0x7C01, 0xFFFF, 0x8000]);
    }
}
