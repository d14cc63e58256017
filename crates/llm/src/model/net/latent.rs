//! Attention whose keys and values are made of one short row per token (multi-head latent attention).
//!
//! A head of queries and keys has channels that positions do not change, which come first, and channels that they rotate. The
//! rotated channels of keys are shared by all heads. A file has the matrices that make keys and values either apart, so that a
//! block can keep the short rows alone and bring queries to them, or as one, which makes keys and values to be kept.

use std::cell::Cell;

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::Rope;

use super::layers::Scale;
use super::{Attention, Bias, Net};
use crate::model::error::Error;
use crate::model::hyper_parameters::Latent;

impl Net<'_> {
    /// What each token makes of the tokens it sees. [V * H, T]
    pub(crate) fn latent_attention(&mut self, x: TensorId, scale: f32) -> Result<TensorId, Error> {
        let short = self.short_queries(x)?;
        self.latent_attended(x, short, Attention::scaled(scale))
    }

    /// As [`latent_attention`](Net::latent_attention), of the tokens that an index finds: the block's own, or the one that was asked
    /// last. Blocks that see a window see all of it. [V * H, T]
    pub(crate) fn indexed_latent_attention(
        &mut self,
        x: TensorId,
        attention: Attention,
        last_found: &Cell<Option<TensorId>>,
    ) -> Result<TensorId, Error> {
        let short = self.short_queries(x)?;
        if self.block().state.rows.is_some_and(|rows| rows.index > 0) {
            last_found.set(self.found_by_index(x, short.unwrap_or(x))?);
        }
        let found = last_found.get().filter(|_| !self.block().windowed);
        self.latent_attended(x, short, Attention { found, ..attention })
    }

    fn latent_attended(
        &mut self,
        x: TensorId,
        short: Option<TensorId>,
        attention: Attention,
    ) -> Result<TensorId, Error> {
        let q = self.latent_queries(x, short)?; // [D, H, T]
        let (row, rotated) = self.latent_row(x)?; // [rank, T], [R, 1, T]
        match self.latent()?.absorbed {
            true => self.absorbed_attention(q, row, rotated, attention),
            false => self.expanded_attention(q, row, rotated, attention),
        }
    }

    /// By the size of a head before queries are brought to the rows, or what the architecture gives.
    pub(crate) fn latent_scale(&self) -> f32 {
        let size = self.latent().map_or(1, |latent| latent.key_size);
        self.hyper.factors.attention.unwrap_or_else(|| (size as f32).sqrt().recip())
    }

    fn latent(&self) -> Result<Latent, Error> {
        let missing =
            || Error::NotThatKind { architecture: self.hyper.architecture(), what: "have latent rows" };
        let windowed = self.hyper.latent_windowed.filter(|_| self.block().windowed);
        windowed.or(self.hyper.latent).ok_or_else(missing)
    }

    /// What queries are made of, where there are two matrices of them; normed. [query rank, T]
    fn short_queries(&mut self, x: TensorId) -> Result<Option<TensorId>, Error> {
        // Some files say how many channels there would be between two matrices, and have one.
        let Some(rank) = self.latent()?.query_rank.filter(|_| !self.has("attn_q.weight")) else {
            return Ok(None);
        };
        let short = self.product(x, "attn_q_a", rank, Bias::None, Scale::None)?;
        self.rms_norm(short, "attn_q_a_norm").map(Some)
    }

    /// Queries, of what the first of two matrices gave or of what the block reads. [D, H, T]
    fn latent_queries(&mut self, x: TensorId, short: Option<TensorId>) -> Result<TensorId, Error> {
        let (key_size, heads) = (self.latent()?.key_size, self.block().heads);
        let (x, base) = short.map_or((x, "attn_q"), |short| (short, "attn_q_b"));
        let q = self.product(x, base, heads * key_size, Bias::None, Scale::None)?;
        Ok(self.graph.reshape(q, [key_size, heads, self.step.tokens])?)
    }

    /// The row that keys and values are made of, [rank, T], and the rotated channels of keys, [R, 1, T], if there are any.
    fn latent_row(&mut self, x: TensorId) -> Result<(TensorId, Option<TensorId>), Error> {
        let Latent { rank, rotated, .. } = self.latent()?;
        let both = self.product(x, "attn_kv_a_mqa", rank + rotated, Bias::None, Scale::None)?;
        if rotated == 0 {
            return Ok((self.rms_norm(both, "attn_kv_a_norm")?, None));
        }
        let row = self.graph.tensor(both)?.layout().nb()[1];
        let mut keys = self.columns(both, rank, [rotated, 1])?;
        if self.has("attn_k_norm.weight") {
            keys = self.rms_norm(keys, "attn_k_norm")?;
        }
        let keys = self.rope(keys)?;
        let short = self.graph.view(both, [rank, self.step.tokens], &[row], 0)?;
        Ok((self.rms_norm(short, "attn_kv_a_norm")?, Some(keys)))
    }

    /// Queries are brought to the rows, of which each is key and value of all heads.
    fn absorbed_attention(
        &mut self,
        q: TensorId,
        row: TensorId,
        rotated: Option<TensorId>,
        attention: Attention,
    ) -> Result<TensorId, Error> {
        let Latent { rank, key_size, value_size, rotated: rotated_size, .. } = self.latent()?;
        let (heads, tokens) = (self.block().heads, self.step.tokens);
        let still = key_size - rotated_size;
        let q_still = self.part(q, 0, still)?;
        let to_rows = self.weight("attn_k_b.weight", [still, rank, heads])?;
        let by_head = self.graph.permute(q_still, [0, 2, 1, 3])?; // [still, T, H]
        let brought = self.graph.mul_mat(to_rows, by_head)?; // [rank, T, H]
        let brought = self.graph.permute(brought, [0, 2, 1, 3])?;
        let row = self.graph.reshape(row, [rank, 1, tokens])?;
        let (q, key) = match rotated {
            None => (brought, row),
            Some(rotated) => {
                let q_rotated = self.part(q, still, rotated_size)?;
                let q_rotated = self.rope(q_rotated)?;
                (self.graph.concat(brought, q_rotated, 0)?, self.graph.concat(row, rotated, 0)?)
            }
        }; // [rank + R, H, T], [rank + R, 1, T]
        let q = self.tempered(q)?;
        let a = self.attended([q, key, row], attention)?; // [rank, H, T]
        let to_values = self.weight("attn_v_b.weight", [rank, value_size, heads])?;
        let by_head = self.graph.permute(a, [0, 2, 1, 3])?;
        let values = self.graph.mul_mat(to_values, by_head)?; // [V, T, H]
        let values = self.graph.permute(values, [0, 2, 1, 3])?;
        Ok(self.graph.cont_as(values, [value_size * heads, tokens])?)
    }

    /// Keys and values are made of the rows, and kept.
    fn expanded_attention(
        &mut self,
        q: TensorId,
        row: TensorId,
        rotated: Option<TensorId>,
        attention: Attention,
    ) -> Result<TensorId, Error> {
        let Latent { key_size, value_size, rotated: dims, .. } = self.latent()?;
        let (heads, tokens) = (self.block().heads, self.step.tokens);
        let still = key_size - dims;
        let factors = self.rope_factors()?;
        let q = match self.block().rotates && dims > 0 {
            true => {
                let positions = self.positions()?;
                let rope = Rope { first_channel: still, ..self.hyper.rope };
                self.graph.rope(q, positions, factors, rope)?
            }
            false => q,
        };
        let q = self.tempered(q)?;
        let both = self.product(row, "attn_kv_b", heads * (still + value_size), Bias::None, Scale::None)?;
        let both = self.graph.reshape(both, [still + value_size, heads, tokens])?;
        let values = self.part(both, still, value_size)?;
        let rotated = rotated.map(|keys| self.graph.repeat(keys, [dims, heads, tokens])).transpose()?;
        let keys = match (still, rotated) {
            (0, Some(rotated)) => rotated,
            (still, None) => self.part(both, 0, still)?,
            (still, Some(rotated)) => {
                let keys = self.part(both, 0, still)?;
                self.graph.concat(keys, rotated, 0)?
            }
        }; // [D, H, T]
        let values = self.graph.cont(values)?;
        self.attention([q, keys, values], attention)
    }
}
