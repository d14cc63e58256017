//! Values made from parameters and positions: ranges, constants, triangles, sinusoids.

use half::f16;
use oxcart_tensor::ops::{Arange, DiagMaskInf, DiagMaskZero, Fill, TimestepEmbedding, Tri, Triangle};
use oxcart_tensor::quant::to_f16;
use oxcart_tensor::{DType, Op, TensorRef};

use super::chunk::{CHUNK, Chunk};
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
    let (first, mut y) = job.dst.run::<f32>(job.share, CHUNK);
    for (i, y) in y.slice().iter_mut().enumerate() {
        *y = start + step * (first + i) as f32;
    }
    Ok(())
}

fn fill<T: Plain>(job: Job<'_>, convert: fn(f32) -> T) -> Result<(), Fault> {
    let values = [convert(job.op::<Fill>().value); CHUNK];
    let (_, mut y) = job.dst.run::<T>(job.share, CHUNK);
    for start in (0..y.len()).step_by(CHUNK) {
        let len = CHUNK.min(y.len() - start);
        y.write(start, &values[..len]);
    }
    Ok(())
}

fn tri(job: Job<'_>) -> Result<(), Fault> {
    let (keep, a) = (job.op::<Tri>().keep, job.src(0));
    for (at, mut y) in job.dst.rows::<f32>(job.share) {
        let (row, len) = (at[0], y.len());
        let kept = match keep {
            Triangle::UpperWithDiagonal => row..len,
            Triangle::Upper => row + 1..len,
            Triangle::LowerWithDiagonal => 0..row + 1,
            Triangle::Lower => 0..row,
        };
        let y = y.slice();
        y.fill(0.0);
        y[kept.clone()].copy_from_slice(&a.row::<f32>(at).slice()[kept]);
    }
    Ok(())
}

fn diag(job: Job<'_>) -> Result<(), Fault> {
    let a = job.src(0);
    for (at, mut y) in job.dst.rows::<f32>(job.share) {
        let y = y.slice();
        y.fill(0.0);
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
    let (a, masked, mut lanes) = (job.src(0), Chunk([value; CHUNK]), Lanes::new());
    for (at, mut y) in job.dst.rows::<f32>(job.share) {
        let kept = (n_past + at[0] + 1).min(y.len());
        if !a.is_aliased() {
            lanes.map(a.row::<f32>(at).part(0..kept), &mut y, 0, &|_: &mut Chunk, _| ());
        }
        for start in (kept..y.len()).step_by(CHUNK) {
            let len = CHUNK.min(y.len() - start);
            y.write(start, &masked.0[..len]);
        }
    }
    Ok(())
}

fn timestep_embedding(job: Job<'_>) -> Result<(), Fault> {
    let TimestepEmbedding { dim, max_period } = job.op();
    let (steps, half) = (job.src(0).row::<f32>([0; 3]), dim / 2);
    let log_period = (max_period as f32).ln();
    for (at, mut y) in job.dst.rows::<f32>(job.share) {
        let step = steps.get(at[0]);
        let (cosines, rest) = y.slice().split_at_mut(half);
        let (sines, odd) = rest.split_at_mut(half);
        for (j, (cosine, sine)) in cosines.iter_mut().zip(sines).enumerate() {
            let angle = step * (-log_period * j as f32 / half as f32).exp();
            (*cosine, *sine) = (angle.cos(), angle.sin());
        }
        odd.fill(0.0);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
