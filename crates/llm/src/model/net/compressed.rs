//! Attention to a window of tokens and, beyond it, to runs of tokens that were compressed to one row each (DeepSeek 4).
//!
//! A row is key and value of all heads at once. Every token leaves numbers to compress; when a run is whole, its row is a mean of what
//! its tokens left, channel by channel by the softmax of their gates, and in some blocks of what the run before left. An index may
//! say which of the runs are looked at.
//!
//! Invariant: a row is written by the step that has the last token of its run, before attention reads it.

use oxcart_tensor::ops::Rope;
use oxcart_tensor::{DType, TensorId};

use super::layers::Scale;
use super::{Attention, Bias, Net};
use crate::model::error::Error;
use crate::model::hyper_parameters::{Block, CompressedRows, Indexer, OneRow};
use crate::runner::state::StateTensor;

/// Inputs about runs of one kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunInputs {
    /// Cells of the tokens of runs that become whole. [span * runs]
    pub(crate) members: TensorId,
    /// Minus infinity where there is no such token, where runs overlap. [span, runs]
    pub(crate) gaps: Option<TensorId>,
    /// Where the rows of these runs go. [runs]
    pub(crate) rows: TensorId,
    /// The positions that they begin with. [runs]
    pub(crate) positions: TensorId,
    /// Which rows each token sees. [rows, T]
    pub(crate) mask: TensorId,
}

/// Where something that is compressed is kept: its first number among those of a token, its channels, its tensors and its rows.
#[derive(Clone, Copy)]
struct Compressed {
    first: usize,
    size: usize,
    base: &'static str,
    rows: StateTensor,
}

impl Net<'_> {
    /// What each token makes of the window before it and of runs before that. [V * H, T]
    pub(crate) fn compressed_attention(&mut self, x: TensorId) -> Result<TensorId, Error> {
        let query_rank = self.one_row()?.query_rank;
        let Block { heads, key_size: size, state, .. } = self.block();
        let tokens = self.step.tokens;
        let short = self.product(x, "attn_q_a", query_rank, Bias::None, Scale::None)?;
        let short = self.rms_norm(short, "attn_q_a_norm")?;
        let q = self.product(short, "attn_q_b", heads * size, Bias::None, Scale::None)?;
        let q = self.graph.reshape(q, [size, heads, tokens])?;
        let q = self.norm_alone(q)?;
        let (rope, positions) = (self.compressed_rope(size), self.positions()?);
        let q = self.graph.rope(q, positions, None, rope)?;
        let row = self.product(x, "attn_kv", size, Bias::None, Scale::None)?;
        let row = self.rms_norm(row, "attn_kv_a_norm")?;
        let row = self.graph.reshape(row, [size, 1, tokens])?;
        let row = self.graph.rope(row, positions, None, rope)?;
        let all = self.store(row, StateTensor::Keys)?;
        let (mut keys, mut mask) = (self.cells_by_head(all, size)?, self.mask()?);
        if let Some(compressed) = state.compressed {
            let (rows, seen) = self.compressed_rows(x, short, compressed)?;
            keys = self.graph.concat(keys, rows, 1)?;
            mask = self.graph.concat(mask, seen, 0)?;
        }
        let sinks = self.weight("attn_sinks.weight", heads)?;
        let attention = Attention::scaled((size as f32).sqrt().recip());
        let a = self.attend([q, keys, keys], Some(mask), Some(sinks), attention)?; // [D, H, T]
        let a = self.graph.rope_back(a, positions, None, rope)?;
        Ok(self.graph.reshape(a, [size * heads, tokens])?)
    }

    fn one_row(&self) -> Result<OneRow, Error> {
        let missing = || Error::NotThatKind {
            architecture: self.hyper.architecture(),
            what: "have one row for all heads",
        };
        self.hyper.one_row.ok_or_else(missing)
    }

    /// The rotation of the block's rows of so many channels, of which the last ones rotate.
    fn compressed_rope(&self, size: usize) -> Rope {
        let rope = match self.block().state.compressed {
            Some(_) => self.hyper.rope,
            None => self.hyper.rope_windowed,
        };
        Rope { first_channel: size - rope.n_dims, ..rope }
    }

    /// The rows of all runs, [D, rows, 1], and which of them each token looks at, [rows, T].
    fn compressed_rows(
        &mut self,
        x: TensorId,
        short: TensorId,
        rule: CompressedRows,
    ) -> Result<(TensorId, TensorId), Error> {
        let width = if rule.overlaps { 2 * rule.keys } else { rule.keys };
        let mut left = Vec::new();
        for base in ["attn_compressor_kv", "attn_compressor_gate"] {
            left.push(self.product(x, base, width, Bias::None, Scale::None)?);
        }
        if rule.index > 0 {
            for base in ["indexer_compressor_kv", "indexer_compressor_gate"] {
                left.push(self.product(x, base, 2 * rule.index, Bias::None, Scale::None)?);
            }
        }
        let mut all = left[0];
        for &other in &left[1..] {
            all = self.graph.concat(all, other, 0)?;
        }
        let all = self.graph.reshape(all, [rule.pending, 1, self.step.tokens])?;
        let pending = self.store(all, StateTensor::Pending)?;
        let what =
            Compressed { first: 0, size: rule.keys, base: "attn_compressor", rows: StateTensor::Compressed };
        let rows = self.compress(pending, what, rule)?; // [D, rows]
        let shape = self.graph.tensor(rows)?.ne();
        let row = self.graph.tensor(rows)?.layout().nb()[1];
        let rows = self.graph.view(rows, [shape[0], shape[1], 1], &[row, row * shape[1]], 0)?;
        let mask = self.run_inputs(rule)?.mask;
        if rule.index == 0 {
            return Ok((rows, mask));
        }
        let what = Compressed {
            first: 2 * width,
            size: rule.index,
            base: "indexer_compressor",
            rows: StateTensor::CompressedIndex,
        };
        let keys = self.compress(pending, what, rule)?; // [size, rows]
        Ok((rows, self.found_among_runs(x, short, keys, mask)?))
    }

    /// The mask of runs, with all hidden but those that the index finds. [rows, T]
    fn found_among_runs(
        &mut self,
        x: TensorId,
        short: TensorId,
        keys: TensorId,
        mask: TensorId,
    ) -> Result<TensorId, Error> {
        let Indexer { heads, size, chosen, .. } = self.indexer()?;
        let q = self.product(short, "indexer.attn_q_b", heads * size, Bias::None, Scale::None)?;
        let q = self.index_heads(q, heads)?;
        let weights = self.product(x, "indexer.proj", heads, Bias::None, Scale::None)?;
        let weights = self.scale(weights, ((size * heads) as f32).sqrt().recip())?;
        if self.graph.tensor(keys)?.ne()[1] <= chosen {
            return Ok(mask);
        }
        let scores = self.index_scores(q, keys, weights, mask)?;
        let mask = self.as_type(mask, DType::F32)?;
        self.largest_of(scores, chosen, mask)
    }

    /// Compresses the runs that become whole, and returns the rows of all. [size, rows]
    fn compress(
        &mut self,
        pending: TensorId,
        what: Compressed,
        rule: CompressedRows,
    ) -> Result<TensorId, Error> {
        let Compressed { first, size, base, .. } = what;
        let (run, inputs) = (rule.run, self.run_inputs(rule)?);
        let left = self.graph.get_rows(pending, inputs.members)?; // [width, span * runs]
        let ape = format!("{base}_ape.weight");
        let (values, gates) = match rule.overlaps {
            false => {
                let places = self.weight(&ape, [size, run])?;
                let values = self.members(left, [0, run], [first, size], rule)?;
                let gates = self.members(left, [0, run], [first + size, size], rule)?;
                (values, self.graph.add(gates, places)?)
            }
            true => {
                // The first half of the channels is for the run after, the second for the token's own.
                let places = self.weight(&ape, [2 * size, run])?;
                let [float, row, ..] = self.graph.tensor(places)?.layout().nb();
                let before = self.graph.view(places, [size, run], &[row], 0)?;
                let own = self.graph.view(places, [size, run], &[row], size * float)?;
                let places = self.graph.concat(before, own, 1)?; // [size, span]
                let mut both = |first: usize| -> Result<TensorId, Error> {
                    let before = self.members(left, [0, run], [first, size], rule)?;
                    let own = self.members(left, [run, run], [first + size, size], rule)?;
                    Ok(self.graph.concat(before, own, 1)?)
                };
                let (values, gates) = (both(first)?, both(first + 2 * size)?); // [size, span, runs]
                (values, self.graph.add(gates, places)?)
            }
        };
        let gates = match inputs.gaps {
            None => gates,
            Some(gaps) => {
                let runs = self.step.runs[usize::from(rule.overlaps)];
                let gaps = self.graph.reshape(gaps, [1, rule.span(), runs])?;
                self.graph.add(gates, gaps)?
            }
        };
        let rows = self.weighed_rows(values, gates)?; // [size, runs]
        let rows = self.rms_norm(rows, &format!("{base}_norm"))?;
        let count = self.graph.tensor(rows)?.ne()[1];
        let rows = self.graph.reshape(rows, [size, 1, count])?;
        let rows = self.graph.rope(rows, inputs.positions, None, self.compressed_rope(size))?;
        let rows = self.graph.reshape(rows, [size, count])?;
        let all = self.state(what.rows)?;
        let stored = self.graph.set_rows(all, rows, inputs.rows)?;
        self.graph.expand(stored)?;
        let row = self.graph.tensor(stored)?.layout().nb()[1];
        Ok(self.graph.view(stored, [size, self.row_count(rule)], &[row], 0)?)
    }

    /// Some numbers that some tokens of each run left. [size, count, runs]
    fn members(
        &mut self,
        left: TensorId,
        [from, count]: [usize; 2],
        [first, size]: [usize; 2],
        rule: CompressedRows,
    ) -> Result<TensorId, Error> {
        let layout = *self.graph.tensor(left)?.layout();
        let (runs, [float, row, ..]) = (layout.ne()[1] / rule.span(), layout.nb());
        let offset = from * row + first * float;
        Ok(self.graph.view(left, [size, count, runs], &[row, rule.span() * row], offset)?)
    }

    /// Rows of runs that a step's cells may hold.
    fn row_count(&self, rule: CompressedRows) -> usize {
        self.step.cells[0] / rule.row_tokens()
    }

    fn run_inputs(&mut self, rule: CompressedRows) -> Result<RunInputs, Error> {
        let kind = usize::from(rule.overlaps);
        if let Some(inputs) = self.inputs.runs[kind] {
            return Ok(inputs);
        }
        let (span, runs, path) = (rule.span(), self.step.runs[kind], self.style.path);
        let shape = [self.row_count(rule), path.mask_rows(self.step.tokens)];
        let name = |what: &str| format!("inp_run{}_{what}", rule.run);
        let gaps = match rule.overlaps {
            true => Some(self.input(&name("gaps"), DType::F32, [span, runs])?),
            false => None,
        };
        let inputs = RunInputs {
            members: self.input(&name("members"), DType::I32, span * runs)?,
            gaps,
            rows: self.input(&name("rows"), DType::I64, runs)?,
            positions: self.input(&name("pos"), DType::I32, runs)?,
            mask: self.input(&name("mask"), path.mask_type(), shape)?,
        };
        self.inputs.runs[kind] = Some(inputs);
        Ok(inputs)
    }

    /// What attention gave, [D * H, T], through a matrix for each group of heads and one for all of them. [E, T]
    pub(crate) fn grouped_output(&mut self, a: TensorId) -> Result<TensorId, Error> {
        let OneRow { output_groups: groups, output_rank: rank, .. } = self.one_row()?;
        let (tokens, width) = (self.step.tokens, self.row_len(a)? / groups);
        let name = "attn_output_a.weight";
        // A matrix for each group in some files, all below each other in others.
        let matrices = match self.extents(name) {
            Some(found) if found[1] == rank * groups && groups > 1 => {
                let flat = self.weight(name, [width, rank * groups])?;
                self.graph.reshape(flat, [width, rank, groups])?
            }
            _ => self.weight(name, [width, rank, groups])?,
        };
        let by_group = self.graph.reshape(a, [width, groups, tokens])?;
        let by_group = self.graph.permute(by_group, [0, 2, 1, 3])?; // [width, T, groups]
        let narrow = self.graph.mul_mat(matrices, by_group)?; // [rank, T, groups]
        let narrow = self.graph.permute(narrow, [0, 2, 1, 3])?;
        let narrow = self.graph.cont_as(narrow, [rank * groups, tokens])?;
        self.product(narrow, "attn_output_b", self.hyper.embedding, Bias::None, Scale::None)
    }
}
