//! One sequence of tokens and what the model makes of it.
//!
//! Invariant: caches hold exactly the tokens before [`Context::position`]; a call that fails leaves the position where it
//! was, or at the start where windowed blocks have forgotten too much to go on from there. In the steady state of decoding, a step builds no graph and allocates nothing here.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oxcart_backend::Stream;
use oxcart_sched::Prepared;
use oxcart_tensor::DType;

use super::cache::Caches;
use super::cells::{Cells, cell_counts};
use super::error::Error;
use super::hyper::{HyperParameters, Pooling};
use super::limits::{MAX_BATCH, MAX_CONTEXT};
use super::net::{AttentionPath, StepShape, Style};
use super::step::{Stage, Step, TensorIo};
use super::weights::Model;

/// Of which tokens logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Of none.
    None,
    /// Of the last one.
    Last,
    /// Of all.
    All,
}

/// What to do when the context is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AtLimit {
    /// Refuse.
    #[default]
    Refuse,
    /// Forget the older half of the tokens after the first `keep`, and move the others down.
    Shift {
        /// Tokens that are never forgotten.
        keep: usize,
    },
}

/// How attention is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttentionChoice {
    /// In one op, where all devices can; as products with an f32 cache, which is there to be exact.
    #[default]
    Auto,
    /// In one op.
    Flash,
    /// As products around a softmax.
    Plain,
}

impl AttentionChoice {
    /// Each of them.
    pub const ALL: [AttentionChoice; 3] =
        [AttentionChoice::Auto, AttentionChoice::Flash, AttentionChoice::Plain];

    /// What people call it.
    pub const fn name(self) -> &'static str {
        match self {
            AttentionChoice::Auto => "auto",
            AttentionChoice::Flash => "flash",
            AttentionChoice::Plain => "plain",
        }
    }
}

/// How a context is set up.
#[derive(Clone, Copy, Debug)]
pub struct ContextOptions {
    /// Tokens it holds; those of the training if 0.
    pub context: usize,
    /// Tokens computed at a time.
    pub batch: usize,
    /// Type of cached keys and values: f32, f16, q8_0 or q4_0.
    pub cache_type: DType,
    /// How attention is computed.
    pub attention: AttentionChoice,
    /// Whether windowed blocks cache everything, so that one can go back to any position.
    pub full_windows: bool,
    /// What to do when the context is full.
    pub at_limit: AtLimit,
}

impl Default for ContextOptions {
    fn default() -> ContextOptions {
        ContextOptions {
            context: 4096,
            batch: 512,
            cache_type: DType::F16,
            attention: AttentionChoice::Auto,
            full_windows: false,
            at_limit: AtLimit::Refuse,
        }
    }
}

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

/// What was computed, and how long it took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// Tokens that came with others.
    pub prompt_tokens: usize,
    /// Time spent on them.
    pub prompt: Duration,
    /// Tokens that came alone.
    pub decoded_tokens: usize,
    /// Time spent on them.
    pub decode: Duration,
    /// Graphs that had to be made ready.
    pub graphs: usize,
    /// Time spent on making graphs ready; part of the above.
    pub preparing: Duration,
}

/// One sequence of tokens.
#[derive(Debug)]
pub struct Context {
    // Before the stage, whose buffers they use.
    single: Option<Step>,
    several: Option<Step>,
    stage: Stage,
    options: ContextOptions,
    /// Of dense and windowed blocks.
    cells: [Cells; 2],
    position: usize,
    assigned: [Vec<u32>; 2],
    moved: Vec<i32>,
    io: TensorIo,
    logits: Vec<f32>,
    timings: Timings,
}

impl Context {
    /// A context on streams of the devices that the model was loaded for, in the same order.
    pub fn new(
        model: Arc<Model>,
        streams: Vec<Box<dyn Stream>>,
        mut options: ContextOptions,
    ) -> Result<Context, Error> {
        let hyper = model.hyper();
        if hyper.is_encoder() {
            let architecture = hyper.architecture();
            return Err(Error::NotThatKind { architecture, what: "continue text; use an encoder" });
        }
        check(&mut options, hyper)?;
        let window = hyper.window.filter(|_| !options.full_windows);
        let sizes = cell_counts(options.context, window, options.batch);
        let cells = [Cells::new(sizes[0], None), Cells::new(sizes[1], hyper.window)];
        let path = match options.attention {
            AttentionChoice::Plain => AttentionPath::Plain,
            AttentionChoice::Auto | AttentionChoice::Flash => AttentionPath::Flash { mask_rows: 1 },
        };
        let long_context = options.context > hyper.rope.n_ctx_orig;
        let style = Style { path, cache_type: options.cache_type, long_context };
        let stage = Stage::new(model, streams, style)?;
        let mut context = Context {
            single: None,
            several: None,
            stage,
            options,
            cells,
            position: 0,
            assigned: Default::default(),
            moved: Vec::new(),
            io: TensorIo::default(),
            logits: Vec::new(),
            timings: Timings::default(),
        };
        context.choose_path(sizes)?;
        let (tokens, pooling) = (options.batch.min(options.context), Pooling::None);
        context.stage.reserve(StepShape { tokens, outputs: 1, cells: sizes, pooling })?;
        Ok(context)
    }

    /// Allocates caches, in the layout that the way of attention wants; tries ways until devices can do it.
    fn choose_path(&mut self, sizes: [usize; 2]) -> Result<(), Error> {
        let flash = |mask_rows| AttentionPath::Flash { mask_rows };
        let is_float = matches!(self.options.cache_type, DType::F32 | DType::F16);
        let candidates: &[AttentionPath] = match self.options.attention {
            AttentionChoice::Plain => &[AttentionPath::Plain],
            AttentionChoice::Auto if self.options.cache_type == DType::F32 => &[AttentionPath::Plain],
            AttentionChoice::Auto if is_float => &[flash(1), flash(64), AttentionPath::Plain],
            AttentionChoice::Auto | AttentionChoice::Flash => &[flash(1), flash(64)],
        };
        let mut last = candidates[0];
        for &path in candidates {
            self.stage.style.path = path;
            // Both layouts of a path that differ in masks only have the same caches.
            let same = matches!((last, path), (AttentionPath::Flash { .. }, AttentionPath::Flash { .. }));
            if self.stage.caches.is_none() || !same {
                self.stage.buffers = self.stage.model.weights().buffers().clone();
                let Stage { model, buffers, .. } = &mut self.stage;
                let caches = Caches::new(model, self.options.cache_type, path, sizes, buffers)?;
                self.stage.caches = Some(caches);
            }
            last = path;
            let shape = StepShape { tokens: 1, outputs: 1, cells: sizes, pooling: Pooling::None };
            if path == AttentionPath::Plain || self.stage.attends_in_one_op(shape)? {
                break;
            }
        }
        Ok(())
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.stage.model
    }

    /// Number of tokens so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Number of tokens that fit.
    pub fn limit(&self) -> usize {
        self.options.context
    }

    /// What was computed so far.
    pub fn timings(&self) -> Timings {
        self.timings
    }

    /// Starts counting anew.
    pub fn reset_timings(&mut self) {
        self.timings = Timings::default();
    }

    /// Bytes of cached keys and values on each device.
    pub fn cache_bytes(&self) -> &[usize] {
        self.stage.caches.as_ref().map_or(&[], |caches| caches.bytes())
    }

    /// Bytes of memory for results on each device.
    pub fn result_bytes(&self) -> Result<Vec<usize>, Error> {
        self.stage.result_bytes()
    }

    /// The graph of single tokens as it was scheduled, once there was one.
    pub fn prepared(&self) -> Option<&Prepared> {
        self.single.as_ref().or(self.several.as_ref()).map(|step| &step.prepared)
    }

    /// Forgets all tokens.
    pub fn reset(&mut self) {
        self.roll_back(0);
    }

    /// Goes back to a position: forgets the tokens from there on.
    pub fn truncate(&mut self, position: usize) -> Result<(), Error> {
        let used = self.position;
        let refuse = |reason| Err(Error::CannotTruncate { position, used, reason });
        if position > used {
            return refuse("there are fewer tokens");
        }
        if position > 0 && position < used && !self.cells[1].can_go_back_to(position) && self.has_windows() {
            return refuse("windowed blocks have forgotten what was before; begin anew");
        }
        self.roll_back(position);
        Ok(())
    }

    fn has_windows(&self) -> bool {
        self.stage.model.hyper().blocks.iter().any(|block| block.windowed)
    }

    fn roll_back(&mut self, position: usize) {
        self.cells.iter_mut().for_each(|cells| cells.truncate(position));
        self.position = position;
    }

    /// Computes tokens that follow those before, and returns the logits that are wanted. Long inputs are cut into
    /// batches.
    pub fn evaluate(&mut self, tokens: &[u32], wanted: Wanted) -> Result<Logits<'_>, Error> {
        let started = Instant::now();
        let hyper = self.stage.model.hyper();
        let vocabulary = hyper.vocabulary;
        if let Some(&token) = tokens.iter().find(|&&token| token as usize >= vocabulary) {
            return Err(Error::NoSuchToken { token, vocabulary });
        }
        self.make_room(tokens.len())?;
        self.logits.clear();
        let first = self.position;
        let batches = tokens.chunks(self.options.batch.max(1));
        let last = batches.len();
        for (index, batch) in batches.enumerate() {
            let wanted = match wanted {
                Wanted::Last if index + 1 < last => Wanted::None,
                wanted => wanted,
            };
            if let Err(error) = self.compute(batch, wanted) {
                let is_whole = !self.has_windows() || self.cells[1].can_go_back_to(first);
                self.roll_back(if is_whole { first } else { 0 });
                return Err(error);
            }
        }
        self.stage.model.check_files()?;
        match tokens.len() {
            1 => {
                self.timings.decoded_tokens += 1;
                self.timings.decode += started.elapsed();
            }
            count => {
                self.timings.prompt_tokens += count;
                self.timings.prompt += started.elapsed();
            }
        }
        Ok(Logits { numbers: &self.logits, width: vocabulary })
    }

    /// Computes one batch.
    fn compute(&mut self, tokens: &[u32], wanted: Wanted) -> Result<(), Error> {
        let first = self.position;
        let kinds = if self.has_windows() { 2 } else { 1 };
        for (cells, assigned) in self.cells.iter_mut().zip(&mut self.assigned).take(kinds) {
            assigned.clear();
            if !cells.assign(first, tokens.len(), assigned) {
                let (asked, limit) = (tokens.len(), self.options.context);
                return Err(Error::ContextFull { used: first, asked, limit });
            }
        }
        self.position += tokens.len();
        let shape = StepShape {
            tokens: tokens.len(),
            outputs: if wanted == Wanted::All { tokens.len() } else { 1 },
            cells: [self.cells[0].visible(), self.cells[1].visible()],
            pooling: Pooling::None,
        };
        self.make_ready(shape)?;
        let slot = if shape.tokens == 1 { &mut self.single } else { &mut self.several };
        let Some(step) = slot else { return Ok(()) };
        let (inputs, io) = (step.inputs, &mut self.io);
        io.set(&mut step.prepared, inputs.tokens, tokens.iter().map(|token| token.to_le_bytes()))?;
        let positions = (first..first + tokens.len()).map(|position| (position as i32).to_le_bytes());
        io.set(&mut step.prepared, inputs.positions, positions)?;
        io.set(&mut step.prepared, inputs.wanted, [(tokens.len() as i32 - 1).to_le_bytes()].into_iter())?;
        let path = self.stage.style.path;
        for (kind, (cells, assigned)) in self.cells.iter().zip(&self.assigned).enumerate() {
            let rows = assigned.iter().map(|&cell| i64::from(cell).to_le_bytes());
            io.set(&mut step.prepared, inputs.caches[kind].key_cells, rows)?;
            if let Some(id) = inputs.caches[kind].value_cells {
                // Element by element: channels of a token are a whole row of cells apart.
                let count = step.prepared.graph().tensor(id)?.layout().elements();
                let (width, all) = (count / tokens.len(), cells.len() as i64);
                let flat = assigned
                    .iter()
                    .flat_map(|&cell| (0..width as i64).map(move |j| j * all + i64::from(cell)));
                io.set(&mut step.prepared, Some(id), flat.map(i64::to_le_bytes))?;
            }
            io.set_mask(step, (kind, path), cells, first)?;
        }
        step.prepared.compute()?;
        if wanted == Wanted::None {
            return Ok(());
        }
        let output = step.output;
        self.io.read(&step.prepared, output, &mut self.logits)
    }

    /// Makes sure that the graph for steps of this shape is there.
    fn make_ready(&mut self, shape: StepShape) -> Result<(), Error> {
        let slot = if shape.tokens == 1 { &mut self.single } else { &mut self.several };
        if slot.as_ref().is_some_and(|step| step.shape == shape) {
            return Ok(());
        }
        let started = Instant::now();
        *slot = None;
        let before = self.stage.result_bytes()?;
        let step = self.stage.prepare(shape)?;
        if self.stage.result_bytes()? != before {
            // The other graph would keep the smaller buffers alive.
            (self.single, self.several) = (None, None);
        }
        let slot = if shape.tokens == 1 { &mut self.single } else { &mut self.several };
        *slot = Some(step);
        self.timings.graphs += 1;
        self.timings.preparing += started.elapsed();
        Ok(())
    }

    /// Refuses tokens that do not fit, or forgets older ones for them.
    fn make_room(&mut self, count: usize) -> Result<(), Error> {
        let limit = self.options.context;
        if self.position + count <= limit {
            return Ok(());
        }
        let full = Error::ContextFull { used: self.position, asked: count, limit };
        let AtLimit::Shift { keep } = self.options.at_limit else { return Err(full) };
        let keep = keep.min(self.position);
        if keep + count > limit {
            return Err(full);
        }
        while self.position + count > limit {
            let forget = (self.position - keep).div_ceil(2);
            if forget == 0 {
                return Err(full);
            }
            self.shift(keep, keep + forget)?;
        }
        Ok(())
    }

    /// Forgets the tokens `from..to` and moves later ones down, rotating their keys to where they are now. Should that
    /// fail on the way, some keys are rotated and others are not, so everything is forgotten.
    pub fn shift(&mut self, from: usize, to: usize) -> Result<(), Error> {
        if from > to || to > self.position {
            let rule = format!("there are {} tokens", self.position);
            return Err(Error::setting("the range of tokens to forget", format!("{from}..{to}"), rule));
        }
        if from == to {
            return Ok(());
        }
        let cells = [self.cells[0].visible(), self.cells[1].visible()];
        let shape = StepShape { tokens: 1, outputs: 1, cells, pooling: Pooling::None };
        let (mut prepared, inputs) = self.stage.prepare_shift(shape)?;
        let mut shifted = self.cells.clone();
        for (cells, input) in shifted.iter_mut().zip(inputs) {
            cells.shift(from, to, &mut self.moved);
            self.io.set(&mut prepared, input, self.moved.iter().map(|moved| moved.to_le_bytes()))?;
        }
        if let Err(error) = prepared.compute_and_wait() {
            self.roll_back(0);
            return Err(error.into());
        }
        self.cells = shifted;
        self.position -= to - from;
        Ok(())
    }
}

/// Checks settings and fills in what was left open.
fn check(options: &mut ContextOptions, hyper: &HyperParameters) -> Result<(), Error> {
    if options.context == 0 {
        options.context = hyper.context;
    }
    if options.context > MAX_CONTEXT {
        return Err(Error::setting("the context", options.context, format!("must be at most {MAX_CONTEXT}")));
    }
    if !(1..=MAX_BATCH).contains(&options.batch) {
        return Err(Error::setting("the batch", options.batch, format!("must be from 1 to {MAX_BATCH}")));
    }
    let dtype = options.cache_type;
    if !matches!(dtype, DType::F32 | DType::F16 | DType::Q8_0 | DType::Q4_0) {
        return Err(Error::setting("the type of the cache", dtype, "must be f32, f16, q8_0 or q4_0"));
    }
    if !hyper.head_size.is_multiple_of(dtype.block_len()) {
        let rule = format!("heads of {} channels are not whole blocks", hyper.head_size);
        return Err(Error::setting("the type of the cache", dtype, rule));
    }
    if dtype.is_quantized() && options.attention == AttentionChoice::Plain {
        return Err(Error::setting("the type of the cache", dtype, "needs attention in one op"));
    }
    Ok(())
}
