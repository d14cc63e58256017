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
    fn by_sequence(&mut self, rows: TensorId) -> Result<TensorId, Error> {
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
        let channels = self.row_len(rows)?;
        let (each, sequences) = (self.tokens_of_each(), self.step.sequences);
        let kernel = self.weight(&format!("{base}.weight"), [taps, channels])?;
        let before = self.recall(StateTensor::Convolution)?;
        let before = self.graph.reshape(before, [taps - 1, channels, sequences])?;
        let rows = self.by_sequence(rows)?;
        let rows = self.graph.transpose(rows)?;
        let seen = self.graph.concat(before, rows, 0)?; // [taps - 1 + T / S, C, S]
        let [float, channel, sequence, _] = self.graph.tensor(seen)?.layout().nb();
        let last =
            self.graph.view(seen, [taps - 1, channels, sequences], &[channel, sequence], each * float)?;
        let last = self.graph.cont_as(last, [(taps - 1) * channels, sequences])?;
        self.remember(StateTensor::Convolution, last)?;
        Ok(self.graph.ssm_conv(seen, kernel)?)
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
    fn channels(&mut self, rows: TensorId, first: usize, count: usize) -> Result<TensorId, Error> {
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
        let StateSpace { taps, inner, state, heads, groups } = space;
        let (each, sequences, tokens) = (self.tokens_of_each(), self.step.sequences, self.step.tokens);
        // Gates, what is convolved, and time steps.
        let all = self.product(x, "ssm_in", inner + space.convolved() + heads, Bias::None, Scale::Always)?;
        let gates = self.channels(all, 0, inner)?;
        let mixed = self.channels(all, inner, space.convolved())?;
        let steps = self.channels(all, inner + space.convolved(), heads)?;

        let mixed = self.convolution(mixed, "ssm_conv1d", taps)?;
        let mixed = match self.optional("ssm_conv1d.bias", space.convolved())? {
            Some(bias) => self.graph.add(mixed, bias)?,
            None => mixed,
        };
        let mixed = self.graph.unary(mixed, Unary::Silu)?;
        let values = self.heads_of(mixed, 0, [space.head_size(), heads])?;
        let write = self.heads_of(mixed, inner, [state, groups])?;
        let read = self.heads_of(mixed, inner + groups * state, [state, groups])?;
        let bias = self.weight("ssm_dt.bias", heads)?;
        let steps = self.graph.cont_as(steps, [heads, each, sequences])?;
        let steps = self.graph.add(steps, bias)?;
        let decay = self.weight("ssm_a", [1, heads])?;
        let y = self.scan([values, steps, decay, write, read], [state, space.head_size(), heads])?;

        let direct = self.weight("ssm_d", [1, heads])?;
        let direct = self.graph.mul(values, direct)?;
        let y = self.graph.add(y, direct)?;
        let y = self.graph.reshape(y, [inner, tokens])?;
        let gates = self.graph.cont(gates)?;
        let y = self.graph.glu_split(gates, y, GluKind::Swiglu)?;
        let y = self.group_norm(y, "ssm_norm", groups)?;
        self.product(y, "ssm_out", self.hyper.embedding, Bias::None, Scale::Always)
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
