//! Sums, means and other reductions along rows or over everything.

use super::{Args, Category, OpError, OpInfo, Operation, Outcome, Sizes, need};
use crate::dtype::DType;
use crate::error::Error;
use crate::graph::{Graph, TensorId};
use crate::shape::Shape;

/// The sum of everything.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sum;

/// The sum of each row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SumRows;

/// The running sum along each row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cumsum;

/// The mean of each row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mean;

/// The index of the largest value of each row; the last one among equals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Argmax;

/// How many elements of two tensors are equal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CountEqual;

impl Operation for Sum {
    const INFO: OpInfo = OpInfo::new("SUM", Category::Training, &[need("a")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let a = args.source(0);
        a.one_of(&[DType::F32, DType::F16, DType::BF16])?;
        a.contiguous_rows()?;
        args.fresh(a.dtype(), Shape::SCALAR)
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.source(0)
    }
}

fn check_f32_rows(args: &Args<'_>) -> Result<Shape, OpError> {
    let a = args.source(0);
    a.f32()?;
    a.contiguous_rows()?;
    Ok(a.ne())
}

impl Operation for SumRows {
    const INFO: OpInfo = OpInfo::new("SUM_ROWS", Category::Language, &[need("a")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        args.fresh(DType::F32, check_f32_rows(args)?.with(0, 1))
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.source(0)
    }
}

impl Operation for Mean {
    const INFO: OpInfo = OpInfo::new("MEAN", Category::Language, &[need("a")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        args.fresh(DType::F32, check_f32_rows(args)?.with(0, 1))
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.source(0)
    }
}

impl Operation for Cumsum {
    const INFO: OpInfo = OpInfo::new("CUMSUM", Category::Recurrent, &[need("a")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        args.fresh(DType::F32, check_f32_rows(args)?)
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

impl Operation for Argmax {
    const INFO: OpInfo = OpInfo::new("ARGMAX", Category::Language, &[need("a")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let ne = check_f32_rows(args)?;
        let a = args.source(0);
        a.flat_from(2)?;
        a.shape(i32::try_from(ne[0]).is_ok(), "rows must have less than 2^31 elements")?;
        args.fresh(DType::I32, ne[1])
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.source(0)
    }
}

impl Operation for CountEqual {
    const INFO: OpInfo = OpInfo::new("COUNT_EQUAL", Category::Training, &[need("a"), need("b")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [a, b] = args.sources();
        a.i32()?;
        b.i32()?;
        b.same_shape(&a)?;
        args.fresh(DType::I64, Shape::SCALAR)
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.source(0)
    }
}

impl Graph {
    /// The sum of all values of `a`.
    pub fn sum(&mut self, a: TensorId) -> Result<TensorId, Error> {
        self.apply(Sum, &[Some(a)])
    }

    /// The sum of each row of `a`.
    pub fn sum_rows(&mut self, a: TensorId) -> Result<TensorId, Error> {
        self.apply(SumRows, &[Some(a)])
    }

    /// The running sum along each row of `a`.
    pub fn cumsum(&mut self, a: TensorId) -> Result<TensorId, Error> {
        self.apply(Cumsum, &[Some(a)])
    }

    /// The mean of each row of `a`.
    pub fn mean(&mut self, a: TensorId) -> Result<TensorId, Error> {
        self.apply(Mean, &[Some(a)])
    }

    /// The index of the largest value of each row of `a`.
    pub fn argmax(&mut self, a: TensorId) -> Result<TensorId, Error> {
        self.apply(Argmax, &[Some(a)])
    }

    /// How many elements of `a` and `b` are equal.
    pub fn count_equal(&mut self, a: TensorId, b: TensorId) -> Result<TensorId, Error> {
        self.apply(CountEqual, &[Some(a), Some(b)])
    }
}
