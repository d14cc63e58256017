//! Sums, means and other reductions along rows or over everything.
//!
//! Sums are kept in `f64`, in an order that depends on the shape alone. A sum over everything is cut into a fixed number
//! of parts, whatever the number of threads; one thread then adds the parts in order.

use half::{bf16, f16};
use oxcart_tensor::{DType, Layout, Op, TensorRef};

use std::ops::Range;

use crate::job::{Fault, Job, Kernel, Run, Stop};
use crate::simd::{Level, Simd, for_each_level};
use crate::view::{Number, Plain, RowAt, Share, Src, elements, elements_mut, row_at};

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
        Share::new(part, self.parts()).of(self.count).map(move |piece| {
            let start = piece % self.per_row * PIECE;
            (row_at(piece / self.per_row, self.ne), start, (self.ne[0] - start).min(PIECE))
        })
    }
}

/// A kernel in two phases: parts by all threads, then their total by one.
fn in_parts(run: Run, source: &Layout) -> Kernel {
    let parts = Pieces::of(source).parts();
    Kernel::units(run, parts, source.elements()).phases(2).shared(8 * PARTS)
}

/// What parts of a total are kept as.
trait Term: Copy + std::iter::Sum {
    fn to_word(self) -> u64;
    fn from_word(word: u64) -> Self;
}

impl Term for f64 {
    fn to_word(self) -> u64 {
        self.to_bits()
    }
    fn from_word(word: u64) -> f64 {
        f64::from_bits(word)
    }
}

impl Term for i64 {
    fn to_word(self) -> u64 {
        self.cast_unsigned()
    }
    fn from_word(word: u64) -> i64 {
        word.cast_signed()
    }
}

/// The total over all pieces of a source, for the one thread that is to store it, in the second phase.
#[inline(always)]
fn total<T: Term>(job: &Job<'_>, source: &Src<'_>, piece: impl Fn(RowAt, usize, usize) -> T) -> Option<T> {
    let pieces = Pieces::of(source.layout());
    if job.phase == 0 {
        for part in job.share.of(pieces.parts()) {
            let wanted = pieces.of_part(part).take_while(|(.., len)| !job.stop.after(*len));
            let sum: T = wanted.map(|(at, start, len)| piece(at, start, len)).sum();
            if job.stop.after(0) {
                return None;
            }
            // SAFETY: each part is written by one thread, and read in the next phase.
            let place = unsafe { job.shared.bytes_mut(8 * part, 8) };
            elements_mut(place).fill(sum.to_word());
        }
        return None;
    }
    if job.share.of(1).is_empty() {
        return None;
    }
    // SAFETY: no thread writes them in this phase.
    let parts = unsafe { job.shared.bytes(0, 8 * pieces.parts()) };
    Some(elements(parts).iter().map(|word| T::from_word(*word)).sum())
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
        sum_f64(&values[..len], std::iter::once(0..len))
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

/// A sum in lanes, in the same order for every instruction set; `parts` are parts of the values, one after another.
#[inline(always)]
fn sum_f64(values: &[f32], parts: impl Iterator<Item = Range<usize>>) -> f64 {
    const LANES: usize = 16;
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut sum = rest.iter().map(|x| f64::from(*x)).sum();
    if chunks.is_empty() {
        // They count, too.
        parts.for_each(drop);
        return sum;
    }
    let mut lanes = [0.0; LANES];
    for part in parts {
        for chunk in &chunks[part.start / LANES..part.end / LANES] {
            lanes.iter_mut().zip(chunk).for_each(|(lane, x)| *lane += f64::from(*x));
        }
    }
    let mut half = LANES / 2;
    while half > 0 {
        (0..half).for_each(|i| lanes[i] += lanes[i + half]);
        half /= 2;
    }
    sum += lanes[0];
    sum
}

#[inline(always)]
fn sum_rows<S: Simd>(_simd: S, job: Job<'_>) -> Result<(), Fault> {
    let (a, stop) = (job.src(0), job.stop);
    for (at, mut row) in job.dst.rows::<f32>(job.share) {
        row.set(0, sum_f64(a.row(at).slice(), stop.stretches(a.ne()[0])) as f32);
        if stop.after(0) {
            break;
        }
    }
    Ok(())
}

#[inline(always)]
fn mean<S: Simd>(_simd: S, job: Job<'_>) -> Result<(), Fault> {
    let (a, stop) = (job.src(0), job.stop);
    for (at, mut row) in job.dst.rows::<f32>(job.share) {
        let sum = sum_f64(a.row(at).slice(), stop.stretches(a.ne()[0]));
        row.set(0, sum as f32 / a.ne()[0] as f32);
        if stop.after(0) {
            break;
        }
    }
    Ok(())
}

/// In `f32`: each running sum is rounded, as it would be if it were stored and read back.
fn cumsum(job: Job<'_>) -> Result<(), Fault> {
    let (a, stop) = (job.src(0), job.stop);
    for (at, mut row) in job.dst.rows::<f32>(job.share) {
        let (mut sum, row, a) = (0.0, row.slice(), a.row::<f32>(at).slice());
        for part in stop.stretches(row.len()) {
            for (y, x) in row[part.clone()].iter_mut().zip(&a[part]) {
                sum += x;
                *y = sum;
            }
        }
        if stop.after(0) {
            break;
        }
    }
    Ok(())
}

#[inline(always)]
fn argmax<S: Simd>(_simd: S, job: Job<'_>) -> Result<(), Fault> {
    let (a, stop) = (job.src(0), job.stop);
    for (_, row, mut place) in job.dst.pieces::<i32>(job.share, 1) {
        place.set(0, last_largest(stop, a.row(row_at(row, a.ne())).slice()) as i32);
        if stop.after(0) {
            break;
        }
    }
    Ok(())
}

/// The last index of the largest value. A NaN forgets what came before it, unless nothing comes after it.
#[inline(always)]
fn last_largest(stop: Stop<'_>, values: &[f32]) -> usize {
    // Only the piece with the largest value is looked at again.
    let (mut largest, mut last) = (f32::NEG_INFINITY, 0);
    for (i, piece) in values.chunks(PIECE).enumerate() {
        if stop.after(piece.len()) {
            return 0;
        }
        let Some(in_piece) = largest_of(piece) else { return last_largest_with_nan(stop, values) };
        if in_piece >= largest {
            (largest, last) = (in_piece, i * PIECE);
        }
    }
    let piece = &values[last..values.len().min(last + PIECE)];
    last + piece.iter().rposition(|&x| x == largest).unwrap_or(0)
}

/// The largest value; `None` if there is a NaN.
#[inline(always)]
fn largest_of(values: &[f32]) -> Option<f32> {
    const LANES: usize = 16;
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let (mut lanes, mut nans) = ([f32::NEG_INFINITY; LANES], [0u32; LANES]);
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for ((lane, nan), x) in lanes.iter_mut().zip(&mut nans).zip(chunk) {
            *lane = larger(*lane, *x);
            *nan |= u32::from(x.is_nan());
        }
    }
    let is_nan = nans.iter().any(|nan| *nan != 0) || rest.iter().any(|x| x.is_nan());
    (!is_nan).then(|| lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |a, b| larger(a, *b)))
}

fn last_largest_with_nan(stop: Stop<'_>, values: &[f32]) -> usize {
    let (mut index, mut largest) = (0, f32::NEG_INFINITY);
    for i in stop.stretches(values.len()).flatten() {
        let x = values[i];
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

#[cfg(test)]
mod tests {
    use oxcart_tensor::ops::{Argmax, CountEqual, Cumsum, Mean, Sum, SumRows};

    use super::*;
    use crate::kernels::testing::{Tensor, compute, unstopped};

    fn floats(ne: impl Into<oxcart_tensor::Shape>, values: &[f32]) -> Tensor {
        Tensor::packed(DType::F32, ne, values)
    }

    #[test]
    fn sums_lose_nothing_whatever_the_order() {
        // In f32 the small ones would vanish; in f64 they do not, and threads may not change that.
        let mut values = vec![1f32; 70_000];
        values[0] = 1e9;
        values[69_999] = -1e9;
        for ne in [[70_000, 1, 1, 1], [1, 70_000, 1, 1], [7, 100, 10, 10], [1400, 5, 5, 2]] {
            assert_eq!(compute(Sum, &[&floats(ne, &values)]).values(), [69_998.0]);
        }
        for dtype in [DType::F16, DType::BF16] {
            let a = Tensor::pattern(Layout::strided(dtype, [500, 3, 2, 1], [2, 1010, 3030, 9]).unwrap());
            let sum: f64 = a.exact().iter().sum();
            let result = compute(Sum, &[&a]);
            let expected = match dtype {
                DType::F16 => f16::from_f64(sum).to_bits(),
                _ => bf16::from_f64(sum).to_bits(),
            };
            assert_eq!(result.units_as(u16::from_le_bytes), [expected]);
        }
    }

    #[test]
    fn rows_are_summed_by_themselves() {
        let a = Tensor::pattern(Layout::strided(DType::F32, [33, 5, 3, 2], [4, 140, 700, 2100]).unwrap());
        let values = a.values();
        let sums: Vec<f32> = values.chunks(33).map(|row| row.iter().sum()).collect();
        // Values are multiples of 1/16, so sums are exact.
        assert_eq!(compute(SumRows, &[&a]).values(), sums);
        let means: Vec<_> = sums.iter().map(|sum| sum / 33.0).collect();
        assert_eq!(compute(Mean, &[&a]).values(), means);
        let running = values.chunks(33).flat_map(|row| {
            let next = |sum: &mut f32, x: &f32| {
                *sum += x;
                Some(*sum)
            };
            row.iter().scan(0.0, next).collect::<Vec<_>>()
        });
        assert_eq!(compute(Cumsum, &[&a]).values(), running.collect::<Vec<_>>());
    }

    #[test]
    fn nothing_sums_to_zero() {
        let empty = floats([0, 3], &[]);
        assert_eq!(compute(Sum, &[&empty]).values(), [0.0]);
        assert_eq!(compute(SumRows, &[&empty]).values(), [0.0; 3]);
        assert!(compute(Mean, &[&empty]).values().iter().all(|mean| mean.is_nan()));
        assert_eq!(compute(Argmax, &[&empty]).i32s(), [0; 3]);
        let empty = Tensor::packed::<i32>(DType::I32, [0, 3], &[]);
        assert_eq!(compute(CountEqual, &[&empty, &empty]).units_as(i64::from_le_bytes), [0]);
    }

    fn largest(values: &[f32]) -> i32 {
        compute(Argmax, &[&floats(values.len(), values)]).i32s()[0]
    }

    #[test]
    fn the_last_of_the_largest_is_found() {
        const NAN: f32 = f32::NAN;
        assert_eq!(largest(&[1.0, 3.0, 3.0, 2.0]), 2);
        assert_eq!(largest(&[f32::NEG_INFINITY; 40]), 39);
        assert_eq!(largest(&[NAN; 40]), 0);
        // What comes before a NaN is forgotten, unless nothing comes after it.
        assert_eq!(largest(&[5.0, NAN, 1.0, 2.0, 0.0]), 3);
        assert_eq!(largest(&[1.0, 5.0, 2.0, NAN]), 1);
        for len in [1, 15, 16, 17, 63, 1000] {
            for at in 0..len.min(70) {
                let mut values = vec![-1.0; len];
                values[at] = 2.0;
                assert_eq!(largest(&values), at as i32);
            }
        }
        let rows = Tensor::pattern(Layout::strided(DType::F32, [3, 70_000, 1, 1], [4, 16, 0, 0]).unwrap());
        let expected: Vec<_> = rows
            .values()
            .chunks(3)
            .map(|row| unstopped(|stop| last_largest_with_nan(stop, row)) as i32)
            .collect();
        assert_eq!(compute(Argmax, &[&rows]).i32s(), expected);
    }

    #[test]
    fn equal_elements_are_counted_in_all_dimensions() {
        let values: Vec<i32> = (0..3 * 4 * 500 * 2).map(|i| i * 7 % 5).collect();
        let a = Tensor::packed(DType::I32, [3, 4, 500, 2], &values);
        let count = |a: &Tensor, b: &Tensor| compute(CountEqual, &[a, b]).units_as(i64::from_le_bytes);
        assert_eq!(count(&a, &a), [12_000]);
        let turned = Tensor::packed(DType::I32, [500, 3, 4, 2], &values);
        let permuted = turned.layout.permuted([2, 0, 1, 3]).unwrap();
        let turned = turned.seen_as(permuted);
        let equal = a.i32s().iter().zip(turned.i32s()).filter(|(a, b)| **a == *b).count();
        assert!(equal > 0);
        assert_eq!(count(&a, &turned), [equal as i64]);
        assert_eq!(count(&turned, &a), [equal as i64]);
    }
}
