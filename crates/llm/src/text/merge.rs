//! Merging neighbours until no pair is left that may be merged: what byte-pair and score-driven tokenizers share.
//!
//! Invariant: of all pairs that may be merged, the one with the smallest key goes first, and of equal ones the leftmost.
//! Time is n log n in the length of the word, whatever the word: every merge takes one symbol away and offers at most
//! two new pairs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// No neighbour, or a symbol without a number.
pub(crate) const NONE: u32 = u32::MAX;

/// A run of bytes of the word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Symbol {
    /// Where it begins in the word.
    pub(crate) start: u32,
    /// How many bytes it has; none once it was merged into its left neighbour.
    pub(crate) len: u32,
    /// A number that means something to the tokenizer.
    pub(crate) number: u32,
    previous: u32,
    next: u32,
}

impl Symbol {
    /// Its bytes in the word.
    pub(crate) fn bytes<'w>(&self, word: &'w [u8]) -> &'w [u8] {
        let start = self.start as usize;
        word.get(start..start.saturating_add(self.len as usize)).unwrap_or_default()
    }
}

/// What a pair becomes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Merge {
    /// Smaller ones go first.
    pub(crate) key: u32,
    /// Number of the merged symbol.
    pub(crate) number: u32,
}

/// A pair that waits. Its order is that of the fields. It is stale once its symbols have grown or gone: a symbol grows
/// only by taking in its right neighbour as a whole, so then the length no longer fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    key: u32,
    left: u32,
    len: u32,
    number: u32,
}

/// A word in the making. Kept from word to word for its memory.
///
/// Candidates are sorted as a whole where that is possible, which is much cheaper than taking them out of a heap one by
/// one; the heap holds those that turn up in the meantime.
#[derive(Debug, Default)]
pub(crate) struct Merger {
    symbols: Vec<Symbol>,
    /// Smallest first.
    sorted: Vec<Reverse<Candidate>>,
    waiting: BinaryHeap<Reverse<Candidate>>,
}

impl Merger {
    /// Begins a word.
    pub(crate) fn clear(&mut self) {
        self.symbols.clear();
    }

    /// Appends a symbol to the word.
    pub(crate) fn push(&mut self, start: usize, len: usize, number: u32) {
        let index = self.symbols.len() as u32;
        if let Some(last) = self.symbols.last_mut() {
            last.next = index;
        }
        let previous = index.checked_sub(1).unwrap_or(NONE);
        self.symbols.push(Symbol { start: start as u32, len: len as u32, number, previous, next: NONE });
    }

    /// Merges while there is something to merge. `lookup` says what two neighbours become, if anything.
    pub(crate) fn run(&mut self, mut lookup: impl FnMut(&Symbol, &Symbol) -> Option<Merge>) {
        let Merger { symbols, sorted, waiting } = self;
        let mut candidate = |symbols: &[Symbol], left: u32| {
            let first = symbols.get(left as usize)?;
            let second = symbols.get(first.next as usize)?;
            let Merge { key, number } = lookup(first, second)?;
            Some(Reverse(Candidate { key, left, len: first.len + second.len, number }))
        };
        sorted.clear();
        sorted.extend((0..symbols.len() as u32).filter_map(|left| candidate(symbols, left)));
        sorted.sort_unstable_by_key(|Reverse(candidate)| *candidate);
        let mut at = 0;
        loop {
            let next = match (sorted.get(at), waiting.peek()) {
                (None, None) => break,
                (None, Some(_)) => {
                    sorted.clear();
                    let others = BinaryHeap::from(std::mem::take(sorted));
                    *sorted = std::mem::replace(waiting, others).into_vec();
                    sorted.sort_unstable_by_key(|Reverse(candidate)| *candidate);
                    at = 0;
                    continue;
                }
                (Some(Reverse(next)), Some(Reverse(other))) if other < next => waiting.pop(),
                (Some(next), _) => {
                    at += 1;
                    Some(*next)
                }
            };
            let Some(Reverse(Candidate { left, len, number, .. })) = next else { break };
            let Some(&Symbol { len: left_len, previous, next: right, .. }) = symbols.get(left as usize)
            else {
                continue;
            };
            let Some(&Symbol { len: right_len, next, .. }) = symbols.get(right as usize) else { continue };
            if left_len == 0 || left_len + right_len != len {
                continue;
            }
            if let Some(symbol) = symbols.get_mut(right as usize) {
                symbol.len = 0;
            }
            if let Some(symbol) = symbols.get_mut(next as usize) {
                symbol.previous = left;
            }
            if let Some(symbol) = symbols.get_mut(left as usize) {
                *symbol = Symbol { len, number, next, ..*symbol };
            }
            waiting.extend(candidate(symbols, previous));
            waiting.extend(candidate(symbols, left));
        }
    }

    /// What is left, from left to right.
    pub(crate) fn symbols(&self) -> impl Iterator<Item = &Symbol> {
        self.symbols.iter().filter(|symbol| symbol.len > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Merges letters by a list of pairs, the first one first.
    fn check(word: &str, pairs: &[&str], expected: &[&str]) {
        let mut merger = Merger::default();
        for _ in 0..2 {
            merger.clear();
            (0..word.len()).for_each(|at| merger.push(at, 1, 0));
            merger.run(|a, b| {
                let both = &word[a.start as usize..(b.start + b.len) as usize];
                let key = pairs.iter().position(|pair| *pair == both)? as u32;
                Some(Merge { key, number: 1 })
            });
            let found: Vec<&str> =
                merger.symbols().map(|s| std::str::from_utf8(s.bytes(word.as_bytes())).unwrap()).collect();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn the_smallest_key_goes_first_and_then_the_leftmost() {
        check("aaa", &["aa"], &["aa", "a"]);
        check("aaaa", &["aa", "aaaa"], &["aaaa"]);
        check("abc", &["bc", "ab"], &["a", "bc"]);
        check("abc", &["ab", "bc", "abc"], &["abc"]);
        check("abab", &["ba", "ab"], &["a", "ba", "b"]);
        check("", &["ab"], &[]);
        check("x", &[], &["x"]);
    }
}
