//! Vocabularies: the tokens of a model, what they mean and how text becomes them.
//!
//! Invariant: every token that a [`Vocab`] hands out lies below [`Vocab::len`]. Any bytes can be encoded and any numbers
//! decoded; neither panics, and neither takes more than n log n time in what it is given.

mod attributes;
mod error;
mod load;
mod special;

use std::fmt;

pub(crate) use attributes::Attributes;
pub use error::VocabError;
pub use special::SpecialTokens;

use super::bpe::Bpe;
use super::fit::Fit;
use super::pieces::{Arena, Pieces};
use super::plamo2::Plamo2;
use super::rwkv::Rwkv;
use super::specials::Specials;
use super::spm::Spm;
use super::ugm::Ugm;
use super::wpm::Wpm;

/// The number of a token.
pub type Token = u32;

/// How text becomes tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenizerKind {
    /// Pairs merged by rank, within words that a pre-tokenizer cuts (`gpt2` in files).
    Bpe,
    /// Pairs merged by score, with single bytes where nothing fits (`llama` in files, as SentencePiece does it).
    Spm,
    /// The longest pieces of words (`bert` in files, WordPiece).
    Wpm,
    /// The likeliest tokens by their scores, after characters were normalized (`t5` in files, unigram).
    Ugm,
    /// At every place the longest token (`rwkv` in files).
    Rwkv,
    /// The best sum of scores, with single bytes where nothing fits (`plamo2` in files).
    Plamo2,
    /// Not at all: the model is used with the numbers of tokens (`none` in files).
    None,
}

impl fmt::Display for TokenizerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TokenizerKind::Bpe => "byte-pair encoding",
            TokenizerKind::Spm => "SentencePiece",
            TokenizerKind::Wpm => "WordPiece",
            TokenizerKind::Ugm => "unigram",
            TokenizerKind::Rwkv => "longest match",
            TokenizerKind::Plamo2 => "PLaMo-2",
            TokenizerKind::None => "none, token numbers only",
        })
    }
}

/// A tokenizer with what it alone needs.
#[derive(Debug)]
pub(crate) enum Tokenizer {
    Bpe(Box<Bpe>),
    Spm(Box<Spm>),
    Wpm(Wpm),
    Ugm(Box<Ugm>),
    Rwkv(Rwkv),
    Plamo2(Box<Plamo2>),
    None,
}

/// The tokens of a model and the tokenizer that goes with them.
///
/// Text becomes tokens with [`encode`](Vocab::encode), tokens become text with [`decode`](Vocab::decode) or, while they
/// are being made, with a [`Streamer`](crate::text::Streamer).
///
/// ```
/// use oxcart_gguf::{Builder, Header};
/// use oxcart_llm::text::{Decode, Encode, Vocab};
///
/// let mut file = Vec::new();
/// let mut builder = Builder::new();
/// builder
///     .set("tokenizer.ggml.model", "gpt2")
///     .set("tokenizer.ggml.pre", "gpt-2")
///     .set("tokenizer.ggml.tokens", ["h", "i", "Ġ", "hi", "Ġhi", "<|endoftext|>"])
///     .set("tokenizer.ggml.token_type", [1, 1, 1, 1, 1, 3])
///     .set("tokenizer.ggml.merges", ["h i", "Ġ hi"])
///     .set("tokenizer.ggml.eos_token_id", 5u32);
/// builder.write(&mut file)?;
///
/// let vocab = Vocab::from_gguf(&Header::parse(&file)?.metadata())?;
/// let tokens = vocab.encode("hi hi<|endoftext|>", Encode { parse_special: true, ..Encode::default() });
/// assert_eq!(tokens, [3, 4, 5]);
/// assert_eq!(vocab.decode(&tokens, Decode::default()), b"hi hi");
/// assert!(vocab.is_end_of_generation(5));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Vocab {
    /// Texts as files spell them.
    pub(crate) texts: Pieces,
    /// What tokens stand for; for special ones, their text.
    pub(crate) meanings: Arena,
    pub(crate) attributes: Vec<Attributes>,
    pub(crate) scores: Vec<f32>,
    pub(crate) special: SpecialTokens,
    /// Ascending.
    pub(crate) end_of_generation: Vec<Token>,
    /// Ascending.
    pub(crate) suppressed: Vec<Token>,
    pub(crate) flags: Flags,
    pub(crate) specials: Specials,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) fit: Fit,
}

/// What is added to a text or taken away from it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flags {
    pub(crate) add_bos: bool,
    pub(crate) add_eos: bool,
    pub(crate) add_sep: bool,
    pub(crate) add_space_prefix: bool,
    pub(crate) clean_spaces: bool,
}

impl Vocab {
    /// How many tokens there are.
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Never: a vocabulary without tokens is refused.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How text becomes tokens.
    pub fn kind(&self) -> TokenizerKind {
        match self.tokenizer {
            Tokenizer::Bpe(_) => TokenizerKind::Bpe,
            Tokenizer::Spm(_) => TokenizerKind::Spm,
            Tokenizer::Wpm(_) => TokenizerKind::Wpm,
            Tokenizer::Ugm(_) => TokenizerKind::Ugm,
            Tokenizer::Rwkv(_) => TokenizerKind::Rwkv,
            Tokenizer::Plamo2(_) => TokenizerKind::Plamo2,
            Tokenizer::None => TokenizerKind::None,
        }
    }

    /// The text of a token as the file spells it, in the tokenizer's own alphabet.
    pub fn text(&self, token: Token) -> Option<&[u8]> {
        self.contains(token).then(|| self.texts.get(token))
    }

    /// The bytes that a token stands for. For a special token these are its text.
    pub fn bytes(&self, token: Token) -> Option<&[u8]> {
        self.contains(token).then(|| self.meanings.get(token))
    }

    /// The score of a token; zero where the file gives none.
    pub fn score(&self, token: Token) -> Option<f32> {
        self.scores.get(token as usize).copied()
    }

    /// The token with this text, as the file spells it.
    pub fn find(&self, text: impl AsRef<[u8]>) -> Option<Token> {
        self.texts.find(text.as_ref())
    }

    /// The tokens whose bytes contain one of these texts, in ascending order. Control tokens are not among them.
    pub fn tokens_containing(&self, texts: &[impl AsRef<[u8]>]) -> Vec<Token> {
        let finders: Vec<_> = texts.iter().map(|text| memchr::memmem::Finder::new(text.as_ref())).collect();
        let contains = |token: &Token| {
            let bytes = self.meanings.get(*token);
            !self.is_control(*token) && finders.iter().any(|finder| finder.find(bytes).is_some())
        };
        (0..self.len() as Token).filter(contains).collect()
    }

    /// Whether a token steers the model instead of standing for text, such as the ends of turns.
    pub fn is_control(&self, token: Token) -> bool {
        self.has(token, Attributes::CONTROL | Attributes::UNKNOWN)
    }

    /// Whether an answer is complete once the model has said this.
    pub fn is_end_of_generation(&self, token: Token) -> bool {
        self.end_of_generation.binary_search(&token).is_ok()
    }

    /// The tokens that complete an answer, in ascending order.
    pub fn end_of_generation(&self) -> &[Token] {
        &self.end_of_generation
    }

    /// Tokens that the file asks never to choose, in ascending order.
    pub fn suppressed(&self) -> &[Token] {
        &self.suppressed
    }

    /// Tokens with a role.
    pub fn special(&self) -> &SpecialTokens {
        &self.special
    }

    /// Whether a text begins with a beginning-of-text token.
    pub fn adds_bos(&self) -> bool {
        self.flags.add_bos
    }

    /// Whether a text ends with an end-of-text token.
    pub fn adds_eos(&self) -> bool {
        self.flags.add_eos
    }

    /// Whether a text is given a space to begin with.
    pub fn adds_space_prefix(&self) -> bool {
        self.flags.add_space_prefix
    }

    /// The token that stands for a single byte, where the vocabulary has one.
    pub fn byte_token(&self, byte: u8) -> Option<Token> {
        match &self.tokenizer {
            Tokenizer::Bpe(bpe) => bpe.byte_token(byte),
            Tokenizer::Spm(spm) => spm.byte_token(byte),
            Tokenizer::Rwkv(rwkv) => rwkv.byte_token(byte),
            Tokenizer::Plamo2(plamo2) => plamo2.byte_token(byte),
            Tokenizer::Wpm(_) | Tokenizer::Ugm(_) | Tokenizer::None => None,
        }
    }

    pub(crate) fn contains(&self, token: Token) -> bool {
        (token as usize) < self.len()
    }

    pub(crate) fn has(&self, token: Token, any_of: Attributes) -> bool {
        self.attributes.get(token as usize).is_some_and(|own| own.intersects(any_of))
    }
}

impl fmt::Debug for Vocab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vocab")
            .field("kind", &self.kind())
            .field("len", &self.len())
            .field("special", &self.special)
            .field("end_of_generation", &self.end_of_generation)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
