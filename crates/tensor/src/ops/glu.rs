//! Gated units: one half of a tensor, activated, times the other.

use super::{Args, Category, OpError, OpInfo, Operation, Outcome, Sizes, may, need};
use crate::dtype::DType;
use crate::error::Error;
use crate::graph::{Graph, TensorId};

/// The activation of a gated unit; `x` is activated, `g` is the gate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GluKind {
    /// `relu(x) * g`.
    Reglu,
    /// `gelu(x) * g`.
    Geglu,
    /// `silu(x) * g`.
    Swiglu,
    /// `x' / (1 + exp(-alpha x')) * (g' + 1)`, `x'` and `g'` limited.
    SwigluOai {
        /// Steepness of the sigmoid.
        alpha: f32,
        /// Largest `x`, and largest magnitude of `g`.
        limit: f32,
    },
    /// `gelu_erf(x) * g`.
    GegluErf,
    /// `gelu_quick(x) * g`.
    GegluQuick,
    /// `silu(x') * g'`, `x'` and `g'` limited.
    SwigluClamp {
        /// Largest `x`, and largest magnitude of `g`.
        limit: f32,
    },
}

impl GluKind {
    /// ggml's name of the unit, for example `SWIGLU`.
    pub const fn name(&self) -> &'static str {
        match self {
            GluKind::Reglu => "REGLU",
            GluKind::Geglu => "GEGLU",
            GluKind::Swiglu => "SWIGLU",
            GluKind::SwigluOai { .. } => "SWIGLU_OAI",
            GluKind::GegluErf => "GEGLU_ERF",
            GluKind::GegluQuick => "GEGLU_QUICK",
            GluKind::SwigluClamp { .. } => "SWIGLU_CLAMP",
        }
    }

    const fn types(&self) -> &'static [DType] {
        match self {
            GluKind::SwigluOai { .. } => &[DType::F32],
            GluKind::SwigluClamp { .. } => &[DType::F32, DType::F16],
            _ => &[DType::F32, DType::F16, DType::BF16],
        }
    }

    const fn limit(&self) -> Option<f32> {
        match *self {
            GluKind::SwigluOai { limit, .. } | GluKind::SwigluClamp { limit } => Some(limit),
            _ => None,
        }
    }
}

/// A gated unit. With one source, `x` is the first half of each row and `g` the second; with two, `x` is the first
/// and `g` the second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Glu {
    /// The activation.
    pub kind: GluKind,
    /// With one source, exchange the halves.
    pub swapped: bool,
}

/// Gradient of silu: `dy * s * (1 + x (1 - s))`, `s = sigmoid(x)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SiluBack;

impl Operation for Glu {
    const INFO: OpInfo = OpInfo::new("GLU", Category::Language, &[need("a"), may("gate")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let a = args.source(0);
        if let Some(limit) = self.kind.limit() {
            args.param("limit", limit, limit >= 0.0, "must not be negative")?;
        }
        a.one_of(self.kind.types())?;
        a.contiguous_apart_from_rows()?;
        let Some(gate) = args.optional(1) else {
            return args.fresh(a.dtype(), a.ne().with(0, a.ne()[0] / 2));
        };
        gate.same_dtype(&a)?;
        gate.same_shape(&a)?;
        gate.contiguous_apart_from_rows()?;
        args.fresh(a.dtype(), a.ne())
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

impl Operation for SiluBack {
    const INFO: OpInfo =
        OpInfo::new("SILU_BACK", Category::Training, &[need("gradient"), need("x")]).reuses(&[0, 1]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [gradient, x] = args.sources();
        gradient.one_of(&[DType::F32, DType::F16])?;
        x.same_dtype(&gradient)?;
        x.same_shape(&gradient)?;
        gradient.contiguous_apart_from_rows()?;
        x.contiguous_apart_from_rows()?;
        args.fresh(gradient.dtype(), gradient.ne())
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

impl Graph {
    /// Gated unit over the two halves of each row of `a`.
    pub fn glu(&mut self, a: TensorId, kind: GluKind) -> Result<TensorId, Error> {
        self.apply(Glu { kind, swapped: false }, &[Some(a)])
    }

    /// Gated unit over the two halves of each row of `a`, the gate coming first.
    pub fn glu_swapped(&mut self, a: TensorId, kind: GluKind) -> Result<TensorId, Error> {
        self.apply(Glu { kind, swapped: true }, &[Some(a)])
    }

    /// Gated unit over two tensors: `x` is activated, `gate` multiplies.
    pub fn glu_split(&mut self, x: TensorId, gate: TensorId, kind: GluKind) -> Result<TensorId, Error> {
        self.apply(Glu { kind, swapped: false }, &[Some(x), Some(gate)])
    }

    /// Gradient of silu at `x`.
    pub fn silu_back(&mut self, gradient: TensorId, x: TensorId) -> Result<TensorId, Error> {
        self.apply(SiluBack, &[Some(gradient), Some(x)])
    }
}
