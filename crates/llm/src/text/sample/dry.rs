//! A penalty for what would continue a repetition.
//!
//! Invariant: time is linear in the window, whatever the tokens, and memory is a few words for each of its tokens.

use std::collections::VecDeque;

use hashbrown::HashMap;

use super::penalties::ROOM;
use super::settings::Dry;
use crate::text::vocab::Token;

#[derive(Clone, Debug)]
pub(super) struct Repetitions {
    /// Breakers in ascending order.
    settings: Dry,
    /// The oldest first.
    recent: VecDeque<Token>,
    /// How far the text before each token, counted from the newest, is the same as the end of the text.
    lengths: Vec<usize>,
    /// What would continue a repetition, and how long that is.
    longest: HashMap<Token, usize>,
}

impl Repetitions {
    pub(super) fn new(settings: &Dry) -> Repetitions {
        let mut settings = settings.clone();
        settings.breakers.sort_unstable();
        if settings.multiplier == 0.0 {
            settings.window = 0;
        }
        let room = settings.window.min(ROOM);
        let (recent, longest) = (VecDeque::with_capacity(room), HashMap::with_capacity(room));
        Repetitions { settings, recent, lengths: Vec::with_capacity(room), longest }
    }

    /// The tokens of the window, the oldest first.
    pub(super) fn recent(&self) -> &VecDeque<Token> {
        &self.recent
    }

    /// Whether they count for anything.
    pub(super) fn count(&self) -> bool {
        self.settings.window > 0
    }

    pub(super) fn clear(&mut self) {
        self.recent.clear();
    }

    pub(super) fn accept(&mut self, token: Token) {
        if self.settings.window == 0 {
            return;
        }
        while self.recent.len() >= self.settings.window {
            self.recent.pop_front();
        }
        self.recent.push_back(token);
    }

    pub(super) fn apply(&mut self, logits: &mut [f32]) {
        self.find();
        let Dry { multiplier, base, allowed_length, .. } = self.settings;
        for (&token, &length) in &self.longest {
            if self.is_breaker(token) {
                continue;
            }
            let Some(logit) = logits.get_mut(token as usize) else { continue };
            let penalty = multiplier * base.powf((length - allowed_length) as f32);
            *logit -= penalty.min(f32::MAX / 4.0);
        }
    }

    /// The token so many places before the newest.
    fn back(&self, places: usize) -> Option<Token> {
        self.recent.get(self.recent.len().checked_sub(places + 1)?).copied()
    }

    fn is_breaker(&self, token: Token) -> bool {
        self.settings.breakers.binary_search(&token).is_ok()
    }

    /// Fills in what would continue a repetition.
    fn find(&mut self) {
        self.longest.clear();
        let count = self.recent.len();
        // No repetition goes beyond a breaker.
        let limit = (0..count).find(|&at| self.back(at).is_some_and(|token| self.is_breaker(token)));
        let limit = limit.unwrap_or(count);
        if limit < self.settings.allowed_length.max(1) {
            return;
        }
        self.measure();
        for at in 1..count {
            let length = self.lengths.get(at).copied().unwrap_or_default().min(limit);
            let Some(next) = self.back(at - 1) else { continue };
            if length >= self.settings.allowed_length.max(1) {
                let longest = self.longest.entry(next).or_default();
                *longest = length.max(*longest);
            }
        }
    }

    /// The Z-function of the tokens, read from the newest to the oldest.
    fn measure(&mut self) {
        let count = self.recent.len();
        self.lengths.clear();
        self.lengths.resize(count, 0);
        // The stretch that reaches furthest of those that are known to be the same.
        let (mut start, mut end) = (0, 0);
        for at in 1..count {
            let known = self.lengths.get(at - start).copied().unwrap_or_default();
            let mut length = if at < end { known.min(end - at) } else { 0 };
            while at + length < count && self.back(length) == self.back(at + length) {
                length += 1;
            }
            if at + length > end {
                (start, end) = (at, at + length);
            }
            if let Some(slot) = self.lengths.get_mut(at) {
                *slot = length;
            }
        }
    }
}

impl PartialEq for Repetitions {
    /// The rest follows from the settings and from what was seen.
    fn eq(&self, other: &Repetitions) -> bool {
        self.recent == other.recent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn penalties(settings: &Dry, tokens: &[Token]) -> Vec<f32> {
        let mut repetitions = Repetitions::new(settings);
        tokens.iter().for_each(|&token| repetitions.accept(token));
        let mut logits = vec![0.0; 10];
        repetitions.apply(&mut logits);
        logits.into_iter().map(|logit| -logit).collect()
    }

    #[test]
    fn what_continues_a_repetition_is_penalized() {
        let settings = Dry { multiplier: 1.0, base: 2.0, ..Dry::default() };
        // 1 2 3 was followed by 3, and 2 3 by 9; a 3 alone was followed by 2, which is too short to count.
        let found = penalties(&settings, &[1, 2, 3, 3, 2, 3, 9, 1, 2, 3]);
        assert_eq!(found, [0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
        // Only as far as the breaker.
        let broken = Dry { breakers: vec![1], ..settings.clone() };
        assert_eq!(penalties(&broken, &[1, 2, 3, 3, 2, 3, 9, 1, 2, 3])[3], 1.0);
        // A breaker itself is not penalized.
        let breaks = Dry { breakers: vec![9], ..settings.clone() };
        assert_eq!(penalties(&breaks, &[2, 3, 9, 1, 2, 3])[9], 0.0);
        // Only within the window.
        let short = Dry { window: 4, ..settings.clone() };
        assert_eq!(penalties(&short, &[1, 2, 3, 3, 2, 3, 9, 1, 2, 3]), [0.0; 10]);
        // Long ones cost much, but no infinite amount.
        let found = penalties(&settings, &[1; 1000]);
        assert!(found[1].is_finite() && found[1] > 1e30);
        assert_eq!(penalties(&settings, &[]), [0.0; 10]);
    }

    proptest! {
        #[test]
        fn lengths_are_those_of_a_plain_search(tokens in prop::collection::vec(0_u32..3, 0..60)) {
            let mut repetitions = Repetitions::new(&Dry::default());
            tokens.iter().for_each(|&token| repetitions.accept(token));
            repetitions.measure();
            let reversed: Vec<Token> = tokens.iter().rev().copied().collect();
            for at in 1..reversed.len() {
                let same = reversed.iter().zip(&reversed[at..]).take_while(|(a, b)| a == b).count();
                prop_assert_eq!(repetitions.lengths[at], same);
            }
        }
    }
}
