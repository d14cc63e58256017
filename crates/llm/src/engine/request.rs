//! What is asked of an engine, and what it tells.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::RequestError;
use super::recover::{Recovery, Return};
use crate::runner::Loss;
use crate::text::{Constraint, SamplerSettings, Token};

/// A request of an engine. It means nothing to any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub(super) u64);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {}", self.0)
    }
}

/// What to do when the context is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AtLimit {
    /// End the answer.
    #[default]
    End,
    /// Forget about half of the tokens after the first `keep`, and go on.
    Shift {
        /// Tokens that are never forgotten; a few more are kept, too.
        keep: usize,
        /// Whether the tokens that are left are computed again, rather than moved.
        exact: bool,
    },
}

/// Stops a request from anywhere.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Ends the request at the engine's next step.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What to generate.
#[derive(Clone, Debug)]
pub struct Request {
    /// The tokens that it follows.
    pub prompt: Vec<Token>,
    /// How tokens are chosen.
    pub sampler: SamplerSettings,
    /// Tokens at most.
    pub limit: usize,
    /// Texts at which it ends; they are not handed out.
    pub stop: Vec<String>,
    /// The form that the answer shall have; [`Engine::compile`](super::Engine::compile) makes one of a grammar. An answer that
    /// ends by itself ([`End::Model`], [`End::Complete`]) has it, others have the beginning of it.
    pub constraint: Option<Constraint>,
    /// Goes on after tokens that end a text, and hands special tokens out as text. An answer with a form ends where that does.
    pub ignore_end: bool,
    /// Control tokens that are handed out as text, such as those around calls of tools:
    /// [`ChatFormat::shown_tokens`](crate::text::ChatFormat::shown_tokens).
    pub shown: Vec<Token>,
    /// What to do when the context is full.
    pub at_limit: AtLimit,
    /// When it must have ended, by the engine's clock.
    pub deadline: Option<Duration>,
    /// Stops it from anywhere.
    pub cancel: Cancel,
    /// Beginnings of prompts are computed once for all requests of the same scope, so those may notice that another one had the same
    /// beginning; others do not.
    pub scope: u64,
}

impl Request {
    /// An answer to a prompt, with defaults for the rest.
    pub fn new(prompt: Vec<Token>) -> Request {
        Request {
            prompt,
            sampler: SamplerSettings::default(),
            limit: usize::MAX,
            stop: Vec::new(),
            constraint: None,
            ignore_end: false,
            shown: Vec::new(),
            at_limit: AtLimit::End,
            deadline: None,
            cancel: Cancel::default(),
            scope: 0,
        }
    }
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The model said so.
    Model,
    /// It has the form that was asked for, and nothing can follow.
    Complete,
    /// A stop string came.
    Stop,
    /// There are as many tokens as were asked for.
    Length,
    /// The context is full.
    Context,
    /// It was cancelled.
    Cancelled,
    /// Its time was over.
    Deadline,
}

impl End {
    /// What programs call it.
    pub const fn name(self) -> &'static str {
        match self {
            End::Model => "stop",
            End::Complete => "complete",
            End::Stop => "stop_string",
            End::Length => "length",
            End::Context => "context",
            End::Cancelled => "cancelled",
            End::Deadline => "deadline",
        }
    }
}

/// A token of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenEvent {
    /// Which request.
    pub request: RequestId,
    /// The token.
    pub token: Token,
    /// Text that is complete with it; what may become a stop string is held back.
    pub text: String,
    /// The natural logarithm of its probability by the model alone, if the sampler is to tell
    /// ([`SamplerSettings::logprobs`]).
    pub logprob: Option<f32>,
    /// The likeliest tokens in its place, and theirs; as many as the sampler is to tell.
    pub alternatives: Vec<(Token, f32)>,
    /// Tokens of the prompt that were held already and not computed.
    pub reused_tokens: usize,
}

/// How an answer came about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, how many were held already and not computed.
    pub reused_tokens: usize,
    /// Tokens of the answer.
    pub answer_tokens: usize,
    /// Tokens that were guessed and computed along; see [`Speculation`](super::Speculation).
    pub guessed_tokens: usize,
    /// Of these, how many turned out to be the answer's.
    pub right_guesses: usize,
    /// Before anything was computed.
    pub waited: Duration,
    /// From then to the first token.
    pub prompt_time: Duration,
    /// From the first token to the last.
    pub answer_time: Duration,
}

impl Report {
    /// Tokens of the prompt per second, if any were computed.
    pub fn prompt_rate(&self) -> Option<f64> {
        rate(self.prompt_tokens - self.reused_tokens, self.prompt_time)
    }

    /// Tokens of the answer per second, if there were any after the first.
    pub fn answer_rate(&self) -> Option<f64> {
        rate(self.answer_tokens.saturating_sub(1), self.answer_time)
    }
}

fn rate(tokens: usize, time: Duration) -> Option<f64> {
    (tokens > 0 && !time.is_zero()).then(|| tokens as f64 / time.as_secs_f64())
}

/// What an engine tells.
#[derive(Debug)]
pub enum Event {
    /// A request got a token.
    Token(TokenEvent),
    /// A request ended as it should.
    Finished {
        /// Which request.
        request: RequestId,
        /// Why.
        end: End,
        /// Text that was held back until now.
        text: String,
        /// Which of the stop strings came, if it ended at one.
        stopped_by: Option<usize>,
        /// How it came about.
        report: Report,
    },
    /// A request ended with an error; the others go on.
    Failed {
        /// Which request.
        request: RequestId,
        /// Why.
        error: RequestError,
    },
    /// A device was lost, or what it did. Requests wait for other devices, or for these, and go on with the very next token.
    Lost(Loss),
    /// A device of the draft model was lost. Answers go on without guesses.
    DraftLost {
        /// Its name.
        device: String,
        /// What is said about it.
        reason: String,
    },
    /// Devices came back, and the model moves to them. Requests wait, and go on with the very next token.
    Returned(Return),
    /// All requests that were interrupted by a loss or a return have gone on or ended.
    Recovered(Recovery),
}

impl Event {
    /// The request that it is about, if it is about one.
    pub fn request(&self) -> Option<RequestId> {
        match self {
            Event::Token(token) => Some(token.request),
            Event::Finished { request, .. } | Event::Failed { request, .. } => Some(*request),
            Event::Lost(_) | Event::DraftLost { .. } | Event::Returned(_) | Event::Recovered(_) => None,
        }
    }
}
