//! Requests to a model: the arguments that say how tokens are chosen, and answers shown as they come.

use std::ops::Bound;
use std::str::FromStr;

use oxcart::llm::engine::{End, Engine, Event, Report, Request, RequestError};
use oxcart::llm::text::{SampleError, SamplerSettings, Token, Vocab};

use crate::failure::Failure;
use crate::loaded::Loaded;
use crate::units;

/// Tokens at most; -1 stands for no limit, as with llama.cpp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit(pub(crate) usize);

impl Limit {
    /// No limit.
    pub(crate) const NONE: Limit = Limit(usize::MAX);
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Limit, String> {
        match text.parse::<i64>() {
            Ok(-1) => Ok(Limit::NONE),
            Ok(count @ 1..) => usize::try_from(count).map(Limit).map_err(|error| error.to_string()),
            _ => Err("must be a number of tokens from 1, or -1 for no limit".into()),
        }
    }
}

/// How long an answer may be
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LengthArgs {
    /// Maximum number of tokens in an answer; -1 for as many as the context holds
    #[arg(
        short,
        long,
        visible_alias = "n-predict",
        alias = "predict",
        value_name = "N",
        default_value = "512"
    )]
    pub(crate) n: Limit,

    /// Ignore tokens that end an answer, and keep generating
    #[arg(long)]
    pub(crate) ignore_eos: bool,
}

/// What chance begins with; -1 stands for another number each time, as with llama.cpp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seed(Option<u64>);

impl FromStr for Seed {
    type Err = String;

    fn from_str(text: &str) -> Result<Seed, String> {
        match (text, text.parse()) {
            ("-1", _) => Ok(Seed(None)),
            (_, Ok(seed)) => Ok(Seed(Some(seed))),
            _ => Err("must be a number, or -1 for a new one each time".into()),
        }
    }
}

/// How tokens are chosen
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SamplerArgs {
    /// Temperature: how random the choice of tokens is; 0 always takes the likeliest
    #[arg(long = "temp", alias = "temperature", value_name = "T", default_value_t = 0.8, value_parser = units::number(0.0_f32..))]
    temperature: f32,

    /// Choose among this many of the likeliest tokens; 0 for all
    #[arg(long, value_name = "K", default_value_t = 40, value_parser = units::whole(0_usize..))]
    top_k: usize,

    /// Choose among the likeliest tokens that together have this probability
    #[arg(long, value_name = "P", default_value_t = 0.95, value_parser = units::number(0.0..=1.0_f32))]
    top_p: f32,

    /// Leave out tokens less likely than this, relative to the likeliest
    #[arg(long, value_name = "P", default_value_t = 0.05, value_parser = units::number(0.0..=1.0_f32))]
    min_p: f32,

    /// Choose among the most typical tokens that together have this probability
    #[arg(long, value_name = "P", default_value_t = 1.0, value_parser = units::number(0.0..=1.0_f32))]
    typical: f32,

    /// Penalize tokens among the last 64; 1 changes nothing
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = units::number((Bound::Excluded(0.0_f32), Bound::Unbounded)))]
    repeat_penalty: f32,

    /// Lower the score of a token by this for each recent use
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = units::number::<f32>(..))]
    frequency_penalty: f32,

    /// Lower the score of a token by this if it was used recently
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = units::number::<f32>(..))]
    presence_penalty: f32,

    /// Seed for the random choice: the same seed gives the same text. By default, or with -1, a new one each time
    #[arg(short, long, value_name = "S")]
    seed: Option<Seed>,
}

impl SamplerArgs {
    pub(crate) fn settings(&self, vocab: &Vocab) -> SamplerSettings {
        let settings = SamplerSettings {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical,
            repeat_penalty: self.repeat_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            seed: self.seed.and_then(|seed| seed.0).unwrap_or_else(any_seed),
            ..SamplerSettings::default()
        };
        settings.ban(vocab.suppressed())
    }
}

/// Some number that is another one each time.
fn any_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}

/// An answer, and how it came about.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    pub(crate) tokens: Vec<Token>,
    pub(crate) text: String,
    pub(crate) end: End,
    pub(crate) report: Report,
}

/// Answers a request, handing text out as it comes.
pub(crate) fn answer(
    loaded: &Loaded,
    engine: &mut Engine,
    request: Request,
    mut show: impl FnMut(&str) -> Result<(), Failure>,
) -> Result<Answered, Failure> {
    let failure = |error| match error {
        RequestError::Model(error) => loaded.failure(error),
        RequestError::Sample(error @ SampleError::Setting { .. }) => Failure::Usage(error.to_string()),
        RequestError::Stop(error) => Failure::Usage(error.to_string()),
        RequestError::Constrain(error) => Failure::Usage(error.to_string()),
        RequestError::Refused(reason) => Failure::Usage(reason),
        error => Failure::Machine(error.to_string()),
    };
    let (mut tokens, mut text) = (Vec::new(), String::new());
    let mut answer = engine.answer(request).map_err(failure)?;
    while let Some(event) = answer.next_event() {
        match event.map_err(failure)? {
            Event::Token(token) => {
                tokens.push(token.token);
                text.push_str(&token.text);
                show(&token.text)?;
            }
            Event::Finished { end, text: rest, report, .. } => {
                text.push_str(&rest);
                show(&rest)?;
                return Ok(Answered { tokens, text, end, report });
            }
            Event::Failed { error, .. } => return Err(failure(error)),
            // The log has it.
            Event::Lost(_) | Event::DraftLost { .. } | Event::Returned(_) | Event::Recovered(_) => {}
        }
    }
    Err(Failure::Machine("the answer ended unexpectedly".into()))
}

/// What has room for more than a context of so many tokens, of a model that was trained for so many: `a larger --ctx (up to 8192)`.
pub(crate) fn room_for_more(context: usize, trained: usize) -> String {
    match context < trained {
        true => format!("a larger --ctx (up to {trained})"),
        false => format!("a model with a longer context (this one was trained for {trained} tokens)"),
    }
}

/// `prompt 36 tokens, 210.0 per second; answer 58 tokens, 41.2 per second`
pub(crate) fn summary(report: &Report) -> String {
    let show = |tokens: usize, rate: Option<f64>| {
        let rate = rate.map_or_else(String::new, |rate| format!(", {rate:.1} per second"));
        format!("{tokens} token{}{rate}", if tokens == 1 { "" } else { "s" })
    };
    let prompt = show(report.prompt_tokens, report.prompt_rate());
    format!("prompt {prompt}; answer {}", show(report.answer_tokens, report.answer_rate()))
}
