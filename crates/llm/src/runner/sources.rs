//! Sources: texts that are read whole before the tokens that follow them are computed.
//!
//! Invariant: a sequence without its whole source has no tokens at all. What blocks remember of a source depends on all of it, so it is
//! read in a step of its own, is never shared with sequences that merely begin like it, and is forgotten whole.

use std::ops::Range;

use super::Runner;
use super::batch::{Part, Piece, steps};
use super::graphs::{InputBytes, Step};
use super::sequence::Sequence;
use super::step::{Row, Sequences, hide_all};
use crate::model::net::AttentionPath;
use crate::model::{Distances, Error, HyperParameters, Source};

impl Runner {
    /// Pieces cut into steps, each source in one of its own before everything else.
    pub(super) fn cut(&self, pieces: &[Piece<'_>]) -> Result<Vec<Vec<Part>>, Error> {
        let sources = pieces.iter().map(|piece| self.source_in(piece)).collect::<Result<Vec<_>, _>>()?;
        let read = |(piece, &len): (usize, &usize)| (len > 0).then(|| vec![Part { piece, tokens: 0..len }]);
        let mut all: Vec<Vec<Part>> = sources.iter().enumerate().filter_map(read).collect();
        let left = |(piece, source): (&Piece<'_>, &usize)| piece.tokens.len() - source;
        let lengths: Vec<usize> = pieces.iter().zip(&sources).map(left).collect();
        let later = |part: Part| {
            let Range { start, end } = part.tokens;
            Part { tokens: start + sources[part.piece]..end + sources[part.piece], ..part }
        };
        let steps = steps(&lengths, self.options.batch, self.model().hyper().is_recurrent());
        all.extend(steps.into_iter().map(|step| step.into_iter().map(later).collect()));
        Ok(all)
    }

    /// How many of a piece's first tokens are a source that is to be read.
    fn source_in(&self, piece: &Piece<'_>) -> Result<usize, Error> {
        let Some(source) = self.model().hyper().source else { return Ok(0) };
        if piece.tokens.is_empty() || self.sequence(piece.sequence)?.len() > 0 {
            return Ok(0);
        }
        let wanted = piece.wanted.range(piece.tokens.len()).start;
        let error = match source.of(piece.tokens) {
            None | Some(0) => {
                let rule = format!(
                    "it must come whole, before the token {}, with which answers begin",
                    source.start
                );
                Error::setting("the source", "incomplete", rule)
            }
            Some(len) if wanted < len => {
                let rule = format!("the first {len} tokens are a source, which has no logits");
                Error::setting("the first wanted token", wanted, rule)
            }
            Some(len) => return Ok(len),
        };
        Err(Error::InSequence { sequence: piece.sequence, error: Box::new(error) })
    }

    /// Whether a step reads a source.
    pub(super) fn reads(&self, rows: &[Row<'_>]) -> bool {
        self.model().hyper().source.is_some() && rows.first().is_some_and(|row| row.first == 0)
    }
}

/// Sets how far away cells are, and which of them hold sources.
pub(super) fn set_sources(
    step: &mut Step,
    rows: &[Row<'_>],
    sequences: &Sequences,
    (hyper, path): (&HyperParameters, AttentionPath),
    bytes: &mut InputBytes,
) -> Result<(), Error> {
    let (Some(source), Some(distances)) = (hyper.source, hyper.distances) else { return Ok(()) };
    if step.shape.reads {
        return set_distances_in_whole(step, distances, bytes);
    }
    let (inputs, shape) = (step.inputs, step.shape);
    let (cells, kind) = (shape.cells[0], size_of::<i32>());
    let lines = || rows.iter().filter_map(|row| Some((row, sequences.get(&row.id)?)));
    bytes.fill(&mut step.prepared, inputs.distances, cells * shape.tokens * kind, |kinds| {
        let mut all = kinds.chunks_exact_mut(cells * kind);
        for (row, sequence) in lines() {
            for from in row.first..row.end() {
                let Some(line) = all.next() else { return };
                for (cell, to) in cells_of(sequence, written(source, sequence).start..from + 1) {
                    let number = distances.back(from, to) as i32;
                    line[cell * kind..][..kind].copy_from_slice(&number.to_le_bytes());
                }
            }
        }
    })?;
    let element = path.mask_type().block_bytes();
    let width = cells * element;
    bytes.fill(&mut step.prepared, inputs.source_mask, width * path.mask_rows(shape.tokens), |mask| {
        hide_all(mask, path.mask_type());
        let mut all = mask.chunks_exact_mut(width);
        for (row, sequence) in lines() {
            for line in all.by_ref().take(row.tokens.len()) {
                for (cell, _) in cells_of(sequence, 0..written(source, sequence).start) {
                    line[cell * element..][..element].fill(0);
                }
            }
        }
        // As in other masks, no row sees nothing.
        all.for_each(|line| line[..element].fill(0));
    })
}

/// Sets how far away tokens of a text are that is seen whole.
pub(super) fn set_distances_in_whole(
    step: &mut Step,
    distances: Distances,
    bytes: &mut InputBytes,
) -> Result<(), Error> {
    let (tokens, input) = (step.shape.tokens, step.inputs.distances);
    let kinds = (0..tokens).flat_map(|from| (0..tokens).map(move |to| distances.both_ways(from, to) as i32));
    bytes.set(&mut step.prepared, input, kinds.map(i32::to_le_bytes))
}

/// The positions of a sequence that are not its source's, from the first on.
pub(super) fn written(source: Source, sequence: &Sequence) -> std::ops::RangeFrom<usize> {
    source.of(&sequence.tokens).unwrap_or(sequence.len())..
}

/// The cells of positions.
fn cells_of(sequence: &Sequence, positions: Range<usize>) -> impl Iterator<Item = (usize, usize)> {
    positions.filter_map(|position| Some((sequence.cell(0, position)?, position)))
}
