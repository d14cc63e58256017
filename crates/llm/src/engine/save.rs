//! A request in a file, to go on with another day: its tokens, what devices hold of them, and how its tokens are chosen.
//!
//! It is the file of its sequence ([`Runner::save`](crate::runner::Runner::save)), to which the engine adds:
//!
//! | bytes | |
//! |---|---|
//! | 8 | number of tokens of the prompt |
//! | 8 | number of tokens of the answer |
//! | 8, then 4 each | number of tokens that the sequence does not have yet; these tokens |
//! | 8, then so many | text that may become a stop string |
//! | 8, then so many | the beginning of a character |
//! | the rest | the sampler |
//!
//! Invariant: a request that was restored gets the very tokens and the very text that it would have got, and nothing that was handed
//! out before. Whatever else of it the file does not have (stop strings, form, limits), the caller says again.

use std::io::{Read, Seek, Write};

use super::job::Job;
use super::request::{Request, RequestId};
use super::{Engine, RequestError};
use crate::model::Error;
use crate::runner::{SequenceId, read_bytes, read_number, read_number_u64};
use crate::text::{Sampler, Token};

/// What is saved of a request beside its sequence.
#[derive(Debug, PartialEq)]
pub(super) struct Saved {
    pub(super) prompt: usize,
    pub(super) made: usize,
    /// Tokens that are not computed yet.
    pub(super) left: Vec<Token>,
    /// Text that may become a stop string.
    pub(super) held_text: String,
    /// The beginning of a character.
    pub(super) held_bytes: Vec<u8>,
    pub(super) sampler: Sampler,
}

impl Saved {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for number in [self.prompt, self.made, self.left.len()] {
            bytes.extend((number as u64).to_le_bytes());
        }
        self.left.iter().for_each(|token| bytes.extend(token.to_le_bytes()));
        for held in [self.held_text.as_bytes(), &self.held_bytes] {
            bytes.extend((held.len() as u64).to_le_bytes());
            bytes.extend(held);
        }
        bytes.extend(self.sampler.save());
        bytes
    }

    fn decode(mut bytes: &[u8]) -> Result<Saved, Error> {
        let count = |bytes: &mut &[u8]| {
            Ok::<_, Error>(usize::try_from(read_number_u64(bytes)?).unwrap_or(usize::MAX))
        };
        let (prompt, made) = (count(&mut bytes)?, count(&mut bytes)?);
        // Believed as far as there are bytes.
        let left = (0..count(&mut bytes)?).map(|_| read_number(&mut bytes)).collect::<Result<_, _>>()?;
        let mut held = || {
            let len = count(&mut bytes)?;
            if len > bytes.len() {
                return Err(Error::SavedState("it ends too early"));
            }
            let mut held = vec![0; len];
            read_bytes(&mut bytes, &mut held)?;
            Ok(held)
        };
        let held_text = String::from_utf8(held()?).map_err(|_| Error::SavedState("it is damaged"))?;
        let held_bytes = held()?;
        let sampler = Sampler::restore(bytes).map_err(|_| Error::SavedState("its sampler is damaged"))?;
        Ok(Saved { prompt, made, left, held_text, held_bytes, sampler })
    }
}

impl Engine {
    /// Writes a request that has not ended to a file. It goes on as if nothing had happened; [`restore`](Engine::restore) takes it on
    /// again from there, in this or another process, with the very next token.
    pub fn save(&mut self, id: RequestId, out: impl Write) -> Result<(), RequestError> {
        let job = self.jobs.get(&id).ok_or_else(|| RequestError::Refused(format!("there is no {id}")))?;
        let computed = job.sequence;
        let sequence = match computed {
            Some(sequence) => sequence,
            None => self.open_sequence(job.request.scope)?,
        };
        let written = self.write(id, sequence, out);
        if computed.is_none() {
            self.close(sequence);
        }
        written
    }

    fn write(&self, id: RequestId, sequence: SequenceId, out: impl Write) -> Result<(), RequestError> {
        let Some(job) = self.jobs.get(&id) else { return Ok(()) };
        let computed = self.runner.tokens(sequence)?.len();
        let saved = job.saved(computed)?;
        Ok(self.runner.save(sequence, &saved.encode(), out)?)
    }

    /// Takes on a request that was [saved](Engine::save), as it was submitted then: with the same prompt and the same sampler, or it is
    /// refused. The limits count from the beginning of its answer. What is told of it begins with its next token.
    pub fn restore(
        &mut self,
        mut request: Request,
        mut file: impl Read + Seek,
    ) -> Result<RequestId, RequestError> {
        self.check(&mut request)?;
        let (sequence, saved) = loop {
            match self.runner.restore_in(request.scope, &mut file) {
                Err(Error::TooManySequences { .. }) if self.evict() => {}
                Err(Error::InSequence { error, .. })
                    if matches!(*error, Error::StateFull { .. }) && self.evict() => {}
                found => break found?,
            }
        };
        let id = RequestId(self.next_id);
        match self.restored(id, request, sequence, &saved) {
            Ok(job) => {
                self.next_id += 1;
                self.jobs.insert(id, job);
                Ok(id)
            }
            Err(error) => {
                self.close(sequence);
                Err(error)
            }
        }
    }

    fn restored(
        &self,
        id: RequestId,
        request: Request,
        sequence: SequenceId,
        saved: &[u8],
    ) -> Result<Job, RequestError> {
        let computed = self.runner.tokens(sequence)?;
        let saved = Saved::decode(saved)?;
        let vocabulary = self.runner.model().hyper().vocabulary;
        if saved.left.is_empty() || saved.left.iter().any(|&token| token as usize >= vocabulary) {
            return Err(Error::SavedState("it is damaged").into());
        }
        let mut job = Job::restored(id, request, computed, saved, (self.clock)())?;
        let reused = computed.len().min(job.request.prompt.len());
        job.start(sequence, reused, (self.clock)());
        job.set_up_guesses(&self.speculation);
        Ok(job)
    }
}
