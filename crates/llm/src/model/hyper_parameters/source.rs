//! Models that read a text whole before they write another, and scores that learnt numbers move by the distance.

use crate::model::error::Error;
use crate::model::keys::Keys;

/// A text that is read before another is written. The tokens of a sequence are those of its source, then `start`, then those that
/// are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Blocks that read, the first ones; the others write.
    pub blocks: usize,
    /// The token that what is written begins with. Those before the first such token are the source.
    pub start: u32,
}

impl Source {
    /// How many of the tokens are the source, if it is whole.
    pub(crate) fn of(&self, tokens: &[u32]) -> Option<usize> {
        tokens.iter().position(|&token| token == self.start)
    }
}

/// From this distance on, all are of one kind.
const FAR: usize = 128;

/// Kinds of distances: each of the near ones is a kind by itself, and the farther they are, the more of them are of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Distances {
    /// How many kinds there are.
    pub kinds: usize,
}

impl Distances {
    /// Reads how many there are.
    pub(crate) fn read(keys: &Keys<'_>) -> Result<Distances, Error> {
        // Half of them are near; of those that look both ways, a quarter.
        let (key, least, most) = ("attention.relative_buckets_count", 4, 2 * FAR - 1);
        match keys.need_count(key, most)? {
            kinds if kinds >= least => Ok(Distances { kinds }),
            kinds => Err(keys.refuse(key, kinds, format!("must be from {least} to {most}"))),
        }
    }

    /// The kind of the distance from a token to one that it sees, before it or at its place.
    pub(crate) fn back(self, from: usize, to: usize) -> usize {
        kind(from.saturating_sub(to), self.kinds)
    }

    /// The same where it also sees tokens behind it, which are of other kinds.
    pub(crate) fn both_ways(self, from: usize, to: usize) -> usize {
        let half = self.kinds / 2;
        kind(from.abs_diff(to), half) + if to > from { half } else { 0 }
    }
}

/// The kind of a distance, where all have so many.
fn kind(distance: usize, kinds: usize) -> usize {
    let near = kinds / 2;
    if distance < near {
        return distance;
    }
    let share = (distance as f64 / near as f64).ln() / (FAR as f64 / near as f64).ln();
    // A little more, because quotients of logarithms may fall just short of whole numbers.
    let beyond = (share * (kinds - near) as f64 + 1e-9) as usize;
    (near + beyond).min(kinds - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Distances = Distances { kinds: 32 };

    #[test]
    fn near_tokens_are_told_apart_and_far_ones_are_not() {
        let back =
            [0, 1, 15, 16, 18, 19, 32, 64, 127, 128, 5000].map(|distance| USUAL.back(5000, 5000 - distance));
        assert_eq!(back, [0, 1, 15, 16, 16, 17, 21, 26, 31, 31, 31]);
        assert_eq!(USUAL.back(3, 9), 0);
    }

    #[test]
    fn tokens_behind_are_of_other_kinds() {
        let before = [0, 1, 7, 8, 11, 12, 16, 32, 64, 128, 5000];
        let kinds = [0, 1, 7, 8, 8, 9, 10, 12, 14, 15, 15];
        assert_eq!(before.map(|distance| USUAL.both_ways(5000, 5000 - distance)), kinds);
        assert_eq!(
            before.map(|distance| USUAL.both_ways(0, distance))[1..],
            kinds.map(|kind| kind + 16)[1..]
        );
    }

    #[test]
    fn a_source_ends_where_writing_begins() {
        let source = Source { blocks: 2, start: 0 };
        assert_eq!(source.of(&[5, 6, 0, 7, 0]), Some(2));
        assert_eq!(source.of(&[5, 6]), None);
    }
}
