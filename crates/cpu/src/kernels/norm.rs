//! Normalizations of rows and channel groups.
//!
//! Sums are `f64` in partial sums ([`Sum`]): squares and products are rounded to `f32` first, as the reference does.
//! The pattern of the partial sums is the same on every instruction set, and a row is summed by one thread, so results
//! depend on neither.
//!
//! Invariant: a row is read whole before any of it is written, chunk by chunk, so the result may be the memory of any
//! source.

use oxcart_tensor::ops::{GroupNorm, L2Norm, Norm, RmsNorm, RmsNormBack};
use oxcart_tensor::{Op, TensorRef};

use super::chunk::{CHUNK, Chunk, chunks_of};
use super::sum::Sum;
use crate::job::{Fault, Job, Kernel, Run, Stop};
use crate::simd::{Level, Simd, for_each_level};
use crate::view::{Dst, RowAt, Share, Src, row_at};

/// The kernel for an op of this family.
pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    let layout = node.layout();
    let run: Run = match node.op() {
        Op::Norm(_) => for_each_level!(norm: fn(job: Job<'_>) -> Result<(), Fault>).at(level),
        Op::RmsNorm(_) => for_each_level!(rms_norm: fn(job: Job<'_>) -> Result<(), Fault>).at(level),
        Op::L2Norm(_) => for_each_level!(l2_norm: fn(job: Job<'_>) -> Result<(), Fault>).at(level),
        Op::RmsNormBack(_) => for_each_level!(rms_norm_back: fn(job: Job<'_>) -> Result<(), Fault>).at(level),
        Op::GroupNorm(GroupNorm { groups, .. }) => {
            let run = for_each_level!(group_norm: fn(job: Job<'_>) -> Result<(), Fault>).at(level);
            let [.., channels, batch] = layout.ne().extents();
            return Some(Kernel::units(run, (*groups).min(channels) * batch, layout.elements()));
        }
        _ => return None,
    };
    Some(Kernel::rows(run, layout, layout.elements()))
}

/// [`RmsNorm`] of source 0 and then a product with source 1, whose rows repeat. Rounds as the two ops do one after the
/// other. The op of the job is the [`RmsNorm`]; the result may be the memory of either source.
pub(crate) fn fused_rms_norm_mul(level: Level) -> Run {
    for_each_level!(rms_norm_mul: fn(job: Job<'_>) -> Result<(), Fault>).at(level)
}

/// Writes a chunk of a row, whatever its stride.
///
/// # Safety
///
/// No other thread reads or writes the row in this phase, and this thread has no other handle of it.
#[inline(always)]
unsafe fn store(chunk: &Chunk, dst: &Dst<'_>, at: RowAt, start: usize, len: usize) {
    if dst.layout().has_contiguous_rows() {
        // SAFETY: the row is this thread's, as the caller says.
        let mut row = unsafe { dst.row::<f32>(at) };
        if len == CHUNK { row.write(start, &chunk.0) } else { row.write(start, &chunk.0[..len]) }
    } else {
        for (i, &x) in chunk.0[..len].iter().enumerate() {
            // SAFETY: as above.
            unsafe { dst.set([start + i, at[0], at[1], at[2]], x) };
        }
    }
}

/// The sum of a function of the elements of some rows.
#[inline(always)]
fn sum_of(
    stop: Stop<'_>,
    src: &Src<'_>,
    rows: impl Iterator<Item = RowAt>,
    term: impl Fn(f32) -> f32,
) -> f64 {
    let (mut chunk, mut sum) = (Chunk::new(), Sum::new());
    for at in rows {
        for part in stop.stretches(src.ne()[0]) {
            for (start, len) in chunks_of(part) {
                chunk.load_from::<f32>(src, at, start, len);
                sum.add(len, |i| term(chunk.0[i]));
            }
        }
        if stop.after(0) {
            break;
        }
    }
    sum.total()
}

/// Writes a function of the elements of one row.
///
/// # Safety
///
/// No other thread reads or writes the row in this phase, and this thread has no other handle of it.
#[inline(always)]
unsafe fn map(stop: Stop<'_>, src: &Src<'_>, dst: &Dst<'_>, at: RowAt, f: impl Fn(f32) -> f32) {
    let mut chunk = Chunk::new();
    for part in stop.stretches(src.ne()[0]) {
        for (start, len) in chunks_of(part) {
            chunk.load_from::<f32>(src, at, start, len);
            chunk.0.iter_mut().for_each(|x| *x = f(*x));
            // SAFETY: the row is this thread's, as the caller says.
            unsafe { store(&chunk, dst, at, start, len) };
        }
    }
}

/// Does something for each row of this thread, until it is to give up.
#[inline(always)]
fn each_row(stop: Stop<'_>, dst: &Dst<'_>, share: Share, mut f: impl FnMut(RowAt)) {
    let ne = dst.ne();
    for row in share.of(dst.row_count()) {
        f(row_at(row, ne));
        if stop.after(0) {
            break;
        }
    }
}

#[inline(always)]
fn norm<S: Simd>(_simd: S, job: Job<'_>) -> Result<(), Fault> {
    let (Norm { eps }, a, stop) = (job.op(), job.src(0), job.stop);
    let n = a.ne()[0] as f32;
    each_row(stop, &job.dst, job.share, |at| {
        let mean = sum_of(stop, &a, std::iter::once(at), |x| x) as f32 / n;
        let squares = sum_of(stop, &a, std::iter::once(at), |x| (x - mean) * (x - mean));
        let scale = 1.0 / ((squares / f64::from(n)) as f32 + eps).sqrt();
        // SAFETY: shares do not meet, and each row of this one is visited once.
        unsafe { map(stop, &a, &job.dst, at, |x| (x - mean) * scale) };
    });
    Ok(())
}

/// What [`RmsNorm`] multiplies a row with.
#[inline(always)]
fn rms_scale(stop: Stop<'_>, a: &Src<'_>, at: RowAt, eps: f32) -> f32 {
    let mean = (sum_of(stop, a, std::iter::once(at), |x| x * x) / a.ne()[0] as f64) as f32;
    1.0 / (mean + eps).sqrt()
}

#[inline(always)]
fn rms_norm<S: Simd>(_simd: S, job: Job<'_>) -> Result<(), Fault> {
    let (RmsNorm { eps }, a, stop) = (job.op(), job.src(0), job.stop);
    each_row(stop, &job.dst, job.share, |at| {
        let scale = rms_scale(stop, &a, at, eps);
        // SAFETY: shares do not meet, and each row of this one is visited once.
        unsafe { map(stop, &a, &job.dst, at, |x| x * scale) };
    });
    Ok(())
}

#[inline(always)]
fn rms_norm_mul<S: Simd>(_simd: S, job: Job<'_>) -> Result<(), Fault> {
    let (RmsNorm { eps }, a, weights, stop) = (job.op(), job.src(0), job.src(1), job.stop);
    let repeats = weights.ne();
    let (mut x, mut w) = (Chunk::new(), Chunk::new());
    each_row(stop, &job.dst, job.share, |at| {
        let scale = rms_scale(stop, &a, at, eps);
        let weight_at = [at[0] % repeats[1], at[1] % repeats[2], at[2] % repeats[3]];
        for (start, len) in stop.stretches(a.ne()[0]).flat_map(chunks_of) {
            x.load_from::<f32>(&a, at, start, len);
            w.load_from::<f32>(&weights, weight_at, start, len);
            for (x, w) in x.0.iter_mut().zip(&w.0) {
                *x = *x * scale * w;
            }
            // SAFETY: shares do not meet, and each row of this one is visited once.
            unsafe { store(&x, &job.dst, at, start, len) };
        }
    });
    Ok(())
}

#[inline(always)]
fn l2_norm<S: Simd>(_simd: S, job: Job<'_>) -> Result<(), Fault> {
    let (L2Norm { eps }, a, stop) = (job.op(), job.src(0), job.stop);
    each_row(stop, &job.dst, job.share, |at| {
        let length = (sum_of(stop, &a, std::iter::once(at), |x| x * x) as f32).sqrt();
        // NaN stays NaN, where `f32::max` would hide it.
        let scale = 1.0 / if length < eps { eps } else { length };
        // SAFETY: shares do not meet, and each row of this one is visited once.
        unsafe { map(stop, &a, &job.dst, at, |x| x * scale) };
    });
    Ok(())
}

#[inline(always)]
fn rms_norm_back<S: Simd>(_simd: S, job: Job<'_>) -> Result<(), Fault> {
    let (RmsNormBack { eps }, gradient, x) = (job.op(), job.src(0), job.src(1));
    let (row, n) = (x.ne()[0], x.ne()[0] as f32);
    let (mut g, mut v, stop) = (Chunk::new(), Chunk::new(), job.stop);
    each_row(stop, &job.dst, job.share, |at| {
        let (mut squares, mut products) = (Sum::new(), Sum::new());
        for (start, len) in stop.stretches(row).flat_map(chunks_of) {
            g.load_from::<f32>(&gradient, at, start, len);
            v.load_from::<f32>(&x, at, start, len);
            squares.add(len, |i| v.0[i] * v.0[i]);
            products.add(len, |i| v.0[i] * g.0[i]);
        }
        let (squares, products) = (squares.total() as f32, products.total() as f32);
        let scale = 1.0 / (squares / n + eps).sqrt();
        let along = -products / (squares + n * eps);
        for (start, len) in stop.stretches(row).flat_map(chunks_of) {
            g.load_from::<f32>(&gradient, at, start, len);
            v.load_from::<f32>(&x, at, start, len);
            for (g, v) in g.0.iter_mut().zip(&v.0) {
                *g = (*g + v * along) * scale;
            }
            // SAFETY: shares do not meet, and each row of this one is visited once.
            unsafe { store(&g, &job.dst, at, start, len) };
        }
    });
    Ok(())
}

#[inline(always)]
fn group_norm<S: Simd>(_simd: S, job: Job<'_>) -> Result<(), Fault> {
    let (GroupNorm { groups, eps }, a, stop) = (job.op(), job.src(0), job.stop);
    let [width, height, channels, batch] = a.ne();
    let per_group = channels.div_ceil(groups);
    // Groups beyond the last channel are empty.
    let groups = channels.div_ceil(per_group);
    for unit in job.share.of(groups * batch) {
        let (first, image) = (unit % groups * per_group, unit / groups);
        let members = first..(first + per_group).min(channels);
        let count = (width * height * members.len()) as f64;
        let rows = || members.clone().flat_map(|channel| (0..height).map(move |y| [y, channel, image]));
        let mean = (sum_of(stop, &a, rows(), |x| x) / count) as f32;
        let squares = sum_of(stop, &a, rows(), |x| (x - mean) * (x - mean));
        let scale = 1.0 / ((squares / count) as f32 + eps).sqrt();
        for at in rows() {
            // SAFETY: shares do not meet, groups have no rows in common, and each row of one is visited once.
            unsafe { map(stop, &a, &job.dst, at, |x| (x - mean) * scale) };
            if stop.after(0) {
                return Ok(());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
