//! Sums, means and other reductions along rows or over everything.
//!
//! Sums are kept in `f64`, in an order that depends on the shape alone. A sum over everything is cut into a fixed number
//! of parts, whoever computes them; one thread then adds the parts in order.

use half::{bf16, f16};
use oxcart_tensor::{DType, Layout, Op, TensorRef};

use crate::job::{Fault, Job, Kernel, Run};
use crate::simd::{Level, Simd, for_each_level};
use crate::view::{Number, Plain, RowAt, Share, Src, row_at};

/// The kernel for an op of this family.
pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    let source = node.source(0)?.layout();
    let rows = |run: Run| Kernel::rows(run, source, source.elements());
    Some(match node.op() {
        Op::Sum(_) => in_parts(choose_sum(node.dtype(), level)?, source),
        Op::CountEqual(_) => {
            in_parts(for_each_level!(count_equal: fn(job: Job<'_>) -> Result<(), Fault>).at(level), source)
        }
        Op::SumRows(_) => rows(for_each_level!(sum_rows: fn(job: Job<'_>) -> Result<(), Fault>).at(level)),
        Op::Mean(_) => rows(for_each_level!(mean: fn(job: Job<'_>) -> Result<(), Fault>).at(level)),
        Op::Cumsum(_) => rows(cumsum),
        Op::Argmax(_) => rows(for_each_level!(argmax: fn(job: Job<'_>) -> Result<(), Fault>).at(level)),
        _ => return None,
    })
}

fn choose_sum(dtype: DType, level: Level) -> Option<Run> {
    match dtype {
        DType::F32 => Some(sum_numbers::<f32>(level)),
        DType::F16 => Some(sum_numbers::<f16>(level)),
        DType::BF16 => Some(sum_numbers::<bf16>(level)),
        _ => None,
    }
}

fn sum_numbers<A: Number>(level: Level) -> Run {
    for_each_level!(sum[A: Number]: fn(job: Job<'_>) -> Result<(), Fault>).at(level)
}

/// Elements of a row that are summed at a time.
const PIECE: usize = 1024;

/// The most parts of a sum over everything; the number of threads that can help.
const PARTS: usize = 256;

/// Pieces of rows, in order: where each one starts, and how long it is.
#[derive(Clone, Copy)]
struct Pieces {
    ne: [usize; 4],
    per_row: usize,
    count: usize,
}

impl Pieces {
    fn of(layout: &Layout) -> Pieces {
        let ne = layout.ne().extents();
        let per_row = ne[0].div_ceil(PIECE);
        Pieces { ne, per_row, count: per_row * ne[1] * ne[2] * ne[3] }
    }

    /// Parts of the whole: as many for one thread as for many.
    fn parts(&self) -> usize {
        self.count.min(PARTS)
    }

    /// The pieces of a part: `(row, first element, elements)`.
    #[inline(always)]
    fn of_part(self, part: usize) -> impl Iterator<Item = ([usize; 3], usize, usize)> {
        let cut = move |part: usize| (self.count as u128 * part as u128 / self.parts() as u128) as usize;
        (cut(part)..cut(part + 1)).map(move |piece| {
            let start = piece % self.per_row * PIECE;
            (row_at(piece / self.per_row, self.ne), start, (self.ne[0] - start).min(PIECE))
        })
    }
}

/// A kernel in two phases: parts by all threads, then their total by one.
fn in_parts(run: Run, source: &Layout) -> Kernel {
    let parts = Pieces::of(source).parts();
    let kernel = Kernel::elementwise(run, source);
    kernel.width(kernel.width.min(parts)).phases(2).shared(8 * PARTS)
}

/// What parts of a total are kept as.
trait Term: Copy + std::iter::Sum {
    fn to_bytes(self) -> [u8; 8];
    fn from_bytes(bytes: [u8; 8]) -> Self;
}

impl Term for f64 {
    fn to_bytes(self) -> [u8; 8] {
        self.to_ne_bytes()
    }
    fn from_bytes(bytes: [u8; 8]) -> f64 {
        f64::from_ne_bytes(bytes)
    }
}

impl Term for i64 {
    fn to_bytes(self) -> [u8; 8] {
        self.to_ne_bytes()
    }
    fn from_bytes(bytes: [u8; 8]) -> i64 {
        i64::from_ne_bytes(bytes)
    }
}

/// The total over all pieces of a source, for the one thread that is to store it, in the second phase.
#[inline(always)]
fn total<T: Term>(job: &Job<'_>, source: &Src<'_>, piece: impl Fn(RowAt, usize, usize) -> T) -> Option<T> {
    let pieces = Pieces::of(source.layout());
    if job.phase == 0 {
        for part in job.share.of(pieces.parts()) {
            let sum: T = pieces.of_part(part).map(|(at, start, len)| piece(at, start, len)).sum();
            // SAFETY: each part is written by one thread, and read in the next phase.
            unsafe { job.shared.bytes_mut(8 * part, 8) }.copy_from_slice(&sum.to_bytes());
        }
        return None;
    }
    if job.share.of(1).is_empty() {
        return None;
    }
    // SAFETY: nobody writes them in this phase.
    let parts = unsafe { job.shared.bytes(0, 8 * pieces.parts()) };
    Some(parts.as_chunks().0.iter().map(|bytes| T::from_bytes(*bytes)).sum())
}

/// Stores a total; only the thread that has one writes.
fn store_total<T: Plain>(job: Job<'_>, total: T) {
    for (_, mut row) in job.dst.rows::<T>(Share::ALL) {
        row.set(0, total);
    }
}

#[inline(always)]
fn sum<S: Simd, A: Number>(_simd: S, job: Job<'_>) -> Result<(), Fault> {
    let a = job.src(0);
    let sum = total(&job, &a, |at, start, len| {
        let mut values = [0.0; PIECE];
        A::widen(a.row::<A>(at).part(start..start + len).slice(), &mut values[..len]);
        sum_f64(&values[..len])
    });
    if let Some(sum) = sum {
        let mut stored = a_row_of_one::<A>();
        A::narrow(&[sum as f32], &mut stored);
        store_total(job, stored[0]);
    }
    Ok(())
}

fn a_row_of_one<A: Number>() -> [A; 1] {
    // SAFETY: any bytes make a number; see `Plain`.
    unsafe { std::mem::zeroed() }
}

/// A sum in sixteen lanes, in the same order for every instruction set.
#[inline(always)]
fn sum_f64(values: &[f32]) -> f64 {
    let mut lanes = [0.0; 16];
    let (chunks, rest) = values.as_chunks::<16>();
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, x)| *lane += f64::from(*x));
    }
    lanes.iter_mut().zip(rest).for_each(|(lane, x)| *lane += f64::from(*x));
    lanes.iter().sum()
}

#[inline(always)]
fn sum_rows<S: Simd>(_simd: S, job: Job<'_>) -> Result<(), Fault> {
    let a = job.src(0);
    for (at, mut row) in job.dst.rows::<f32>(job.share) {
        row.set(0, sum_f64(a.row(at).slice()) as f32);
    }
    Ok(())
}

#[inline(always)]
fn mean<S: Simd>(_simd: S, job: Job<'_>) -> Result<(), Fault> {
    let a = job.src(0);
    for (at, mut row) in job.dst.rows::<f32>(job.share) {
        row.set(0, sum_f64(a.row(at).slice()) as f32 / a.ne()[0] as f32);
    }
    Ok(())
}

/// In `f32`: each running sum is rounded, as it would be if it were stored and read back.
fn cumsum(job: Job<'_>) -> Result<(), Fault> {
    let a = job.src(0);
    for (at, mut row) in job.dst.rows::<f32>(job.share) {
        let mut sum = 0.0;
        for (y, x) in row.slice().iter_mut().zip(a.row::<f32>(at).slice()) {
            sum += x;
            *y = sum;
        }
    }
    Ok(())
}

#[inline(always)]
fn argmax<S: Simd>(_simd: S, job: Job<'_>) -> Result<(), Fault> {
    let a = job.src(0);
    for (_, row, mut place) in job.dst.pieces::<i32>(job.share, 1) {
        place.set(0, last_largest(a.row(row_at(row, a.ne())).slice()) as i32);
    }
    Ok(())
}

/// The last index of the largest value. A NaN forgets what came before it, unless nothing comes after it.
#[inline(always)]
fn last_largest(values: &[f32]) -> usize {
    let mut lanes = [f32::NEG_INFINITY; 16];
    let mut is_nan = [false; 16];
    let (chunks, rest) = values.as_chunks::<16>();
    for chunk in chunks {
        for i in 0..16 {
            lanes[i] = if chunk[i] > lanes[i] { chunk[i] } else { lanes[i] };
            is_nan[i] |= chunk[i].is_nan();
        }
    }
    if is_nan.contains(&true) || rest.iter().any(|x| x.is_nan()) {
        return last_largest_with_nan(values);
    }
    let largest = lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a });
    values.iter().rposition(|&x| x == largest).unwrap_or(0)
}

fn last_largest_with_nan(values: &[f32]) -> usize {
    let (mut index, mut largest) = (0, f32::NEG_INFINITY);
    for (i, &x) in values.iter().enumerate() {
        largest = if largest > x { largest } else { x };
        if largest == x {
            index = i;
        }
    }
    index
}

#[inline(always)]
fn count_equal<S: Simd>(_simd: S, job: Job<'_>) -> Result<(), Fault> {
    let (a, b) = (job.src(0), job.src(1));
    let in_rows = a.layout().has_contiguous_rows() && b.layout().has_contiguous_rows();
    let count = total(&job, &a, |at, start, len| match in_rows {
        true => {
            let range = start..start + len;
            let (a, b) = (&a.row::<i32>(at).slice()[range.clone()], &b.row::<i32>(at).slice()[range]);
            let equal: u32 = a.iter().zip(b).map(|(a, b)| u32::from(a == b)).sum();
            i64::from(equal)
        }
        false => {
            let (a, b) = (a.line::<i32>(at), b.line::<i32>(at));
            (start..start + len).map(|i| i64::from(a.get(i) == b.get(i))).sum()
        }
    });
    if let Some(count) = count {
        store_total(job, count);
    }
    Ok(())
}
