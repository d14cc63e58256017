//! PLaMo-2's tokenizer: of all ways to put a text together from tokens, the one with the highest sum of scores, where characters
//! without a token become bytes at a high price.
//!
//! Scores count in steps of a ten-thousandth. Of equal ways, the one with the longer token at the earlier place is taken.
//!
//! Invariant: every byte of the text is in a token, except for a byte-order mark at its beginning.

use super::pieces::Pieces;
use super::prefixes::Prefixes;
use super::spelling;
use super::vocab::{Attributes, Token};

/// What a character costs that becomes bytes.
const BYTES_COST: i64 = 10_000_000;
/// Tokens that cost this much or more are never used.
const MAX_COST: i64 = 20_000_000;
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

#[derive(Debug)]
pub(crate) struct Plamo2 {
    prefixes: Prefixes,
    /// By token.
    costs: Vec<i64>,
    byte_tokens: [Token; 256],
}

/// The best way from a place in the text to its end.
#[derive(Clone, Copy, Default)]
struct Best {
    cost: i64,
    /// Bytes where there is none.
    token: Option<Token>,
    len: usize,
}

impl Plamo2 {
    /// Says which byte has no token, if one has none.
    pub(crate) fn new(texts: &Pieces, scores: &[f32], attributes: &[Attributes]) -> Result<Plamo2, u8> {
        let mut byte_tokens = [None; 256];
        for (token, own) in (0..).zip(attributes) {
            let byte = spelling::byte_token(texts.get(token)).filter(|_| own.intersects(Attributes::BYTE));
            if let Some(entry) = byte.and_then(|byte| byte_tokens.get_mut(usize::from(byte))) {
                *entry = Some(token);
            }
        }
        if let Some(byte) =
            (0..=255).zip(&byte_tokens).find_map(|(byte, token)| token.is_none().then_some(byte))
        {
            return Err(byte);
        }
        let costs: Vec<i64> = scores.iter().map(|&score| cost(score)).collect();
        let used = (0..).zip(attributes).zip(&costs).filter_map(|((token, own), &cost)| {
            let text = texts.get(token);
            // One that ends within a character would leave the rest of the character to no token.
            let is_text = std::str::from_utf8(text).is_ok();
            let is_used = is_text && !own.intersects(Attributes::BYTE) && cost < MAX_COST;
            is_used.then_some((text, token))
        });
        Ok(Plamo2 {
            prefixes: Prefixes::new(used),
            costs,
            byte_tokens: byte_tokens.map(Option::unwrap_or_default),
        })
    }

    pub(crate) fn byte_token(&self, byte: u8) -> Option<Token> {
        self.byte_tokens.get(usize::from(byte)).copied()
    }

    /// Bytes of a text that one token stands for, at most.
    pub(crate) fn longest(&self) -> usize {
        self.prefixes.max_len()
    }

    /// Whether a byte of a text is part of a token wherever it stands. Those of a byte-order mark may not be.
    pub(crate) fn keeps(&self, byte: u8) -> bool {
        !BYTE_ORDER_MARK.contains(&byte)
    }

    /// Appends the tokens of a text.
    pub(crate) fn encode(&self, text: &[u8], tokens: &mut Vec<Token>) {
        let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
        let mut starts = Vec::with_capacity(text.len());
        spelling::characters(text, |range| starts.push(range));
        let mut best = vec![Best::default(); text.len() + 1];
        for range in starts.iter().rev() {
            let rest = text.get(range.start..).unwrap_or_default();
            let cost_after = |len: usize| best.get(range.start + len).map_or(0, |best| best.cost);
            let mut here: Option<Best> = None;
            self.prefixes.each(rest, |token, len| {
                let cost = cost_after(len) + self.costs.get(token as usize).copied().unwrap_or(MAX_COST);
                if here.is_none_or(|here| cost <= here.cost) {
                    here = Some(Best { cost, token: Some(token), len });
                }
            });
            let cost = cost_after(range.len()) + BYTES_COST;
            if here.is_none_or(|here| cost < here.cost) {
                here = Some(Best { cost, token: None, len: range.len() });
            }
            if let (Some(entry), Some(here)) = (best.get_mut(range.start), here) {
                *entry = here;
            }
        }
        let mut at = 0;
        while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
            let Some(&Best { token, len, .. }) = best.get(at) else { break };
            match token {
                Some(token) => tokens.push(token),
                None => tokens.extend(rest.iter().take(len).filter_map(|&byte| self.byte_token(byte))),
            }
            at += len.max(1);
        }
    }
}

/// What a token with this score costs. Sums over any text stay within 64 bits.
fn cost(score: f32) -> i64 {
    const LEAST: f64 = -1e10;
    let cost = -(f64::from(score) * 1e4).round();
    if score.is_finite() { cost.clamp(LEAST, MAX_COST as f64) as i64 } else { MAX_COST }
}
