//! Stop strings in a stream of text.
//!
//! Invariant: text is handed out as soon as no stop string can begin in it any more, and never later; text that belongs
//! to a stop string is never handed out. Time is in proportion to the text and to the number of strings, which is bounded,
//! whatever they are.

use super::limits::{MAX_STOP_BYTES, MAX_STOP_STRINGS};

/// Looks for strings at which an answer ends, and holds back what may become one.
///
/// ```
/// use oxcart_llm::text::StopStrings;
///
/// let mut stop = StopStrings::new(["\nUser:"])?;
/// assert_eq!(stop.push("Yes.\nUs").text, "Yes.");
/// assert_eq!(stop.push("ually").text, "\nUsually");
/// let found = stop.push("!\nUser: no");
/// assert_eq!((found.text, found.stopped_by), ("!", Some(0)));
/// # Ok::<(), oxcart_llm::text::StopError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    patterns: Vec<Pattern>,
    /// What was not handed out yet, behind what was handed out last.
    buffer: String,
    /// How much of the buffer was handed out by the last call.
    handed_out: usize,
    stopped_by: Option<usize>,
}

/// Why strings are not looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StopError {
    /// There are too many.
    #[error("{count} stop strings are asked for, but at most {MAX_STOP_STRINGS} are supported")]
    TooMany {
        /// How many.
        count: usize,
    },
    /// They are too long.
    #[error("the stop strings have {bytes} bytes, but at most {MAX_STOP_BYTES} are supported")]
    TooLong {
        /// How long all of them are.
        bytes: usize,
    },
}

/// What came out of a piece of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed<'a> {
    /// Text that is safe to show.
    pub text: &'a str,
    /// The number of the string that the text has run into. Nothing comes after that.
    pub stopped_by: Option<usize>,
}

/// A string and how much of it the text ends with (Knuth, Morris and Pratt).
#[derive(Clone, Debug)]
struct Pattern {
    bytes: Box<[u8]>,
    /// For every prefix, the length of the longest shorter prefix that it ends with.
    shorter: Vec<usize>,
    matched: usize,
}

impl Pattern {
    fn new(text: &str) -> Pattern {
        let bytes: Box<[u8]> = text.as_bytes().into();
        let mut pattern = Pattern { shorter: vec![0], bytes, matched: 0 };
        for at in 1..pattern.bytes.len() {
            let byte = pattern.bytes.get(at).copied().unwrap_or_default();
            pattern.advance(byte);
            pattern.shorter.push(pattern.matched);
        }
        pattern.matched = 0;
        pattern
    }

    /// Takes a byte and says whether the text now ends with the whole string.
    fn advance(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.bytes.get(self.matched) != Some(&byte) {
            self.matched = self.shorter.get(self.matched - 1).copied().unwrap_or_default();
        }
        if self.bytes.get(self.matched) == Some(&byte) {
            self.matched += 1;
        }
        self.matched == self.bytes.len()
    }
}

impl StopStrings {
    /// Looks for these strings. Empty ones are not looked for, but are counted.
    pub fn new(strings: impl IntoIterator<Item = impl AsRef<str>>) -> Result<StopStrings, StopError> {
        let (mut patterns, mut bytes) = (Vec::new(), 0_usize);
        for text in strings {
            bytes = bytes.saturating_add(text.as_ref().len());
            if bytes > MAX_STOP_BYTES {
                return Err(StopError::TooLong { bytes });
            }
            if patterns.len() == MAX_STOP_STRINGS {
                return Err(StopError::TooMany { count: patterns.len() + 1 });
            }
            patterns.push(Pattern::new(text.as_ref()));
        }
        Ok(StopStrings { patterns, ..StopStrings::default() })
    }

    /// Takes a piece of text and hands out what is safe to show. The string that ends first wins; of those that end at
    /// the same place, the longest.
    pub fn push(&mut self, text: &str) -> Passed<'_> {
        self.forget();
        if self.stopped_by.is_some() {
            return self.pass(0);
        }
        let before = self.buffer.len();
        self.buffer.push_str(text);
        let mut safe = None;
        for (at, byte) in text.bytes().enumerate() {
            let mut longest = 0;
            for (number, pattern) in self.patterns.iter_mut().enumerate() {
                if !pattern.bytes.is_empty() && pattern.advance(byte) && pattern.bytes.len() > longest {
                    longest = pattern.bytes.len();
                    self.stopped_by = Some(number);
                }
            }
            if longest > 0 {
                safe = Some(before + at + 1 - longest);
                break;
            }
        }
        let held = self.patterns.iter().map(|pattern| pattern.matched).max().unwrap_or_default();
        self.pass(safe.unwrap_or_else(|| self.buffer.len() - held))
    }

    /// What is held back: text that may become a stop string.
    pub(crate) fn held(&self) -> &str {
        if self.stopped_by.is_some() { "" } else { &self.buffer[self.handed_out..] }
    }

    /// Hands out what was held back, for a text that ends here.
    pub fn finish(&mut self) -> &str {
        self.forget();
        let rest = if self.stopped_by.is_some() { 0 } else { self.buffer.len() };
        self.patterns.iter_mut().for_each(|pattern| pattern.matched = 0);
        self.pass(rest).text
    }

    fn forget(&mut self) {
        self.buffer.drain(..self.handed_out);
        self.handed_out = 0;
    }

    fn pass(&mut self, len: usize) -> Passed<'_> {
        self.handed_out = len;
        // A match begins with the first byte of a string, which begins a character; so does what is held back.
        Passed { text: self.buffer.get(..len).unwrap_or_default(), stopped_by: self.stopped_by }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn overlaps() {
        let mut stop = StopStrings::new(["aab", "", "ab"]).unwrap();
        assert_eq!(stop.push("aa"), Passed { text: "", stopped_by: None });
        assert_eq!(stop.push("a"), Passed { text: "a", stopped_by: None });
        assert_eq!(stop.push("b"), Passed { text: "", stopped_by: Some(0) });
        assert_eq!(stop.push("more"), Passed { text: "", stopped_by: Some(0) });
        assert_eq!(stop.finish(), "");
    }

    #[test]
    fn what_is_held_back_comes_out_at_the_end() {
        let mut stop = StopStrings::new(["éa"]).unwrap();
        assert_eq!(stop.push("xé").text, "x");
        assert_eq!(stop.finish(), "é");
        assert_eq!(stop.finish(), "");
    }

    #[test]
    fn strings_are_bounded() {
        assert!(StopStrings::new(vec!["a"; MAX_STOP_STRINGS]).is_ok());
        let many = StopStrings::new(vec!["a"; MAX_STOP_STRINGS + 5]);
        assert_eq!(many.unwrap_err(), StopError::TooMany { count: MAX_STOP_STRINGS + 1 });
        let long = StopStrings::new(["a".repeat(MAX_STOP_BYTES), "b".to_owned()]);
        assert_eq!(long.unwrap_err(), StopError::TooLong { bytes: MAX_STOP_BYTES + 1 });
        // The worst that they can do: nearly all of every string fits at every place.
        let worst =
            StopStrings::new((0..MAX_STOP_STRINGS).map(|n| format!("{}b", "a".repeat(200 - n % 100))));
        let mut worst = worst.unwrap();
        assert_eq!(worst.push(&"a".repeat(20_000)).text.len(), 20_000 - 200);
    }

    proptest! {
        /// What is held back is the longest end of the text that a string begins with, and not a byte more.
        #[test]
        fn no_more_is_held_back_than_must_be(
            strings in prop::collection::vec("[abé]{1,4}", 0..4), pieces in prop::collection::vec("[abé]{0,3}", 0..12),
        ) {
            let mut stop = StopStrings::new(&strings).unwrap();
            let (mut whole, mut shown) = (String::new(), 0);
            for piece in &pieces {
                whole.push_str(piece);
                let passed = stop.push(piece);
                shown += passed.text.len();
                if passed.stopped_by.is_some() {
                    break;
                }
                let begins = |end: &str| strings.iter().any(|string| string.starts_with(end));
                let ends = (0..=whole.len()).filter(|&at| whole.is_char_boundary(at));
                let held = ends.map(|at| &whole[at..]).find(|end| begins(end) || end.is_empty());
                prop_assert_eq!(&whole[shown..], held.unwrap_or_default());
            }
        }

        #[test]
        fn cuts_do_not_matter(
            strings in prop::collection::vec("[abé]{1,4}", 0..3),
            pieces in prop::collection::vec("[abé]{0,5}", 0..12),
        ) {
            let whole = pieces.concat();
            let mut stop = StopStrings::new(&strings).unwrap();
            let mut shown = String::new();
            let mut stopped = false;
            for piece in &pieces {
                let passed = stop.push(piece);
                shown.push_str(passed.text);
                stopped |= passed.stopped_by.is_some();
            }
            shown.push_str(stop.finish());
            // The first end wins, then the longest.
            let first = strings
                .iter()
                .filter_map(|string| {
                    let start = whole.find(string.as_str())?;
                    Some((start + string.len(), start))
                })
                .min();
            prop_assert_eq!(stopped, first.is_some());
            prop_assert_eq!(&shown, first.map_or(whole.as_str(), |(_, start)| &whole[..start]));
        }
    }
}
