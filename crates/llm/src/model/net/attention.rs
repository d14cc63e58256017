//! Queries, keys and values; the caches they go through; attention.
//!
//! Invariant: a block's keys and values are written to its cache before attention reads it, because attention reads the
//! results of those writes. Cells that were not written are zero, and masked.

use oxcart_tensor::ops::{FlashAttnExt, MulMat, Precision, SoftMax, Unary};
use oxcart_tensor::{DType, Layout, TensorId};

use super::layers::ScaleOrder;
use super::{Bias, Net, Supply};
use crate::model::cache::Caches;
use crate::model::error::Error;
use crate::model::hyper_parameters::Block;

/// How attention is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttentionPath {
    /// In one op. The mask has rows for tokens up to a multiple of this number, which old workers want to be 64.
    Flash {
        /// What the number of rows of the mask is a multiple of.
        mask_rows: usize,
    },
    /// As products around a softmax, cached values being transposed.
    Plain,
}

impl AttentionPath {
    /// Rows of a mask for so many tokens.
    pub(crate) fn mask_rows(self, tokens: usize) -> usize {
        match self {
            AttentionPath::Flash { mask_rows } => tokens.next_multiple_of(mask_rows),
            AttentionPath::Plain => tokens,
        }
    }

    /// Type of masks.
    pub(crate) const fn mask_type(self) -> DType {
        match self {
            AttentionPath::Flash { .. } => DType::F16,
            AttentionPath::Plain => DType::F32,
        }
    }
}

/// What is special about a block's attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attention {
    /// Factor of scores.
    pub(crate) scale: f32,
    /// Bound of scores.
    pub(crate) soft_cap: Option<f32>,
    /// Whether each head has a score that belongs to no token.
    pub(crate) sinks: bool,
}

impl Attention {
    pub(crate) const fn scaled(scale: f32) -> Attention {
        Attention { scale, soft_cap: None, sinks: false }
    }
}

impl Net<'_> {
    /// `1 / sqrt(D)`.
    pub(crate) fn head_scale(&self) -> f32 {
        (self.hyper.head_size as f32).sqrt().recip()
    }

    /// Queries [D, H, T], keys and values [D, G, T], from three matrices or one.
    pub(crate) fn qkv(&mut self, x: TensorId, bias: Bias) -> Result<(TensorId, TensorId, TensorId), Error> {
        let (size, Block { heads, kv_heads, .. }) = (self.hyper.head_size, self.block());
        let width = self.hyper.embedding;
        let all = heads + 2 * kv_heads;
        if self.optional("attn_qkv.weight", [width, size * all])?.is_some() {
            let fused = self.product(x, "attn_qkv", size * all, bias, ScaleOrder::BeforeBias)?;
            let (float, tokens) = (DType::F32.block_bytes(), self.step.tokens);
            let mut part = |first: usize, count: usize| {
                let strides = [size * float, size * all * float];
                self.graph.view(fused, [size, count, tokens], &strides, first * size * float)
            };
            return Ok((part(0, heads)?, part(heads, kv_heads)?, part(heads + kv_heads, kv_heads)?));
        }
        let mut part = |base, count| -> Result<TensorId, Error> {
            let rows = self.product(x, base, size * count, bias, ScaleOrder::BeforeBias)?;
            Ok(self.graph.reshape(rows, [size, count, self.step.tokens])?)
        };
        Ok((part("attn_q", heads)?, part("attn_k", kv_heads)?, part("attn_v", kv_heads)?))
    }

    /// Queries or keys rotated by their positions.
    pub(crate) fn rope(&mut self, x: TensorId) -> Result<TensorId, Error> {
        let positions = self.positions()?;
        let factors = self.rope_factors()?;
        let rope = if self.block().windowed { self.hyper.rope_windowed } else { self.hyper.rope };
        Ok(self.graph.rope(x, positions, factors, rope)?)
    }

    /// What frequencies are divided by, if anything.
    pub(super) fn rope_factors(&mut self) -> Result<Option<TensorId>, Error> {
        let pairs = self.hyper.rope.n_dims / 2;
        // All are looked up, so that all are known to be needed.
        let long = self.global("rope_factors_long.weight", pairs)?;
        let short = self.global("rope_factors_short.weight", pairs)?;
        let by_length = if self.style.long_context { long } else { short };
        Ok(self.global("rope_freqs.weight", pairs)?.or(by_length))
    }

    /// The product with the output matrix of attention. [E, T]
    pub(crate) fn attention_output(&mut self, x: TensorId, bias: Bias) -> Result<TensorId, Error> {
        self.product(x, "attn_output", self.hyper.embedding, bias, ScaleOrder::BeforeBias)
    }

    /// What each token makes of the values of the tokens it sees. [D * H, T]
    pub(crate) fn attention(
        &mut self,
        [q, k, v]: [TensorId; 3],
        attention: Attention,
    ) -> Result<TensorId, Error> {
        let sinks = match attention.sinks {
            true => Some(self.weight("attn_sinks.weight", self.block().heads)?),
            false => None,
        };
        // Written in this order, keys are rotated and stored in one go.
        self.graph.expand(q)?;
        self.graph.expand(v)?;
        let (keys, values, mask) = if self.hyper.is_encoder() {
            let keys = self.graph.permute(k, [0, 2, 1, 3])?;
            let values = self.graph.permute(v, [0, 2, 1, 3])?;
            let values = match self.style.path {
                AttentionPath::Flash { .. } => values,
                AttentionPath::Plain => {
                    let columns = self.graph.transpose(values)?;
                    self.graph.cont(columns)?
                }
            };
            (keys, values, None)
        } else {
            let (keys, values) = self.through_cache(k, v)?;
            (keys, values, Some(self.mask()?))
        };
        let q = self.graph.permute(q, [0, 2, 1, 3])?; // [D, T, H]
        match self.style.path {
            AttentionPath::Flash { .. } => self.flash([q, keys, values], mask, sinks, attention),
            AttentionPath::Plain => self.softmax([q, keys, values], mask, sinks, attention),
        }
    }

    fn flash(
        &mut self,
        qkv: [TensorId; 3],
        mask: Option<TensorId>,
        sinks: Option<TensorId>,
        attention: Attention,
    ) -> Result<TensorId, Error> {
        let op = FlashAttnExt {
            scale: attention.scale,
            max_bias: 0.0,
            softcap: attention.soft_cap.unwrap_or(0.0),
            precision: Precision::F32,
            n_kv_max: 0,
        };
        let result = self.graph.flash_attn_ext(qkv, mask, sinks, op)?; // [D, H, T]
        let width = self.hyper.head_size * self.block().heads;
        Ok(self.graph.reshape(result, [width, self.step.tokens])?)
    }

    fn softmax(
        &mut self,
        [q, k, v]: [TensorId; 3],
        mask: Option<TensorId>,
        sinks: Option<TensorId>,
        attention: Attention,
    ) -> Result<TensorId, Error> {
        let exact = MulMat { accumulate: Precision::F32, ..MulMat::default() };
        let mut scores = self.graph.apply(exact, &[Some(k), Some(q)])?; // [cells, T, H]
        if let Some(cap) = attention.soft_cap {
            // The op bounds scores after scaling them.
            let small = self.graph.scale(scores, attention.scale / cap)?;
            let bounded = self.graph.unary(small, Unary::Tanh)?;
            scores = self.graph.scale(bounded, cap)?;
        }
        let scale = if attention.soft_cap.is_some() { 1.0 } else { attention.scale };
        let weights = self.graph.soft_max_ext(scores, mask, sinks, SoftMax { scale, max_bias: 0.0 })?;
        let result = self.graph.mul_mat(v, weights)?; // [D, T, H]
        let result = self.graph.permute(result, [0, 2, 1, 3])?;
        let width = self.hyper.head_size * self.block().heads;
        Ok(self.graph.cont_as(result, [width, self.step.tokens])?)
    }

    /// Which of the two kinds of cache the block uses.
    pub(super) fn kind(&self) -> usize {
        usize::from(self.block().windowed)
    }

    /// Writes keys and values [D, G, T] to the block's cache and returns all of them, as attention reads them:
    /// [D, cells, G], values transposed where the path wants it.
    fn through_cache(&mut self, k: TensorId, v: TensorId) -> Result<(TensorId, TensorId), Error> {
        let kind = self.kind();
        let (size, groups, dtype) = (self.hyper.head_size, self.block().kv_heads, self.style.cache_type);
        let (width, cells) = (size * groups, self.step.cells[kind]);
        let (key_cache, value_cache) = self.caches()?;
        let CellInputs { key_cells, value_cells } = self.cell_inputs()?;
        let rows = self.rows_of(k, width)?;
        let stored_keys = self.graph.set_rows(key_cache, rows, key_cells)?;
        self.graph.expand(stored_keys)?;
        let too_wide = || {
            Error::setting("the type of the cache", dtype, format!("heads of {size} are not whole blocks"))
        };
        let (row, head) = (dtype.row_bytes(width), dtype.row_bytes(size));
        let (row, head) = row.zip(head).ok_or_else(too_wide)?;
        let keys = self.graph.view(stored_keys, [size, cells, groups], &[row, head], 0)?;
        let values = match self.style.path {
            AttentionPath::Flash { .. } => {
                let rows = self.rows_of(v, width)?;
                let stored = self.graph.set_rows(value_cache, rows, key_cells)?;
                self.graph.expand(stored)?;
                self.graph.view(stored, [size, cells, groups], &[row, head], 0)?
            }
            AttentionPath::Plain => {
                let element = dtype.block_bytes();
                let all = self.graph.tensor(value_cache)?.layout().elements() / width;
                let rows = self.graph.cont_as(v, [1, width * self.step.tokens])?;
                let stored = self.graph.set_rows(value_cache, rows, value_cells)?;
                self.graph.expand(stored)?;
                let strides = [all * element, all * element * size];
                self.graph.view(stored, [cells, size, groups], &strides, 0)?
            }
        };
        Ok((keys, values))
    }

    /// Keys or values of a token as one row. [D * G, T]
    fn rows_of(&mut self, x: TensorId, width: usize) -> Result<TensorId, Error> {
        let token = self.graph.tensor(x)?.layout().nb()[2];
        Ok(self.graph.view(x, [width, self.step.tokens], &[token], 0)?)
    }

    /// The block's caches of keys and values.
    pub(super) fn caches(&mut self) -> Result<(TensorId, TensorId), Error> {
        let block = self.block_index();
        let width = self.hyper.kv_channels(block);
        let (layouts, places) = match &self.supply {
            Supply::Survey { .. } => {
                let layout = Layout::packed(self.style.cache_type, [width, self.step.cells[self.kind()]])?;
                ([layout; 2], [None; 2])
            }
            Supply::Loaded { caches, .. } => {
                let missing = || Error::MissingTensor { name: format!("cache_k_l{block}") };
                let cache = caches.and_then(|caches: &Caches| caches.of(block)).ok_or_else(missing)?;
                ([cache.keys.layout, cache.values.layout], [Some(cache.keys.place), Some(cache.values.place)])
            }
        };
        let keys = self.bound_leaf(format!("cache_k_l{block}"), layouts[0], places[0])?;
        let values = self.bound_leaf(format!("cache_v_l{block}"), layouts[1], places[1])?;
        Ok((keys, values))
    }

    /// Inputs that say which cells tokens go to.
    fn cell_inputs(&mut self) -> Result<CellInputs, Error> {
        let (kind, tokens) = (self.kind(), self.step.tokens);
        let suffix = ["", "_swa"][kind];
        let key_cells = match self.inputs.caches[kind].key_cells {
            Some(cells) => cells,
            None => self.input(&format!("attn_inp_k_idxs{suffix}"), DType::I64, tokens)?,
        };
        self.inputs.caches[kind].key_cells = Some(key_cells);
        if matches!(self.style.path, AttentionPath::Flash { .. }) {
            return Ok(CellInputs { key_cells, value_cells: key_cells });
        }
        let width = self.hyper.kv_channels(self.block_index());
        let value_cells = match self.inputs.caches[kind].value_cells {
            Some(cells) => cells,
            None => self.input(&format!("attn_inp_v_idxs{suffix}"), DType::I64, tokens * width)?,
        };
        self.inputs.caches[kind].value_cells = Some(value_cells);
        Ok(CellInputs { key_cells, value_cells })
    }

    /// Which cells each token sees. [cells, T]
    fn mask(&mut self) -> Result<TensorId, Error> {
        let kind = self.kind();
        if let Some(mask) = self.inputs.caches[kind].mask {
            return Ok(mask);
        }
        let (path, tokens) = (self.style.path, self.step.tokens);
        let shape = [self.step.cells[kind], path.mask_rows(tokens)];
        let mask = self.input(["attn_inp_kq_mask", "attn_inp_kq_mask_swa"][kind], path.mask_type(), shape)?;
        self.inputs.caches[kind].mask = Some(mask);
        Ok(mask)
    }
}

/// The inputs of one kind of cache, both there.
struct CellInputs {
    key_cells: TensorId,
    value_cells: TensorId,
}
