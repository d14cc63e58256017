//! What compressing runs of tokens needs to know of a step: which runs become whole, where their tokens are and their rows go, and which
//! rows each token sees.

use super::graphs::{InputBytes, Step};
use super::step::{Row, Sequences, hide_all};
use crate::model::net::AttentionPath;
use crate::model::{CompressedRows, Error};

/// Sets all of it. What fills up belongs to no sequence: its tokens are in the first cell, and its rows go to the first.
pub(super) fn set_runs(
    step: &mut Step,
    rows: &[Row<'_>],
    sequences: &Sequences,
    (rule, path): (CompressedRows, AttentionPath),
    bytes: &mut InputBytes,
) -> Result<(), Error> {
    let kind = usize::from(rule.overlaps);
    let Some(inputs) = step.inputs.runs[kind] else { return Ok(()) };
    let (count, span) = (step.shape.runs[kind], rule.span());
    let mut members = vec![0_i32; span * count];
    let mut gaps = vec![0_f32; span * count];
    let (mut targets, mut positions) = (vec![0_i64; count], vec![0_i32; count]);
    let mut index = 0;
    for row in rows {
        let Some(sequence) = sequences.get(&row.id) else { continue };
        for run in row.whole_runs(rule) {
            let end = (run + 1) * rule.run;
            for place in 0..span {
                let at = index * span + place;
                match (end + place).checked_sub(span).and_then(|position| sequence.cell(1, position)) {
                    Some(cell) => members[at] = cell as i32,
                    None => gaps[at] = f32::NEG_INFINITY,
                }
            }
            let cell = sequence.cell(0, end - 1).unwrap_or(0);
            targets[index] = (cell / rule.row_tokens()) as i64;
            positions[index] = (run * rule.run) as i32;
            index += 1;
        }
    }
    bytes.set(&mut step.prepared, Some(inputs.members), members.into_iter().map(i32::to_le_bytes))?;
    bytes.set(&mut step.prepared, inputs.gaps, gaps.into_iter().map(f32::to_le_bytes))?;
    bytes.set(&mut step.prepared, Some(inputs.rows), targets.into_iter().map(i64::to_le_bytes))?;
    bytes.set(&mut step.prepared, Some(inputs.positions), positions.into_iter().map(i32::to_le_bytes))?;
    set_run_mask(step, rows, sequences, (rule, path), bytes)
}

/// Sets which rows each token sees: those of runs that ended before it or with it.
fn set_run_mask(
    step: &mut Step,
    rows: &[Row<'_>],
    sequences: &Sequences,
    (rule, path): (CompressedRows, AttentionPath),
    bytes: &mut InputBytes,
) -> Result<(), Error> {
    let input = step.inputs.runs[usize::from(rule.overlaps)].map(|inputs| inputs.mask);
    let element = path.mask_type().block_bytes();
    let width = step.shape.cells[0] / rule.row_tokens() * element;
    let lines = path.mask_rows(step.shape.tokens);
    bytes.fill(&mut step.prepared, input, width * lines, |mask| {
        hide_all(mask, path.mask_type());
        let mut lines = mask.chunks_exact_mut(width);
        for row in rows {
            let Some(sequence) = sequences.get(&row.id) else { continue };
            for position in row.first..row.end() {
                let Some(line) = lines.next() else { return };
                for run in 1..=(position + 1) / rule.run {
                    let Some(cell) = sequence.cell(0, run * rule.run - 1) else { continue };
                    line[cell / rule.row_tokens() * element..][..element].fill(0);
                }
            }
        }
    })
}
