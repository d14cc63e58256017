//! Scaled, masked softmax and its gradient.

use super::work::{sum, times};
use super::{Args, Category, OpError, OpInfo, Operation, Outcome, Sizes, may, need};
use crate::dtype::DType;
use crate::error::Error;
use crate::graph::{Graph, TensorId};

/// Softmax of `scale * a + slope * mask` along each row, an optional sink taking part in the denominator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SoftMax {
    /// Factor of the scores.
    pub scale: f32,
    /// ALiBi: largest bias; 0 for none.
    pub max_bias: f32,
}

/// Gradient of [`SoftMax`], given its result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SoftMaxBack {
    /// As in the forward pass.
    pub scale: f32,
}

/// A positive bias needs a mask to lie on; a negative one means none; NaN is refused.
pub(super) fn check_max_bias(args: &Args<'_>, max_bias: f32, has_mask: bool) -> Result<(), OpError> {
    args.param("max_bias", max_bias, !max_bias.is_nan(), "must be a number")?;
    args.param("max_bias", max_bias, max_bias <= 0.0 || has_mask, "needs a mask when positive")
}

impl Operation for SoftMax {
    const INFO: OpInfo = OpInfo::new("SOFT_MAX", Category::Language, &[need("a"), may("mask"), may("sinks")])
        .in_place()
        .reuses(&[0, 1]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let a = args.source(0);
        a.f32()?;
        a.contiguous()?;
        let [row, rows, heads, batch] = a.extents();
        let mask = args.optional(1);
        check_max_bias(args, self.max_bias, mask.is_some())?;
        if let Some(mask) = mask {
            mask.one_of(&[DType::F16, DType::F32])?;
            mask.contiguous()?;
            mask.extent(0, row, "the row length of a")?;
            mask.shape(mask.ne()[1] >= rows, format!("needs at least the {rows} rows of a"))?;
            mask.divides(2, heads, "dimension 2 of a")?;
            mask.divides(3, batch, "dimension 3 of a")?;
        }
        if let Some(sinks) = args.optional(2) {
            sinks.f32()?;
            sinks.shape_is(heads, "one sink per head")?;
            sinks.contiguous()?;
        }
        args.fresh(DType::F32, a.ne())
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        // Read, scaled, raised and written; in between rows are whole vectors.
        let [row, ..] = sizes.ne(0);
        times([2, sizes.rows(0), sum([row, row.next_multiple_of(16)])])
    }
}

impl Operation for SoftMaxBack {
    const INFO: OpInfo = OpInfo::new("SOFT_MAX_BACK", Category::Training, &[need("gradient"), need("y")])
        .in_place()
        .reuses(&[0, 1]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [gradient, y] = args.sources();
        gradient.f32()?;
        y.f32()?;
        y.same_shape(&gradient)?;
        gradient.contiguous()?;
        y.contiguous()?;
        args.fresh(DType::F32, gradient.ne())
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        times([2, sizes.result()])
    }
}

impl Graph {
    /// Softmax of each row of `a`.
    pub fn soft_max(&mut self, a: TensorId) -> Result<TensorId, Error> {
        self.soft_max_ext(a, None, None, SoftMax { scale: 1.0, max_bias: 0.0 })
    }

    /// Softmax of each row of `a`, scaled, with an optional mask and optional sinks.
    pub fn soft_max_ext(
        &mut self,
        a: TensorId,
        mask: Option<TensorId>,
        sinks: Option<TensorId>,
        op: SoftMax,
    ) -> Result<TensorId, Error> {
        self.apply(op, &[Some(a), mask, sinks])
    }

    /// Gradient of softmax, given its result `y`.
    pub fn soft_max_back(&mut self, gradient: TensorId, y: TensorId, scale: f32) -> Result<TensorId, Error> {
        self.apply(SoftMaxBack { scale }, &[Some(gradient), Some(y)])
    }
}
