//! How few tokens a text can have, as far as its bytes alone tell: what cannot fit is known before the work of encoding it.
//!
//! Invariant: never more than [`Vocab::encode`](super::Vocab::encode) makes of the text, whatever the vocabulary.

use std::fmt;

use super::specials::{Specials, is_white};
use super::vocab::Tokenizer;

/// A text has more tokens than there is room for. Written out, it is how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyTokens {
    /// How many it has, or at least has.
    pub count: usize,
    /// Whether it has exactly that many. Texts that are much too long are not counted to the end.
    pub is_exact: bool,
}

impl TooManyTokens {
    /// A text whose tokens have been counted.
    pub fn exactly(count: usize) -> TooManyTokens {
        TooManyTokens { count, is_exact: true }
    }

    pub(crate) fn at_least(count: usize) -> TooManyTokens {
        TooManyTokens { count, is_exact: false }
    }
}

impl fmt::Display for TooManyTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let least = if self.is_exact { "" } else { "at least " };
        write!(f, "{least}{} token{}", self.count, if self.count == 1 { "" } else { "s" })
    }
}

impl std::error::Error for TooManyTokens {}

/// What a vocabulary makes of bytes at least.
#[derive(Debug)]
pub(crate) struct Fit {
    /// Bytes of a text that one token stands for, at most.
    longest: usize,
    /// By byte: whether it is part of a token wherever it stands in a text.
    is_kept: Box<[bool]>,
}

impl Fit {
    pub(crate) fn new(tokenizer: &Tokenizer, specials: &Specials) -> Fit {
        let longest = match tokenizer {
            Tokenizer::Bpe(bpe) => bpe.longest(),
            Tokenizer::Spm(spm) => spm.longest(),
            Tokenizer::Wpm(wpm) => wpm.longest(),
            Tokenizer::Ugm(ugm) => ugm.longest(),
            Tokenizer::Rwkv(rwkv) => rwkv.longest(),
            Tokenizer::Plamo2(plamo2) => plamo2.longest(),
            Tokenizer::None => 0,
        };
        let keeps = |byte: u8| match tokenizer {
            Tokenizer::Bpe(bpe) => bpe.keeps(byte),
            Tokenizer::Spm(spm) => spm.keeps(byte),
            Tokenizer::Rwkv(rwkv) => rwkv.keeps(byte),
            Tokenizer::Plamo2(plamo2) => plamo2.keeps(byte),
            // These drop what their normalization drops, and a word of any length may be one unknown token. They look for
            // themselves.
            Tokenizer::Wpm(_) | Tokenizer::Ugm(_) | Tokenizer::None => false,
        };
        let is_kept = |byte| keeps(byte) && !(specials.strip_white() && is_white(byte));
        Fit { longest: longest.max(specials.longest()).max(1), is_kept: (0..=u8::MAX).map(is_kept).collect() }
    }

    /// How few tokens a text can have.
    pub(crate) fn least(&self, text: &[u8]) -> usize {
        let is_kept = |byte: &&u8| self.is_kept.get(usize::from(**byte)) == Some(&true);
        text.iter().filter(is_kept).count().div_ceil(self.longest)
    }

    /// Whether a text is short enough for its tokens to be counted even if there are more than `most`.
    pub(crate) fn is_worth_counting(&self, text: &[u8], most: usize) -> bool {
        text.len() <= most.saturating_mul(self.longest)
    }
}
