//! The tokens that are still in the running.
//!
//! Invariant: candidates have finite logits, and there is at least one after every cut. Time is linear in the vocabulary, or in what is
//! offered of it; only those that may be kept are sorted. Which candidates there are, and in which order, follows from the logits alone.

use std::cmp::Ordering;

use super::SamplerSettings;
use super::random::Draws;
use crate::logits::descending;
use crate::text::vocab::Token;

/// What may be chosen.
#[derive(Clone, Copy, Debug)]
pub(super) enum Offered<'a> {
    /// Every token that has a logit here.
    All(&'a [f32]),
    /// These tokens alone, in ascending order. There are others, but no cut keeps them.
    Some(&'a [(Token, f32)]),
}

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
    /// Draws a token by logits that are numbers, none of them plus infinity. `mu` is what Mirostat goes by.
    pub(super) fn choose(
        &mut self,
        offered: Offered<'_>,
        settings: &SamplerSettings,
        draws: Draws,
        mu: &mut f32,
    ) -> Option<Token> {
        if let Some(mirostat) = settings.mirostat {
            self.take_all(offered, f32::NEG_INFINITY);
            self.keep_unsurprising(*mu, settings.temperature);
            let (token, surprise) = self.draw(settings.temperature, draws.choice)?;
            *mu -= mirostat.eta * (surprise as f32 - mirostat.tau);
            return Some(token);
        }
        let least = match (settings.top_n_sigma, offered) {
            (deviations, Offered::All(logits)) if deviations > 0.0 => least_within(logits, deviations),
            _ => f32::NEG_INFINITY,
        };
        match settings.top_k {
            0 => self.take_all(offered, least),
            count => self.take_top(offered, count, least),
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
        if draws.chance < f64::from(settings.xtc_probability) {
            self.leave_out_obvious(settings.xtc_threshold);
        }
        let temperature = match settings.temperature_range {
            0.0 => settings.temperature,
            range => self.temperature(settings.temperature, range, settings.temperature_exponent),
        };
        self.draw(temperature, draws.choice).map(|(token, _)| token)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Token, f32)> {
        self.0.iter().map(|candidate| (candidate.token, candidate.logit))
    }

    /// Takes them in ascending order of their tokens, but none below `least`.
    fn take_all(&mut self, offered: Offered<'_>, least: f32) {
        self.0.clear();
        let candidate = |(token, logit)| Candidate::new(token, logit).filter(|_| logit >= least);
        match offered {
            Offered::All(logits) => self.0.extend((0..).zip(logits.iter().copied()).filter_map(candidate)),
            Offered::Some(pairs) => self.0.extend(pairs.iter().copied().filter_map(candidate)),
        }
    }

    /// Takes the largest ones, in descending order, and of equals the first, but none below `least`.
    pub(super) fn take_top(&mut self, offered: Offered<'_>, count: usize, least: f32) {
        let Offered::All(logits) = offered else {
            self.take_all(offered, least);
            self.0.sort_unstable_by(Candidate::order);
            return self.0.truncate(count);
        };
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
                if logit <= exceeded || logit < least {
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

    /// Gives every candidate its weight and says what the weights add up to. At temperature zero, the likeliest has all.
    fn weigh(&mut self, temperature: f32) -> f64 {
        let largest = self.largest();
        let mut total = 0.0;
        for candidate in &mut self.0 {
            let below = candidate.logit - largest;
            candidate.weight = if below == 0.0 { 1.0 } else { (below / temperature).exp() };
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
        let expected = self.entropy(total);
        for candidate in &mut self.0 {
            candidate.rank = (candidate.surprise(total) - expected).abs() as f32;
        }
        self.keep_first(share, total);
    }

    /// Keeps those with at most so many bits of surprise, or else the likeliest.
    fn keep_unsurprising(&mut self, bits: f32, temperature: f32) {
        let total = self.weigh(temperature);
        let least = (total * f64::from(-bits).exp2()).min(1.0);
        self.0.retain(|candidate| f64::from(candidate.weight) >= least);
    }

    /// Leaves out all that have this probability, except the least likely of them.
    fn leave_out_obvious(&mut self, threshold: f32) {
        let least = self.weigh(1.0) * f64::from(threshold);
        let obvious = |candidate: &&Candidate| f64::from(candidate.weight) >= least;
        let kept = self.0.iter().filter(obvious).max_by(|a, b| a.order(b)).map(|candidate| candidate.token);
        self.0.retain(|candidate| Some(candidate.token) == kept || !obvious(&candidate));
    }

    /// The expected surprise, in nats, of candidates whose weights add up to `total`.
    fn entropy(&self, total: f64) -> f64 {
        let possible = self.0.iter().filter(|candidate| candidate.weight > 0.0);
        possible.map(|candidate| f64::from(candidate.weight) / total * candidate.surprise(total)).sum()
    }

    /// The temperature between `middle - range` and `middle + range` that goes with how unsure the model is.
    fn temperature(&mut self, middle: f32, range: f32, exponent: f32) -> f32 {
        if self.0.len() < 2 {
            return middle;
        }
        let total = self.weigh(1.0);
        let unsure = (self.entropy(total) / (self.0.len() as f64).ln()).clamp(0.0, 1.0) as f32;
        let coldest = (middle - range).max(0.0);
        coldest + (middle + range - coldest) * unsure.powf(exponent)
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

    /// A token by a number from zero to one, and its surprise in bits among the candidates.
    fn draw(&mut self, temperature: f32, choice: f64) -> Option<(Token, f64)> {
        let total = self.weigh(temperature);
        let mut left = choice * total;
        let mut last = None;
        for candidate in self.0.iter().filter(|candidate| candidate.weight > 0.0) {
            left -= f64::from(candidate.weight);
            last = Some((candidate.token, candidate.surprise(total) / std::f64::consts::LN_2));
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

    /// In nats, where the weights add up to `total`.
    fn surprise(&self, total: f64) -> f64 {
        (total / f64::from(self.weight)).ln()
    }

    /// Largest first, and of equals the first.
    fn order(&self, other: &Candidate) -> Ordering {
        descending(self.logit, other.logit).then(self.token.cmp(&other.token))
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

/// The least logit within so many standard deviations of the largest.
fn least_within(logits: &[f32], deviations: f32) -> f32 {
    let finite = || logits.iter().filter(|logit| logit.is_finite()).map(|&logit| f64::from(logit));
    let count = finite().count().max(1) as f64;
    let mean = finite().sum::<f64>() / count;
    let variance = finite().map(|logit| (logit - mean).powi(2)).sum::<f64>() / count;
    largest_of(logits) - deviations * variance.sqrt() as f32
}
