//! Functions of one number.

use half::{bf16, f16};
use oxcart_tensor::ops::Unary;
use oxcart_tensor::{DType, Op, TensorRef};

use super::chunk::{CHUNK, Chunk};
use crate::job::{Fault, Job, Kernel, Run};
use crate::simd::{Level, Simd, for_each_level};
use crate::view::Number;

/// The kernel for a function of one number.
pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    let types = (node.source(0)?.dtype(), node.dtype());
    let run = match types {
        (DType::F32, DType::F32) => run::<f32, f32>(level),
        (DType::F16, DType::F16) => run::<f16, f16>(level),
        (DType::BF16, DType::BF16) => run::<bf16, bf16>(level),
        (DType::F16, DType::F32) => run::<f16, f32>(level),
        (DType::BF16, DType::F32) => run::<bf16, f32>(level),
        _ => return None,
    };
    Some(Kernel::elementwise(run, node.layout()))
}

fn run<A: Number, Y: Number>(level: Level) -> Run {
    for_each_level!(map[A: Number, Y: Number]: fn(job: Job<'_>) -> Result<(), Fault>).at(level)
}

#[inline(always)]
fn map<S: Simd, A: Number, Y: Number>(_simd: S, job: Job<'_>) -> Result<(), Fault> {
    let (op, a) = (job.op, job.src(0));
    let mut chunk = Chunk::new();
    for (at, start, mut piece) in job.dst.pieces::<Y>(job.share, CHUNK) {
        chunk.load::<A>(&a.row(at), start, piece.len());
        apply(op, &mut chunk.0);
        chunk.store(&mut piece);
    }
    Ok(())
}

#[inline(always)]
fn apply(op: Op, values: &mut [f32; CHUNK]) {
    match op {
        Op::Sqr(_) => each(values, |x| x * x),
        Op::Sqrt(_) => each(values, f32::sqrt),
        Op::Unary(Unary::Neg) => each(values, |x| -x),
        _ => unreachable!(),
    }
}

#[inline(always)]
fn each(values: &mut [f32; CHUNK], f: impl Fn(f32) -> f32) {
    values.iter_mut().for_each(|x| *x = f(*x));
}
