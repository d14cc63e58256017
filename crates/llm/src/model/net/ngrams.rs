//! Embeddings of n-grams, looked up by hashes, gated by what they have in common with the streams, and convolved.

use oxcart_tensor::ops::Unary;
use oxcart_tensor::{DType, TensorId};

use super::layers::Scale;
use super::{Bias, Net};
use crate::model::error::Error;
use crate::model::hyper_parameters::Ngrams;
use crate::runner::state::StateTensor;

/// The least that roots are taken of.
const LEAST_AGREEMENT: f32 = 1e-6;

impl Net<'_> {
    /// Embeddings of the n-grams that end with each token, if the model has such. [E, T]
    pub(crate) fn ngram_embeddings(&mut self) -> Result<Option<TensorId>, Error> {
        let Some(ngrams) = &self.hyper.ngrams else { return Ok(None) };
        let name = "per_layer_token_embd.weight";
        // Files may have more rows than are used.
        let rows = self.extents(name).map_or(0, |shape| shape[1]).max(ngrams.rows());
        let (width, count, tokens) = (ngrams.width, ngrams.ranges.len(), self.step.tokens);
        let table = self.weight(name, [width, rows])?;
        let numbers = self.input("inp_ngram_rows", DType::I32, count * tokens)?;
        self.inputs.ngram_rows = Some(numbers);
        let found = self.graph.get_rows(table, numbers)?;
        Ok(Some(self.graph.reshape(found, [width * count, tokens])?))
    }

    /// Whether the block that is being built adds them to its streams.
    pub(crate) fn has_ngrams(&self) -> bool {
        self.hyper.ngrams.as_ref().is_some_and(|ngrams| ngrams.block == self.block_index())
    }

    /// The streams [E, streams, T] with what embeddings of n-grams add to them.
    pub(crate) fn add_ngrams(&mut self, streams: TensorId, found: TensorId) -> Result<TensorId, Error> {
        let shape = self.graph.tensor(streams)?.ne();
        let [width, count, tokens] = [shape[0], shape[1], shape[2]];
        let key = self.product(found, "ple_key", width * count, Bias::None, Scale::None)?;
        let key = self.graph.reshape(key, [width, count, tokens])?;
        let key = self.stream_norms(key, "ple_norm_key")?;
        let query = self.stream_norms(streams, "ple_norm_query")?;
        let gates = self.agreement(key, query)?; // [1, streams, T]
        let value = self.product(found, "ple_value", width, Bias::None, Scale::None)?;
        let value = self.graph.reshape(value, [width, 1, tokens])?;
        let value = self.graph.repeat(value, [width, count, tokens])?;
        let gated = self.graph.mul(value, gates)?;
        let normal = self.stream_norms(gated, "ple_norm_conv")?;
        let normal = self.graph.reshape(normal, [width * count, tokens])?;
        let mixed = self.spread_convolution(normal)?;
        let mixed = self.graph.reshape(mixed, [width, count, tokens])?;
        let change = self.add(gated, mixed)?;
        self.add(streams, change)
    }

    /// How much keys and queries have in common, between zero and one: the sigmoid of the root of their product, which keeps its
    /// sign. [1, streams, T]
    fn agreement(&mut self, key: TensorId, query: TensorId) -> Result<TensorId, Error> {
        let product = self.graph.mul(key, query)?;
        let sum = self.graph.sum_rows(product)?;
        let sum = self.scale(sum, (self.hyper.embedding as f32).sqrt().recip())?;
        let size = self.graph.unary(sum, Unary::Abs)?;
        let size = self.graph.clamp(size, LEAST_AGREEMENT, f32::INFINITY)?;
        let root = self.graph.sqrt(size)?;
        let sign = self.graph.unary(sum, Unary::Sgn)?;
        let signed = self.graph.mul(sign, root)?;
        Ok(self.graph.unary(signed, Unary::Sigmoid)?)
    }

    /// Every channel of rows [C, T] as a weighted sum of tokens that are as far apart as the longest n-gram is long, activated.
    /// [C, T / S, S]
    fn spread_convolution(&mut self, rows: TensorId) -> Result<TensorId, Error> {
        let Some(&Ngrams { longest, taps, .. }) = self.hyper.ngrams.as_ref() else { return Ok(rows) };
        let (channels, each) = (self.row_len(rows)?, self.tokens_of_each());
        let kernel = self.weight("ple_conv1d.weight", [taps, channels])?;
        let kernel = self.as_type(kernel, DType::F32)?;
        let seen = self.with_those_before(rows, StateTensor::Ngrams, (taps - 1) * longest)?;
        let [float, channel, sequence, _] = self.graph.tensor(seen)?.layout().nb();
        let row = self.graph.tensor(kernel)?.layout().nb()[1];
        let mut sum = None;
        for tap in 0..taps {
            let shape = [each, channels, self.step.sequences];
            let shifted = self.graph.view(seen, shape, &[channel, sequence], tap * longest * float)?;
            let shifted = self.graph.transpose(shifted)?;
            let shifted = self.graph.cont(shifted)?; // [C, T / S, S]
            let weights = self.graph.view(kernel, [1, channels], &[row], tap * float)?;
            let weights = self.graph.cont_as(weights, channels)?;
            let term = self.graph.mul(shifted, weights)?;
            sum = Some(match sum {
                None => term,
                Some(sum) => self.add(sum, term)?,
            });
        }
        Ok(self.graph.unary(sum.unwrap_or(rows), Unary::Silu)?)
    }
}
