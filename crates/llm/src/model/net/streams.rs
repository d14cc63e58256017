//! Several residual streams beside each other (hyper-connections): a part reads a weighted sum of them, and what it gives is added to
//! each with a weight of its own. In some architectures the streams are mixed among each other at that, in others they are weighed
//! channel by channel.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{Dsv4HcComb, Dsv4HcPre, Unary};

use super::{Net, Section};
use crate::model::error::Error;
use crate::model::hyper_parameters::{StreamRule, Streams};

/// How what a part gives goes back to the streams.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IntoStreams {
    /// Weights of what it gives. [streams, T]
    weights: TensorId,
    /// Weights of the streams in each other. [streams, streams, T]
    mixing: Option<TensorId>,
}

/// The largest weight of what is added to a stream, where streams are mixed or gated.
const MAGNITUDE: f32 = 2.0;

impl Net<'_> {
    fn stream_rule(&self) -> Result<Streams, Error> {
        let missing =
            || Error::NotThatKind { architecture: self.hyper.architecture(), what: "have several streams" };
        self.hyper.streams.ok_or_else(missing)
    }

    /// Streams that all begin as the same. [E, streams, T]
    pub(crate) fn equal_streams(&mut self, x: TensorId) -> Result<TensorId, Error> {
        let (width, tokens) = (self.hyper.embedding, self.step.tokens);
        let one = self.graph.reshape(x, [width, 1, tokens])?;
        Ok(self.graph.repeat(one, [width, self.stream_rule()?.count, tokens])?)
    }

    /// What a part reads of the streams, [E, T], and how what it gives goes back; by tensors of this name.
    pub(crate) fn read_streams(
        &mut self,
        streams: TensorId,
        base: &str,
    ) -> Result<(TensorId, IntoStreams), Error> {
        let Streams { count, epsilon, rule } = self.stream_rule()?;
        let (magnitude, least, rounds) = match rule {
            StreamRule::Weighed { magnitude } => (magnitude, epsilon, None),
            StreamRule::Mixed { rounds } => (MAGNITUDE, 0.0, Some(rounds)),
            StreamRule::Gated { rank } => return self.read_gated_streams(streams, base, rank),
        };
        let parts = if rounds.is_some() { 2 + count } else { 2 };
        let mixes = self.stream_mixes(streams, base, parts * count)?;
        let before = self.stream_weights(mixes, base, 0)?;
        let after = self.stream_weights(mixes, base, 1)?;
        let weights = self.graph.scale_bias(after, magnitude, least)?;
        let mixing = match rounds {
            None => None,
            Some(iterations) => {
                let scales = self.weight(&format!("{base}_scale.weight"), 3)?;
                let bias = self.weight(&format!("{base}_base.weight"), parts * count)?;
                let op = Dsv4HcComb { eps: epsilon, iterations };
                Some(self.graph.dsv4_hc_comb(mixes, scales, bias, op)?)
            }
        };
        Ok((self.weighted_streams(streams, before)?, IntoStreams { weights, mixing }))
    }

    /// What the streams are together, as so many numbers. [count, T]
    fn stream_mixes(&mut self, streams: TensorId, base: &str, count: usize) -> Result<TensorId, Error> {
        let shape = self.graph.tensor(streams)?.ne();
        let (width, tokens) = (shape[0] * shape[1], shape[2]);
        let matrix = self.weight(&format!("{base}_fn.weight"), [width, count])?;
        let flat = self.graph.reshape(streams, [width, tokens])?;
        let flat = self.norm_alone(flat)?;
        Ok(self.graph.mul_mat(matrix, flat)?)
    }

    /// Weights of the streams, between zero and one, of a part of what they are together. [streams, T]
    fn stream_weights(&mut self, mixes: TensorId, base: &str, part: usize) -> Result<TensorId, Error> {
        let count = self.stream_rule()?.count;
        let shape = self.graph.tensor(mixes)?.ne();
        let (all, tokens) = (shape[0], shape[1]);
        let parts = if all == count * (2 + count) { 3 } else { all / count };
        let scales = self.weight(&format!("{base}_scale.weight"), parts)?;
        let bias = self.weight(&format!("{base}_base.weight"), all)?;
        let [float, row, ..] = self.graph.tensor(mixes)?.layout().nb();
        let own = self.graph.view(mixes, [count, tokens], &[row], part * count * float)?;
        let scale = self.graph.view(scales, 1, &[], part * float)?;
        let bias = self.graph.view(bias, count, &[], part * count * float)?;
        let own = self.graph.mul(own, scale)?;
        let own = self.graph.add(own, bias)?;
        Ok(self.graph.unary(own, Unary::Sigmoid)?)
    }

    /// The sum of the streams by weights [streams, T] that are a little more than these. [E, T]
    fn weighted_streams(&mut self, streams: TensorId, weights: TensorId) -> Result<TensorId, Error> {
        let weights = self.graph.scale_bias(weights, 1.0, self.stream_rule()?.epsilon)?;
        Ok(self.graph.dsv4_hc_pre(streams, weights, Dsv4HcPre { scale: 1.0, gated: false })?)
    }

    /// As [`read_streams`](Net::read_streams), channel by channel.
    fn read_gated_streams(
        &mut self,
        streams: TensorId,
        base: &str,
        rank: usize,
    ) -> Result<(TensorId, IntoStreams), Error> {
        let count = self.stream_rule()?.count;
        let (read, normal) = self.gated_streams(streams, base, rank)?;
        let matrix = self.weight(&format!("{base}_inject.weight"), [self.row_len(normal)?, count])?;
        let after = self.graph.mul_mat(matrix, normal)?; // [streams, T]
        let after = self.scale(after, (count as f32).recip())?;
        let after = self.graph.unary(after, Unary::Sigmoid)?;
        let weights = self.scale(after, MAGNITUDE)?;
        Ok((read, IntoStreams { weights, mixing: None }))
    }

    /// The mean of the streams' norms, each channel by a gate of its own, [E, T], and the norms, [E * streams, T].
    fn gated_streams(
        &mut self,
        streams: TensorId,
        base: &str,
        rank: usize,
    ) -> Result<(TensorId, TensorId), Error> {
        let shape = self.graph.tensor(streams)?.ne();
        let (width, share) = (shape[0] * shape[1], (shape[1] as f32).recip());
        let normal = self.stream_norms(streams, &format!("{base}_norm"))?;
        let flat = self.graph.reshape(normal, [width, shape[2]])?;
        let down = self.weight(&format!("{base}_down.weight"), [width, rank])?;
        let up = self.weight(&format!("{base}_up.weight"), [rank, width])?;
        let narrow = self.graph.mul_mat(down, flat)?;
        let narrow = self.scale(narrow, share)?;
        let narrow = self.graph.unary(narrow, Unary::Silu)?;
        let gates = self.graph.mul_mat(up, narrow)?;
        let gates = self.graph.reshape(gates, [shape[0], shape[1], shape[2]])?;
        let read = self.graph.dsv4_hc_pre(normal, gates, Dsv4HcPre { scale: share, gated: true })?;
        Ok((read, flat))
    }

    /// A norm of each stream, with weights of its own. [E, streams, T]
    pub(super) fn stream_norms(&mut self, streams: TensorId, base: &str) -> Result<TensorId, Error> {
        let shape = self.graph.tensor(streams)?.ne();
        let name = format!("{base}.weight");
        // One vector in some files, one for each stream in others.
        let weights = match self.extents(&name) {
            Some(found) if found[0] == shape[0] * shape[1] => {
                let flat = self.weight(&name, shape[0] * shape[1])?;
                self.graph.reshape(flat, [shape[0], shape[1]])?
            }
            _ => self.weight(&name, [shape[0], shape[1]])?,
        };
        let normal = self.norm_alone(streams)?;
        self.mul(normal, weights)
    }

    /// The streams, each plus what a part gave times its weight. [E, streams, T]
    pub(crate) fn write_streams(
        &mut self,
        given: TensorId,
        streams: TensorId,
        into: IntoStreams,
    ) -> Result<TensorId, Error> {
        Ok(self.graph.dsv4_hc_post(given, streams, into.weights, into.mixing)?)
    }

    /// The one row that logits are made of, of the tokens whose results are wanted, by tensors of this name. [E, outputs]
    pub(crate) fn end_streams(&mut self, streams: TensorId, base: &str) -> Result<TensorId, Error> {
        let Streams { count, rule, .. } = self.stream_rule()?;
        let streams = self.wanted_streams(streams)?;
        if let StreamRule::Gated { rank } = rule {
            return Ok(self.gated_streams(streams, base, rank)?.0);
        }
        let mixes = self.stream_mixes(streams, base, count)?;
        let weights = self.stream_weights(mixes, base, 0)?;
        self.weighted_streams(streams, weights)
    }

    /// As [`end_streams`](Net::end_streams), the mean of the streams. [E, outputs]
    pub(crate) fn mean_of_streams(&mut self, streams: TensorId) -> Result<TensorId, Error> {
        let streams = self.wanted_streams(streams)?;
        let layout = *self.graph.tensor(streams)?.layout();
        let (shape, [_, stream, token, _]) = (layout.ne(), layout.nb());
        let mut one = |index| self.graph.view(streams, [shape[0], shape[2]], &[token], index * stream);
        let (mut sum, others) = (one(0)?, (1..shape[1]).map(one).collect::<Result<Vec<_>, _>>()?);
        for other in others {
            sum = self.add(sum, other)?;
        }
        self.scale(sum, (shape[1] as f32).recip())
    }

    /// The streams of the tokens whose results are wanted, for the part that makes logits. [E, streams, outputs]
    fn wanted_streams(&mut self, streams: TensorId) -> Result<TensorId, Error> {
        let shape = self.graph.tensor(streams)?.ne();
        let rows = self.graph.reshape(streams, [shape[0] * shape[1], shape[2]])?;
        let [rows] = self.keep_wanted([rows])?;
        let kept = self.graph.tensor(rows)?.ne()[1];
        let streams = self.graph.reshape(rows, [shape[0], shape[1], kept])?;
        self.enter(Section::Output);
        Ok(streams)
    }
}
