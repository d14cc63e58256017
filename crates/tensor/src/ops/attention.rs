//! Fused attention and the scores of sparse attention.

use super::soft_max::check_max_bias;
use super::{Args, Category, OpError, OpInfo, Operation, Outcome, Precision, WantedDType, may, need};
use crate::dtype::DType;
use crate::error::Error;
use crate::graph::{Graph, TensorId};

/// Attention in one op. Queries are `[d, tokens, heads, batch]`; the result is `[dv, heads, tokens, batch]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlashAttnExt {
    /// Factor of the scores.
    pub scale: f32,
    /// ALiBi: largest bias; 0 for none.
    pub max_bias: f32,
    /// Scores become `softcap * tanh(scores / softcap)`; 0 for none.
    pub softcap: f32,
    /// Precision of sums: any, or `f32`.
    pub precision: Precision,
    /// Promise that no mask row has more finite entries than this; 0 for no promise.
    pub n_kv_max: usize,
}

/// Gradient of attention over `f32`, all gradients in one vector. No current program builds it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlashAttnBack {
    /// Whether later keys were masked.
    pub masked: bool,
}

/// Scores of sparse attention: `y[j, i] = Σ_h max(q_h · k_j, 0) * w[h, i] + mask[j, i]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LightningIndexer;

impl Operation for FlashAttnExt {
    const INFO: OpInfo = OpInfo::new(
        "FLASH_ATTN_EXT",
        Category::Language,
        &[need("q"), need("k"), need("v"), may("mask"), may("sinks")],
    );

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [q, k, v] = args.sources();
        q.f32()?;
        if k.dtype().dot_partner().is_none() {
            return Err(k.bad_dtype(WantedDType::With("a type that can be a weight")));
        }
        v.decodes()?;
        let [d, tokens, heads, batch] = q.extents();
        let kv = k.ne()[1];
        k.extent(0, d, "the head size of q")?;
        k.divides(2, heads, "heads of q")?;
        k.divides(3, batch, "batch of q")?;
        v.divides(2, heads, "heads of q")?;
        v.divides(3, batch, "batch of q")?;
        v.shape(v.ne()[1] >= kv, format!("needs a value for each of the {kv} keys"))?;
        for operand in [&q, &k, &v] {
            operand.unit_stride()?;
        }
        let precise = matches!(self.precision, Precision::Any | Precision::F32);
        args.param("precision", self.precision, precise, "must be any or f32")?;
        args.word("n_kv_max", self.n_kv_max)?;
        let mask = args.optional(3);
        check_max_bias(args, self.max_bias, mask.is_some())?;
        if let Some(mask) = mask {
            mask.one_of(&[DType::F16])?;
            mask.contiguous()?;
            mask.shape(mask.ne()[0] >= kv, format!("needs a column for each of the {kv} keys"))?;
            mask.shape(mask.ne()[1] >= tokens, format!("needs a row for each of the {tokens} tokens"))?;
            mask.divides(2, heads, "heads of q")?;
            mask.divides(3, batch, "batch of q")?;
        }
        if let Some(sinks) = args.optional(4) {
            sinks.f32()?;
            sinks.shape_is(heads, "one sink per head")?;
            sinks.contiguous()?;
        }
        args.fresh(DType::F32, [v.ne()[0], heads, tokens, batch])
    }
}

impl Operation for FlashAttnBack {
    const INFO: OpInfo = OpInfo::new(
        "FLASH_ATTN_BACK",
        Category::Training,
        &[need("q"), need("k"), need("v"), need("gradient")],
    );

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [q, k, v, gradient] = args.sources();
        let [d, _, heads, batch] = q.extents();
        let [_, keys, key_heads, _] = k.extents();
        for operand in [&q, &k, &v, &gradient] {
            operand.f32()?;
            operand.contiguous()?;
            operand.extent(3, batch, "batch of q")?;
        }
        k.extent(0, d, "the head size of q")?;
        k.divides(2, heads, "heads of q")?;
        v.shape_is([keys, d, key_heads, batch], "keys, head size, heads, batch")?;
        gradient.same_shape(&q)?;
        // Each gradient starts at a multiple of 16 bytes.
        let total = [&q, &k, &v]
            .iter()
            .try_fold(0_usize, |sum, t| sum.checked_add(t.layout().elements().checked_next_multiple_of(4)?));
        args.fresh(DType::F32, total.unwrap_or(usize::MAX))
    }
}

impl Operation for LightningIndexer {
    const INFO: OpInfo = OpInfo::new(
        "LIGHTNING_INDEXER",
        Category::Language,
        &[need("q"), need("k"), need("weights"), need("mask")],
    );

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [q, k, weights, mask] = args.sources();
        let [d, heads, tokens, streams] = q.extents();
        let kv = k.ne()[2];
        q.f32()?;
        k.decodes()?;
        weights.f32()?;
        mask.one_of(&[DType::F16])?;
        k.shape_is([d, 1, kv, streams], "head size, one head, keys, streams of q")?;
        weights.shape_is([heads, tokens, 1, streams], "heads, tokens, 1, streams of q")?;
        mask.extent(0, kv, "a column per key")?;
        mask.extent(1, tokens, "a row per token")?;
        mask.extent(2, 1, "one mask for all heads")?;
        mask.divides(3, streams, "streams of q")?;
        for operand in [&q, &k, &weights, &mask] {
            operand.contiguous_rows()?;
        }
        args.fresh(DType::F32, [kv, tokens, 1, streams])
    }
}

impl Graph {
    /// Attention of queries over keys and values, with an optional mask and optional sinks.
    pub fn flash_attn_ext(
        &mut self,
        [q, k, v]: [TensorId; 3],
        mask: Option<TensorId>,
        sinks: Option<TensorId>,
        op: FlashAttnExt,
    ) -> Result<TensorId, Error> {
        self.apply(op, &[Some(q), Some(k), Some(v), mask, sinks])
    }

    /// Gradient of attention; the gradients of `q`, `k` and `v` follow each other, each from a multiple of 16 bytes.
    pub fn flash_attn_back(
        &mut self,
        [q, k, v]: [TensorId; 3],
        gradient: TensorId,
        masked: bool,
    ) -> Result<TensorId, Error> {
        self.apply(FlashAttnBack { masked }, &[Some(q), Some(k), Some(v), Some(gradient)])
    }

    /// Scores of sparse attention.
    pub fn lightning_indexer(
        &mut self,
        q: TensorId,
        k: TensorId,
        weights: TensorId,
        mask: TensorId,
    ) -> Result<TensorId, Error> {
        self.apply(LightningIndexer, &[Some(q), Some(k), Some(weights), Some(mask)])
    }
}
