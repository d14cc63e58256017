//! Guesses at the next tokens of requests, which a step then checks along with the token it computes anyway.
//!
//! A guess is right if the sampler, asked in order, chooses the same token; the rest is taken back. Invariant: answers are
//! exactly what they are without guesses. Guesses are made only where taking them back is possible and needs nothing that
//! another request could use.

use std::collections::BTreeMap;

use super::job::Job;
use super::request::{Event, RequestId};
use super::{Engine, RequestError};
use crate::logits::Need;
use crate::model::Error;
use crate::runner::{Piece, Runner, SequenceId, Wanted};
use crate::text::{LookupSettings, Token, Vocab};

/// Tokens of a step, guesses and others, above which more of them make it too slow to pay off.
const MOST_TOKENS: usize = 24;

/// Where guesses come from.
#[derive(Debug, Default)]
pub enum Speculation {
    /// There are none.
    #[default]
    None,
    /// What followed the same words earlier in the request's own text.
    Lookup(LookupSettings),
    /// What a smaller model would say.
    Draft(Box<Draft>),
}

/// A smaller model with the same vocabulary, which reads along with every request.
#[derive(Debug)]
pub struct Draft {
    runner: Runner,
    most_guesses: usize,
    readers: BTreeMap<RequestId, Reader>,
}

/// What the smaller model knows of a request.
#[derive(Debug)]
struct Reader {
    sequence: SequenceId,
    /// How many guesses in a row are worth making, by what was right lately.
    reach: usize,
}

impl Draft {
    /// A smaller model that makes at most so many guesses at a time. Its tokens must mean what those of the engine mean.
    pub fn new(
        runner: Runner,
        vocab: &Vocab,
        engine: &Vocab,
        most_guesses: usize,
    ) -> Result<Draft, RequestError> {
        let differs =
            (0..vocab.len().max(engine.len()) as Token).find(|&at| vocab.text(at) != engine.text(at));
        if let Some(token) = differs {
            return Err(RequestError::Refused(format!(
                "the draft model has another vocabulary: token {token} is not the same"
            )));
        }
        Ok(Draft { runner, most_guesses, readers: BTreeMap::new() })
    }

    /// What computes the guesses.
    pub fn runner(&self) -> &Runner {
        &self.runner
    }

    /// Lets go of a request.
    fn forget(&mut self, id: RequestId) {
        if let Some(reader) = self.readers.remove(&id) {
            // It is open: this alone closes its sequences, and each once.
            let closed = self.runner.close(reader.sequence);
            debug_assert!(closed.is_ok(), "{} was closed before", reader.sequence);
        }
    }

    fn forget_all(&mut self) {
        let ids: Vec<RequestId> = self.readers.keys().copied().collect();
        ids.into_iter().for_each(|id| self.forget(id));
    }

    /// Goes back to what a request and its reader have in common; returns how many tokens that are.
    fn catch_up(&mut self, job: &Job) -> Result<Option<(SequenceId, usize)>, Error> {
        let sequence = match self.readers.get(&job.id) {
            Some(reader) => reader.sequence,
            None => match self.runner.open() {
                Ok(sequence) => {
                    self.readers.insert(job.id, Reader { sequence, reach: 2 });
                    self.runner.reuse(sequence, &job.tokens)?;
                    sequence
                }
                // Then this one goes without guesses.
                Err(Error::TooManySequences { .. }) => return Ok(None),
                Err(error) => return Err(error),
            },
        };
        let held = self.runner.tokens(sequence)?;
        let wanted = &job.tokens[..job.tokens.len() - 1];
        let common = held.iter().zip(wanted).take_while(|(a, b)| a == b).count();
        match self.runner.truncate(sequence, common) {
            Err(Error::CannotTruncate { .. }) => {
                self.runner.truncate(sequence, 0).map(|()| Some((sequence, 0)))
            }
            done => done.map(|()| Some((sequence, common))),
        }
    }

    /// Guesses for several requests, at most so many each.
    fn guess(&mut self, jobs: &[(&Job, usize)]) -> Result<Vec<Vec<Token>>, Error> {
        let mut guesses = vec![Vec::new(); jobs.len()];
        let mut readers = Vec::new();
        for (at, &(job, most)) in jobs.iter().enumerate() {
            let Some((sequence, held)) = self.catch_up(job)? else { continue };
            let reach = self.readers.get(&job.id).map_or(0, |reader| reader.reach);
            let most = most.min(reach).min(self.most_guesses);
            let room = self.runner.options().context.saturating_sub(job.tokens.len());
            if most > 0 && room >= most {
                readers.push((at, sequence, job.tokens[held..].to_vec(), job.sampler().clone(), most));
            }
        }
        // All of them one token further at a time, until none wants more.
        while !readers.is_empty() {
            let pieces: Vec<Piece<'_>> = readers
                .iter()
                .map(|(_, sequence, tokens, ..)| Piece { sequence: *sequence, tokens, wanted: Wanted::Last })
                .collect();
            let needs: Vec<Need> = readers.iter().map(|(_, _, _, sampler, _)| sampler.need(0)).collect();
            let outputs = self.runner.compute_for(&pieces, &needs)?;
            for (piece, (at, _, tokens, sampler, _)) in readers.iter_mut().enumerate() {
                // Where nothing can be chosen, nothing is guessed.
                tokens.clear();
                let known = outputs.of(piece).next();
                if let Some(Ok(choice)) = known.map(|known| sampler.sample_known(known)) {
                    tokens.push(choice.token);
                    guesses[*at].push(choice.token);
                }
            }
            readers.retain(|(at, _, tokens, _, most)| !tokens.is_empty() && guesses[*at].len() < *most);
        }
        Ok(guesses)
    }

    fn settle(&mut self, id: RequestId, guessed: usize, right: usize) {
        let most = self.most_guesses.max(1);
        if let Some(reader) = self.readers.get_mut(&id).filter(|_| guessed > 0) {
            reader.reach = if right == guessed { (2 * guessed).min(most) } else { (right + 1).min(most) };
        }
    }
}

impl Engine {
    /// Says where guesses come from, from the next step on.
    pub fn speculate(&mut self, speculation: Speculation) {
        for job in self.jobs.values_mut() {
            job.set_up_guesses(&speculation);
        }
        self.speculation = speculation;
    }

    /// Where guesses come from.
    pub fn speculation(&self) -> &Speculation {
        &self.speculation
    }

    /// Guesses for requests that wait for their next token, in their order.
    pub(super) fn guess(&mut self, ids: &[RequestId]) -> Result<Vec<Vec<Token>>, Error> {
        let mut guesses = vec![Vec::new(); ids.len()];
        if matches!(self.speculation, Speculation::None) || ids.is_empty() {
            return Ok(guesses);
        }
        // They never make others wait: for time, or for room.
        let each = MOST_TOKENS.saturating_sub(ids.len()) / ids.len();
        let pages = self.runner.usage().free_tokens / crate::runner::PAGE_TOKENS;
        if each == 0 || pages < 2 * ids.len() {
            return Ok(guesses);
        }
        let mut able = Vec::new();
        for (at, id) in ids.iter().enumerate() {
            let Some(job) = self.jobs.get(id) else { continue };
            let Some(sequence) = job.sequence else { continue };
            let most =
                each.min(job.wants_more().saturating_sub(1)).min(self.runner.room_to_go_back(sequence)?);
            if most > 0 {
                able.push((at, *id, most));
            }
        }
        match &mut self.speculation {
            Speculation::None => {}
            Speculation::Lookup(_) => {
                for (at, id, most) in able {
                    if let Some(lookup) = self.jobs.get_mut(&id).and_then(Job::lookup) {
                        let guess = lookup.guess();
                        guesses[at] = guess[..guess.len().min(most)].to_vec();
                    }
                }
            }
            Speculation::Draft(draft) => {
                let jobs: Vec<(&Job, usize)> =
                    able.iter().filter_map(|&(_, id, most)| Some((self.jobs.get(&id)?, most))).collect();
                match draft.guess(&jobs) {
                    Ok(found) => {
                        for ((at, ..), guess) in able.iter().zip(found) {
                            guesses[*at] = guess;
                        }
                    }
                    // It holds too much; the requests that go on are read anew.
                    Err(Error::InSequence { .. }) => draft.forget_all(),
                    Err(error) => {
                        let Some((device, reason, _)) = error.lost_work() else { return Err(error) };
                        if let Some(recover) = &mut self.recover {
                            recover.draft_lost(device, reason);
                        }
                        let (device, reason) = (device.to_owned(), reason.to_owned());
                        self.events.push_back(Event::DraftLost { device, reason });
                        self.speculation = Speculation::None;
                    }
                }
            }
        }
        Ok(guesses)
    }

    /// Says how guesses for a request turned out: how many there were, and how many were right up to the first wrong one.
    pub(super) fn settle(&mut self, id: RequestId, guessed: usize, right: usize) {
        if let Speculation::Draft(draft) = &mut self.speculation {
            draft.settle(id, guessed, right);
        }
        if let Some(job) = self.jobs.get_mut(&id) {
            job.settle(guessed, right);
        }
    }

    /// Lets go of what was kept to guess for a request.
    pub(super) fn end_guesses(&mut self, id: RequestId) {
        if let Speculation::Draft(draft) = &mut self.speculation {
            draft.forget(id);
        }
    }
}
