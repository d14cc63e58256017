//! Forgetting the middle of a sequence, so that it can go on.

use super::pages::PAGE;
use super::sequence::{KINDS, SequenceId};
use super::{Piece, Runner, Wanted};
use crate::model::net::StepShape;
use crate::model::{Error, Pooling};

impl Runner {
    /// Forgets the tokens `from..to` of a sequence and moves later ones down; both must be multiples of 64.
    ///
    /// Where `exact` is false and the model can, stored keys are rotated to where their tokens are now: quick, but not quite
    /// what computing them there would give. Otherwise the tokens that are left are computed again. Should it fail on the
    /// way, the sequence has no tokens left.
    pub fn forget(&mut self, id: SequenceId, from: usize, to: usize, exact: bool) -> Result<(), Error> {
        let len = self.sequence(id)?.len();
        if from > to || to > len || !from.is_multiple_of(PAGE) || !to.is_multiple_of(PAGE) {
            let rule = format!("there are {len} tokens, which are forgotten {PAGE} at a time");
            return Err(Error::setting("the range of tokens to forget", format!("{from}..{to}"), rule));
        }
        if from == to {
            return Ok(());
        }
        if !self.can_forget() {
            let architecture = self.model().hyper().architecture();
            return Err(Error::NotThatKind { architecture, what: "forget part of a text" });
        }
        let done = match exact || !self.can_rotate() {
            true => self.compute_again(id, from, to),
            false => self.rotate(id, from, to),
        };
        if done.is_err() {
            self.go_back(id, 0);
        }
        done
    }

    /// Whether the middle of a sequence can be forgotten: not where part of it is a source.
    pub(crate) fn can_forget(&self) -> bool {
        self.model().hyper().source.is_none()
    }

    /// Whether all that blocks remember of a token are keys that were rotated by its position, and values.
    fn can_rotate(&self) -> bool {
        self.model().hyper().keys_can_move()
    }

    fn compute_again(&mut self, id: SequenceId, from: usize, to: usize) -> Result<(), Error> {
        let tokens = self.sequence(id)?.tokens.clone();
        let kept = match self.truncate(id, from) {
            Ok(()) => from,
            // It cannot go back there, so everything that is left is computed again.
            Err(_) => {
                self.go_back(id, 0);
                0
            }
        };
        let left = [&tokens[kept..from], &tokens[to..]].concat();
        self.compute(&[Piece { sequence: id, tokens: &left, wanted: Wanted::None }])?;
        Ok(())
    }

    fn rotate(&mut self, id: SequenceId, from: usize, to: usize) -> Result<(), Error> {
        let moved = self.own_pages_after(id, to)?;
        let cells = moved.each_ref().map(|pages| pages.len() * PAGE);
        let shape = StepShape::alone(1, 1, Pooling::None);
        let (mut prepared, inputs) = self.graphs.shift(shape, cells)?;
        let distance = (to - from) as i32;
        for (pages, inputs) in moved.iter().zip(inputs) {
            let Some(inputs) = inputs else { continue };
            let cells = || pages.iter().flat_map(|&page| (0..PAGE).map(move |at| page as usize * PAGE + at));
            let bytes = &mut self.input_bytes;
            bytes.set(&mut prepared, Some(inputs.from), cells().map(|cell| (cell as i32).to_le_bytes()))?;
            bytes.set(&mut prepared, Some(inputs.to), cells().map(|cell| (cell as i64).to_le_bytes()))?;
            bytes.set(&mut prepared, Some(inputs.moved), cells().map(|_| (-distance).to_le_bytes()))?;
        }
        prepared.compute_and_wait()?;
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.cut_out(from, to, &mut self.pools);
        }
        Ok(())
    }

    /// Makes sure that the pages after a position may be written to; by kind, which they are.
    fn own_pages_after(&mut self, id: SequenceId, position: usize) -> Result<[Vec<u32>; KINDS], Error> {
        let mut moved: [Vec<u32>; KINDS] = Default::default();
        let Some(sequence) = self.sequences.get_mut(&id) else { return Ok(moved) };
        let used = sequence.len();
        for (kind, pool) in self.pools.iter_mut().enumerate() {
            let (Some(pool), Some(state)) = (pool, self.graphs.state()) else { continue };
            for slot in sequence.tables[kind].iter_mut().skip(position / PAGE) {
                let Some(held) = *slot else { continue };
                if !pool.is_own(held) {
                    let full = Error::StateFull { asked: used - position, used };
                    let page =
                        pool.take().ok_or(Error::InSequence { sequence: id, error: Box::new(full) })?;
                    *slot = Some(page);
                    pool.give_back(held);
                    state.copy_page(kind, held, page)?;
                }
                moved[kind].extend(*slot);
            }
        }
        Ok(moved)
    }
}
