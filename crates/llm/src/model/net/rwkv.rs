//! RWKV 6 and 7: every token is mixed with the one before it, and states of heads remember the others.
//!
//! Invariant: what is remembered of the token before is read before it is replaced, once for all parts of a block.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::Unary;

use super::layers::Scale;
use super::{Bias, Net};
use crate::model::error::Error;
use crate::model::hyper_parameters::Rwkv;
use crate::runner::state::StateTensor;

/// Added to the variances of heads that are normed after a recurrence.
const HEAD_EPSILON: f32 = 64e-5;
/// Added to the lengths that heads of keys are divided by.
const LENGTH_EPSILON: f32 = 1e-12;
/// `-exp(-1/2)`: the logarithm of the least that RWKV 7 keeps from token to token.
const LEAST_KEPT: f32 = -0.606_531;

/// What a block reads from its sequences' last tokens, and what it leaves of them, row by row.
#[derive(Clone, Debug)]
pub(crate) struct LastTokens {
    /// [shifts * E, S]
    before: TensorId,
    /// What is to be remembered instead. [E, S] each
    now: Vec<TensorId>,
}

/// Rows, and how the rows of the tokens before differ from them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shifted {
    /// [E, T]
    pub(crate) rows: TensorId,
    /// [E, T]
    pub(crate) change: TensorId,
}

impl Net<'_> {
    fn rwkv(&self) -> Result<Rwkv, Error> {
        let missing = || Error::NotThatKind {
            architecture: self.hyper.architecture(),
            what: "mix neighbouring tokens",
        };
        self.hyper.rwkv.ok_or_else(missing)
    }

    /// What the block remembers of the last tokens.
    pub(crate) fn last_tokens(&mut self) -> Result<LastTokens, Error> {
        Ok(LastTokens { before: self.recall(StateTensor::Convolution)?, now: Vec::new() })
    }

    /// Rows beside those of the tokens before.
    pub(crate) fn shifted(&mut self, rows: TensorId, last: &mut LastTokens) -> Result<Shifted, Error> {
        let width = self.hyper.embedding;
        let (each, sequences) = (self.tokens_of_each(), self.step.sequences);
        let before = self.channels(last.before, last.now.len() * width, width)?;
        let before = self.graph.cont_as(before, [width, 1, sequences])?;
        let by_sequence = self.by_sequence(rows)?;
        let seen = self.graph.concat(before, by_sequence, 1)?; // [E, 1 + T / S, S]
        let [_, token, sequence, _] = self.graph.tensor(seen)?.layout().nb();
        let earlier = self.graph.view(seen, [width, each, sequences], &[token, sequence], 0)?;
        let earlier = self.graph.cont_as(earlier, [width, self.step.tokens])?;
        let newest = self.graph.view(seen, [width, sequences], &[sequence], each * token)?;
        last.now.push(self.graph.cont(newest)?);
        Ok(Shifted { rows, change: self.graph.sub(earlier, rows)? })
    }

    /// Remembers the last tokens of all parts of the block.
    pub(crate) fn keep_last(&mut self, last: LastTokens) -> Result<(), Error> {
        let mut parts = last.now.into_iter();
        let Some(mut all) = parts.next() else { return Ok(()) };
        for part in parts {
            all = self.graph.concat(all, part, 0)?;
        }
        self.remember(StateTensor::Convolution, all)
    }

    /// Rows and those before them, channel by channel: `rows + change * weights`.
    fn blended(&mut self, x: Shifted, weights: TensorId) -> Result<TensorId, Error> {
        let change = self.graph.mul(x.change, weights)?;
        self.add(change, x.rows)
    }

    fn blended_by(&mut self, x: Shifted, base: &str) -> Result<TensorId, Error> {
        let weights = self.weight(&format!("{base}.weight"), self.hyper.embedding)?;
        self.blended(x, weights)
    }

    /// A product with a matrix that belongs to a recurrence.
    fn projected(&mut self, x: TensorId, base: &str, width: usize, bias: Bias) -> Result<TensorId, Error> {
        self.product(x, base, width, bias, Scale::None)
    }

    /// `second(active(first(x)))`, with so many channels between the two.
    fn narrowed(
        &mut self,
        x: TensorId,
        [first, second]: [&str; 2],
        rank: usize,
        active: Option<Unary>,
    ) -> Result<TensorId, Error> {
        let mut low = self.projected(x, first, rank, Bias::None)?;
        if let Some(active) = active {
            low = self.graph.unary(low, active)?;
        }
        self.projected(low, second, self.hyper.embedding, Bias::None)
    }

    /// As [`narrowed`](Net::narrowed), plus what every token has.
    fn narrowed_beside(
        &mut self,
        x: TensorId,
        [constant, first, second]: [&str; 3],
        rank: usize,
        active: Option<Unary>,
    ) -> Result<TensorId, Error> {
        let own = self.narrowed(x, [first, second], rank, active)?;
        let constant = self.weight(&format!("{constant}.weight"), self.hyper.embedding)?;
        self.add(own, constant)
    }

    /// Channels [E, T] as heads. [size, H, T]
    fn in_heads(&mut self, x: TensorId) -> Result<TensorId, Error> {
        let size = self.rwkv()?.size;
        Ok(self.graph.reshape(x, [size, self.row_len(x)? / size, self.step.tokens])?)
    }

    /// Heads [size, H, T] with a norm each, then weights and a bias for every channel. [E, T]
    fn normed_heads(&mut self, y: TensorId) -> Result<TensorId, Error> {
        let heads = self.in_heads(y)?;
        let normal = self.graph.norm(heads, HEAD_EPSILON)?;
        let width = self.hyper.embedding;
        let normal = self.graph.reshape(normal, [width, self.step.tokens])?;
        let weights = self.weight("time_mix_ln.weight", width)?;
        let bias = self.weight("time_mix_ln.bias", width)?;
        let scaled = self.mul(normal, weights)?;
        self.add(scaled, bias)
    }

    /// RWKV 6's mixing of tokens. How a token is mixed with the one before depends on both. Without a bonus of tokens for themselves,
    /// it is linear attention, whose results are not normed. [E, T]
    pub(crate) fn rwkv6(&mut self, x: Shifted, has_bonus: bool) -> Result<TensorId, Error> {
        let Rwkv { size, kv_heads, decay_rank, .. } = self.rwkv()?;
        let width = self.hyper.embedding;
        let heads = width / size;
        let [for_decay, for_keys, for_values, for_queries, for_gates] = self.blended_by_both(x)?;
        let r = self.projected(for_queries, "time_mix_receptance", width, Bias::Optional)?;
        let k = self.projected(for_keys, "time_mix_key", kv_heads * size, Bias::Optional)?;
        let v = self.projected(for_values, "time_mix_value", kv_heads * size, Bias::Optional)?;
        let gates = self.projected(for_gates, "time_mix_gate", width, Bias::None)?;
        let names = ["time_mix_decay", "time_mix_decay_w1", "time_mix_decay_w2"];
        let decay = self.narrowed_beside(for_decay, names, decay_rank, Some(Unary::Tanh))?;
        // exp(-exp(decay))
        let pace = self.graph.unary(decay, Unary::Exp)?;
        let pace = self.graph.unary(pace, Unary::Neg)?;
        let kept = self.graph.unary(pace, Unary::Exp)?;

        let (r, kept) = (self.in_heads(r)?, self.in_heads(kept)?);
        let (k, v) = (self.in_heads(k)?, self.in_heads(v)?);
        let (k, v) = (self.repeated_heads(k, heads)?, self.repeated_heads(v, heads)?);
        let states = self.recall(StateTensor::Recurrent)?;
        let (y, gate) = match has_bonus {
            true => {
                let bonus = self.weight("time_mix_first.weight", [size, heads])?;
                let result = self.graph.rwkv_wkv6([k, v, r, bonus, kept, states])?;
                let y = self.flat_result(result, [size, heads])?;
                (self.normed_heads(y)?, Unary::Silu)
            }
            false => {
                // What is written is what is forgotten.
                let old = self.graph.mul(k, kept)?;
                let k = self.graph.sub(k, old)?;
                let scale = (size as f32).sqrt().recip();
                let result = self.graph.gated_linear_attn([k, v, r, kept, states], scale)?;
                (self.flat_result(result, [size, heads])?, Unary::Sigmoid)
            }
        };
        let gates = self.graph.unary(gates, gate)?;
        let y = self.mul(y, gates)?;
        self.projected(y, "time_mix_output", width, Bias::None)
    }

    /// Five mixtures of tokens and those before them, by weights that a first mixture gives: for decays, keys, values, queries and
    /// gates. [E, T] each
    fn blended_by_both(&mut self, x: Shifted) -> Result<[TensorId; 5], Error> {
        let (rank, width, tokens) = (self.rwkv()?.mix_rank, self.hyper.embedding, self.step.tokens);
        let first = self.blended_by(x, "time_mix_lerp_x")?;
        let low = self.projected(first, "time_mix_w1", 5 * rank, Bias::None)?;
        let low = self.graph.unary(low, Unary::Tanh)?;
        let matrices = self.weight("time_mix_w2.weight", [rank, width, 5])?;
        let fused = self.optional("time_mix_lerp_fused.weight", [width, 1, 1, 5])?;
        let mut mixed = [first; 5];
        for (index, (mixed, name)) in mixed.iter_mut().zip(["w", "k", "v", "r", "g"]).enumerate() {
            let [_, row, matrix, _] = self.graph.tensor(matrices)?.layout().nb();
            let matrix = self.graph.view(matrices, [rank, width], &[row], index * matrix)?;
            let part = self.channels(low, index * rank, rank)?;
            let part = self.graph.cont_as(part, [rank, tokens])?;
            let own = self.graph.mul_mat(matrix, part)?;
            let name = format!("time_mix_lerp_{name}.weight");
            let constant = match fused {
                Some(all) => {
                    self.pass_over(&name);
                    self.part_of_vectors(all, index)?
                }
                None => self.weight(&name, width)?,
            };
            let weights = self.add(own, constant)?;
            *mixed = self.blended(x, weights)?;
        }
        Ok(mixed)
    }

    /// One of several vectors [E, 1, 1, count]. [E]
    fn part_of_vectors(&mut self, all: TensorId, index: usize) -> Result<TensorId, Error> {
        let vector = self.graph.tensor(all)?.layout().nb()[3];
        Ok(self.graph.view(all, self.hyper.embedding, &[], index * vector)?)
    }

    /// RWKV 7's mixing of tokens: states are corrected by what they would have answered, at a rate for each channel. Values lean
    /// towards those of the first block, which sets `first_values`. Without `whole`, files may leave out gates, and norms of heads. [E, T]
    pub(crate) fn rwkv7(
        &mut self,
        x: Shifted,
        first_values: &mut Option<TensorId>,
        whole: bool,
    ) -> Result<TensorId, Error> {
        let Rwkv { size, decay_rank, rate_rank, gate_rank, .. } = self.rwkv()?;
        let width = self.hyper.embedding;
        let heads = width / size;
        let has_gates = whole || self.has("time_mix_g1.weight");
        // Some files have weights for gates, but no gates.
        let lerp = "time_mix_lerp_fused.weight";
        let is_short = !has_gates && self.extents(lerp).is_some_and(|shape| shape[3] == 5);
        let fused = self.weight(lerp, [width, 1, 1, if is_short { 5 } else { 6 }])?;
        let mut mixed = [x.rows; 6];
        for (index, mixed) in mixed.iter_mut().enumerate().take(if has_gates { 6 } else { 5 }) {
            let weights = self.part_of_vectors(fused, index)?;
            *mixed = self.blended(x, weights)?;
        }
        let [for_queries, for_decay, for_keys, for_values, for_rates, for_gates] = mixed;

        let r = self.projected(for_queries, "time_mix_receptance", width, Bias::None)?;
        let names = ["time_mix_w0", "time_mix_w1", "time_mix_w2"];
        let decay = self.narrowed_beside(for_decay, names, decay_rank, Some(Unary::Tanh))?;
        let decay = self.graph.unary(decay, Unary::Sigmoid)?;
        let decay = self.scale(decay, LEAST_KEPT)?;
        let kept = self.graph.unary(decay, Unary::Exp)?;
        let k = self.projected(for_keys, "time_mix_key", width, Bias::None)?;
        let v = self.projected(for_values, "time_mix_value", width, Bias::None)?;
        let v = self.leaning_values(v, for_values, first_values)?;
        let names = ["time_mix_a0", "time_mix_a1", "time_mix_a2"];
        let rate = self.narrowed_beside(for_rates, names, rate_rank, None)?;
        let rate = self.graph.unary(rate, Unary::Sigmoid)?;

        let [towards, by_rate] =
            ["time_mix_k_k", "time_mix_k_a"].map(|base| self.weight(&format!("{base}.weight"), width));
        let direction = self.graph.mul(k, towards?)?;
        let direction = self.in_heads(direction)?;
        let direction = self.graph.l2_norm(direction, LENGTH_EPSILON)?;
        // k + (rate - 1) * k * by_rate
        let share = self.graph.mul(k, by_rate?)?;
        let taken = self.graph.mul(rate, share)?;
        let taken = self.graph.sub(taken, share)?;
        let k = self.add(k, taken)?;

        let (r, kept, k) = (self.in_heads(r)?, self.in_heads(kept)?, self.in_heads(k)?);
        let (v, rate) = (self.in_heads(v)?, self.in_heads(rate)?);
        let away = self.graph.unary(direction, Unary::Neg)?;
        let corrected = self.graph.mul(direction, rate)?;
        let states = self.recall(StateTensor::Recurrent)?;
        let result = self.graph.rwkv_wkv7([r, kept, k, v, away, corrected, states])?;
        let y = self.flat_result(result, [size, heads])?;
        let y = match whole || self.has("time_mix_ln.weight") {
            true => self.normed_heads(y)?,
            false => y,
        };

        let own = self.weight("time_mix_r_k.weight", width)?;
        let own = self.graph.reshape(own, [size, heads])?;
        let agreement = self.graph.mul(k, r)?;
        let agreement = self.graph.mul(agreement, own)?;
        let agreement = self.graph.sum_rows(agreement)?; // [1, H, T]
        let direct = self.graph.mul(v, agreement)?;
        let direct = self.graph.reshape(direct, [width, self.step.tokens])?;
        let mut y = self.add(y, direct)?;
        if has_gates {
            let names = ["time_mix_g1", "time_mix_g2"];
            let gates = self.narrowed(for_gates, names, gate_rank, Some(Unary::Sigmoid))?;
            y = self.mul(y, gates)?;
        }
        self.projected(y, "time_mix_output", width, Bias::None)
    }
    /// Values, drawn towards those of the first block by as much as a gate for each channel says. [E, T]
    fn leaning_values(
        &mut self,
        v: TensorId,
        x: TensorId,
        first_values: &mut Option<TensorId>,
    ) -> Result<TensorId, Error> {
        let names = ["time_mix_v0", "time_mix_v1", "time_mix_v2"];
        let Some(first) = *first_values else {
            // Files have these in the first block, too, where there is nothing to lean towards.
            names.iter().for_each(|name| self.pass_over(&format!("{name}.weight")));
            *first_values = Some(v);
            return Ok(v);
        };
        let lean = self.narrowed_beside(x, names, self.rwkv()?.value_rank, None)?;
        let lean = self.graph.unary(lean, Unary::Sigmoid)?;
        let way = self.graph.sub(first, v)?;
        let way = self.mul(way, lean)?;
        self.add(v, way)
    }

    /// The feed-forward network of both: `value(relu(key(mixed))²)`, weighed by receptance if `weighed`. [E, T]
    pub(crate) fn channel_mix(&mut self, x: Shifted, weighed: bool) -> Result<TensorId, Error> {
        let (width, inner) = (self.hyper.embedding, self.feed_forward()?);
        let for_keys = self.blended_by(x, "channel_mix_lerp_k")?;
        let names = ["channel_mix_key", "channel_mix_value"];
        let k = self.projected(for_keys, names[0], inner, Bias::None)?;
        let k = self.relu_squared(k)?;
        let y = self.projected(k, names[1], width, Bias::None)?;
        if !weighed {
            return Ok(y);
        }
        let for_gates = self.blended_by(x, "channel_mix_lerp_r")?;
        let gates = self.projected(for_gates, "channel_mix_receptance", width, Bias::None)?;
        self.weigh(y, gates)
    }
}
