//! What some byte-pair tokenizers do with a text before its words are cut.

use hashbrown::HashMap;

use super::{Bpe, Work};
use crate::text::lowercase;
use crate::text::pieces::Pieces;
use crate::text::vocab::Token;

/// What is done with a text before its words are cut.
#[derive(Debug, Default)]
pub(crate) enum Dialect {
    /// Nothing.
    #[default]
    Plain,
    /// White space goes away, and upper case if `lowercase` says so.
    Spaceless {
        /// Whether upper case becomes lower case.
        lowercase: bool,
    },
    /// Text between `<dna>` and `</dna>` is read in groups of six letters.
    Dna(Box<Dna>),
}

impl Dialect {
    /// Bytes that one of its own tokens stands for, at most.
    pub(super) fn longest(&self) -> usize {
        match self {
            Dialect::Plain | Dialect::Spaceless { .. } => 0,
            Dialect::Dna(_) => CLOSE.len().max(GROUP),
        }
    }

    /// The byte that one is read as wherever it stands, if there is such a byte.
    pub(super) fn reads(&self, byte: u8) -> Option<u8> {
        match self {
            Dialect::Plain | Dialect::Dna(_) => Some(byte),
            // Characters of several bytes may be white space, or have fewer bytes in lower case.
            Dialect::Spaceless { .. } if !byte.is_ascii() || char::from(byte).is_whitespace() => None,
            Dialect::Spaceless { lowercase: true } => Some(byte.to_ascii_lowercase()),
            Dialect::Spaceless { lowercase: false } => Some(byte),
        }
    }

    /// Appends the tokens of a text.
    pub(super) fn encode(&self, bpe: &Bpe, text: &[u8], work: &mut Work, tokens: &mut Vec<Token>) {
        match self {
            Dialect::Plain => bpe.encode_text(text, work, tokens),
            Dialect::Spaceless { lowercase } => {
                let mut word = Vec::new();
                for chunk in text.utf8_chunks() {
                    for c in chunk.valid().chars() {
                        if c.is_whitespace() {
                            bpe.encode_text(&std::mem::take(&mut word), work, tokens);
                            continue;
                        }
                        let c = if *lowercase { lowercase::lowercase(c) } else { c };
                        word.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                    }
                    word.extend_from_slice(chunk.invalid());
                }
                bpe.encode_text(&word, work, tokens);
            }
            Dialect::Dna(dna) => dna.encode(bpe, text, work, tokens),
        }
    }
}

const OPEN: &[u8] = b"<dna>";
const CLOSE: &[u8] = b"</dna>";
const OUT_OF_VOCABULARY: &[u8] = b"<oov>";
/// Letters of a group.
const GROUP: usize = 6;
/// Files put this (U+E000) behind groups, so that they are not taken for other tokens with the same letters.
const MARK: &[u8] = "\u{e000}".as_bytes();

/// Tokens of groups of letters.
#[derive(Debug)]
pub(crate) struct Dna {
    open: Token,
    close: Token,
    unknown: Token,
    groups: HashMap<Box<[u8]>, Token>,
}

impl Dna {
    /// Where the vocabulary has what it takes.
    pub(crate) fn new(texts: &Pieces) -> Option<Dna> {
        let groups = (0..texts.len() as Token).filter_map(|token| {
            let group = texts.get(token).strip_suffix(MARK).filter(|group| group.len() == GROUP)?;
            Some((group.into(), token))
        });
        Some(Dna {
            open: texts.find(OPEN)?,
            close: texts.find(CLOSE)?,
            unknown: texts.find(OUT_OF_VOCABULARY)?,
            groups: groups.collect(),
        })
    }

    fn encode(&self, bpe: &Bpe, text: &[u8], work: &mut Work, tokens: &mut Vec<Token>) {
        let mut rest = text;
        while let Some(start) = memchr::memmem::find(rest, OPEN) {
            let (before, inside) = rest.split_at(start);
            bpe.encode_text(before, work, tokens);
            tokens.push(self.open);
            let inside = inside.get(OPEN.len()..).unwrap_or_default();
            let end = memchr::memmem::find(inside, CLOSE);
            self.groups(inside.get(..end.unwrap_or(inside.len())).unwrap_or_default(), tokens);
            let Some(end) = end else { return };
            tokens.push(self.close);
            rest = inside.get(end + CLOSE.len()..).unwrap_or_default();
        }
        bpe.encode_text(rest, work, tokens);
    }

    /// The last group is filled up with `A`.
    fn groups(&self, letters: &[u8], tokens: &mut Vec<Token>) {
        for chunk in letters.chunks(GROUP) {
            let mut group = chunk.to_ascii_uppercase();
            group.resize(GROUP, b'A');
            tokens.push(self.groups.get(group.as_slice()).copied().unwrap_or(self.unknown));
        }
    }
}

/// The text of a token without the mark of a group.
pub(crate) fn without_mark(text: &[u8]) -> &[u8] {
    text.strip_suffix(MARK).filter(|rest| !rest.is_empty()).unwrap_or(text)
}
