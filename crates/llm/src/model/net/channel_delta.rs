//! Delta nets with decays by channel (Kimi delta attention): heads forget each channel of their keys by a measure of its own.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::Unary;

use super::layers::Scale;
use super::{Bias, Net};
use crate::model::error::Error;
use crate::model::hyper_parameters::{ChannelDelta, DecayRule};

/// The matrices, one after another, that decays and the gates of results come of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChannelGates {
    pub(crate) decays: &'static [&'static str],
    pub(crate) results: &'static [&'static str],
}

impl Net<'_> {
    /// A delta net with decays by channel instead of attention. [E, T]
    pub(crate) fn channel_delta_net(&mut self, x: TensorId, gates: ChannelGates) -> Result<TensorId, Error> {
        let delta = self.channel_delta()?;
        let ChannelDelta { taps, heads, size, .. } = delta;
        let (each, sequences) = (self.tokens_of_each(), self.step.sequences);
        let mixed = self.delta_qkv(x)?; // [3 * inner, T]
        let mut parts = self.convolutions(mixed, ["ssm_conv1d_q", "ssm_conv1d_k", "ssm_conv1d_v"], taps)?;
        for part in &mut parts {
            let active = self.graph.unary(*part, Unary::Silu)?;
            *part = self.graph.reshape(active, [size, heads, each, sequences])?;
        }
        let [q, k, v] = parts;
        let epsilon = delta.epsilon.unwrap_or(self.hyper.norm_epsilon);
        let (q, k) = (self.unit_heads(q, epsilon)?, self.unit_heads(k, epsilon)?);
        let decay = self.channel_decay(x, gates.decays)?; // [size, H, T / S, S]
        let rate = self.delta_rate(x, heads, Scale::None)?;
        let y = self.delta([q, k, v, decay, rate], [size, heads])?;

        let y = self.rms_norm(y, "ssm_norm")?;
        let y = self.graph.reshape(y, [delta.inner(), self.step.tokens])?;
        let open = self.through(x, gates.results)?;
        let y = self.weigh(y, open)?;
        self.product(y, "attn_output", self.hyper.embedding, Bias::None, Scale::None)
    }

    fn channel_delta(&self) -> Result<ChannelDelta, Error> {
        let missing =
            || Error::NotThatKind { architecture: self.hyper.architecture(), what: "have delta nets" };
        self.hyper.channel_delta.ok_or_else(missing)
    }

    /// What becomes queries, keys and values, from three matrices or one. [3 * inner, T]
    fn delta_qkv(&mut self, x: TensorId) -> Result<TensorId, Error> {
        let inner = self.channel_delta()?.inner();
        for base in ["attn_q", "attn_k", "attn_v", "attn_qkv"] {
            self.pass_over(&format!("{base}.bias"));
        }
        if self.has("attn_qkv.weight") {
            return self.product(x, "attn_qkv", 3 * inner, Bias::None, Scale::None);
        }
        let mut part = |base| self.product(x, base, inner, Bias::None, Scale::None);
        let (q, k, v) = (part("attn_q")?, part("attn_k")?, part("attn_v")?);
        let both = self.graph.concat(q, k, 0)?;
        Ok(self.graph.concat(both, v, 0)?)
    }

    /// Products with some matrices, as many channels as a head has between them and as all heads have after the last. [inner, T]
    fn through(&mut self, x: TensorId, bases: &[&str]) -> Result<TensorId, Error> {
        let delta = self.channel_delta()?;
        let mut x = x;
        for (left, base) in (0..bases.len()).rev().zip(bases) {
            let width = if left == 0 { delta.inner() } else { delta.size };
            x = self.product(x, base, width, Bias::None, Scale::None)?;
        }
        Ok(x)
    }

    /// The logarithm of what each channel keeps. [size, H, T / S, S]
    fn channel_decay(&mut self, x: TensorId, bases: &[&str]) -> Result<TensorId, Error> {
        let delta = self.channel_delta()?;
        let ChannelDelta { heads, size, decay, .. } = delta;
        let time = self.through(x, bases)?;
        let bias = self.weight("ssm_dt.bias", delta.inner())?;
        let time = self.graph.add(time, bias)?;
        // A vector in some files, a row for each head in others.
        let is_vector = self.extents("ssm_a").is_some_and(|shape| shape[0] == heads);
        let a = if is_vector { self.weight("ssm_a", heads)? } else { self.weight("ssm_a", [1, heads])? };
        let a = self.graph.reshape(a, [1, heads])?;
        let shape = [size, heads, self.tokens_of_each(), self.step.sequences];
        match decay {
            DecayRule::Softplus => {
                let time = self.graph.unary(time, Unary::Softplus)?;
                let time = self.graph.reshape(time, shape)?;
                Ok(self.graph.mul(time, a)?)
            }
            DecayRule::Sigmoid { least, factor } => {
                let time = self.graph.reshape(time, shape)?;
                let time = self.graph.mul(time, a)?;
                let time = if factor == 1.0 { time } else { self.graph.scale(time, factor)? };
                let time = self.graph.unary(time, Unary::Sigmoid)?;
                self.scale(time, least)
            }
        }
    }
}
