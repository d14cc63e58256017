//! Answers of one request, as they come: read into parts, told in the words of an interface.
//!
//! Invariant: nothing is collected for a client that reads as the answer comes; whatever interface it is, its stream is made
//! piece by piece of the same [`Told`] parts.

use std::future::poll_fn;
use std::task::{Context, Poll};

use bytes::Bytes;
use oxcart_llm::engine::{End, Report};
use oxcart_llm::text::{Answer, AnswerEvent, AnswerParser, Token};

use crate::error::ApiError;
use crate::models::Lease;
use crate::reply::Pieces;
use crate::service::{Update, Updates};

/// A token of an answer, and how likely it was.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Likelihood {
    pub(crate) token: Token,
    pub(crate) logprob: f32,
    pub(crate) alternatives: Vec<(Token, f32)>,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ended {
    pub(crate) end: End,
    /// Which stop string came.
    pub(crate) stopped_by: Option<usize>,
    pub(crate) report: Report,
    /// Tokens of the answer that were reasoning.
    pub(crate) reasoning_tokens: usize,
    /// Whether tools are called.
    pub(crate) calls: bool,
}

/// What is told of one choice.
#[derive(Debug)]
pub(crate) enum Told {
    /// A token came, with what it completes.
    Token { token: Token, likelihood: Option<Likelihood>, parts: Vec<AnswerEvent>, reused_tokens: usize },
    /// It ended, with what was held back.
    Ended { parts: Vec<AnswerEvent>, ended: Ended },
}

/// A choice that is being made.
#[derive(Debug)]
struct Choice {
    updates: Updates,
    /// None where the answer is nothing but text.
    parser: Option<AnswerParser>,
    reasoning_tokens: usize,
    /// Tokens of which it is not known yet whether they are.
    held_tokens: usize,
    calls: bool,
    has_ended: bool,
}

impl Choice {
    /// What a text completes.
    fn read(&mut self, text: String, is_last: bool) -> Vec<AnswerEvent> {
        let parts = match &mut self.parser {
            None if text.is_empty() => Vec::new(),
            None => vec![AnswerEvent::Text(text)],
            Some(parser) => {
                let mut parts = parser.push(&text);
                if is_last {
                    parts.extend(parser.finish());
                }
                parts
            }
        };
        self.calls |= parts.iter().any(|part| matches!(part, AnswerEvent::ToolCallStart { .. }));
        parts
    }

    fn told(&mut self, update: Update) -> Result<Told, ApiError> {
        match update {
            Update::Token(token) => {
                let parts = self.read(token.text, false);
                self.held_tokens += 1;
                if let Some(part) = parts.first() {
                    let held = std::mem::take(&mut self.held_tokens);
                    self.reasoning_tokens += if matches!(part, AnswerEvent::Reasoning(_)) { held } else { 0 };
                }
                let likelihood = token.logprob.map(|logprob| Likelihood {
                    token: token.token,
                    logprob,
                    alternatives: token.alternatives,
                });
                let reused_tokens = token.reused_tokens;
                Ok(Told::Token { token: token.token, likelihood, parts, reused_tokens })
            }
            Update::Finished { end, text, stopped_by, report } => {
                let parts = self.read(text, true);
                self.has_ended = true;
                let Choice { reasoning_tokens, calls, .. } = *self;
                Ok(Told::Ended { parts, ended: Ended { end, stopped_by, report, reasoning_tokens, calls } })
            }
            Update::Failed(failure) => {
                self.has_ended = true;
                Err(failure.into())
            }
        }
    }
}

/// Answers as they come. Dropping them ends their requests.
#[derive(Debug)]
pub(crate) struct Answers {
    pub(crate) model: Lease,
    /// Tokens of the first prompt.
    prompt_tokens: usize,
    choices: Vec<Choice>,
    /// What came first.
    first: Option<(usize, Told)>,
    /// The choice to look at next, so that none is forgotten.
    next: usize,
}

/// An answer that is complete.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) answer: Answer,
    pub(crate) tokens: Vec<Token>,
    pub(crate) likelihoods: Vec<Likelihood>,
    pub(crate) ended: Ended,
}

impl Answers {
    /// Waits until the first of them has something to tell.
    pub(crate) async fn begin(
        model: Lease,
        prompt_tokens: usize,
        updates: Vec<Updates>,
        parsers: Vec<Option<AnswerParser>>,
    ) -> Result<Answers, ApiError> {
        let choices = updates
            .into_iter()
            .zip(parsers)
            .map(|(updates, parser)| Choice {
                updates,
                parser,
                reasoning_tokens: 0,
                held_tokens: 0,
                calls: false,
                has_ended: false,
            })
            .collect();
        let mut answers = Answers { model, prompt_tokens, choices, first: None, next: 0 };
        answers.first = answers.next().await?;
        Ok(answers)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.choices.len()
    }

    /// Tokens of the first prompt, and how many of them were held already.
    pub(crate) fn prompt(&self) -> (usize, usize) {
        let reused = match &self.first {
            Some((_, Told::Token { reused_tokens, .. })) => *reused_tokens,
            Some((_, Told::Ended { ended, .. })) => ended.report.reused_tokens,
            None => 0,
        };
        (self.prompt_tokens, reused)
    }

    /// What is told next, and of which choice; `None` when all have ended. After an error there is nothing more.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<(usize, Told), ApiError>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(first)));
        }
        let (count, next) = (self.choices.len(), self.next);
        for at in (0..count).map(|offset| (next + offset) % count) {
            let choice = &mut self.choices[at];
            if choice.has_ended {
                continue;
            }
            if let Poll::Ready(update) = choice.updates.poll_next(context) {
                self.next = at + 1;
                let Some(update) = update else {
                    choice.has_ended = true;
                    continue;
                };
                let told = choice.told(update);
                if told.is_err() {
                    // The others are of no use to one who is told of an error.
                    self.choices.clear();
                }
                return Poll::Ready(Some(told.map(|told| (at, told))));
            }
        }
        match self.choices.iter().all(|choice| choice.has_ended) {
            true => Poll::Ready(None),
            false => Poll::Pending,
        }
    }

    /// What is told next, and of which choice; `None` when all have ended.
    pub(crate) async fn next(&mut self) -> Result<Option<(usize, Told)>, ApiError> {
        poll_fn(|context| self.poll_next(context)).await.transpose()
    }

    /// All of them, when they are complete.
    pub(crate) async fn collect(mut self) -> Result<Vec<Whole>, ApiError> {
        let mut open = Vec::new();
        open.resize_with(self.len(), || (Answer::default(), Vec::new(), Vec::new(), None));
        while let Some((at, told)) = self.next().await? {
            let (answer, tokens, likelihoods, end) = &mut open[at];
            let parts = match told {
                Told::Token { token, likelihood, parts, .. } => {
                    tokens.push(token);
                    likelihoods.extend(likelihood);
                    parts
                }
                Told::Ended { parts, ended } => {
                    *end = Some(ended);
                    parts
                }
            };
            parts.iter().for_each(|part| answer.add(part));
        }
        let whole = open.into_iter().map(|(answer, tokens, likelihoods, end)| {
            Some(Whole { answer, tokens, likelihoods, ended: end? })
        });
        let all: Option<Vec<Whole>> = whole.collect();
        all.ok_or_else(|| ApiError::new(crate::error::Kind::Internal, "an answer ended unexpectedly"))
    }

    /// The one that there is, when it is complete.
    pub(crate) async fn whole(self) -> Result<Whole, ApiError> {
        let one = self.collect().await?.pop();
        one.ok_or_else(|| ApiError::new(crate::error::Kind::Internal, "there is no answer"))
    }

    /// All of them as a stream in the words of an interface.
    pub(crate) fn tell(self, script: impl Script + 'static) -> impl Pieces {
        Telling { answers: self, script, state: Progress::Beginning }
    }
}

/// How an interface tells of answers: each call appends what is to be sent.
pub(crate) trait Script: Send {
    /// Before all else.
    fn begin(&mut self, out: &mut Vec<u8>);
    /// What is told of a choice.
    fn tell(&mut self, choice: usize, told: Told, out: &mut Vec<u8>);
    /// After all choices have ended.
    fn end(&mut self, out: &mut Vec<u8>);
    /// Instead of the rest.
    fn fail(&mut self, error: &ApiError, out: &mut Vec<u8>);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Beginning,
    Running,
    Over,
}

struct Telling<S> {
    answers: Answers,
    script: S,
    state: Progress,
}

impl<S: Script> Pieces for Telling<S> {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut out = Vec::new();
        if self.state == Progress::Beginning {
            self.state = Progress::Running;
            self.script.begin(&mut out);
        }
        // Whatever is there already goes out in one piece.
        while self.state == Progress::Running {
            match self.answers.poll_next(context) {
                Poll::Ready(Some(Ok((choice, told)))) => self.script.tell(choice, told, &mut out),
                Poll::Ready(Some(Err(error))) => {
                    self.script.fail(&error, &mut out);
                    self.state = Progress::Over;
                }
                Poll::Ready(None) => {
                    self.script.end(&mut out);
                    self.state = Progress::Over;
                }
                Poll::Pending => break,
            }
        }
        match (out.is_empty(), self.state) {
            (false, _) => Poll::Ready(Some(out.into())),
            (true, Progress::Over) => Poll::Ready(None),
            (true, _) => Poll::Pending,
        }
    }
}
