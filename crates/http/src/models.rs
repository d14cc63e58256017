//! The models that are served, by name: those that are loaded, and those that are loaded when they are asked for.
//!
//! Invariant: a name finds one model or none; a request for a model that is not there is never answered by another.

mod served;
mod shelf;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use oxcart_llm::model::ModelFile;
use oxcart_llm::text::{ChatFormat, ChatTemplate, TemplateError, Vocab};

use crate::cluster::{Presence, Purpose};
use crate::error::{ApiError, Kind};
use crate::service::{Client, Totals};
use shelf::{Shelf, Slot};

pub use served::Served;
pub(crate) use served::Talker;
pub(crate) use shelf::Lease;

/// What a model file says of itself, for people.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// Its architecture.
    pub architecture: String,
    /// What its makers call it, without its size or version, if the file says.
    pub basename: Option<String>,
    /// How many parameters it has, if that is known.
    pub parameters: Option<u64>,
    /// How its weights are quantized, such as `Q4_K_M`.
    pub quantization: Option<String>,
    /// Bytes of its weights.
    pub bytes: u64,
    /// Tokens that it was trained for at a time.
    pub trained_context: usize,
    /// Channels between its blocks.
    pub embedding: usize,
    /// Tokens of its vocabulary.
    pub vocabulary: usize,
    /// Where its file is, or what it was fetched by.
    pub source: String,
}

/// What a model that answers can do beside answering, as its vocabulary and its template say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// The source of its template, if the file has one.
    pub(crate) template: Option<String>,
    /// Whether it can be asked for what belongs between two texts.
    pub(crate) fills: bool,
    /// Whether its reasoning can be told from its answer.
    pub(crate) reasons: bool,
}

impl Features {
    /// Those of a model that is not loaded.
    pub fn read(file: &ModelFile, vocab: &Vocab) -> Result<Features, TemplateError> {
        let metadata = file.metadata();
        let format = ChatFormat::detect(&ChatTemplate::for_model(&metadata)?, vocab);
        let template = ChatTemplate::source_in(&metadata, None).ok().flatten();
        Ok(Features::new(template, &format, vocab))
    }

    fn new(template: Option<&str>, format: &ChatFormat, vocab: &Vocab) -> Features {
        let special = vocab.special();
        Features {
            template: template.map(str::to_owned),
            fills: special.fim_pre.is_some() && special.fim_suf.is_some() && special.fim_mid.is_some(),
            reasons: format.has_reasoning(),
        }
    }
}

/// Why models cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelsError {
    /// A chat template.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The system would not start a thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
    /// Two models of one name.
    #[error("there are two models named {0:?}")]
    Name(String),
    /// Models that could never be loaded, because none may be.
    #[error("at least one model must be allowed to be loaded at a time")]
    NoneAtATime,
}

/// Why a model was not loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// There is not enough memory; without other models there may be.
    #[error("{0}")]
    NoRoom(String),
    /// It cannot be loaded.
    #[error("{0}")]
    Failed(String),
}

/// Where a model comes from, again and again.
pub trait Source: Send + Sync {
    /// Loads it, which may take a while.
    fn load(&self) -> Result<Served, LoadError>;

    /// What it can do, without loading it.
    fn features(&self) -> Result<Features, LoadError>;

    /// It was unloaded.
    fn unloaded(&self) {}
}

/// A model that is loaded on demand.
pub struct Available {
    /// What it is called.
    pub name: String,
    /// What is known of it.
    pub about: About,
    /// What it is asked for.
    pub purpose: Purpose,
    /// Tokens that a request and its answer, or a text, may have once it is loaded.
    pub context: usize,
    /// Where it comes from.
    pub source: Box<dyn Source>,
}

impl fmt::Debug for Available {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Available").field("name", &self.name).finish_non_exhaustive()
    }
}

/// How long models stay loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keeping {
    /// Models that are loaded at a time, at most; at least one.
    pub most: usize,
    /// How long a model stays after it was last used.
    pub idle: Duration,
    /// Requests that may wait for one model; more are refused.
    pub queue: usize,
    /// How long a request may wait for its model.
    pub time: Duration,
}

/// A model, loaded or not.
struct Entry {
    name: String,
    about: About,
    purpose: Purpose,
    /// Tokens that a request and its answer, or a text, may have once it is loaded.
    context: usize,
    /// None for one that is always loaded.
    source: Option<Box<dyn Source>>,
}

/// All models of a server. Clones are the same models.
#[derive(Clone)]
pub struct Models(Arc<Inner>);

struct Inner {
    shelf: Arc<Shelf>,
    /// Since when they are served.
    since: SystemTime,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shelf.shutdown(Duration::ZERO);
    }
}

impl fmt::Debug for Models {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.entries().iter().map(|entry| &entry.name)).finish()
    }
}

/// How a model is at one moment.
pub(crate) struct Listed<'m> {
    pub(crate) name: &'m str,
    pub(crate) about: &'m About,
    pub(crate) purpose: Purpose,
    /// Tokens that a request and its answer, or a text, may have; while it is not loaded, as far as is known.
    pub(crate) context: usize,
    pub(crate) since: SystemTime,
    /// What is there of it; none while it is not loaded.
    pub(crate) model: Option<Arc<Served>>,
    pub(crate) presence: Presence,
    /// Whether it makes way for another.
    pub(crate) is_leaving: bool,
    /// When it will be unloaded unless it is used, if ever.
    pub(crate) expires: Option<SystemTime>,
    /// What it did before it was last loaded.
    past: Totals,
    /// How often it was loaded.
    pub(crate) loads: u64,
    /// Requests that wait for it to be loaded.
    pub(crate) waiting: usize,
    /// Why it was not loaded when it was last tried.
    pub(crate) failure: Option<String>,
}

impl Listed<'_> {
    /// What it has done since the start of the server.
    pub(crate) fn totals(&self) -> Totals {
        let now = self.model.as_ref().map(|model| model.totals()).unwrap_or_default();
        self.past + now
    }
}

impl Models {
    /// These models, always; the first is the one for requests that name none.
    pub fn new(models: Vec<Served>) -> Result<Models, ModelsError> {
        let (mut entries, mut slots) = (Vec::new(), Vec::new());
        for model in models {
            let (name, about) = (model.name().to_owned(), model.about.clone());
            let (purpose, context) = (model.purpose(), model.context());
            entries.push(Entry { name, about, purpose, context, source: None });
            slots.push(Slot::loaded(model));
        }
        let forever = Keeping { most: usize::MAX, idle: Duration::MAX, queue: 0, time: Duration::MAX };
        Models::start(entries, slots, forever)
    }

    /// Models that are loaded when they are asked for; the first is the one for requests that name none.
    pub fn on_demand(models: Vec<Available>, keeping: Keeping) -> Result<Models, ModelsError> {
        if keeping.most == 0 {
            return Err(ModelsError::NoneAtATime);
        }
        let entry = |Available { name, about, purpose, context, source }| Entry {
            name,
            about,
            purpose,
            context,
            source: Some(source),
        };
        let entries: Vec<Entry> = models.into_iter().map(entry).collect();
        let slots = entries.iter().map(|_| Slot::away()).collect();
        Models::start(entries, slots, keeping)
    }

    fn start(entries: Vec<Entry>, slots: Vec<Slot>, keeping: Keeping) -> Result<Models, ModelsError> {
        for (at, entry) in entries.iter().enumerate() {
            if entries[..at].iter().any(|before| before.name.eq_ignore_ascii_case(&entry.name)) {
                return Err(ModelsError::Name(entry.name.clone()));
            }
        }
        let shelf = Shelf::start(entries, slots, keeping)?;
        Ok(Models(Arc::new(Inner { shelf, since: SystemTime::now() })))
    }

    fn entries(&self) -> &[Entry] {
        &self.0.shelf.entries
    }

    /// How all of them are.
    pub(crate) fn list(&self) -> Vec<Listed<'_>> {
        (0..self.entries().len()).map(|at| self.listed(at)).collect()
    }

    fn listed(&self, at: usize) -> Listed<'_> {
        let entry = &self.entries()[at];
        let now = self.0.shelf.look(at);
        Listed {
            name: &entry.name,
            about: &entry.about,
            purpose: entry.purpose,
            context: now.model.as_ref().map_or(entry.context, |model| model.context()),
            since: self.0.since,
            model: now.model,
            presence: now.presence,
            is_leaving: now.is_leaving,
            expires: now.expires,
            past: now.past,
            loads: now.loads,
            waiting: now.waiting,
            failure: now.failure,
        }
    }

    /// The model of a name; of the tag that Ollama puts behind it, `latest` is the same as none. Without a name, the first one
    /// for the purpose.
    fn place(&self, name: Option<&str>, purpose: Option<Purpose>) -> Result<usize, ApiError> {
        let is_meant = |entry: &&Entry| purpose.is_none_or(|purpose| entry.purpose == purpose);
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            let first = self.entries().iter().position(|entry| is_meant(&entry));
            return first.ok_or_else(|| {
                ApiError::new(Kind::NotSupported, "none of the models served here can do that")
            });
        };
        let plain = name.strip_suffix(":latest").unwrap_or(name);
        let found = self.entries().iter().position(|entry| entry.name.eq_ignore_ascii_case(plain));
        let at = found.ok_or_else(|| {
            let names: Vec<&str> = self.entries().iter().map(|entry| entry.name.as_str()).collect();
            let shown: String = name.chars().take(100).collect();
            let message = format!("there is no model {shown:?}; available: {}", names.join(", "));
            ApiError { field: Some("model"), ..ApiError::new(Kind::NoSuchModel, message) }
        })?;
        match purpose {
            Some(purpose) if self.entries()[at].purpose != purpose => {
                Err(cannot(&self.entries()[at].name, purpose))
            }
            _ => Ok(at),
        }
    }

    /// How the model of a name is, loaded or not.
    pub(crate) fn find(&self, name: Option<&str>) -> Result<Listed<'_>, ApiError> {
        Ok(self.listed(self.place(name, None)?))
    }

    /// What the model of a name can do; it is not loaded for that.
    pub(crate) fn features(&self, name: &str) -> Result<Features, ApiError> {
        let at = self.place(Some(name), Some(Purpose::Chat))?;
        match (self.0.shelf.look(at).model, &self.entries()[at].source) {
            (Some(model), _) => Ok(model.talker()?.features.clone()),
            (None, Some(source)) => source.features().map_err(ApiError::from),
            (None, None) => Ok(Features::default()),
        }
    }

    /// The model of a name, to be used; loaded first if it is not.
    pub(crate) async fn lease(
        &self,
        name: Option<&str>,
        purpose: Option<Purpose>,
        client: Client,
    ) -> Result<Lease, ApiError> {
        self.0.shelf.lease(self.place(name, purpose)?, client).await
    }

    /// As [`lease`](Models::lease), a model that answers.
    pub(crate) async fn talking(&self, name: Option<&str>, client: Client) -> Result<Lease, ApiError> {
        self.lease(name, Some(Purpose::Chat), client).await
    }

    /// Takes no more requests, gives those that are there so much time, and returns when all engines are gone.
    pub(crate) fn shutdown(&self, grace: Duration) {
        self.0.shelf.shutdown(grace);
    }
}

/// What is said of a model that is asked for what it does not do.
fn cannot(name: &str, purpose: Purpose) -> ApiError {
    match purpose {
        Purpose::Chat => ApiError::bad(format!("{name} makes embeddings; it cannot answer")),
        Purpose::Embeddings => ApiError::new(
            Kind::NotSupported,
            format!("{name} makes no embeddings; it is a model that answers"),
        ),
    }
}

impl From<LoadError> for ApiError {
    fn from(error: LoadError) -> ApiError {
        let kind = match error {
            LoadError::NoRoom(_) => Kind::Unavailable,
            LoadError::Failed(_) => Kind::Internal,
        };
        ApiError::new(kind, error.to_string())
    }
}
