//! Blocks that every architecture is made of: embeddings, norms, products, feed-forward networks.

use oxcart_tensor::ops::{GluKind, Unary};
use oxcart_tensor::{DType, TensorId};

use super::Net;
use crate::model::arch::NormKind;
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

/// What a gated network does between its matrices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Glu {
    /// One of those that have an op of their own.
    Kind(GluKind),
    /// `min(silu(gate), limit) * clamp(up, -limit, limit)`.
    Limited(f32),
    /// `b tanh(gate / b) sigmoid(gate) * l tanh(up / l)`.
    Saturating {
        /// `b`.
        gate: f32,
        /// `l`; without one it is `up` itself.
        up: Option<f32>,
    },
}

impl From<GluKind> for Glu {
    fn from(kind: GluKind) -> Glu {
        Glu::Kind(kind)
    }
}

/// What a matrix is for: architectures differ in where they multiply results by the scale that some files have beside a matrix. One
/// beside a matrix of a type that needs it always counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    /// Queries, keys and values.
    Qkv,
    /// What attention gives.
    AttentionOutput,
    /// A feed-forward network; scaled after the bias is added.
    FeedForward,
    /// The last matrix of one, likewise.
    FeedForwardOutput,
    /// Experts.
    Experts,
    /// Logits.
    Logits,
    /// Something that is always scaled.
    Always,
    /// Something that is not.
    None,
}

impl Net<'_> {
    /// Rows of the embedding table. [E, T]
    pub(crate) fn token_embeddings(&mut self) -> Result<TensorId, Error> {
        let table = self.weight("token_embd.weight", [self.hyper.embedding, self.hyper.vocabulary])?;
        let tokens = self.input("inp_tokens", DType::I32, self.step.tokens)?;
        self.inputs.tokens = Some(tokens);
        let rows = self.graph.get_rows(table, tokens)?;
        match self.hyper.factors.embedding {
            1.0 => Ok(rows),
            factor => self.scale(rows, factor),
        }
    }

    /// Rows of the output matrix, for files that have no other table. [E, T]
    pub(crate) fn output_embeddings(&mut self) -> Result<TensorId, Error> {
        let table = self.weight("output.weight", [self.hyper.embedding, self.hyper.vocabulary])?;
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

    /// What is added to the stream of a block, times the factor of what blocks add.
    pub(crate) fn add_to(&mut self, change: TensorId, x: TensorId) -> Result<TensorId, Error> {
        let change = match self.hyper.factors.residual {
            1.0 => change,
            factor => self.scale(change, factor)?,
        };
        self.add(change, x)
    }

    /// Rows times the sigmoid of their gates, one for each channel or one for all.
    pub(crate) fn weigh(&mut self, x: TensorId, gates: TensorId) -> Result<TensorId, Error> {
        let weights = self.graph.unary(gates, Unary::Sigmoid)?;
        Ok(self.graph.mul(x, weights)?)
    }

    pub(crate) fn mul(&mut self, a: TensorId, b: TensorId) -> Result<TensorId, Error> {
        Ok(self.graph.mul(a, b)?)
    }

    pub(crate) fn scale(&mut self, a: TensorId, factor: f32) -> Result<TensorId, Error> {
        Ok(self.graph.scale(a, factor)?)
    }

    pub(super) fn row_len(&self, x: TensorId) -> Result<usize, Error> {
        Ok(self.graph.tensor(x)?.ne()[0])
    }

    /// RMS norm of each row, times weights, plus a bias if there is one.
    pub(crate) fn rms_norm(&mut self, x: TensorId, base: &str) -> Result<TensorId, Error> {
        self.rms_norm_by(x, &format!("{base}.weight"))
    }

    /// As [`rms_norm`](Net::rms_norm), with weights of this whole name.
    pub(crate) fn rms_norm_by(&mut self, x: TensorId, name: &str) -> Result<TensorId, Error> {
        self.rms_norm_within(x, name, self.hyper.norm_epsilon)
    }

    /// As [`rms_norm_by`](Net::rms_norm_by), with another number added to what it divides by.
    pub(crate) fn rms_norm_within(
        &mut self,
        x: TensorId,
        name: &str,
        epsilon: f32,
    ) -> Result<TensorId, Error> {
        let weights = self.weight(name, self.row_len(x)?)?;
        let normal = self.graph.rms_norm(x, epsilon)?;
        let scaled = self.graph.mul(normal, weights)?;
        match name.strip_suffix(".weight") {
            Some(base) => self.with_bias(scaled, base),
            None => Ok(scaled),
        }
    }

    /// Rows plus the bias of this name, if there is one.
    fn with_bias(&mut self, x: TensorId, base: &str) -> Result<TensorId, Error> {
        match self.optional(&format!("{base}.bias"), self.row_len(x)?)? {
            Some(bias) => Ok(self.graph.add(x, bias)?),
            None => Ok(x),
        }
    }

    /// The architecture's kind of norm, of each row.
    pub(crate) fn norm(&mut self, x: TensorId, base: &str) -> Result<TensorId, Error> {
        match self.hyper.architecture.traits.norm {
            NormKind::Rms => self.rms_norm(x, base),
            NormKind::Layer => self.layer_norm(x, base),
            NormKind::RmsAlone | NormKind::LayerAlone => self.norm_alone(x),
        }
    }

    /// The architecture's kind of norm, of each row, without weights.
    pub(crate) fn norm_alone(&mut self, x: TensorId) -> Result<TensorId, Error> {
        let epsilon = self.hyper.norm_epsilon;
        Ok(match self.hyper.architecture.traits.norm {
            NormKind::Rms | NormKind::RmsAlone => self.graph.rms_norm(x, epsilon)?,
            NormKind::Layer | NormKind::LayerAlone => self.graph.norm(x, epsilon)?,
        })
    }

    /// Norm of each row by its mean and deviation, times weights, plus a bias if there is one.
    pub(crate) fn layer_norm(&mut self, x: TensorId, base: &str) -> Result<TensorId, Error> {
        self.layer_norm_within(x, base, self.hyper.norm_epsilon)
    }

    /// As [`layer_norm`](Net::layer_norm), with another number added to what it divides by.
    pub(super) fn layer_norm_within(
        &mut self,
        x: TensorId,
        base: &str,
        epsilon: f32,
    ) -> Result<TensorId, Error> {
        let width = self.row_len(x)?;
        let weights = self.weight(&format!("{base}.weight"), width)?;
        let normal = self.graph.norm(x, epsilon)?;
        let scaled = self.graph.mul(normal, weights)?;
        self.with_bias(scaled, base)
    }

    /// The architecture's kind of norm of each head of queries or keys, with the same weights for all. [D, heads, T]
    pub(crate) fn head_norm(&mut self, x: TensorId, base: &str) -> Result<TensorId, Error> {
        self.norm(x, base)
    }

    /// As [`head_norm`](Net::head_norm), with weights of its own for each head, if there are any. [D, heads, T]
    pub(crate) fn own_head_norm(&mut self, x: TensorId, base: &str) -> Result<TensorId, Error> {
        let shape = self.graph.tensor(x)?.ne();
        let Some(weights) = self.optional(&format!("{base}.weight"), [shape[0], shape[1]])? else {
            return Ok(x);
        };
        let normal = self.norm_alone(x)?;
        Ok(self.graph.mul(normal, weights)?)
    }

    /// The architecture's kind of norm of all heads of queries or keys together. [D, heads, T]
    pub(crate) fn joint_head_norm(&mut self, x: TensorId, base: &str) -> Result<TensorId, Error> {
        let shape = self.graph.tensor(x)?.ne();
        let rows = self.graph.cont_as(x, [shape[0] * shape[1], shape[2]])?;
        let rows = self.norm(rows, base)?;
        Ok(self.graph.reshape(rows, [shape[0], shape[1], shape[2]])?)
    }

    /// A product with a matrix of `width` rows, and what comes with it.
    pub(super) fn product(
        &mut self,
        x: TensorId,
        base: &str,
        width: usize,
        bias: Bias,
        scale: Scale,
    ) -> Result<TensorId, Error> {
        let weights = self.weight(&format!("{base}.weight"), [self.row_len(x)?, width])?;
        let factor = self.scale_beside(weights, base, 1, scale)?;
        let bias = self.bias(base, width, bias)?;
        let mut y = self.graph.mul_mat(weights, x)?;
        let comes_last = matches!(scale, Scale::FeedForward | Scale::FeedForwardOutput);
        if let Some(factor) = factor.filter(|_| !comes_last) {
            y = self.graph.mul(y, factor)?;
        }
        if let Some(bias) = bias {
            y = self.graph.add(y, bias)?;
        }
        if let Some(factor) = factor.filter(|_| comes_last) {
            y = self.graph.mul(y, factor)?;
        }
        Ok(y)
    }

    /// The scale that results of a matrix are multiplied by, or of each of `count` matrices.
    pub(super) fn scale_beside(
        &mut self,
        weights: TensorId,
        base: &str,
        count: usize,
        scale: Scale,
    ) -> Result<Option<TensorId>, Error> {
        let scales = self.hyper.architecture.traits.scales;
        let counts = match scale {
            Scale::Qkv => scales.qkv,
            Scale::AttentionOutput => scales.attention_output,
            Scale::FeedForward | Scale::Experts => scales.feed_forward,
            Scale::FeedForwardOutput => scales.feed_forward_output,
            Scale::Logits => scales.logits,
            Scale::Always => true,
            Scale::None => false,
        };
        let name = self.scale_name(base);
        if counts || self.graph.tensor(weights)?.dtype() == DType::NVFP4 {
            return self.global(&name, count);
        }
        self.pass_over_whole(name);
        Ok(None)
    }

    fn bias(&mut self, base: &str, width: usize, bias: Bias) -> Result<Option<TensorId>, Error> {
        let name = format!("{base}.bias");
        match bias {
            Bias::None => Ok(None),
            Bias::Optional => self.optional(&name, width),
            Bias::Required => self.weight(&name, width).map(Some),
        }
    }

    /// Channels of the block's dense feed-forward network.
    pub(super) fn feed_forward(&self) -> Result<usize, Error> {
        match self.block().feed_forward {
            0 => {
                let key = format!("{}.feed_forward_length", self.hyper.architecture());
                let rule =
                    format!("block {} has neither a feed-forward network nor experts", self.block_index());
                Err(Error::parameter(key, 0, rule))
            }
            channels => Ok(channels),
        }
    }

    /// `down(activation(gate(x)) * up(x))`.
    pub(crate) fn gated(&mut self, x: TensorId, kind: impl Into<Glu>, bias: Bias) -> Result<TensorId, Error> {
        let inner = self.feed_forward()?;
        self.gated_by(x, ["ffn_gate", "ffn_up", "ffn_down"], inner, kind, bias)
    }

    /// As [`gated`](Net::gated), with matrices of these names and so many channels between them.
    pub(super) fn gated_by(
        &mut self,
        x: TensorId,
        [gate, up, down]: [&str; 3],
        inner: usize,
        kind: impl Into<Glu>,
        bias: Bias,
    ) -> Result<TensorId, Error> {
        let gate = self.product(x, gate, inner, bias, Scale::FeedForward)?;
        let up = self.product(x, up, inner, bias, Scale::FeedForward)?;
        let active = self.glu(gate, up, kind.into())?;
        self.product(active, down, self.hyper.embedding, bias, Scale::FeedForwardOutput)
    }

    /// What a gated network has between its matrices.
    pub(super) fn glu(&mut self, gate: TensorId, up: TensorId, kind: Glu) -> Result<TensorId, Error> {
        let (gate, up) = match kind {
            Glu::Kind(kind) => return Ok(self.graph.glu_split(gate, up, kind)?),
            Glu::Limited(limit) => {
                let gate = self.graph.unary(gate, Unary::Silu)?;
                let gate = self.graph.clamp(gate, f32::NEG_INFINITY, limit)?;
                (gate, self.graph.clamp(up, -limit, limit)?)
            }
            Glu::Saturating { gate: bound, up: up_bound } => {
                let open = self.graph.unary(gate, Unary::Sigmoid)?;
                let bounded = self.saturated(gate, bound)?;
                let up = up_bound.map_or(Ok(up), |bound| self.saturated(up, bound))?;
                (self.graph.mul(bounded, open)?, up)
            }
        };
        Ok(self.graph.mul(gate, up)?)
    }

    /// `bound * tanh(x / bound)`.
    fn saturated(&mut self, x: TensorId, bound: f32) -> Result<TensorId, Error> {
        let small = self.graph.scale(x, bound.recip())?;
        let small = self.graph.unary(small, Unary::Tanh)?;
        self.scale(small, bound)
    }

    /// Whether the first matrix of the feed-forward network has a gate in it, as in [`gated_fused`](Net::gated_fused).
    pub(crate) fn widens_twice(&self) -> bool {
        self.extents("ffn_up.weight").is_some_and(|shape| shape[1] == 2 * self.block().feed_forward)
    }

    /// As [`gated`](Net::gated), gate and up in one matrix, the gate first.
    pub(crate) fn gated_fused(&mut self, x: TensorId, kind: GluKind) -> Result<TensorId, Error> {
        let inner = self.feed_forward()?;
        self.gated_fused_by(x, ["ffn_up", "ffn_down"], inner, kind, Bias::None)
    }

    /// As [`gated_fused`](Net::gated_fused), with biases that the file may have.
    pub(crate) fn gated_fused_with_biases(&mut self, x: TensorId, kind: GluKind) -> Result<TensorId, Error> {
        let inner = self.feed_forward()?;
        self.gated_fused_by(x, ["ffn_up", "ffn_down"], inner, kind, Bias::Optional)
    }

    /// As [`gated_fused`](Net::gated_fused), with matrices of these names and so many channels between them.
    pub(super) fn gated_fused_by(
        &mut self,
        x: TensorId,
        [up, down]: [&str; 2],
        inner: usize,
        kind: GluKind,
        bias: Bias,
    ) -> Result<TensorId, Error> {
        let both = self.product(x, up, 2 * inner, bias, Scale::FeedForward)?;
        let active = self.graph.glu(both, kind)?;
        self.product(active, down, self.hyper.embedding, bias, Scale::FeedForwardOutput)
    }

    /// As [`gated`](Net::gated), with so many channels between the matrices.
    pub(crate) fn gated_of(
        &mut self,
        x: TensorId,
        inner: usize,
        kind: impl Into<Glu>,
        bias: Bias,
    ) -> Result<TensorId, Error> {
        self.gated_by(x, ["ffn_gate", "ffn_up", "ffn_down"], inner, kind, bias)
    }

    /// `down(activation(up(x)))`, divided before `down` by numbers that some files have.
    pub(crate) fn plain(&mut self, x: TensorId, function: Unary, bias: Bias) -> Result<TensorId, Error> {
        let (inner, outer) = (self.feed_forward()?, self.hyper.embedding);
        let up = self.product(x, "ffn_up", inner, bias, Scale::FeedForward)?;
        let mut active = self.graph.unary(up, function)?;
        if let Some(divisors) = self.optional("ffn.act.scales", inner)? {
            active = self.graph.div(active, divisors)?;
        }
        self.product(active, "ffn_down", outer, bias, Scale::FeedForwardOutput)
    }

    /// `down(relu(up(x))²)`.
    pub(crate) fn squared(&mut self, x: TensorId, bias: Bias) -> Result<TensorId, Error> {
        let inner = self.feed_forward()?;
        self.squared_by(x, ["ffn_up", "ffn_down"], inner, bias)
    }

    /// As [`squared`](Net::squared), with matrices of these names and so many channels between them.
    pub(super) fn squared_by(
        &mut self,
        x: TensorId,
        [up, down]: [&str; 2],
        inner: usize,
        bias: Bias,
    ) -> Result<TensorId, Error> {
        let up = self.product(x, up, inner, bias, Scale::FeedForward)?;
        let active = self.relu_squared(up)?;
        self.product(active, down, self.hyper.embedding, bias, Scale::FeedForwardOutput)
    }

    pub(super) fn relu_squared(&mut self, x: TensorId) -> Result<TensorId, Error> {
        let positive = self.graph.unary(x, Unary::Relu)?;
        Ok(self.graph.sqr(positive)?)
    }

    /// An activation by itself.
    pub(crate) fn activated(&mut self, x: TensorId, function: Unary) -> Result<TensorId, Error> {
        Ok(self.graph.unary(x, function)?)
    }
}
