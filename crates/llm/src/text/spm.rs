//! Score-driven merging, as SentencePiece does it: of all neighbours that together are a token, those with the highest
//! score become one first.
//!
//! Invariant: bytes of the text are lost only where the vocabulary has neither a token for them nor one for the unknown.

use memchr::memmem;

use super::bpe::Work;
use super::limits::MAX_WORD_BYTES;
use super::merge::{Merge, Merger, NONE};
use super::pieces::Pieces;
use super::spelling::{self, SPACE};
use super::vocab::Token;

#[derive(Debug)]
pub(crate) struct Spm {
    byte_tokens: [Token; 256],
    unk: Option<Token>,
    /// Nothing longer than this is a token.
    longest: usize,
    /// No token has a space behind something else, so words can be merged one by one.
    by_words: bool,
}

impl Spm {
    pub(crate) fn new(texts: &Pieces, unk: Option<Token>) -> Spm {
        let all = || (0..texts.len() as Token).map(|token| texts.get(token));
        Spm {
            byte_tokens: spelling::byte_tokens(texts),
            unk,
            longest: all().map(<[u8]>::len).max().unwrap_or_default(),
            by_words: all().all(|text| word_end(text) == text.len()),
        }
    }

    pub(crate) fn byte_token(&self, byte: u8) -> Option<Token> {
        self.byte_tokens.get(usize::from(byte)).copied().filter(|&token| token != NONE)
    }

    /// Bytes of a text that one token stands for, at most.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    /// Whether a byte of a text is part of a token wherever it stands.
    pub(crate) fn keeps(&self, byte: u8) -> bool {
        let spelled = if byte == b' ' { SPACE } else { std::slice::from_ref(&byte) };
        self.unk.is_some() || spelled.iter().any(|&byte| self.byte_token(byte).is_some())
    }

    /// Appends the tokens of a text, which is given a space to begin with if `space_prefix` says so.
    pub(crate) fn encode(
        &self,
        (texts, scores): (&Pieces, &[f32]),
        text: &[u8],
        space_prefix: bool,
        work: &mut Work,
        tokens: &mut Vec<Token>,
    ) {
        let Work { merger, spaced, .. } = work;
        spaced.clear();
        if space_prefix {
            spaced.extend_from_slice(SPACE);
        }
        spelling::append_escaped(text, spaced);
        let mut rest = spaced.as_slice();
        while !rest.is_empty() {
            let end = if self.by_words { word_end(rest) } else { rest.len() };
            let (word, others) = rest.split_at(end.min(MAX_WORD_BYTES));
            self.encode_word((texts, scores), word, merger, tokens);
            rest = others;
        }
    }

    fn encode_word(
        &self,
        (texts, scores): (&Pieces, &[f32]),
        word: &[u8],
        merger: &mut Merger,
        tokens: &mut Vec<Token>,
    ) {
        merger.clear();
        spelling::characters(word, |range| merger.push(range.start, range.len(), NONE));
        merger.run(|left, right| {
            let (start, end) = (left.start as usize, right.start as usize + right.len as usize);
            let both = word.get(start..end).filter(|both| both.len() <= self.longest)?;
            let number = texts.find(both)?;
            Some(Merge { key: highest_first(*scores.get(number as usize)?), number })
        });
        for symbol in merger.symbols() {
            let bytes = symbol.bytes(word);
            let merged = Some(symbol.number).filter(|&number| number != NONE);
            match merged.or_else(|| texts.find(bytes)) {
                Some(token) => tokens.push(token),
                None => tokens.extend(bytes.iter().filter_map(|&byte| self.byte_token(byte).or(self.unk))),
            }
        }
    }
}

/// Where the first space stands that is behind something else than a space; the end of the text if there is none.
fn word_end(text: &[u8]) -> usize {
    let spaces = text.chunks_exact(SPACE.len()).take_while(|chunk| *chunk == SPACE).count() * SPACE.len();
    let others = text.get(spaces..).and_then(|others| memmem::find(others, SPACE));
    others.map_or(text.len(), |others| spaces + others)
}

/// A number that is the smaller, the higher the score. Both zeros are the same.
fn highest_first(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits();
    // Floats sort as their bits do, once negative ones are turned around.
    let ascending = if bits >> 31 == 1 { !bits } else { bits | (1 << 31) };
    !ascending
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_end_before_spaces() {
        for (text, end) in [("", 0), ("▁", 3), ("▁▁a▁b", 7), ("a", 1), ("a▁", 1), ("▁a▁▁", 4)]
        {
            assert_eq!(word_end(text.as_bytes()), end, "{text}");
        }
    }

    #[test]
    fn keys_fall_as_scores_rise() {
        let scores = [f32::NEG_INFINITY, -1e30, -2.0, -1.0, -1e-40, 0.0, 1e-40, 1.0, f32::INFINITY];
        assert!(scores.map(highest_first).is_sorted_by(|a, b| a > b));
        assert_eq!(highest_first(0.0), highest_first(-0.0));
    }
}
