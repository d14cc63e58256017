//! Several residual streams beside each other (hyper-connections): a part reads a weighted sum of them, and what it gives is added to
//! each with a weight of its own.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{Dsv4HcPre, Unary};

use super::{Net, Section};
use crate::model::error::Error;
use crate::model::hyper_parameters::Streams;

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

    /// What a part reads of the streams, [E, T], and the weights of what it gives, [streams, T]; by tensors of this name.
    pub(crate) fn read_streams(
        &mut self,
        streams: TensorId,
        base: &str,
    ) -> Result<(TensorId, TensorId), Error> {
        let Streams { count, epsilon, magnitude } = self.stream_rule()?;
        let both = self.stream_weights(streams, base, 2)?; // [2 * streams, T]
        let tokens = self.graph.tensor(both)?.ne()[1];
        let [float, row, ..] = self.graph.tensor(both)?.layout().nb();
        let mut part = |first: usize| -> Result<TensorId, Error> {
            let part = self.graph.view(both, [count, tokens], &[row], first * count * float)?;
            Ok(self.graph.cont(part)?)
        };
        let (before, after) = (part(0)?, part(1)?);
        let after = self.graph.scale_bias(after, magnitude, epsilon)?;
        Ok((self.weighted_streams(streams, before)?, after))
    }

    /// Weights of the streams by what all of them are together: `count` for each, between zero and one. [count * streams, T]
    fn stream_weights(&mut self, streams: TensorId, base: &str, count: usize) -> Result<TensorId, Error> {
        let number = self.stream_rule()?.count;
        let shape = self.graph.tensor(streams)?.ne();
        let (width, tokens, all) = (shape[0] * shape[1], shape[2], count * number);
        let matrix = self.weight(&format!("{base}_fn.weight"), [width, all])?;
        let bias = self.weight(&format!("{base}_base.weight"), all)?;
        let scales = self.weight(&format!("{base}_scale.weight"), count)?;
        let flat = self.graph.reshape(streams, [width, tokens])?;
        let flat = self.norm_alone(flat)?;
        let mixed = self.graph.mul_mat(matrix, flat)?; // [all, T]
        let mixed = self.graph.reshape(mixed, [number, count, tokens])?;
        let scales = self.graph.reshape(scales, [1, count])?;
        let mixed = self.graph.mul(mixed, scales)?;
        let mixed = self.graph.reshape(mixed, [all, tokens])?;
        let mixed = self.graph.add(mixed, bias)?;
        Ok(self.graph.unary(mixed, Unary::Sigmoid)?)
    }

    /// The sum of the streams by weights [streams, T] that are a little more than these. [E, T]
    fn weighted_streams(&mut self, streams: TensorId, weights: TensorId) -> Result<TensorId, Error> {
        let weights = self.graph.scale_bias(weights, 1.0, self.stream_rule()?.epsilon)?;
        Ok(self.graph.dsv4_hc_pre(streams, weights, Dsv4HcPre { scale: 1.0, gated: false })?)
    }

    /// The streams, each plus what a part gave times its weight. [E, streams, T]
    pub(crate) fn write_streams(
        &mut self,
        given: TensorId,
        streams: TensorId,
        weights: TensorId,
    ) -> Result<TensorId, Error> {
        Ok(self.graph.dsv4_hc_post(given, streams, weights, None)?)
    }

    /// The one row that logits are made of, of the tokens whose results are wanted. [E, outputs]
    pub(crate) fn end_streams(&mut self, streams: TensorId, base: &str) -> Result<TensorId, Error> {
        let shape = self.graph.tensor(streams)?.ne();
        let rows = self.graph.reshape(streams, [shape[0] * shape[1], shape[2]])?;
        let [rows] = self.keep_wanted([rows])?;
        let kept = self.graph.tensor(rows)?.ne()[1];
        let streams = self.graph.reshape(rows, [shape[0], shape[1], kept])?;
        self.enter(Section::Output);
        let weights = self.stream_weights(streams, base, 1)?;
        self.weighted_streams(streams, weights)
    }
}
