//! An index of blocks of positions, for every head of keys by itself: a block is as good as the best of its keys.
//!
//! Blocks may be longer than pages, and pages of a sequence lie anywhere. So scores are gathered by inputs that say where the units of
//! each block are, a unit being the part of a block that a page holds, and what was found is scattered back by their inverse.

use oxcart_tensor::ops::{MulMat, PoolKind, PoolWindow, Precision};
use oxcart_tensor::{DType, TensorId};

use super::layers::Scale;
use super::{Bias, Net};
use crate::model::error::Error;
use crate::model::hyper_parameters::{IndexRule, Indexer};
use crate::runner::PAGE_TOKENS;

/// Inputs that say where blocks of positions are, and which of them a token always looks at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockInputs {
    /// By token and block, its units. [units of a block * blocks, T]
    pub(crate) units: TensorId,
    /// By token and unit, the block it belongs to. [units, T]
    pub(crate) blocks: TensorId,
    /// What is added to the scores of blocks. [blocks, T]
    pub(crate) bonus: TensorId,
}

/// How blocks lie in cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockSizes {
    /// Cells of a unit.
    pub(crate) unit: usize,
    /// Units of a block.
    pub(crate) units: usize,
}

impl BlockSizes {
    pub(crate) fn new(block: usize) -> BlockSizes {
        let unit = block.min(PAGE_TOKENS);
        BlockSizes { unit, units: block / unit }
    }

    /// Blocks that so many cells may hold.
    pub(crate) fn blocks(self, cells: usize) -> usize {
        cells.div_ceil(self.unit * self.units)
    }
}

impl Net<'_> {
    /// A mask of the cells that each head of each token looks at; none where they look at all that they may see. [cells, T, H]
    pub(crate) fn found_in_blocks(&mut self, x: TensorId) -> Result<Option<TensorId>, Error> {
        let Indexer { heads, size, chosen, rule, .. } = self.indexer()?;
        let IndexRule::Blocks { size: block, .. } = rule else { return Ok(None) };
        let mut rotated = |base: &str, count| -> Result<TensorId, Error> {
            let rows =
                self.product(x, &format!("indexer.{base}_proj"), count * size, Bias::None, Scale::None)?;
            let rows = self.graph.reshape(rows, [size, count, self.step.tokens])?;
            let rows = self.rms_norm(rows, &format!("indexer.{base}_norm"))?;
            self.rope(rows)
        };
        let (q, key) = (rotated("q", heads)?, rotated("k", 1)?);
        let keys = self.stored_index(key, 1)?; // [size, cells]
        let (cells, sizes) = (self.step.cells[self.kind()], BlockSizes::new(block));
        if sizes.blocks(cells) <= chosen {
            return Ok(None);
        }
        let scores = self.unit_scores(q, keys, sizes)?; // [units, H, T]
        let found = self.best_blocks(scores, sizes, chosen)?; // [units, T, H]
        self.shown_units(found, sizes.unit).map(Some)
    }

    /// The best score that a key of each unit has. [units, H, T]
    fn unit_scores(&mut self, q: TensorId, keys: TensorId, sizes: BlockSizes) -> Result<TensorId, Error> {
        let (shape, cells) = (self.graph.tensor(q)?.ne(), self.graph.tensor(keys)?.ne()[1]);
        let (heads, tokens) = (shape[1], shape[2]);
        let q = self.graph.reshape(q, [shape[0], heads * tokens])?;
        let exact = MulMat { accumulate: Precision::F32, ..MulMat::default() };
        let scores = self.graph.apply(exact, &[Some(keys), Some(q)])?;
        let scores = self.graph.reshape(scores, [cells, heads, tokens])?;
        let mask = self.plain_mask()?;
        let mask = self.graph.reshape(mask, [cells, 1, tokens])?;
        let scores = self.graph.add(scores, mask)?;
        self.best_of(scores, [sizes.unit, 1])
    }

    /// The largest number of each window of these extents.
    fn best_of(&mut self, x: TensorId, window: [usize; 2]) -> Result<TensorId, Error> {
        let kernel = window.map(|extent| extent as u32);
        let window = PoolWindow { kernel, stride: kernel, pad: [0; 2] };
        Ok(self.graph.pool_2d(x, PoolKind::Max, window)?)
    }

    /// Zero for units of the best blocks of each head, and minus infinity for others, by their scores [units, H, T].
    /// [units, T, H]
    fn best_blocks(&mut self, scores: TensorId, sizes: BlockSizes, count: usize) -> Result<TensorId, Error> {
        let shape = self.graph.tensor(scores)?.ne();
        let (units, heads, tokens) = (shape[0], shape[1], shape[2]);
        let blocks = sizes.blocks(units * sizes.unit);
        let inputs = self.block_inputs(units, blocks, sizes.units)?;
        let by_unit = self.graph.permute(scores, [1, 0, 2, 3])?;
        let by_unit = self.graph.cont(by_unit)?; // [H, units, T]
        let gathered = self.graph.get_rows(by_unit, inputs.units)?; // [H, units of a block * blocks, T]
        let by_block = self.best_of(gathered, [1, sizes.units])?; // [H, blocks, T]
        let scores = self.graph.permute(by_block, [1, 0, 2, 3])?;
        let scores = self.graph.cont(scores)?; // [blocks, H, T]
        let bonus = self.graph.reshape(inputs.bonus, [blocks, 1, tokens])?;
        let scores = self.graph.add(scores, bonus)?;
        let scores = self.graph.reshape(scores, [blocks, heads * tokens])?;
        let chosen = self.chosen(scores, count)?;
        let found = self.graph.log(chosen)?;
        let found = self.graph.reshape(found, [blocks, heads, tokens])?;
        let found = self.graph.permute(found, [1, 0, 2, 3])?;
        let found = self.graph.cont(found)?; // [H, blocks, T]
        let found = self.graph.get_rows(found, inputs.blocks)?; // [H, units, T]
        let found = self.graph.permute(found, [2, 0, 1, 3])?;
        Ok(self.graph.cont(found)?)
    }

    /// The mask, with all cells hidden but those of units that were found, for all heads of queries. [cells, T, H]
    fn shown_units(&mut self, found: TensorId, unit: usize) -> Result<TensorId, Error> {
        let shape = self.graph.tensor(found)?.ne();
        let (units, tokens, groups) = (shape[0], shape[1], shape[2]);
        let (cells, heads) = (units * unit, self.block().heads);
        let found = self.graph.reshape(found, [1, units, tokens, groups])?;
        let found = self.graph.repeat(found, [unit, units, tokens, groups])?;
        let found = self.graph.reshape(found, [cells, tokens, groups])?;
        let mask = self.plain_mask()?;
        let found = self.graph.add(found, mask)?;
        let found = self.graph.reshape(found, [cells, tokens, 1, groups])?;
        let found = self.graph.repeat(found, [cells, tokens, heads / groups, groups])?;
        let found = self.graph.reshape(found, [cells, tokens, heads])?;
        self.as_type(found, self.style.path.mask_type())
    }

    fn block_inputs(&mut self, units: usize, blocks: usize, each: usize) -> Result<BlockInputs, Error> {
        if let Some(inputs) = self.inputs.blocks {
            return Ok(inputs);
        }
        let tokens = self.step.tokens;
        let inputs = BlockInputs {
            units: self.input("inp_block_units", DType::I32, [each * blocks, tokens])?,
            blocks: self.input("inp_unit_blocks", DType::I32, [units, tokens])?,
            bonus: self.input("inp_block_bonus", DType::F32, [blocks, tokens])?,
        };
        self.inputs.blocks = Some(inputs);
        Ok(inputs)
    }
}
