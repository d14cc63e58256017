//! RWKV's tokenizer: at every place the longest token that fits.
//!
//! Invariant: a byte that begins no token becomes the unknown token, or nothing where there is none.

use super::pieces::Pieces;
use super::prefixes::Prefixes;
use super::spelling;
use super::vocab::Token;

#[derive(Debug)]
pub(crate) struct Rwkv {
    prefixes: Prefixes,
    unk: Option<Token>,
}

impl Rwkv {
    pub(crate) fn new(texts: &Pieces, unk: Option<Token>) -> Rwkv {
        let unescaped: Vec<Vec<u8>> = (0..texts.len() as Token)
            .map(|token| {
                let mut bytes = Vec::new();
                spelling::unescape(texts.get(token), &mut bytes);
                bytes
            })
            .collect();
        Rwkv { prefixes: Prefixes::new(unescaped.iter().map(Vec::as_slice).zip(0..)), unk }
    }

    pub(crate) fn byte_token(&self, byte: u8) -> Option<Token> {
        self.prefixes.longest(&[byte]).map(|(token, _)| token)
    }

    /// Bytes of a text that one token stands for, at most.
    pub(crate) fn longest(&self) -> usize {
        self.prefixes.max_len()
    }

    /// Whether a byte of a text is part of a token wherever it stands.
    pub(crate) fn keeps(&self, byte: u8) -> bool {
        self.unk.is_some() || self.byte_token(byte).is_some()
    }

    /// Appends the tokens of a text.
    pub(crate) fn encode(&self, text: &[u8], tokens: &mut Vec<Token>) {
        let mut rest = text;
        while !rest.is_empty() {
            let len = match self.prefixes.longest(rest) {
                Some((token, len)) => {
                    tokens.push(token);
                    len
                }
                None => {
                    tokens.extend(self.unk);
                    1
                }
            };
            rest = rest.get(len..).unwrap_or_default();
        }
    }
}
