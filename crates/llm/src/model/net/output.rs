//! From the last block to what the caller reads: the tokens that are wanted, logits, pooled embeddings.

use oxcart_tensor::ops::Unary;
use oxcart_tensor::{DType, TensorId};

use super::layers::Scale;
use super::{Bias, Net, Section};
use crate::model::error::Error;
use crate::model::hyper_parameters::{Pooling, Ranking};

impl Net<'_> {
    /// In the last block, drops the tokens whose results are not wanted; before, returns what it was given.
    pub(crate) fn keep_wanted<const N: usize>(
        &mut self,
        rows: [TensorId; N],
    ) -> Result<[TensorId; N], Error> {
        let is_before = self.block_index() + 1 < self.block_count();
        // What embeddings are made of is all rows.
        if is_before || self.step.outputs == self.step.tokens || self.hyper.is_encoder() {
            return Ok(rows);
        }
        let wanted = self.wanted()?;
        let mut kept = rows;
        for row in &mut kept {
            *row = self.graph.get_rows(*row, wanted)?;
        }
        Ok(kept)
    }

    fn wanted(&mut self) -> Result<TensorId, Error> {
        if let Some(wanted) = self.inputs.wanted {
            return Ok(wanted);
        }
        let wanted = self.input("inp_out_ids", DType::I32, self.step.outputs)?;
        self.inputs.wanted = Some(wanted);
        Ok(wanted)
    }

    /// Logits by the output matrix, or by the embedding table if there is none. [V, outputs]
    pub(crate) fn logits(&mut self, x: TensorId) -> Result<TensorId, Error> {
        self.logits_after(x, "output_norm")
    }

    /// As [`logits`](Net::logits), of rows that need no norm.
    pub(crate) fn logits_alone(&mut self, x: TensorId) -> Result<TensorId, Error> {
        self.enter(Section::Output);
        let matrix = self.output_matrix()?;
        self.finish(x, matrix)
    }

    /// As [`logits`](Net::logits), after a norm of this name.
    pub(crate) fn logits_after(&mut self, x: TensorId, norm: &str) -> Result<TensorId, Error> {
        let x = self.final_norm(x, norm)?;
        let matrix = self.output_matrix()?;
        self.finish(x, matrix)
    }

    /// The output matrix, or the embedding table if there is none.
    fn output_matrix(&mut self) -> Result<TensorId, Error> {
        let shape = [self.hyper.embedding, self.hyper.vocabulary];
        match self.optional("output.weight", shape)? {
            Some(matrix) => Ok(matrix),
            None => self.weight("token_embd.weight", shape),
        }
    }

    /// Logits of the last `count` tokens of the vocabulary, by an output matrix for those alone; none of the others can be chosen.
    pub(crate) fn logits_of_last(&mut self, x: TensorId, count: usize) -> Result<TensorId, Error> {
        let x = self.final_norm(x, "output_norm")?;
        let Some(matrix) = self.optional("output.weight", [self.hyper.embedding, count])? else {
            let matrix = self.weight("token_embd.weight", [self.hyper.embedding, self.hyper.vocabulary])?;
            return self.finish(x, matrix);
        };
        let logits = self.finish(x, matrix)?;
        let Some(others) = self.hyper.vocabulary.checked_sub(count).filter(|&others| others > 0) else {
            return Ok(logits);
        };
        let rows = self.graph.tensor(logits)?.ne()[1];
        let row = self.graph.tensor(logits)?.layout().nb()[1];
        let one = self.graph.view(logits, [1, rows], &[row], 0)?;
        let wide = self.graph.repeat(one, [others, rows])?;
        let never = self.graph.fill(wide, f32::NEG_INFINITY)?;
        Ok(self.graph.concat(never, logits, 0)?)
    }

    /// Logits by the embedding table.
    pub(crate) fn tied_logits(&mut self, x: TensorId) -> Result<TensorId, Error> {
        let x = self.final_norm(x, "output_norm")?;
        let matrix = self.weight("token_embd.weight", [self.hyper.embedding, self.hyper.vocabulary])?;
        self.finish(x, matrix)
    }

    /// Logits by an output matrix that must be there.
    pub(crate) fn untied_logits(&mut self, x: TensorId) -> Result<TensorId, Error> {
        let x = self.final_norm(x, "output_norm")?;
        let matrix = self.weight("output.weight", [self.hyper.embedding, self.hyper.vocabulary])?;
        self.finish(x, matrix)
    }

    /// The norm after all blocks.
    pub(crate) fn final_norm(&mut self, x: TensorId, base: &str) -> Result<TensorId, Error> {
        self.enter(Section::Output);
        let x = self.norm(x, base)?;
        self.graph.set_name(x, "result_norm")?;
        Ok(x)
    }

    /// The norm before logits, in the middle of a model whose blocks come several times over.
    pub(super) fn final_norm_between(&mut self, x: TensorId) -> Result<TensorId, Error> {
        let weights = self.global("output_norm.weight", self.hyper.embedding)?;
        let weights =
            weights.ok_or_else(|| Error::MissingTensor { name: "output_norm.weight".to_owned() })?;
        let normal = self.norm_alone(x)?;
        self.mul(normal, weights)
    }

    fn finish(&mut self, x: TensorId, matrix: TensorId) -> Result<TensorId, Error> {
        let mut logits = self.graph.mul_mat(matrix, x)?;
        if let Some(scale) = self.scale_beside(matrix, "output", 1, Scale::Logits)? {
            logits = self.graph.mul(logits, scale)?;
        }
        match self.hyper.architecture.traits.logit_bias {
            true => {
                if let Some(bias) = self.optional("output.bias", self.hyper.vocabulary)? {
                    logits = self.graph.add(logits, bias)?;
                }
            }
            false => self.pass_over("output.bias"),
        }
        if self.hyper.factors.logits != 1.0 {
            logits = self.graph.scale(logits, self.hyper.factors.logits)?;
        }
        if let Some(cap) = self.hyper.logit_soft_cap {
            let small = self.graph.scale(logits, cap.recip())?;
            let bounded = self.graph.unary(small, Unary::Tanh)?;
            logits = self.graph.scale(bounded, cap)?;
        }
        Ok(logits)
    }

    /// The largest logits of every row, their tokens, and a sum that is no number unless all logits are: what
    /// [`unpack`](crate::logits::unpack) reads. [2 * count + 1, outputs]
    pub(super) fn largest_logits(&mut self, logits: TensorId, count: usize) -> Result<TensorId, Error> {
        self.enter(Section::Output);
        let [vocabulary, outputs, ..] = self.graph.tensor(logits)?.ne().extents();
        let tokens = self.graph.top_k(logits, count)?;
        let each = self.graph.reshape(logits, [1, vocabulary, outputs])?;
        let values = self.graph.get_rows(each, tokens)?;
        let values = self.graph.reshape(values, [count, outputs])?;
        let tokens = self.graph.cast(tokens, DType::F32)?;
        let pairs = self.graph.concat(values, tokens, 0)?;
        let sums = self.graph.sum_rows(logits)?;
        Ok(self.graph.concat(pairs, sums, 0)?)
    }

    /// An encoder's rows as what the caller asked for, through the matrices that some have behind everything else.
    pub(super) fn pool(&mut self, rows: TensorId) -> Result<TensorId, Error> {
        self.enter(Section::Output);
        let pooled = match self.step.pooling {
            Pooling::None => rows,
            Pooling::Mean => self.mean_row(rows)?,
            Pooling::Cls | Pooling::Last => self.wanted_rows(rows)?,
            Pooling::Rank => return self.ranks(rows),
        };
        let widened = match self.extents("dense_2.weight") {
            Some(shape) => self.product(pooled, "dense_2", shape[1], Bias::Optional, Scale::None)?,
            None => pooled,
        };
        match self.has("dense_3.weight") {
            true => self.product(widened, "dense_3", self.hyper.embedding, Bias::None, Scale::None),
            false => Ok(widened),
        }
    }

    /// The mean of all rows.
    fn mean_row(&mut self, rows: TensorId) -> Result<TensorId, Error> {
        let mean = self.input("inp_mean", DType::F32, self.step.tokens)?;
        self.inputs.mean = Some(mean);
        let columns = self.graph.transpose(rows)?;
        let columns = self.graph.cont(columns)?;
        Ok(self.graph.mul_mat(columns, mean)?)
    }

    fn wanted_rows(&mut self, rows: TensorId) -> Result<TensorId, Error> {
        let wanted = self.wanted()?;
        Ok(self.graph.get_rows(rows, wanted)?)
    }

    /// How well a text fits each of some labels, or how well its parts fit each other: by a head over its first row, or over the mean
    /// of all. [labels, 1]
    fn ranks(&mut self, rows: TensorId) -> Result<TensorId, Error> {
        let Ranking { labels, of_mean, function } = self.hyper.ranking;
        let mut row = if of_mean { self.mean_row(rows)? } else { self.wanted_rows(rows)? };
        let hidden = self.extents("cls.weight").map(|shape| shape[1]);
        if let Some(width) = hidden {
            row = self.product(row, "cls", width, Bias::Optional, Scale::None)?;
            row = self.activated(row, function)?;
            if self.has("cls.norm.weight") {
                row = self.layer_norm(row, "cls.norm")?;
            }
        }
        // The first matrix may be all there is.
        match hidden.is_some() && !self.has("cls.output.weight") {
            true => Ok(row),
            false => self.product(row, "cls.output", labels, Bias::Optional, Scale::None),
        }
    }
}
