//! Hyper-connections: several residual streams mixed around each block.

use super::work::times;
use super::{Args, Category, OpError, OpInfo, Operation, Outcome, Sizes, may, need};
use crate::dtype::DType;
use crate::error::Error;
use crate::graph::{Graph, TensorId};

/// The mixing matrix of four streams, made doubly stochastic by alternating normalization.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dsv4HcComb {
    /// Keeps divisors away from zero.
    pub eps: f32,
    /// Rounds of normalization.
    pub iterations: u32,
}

/// The weighted sum of streams that enters a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dsv4HcPre {
    /// Factor of the sum.
    pub scale: f32,
    /// Weights are per element, through a sigmoid.
    pub gated: bool,
}

/// A block's result spread back over the streams.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dsv4HcPost;

/// Entries of `mixes` and `base`: four each for the way in and out, sixteen for the mixing matrix.
const MIXES: usize = 24;

impl Operation for Dsv4HcComb {
    const INFO: OpInfo =
        OpInfo::new("DSV4_HC_COMB", Category::Language, &[need("mixes"), need("scale"), need("base")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [mixes, scale, base] = args.sources();
        for operand in [&mixes, &scale, &base] {
            operand.f32()?;
        }
        let tokens = mixes.ne()[1];
        mixes.shape_is([MIXES, tokens], "24 mixes per token")?;
        scale.flat_from(1)?;
        scale.shape(scale.ne()[0] >= 3, "needs at least 3 elements")?;
        base.shape_is(MIXES, "one per mix")?;
        args.eps(self.eps)?;
        args.positive("iterations", self.iterations)?;
        args.fresh(DType::F32, [4, 4, tokens])
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        times([2, sizes.result(), self.iterations.into()])
    }
}

impl Operation for Dsv4HcPre {
    const INFO: OpInfo = OpInfo::new("DSV4_HC_PRE", Category::Language, &[need("x"), need("weights")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [x, weights] = args.sources();
        x.f32()?;
        weights.f32()?;
        x.flat_from(3)?;
        let [width, streams, tokens, _] = x.extents();
        if self.gated {
            weights.same_shape(&x)?;
        } else {
            weights.shape_is([streams, tokens], "streams, tokens of x")?;
        }
        args.fresh(DType::F32, [width, tokens])
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.source(0)
    }
}

impl Operation for Dsv4HcPost {
    const INFO: OpInfo = OpInfo::new(
        "DSV4_HC_POST",
        Category::Language,
        &[need("x"), need("residual"), need("post"), may("comb")],
    );

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [x, residual, post] = args.sources();
        for operand in [&x, &residual, &post] {
            operand.f32()?;
        }
        let [width, tokens, ..] = x.extents();
        x.flat_from(2)?;
        let streams = residual.ne()[1];
        residual.shape_is([width, streams, tokens], "width, streams, tokens of x")?;
        post.shape_is([streams, tokens], "streams of residual, tokens of x")?;
        if let Some(comb) = args.optional(3) {
            comb.f32()?;
            comb.shape_is([streams, streams, tokens], "streams squared, tokens")?;
        }
        args.fresh(DType::F32, residual.ne())
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        let streams = if sizes.has(3) { sizes.ne(1)[1] } else { 1 };
        times([sizes.result(), streams])
    }
}

impl Graph {
    /// The mixing matrix of four streams.
    pub fn dsv4_hc_comb(
        &mut self,
        mixes: TensorId,
        scale: TensorId,
        base: TensorId,
        op: Dsv4HcComb,
    ) -> Result<TensorId, Error> {
        self.apply(op, &[Some(mixes), Some(scale), Some(base)])
    }

    /// The weighted sum of the streams of `x`.
    pub fn dsv4_hc_pre(&mut self, x: TensorId, weights: TensorId, op: Dsv4HcPre) -> Result<TensorId, Error> {
        self.apply(op, &[Some(x), Some(weights)])
    }

    /// `x` spread back over the streams of `residual`.
    pub fn dsv4_hc_post(
        &mut self,
        x: TensorId,
        residual: TensorId,
        post: TensorId,
        comb: Option<TensorId>,
    ) -> Result<TensorId, Error> {
        self.apply(Dsv4HcPost, &[Some(x), Some(residual), Some(post), comb])
    }
}
