//! A feed-forward network of which each token uses a few experts.

use oxcart_tensor::ops::{GluKind, SortOrder, Unary};
use oxcart_tensor::{DType, TensorId};

use super::layers::Scale;
use super::{Bias, Glu, Net};
use crate::model::error::Error;
use crate::model::hyper_parameters::{Experts, Gating};

/// What experts of an architecture have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moe {
    pub(crate) gating: Gating,
    /// Whether the weights of those used are made to sum to one.
    pub(crate) normalized: bool,
    /// Whether everything has a bias.
    pub(crate) biases: bool,
    pub(crate) kind: Glu,
    /// Whether weights are applied to what experts read rather than to what they give.
    pub(crate) weighs_inputs: bool,
    /// Whether experts are `down(relu(up(x))²)`, without gates.
    pub(crate) squared: bool,
    /// What experts without gates are otherwise: `down(f(up(x)))`.
    pub(crate) plain: Option<Unary>,
}

impl Moe {
    /// As the file says; by this rule where it does not say by which.
    pub(crate) fn stated(experts: &Experts, default: Gating) -> Moe {
        let gating = experts.gating.unwrap_or(default);
        Moe { gating, normalized: experts.normalized, ..Moe::PLAIN }
    }

    /// What most have: softmax over all, then made to sum to one over those used.
    pub(crate) const PLAIN: Moe = Moe {
        gating: Gating::Softmax,
        normalized: true,
        biases: false,
        kind: Glu::Kind(GluKind::Swiglu),
        weighs_inputs: false,
        squared: false,
        plain: None,
    };
}

/// The least that weights are divided by: the smallest normal half-precision number.
const LEAST_SUM: f32 = 1.0 / 16_384.0;

impl Net<'_> {
    /// The weighted sum of what a few experts make of each token. [E, T]
    pub(crate) fn experts(&mut self, x: TensorId, moe: Moe) -> Result<TensorId, Error> {
        let scores = self.expert_scores(x, moe)?;
        self.scored_experts(x, scores, moe)
    }

    /// What experts make of each token, chosen by scores [count, T] of something else than it. [E, T]
    pub(crate) fn scored_experts(
        &mut self,
        x: TensorId,
        scores: TensorId,
        moe: Moe,
    ) -> Result<TensorId, Error> {
        let Some(experts) = self.hyper.experts else { return Ok(x) };
        let used = experts.used;
        let (width, tokens) = (self.row_len(x)?, self.graph.tensor(x)?.ne()[1]);
        let (selected, weights) = self.select(scores, moe, &experts)?;

        let mut rows = self.graph.reshape(x, [width, 1, tokens])?;
        if moe.weighs_inputs {
            let repeated = self.graph.repeat(rows, [width, used, tokens])?;
            rows = self.graph.mul(repeated, weights)?;
        }
        let active = self.inside_experts(rows, selected, moe, &experts)?; // [F, used, T]
        let shape = [experts.feed_forward, width];
        let down = self.expert_product("ffn_down_exps", active, selected, shape, moe.biases)?;
        // [E, used, T]
        let weighed = if moe.weighs_inputs { down } else { self.graph.mul(down, weights)? };
        self.sum_slots(weighed, used, tokens)
    }

    /// What is between the matrices of the experts selected. [F, used, T]
    fn inside_experts(
        &mut self,
        rows: TensorId,
        selected: TensorId,
        moe: Moe,
        experts: &Experts,
    ) -> Result<TensorId, Error> {
        let (width, inner) = (self.row_len(rows)?, experts.feed_forward);
        if moe.squared {
            let up = self.expert_product("ffn_up_exps", rows, selected, [width, inner], moe.biases)?;
            return self.relu_squared(up);
        }
        if let Some(function) = moe.plain {
            let up = self.expert_product("ffn_up_exps", rows, selected, [width, inner], moe.biases)?;
            return self.activated(up, function);
        }
        if let Some(both) = self.optional("ffn_gate_up_exps.weight", [width, 2 * inner, experts.count])? {
            let both = self.graph.mul_mat_id(both, rows, selected)?;
            if let Glu::Kind(kind) = moe.kind {
                return Ok(self.graph.glu(both, kind)?);
            }
            let (gate, up) = (self.part(both, 0, inner)?, self.part(both, inner, inner)?);
            return self.glu(gate, up, moe.kind);
        }
        let gate = self.expert_product("ffn_gate_exps", rows, selected, [width, inner], moe.biases)?;
        let up = self.expert_product("ffn_up_exps", rows, selected, [width, inner], moe.biases)?;
        self.glu(gate, up, moe.kind)
    }

    /// What experts make of each token in a narrower space, where the file has matrices of these names to it and back, the second
    /// after a norm if it has one; they are chosen by the token as it is. [E, T]
    pub(crate) fn narrowed_experts(
        &mut self,
        x: TensorId,
        moe: Moe,
        [down, norm, up]: [&str; 3],
    ) -> Result<TensorId, Error> {
        let scores = self.expert_scores(x, moe)?;
        let Some(shape) = self.extents(&format!("{down}.weight")) else {
            return self.scored_experts(x, scores, moe);
        };
        let narrow = self.product(x, down, shape[1], Bias::None, Scale::None)?;
        let mut chosen = self.scored_experts(narrow, scores, moe)?;
        if self.has(&format!("{norm}.weight")) {
            chosen = self.rms_norm(chosen, norm)?;
        }
        self.product(chosen, up, self.hyper.embedding, Bias::None, Scale::None)
    }

    /// What a few experts and one that every token uses make of each token together. [E, T]
    pub(crate) fn experts_and_shared(
        &mut self,
        x: TensorId,
        moe: Moe,
        inner: usize,
    ) -> Result<TensorId, Error> {
        self.experts_and_other_shared(x, moe, inner, GluKind::Swiglu)
    }

    /// As [`experts_and_shared`](Net::experts_and_shared), the shared one of another kind.
    pub(crate) fn experts_and_other_shared(
        &mut self,
        x: TensorId,
        moe: Moe,
        inner: usize,
        shared: impl Into<Glu>,
    ) -> Result<TensorId, Error> {
        let chosen = self.experts(x, moe)?;
        let shared = self.shared_expert(x, inner, shared)?;
        self.add(chosen, shared)
    }

    /// What small experts, one for each group of the others, make of each token: those of the groups that its best experts belong
    /// to. Scores are those of the others. [E, T]
    pub(crate) fn grove_experts(&mut self, x: TensorId, scores: TensorId) -> Result<TensorId, Error> {
        let Some(experts) = self.hyper.experts else { return Ok(x) };
        let Some((group, inner)) = experts.groves else { return Ok(x) };
        let (groves, width, tokens) =
            (experts.count / group, self.hyper.embedding, self.graph.tensor(x)?.ne()[1]);
        let used = experts.used.min(groves);
        let mut selected = self.largest(scores, used)?;
        if group > 1 {
            let selected_whole = self.graph.cont(selected)?;
            let numbers = self.graph.cast(selected_whole, DType::F32)?;
            let numbers = self.graph.scale(numbers, (group as f32).recip())?;
            selected = self.graph.cast(numbers, DType::I32)?;
        }
        let weights = self.graph.soft_max(scores)?;
        let weights = self.graph.reshape(weights, [1, experts.count, tokens])?;
        let weights = self.graph.get_rows(weights, selected)?;
        let weights = self.graph.reshape(weights, [used, tokens])?;
        let weights = self.summing_to_one(weights)?;
        let weights = self.graph.reshape(weights, [1, used, tokens])?;
        let rows = self.graph.reshape(x, [width, 1, tokens])?;
        let gates = self.weight("ffn_gate_chexps.weight", [width, inner, groves])?;
        let ups = self.weight("ffn_up_chexps.weight", [width, inner, groves])?;
        let downs = self.weight("ffn_down_chexps.weight", [inner, width, groves])?;
        let gate = self.graph.mul_mat_id(gates, rows, selected)?;
        let up = self.graph.mul_mat_id(ups, rows, selected)?;
        let active = self.graph.glu_split(gate, up, GluKind::Swiglu)?;
        let down = self.graph.mul_mat_id(downs, active, selected)?;
        let weighed = self.graph.mul(down, weights)?;
        self.sum_slots(weighed, used, tokens)
    }

    /// Weights [used, T] that sum to one. [used, T]
    fn summing_to_one(&mut self, weights: TensorId) -> Result<TensorId, Error> {
        let sum = self.graph.sum_rows(weights)?;
        let sum = self.graph.clamp(sum, LEAST_SUM, f32::INFINITY)?;
        Ok(self.graph.div(weights, sum)?)
    }

    /// What a network computes that every token uses, with so many channels inside.
    pub(crate) fn shared_expert(
        &mut self,
        x: TensorId,
        inner: usize,
        kind: impl Into<Glu>,
    ) -> Result<TensorId, Error> {
        self.gated_by(x, ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"], inner, kind, Bias::None)
    }

    /// As [`shared_expert`](Net::shared_expert), `down(relu(up(x))²)` without a gate.
    pub(crate) fn squared_shared_expert(&mut self, x: TensorId, inner: usize) -> Result<TensorId, Error> {
        self.squared_by(x, ["ffn_up_shexp", "ffn_down_shexp"], inner, Bias::None)
    }

    /// As [`shared_expert`](Net::shared_expert), gate and up in one matrix, the gate first.
    pub(crate) fn fused_shared_expert(
        &mut self,
        x: TensorId,
        inner: usize,
        kind: GluKind,
    ) -> Result<TensorId, Error> {
        self.gated_fused_by(x, ["ffn_up_shexp", "ffn_down_shexp"], inner, kind, Bias::None)
    }

    /// A shared expert as large as the file says, or as the dense network, weighed by a number that each token has. [E, T]
    pub(crate) fn gated_shared_expert(&mut self, x: TensorId) -> Result<TensorId, Error> {
        let stated = self.hyper.experts.and_then(|experts| experts.shared_feed_forward);
        let inner = stated.unwrap_or(self.block().feed_forward);
        let shared = self.shared_expert(x, inner, GluKind::Swiglu)?;
        let weights = self.weight("ffn_gate_inp_shexp.weight", self.hyper.embedding)?;
        let gate = self.graph.mul_mat(weights, x)?; // [1, T]
        self.weigh(shared, gate)
    }

    /// How well each expert suits each token. [count, T]
    pub(crate) fn expert_scores(&mut self, x: TensorId, moe: Moe) -> Result<TensorId, Error> {
        let count = self.hyper.experts.map_or(0, |experts| experts.count);
        let router = self.weight("ffn_gate_inp.weight", [self.hyper.embedding, count])?;
        let scores = self.graph.mul_mat(router, x)?;
        if !moe.biases {
            return Ok(scores);
        }
        let bias = self.weight("ffn_gate_inp.bias", count)?;
        Ok(self.graph.add(scores, bias)?)
    }

    /// By scores, which experts compute each token, [used, T], and their weights, [1, used, T].
    fn select(
        &mut self,
        scores: TensorId,
        moe: Moe,
        experts: &Experts,
    ) -> Result<(TensorId, TensorId), Error> {
        let &Experts { count, used, weights_scale, .. } = experts;
        let tokens = self.graph.tensor(scores)?.ne()[1];
        let scores = match moe.gating {
            Gating::Softmax => self.graph.soft_max(scores)?,
            Gating::Sigmoid => self.graph.unary(scores, Unary::Sigmoid)?,
            Gating::SoftmaxOfSelected => scores,
            Gating::RootOfSoftplus => {
                let soft = self.graph.unary(scores, Unary::Softplus)?;
                self.graph.sqrt(soft)?
            }
        };
        let selected = match self.block_index() < experts.by_token {
            true => self.experts_by_token(used)?,
            false => self.best_experts(scores, experts)?,
        };
        let scores = self.graph.reshape(scores, [1, count, tokens])?;
        let weights = self.graph.get_rows(scores, selected)?;
        let mut weights = self.graph.reshape(weights, [used, tokens])?;
        if moe.gating == Gating::SoftmaxOfSelected {
            weights = self.graph.soft_max(weights)?;
        }
        if moe.normalized {
            weights = self.summing_to_one(weights)?;
        }
        if weights_scale != 1.0 {
            weights = self.graph.scale(weights, weights_scale)?;
        }
        Ok((selected, self.graph.reshape(weights, [1, used, tokens])?))
    }

    /// The experts with the best scores [count, T]. [used, T]
    fn best_experts(&mut self, scores: TensorId, experts: &Experts) -> Result<TensorId, Error> {
        // What corrects the choice does not count in the sum.
        let correction = match self.optional("exp_probs_b.bias", experts.count)? {
            Some(bias) => Some(bias),
            None => self.optional("exp_probs_b", experts.count)?,
        };
        let choice = match correction {
            Some(bias) => self.graph.add(scores, bias)?,
            None => scores,
        };
        let choice = self.in_best_groups(choice, experts)?;
        self.largest(choice, experts.used)
    }

    /// The experts that a table has for the tokens. [used, T]
    fn experts_by_token(&mut self, used: usize) -> Result<TensorId, Error> {
        let table = self.indices("ffn_gate_tid2eid.weight", [used, self.hyper.vocabulary])?;
        let missing = || Error::NotThatKind {
            architecture: self.hyper.architecture(),
            what: "choose experts by token",
        };
        let tokens = self.inputs.tokens.ok_or_else(missing)?;
        Ok(self.graph.get_rows(table, tokens)?)
    }

    /// The indices of the largest numbers of each row, the largest first. [count, ..]
    fn largest(&mut self, x: TensorId, count: usize) -> Result<TensorId, Error> {
        let sorted = self.graph.argsort(x, SortOrder::Descending)?;
        let layout = self.graph.tensor(sorted)?.layout();
        let (shape, [_, row, plane, _]) = (layout.ne(), layout.nb());
        Ok(self.graph.view(sorted, [count, shape[1], shape[2]], &[row, plane], 0)?)
    }

    /// Scores [count, T] with all at minus infinity but those of the best groups, where experts come in groups. A group is
    /// as good as its best two experts together.
    fn in_best_groups(&mut self, scores: TensorId, experts: &Experts) -> Result<TensorId, Error> {
        let Some((groups, chosen)) = experts.groups else { return Ok(scores) };
        let (size, tokens) = (experts.count / groups, self.graph.tensor(scores)?.ne()[1]);
        let grouped = self.graph.reshape(scores, [size, groups, tokens])?;
        let best = self.largest(grouped, 2)?; // [2, groups, T]
        let rows = self.graph.reshape(grouped, [1, size, groups, tokens])?;
        let best = self.graph.get_rows(rows, best)?; // [1, 2, groups, T]
        let best = self.graph.reshape(best, [2, groups, tokens])?;
        let sums = self.graph.sum_rows(best)?;
        let sums = self.graph.reshape(sums, [groups, tokens])?;
        let best = self.largest(sums, chosen)?; // [chosen, T]
        let kept = self.graph.get_rows(grouped, best)?; // [size, chosen, T]
        let none = self.graph.fill(grouped, f32::NEG_INFINITY)?;
        let masked = self.graph.set_rows(none, kept, best)?;
        Ok(self.graph.reshape(masked, [experts.count, tokens])?)
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
        let mut result = self.graph.mul_mat_id(matrices, rows, selected)?;
        if let Some(scales) = self.scale_beside(matrices, base, count, Scale::Experts)? {
            result = self.scaled_by_expert(result, scales, selected)?;
        }
        if !biases {
            return Ok(result);
        }
        let bias = self.weight(&format!("{base}.bias"), [to, count])?;
        Ok(self.graph.add_id(result, bias, selected)?)
    }

    /// Rows [to, used, T], each times the scale of its expert.
    fn scaled_by_expert(
        &mut self,
        rows: TensorId,
        scales: TensorId,
        selected: TensorId,
    ) -> Result<TensorId, Error> {
        let (count, tokens) = (self.graph.tensor(scales)?.ne()[0], self.graph.tensor(selected)?.ne()[1]);
        let scales = self.graph.reshape(scales, [1, count])?;
        let scales = self.graph.repeat(scales, [1, count, tokens])?;
        let scales = self.graph.get_rows(scales, selected)?; // [1, used, T]
        Ok(self.graph.mul(rows, scales)?)
    }

    /// The sum over the experts of each token, first to last.
    fn sum_slots(&mut self, weighed: TensorId, used: usize, tokens: usize) -> Result<TensorId, Error> {
        let width = self.row_len(weighed)?;
        let [_, slot, token, _] = self.graph.tensor(weighed)?.layout().nb();
        let mut sum = self.graph.view(weighed, [width, tokens], &[token], 0)?;
        for index in 1..used {
            let next = self.graph.view(weighed, [width, tokens], &[token], index * slot)?;
            sum = self.graph.add(sum, next)?;
        }
        Ok(if used == 1 { self.graph.cont(sum)? } else { sum })
    }
}
