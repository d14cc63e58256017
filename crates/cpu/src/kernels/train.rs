//! Losses and optimizer steps.

use std::iter::zip;

use oxcart_tensor::{Op, TensorRef};

use super::activation::{self, Exp};
use super::chunk::{CHUNK, Chunk, chunks_of};
use super::elementwise::{PIECE, is_flat};
use crate::job::{Fault, Job, Kernel, Stop, as_floats};
use crate::simd::{Compiled, Level, Simd, for_each_level};
use crate::view::{In, Out, row_at};

/// The kernel for an op of this family.
pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    type Body = fn(Job<'_>) -> Result<(), Fault>;
    const LOSS: Compiled<Body> = for_each_level!(loss: fn(job: Job<'_>) -> Result<(), Fault>);
    const LOSS_BACK: Compiled<Body> = for_each_level!(loss_back: fn(job: Job<'_>) -> Result<(), Fault>);
    const ADAMW: Compiled<Body> = for_each_level!(adamw: fn(job: Job<'_>) -> Result<(), Fault>);
    const SGD: Compiled<Body> = for_each_level!(sgd: fn(job: Job<'_>) -> Result<(), Fault>);
    let layout = node.layout();
    Some(match node.op() {
        Op::CrossEntropyLoss(_) => {
            let logits = node.source(0)?.layout();
            let rows: usize = logits.ne().extents()[1..].iter().product();
            // One number per row, then their sum.
            Kernel::rows(LOSS.at(level), logits, 8 * logits.elements())
                .phases(2)
                .shared(rows * size_of::<f32>())
        }
        Op::CrossEntropyLossBack(_) => Kernel::rows(LOSS_BACK.at(level), layout, 8 * layout.elements()),
        Op::OptStepAdamw(_) => Kernel::elementwise(ADAMW.at(level), layout),
        Op::OptStepSgd(_) => Kernel::elementwise(SGD.at(level), layout),
        _ => return None,
    })
}

/// The largest of some numbers; NaN is never larger.
#[inline(always)]
fn largest(stop: Stop<'_>, x: &[f32]) -> f32 {
    stop.stretches(x.len()).fold(f32::NEG_INFINITY, |max, part| {
        x[part].iter().fold(max, |max, &x| if x > max { x } else { max })
    })
}

/// Calls `f` with `exp(x - max)`, up to a chunk at a time.
#[inline(always)]
fn each_exp<S: Simd>(s: S, stop: Stop<'_>, x: &[f32], max: f32, mut f: impl FnMut(&[f32])) {
    let mut chunk = Chunk::new();
    for (start, len) in stop.stretches(x.len()).flat_map(chunks_of) {
        let x = &x[start..start + len];
        zip(&mut chunk.0, x).for_each(|(y, x)| *y = x - max);
        activation::apply(s, Exp, &mut chunk, x.len());
        f(&chunk.0[..x.len()]);
    }
}

#[inline(always)]
fn loss<S: Simd>(s: S, job: Job<'_>) -> Result<(), Fault> {
    let (logits, targets, stop) = (job.src(0), job.src(1), job.stop);
    let ne = logits.ne();
    let rows: usize = ne[1..].iter().product();
    if job.phase == 0 {
        let mine = job.share.of(rows);
        let bytes = mine.start * size_of::<f32>()..mine.end * size_of::<f32>();
        // SAFETY: shares do not meet, and no thread reads in this phase.
        let sums = as_floats(unsafe { job.shared.bytes_mut(bytes.start, bytes.len()) });
        for (row, sum) in zip(mine, sums) {
            let at = row_at(row, ne);
            *sum = row_loss(s, stop, logits.row::<f32>(at).slice(), targets.row::<f32>(at).slice());
            if stop.after(0) {
                break;
            }
        }
        return Ok(());
    }
    for (_, mut y) in job.dst.rows::<f32>(job.share) {
        // SAFETY: in this phase only the thread that has the one result writes, and it has no other borrow.
        let sums = as_floats(unsafe { job.shared.bytes_mut(0, rows * size_of::<f32>()) });
        let sum: f64 = stop.stretches(rows).flatten().map(|row| f64::from(sums[row])).sum();
        y.set(0, sum as f32 * (-1.0 / rows as f32));
    }
    Ok(())
}

/// The sum of targets times logarithms of the softmax of logits.
#[inline(always)]
fn row_loss<S: Simd>(s: S, stop: Stop<'_>, logits: &[f32], targets: &[f32]) -> f32 {
    let max = largest(stop, logits);
    let mut sum = 0.0;
    each_exp(s, stop, logits, max, |exps| sum += exps.iter().map(|&x| f64::from(x)).sum::<f64>());
    let log = (sum as f32).ln();
    let parts = stop.stretches(logits.len());
    let pairs = parts.flat_map(|part| zip(&logits[part.clone()], &targets[part]));
    pairs.map(|(x, t)| f64::from((x - max - log) * t)).sum::<f64>() as f32
}

#[inline(always)]
fn loss_back<S: Simd>(s: S, job: Job<'_>) -> Result<(), Fault> {
    let (gradient, logits, targets) = (job.src(0).get::<f32>([0; 4]), job.src(1), job.src(2));
    let (scale, stop) = (gradient / job.dst.row_count() as f32, job.stop);
    for (at, mut y) in job.dst.rows::<f32>(job.share) {
        let (logits, y) = (logits.row::<f32>(at).slice(), y.slice());
        let (mut sum, mut done) = (0.0, 0);
        each_exp(s, stop, logits, largest(stop, logits), |exps| {
            y[done..done + exps.len()].copy_from_slice(exps);
            done += exps.len();
            sum += exps.iter().map(|&x| f64::from(x)).sum::<f64>();
        });
        let inverse = (1.0 / sum) as f32;
        let targets = targets.row::<f32>(at).slice();
        for part in stop.stretches(y.len()) {
            for (y, target) in zip(&mut y[part.clone()], &targets[part]) {
                *y = (*y * inverse - target) * scale;
            }
        }
        if stop.after(0) {
            break;
        }
    }
    Ok(())
}

/// The optimizer's numbers, which are few and the same for all.
fn settings<const N: usize>(job: &Job<'_>, slot: usize) -> [f32; N] {
    let mut values = [0.0; N];
    job.src(slot).packed::<f32>().read(0, &mut values);
    values
}

#[inline(always)]
fn adamw<S: Simd>(_simd: S, mut job: Job<'_>) -> Result<(), Fault> {
    let step = AdamW::new(settings(&job, 4));
    let (m, v, stop) = (job.take_written(2), job.take_written(3), job.stop);
    let (parameter, gradient) = (job.src(0), job.src(1));
    if is_flat(&job.dst, &[parameter, gradient]) && is_flat(&m, &[]) && is_flat(&v, &[]) {
        let ((start, y), (_, m), (_, v)) = (
            job.dst.run::<f32>(job.share, CHUNK),
            m.run::<f32>(job.share, CHUNK),
            v.run::<f32>(job.share, CHUNK),
        );
        let part = start..start + y.len();
        step.run(stop, parameter.packed().part(part.clone()), gradient.packed().part(part), y, (m, v));
        return Ok(());
    }
    // All have the same extents, so their pieces belong together.
    let moments = zip(m.pieces::<f32>(job.share, PIECE), v.pieces::<f32>(job.share, PIECE));
    for ((at, start, y), ((_, _, m), (_, _, v))) in zip(job.dst.pieces::<f32>(job.share, PIECE), moments) {
        let part = start..start + y.len();
        step.run(stop, parameter.row(at).part(part.clone()), gradient.row(at).part(part), y, (m, v));
        if stop.after(0) {
            break;
        }
    }
    Ok(())
}

/// The numbers of an AdamW step.
struct AdamW {
    alpha: f32,
    beta1: f32,
    beta2: f32,
    eps: f32,
    keep: f32,
    correct1: f32,
    correct2: f32,
}

impl AdamW {
    const fn new([alpha, beta1, beta2, eps, decay, correct1, correct2]: [f32; 7]) -> AdamW {
        AdamW { alpha, beta1, beta2, eps, keep: 1.0 - alpha * decay, correct1, correct2 }
    }

    #[inline(always)]
    fn run(
        &self,
        stop: Stop<'_>,
        parameter: In<'_, f32>,
        gradient: In<'_, f32>,
        mut y: Out<'_, f32>,
        (mut m, mut v): (Out<'_, f32>, Out<'_, f32>),
    ) {
        let [mut w, mut g] = [Chunk::new(); 2];
        let moments = zip(m.slice().chunks_mut(CHUNK), v.slice().chunks_mut(CHUNK));
        for (i, (m, v)) in moments.enumerate() {
            let (start, len) = (i * CHUNK, m.len());
            if stop.after(len) {
                return;
            }
            w.load(&parameter, start, len);
            g.load(&gradient, start, len);
            for ((w, g), (m, v)) in zip(zip(&mut w.0, &g.0), zip(m, v)) {
                *m = *m * self.beta1 + g * (1.0 - self.beta1);
                *v = *v * self.beta2 + g * g * (1.0 - self.beta2);
                let step = self.alpha * (*m * self.correct1);
                *w = *w * self.keep - step / ((*v * self.correct2).sqrt() + self.eps);
            }
            w.store_at(&mut y, start, len);
        }
    }
}

#[inline(always)]
fn sgd<S: Simd>(_simd: S, job: Job<'_>) -> Result<(), Fault> {
    let [alpha, decay] = settings(&job, 2);
    let keep = 1.0 - alpha * decay;
    let f = |w: &mut Chunk, g: &Chunk, len: usize| {
        zip(&mut w.0[..len], &g.0).for_each(|(w, g)| *w = *w * keep - alpha * g);
    };
    super::elementwise::zip::<f32, f32, f32>(job, f);
    Ok(())
}

#[cfg(test)]
mod tests;
