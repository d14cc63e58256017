//! From a name to an answer: a model found, placed on the devices there are, loaded, and asked.
//!
//! Everything here is made of the crates' public parts; a program that wants something else puts them together itself.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;

use oxcart_backend::{Device, Registry, StreamOptions};
use oxcart_llm::engine::{Answer, Engine, EngineOptions, Request};
use oxcart_llm::model::{Model, ModelFile, PlacementOptions, Proportions};
use oxcart_llm::runner::{Encoder, EncoderOptions, Lineup};
use oxcart_llm::text::{ChatOptions, ChatTemplate, Encode, Message, Vocab};
use oxcart_pull::{Hub, Name, Store};
use oxcart_rpc::client::{Options, RemoteRegistry};

use crate::{Error, devices, folders, warn_of_ignored_keys};

/// What to load, and how.
///
/// ```no_run
/// let mut session = oxcart::Loader::new("model.gguf").workers(["192.168.1.5:50052"]).sequences(8).load()?;
/// # Ok::<(), oxcart::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Loader {
    name: OsString,
    workers: Vec<String>,
    plugins: Vec<PathBuf>,
    placement: PlacementOptions,
    stream: StreamOptions,
    engine: EngineOptions,
}

impl Loader {
    /// A model by its file, a known name (`smollm2`), `owner/name` of the Hugging Face hub, or a URL.
    ///
    /// What is not a file is fetched once and kept.
    pub fn new(model: impl AsRef<OsStr>) -> Loader {
        Loader {
            name: model.as_ref().to_owned(),
            workers: Vec::new(),
            plugins: Vec::new(),
            placement: PlacementOptions::default(),
            stream: StreamOptions::default(),
            engine: EngineOptions::default(),
        }
    }

    /// Workers whose devices are used besides those of this machine, as `HOST:PORT`. One that is lost while requests are answered is left out:
    /// they go on on what remains, with the same tokens (`Event::Lost`, `Event::Recovered`). They are talked to without a key and in the clear;
    /// for machines that are paired, connect with [`Options::link`].
    pub fn workers<W: Into<String>>(mut self, workers: impl IntoIterator<Item = W>) -> Loader {
        self.workers = workers.into_iter().map(Into::into).collect();
        self
    }

    /// Plug-ins whose devices are used, too.
    pub fn plugins<P: Into<PathBuf>>(mut self, plugins: impl IntoIterator<Item = P>) -> Loader {
        self.plugins = plugins.into_iter().map(Into::into).collect();
        self
    }

    /// Threads that compute on the CPU; by default one per processor.
    pub fn threads(mut self, threads: usize) -> Loader {
        self.stream = StreamOptions { threads: StreamOptions::threads(threads).threads, ..self.stream };
        self
    }

    /// Tokens that a sequence may have; 0 for as many as the model was trained for. By default 4096.
    pub fn context(mut self, tokens: usize) -> Loader {
        self.placement.runner.context = tokens;
        self
    }

    /// Requests that are computed at the same time; by default one.
    pub fn sequences(mut self, count: usize) -> Loader {
        self.placement.runner.sequences = count;
        self
    }

    /// How the model is shared out, and everything about the runner; it takes the place of what
    /// [`context`](Loader::context) and [`sequences`](Loader::sequences) said before. By free memory, the CPU beside a card only
    /// gets what the others have no room for.
    pub fn placement(mut self, options: PlacementOptions) -> Loader {
        self.placement = options;
        self
    }

    /// How steps are shared out among requests.
    pub fn engine(mut self, options: EngineOptions) -> Loader {
        self.engine = options;
        self
    }

    /// Fetches the model if it is not here, connects workers, loads.
    pub fn load(self) -> Result<Session, Error> {
        let engine_options = self.engine;
        let Ready { model, lineup, vocab, workers } = self.ready()?;
        let template = ChatTemplate::for_model(&model.metadata())?;
        let mut engine = Engine::new(lineup.runner(model)?, vocab, engine_options);
        engine.recover_with(lineup);
        Ok(Session { engine, template, _workers: workers })
    }

    /// As [`load`](Loader::load), a model that makes embeddings.
    pub fn load_encoder(self) -> Result<EmbeddingSession, Error> {
        let ready = self.ready()?;
        let streams = ready.lineup.streams(&ready.model)?;
        let encoder = Encoder::new(ready.model, streams, EncoderOptions::default())?;
        Ok(EmbeddingSession { encoder, vocab: ready.vocab, _workers: ready.workers })
    }

    fn ready(self) -> Result<Ready, Error> {
        let path = self.find()?;
        let file = ModelFile::open(&path)?;
        warn_of_ignored_keys(&path, &file);
        let vocab = Arc::new(Vocab::from_gguf(&file.metadata())?);
        let mut workers = Vec::with_capacity(self.workers.len());
        for worker in &self.workers {
            workers.push(RemoteRegistry::connect(worker, &Options::default())?);
        }
        let mut list: Vec<Arc<dyn Device>> = workers.iter().flat_map(|worker| worker.devices()).collect();
        let local = devices::find(&self.plugins)?.devices();
        let mut options = self.placement;
        if matches!(options.proportions, Proportions::ByFreeMemory) {
            options.proportions = devices::usual_proportions(&local);
        }
        list.extend(local);
        let lineup = Lineup::new(list, options, self.stream);
        let placement = lineup.place(&file)?;
        placement.check_room()?;
        let model = Model::load(file, placement, &|_| {})?;
        Ok(Ready { model, lineup, vocab, workers })
    }

    fn find(&self) -> Result<PathBuf, Error> {
        // What is not Unicode can only be a file.
        let Some(name) = self.name.to_str() else { return Ok(PathBuf::from(&self.name)) };
        let name: Name = name.parse()?;
        if let Name::Path(path) = &name {
            return Ok(path.clone());
        }
        let store = Store::at(folders::models().ok_or(Error::NoFolder)?);
        Ok(store.fetch(&name, &Hub::from_env(), &mut |_| {})?)
    }
}

/// A model that is loaded.
struct Ready {
    model: Arc<Model>,
    lineup: Lineup,
    vocab: Arc<Vocab>,
    workers: Vec<Arc<RemoteRegistry>>,
}

/// A model that answers, and goes on when a worker is lost.
#[derive(Debug)]
pub struct Session {
    engine: Engine,
    template: ChatTemplate,
    /// Connections, for as long as their devices are used.
    _workers: Vec<Arc<RemoteRegistry>>,
}

impl Session {
    /// A model with defaults for everything: a file, a known name, `owner/name` of the Hugging Face hub, or a URL; see
    /// [`Loader::new`].
    pub fn open(model: impl AsRef<OsStr>) -> Result<Session, Error> {
        Loader::new(model).load()
    }

    /// What answers requests, several at a time; it also compiles grammars.
    pub fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// The vocabulary, which turns text into tokens and back.
    pub fn vocab(&self) -> &Vocab {
        self.engine.vocab()
    }

    /// A request to go on after a text, as it is, with defaults as [`reply`](Session::reply) has them.
    pub fn completion(&self, text: &str) -> Request {
        let tokens = self.vocab().encode(text, Encode { add_special: true, parse_special: false });
        self.request(tokens)
    }

    /// A request to answer a conversation, put into the form that the model's chat template gives it.
    ///
    /// By default an answer ends where the model ends it or the context is full (`limit`), and is the same in every run
    /// (`sampler.seed` is 0).
    pub fn reply(&self, messages: &[Message]) -> Result<Request, Error> {
        let prompt = self.template.prompt(messages, &ChatOptions::default(), self.vocab())?;
        Ok(self.request(self.vocab().encode_prompt(&prompt)))
    }

    fn request(&self, tokens: Vec<u32>) -> Request {
        let mut request = Request::new(tokens);
        request.sampler = request.sampler.ban(self.vocab().suppressed());
        request
    }

    /// The text of an answer, piece by piece; [`Answer::next_event`] also says why it ended.
    pub fn answer(&mut self, request: Request) -> Result<Answer<'_>, Error> {
        Ok(self.engine.answer(request)?)
    }

    /// Answers one question, through the model's chat template. Nothing is remembered; for a conversation use
    /// [`reply`](Session::reply).
    pub fn ask(&mut self, text: &str) -> Result<Answer<'_>, Error> {
        let request = self.reply(&[Message::new("user", text)])?;
        self.answer(request)
    }
}

/// A model that turns texts into vectors.
#[derive(Debug)]
pub struct EmbeddingSession {
    encoder: Encoder,
    vocab: Arc<Vocab>,
    _workers: Vec<Arc<RemoteRegistry>>,
}

impl EmbeddingSession {
    /// The embedding of a text, normalized to length 1.
    pub fn embed(&mut self, text: &str) -> Result<Vec<f32>, Error> {
        let tokens = self.vocab.encode(text, Encode { add_special: true, parse_special: false });
        let mut vector = self.encoder.embed(&tokens)?.to_vec();
        let length = vector.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt();
        if length > 0.0 {
            vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
        }
        Ok(vector)
    }
}
