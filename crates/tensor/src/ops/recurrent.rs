//! State-space and RWKV recurrences.
//!
//! Their results are flat: outputs of all tokens first, then the new states.

use super::work::{sum, times};
use super::{Args, Category, OpError, OpInfo, Operand, Operation, Outcome, Sizes, need};
use crate::dtype::DType;
use crate::error::Error;
use crate::graph::{Graph, TensorId};

/// Short causal convolution: `y[c, t, q] = Σ_j a[t + j, c, q] * kernel[j, c]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SsmConv;

/// Mamba's selective scan, with one decay per head or per state element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SsmScan {
    /// How many of the last states are returned.
    pub snapshots: usize,
    /// Which heads share a group.
    pub grouping: Grouping,
}

/// How heads are dealt out to groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grouping {
    /// Neighbours share one: of 4 heads in 2 groups, 0 and 1, 2 and 3. This is what models mean.
    #[default]
    Neighbours,
    /// In turn: 0 and 2, 1 and 3. Peers of the oldest protocol compute this.
    InTurn,
}

impl Grouping {
    /// The group of a head. There are as many heads in each group.
    pub const fn group(self, head: usize, heads: usize, groups: usize) -> usize {
        match self {
            Grouping::Neighbours => head / (heads / groups),
            Grouping::InTurn => head % groups,
        }
    }
}

/// RWKV version 6: the output sees the old state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RwkvWkv6;

/// RWKV version 7.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RwkvWkv7;

/// Gated linear attention: the output sees the new state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedLinearAttn {
    /// Factor of the queries.
    pub scale: f32,
}

impl Operation for SsmConv {
    const INFO: OpInfo = OpInfo::new("SSM_CONV", Category::Recurrent, &[need("a"), need("kernel")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [a, kernel] = args.sources();
        a.f32()?;
        kernel.f32()?;
        let [row, channels, sequences, _] = a.extents();
        let taps = kernel.ne()[0];
        a.flat_from(3)?;
        a.contiguous_planes()?;
        kernel.contiguous()?;
        kernel.shape_is([taps, channels], "taps, channels of a")?;
        kernel.shape(taps > 0, "needs at least one tap")?;
        a.shape(row >= taps - 1, format!("rows must hold the {} elements before the first token", taps - 1))?;
        args.fresh(DType::F32, [channels, row - (taps - 1), sequences])
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        times([sizes.result(), sizes.ne(1)[0]])
    }
}

/// Sum of products of extents; too large a total is refused when the result's layout is made.
fn total(parts: &[&[usize]]) -> usize {
    let product = |factors: &[usize]| factors.iter().fold(1, |all: usize, &n| all.saturating_mul(n));
    parts.iter().fold(0, |sum: usize, part| sum.saturating_add(product(part)))
}

impl Operation for SsmScan {
    const INFO: OpInfo = OpInfo::new(
        "SSM_SCAN",
        Category::Recurrent,
        &[need("states"), need("x"), need("dt"), need("a"), need("b"), need("c"), need("ids")],
    );

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [states, x, dt, a, b, c, ids] = args.sources();
        for operand in [&states, &x, &dt, &a, &b, &c] {
            operand.f32()?;
        }
        ids.i32()?;
        let [state, dim, heads, _] = states.extents();
        let [_, _, tokens, sequences] = x.extents();
        let groups = b.ne()[1];
        x.shape_is([dim, heads, tokens, sequences], "head size, heads of states, tokens, sequences")?;
        dt.shape_is([heads, tokens, sequences], "heads, tokens, sequences of x")?;
        let decays = a.ne()[0];
        a.shape_is([decays, heads], "decays, heads of states")?;
        a.shape(decays == 1 || decays == state, format!("needs 1 or {state} decays per head"))?;
        b.shape_is([state, groups, tokens, sequences], "state size, groups, tokens, sequences")?;
        b.divides(1, heads, "heads of states")?;
        c.same_shape(&b)?;
        ids.shape_is(sequences, "one state number per sequence")?;
        for operand in [&states, &dt, &a, &ids] {
            operand.contiguous()?;
        }
        for operand in [&x, &b, &c] {
            operand.contiguous_planes()?;
        }
        let k = self.snapshots;
        args.positive("snapshots", k)?;
        args.param("snapshots", k, k == 1 || decays == 1, "must be 1 with a decay per state element")?;
        let outputs = [dim, heads, tokens, sequences];
        args.fresh(DType::F32, total(&[&outputs, &[k, state, dim, heads, sequences]]))
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        let ([width, dim, heads, _], [.., tokens, sequences]) = (sizes.ne(0), sizes.ne(1));
        let kept = tokens.min(self.snapshots as u64);
        times([width, dim, heads, sequences, sum([1, tokens, kept])])
    }
}

/// The common form of the linear recurrences: per-token tensors `[size, heads, tokens]`, and one state of
/// `size * size * heads` per sequence.
fn infer_linear(args: &Args<'_>, per_token: &[Operand], state: &Operand) -> Result<Outcome, OpError> {
    let first = &per_token[0];
    first.flat_from(3)?;
    for operand in per_token {
        operand.f32()?;
        operand.contiguous()?;
        operand.same_shape(first)?;
    }
    let [size, heads, tokens, _] = first.extents();
    state.f32()?;
    state.contiguous()?;
    let sequences = state.ne()[1];
    let wanted = total(&[&[size, size, heads, sequences]]);
    state.shape(
        state.layout().elements() == wanted,
        format!(
            "must hold {wanted} elements, a state of {size}x{size}x{heads} for each of {sequences} sequences"
        ),
    )?;
    let even = sequences > 0 && tokens >= sequences && tokens.is_multiple_of(sequences);
    state.shape(even, format!("dimension 1, the sequences, must divide the {tokens} tokens"))?;
    args.fresh(DType::F32, [total(&[&[size, heads]]), total(&[&[tokens], &[size, sequences]])])
}

impl Operation for RwkvWkv6 {
    const INFO: OpInfo = OpInfo::new(
        "RWKV_WKV6",
        Category::Recurrent,
        &[need("k"), need("v"), need("r"), need("tf"), need("td"), need("state")],
    );

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [k, v, r, tf, td, state] = args.sources();
        tf.f32()?;
        tf.contiguous()?;
        tf.shape_is([k.ne()[0], k.ne()[1]], "head size, heads of k")?;
        infer_linear(args, &[k, v, r, td], &state)
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sum([times([sizes.source(0), sizes.ne(0)[0]]), times([2, sizes.source(5)])])
    }
}

impl Operation for RwkvWkv7 {
    const INFO: OpInfo = OpInfo::new(
        "RWKV_WKV7",
        Category::Recurrent,
        &[need("r"), need("w"), need("k"), need("v"), need("a"), need("b"), need("state")],
    );

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let per_token: [Operand; 6] = args.sources();
        infer_linear(args, &per_token, &args.source(6))
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        // The state is read for its product with a first.
        sum([times([2, sizes.source(0), sizes.ne(0)[0]]), times([2, sizes.source(6)])])
    }
}

impl Operation for GatedLinearAttn {
    const INFO: OpInfo = OpInfo::new(
        "GATED_LINEAR_ATTN",
        Category::Recurrent,
        &[need("k"), need("v"), need("q"), need("g"), need("state")],
    );

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let per_token: [Operand; 4] = args.sources();
        infer_linear(args, &per_token, &args.source(4))
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sum([times([sizes.source(0), sizes.ne(0)[0]]), times([2, sizes.source(4)])])
    }
}

impl Graph {
    /// Short causal convolution of each channel of `a`.
    pub fn ssm_conv(&mut self, a: TensorId, kernel: TensorId) -> Result<TensorId, Error> {
        self.apply(SsmConv, &[Some(a), Some(kernel)])
    }

    /// Mamba's selective scan over `[states, x, dt, a, b, c, ids]`.
    pub fn ssm_scan(&mut self, sources: [TensorId; 7], snapshots: usize) -> Result<TensorId, Error> {
        self.apply(SsmScan { snapshots, grouping: Grouping::Neighbours }, &sources.map(Some))
    }

    /// RWKV version 6 over `[k, v, r, tf, td, state]`.
    pub fn rwkv_wkv6(&mut self, sources: [TensorId; 6]) -> Result<TensorId, Error> {
        self.apply(RwkvWkv6, &sources.map(Some))
    }

    /// RWKV version 7 over `[r, w, k, v, a, b, state]`.
    pub fn rwkv_wkv7(&mut self, sources: [TensorId; 7]) -> Result<TensorId, Error> {
        self.apply(RwkvWkv7, &sources.map(Some))
    }

    /// Gated linear attention over `[k, v, q, g, state]`.
    pub fn gated_linear_attn(&mut self, sources: [TensorId; 5], scale: f32) -> Result<TensorId, Error> {
        self.apply(GatedLinearAttn { scale }, &sources.map(Some))
    }
}
