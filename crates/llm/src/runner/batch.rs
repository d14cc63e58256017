//! What is computed together: pieces of any number of sequences, and how they are cut into steps.
//!
//! Invariant: a step has at most as many tokens as the runner computes at a time; the pieces of a sequence come in order. How
//! pieces are cut changes no result.

use std::ops::Range;

use super::sequence::SequenceId;

/// Of which tokens of a piece logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Of none.
    None,
    /// Of the last one.
    Last,
    /// Of all from this one on, counted from the first of the piece; `From(0)` means all.
    From(usize),
}

impl Wanted {
    /// Which of so many tokens.
    pub(crate) fn range(self, tokens: usize) -> Range<usize> {
        match self {
            Wanted::None => tokens..tokens,
            Wanted::Last => tokens.saturating_sub(1)..tokens,
            Wanted::From(first) => first.min(tokens)..tokens,
        }
    }
}

/// Tokens that follow those of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'b> {
    /// Which sequence.
    pub sequence: SequenceId,
    /// The tokens.
    pub tokens: &'b [u32],
    /// Of which of them logits are wanted.
    pub wanted: Wanted,
}

/// A part of a piece that is computed in one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Which piece of the batch.
    pub(crate) piece: usize,
    /// Which of its tokens.
    pub(crate) tokens: Range<usize>,
}

/// Cuts pieces of these lengths into steps of at most `most` tokens.
///
/// With recurrent blocks, all parts of a step have the same length: single tokens of several sequences, or some tokens of one,
/// as many as a graph is built for.
pub(crate) fn steps(lengths: &[usize], most: usize, recurrent: bool) -> Vec<Vec<Part>> {
    let mut steps: Vec<Vec<Part>> = Vec::new();
    if recurrent {
        let single = |&piece: &usize| lengths[piece] == 1;
        let singles: Vec<usize> = (0..lengths.len()).filter(single).collect();
        for group in singles.chunks(most) {
            steps.push(group.iter().map(|&piece| Part { piece, tokens: 0..1 }).collect());
        }
    }
    let mut room = 0;
    for (piece, &length) in lengths.iter().enumerate() {
        if recurrent && length == 1 {
            continue;
        }
        let mut start = 0;
        while start < length {
            if room == 0 || recurrent {
                steps.push(Vec::new());
                room = most;
            }
            let mut end = (start + room).min(length);
            if recurrent {
                end = start + largest_bucket(end - start);
            }
            if let Some(step) = steps.last_mut() {
                step.push(Part { piece, tokens: start..end });
            }
            room -= end - start;
            start = end;
        }
    }
    steps
}

/// The size of a graph that serves so many tokens: few sizes serve all, with little to spare.
pub(crate) fn bucket(count: usize) -> usize {
    const EXACT: usize = 32;
    match count {
        0..=EXACT => count,
        // Eight sizes from one power of two to the next.
        _ => count.next_multiple_of(count.next_power_of_two() / 16),
    }
}

/// The largest size of a graph that so many tokens fill.
pub(crate) fn largest_bucket(count: usize) -> usize {
    match bucket(count) == count {
        true => count,
        // Sizes are multiples of the same number from half the next power of two on.
        false => count - count % (count.next_power_of_two() / 16),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(lengths: &[usize], most: usize, recurrent: bool) -> Vec<Vec<(usize, Range<usize>)>> {
        let plain = |step: Vec<Part>| step.into_iter().map(|part| (part.piece, part.tokens)).collect();
        steps(lengths, most, recurrent).into_iter().map(plain).collect()
    }

    #[test]
    fn steps_are_filled() {
        assert_eq!(
            cut(&[3, 1, 6, 0, 1], 5, false),
            [vec![(0, 0..3), (1, 0..1), (2, 0..1)], vec![(2, 1..6)], vec![(4, 0..1)],]
        );
        assert_eq!(cut(&[], 5, false), Vec::<Vec<_>>::new());
    }

    #[test]
    fn recurrent_steps_are_rectangles() {
        assert_eq!(
            cut(&[3, 1, 6, 1, 1], 5, true),
            [vec![(1, 0..1), (3, 0..1), (4, 0..1)], vec![(0, 0..3)], vec![(2, 0..5)], vec![(2, 5..6)],]
        );
    }

    #[test]
    fn buckets_are_few_and_tight() {
        let sizes: std::collections::BTreeSet<usize> = (1..=512).map(bucket).collect();
        assert_eq!(sizes.len(), 32 + 4 * 8);
        for count in 1..=5000 {
            let size = bucket(count);
            assert!(size >= count && size <= count + count / 8 + 1, "{count}: {size}");
            assert_eq!(bucket(size), size);
            let below = largest_bucket(count);
            assert!(
                below <= count && bucket(below) == below && count - below <= count / 8,
                "{count}: {below}"
            );
        }
    }

    #[test]
    fn wanted_tokens() {
        assert_eq!(
            [Wanted::None, Wanted::Last, Wanted::From(2), Wanted::From(9)].map(|wanted| wanted.range(5)),
            [5..5, 4..5, 2..5, 5..5]
        );
        assert_eq!(Wanted::Last.range(0), 0..0);
    }
}
