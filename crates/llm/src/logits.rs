//! How much of a token's logits is needed, and how much is known: who chooses a token says the one, who computes logits the other.
//!
//! Invariant: a choice by [`Largest`] logits that [meet](Need::is_met_by) a need is the choice by all of them. Of the tokens that are left
//! out it is known that their logits are numbers, and smaller than every one that is there; so order, ties and errors are as with all.

use std::cmp::Ordering;

/// How many of the largest logits are read at a time: few sizes, because there is a graph for each.
const COUNTS: [usize; 3] = [64, 256, 1024];

/// How much has to be known of a token's logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Need {
    /// All of them.
    All,
    /// The largest ones.
    Largest {
        /// At least so many.
        count: usize,
        /// And all that are above the largest one plus this number, which is not positive.
        within: f32,
    },
}

impl Need {
    /// So many of the largest ones.
    pub const fn largest(count: usize) -> Need {
        Need::Largest { count, within: 0.0 }
    }

    /// Whether these are enough.
    pub fn is_met_by(self, known: Largest<'_>) -> bool {
        let Need::Largest { count, within } = self else { return false };
        let (Some(first), Some(last)) = (known.0.first(), known.0.last()) else { return false };
        known.0.len() >= count && last.1 <= first.1 + within
    }

    /// How many of the largest logits of a vocabulary are worth reading instead of all of them, if that may be enough.
    pub(crate) fn worth_reading(self, vocabulary: usize) -> Option<usize> {
        let Need::Largest { count: wanted, .. } = self else { return None };
        // One at least is left out: whether others are equal to the smallest one is not known.
        let count = COUNTS.into_iter().find(|&count| count > wanted)?;
        (packed_width(count) <= vocabulary / 2 && vocabulary <= MOST_TOKENS).then_some(count)
    }
}

/// What is known of a token's logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Known<'a> {
    /// All of them.
    All(&'a [f32]),
    /// The largest ones.
    Largest(Largest<'a>),
}

/// The largest logits of a token, with the tokens that they are of: the largest first, and of equals the first token. All others are numbers
/// and smaller than each of these.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Largest<'a>(&'a [(u32, f32)]);

impl<'a> Largest<'a> {
    /// The tokens and their logits.
    pub const fn pairs(self) -> &'a [(u32, f32)] {
        self.0
    }

    /// What [`unpack`] found.
    pub(crate) const fn found(pairs: &'a [(u32, f32)]) -> Largest<'a> {
        Largest(pairs)
    }
}

/// Tokens have numbers that an `f32` can hold, because they travel as such beside their logits.
const MOST_TOKENS: usize = 1 << 24;

/// How many numbers a row has that tells the largest logits: so many logits, in any order, as many tokens, and the sum of all logits.
pub(crate) const fn packed_width(count: usize) -> usize {
    2 * count + 1
}

/// Reads a row that tells the largest logits, and appends those of which the invariant of [`Largest`] holds; `false`, and nothing appended,
/// if it says too little. It may come from a peer that says anything.
pub(crate) fn unpack(row: &[f32], vocabulary: usize, into: &mut Vec<(u32, f32)>) -> bool {
    let Some((sum, pairs)) = row.split_last() else { return false };
    let (logits, tokens) = pairs.split_at(pairs.len() / 2);
    // A sum is a number only if everything in it is one. It need not be: infinite logits, and sums beyond all numbers.
    if !sum.is_finite() || !logits.iter().all(|logit| logit.is_finite()) {
        return false;
    }
    let start = into.len();
    let least = logits.iter().copied().fold(f32::INFINITY, f32::min);
    for (&logit, &number) in logits.iter().zip(tokens) {
        let token = number as u32;
        if token as f32 != number || token as usize >= vocabulary {
            into.truncate(start);
            return false;
        }
        // Others that are equal to the smallest one may have been left out.
        if logit > least {
            into.push((token, logit));
        }
    }
    into[start..].sort_unstable_by(|a, b| descending(a.1, b.1).then(a.0.cmp(&b.0)));
    true
}

/// The larger of two numbers first. Zeros are equal, whatever their signs.
pub(crate) fn descending(a: f32, b: f32) -> Ordering {
    b.partial_cmp(&a).unwrap_or(Ordering::Equal)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a device tells of logits: the largest ones by some order of equals, in some order.
    pub(crate) fn pack(logits: &[f32], count: usize, last_first: bool) -> Vec<f32> {
        let mut pairs: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
        if last_first {
            pairs.reverse();
        }
        pairs.sort_by(|a, b| b.1.total_cmp(&a.1));
        pairs.truncate(count);
        pairs.swap(0, count - 1);
        let (values, tokens) = (pairs.iter().map(|pair| pair.1), pairs.iter().map(|pair| pair.0 as f32));
        values.chain(tokens).chain([logits.iter().sum()]).collect()
    }

    fn read(row: &[f32], vocabulary: usize) -> Option<Vec<(u32, f32)>> {
        let mut pairs = vec![(7, 7.0)];
        let is_read = unpack(row, vocabulary, &mut pairs);
        assert_eq!(pairs.remove(0), (7, 7.0));
        assert!(is_read || pairs.is_empty());
        is_read.then_some(pairs)
    }

    #[test]
    fn what_is_equal_to_the_smallest_is_not_known() {
        let logits = [1.0, 5.0, 2.0, -3.0, 2.0, 5.0, 2.0, 0.0];
        for last_first in [false, true] {
            assert_eq!(read(&pack(&logits, 4, last_first), 8), Some(vec![(1, 5.0), (5, 5.0)]));
            let more = vec![(1, 5.0), (5, 5.0), (2, 2.0), (4, 2.0), (6, 2.0)];
            assert_eq!(read(&pack(&logits, 6, last_first), 8), Some(more));
            assert_eq!(read(&pack(&logits, 2, last_first), 8), Some(vec![]));
        }
        // Zeros of either sign are equal, and of equals the first token is first.
        let zeros = [-0.0, 0.0, -1.0, -0.0, 1.0, 0.0, -1.0];
        assert_eq!(read(&pack(&zeros, 3, false), 7), Some(vec![(4, 1.0)]));
        assert_eq!(
            read(&pack(&zeros, 6, false), 7),
            Some(vec![(4, 1.0), (0, -0.0), (1, 0.0), (3, -0.0), (5, 0.0)])
        );
    }

    #[test]
    fn logits_that_are_no_numbers_are_not_passed_over() {
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut logits = [1.0; 20];
            logits[3] = odd;
            assert_eq!(read(&pack(&logits, 5, false), 20), None, "{odd}");
        }
        assert_eq!(read(&pack(&[f32::MAX; 20], 5, false), 20), None, "a sum beyond all numbers");
        assert_eq!(read(&[], 20), None);
    }

    #[test]
    fn needs() {
        let pairs = [(3, 4.0), (1, 3.0), (7, 3.0)];
        let is_met = |need: Need| need.is_met_by(Largest::found(&pairs));
        assert!(is_met(Need::largest(3)) && !is_met(Need::largest(4)) && !is_met(Need::All));
        assert!(is_met(Need::Largest { count: 1, within: -1.0 }));
        assert!(!is_met(Need::Largest { count: 1, within: -1.1 }), "there may be others");
        assert!(!Need::largest(0).is_met_by(Largest::found(&[])));
        let counts =
            [1, 40, 63, 64, 255, 1023, 1024, usize::MAX].map(|n| Need::largest(n).worth_reading(49_152));
        let expected = [Some(64), Some(64), Some(64), Some(256), Some(256), Some(1024), None, None];
        assert_eq!(counts, expected);
        assert_eq!(Need::All.worth_reading(49_152), None);
        assert_eq!(Need::largest(1).worth_reading(200), None, "all of them are hardly more");
        assert_eq!(Need::largest(1).worth_reading(MOST_TOKENS + 1), None);
    }

    proptest! {
        /// Of whatever a peer sends.
        #[test]
        fn any_row_is_read_or_refused(
            row in prop::collection::vec(prop_oneof![any::<f32>(), -3.0_f32..300.0, (0_u8..200).prop_map(f32::from)], 0..40),
        ) {
            if let Some(pairs) = read(&row, 100) {
                prop_assert!(pairs.iter().all(|&(token, logit)| token < 100 && logit.is_finite()));
                prop_assert!(pairs.is_sorted_by(|a, b| (b.1, a.0) <= (a.1, b.0)));
            }
        }
    }
}
