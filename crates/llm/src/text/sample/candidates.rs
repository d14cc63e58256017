//! The tokens that are still in the running.
//!
//! Invariant: candidates have finite logits, and there is at least one after every cut. Time is linear in the vocabulary;
//! only those that may be kept are sorted.

use std::cmp::Ordering;

use super::SamplerSettings;
use super::random::Draws;
use crate::text::vocab::Token;

#[derive(Clone, Copy, Debug)]
struct Candidate {
    token: Token,
    logit: f32,
    /// In proportion to the probability.
    weight: f32,
    /// What it is sorted by, smallest first.
    rank: f32,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Candidates(Vec<Candidate>);

impl Candidates {
    /// Draws a token from logits that are numbers, none of them plus infinity.
    pub(super) fn choose(
        &mut self,
        logits: &[f32],
        settings: &SamplerSettings,
        draws: Draws,
    ) -> Option<Token> {
        match settings.top_k {
            0 => self.take_all(logits),
            count => self.take_top(logits, count),
        }
        if settings.typical_p < 1.0 {
            self.keep_typical(settings.typical_p);
        }
        if settings.top_p < 1.0 {
            self.keep_likeliest(settings.top_p);
        }
        if settings.min_p > 0.0 {
            let least = self.largest() + settings.min_p.ln();
            self.0.retain(|candidate| candidate.logit >= least);
        }
        self.draw(settings.temperature, draws.choice)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Token, f32)> {
        self.0.iter().map(|candidate| (candidate.token, candidate.logit))
    }

    fn take_all(&mut self, logits: &[f32]) {
        self.0.clear();
        self.0.extend((0..).zip(logits).filter_map(|(token, &logit)| Candidate::new(token, logit)));
    }

    /// Takes the largest ones, in descending order, and of equals the first.
    pub(super) fn take_top(&mut self, logits: &[f32], count: usize) {
        let kept = &mut self.0;
        kept.clear();
        if count == 0 {
            return;
        }
        // Collects until there are a few times as many as needed, then lets all but the largest go. What does not exceed
        // those need not be looked at: that is nearly everything, and whole blocks of it at a time.
        let room = count.saturating_mul(4).max(64);
        let mut exceeded = f32::NEG_INFINITY;
        for (block, logits) in logits.chunks(BLOCK).enumerate() {
            if largest_of(logits) <= exceeded {
                continue;
            }
            for (token, &logit) in (block as Token * BLOCK as Token..).zip(logits) {
                if logit <= exceeded {
                    continue;
                }
                kept.extend(Candidate::new(token, logit));
                if kept.len() >= room {
                    let (_, last, _) = kept.select_nth_unstable_by(count - 1, Candidate::order);
                    exceeded = last.logit;
                    kept.truncate(count);
                }
            }
        }
        kept.sort_unstable_by(Candidate::order);
        kept.truncate(count);
    }

    fn largest(&self) -> f32 {
        self.0.iter().map(|candidate| candidate.logit).fold(f32::NEG_INFINITY, f32::max)
    }

    /// Gives every candidate its weight and says what the weights add up to.
    fn weigh(&mut self, temperature: f32) -> f64 {
        let largest = self.largest();
        let mut total = 0.0;
        for candidate in &mut self.0 {
            candidate.weight = ((candidate.logit - largest) / temperature).exp();
            total += f64::from(candidate.weight);
        }
        total
    }

    fn keep_likeliest(&mut self, share: f32) {
        let total = self.weigh(1.0);
        for candidate in &mut self.0 {
            candidate.rank = -candidate.logit;
        }
        self.keep_first(share, total);
    }

    /// Keeps those whose surprise is nearest to the expected one.
    fn keep_typical(&mut self, share: f32) {
        let total = self.weigh(1.0);
        let surprise = |candidate: &Candidate| (total / f64::from(candidate.weight)).ln();
        let possible = self.0.iter().filter(|candidate| candidate.weight > 0.0);
        let expected: f64 =
            possible.map(|candidate| f64::from(candidate.weight) / total * surprise(candidate)).sum();
        for candidate in &mut self.0 {
            candidate.rank = (surprise(candidate) - expected).abs() as f32;
        }
        self.keep_first(share, total);
    }

    /// Keeps the first ones by rank until they have a share of the weight, but at least one. Sorts no more than it has
    /// to.
    fn keep_first(&mut self, share: f32, total: f64) {
        let wanted = f64::from(share) * total;
        let mut sum = 0.0;
        let mut sorted = 0;
        let mut step = 256;
        while let Some(rest) = self.0.get_mut(sorted..).filter(|rest| !rest.is_empty()) {
            let count = rest.len().min(step);
            if count < rest.len() {
                rest.select_nth_unstable_by(count - 1, Candidate::order_by_rank);
            }
            let next = rest.get_mut(..count).unwrap_or_default();
            next.sort_unstable_by(Candidate::order_by_rank);
            for (at, candidate) in next.iter().enumerate() {
                sum += f64::from(candidate.weight);
                if sum >= wanted {
                    self.0.truncate(sorted + at + 1);
                    return;
                }
            }
            sorted += count;
            step *= 4;
        }
    }

    fn draw(&mut self, temperature: f32, choice: f64) -> Option<Token> {
        let total = self.weigh(temperature);
        let mut left = choice * total;
        let mut last = None;
        for candidate in self.0.iter().filter(|candidate| candidate.weight > 0.0) {
            left -= f64::from(candidate.weight);
            last = Some(candidate.token);
            if left < 0.0 {
                break;
            }
        }
        last
    }
}

impl Candidate {
    fn new(token: Token, logit: f32) -> Option<Candidate> {
        logit.is_finite().then_some(Candidate { token, logit, weight: 0.0, rank: 0.0 })
    }

    /// Largest first, and of equals the first.
    fn order(&self, other: &Candidate) -> Ordering {
        other.logit.total_cmp(&self.logit).then(self.token.cmp(&other.token))
    }

    fn order_by_rank(&self, other: &Candidate) -> Ordering {
        self.rank.total_cmp(&other.rank).then(self.token.cmp(&other.token))
    }
}

/// How many logits are looked at together.
pub(super) const BLOCK: usize = 64;

/// The largest of a few numbers. Written so that it becomes vector code.
pub(super) fn largest_of(numbers: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; 16];
    let (blocks, rest) = numbers.as_chunks::<16>();
    for block in blocks {
        for (lane, &number) in lanes.iter_mut().zip(block) {
            *lane = if number > *lane { number } else { *lane };
        }
    }
    lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max)
}
