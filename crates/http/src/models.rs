//! The models that are served, by name.
//!
//! Invariant: a name finds one model or none; a request for a model that is not there is never answered by another.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use oxcart_llm::engine::Engine;
use oxcart_llm::runner::Encoder;
use oxcart_llm::text::{ChatFormat, ChatTemplate, ConstrainError, Constraints, TemplateError, Vocab};

use crate::cluster::Plans;
use crate::error::{ApiError, Kind};
use crate::service::{EmbeddingService, Limits, Service};

/// What a model file says of itself, for people.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// Its architecture.
    pub architecture: String,
    /// How many parameters it has, if that is known.
    pub parameters: Option<u64>,
    /// How its weights are quantized, such as `Q4_K_M`.
    pub quantization: Option<String>,
    /// Bytes of its files.
    pub bytes: u64,
    /// Tokens that it was trained for at a time.
    pub trained_context: usize,
    /// Channels between its blocks.
    pub embedding: usize,
    /// Where its file is, or what it was fetched by.
    pub source: String,
}

/// Why a model cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelsError {
    /// Its chat template.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The system would not start a thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
    /// Two models of one name.
    #[error("there are two models of the name {0:?}")]
    Name(String),
}

/// A model that answers.
#[derive(Debug)]
pub(crate) struct Talker {
    pub(crate) service: Service,
    pub(crate) template: ChatTemplate,
    /// The source of the template, as the file has it.
    pub(crate) template_source: Option<String>,
    pub(crate) format: ChatFormat,
    /// Made for the first answer that has a form.
    constraints: OnceLock<Result<Constraints, ConstrainError>>,
    /// Tokens that a request and its answer may have.
    pub(crate) context: usize,
    /// Requests that are computed at a time.
    pub(crate) slots: usize,
}

impl Talker {
    pub(crate) fn constraints(&self, vocab: &Vocab) -> Result<&Constraints, ApiError> {
        let made = self.constraints.get_or_init(|| Constraints::new(vocab));
        made.as_ref().map_err(|error| error.clone().into())
    }
}

/// What a model does.
#[derive(Debug)]
enum Ability {
    Talks(Box<Talker>),
    Embeds(EmbeddingService),
}

/// A model that is served.
pub struct Served {
    name: String,
    pub(crate) vocab: Arc<Vocab>,
    pub(crate) about: About,
    pub(crate) since: SystemTime,
    pub(crate) plans: Plans,
    ability: Ability,
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Served").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Served {
    /// A model that answers requests, on a thread of its own from now on.
    pub fn talking(name: &str, engine: Engine, about: About, limits: Limits) -> Result<Served, ModelsError> {
        let vocab = Arc::clone(engine.vocab());
        let model = Arc::clone(engine.runner().model());
        let metadata = model.metadata();
        let template = ChatTemplate::for_model(&metadata)?;
        let template_source = ChatTemplate::source_in(&metadata, None).ok().flatten().map(str::to_owned);
        let options = engine.runner().options();
        let talker = Talker {
            format: ChatFormat::detect(&template, &vocab),
            template,
            template_source,
            constraints: OnceLock::new(),
            context: options.context,
            slots: options.sequences,
            service: Service::start(engine, limits)?,
        };
        Ok(Served {
            name: name.to_owned(),
            vocab,
            about,
            since: SystemTime::now(),
            plans: Plans::default(),
            ability: Ability::Talks(Box::new(talker)),
        })
    }

    /// A model that turns texts into vectors, on a thread of its own from now on.
    pub fn embedding(
        name: &str,
        encoder: Encoder,
        vocab: Arc<Vocab>,
        about: About,
        limits: Limits,
    ) -> Result<Served, ModelsError> {
        let ability = Ability::Embeds(EmbeddingService::start(encoder, limits)?);
        Ok(Served {
            name: name.to_owned(),
            vocab,
            about,
            since: SystemTime::now(),
            plans: Plans::default(),
            ability,
        })
    }

    /// Says where it is, for all who look at the cluster.
    pub fn placed(mut self, plans: Plans) -> Served {
        self.plans = plans;
        self
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What computes its answers, if it gives any: to watch it.
    pub fn service(&self) -> Option<&Service> {
        match &self.ability {
            Ability::Talks(talker) => Some(&talker.service),
            Ability::Embeds(_) => None,
        }
    }

    pub(crate) fn talker(&self) -> Result<&Talker, ApiError> {
        match &self.ability {
            Ability::Talks(talker) => Ok(talker),
            Ability::Embeds(_) => {
                Err(ApiError::bad(format!("{} makes embeddings and does not answer", self.name)))
            }
        }
    }

    pub(crate) fn embedder(&self) -> Result<&EmbeddingService, ApiError> {
        match &self.ability {
            Ability::Embeds(service) => Ok(service),
            Ability::Talks(_) => {
                let message = format!("{} answers and makes no embeddings", self.name);
                Err(ApiError::new(Kind::NotSupported, message))
            }
        }
    }

    pub(crate) fn talks(&self) -> bool {
        matches!(self.ability, Ability::Talks(_))
    }
}

/// All models of a server. Clones are the same models.
#[derive(Clone, Debug, Default)]
pub struct Models(Arc<Vec<Arc<Served>>>);

impl Models {
    /// These models; the first is the one for requests that name none.
    pub fn new(models: Vec<Served>) -> Result<Models, ModelsError> {
        for (at, model) in models.iter().enumerate() {
            if models[..at].iter().any(|before| before.name.eq_ignore_ascii_case(&model.name)) {
                return Err(ModelsError::Name(model.name.clone()));
            }
        }
        Ok(Models(Arc::new(models.into_iter().map(Arc::new).collect())))
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Served>> {
        self.0.iter()
    }

    /// The model of a name; of the tag that Ollama puts behind it, `latest` is the same as none. Without a name, the first one
    /// that can do it.
    pub(crate) fn find(
        &self,
        name: Option<&str>,
        can: impl Fn(&Served) -> bool,
    ) -> Result<Arc<Served>, ApiError> {
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            let first = self.0.iter().find(|model| can(model));
            return first
                .cloned()
                .ok_or_else(|| ApiError::new(Kind::NotSupported, "no model here can do that"));
        };
        let plain = name.strip_suffix(":latest").unwrap_or(name);
        let found = self.0.iter().find(|model| model.name.eq_ignore_ascii_case(plain));
        found.cloned().ok_or_else(|| {
            let names: Vec<&str> = self.0.iter().map(|model| model.name.as_str()).collect();
            let shown: String = name.chars().take(100).collect();
            let message = format!("there is no model {shown:?}; there are {}", names.join(", "));
            ApiError { field: Some("model"), ..ApiError::new(Kind::NoSuchModel, message) }
        })
    }

    pub(crate) fn talking(&self, name: Option<&str>) -> Result<Arc<Served>, ApiError> {
        self.find(name, Served::talks)
    }

    /// Takes no more requests, gives those that are there so much time, and returns when all engines are gone.
    pub(crate) fn shutdown(&self, grace: Duration) {
        std::thread::scope(|scope| {
            for model in self.0.iter() {
                scope.spawn(move || match &model.ability {
                    Ability::Talks(talker) => talker.service.shutdown(grace),
                    Ability::Embeds(service) => service.shutdown(grace),
                });
            }
        });
    }
}
