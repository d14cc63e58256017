//! Special tokens in text: where they stand, and what is left around them.
//!
//! Longer tokens go first, each from left to right through what the ones before have left; this is the order of
//! llama.cpp. An automaton tells first which tokens occur at all, so that text without them is passed over once.
//!
//! Invariant: fragments are in the order of the text, and raw ones are not empty.

use std::fmt;
use std::ops::Range;

use aho_corasick::AhoCorasick;
use memchr::memmem;

use super::limits::MAX_SPECIAL_BYTES;
use super::pieces::Pieces;
use super::vocab::{Attributes, Token};

/// A part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fragment {
    /// A special token.
    Token(Token),
    /// Bytes that a tokenizer has to look at.
    Raw(Range<usize>),
}

/// Which special tokens are looked for. Those that users defined always are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Parse<'a> {
    /// Those that users defined alone.
    Text,
    /// All.
    Special,
    /// All, except that no control token covers the byte at one of these places, which ascend.
    Guarded(&'a [usize]),
}

/// The special tokens of a vocabulary.
pub(crate) struct Specials {
    /// Longest first.
    tokens: Vec<Special>,
    finder: Option<AhoCorasick>,
}

struct Special {
    token: Token,
    text: Box<[u8]>,
    /// Looked for only where special tokens are asked for.
    control: bool,
    strip_left: bool,
    strip_right: bool,
}

impl Specials {
    /// Where the texts are too long for an automaton, says how long they are.
    pub(crate) fn new(texts: &Pieces, attributes: &[Attributes]) -> Result<Specials, usize> {
        let special = (0..).zip(attributes).filter(|(_, own)| own.intersects(Attributes::SPECIAL));
        let mut bytes = 0_usize;
        let mut tokens = Vec::new();
        for (token, own) in special {
            let text: Box<[u8]> = texts.get(token).into();
            bytes = bytes.saturating_add(text.len());
            if bytes > MAX_SPECIAL_BYTES {
                return Err(bytes);
            }
            tokens.push(Special {
                token,
                text,
                control: own.intersects(Attributes::CONTROL | Attributes::UNKNOWN),
                strip_left: own.intersects(Attributes::STRIP_LEFT),
                strip_right: own.intersects(Attributes::STRIP_RIGHT),
            });
        }
        tokens.sort_by_key(|special| std::cmp::Reverse(special.text.len()));
        let finder = match tokens.is_empty() {
            true => None,
            false => Some(AhoCorasick::new(tokens.iter().map(|special| &special.text)).map_err(|_| bytes)?),
        };
        Ok(Specials { tokens, finder })
    }

    /// Bytes of the longest one.
    pub(crate) fn longest(&self) -> usize {
        self.tokens.first().map_or(0, |special| special.text.len())
    }

    /// Whether white space around some of them goes away.
    pub(crate) fn strip_white(&self) -> bool {
        self.tokens.iter().any(|special| special.strip_left || special.strip_right)
    }

    /// Cuts a text at its special tokens.
    pub(crate) fn split(&self, text: &[u8], parse: Parse<'_>) -> Vec<Fragment> {
        let mut raw: Vec<Range<usize>> = Vec::new();
        if !text.is_empty() {
            raw.push(0..text.len());
        }
        let mut found: Vec<(usize, Token)> = Vec::new();
        for special in self.occurring(text) {
            if special.control && matches!(parse, Parse::Text) {
                continue;
            }
            let guards = match parse {
                Parse::Guarded(guards) if special.control => guards,
                _ => &[],
            };
            let mut rest = Vec::with_capacity(raw.len());
            for range in raw {
                special.cut(text, range, guards, &mut rest, &mut found);
            }
            raw = rest;
        }

        found.sort_unstable();
        let mut fragments = Vec::with_capacity(raw.len() + found.len());
        let mut found = found.into_iter().peekable();
        for range in raw {
            while let Some((_, token)) = found.next_if(|(start, _)| *start < range.start) {
                fragments.push(Fragment::Token(token));
            }
            fragments.push(Fragment::Raw(range));
        }
        fragments.extend(found.map(|(_, token)| Fragment::Token(token)));
        fragments
    }

    /// Where control tokens begin in a text, in ascending order.
    pub(crate) fn control_tokens(&self, text: &[u8]) -> Vec<usize> {
        let mut starts: Vec<usize> = Vec::new();
        for special in self.occurring(text).filter(|special| special.control) {
            starts.extend(memmem::find_iter(text, &special.text));
        }
        starts.sort_unstable();
        starts.dedup();
        starts
    }

    /// The tokens that occur in a text, longest first.
    fn occurring(&self, text: &[u8]) -> impl Iterator<Item = &Special> {
        let mut occurs = vec![false; self.tokens.len()];
        let mut missing = self.tokens.len();
        if let Some(finder) = &self.finder {
            for hit in finder.find_overlapping_iter(text) {
                let Some(seen) = occurs.get_mut(hit.pattern().as_usize()).filter(|seen| !**seen) else {
                    continue;
                };
                *seen = true;
                missing -= 1;
                if missing == 0 {
                    break;
                }
            }
        }
        self.tokens.iter().zip(occurs).filter_map(|(special, occurs)| occurs.then_some(special))
    }
}

impl Special {
    /// Cuts this token out of a range of the text.
    fn cut(
        &self,
        text: &[u8],
        range: Range<usize>,
        guards: &[usize],
        raw: &mut Vec<Range<usize>>,
        found: &mut Vec<(usize, Token)>,
    ) {
        let finder = memmem::Finder::new(&self.text);
        let mut left = range.start;
        let mut search = range.start;
        while let Some(at) = text.get(search..range.end).and_then(|part| finder.find(part)) {
            let start = search + at;
            let end = start + self.text.len();
            let next_guard = guards.partition_point(|&guard| guard < start);
            if guards.get(next_guard).is_some_and(|&guard| guard < end) {
                search = start + 1;
                continue;
            }
            let mut piece = left..start;
            while self.strip_left && !piece.is_empty() && is_space(text, piece.end - 1) {
                piece.end -= 1;
            }
            if !piece.is_empty() {
                raw.push(piece);
            }
            found.push((start, self.token));
            left = end;
            while self.strip_right && left < range.end && is_space(text, left) {
                left += 1;
            }
            search = left;
        }
        if left < range.end {
            raw.push(left..range.end);
        }
    }
}

fn is_space(text: &[u8], at: usize) -> bool {
    text.get(at).is_some_and(|&byte| is_white(byte))
}

/// White space of C.
pub(crate) fn is_white(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

impl fmt::Debug for Specials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Specials").field("tokens", &self.tokens.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn specials(tokens: &[(&str, Attributes)]) -> Specials {
        let mut texts = Pieces::default();
        for (text, _) in tokens {
            texts.intern(text.as_bytes());
        }
        Specials::new(&texts, &tokens.iter().map(|(_, own)| *own).collect::<Vec<_>>()).unwrap()
    }

    fn check(specials: &Specials, text: &str, parse: Parse<'_>, expected: &str) {
        let shown: Vec<String> = specials
            .split(text.as_bytes(), parse)
            .into_iter()
            .map(|fragment| match fragment {
                Fragment::Token(token) => token.to_string(),
                Fragment::Raw(range) => text[range].to_owned(),
            })
            .collect();
        assert_eq!(shown.join("|"), expected);
    }

    #[test]
    fn longer_tokens_go_first() {
        let all = specials(&[
            ("abc", Attributes::CONTROL),
            ("cdef", Attributes::CONTROL),
            ("d", Attributes::USER_DEFINED),
        ]);
        check(&all, "abcdef", Parse::Special, "ab|1");
        check(&all, "abcd", Parse::Special, "0|2");
        check(&all, "abcdef", Parse::Text, "abc|2|ef");
        check(&all, "", Parse::Special, "");
        check(&all, "abcabc", Parse::Special, "0|0");
    }

    #[test]
    fn white_space_around_them_may_go() {
        let all = specials(&[
            ("<l>", Attributes::CONTROL | Attributes::STRIP_LEFT),
            ("<r>", Attributes::CONTROL | Attributes::STRIP_RIGHT),
        ]);
        check(&all, "a \n<l> b<r> \t c <r>  ", Parse::Special, "a|0| b|1|c |1");
    }

    #[test]
    fn guarded_places_are_text() {
        let all = specials(&[("<s>", Attributes::CONTROL), ("<u>", Attributes::USER_DEFINED)]);
        check(&all, "<s>a<s>b<u>", Parse::Guarded(&[4, 8]), "0|a<s>b|1");
        check(&all, "<s><s>", Parse::Guarded(&[3]), "0|<s>");
        assert_eq!(all.control_tokens(b"a<s><u><s>"), [1, 7]);
    }
}
