//! What a step computes, and who makes way.
//!
//! Every request that waits for its next token is in every step. What is left of a step goes to prompts, cut so that those who wait for a
//! token never wait for more than a bounded piece of them: half of it to the one that came first, half to those with the fewest tokens
//! left. So a long prompt does not keep short ones waiting, and short ones, however many come, take at most half of its time. A beginning
//! that prompts have in common is computed for the first of them; the others wait until they can share it.

use std::time::Duration;

use super::job::Job;
use super::request::{AtLimit, End, RequestId};
use super::{Engine, RequestError};
use crate::model::Error;
use crate::runner::{Piece, SequenceId, Wanted};
use crate::text::Token;

/// What of a request a step computes.
struct Share {
    id: RequestId,
    /// How many of the tokens that are to be computed.
    tokens: usize,
    /// What may follow them.
    guesses: Vec<Token>,
}

/// How a step is divided among prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    /// Half for the oldest, half for the shortest.
    Halves,
    /// All for the oldest. Recurrent models compute several tokens of one sequence alone at a time, so that halves would be two steps
    /// to them, each of which reads all weights; their steps are for the oldest and for the shortest in turns.
    Oldest,
    /// All for the shortest.
    Shortest,
    /// The oldest first, uncut: a source is read whole, so that no prompt takes more than one step.
    Whole,
}

impl Sharing {
    /// How many tokens of each prompt a step computes; `left` has what is left of each, the oldest first. What one does not need, the
    /// next one gets.
    fn divide(self, left: &[usize], mut room: usize) -> Vec<usize> {
        let mut shares = vec![0; left.len()];
        let mut give = |at: usize, most: usize, room: &mut usize| {
            let more = (left[at] - shares[at]).min(most);
            shares[at] += more;
            *room = room.saturating_sub(more);
        };
        let mut by_length: Vec<usize> = (0..left.len()).collect();
        // Stable: of two that are equally long, the older one.
        by_length.sort_by_key(|&at| left[at]);
        match self {
            Sharing::Halves => {
                if !left.is_empty() {
                    give(0, room.div_ceil(2), &mut room);
                }
                by_length.into_iter().for_each(|at| give(at, room, &mut room));
            }
            Sharing::Oldest => (0..left.len()).for_each(|at| give(at, room, &mut room)),
            Sharing::Shortest => by_length.into_iter().for_each(|at| give(at, room, &mut room)),
            Sharing::Whole => {
                for at in 0..left.len() {
                    give(at, if room > 0 { usize::MAX } else { 0 }, &mut room);
                }
            }
        }
        shares
    }
}

/// Forgotten tokens come in whole pages.
const PAGE: usize = crate::runner::PAGE_TOKENS;

impl Engine {
    /// Computes one step of all requests; `false` if there was nothing to compute. An error is a device's, or the model's:
    /// requests stay as they are, and the next step tries again. The loss of a device is no error where [`Engine::recover_with`] said what to
    /// do then: the next step finds other devices, and those after it compute again what was lost.
    pub fn step(&mut self) -> Result<bool, Error> {
        let began = self.end_those_that_are_over();
        let done = match self.advance() {
            Err(error) if self.is_interrupted_by(&error, began) => Ok(true),
            done => done,
        };
        self.look_who_goes_on();
        done
    }

    fn advance(&mut self) -> Result<bool, Error> {
        self.look_who_came_back();
        if self.find_devices()? {
            return Ok(true);
        }
        self.admit()?;
        self.make_room_in_contexts()?;
        loop {
            let shares = self.share_out()?;
            if shares.is_empty() {
                return Ok(false);
            }
            match self.compute(&shares) {
                Ok(()) => return Ok(true),
                Err(Error::InSequence { sequence, error }) => {
                    let owner =
                        self.jobs.values().find(|job| job.sequence == Some(sequence)).map(|job| job.id);
                    let is_full = matches!(*error, Error::StateFull { .. });
                    if is_full && (self.evict() || self.send_back_youngest()) {
                        continue;
                    }
                    let Some(job) = owner.and_then(|id| self.jobs.remove(&id)) else {
                        return Err(Error::InSequence { sequence, error });
                    };
                    self.fail(job, RequestError::Model(*error));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Ends requests whose time is over, and those that were cancelled; returns the time.
    fn end_those_that_are_over(&mut self) -> Duration {
        let now = (self.clock)();
        let over: Vec<(RequestId, End)> =
            self.jobs.values().filter_map(|job| Some((job.id, job.is_over(now)?))).collect();
        for (id, end) in over {
            if let Some(job) = self.jobs.remove(&id) {
                self.finish(job, end);
            }
        }
        now
    }

    /// Gives sequences to requests that wait, in the order in which they came. Those who wait for a beginning hold up no others.
    fn admit(&mut self) -> Result<(), Error> {
        let waiting: Vec<RequestId> =
            self.jobs.values().filter(|job| job.is_waiting()).map(|job| job.id).collect();
        let mut running = self.jobs.values().filter(|job| job.sequence.is_some()).count();
        for id in waiting {
            if self.jobs.get(&id).is_some_and(|job| self.is_begun_elsewhere(job)) {
                continue;
            }
            let Some(mut job) = self.jobs.remove(&id) else { continue };
            // One that would only send others back waits until there is room for it.
            let fits = running == 0 || self.has_room_for(&job);
            let found = if fits { self.find_sequence(&job) } else { Ok(None) };
            if let Ok(Some((sequence, reused))) = found {
                job.start(sequence, reused, (self.clock)());
                running += 1;
            }
            let goes_on = matches!(found, Ok(Some(_)));
            self.jobs.insert(id, job);
            found?;
            if !goes_on {
                break;
            }
        }
        Ok(())
    }

    /// Whether the next page of a beginning that a job has in common with another is not computed yet, but will be for the other.
    fn is_begun_elsewhere(&self, job: &Job) -> bool {
        if !self.runner.model().hyper().shares_beginnings() {
            return false;
        }
        // The last token is computed in any case.
        let wanted = &job.tokens[..job.tokens.len() - 1];
        self.jobs.values().any(|other| {
            let held = other.sequence.and_then(|sequence| self.runner.tokens(sequence).ok());
            let Some(held) = held.map(<[_]>::len) else { return false };
            if other.request.scope != job.request.scope {
                return false;
            }
            let page = ..(held / PAGE + 1) * PAGE;
            wanted.get(page).is_some_and(|beginning| other.tokens.get(page) == Some(beginning))
        })
    }

    fn has_room_for(&mut self, job: &Job) -> bool {
        loop {
            if self.runner.usage().free_tokens >= job.tokens.len() + PAGE {
                return true;
            }
            if !self.evict() {
                return false;
            }
        }
    }

    /// Ends requests whose context is full, or makes them forget.
    fn make_room_in_contexts(&mut self) -> Result<(), Error> {
        let limit = self.runner.options().context;
        let full: Vec<RequestId> = self
            .jobs
            .values()
            .filter(|job| job.sequence.is_some() && job.tokens.len() > limit)
            .map(|job| job.id)
            .collect();
        for id in full {
            let Some(mut job) = self.jobs.remove(&id) else { continue };
            let (AtLimit::Shift { keep, exact }, Some(sequence)) = (job.request.at_limit, job.sequence)
            else {
                // The last token was chosen, but does not fit.
                self.finish(job, End::Context);
                continue;
            };
            let from = keep.next_multiple_of(PAGE);
            let held = self.runner.tokens(sequence)?.len();
            let to = (from + held.saturating_sub(from).div_ceil(2)) / PAGE * PAGE;
            if to <= from || to > held || !self.runner.can_forget() {
                self.finish(job, End::Context);
                continue;
            }
            let forgotten = self.runner.forget(sequence, from, to, exact);
            job.tokens.drain(from..to);
            self.jobs.insert(id, job);
            forgotten?;
        }
        Ok(())
    }

    /// What a step computes of each request.
    fn share_out(&mut self) -> Result<Vec<Share>, Error> {
        let mut room = self.runner.options().batch;
        let running: Vec<(RequestId, usize)> = self
            .jobs
            .values()
            .filter_map(|job| {
                let held = self.runner.tokens(job.sequence?).ok()?.len();
                Some((job.id, job.tokens.len() - held))
            })
            .collect();
        let waiting: Vec<RequestId> =
            running.iter().filter(|&&(_, left)| left == 1).map(|&(id, _)| id).take(room).collect();
        let guesses = self.guess(&waiting)?;
        let mut shares: Vec<Share> = Vec::new();
        for (&id, guesses) in waiting.iter().zip(guesses) {
            shares.push(Share { id, tokens: 1, guesses });
        }
        room = room.saturating_sub(shares.iter().map(|share| 1 + share.guesses.len()).sum());
        if !shares.is_empty() {
            room = room.min(self.options.prompt_tokens_beside);
        }
        let prompts: Vec<(RequestId, usize)> = running.into_iter().filter(|&(_, left)| left > 1).collect();
        let lengths: Vec<usize> = prompts.iter().map(|&(_, left)| left).collect();
        let sharing = self.next_sharing();
        for ((id, _), tokens) in prompts.into_iter().zip(sharing.divide(&lengths, room)) {
            if tokens > 0 {
                shares.push(Share { id, tokens, guesses: Vec::new() });
            }
        }
        Ok(shares)
    }

    /// How the next step is divided among prompts.
    fn next_sharing(&mut self) -> Sharing {
        let hyper = self.runner.model().hyper();
        if hyper.source.is_some() {
            return Sharing::Whole;
        }
        if !hyper.is_recurrent() {
            return Sharing::Halves;
        }
        self.shortest_first = !self.shortest_first;
        if self.shortest_first { Sharing::Shortest } else { Sharing::Oldest }
    }

    /// Computes what was shared out, and chooses tokens where that was all that was left.
    fn compute(&mut self, shares: &[Share]) -> Result<(), Error> {
        let mut parts: Vec<(SequenceId, Vec<Token>, Wanted)> = Vec::with_capacity(shares.len());
        let mut needs = Vec::with_capacity(shares.len());
        for share in shares {
            let Some(job) = self.jobs.get(&share.id) else { continue };
            let Some(sequence) = job.sequence else { continue };
            let held = self.runner.tokens(sequence)?.len();
            let tokens = [&job.tokens[held..held + share.tokens], &share.guesses].concat();
            let is_all = held + share.tokens == job.tokens.len();
            let wanted = if is_all { Wanted::From(share.tokens - 1) } else { Wanted::None };
            parts.push((sequence, tokens, wanted));
            needs.push(job.need(share.guesses.len()));
        }
        let pieces: Vec<Piece<'_>> =
            parts.iter().map(|&(sequence, ref tokens, wanted)| Piece { sequence, tokens, wanted }).collect();
        let outputs = self.runner.compute_for(&pieces, &needs)?;
        let now = (self.clock)();
        let (mut ended, mut settled) = (Vec::new(), Vec::new());
        for (index, share) in shares.iter().enumerate().filter(|&(index, _)| parts[index].2 != Wanted::None) {
            let Some(job) = self.jobs.get_mut(&share.id) else { continue };
            let (mut right, mut end) = (0, Ok(None));
            for (known, guess) in outputs.of(index).zip(share.guesses.iter().map(Some).chain([None])) {
                end = job.advance(known, &self.vocab, now, &mut self.events);
                match (&end, guess) {
                    (Ok(None), Some(guess)) if job.tokens.last() == Some(guess) => right += 1,
                    _ => break,
                }
            }
            settled.push((share.id, parts[index].0, share.guesses.len(), right));
            match end {
                Ok(None) => {}
                Ok(Some(end)) => ended.push((share.id, Ok(end))),
                Err(error) => ended.push((share.id, Err(error))),
            }
        }
        if !settled.is_empty() {
            self.in_vain.clear();
        }
        for (id, sequence, guessed, right) in settled {
            if right < guessed {
                let held = self.runner.tokens(sequence)?.len();
                self.runner.truncate(sequence, held - (guessed - right))?;
            }
            self.settle(id, guessed, right);
        }
        for (id, end) in ended {
            let Some(job) = self.jobs.remove(&id) else { continue };
            match end {
                Ok(end) => self.finish(job, end),
                Err(error) => self.fail(job, error),
            }
        }
        Ok(())
    }

    /// Takes the state of the request that came last, which waits from now on and is computed again later; says whether
    /// there was one beside the first.
    fn send_back_youngest(&mut self) -> bool {
        let mut running = self.jobs.values_mut().filter(|job| job.sequence.is_some());
        if running.next().is_none() {
            return false;
        }
        let Some(youngest) = running.last() else { return false };
        let Some(sequence) = youngest.sequence.take() else { return false };
        self.close(sequence);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_divided_between_the_oldest_and_the_shortest() {
        let halves = |left: &[usize], room| Sharing::Halves.divide(left, room);
        assert!(halves(&[], 128).is_empty());
        assert_eq!(halves(&[4000], 128), [128]);
        assert_eq!(halves(&[4000, 20], 128), [108, 20], "the rest goes back to the oldest");
        assert_eq!(halves(&[4000, 3000, 50, 2000, 50], 128), [64, 0, 50, 0, 14]);
        assert_eq!(halves(&[20, 4000, 300], 128), [20, 0, 108]);
        assert_eq!(halves(&[4000, 4000], 1), [1, 0], "the oldest one always gets further");
        assert_eq!(halves(&[4000, 4000], 0), [0, 0]);
        assert_eq!(Sharing::Oldest.divide(&[100, 4000, 20], 128), [100, 28, 0]);
        assert_eq!(Sharing::Shortest.divide(&[4000, 20, 120], 128), [0, 20, 108]);
        assert_eq!(Sharing::Whole.divide(&[200, 300], 128), [200, 0]);
        assert_eq!(Sharing::Whole.divide(&[100, 300, 5], 128), [100, 300, 0]);
    }
}
