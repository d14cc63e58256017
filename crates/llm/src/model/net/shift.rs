//! Cached keys, rotated to where their tokens have moved.

use oxcart_tensor::ops::Rope;
use oxcart_tensor::{DType, Graph, TensorId};

use super::{Net, Section, Supply};
use crate::model::error::Error;

/// A graph that rotates cached keys.
#[derive(Debug)]
pub(crate) struct BuiltShift {
    pub(crate) graph: Graph,
    /// Of dense and windowed blocks, how far each cell has moved.
    pub(crate) moved: [Option<TensorId>; 2],
    pub(crate) homes: Vec<(TensorId, usize)>,
}

impl Net<'_> {
    /// Builds a graph that rotates the keys of all blocks, in place. Rotations add up, so keys become what they would
    /// have been at their new positions.
    pub(crate) fn build_shift(mut self) -> Result<BuiltShift, Error> {
        let mut moved = [None; 2];
        for block in 0..self.block_count() {
            self.enter(Section::Block(block));
            let (kind, groups, size) = (self.kind(), self.block().kv_heads, self.hyper.head_size);
            let cells = self.step.cells[kind];
            let deltas = match moved[kind] {
                Some(deltas) => deltas,
                None => self.input(["inp_k_shift", "inp_k_shift_swa"][kind], DType::I32, cells)?,
            };
            moved[kind] = Some(deltas);
            let factors = self.rope_factors()?;
            let rope = if self.block().windowed { self.hyper.rope_windowed } else { self.hyper.rope };
            let rope = Rope { attn_factor: neutral(&rope), ..rope };
            let (keys, _) = self.caches()?;
            let keys = self.graph.view(keys, [size, groups, cells], &[], 0)?;
            let sources = |a| [Some(a), Some(deltas), factors];
            let rotated = if matches!(self.style.cache_type, DType::F32 | DType::F16) {
                self.graph.apply_in_place(rope, &sources(keys))?
            } else {
                let expanded = self.graph.cast(keys, DType::F32)?;
                let rotated = self.graph.apply(rope, &sources(expanded))?;
                self.graph.cpy(rotated, keys)?
            };
            self.graph.expand(rotated)?;
        }
        debug_assert!(matches!(self.supply, Supply::Loaded { .. }), "there is nothing to shift in a survey");
        let homes = self.homes()?;
        Ok(BuiltShift { graph: self.graph, moved, homes })
    }
}

/// The factor that makes a rotation keep lengths: keys were scaled when they were first rotated.
fn neutral(rope: &Rope) -> f32 {
    if rope.ext_factor == 0.0 { 1.0 } else { (1.0 - 0.1 * rope.freq_scale.ln()).recip() }
}
