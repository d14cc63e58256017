//! A vocabulary as llguidance wants it: the bytes of every token.
//!
//! A text token stands for its bytes, whatever the tokenizer: pieces of byte-pair encoding, SentencePiece's with spaces and
//! single bytes, WordPiece's with the spaces in front of words. A control token stands for no text, as the streamer shows
//! none for it; a grammar can name it by `<name>` or by number. Tokens that were never trained or must not be chosen, and
//! those that hold a byte that is in no UTF-8, stand for nothing and are never allowed.
//!
//! Invariant: the limits of llguidance's tree of tokens are kept, so that building it does not panic.

use std::sync::Arc;

use llguidance::toktrie::{ApproximateTokEnv, INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie};

use super::ConstrainError;
use crate::text::limits::{MAX_TRIE_NODES, MAX_TRIE_TOKEN_BYTES, MAX_TRIE_TOKENS};
use crate::text::mask::TokenMask;
use crate::text::vocab::{Attributes, Token, Vocab};

pub(super) struct Tokens {
    pub(super) env: TokEnv,
    pub(super) len: usize,
    /// Tokens that end an answer, ascending.
    pub(super) ends: Vec<Token>,
    /// Tokens that stand for the same bytes as others, with these others: the tree knows only one of each.
    pub(super) twins: Vec<(Token, Token)>,
    /// Tokens that begin with a digit.
    pub(super) digits: TokenMask,
}

impl Tokens {
    pub(super) fn new(vocab: &Vocab) -> Result<Tokens, ConstrainError> {
        let len = vocab.len();
        let too_large = |what, size, limit| ConstrainError::Vocabulary { what, size, limit };
        if len > MAX_TRIE_TOKENS {
            return Err(too_large("tokens", len, MAX_TRIE_TOKENS));
        }
        let words: Vec<Vec<u8>> = (0..len as Token).map(|token| meaning(vocab, token)).collect();
        let nodes = count_nodes(&words);
        if nodes > MAX_TRIE_NODES {
            return Err(too_large("beginnings of tokens", nodes, MAX_TRIE_NODES));
        }
        let ends = vocab.end_of_generation().to_vec();
        let info = TokRxInfo::new(len as u32, INVALID_TOKEN);
        let mut trie = TokTrie::from(&info, &words);
        if !ends.is_empty() {
            trie = trie.with_eos_tokens(&ends);
        }
        let mut twins = Vec::new();
        let mut digits = TokenMask::none(len);
        for (token, word) in (0..).zip(&words) {
            if let Some(twin) = trie.token_id_at_bytes(word).filter(|&twin| twin != token && !word.is_empty())
            {
                twins.push((token, twin));
            }
            if word.first().is_some_and(u8::is_ascii_digit) {
                digits.allow(token);
            }
        }
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        Ok(Tokens { env, len, ends, twins, digits })
    }
}

/// What a token stands for in the tree.
fn meaning(vocab: &Vocab, token: Token) -> Vec<u8> {
    let bytes = vocab.bytes(token).unwrap_or_default();
    let never = bytes.len() >= MAX_TRIE_TOKEN_BYTES
        || bytes.contains(&TokTrie::SPECIAL_TOKEN_MARKER)
        || vocab.suppressed().binary_search(&token).is_ok();
    if never {
        return Vec::new();
    }
    if vocab.is_control(token) || vocab.is_end_of_generation(token) {
        // Others could be taken for numbers of tokens.
        let has_name = bytes.starts_with(b"<") && bytes.ends_with(b">");
        return if has_name { [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat() } else { Vec::new() };
    }
    if vocab.has(token, Attributes::UNUSED) {
        return Vec::new();
    }
    bytes.to_vec()
}

/// How many nodes a tree of these words has.
fn count_nodes(words: &[Vec<u8>]) -> usize {
    let mut sorted: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    sorted.sort_unstable();
    let mut nodes = 1;
    let mut before: &[u8] = &[];
    for word in sorted {
        let shared = word.iter().zip(before).take_while(|(a, b)| a == b).count();
        nodes += word.len() - shared;
        before = word;
    }
    nodes
}
