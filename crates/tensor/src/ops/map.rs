//! Elementwise functions of one tensor that are ops of their own; the rest are [`Unary`](super::Unary).

use super::{Args, Category, OpError, OpInfo, Operation, Outcome, Sizes, WantedDType, need};
use crate::dtype::DType;
use crate::error::Error;
use crate::graph::{Graph, TensorId};

/// `scale * a + bias`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// The factor.
    pub scale: f32,
    /// What is added.
    pub bias: f32,
}

/// Values limited to an interval; NaN becomes `max`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clamp {
    /// The lower end.
    pub min: f32,
    /// The upper end.
    pub max: f32,
}

/// Positive values unchanged, negative ones multiplied by a slope.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeakyRelu {
    /// The factor of negative values.
    pub slope: f32,
}

/// The square.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sqr;

/// The square root.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sqrt;

/// The natural logarithm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Log;

/// The sine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sin;

/// The cosine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cos;

const fn map_info(name: &'static str, category: Category) -> OpInfo {
    OpInfo::new(name, category, &const { [need("a")] }).in_place()
}

/// A function of real numbers: the result has the type of `a`, or is `f32` where `may_widen`.
pub(super) fn infer_real(args: &Args<'_>, may_widen: bool) -> Result<Outcome, OpError> {
    let a = args.source(0);
    a.one_of(&[DType::F32, DType::F16, DType::BF16])?;
    a.contiguous_rows()?;
    let dtype = args.wanted_dtype(a.dtype());
    let possible = dtype == a.dtype() || (may_widen && dtype == DType::F32);
    let wanted = if may_widen { "the type of a or f32" } else { "the type of a" };
    args.result_dtype(dtype, WantedDType::With(wanted), possible)?;
    args.fresh(dtype, a.ne())
}

macro_rules! real_functions {
    ($($op:ident, $name:literal, $category:ident, $reuses:expr;)*) => {$(
        impl Operation for $op {
            const INFO: OpInfo = OpInfo { reuses: $reuses, ..map_info($name, Category::$category) };

            fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
                infer_real(args, true)
            }

            fn work(&self, sizes: &Sizes) -> u64 {
                sizes.result()
            }
        }
    )*};
}

real_functions! {
    Sqr,  "SQR",  Language, &[0];
    Sqrt, "SQRT", Language, &[0];
    Log,  "LOG",  Language, &[0];
    Sin,  "SIN",  Vision,   &[];
    Cos,  "COS",  Vision,   &[];
}

impl Operation for Scale {
    const INFO: OpInfo = map_info("SCALE", Category::Language).reuses(&[0]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let a = args.source(0);
        a.one_of(&[DType::F32, DType::BF16])?;
        a.contiguous()?;
        args.fresh(a.dtype(), a.ne())
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

fn infer_padded_rows(args: &Args<'_>) -> Result<Outcome, OpError> {
    let a = args.source(0);
    a.one_of(&[DType::F32, DType::F16])?;
    a.contiguous_apart_from_rows()?;
    args.fresh(a.dtype(), a.ne())
}

impl Operation for Clamp {
    const INFO: OpInfo = map_info("CLAMP", Category::Language).reuses(&[0]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        infer_padded_rows(args)
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

impl Operation for LeakyRelu {
    const INFO: OpInfo = map_info("LEAKY_RELU", Category::Vision);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        infer_padded_rows(args)
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

impl Graph {
    /// `factor * a`.
    pub fn scale(&mut self, a: TensorId, factor: f32) -> Result<TensorId, Error> {
        self.scale_bias(a, factor, 0.0)
    }

    /// `factor * a + bias`.
    pub fn scale_bias(&mut self, a: TensorId, factor: f32, bias: f32) -> Result<TensorId, Error> {
        self.apply(Scale { scale: factor, bias }, &[Some(a)])
    }

    /// Values of `a` limited to `min..=max`.
    pub fn clamp(&mut self, a: TensorId, min: f32, max: f32) -> Result<TensorId, Error> {
        self.apply(Clamp { min, max }, &[Some(a)])
    }

    /// `a`, negative values multiplied by `slope`.
    pub fn leaky_relu(&mut self, a: TensorId, slope: f32) -> Result<TensorId, Error> {
        self.apply(LeakyRelu { slope }, &[Some(a)])
    }

    /// The square of each value.
    pub fn sqr(&mut self, a: TensorId) -> Result<TensorId, Error> {
        self.apply(Sqr, &[Some(a)])
    }

    /// The square root of each value.
    pub fn sqrt(&mut self, a: TensorId) -> Result<TensorId, Error> {
        self.apply(Sqrt, &[Some(a)])
    }

    /// The natural logarithm of each value.
    pub fn log(&mut self, a: TensorId) -> Result<TensorId, Error> {
        self.apply(Log, &[Some(a)])
    }

    /// The sine of each value.
    pub fn sin(&mut self, a: TensorId) -> Result<TensorId, Error> {
        self.apply(Sin, &[Some(a)])
    }

    /// The cosine of each value.
    pub fn cos(&mut self, a: TensorId) -> Result<TensorId, Error> {
        self.apply(Cos, &[Some(a)])
    }
}
