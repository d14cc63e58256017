//! Tokens to text, a whole one at a time. For one that is being made there is the [`Streamer`](super::Streamer).

use super::pretokenize::Spelling;
use super::spelling;
use super::vocab::{Attributes, Token, Vocab};

/// How tokens are turned into text. The default leaves special tokens out and changes nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decode {
    /// Writes special tokens out.
    pub show_special: bool,
    /// Takes the tokens for a whole text instead of a part of one: undoes what encoding adds to the beginning of a text,
    /// and tidies up spaces where the vocabulary says that this is its custom.
    pub whole_text: bool,
}

impl Vocab {
    /// The bytes that tokens stand for. They may end within a character; numbers that are no tokens stand for nothing.
    pub fn decode(&self, tokens: &[Token], options: Decode) -> Vec<u8> {
        let mut text = Vec::with_capacity(tokens.len().saturating_mul(4));
        let mut first = options.whole_text && self.flags.add_space_prefix;
        for &token in tokens {
            let piece = self.shown(token, options.show_special);
            let piece = if first { piece.strip_prefix(b" ").unwrap_or(piece) } else { piece };
            // What is left out is not its beginning.
            first = first && !options.show_special && self.is_control(token);
            text.extend_from_slice(piece);
        }
        if options.whole_text && self.flags.clean_spaces {
            text = clean_spaces(&text);
        }
        text
    }

    /// What a token adds to a text.
    pub(crate) fn shown(&self, token: Token, show_special: bool) -> &[u8] {
        if !show_special && self.is_control(token) {
            return &[];
        }
        self.bytes(token).unwrap_or_default()
    }
}

/// What a token stands for. One that is not used stands for nothing.
pub(crate) fn meaning(text: &[u8], attributes: Attributes, spelling: Spelling, bytes: &mut Vec<u8>) {
    if attributes.intersects(Attributes::SPECIAL) && spelling != Spelling::Escaped {
        bytes.clear();
        bytes.extend_from_slice(text);
        return;
    }
    match (spelling::byte_token(text), spelling) {
        (_, Spelling::Bytes | Spelling::Plain { .. }) if attributes.intersects(Attributes::UNUSED) => {
            bytes.clear();
        }
        (Some(byte), _) if attributes.intersects(Attributes::BYTE) => {
            bytes.clear();
            bytes.push(byte);
        }
        (_, Spelling::Bytes) => spelling::read_leniently(text, bytes),
        (_, Spelling::Plain { .. }) => spelling::unescape_spaces(text, bytes),
        (_, Spelling::Escaped) => spelling::unescape(text, bytes),
        (_, Spelling::Verbatim) => {
            bytes.clear();
            bytes.extend_from_slice(text);
        }
    }
}

/// No spaces before marks that end sentences, around lone apostrophes, and before some contractions.
fn clean_spaces(text: &[u8]) -> Vec<u8> {
    let text = without_spaces_before(text, |rest| matches!(rest.first(), Some(b'?' | b'!' | b'.' | b',')));
    let text = join_at_apostrophes(&text);
    without_spaces_before(&text, |rest| {
        [&b"'s"[..], b"'m", b"'re", b"'ve"].iter().any(|contraction| rest.starts_with(contraction))
    })
}

fn without_spaces_before(text: &[u8], goes: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut kept = Vec::with_capacity(text.len());
    for (at, &byte) in text.iter().enumerate() {
        let rest = text.get(at + 1..).unwrap_or_default();
        if byte != b' ' || !goes(rest) {
            kept.push(byte);
        }
    }
    kept
}

fn join_at_apostrophes(text: &[u8]) -> Vec<u8> {
    let mut kept = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, others)) = rest.split_first() {
        (rest, _) = match rest.strip_prefix(b" ' ") {
            Some(others) => (others, kept.push(b'\'')),
            None => (others, kept.push(first)),
        };
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_are_tidied_up() {
        for (text, expected) in [
            ("Hello , world ! ? .", "Hello, world!?."),
            ("it 's we 're I 'm they 've don 't", "it's we're I'm they've don 't"),
            ("rock ' n ' roll", "rock'n'roll"),
            (" ' ' ", "'' "),
            ("", ""),
            (" ", " "),
        ] {
            assert_eq!(String::from_utf8(clean_spaces(text.as_bytes())).unwrap(), expected);
        }
    }
}
