//! Queries, keys and values; the pages they go through; attention.
//!
//! Invariant: a block's keys and values are written to their cells before attention reads them, because attention reads the
//! results of those writes.

use oxcart_tensor::ops::{FlashAttnExt, MulMat, PagedAttn, Precision, SoftMax, Unary};
use oxcart_tensor::{DType, TensorId};

use super::layers::Scale;
use super::{Bias, Net};
use crate::model::error::Error;
use crate::model::hyper_parameters::{Block, HyperParameters, Window};
use crate::runner::sequence::KINDS;
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
    /// The one that a model is computed with if nothing is in its way.
    pub(crate) fn usual(hyper: &HyperParameters) -> AttentionPath {
        match (hyper.sees_whole(), hyper.needs_masks()) {
            (true, _) => AttentionPath::Flash { mask_rows: 1 },
            (false, true) => AttentionPath::Plain,
            (false, false) => AttentionPath::Paged,
        }
    }

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

/// Names of masks, by kind of page.
const MASKS: [&str; KINDS] = ["attn_inp_kq_mask", "attn_inp_kq_mask_swa"];

/// What is special about a block's attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attention {
    /// Factor of scores.
    pub(crate) scale: f32,
    /// Bound of scores.
    pub(crate) soft_cap: Option<f32>,
    /// Whether each head has a score that belongs to no token.
    pub(crate) sinks: bool,
    /// A mask of the cells that each token looks at, where those are not all that it may see. [cells, T]
    pub(crate) found: Option<TensorId>,
    /// What is added to scores of each cell, by token and head, before they are scaled. [cells, T, H]
    pub(crate) bias: Option<TensorId>,
}

/// What gates of attention weigh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// Whole heads.
    Heads,
    /// Each channel by itself.
    Channels,
}

impl Attention {
    pub(crate) const fn scaled(scale: f32) -> Attention {
        Attention { scale, soft_cap: None, sinks: false, found: None, bias: None }
    }
}

impl Net<'_> {
    /// `1 / sqrt(D)`, or what the file gives.
    pub(crate) fn head_scale(&self) -> f32 {
        let by_size = || (self.block().key_size as f32).sqrt().recip();
        self.hyper.factors.attention.unwrap_or_else(by_size)
    }

    /// Queries [D, H, T], keys [D, G, T] and values [V, G, T], from three matrices or one.
    pub(crate) fn qkv(&mut self, x: TensorId, bias: Bias) -> Result<(TensorId, TensorId, TensorId), Error> {
        let Block { heads, kv_heads, key_size, value_size, .. } = self.block();
        let parts = [(heads, key_size), (kv_heads, key_size), (kv_heads, value_size)];
        let all: usize = parts.iter().map(|(count, size)| count * size).sum();
        let tokens = self.step.tokens;
        if self.optional("attn_qkv.weight", [self.hyper.embedding, all])?.is_some() {
            let fused = self.product(x, "attn_qkv", all, bias, Scale::Qkv)?;
            let fused = self.limited(fused)?;
            let mut before = 0;
            let [q, k, v] = parts.map(|(count, size)| {
                let part = self.columns(fused, before, [size, count]);
                before += count * size;
                part
            });
            return Ok((q?, k?, v?));
        }
        let mut part = |base, (count, size)| -> Result<TensorId, Error> {
            let rows = self.product(x, base, size * count, bias, Scale::Qkv)?;
            let rows = self.limited(rows)?;
            Ok(self.graph.reshape(rows, [size, count, tokens])?)
        };
        let (q, k, v) = (part("attn_q", parts[0])?, part("attn_k", parts[1])?, part("attn_v", parts[2])?);
        // One after another, products of the same activations are computed in one go.
        for x in [q, k, v] {
            self.graph.expand(x)?;
        }
        Ok((q, k, v))
    }

    /// As [`qkv`](Net::qkv), with gates that come with the queries, head by head: queries [D, H, T], gates [D * H, T].
    pub(crate) fn gated_qkv(
        &mut self,
        x: TensorId,
        bias: Bias,
    ) -> Result<([TensorId; 2], TensorId, TensorId), Error> {
        let Block { heads, kv_heads, key_size, value_size, .. } = self.block();
        let mut part = |base, width| self.product(x, base, width, bias, Scale::Qkv);
        let both = part("attn_q", 2 * key_size * heads)?;
        let (k, v) = (part("attn_k", key_size * kv_heads)?, part("attn_v", value_size * kv_heads)?);
        let tokens = self.step.tokens;
        let both = self.graph.reshape(both, [2 * key_size, heads, tokens])?;
        let (q, gates) = (self.part(both, 0, key_size)?, self.part(both, key_size, key_size)?);
        let gates = self.graph.cont_as(gates, [key_size * heads, tokens])?;
        let k = self.graph.reshape(k, [key_size, kv_heads, tokens])?;
        let v = self.graph.reshape(v, [value_size, kv_heads, tokens])?;
        Ok(([q, gates], k, v))
    }

    /// Some channels of every head. [count, H, T]
    pub(super) fn part(&mut self, heads: TensorId, first: usize, count: usize) -> Result<TensorId, Error> {
        let layout = self.graph.tensor(heads)?.layout();
        let (shape, [channel, head, token, _]) = (layout.ne(), layout.nb());
        Ok(self.graph.view(heads, [count, shape[1], shape[2]], &[head, token], first * channel)?)
    }

    /// Some channels of rows [C, T], from the first on, as heads. [size, count, T]
    pub(super) fn columns(
        &mut self,
        rows: TensorId,
        first: usize,
        [size, count]: [usize; 2],
    ) -> Result<TensorId, Error> {
        let (float, tensor) = (DType::F32.block_bytes(), self.graph.tensor(rows)?);
        let (tokens, row) = (tensor.ne()[1], tensor.layout().nb()[1]);
        Ok(self.graph.view(rows, [size, count, tokens], &[size * float, row], first * float)?)
    }

    /// Queries, keys or values within the bound that some architectures have.
    fn limited(&mut self, x: TensorId) -> Result<TensorId, Error> {
        match self.hyper.qkv_limit {
            Some(limit) => Ok(self.graph.clamp(x, -limit, limit)?),
            None => Ok(x),
        }
    }

    /// Queries or keys rotated by their positions, where the block rotates them.
    pub(crate) fn rope(&mut self, x: TensorId) -> Result<TensorId, Error> {
        // Looked up in every block, so that they are known to be needed.
        let factors = self.rope_factors()?;
        if !self.block().rotates {
            return Ok(x);
        }
        let rope = if self.block().windowed { self.hyper.rope_windowed } else { self.hyper.rope };
        let positions = if rope.mode.has_sections() { self.section_positions()? } else { self.positions()? };
        Ok(self.graph.rope(x, positions, factors, rope)?)
    }

    /// Four positions of each token: all first ones, all second ones, and so on. [4 * T]
    fn section_positions(&mut self) -> Result<TensorId, Error> {
        if let Some(positions) = self.inputs.section_positions {
            return Ok(positions);
        }
        let positions = self.input("inp_pos_sections", DType::I32, 4 * self.step.tokens)?;
        self.inputs.section_positions = Some(positions);
        Ok(positions)
    }

    /// What frequencies are divided by, if anything.
    pub(super) fn rope_factors(&mut self) -> Result<Option<TensorId>, Error> {
        if !self.hyper.architecture.traits.frequency_factors {
            return Ok(None);
        }
        let pairs = self.hyper.rope.n_dims / 2;
        // All are looked up, so that all are known to be needed.
        let long = self.global("rope_factors_long.weight", pairs)?;
        let short = self.global("rope_factors_short.weight", pairs)?;
        let by_length = if self.style.long_context { long } else { short };
        Ok(self.global("rope_freqs.weight", pairs)?.or(by_length))
    }

    /// Queries multiplied by what their positions ask for, if the architecture has that. [D, H, T]
    pub(crate) fn tempered(&mut self, q: TensorId) -> Result<TensorId, Error> {
        if self.hyper.temperature.is_none() {
            return Ok(q);
        }
        let temperatures = match self.inputs.temperatures {
            Some(temperatures) => temperatures,
            None => self.input("inp_attn_scale", DType::F32, [1, 1, self.step.tokens])?,
        };
        self.inputs.temperatures = Some(temperatures);
        Ok(self.graph.mul(q, temperatures)?)
    }

    /// The product with the output matrix of attention. [E, T]
    pub(crate) fn attention_output(&mut self, x: TensorId, bias: Bias) -> Result<TensorId, Error> {
        self.product(x, "attn_output", self.hyper.embedding, bias, Scale::AttentionOutput)
    }

    /// What each token makes of the values of the tokens it sees. [V * H, T]
    pub(crate) fn attention(&mut self, qkv: [TensorId; 3], attention: Attention) -> Result<TensorId, Error> {
        let heads = self.attended(qkv, attention)?;
        let Block { heads: count, value_size, .. } = self.block();
        Ok(self.graph.reshape(heads, [value_size * count, self.step.tokens])?)
    }

    /// Attention with rotated queries and keys and the usual scale, brought back to the width of the model: how most families
    /// end it.
    pub(crate) fn rotary_attention(&mut self, [q, k, v]: [TensorId; 3]) -> Result<TensorId, Error> {
        let (q, k) = (self.rope(q)?, self.rope(k)?);
        self.scaled_attention([q, k, v])
    }

    /// Attention with the usual scale, brought back to the width of the model. [E, T]
    pub(crate) fn scaled_attention(&mut self, qkv: [TensorId; 3]) -> Result<TensorId, Error> {
        let scale = self.head_scale();
        let a = self.attention(qkv, Attention::scaled(scale))?;
        self.attention_output(a, Bias::Optional)
    }

    /// What attention gave, [D * H, T], times gates of what it read.
    pub(crate) fn gated_result(
        &mut self,
        a: TensorId,
        h: TensorId,
        gate: Gate,
        function: Unary,
    ) -> Result<TensorId, Error> {
        let (heads, tokens, width) = (self.block().heads, self.step.tokens, self.row_len(a)?);
        let count = if gate == Gate::Heads { heads } else { width };
        let gates = self.product(h, "attn_gate", count, Bias::None, Scale::None)?;
        let gates = self.graph.unary(gates, function)?;
        if gate == Gate::Channels {
            return Ok(self.graph.mul(a, gates)?);
        }
        let by_head = self.graph.reshape(a, [width / heads, heads, tokens])?;
        let gates = self.graph.reshape(gates, [1, heads, tokens])?;
        let gated = self.graph.mul(by_head, gates)?;
        Ok(self.graph.reshape(gated, [width, tokens])?)
    }

    /// Whether the file has a gate for each head rather than for each channel.
    pub(crate) fn gates_heads(&self) -> bool {
        self.extents("attn_gate.weight").is_none_or(|shape| shape[1] == self.block().heads)
    }

    /// Attention as most families have it: queries, keys and values of `h`, rotated. [E, T]
    pub(crate) fn plain_attention(&mut self, h: TensorId) -> Result<TensorId, Error> {
        let (q, k, v) = self.qkv(h, Bias::Optional)?;
        self.rotary_attention([q, k, v])
    }

    /// As [`plain_attention`](Net::plain_attention), without the bias that files may have beside the last matrix. [E, T]
    pub(crate) fn unbiased_attention(&mut self, h: TensorId) -> Result<TensorId, Error> {
        let (q, k, v) = self.qkv(h, Bias::Optional)?;
        let (q, k) = (self.rope(q)?, self.rope(k)?);
        let scale = self.head_scale();
        let a = self.attention([q, k, v], Attention::scaled(scale))?;
        self.pass_over("attn_output.bias");
        self.attention_output(a, Bias::None)
    }

    /// As [`plain_attention`](Net::plain_attention), with a norm of each head of queries and keys before they are rotated. [E, T]
    pub(crate) fn normed_attention(&mut self, h: TensorId) -> Result<TensorId, Error> {
        let (q, k, v) = self.qkv(h, Bias::Optional)?;
        let (q, k) = (self.head_norm(q, "attn_q_norm")?, self.head_norm(k, "attn_k_norm")?);
        self.rotary_attention([q, k, v])
    }

    /// As [`attention`](Net::attention), by head. [V, H, T]
    pub(super) fn attended(
        &mut self,
        [mut q, mut k, mut v]: [TensorId; 3],
        attention: Attention,
    ) -> Result<TensorId, Error> {
        let sinks = match attention.sinks {
            true => Some(self.weight("attn_sinks.weight", self.block().heads)?),
            false => None,
        };
        let mixing = self.mixing();
        if mixing.keys {
            (q, k) = (self.mixed(q)?, self.mixed(k)?);
        }
        let has_values = self.block().state.rows.is_some_and(|rows| rows.values > 0);
        if mixing.values && has_values {
            v = self.mixed(v)?;
        }
        // Written in this order, keys are rotated and stored in one go.
        self.graph.expand(q)?;
        self.graph.expand(v)?;
        if self.hyper.sees_whole() || self.step.reads {
            let keys = self.graph.permute(k, [0, 2, 1, 3])?;
            let values = self.graph.permute(v, [0, 2, 1, 3])?;
            let mask = self.whole_mask()?;
            return self.attend([q, keys, values], mask, sinks, attention);
        }
        let Block { key_size, value_size, kv_heads, .. } = self.block();
        let keys = self.store(k, StateTensor::Keys)?;
        let values = match has_values {
            true => self.store(v, StateTensor::Values)?,
            // They are the first channels of the keys.
            false => {
                let layout = self.graph.tensor(keys)?.layout();
                let (cells, row) = (layout.ne()[1], layout.nb()[1]);
                self.graph.view(keys, [value_size * kv_heads, cells], &[row], 0)?
            }
        };
        let heads = if self.style.path == AttentionPath::Paged {
            self.paged([q, keys, values], sinks, attention)?
        } else {
            let keys = self.cells_by_head(keys, key_size)?;
            let values = self.cells_by_head(values, value_size)?;
            let mask = match attention.found {
                Some(found) => found,
                None => self.mask()?,
            };
            self.attend([q, keys, values], Some(mask), sinks, attention)?
        };
        if mixing.values { self.mixed(heads) } else { Ok(heads) }
    }

    /// Attention over keys [D, cells, G] and values [V, cells, G].
    pub(super) fn attend(
        &mut self,
        [q, keys, values]: [TensorId; 3],
        mask: Option<TensorId>,
        sinks: Option<TensorId>,
        attention: Attention,
    ) -> Result<TensorId, Error> {
        let q = self.graph.permute(q, [0, 2, 1, 3])?; // [D, T, H]
        match self.style.path {
            AttentionPath::Flash { .. } if attention.bias.is_none() => {
                self.flash([q, keys, values], mask, sinks, attention)
            }
            AttentionPath::Flash { .. } | AttentionPath::Paged | AttentionPath::Plain => {
                let columns = self.graph.transpose(values)?;
                let values = self.graph.cont(columns)?; // [cells, V, G]
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
        let Block { kv_heads, windowed, .. } = self.block();
        let (window, chunk) = match self.hyper.window.filter(|_| windowed) {
            Some(Window::Sliding(length)) => (length, 0),
            Some(Window::Chunked(length)) => (0, length),
            None => (0, 0),
        };
        let op = PagedAttn {
            key_heads: kv_heads,
            scale: attention.scale,
            softcap: attention.soft_cap.unwrap_or(0.0),
            max_bias: self.hyper.position_bias.unwrap_or(0.0),
            window,
            chunk,
        };
        Ok(self.graph.paged_attn(qkv, table, owners, sinks, op)?)
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
            max_bias: self.hyper.position_bias.unwrap_or(0.0),
            softcap: attention.soft_cap.unwrap_or(0.0),
            precision: Precision::F32,
            n_kv_max: 0,
        };
        Ok(self.graph.flash_attn_ext(qkv, mask, sinks, op)?)
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
        if let Some(bias) = attention.bias {
            scores = self.graph.add(scores, bias)?;
        }
        if let Some(cap) = attention.soft_cap {
            // The op bounds scores after scaling them.
            let small = self.graph.scale(scores, attention.scale / cap)?;
            let bounded = self.graph.unary(small, Unary::Tanh)?;
            scores = self.graph.scale(bounded, cap)?;
        }
        let scale = if attention.soft_cap.is_some() { 1.0 } else { attention.scale };
        let max_bias = self.hyper.position_bias.unwrap_or(0.0);
        let weights = self.graph.soft_max_ext(scores, mask, sinks, SoftMax { scale, max_bias })?;
        let result = self.graph.mul_mat(v, weights)?; // [V, T, H]
        let result = self.graph.permute(result, [0, 2, 1, 3])?;
        Ok(self.graph.cont(result)?)
    }

    /// Which kind of pages the block has.
    pub(super) fn kind(&self) -> usize {
        usize::from(self.block().windowed)
    }

    /// Writes rows [D, G, T] to the cells of their tokens, and returns all cells. [D * G, cells]
    pub(super) fn store(&mut self, rows: TensorId, which: StateTensor) -> Result<TensorId, Error> {
        let all = self.state(which)?;
        let cells = self.cells()?;
        let (width, tensor) = (self.graph.tensor(all)?.ne()[0], self.graph.tensor(rows)?);
        let [_, head, token, _] = tensor.layout().nb();
        let whole = tensor.ne()[1] == 1 || head == tensor.ne()[0] * DType::F32.block_bytes();
        let rows = match whole {
            true => self.graph.view(rows, [width, self.step.tokens], &[token], 0)?,
            false => self.graph.cont_as(rows, [width, self.step.tokens])?,
        };
        let stored = self.graph.set_rows(all, rows, cells)?;
        self.graph.expand(stored)?;
        Ok(stored)
    }

    /// The first cells, head by head. [D, cells, G]
    pub(super) fn cells_by_head(&mut self, all: TensorId, size: usize) -> Result<TensorId, Error> {
        let groups = self.block().kv_heads;
        let tensor = self.graph.tensor(all)?;
        let (cells, row, dtype) = (self.step.cells[self.kind()], tensor.layout().nb()[1], tensor.dtype());
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

    /// Which tokens of a text that is seen whole each token sees, if it does not see all of them alike. [T, T]
    fn whole_mask(&mut self) -> Result<Option<TensorId>, Error> {
        let (kind, path, tokens) = (self.kind(), self.style.path, self.step.tokens);
        if !self.block().windowed && self.hyper.position_bias.is_none() || self.inputs.masks[kind].is_some() {
            return Ok(self.inputs.masks[kind]);
        }
        let mask = self.input(MASKS[kind], path.mask_type(), [tokens, path.mask_rows(tokens)])?;
        self.inputs.masks[kind] = Some(mask);
        Ok(Some(mask))
    }

    /// Which cells each token sees. [cells, T]
    pub(super) fn mask(&mut self) -> Result<TensorId, Error> {
        let kind = self.kind();
        if let Some(mask) = self.inputs.masks[kind] {
            return Ok(mask);
        }
        let (path, tokens) = (self.style.path, self.step.tokens);
        let shape = [self.step.cells[kind], path.mask_rows(tokens)];
        let mask = self.input(MASKS[kind], path.mask_type(), shape)?;
        self.inputs.masks[kind] = Some(mask);
        Ok(mask)
    }
}
