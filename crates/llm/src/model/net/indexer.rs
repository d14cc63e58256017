//! An index: a cheap measure of which tokens are worth attention.
//!
//! Every token leaves a short key. A token that comes later compares a few queries with all keys, and attention looks at the tokens
//! whose keys suit it best, one by one or run by run. Where there are no more tokens than it would look at, nothing is compared.
//!
//! Invariant: a run is held by neighbouring cells, because pages are whole runs; so runs need no table of their cells.

use oxcart_tensor::ops::{Rope, Unary};
use oxcart_tensor::{DType, TensorId};

use super::layers::Scale;
use super::{Bias, Net};
use crate::model::error::Error;
use crate::model::hyper_parameters::{IndexRule, Indexer};
use crate::runner::state::StateTensor;

impl Net<'_> {
    /// A mask of the cells that each token looks at, by its queries' short form; none where it looks at all that it may see.
    /// [cells, T]
    pub(super) fn found_by_index(&mut self, x: TensorId, short: TensorId) -> Result<Option<TensorId>, Error> {
        let Indexer { heads, size, chosen, rule, epsilon, .. } = self.indexer()?;
        let key = self.product(x, "indexer.attn_k", size, Bias::None, Scale::None)?;
        let key = self.layer_norm_within(key, "indexer.k_norm", epsilon)?;
        let q = self.product(short, "indexer.attn_q_b", heads * size, Bias::None, Scale::None)?;
        let weights = self.product(x, "indexer.proj", heads, Bias::None, Scale::None)?;
        let weights = self.scale(weights, ((size * heads) as f32).sqrt().recip())?;
        let (keys, mask) = match rule {
            IndexRule::GatedRuns(length) => {
                let gates = self.product(x, "indexer_compressor_gate", size, Bias::None, Scale::None)?;
                let keys = self.graph.concat(key, gates, 0)?;
                let keys = self.stored_index(keys, 1)?; // [2 * size, cells]
                let keys = self.gated_runs(keys, length)?; // [size, runs]
                (keys, self.mask_of_runs(length)?)
            }
            _ => {
                let key = self.index_heads(key, 1)?;
                (self.stored_index(key, 1)?, self.plain_mask()?)
            }
        };
        let q = self.index_heads(q, heads)?;
        if self.step.cells[self.kind()] <= chosen {
            return Ok(None);
        }
        let scores = self.index_scores(q, keys, weights, mask)?;
        match rule {
            IndexRule::GatedRuns(length) => {
                self.largest_runs(scores, chosen / length, mask, length).map(Some)
            }
            _ => self.largest_of(scores, chosen, mask).map(Some),
        }
    }

    /// As [`found_by_index`](Net::found_by_index), of runs by the mean of their keys, where the block has an index. [cells, T]
    pub(crate) fn found_by_means(&mut self, x: TensorId) -> Result<Option<TensorId>, Error> {
        let Indexer { heads, size, chosen, rule, .. } = self.indexer()?;
        let IndexRule::MeanRuns(length) = rule else { return Ok(None) };
        let key = self.product(x, "indexer.k_proj", size, Bias::None, Scale::None)?;
        let keys = self.stored_index(key, 1)?; // [size, cells]
        let q = self.product(x, "indexer.q_proj", heads * size, Bias::None, Scale::None)?;
        let q = self.graph.reshape(q, [size, heads, self.step.tokens])?;
        let q = self.rms_norm(q, "indexer.q_norm")?;
        let q = self.rope(q)?;
        let norm = self.weight("indexer.k_norm.weight", size)?;
        if self.step.cells[self.kind()] <= chosen {
            return Ok(None);
        }
        let keys = self.mean_runs(keys, norm, length)?;
        let mask = self.mask_of_runs(length)?;
        // All heads count the same.
        let one = self.part(q, 0, 1)?;
        let weights = self.graph.cont_as(one, [heads, self.step.tokens])?;
        let weights = self.graph.fill(weights, 1.0)?;
        let scores = self.index_scores(q, keys, weights, mask)?;
        self.largest_runs(scores, chosen / length, mask, length).map(Some)
    }

    pub(super) fn indexer(&self) -> Result<Indexer, Error> {
        let missing =
            || Error::NotThatKind { architecture: self.hyper.architecture(), what: "have an index" };
        self.hyper.indexer.ok_or_else(missing)
    }

    /// Rows [size * heads, T] as heads, rotated by their positions where the block rotates. [size, heads, T]
    pub(super) fn index_heads(&mut self, rows: TensorId, heads: usize) -> Result<TensorId, Error> {
        let Indexer { size, mode, first_channel, .. } = self.indexer()?;
        let rows = self.graph.reshape(rows, [size, heads, self.step.tokens])?;
        if !self.block().rotates {
            return Ok(rows);
        }
        let positions = self.positions()?;
        let rope = Rope { mode, first_channel, ..self.hyper.rope };
        Ok(self.graph.rope(rows, positions, None, rope)?)
    }

    /// What an index keeps of all cells, after it was written for these tokens. [width, cells]
    pub(super) fn stored_index(&mut self, rows: TensorId, heads: usize) -> Result<TensorId, Error> {
        let width = self.graph.tensor(rows)?.ne()[0];
        let rows = self.graph.reshape(rows, [width, heads, self.step.tokens])?;
        let all = self.store(rows, StateTensor::Index)?;
        let (cells, row) = (self.step.cells[self.kind()], self.graph.tensor(all)?.layout().nb()[1]);
        Ok(self.graph.view(all, [width * heads, cells], &[row], 0)?)
    }

    /// How well keys [size, keys] suit each token, where it sees them. [keys, T]
    pub(super) fn index_scores(
        &mut self,
        q: TensorId,
        keys: TensorId,
        weights: TensorId,
        mask: TensorId,
    ) -> Result<TensorId, Error> {
        let layout = *self.graph.tensor(keys)?.layout();
        let (shape, row) = (layout.ne(), layout.nb()[1]);
        let keys = self.graph.view(keys, [shape[0], 1, shape[1]], &[row, row], 0)?;
        let small = self.as_type(mask, DType::F16)?;
        Ok(self.graph.lightning_indexer(q, keys, weights, small)?)
    }

    /// Which cells each token sees, in numbers that can be reckoned with. [cells, T]
    pub(super) fn plain_mask(&mut self) -> Result<TensorId, Error> {
        let mask = self.mask()?;
        self.as_type(mask, DType::F32)
    }

    /// Which runs of cells each token sees whole. [runs, T]
    fn mask_of_runs(&mut self, length: usize) -> Result<TensorId, Error> {
        let mask = self.plain_mask()?;
        let (cells, tokens) = (self.graph.tensor(mask)?.ne()[0], self.step.tokens);
        let runs = self.graph.reshape(mask, [length, cells / length, tokens])?;
        let sums = self.graph.sum_rows(runs)?;
        Ok(self.graph.reshape(sums, [cells / length, tokens])?)
    }

    /// Keys of runs, of keys and gates [2 * size, cells]: every channel is a mean of the run's, weighed by the softmax of its gates and
    /// of what places in a run have besides. [size, runs]
    fn gated_runs(&mut self, rows: TensorId, length: usize) -> Result<TensorId, Error> {
        let size = self.indexer()?.size;
        let places = self.weight("indexer_compressor_ape.weight", [size, length])?;
        let rows = self.as_type(rows, DType::F32)?;
        let layout = *self.graph.tensor(rows)?.layout();
        let (runs, [float, row, ..]) = (layout.ne()[1] / length, layout.nb());
        let strides = [row, length * row];
        let keys = self.graph.view(rows, [size, length, runs], &strides, 0)?;
        let gates = self.graph.view(rows, [size, length, runs], &strides, size * float)?;
        let gates = self.graph.add(gates, places)?;
        self.weighed_rows(keys, gates)
    }

    /// Means of rows [size, count, n] over the count, every channel by the softmax of its gates. [size, n]
    pub(super) fn weighed_rows(&mut self, rows: TensorId, gates: TensorId) -> Result<TensorId, Error> {
        let shape = self.graph.tensor(rows)?.ne();
        let (size, count) = (shape[0], shape[2]);
        let gates = self.graph.permute(gates, [1, 0, 2, 3])?;
        let gates = self.graph.cont(gates)?; // [count, size, n]
        let shares = self.graph.soft_max(gates)?;
        let rows = self.graph.permute(rows, [1, 0, 2, 3])?;
        let rows = self.graph.cont(rows)?;
        let weighed = self.graph.mul(rows, shares)?;
        let sums = self.graph.sum_rows(weighed)?; // [1, size, n]
        Ok(self.graph.reshape(sums, [size, count])?)
    }

    /// Keys of runs, of keys [size, cells]: their means, normed and rotated by where the runs begin. [size, runs]
    fn mean_runs(&mut self, rows: TensorId, norm: TensorId, length: usize) -> Result<TensorId, Error> {
        let rows = self.as_type(rows, DType::F32)?;
        let layout = *self.graph.tensor(rows)?.layout();
        let (shape, row) = (layout.ne(), layout.nb()[1]);
        let runs = shape[1] / length;
        let mut sum = self.graph.view(rows, [shape[0], runs], &[length * row], 0)?;
        for place in 1..length {
            let next = self.graph.view(rows, [shape[0], runs], &[length * row], place * row)?;
            sum = self.add(sum, next)?;
        }
        let mean = self.scale(sum, (length as f32).recip())?;
        let mean = self.norm_alone(mean)?;
        let mean = self.mul(mean, norm)?;
        let mean = self.graph.reshape(mean, [shape[0], 1, runs])?;
        let rope = self.hyper.rope;
        let positions = self.run_positions(runs, rope.mode.has_sections())?;
        let keys = self.graph.rope(mean, positions, None, rope)?;
        Ok(self.graph.reshape(keys, [shape[0], runs])?)
    }

    /// The position that each run of cells begins with, four times over where sections of channels have their own. [runs] or [4 * runs]
    fn run_positions(&mut self, runs: usize, by_section: bool) -> Result<TensorId, Error> {
        if let Some(positions) = self.inputs.run_positions {
            return Ok(positions);
        }
        let positions = self.input("inp_run_pos", DType::I32, if by_section { 4 * runs } else { runs })?;
        self.inputs.run_positions = Some(positions);
        Ok(positions)
    }

    /// The mask, with all cells hidden but those of the largest scores. [cells, T]
    pub(super) fn largest_of(
        &mut self,
        scores: TensorId,
        count: usize,
        mask: TensorId,
    ) -> Result<TensorId, Error> {
        let chosen = self.chosen(scores, count)?;
        let found = self.graph.log(chosen)?;
        let found = self.graph.add(found, mask)?;
        self.as_type(found, self.style.path.mask_type())
    }

    /// One where a number is among the largest of its row, else zero. [n, T]
    pub(super) fn chosen(&mut self, scores: TensorId, count: usize) -> Result<TensorId, Error> {
        let shape = self.graph.tensor(scores)?.ne();
        let (width, rows) = (shape[0], shape[1]);
        let count = count.min(width);
        let best = self.graph.top_k(scores, count)?; // [count, T]
        let columns = self.graph.reshape(scores, [1, width, rows])?;
        let none = self.graph.fill(columns, 0.0)?;
        let numbers = self.graph.cast(best, DType::F32)?;
        let numbers = self.graph.reshape(numbers, [1, count, rows])?;
        let ones = self.graph.fill(numbers, 1.0)?;
        let chosen = self.graph.set_rows(none, ones, best)?;
        Ok(self.graph.reshape(chosen, [width, rows])?)
    }

    /// The mask, with all cells hidden but those of the runs with the largest scores and those of runs that are not whole.
    /// `whole` says which runs a token sees whole. [cells, T]
    fn largest_runs(
        &mut self,
        scores: TensorId,
        count: usize,
        whole: TensorId,
        length: usize,
    ) -> Result<TensorId, Error> {
        let chosen = self.chosen(scores, count)?; // [runs, T]
        let whole = self.graph.unary(whole, Unary::Exp)?;
        let others = self.graph.scale_bias(whole, -1.0, 1.0)?;
        let seen = self.graph.add(chosen, others)?;
        let seen = self.graph.clamp(seen, 0.0, 1.0)?;
        let found = self.graph.log(seen)?;
        let shape = self.graph.tensor(found)?.ne();
        let (runs, tokens) = (shape[0], shape[1]);
        let found = self.graph.reshape(found, [1, runs, tokens])?;
        let found = self.graph.repeat(found, [length, runs, tokens])?;
        let found = self.graph.reshape(found, [length * runs, tokens])?;
        let mask = self.plain_mask()?;
        let found = self.graph.add(found, mask)?;
        self.as_type(found, self.style.path.mask_type())
    }

    pub(super) fn as_type(&mut self, x: TensorId, dtype: DType) -> Result<TensorId, Error> {
        match self.graph.tensor(x)?.dtype() == dtype {
            true => Ok(x),
            false => Ok(self.graph.cast(x, dtype)?),
        }
    }
}
