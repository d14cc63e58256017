//! Answers of one request, as they come: read into parts, told in the words of an interface.
//!
//! Invariants: nothing is collected for a client that reads as the answer comes; whatever interface it is, its stream is made
//! piece by piece of the same [`Told`] parts. A stream begins with the first part of the answer, so that what fails before can be told by a
//! status; but if nothing comes for as long as [`Config::silence`] says, it begins without one, and from then on a stream of events never
//! says nothing for longer than that.
//!
//! [`Config::silence`]: crate::Config::silence

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use oxcart_llm::engine::{End, Report};
use oxcart_llm::text::{Answer, AnswerEvent, AnswerParser, Token};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use crate::error::ApiError;
use crate::models::Lease;
use crate::reply::{self, Pieces, Reply, StreamKind};
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

impl Told {
    /// What it completes, and how the choice ended if it has. A likelihood is noted first: it goes with these parts.
    pub(crate) fn into_parts(self, note: impl FnOnce(Likelihood)) -> (Vec<AnswerEvent>, Option<Ended>) {
        match self {
            Told::Token { likelihood, parts, .. } => {
                likelihood.map(note);
                (parts, None)
            }
            Told::Ended { parts, ended } => (parts, Some(ended)),
        }
    }
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
    /// Instead of everything, where a stream began before there was an answer.
    fn refuse(error: &ApiError, out: &mut Vec<u8>)
    where
        Self: Sized;
    /// In a stream of events that has begun, to show that it goes on: a comment, which every reader passes over.
    fn ping(&self, out: &mut Vec<u8>) {
        write_comment(out);
    }
}

fn write_comment(out: &mut Vec<u8>) {
    out.extend_from_slice(b":\n\n");
}

/// Answers that do not exist yet: their model is loaded, or they wait for their turn, or their prompts are computed.
type Beginning = Pin<Box<dyn Future<Output = Result<Answers, ApiError>> + Send>>;

/// What makes the script of answers.
type Writing<S> = Box<dyn FnOnce(&Answers) -> S + Send>;

/// A stream of answers in the words of an interface. What fails within `silence` is an error; what fails later is told in the stream.
pub(crate) async fn stream<S: Script + 'static>(
    kind: StreamKind,
    silence: Duration,
    begin: impl Future<Output = Result<Answers, ApiError>> + Send + 'static,
    script: impl FnOnce(&Answers) -> S + Send + 'static,
) -> Result<Reply, ApiError> {
    let mut begin: Beginning = Box::pin(begin);
    let state = match tokio::time::timeout(silence, &mut begin).await {
        Ok(answers) => {
            let answers = answers?;
            let script = script(&answers);
            Progress::Beginning(answers, script)
        }
        Err(_) => Progress::Waiting(begin, Box::new(script)),
    };
    let first = Instant::now().checked_add(silence).filter(|_| kind == StreamKind::Events);
    let pings = first.map(|first| {
        let mut pings = interval_at(first, silence.max(Duration::from_millis(1)));
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        pings
    });
    Ok(reply::stream(kind, Telling { state, pings }))
}

/// How far a stream is.
enum Progress<S> {
    Waiting(Beginning, Writing<S>),
    Beginning(Answers, S),
    Running(Answers, S),
    Over,
}

struct Telling<S> {
    state: Progress<S>,
    /// None where nothing can be said that means nothing: each line of JSON is part of the answer.
    pings: Option<Interval>,
}

impl<S: Script> Telling<S> {
    /// Tells whatever is there already, in one piece; ready at the end.
    fn poll_told(&mut self, context: &mut Context<'_>, out: &mut Vec<u8>) -> Poll<()> {
        loop {
            self.state = match std::mem::replace(&mut self.state, Progress::Over) {
                Progress::Over => return Poll::Ready(()),
                Progress::Waiting(mut begin, script) => match begin.as_mut().poll(context) {
                    Poll::Ready(Ok(answers)) => {
                        let script = script(&answers);
                        Progress::Beginning(answers, script)
                    }
                    Poll::Ready(Err(error)) => {
                        S::refuse(&error, out);
                        Progress::Over
                    }
                    Poll::Pending => {
                        self.state = Progress::Waiting(begin, script);
                        return Poll::Pending;
                    }
                },
                Progress::Beginning(answers, mut script) => {
                    script.begin(out);
                    Progress::Running(answers, script)
                }
                Progress::Running(mut answers, mut script) => match answers.poll_next(context) {
                    Poll::Ready(Some(Ok((choice, told)))) => {
                        script.tell(choice, told, out);
                        Progress::Running(answers, script)
                    }
                    Poll::Ready(Some(Err(error))) => {
                        script.fail(&error, out);
                        Progress::Over
                    }
                    Poll::Ready(None) => {
                        script.end(out);
                        Progress::Over
                    }
                    Poll::Pending => {
                        self.state = Progress::Running(answers, script);
                        return Poll::Pending;
                    }
                },
            };
        }
    }
}

impl<S: Script> Pieces for Telling<S> {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut out = Vec::new();
        let told = self.poll_told(context, &mut out);
        if !out.is_empty() {
            self.pings.iter_mut().for_each(Interval::reset);
            return Poll::Ready(Some(out.into()));
        }
        if told.is_ready() {
            return Poll::Ready(None);
        }
        let Some(pings) = &mut self.pings else { return Poll::Pending };
        ready!(pings.poll_tick(context));
        match &self.state {
            Progress::Running(_, script) => script.ping(&mut out),
            _ => write_comment(&mut out),
        }
        Poll::Ready(Some(out.into()))
    }
}
