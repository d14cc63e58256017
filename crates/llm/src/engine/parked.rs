//! Sequences of requests that have ended, kept for those that go on from there: the next message of a conversation finds all
//! of it computed, whatever kind of blocks the model has.
//!
//! Invariant: they make way, the longest unused first, before any request has to wait.

use super::Engine;
use super::job::Job;
use super::request::RequestId;
use crate::model::Error;
use crate::runner::SequenceId;

/// A sequence that no request uses.
pub(super) struct Parked {
    pub(super) sequence: SequenceId,
    /// The only request that may go on from it, where it does not hold what computing its tokens would give.
    pub(super) only_for: Option<RequestId>,
}

impl Engine {
    /// A sequence for a job, with as many of its tokens as there are somewhere; and how many these are. `None` if it has to
    /// wait.
    pub(super) fn find_sequence(&mut self, job: &Job) -> Result<Option<(SequenceId, usize)>, Error> {
        if let Some((at, common)) = self.best_parked(job)?
            && common >= self.runner.reusable(job.request.scope, &job.tokens)
        {
            let sequence = self.parked[at].sequence;
            self.runner.truncate(sequence, common)?;
            self.parked.remove(at);
            return Ok(Some((sequence, common)));
        }
        let sequence = match self.open_sequence(job.request.scope) {
            Err(Error::TooManySequences { .. }) => return Ok(None),
            opened => opened?,
        };
        let reused = self.runner.reuse(sequence, &job.tokens)?;
        Ok(Some((sequence, reused)))
    }

    /// An empty sequence, for which those that are only kept make way.
    pub(super) fn open_sequence(&mut self, scope: u64) -> Result<SequenceId, Error> {
        loop {
            match self.runner.open_in(scope) {
                Err(Error::TooManySequences { .. }) if self.evict() => {}
                opened => return opened,
            }
        }
    }

    /// The parked sequence that can go on with most of a job's tokens. What recurrent blocks remember is only of use if all
    /// tokens of the sequence are the job's.
    fn best_parked(&self, job: &Job) -> Result<Option<(usize, usize)>, Error> {
        // Logits of the last token are wanted, so it is computed in any case.
        let wanted = &job.tokens[..job.tokens.len() - 1];
        let mut best = None;
        for (at, parked) in self.parked.iter().enumerate() {
            if self.runner.scope(parked.sequence)? != job.request.scope
                || parked.only_for.is_some_and(|owner| owner != job.id)
            {
                continue;
            }
            let held = self.runner.tokens(parked.sequence)?;
            let common = held.iter().zip(wanted).take_while(|(a, b)| a == b).count();
            let is_better = common > 0 && best.is_none_or(|(_, most)| common > most);
            if is_better && self.runner.can_truncate(parked.sequence, common) {
                best = Some((at, common));
            }
        }
        Ok(best)
    }

    /// Lets go of the parked sequence that was not used for longest; says whether there was one.
    pub(super) fn evict(&mut self) -> bool {
        match self.parked.pop_front() {
            Some(parked) => {
                self.close(parked.sequence);
                true
            }
            None => false,
        }
    }
}
