//! Normalization of rows and channel groups.

use super::work::times;
use super::{Args, Category, OpError, OpInfo, Operation, Outcome, Sizes, need};
use crate::dtype::DType;
use crate::error::Error;
use crate::graph::{Graph, TensorId};

/// `(x - mean) / sqrt(variance + eps)` along each row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// Keeps the divisor away from zero.
    pub eps: f32,
}

/// `x / sqrt(mean(x²) + eps)` along each row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNorm {
    /// Keeps the divisor away from zero.
    pub eps: f32,
}

/// Gradient of [`RmsNorm`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNormBack {
    /// As in the forward pass.
    pub eps: f32,
}

/// `x / max(‖x‖, eps)` along each row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct L2Norm {
    /// Smallest divisor.
    pub eps: f32,
}

/// Normalization over groups of channels (dimension 2).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupNorm {
    /// Number of groups.
    pub groups: usize,
    /// Keeps the divisor away from zero.
    pub eps: f32,
}

const fn norm_info(name: &'static str, category: Category) -> OpInfo {
    OpInfo::new(name, category, &const { [need("a")] }).in_place()
}

impl Operation for Norm {
    const INFO: OpInfo = norm_info("NORM", Category::Language);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let a = args.source(0);
        args.eps(self.eps)?;
        a.f32()?;
        args.fresh(DType::F32, a.ne())
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        times([3, sizes.result()])
    }
}

impl Operation for RmsNorm {
    const INFO: OpInfo = norm_info("RMS_NORM", Category::Language).reuses(&[0]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let a = args.source(0);
        args.eps(self.eps)?;
        a.f32()?;
        a.contiguous_rows()?;
        args.fresh(DType::F32, a.ne())
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        times([2, sizes.result()])
    }
}

impl Operation for L2Norm {
    const INFO: OpInfo = norm_info("L2_NORM", Category::Recurrent);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let a = args.source(0);
        args.eps(self.eps)?;
        a.f32()?;
        args.fresh(DType::F32, a.ne())
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        times([2, sizes.result()])
    }
}

impl Operation for GroupNorm {
    const INFO: OpInfo = norm_info("GROUP_NORM", Category::Vision);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let a = args.source(0);
        args.eps(self.eps)?;
        args.positive("groups", self.groups)?;
        a.f32()?;
        a.contiguous_rows()?;
        args.fresh(DType::F32, a.ne())
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        times([3, sizes.result()])
    }
}

impl Operation for RmsNormBack {
    const INFO: OpInfo =
        OpInfo::new("RMS_NORM_BACK", Category::Training, &[need("gradient"), need("x")]).reuses(&[0, 1]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [gradient, x] = args.sources();
        args.eps(self.eps)?;
        gradient.f32()?;
        x.f32()?;
        x.same_shape(&gradient)?;
        gradient.contiguous_rows()?;
        x.contiguous_rows()?;
        args.fresh(DType::F32, gradient.ne())
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        times([2, sizes.result()])
    }
}

impl Graph {
    /// Rows of `a` brought to mean 0 and variance 1.
    pub fn norm(&mut self, a: TensorId, eps: f32) -> Result<TensorId, Error> {
        self.apply(Norm { eps }, &[Some(a)])
    }

    /// Rows of `a` brought to mean square 1.
    pub fn rms_norm(&mut self, a: TensorId, eps: f32) -> Result<TensorId, Error> {
        self.apply(RmsNorm { eps }, &[Some(a)])
    }

    /// Gradient of [`rms_norm`](Graph::rms_norm) at `x`.
    pub fn rms_norm_back(&mut self, gradient: TensorId, x: TensorId, eps: f32) -> Result<TensorId, Error> {
        self.apply(RmsNormBack { eps }, &[Some(gradient), Some(x)])
    }

    /// Rows of `a` brought to length 1.
    pub fn l2_norm(&mut self, a: TensorId, eps: f32) -> Result<TensorId, Error> {
        self.apply(L2Norm { eps }, &[Some(a)])
    }

    /// Groups of channels of `a` brought to mean 0 and variance 1.
    pub fn group_norm(&mut self, a: TensorId, groups: usize, eps: f32) -> Result<TensorId, Error> {
        self.apply(GroupNorm { groups, eps }, &[Some(a)])
    }
}
