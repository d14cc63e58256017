//! Gated units: one half of a tensor, activated, times the other.

use half::{bf16, f16};
use oxcart_tensor::ops::{Glu, GluKind};
use oxcart_tensor::{DType, TensorRef};

use super::activation::{self, Silu};
use super::chunk::Chunk;
use super::elementwise::{Lanes, PIECE, zip};
use super::gelu::{gelu, gelu_erf, gelu_quick};
use crate::job::{Fault, Job, Kernel, Run};
use crate::simd::{Compiled, Level, Simd, for_each_level};
use crate::view::Number;

/// The kernel for a gated unit.
pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    let run = match node.dtype() {
        DType::F32 => run::<f32>(level),
        DType::F16 => run::<f16>(level),
        DType::BF16 => run::<bf16>(level),
        _ => return None,
    };
    Some(Kernel::elementwise(run, node.layout()))
}

/// The kernel for two `f32` sources; the op of the job is the [`Glu`].
pub(super) fn of_pairs(level: Level) -> Run {
    run::<f32>(level)
}

fn run<T: Number>(level: Level) -> Run {
    for_each_level!(walk[T: Number]: fn(job: Job<'_>) -> Result<(), Fault>).at(level)
}

#[inline(always)]
fn walk<S: Simd, T: Number>(_simd: S, job: Job<'_>) -> Result<(), Fault> {
    let (op, gate) = (job.op::<Glu>(), GATE.at(S::LEVEL));
    let f = |x: &mut Chunk, g: &Chunk, len: usize| gate(op.kind, T::DTYPE, x, g, len);
    if job.may(1).is_some() {
        zip::<T, T, T>(job, f);
        return Ok(());
    }
    let (both, half, mut lanes, stop) = (job.src(0), job.dst.ne()[0], Lanes::new(), job.stop);
    // A last column beside the halves belongs to neither.
    let (x_at, g_at) = if op.swapped { (half, 0) } else { (0, half) };
    for (at, start, mut y) in job.dst.pieces::<T>(job.share, PIECE) {
        if stop.after(y.len()) {
            break;
        }
        let row = both.row::<T>(at);
        let part = |first: usize| row.part(first + start..first + start + y.len());
        let (x, g) = (part(x_at), part(g_at));
        lanes.zip(x, g, &mut y, 0, &f);
    }
    Ok(())
}

type Gate = fn(GluKind, DType, &mut Chunk, &Chunk, usize);

const GATE: Compiled<Gate> =
    for_each_level!(gate: fn(kind: GluKind, dtype: DType, x: &mut Chunk, g: &Chunk, len: usize));

/// Activates the first `len` numbers of `x`, which come from a tensor of type `dtype`, and multiplies them by the gate.
#[inline(always)]
fn gate<S: Simd>(s: S, kind: GluKind, dtype: DType, x: &mut Chunk, g: &Chunk, len: usize) {
    let values = &mut x.0[..len];
    match kind {
        // Not zero times the gate: that would be NaN where the gate is infinite.
        GluKind::Reglu => return each(x, g, len, |x, g| if x > 0.0 { x * g } else { 0.0 }),
        GluKind::Geglu => gelu(dtype, values),
        GluKind::GegluErf => gelu_erf(values),
        GluKind::GegluQuick => gelu_quick(dtype, values),
        GluKind::Swiglu => activation::apply(s, Silu { alpha: 1.0 }, x, len),
        GluKind::SwigluOai { alpha, limit } => {
            values.iter_mut().for_each(|x| *x = at_most(*x, limit));
            activation::apply(s, Silu { alpha }, x, len);
            return each(x, g, len, |x, g| x * (limited(g, limit) + 1.0));
        }
        GluKind::SwigluClamp { limit } => {
            values.iter_mut().for_each(|x| *x = at_most(*x, limit));
            activation::apply(s, Silu { alpha: 1.0 }, x, len);
            return each(x, g, len, |x, g| x * limited(g, limit));
        }
    }
    each(x, g, len, |x, g| x * g);
}

#[inline(always)]
fn each(x: &mut Chunk, g: &Chunk, len: usize, f: impl Fn(f32, f32) -> f32) {
    x.0[..len].iter_mut().zip(&g.0).for_each(|(x, &g)| *x = f(*x, g));
}

/// The smaller one; NaN stays.
#[inline(always)]
fn at_most(x: f32, limit: f32) -> f32 {
    if x > limit { limit } else { x }
}

/// Limited in both directions; NaN stays.
#[inline(always)]
fn limited(x: f32, limit: f32) -> f32 {
    if x < -limit { -limit } else { at_most(x, limit) }
}

#[cfg(test)]
mod tests;
