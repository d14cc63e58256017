//! Delta-net recurrences and the triangular solver they use.

use super::work::{sum, times};
use super::{Args, Category, OpError, OpInfo, Operation, Outcome, Sizes, need};
use crate::dtype::DType;
use crate::error::Error;
use crate::graph::{Graph, TensorId};

/// `x` with `a x = b`, `a` lower triangular; entries above the diagonal are ignored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SolveTri;

/// Gated delta rule; outputs of all tokens first, then the last states, newest first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedDeltaNet {
    /// How many of the last states are returned.
    pub snapshots: usize,
}

impl Operation for SolveTri {
    const INFO: OpInfo = OpInfo::new("SOLVE_TRI", Category::Recurrent, &[need("a"), need("b")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [a, b] = args.sources();
        a.f32()?;
        b.f32()?;
        a.contiguous()?;
        b.contiguous()?;
        let [n, _, planes, volumes] = a.extents();
        a.extent(1, n, "matrices must be square")?;
        b.shape_is([b.ne()[0], n, planes, volumes], "columns, rows of a, batches of a")?;
        args.fresh(DType::F32, b.ne())
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        times([sizes.result(), sum([sizes.ne(0)[0], 1])]) / 2
    }
}

impl Operation for GatedDeltaNet {
    const INFO: OpInfo = OpInfo::new(
        "GATED_DELTA_NET",
        Category::Recurrent,
        &[need("q"), need("k"), need("v"), need("g"), need("beta"), need("state")],
    );

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [q, k, v, g, beta, state] = args.sources();
        for operand in [&q, &k, &v, &g, &beta, &state] {
            operand.f32()?;
        }
        let [size, heads, tokens, batch] = v.extents();
        q.extent(0, size, "the head size of v")?;
        q.extent(2, tokens, "tokens of v")?;
        q.divides(1, heads, "heads of v")?;
        q.divides(3, batch, "batch of v")?;
        k.same_shape(&q)?;
        let gates = g.ne()[0];
        g.shape_is([gates, heads, tokens, batch], "gates, heads, tokens, batch of v")?;
        g.shape(gates == 1 || gates == size, format!("needs 1 or {size} gates per head"))?;
        beta.shape_is([1, heads, tokens, batch], "1, heads, tokens, batch of v")?;
        state.shape_is([size, size, heads, batch], "head size squared, heads, batch of v")?;
        for operand in [&q, &k, &v] {
            operand.contiguous_rows()?;
        }
        for operand in [&g, &beta, &state] {
            operand.contiguous()?;
        }
        let count = self.snapshots;
        args.positive("snapshots", count)?;
        let rows =
            tokens.saturating_mul(batch).saturating_add(count.saturating_mul(size).saturating_mul(batch));
        args.fresh(DType::F32, [size.saturating_mul(heads), rows])
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        let [size, heads, tokens, batch] = sizes.ne(2);
        let kept = tokens.min(self.snapshots as u64);
        // The state is decayed and read, then corrected and read.
        times([size, size, heads, batch, sum([1, times([2, tokens]), kept])])
    }
}

impl Graph {
    /// `x` with `a x = b`, `a` lower triangular.
    pub fn solve_tri(&mut self, a: TensorId, b: TensorId) -> Result<TensorId, Error> {
        self.apply(SolveTri, &[Some(a), Some(b)])
    }

    /// Gated delta rule over `[q, k, v, g, beta, state]`.
    pub fn gated_delta_net(&mut self, sources: [TensorId; 6], snapshots: usize) -> Result<TensorId, Error> {
        self.apply(GatedDeltaNet { snapshots }, &sources.map(Some))
    }
}
