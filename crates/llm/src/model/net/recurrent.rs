//! Parts that remember all tokens of a sequence together: convolutions and recurrences.
//!
//! Invariant: the state of a sequence is read before it is written, because what is written is computed from what was read; and
//! every token is computed from the state that the token before left, so that results do not depend on how tokens are cut into
//! steps.

use oxcart_tensor::ops::{GluKind, Unary};
use oxcart_tensor::{DType, TensorId};

use super::layers::Scale;
use super::{Bias, Net};
use crate::model::error::Error;
use crate::model::hyper_parameters::StateSpace;
use crate::runner::state::StateTensor;

impl Net<'_> {
    /// Tokens of each sequence.
    pub(super) fn tokens_of_each(&self) -> usize {
        self.step.tokens / self.step.sequences
    }

    /// Rows of tokens, sequence by sequence. [C, T / S, S]
    pub(super) fn by_sequence(&mut self, rows: TensorId) -> Result<TensorId, Error> {
        let (layout, shape) = (*self.graph.tensor(rows)?.layout(), self.graph.tensor(rows)?.ne());
        let (each, sequences, row) = (self.tokens_of_each(), self.step.sequences, layout.nb()[1]);
        Ok(self.graph.view(rows, [shape[0], each, sequences], &[row, each * row], 0)?)
    }

    /// The rows of recurrent state that the sequences have. [S]
    fn state_rows(&mut self) -> Result<TensorId, Error> {
        if let Some(rows) = self.inputs.rows {
            return Ok(rows);
        }
        let rows = self.input("inp_state_rows", DType::I32, self.step.sequences)?;
        self.inputs.rows = Some(rows);
        Ok(rows)
    }

    /// What the sequences remember. [width, S]
    pub(super) fn recall(&mut self, which: StateTensor) -> Result<TensorId, Error> {
        let (all, rows) = (self.state(which)?, self.state_rows()?);
        Ok(self.graph.get_rows(all, rows)?)
    }

    /// What the sequences shall remember. [width, S]
    pub(super) fn remember(&mut self, which: StateTensor, state: TensorId) -> Result<(), Error> {
        let (all, rows) = (self.state(which)?, self.state_rows()?);
        let stored = self.graph.set_rows(all, state, rows)?;
        Ok(self.graph.expand(stored)?)
    }

    /// Every channel of rows [C, T] as a weighted sum of the token itself and those before it. [C, T / S, S]
    pub(crate) fn convolution(&mut self, rows: TensorId, base: &str, taps: usize) -> Result<TensorId, Error> {
        let kernel = self.weight(&format!("{base}.weight"), [taps, self.row_len(rows)?])?;
        let seen = self.with_those_before(rows, StateTensor::Convolution, taps - 1)?;
        Ok(self.graph.ssm_conv(seen, kernel)?)
    }

    /// As [`convolution`](Net::convolution) of equal parts of the channels, each with a kernel of its own. [C / N, T / S, S]
    pub(super) fn convolutions<const N: usize>(
        &mut self,
        rows: TensorId,
        bases: [&str; N],
        taps: usize,
    ) -> Result<[TensorId; N], Error> {
        let channels = self.row_len(rows)? / N;
        let seen = self.with_those_before(rows, StateTensor::Convolution, taps - 1)?;
        let layout = *self.graph.tensor(seen)?.layout();
        let (shape, [_, channel, sequence, _]) = (layout.ne(), layout.nb());
        let mut parts = [rows; N];
        for (index, (part, base)) in parts.iter_mut().zip(bases).enumerate() {
            let kernel = self.weight(&format!("{base}.weight"), [taps, 1, channels])?;
            let kernel = self.graph.reshape(kernel, [taps, channels])?;
            let strides = [channel, sequence];
            let own = [shape[0], channels, shape[2]];
            let own = self.graph.view(seen, own, &strides, index * channels * channel)?;
            *part = self.graph.ssm_conv(own, kernel)?;
        }
        Ok(parts)
    }

    /// Every channel of rows [C, T], after what it had at so many tokens before; its last ones are remembered.
    /// [count + T / S, C, S]
    pub(super) fn with_those_before(
        &mut self,
        rows: TensorId,
        which: StateTensor,
        count: usize,
    ) -> Result<TensorId, Error> {
        let channels = self.row_len(rows)?;
        let (each, sequences) = (self.tokens_of_each(), self.step.sequences);
        let before = self.recall(which)?;
        let before = self.graph.reshape(before, [count, channels, sequences])?;
        let rows = self.by_sequence(rows)?;
        let rows = self.graph.transpose(rows)?;
        let seen = self.graph.concat(before, rows, 0)?; // [count + T / S, C, S]
        let [float, channel, sequence, _] = self.graph.tensor(seen)?.layout().nb();
        let last = self.graph.view(seen, [count, channels, sequences], &[channel, sequence], each * float)?;
        let last = self.graph.cont_as(last, [count * channels, sequences])?;
        self.remember(which, last)?;
        Ok(seen)
    }

    /// A gated short convolution instead of attention: `out(c * convolution(b * x))`. [E, T]
    pub(crate) fn short_convolution(&mut self, x: TensorId) -> Result<TensorId, Error> {
        let width = self.hyper.embedding;
        let all = self.product(x, "shortconv.in_proj", 3 * width, Bias::None, Scale::None)?;
        let [b, c, x] = [0, 1, 2].map(|part| self.channels(all, part * width, width));
        let gated = self.graph.mul(b?, x?)?;
        let mixed = self.convolution(gated, "shortconv.conv", self.hyper.short_convolution)?;
        let mixed = self.graph.reshape(mixed, [width, self.step.tokens])?;
        let gated = self.graph.mul(c?, mixed)?;
        self.product(gated, "shortconv.out_proj", width, Bias::None, Scale::None)
    }

    /// Some channels of rows. [count, T]
    pub(super) fn channels(&mut self, rows: TensorId, first: usize, count: usize) -> Result<TensorId, Error> {
        let tensor = self.graph.tensor(rows)?;
        let (tokens, [float, row, ..]) = (tensor.ne()[1], tensor.layout().nb());
        Ok(self.graph.view(rows, [count, tokens], &[row], first * float)?)
    }

    /// Some channels of rows [C, T / S, S] as heads. [size, count, T / S, S]
    pub(super) fn heads_of(
        &mut self,
        rows: TensorId,
        first: usize,
        [size, count]: [usize; 2],
    ) -> Result<TensorId, Error> {
        let layout = *self.graph.tensor(rows)?.layout();
        let (shape, [float, token, sequence, _]) = (layout.ne(), layout.nb());
        let strides = [size * float, token, sequence];
        Ok(self.graph.view(rows, [size, count, shape[1], shape[2]], &strides, first * float)?)
    }

    pub(super) fn state_space(&self) -> Result<StateSpace, Error> {
        let missing =
            || Error::NotThatKind { architecture: self.hyper.architecture(), what: "have recurrent states" };
        self.hyper.state_space.ok_or_else(missing)
    }

    /// Mamba 2: heads with one decay each. [E, T]
    pub(crate) fn mamba2(&mut self, x: TensorId) -> Result<TensorId, Error> {
        let space = self.state_space()?;
        let StateSpace { inner, state, heads, groups, .. } = space;
        let (each, sequences) = (self.tokens_of_each(), self.step.sequences);
        // Gates, what is convolved, and time steps.
        let all = self.product(x, "ssm_in", inner + space.convolved() + heads, Bias::None, Scale::Always)?;
        let gates = self.channels(all, 0, inner)?;
        let mixed = self.channels(all, inner, space.convolved())?;
        let steps = self.channels(all, inner + space.convolved(), heads)?;

        let mixed = self.activated_convolution(mixed)?;
        let values = self.heads_of(mixed, 0, [space.head_size(), heads])?;
        let write = self.heads_of(mixed, inner, [state, groups])?;
        let read = self.heads_of(mixed, inner + groups * state, [state, groups])?;
        let bias = self.weight("ssm_dt.bias", heads)?;
        let steps = self.graph.cont_as(steps, [heads, each, sequences])?;
        let steps = self.graph.add(steps, bias)?;
        let decay = self.weight("ssm_a", [1, heads])?;
        let y = self.scan([values, steps, decay, write, read], [state, space.head_size(), heads])?;

        let direct = self.weight("ssm_d", [1, heads])?;
        let y = self.gated_beside(y, [values, direct], gates)?;
        let y = match space.normed || self.has("ssm_norm.weight") {
            true => self.group_norm(y, "ssm_norm", groups)?,
            false => y,
        };
        self.product(y, "ssm_out", self.hyper.embedding, Bias::None, Scale::Always)
    }

    /// What a scan gave, [size, heads, T / S, S], plus the values that it read times numbers of their heads, gated. [inner, T]
    fn gated_beside(
        &mut self,
        y: TensorId,
        [values, direct]: [TensorId; 2],
        gates: TensorId,
    ) -> Result<TensorId, Error> {
        let direct = self.graph.mul(values, direct)?;
        let y = self.graph.add(y, direct)?;
        let y = self.graph.reshape(y, [self.state_space()?.inner, self.step.tokens])?;
        let gates = self.graph.cont(gates)?;
        Ok(self.graph.glu_split(gates, y, GluKind::Swiglu)?)
    }

    /// The convolution before a scan, and its activation. [C, T / S, S]
    fn activated_convolution(&mut self, rows: TensorId) -> Result<TensorId, Error> {
        let (taps, channels) = (self.state_space()?.taps, self.row_len(rows)?);
        let mixed = self.convolution(rows, "ssm_conv1d", taps)?;
        let mixed = match self.optional("ssm_conv1d.bias", channels)? {
            Some(bias) => self.graph.add(mixed, bias)?,
            None => mixed,
        };
        Ok(self.graph.unary(mixed, Unary::Silu)?)
    }

    /// Mamba 1: what reads and writes states is made of what was convolved, and so are time steps, one for each channel. [E, T]
    pub(crate) fn mamba1(&mut self, x: TensorId) -> Result<TensorId, Error> {
        let StateSpace { inner, state, step_rank, .. } = self.state_space()?;
        let all = self.product(x, "ssm_in", 2 * inner, Bias::None, Scale::Always)?;
        let (mixed, gates) = (self.channels(all, 0, inner)?, self.channels(all, inner, inner)?);
        let mixed = self.activated_convolution(mixed)?;
        let all = self.made_of_convolved(mixed)?;
        let steps = self.normed_channels(all, 0, step_rank, "ssm_dt_norm.weight")?;
        let write = self.normed_channels(all, step_rank, state, "ssm_b_norm.weight")?;
        let read = self.normed_channels(all, step_rank + state, state, "ssm_c_norm.weight")?;
        let decay = self.weight("ssm_a", [state, inner])?;
        let y = self.ungrouped_scan(mixed, [steps, decay, write, read], gates)?;
        self.product(y, "ssm_out", self.hyper.embedding, Bias::None, Scale::Always)
    }

    /// As [`mamba1`](Net::mamba1), with heads of several channels, gates before values in each, one decay for a head, and always
    /// norms. [E, T]
    pub(crate) fn mamba1_by_head(&mut self, x: TensorId) -> Result<TensorId, Error> {
        let space = self.state_space()?;
        let StateSpace { inner, state, heads, step_rank, .. } = space;
        let (size, tokens) = (space.head_size(), self.step.tokens);
        let all = self.product(x, "ssm_in", 2 * inner, Bias::None, Scale::None)?;
        let all = self.graph.reshape(all, [2 * size, heads, tokens])?;
        let (gates, mixed) = (self.part(all, 0, size)?, self.part(all, size, size)?);
        let gates = self.graph.cont_as(gates, [inner, tokens])?;
        let mixed = self.graph.cont_as(mixed, [inner, tokens])?;
        let mixed = self.activated_convolution(mixed)?;
        let all = self.made_of_convolved(mixed)?;
        let write = self.normed_channels(all, 0, state, "ssm_b_norm")?;
        let read = self.normed_channels(all, state, state, "ssm_c_norm")?;
        let steps = self.normed_channels(all, 2 * state, step_rank, "ssm_dt_norm")?;
        let decay = self.weight("ssm_a", heads)?;
        let decay = self.graph.reshape(decay, [1, heads])?;
        let y = self.ungrouped_scan(mixed, [steps, decay, write, read], gates)?;
        self.product(y, "ssm_out", self.hyper.embedding, Bias::None, Scale::None)
    }

    /// What time steps are made of, and what writes and reads states. [step_rank + 2 * state, T]
    fn made_of_convolved(&mut self, mixed: TensorId) -> Result<TensorId, Error> {
        let StateSpace { inner, state, step_rank, .. } = self.state_space()?;
        let flat = self.graph.reshape(mixed, [inner, self.step.tokens])?;
        self.product(flat, "ssm_x", step_rank + 2 * state, Bias::None, Scale::None)
    }

    /// Some channels of rows, normed with weights of this whole name if there are any. [count, T]
    fn normed_channels(
        &mut self,
        rows: TensorId,
        first: usize,
        count: usize,
        norm: &str,
    ) -> Result<TensorId, Error> {
        let part = self.channels(rows, first, count)?;
        if self.has(norm) {
            return self.rms_norm_by(part, norm);
        }
        match self.state_space()?.normed {
            true => self.norm_alone(part),
            false => Ok(self.graph.cont(part)?),
        }
    }

    /// The scan over convolved values [inner, T / S, S] with `[steps, decay, write, read]` that all heads share, gated. [inner, T]
    fn ungrouped_scan(
        &mut self,
        mixed: TensorId,
        [steps, decay, write, read]: [TensorId; 4],
        gates: TensorId,
    ) -> Result<TensorId, Error> {
        let space = self.state_space()?;
        let (state, heads, size) = (space.state, space.heads, space.head_size());
        let (each, sequences) = (self.tokens_of_each(), self.step.sequences);
        let values = self.heads_of(mixed, 0, [size, heads])?;
        let steps = self.product(steps, "ssm_dt", heads, Bias::Required, Scale::None)?;
        let steps = self.graph.reshape(steps, [heads, each, sequences])?;
        let write = self.graph.reshape(write, [state, 1, each, sequences])?;
        let read = self.graph.reshape(read, [state, 1, each, sequences])?;
        let y = self.scan([values, steps, decay, write, read], [state, size, heads])?;
        let direct = self.weight("ssm_d", heads)?;
        let direct = self.graph.reshape(direct, [1, heads])?;
        self.gated_beside(y, [values, direct], gates)
    }

    /// Mamba's scan of `[x, dt, a, b, c]`; the states that it leaves are remembered. [size, heads, T / S, S]
    fn scan(
        &mut self,
        [x, dt, a, b, c]: [TensorId; 5],
        [state, size, heads]: [usize; 3],
    ) -> Result<TensorId, Error> {
        let (each, sequences) = (self.tokens_of_each(), self.step.sequences);
        let all = self.state(StateTensor::Recurrent)?;
        let rows = self.graph.tensor(all)?.ne()[1];
        let states = self.graph.reshape(all, [state, size, heads, rows])?;
        let ids = self.state_rows()?;
        let result = self.graph.ssm_scan([states, x, dt, a, b, c, ids], 1)?;
        let (float, width) = (DType::F32.block_bytes(), state * size * heads);
        let outputs = size * heads * each * sequences;
        let left = self.graph.view(result, [width, sequences], &[width * float], outputs * float)?;
        self.remember(StateTensor::Recurrent, left)?;
        let strides = [size, size * heads, size * heads * each].map(|count| count * float);
        Ok(self.graph.view(result, [size, heads, each, sequences], &strides, 0)?)
    }

    /// The results of a recurrence that gives rows of all tokens and then the states that it leaves, which are remembered. [size * heads, T]
    pub(super) fn flat_result(
        &mut self,
        result: TensorId,
        [size, heads]: [usize; 2],
    ) -> Result<TensorId, Error> {
        let (tokens, sequences) = (self.step.tokens, self.step.sequences);
        let (float, width) = (DType::F32.block_bytes(), size * heads);
        let state = size * width;
        let left = self.graph.view(result, [state, sequences], &[state * float], width * tokens * float)?;
        self.remember(StateTensor::Recurrent, left)?;
        Ok(self.graph.view(result, [width, tokens], &[width * float], 0)?)
    }

    /// RMS norm of equal parts of rows [C, T], times weights. [C, T]
    fn group_norm(&mut self, rows: TensorId, base: &str, groups: usize) -> Result<TensorId, Error> {
        let (channels, tokens) = (self.row_len(rows)?, self.graph.tensor(rows)?.ne()[1]);
        let weights = self.weight(&format!("{base}.weight"), [channels / groups, groups])?;
        let parts = self.graph.reshape(rows, [channels / groups, groups, tokens])?;
        let normal = self.graph.rms_norm(parts, self.hyper.norm_epsilon)?;
        let scaled = self.graph.mul(normal, weights)?;
        Ok(self.graph.reshape(scaled, [channels, tokens])?)
    }
}
