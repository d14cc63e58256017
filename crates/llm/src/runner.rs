//! Many sequences, one model, computed together.
//!
//! An [`Runner`] owns the streams of its devices, the state of all sequences and all graphs; sequences come and go by id. What
//! is computed together is a list of [`Piece`]s: any mix of prompts, or parts of them, and single tokens.
//!
//! Invariants: what a sequence holds is what was computed without an error, so a call that fails leaves every sequence as it
//! was, or, where blocks have already forgotten what going back would need, without tokens. A runner that was taken off its devices and
//! put on others ([`Lineup`]) has none of the sequences from before, and refuses their ids. The logits of a sequence do not
//! depend on how its tokens were cut into pieces or on the sequences beside it; where attention looks through a mask they do in
//! their last digits, because sums are in the order of cells. In the steady state a step builds no graph.

pub(crate) mod batch;
mod encoder;
mod findings;
mod forget;
pub(crate) mod graphs;
mod index_inputs;
mod lineup;
pub(crate) mod options;
pub(crate) mod pages;
mod run_inputs;
mod save;
pub(crate) mod sequence;
mod sources;
pub(crate) mod state;
mod step;
pub(crate) mod watch;

pub use batch::{Piece, Wanted};
pub use encoder::{Encoder, EncoderOptions};
pub use lineup::{Lineup, Loss, LostDevice};
pub use options::{AttentionChoice, RunnerOptions};
pub use save::MAX_EXTRA;
pub(crate) use save::{read_bytes, read_number, read_number_u64};
pub use sequence::SequenceId;

/// Tokens are forgotten, shared and held in units of this many.
pub const PAGE_TOKENS: usize = PAGE;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use oxcart_backend::Stream;
use oxcart_sched::Prepared;

use crate::logits::Known;
use crate::model::held::{Held, HeldBytes};
use crate::model::net::{AttentionPath, StepShape, Style};
use crate::model::{Error, Model};
use findings::Findings;
use graphs::{Graphs, InputBytes};
use pages::{PAGE, Pages};
use sequence::{KINDS, Sequence, known_pages};
use state::{Sizes, State, cell_counts};

/// Rows of logits.
#[derive(Clone, Copy, Debug)]
pub struct Logits<'a> {
    numbers: &'a [f32],
    width: usize,
}

impl<'a> Logits<'a> {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.numbers.len() / self.width
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// A row.
    ///
    /// # Panics
    ///
    /// If there is no such row.
    pub fn row(&self, index: usize) -> &'a [f32] {
        &self.numbers[index * self.width..][..self.width]
    }

    /// All rows.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &'a [f32]> + use<'a> {
        self.numbers.chunks_exact(self.width)
    }
}

/// The logits that were wanted, piece by piece.
#[derive(Clone, Copy, Debug)]
pub struct Outputs<'a> {
    logits: Logits<'a>,
    /// By piece, its rows.
    rows: &'a [Range<usize>],
}

impl<'a> Outputs<'a> {
    /// The rows of a piece.
    ///
    /// # Panics
    ///
    /// If there is no such piece.
    pub fn of(&self, piece: usize) -> Logits<'a> {
        let (rows, width) = (&self.rows[piece], self.logits.width);
        Logits { numbers: &self.logits.numbers[rows.start * width..rows.end * width], width }
    }
}

/// What was needed of the logits that were wanted, piece by piece.
#[derive(Clone, Copy, Debug)]
pub struct KnownOutputs<'a> {
    findings: &'a Findings,
    /// By piece, its rows.
    rows: &'a [Range<usize>],
    vocabulary: usize,
}

impl<'a> KnownOutputs<'a> {
    /// The rows of a piece.
    ///
    /// # Panics
    ///
    /// If there is no such piece.
    pub fn of(&self, piece: usize) -> impl ExactSizeIterator<Item = Known<'a>> + use<'a> {
        let (findings, vocabulary) = (self.findings, self.vocabulary);
        self.rows[piece].clone().map(move |row| findings.row(row, vocabulary))
    }
}

/// How much a runner holds, and what it has made ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Sequences that are open.
    pub sequences: usize,
    /// Tokens whose state could be held besides what sequences hold now.
    pub free_tokens: usize,
    /// Tokens that sequences took over from others instead of computing them.
    pub shared_tokens: u64,
    /// Tokens that were computed.
    pub computed_tokens: u64,
    /// Graphs that had to be made ready.
    pub graphs: usize,
}

/// A model on its devices, with the state of many sequences.
///
/// ```no_run
/// use oxcart_backend::{Device, StreamOptions};
/// use oxcart_llm::runner::{Runner, RunnerOptions, Piece, Wanted};
/// use oxcart_llm::model::{Model, ModelFile, Placement, PlacementOptions};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = oxcart_cpu::CpuDevice::new()?;
/// let file = ModelFile::open("model.gguf")?;
/// let placement = Placement::new(&file, vec![device.clone()], &PlacementOptions::default())?;
/// let model = Model::load(file, placement, &|_| {})?;
/// let options = RunnerOptions { sequences: 2, ..RunnerOptions::default() };
/// let mut runner = Runner::new(model, vec![device.open(&StreamOptions::default())?], options)?;
/// let (one, two) = (runner.open()?, runner.open()?);
/// let piece = |sequence, tokens| Piece { sequence, tokens, wanted: Wanted::Last };
/// let outputs = runner.compute(&[piece(one, &[1, 2, 3]), piece(two, &[4])])?;
/// println!("{:?} {:?}", outputs.of(0).row(0), outputs.of(1).row(0));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Runner {
    graphs: Graphs,
    options: RunnerOptions,
    /// By kind, its pages, where the model has blocks with such.
    pools: [Option<Pages>; KINDS],
    sequences: BTreeMap<SequenceId, Sequence>,
    /// Rows of tables and recurrent state that no sequence has.
    free_rows: Vec<usize>,
    /// By kind and row, what was last written to devices' tables.
    written: [Vec<Vec<Option<u32>>>; KINDS],
    next_id: u64,
    input_bytes: InputBytes,
    findings: Findings,
    rows: Vec<Range<usize>>,
    shared_tokens: u64,
    computed_tokens: u64,
    /// How often it was put on devices before.
    epoch: u64,
    /// How long that took.
    settling: Duration,
    /// What devices hold of its model while it is on none.
    held: Option<Held>,
}

impl Runner {
    /// A runner on streams of the devices that the model was loaded for, in the same order.
    pub fn new(
        model: Arc<Model>,
        streams: Vec<Box<dyn Stream>>,
        options: RunnerOptions,
    ) -> Result<Runner, Error> {
        let hyper = model.hyper();
        if hyper.sees_whole() {
            let architecture = hyper.architecture();
            return Err(Error::NotThatKind { architecture, what: "continue text; they see it whole" });
        }
        let options = options.checked(hyper)?;
        let RunnerOptions { context, sequences, tokens, batch, .. } = options;
        let cells = cell_counts(hyper, tokens, context, sequences, batch);
        let cache = options.cache_types();
        let sizes = Sizes { cells, rows: sequences + 1, pages: context.div_ceil(PAGE), cache };
        let long_context = context > hyper.rope.n_ctx_orig;
        let pools = cells.map(|cells| (cells > 0).then(|| Pages::new(cells / PAGE)));
        let written = cells.map(|_| vec![vec![None; sizes.pages]; sizes.rows]);
        let style = Style { path: AttentionPath::Paged, cache, long_context };
        let mut graphs = Graphs::new(Arc::clone(&model), streams, style)?;
        let mut built = None;
        for &path in options.paths(hyper) {
            let is_masked = path != AttentionPath::Paged;
            let largest = StepShape {
                cells: if is_masked { cells } else { [0; KINDS] },
                ..options.largest_step(hyper)
            };
            graphs.style.path = path;
            let survey = model.file().survey(largest, graphs.style)?;
            let fits = path == AttentionPath::Plain || graphs.attends(&survey)?;
            built = Some(survey.into_owned());
            if fits {
                break;
            }
        }
        let state = State::new(&model, &sizes)?;
        if let Some(mut built) = built {
            built.bind(model.weights(), &state)?;
            graphs.set_state(state);
            graphs.reserve(built)?;
        }
        Ok(Runner {
            graphs,
            options,
            pools,
            sequences: BTreeMap::new(),
            // Row 0 is for what fills up a batch.
            free_rows: (1..=sequences).rev().collect(),
            written,
            next_id: 1,
            input_bytes: InputBytes::default(),
            findings: Findings::default(),
            rows: Vec::new(),
            shared_tokens: 0,
            computed_tokens: 0,
            epoch: 0,
            settling: Duration::ZERO,
            held: None,
        })
    }

    /// Takes it off its devices: streams, state and all sequences are gone, and it computes nothing until it is [settled](Lineup::settle)
    /// again. Weights stay where they are until it is known which of them are of use.
    pub fn release(&mut self) {
        if self.graphs.is_released() {
            return;
        }
        self.sequences.clear();
        self.held = Some(Held::of(&self.graphs.release()));
    }

    /// Whether it was taken off its devices.
    pub fn is_released(&self) -> bool {
        self.graphs.is_released()
    }

    /// How often it was put on other devices.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// How long it took, all times together, to put it on other devices or to try to.
    pub fn settling(&self) -> Duration {
        self.settling
    }

    /// Goes on with another copy of its model, with the same options; ids of sequences are not used again, counters go on.
    fn settle(&mut self, model: Arc<Model>, streams: Vec<Box<dyn Stream>>) -> Result<(), Error> {
        let mut fresh = Runner::new(model, streams, self.options)?;
        fresh.graphs.made += self.graphs.made;
        fresh.graphs.making += self.graphs.making;
        *self = Runner {
            next_id: self.next_id,
            shared_tokens: self.shared_tokens,
            computed_tokens: self.computed_tokens,
            epoch: self.epoch + 1,
            settling: self.settling,
            ..fresh
        };
        Ok(())
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        self.graphs.model()
    }

    /// How it is set up, with everything filled in that was left open.
    pub fn options(&self) -> &RunnerOptions {
        &self.options
    }

    /// How much it holds.
    pub fn usage(&self) -> Usage {
        let pools = self.pools.iter().flatten();
        Usage {
            sequences: self.sequences.len(),
            free_tokens: pools.map(|pool| pool.available() * PAGE).min().unwrap_or(usize::MAX),
            shared_tokens: self.shared_tokens,
            computed_tokens: self.computed_tokens,
            graphs: self.graphs.made,
        }
    }

    /// Bytes of state on each device.
    pub fn state_bytes(&self) -> &[usize] {
        self.graphs.state().map_or(&[], State::bytes)
    }

    /// Bytes that devices hold for it and that become free, or are used again, when it moves.
    fn held_bytes(&self) -> Result<Vec<HeldBytes>, Error> {
        if let Some(held) = &self.held {
            return Ok(held.all_bytes());
        }
        let mut all = Held::of(self.model()).all_bytes();
        let own = self.model().devices().iter().zip(self.state_bytes()).zip(self.result_bytes()?);
        all.extend(own.map(|((device, state), results)| (Arc::clone(device), state + results)));
        Ok(all)
    }

    /// Bytes of memory for results on each device; an error while it is on none.
    pub fn result_bytes(&self) -> Result<Vec<usize>, Error> {
        self.graphs.result_bytes()
    }

    /// The graph that was run last, as it was scheduled.
    pub fn prepared(&self) -> Option<&Prepared> {
        self.graphs.latest()
    }

    /// Opens a sequence without tokens.
    pub fn open(&mut self) -> Result<SequenceId, Error> {
        self.open_in(0)
    }

    /// Opens a sequence without tokens that shares beginnings only with sequences of the same scope: neither how long it takes nor what
    /// [`reuse`](Runner::reuse) returns says anything about others. [`open`](Runner::open) opens one of scope 0.
    pub fn open_in(&mut self, scope: u64) -> Result<SequenceId, Error> {
        if self.is_released() {
            return Err(Error::Released);
        }
        let row = self.take_row()?;
        Ok(self.insert(Sequence::new(row).in_scope(scope)))
    }

    /// The scope that a sequence was opened in.
    pub(crate) fn scope(&self, id: SequenceId) -> Result<u64, Error> {
        Ok(self.sequence(id)?.scope())
    }

    /// Opens a sequence with the tokens of another. What both have in common is held once, until one of them changes it.
    pub fn fork(&mut self, id: SequenceId) -> Result<SequenceId, Error> {
        let from = self.sequence(id)?.row;
        let row = self.take_row()?;
        if let Some(state) = self.graphs.state()
            && let Err(error) = state.copy_row(from, row)
        {
            self.free_rows.push(row);
            return Err(error);
        }
        let Some(sequence) = self.sequences.get(&id) else {
            return Err(Error::NoSuchSequence { sequence: id });
        };
        let copy = sequence.fork(row, &mut self.pools);
        Ok(self.insert(copy))
    }

    fn insert(&mut self, sequence: Sequence) -> SequenceId {
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        self.sequences.insert(id, sequence);
        id
    }

    fn take_row(&mut self) -> Result<usize, Error> {
        self.free_rows.pop().ok_or(Error::TooManySequences { limit: self.options.sequences })
    }

    /// Closes a sequence. What it held stays to be found by what it is, until the room is needed.
    pub fn close(&mut self, id: SequenceId) -> Result<(), Error> {
        let missing = Error::NoSuchSequence { sequence: id };
        let mut sequence = self.sequences.remove(&id).ok_or(missing)?;
        sequence.truncate(0, &mut self.pools);
        self.free_rows.push(sequence.row);
        Ok(())
    }

    /// The sequences that are open.
    pub fn sequence_ids(&self) -> Vec<SequenceId> {
        self.sequences.keys().copied().collect()
    }

    /// The tokens of a sequence.
    pub fn tokens(&self, id: SequenceId) -> Result<&[u32], Error> {
        Ok(&self.sequence(id)?.tokens)
    }

    /// Goes back to a position: forgets the tokens from there on. A sequence that cannot says why, and is as it was.
    pub fn truncate(&mut self, id: SequenceId, position: usize) -> Result<(), Error> {
        self.check_truncation(id, position)?;
        self.go_back(id, position);
        Ok(())
    }

    /// Whether all that is held of a sequence is what computing its tokens gives: it is not where keys were moved, nor where they came from
    /// a file.
    pub fn is_exact(&self, id: SequenceId) -> bool {
        self.sequence(id).is_ok_and(Sequence::is_exact)
    }

    /// Whether a sequence can go back to a position.
    pub fn can_truncate(&self, id: SequenceId, position: usize) -> bool {
        self.check_truncation(id, position).is_ok()
    }

    fn check_truncation(&self, id: SequenceId, position: usize) -> Result<(), Error> {
        let sequence = self.sequence(id)?;
        let used = sequence.len();
        let refuse = |reason| Err(Error::CannotTruncate { position, used, reason });
        if position > used {
            return refuse("there are fewer tokens");
        }
        if position > 0 && position < used {
            if self.model().hyper().is_recurrent() {
                return refuse("recurrent blocks remember all tokens together; begin anew");
            }
            if self.model().hyper().source.is_some_and(|source| Some(position) <= source.of(&sequence.tokens))
            {
                return refuse("a source is read whole; begin anew");
            }
            if !sequence.can_go_back_to(position, self.model().hyper().kept_window(), self.pools[1].is_some())
            {
                return refuse("windowed blocks have forgotten what was before; begin anew");
            }
        }
        Ok(())
    }

    /// How many tokens could be computed after the next one and be taken back again, as far as what blocks remember and the
    /// context allow for it.
    pub fn room_to_go_back(&self, id: SequenceId) -> Result<usize, Error> {
        let (used, hyper) = (self.sequence(id)?.len(), self.model().hyper());
        if hyper.is_recurrent() {
            return Ok(0);
        }
        let room = self.options.context.saturating_sub(used + 1);
        let window = hyper.kept_window().filter(|_| self.pools[1].is_some());
        Ok(window.map_or(room, |window| room.min(sequence::tokens_until_forgotten(used + 1, window))))
    }

    /// Forgets tokens of a sequence, all of them if it cannot go back there.
    fn go_back(&mut self, id: SequenceId, position: usize) {
        let possible = self.can_truncate(id, position);
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.truncate(if possible { position } else { 0 }, &mut self.pools);
        }
    }

    /// Lets an empty sequence begin with as many of these tokens as were computed before, by any sequence of its scope; all but
    /// the last at most. Returns how many that are; the others are to be computed.
    pub fn reuse(&mut self, id: SequenceId, tokens: &[u32]) -> Result<usize, Error> {
        let hyper = self.graphs.model().hyper();
        let (window, shares) = (hyper.kept_window(), hyper.shares_beginnings());
        let sequence = self.sequences.get_mut(&id).ok_or(Error::NoSuchSequence { sequence: id })?;
        if sequence.len() > 0 || !shares {
            return Ok(0);
        }
        let tokens = &tokens[..tokens.len().min(self.options.context)];
        let count = sequence.adopt(tokens, &mut self.pools, window);
        self.shared_tokens += count as u64;
        Ok(count)
    }

    /// With how many of these tokens an empty sequence of a scope could begin: what [`reuse`](Runner::reuse) would return.
    pub fn reusable(&self, scope: u64, tokens: &[u32]) -> usize {
        let hyper = self.graphs.model().hyper();
        if !hyper.shares_beginnings() {
            return 0;
        }
        let tokens = &tokens[..tokens.len().min(self.options.context)];
        known_pages(scope, tokens, &self.pools, hyper.kept_window()).len() * PAGE
    }

    fn sequence(&self, id: SequenceId) -> Result<&Sequence, Error> {
        self.sequences.get(&id).ok_or(Error::NoSuchSequence { sequence: id })
    }
}
