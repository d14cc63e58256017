//! Text from a model, token by token, with whatever ends it.

use std::time::{Duration, Instant};

use oxcart::llm::model::{Context, Wanted};
use oxcart::llm::text::{Sampler, SamplerSettings, StopStrings, Streamer, Token, Vocab};

use crate::engine::Engine;
use crate::failure::Failure;

/// How tokens are chosen
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SamplerArgs {
    /// How adventurous; 0 always takes the likeliest token
    #[arg(long = "temp", value_name = "T", default_value_t = 0.8)]
    temperature: f32,

    /// Choose among this many of the likeliest tokens; 0 for all
    #[arg(long, value_name = "K", default_value_t = 40)]
    top_k: usize,

    /// Choose among the likeliest tokens that together have this probability
    #[arg(long, value_name = "P", default_value_t = 0.95)]
    top_p: f32,

    /// Leave out tokens less likely than this, relative to the likeliest
    #[arg(long, value_name = "P", default_value_t = 0.05)]
    min_p: f32,

    /// Choose among the most typical tokens that together have this probability
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    typical: f32,

    /// Make tokens of the last 64 less likely; 1 does nothing
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    repeat_penalty: f32,

    /// Take this from a token for every time it was used lately
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    frequency_penalty: f32,

    /// Take this from a token that was used lately
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    presence_penalty: f32,

    /// The same seed gives the same text. By default, another each time
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
}

impl SamplerArgs {
    pub(crate) fn sampler(&self, vocab: &Vocab) -> Result<Sampler, Failure> {
        let settings = SamplerSettings {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical,
            repeat_penalty: self.repeat_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            seed: self.seed.unwrap_or_else(any_seed),
            ..SamplerSettings::default()
        };
        Sampler::new(settings.ban(vocab.suppressed())).map_err(|error| Failure::Usage(error.to_string()))
    }
}

/// Some number that is another one each time.
fn any_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The model said so.
    Model,
    /// A stop string came.
    Stop,
    /// There are as many tokens as were asked for.
    Length,
    /// The context is full.
    Context,
}

impl End {
    pub(crate) fn name(self) -> &'static str {
        match self {
            End::Model => "stop",
            End::Stop => "stop_string",
            End::Length => "length",
            End::Context => "context",
        }
    }
}

/// What came out.
#[derive(Clone, Debug)]
pub(crate) struct Generated {
    pub(crate) tokens: Vec<Token>,
    pub(crate) text: String,
    pub(crate) end: End,
    /// Until the first token was there.
    pub(crate) first: Duration,
    pub(crate) speed: Speed,
}

/// How long was computed, without the time that it took to show the text.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Speed {
    pub(crate) prompt_tokens: usize,
    /// Time spent on the prompt, from which the first token of the answer comes.
    pub(crate) prompt: Duration,
    /// Tokens of the answer that were computed on, to get the next one.
    steps: usize,
    /// Time spent on them.
    pub(crate) decode: Duration,
}

impl Speed {
    /// Notes that tokens were computed.
    fn add(&mut self, tokens: usize, time: Duration) {
        if self.prompt_tokens == 0 {
            (self.prompt_tokens, self.prompt) = (tokens, time);
        } else {
            self.steps += 1;
            self.decode += time;
        }
    }

    /// Tokens of the prompt per second, if there were any.
    pub(crate) fn prompt_rate(&self) -> Option<f64> {
        rate(self.prompt_tokens, self.prompt)
    }

    /// Tokens of the answer per second, if there were any after the first.
    pub(crate) fn decode_rate(&self) -> Option<f64> {
        rate(self.steps, self.decode)
    }

    /// `prompt 36 tokens, 210.0 per second; answer 58 tokens, 41.2 per second`
    pub(crate) fn summary(&self, answer: usize) -> String {
        let show = |tokens: usize, rate: Option<f64>| {
            let rate = rate.map_or_else(String::new, |rate| format!(", {rate:.1} per second"));
            format!("{tokens} token{}{rate}", if tokens == 1 { "" } else { "s" })
        };
        let (prompt, answer) =
            (show(self.prompt_tokens, self.prompt_rate()), show(answer, self.decode_rate()));
        format!("prompt {prompt}; answer {answer}")
    }
}

fn rate(tokens: usize, time: Duration) -> Option<f64> {
    (tokens > 0 && !time.is_zero()).then(|| tokens as f64 / time.as_secs_f64())
}

/// What to generate.
pub(crate) struct Request<'r> {
    pub(crate) prompt: &'r [Token],
    /// Tokens at most.
    pub(crate) limit: usize,
    pub(crate) stop: &'r [String],
    /// Goes on after tokens that end a text, and shows all tokens.
    pub(crate) ignore_end: bool,
    /// Whether the context makes room for itself.
    pub(crate) shifts: bool,
}

/// Evaluates a prompt and goes on from there, handing text out as it comes.
pub(crate) fn generate(
    engine: &Engine,
    context: &mut Context,
    sampler: &mut Sampler,
    request: &Request<'_>,
    mut show: impl FnMut(&str) -> Result<(), Failure>,
) -> Result<Generated, Failure> {
    let start = Instant::now();
    let vocab = &engine.vocab;
    let mut streamer = Streamer::new().show_special(request.ignore_end);
    let mut stops = StopStrings::new(request.stop).map_err(|error| Failure::Usage(error.to_string()))?;
    let mut made = Generated {
        tokens: Vec::new(),
        text: String::new(),
        end: End::Length,
        first: Duration::ZERO,
        speed: Speed::default(),
    };
    request.prompt.iter().for_each(|token| sampler.accept(*token));
    let mut pending: &[Token] = request.prompt;
    let mut one;
    while made.tokens.len() < request.limit {
        if context.position() + pending.len() > context.limit() && !made.tokens.is_empty() && !request.shifts
        {
            made.end = End::Context;
            break;
        }
        let before = Instant::now();
        let logits = context.evaluate(pending, Wanted::Last).map_err(|error| engine.failure(error))?;
        made.speed.add(pending.len(), before.elapsed());
        let choice = sampler.sample(logits.row(0)).map_err(|error| Failure::Machine(error.to_string()))?;
        if made.tokens.is_empty() {
            made.first = start.elapsed();
        }
        if vocab.is_end_of_generation(choice.token) && !request.ignore_end {
            made.end = End::Model;
            break;
        }
        made.tokens.push(choice.token);
        let passed = stops.push(streamer.push(vocab, choice.token));
        made.text.push_str(passed.text);
        show(passed.text)?;
        if passed.stopped_by.is_some() {
            made.end = End::Stop;
            return Ok(made);
        }
        one = [choice.token];
        pending = &one;
    }
    let rest = stops.push(streamer.finish());
    let mut last = rest.text.to_owned();
    if rest.stopped_by.is_some() {
        made.end = End::Stop;
    } else {
        last.push_str(stops.finish());
    }
    made.text.push_str(&last);
    show(&last)?;
    Ok(made)
}
