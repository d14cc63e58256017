//! Which tokens may come next: a set of tokens, as one bit each.
//!
//! Invariant: bits beyond the length are zero.

use super::vocab::Token;

const BITS: usize = u32::BITS as usize;

/// A set of tokens.
///
/// ```
/// use oxcart_llm::text::{Sampler, SamplerSettings, TokenMask};
///
/// let mut mask = TokenMask::none(3);
/// mask.allow(0);
/// mask.allow(2);
/// let mut greedy = Sampler::new(SamplerSettings::greedy())?;
/// assert_eq!(greedy.sample_masked(&[0.0, 2.0, 1.0], &mask)?.token, 2);
/// # Ok::<(), oxcart_llm::text::SampleError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u32>,
    len: usize,
}

impl TokenMask {
    /// None of this many tokens.
    pub fn none(len: usize) -> TokenMask {
        TokenMask { words: vec![0; len.div_ceil(BITS)], len }
    }

    /// All of this many tokens.
    pub fn all(len: usize) -> TokenMask {
        TokenMask::from_words(vec![u32::MAX; len.div_ceil(BITS)], len)
    }

    /// The first bits of these words, lowest bits first.
    pub(crate) fn from_words(mut words: Vec<u32>, len: usize) -> TokenMask {
        words.resize(len.div_ceil(BITS), 0);
        if let (Some(last), used @ 1..) = (words.last_mut(), len % BITS) {
            *last &= (1 << used) - 1;
        }
        TokenMask { words, len }
    }

    /// How many tokens there are, allowed or not.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no token is allowed.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }

    /// How many tokens are allowed.
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether a token is allowed. Those beyond the length are not.
    pub fn contains(&self, token: Token) -> bool {
        let (word, bit) = place(token);
        self.words.get(word).is_some_and(|word| word & bit != 0)
    }

    /// Allows a token, unless it lies beyond the length.
    pub fn allow(&mut self, token: Token) {
        if (token as usize) < self.len {
            let (word, bit) = place(token);
            if let Some(word) = self.words.get_mut(word) {
                *word |= bit;
            }
        }
    }

    /// Forbids a token.
    pub fn forbid(&mut self, token: Token) {
        let (word, bit) = place(token);
        if let Some(word) = self.words.get_mut(word) {
            *word &= !bit;
        }
    }

    /// The tokens that are allowed, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = Token> {
        self.words.iter().enumerate().flat_map(|(at, &word)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros())?;
                rest &= rest - 1;
                Some((at * BITS) as Token + bit)
            })
        })
    }

    /// Takes away the tokens of another set, unless none would be left.
    pub(crate) fn subtract_unless_all(&mut self, other: &TokenMask) {
        let pairs = || self.words.iter().zip(other.words.iter().chain(std::iter::repeat(&0)));
        if pairs().any(|(own, other)| own & !other != 0) {
            for (own, other) in self.words.iter_mut().zip(&other.words) {
                *own &= !other;
            }
        }
    }

    /// Makes the logits of all other tokens minus infinity.
    pub(crate) fn apply(&self, logits: &mut [f32]) {
        let known = self.words.len().saturating_mul(BITS).min(logits.len());
        let (known, beyond) = logits.split_at_mut(known);
        beyond.fill(f32::NEG_INFINITY);
        for (logits, &word) in known.chunks_mut(BITS).zip(&self.words) {
            match word {
                u32::MAX => {}
                0 => logits.fill(f32::NEG_INFINITY),
                word => {
                    for (bit, logit) in logits.iter_mut().enumerate() {
                        // Without a branch, so that it becomes vector code.
                        *logit = if word >> bit & 1 == 0 { f32::NEG_INFINITY } else { *logit };
                    }
                }
            }
        }
    }
}

fn place(token: Token) -> (usize, u32) {
    (token as usize / BITS, 1 << (token as usize % BITS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ends_of_words() {
        for len in [0, 1, 31, 32, 33, 64, 65] {
            let (all, none) = (TokenMask::all(len), TokenMask::none(len));
            assert_eq!((all.count(), none.count()), (len, 0));
            assert_eq!((all.is_empty(), none.is_empty()), (len == 0, true));
            assert_eq!(all.iter().collect::<Vec<_>>(), (0..len as Token).collect::<Vec<_>>());
            assert!(!all.contains(len as Token) && !all.contains(Token::MAX));
            let mut outside = none.clone();
            outside.allow(len as Token);
            assert_eq!(outside, none);
        }
    }

    proptest! {
        #[test]
        fn is_a_set(len in 0_usize..100, tokens in prop::collection::vec(0_u32..120, 0..40), logits in 0_usize..120) {
            let mut mask = TokenMask::none(len);
            let mut set = std::collections::BTreeSet::new();
            for (turn, &token) in tokens.iter().enumerate() {
                if turn % 4 == 3 {
                    mask.forbid(token);
                    set.remove(&token);
                } else if (token as usize) < len {
                    mask.allow(token);
                    set.insert(token);
                }
            }
            prop_assert_eq!(mask.iter().collect::<Vec<_>>(), set.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(mask.count(), set.len());
            let mut masked = vec![1.0; logits];
            mask.apply(&mut masked);
            for (token, logit) in (0..).zip(masked) {
                prop_assert_eq!(logit == 1.0, set.contains(&token));
            }
        }
    }
}
