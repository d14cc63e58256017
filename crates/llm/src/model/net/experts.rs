//! A feed-forward network of which each token uses a few experts.

use oxcart_tensor::TensorId;
use oxcart_tensor::ops::{GluKind, SortOrder};

use super::Net;
use crate::model::error::Error;
use crate::model::hyper_parameters::Experts;

/// How a token's experts are weighed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gating {
    /// Softmax over all experts, then made to sum to one over those used.
    Softmax,
    /// Softmax over those used.
    SoftmaxOfSelected,
}

/// What experts of an architecture have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moe {
    pub(crate) gating: Gating,
    /// Whether everything has a bias.
    pub(crate) biases: bool,
    pub(crate) kind: GluKind,
}

/// The least that weights are divided by: the smallest normal half-precision number.
const LEAST_SUM: f32 = 1.0 / 16_384.0;

impl Net<'_> {
    /// The weighted sum of what a few experts make of each token. [E, T]
    pub(crate) fn experts(&mut self, x: TensorId, moe: Moe) -> Result<TensorId, Error> {
        let Some(experts) = self.hyper.experts else { return Ok(x) };
        let Experts { count, used, feed_forward, .. } = experts;
        let (width, tokens) = (self.hyper.embedding, self.graph.tensor(x)?.ne()[1]);
        let (selected, weights) = self.select(x, moe, &experts)?;

        let rows = self.graph.reshape(x, [width, 1, tokens])?;
        let active = match self.optional("ffn_gate_up_exps.weight", [width, 2 * feed_forward, count])? {
            Some(both) => {
                let both = self.graph.mul_mat_id(both, rows, selected)?;
                self.graph.glu(both, moe.kind)?
            }
            None => {
                let shape = [width, feed_forward];
                let gate = self.expert_product("ffn_gate_exps", rows, selected, shape, moe.biases)?;
                let up = self.expert_product("ffn_up_exps", rows, selected, shape, moe.biases)?;
                self.graph.glu_split(gate, up, moe.kind)?
            }
        };
        let down =
            self.expert_product("ffn_down_exps", active, selected, [feed_forward, width], moe.biases)?;
        let weighed = self.graph.mul(down, weights)?; // [E, used, T]
        self.sum_slots(weighed, used, tokens)
    }

    /// Which experts compute each token, [used, T], and their weights, [1, used, T].
    fn select(&mut self, x: TensorId, moe: Moe, experts: &Experts) -> Result<(TensorId, TensorId), Error> {
        let &Experts { count, used, weights_scale, .. } = experts;
        let (width, tokens) = (self.hyper.embedding, self.graph.tensor(x)?.ne()[1]);
        let router = self.weight("ffn_gate_inp.weight", [width, count])?;
        let mut scores = self.graph.mul_mat(router, x)?; // [count, T]
        if moe.biases {
            let bias = self.weight("ffn_gate_inp.bias", count)?;
            scores = self.graph.add(scores, bias)?;
        }
        if moe.gating == Gating::Softmax {
            scores = self.graph.soft_max(scores)?;
        }
        let sorted = self.graph.argsort(scores, SortOrder::Descending)?;
        let row = self.graph.tensor(sorted)?.layout().nb()[1];
        let selected = self.graph.view(sorted, [used, tokens], &[row], 0)?;
        let scores = self.graph.reshape(scores, [1, count, tokens])?;
        let weights = self.graph.get_rows(scores, selected)?;
        let weights = self.graph.reshape(weights, [used, tokens])?;
        let mut weights = match moe.gating {
            Gating::SoftmaxOfSelected => self.graph.soft_max(weights)?,
            Gating::Softmax => {
                let sum = self.graph.sum_rows(weights)?;
                let sum = self.graph.clamp(sum, LEAST_SUM, f32::INFINITY)?;
                self.graph.div(weights, sum)?
            }
        };
        if weights_scale != 1.0 {
            weights = self.graph.scale(weights, weights_scale)?;
        }
        Ok((selected, self.graph.reshape(weights, [1, used, tokens])?))
    }

    /// Each row against the matrix of its expert. `from` and `to` are the lengths of rows.
    fn expert_product(
        &mut self,
        base: &str,
        rows: TensorId,
        selected: TensorId,
        [from, to]: [usize; 2],
        biases: bool,
    ) -> Result<TensorId, Error> {
        let count = self.hyper.experts.map_or(0, |experts| experts.count);
        let matrices = self.weight(&format!("{base}.weight"), [from, to, count])?;
        let result = self.graph.mul_mat_id(matrices, rows, selected)?;
        if !biases {
            return Ok(result);
        }
        let bias = self.weight(&format!("{base}.bias"), [to, count])?;
        Ok(self.graph.add_id(result, bias, selected)?)
    }

    /// The sum over the experts of each token, first to last.
    fn sum_slots(&mut self, weighed: TensorId, used: usize, tokens: usize) -> Result<TensorId, Error> {
        let width = self.hyper.embedding;
        let [_, slot, token, _] = self.graph.tensor(weighed)?.layout().nb();
        let mut sum = self.graph.view(weighed, [width, tokens], &[token], 0)?;
        for index in 1..used {
            let next = self.graph.view(weighed, [width, tokens], &[token], index * slot)?;
            sum = self.graph.add(sum, next)?;
        }
        Ok(if used == 1 { self.graph.cont(sum)? } else { sum })
    }
}
