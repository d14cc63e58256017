//! WordPiece: words of normalized text, each as the longest pieces it begins with.
//!
//! In files, pieces that begin a word carry U+2581, and those that go on with one carry nothing.
//!
//! Invariant: a word that cannot be put together is unknown as a whole.

use unicode_general_category::{GeneralCategory as Category, get_general_category};
use unicode_normalization::char::decompose_canonical;

use super::lowercase::lowercase;
use super::pieces::Pieces;
use super::prefixes::Prefixes;
use super::pretokenize::Glyph;
use super::spelling::SPACE;
use super::vocab::Token;

#[derive(Debug)]
pub(crate) struct Wpm {
    /// All tokens.
    prefixes: Prefixes,
    unk: Option<Token>,
    lowercase: bool,
    strip_accents: bool,
}

impl Wpm {
    pub(crate) fn new(texts: &Pieces, unk: Option<Token>, lowercase: bool, strip_accents: bool) -> Wpm {
        let all = (0..texts.len() as Token).map(|token| (texts.get(token), token));
        Wpm { prefixes: Prefixes::new(all), unk, lowercase, strip_accents }
    }

    /// Bytes of the longest token.
    pub(crate) fn longest(&self) -> usize {
        self.prefixes.max_len()
    }

    /// Appends the tokens of a text, to its end or until there are more than `most`.
    pub(crate) fn encode(&self, text: &[u8], most: usize, tokens: &mut Vec<Token>) {
        let mut word = SPACE.to_vec();
        for chunk in text.utf8_chunks() {
            for c in chunk.valid().chars() {
                self.read(c, &mut word, tokens);
                if tokens.len() > most {
                    return;
                }
            }
        }
        self.end_word(&mut word, tokens);
    }

    /// Takes in one character.
    fn read(&self, c: char, word: &mut Vec<u8>, tokens: &mut Vec<Token>) {
        let c = if self.strip_accents { without_accents(c) } else { c };
        if c.is_whitespace() {
            self.end_word(word, tokens);
            return;
        }
        let glyph = Glyph::of(c);
        let is_dropped =
            matches!(get_general_category(c), Category::Control | Category::Format | Category::PrivateUse)
                || matches!(c, '\0' | char::REPLACEMENT_CHARACTER)
                || self.strip_accents && glyph.is_mark();
        if is_dropped {
            return;
        }
        let c = if self.lowercase { lowercase(c) } else { c };
        let stands_alone =
            glyph.is_punctuation() || c.is_ascii() && glyph.is_symbol() || is_ideograph(c as u32);
        if stands_alone {
            self.end_word(word, tokens);
        }
        word.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        if stands_alone {
            self.end_word(word, tokens);
        }
    }

    /// Appends the tokens of a word, which begins with U+2581, and begins another.
    fn end_word(&self, word: &mut Vec<u8>, tokens: &mut Vec<Token>) {
        if word.len() > SPACE.len() {
            let before = tokens.len();
            let mut rest = word.as_slice();
            while !rest.is_empty() {
                let Some((token, len)) = self.prefixes.longest(rest) else {
                    tokens.truncate(before);
                    tokens.extend(self.unk);
                    break;
                };
                tokens.push(token);
                rest = rest.get(len..).unwrap_or_default();
            }
        }
        word.truncate(SPACE.len());
    }
}

/// The character that its canonical decomposition begins with.
fn without_accents(c: char) -> char {
    let mut first = None;
    decompose_canonical(c, |part| {
        first.get_or_insert(part);
    });
    first.unwrap_or(c)
}

/// The blocks that BERT lists, with the gap that its list has.
fn is_ideograph(code: u32) -> bool {
    matches!(
        code,
        0x4e00..=0x9fff | 0x3400..=0x4dbf | 0x2_0000..=0x2_a6df | 0x2_a700..=0x2_b73f | 0x2_b740..=0x2_b81f
            | 0x2_b920..=0x2_ceaf | 0xf900..=0xfaff | 0x2_f800..=0x2_fa1f
    )
}
