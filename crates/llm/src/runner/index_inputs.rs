//! What indexes and embeddings of n-grams need to know of a step: where runs and blocks of positions are, and which tokens came before.

use super::graphs::{InputBytes, Step};
use super::step::{Row, Sequences};
use crate::model::net::BlockSizes;
use crate::model::{Error, HyperParameters, IndexRule, Ngrams};

/// Ranks a block before all others.
const ALWAYS: f32 = 1e30;

/// Sets all of it, as far as the graph has it.
pub(super) fn set_index_inputs(
    step: &mut Step,
    rows: &[Row<'_>],
    sequences: &Sequences,
    hyper: &HyperParameters,
    bytes: &mut InputBytes,
) -> Result<(), Error> {
    match hyper.indexer.map(|indexer| indexer.rule) {
        Some(IndexRule::MeanRuns(length)) => {
            let times = if hyper.rope.mode.has_sections() { 4 } else { 1 };
            set_run_positions(step, rows, sequences, [length, times], bytes)?;
        }
        Some(IndexRule::Blocks { size, local }) => {
            set_blocks(step, rows, sequences, [size, local], bytes)?;
        }
        Some(IndexRule::Tokens | IndexRule::GatedRuns(_)) | None => {}
    }
    match &hyper.ngrams {
        Some(ngrams) => set_ngrams(step, rows, sequences, ngrams, bytes),
        None => Ok(()),
    }
}

/// Sets the positions that runs of cells begin with, so many times over.
fn set_run_positions(
    step: &mut Step,
    rows: &[Row<'_>],
    sequences: &Sequences,
    [length, times]: [usize; 2],
    bytes: &mut InputBytes,
) -> Result<(), Error> {
    let mut positions = vec![0_i32; step.shape.cells[0] / length];
    for row in rows {
        let Some(sequence) = sequences.get(&row.id) else { continue };
        for first in (0..row.end()).step_by(length) {
            if let Some(cell) = sequence.cell(0, first) {
                positions[cell / length] = first as i32;
            }
        }
    }
    let all = std::iter::repeat_n(&positions, times).flatten();
    bytes.set(&mut step.prepared, step.inputs.run_positions, all.map(|position| position.to_le_bytes()))
}

/// Sets where blocks of positions are, and that each token looks at the last few of them. What fills a step up looks at the first.
fn set_blocks(
    step: &mut Step,
    rows: &[Row<'_>],
    sequences: &Sequences,
    [block, local]: [usize; 2],
    bytes: &mut InputBytes,
) -> Result<(), Error> {
    let Some(inputs) = step.inputs.blocks else { return Ok(()) };
    let (sizes, shape) = (BlockSizes::new(block), step.shape);
    let (units, blocks) = (shape.cells[0] / sizes.unit, sizes.blocks(shape.cells[0]));
    let mut units_of = vec![0_i32; sizes.units * blocks * shape.tokens];
    let mut blocks_of = vec![0_i32; units * shape.tokens];
    let mut bonus = vec![0_f32; blocks * shape.tokens];
    let mut token = 0;
    for row in rows {
        let Some(sequence) = sequences.get(&row.id) else { continue };
        for position in row.first..row.end() {
            for (number, first) in (0..=position).step_by(sizes.unit).enumerate() {
                let unit = sequence.cell(0, first).map_or(0, |cell| cell / sizes.unit);
                units_of[token * sizes.units * blocks + number] = unit as i32;
                blocks_of[token * units + unit] = (number / sizes.units) as i32;
            }
            let own = position / block;
            bonus[token * blocks..][(own + 1).saturating_sub(local)..=own].fill(ALWAYS);
            token += 1;
        }
    }
    for token in token..shape.tokens {
        bonus[token * blocks] = ALWAYS;
    }
    bytes.set(&mut step.prepared, Some(inputs.units), units_of.into_iter().map(i32::to_le_bytes))?;
    bytes.set(&mut step.prepared, Some(inputs.blocks), blocks_of.into_iter().map(i32::to_le_bytes))?;
    bytes.set(&mut step.prepared, Some(inputs.bonus), bonus.into_iter().map(f32::to_le_bytes))
}

/// Sets the rows of the n-grams that end with each token.
fn set_ngrams(
    step: &mut Step,
    rows: &[Row<'_>],
    sequences: &Sequences,
    ngrams: &Ngrams,
    bytes: &mut InputBytes,
) -> Result<(), Error> {
    let mut numbers = Vec::with_capacity(step.shape.tokens * ngrams.ranges.len());
    for row in rows {
        let Some(sequence) = sequences.get(&row.id) else { continue };
        let before = &sequence.tokens[row.first.saturating_sub(ngrams.longest - 1)..row.first];
        let tokens: Vec<u32> = before.iter().chain(row.tokens).copied().collect();
        for end in before.len() + 1..=tokens.len() {
            numbers.extend(ngrams.rows_of(&tokens[end.saturating_sub(ngrams.longest)..end]));
        }
    }
    numbers.resize(step.shape.tokens * ngrams.ranges.len(), 0);
    bytes.set(&mut step.prepared, step.inputs.ngram_rows, numbers.into_iter().map(u32::to_le_bytes))
}
