//! Tokens that a text begins with, by their bytes: what tokenizers share that read from left to right.
//!
//! Invariant: of tokens with the same bytes, the one added last counts. A look takes time in the length of the longest token
//! and the logarithm of their number.

use super::pieces::Arena;
use super::vocab::Token;

/// Byte strings in order, each with a token.
#[derive(Debug)]
pub(crate) struct Prefixes {
    texts: Arena,
    /// By number in `texts`, in the order of their bytes.
    tokens: Vec<Token>,
    /// Where texts begin with a byte: from its entry to the next one.
    by_first_byte: Vec<usize>,
}

impl Prefixes {
    pub(crate) fn new<'t>(tokens: impl Iterator<Item = (&'t [u8], Token)>) -> Prefixes {
        let mut sorted: Vec<(&[u8], Token)> = tokens.filter(|(text, _)| !text.is_empty()).collect();
        // Later ones of the same bytes come first and stay.
        sorted.reverse();
        sorted.sort_by_key(|(text, _)| *text);
        sorted.dedup_by_key(|(text, _)| *text);
        let mut texts = Arena::with_capacity(sorted.len(), sorted.len().saturating_mul(6));
        for (text, _) in &sorted {
            texts.push(text);
        }
        let first_byte = |text: &[u8]| text.first().copied().map_or(0, usize::from);
        let by_first_byte =
            (0..=256).map(|byte| sorted.partition_point(|(text, _)| first_byte(text) < byte)).collect();
        Prefixes { texts, tokens: sorted.into_iter().map(|(_, token)| token).collect(), by_first_byte }
    }

    /// Bytes of the longest token.
    pub(crate) fn max_len(&self) -> usize {
        (0..self.texts.len() as u32).map(|text| self.texts.get(text).len()).max().unwrap_or(0)
    }

    /// Hands over every token that the text begins with and its length, shortest first.
    pub(crate) fn each(&self, text: &[u8], mut each: impl FnMut(Token, usize)) {
        let Some(first) = text.first().copied().map(usize::from) else { return };
        let bound = |byte: usize| self.by_first_byte.get(byte).copied().unwrap_or_default();
        let (mut start, mut end) = (bound(first), bound(first + 1));
        // All texts from `start` to `end` have the first `len` bytes of the text; the shortest one stands first.
        for len in 1.. {
            if start >= end {
                return;
            }
            if self.texts.get(start as u32).len() == len {
                if let Some(&token) = self.tokens.get(start) {
                    each(token, len);
                }
                start += 1;
            }
            let Some(&byte) = text.get(len) else { return };
            let byte_of = |at: usize| self.texts.get(at as u32).get(len).copied();
            start = partition(start, end, |at| byte_of(at) < Some(byte));
            end = partition(start, end, |at| byte_of(at) <= Some(byte));
        }
    }

    /// The longest token that the text begins with, and its length.
    pub(crate) fn longest(&self, text: &[u8]) -> Option<(Token, usize)> {
        let mut longest = None;
        self.each(text, |token, len| longest = Some((token, len)));
        longest
    }
}

/// The first place of a range for which `before` does not hold; it holds for none behind one for which it does not.
fn partition(mut start: usize, mut end: usize, before: impl Fn(usize) -> bool) -> usize {
    while start < end {
        let middle = start + (end - start) / 2;
        if before(middle) {
            start = middle + 1;
        } else {
            end = middle;
        }
    }
    start
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_found_shortest_first() {
        let texts = ["ab", "a", "abcd", "b", "abd", "", "a"];
        let prefixes = Prefixes::new(texts.iter().map(|text| text.as_bytes()).zip(0..));
        let check = |text: &str, expected: &[(Token, usize)]| {
            let mut found = Vec::new();
            prefixes.each(text.as_bytes(), |token, len| found.push((token, len)));
            assert_eq!(found, expected, "{text}");
            assert_eq!(prefixes.longest(text.as_bytes()), expected.last().copied());
        };
        check("abcde", &[(6, 1), (0, 2), (2, 4)]);
        check("abc", &[(6, 1), (0, 2)]);
        check("abd", &[(6, 1), (0, 2), (4, 3)]);
        check("b", &[(3, 1)]);
        check("c", &[]);
        check("", &[]);
    }
}
