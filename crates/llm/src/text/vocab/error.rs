//! Why a vocabulary is refused. The key of the file that is at fault is always named.

use oxcart_gguf::Name;

use crate::text::limits::{MAX_PIECE_BYTES, MAX_SPECIAL_BYTES, MAX_TOKENS};

/// Why a vocabulary is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VocabError {
    /// A key is missing or of the wrong type.
    #[error(transparent)]
    Gguf(#[from] oxcart_gguf::Error),
    /// A kind of tokenizer that is not known.
    #[error("{key} is {model}, which is not known; tokens would be wrong with another")]
    UnknownModel {
        /// The key.
        key: &'static str,
        /// Its value.
        model: Name,
    },
    /// A pre-tokenizer that is not known.
    #[error("{key} is {pre}, which is not known; tokens would be wrong with another")]
    UnknownPreTokenizer {
        /// The key.
        key: &'static str,
        /// Its value.
        pre: Name,
    },
    /// No tokens.
    #[error("{key} is empty")]
    Empty {
        /// The key.
        key: &'static str,
    },
    /// More tokens than any vocabulary has.
    #[error("{key} has {count} tokens, but at most {MAX_TOKENS} are supported")]
    TooManyTokens {
        /// The key.
        key: &'static str,
        /// How many there are.
        count: usize,
    },
    /// A token longer than any token is.
    #[error("{key}[{index}] has {bytes} bytes, but a token has at most {MAX_PIECE_BYTES}")]
    TokenTooLong {
        /// The key.
        key: &'static str,
        /// Which token.
        index: usize,
        /// Its length.
        bytes: usize,
    },
    /// More text in special tokens than any vocabulary has.
    #[error("special tokens in {key} have {bytes} bytes, but at most {MAX_SPECIAL_BYTES} are supported")]
    SpecialTokensTooLong {
        /// The key.
        key: &'static str,
        /// Their length.
        bytes: usize,
    },
    /// Two tokens with the same text.
    #[error("{key}[{index}] is {text}, and so is {key}[{first}]")]
    Duplicate {
        /// The key.
        key: &'static str,
        /// The second token.
        index: usize,
        /// The first token.
        first: u32,
        /// Their text.
        text: Name,
    },
    /// An array that should have an entry for every token.
    #[error("{key} has {len} entries for {tokens} tokens")]
    WrongLength {
        /// The key.
        key: &'static str,
        /// Its length.
        len: usize,
        /// How many tokens there are.
        tokens: usize,
    },
    /// A token that does not exist.
    #[error("{key} is {id}, but there are only {tokens} tokens")]
    IdOutOfRange {
        /// The key.
        key: String,
        /// The number in the file.
        id: i128,
        /// How many tokens there are.
        tokens: usize,
    },
    /// A table of characters that is none.
    #[error("{key} is not a table of characters: it ends too early")]
    CharMap {
        /// The key.
        key: &'static str,
    },
    /// A tokenizer that falls back to single bytes lacks one.
    #[error("{key} has no token for the byte {byte:#04x}")]
    NoByteToken {
        /// The key.
        key: &'static str,
        /// The byte.
        byte: u8,
    },
    /// A token that is to be added everywhere is not named.
    #[error("{flag} is true, but {key} names no token")]
    NothingToAdd {
        /// The key that asks for it.
        flag: &'static str,
        /// The key that should name it.
        key: &'static str,
    },
}
