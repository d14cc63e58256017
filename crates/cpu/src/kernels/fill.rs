//! Values made from parameters and positions: ranges, constants, triangles, sinusoids.

use half::f16;
use oxcart_tensor::ops::{Arange, DiagMaskInf, DiagMaskZero, Fill, TimestepEmbedding, Tri, Triangle};
use oxcart_tensor::quant::to_f16;
use oxcart_tensor::{DType, Op, TensorRef};

use super::chunk::{CHUNK, Chunk, chunks_of};
use super::elementwise::Lanes;
use crate::job::{Fault, Job, Kernel};
use crate::simd::Level;
use crate::view::Plain;

/// The kernel for an op of this family. They only write, so nothing is gained by vector instructions of their own.
pub(super) fn choose(node: TensorRef<'_>, _level: Level) -> Option<Kernel> {
    let (layout, elements) = (node.layout(), node.layout().elements());
    Some(match (node.op(), node.dtype()) {
        (Op::Arange(_), DType::F32) => Kernel::elementwise(arange, layout),
        (Op::Fill(_), DType::F32) => Kernel::elementwise(|job| fill(job, |value| value), layout),
        (Op::Fill(_), DType::F16) => Kernel::elementwise(|job| fill::<f16>(job, to_f16), layout),
        (Op::Tri(_), DType::F32) => Kernel::rows(tri, layout, elements),
        (Op::Diag(_), DType::F32) => Kernel::rows(diag, layout, elements),
        (Op::DiagMaskInf(_) | Op::DiagMaskZero(_), DType::F32) => Kernel::rows(diag_mask, layout, elements),
        // An exponential, a cosine and a sine for two elements.
        (Op::TimestepEmbedding(_), DType::F32) => Kernel::rows(timestep_embedding, layout, 16 * elements),
        _ => return None,
    })
}

fn arange(job: Job<'_>) -> Result<(), Fault> {
    let Arange { start, step, .. } = job.op();
    let (stop, (first, mut y)) = (job.stop, job.dst.run::<f32>(job.share, CHUNK));
    for part in stop.stretches(y.len()) {
        let first = first + part.start;
        for (i, y) in y.slice()[part].iter_mut().enumerate() {
            *y = start + step * (first + i) as f32;
        }
    }
    Ok(())
}

fn fill<T: Plain>(job: Job<'_>, convert: fn(f32) -> T) -> Result<(), Fault> {
    let values = [convert(job.op::<Fill>().value); CHUNK];
    let (stop, (_, mut y)) = (job.stop, job.dst.run::<T>(job.share, CHUNK));
    for part in stop.stretches(y.len()) {
        for (start, len) in chunks_of(part) {
            y.write(start, &values[..len]);
        }
    }
    Ok(())
}

fn tri(job: Job<'_>) -> Result<(), Fault> {
    let (keep, a, stop) = (job.op::<Tri>().keep, job.src(0), job.stop);
    for (at, mut y) in job.dst.rows::<f32>(job.share) {
        let (row, len) = (at[0], y.len());
        let kept = match keep {
            Triangle::UpperWithDiagonal => row..len,
            Triangle::Upper => row + 1..len,
            Triangle::LowerWithDiagonal => 0..row + 1,
            Triangle::Lower => 0..row,
        };
        let (y, a) = (y.slice(), a.row::<f32>(at).slice());
        for part in stop.stretches(len) {
            y[part.clone()].fill(0.0);
            let kept = kept.start.clamp(part.start, part.end)..kept.end.clamp(part.start, part.end);
            if !kept.is_empty() {
                y[kept.clone()].copy_from_slice(&a[kept]);
            }
        }
        if stop.after(0) {
            break;
        }
    }
    Ok(())
}

fn diag(job: Job<'_>) -> Result<(), Fault> {
    let (a, stop) = (job.src(0), job.stop);
    for (at, mut y) in job.dst.rows::<f32>(job.share) {
        let y = y.slice();
        for part in stop.stretches(y.len()) {
            y[part].fill(0.0);
        }
        if stop.after(0) {
            break;
        }
        y[at[0]] = a.row::<f32>([0, at[1], at[2]]).get(at[0]);
    }
    Ok(())
}

fn diag_mask(job: Job<'_>) -> Result<(), Fault> {
    let (n_past, value) = match job.op {
        Op::DiagMaskInf(DiagMaskInf { n_past }) => (n_past, f32::NEG_INFINITY),
        Op::DiagMaskZero(DiagMaskZero { n_past }) => (n_past, 0.0),
        _ => unreachable!("the kernel of another op"),
    };
    let (a, masked, mut lanes, stop) = (job.src(0), Chunk([value; CHUNK]), Lanes::new(), job.stop);
    for (at, mut y) in job.dst.rows::<f32>(job.share) {
        let kept = (n_past + at[0] + 1).min(y.len());
        if !a.is_aliased() {
            let a = a.row::<f32>(at);
            for part in stop.stretches(kept) {
                lanes.map(a.part(part.clone()), &mut y, part.start, &|_: &mut Chunk, _| ());
            }
        }
        for part in stop.stretches(y.len() - kept) {
            for (start, len) in chunks_of(part) {
                y.write(kept + start, &masked.0[..len]);
            }
        }
        if stop.after(0) {
            break;
        }
    }
    Ok(())
}

fn timestep_embedding(job: Job<'_>) -> Result<(), Fault> {
    let TimestepEmbedding { dim, max_period } = job.op();
    let (steps, half) = (job.src(0).row::<f32>([0; 3]), dim / 2);
    let (log_period, stop) = ((max_period as f32).ln(), job.stop);
    for (at, mut y) in job.dst.rows::<f32>(job.share) {
        let step = steps.get(at[0]);
        let (cosines, rest) = y.slice().split_at_mut(half);
        let (sines, odd) = rest.split_at_mut(half);
        for part in stop.stretches_of(half, 2) {
            let first = part.start;
            for (i, (cosine, sine)) in cosines[part.clone()].iter_mut().zip(&mut sines[part]).enumerate() {
                let angle = step * (-log_period * (first + i) as f32 / half as f32).exp();
                (*cosine, *sine) = (angle.cos(), angle.sin());
            }
        }
        if stop.after(odd.len()) {
            break;
        }
        odd.fill(0.0);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
