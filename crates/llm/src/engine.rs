//! Requests in, text out: a runner that is driven step by step.
//!
//! An [`Engine`] takes requests, computes all of them together and hands out [`Event`]s. It advances only in
//! [`Engine::step`], by the clock it was given; it neither sleeps nor starts threads, so that a server, a command and a
//! simulation can all drive it.
//!
//! Invariants: a request's tokens are its log: whatever devices hold of it can be computed again from them, and is, when the
//! room was needed for others or devices were lost or came back ([`Recover`]). What a request is answered does not depend on the requests beside it.
//! Every request ends with one [`Event::Finished`] or [`Event::Failed`], and nothing is handed out about it afterwards.

mod answer;
mod job;
mod parked;
mod recover;
mod request;
mod save;
mod schedule;
mod speculate;

pub use answer::Answer;
pub use recover::{Recover, Recovery, Return};
pub use request::{AtLimit, Cancel, End, Event, Report, Request, RequestId, TokenEvent};
pub use speculate::{Draft, Speculation};

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::model::Error;
use crate::runner::{Runner, SequenceId};
use crate::text::{ConstrainError, Constraint, Constraints, Grammar, SampleError, StopError, Vocab};
use job::Job;
use parked::Parked;
use recover::Interruption;

/// Why a request was refused or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// What was asked for cannot be done.
    #[error("{0}")]
    Refused(String),
    /// The model, its state or a device.
    #[error(transparent)]
    Model(#[from] Error),
    /// No token could be chosen.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// The stop strings.
    #[error(transparent)]
    Stop(#[from] StopError),
    /// The form that the answer shall have.
    #[error(transparent)]
    Constrain(#[from] ConstrainError),
}

/// How an engine shares its steps out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// Tokens of prompts that a step computes at most while others wait for their next token.
    pub prompt_tokens_beside: usize,
    /// Requests that may wait at a time.
    pub queue: usize,
}

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions { prompt_tokens_beside: 128, queue: 1024 }
    }
}

/// The time since some moment.
type Clock = Box<dyn Fn() -> Duration + Send>;

/// A model that answers requests.
pub struct Engine {
    runner: Runner,
    vocab: Arc<Vocab>,
    /// Made for the first grammar.
    constraints: Option<Constraints>,
    clock: Clock,
    options: EngineOptions,
    speculation: Speculation,
    /// By the order in which they came.
    jobs: BTreeMap<RequestId, Job>,
    /// Sequences of requests that have ended, kept for those that go on from there; the longest unused first.
    parked: VecDeque<Parked>,
    events: VecDeque<Event>,
    next_id: u64,
    /// Whether the last step of prompts was for the shortest, where steps are not divided.
    shortest_first: bool,
    /// What finds other devices when one is lost or comes back.
    recover: Option<Box<dyn Recover>>,
    /// Since a device was lost or came back, until all requests go on.
    interruption: Option<Interruption>,
    /// By device, how often it has waited in vain since a token was chosen.
    in_vain: BTreeMap<String, usize>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("jobs", &self.jobs.len())
            .field("runner", &self.runner)
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// An engine with a clock of this machine.
    pub fn new(runner: Runner, vocab: Arc<Vocab>, options: EngineOptions) -> Engine {
        let start = std::time::Instant::now();
        Engine::with_clock(runner, vocab, options, Box::new(move || start.elapsed()))
    }

    /// An engine with any clock.
    pub fn with_clock(runner: Runner, vocab: Arc<Vocab>, options: EngineOptions, clock: Clock) -> Engine {
        Engine {
            runner,
            vocab,
            constraints: None,
            clock,
            options,
            speculation: Speculation::None,
            jobs: BTreeMap::new(),
            parked: VecDeque::new(),
            events: VecDeque::new(),
            next_id: 1,
            shortest_first: false,
            recover: None,
            interruption: None,
            in_vain: BTreeMap::new(),
        }
    }

    /// What computes.
    pub fn runner(&self) -> &Runner {
        &self.runner
    }

    /// What computes, for everything that is not a request. Sequences of requests are the engine's own.
    pub fn runner_mut(&mut self) -> &mut Runner {
        &mut self.runner
    }

    /// Its vocabulary.
    pub fn vocab(&self) -> &Arc<Vocab> {
        &self.vocab
    }

    /// The form of an answer by a grammar, which is compiled unless it was among the last few.
    ///
    /// The first call prepares the vocabulary, and a large grammar takes a while; a program that cannot wait makes
    /// [`Constraints`] of its own and compiles elsewhere.
    pub fn compile(&mut self, grammar: &Grammar) -> Result<Constraint, ConstrainError> {
        let constraints = match self.constraints.take() {
            Some(constraints) => constraints,
            None => Constraints::new(&self.vocab)?,
        };
        self.constraints.insert(constraints).compile(grammar)
    }

    /// The time by its clock, which deadlines are told by.
    pub fn now(&self) -> Duration {
        (self.clock)()
    }

    /// Takes a request on; what becomes of it is told by events.
    pub fn submit(&mut self, mut request: Request) -> Result<RequestId, RequestError> {
        self.check(&mut request)?;
        let waiting = self.jobs.values().filter(|job| job.is_waiting()).count();
        if waiting >= self.options.queue {
            return Err(RequestError::Refused(format!("{waiting} requests are waiting already")));
        }
        let id = RequestId(self.next_id);
        let mut job = Job::new(id, request, (self.clock)())?;
        job.set_up_guesses(&self.speculation);
        self.next_id += 1;
        self.jobs.insert(id, job);
        Ok(id)
    }

    /// Refuses what the model cannot answer.
    fn check(&self, request: &mut Request) -> Result<(), RequestError> {
        let limit = self.runner.options().context;
        if request.prompt.is_empty() {
            return Err(RequestError::Refused("the prompt is empty".into()));
        }
        if let Some(source) = self.runner.model().hyper().source
            && source.of(&request.prompt).is_none()
        {
            // The prompt is what is read; what is written begins now.
            request.prompt.push(source.start);
        }
        if request.prompt.len() > limit {
            let (asked, trained) = (request.prompt.len(), self.runner.model().hyper().context);
            let error = Error::ContextFull { used: 0, asked, limit, trained };
            return Err(error.into());
        }
        let vocabulary = self.runner.model().hyper().vocabulary;
        if let Some(&token) = request.prompt.iter().find(|&&token| token as usize >= vocabulary) {
            return Err(Error::NoSuchToken { token, vocabulary }.into());
        }
        if let Some(constraint) = &request.constraint
            && constraint.vocabulary() != self.vocab.len()
        {
            return Err(RequestError::Refused("the constraint was made for another vocabulary".into()));
        }
        Ok(())
    }

    /// Whether there are requests that have not ended, those that were set aside included.
    pub fn is_busy(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// What happened, in order.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Ends a request; says whether there was one.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        match self.jobs.remove(&id) {
            Some(job) => {
                self.finish(job, End::Cancelled);
                true
            }
            None => false,
        }
    }

    /// Leaves a request out of steps until it is [taken up](Engine::take_up) again; then it goes on with the very next token. What
    /// was computed is kept for it until the room is needed. Says whether there is such a request.
    pub fn set_aside(&mut self, id: RequestId) -> bool {
        self.end_guesses(id);
        self.wait_no_longer_for(id);
        let Some(job) = self.jobs.get_mut(&id) else { return false };
        job.is_aside = true;
        if let Some(sequence) = job.sequence.take() {
            let only_for = (!self.runner.is_exact(sequence)).then_some(id);
            self.parked.push_back(Parked { sequence, only_for });
        }
        true
    }

    /// Takes up a request that was set aside; says whether there is one.
    pub fn take_up(&mut self, id: RequestId) -> bool {
        let job = self.jobs.get_mut(&id);
        job.is_some_and(|job| std::mem::take(&mut job.is_aside))
    }

    /// Forgets everything that is kept for requests to come.
    pub fn forget_parked(&mut self) {
        while let Some(parked) = self.parked.pop_front() {
            self.close(parked.sequence);
        }
    }

    fn close(&mut self, sequence: SequenceId) {
        // It is open: the engine alone closes its sequences, and each once.
        let closed = self.runner.close(sequence);
        debug_assert!(closed.is_ok(), "{sequence} was closed before");
    }

    /// Tells how a request ended and keeps what devices hold of it.
    fn finish(&mut self, mut job: Job, end: End) {
        self.end_guesses(job.id);
        match job.sequence.take() {
            Some(sequence) if self.runner.is_exact(sequence) => {
                self.parked.push_back(Parked { sequence, only_for: None });
            }
            // Keys that were moved, or came from a file, are not what another request with the same tokens would compute.
            Some(sequence) => self.close(sequence),
            None => {}
        }
        self.events.push_back(job.finished(end, (self.clock)()));
    }

    fn fail(&mut self, mut job: Job, error: RequestError) {
        self.end_guesses(job.id);
        if let Some(sequence) = job.sequence.take() {
            self.close(sequence);
        }
        self.events.push_back(Event::Failed { request: job.id, error });
    }
}
