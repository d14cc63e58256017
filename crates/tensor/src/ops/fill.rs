//! Values made from parameters and positions: ranges, constants, triangles, sinusoids.

use super::{Args, Category, OpError, OpInfo, Operation, Outcome, Sizes, need};
use crate::dtype::DType;
use crate::error::Error;
use crate::graph::{Graph, TensorId};

/// `start, start + step, …`, ending before `stop`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arange {
    /// The first value.
    pub start: f32,
    /// The end, not reached.
    pub stop: f32,
    /// The distance of values.
    pub step: f32,
}

/// A constant, with the type and extents of the source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fill {
    /// The constant.
    pub value: f32,
}

/// Which part of a square matrix is kept; `i0` is the column, `i1` the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Triangle {
    /// `i0 >= i1`.
    UpperWithDiagonal,
    /// `i0 > i1`.
    Upper,
    /// `i0 <= i1`.
    LowerWithDiagonal,
    /// `i0 < i1`.
    Lower,
}

/// A triangle of each square matrix, zero elsewhere.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tri {
    /// The part that is kept.
    pub keep: Triangle,
}

/// Minus infinity where `i0 > n_past + i1`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiagMaskInf {
    /// Columns before the first row's own.
    pub n_past: usize,
}

/// Zero where `i0 > n_past + i1`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiagMaskZero {
    /// Columns before the first row's own.
    pub n_past: usize,
}

/// Cosines and sines of each value at geometrically falling frequencies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimestepEmbedding {
    /// Length of each embedding.
    pub dim: usize,
    /// The longest period.
    pub max_period: u32,
}

impl Operation for Arange {
    const INFO: OpInfo = OpInfo::new("ARANGE", Category::Vision, &[]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let Arange { start, stop, step } = *self;
        args.param("start", start, start.is_finite(), "must be finite")?;
        args.param("stop", stop, stop.is_finite() && stop > start, "must be finite and above start")?;
        args.param("step", step, step.is_finite() && step > 0.0, "must be finite and positive")?;
        // The cast saturates: too many values are refused when the layout is made.
        args.fresh(DType::F32, ((stop - start) / step).ceil() as usize)
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

impl Operation for Fill {
    const INFO: OpInfo = OpInfo::new("FILL", Category::Language, &[need("a")]).in_place().reuses(&[0]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let a = args.source(0);
        a.one_of(&[DType::F32, DType::F16])?;
        a.contiguous()?;
        args.fresh(a.dtype(), a.ne())
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

impl Operation for Tri {
    const INFO: OpInfo = OpInfo::new("TRI", Category::Recurrent, &[need("a")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let a = args.source(0);
        a.f32()?;
        a.contiguous()?;
        a.extent(1, a.ne()[0], "matrices must be square")?;
        args.fresh(DType::F32, a.ne())
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

fn infer_diag_mask(args: &Args<'_>, n_past: usize) -> Result<Outcome, OpError> {
    let a = args.source(0);
    args.word("n_past", n_past)?;
    a.f32()?;
    if args.in_place() {
        a.unit_stride()?;
    } else {
        a.contiguous()?;
    }
    args.fresh(DType::F32, a.ne())
}

const fn diag_mask_info(name: &'static str) -> OpInfo {
    OpInfo::new(name, Category::Training, &const { [need("a")] }).in_place().reuses(&[0])
}

impl Operation for DiagMaskInf {
    const INFO: OpInfo = diag_mask_info("DIAG_MASK_INF");

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        infer_diag_mask(args, self.n_past)
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

impl Operation for DiagMaskZero {
    const INFO: OpInfo = diag_mask_info("DIAG_MASK_ZERO");

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        infer_diag_mask(args, self.n_past)
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

impl Operation for TimestepEmbedding {
    const INFO: OpInfo = OpInfo::new("TIMESTEP_EMBEDDING", Category::Vision, &[need("steps")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let steps = args.source(0);
        steps.f32()?;
        steps.flat_from(1)?;
        steps.unit_stride()?;
        args.positive("dim", self.dim)?;
        args.positive("max_period", self.max_period as usize)?;
        args.fresh(DType::F32, [self.dim, steps.ne()[0]])
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

impl Graph {
    /// `start, start + step, …`, ending before `stop`.
    pub fn arange(&mut self, start: f32, stop: f32, step: f32) -> Result<TensorId, Error> {
        self.apply(Arange { start, stop, step }, &[])
    }

    /// A constant with the type and extents of `a`.
    pub fn fill(&mut self, a: TensorId, value: f32) -> Result<TensorId, Error> {
        self.apply(Fill { value }, &[Some(a)])
    }

    /// A triangle of each square matrix of `a`.
    pub fn tri(&mut self, a: TensorId, keep: Triangle) -> Result<TensorId, Error> {
        self.apply(Tri { keep }, &[Some(a)])
    }

    /// `a` with minus infinity where a column lies after its row.
    pub fn diag_mask_inf(&mut self, a: TensorId, n_past: usize) -> Result<TensorId, Error> {
        self.apply(DiagMaskInf { n_past }, &[Some(a)])
    }

    /// `a` with zero where a column lies after its row.
    pub fn diag_mask_zero(&mut self, a: TensorId, n_past: usize) -> Result<TensorId, Error> {
        self.apply(DiagMaskZero { n_past }, &[Some(a)])
    }

    /// Sinusoids of each step.
    pub fn timestep_embedding(
        &mut self,
        steps: TensorId,
        dim: usize,
        max_period: u32,
    ) -> Result<TensorId, Error> {
        self.apply(TimestepEmbedding { dim, max_period }, &[Some(steps)])
    }
}
