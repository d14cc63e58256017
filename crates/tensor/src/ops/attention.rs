//! Fused attention, over one cache or over pages of many, and the scores of sparse attention.

use super::soft_max::check_max_bias;
use super::work::{sum, times};
use super::{Args, Category, OpError, OpInfo, Operation, Outcome, Precision, Sizes, WantedDType, may, need};
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

/// Attention of tokens of many sequences, whose keys and values lie in pages of [`PAGE`](PagedAttn::PAGE) cells. Not an op of
/// ggml.
///
/// Queries are `[d, heads, tokens]`, a row of keys is a cell `[d * key_heads]`, of values `[dv * key_heads]`, and the result
/// is `[dv, heads, tokens]`. `table[j, s]` is the page of positions `64 * j` to `64 * j + 63` of sequence `s`, -1 where there
/// is none; `tokens[:, t]` is the sequence and the position of token `t`, and a negative sequence is padding, whose result is
/// zero. A token sees the positions of its own sequence up to its own, as far back as `window` and `chunk` say.
///
/// What is read of the table must be pages of the cache, sequences must be columns of the table and positions must lie
/// in it; anything else ends a run with an error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PagedAttn {
    /// Heads of a row of keys and of values.
    pub key_heads: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Scores become `softcap * tanh(scores / softcap)`; 0 for none.
    pub softcap: f32,
    /// ALiBi: largest bias, falling with the distance in positions; 0 for none.
    pub max_bias: f32,
    /// A token at `p` sees nothing before `p + 1 - window`; 0 for everything.
    pub window: usize,
    /// A token at `p` sees nothing before the largest multiple of `chunk` up to `p`; 0 for everything.
    pub chunk: usize,
}

impl PagedAttn {
    /// Cells of a page.
    pub const PAGE: usize = 64;
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

    fn work(&self, sizes: &Sizes) -> u64 {
        let ([d, tokens, heads, batch], [_, keys, ..], [dv, ..]) = (sizes.ne(0), sizes.ne(1), sizes.ne(2));
        times([tokens, heads, batch, keys, sum([d, dv])])
    }
}

impl Operation for PagedAttn {
    const INFO: OpInfo = OpInfo::new(
        "PAGED_ATTN",
        Category::Language,
        &[need("q"), need("keys"), need("values"), need("table"), need("tokens"), may("sinks")],
    );

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [q, keys, values, table, tokens] = args.sources();
        args.positive("key_heads", self.key_heads)?;
        args.word("window", self.window)?;
        args.word("chunk", self.chunk)?;
        args.param("max_bias", self.max_bias, !self.max_bias.is_nan(), "must be a number")?;
        q.f32()?;
        if keys.dtype().dot_partner().is_none() {
            return Err(keys.bad_dtype(WantedDType::With("a type that can be a weight")));
        }
        values.decodes()?;
        q.flat_from(3)?;
        let [d, heads, count, _] = q.extents();
        let cells = keys.ne()[1];
        q.shape(heads.is_multiple_of(self.key_heads), "heads must be a multiple of key_heads")?;
        for (rows, size) in [(&keys, Some(d)), (&values, None)] {
            rows.flat_from(2)?;
            let wanted = size.map(|size| size.saturating_mul(self.key_heads));
            let size = rows.ne()[0] / self.key_heads;
            let whole =
                rows.ne()[0].is_multiple_of(self.key_heads) && size.is_multiple_of(rows.dtype().block_len());
            rows.shape(
                whole && wanted.is_none_or(|wanted| wanted == rows.ne()[0]),
                "rows must be the heads of a cell",
            )?;
        }
        keys.shape(cells.is_multiple_of(Self::PAGE), "cells must be whole pages of 64")?;
        values.extent(1, cells, "cells of keys")?;
        for operand in [&q, &keys, &values] {
            operand.unit_stride()?;
        }
        for operand in [&table, &tokens] {
            operand.i32()?;
            operand.contiguous_rows()?;
        }
        table.flat_from(2)?;
        tokens.shape_is([2, count], "sequence and position of each token of q")?;
        if let Some(sinks) = args.optional(5) {
            sinks.f32()?;
            sinks.shape_is(heads, "one sink per head")?;
            sinks.contiguous()?;
        }
        args.fresh(DType::F32, [values.ne()[0] / self.key_heads, heads, count])
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        let ([d, heads, tokens, _], [pages, ..]) = (sizes.ne(0), sizes.ne(3));
        let limit = |limit: usize| if limit == 0 { u64::MAX } else { sum([limit as u64, Self::PAGE as u64]) };
        // One page may stand anywhere in the table, so the number of cells bounds nothing.
        let seen = times([pages, Self::PAGE as u64]).min(limit(self.window)).min(limit(self.chunk));
        times([tokens, heads, seen, sum([d, sizes.result_ne()[0]])])
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

    fn work(&self, sizes: &Sizes) -> u64 {
        let ([d, tokens, heads, batch], [_, keys, ..]) = (sizes.ne(0), sizes.ne(1));
        // Under a mask the last tokens see all keys, those before them one less each.
        let seeing = tokens.min(keys);
        let seen = match self.masked {
            true => times([seeing, sum([keys, keys - seeing, 1])]) / 2,
            false => times([tokens, keys]),
        };
        // Scores, their gradients, and one product for the gradient of each source.
        sum([times([5, heads, batch, seen, d]), sizes.source(0), sizes.source(1)])
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

    fn work(&self, sizes: &Sizes) -> u64 {
        let ([d, heads, ..], [keys, tokens, _, streams]) = (sizes.ne(0), sizes.result_ne());
        // Queries are laid out for each tile of 64 keys, keys for each 16 tokens.
        let products = times([tokens, heads, d, sum([keys, keys.div_ceil(64)])]);
        times([streams, sum([products, times([tokens.div_ceil(16), keys, d])])])
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

    /// Attention of queries over pages of keys and values that a table names, with optional sinks.
    pub fn paged_attn(
        &mut self,
        [q, keys, values]: [TensorId; 3],
        table: TensorId,
        tokens: TensorId,
        sinks: Option<TensorId>,
        op: PagedAttn,
    ) -> Result<TensorId, Error> {
        self.apply(op, &[Some(q), Some(keys), Some(values), Some(table), Some(tokens), sinks])
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
