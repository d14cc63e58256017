//! Gated delta nets: states of heads that are corrected by what they would have answered.

use oxcart_tensor::ops::Unary;
use oxcart_tensor::{DType, TensorId};

use super::layers::Scale;
use super::{Bias, Net};
use crate::model::error::Error;
use crate::model::hyper_parameters::StateSpace;
use crate::runner::state::StateTensor;

impl Net<'_> {
    /// A gated delta net instead of attention. Several heads of values share a head of queries and keys. [E, T]
    pub(crate) fn gated_delta_net(&mut self, x: TensorId) -> Result<TensorId, Error> {
        let space = self.state_space()?;
        let StateSpace { taps, inner, state, heads, groups } = space;
        let (mixed, gates) = self.delta_projections(x)?;
        let (rate, decay) = self.delta_rates(x)?; // [1, H, T / S, S]

        let mixed = self.convolution(mixed, "ssm_conv1d", taps)?;
        let mixed = self.graph.unary(mixed, Unary::Silu)?;
        let q = self.heads_of(mixed, 0, [state, groups])?;
        let k = self.heads_of(mixed, groups * state, [state, groups])?;
        let v = self.heads_of(mixed, 2 * groups * state, [state, heads])?;
        let (q, k) = (self.unit_heads(q, heads)?, self.unit_heads(k, heads)?);
        let y = self.delta([q, k, v, decay, rate], [state, heads])?; // [size, H, T / S, S]

        let y = self.rms_norm(y, "ssm_norm")?;
        let y = self.graph.reshape(y, [inner, self.step.tokens])?;
        let gates = self.graph.unary(gates, Unary::Silu)?;
        let y = self.graph.mul(y, gates)?;
        self.product(y, "ssm_out", self.hyper.embedding, Bias::None, Scale::None)
    }

    /// What becomes queries, keys and values, and gates of the result, [inner, T]: from two matrices, or from one that has
    /// them group by group.
    fn delta_projections(&mut self, x: TensorId) -> Result<(TensorId, TensorId), Error> {
        let space = self.state_space()?;
        let StateSpace { inner, state, groups, .. } = space;
        let width = self.hyper.embedding;
        if self.optional("attn_qkv.weight", [width, space.convolved()])?.is_some() {
            self.pass_over("ssm_in.weight");
            self.pass_over("ssm_in.scale");
            let mixed = self.product(x, "attn_qkv", space.convolved(), Bias::None, Scale::None)?;
            return Ok((mixed, self.product(x, "attn_gate", inner, Bias::None, Scale::None)?));
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
    fn delta_rates(&mut self, x: TensorId) -> Result<(TensorId, TensorId), Error> {
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

    /// `a * softplus(time + bias)` of rows [H, T / S, S], `a` being negative. [1, H, T / S, S]
    fn log_decay(&mut self, time: TensorId) -> Result<TensorId, Error> {
        let shape = self.graph.tensor(time)?.ne();
        let (bias, a) = (self.weight("ssm_dt.bias", shape[0])?, self.weight("ssm_a", shape[0])?);
        let time = self.graph.add(time, bias)?;
        let time = self.graph.unary(time, Unary::Softplus)?;
        let decay = self.graph.mul(time, a)?;
        Ok(self.graph.reshape(decay, [1, shape[0], shape[1], shape[2]])?)
    }

    /// Heads [size, G, T / S, S] of length one, each repeated for the heads of values that share it. [size, H, T / S, S]
    fn unit_heads(&mut self, x: TensorId, heads: usize) -> Result<TensorId, Error> {
        let shape = self.graph.tensor(x)?.ne();
        let (size, groups) = (shape[0], shape[1]);
        let unit = self.graph.rms_norm(x, self.hyper.norm_epsilon / size as f32)?;
        let unit = self.graph.scale(unit, (size as f32).sqrt().recip())?;
        if groups == heads {
            return Ok(unit);
        }
        let tokens = self.step.tokens;
        let apart = self.graph.reshape(unit, [size, 1, groups, tokens])?;
        let repeated = self.graph.repeat(apart, [size, heads / groups, groups, tokens])?;
        Ok(self.graph.reshape(repeated, [size, heads, shape[2], shape[3]])?)
    }

    /// The recurrence over `[q, k, v, decay, rate]`; the states that it leaves are remembered. [size, H, T / S, S]
    fn delta(&mut self, sources: [TensorId; 5], [size, heads]: [usize; 2]) -> Result<TensorId, Error> {
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
