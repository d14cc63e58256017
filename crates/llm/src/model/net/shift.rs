//! Stored keys, rotated to where their tokens have moved.

use oxcart_tensor::ops::Rope;
use oxcart_tensor::{DType, Graph, TensorId};

use super::{Net, Section};
use crate::model::error::Error;
use crate::runner::sequence::KINDS;
use crate::runner::state::StateTensor;

/// Inputs that say which keys are rotated, and how far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShiftInputs {
    /// Cells to read. [cells]
    pub(crate) from: TensorId,
    /// The same cells, to write. [cells]
    pub(crate) to: TensorId,
    /// How far each has moved. [cells]
    pub(crate) moved: TensorId,
}

/// A graph that rotates stored keys.
#[derive(Debug)]
pub(crate) struct BuiltShift {
    pub(crate) graph: Graph,
    /// By kind of page.
    pub(crate) inputs: [Option<ShiftInputs>; KINDS],
    /// First tensor of each part of the model, in order.
    pub(crate) parts: Vec<(usize, Section)>,
}

impl Net<'_> {
    /// Builds a graph that rotates the keys of `cells` cells of each kind in all blocks. Rotations add up, so keys become
    /// what they would have been at their new positions, but for rounding.
    pub(crate) fn build_shift(mut self, cells: [usize; KINDS]) -> Result<BuiltShift, Error> {
        let mut inputs = [None; KINDS];
        for block in 0..self.block_count() {
            self.enter(Section::Block(block));
            let (kind, groups, size) =
                (usize::from(self.block().windowed), self.block().kv_heads, self.block().key_size);
            if self.block().state.rows.is_none() || !self.block().rotates || cells[kind] == 0 {
                continue;
            }
            let ShiftInputs { from, to, moved } = match inputs[kind] {
                Some(inputs) => inputs,
                None => {
                    let suffix = ["", "_swa"][kind];
                    let mut input =
                        |name: &str, dtype| self.input(&format!("{name}{suffix}"), dtype, cells[kind]);
                    ShiftInputs {
                        from: input("inp_k_from", DType::I32)?,
                        to: input("inp_k_to", DType::I64)?,
                        moved: input("inp_k_shift", DType::I32)?,
                    }
                }
            };
            inputs[kind] = Some(ShiftInputs { from, to, moved });
            let factors = self.rope_factors()?;
            let rope = if self.block().windowed { self.hyper.rope_windowed } else { self.hyper.rope };
            let rope = Rope { attn_factor: neutral(&rope), ..rope };
            let keys = self.state(StateTensor::Keys)?;
            let rows = self.graph.get_rows(keys, from)?;
            let mut heads = self.graph.reshape(rows, [size, groups, cells[kind]])?;
            let is_mixed = self.mixing().keys;
            if is_mixed {
                heads = self.mixed(heads)?;
            }
            let mut rotated = self.graph.apply(rope, &[Some(heads), Some(moved), factors])?;
            if is_mixed {
                rotated = self.mixed(rotated)?;
            }
            let rows = self.graph.reshape(rotated, [size * groups, cells[kind]])?;
            let stored = self.graph.set_rows(keys, rows, to)?;
            self.graph.expand(stored)?;
        }
        let Net { graph, sections: parts, .. } = self;
        Ok(BuiltShift { graph, inputs, parts })
    }
}

/// The factor that makes a rotation keep lengths: keys were scaled when they were first rotated.
fn neutral(rope: &Rope) -> f32 {
    if rope.ext_factor == 0.0 { 1.0 } else { (1.0 - 0.1 * rope.freq_scale.ln()).recip() }
}
