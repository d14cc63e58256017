//! What is read of a step's logits: all of them, or the largest, where these are enough and results come from far away.
//!
//! A graph that tells the largest logits has all of them, too. They stay on the device until the next step, and are read after all where the
//! largest turn out to be too few. Invariant: a row of which the largest are kept meets the need that it was read for.

use std::ops::Range;

use zerocopy::IntoBytes;

use super::graphs::Step;
use crate::logits::{Known, Largest, Need, packed_width, unpack};
use crate::model::Error;

/// A row of logits, as far as it was read.
#[derive(Clone, Debug)]
enum Found {
    /// Whole: its number among those in `logits`.
    All(usize),
    /// Its part of `largest`.
    Largest(Range<usize>),
}

/// What was read since it was cleared, and the memory for it.
#[derive(Debug, Default)]
pub(super) struct Findings {
    rows: Vec<Found>,
    /// Whole rows, one after another.
    pub(super) logits: Vec<f32>,
    largest: Vec<(u32, f32)>,
    packed: Vec<f32>,
    restraint: Restraint,
}

impl Findings {
    pub(super) fn clear(&mut self) {
        self.rows.clear();
        self.logits.clear();
        self.largest.clear();
    }

    /// Number of rows.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// A row of a vocabulary of so many tokens.
    pub(super) fn row(&self, index: usize, vocabulary: usize) -> Known<'_> {
        match &self.rows[index] {
            Found::All(row) => Known::All(&self.logits[row * vocabulary..][..vocabulary]),
            Found::Largest(pairs) => Known::Largest(Largest::found(&self.largest[pairs.clone()])),
        }
    }

    /// How many of the largest logits a step of rows with these needs is to tell; zero if all of them are to be read.
    pub(super) fn count_to_read(&mut self, needs: impl Iterator<Item = Need>, vocabulary: usize) -> usize {
        let counts = needs.map(|need| need.worth_reading(vocabulary));
        let most = counts.reduce(|most, count| most.zip(count).map(|(most, count)| most.max(count)));
        most.flatten().filter(|_| self.restraint.has_ended()).unwrap_or(0)
    }

    /// Reads as many rows of a step as there are needs, each as far as it is needed.
    pub(super) fn read(
        &mut self,
        step: &Step,
        needs: impl ExactSizeIterator<Item = Need>,
        vocabulary: usize,
    ) -> Result<(), Error> {
        let count = needs.len();
        if let Some(largest) = step.largest {
            let width = packed_width(step.shape.largest);
            self.packed.resize(count * width, 0.0);
            step.prepared.read_into(largest, self.packed.as_mut_bytes())?;
            let is_enough = self.keep_largest(needs, width, vocabulary);
            self.restraint.note(is_enough);
            if is_enough {
                return Ok(());
            }
        }
        let first = self.logits.len() / vocabulary;
        self.logits.resize((first + count) * vocabulary, 0.0);
        let out = &mut self.logits[first * vocabulary..];
        step.prepared.read_into(step.output, out.as_mut_bytes())?;
        self.rows.extend((first..first + count).map(Found::All));
        Ok(())
    }

    /// Keeps the largest logits of all rows that were read, if they are enough for all.
    fn keep_largest(&mut self, needs: impl Iterator<Item = Need>, width: usize, vocabulary: usize) -> bool {
        let (rows, pairs) = (self.rows.len(), self.largest.len());
        for (row, need) in self.packed.chunks_exact(width).zip(needs) {
            let start = self.largest.len();
            let is_read = unpack(row, vocabulary, &mut self.largest);
            if !is_read || !need.is_met_by(Largest::found(&self.largest[start..])) {
                self.rows.truncate(rows);
                self.largest.truncate(pairs);
                return false;
            }
            self.rows.push(Found::Largest(start..self.largest.len()));
        }
        true
    }
}

/// Whether to ask for the largest logits only. If they are too few, that costs another round trip; so each time in succession that they
/// were, all are asked for in twice as many of the following steps.
#[derive(Debug, Default)]
struct Restraint {
    /// Steps of the last pause.
    pause: u32,
    /// Those that are left of it.
    left: u32,
}

/// Steps of a pause at most.
const LONGEST_PAUSE: u32 = 64;

impl Restraint {
    /// Says of the coming step whether the pause is over.
    fn has_ended(&mut self) -> bool {
        let has_ended = self.left == 0;
        self.left = self.left.saturating_sub(1);
        has_ended
    }

    fn note(&mut self, is_enough: bool) {
        self.pause = if is_enough { 0 } else { (2 * self.pause).clamp(1, LONGEST_PAUSE) };
        self.left = self.pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(findings: &Findings, row: usize) -> Option<&[(u32, f32)]> {
        match findings.row(row, 0) {
            Known::Largest(largest) => Some(largest.pairs()),
            Known::All(_) => None,
        }
    }

    #[test]
    fn rows_are_kept_if_they_are_enough_for_all() {
        let mut findings = Findings::default();
        let width = packed_width(3);
        let rows = [[3.0, 1.0, 2.0, 7.0, 8.0, 9.0, 6.0], [5.0, 4.0, 4.0, 0.0, 1.0, 2.0, 6.0]];
        findings.packed = rows.concat();
        let mut keep = |needs: [Need; 2]| findings.keep_largest(needs.into_iter(), width, 10);
        assert!(!keep([Need::largest(2), Need::largest(2)]) && !keep([Need::All, Need::largest(1)]));
        assert!(keep([Need::largest(2), Need::largest(1)]));
        assert_eq!(findings.len(), 2);
        assert_eq!(known(&findings, 0), Some([(7, 3.0), (9, 2.0)].as_slice()));
        assert_eq!(known(&findings, 1), Some([(0, 5.0)].as_slice()));
    }

    #[test]
    fn what_was_too_little_is_asked_for_less_often() {
        let mut findings = Findings::default();
        let steps = |findings: &mut Findings, is_enough: bool| {
            let is_asked = |_: &usize| {
                let count = findings.count_to_read([Need::largest(1)].into_iter(), 1000);
                if count > 0 {
                    findings.restraint.note(is_enough);
                }
                count > 0
            };
            (0..300).filter(is_asked).collect::<Vec<_>>()
        };
        assert_eq!(steps(&mut findings, false), [0, 2, 5, 10, 19, 36, 69, 134, 199, 264]);
        let asked = steps(&mut findings, true);
        assert_eq!(asked.len(), 300 - asked[0]);
        // A step of which some row needs all is no attempt.
        let mixed = [Need::largest(1), Need::All];
        assert_eq!(findings.count_to_read(mixed.into_iter(), 1000), 0);
        assert_eq!(findings.count_to_read([Need::largest(1), Need::largest(99)].into_iter(), 5000), 256);
        assert_eq!(findings.count_to_read([].into_iter(), 5000), 0);
    }
}
