//! Queries, keys and values; the pages they go through; attention.
//!
//! Invariant: a block's keys and values are written to their cells before attention reads them, because attention reads the
//! results of those writes.

use oxcart_tensor::ops::{FlashAttnExt, MulMat, PagedAttn, Precision, SoftMax, Unary};
use oxcart_tensor::{DType, TensorId};

use super::layers::ScaleOrder;
use super::{Bias, Net};
use crate::model::error::Error;
use crate::model::hyper_parameters::Block;
use crate::runner::state::StateTensor;

/// How attention is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttentionPath {
    /// In one op that finds each token's pages by itself.
    Paged,
    /// In one op over all cells, with a mask that says which of them each token sees. The mask has rows for tokens up to a
    /// multiple of this number, which old workers want to be 64.
    Flash {
        /// What the number of rows of the mask is a multiple of.
        mask_rows: usize,
    },
    /// As products around a softmax, with a mask.
    Plain,
}

impl AttentionPath {
    /// Rows of a mask for so many tokens.
    pub(crate) fn mask_rows(self, tokens: usize) -> usize {
        match self {
            AttentionPath::Flash { mask_rows } => tokens.next_multiple_of(mask_rows),
            AttentionPath::Paged | AttentionPath::Plain => tokens,
        }
    }

    /// Type of masks.
    pub(crate) const fn mask_type(self) -> DType {
        match self {
            AttentionPath::Flash { .. } => DType::F16,
            AttentionPath::Paged | AttentionPath::Plain => DType::F32,
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
        if self.hyper.is_encoder() {
            let keys = self.graph.permute(k, [0, 2, 1, 3])?;
            let values = self.graph.permute(v, [0, 2, 1, 3])?;
            return self.attend([q, keys, values], None, sinks, attention);
        }
        let keys = self.store(k, StateTensor::Keys)?;
        let values = self.store(v, StateTensor::Values)?;
        if self.style.path == AttentionPath::Paged {
            return self.paged([q, keys, values], sinks, attention);
        }
        let (keys, values) = (self.cells_by_head(keys)?, self.cells_by_head(values)?);
        let mask = self.mask()?;
        self.attend([q, keys, values], Some(mask), sinks, attention)
    }

    /// Attention over keys and values [D, cells, G].
    fn attend(
        &mut self,
        [q, keys, values]: [TensorId; 3],
        mask: Option<TensorId>,
        sinks: Option<TensorId>,
        attention: Attention,
    ) -> Result<TensorId, Error> {
        let q = self.graph.permute(q, [0, 2, 1, 3])?; // [D, T, H]
        match self.style.path {
            AttentionPath::Flash { .. } => self.flash([q, keys, values], mask, sinks, attention),
            AttentionPath::Paged | AttentionPath::Plain => {
                let columns = self.graph.transpose(values)?;
                let values = self.graph.cont(columns)?; // [cells, D, G]
                self.softmax([q, keys, values], mask, sinks, attention)
            }
        }
    }

    /// Attention of tokens [D, H, T] that finds its keys and values by the tables of their sequences.
    fn paged(
        &mut self,
        qkv: [TensorId; 3],
        sinks: Option<TensorId>,
        attention: Attention,
    ) -> Result<TensorId, Error> {
        let (table, owners) = (self.state(StateTensor::Table)?, self.owners()?);
        let Block { heads, kv_heads, windowed, .. } = self.block();
        let window = self.hyper.window.filter(|_| windowed).unwrap_or(0);
        let op = PagedAttn {
            key_heads: kv_heads,
            scale: attention.scale,
            softcap: attention.soft_cap.unwrap_or(0.0),
            max_bias: 0.0,
            window,
            chunk: 0,
        };
        let result = self.graph.paged_attn(qkv, table, owners, sinks, op)?; // [D, H, T]
        Ok(self.graph.reshape(result, [self.hyper.head_size * heads, self.step.tokens])?)
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

    /// Which kind of pages the block has.
    fn kind(&self) -> usize {
        usize::from(self.block().windowed)
    }

    /// Writes rows [D, G, T] to the cells of their tokens, and returns all cells. [D * G, cells]
    fn store(&mut self, rows: TensorId, which: StateTensor) -> Result<TensorId, Error> {
        let all = self.state(which)?;
        let cells = self.cells()?;
        let (width, token) = (self.graph.tensor(all)?.ne()[0], self.graph.tensor(rows)?.layout().nb()[2]);
        let rows = self.graph.view(rows, [width, self.step.tokens], &[token], 0)?;
        let stored = self.graph.set_rows(all, rows, cells)?;
        self.graph.expand(stored)?;
        Ok(stored)
    }

    /// The first cells, head by head. [D, cells, G]
    fn cells_by_head(&mut self, all: TensorId) -> Result<TensorId, Error> {
        let (size, groups, dtype) = (self.hyper.head_size, self.block().kv_heads, self.style.cache_type);
        let (cells, row) = (self.step.cells[self.kind()], self.graph.tensor(all)?.layout().nb()[1]);
        let too_wide = || {
            Error::setting("the type of the cache", dtype, format!("heads of {size} are not whole blocks"))
        };
        let head = dtype.row_bytes(size).ok_or_else(too_wide)?;
        Ok(self.graph.view(all, [size, cells, groups], &[row, head], 0)?)
    }

    /// The cell that each token's keys and values go to. [T]
    fn cells(&mut self) -> Result<TensorId, Error> {
        let kind = self.kind();
        if let Some(cells) = self.inputs.cells[kind] {
            return Ok(cells);
        }
        let name = ["attn_inp_k_idxs", "attn_inp_k_idxs_swa"][kind];
        let cells = self.input(name, DType::I64, self.step.tokens)?;
        self.inputs.cells[kind] = Some(cells);
        Ok(cells)
    }

    /// Row of the table and position of each token. [2, T]
    fn owners(&mut self) -> Result<TensorId, Error> {
        if let Some(owners) = self.inputs.owners {
            return Ok(owners);
        }
        let owners = self.input("inp_owners", DType::I32, [2, self.step.tokens])?;
        self.inputs.owners = Some(owners);
        Ok(owners)
    }

    /// Which cells each token sees. [cells, T]
    fn mask(&mut self) -> Result<TensorId, Error> {
        let kind = self.kind();
        if let Some(mask) = self.inputs.masks[kind] {
            return Ok(mask);
        }
        let (path, tokens) = (self.style.path, self.step.tokens);
        let shape = [self.step.cells[kind], path.mask_rows(tokens)];
        let mask = self.input(["attn_inp_kq_mask", "attn_inp_kq_mask_swa"][kind], path.mask_type(), shape)?;
        self.inputs.masks[kind] = Some(mask);
        Ok(mask)
    }
}
