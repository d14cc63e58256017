//! Blocks that every architecture is made of: embeddings, norms, products, feed-forward networks.

use oxcart_tensor::ops::{GluKind, Unary};
use oxcart_tensor::{DType, TensorId};

use super::Net;
use crate::model::error::Error;

/// Whether a product has a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bias {
    /// There is none.
    None,
    /// It is added if the file has it.
    Optional,
    /// It must be there.
    Required,
}

/// When results are multiplied by the scale that some files have beside a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScaleOrder {
    BeforeBias,
    AfterBias,
}

impl Net<'_> {
    /// Rows of the embedding table. [E, T]
    pub(crate) fn token_embeddings(&mut self) -> Result<TensorId, Error> {
        let table = self.weight("token_embd.weight", [self.hyper.embedding, self.hyper.vocabulary])?;
        let tokens = self.input("inp_tokens", DType::I32, self.step.tokens)?;
        self.inputs.tokens = Some(tokens);
        Ok(self.graph.get_rows(table, tokens)?)
    }

    /// The embedding that every token of an encoder gets, if the file has types. [E]
    pub(crate) fn first_token_type(&mut self) -> Result<Option<TensorId>, Error> {
        let (width, types) = (self.hyper.embedding, self.hyper.token_types);
        let Some(table) = self.optional("token_types.weight", [width, types])? else { return Ok(None) };
        Ok(Some(self.graph.view(table, width, &[], 0)?))
    }

    /// Embeddings of the positions. [E, T]
    pub(crate) fn learnt_positions(&mut self) -> Result<TensorId, Error> {
        let table = self.weight("position_embd.weight", [self.hyper.embedding, self.hyper.context])?;
        let positions = self.positions()?;
        Ok(self.graph.get_rows(table, positions)?)
    }

    /// The position of each token. [T]
    pub(super) fn positions(&mut self) -> Result<TensorId, Error> {
        match self.inputs.positions {
            Some(positions) => Ok(positions),
            None => {
                let positions = self.input("inp_pos", DType::I32, self.step.tokens)?;
                self.inputs.positions = Some(positions);
                Ok(positions)
            }
        }
    }

    pub(crate) fn add(&mut self, a: TensorId, b: TensorId) -> Result<TensorId, Error> {
        Ok(self.graph.add(a, b)?)
    }

    pub(crate) fn scale(&mut self, a: TensorId, factor: f32) -> Result<TensorId, Error> {
        Ok(self.graph.scale(a, factor)?)
    }

    fn row_len(&self, x: TensorId) -> Result<usize, Error> {
        Ok(self.graph.tensor(x)?.ne()[0])
    }

    /// RMS norm of each row, times weights.
    pub(crate) fn rms_norm(&mut self, x: TensorId, base: &str) -> Result<TensorId, Error> {
        let weights = self.weight(&format!("{base}.weight"), self.row_len(x)?)?;
        let normal = self.graph.rms_norm(x, self.hyper.norm_epsilon)?;
        Ok(self.graph.mul(normal, weights)?)
    }

    /// RMS norm of each head of queries or keys. [D, heads, T]
    pub(crate) fn head_norm(&mut self, x: TensorId, base: &str) -> Result<TensorId, Error> {
        self.rms_norm(x, base)
    }

    /// Norm of each row, times weights, plus a bias.
    pub(crate) fn layer_norm(&mut self, x: TensorId, base: &str) -> Result<TensorId, Error> {
        let width = self.row_len(x)?;
        let weights = self.weight(&format!("{base}.weight"), width)?;
        let bias = self.weight(&format!("{base}.bias"), width)?;
        let normal = self.graph.norm(x, self.hyper.norm_epsilon)?;
        let scaled = self.graph.mul(normal, weights)?;
        Ok(self.graph.add(scaled, bias)?)
    }

    /// A product with a matrix of `width` rows, and what comes with it.
    pub(super) fn product(
        &mut self,
        x: TensorId,
        base: &str,
        width: usize,
        bias: Bias,
        order: ScaleOrder,
    ) -> Result<TensorId, Error> {
        let weights = self.weight(&format!("{base}.weight"), [self.row_len(x)?, width])?;
        let scale = self.optional(&format!("{base}.scale"), 1)?;
        let bias = self.bias(base, width, bias)?;
        let mut y = self.graph.mul_mat(weights, x)?;
        if let Some(scale) = scale.filter(|_| order == ScaleOrder::BeforeBias) {
            y = self.graph.mul(y, scale)?;
        }
        if let Some(bias) = bias {
            y = self.graph.add(y, bias)?;
        }
        if let Some(scale) = scale.filter(|_| order == ScaleOrder::AfterBias) {
            y = self.graph.mul(y, scale)?;
        }
        Ok(y)
    }

    fn bias(&mut self, base: &str, width: usize, bias: Bias) -> Result<Option<TensorId>, Error> {
        let name = format!("{base}.bias");
        match bias {
            Bias::None => Ok(None),
            Bias::Optional => self.optional(&name, width),
            Bias::Required => self.weight(&name, width).map(Some),
        }
    }

    fn feed_forward(&self) -> usize {
        self.block().feed_forward
    }

    /// `down(activation(gate(x)) * up(x))`.
    pub(crate) fn gated(&mut self, x: TensorId, kind: GluKind, bias: Bias) -> Result<TensorId, Error> {
        let (inner, outer) = (self.feed_forward(), self.hyper.embedding);
        let gate = self.product(x, "ffn_gate", inner, bias, ScaleOrder::AfterBias)?;
        let up = self.product(x, "ffn_up", inner, bias, ScaleOrder::AfterBias)?;
        let active = self.graph.glu_split(gate, up, kind)?;
        self.product(active, "ffn_down", outer, bias, ScaleOrder::AfterBias)
    }

    /// As [`gated`](Net::gated), gate and up in one matrix, the gate first.
    pub(crate) fn gated_fused(&mut self, x: TensorId, kind: GluKind) -> Result<TensorId, Error> {
        let (inner, outer) = (self.feed_forward(), self.hyper.embedding);
        let both = self.product(x, "ffn_up", 2 * inner, Bias::None, ScaleOrder::AfterBias)?;
        let active = self.graph.glu(both, kind)?;
        self.product(active, "ffn_down", outer, Bias::None, ScaleOrder::AfterBias)
    }

    /// `down(activation(up(x)))`.
    pub(crate) fn plain(&mut self, x: TensorId, function: Unary, bias: Bias) -> Result<TensorId, Error> {
        let (inner, outer) = (self.feed_forward(), self.hyper.embedding);
        let up = self.product(x, "ffn_up", inner, bias, ScaleOrder::AfterBias)?;
        let active = self.graph.unary(up, function)?;
        self.product(active, "ffn_down", outer, bias, ScaleOrder::AfterBias)
    }
}
