//! Computing pieces: their steps, what each needs, and what becomes of it.

use std::ops::Range;
use std::sync::Arc;

use oxcart_tensor::DType;
use oxcart_tensor::quant::to_f16;

use super::batch::{Part, Piece, bucket};
use super::graphs::{InputBytes, Step};
use super::index_inputs::set_index_inputs;
use super::pages::PAGE;
use super::run_inputs::set_runs;
use super::sequence::{Change, KINDS, Sequence, SequenceId};
use super::sources::{set_sources, written};
use super::watch::{self, Watch};
use super::{KnownOutputs, Logits, Outputs, Runner};
use crate::logits::Need;
use crate::model::net::{AttentionPath, StepShape};
use crate::model::{CompressedRows, Error, Pooling, Source, Temperature, Window};

/// Cells that a mask covers are multiples of this, so that one graph serves many tokens.
const MASK_STEP: usize = 256;

/// One part of a step, looked up.
pub(super) struct Row<'b> {
    pub(super) id: SequenceId,
    /// First position.
    pub(super) first: usize,
    pub(super) tokens: &'b [u32],
    /// Of which of them logits are wanted.
    wanted: Range<usize>,
    changes: Vec<Change>,
}

impl Row<'_> {
    /// The position after its last.
    pub(super) fn end(&self) -> usize {
        self.first + self.tokens.len()
    }

    /// The runs that its tokens make whole, by number.
    pub(super) fn whole_runs(&self, rule: CompressedRows) -> Range<usize> {
        self.first / rule.run..self.end() / rule.run
    }
}

impl Runner {
    /// Computes tokens that follow those of their sequences, and returns the logits that are wanted. More than fit into a
    /// step are computed in several.
    pub fn compute(&mut self, pieces: &[Piece<'_>]) -> Result<Outputs<'_>, Error> {
        self.compute_all(pieces, &[], None)?;
        Ok(self.outputs())
    }

    /// As [`compute`](Runner::compute), but of each piece, in order, no more than what is needed has to be known of its logits. Where results
    /// come over a network, the largest logits are read instead of all of them if these are enough; elsewhere, all are known.
    pub fn compute_for(&mut self, pieces: &[Piece<'_>], needs: &[Need]) -> Result<KnownOutputs<'_>, Error> {
        self.compute_all(pieces, needs, None)?;
        let vocabulary = self.graphs.model().hyper().vocabulary;
        Ok(KnownOutputs { findings: &self.findings, rows: &self.rows, vocabulary })
    }

    /// As [`compute`](Runner::compute), while something looks at nodes on the way.
    pub(crate) fn compute_watched(
        &mut self,
        pieces: &[Piece<'_>],
        watch: &mut dyn Watch,
    ) -> Result<Outputs<'_>, Error> {
        self.compute_all(pieces, &[], Some(watch))?;
        Ok(self.outputs())
    }

    /// What was computed, of which all logits were read.
    fn outputs(&self) -> Outputs<'_> {
        let width = self.graphs.model().hyper().vocabulary;
        Outputs { logits: Logits { numbers: &self.findings.logits, width }, rows: &self.rows }
    }

    /// Of pieces for which no need is given, all logits are needed.
    fn compute_all(
        &mut self,
        pieces: &[Piece<'_>],
        needs: &[Need],
        mut watch: Option<&mut dyn Watch>,
    ) -> Result<(), Error> {
        self.check(pieces)?;
        let before: Vec<(SequenceId, usize)> =
            pieces.iter().map(|piece| (piece.sequence, self.sequences[&piece.sequence].len())).collect();
        self.findings.clear();
        self.rows.clear();
        self.rows.resize(pieces.len(), 0..0);
        if self.model().hyper().is_recurrent() {
            self.check_room(pieces)?;
        }
        for parts in self.cut(pieces)? {
            // Lent anew to each step.
            let watch = watch.as_mut().map(|watch| &mut **watch as &mut dyn Watch);
            if let Err(error) = self.compute_step(pieces, &parts, needs, watch) {
                for (id, position) in before {
                    self.go_back(id, position);
                }
                return Err(error);
            }
        }
        self.graphs.model().check_files()
    }

    /// Refuses pieces that cannot be computed, before anything has changed.
    fn check(&self, pieces: &[Piece<'_>]) -> Result<(), Error> {
        let hyper = self.model().hyper();
        let (vocabulary, limit, trained) = (hyper.vocabulary, self.options.context, hyper.context);
        for (index, piece) in pieces.iter().enumerate() {
            let sequence = piece.sequence;
            let in_sequence = |error| Error::InSequence { sequence, error: Box::new(error) };
            let used = self.sequence(sequence)?.len();
            if pieces[..index].iter().any(|other| other.sequence == sequence) {
                let error = Error::setting("the batch", sequence, "has two pieces of it");
                return Err(in_sequence(error));
            }
            if let Some(&token) = piece.tokens.iter().find(|&&token| token as usize >= vocabulary) {
                return Err(in_sequence(Error::NoSuchToken { token, vocabulary }));
            }
            let asked = piece.tokens.len();
            if used + asked > limit {
                return Err(in_sequence(Error::ContextFull { used, asked, limit, trained }));
            }
        }
        Ok(())
    }

    /// Refuses pieces for which there are not enough pages, where a sequence that was computed could not go back. Pages of
    /// windowed blocks become free from step to step, so those are taken as they come.
    fn check_room(&self, pieces: &[Piece<'_>]) -> Result<(), Error> {
        let Some(pool) = &self.pools[0] else { return Ok(()) };
        let mut missing = 0;
        for &Piece { sequence: id, tokens, .. } in pieces {
            let sequence = self.sequence(id)?;
            missing += sequence.missing_pages(0, tokens.len(), pool).count();
            if missing > pool.available() {
                let error = Error::StateFull { asked: tokens.len(), used: sequence.len() };
                return Err(Error::InSequence { sequence: id, error: Box::new(error) });
            }
        }
        Ok(())
    }

    fn compute_step(
        &mut self,
        pieces: &[Piece<'_>],
        parts: &[Part],
        needs: &[Need],
        watch: Option<&mut dyn Watch>,
    ) -> Result<(), Error> {
        let mut rows = self.make_room(pieces, parts)?;
        let computed = self.prepare_state(&rows).and_then(|()| self.run(pieces, parts, &rows, needs, watch));
        let hyper = self.model().hyper();
        let (window, is_recurrent) = (hyper.kept_window(), hyper.is_recurrent());
        for row in &mut rows {
            let Some(sequence) = self.sequences.get_mut(&row.id) else { continue };
            if computed.is_ok() {
                sequence.commit(row.tokens, &row.changes, &mut self.pools, window);
                continue;
            }
            sequence.undo(row.changes.drain(..), &mut self.pools);
            if is_recurrent {
                // Some blocks may remember these tokens already.
                sequence.truncate(0, &mut self.pools);
            }
        }
        if computed.is_ok() {
            self.computed_tokens += rows.iter().map(|row| row.tokens.len() as u64).sum::<u64>();
        }
        computed
    }

    /// Gives all tokens of a step their cells.
    fn make_room<'b>(&mut self, pieces: &[Piece<'b>], parts: &[Part]) -> Result<Vec<Row<'b>>, Error> {
        let mut rows: Vec<Row<'b>> = Vec::with_capacity(parts.len());
        for part in parts {
            let piece = &pieces[part.piece];
            let (id, tokens) = (piece.sequence, &piece.tokens[part.tokens.clone()]);
            let wanted = piece.wanted.range(piece.tokens.len());
            let inside = |at: usize| at.clamp(part.tokens.start, part.tokens.end) - part.tokens.start;
            let wanted = inside(wanted.start)..inside(wanted.end);
            let Some(sequence) = self.sequences.get_mut(&id) else { continue };
            let (first, mut changes) = (sequence.len(), Vec::new());
            if sequence.make_room(tokens.len(), &mut self.pools, &mut changes).is_none() {
                for row in &mut rows {
                    if let Some(sequence) = self.sequences.get_mut(&row.id) {
                        sequence.undo(row.changes.drain(..), &mut self.pools);
                    }
                }
                let error = Error::StateFull { asked: tokens.len(), used: first };
                return Err(Error::InSequence { sequence: id, error: Box::new(error) });
            }
            rows.push(Row { id, first, tokens, wanted, changes });
        }
        Ok(rows)
    }

    /// Makes devices ready for a step: new sequences remember nothing, pages that must not be written to are copied, and
    /// tables say which pages the sequences have.
    fn prepare_state(&mut self, rows: &[Row<'_>]) -> Result<(), Error> {
        let Some(state) = self.graphs.state() else { return Ok(()) };
        for row in rows {
            for change in &row.changes {
                if let Some(from) = change.copied_from {
                    state.copy_page(change.kind, from, change.page)?;
                }
            }
            let Some(sequence) = self.sequences.get(&row.id) else { continue };
            if row.first == 0 {
                state.clear_row(sequence.row)?;
            }
            if self.graphs.style.path != AttentionPath::Paged {
                continue;
            }
            for (kind, table) in sequence.tables.iter().enumerate() {
                let written = &mut self.written[kind][sequence.row];
                let differs = |&index: &usize| table[index] != written[index];
                let Some(start) = (0..table.len()).find(differs) else { continue };
                let end = (start..table.len()).rev().find(differs).map_or(start, |last| last + 1);
                // Should writing fail, what devices have is not known.
                written[start..end].fill(Some(u32::MAX));
                state.write_table(kind, sequence.row, start, &table[start..end])?;
                written[start..end].copy_from_slice(&table[start..end]);
            }
        }
        Ok(())
    }

    fn shape(&self, rows: &[Row<'_>]) -> StepShape {
        if self.reads(rows) {
            return StepShape::reading(rows.iter().map(|row| row.tokens.len()).sum());
        }
        let is_recurrent = self.model().hyper().is_recurrent();
        let count: usize = rows.iter().map(|row| row.tokens.len()).sum();
        let outputs: usize = rows.iter().map(|row| row.wanted.len()).sum();
        // Recurrent blocks remember what fills up a step of single tokens in a row that no sequence has; among the tokens of
        // a sequence, nothing may fill up.
        let is_rectangle = is_recurrent && count > rows.len();
        let tokens = if is_rectangle { count } else { bucket(count).min(self.options.batch.max(count)) };
        let cells = match self.graphs.style.path {
            AttentionPath::Paged => [0; KINDS],
            AttentionPath::Flash { .. } | AttentionPath::Plain => self.pools.each_ref().map(|pool| {
                pool.as_ref().map_or(0, |pool| {
                    let all = pool.len() * PAGE;
                    (pool.end() * PAGE).next_multiple_of(MASK_STEP).min(all)
                })
            }),
        };
        StepShape {
            tokens,
            outputs: bucket(outputs.max(1)).min(tokens),
            sequences: match (is_recurrent, is_rectangle) {
                (false, _) => 1,
                (true, true) => rows.len(),
                (true, false) => tokens,
            },
            cells,
            runs: self.model().hyper().runs().map(|rule| {
                let count = |rule| rows.iter().map(|row| row.whole_runs(rule).len()).sum::<usize>();
                rule.map_or(0, |rule| bucket(count(rule).max(1)))
            }),
            pooling: Pooling::None,
            reads: false,
            largest: 0,
        }
    }

    /// Runs the graph of a step and appends what is needed of the logits that are wanted.
    fn run(
        &mut self,
        pieces: &[Piece<'_>],
        parts: &[Part],
        rows: &[Row<'_>],
        needs: &[Need],
        watch: Option<&mut dyn Watch>,
    ) -> Result<(), Error> {
        let vocabulary = self.model().hyper().vocabulary;
        let need = |part: &Part| needs.get(part.piece).copied().unwrap_or(Need::All);
        let by_row =
            parts.iter().zip(rows).flat_map(|(part, row)| row.wanted.clone().map(move |_| need(part)));
        let by_row: Vec<Need> = by_row.collect();
        let mut shape = self.shape(rows);
        if self.graphs.wants_small_results() && !shape.reads {
            shape.largest = self.findings.count_to_read(by_row.iter().copied(), vocabulary);
        }
        let model = Arc::clone(self.model());
        let hyper = model.hyper();
        let (path, window, temperature) = (self.graphs.style.path, hyper.window, hyper.temperature);
        let by_distance = hyper.position_bias.is_some();
        let step = self.graphs.step(shape)?;
        set_inputs(step, rows, &self.sequences, &mut self.input_bytes)?;
        set_temperatures(step, rows, temperature, &mut self.input_bytes)?;
        set_index_inputs(step, rows, &self.sequences, hyper, &mut self.input_bytes)?;
        for rule in hyper.runs().into_iter().flatten() {
            set_runs(step, rows, &self.sequences, (rule, path), &mut self.input_bytes)?;
        }
        for kind in 0..KINDS {
            let (window, source) = (window.filter(|_| kind == 1), hyper.source);
            let sight = Sight { kind, path, window, source, by_distance };
            set_mask(step, sight, rows, &self.sequences, &mut self.input_bytes)?;
        }
        set_sources(step, rows, &self.sequences, (hyper, path), &mut self.input_bytes)?;
        watch::run(&mut step.prepared, watch)?;
        let mut next = self.findings.len();
        for (part, row) in parts.iter().zip(rows) {
            let is_first =
                pieces[part.piece].wanted.range(pieces[part.piece].tokens.len()).start >= part.tokens.start;
            let known = &mut self.rows[part.piece];
            let start = if is_first { next } else { known.start };
            next += row.wanted.len();
            *known = start..next;
        }
        match by_row.is_empty() {
            true => Ok(()),
            false => self.findings.read(step, by_row.into_iter(), vocabulary),
        }
    }
}

pub(super) type Sequences = std::collections::BTreeMap<SequenceId, Sequence>;

/// Sets what all paths of attention need. What fills a step up belongs to no sequence and goes to page 0.
fn set_inputs(
    step: &mut Step,
    rows: &[Row<'_>],
    sequences: &Sequences,
    bytes: &mut InputBytes,
) -> Result<(), Error> {
    let Step { shape, inputs, prepared, .. } = step;
    let (shape, inputs) = (*shape, *inputs);
    let count: usize = rows.iter().map(|row| row.tokens.len()).sum();
    let spare = shape.tokens - count;
    let fill = |number: i32| std::iter::repeat_n(number, spare);
    let numbered = || rows.iter().flat_map(|row| row.first..row.first + row.tokens.len());
    let tokens = rows.iter().flat_map(|row| row.tokens).map(|&token| token as i32);
    bytes.set(prepared, inputs.tokens, tokens.chain(fill(0)).map(i32::to_le_bytes))?;
    let positions = numbered().map(|position| position as i32);
    bytes.set(prepared, inputs.positions, positions.chain(fill(0)).map(i32::to_le_bytes))?;
    let of_section = |section: usize| {
        let positions = numbered().map(move |position| if section < 3 { position as i32 } else { 0 });
        positions.chain(fill(0)).map(i32::to_le_bytes)
    };
    bytes.set(prepared, inputs.section_positions, (0..4).flat_map(of_section))?;
    let row_of = |id: &SequenceId| sequences.get(id).map_or(-1, |sequence| sequence.row as i32);
    let owners = rows.iter().flat_map(|row| {
        let owner = row_of(&row.id);
        (row.first..row.first + row.tokens.len()).flat_map(move |position| [owner, position as i32])
    });
    let unowned = std::iter::repeat_n([-1, 0], spare).flatten();
    bytes.set(prepared, inputs.owners, owners.chain(unowned).map(i32::to_le_bytes))?;
    for (kind, &input) in inputs.cells.iter().enumerate() {
        let cells = rows.iter().flat_map(|row| {
            let sequence = sequences.get(&row.id);
            let cell =
                move |position| sequence.and_then(|sequence| sequence.cell(kind, position)).unwrap_or(0);
            (row.first..row.first + row.tokens.len()).map(cell)
        });
        let cells = cells.map(|cell| cell as i64).chain(std::iter::repeat_n(0, spare));
        bytes.set(prepared, input, cells.map(i64::to_le_bytes))?;
    }
    let states = rows.iter().map(|row| row_of(&row.id)).chain(std::iter::repeat(0)).take(shape.sequences);
    bytes.set(prepared, inputs.rows, states.map(i32::to_le_bytes))?;
    let mut start = 0;
    let mut wanted: Vec<i32> = Vec::with_capacity(shape.outputs);
    for row in rows {
        wanted.extend(row.wanted.clone().map(|at| (start + at) as i32));
        start += row.tokens.len();
    }
    wanted.resize(shape.outputs, wanted.last().copied().unwrap_or(0));
    bytes.set(prepared, inputs.wanted, wanted.into_iter().map(i32::to_le_bytes))
}

/// Sets what queries are multiplied by, where that depends on their positions.
fn set_temperatures(
    step: &mut Step,
    rows: &[Row<'_>],
    temperature: Option<Temperature>,
    bytes: &mut InputBytes,
) -> Result<(), Error> {
    let Some(temperature) = temperature else { return Ok(()) };
    let positions = rows.iter().flat_map(|row| row.first..row.first + row.tokens.len());
    let all = positions.chain(std::iter::repeat(0)).take(step.shape.tokens);
    let factors = all.map(|position| temperature.at(position).to_le_bytes());
    bytes.set(&mut step.prepared, step.inputs.temperatures, factors)
}

/// What tokens see of cells of a kind.
#[derive(Clone, Copy)]
struct Sight {
    kind: usize,
    path: AttentionPath,
    window: Option<Window>,
    /// Of which nothing is seen through this mask.
    source: Option<Source>,
    /// Whether scores fall with the distance, which the mask then has.
    by_distance: bool,
}

/// Sets a mask: which cells each token sees. Rows beyond see the first cell, which no sequence has: a row that sees nothing is not a
/// number, and neither would be what is remembered of it.
fn set_mask(
    step: &mut Step,
    sight: Sight,
    rows: &[Row<'_>],
    sequences: &Sequences,
    bytes: &mut InputBytes,
) -> Result<(), Error> {
    let Sight { kind, path, window, source, by_distance } = sight;
    let (input, shape) = (step.inputs.masks[kind], step.shape);
    let element = path.mask_type().block_bytes();
    let width = shape.cells[kind] * element;
    bytes.fill(&mut step.prepared, input, width * path.mask_rows(shape.tokens), |mask| {
        hide_all(mask, path.mask_type());
        let mut lines = mask.chunks_exact_mut(width);
        for row in rows {
            let Some(sequence) = sequences.get(&row.id) else { continue };
            let begin = source.map_or(0, |source| written(source, sequence).start);
            for position in row.first..row.end() {
                let Some(line) = lines.next() else { return };
                let first = window.map_or(begin, |window| window.first_seen(position));
                for index in first / PAGE..=position / PAGE {
                    let (from, to) = (first.max(index * PAGE), position.min(index * PAGE + PAGE - 1));
                    let Some(cell) = sequence.cell(kind, from) else { continue };
                    let seen = &mut line[cell * element..(cell + to - from + 1) * element];
                    match by_distance {
                        true => fill_distances(seen, position - from, path.mask_type()),
                        false => seen.fill(0),
                    }
                }
            }
        }
        lines.for_each(|line| line[..element].fill(0));
    })
}

/// Makes a mask of which no token sees anything.
pub(super) fn hide_all(mask: &mut [u8], dtype: DType) {
    match dtype {
        DType::F16 => mask.as_chunks_mut().0.fill(to_f16(f32::NEG_INFINITY).to_le_bytes()),
        _ => mask.as_chunks_mut().0.fill(f32::NEG_INFINITY.to_le_bytes()),
    }
}

/// Fills part of a row of a mask with distances below zero; `first` is how far the first cell is away.
fn fill_distances(cells: &mut [u8], first: usize, dtype: DType) {
    let distances = (0..).map(|at: usize| -((first - at) as f32));
    match dtype {
        DType::F16 => {
            for (cell, distance) in cells.as_chunks_mut().0.iter_mut().zip(distances) {
                *cell = to_f16(distance).to_le_bytes();
            }
        }
        _ => {
            for (cell, distance) in cells.as_chunks_mut().0.iter_mut().zip(distances) {
                *cell = distance.to_le_bytes();
            }
        }
    }
}
