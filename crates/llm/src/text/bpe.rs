//! Byte-pair encoding: words that a pre-tokenizer cuts, pairs merged by rank.
//!
//! Files spell the bytes of tokens and merges as characters; that spelling is undone once, when the vocabulary is loaded,
//! and words are merged as the bytes they are. A merge may name pieces that are no tokens, so symbols have numbers of
//! their own.
//!
//! Invariant: bytes of the text are lost only where the vocabulary has no token for them; those that are no UTF-8 then
//! become U+FFFD.

mod dialect;

use std::fmt;

pub(crate) use dialect::{Dialect, Dna, without_mark};
use hashbrown::HashMap;

use super::merge::{Merge, Merger, NONE};
use super::pieces::Pieces;
use super::pretokenize::{Named, Spelling, Splitter};
use super::spelling;
use super::vocab::Token;

pub(crate) struct Bpe {
    named: Named,
    dialect: Dialect,
    /// Everything that a token or a merge can be made of, as bytes.
    symbols: Pieces,
    /// Their tokens, by number; [`NONE`] where there is none.
    tokens: Vec<Token>,
    /// The symbols of single bytes.
    byte_symbols: [u32; 256],
    /// The tokens that stand for bytes where nothing else does.
    byte_tokens: [Token; 256],
    merges: HashMap<(u32, u32), (u32, u32)>,
}

impl Bpe {
    pub(crate) fn new<'m>(
        named: Named,
        dialect: Dialect,
        texts: &Pieces,
        merges: impl Iterator<Item = &'m [u8]>,
    ) -> Bpe {
        let mut symbols = Pieces::with_capacity(texts.len(), texts.len().saturating_mul(6));
        let mut tokens = Vec::with_capacity(texts.len());
        let mut buffer = Vec::new();
        for token in 0..texts.len() as Token {
            if spelling::read(texts.get(token), named.spelling, &mut buffer) && symbols.intern(&buffer).1 {
                tokens.push(token);
            }
        }
        let byte_symbols = std::array::from_fn(|byte| symbols.intern(&[byte as u8]).0);
        let mut ranks = HashMap::with_capacity(merges.size_hint().0);
        let mut both = Vec::new();
        for (rank, merge) in merges.enumerate() {
            // The first of two parts may begin with a space, but no part is empty.
            let Some(space) = merge.iter().skip(1).position(|&byte| byte == b' ') else { continue };
            let (left, right) =
                (merge.get(..=space).unwrap_or_default(), merge.get(space + 2..).unwrap_or_default());
            both.clear();
            let mut part = |text: &[u8]| {
                let known = spelling::read(text, named.spelling, &mut buffer) && !buffer.is_empty();
                both.extend_from_slice(&buffer);
                known.then(|| symbols.intern(&buffer).0)
            };
            let (Some(left), Some(right)) = (part(left), part(right)) else { continue };
            let merged = symbols.intern(&both).0;
            ranks.entry((left, right)).or_insert((rank as u32, merged));
        }
        tokens.resize(symbols.len(), NONE);
        let token = |symbol: u32| tokens.get(symbol as usize).copied().unwrap_or(NONE);
        let byte_tokens = match named.spelling {
            Spelling::Bytes => byte_symbols.map(token),
            Spelling::Plain { .. } | Spelling::Verbatim | Spelling::Escaped => spelling::byte_tokens(texts),
        };
        Bpe { named, dialect, symbols, tokens, byte_symbols, byte_tokens, merges: ranks }
    }

    pub(crate) fn byte_token(&self, byte: u8) -> Option<Token> {
        self.byte_tokens.get(usize::from(byte)).copied().filter(|&token| token != NONE)
    }

    /// Bytes of a text that one token stands for, at most.
    pub(crate) fn longest(&self) -> usize {
        let symbols = (0..self.symbols.len() as u32).filter(|&symbol| self.token(symbol).is_some());
        let longest = symbols.map(|symbol| self.symbols.get(symbol).len()).max().unwrap_or(0);
        longest.max(self.dialect.longest())
    }

    /// Whether a byte of a text is part of a token wherever it stands. Where no merge makes it part of a longer one, its own
    /// token stands for it.
    pub(crate) fn keeps(&self, byte: u8) -> bool {
        let is_spelled = |byte: u8| {
            let spaced = matches!(self.named.spelling, Spelling::Plain { .. }) && byte == b' ';
            let mut spelled = if spaced { spelling::SPACE } else { std::slice::from_ref(&byte) }.iter();
            spelled.any(|&byte| self.byte_token(byte).is_some())
        };
        self.dialect.reads(byte).is_some_and(is_spelled)
    }

    /// Appends the tokens of a text.
    pub(crate) fn encode(&self, text: &[u8], work: &mut Work, tokens: &mut Vec<Token>) {
        self.dialect.encode(self, text, work, tokens);
    }

    fn encode_text(&self, text: &[u8], work: &mut Work, tokens: &mut Vec<Token>) {
        let Work { splitter, merger, spaced } = work;
        let text = match self.named.spelling {
            Spelling::Bytes if std::str::from_utf8(text).is_ok() => text,
            Spelling::Bytes => {
                self.replace_unknown_bytes(text, spaced);
                spaced.as_slice()
            }
            Spelling::Verbatim | Spelling::Escaped => text,
            Spelling::Plain { .. } => {
                spelling::escape_spaces(text, spaced);
                spaced.as_slice()
            }
        };
        splitter.split(text, self.named.stages, |range| {
            let word = text.get(range).unwrap_or_default();
            for part in word.chunks(super::limits::MAX_WORD_BYTES) {
                self.encode_word(part, merger, tokens);
            }
        });
    }

    /// Some vocabularies have no tokens for bytes that UTF-8 does not use. Such bytes become U+FFFD.
    fn replace_unknown_bytes(&self, text: &[u8], replaced: &mut Vec<u8>) {
        replaced.clear();
        for chunk in text.utf8_chunks() {
            replaced.extend_from_slice(chunk.valid().as_bytes());
            for &byte in chunk.invalid() {
                match self.byte_token(byte) {
                    Some(_) => replaced.push(byte),
                    None => replaced.extend_from_slice("\u{fffd}".as_bytes()),
                }
            }
        }
    }

    fn encode_word(&self, word: &[u8], merger: &mut Merger, tokens: &mut Vec<Token>) {
        let newlines =
            matches!(self.named.spelling, Spelling::Plain { newlines: true }) && word.starts_with(b"\n");
        if (self.named.ignore_merges || newlines)
            && let Some(token) = self.symbols.find(word).and_then(|symbol| self.token(symbol))
        {
            tokens.push(token);
            return;
        }
        merger.clear();
        match self.named.spelling {
            Spelling::Bytes => {
                for (at, &byte) in word.iter().enumerate() {
                    merger.push(at, 1, self.byte_symbols.get(usize::from(byte)).copied().unwrap_or(NONE));
                }
            }
            Spelling::Plain { .. } | Spelling::Verbatim | Spelling::Escaped => {
                spelling::characters(word, |range| {
                    let symbol = self.symbols.find(word.get(range.clone()).unwrap_or_default());
                    merger.push(range.start, range.len(), symbol.unwrap_or(NONE));
                })
            }
        }
        merger.run(|left, right| {
            let &(key, number) = self.merges.get(&(left.number, right.number))?;
            Some(Merge { key, number })
        });
        for symbol in merger.symbols() {
            match self.token(symbol.number) {
                Some(token) => tokens.push(token),
                None => tokens.extend(symbol.bytes(word).iter().filter_map(|&byte| self.byte_token(byte))),
            }
        }
    }

    fn token(&self, symbol: u32) -> Option<Token> {
        self.tokens.get(symbol as usize).copied().filter(|&token| token != NONE)
    }
}

/// Memory that is used again from text to text.
#[derive(Default)]
pub(crate) struct Work {
    splitter: Splitter,
    pub(crate) merger: Merger,
    pub(crate) spaced: Vec<u8>,
}

impl fmt::Debug for Bpe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bpe").field("merges", &self.merges.len()).finish_non_exhaustive()
    }
}
