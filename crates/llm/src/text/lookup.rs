//! Guesses at the next tokens by what followed the same words before, for speculative decoding.
//!
//! The text so far is searched for its own end; what followed there is the guess. A guess costs little to check, but not
//! nothing, so there is a budget: every step adds a small part of its time to it, every token that was guessed right a whole
//! step, and every guess takes out what checking it costs.
//!
//! Invariant: checking guesses never takes more than [`waste`](LookupSettings::waste) of the time of all steps, plus one step,
//! plus the time that right guesses have saved, as far as [`token_cost`](LookupSettings::token_cost) is right. Time per token
//! and memory per token of the window are bounded, whatever the text.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::vocab::Token;

/// How many places with the same last tokens are compared.
const MOST_PLACES: usize = 16;

/// How many tokens are compared at each.
const LONGEST_MATCH: usize = 32;

/// The budget at the beginning, and the most that may be saved up, in steps.
const FIRST_BUDGET: f32 = 1.0;
const LARGEST_BUDGET: f32 = 4.0;

/// Stands for no place.
const NOWHERE: u32 = u32::MAX;

/// How guesses are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LookupSettings {
    /// How many of the last tokens must have been there before, two at least.
    pub least_match: usize,
    /// How many tokens are guessed at most.
    pub most_guesses: usize,
    /// What computing one more token along with another costs, as a part of what one alone costs.
    pub token_cost: f32,
    /// Which part of the time may be spent in vain.
    pub waste: f32,
    /// How many tokens are remembered; then the older half is forgotten.
    pub window: usize,
}

impl Default for LookupSettings {
    fn default() -> LookupSettings {
        LookupSettings { least_match: 3, most_guesses: 8, token_cost: 0.3, waste: 0.03, window: 1 << 16 }
    }
}

/// Guesses what comes next in one sequence.
///
/// ```
/// use oxcart_llm::text::{Lookup, LookupSettings};
///
/// let mut lookup = Lookup::new(LookupSettings::default());
/// lookup.extend(&[1, 2, 3, 4, 5, 9, 1, 2, 3]);
/// let guesses = lookup.guess().to_vec();
/// assert_eq!(guesses, [4, 5]);
/// // The model says 4 and 7: one guess was right.
/// lookup.settle(guesses.len(), 1);
/// lookup.extend(&[4, 7]);
/// ```
#[derive(Clone, Debug)]
pub struct Lookup {
    settings: LookupSettings,
    tokens: Vec<Token>,
    /// For every place, the one before it with the same last tokens.
    earlier: Vec<u32>,
    /// The last place with each run of last tokens.
    places: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// In steps.
    budget: f32,
    /// How many guesses in a row are worth making, by what was right lately.
    reach: usize,
    guesses: Vec<Token>,
}

impl Lookup {
    /// Begins without any tokens. Settings that make no sense are brought into range.
    pub fn new(settings: LookupSettings) -> Lookup {
        let within = |value: f32, low: f32, high: f32| if value >= low { value.min(high) } else { low };
        let settings = LookupSettings {
            least_match: settings.least_match.clamp(2, LONGEST_MATCH),
            most_guesses: settings.most_guesses,
            token_cost: within(settings.token_cost, 0.01, 1.0),
            waste: within(settings.waste, 0.0, 1.0),
            window: settings.window.clamp(64, NOWHERE as usize),
        };
        Lookup {
            settings,
            tokens: Vec::new(),
            earlier: Vec::new(),
            places: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            budget: FIRST_BUDGET,
            reach: 2,
            guesses: Vec::new(),
        }
    }

    /// How guesses are made.
    pub fn settings(&self) -> &LookupSettings {
        &self.settings
    }

    /// How many tokens are remembered.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether no tokens are remembered.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Takes tokens of the prompt or of the answer, those that were computed or chosen and no guesses.
    pub fn extend(&mut self, tokens: &[Token]) {
        tokens.iter().for_each(|&token| self.push(token));
    }

    /// Takes one token.
    pub fn push(&mut self, token: Token) {
        if self.tokens.len() >= self.settings.window {
            self.forget_older_half();
        }
        self.tokens.push(token);
        self.earlier.push(NOWHERE);
        self.remember(self.tokens.len() - 1);
    }

    /// Takes tokens back, until so many are left of those that are remembered.
    pub fn truncate(&mut self, len: usize) {
        while self.tokens.len() > len {
            let place = self.tokens.len() - 1;
            let earlier = self.earlier.pop().unwrap_or(NOWHERE);
            if let Some(run) = self.run(place) {
                let entry =
                    self.places.find_entry(self.hasher.hash_one(run), |&other| other as usize == place);
                if let Ok(mut entry) = entry {
                    match earlier {
                        NOWHERE => drop(entry.remove()),
                        earlier => *entry.get_mut() = earlier,
                    }
                }
            }
            self.tokens.pop();
        }
    }

    /// What may come next, as far as the budget allows for finding out; often nothing.
    pub fn guess(&mut self) -> &[Token] {
        self.guesses.clear();
        let afford = (self.budget / self.settings.token_cost) as usize;
        let count = afford.min(self.reach).min(self.settings.most_guesses);
        if count > 0
            && let Some(place) = self.longest_match()
        {
            // Where the text runs into its own end, it is taken to go round.
            let period = self.tokens.len() - 1 - place;
            for at in 0..count {
                let known = self.tokens.get(place + 1 + at).copied();
                let next = known.or_else(|| self.guesses.get(at.checked_sub(period)?).copied());
                self.guesses.extend(next);
            }
        }
        &self.guesses
    }

    /// Says how a step went: how many guesses were computed along with it, and how many of them were right, up to the first
    /// wrong one. To be called after every step, with zeros where there was no guess.
    pub fn settle(&mut self, guessed: usize, right: usize) {
        let right = right.min(guessed);
        let earned = self.settings.waste + right as f32;
        let spent = guessed as f32 * self.settings.token_cost;
        self.budget = (self.budget + earned - spent).min(LARGEST_BUDGET);
        if guessed > 0 {
            self.reach = if right == guessed { guessed.saturating_mul(2).max(self.reach) } else { right + 1 };
            self.reach = self.reach.min(self.settings.most_guesses.max(1));
        }
    }

    /// The tokens that end at a place, as many as must have been there before.
    fn run(&self, place: usize) -> Option<&[Token]> {
        self.tokens.get((place + 1).checked_sub(self.settings.least_match)?..=place)
    }

    /// Makes a place the last one with its run.
    fn remember(&mut self, place: usize) {
        let Some(run) = self.run(place) else { return };
        let hash = self.hasher.hash_one(run);
        let found = self.places.find(hash, |&other| self.run(other as usize) == Some(run)).copied();
        let Lookup { tokens, earlier, places, hasher, settings, .. } = self;
        match (found, earlier.get_mut(place)) {
            (Some(before), Some(slot)) => {
                *slot = before;
                if let Some(entry) = places.find_mut(hash, |&other| other == before) {
                    *entry = place as u32;
                }
            }
            _ => {
                let run_of = |place: usize| tokens.get(place + 1 - settings.least_match..=place);
                places.insert_unique(hash, place as u32, |&other| {
                    hasher.hash_one(run_of(other as usize).unwrap_or_default())
                });
            }
        }
    }

    /// The last token of the longest stretch that is also the end of the text; of equally long ones, the latest.
    fn longest_match(&self) -> Option<usize> {
        let end = self.tokens.len().checked_sub(1)?;
        let mut best = None;
        let mut place = self.earlier.get(end).copied()?;
        for _ in 0..MOST_PLACES {
            if place == NOWHERE {
                break;
            }
            let before = |place: usize| self.tokens.get(..=place).unwrap_or_default().iter().rev();
            let same = before(end).zip(before(place as usize)).take(LONGEST_MATCH);
            let same = same.take_while(|(a, b)| a == b).count();
            if best.is_none_or(|(longest, _)| same > longest) {
                best = Some((same, place as usize));
            }
            if same == LONGEST_MATCH {
                break;
            }
            place = self.earlier.get(place as usize).copied().unwrap_or(NOWHERE);
        }
        best.map(|(_, place)| place)
    }

    fn forget_older_half(&mut self) {
        self.tokens.drain(..self.tokens.len() / 2);
        self.earlier.clear();
        self.earlier.resize(self.tokens.len(), NOWHERE);
        self.places.clear();
        (0..self.tokens.len()).for_each(|place| self.remember(place));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn with(tokens: &[Token]) -> Lookup {
        let mut lookup = Lookup::new(LookupSettings { token_cost: 0.1, ..LookupSettings::default() });
        lookup.reach = 8;
        lookup.extend(tokens);
        lookup
    }

    #[test]
    fn the_longest_and_then_the_latest() {
        // 2 3 4 was followed by 5, then by 6; 1 2 3 4 only by 5.
        assert_eq!(with(&[1, 2, 3, 4, 5, 0, 2, 3, 4, 6, 9, 1, 2, 3, 4]).guess(), [5, 0, 2, 3, 4, 6, 9, 1]);
        assert_eq!(with(&[2, 3, 4, 5, 0, 2, 3, 4, 6, 9, 7, 2, 3, 4]).guess()[..2], [6, 9]);
        assert!(with(&[1, 2, 3, 4, 5, 6]).guess().is_empty());
        assert!(with(&[1, 2, 1, 2]).guess().is_empty());
        assert!(with(&[]).guess().is_empty());
        // Round and round.
        assert_eq!(with(&[7, 1, 2, 1, 2, 1, 2]).guess(), [1, 2, 1, 2, 1, 2, 1, 2]);
        assert_eq!(with(&[5; 4]).guess(), [5; 8]);
    }

    #[test]
    fn few_guesses_where_they_are_wrong() {
        let mut lookup = Lookup::new(LookupSettings::default());
        lookup.extend(&[1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]);
        let mut guessed = 0;
        for _ in 0..1000 {
            let count = lookup.guess().len();
            guessed += count;
            lookup.settle(count, 0);
        }
        // One step at the beginning, and three in a hundred after that, at three guesses a step.
        assert!((50..=105).contains(&guessed), "{guessed}");
        // Many again where they are right.
        for _ in 0..50 {
            let count = lookup.guess().len();
            lookup.settle(count, count);
        }
        assert_eq!(lookup.guess().len(), 8);
    }

    #[test]
    fn settings_are_brought_into_range() {
        let odd = LookupSettings {
            least_match: 0,
            most_guesses: usize::MAX,
            token_cost: f32::NAN,
            waste: -1.0,
            window: 0,
        };
        let mut lookup = Lookup::new(odd);
        lookup.extend(&[1; 1000]);
        assert!(lookup.len() <= 64 && lookup.guess().len() == 2);
        lookup.settle(usize::MAX, usize::MAX);
        assert!(lookup.guess().len() <= 400);
    }

    /// The definition, without an index.
    fn plain(tokens: &[Token], least: usize) -> Option<usize> {
        let end = tokens.len().checked_sub(1)?;
        let same = |place: usize| {
            let pairs = tokens[..=end].iter().rev().zip(tokens[..=place].iter().rev());
            pairs.take(LONGEST_MATCH).take_while(|(a, b)| a == b).count()
        };
        (0..end).filter(|&place| same(place) >= least).max_by_key(|&place| (same(place), place))
    }

    proptest! {
        #[test]
        fn an_index_finds_what_a_search_finds(
            tokens in prop::collection::vec(0_u32..3, 0..40), back in 0_usize..30, more in prop::collection::vec(0_u32..3, 0..10),
        ) {
            let mut lookup = with(&tokens);
            let kept = tokens.len().saturating_sub(back);
            lookup.truncate(kept);
            lookup.extend(&more);
            let all = [&tokens[..kept], &more].concat();
            prop_assert_eq!(&lookup.tokens, &all);
            // With so few tokens there are few enough places that all are compared, or the latest is as good as any.
            let (found, expected) = (lookup.longest_match(), plain(&all, 3));
            prop_assert_eq!(found.is_some(), expected.is_some());
            let occurrences = expected.map_or(0, |_| {
                let run = &all[all.len() - 3..];
                all.windows(3).filter(|window| *window == run).count()
            });
            if occurrences <= MOST_PLACES {
                prop_assert_eq!(found, expected);
            }
            prop_assert_eq!(lookup.guess().is_empty(), expected.is_none());
        }

        /// Whatever the text and whatever is right, the time spent in vain stays within the budget.
        #[test]
        fn the_budget_is_kept(
            tokens in prop::collection::vec(0_u32..4, 1..400), luck in prop::collection::vec(0.0_f32..1.0, 400),
            token_cost in 0.02_f32..1.0, waste in 0.0_f32..0.2,
        ) {
            let mut lookup = Lookup::new(LookupSettings { token_cost, waste, ..LookupSettings::default() });
            let (mut steps, mut spent, mut saved) = (0.0, 0.0, 0.0);
            for (&token, luck) in tokens.iter().zip(luck) {
                lookup.push(token);
                let guessed = lookup.guess().len();
                prop_assert!(guessed <= 8);
                let right = (luck * luck * (guessed as f32 + 0.99)) as usize;
                lookup.settle(guessed, right);
                steps += 1.0;
                spent += guessed as f32 * token_cost;
                saved += right.min(guessed) as f32;
                prop_assert!(spent <= waste * steps + saved + FIRST_BUDGET + 0.001, "{} {} {}", spent, steps, saved);
            }
        }

        #[test]
        fn what_is_forgotten_takes_no_room(tokens in prop::collection::vec(0_u32..5, 0..400)) {
            let mut lookup = Lookup::new(LookupSettings { window: 64, ..LookupSettings::default() });
            lookup.extend(&tokens);
            prop_assert!(lookup.len() <= 64 && lookup.places.len() <= 64 && lookup.earlier.len() == lookup.len());
            prop_assert!(tokens.ends_with(&lookup.tokens));
            let fresh = with(&lookup.tokens);
            prop_assert_eq!(fresh.longest_match(), lookup.longest_match());
        }
    }
}
