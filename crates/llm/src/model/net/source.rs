//! Two halves: blocks that read a source whole, and blocks that write and look at what was read of it.
//!
//! Invariant: the cells of a source's positions hold the keys and values that blocks of the second half make of what the first half
//! gives; those of later positions hold the keys and values of what is written. No token sees both through the same mask.

use std::ops::Range;

use oxcart_tensor::{DType, TensorId};

use super::layers::Scale;
use super::{Attention, Bias, Net};
use crate::model::error::Error;
use crate::model::hyper_parameters::Block;
use crate::runner::state::StateTensor;

impl Net<'_> {
    /// Whether a source is read; else something is written.
    pub(crate) fn reads(&self) -> bool {
        self.step.reads
    }

    /// The blocks that read; all of them where none writes.
    pub(crate) fn reading_blocks(&self) -> Range<usize> {
        0..self.hyper.source.map_or(self.block_count(), |source| source.blocks)
    }

    /// The blocks that write.
    pub(crate) fn writing_blocks(&self) -> Range<usize> {
        self.reading_blocks().end..self.block_count()
    }

    /// A product with a matrix that gives rows as wide as the stream. [E, T]
    pub(crate) fn widened(&mut self, x: TensorId, base: &str) -> Result<TensorId, Error> {
        self.product(x, base, self.hyper.embedding, Bias::None, Scale::AttentionOutput)
    }

    /// Attention of a source's tokens to each other, or of written ones to those before them; distances move scores, which are not
    /// scaled. [V * H, T]
    pub(crate) fn distance_attention(&mut self, h: TensorId) -> Result<TensorId, Error> {
        let (q, k, v) = self.qkv(h, Bias::None)?;
        let is_stored = self.block().state.rows.is_some();
        let cells = if is_stored { self.step.cells[self.kind()] } else { self.step.tokens };
        let bias = Some(self.distance_bias(cells)?);
        self.attention([q, k, v], Attention { bias, ..Attention::scaled(1.0) })
    }

    /// Attention of written tokens to their sources. [V * H, T]
    pub(crate) fn source_attention(&mut self, h: TensorId) -> Result<TensorId, Error> {
        let Block { heads, key_size, value_size, .. } = self.block();
        let tokens = self.step.tokens;
        let q = self.product(h, "cross_attn_q", key_size * heads, Bias::None, Scale::None)?;
        let q = self.graph.reshape(q, [key_size, heads, tokens])?;
        let [keys, values] = [(StateTensor::Keys, key_size), (StateTensor::Values, value_size)]
            .map(|(which, size)| self.state(which).and_then(|all| self.cells_by_head(all, size)));
        let mask = Some(self.source_mask()?);
        let heads_of = self.attend([q, keys?, values?], mask, None, Attention::scaled(1.0))?;
        Ok(self.graph.reshape(heads_of, [value_size * heads, tokens])?)
    }

    /// Stores what all blocks that write will look at of a source's rows.
    pub(crate) fn store_source(&mut self, rows: TensorId) -> Result<(), Error> {
        for block in self.writing_blocks() {
            self.enter_block(block);
            let Block { kv_heads, key_size, value_size, .. } = self.block();
            let both = [
                ("cross_attn_k", key_size, StateTensor::Keys),
                ("cross_attn_v", value_size, StateTensor::Values),
            ];
            for (base, size, which) in both {
                let x = self.product(rows, base, size * kv_heads, Bias::None, Scale::None)?;
                let x = self.graph.reshape(x, [size, kv_heads, self.step.tokens])?;
                self.store(x, which)?;
            }
        }
        Ok(())
    }

    /// What distances add to scores: numbers of the block, or of the first one of its half. [cells, T, H]
    fn distance_bias(&mut self, cells: usize) -> Result<TensorId, Error> {
        let missing =
            || Error::NotThatKind { architecture: self.hyper.architecture(), what: "tell distances apart" };
        let kinds = self.hyper.distances.ok_or_else(missing)?.kinds;
        let Block { heads, half, tensors, .. } = self.block();
        let (name, shape, tokens) = ("attn_rel_b.weight", [heads, kinds], self.step.tokens);
        let table = match tensors {
            0 => self.weight(name, shape)?,
            _ => match self.optional(name, shape)? {
                Some(table) => table,
                None => self.weight_of_other(format!("{}blk.0.{name}", half.prefix()), shape)?,
            },
        };
        let distances = match self.inputs.distances {
            Some(distances) => distances,
            None => self.input("inp_distances", DType::I32, cells * tokens)?,
        };
        self.inputs.distances = Some(distances);
        let bias = self.graph.get_rows(table, distances)?;
        let bias = self.graph.reshape(bias, [heads, cells, tokens])?;
        let bias = self.graph.permute(bias, [2, 0, 1, 3])?;
        Ok(self.graph.cont(bias)?)
    }

    /// Which cells hold the source of each token's sequence. [cells, T]
    fn source_mask(&mut self) -> Result<TensorId, Error> {
        if let Some(mask) = self.inputs.source_mask {
            return Ok(mask);
        }
        let (path, tokens) = (self.style.path, self.step.tokens);
        let shape = [self.step.cells[self.kind()], path.mask_rows(tokens)];
        let mask = self.input("inp_source_mask", path.mask_type(), shape)?;
        self.inputs.source_mask = Some(mask);
        Ok(mask)
    }
}
