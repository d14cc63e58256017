//! Guesses at the next tokens that are checked along the way: the arguments that say where they come from.

use std::io::Write;

use oxcart::llm::engine::{Draft, Engine, Speculation};
use oxcart::llm::text::LookupSettings;

use crate::failure::Failure;
use crate::loaded::{EngineArgs, Loaded, ModelArgs, Opened};
use crate::terminal::Terminal;

/// Tokens that a draft model guesses at a time, at most.
const MOST_GUESSES: usize = 6;

/// Faster answers by guesses; the text is the same as without
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SpeculationArgs {
    /// Guess what followed the same words earlier in the text: faster where an answer repeats its prompt
    #[arg(long, conflicts_with = "draft")]
    lookup: bool,

    /// Let a smaller model with the same vocabulary guess; named like --model, and computed on this machine
    #[arg(long, value_name = "MODEL")]
    draft: Option<String>,
}

impl SpeculationArgs {
    /// Sets an engine up for guesses.
    pub(crate) fn apply(
        &self,
        engine: &mut Engine,
        settings: &EngineArgs,
        terminal: Terminal,
        out: &mut dyn Write,
    ) -> Result<(), Failure> {
        if self.lookup {
            engine.speculate(Speculation::Lookup(LookupSettings::default()));
        }
        if let Some(model) = &self.draft {
            let settings = EngineArgs {
                model: ModelArgs { model: model.clone(), ..settings.model.clone() },
                workers: Vec::new(),
                connected: None,
                split: Vec::new(),
                overrides: Vec::new(),
                ctx: Some(engine.runner().options().context),
                ..settings.clone()
            };
            let Opened::Ready(loaded) = Loaded::open(&settings, terminal, out, true)? else { return Ok(()) };
            let draft = Draft::new(loaded.runner()?, &loaded.vocab, engine.vocab(), MOST_GUESSES);
            let draft = draft.map_err(|error| Failure::Usage(format!("--draft {model}: {error}")))?;
            engine.speculate(Speculation::Draft(Box::new(draft)));
        }
        Ok(())
    }
}
