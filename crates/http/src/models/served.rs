//! A model that is loaded, with all that is needed to answer by it.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use oxcart_llm::engine::Engine;
use oxcart_llm::runner::Encoder;
use oxcart_llm::text::{ChatFormat, ChatTemplate, ConstrainError, Constraints, Vocab};

use super::{About, Features, ModelsError};
use crate::cluster::{CurrentPlacements, Purpose};
use crate::error::ApiError;
use crate::service::{EmbeddingService, Explain, Limits, Service, Totals};

/// A model that answers.
#[derive(Debug)]
pub(crate) struct Talker {
    pub(crate) service: Service,
    pub(crate) template: ChatTemplate,
    pub(crate) format: ChatFormat,
    pub(crate) features: Features,
    /// Made for the first answer that has a form.
    constraints: OnceLock<Result<Constraints, ConstrainError>>,
    /// Tokens that a request and its answer may have.
    pub(crate) context: usize,
    /// Requests to compute at the same time.
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

/// A model that is loaded.
pub struct Served {
    name: String,
    pub(crate) vocab: Arc<Vocab>,
    pub(super) about: About,
    pub(crate) plans: CurrentPlacements,
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
        let source = ChatTemplate::source_in(&metadata, None).ok().flatten();
        let format = ChatFormat::detect(&template, &vocab);
        let options = engine.runner().options();
        let talker = Talker {
            features: Features::new(source, &format, &vocab),
            template,
            format,
            constraints: OnceLock::new(),
            context: options.context,
            slots: options.sequences,
            service: Service::start(engine, limits)?,
        };
        Ok(Served::new(name, vocab, about, Ability::Talks(Box::new(talker))))
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
        Ok(Served::new(name, vocab, about, ability))
    }

    fn new(name: &str, vocab: Arc<Vocab>, about: About, ability: Ability) -> Served {
        Served { name: name.to_owned(), vocab, about, plans: CurrentPlacements::default(), ability }
    }

    /// Says where it is, for all who look at the cluster.
    pub fn placed(mut self, plans: CurrentPlacements) -> Served {
        self.plans = plans;
        self
    }

    /// Says how errors of its steps are put into words.
    pub fn explained_by(self, explain: Explain) -> Served {
        if let Ability::Talks(talker) = &self.ability {
            talker.service.explain_by(explain);
        }
        self
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it is asked for.
    pub(crate) fn purpose(&self) -> Purpose {
        match &self.ability {
            Ability::Talks(_) => Purpose::Chat,
            Ability::Embeds(_) => Purpose::Embeddings,
        }
    }

    pub(crate) fn talker(&self) -> Result<&Talker, ApiError> {
        match &self.ability {
            Ability::Talks(talker) => Ok(talker),
            Ability::Embeds(_) => Err(super::cannot(&self.name, Purpose::Chat)),
        }
    }

    pub(crate) fn embedder(&self) -> Result<&EmbeddingService, ApiError> {
        match &self.ability {
            Ability::Embeds(service) => Ok(service),
            Ability::Talks(_) => Err(super::cannot(&self.name, Purpose::Embeddings)),
        }
    }

    /// Tokens that a request and its answer may have, or a text.
    pub(crate) fn context(&self) -> usize {
        match &self.ability {
            Ability::Talks(talker) => talker.context,
            Ability::Embeds(service) => service.context(),
        }
    }

    /// What it has done so far.
    pub(super) fn totals(&self) -> Totals {
        self.talker().map(|talker| talker.service.snapshot().totals).unwrap_or_default()
    }

    /// Whether what computes has panicked.
    pub(super) fn is_broken(&self) -> bool {
        match &self.ability {
            Ability::Talks(talker) => talker.service.is_broken(),
            Ability::Embeds(service) => service.is_broken(),
        }
    }

    /// Takes no more requests, gives those that are there so much time, and returns when what computes is gone.
    pub(super) fn shutdown(&self, grace: Duration) {
        match &self.ability {
            Ability::Talks(talker) => talker.service.shutdown(grace),
            Ability::Embeds(service) => service.shutdown(grace),
        }
    }
}
