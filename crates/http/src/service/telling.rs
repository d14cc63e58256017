//! What a service tells of itself: events as they happen, and how things are.

use std::time::Duration;

use oxcart_llm::engine::{End, Recovery, Report, Return};
use oxcart_llm::runner::Loss;

use super::interruptions::Interruption;
use super::queue::Client;

/// A request of a service, from its submission on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub(super) u64);

impl Ticket {
    /// A number that no other request of the service has.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// What happens in a service.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A request waits.
    Queued {
        /// Which.
        ticket: Ticket,
        /// Whose.
        client: Client,
        /// How long its prompt is.
        prompt_tokens: usize,
    },
    /// A request is computed from now on.
    Started {
        /// Which.
        ticket: Ticket,
        /// How long it had waited.
        waited: Duration,
    },
    /// A step was computed.
    Step {
        /// Requests that took part, or wait for memory.
        running: usize,
        /// Requests that wait for their turn.
        waiting: usize,
        /// Tokens that were computed.
        computed: u64,
        /// How long it took.
        time: Duration,
    },
    /// A request ended.
    Finished {
        /// Which.
        ticket: Ticket,
        /// Why.
        end: End,
        /// How it came about.
        report: Report,
    },
    /// A request ended with an error.
    Failed {
        /// Which.
        ticket: Ticket,
        /// Why.
        reason: String,
    },
    /// A device was lost; requests wait for the model to be on others.
    Lost(Loss),
    /// Devices came back; requests wait for the model to be on them, too.
    Returned(Return),
    /// Requests go on after either.
    Recovered(Recovery),
}

/// A request that is computed.
#[derive(Clone, Debug)]
pub struct Running {
    /// Which.
    pub ticket: Ticket,
    /// Whose.
    pub client: Client,
    /// How long its prompt is.
    pub prompt_tokens: usize,
    /// Tokens of its answer so far.
    pub answer_tokens: usize,
    /// Tokens that its answer may have.
    pub limit: usize,
}

/// What a service has done since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Requests that were answered to the end.
    pub finished: u64,
    /// Requests whose client went away, or that were stopped otherwise.
    pub cancelled: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Requests that were not taken on because too many waited.
    pub refused: u64,
    /// Tokens of prompts.
    pub prompt_tokens: u64,
    /// Tokens of prompts that were held already.
    pub reused_tokens: u64,
    /// Tokens of answers.
    pub answer_tokens: u64,
    /// Tokens that were guessed, and of these, those that were right.
    pub guessed_tokens: u64,
    /// Guesses that were right.
    pub right_guesses: u64,
    /// Steps.
    pub steps: u64,
    /// Requests in all steps together; by steps, this is how wide batches are.
    pub step_requests: u64,
    /// Tokens that were computed in all steps.
    pub computed_tokens: u64,
    /// Time in steps.
    pub step_time: Duration,
    /// Time that requests waited for their turn.
    pub waited: Duration,
    /// Time to first tokens, from when requests began to be computed.
    pub prompt_time: Duration,
    /// Time from first tokens to last.
    pub answer_time: Duration,
}

impl std::ops::Add for Totals {
    type Output = Totals;

    fn add(self, other: Totals) -> Totals {
        Totals {
            finished: self.finished + other.finished,
            cancelled: self.cancelled + other.cancelled,
            failed: self.failed + other.failed,
            refused: self.refused + other.refused,
            prompt_tokens: self.prompt_tokens + other.prompt_tokens,
            reused_tokens: self.reused_tokens + other.reused_tokens,
            answer_tokens: self.answer_tokens + other.answer_tokens,
            guessed_tokens: self.guessed_tokens + other.guessed_tokens,
            right_guesses: self.right_guesses + other.right_guesses,
            steps: self.steps + other.steps,
            step_requests: self.step_requests + other.step_requests,
            computed_tokens: self.computed_tokens + other.computed_tokens,
            step_time: self.step_time + other.step_time,
            waited: self.waited + other.waited,
            prompt_time: self.prompt_time + other.prompt_time,
            answer_time: self.answer_time + other.answer_time,
        }
    }
}

impl Totals {
    /// How long a request takes, as far as is known.
    pub(super) fn mean_time(&self) -> Duration {
        let count = u32::try_from(self.finished.max(1)).unwrap_or(u32::MAX);
        (self.prompt_time + self.answer_time) / count
    }

    pub(super) fn count(&mut self, end: End, report: &Report) {
        match end {
            End::Cancelled => self.cancelled += 1,
            _ => self.finished += 1,
        }
        self.prompt_tokens += report.prompt_tokens as u64;
        self.reused_tokens += report.reused_tokens as u64;
        self.answer_tokens += report.answer_tokens as u64;
        self.guessed_tokens += report.guessed_tokens as u64;
        self.right_guesses += report.right_guesses as u64;
        self.prompt_time += report.prompt_time;
        self.answer_time += report.answer_time;
    }
}

/// How things are.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Requests that are computed.
    pub running: Vec<Running>,
    /// Requests that had begun, made way for those of others, and go on later.
    pub aside: Vec<Running>,
    /// How many wait, those that made way included.
    pub waiting: usize,
    /// What was done so far.
    pub totals: Totals,
    /// Why the last step failed, if it did.
    pub trouble: Option<String>,
    /// Losses and returns of devices, the last few.
    pub interruptions: Vec<Interruption>,
    /// Whether it takes requests.
    pub is_open: bool,
}
