//! Gated delta nets: states of heads that are corrected by what they would have answered.

use oxcart_tensor::ops::Unary;
use oxcart_tensor::{DType, TensorId};

use super::layers::Scale;
use super::{Bias, Net};
use crate::model::error::Error;
use crate::model::hyper_parameters::StateSpace;
use crate::runner::state::StateTensor;

/// How a gated delta net is laid out in a file's matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeltaLayout {
    /// By group: heads of values that are beside each other share a head of queries and keys.
    Grouped,
    /// Each thing by itself: heads of values take the heads of queries and keys in turn.
    Apart,
}

impl DeltaLayout {
    /// Whether scales beside matrices count.
    fn scale(self) -> Scale {
        match self {
            DeltaLayout::Grouped => Scale::None,
            DeltaLayout::Apart => Scale::Always,
        }
    }
}

impl Net<'_> {
    /// A gated delta net instead of attention, its results weighed by this function of gates. Several heads of values share a head of
    /// queries and keys. [E, T]
    pub(crate) fn gated_delta_net(
        &mut self,
        x: TensorId,
        layout: DeltaLayout,
        gate: Unary,
    ) -> Result<TensorId, Error> {
        let StateSpace { taps, inner, state, heads, groups, .. } = self.state_space()?;
        let (mixed, gates) = self.delta_projections(x, layout)?;
        let (rate, decay) = match layout {
            DeltaLayout::Grouped => self.grouped_rates(x)?,
            DeltaLayout::Apart => self.rates_apart(x)?,
        }; // [1, H, T / S, S]

        let mixed = self.convolution(mixed, "ssm_conv1d", taps)?;
        let mixed = self.graph.unary(mixed, Unary::Silu)?;
        let q = self.heads_of(mixed, 0, [state, groups])?;
        let k = self.heads_of(mixed, groups * state, [state, groups])?;
        let v = self.heads_of(mixed, 2 * groups * state, [state, heads])?;
        let epsilon = self.hyper.norm_epsilon;
        let (mut q, mut k) = (self.unit_heads(q, epsilon)?, self.unit_heads(k, epsilon)?);
        if layout == DeltaLayout::Grouped {
            (q, k) = (self.repeated_heads(q, heads)?, self.repeated_heads(k, heads)?);
        }
        let y = self.delta([q, k, v, decay, rate], [state, heads])?; // [size, H, T / S, S]

        let y = self.rms_norm(y, "ssm_norm")?;
        let y = self.graph.reshape(y, [inner, self.step.tokens])?;
        let gates = self.graph.unary(gates, gate)?;
        let y = self.graph.mul(y, gates)?;
        self.product(y, "ssm_out", self.hyper.embedding, Bias::None, layout.scale())
    }

    /// What becomes queries, keys and values, and gates of the result, [inner, T]: from two matrices, or from one that has
    /// them group by group.
    fn delta_projections(&mut self, x: TensorId, layout: DeltaLayout) -> Result<(TensorId, TensorId), Error> {
        let space = self.state_space()?;
        let StateSpace { inner, state, groups, .. } = space;
        let width = self.hyper.embedding;
        let apart = layout == DeltaLayout::Apart;
        if apart || self.optional("attn_qkv.weight", [width, space.convolved()])?.is_some() {
            self.pass_over("ssm_in.weight");
            self.pass_over("ssm_in.scale");
            let mixed = self.product(x, "attn_qkv", space.convolved(), Bias::None, layout.scale())?;
            return Ok((mixed, self.product(x, "attn_gate", inner, Bias::None, layout.scale())?));
        }
        let all = self.product(x, "ssm_in", space.convolved() + inner, Bias::None, Scale::None)?;
        let (share, tokens) = (inner / groups, self.step.tokens);
        let all = self.graph.reshape(all, [2 * state + 2 * share, groups, tokens])?;
        let mut flat = |first, count| -> Result<TensorId, Error> {
            let part = self.part(all, first, count)?;
            Ok(self.graph.cont_as(part, [count * groups, tokens])?)
        };
        let (q, k) = (flat(0, state)?, flat(state, state)?);
        let (v, gates) = (flat(2 * state, share)?, flat(2 * state + share, share)?);
        let mixed = self.graph.concat(q, k, 0)?;
        Ok((self.graph.concat(mixed, v, 0)?, gates))
    }

    /// How much of a correction each head takes over, and the logarithm of what it keeps. [1, H, T / S, S]
    fn grouped_rates(&mut self, x: TensorId) -> Result<(TensorId, TensorId), Error> {
        let StateSpace { heads, groups, .. } = self.state_space()?;
        let (each, sequences, tokens) = (self.tokens_of_each(), self.step.sequences, self.step.tokens);
        let share = heads / groups;
        let both = self.product(x, "ssm_ba", 2 * heads, Bias::None, Scale::None)?;
        let both = self.graph.reshape(both, [2 * share, groups, tokens])?;
        let (rate, time) = (self.part(both, 0, share)?, self.part(both, share, share)?);
        let rate = self.graph.cont_as(rate, [1, heads, each, sequences])?;
        let rate = self.graph.unary(rate, Unary::Sigmoid)?;
        let time = self.graph.cont_as(time, [heads, each, sequences])?;
        Ok((rate, self.log_decay(time)?))
    }

    /// As [`grouped_rates`](Net::grouped_rates), from a matrix for each.
    fn rates_apart(&mut self, x: TensorId) -> Result<(TensorId, TensorId), Error> {
        let heads = self.state_space()?.heads;
        let (each, sequences) = (self.tokens_of_each(), self.step.sequences);
        let time = self.product(x, "ssm_alpha", heads, Bias::None, Scale::Always)?;
        let time = self.graph.reshape(time, [heads, each, sequences])?;
        Ok((self.delta_rate(x, heads, Scale::Always)?, self.log_decay(time)?))
    }

    /// How much of a correction each head takes over. [1, H, T / S, S]
    pub(super) fn delta_rate(&mut self, x: TensorId, heads: usize, scale: Scale) -> Result<TensorId, Error> {
        let rate = self.product(x, "ssm_beta", heads, Bias::None, scale)?;
        let rate = self.graph.reshape(rate, [1, heads, self.tokens_of_each(), self.step.sequences])?;
        Ok(self.graph.unary(rate, Unary::Sigmoid)?)
    }

    /// `a * softplus(time + bias)` of rows [H, T / S, S], `a` being negative. [1, H, T / S, S]
    fn log_decay(&mut self, time: TensorId) -> Result<TensorId, Error> {
        let shape = self.graph.tensor(time)?.ne();
        let (bias, a) = (self.weight("ssm_dt.bias", shape[0])?, self.weight("ssm_a", shape[0])?);
        let time = self.graph.add(time, bias)?;
        let time = self.graph.unary(time, Unary::Softplus)?;
        let decay = self.graph.mul(time, a)?;
        Ok(self.graph.reshape(decay, [1, shape[0], shape[1], shape[2]])?)
    }

    /// Heads [size, G, T / S, S] of length one, but for what is added to their squared lengths.
    pub(super) fn unit_heads(&mut self, x: TensorId, epsilon: f32) -> Result<TensorId, Error> {
        let size = self.row_len(x)? as f32;
        let unit = self.graph.rms_norm(x, epsilon / size)?;
        Ok(self.graph.scale(unit, size.sqrt().recip())?)
    }

    /// Heads [size, G, T / S, S], each repeated for the heads that share it. [size, H, T / S, S]
    pub(super) fn repeated_heads(&mut self, x: TensorId, heads: usize) -> Result<TensorId, Error> {
        let shape = self.graph.tensor(x)?.ne();
        let (size, groups, tokens) = (shape[0], shape[1], self.step.tokens);
        if groups == heads {
            return Ok(x);
        }
        let apart = self.graph.reshape(x, [size, 1, groups, tokens])?;
        let repeated = self.graph.repeat(apart, [size, heads / groups, groups, tokens])?;
        Ok(self.graph.reshape(repeated, [size, heads, shape[2], shape[3]])?)
    }

    /// The recurrence over `[q, k, v, decay, rate]`; the states that it leaves are remembered. [size, H, T / S, S]
    pub(super) fn delta(
        &mut self,
        sources: [TensorId; 5],
        [size, heads]: [usize; 2],
    ) -> Result<TensorId, Error> {
        let [q, k, v, decay, rate] = sources;
        let (each, sequences) = (self.tokens_of_each(), self.step.sequences);
        let states = self.recall(StateTensor::Recurrent)?;
        let states = self.graph.reshape(states, [size, size, heads, sequences])?;
        let result = self.graph.gated_delta_net([q, k, v, decay, rate, states], 1)?;
        let (float, width) = (DType::F32.block_bytes(), size * size * heads);
        let outputs = size * heads * each * sequences;
        let left = self.graph.view(result, [width, sequences], &[width * float], outputs * float)?;
        self.remember(StateTensor::Recurrent, left)?;
        let strides = [size, size * heads, size * heads * each].map(|count| count * float);
        Ok(self.graph.view(result, [size, heads, each, sequences], &strides, 0)?)
    }
}
