//! A model ready to be used: fetched, placed, loaded, with its vocabulary; and the arguments that say which and where.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use oxcart::backend::{ByteSize, Device, DeviceKind};
use oxcart::digests::Digests;
use oxcart::gguf::Metadata;
use oxcart::llm::engine::{Engine, EngineOptions};
use oxcart::llm::model::limits::{MAX_BATCH, MAX_CONTEXT};
use oxcart::llm::model::{Model, ModelFile, Override, Placement, PlacementOptions, Proportions, Share};
use oxcart::llm::runner::{
    AttentionChoice, Encoder, EncoderOptions, Lineup, Logits, Piece, Runner, RunnerOptions, SequenceId,
    Wanted,
};
use oxcart::llm::text::{Encode, TokenizerKind, Vocab};
use oxcart::pull::Name;
use oxcart::tensor::DType;

use crate::failure::Failure;
use crate::listed::listed;
use crate::local::{DeviceArgs, WithCpu};
use crate::log;
use crate::models::{self, MirrorArgs};
use crate::plan::{check_overrides, plan_report, show_placement, too_small};
use crate::printable;
use crate::progress::Progress;
use crate::recovery::{Departure, Moved, Putting, Recovery, departures};
use crate::terminal::Terminal;
use crate::units;
use crate::workers::{Heartbeat, RemotePlace, WorkerAt, Workers};

/// Tokens of a context, unless --ctx says otherwise.
const CONTEXT: usize = 4096;

/// Which model
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ModelArgs {
    /// Model: a .gguf file, a known name (smollm2; `oxcart pull` lists them), owner/name or owner/name:FILE on the Hugging Face hub, or a URL
    #[arg(short, long, value_name = "MODEL", default_value = models::DEFAULT)]
    pub(crate) model: String,

    #[command(flatten)]
    pub(crate) mirror: MirrorArgs,
}

/// Where and how it runs
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct EngineArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    #[command(flatten)]
    pub(crate) local: DeviceArgs,

    /// Workers to use besides this machine, for example 192.168.1.5,192.168.1.6:50052
    ///
    /// They may be Oxcart's or llama.cpp's; the default port is 50052. Machines that are paired with this one (oxcart join) have names:
    /// den,attic; all means all of these that can be reached. local:3 starts three workers on this machine for as long as the command runs.
    #[arg(long, visible_alias = "rpc", value_name = "HOST[:PORT],…", value_delimiter = ',')]
    pub(crate) workers: Vec<WorkerAt>,

    /// How long a worker may leave a heartbeat unanswered before it counts as lost, for example 5s; off sends none
    ///
    /// Oxcart's workers answer at once, however busy they are. Others count as lost after times that depend on what they are asked for.
    #[arg(long, value_name = "TIME", default_value = "2s")]
    pub(crate) heartbeat: Heartbeat,

    /// How to divide the model: one number per device, in the order of --plan, workers first; this machine gets nothing if left out
    ///
    /// By default, by free memory; where this machine has a card, its CPU gets only what the others have no room for.
    #[arg(long, value_name = "A,B,…", value_delimiter = ',', value_parser = units::number(0.0_f64..))]
    pub(crate) split: Vec<f64>,

    /// Put tensors with matching names on a device, by its number in --plan, for example blk.*.ffn_*=0; may be repeated
    #[arg(long = "place", value_name = "PATTERN=DEVICE", value_parser = parse_override)]
    pub(crate) overrides: Vec<Override>,

    /// Size of the context in tokens; 0 for the model's full length. By default, 4096 or what the prompt and its answer need, up to the
    /// model's full length
    #[arg(short, long, visible_alias = "ctx-size", value_name = "N", value_parser = units::whole(0..=MAX_CONTEXT))]
    pub(crate) ctx: Option<usize>,

    /// Type of cached keys and values
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = listed(CACHE_TYPES, parse_cache_type))]
    pub(crate) kv: DType,

    /// Type of cached keys alone; also -ctk. By default, that of --kv
    #[arg(long, value_name = "TYPE", value_parser = listed(CACHE_TYPES, parse_cache_type))]
    pub(crate) cache_type_k: Option<DType>,

    /// Type of cached values alone; also -ctv. By default, that of --kv
    #[arg(long, value_name = "TYPE", value_parser = listed(CACHE_TYPES, parse_cache_type))]
    pub(crate) cache_type_v: Option<DType>,

    /// How to compute attention: flash (one fused operation), plain (separate products and softmax), or auto
    ///
    /// auto uses paged attention if all devices support it (llama.cpp's workers do not); otherwise flash, or plain with --kv f32. plain does not work with a quantized cache.
    #[arg(long, value_name = "WAY", default_value = "auto", value_parser = listed(AttentionChoice::ALL.map(AttentionChoice::name), parse_attention))]
    pub(crate) attention: AttentionChoice,

    /// Prompt tokens to compute at a time. By default 512, or 2048 where graphics cards hold the whole model
    #[arg(short, long, visible_alias = "batch-size", value_name = "N", value_parser = units::whole(1..=MAX_BATCH))]
    pub(crate) batch: Option<usize>,

    /// Show which device would get what, and stop; exit code 1 means that it does not fit
    #[arg(long)]
    pub(crate) plan: bool,

    /// Sequences at the same time, where a command has more than one.
    #[arg(skip = 1_usize)]
    pub(crate) sequences: usize,

    /// Tokens of all sequences together, where they have less than a context each.
    #[arg(skip = 0_usize)]
    pub(crate) tokens: usize,

    /// Whether a plan without each of the workers is made, too.
    #[arg(skip)]
    pub(crate) with_departures: bool,

    /// The workers, if they are connected already: where a command has several models.
    #[arg(skip)]
    pub(crate) connected: Option<Arc<Workers>>,
}

impl EngineArgs {
    /// Type of cached keys.
    pub(crate) fn key_type(&self) -> DType {
        self.cache_type_k.unwrap_or(self.kv)
    }

    /// Type of cached values.
    pub(crate) fn value_type(&self) -> DType {
        self.cache_type_v.unwrap_or(self.kv)
    }

    /// Starts and connects the workers.
    pub(crate) fn connect(&self) -> Result<Arc<Workers>, Failure> {
        let threads = self.local.threads.map(usize::from);
        let are_numbered = !self.split.is_empty() || !self.overrides.is_empty();
        Ok(Arc::new(Workers::connect(&self.workers, threads, self.heartbeat, are_numbered)?))
    }

    /// Tokens of a context.
    pub(crate) fn context_size(&self) -> usize {
        self.ctx.unwrap_or(CONTEXT)
    }

    /// Tokens of a context for a model that was trained on so many, and what is to go into it.
    pub(crate) fn context_for(&self, trained: usize, needed: usize) -> usize {
        match self.ctx {
            None => needed.max(CONTEXT).min(trained),
            Some(0) => trained,
            Some(given) => given,
        }
    }

    /// Fills in the context for a model and what is to go into it; says so where it is beyond what the model knows.
    fn choose_context(&mut self, trained: usize, needed: usize, quiet: bool) {
        let context = self.context_for(trained, needed);
        if context > trained && !quiet {
            tracing::warn!(
                "a context of {context} tokens is longer than the {trained} tokens it was trained for; beyond that, answers may make no sense"
            );
        }
        self.ctx = Some(context);
    }

    fn runner_options(&self) -> RunnerOptions {
        RunnerOptions {
            context: self.context_size(),
            cache_type: self.key_type(),
            value_type: Some(self.value_type()),
            attention: self.attention,
            sequences: self.sequences,
            tokens: self.tokens,
            batch: self.batch.unwrap_or(RunnerOptions::default().batch),
        }
    }

    /// Fills in how many tokens are computed at a time by devices of this machine, and says whether it did: cards are at their best
    /// with many. Not for workers, because ggml's protocol does not say what computes there.
    fn choose_batch(&mut self, computing: &[Arc<dyn Device>]) -> bool {
        /// Tokens at a time on cards.
        const CARDS: usize = 2048;
        let is_card = |device: &Arc<dyn Device>| device.kind() == DeviceKind::Gpu;
        let chosen = self.batch.is_none() && !computing.is_empty() && computing.iter().all(is_card);
        if chosen {
            self.batch = Some(CARDS);
        }
        chosen
    }
}

/// Types of cached keys and values.
const CACHE_TYPES: [&str; 4] = ["f32", "f16", "q8_0", "q4_0"];

fn parse_cache_type(text: &str) -> Result<DType, String> {
    match text.parse() {
        Ok(kind @ (DType::F32 | DType::F16 | DType::Q8_0 | DType::Q4_0)) => Ok(kind),
        _ => Err("must be f32, f16, q8_0 or q4_0".into()),
    }
}

fn parse_attention(text: &str) -> Result<AttentionChoice, String> {
    // As llama.cpp has it.
    let text = match text {
        "on" | "1" => "flash",
        "off" | "0" => "plain",
        text => text,
    };
    let choice = AttentionChoice::ALL.into_iter().find(|choice| choice.name() == text);
    choice.ok_or_else(|| "must be auto, flash or plain".into())
}

fn parse_override(text: &str) -> Result<Override, String> {
    let (pattern, device) =
        text.rsplit_once('=').ok_or("must be PATTERN=DEVICE, for example blk.*.ffn_*=0")?;
    let device =
        device.parse().map_err(|_| format!("'{device}' is not a device number; --plan shows the numbers"))?;
    Ok(Override { pattern: pattern.to_owned(), device })
}

impl ModelArgs {
    /// Its file, fetched first if it is not here.
    pub(crate) fn path(&self) -> Result<PathBuf, Failure> {
        let name: Name = self.model.parse()?;
        Ok(models::fetch(&name, &self.mirror)?.0)
    }
}

/// A model file that is here.
fn open_file(args: &ModelArgs) -> Result<(PathBuf, ModelFile), Failure> {
    let path = args.path()?;
    let file = ModelFile::open(&path).map_err(|error| Failure::run(&path, error))?;
    Ok((path, file))
}

/// The tokens of a text, which a model without a tokenizer does not have.
pub(crate) fn encode(
    vocab: &Vocab,
    path: &Path,
    text: impl AsRef<[u8]>,
    options: Encode,
) -> Result<Vec<u32>, Failure> {
    if vocab.kind() == TokenizerKind::None {
        let shown = oxcart::gguf::Text::new(path.as_os_str().as_encoded_bytes());
        return Err(Failure::Usage(format!(
            "{shown}: the model has no tokenizer and cannot take text; oxcart score --tokens takes token numbers"
        )));
    }
    Ok(vocab.encode(text, options))
}

/// A model with its place.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) vocab: Arc<Vocab>,
    pub(crate) model: Arc<Model>,
    pub(crate) path: PathBuf,
    pub(crate) load: Duration,
    /// For each worker, the placement that there would be without it; only if it was asked for.
    pub(crate) departures: Vec<Departure>,
    /// The devices it may be on.
    lineup: Lineup,
    /// Where the first of these come from.
    places: Vec<RemotePlace>,
    quiet: bool,
    /// Dropped last: devices must be gone before the processes behind them.
    pub(crate) workers: Arc<Workers>,
}

/// A model file before anything is done with it.
#[derive(Debug)]
pub(crate) struct Unloaded<'f> {
    pub(crate) metadata: Metadata<'f>,
    pub(crate) vocab: &'f Vocab,
    pub(crate) path: &'f Path,
    /// Whether it turns texts into vectors instead of generating.
    pub(crate) is_encoder: bool,
}

impl Unloaded<'_> {
    /// The tokens of a text.
    pub(crate) fn encode(&self, text: impl AsRef<[u8]>, options: Encode) -> Result<Vec<u32>, Failure> {
        encode(self.vocab, self.path, text, options)
    }
}

/// A model that is here and can be read.
#[derive(Debug)]
pub(crate) struct Found {
    path: PathBuf,
    file: ModelFile,
    vocab: Arc<Vocab>,
}

impl Found {
    /// Finds a model, fetched first if it is not here.
    pub(crate) fn open(args: &ModelArgs) -> Result<Found, Failure> {
        let (path, file) = open_file(args)?;
        let vocab = Vocab::from_gguf(&file.metadata()).map_err(|error| Failure::vocabulary(&path, &error))?;
        oxcart::warn_of_ignored_keys(&path, &file);
        Ok(Found { path, file, vocab: Arc::new(vocab) })
    }

    /// What can be told of it.
    pub(crate) fn unloaded(&self) -> Unloaded<'_> {
        let is_encoder = self.file.hyper().is_encoder();
        Unloaded { metadata: self.file.metadata(), vocab: &self.vocab, path: &self.path, is_encoder }
    }

    /// Shares it out over the devices of workers and of this machine, for something that needs a context of so many tokens; if it is to
    /// take the place of another model, as if that was not there.
    pub(crate) fn place(
        self,
        args: &EngineArgs,
        needed: usize,
        quiet: bool,
        instead_of: Option<&Runner>,
    ) -> Result<Placed, Failure> {
        let (Found { path, file, vocab }, since) = (self, Instant::now());
        let mut settings = args.clone();
        settings.choose_context(file.hyper().context, needed, quiet);
        let workers = match &args.connected {
            Some(connected) => Arc::clone(connected),
            None => args.connect()?,
        };
        let WithCpu { devices: local, usual } = args.local.chosen_and_cpu()?;
        if workers.is_empty() && !quiet && args.local.misses_cards(&local) {
            tracing::info!(
                "no graphics card was found, so the CPU computes everything and -ngl changes nothing"
            );
        }
        let is_cpu_spared = !matches!(usual, Some(Proportions::ByFreeMemory));
        let for_cards =
            workers.is_empty() && settings.choose_batch(&local[..local.len() - usize::from(is_cpu_spared)]);
        let members = workers.members();
        let mut devices: Vec<_> = members.iter().map(|member| Arc::clone(&member.device)).collect();
        let remote = devices.len();
        devices.extend(local);
        let line_up = |settings: &EngineArgs| {
            let options = placement_options(settings, devices.len(), remote, usual.as_ref())?;
            let lineup = Lineup::new(devices.clone(), options, settings.local.stream_options());
            // Where a command has several models, a worker may have been lost before this one is loaded.
            Ok::<_, Failure>(lineup.without(|at| members.get(at).is_some_and(|member| member.is_lost)))
        };
        let place = |lineup: &Lineup| {
            let placement = match instead_of {
                Some(runner) => lineup.place_instead_of(runner, &file),
                None if lineup.devices().len() == devices.len() => lineup.place(&file),
                None => lineup.place_what_is_left(&file),
            };
            placement.map_err(|error| Failure::run(&path, error))
        };
        let mut lineup = line_up(&settings)?;
        let mut placement = place(&lineup)?;
        let is_idle = |share: &Share| share.blocks.is_empty();
        if for_cards && !placement.shares().last().is_none_or(is_idle) {
            // The CPU has to help out, so it is not only cards.
            settings.batch = args.batch;
            lineup = line_up(&settings)?;
            placement = place(&lineup)?;
        }
        let departures = match settings.with_departures {
            // Before weights are loaded, while the memory that they need counts as free.
            true => departures(&workers, &lineup, &path, |lineup| lineup.place_what_is_left(&file)),
            false => Vec::new(),
        };
        check_overrides(&placement, &settings.overrides)?;
        let places = members.into_iter().map(|member| member.place).collect();
        Ok(Placed {
            path,
            file,
            vocab,
            settings,
            placement,
            departures,
            lineup,
            places,
            quiet,
            since,
            workers,
        })
    }
}

/// A model that could be loaded as it is placed.
#[derive(Debug)]
pub(crate) struct Placed {
    path: PathBuf,
    file: ModelFile,
    vocab: Arc<Vocab>,
    settings: EngineArgs,
    placement: Placement,
    departures: Vec<Departure>,
    lineup: Lineup,
    places: Vec<RemotePlace>,
    quiet: bool,
    since: Instant,
    /// Dropped last: devices must be gone before the processes behind them.
    workers: Arc<Workers>,
}

impl Placed {
    /// Shows where it would be; an error if it does not fit.
    fn show(&self, terminal: Terminal, out: &mut dyn Write) -> Result<(), Failure> {
        let Placed { path, placement, settings, workers, .. } = self;
        let proportions = &self.lineup.options().proportions;
        match self.quiet {
            true => {
                let report = plan_report(path, placement, proportions, settings, workers);
                printable::write_json(&report, out)?;
            }
            false => show_placement(placement, proportions, terminal, out)?,
        }
        self.check_room()
    }

    /// An error if some device has no room for its part.
    pub(crate) fn check_room(&self) -> Result<(), Failure> {
        too_small(&self.placement, &self.settings).map_or(Ok(()), Err)
    }

    /// Whether there is room for it beside everything that is loaded now.
    pub(crate) fn fits_beside(&self) -> Result<bool, Failure> {
        let mut shares = self.placement.devices().iter().zip(self.placement.shares());
        shares.try_fold(true, |fits, (device, share)| {
            Ok(fits && share.needed() <= device.memory().map_err(|error| Failure::Device { error })?.free)
        })
    }

    /// Loads it.
    pub(crate) fn load(self) -> Result<Box<Loaded>, Failure> {
        let Placed { placement, quiet, workers, .. } = &self;
        if !workers.is_empty() && !quiet {
            let (proportions, plain) = (&self.lineup.options().proportions, Terminal { colour: false });
            log::note_lines(|out| show_placement(placement, proportions, plain, out))?;
        }
        self.check_room()?;
        let Placed {
            path,
            file,
            vocab,
            settings,
            placement,
            departures,
            lineup,
            places,
            quiet,
            since,
            workers,
        } = self;
        let model = load(file, placement, &path, &workers, quiet)?;
        let load = since.elapsed();
        tracing::debug!(
            "{}: {}, {} blocks, loaded in {:.2} s; a context of {} tokens, keys in {} and values in {}",
            path.display(),
            model.hyper().architecture(),
            model.hyper().blocks.len(),
            load.as_secs_f64(),
            settings.context_size(),
            settings.key_type(),
            settings.value_type()
        );
        Ok(Box::new(Loaded { vocab, model, path, load, departures, lineup, places, quiet, workers }))
    }
}

/// What is to be done after the placement is made.
pub(crate) enum Opened {
    /// The placement was shown, and that is all that was asked for.
    Shown,
    /// Everything is ready.
    Ready(Box<Loaded>),
}

impl Loaded {
    /// Finds, places and loads a model. `quiet` leaves out all but errors.
    pub(crate) fn open(
        args: &EngineArgs,
        terminal: Terminal,
        out: &mut dyn Write,
        quiet: bool,
    ) -> Result<Opened, Failure> {
        Loaded::open_for(args, terminal, out, quiet, |_| Ok(0))
    }

    /// The same, for something that needs a context of so many tokens.
    pub(crate) fn open_for(
        args: &EngineArgs,
        terminal: Terminal,
        out: &mut dyn Write,
        quiet: bool,
        needed: impl FnOnce(&Unloaded<'_>) -> Result<usize, Failure>,
    ) -> Result<Opened, Failure> {
        let found = Found::open(&args.model)?;
        let needed = needed(&found.unloaded())?;
        let placed = found.place(args, needed, quiet, None)?;
        if args.plan {
            placed.show(terminal, out)?;
            return Ok(Opened::Shown);
        }
        Ok(Opened::Ready(placed.load()?))
    }

    /// The tokens of a text.
    pub(crate) fn encode(&self, text: impl AsRef<[u8]>, options: Encode) -> Result<Vec<u32>, Failure> {
        encode(&self.vocab, &self.path, text, options)
    }

    /// What computes, with the settings of the command.
    pub(crate) fn runner(&self) -> Result<Runner, Failure> {
        self.lineup.runner(Arc::clone(&self.model)).map_err(|error| self.failure(error))
    }

    /// What answers requests, with the settings of the command, goes on without workers that are lost, and with them when they come back.
    /// From now on it alone has the weights, so that those that a plan has no use for can be given back. `moved` is told of other plans.
    pub(crate) fn engine(&mut self, moved: Option<Moved>) -> Result<Engine, Failure> {
        let mut engine = Engine::new(self.runner()?, Arc::clone(&self.vocab), EngineOptions::default());
        self.model = Arc::new(self.model.without_weights());
        self.workers.watch();
        engine.recover_with(Recovery::new(
            self.lineup.clone(),
            self.places.clone(),
            Putting { workers: Arc::clone(&self.workers), path: self.path.clone(), quiet: self.quiet, moved },
        ));
        Ok(engine)
    }

    /// One sequence, with the settings of the command.
    pub(crate) fn sequence(&self) -> Result<OneSequence<'_>, Failure> {
        let mut runner = self.runner()?;
        let id = runner.open().map_err(|error| self.failure(error))?;
        Ok(OneSequence { runner, id, loaded: self })
    }

    /// An encoder of texts.
    pub(crate) fn encoder(&self, options: EncoderOptions) -> Result<Encoder, Failure> {
        let streams = self.lineup.streams(&self.model).map_err(|error| self.failure(error))?;
        Encoder::new(Arc::clone(&self.model), streams, options).map_err(|error| self.failure(error))
    }

    /// What to tell about an error of the model.
    pub(crate) fn failure(&self, error: oxcart::llm::model::Error) -> Failure {
        Failure::run(&self.path, error)
    }
}

/// A sequence of its own, for commands that want logits rather than text.
#[derive(Debug)]
pub(crate) struct OneSequence<'l> {
    runner: Runner,
    id: SequenceId,
    loaded: &'l Loaded,
}

impl OneSequence<'_> {
    /// Computes tokens that follow those before.
    pub(crate) fn compute(&mut self, tokens: &[u32], wanted: Wanted) -> Result<Logits<'_>, Failure> {
        let piece = Piece { sequence: self.id, tokens, wanted };
        let outputs = self.runner.compute(&[piece]).map_err(|error| self.loaded.failure(error))?;
        Ok(outputs.of(0))
    }

    /// Forgets all tokens.
    pub(crate) fn clear(&mut self) -> Result<(), Failure> {
        self.runner.truncate(self.id, 0).map_err(|error| self.loaded.failure(error))
    }

    pub(crate) fn runner(&self) -> &Runner {
        &self.runner
    }
}

/// The first `remote` devices are those of workers. `usual` is how models are shared out unless `--split` says so, none where the
/// CPU, the last device, gets nothing.
fn placement_options(
    args: &EngineArgs,
    devices: usize,
    remote: usize,
    usual: Option<&Proportions>,
) -> Result<PlacementOptions, Failure> {
    let proportions = match (args.split.len(), usual) {
        (0, Some(usual)) => usual.clone(),
        (0, None) => Proportions::SkipLast,
        // The CPU, or all of this machine, gets nothing unless it is asked to.
        (given, _) if given + 1 == devices || given == devices || given == remote => {
            let mut ratios = args.split.clone();
            ratios.resize(devices, 0.0);
            Proportions::Ratios(ratios)
        }
        (given, _) => {
            return Err(Failure::Usage(format!(
                "--split has {given} number{}, but there {} {} device{} (this machine's CPU, or all of this machine, may be left out); run --plan without --split to see them",
                if given == 1 { "" } else { "s" },
                if devices == 1 { "is" } else { "are" },
                devices,
                if devices == 1 { "" } else { "s" },
            )));
        }
    };
    Ok(PlacementOptions { proportions, overrides: args.overrides.clone(), runner: args.runner_options() })
}

/// Loads with a bar for everything that has to be moved.
fn load(
    file: ModelFile,
    placement: Placement,
    path: &Path,
    workers: &Workers,
    quiet: bool,
) -> Result<Arc<Model>, Failure> {
    let counts = vec![(0u64, 0u64); placement.devices().len()];
    let moved: u64 =
        placement.shares().iter().filter(|share| !share.mapped).map(|share| share.weights as u64).sum();
    let shown = Mutex::new((Progress::new("loading"), counts));
    // Only workers ask what bytes are known by.
    let digests = if workers.is_empty() { None } else { Digests::of_user() };
    if let Some(digests) = &digests {
        digests.recall(&file);
    }
    let (start, before) = (Instant::now(), workers.traffic());
    let model = Model::load(file, placement, &|step| {
        let (progress, counts) = &mut *shown.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(step.device) {
            *count = (step.done as u64, step.total as u64);
        }
        let (done, total) = counts.iter().fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1));
        if !quiet && moved > 0 {
            progress.set(done, Some(total));
        }
    });
    shown.into_inner().unwrap_or_else(PoisonError::into_inner).0.finish();
    let model = model.map_err(|error| Failure::run(path, error).with_memory_of(&workers.devices()))?;
    if let Some(digests) = &digests
        && let Err(error) = digests.keep(model.file())
    {
        // They are computed again the next time.
        tracing::debug!("{}: its digests are not kept: {error}", path.display());
    }
    if !quiet && moved > 0 {
        let seconds = start.elapsed().as_secs_f64().max(1e-9);
        let sent = workers.traffic().since(before).sent.min(moved);
        let known = match moved - sent {
            // What names and places tensors is not weights.
            known if known > moved / 100 => format!("; workers had {}", ByteSize(known)),
            _ => String::new(),
        };
        let rate = ByteSize((sent as f64 / seconds) as u64);
        tracing::info!("sent {} to workers in {seconds:.1} s ({rate}/s){known}", ByteSize(sent));
    }
    Ok(model)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    /// What is typed for an engine.
    #[derive(Debug, Parser)]
    struct Typed {
        #[command(flatten)]
        engine: EngineArgs,
    }

    /// The context that is chosen for a model and for what is to go into it.
    fn chosen(typed: &[&str], trained: usize, needed: usize) -> usize {
        let typed = [&["oxcart"], typed].concat();
        let mut engine = Typed::try_parse_from(typed).unwrap().engine;
        engine.choose_context(trained, needed, true);
        engine.context_size()
    }

    #[test]
    fn a_context_is_as_long_as_it_has_to_be() {
        assert_eq!(chosen(&[], 32_768, 0), 4096);
        assert_eq!(chosen(&[], 32_768, 4096), 4096);
        assert_eq!(chosen(&[], 32_768, 4097), 4097);
        assert_eq!(chosen(&[], 32_768, 20_512), 20_512);
        // No longer than the model knows, unless it is asked for.
        assert_eq!(chosen(&[], 32_768, 40_000), 32_768);
        assert_eq!(chosen(&[], 1024, 0), 1024);
        assert_eq!(chosen(&["--ctx", "0"], 32_768, 0), 32_768);
        assert_eq!(chosen(&["--ctx", "8192"], 1024, 20_000), 8192);
    }
}
