//! The family of activation and rounding functions that ggml numbers under one op.

use super::map::infer_real;
use super::{Args, Category, OpError, OpInfo, Operation, Outcome, Sizes, need};
use crate::error::Error;
use crate::graph::{Graph, TensorId};

/// A function applied to each value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unary {
    /// Magnitude.
    Abs,
    /// 1, 0 or -1.
    Sgn,
    /// `-x`.
    Neg,
    /// 1 where positive, else 0.
    Step,
    /// Hyperbolic tangent.
    Tanh,
    /// `x`, or `exp(x) - 1` where negative.
    Elu,
    /// `x`, or 0 where negative.
    Relu,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// Gaussian error unit by its `tanh` formula.
    Gelu,
    /// `x / (1 + exp(-1.702 x))`.
    GeluQuick,
    /// `x / (1 + exp(-x))`.
    Silu,
    /// `x * min(1, max(0, (x + 3) / 6))`.
    Hardswish,
    /// `min(1, max(0, (x + 3) / 6))`.
    Hardsigmoid,
    /// `exp(x)`.
    Exp,
    /// `exp(x) - 1`.
    Expm1,
    /// `ln(1 + exp(x))`.
    Softplus,
    /// Gaussian error unit by the error function.
    GeluErf,
    /// Expanded integral of the exponential linear unit, with its effective parameters.
    Xielu {
        /// Factor of the exponential part.
        alpha_n: f32,
        /// Factor of the square.
        alpha_p: f32,
        /// Factor of the linear part.
        beta: f32,
        /// Upper end of the exponential part.
        eps: f32,
    },
    /// Largest integer not above.
    Floor,
    /// Smallest integer not below.
    Ceil,
    /// Nearest integer, halves away from zero.
    Round,
    /// Integer part.
    Trunc,
}

impl Unary {
    /// ggml's name of the function, for example `GELU`.
    pub const fn name(&self) -> &'static str {
        match self {
            Unary::Abs => "ABS",
            Unary::Sgn => "SGN",
            Unary::Neg => "NEG",
            Unary::Step => "STEP",
            Unary::Tanh => "TANH",
            Unary::Elu => "ELU",
            Unary::Relu => "RELU",
            Unary::Sigmoid => "SIGMOID",
            Unary::Gelu => "GELU",
            Unary::GeluQuick => "GELU_QUICK",
            Unary::Silu => "SILU",
            Unary::Hardswish => "HARDSWISH",
            Unary::Hardsigmoid => "HARDSIGMOID",
            Unary::Exp => "EXP",
            Unary::Expm1 => "EXPM1",
            Unary::Softplus => "SOFTPLUS",
            Unary::GeluErf => "GELU_ERF",
            Unary::Xielu { .. } => "XIELU",
            Unary::Floor => "FLOOR",
            Unary::Ceil => "CEIL",
            Unary::Round => "ROUND",
            Unary::Trunc => "TRUNC",
        }
    }
}

impl Operation for Unary {
    const INFO: OpInfo = OpInfo::new("UNARY", Category::Language, &[need("a")]).in_place().reuses(&[0]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        if matches!(self, Unary::Xielu { .. }) {
            args.source(0).contiguous_apart_from_rows()?;
        }
        let same_type = matches!(self, Unary::Gelu | Unary::GeluErf | Unary::GeluQuick | Unary::Silu);
        infer_real(args, !same_type)
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

impl Graph {
    /// `function` applied to each value of `a`.
    pub fn unary(&mut self, a: TensorId, function: Unary) -> Result<TensorId, Error> {
        self.apply(function, &[Some(a)])
    }
}
