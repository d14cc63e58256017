//! Tokens to text while they are being made.
//!
//! Invariant: what is handed out is whole characters, and all of it put together is what decoding all tokens at once
//! gives, with U+FFFD for bytes that are no UTF-8.

use super::vocab::{Token, Vocab};

/// Turns tokens into text one by one and holds back what is not yet a whole character.
///
/// ```
/// use oxcart_llm::text::Streamer;
///
/// let mut stream = Streamer::new();
/// assert_eq!(stream.push_bytes(b"caf\xc3"), "caf");
/// assert_eq!(stream.push_bytes(b"\xa9 \xe2\x82"), "é ");
/// assert_eq!(stream.finish(), "\u{fffd}");
/// ```
#[derive(Clone, Debug, Default)]
pub struct Streamer {
    show_special: bool,
    /// Control tokens that are shown nevertheless, ascending.
    shown: Vec<Token>,
    /// The beginning of a character.
    held: Vec<u8>,
    ready: String,
}

impl Streamer {
    /// Leaves special tokens out.
    pub fn new() -> Streamer {
        Streamer::default()
    }

    /// Writes special tokens out if told to.
    pub fn show_special(self, show_special: bool) -> Streamer {
        Streamer { show_special, ..self }
    }

    /// Writes these special tokens out in any case.
    pub fn show(self, mut shown: Vec<Token>) -> Streamer {
        shown.sort_unstable();
        Streamer { shown, ..self }
    }

    /// Takes a token and hands out the text that is complete with it.
    pub fn push(&mut self, vocab: &Vocab, token: Token) -> &str {
        let show_special = self.show_special || self.shown.binary_search(&token).is_ok();
        self.push_bytes(vocab.shown(token, show_special))
    }

    /// Takes bytes and hands out the text that is complete with them.
    pub fn push_bytes(&mut self, bytes: &[u8]) -> &str {
        self.ready.clear();
        self.held.extend_from_slice(bytes);
        let mut kept = 0;
        let mut chunks = self.held.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            self.ready.push_str(chunk.valid());
            let invalid = chunk.invalid();
            if chunks.peek().is_none() && is_beginning(invalid) {
                kept = invalid.len();
            } else if !invalid.is_empty() {
                self.ready.push(char::REPLACEMENT_CHARACTER);
            }
        }
        self.held.drain(..self.held.len() - kept);
        &self.ready
    }

    /// What is held back: the beginning of a character, or nothing.
    pub(crate) fn held(&self) -> &[u8] {
        &self.held
    }

    /// Hands out what was held back: nothing, or U+FFFD for a character that never became whole.
    pub fn finish(&mut self) -> &str {
        self.ready.clear();
        if !self.held.is_empty() {
            self.ready.push(char::REPLACEMENT_CHARACTER);
        }
        self.held.clear();
        &self.ready
    }
}

/// Whether more bytes could make a character of these.
fn is_beginning(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn streaming_is_decoding(
            bytes in prop::collection::vec(
                prop_oneof![any::<u8>(), Just(0xc3), Just(0xe2), Just(0x82), Just(0xac), Just(0xf0), Just(0x9f)],
                0..40,
            ),
            cuts in prop::collection::vec(0_usize..5, 40),
        ) {
            let mut stream = Streamer::new();
            let mut text = String::new();
            let mut rest = bytes.as_slice();
            for cut in cuts {
                let (now, later) = rest.split_at(cut.min(rest.len()));
                text.push_str(stream.push_bytes(now));
                rest = later;
            }
            text.push_str(stream.push_bytes(rest));
            text.push_str(stream.finish());
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn nothing_whole_is_held_back(text in ".*") {
            let mut stream = Streamer::new();
            for c in text.chars() {
                let mut buffer = [0; 4];
                let shown = stream.push_bytes(c.encode_utf8(&mut buffer).as_bytes()).to_owned();
                prop_assert_eq!(shown, c.to_string());
            }
        }
    }
}
