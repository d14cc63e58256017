//! Softmax and its gradient.
//!
//! A row is scaled, masked and raised in a thread's own memory, and written to the result at the end, so the result may
//! be the memory of the scores or of a mask.

use half::f16;
use oxcart_tensor::ops::{SoftMax, SoftMaxBack};
use oxcart_tensor::{DType, Op, TensorRef};

use super::chunk::{CHUNK, Chunk, chunks_of};
use super::math::exp;
use super::sum::Sum;
use crate::job::{Fault, Job, Kernel, Run, Stop, as_floats};
use crate::simd::{Level, MAX_LANES, Simd, for_each_level};
use crate::view::{Number, Src};

/// An exponential is worth this many cheap operations.
const EXP_WORK: usize = 4;

/// The kernel for an op of this family.
pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    let layout = node.layout();
    let kernel = |run, work| Kernel::rows(run, layout, layout.elements().saturating_mul(work));
    match node.op() {
        Op::SoftMax(_) => {
            let run = match node.source(1).map(|mask| mask.dtype()) {
                None | Some(DType::F32) => soft_max_masked_by::<f32>(level),
                Some(DType::F16) => soft_max_masked_by::<f16>(level),
                Some(_) => return None,
            };
            Some(kernel(run, EXP_WORK).own(padded(layout.ne()[0]) * size_of::<f32>()))
        }
        Op::SoftMaxBack(_) => {
            Some(kernel(for_each_level!(soft_max_back: fn(job: Job<'_>) -> Result<(), Fault>).at(level), 1))
        }
        _ => None,
    }
}

fn soft_max_masked_by<M: Number>(level: Level) -> Run {
    for_each_level!(soft_max[M: Number]: fn(job: Job<'_>) -> Result<(), Fault>).at(level)
}

/// A row with room for whole vectors.
const fn padded(len: usize) -> usize {
    len.next_multiple_of(MAX_LANES)
}

/// How strongly each head feels its mask (ALiBi).
#[derive(Clone, Copy, Debug)]
pub(super) struct Slopes {
    max_bias: f32,
    /// The largest power of two that is not above the number of heads.
    power: usize,
}

impl Slopes {
    pub(super) fn new(max_bias: f32, heads: usize) -> Slopes {
        Slopes { max_bias, power: 1 << heads.max(1).ilog2() }
    }

    pub(super) fn of(&self, head: usize) -> f32 {
        let Slopes { max_bias, power } = *self;
        if max_bias <= 0.0 {
            1.0
        } else if head < power {
            2f32.powf(-max_bias / power as f32).powf((head + 1) as f32)
        } else {
            2f32.powf(-(max_bias / 2.0) / power as f32).powf((2 * (head - power) + 1) as f32)
        }
    }
}

#[inline(always)]
fn soft_max<S: Simd, M: Number>(s: S, job: Job<'_>) -> Result<(), Fault> {
    let (SoftMax { scale, max_bias }, a, mask, sinks) = (job.op(), job.src(0), job.may(1), job.may(2));
    let (len, slopes, stop) = (a.ne()[0], Slopes::new(max_bias, a.ne()[2]), job.stop);
    let scores = &mut as_floats(job.own)[..padded(len)];
    for (at, mut row) in job.dst.rows::<f32>(job.share) {
        let from = a.row::<f32>(at);
        stop.stretches(len).for_each(|part| from.read(part.start, &mut scores[part]));
        let sink = sinks.map(|sinks| sinks.row::<f32>([0; 3]).get(at[1]));
        let least = sink.unwrap_or(f32::NEG_INFINITY);
        let max = match mask {
            None => shape(s, stop, scores, len, scale, least),
            Some(mask) => {
                shape_masked::<S, M>(s, stop, scores, len, (scale, slopes.of(at[1])), least, &mask, at)
            }
        };
        let sink = sink.map_or(0.0, |sink| f64::from((sink - max).exp()));
        let factor = (1.0 / (raise(s, stop, scores, max) + sink)) as f32;
        for part in stop.stretches(len) {
            scores[part.clone()].iter_mut().for_each(|x| *x *= factor);
            row.write(part.start, &scores[part]);
        }
        if stop.after(0) {
            break;
        }
    }
    Ok(())
}

/// Scales a row and gives its largest number, or `least`. What is beyond the row is made to take no part.
#[inline(always)]
fn shape<S: Simd>(s: S, stop: Stop<'_>, scores: &mut [f32], len: usize, scale: f32, least: f32) -> f32 {
    let mut max = least;
    for part in stop.stretches(scores.len()) {
        for lanes in scores[part.clone()].chunks_exact_mut(S::LANES) {
            s.store(s.mul(s.load(lanes), s.splat(scale)), lanes);
        }
        scores[len.clamp(part.start, part.end)..part.end].fill(f32::NEG_INFINITY);
        max = largest(s, &scores[part], max);
    }
    max
}

/// As [`shape`], with a mask's row added, which repeats over heads and batch.
#[expect(clippy::too_many_arguments, reason = "one step of one loop, apart only to be readable")]
#[inline(always)]
fn shape_masked<S: Simd, M: Number>(
    s: S,
    stop: Stop<'_>,
    scores: &mut [f32],
    len: usize,
    (scale, slope): (f32, f32),
    least: f32,
    mask: &Src<'_>,
    at: [usize; 3],
) -> f32 {
    let ne = mask.ne();
    let mask = mask.row::<M>([at[0], at[1] % ne[2], at[2] % ne[3]]);
    let mut chunk = Chunk::new();
    let mut max = least;
    for (start, padded) in stop.stretches(scores.len()).flat_map(chunks_of) {
        let (scores, part) = (&mut scores[start..start + padded], CHUNK.min(len - start));
        chunk.load(&mask, start, part);
        for (lanes, bias) in scores.chunks_exact_mut(S::LANES).zip(chunk.0.chunks_exact(S::LANES)) {
            let score = s.mul(s.load(lanes), s.splat(scale));
            s.store(s.mul_add(s.splat(slope), s.load(bias), score), lanes);
        }
        scores[part..].fill(f32::NEG_INFINITY);
        max = largest(s, scores, max);
    }
    max
}

/// The largest of some numbers and `least`; NaN is never the largest. The numbers fill whole vectors.
#[inline(always)]
fn largest<S: Simd>(s: S, numbers: &[f32], least: f32) -> f32 {
    let mut max = s.splat(least);
    for lanes in numbers.chunks_exact(S::LANES) {
        max = s.max(s.load(lanes), max);
    }
    s.largest(max)
}

/// Replaces numbers by `exp(number - max)` and gives their sum: of vectors in short runs, of those in `f64`.
#[inline(always)]
fn raise<S: Simd>(s: S, stop: Stop<'_>, scores: &mut [f32], max: f32) -> f64 {
    let mut total = 0.0;
    for (start, len) in stop.stretches(scores.len()).flat_map(chunks_of) {
        let run = &mut scores[start..start + len];
        let mut sum = s.splat(0.0);
        for lanes in run.chunks_exact_mut(S::LANES) {
            let e = exp(s, s.sub(s.load(lanes), s.splat(max)));
            s.store(e, lanes);
            sum = s.add(sum, e);
        }
        total += f64::from(s.sum(sum));
    }
    total
}

#[inline(always)]
fn soft_max_back<S: Simd>(_simd: S, job: Job<'_>) -> Result<(), Fault> {
    let (SoftMaxBack { scale }, gradient, y) = (job.op(), job.src(0), job.src(1));
    let (mut dy, mut value, stop) = (Chunk::new(), Chunk::new(), job.stop);
    for (at, mut row) in job.dst.rows::<f32>(job.share) {
        let (gradient, y) = (gradient.row::<f32>(at), y.row::<f32>(at));
        let mut sum = Sum::new();
        for (start, len) in stop.stretches(row.len()).flat_map(chunks_of) {
            dy.load(&gradient, start, len);
            value.load(&y, start, len);
            sum.add(len, |i| dy.0[i] * value.0[i]);
        }
        let dot = sum.total() as f32;
        for (start, len) in stop.stretches(row.len()).flat_map(chunks_of) {
            dy.load(&gradient, start, len);
            value.load(&y, start, len);
            for (dy, y) in dy.0.iter_mut().zip(&value.0) {
                *dy = (*dy - dot) * y * scale;
            }
            row.write(start, &dy.0[..len]);
        }
        if stop.after(0) {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{Level, Tensor, Trial, nmse, numbers};

    fn exact(
        a: &[f32],
        ne: [usize; 4],
        mask: Option<&[f32]>,
        sinks: Option<&[f32]>,
        op: SoftMax,
    ) -> Vec<f64> {
        let slopes = Slopes::new(op.max_bias, ne[2]);
        let mut all = Vec::new();
        for (row, a) in a.chunks(ne[0]).enumerate() {
            let head = row / ne[1] % ne[2];
            let mask_row = |i: usize| mask.map_or(0.0, |mask| mask[row % ne[1] * ne[0] + i]);
            let bias = |i| f64::from(slopes.of(head)) * f64::from(mask_row(i));
            let scores: Vec<_> =
                a.iter().enumerate().map(|(i, &x)| f64::from(x) * f64::from(op.scale) + bias(i)).collect();
            let sink = sinks.map(|sinks| f64::from(sinks[head]));
            let max = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().copied().chain(sink).map(|x| (x - max).exp()).sum();
            all.extend(scores.iter().map(|x| (x - max).exp() / sum));
        }
        all
    }

    #[test]
    fn every_length_mask_and_place() {
        for level in Level::available() {
            for len in [1, 5, 16, 31, 129, 1025] {
                let ne = [len, 3, 6, 2];
                let values: Vec<_> = numbers(1, len * 36).iter().map(|x| x * 9.0).collect();
                let a = Tensor::of(DType::F32, ne, &values);
                let mut bias = numbers(2, len * 3);
                bias.iter_mut().skip(1).step_by(5).for_each(|x| *x = f32::NEG_INFINITY);
                let sinks = numbers(3, 6);
                let sink = Tensor::of(DType::F32, [6, 1, 1, 1], &sinks);
                for dtype in [DType::F32, DType::F16] {
                    let mask = Tensor::of(dtype, [len, 3, 1, 1], &bias);
                    for max_bias in [0.0, 8.0] {
                        let op = SoftMax { scale: 0.7, max_bias };
                        let found = Trial::of(op, &[&a, &mask, &sink]).over(&[0]).on(level).values();
                        let wanted = exact(&values, ne, Some(&mask.values()), Some(&sinks), op);
                        assert!(nmse(&found, &wanted) < 1e-12, "{level} {len} {dtype}");
                    }
                }
                for scale in [1.0, -0.5, 0.0] {
                    let op = SoftMax { scale, max_bias: 0.0 };
                    let found = Trial::of(op, &[&a]).over(&[0]).on(level).values();
                    assert!(nmse(&found, &exact(&values, ne, None, None, op)) < 1e-12, "{level} {len}");
                }
            }
        }
    }

    #[test]
    fn the_result_may_lie_over_the_mask() {
        let ne = [33, 4, 2, 1];
        let (a, mask) = (numbers(4, 33 * 8), numbers(5, 33 * 8));
        let (a, mask) = (Tensor::of(DType::F32, ne, &a), Tensor::of(DType::F32, ne, &mask));
        for level in Level::available() {
            Trial::of(SoftMax { scale: 2.0, max_bias: 0.0 }, &[&a, &mask]).over(&[0, 1]).on(level).values();
        }
    }

    #[test]
    fn a_row_without_anything_is_nan_unless_there_is_a_sink() {
        let a = Tensor::of(DType::F32, [7, 1, 1, 1], [f32::NEG_INFINITY; 7]);
        let sink = Tensor::of(DType::F32, [1, 1, 1, 1], [0.5]);
        let op = SoftMax { scale: 1.0, max_bias: 0.0 };
        for level in Level::available() {
            assert!(Trial::of(op, &[&a]).on(level).values().iter().all(|x| x.is_nan()));
            assert_eq!(Trial::with(op, &[Some(&a), None, Some(&sink)]).on(level).values(), [0.0; 7]);
        }
    }

    #[test]
    fn gradients_over_either_source() {
        for level in Level::available() {
            for len in [1, 33, 128, 300] {
                let (g, y) = (numbers(6, len * 64), numbers(7, len * 64));
                let ne = [len, 64, 1, 1];
                let sources = [&g, &y].map(|values| Tensor::of(DType::F32, ne, values));
                let found = Trial::of(SoftMaxBack { scale: 0.5 }, &[&sources[0], &sources[1]])
                    .over(&[0, 1])
                    .on(level)
                    .values();
                let mut wanted = Vec::new();
                for (g, y) in g.chunks(len).zip(y.chunks(len)) {
                    let pairs = || g.iter().zip(y).map(|(&g, &y)| (f64::from(g), f64::from(y)));
                    let dot: f64 = pairs().map(|(g, y)| g * y).sum();
                    wanted.extend(pairs().map(|(g, y)| (g - dot) * y * 0.5));
                }
                assert!(nmse(&found, &wanted) < 1e-12, "{level} {len}");
            }
        }
    }
}
