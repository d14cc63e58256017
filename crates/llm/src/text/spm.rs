//! Score-driven merging, as SentencePiece does it: of all neighbours that together are a token, those with the highest
//! score become one first.
//!
//! Invariant: bytes of the text are lost only where the vocabulary has neither a token for them nor one for the unknown.

use super::bpe::Work;
use super::limits::MAX_WORD_BYTES;
use super::merge::{Merge, NONE};
use super::pieces::Pieces;
use super::spelling;
use super::vocab::Token;

#[derive(Debug)]
pub(crate) struct Spm {
    byte_tokens: [Token; 256],
    unk: Option<Token>,
    /// Nothing longer than this is a token.
    longest: usize,
}

impl Spm {
    pub(crate) fn new(texts: &Pieces, unk: Option<Token>) -> Spm {
        let longest = (0..texts.len() as Token).map(|token| texts.get(token).len()).max();
        Spm { byte_tokens: spelling::byte_tokens(texts), unk, longest: longest.unwrap_or_default() }
    }

    pub(crate) fn byte_token(&self, byte: u8) -> Option<Token> {
        self.byte_tokens.get(usize::from(byte)).copied().filter(|&token| token != NONE)
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
            spaced.extend_from_slice(spelling::SPACE);
        }
        spelling::append_escaped(text, spaced);
        for word in spaced.chunks(MAX_WORD_BYTES) {
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
    fn keys_fall_as_scores_rise() {
        let scores = [f32::NEG_INFINITY, -1e30, -2.0, -1.0, -1e-40, 0.0, 1e-40, 1.0, f32::INFINITY];
        assert!(scores.map(highest_first).is_sorted_by(|a, b| a > b));
        assert_eq!(highest_first(0.0), highest_first(-0.0));
    }
}
