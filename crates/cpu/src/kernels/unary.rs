//! Functions of one number.
//!
//! The function is looked up once per chunk, in code that does not depend on the tensors' types; see [`apply`].

use half::{bf16, f16};
use oxcart_tensor::ops::{Clamp, LeakyRelu, Scale, Unary};
use oxcart_tensor::{DType, Op, TensorRef};

use super::activation::{self, Affine, Exp, Sigmoid, Silu, Tanh};
use super::chunk::Chunk;
use super::elementwise::{map, zip};
use super::gelu::{gelu, gelu_erf, gelu_quick};
use crate::job::{Fault, Job, Kernel, Run};
use crate::simd::{Compiled, Level, Simd, for_each_level};
use crate::view::Number;

/// The kernel for a function of one number.
pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    let gradient = matches!(node.op(), Op::SiluBack(_));
    let run = match (node.source(0)?.dtype(), node.dtype()) {
        (DType::F32, DType::F32) if gradient => silu_back::<f32>(level),
        (DType::F16, DType::F16) if gradient => silu_back::<f16>(level),
        (DType::F32, DType::F32) => run::<f32, f32>(level),
        (DType::F16, DType::F16) => run::<f16, f16>(level),
        (DType::BF16, DType::BF16) => run::<bf16, bf16>(level),
        (DType::F16, DType::F32) => run::<f16, f32>(level),
        (DType::BF16, DType::F32) => run::<bf16, f32>(level),
        _ => return None,
    };
    let kernel = Kernel::elementwise(run, node.layout());
    Some(if is_slow(node.op()) { kernel.width(node.layout().elements() / 1024) } else { kernel })
}

/// Whether a function takes a library call per element.
fn is_slow(op: &Op) -> bool {
    use Unary::{Elu, Expm1, GeluErf, Softplus, Xielu};
    match op {
        Op::Unary(function) => matches!(function, Elu | Expm1 | Softplus | GeluErf | Xielu { .. }),
        Op::Log(_) | Op::Sin(_) | Op::Cos(_) => true,
        _ => false,
    }
}

fn run<A: Number, Y: Number>(level: Level) -> Run {
    for_each_level!(walk[A: Number, Y: Number]: fn(job: Job<'_>) -> Result<(), Fault>).at(level)
}

#[inline(always)]
fn walk<S: Simd, A: Number, Y: Number>(_simd: S, job: Job<'_>) -> Result<(), Fault> {
    let (op, apply) = (job.op, APPLY.at(S::LEVEL));
    map::<A, Y>(job, |chunk, len| apply(&op, A::DTYPE, chunk, len));
    Ok(())
}

const APPLY: Compiled<fn(&Op, DType, &mut Chunk, usize)> =
    for_each_level!(apply: fn(op: &Op, dtype: DType, chunk: &mut Chunk, len: usize));

/// Applies `op` to the first `len` numbers of a chunk, which come from a tensor of type `dtype`.
#[inline(always)]
fn apply<S: Simd>(s: S, op: &Op, dtype: DType, chunk: &mut Chunk, len: usize) {
    let x = &mut chunk.0[..len];
    match *op {
        Op::Unary(function) => apply_unary(s, function, dtype, chunk, len),
        Op::Sqr(_) => each(x, |x| x * x),
        Op::Sqrt(_) => each(x, f32::sqrt),
        Op::Log(_) => each(x, f32::ln),
        Op::Sin(_) => each(x, f32::sin),
        Op::Cos(_) => each(x, f32::cos),
        // Both comparisons fail for NaN, which therefore becomes 0.
        Op::LeakyRelu(LeakyRelu { slope }) => each(x, |x| {
            let (above, below) = (if x > 0.0 { x } else { 0.0 }, if x < 0.0 { x } else { 0.0 });
            above + slope * below
        }),
        Op::Clamp(Clamp { min, max }) => each(x, |x| {
            let x = if x < max { x } else { max };
            if x > min { x } else { min }
        }),
        Op::Scale(Scale { scale, bias: 0.0 }) => each(x, |x| x * scale),
        Op::Scale(Scale { scale, bias }) => activation::apply(s, Affine { scale, bias }, chunk, len),
        _ => unreachable!("the kernel of another op"),
    }
}

#[inline(always)]
fn apply_unary<S: Simd>(s: S, function: Unary, dtype: DType, chunk: &mut Chunk, len: usize) {
    let x = &mut chunk.0[..len];
    match function {
        Unary::Abs => each(x, f32::abs),
        Unary::Sgn => each(x, |x| f32::from(u8::from(x > 0.0)) - f32::from(u8::from(x < 0.0))),
        Unary::Neg => each(x, |x| -x),
        Unary::Step => each(x, |x| if x > 0.0 { 1.0 } else { 0.0 }),
        Unary::Tanh => activation::apply(s, Tanh, chunk, len),
        Unary::Elu => each(x, |x| if x > 0.0 { x } else { x.exp_m1() }),
        Unary::Relu => each(x, |x| if x > 0.0 { x } else { 0.0 }),
        Unary::Sigmoid => activation::apply(s, Sigmoid, chunk, len),
        Unary::Gelu => gelu(dtype, x),
        Unary::GeluQuick => gelu_quick(dtype, x),
        Unary::Silu => activation::apply(s, Silu { alpha: 1.0 }, chunk, len),
        Unary::Hardswish => each(x, |x| x * hard_sigmoid(x)),
        Unary::Hardsigmoid => each(x, hard_sigmoid),
        Unary::Exp => activation::apply(s, Exp, chunk, len),
        // The difference itself, not the function that is exact near zero: so does the reference.
        Unary::Expm1 => each(x, |x| x.exp() - 1.0),
        Unary::Softplus => each(x, |x| if x > 20.0 { x } else { (1.0 + x.exp()).ln() }),
        Unary::GeluErf => gelu_erf(x),
        Unary::Xielu { alpha_n, alpha_p, beta, eps } => each(x, |x| {
            if x > 0.0 { alpha_p * x * x + beta * x } else { (x.min(eps).exp_m1() - x) * alpha_n + beta * x }
        }),
        Unary::Floor => each(x, f32::floor),
        Unary::Ceil => each(x, f32::ceil),
        Unary::Round => each(x, f32::round),
        Unary::Trunc => each(x, f32::trunc),
    }
}

#[inline(always)]
fn each(values: &mut [f32], f: impl Fn(f32) -> f32) {
    values.iter_mut().for_each(|x| *x = f(*x));
}

#[inline(always)]
fn hard_sigmoid(x: f32) -> f32 {
    // Comparisons, so that NaN becomes 0.
    let y = (x + 3.0) / 6.0;
    if y > 0.0 { if y < 1.0 { y } else { 1.0 } } else { 0.0 }
}

fn silu_back<T: Number>(level: Level) -> Run {
    for_each_level!(walk_silu_back[T: Number]: fn(job: Job<'_>) -> Result<(), Fault>).at(level)
}

#[inline(always)]
fn walk_silu_back<S: Simd, T: Number>(_simd: S, job: Job<'_>) -> Result<(), Fault> {
    zip::<T, T, T>(job, SILU_BACK.at(S::LEVEL));
    Ok(())
}

const SILU_BACK: Compiled<fn(&mut Chunk, &Chunk, usize)> =
    for_each_level!(apply_silu_back: fn(gradient: &mut Chunk, x: &Chunk, len: usize));

#[inline(always)]
fn apply_silu_back<S: Simd>(s: S, gradient: &mut Chunk, x: &Chunk, len: usize) {
    let mut sigmoid = *x;
    activation::apply(s, Sigmoid, &mut sigmoid, len);
    for ((gradient, x), s) in gradient.0[..len].iter_mut().zip(&x.0).zip(&sigmoid.0) {
        *gradient *= s * (1.0 + x * (1.0 - s));
    }
}

#[cfg(test)]
mod tests;
