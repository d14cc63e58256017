//! A request at work: its tokens so far, and what turns logits into more of them.
//!
//! Invariant: `tokens` is the prompt and the answer so far. Its last token is never computed before the next one is wanted, so
//! what is to be computed is what the sequence does not have yet.

use std::time::Duration;

use super::request::{End, Event, Report, Request, RequestId, TokenEvent};
use super::save::Saved;
use super::{RequestError, Speculation};
use crate::logits::{Known, Need};
use crate::model::Error;
use crate::runner::SequenceId;
use crate::text::{Choice, Constraint, Lookup, Sampler, StopStrings, Streamer, Token, TokenMask, Vocab};

pub(super) struct Job {
    pub(super) id: RequestId,
    pub(super) request: Request,
    pub(super) tokens: Vec<Token>,
    /// Where devices hold what was computed; none while it waits.
    pub(super) sequence: Option<SequenceId>,
    /// Whether it is in no step until it is taken up again.
    pub(super) is_aside: bool,
    sampler: Sampler,
    streamer: Streamer,
    stops: StopStrings,
    /// Which of them came.
    stopped_by: Option<usize>,
    /// After the tokens of the answer.
    constraint: Option<Constraint>,
    /// What the constraint allows next.
    mask: TokenMask,
    /// Guesses from what was said before, over `tokens`.
    lookup: Option<Lookup>,
    /// Guesses that were computed, and those of them that were right.
    guesses: [usize; 2],
    /// Tokens of the answer.
    made: usize,
    times: Times,
    pub(super) reused: Option<usize>,
}

#[derive(Clone, Copy, Default)]
struct Times {
    submitted: Duration,
    started: Option<Duration>,
    first: Option<Duration>,
    last: Option<Duration>,
}

impl Job {
    pub(super) fn new(id: RequestId, mut request: Request, now: Duration) -> Result<Job, RequestError> {
        let mut sampler = Sampler::new(request.sampler.clone())?;
        request.prompt.iter().for_each(|&token| sampler.accept(token));
        Ok(Job {
            id,
            tokens: request.prompt.clone(),
            sequence: None,
            is_aside: false,
            sampler,
            streamer: Streamer::new().show_special(request.ignore_end).show(request.shown.clone()),
            stops: StopStrings::new(&request.stop)?,
            stopped_by: None,
            constraint: request.constraint.take(),
            mask: TokenMask::default(),
            lookup: None,
            guesses: [0; 2],
            made: 0,
            times: Times { submitted: now, ..Times::default() },
            reused: None,
            request,
        })
    }

    /// What a file has of it beside a sequence that holds the first `computed` of its tokens.
    pub(super) fn saved(&self, computed: usize) -> Result<Saved, RequestError> {
        let is_whole = self.tokens.len() == self.request.prompt.len() + self.made;
        if self.constraint.is_some() && !is_whole {
            let why = "an answer of a given form cannot be saved after its beginning was forgotten";
            return Err(RequestError::Refused(why.into()));
        }
        Ok(Saved {
            prompt: self.request.prompt.len(),
            made: self.made,
            left: self.tokens[computed..].to_vec(),
            held_text: self.stops.held().to_owned(),
            held_bytes: self.streamer.held().to_vec(),
            sampler: self.sampler.clone(),
        })
    }

    /// A request that was saved, as far as it is the same; `computed` are the tokens of its sequence.
    pub(super) fn restored(
        id: RequestId,
        request: Request,
        computed: &[Token],
        saved: Saved,
        now: Duration,
    ) -> Result<Job, RequestError> {
        let refused = |why| Err(Error::SavedState(why).into());
        let tokens = [computed, &saved.left].concat();
        let prompt = request.prompt.len();
        let is_whole = tokens.len() == saved.prompt.saturating_add(saved.made);
        // After a part was forgotten, its length is all that is left to compare.
        if prompt != saved.prompt || is_whole && !tokens.starts_with(&request.prompt) {
            return refused("it was saved with another prompt");
        }
        if *saved.sampler.settings() != request.sampler {
            return refused("it was saved with other settings of the sampler");
        }
        if saved.made >= request.limit {
            return refused("its answer has as many tokens as are asked for");
        }
        let mut job = Job::new(id, request, now)?;
        if let Some(constraint) = &mut job.constraint {
            if !is_whole {
                return refused("its answer does not have the form that is asked for");
            }
            for &token in &tokens[prompt..] {
                constraint.accept(token)?;
            }
        }
        let is_held = job.streamer.push_bytes(&saved.held_bytes).is_empty();
        let passed = job.stops.push(&saved.held_text);
        if !is_held || !passed.text.is_empty() || passed.stopped_by.is_some() {
            return refused("it was saved with other stop strings");
        }
        Ok(Job { tokens, made: saved.made, sampler: saved.sampler, ..job })
    }

    /// Notes that it is being computed, with so many tokens of the prompt there already.
    pub(super) fn start(&mut self, sequence: SequenceId, reused: usize, now: Duration) {
        self.sequence = Some(sequence);
        self.times.started.get_or_insert(now);
        // When it is computed again because it had to make way, that is not its first start.
        self.reused.get_or_insert(reused);
    }

    /// Whether it waits for a sequence.
    pub(super) fn is_waiting(&self) -> bool {
        self.sequence.is_none() && !self.is_aside
    }

    /// What its tokens are chosen with.
    pub(super) fn sampler(&self) -> &Sampler {
        &self.sampler
    }

    /// Tokens of its answer so far.
    pub(super) fn made(&self) -> usize {
        self.made
    }

    /// How many tokens it may still get.
    pub(super) fn wants_more(&self) -> usize {
        self.request.limit.saturating_sub(self.made)
    }

    /// Begins, or ends, to guess from what was said before.
    pub(super) fn set_up_guesses(&mut self, speculation: &Speculation) {
        self.lookup = match speculation {
            Speculation::Lookup(settings) => {
                let mut lookup = Lookup::new(*settings);
                lookup.extend(&self.tokens);
                Some(lookup)
            }
            Speculation::None | Speculation::Draft(_) => None,
        };
    }

    /// What guesses from what was said before.
    pub(super) fn lookup(&mut self) -> Option<&mut Lookup> {
        self.lookup.as_mut()
    }

    /// Notes how guesses turned out.
    pub(super) fn settle(&mut self, guessed: usize, right: usize) {
        self.guesses[0] += guessed;
        self.guesses[1] += right;
        if let Some(lookup) = &mut self.lookup {
            lookup.settle(guessed, right);
        }
    }

    /// Whether its time is over or it was stopped.
    pub(super) fn is_over(&self, now: Duration) -> Option<End> {
        if self.request.cancel.is_set() {
            return Some(End::Cancelled);
        }
        self.request.deadline.is_some_and(|deadline| deadline <= now).then_some(End::Deadline)
    }

    /// How much has to be known of the logits that its next token, and those after so many guesses, are chosen by.
    pub(super) fn need(&self, guesses: usize) -> Need {
        match self.constraint {
            // Any token may be the one that the form allows.
            Some(_) => Need::All,
            None => self.sampler.need(guesses),
        }
    }

    /// Chooses the next token. `Some` if the answer ends with it.
    pub(super) fn advance(
        &mut self,
        known: Known<'_>,
        vocab: &Vocab,
        now: Duration,
        events: &mut impl Extend<Event>,
    ) -> Result<Option<End>, RequestError> {
        self.times.first.get_or_insert(now);
        self.times.last = Some(now);
        let must_end =
            |constraint: &Option<Constraint>| constraint.as_ref().is_some_and(Constraint::must_end);
        if must_end(&self.constraint) {
            // There are grammars that allow for no text at all.
            return Ok(Some(End::Complete));
        }
        let choice = self.choose(known)?;
        let is_end = match &self.constraint {
            Some(constraint) => constraint.is_finished(),
            None => vocab.is_end_of_generation(choice.token) && !self.request.ignore_end,
        };
        if is_end {
            return Ok(Some(End::Model));
        }
        self.tokens.push(choice.token);
        if let Some(lookup) = &mut self.lookup {
            lookup.push(choice.token);
        }
        self.made += 1;
        let passed = self.stops.push(self.streamer.push(vocab, choice.token));
        events.extend([Event::Token(TokenEvent {
            request: self.id,
            token: choice.token,
            text: passed.text.to_owned(),
            logprob: choice.logprob,
            alternatives: self.sampler.top_logprobs().to_vec(),
            reused_tokens: self.reused.unwrap_or(0),
        })]);
        self.stopped_by = passed.stopped_by;
        if passed.stopped_by.is_some() {
            return Ok(Some(End::Stop));
        }
        if must_end(&self.constraint) {
            return Ok(Some(End::Complete));
        }
        Ok((self.made >= self.request.limit).then_some(End::Length))
    }

    fn choose(&mut self, known: Known<'_>) -> Result<Choice, RequestError> {
        let (Some(constraint), Known::All(logits)) = (&mut self.constraint, known) else {
            debug_assert!(self.constraint.is_none(), "a form needs all logits");
            return Ok(self.sampler.sample_known(known)?);
        };
        constraint.mask(&mut self.mask)?;
        let choice = self.sampler.sample_masked(logits, &self.mask)?;
        constraint.accept(choice.token)?;
        Ok(choice)
    }

    /// The last event about it.
    pub(super) fn finished(mut self, end: End, now: Duration) -> Event {
        let (mut text, mut end) = (String::new(), end);
        if end != End::Stop {
            let rest = self.stops.push(self.streamer.finish());
            text.push_str(rest.text);
            self.stopped_by = rest.stopped_by;
            match rest.stopped_by {
                Some(_) => end = End::Stop,
                None => text.push_str(self.stops.finish()),
            }
        }
        let Times { submitted, started, first, last } = self.times;
        let started = started.unwrap_or(now);
        let first = first.unwrap_or(started);
        let report = Report {
            prompt_tokens: self.request.prompt.len(),
            reused_tokens: self.reused.unwrap_or(0),
            answer_tokens: self.made,
            guessed_tokens: self.guesses[0],
            right_guesses: self.guesses[1],
            waited: started.saturating_sub(submitted),
            prompt_time: first.saturating_sub(started),
            answer_time: last.unwrap_or(first).saturating_sub(first),
        };
        Event::Finished { request: self.id, end, text, stopped_by: self.stopped_by, report }
    }
}
