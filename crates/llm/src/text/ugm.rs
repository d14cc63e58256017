//! Unigram models, as SentencePiece does them: of all ways to put a text together from tokens, the one with the highest sum of
//! scores (`t5` in files).
//!
//! Text is normalized first, by a map that the file brings along ([`CharMap`]), and spaces become U+2581.
//!
//! Invariant: a run of characters that no token covers becomes one unknown token. Time is linear in the text, with the length of
//! the longest token as a factor.

mod char_map;

pub(crate) use char_map::CharMap;

use super::prefixes::Prefixes;
use super::spelling::SPACE;
use super::vocab::{Attributes, Token};

/// What an unknown character costs beyond the least likely token.
const UNKNOWN_PENALTY: f32 = 10.0;

/// What is done about spaces.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UgmSpaces {
    /// A text is given one to begin with.
    pub(crate) prefix: bool,
    /// Runs of them become one, and none is left at the end.
    pub(crate) merge: bool,
}

#[derive(Debug)]
pub(crate) struct Ugm {
    prefixes: Prefixes,
    /// Bytes of the longest token.
    longest: usize,
    /// What a token adds to the sum, by token.
    scores: Vec<f64>,
    unknown_score: f64,
    unk: Option<Token>,
    /// Whether a character that is a token is never taken for an unknown one.
    keeps_tokens: bool,
    map: Option<CharMap>,
    /// Texts that the model's makers defined as tokens, in order.
    defined: Vec<Box<[u8]>>,
    spaces: UgmSpaces,
}

/// The best way to get to a place in the text.
#[derive(Clone, Copy)]
struct Best {
    token: Option<Token>,
    from: usize,
    score: f64,
}

impl Ugm {
    /// `tokens` gives the text, the score and the kind of every token.
    pub(crate) fn new<'t>(
        tokens: impl Iterator<Item = (&'t [u8], f32, Attributes)> + Clone,
        unk: Option<Token>,
        map: Option<CharMap>,
        spaces: UgmSpaces,
    ) -> Ugm {
        let used = Attributes::NORMAL | Attributes::USER_DEFINED | Attributes::UNUSED;
        let numbered = (0..).zip(tokens.clone());
        let numbered = numbered.filter(|(_, (_, _, own))| own.intersects(used));
        let prefixes = numbered.clone().map(|(token, (text, _, _))| (text, token));
        let normal = tokens.clone().filter(|(_, _, own)| own.intersects(Attributes::NORMAL));
        // One that is never used says nothing about what others cost.
        let lowest =
            normal.map(|(_, score, _)| score).filter(|score| score.is_finite()).fold(f32::MAX, f32::min);
        let score = |(_, score, own): (&[u8], f32, Attributes)| {
            if own.intersects(Attributes::USER_DEFINED) { 0.0 } else { f64::from(score) }
        };
        // A token without a score may be in no way to put a text together, which then has none.
        let is_taken =
            |(token, (text, own_score, own))| Some(token) != unk && score((text, own_score, own)).is_finite();
        let keeps_tokens = numbered.clone().all(is_taken);
        let of_makers = tokens.clone().filter(|(_, _, own)| own.intersects(Attributes::USER_DEFINED));
        let mut defined: Vec<Box<[u8]>> = of_makers.map(|(text, _, _)| text.into()).collect();
        defined.sort_unstable();
        let prefixes = Prefixes::new(prefixes);
        Ugm {
            longest: prefixes.max_len(),
            prefixes,
            scores: tokens.map(score).collect(),
            unknown_score: f64::from(lowest - UNKNOWN_PENALTY),
            unk,
            keeps_tokens,
            map,
            defined,
            spaces,
        }
    }

    /// How many bytes of a text are how a token of the model's makers begins. llama.cpp normalizes none of these, even if the rest
    /// of the token does not follow.
    fn defined_len(&self, text: &[u8]) -> usize {
        let common = |one: &[u8]| one.iter().zip(text).take_while(|(one, other)| one == other).count();
        // In order, what has most in common with a text is beside it.
        let after = self.defined.partition_point(|one| **one <= *text);
        let beside = [after.checked_sub(1), Some(after)];
        let beside = beside.into_iter().flatten().filter_map(|at| self.defined.get(at));
        beside.map(|one| common(one)).max().unwrap_or(0)
    }

    /// Bytes of a normalized text that one token stands for, at most.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    /// Whether a normalized text certainly has more tokens than `most`, by its characters that are tokens: each of them is in one.
    fn has_more_than(&self, most: usize, text: &[u8]) -> bool {
        let most_bytes = most.saturating_mul(self.longest);
        if !self.keeps_tokens || text.len() <= most_bytes {
            return false;
        }
        let (mut rest, mut kept) = (text, 0);
        while kept <= most_bytes && !rest.is_empty() {
            let (character, others) = rest.split_at(character_len(rest));
            let is_token = self.prefixes.longest(character).is_some_and(|(_, len)| len == character.len());
            kept += if is_token { character.len() } else { 0 };
            rest = others;
        }
        kept > most_bytes
    }

    /// Appends the tokens of a text; or none, and says `false`, if there are certainly more than `most`.
    pub(crate) fn encode(&self, text: &[u8], most: usize, tokens: &mut Vec<Token>) -> bool {
        let text = self.normalize(text);
        if self.has_more_than(most, &text) {
            return false;
        }
        if text.is_empty() {
            return true;
        }
        let nowhere = Best { token: None, from: 0, score: f64::MIN };
        let mut best = vec![nowhere; text.len() + 1];
        if let Some(start) = best.first_mut() {
            start.score = 0.0;
        }
        let mut at = 0;
        while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
            let character = character_len(rest);
            let score = best.get(at).map_or(f64::MIN, |here| here.score);
            let mut covered = false;
            let mut offer = |token: Option<Token>, len: usize, score: f64| {
                if let Some(there) = best.get_mut(at + len).filter(|there| score > there.score) {
                    *there = Best { token, from: at, score };
                }
            };
            self.prefixes.each(rest, |token, len| {
                covered |= len == character;
                let own = self.scores.get(token as usize).copied().unwrap_or_default();
                offer(Some(token), len, score + own);
            });
            if !covered {
                offer(self.unk, character, score + self.unknown_score);
            }
            at += character;
        }
        let first = tokens.len();
        let mut at = text.len();
        let mut after_unknown = false;
        while at > 0 {
            let Some(&Best { token, from, .. }) = best.get(at) else { break };
            let unknown = token == self.unk;
            if !(unknown && after_unknown) {
                tokens.extend(token);
            }
            after_unknown = unknown;
            at = from;
        }
        if let Some(new) = tokens.get_mut(first..) {
            new.reverse();
        }
        true
    }

    fn normalize(&self, text: &[u8]) -> Vec<u8> {
        let mut normal = Vec::with_capacity(text.len().saturating_mul(2));
        let mut prefix = self.spaces.prefix;
        let mut in_word = false;
        let mut rest = text;
        while !rest.is_empty() {
            let (piece, read) =
                match (self.defined_len(rest), self.map.as_ref().and_then(|map| map.longest(rest))) {
                    (0, Some(mapped)) => mapped,
                    (0, None) => match character(rest) {
                        Some(own) => (own, own.len()),
                        None => ("\u{fffd}".as_bytes(), 1),
                    },
                    (own, _) => (rest.get(..own).unwrap_or(rest), own),
                };
            for &byte in piece {
                if byte == b' ' {
                    in_word = false;
                    if !self.spaces.merge {
                        normal.extend_from_slice(SPACE);
                    }
                    continue;
                }
                if !in_word && (prefix || self.spaces.merge) {
                    normal.extend_from_slice(SPACE);
                    prefix = false;
                }
                in_word = true;
                normal.push(byte);
            }
            rest = rest.get(read.max(1)..).unwrap_or_default();
        }
        normal
    }
}

/// The character that bytes begin with, if they are UTF-8 there.
fn character(bytes: &[u8]) -> Option<&[u8]> {
    let len = character_len(bytes);
    bytes.get(..len).filter(|own| std::str::from_utf8(own).is_ok())
}

/// How many bytes the character has that bytes begin with, by the first of them and what is there.
fn character_len(bytes: &[u8]) -> usize {
    let len = match bytes.first() {
        Some(0xf0..) => 4,
        Some(0xe0..) => 3,
        Some(0xc0..) => 2,
        _ => 1,
    };
    len.min(bytes.len())
}

#[cfg(test)]
mod tests;
