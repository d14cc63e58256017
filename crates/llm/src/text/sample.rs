//! Choosing the next token.
//!
//! The steps and their order: logit biases, the mask, penalties, DRY, top-n-sigma, top-k, typical, top-p, min-p, XTC,
//! temperature, a draw; with Mirostat, its cut instead of the others. Each looks at what the ones before have left, with
//! probabilities at temperature one; this is the order that llama.cpp has by default.
//!
//! Invariant: the same settings and the same logits give the same tokens, on every machine whose `exp` and `ln` agree; the
//! random numbers of a token depend on the seed and its index alone. The largest logits give the same tokens as all of them, where they meet
//! the sampler's [need](Sampler::need). No logits panic: those that are no numbers are an
//! error, after which the sampler is as it was. Once it has seen a few tokens, choosing one allocates nothing.

mod candidates;
mod dry;
mod penalties;
mod random;
mod saved;
mod settings;

pub use saved::SavedSamplerError;
pub use settings::{Dry, Mirostat, SamplerSettings};

use super::mask::TokenMask;
use super::vocab::Token;
use crate::logits::{Known, Largest, Need};
use candidates::{BLOCK, Candidates, Offered, largest_of};
use dry::Repetitions;
use penalties::Penalties;

/// Why no token could be chosen.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    /// A setting that makes no sense.
    #[error("{name} is {value}, but should be {wanted}")]
    Setting {
        /// Which one.
        name: &'static str,
        /// What it is.
        value: f32,
        /// What it may be.
        wanted: &'static str,
    },
    /// A logit bias that makes no sense.
    #[error(
        "the logit bias of token {token} is {value}, but should be a finite number, or minus infinity to ban it"
    )]
    Bias {
        /// Of which token.
        token: Token,
        /// What it is.
        value: f32,
    },
    /// More of something than is supported.
    #[error("{count} {name} are asked for, but at most {limit} are supported")]
    TooMany {
        /// Of what.
        name: &'static str,
        /// How many.
        count: usize,
        /// How many there may be.
        limit: usize,
    },
    /// The model gave something that is no number, or infinity.
    #[error("the model gave {value} for token {token}; its weights may be damaged")]
    NotFinite {
        /// For which token.
        token: Token,
        /// What it gave.
        value: f32,
    },
    /// There is no token, or none is left that may be chosen.
    #[error("no token is left to choose from")]
    NothingLeft,
}

/// A token and how likely it was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// The token.
    pub token: Token,
    /// The natural logarithm of its probability by the model alone, before any bias, mask, penalty or cut. Only where the
    /// settings ask for it.
    pub logprob: Option<f32>,
}

/// Chooses tokens, one after another.
///
/// ```
/// use oxcart_llm::text::{SampleError, Sampler, SamplerSettings};
///
/// let mut greedy = Sampler::new(SamplerSettings::greedy())?;
/// assert_eq!(greedy.sample(&[0.0, 2.0, 1.0])?.token, 1);
///
/// let mut sampler = Sampler::new(SamplerSettings { seed: 7, ..SamplerSettings::default() })?;
/// let tokens = |sampler: &mut Sampler| -> Result<Vec<u32>, SampleError> {
///     (0..10).map(|_| Ok(sampler.sample(&[1.0, 1.5, 0.5])?.token)).collect()
/// };
/// tokens(&mut sampler)?;
/// let mut restored = Sampler::restore(&sampler.save())?;
/// assert_eq!(restored, sampler);
/// assert_eq!(tokens(&mut restored)?, tokens(&mut sampler)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Sampler {
    settings: SamplerSettings,
    /// How many tokens were chosen.
    index: u64,
    penalties: Penalties,
    repetitions: Option<Repetitions>,
    /// How much surprise Mirostat allows, in bits.
    mu: f32,
    candidates: Candidates,
    /// Logits after biases, mask and penalties; only used where there are any.
    changed: Vec<f32>,
    /// The same where only the largest are known, in ascending order of their tokens.
    changed_largest: Vec<(Token, f32)>,
    /// The likeliest tokens of the last choice.
    top: Vec<(Token, f32)>,
}

impl Sampler {
    /// A sampler with these settings, unless they make no sense.
    pub fn new(settings: SamplerSettings) -> Result<Sampler, SampleError> {
        settings.check()?;
        let mut sampler = Sampler {
            index: 0,
            penalties: Penalties::new(&settings),
            repetitions: settings.dry.as_ref().map(Repetitions::new),
            mu: 0.0,
            candidates: Candidates::default(),
            changed: Vec::new(),
            changed_largest: Vec::new(),
            top: Vec::new(),
            settings,
        };
        sampler.reset();
        Ok(sampler)
    }

    /// The settings.
    pub fn settings(&self) -> &SamplerSettings {
        &self.settings
    }

    /// How many tokens were chosen: the index that the next one draws its random numbers by.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Takes note of a token of the prompt, for the penalties.
    pub fn accept(&mut self, token: Token) {
        if self.settings.penalize_prompt {
            self.penalties.accept(token);
        }
        if let Some(repetitions) = &mut self.repetitions {
            repetitions.accept(token);
        }
    }

    /// Takes note of a token of the answer that was chosen elsewhere, as if it had been chosen here: after a restart from
    /// the tokens alone. Only what Mirostat has learned does not come back in this way.
    pub fn replay(&mut self, token: Token) {
        self.index += 1;
        self.penalties.accept(token);
        if let Some(repetitions) = &mut self.repetitions {
            repetitions.accept(token);
        }
    }

    /// Begins anew, with nothing noted and the first token's random numbers next.
    pub fn reset(&mut self) {
        self.index = 0;
        self.penalties.clear();
        self.repetitions.iter_mut().for_each(Repetitions::clear);
        self.mu = 2.0 * self.settings.mirostat.map_or(0.0, |mirostat| mirostat.tau);
        self.top.clear();
    }

    /// How much has to be known of the next token's logits, and of those of so many tokens after it, so that the choices are the ones by all
    /// of them.
    ///
    /// Tokens that are not among the largest cannot get there if others are only lowered: then as many more as are lowered are enough.
    /// Whatever raises logits, or looks at all of them, needs all.
    pub fn need(&self, further: usize) -> Need {
        let settings = &self.settings;
        let raises = settings.logit_bias.iter().any(|&(_, bias)| bias > 0.0);
        let repetitions_count = self.repetitions.as_ref().is_some_and(Repetitions::count);
        let Some(penalized) = self.penalties.lowered(further) else { return Need::All };
        if raises || repetitions_count || settings.logprobs.is_some() {
            return Need::All;
        }
        let lowered = penalized + settings.logit_bias.len();
        if settings.is_greedy() {
            return Need::largest(1 + lowered);
        }
        if settings.mirostat.is_some() || settings.top_n_sigma > 0.0 {
            return Need::All;
        }
        let is_cut_by_min_p_alone =
            settings.min_p > 0.0 && settings.typical_p >= 1.0 && settings.top_p >= 1.0;
        match settings.top_k {
            // The largest one may be lowered, and with it what is cut.
            0 if is_cut_by_min_p_alone && lowered == 0 => {
                Need::Largest { count: 1, within: settings.min_p.ln() }
            }
            0 => Need::All,
            count => Need::largest(count.saturating_add(lowered)),
        }
    }

    /// Chooses a token by what is known of its logits, and takes note of it. The largest alone must meet the [need](Sampler::need).
    pub fn sample_known(&mut self, known: Known<'_>) -> Result<Choice, SampleError> {
        match known {
            Known::All(logits) => self.sample(logits),
            Known::Largest(largest) => self.choose_among(largest),
        }
    }

    /// Chooses a token and takes note of it. Logits of minus infinity are never chosen.
    pub fn sample(&mut self, logits: &[f32]) -> Result<Choice, SampleError> {
        self.choose(logits, None)
    }

    /// Chooses one of the tokens of a mask and takes note of it.
    pub fn sample_masked(&mut self, logits: &[f32], mask: &TokenMask) -> Result<Choice, SampleError> {
        self.choose(logits, Some(mask))
    }

    /// The likeliest tokens of the last choice and the natural logarithms of their probabilities, the likeliest first: as
    /// many as the settings ask for, by the model alone.
    pub fn top_logprobs(&self) -> &[(Token, f32)] {
        &self.top
    }

    fn choose(&mut self, logits: &[f32], mask: Option<&TokenMask>) -> Result<Choice, SampleError> {
        let mut best = check(logits)?;
        let mut offered = logits;
        let repetitions = self.repetitions.as_mut().filter(|repetitions| !repetitions.recent().is_empty());
        let biased = !self.settings.logit_bias.is_empty();
        if biased || mask.is_some() || self.penalties.are_active() || repetitions.is_some() {
            self.changed.clear();
            self.changed.extend_from_slice(logits);
            add_biases(self.changed.as_mut_slice(), &self.settings.logit_bias);
            if let Some(mask) = mask {
                mask.apply(&mut self.changed);
            }
            self.penalties.apply(self.changed.as_mut_slice());
            if let Some(repetitions) = repetitions {
                repetitions.apply(&mut self.changed);
            }
            offered = &self.changed;
            best = check(offered)?;
        }
        let token = match self.settings.is_greedy() {
            true => best,
            false => {
                let draws = random::draws(self.settings.seed, self.index);
                let offered = Offered::All(offered);
                let chosen = self.candidates.choose(offered, &self.settings, draws, &mut self.mu);
                chosen.ok_or(SampleError::NothingLeft)?
            }
        };
        self.replay(token);
        let logprob = self.settings.logprobs.and_then(|count| {
            let total = log_sum_exp(logits);
            self.candidates.take_top(Offered::All(logits), count, f32::NEG_INFINITY);
            self.top.clear();
            self.top.extend(self.candidates.iter().map(|(token, logit)| (token, logprob_of(logit, total))));
            Some(logprob_of(*logits.get(token as usize)?, total))
        });
        Ok(Choice { token, logprob })
    }

    fn choose_among(&mut self, largest: Largest<'_>) -> Result<Choice, SampleError> {
        debug_assert!(self.need(0).is_met_by(largest), "too little is known of the logits");
        let offered = &mut self.changed_largest;
        offered.clear();
        offered.extend_from_slice(largest.pairs());
        offered.sort_unstable_by_key(|&(token, _)| token);
        add_biases(offered.as_mut_slice(), &self.settings.logit_bias);
        self.penalties.apply(offered.as_mut_slice());
        let chosen = match self.settings.is_greedy() {
            true => first_of_largest(offered),
            false => {
                let draws = random::draws(self.settings.seed, self.index);
                let offered = Offered::Some(offered);
                self.candidates.choose(offered, &self.settings, draws, &mut self.mu)
            }
        };
        let token = chosen.ok_or(SampleError::NothingLeft)?;
        self.replay(token);
        Ok(Choice { token, logprob: None })
    }
}

/// Logits on their way to a choice.
trait Changing {
    /// The logit of a token, if it may be chosen.
    fn of(&mut self, token: Token) -> Option<&mut f32>;
}

impl Changing for [f32] {
    fn of(&mut self, token: Token) -> Option<&mut f32> {
        self.get_mut(token as usize)
    }
}

/// In ascending order of their tokens.
impl Changing for [(Token, f32)] {
    fn of(&mut self, token: Token) -> Option<&mut f32> {
        let at = self.binary_search_by_key(&token, |&(token, _)| token).ok()?;
        Some(&mut self[at].1)
    }
}

impl PartialEq for Sampler {
    /// Whether both will choose the same tokens.
    fn eq(&self, other: &Sampler) -> bool {
        self.settings == other.settings
            && self.index == other.index
            && self.mu.to_bits() == other.mu.to_bits()
            && self.penalties == other.penalties
            && self.repetitions == other.repetitions
    }
}

/// The natural logarithm of a token's probability.
pub fn logprob(logits: &[f32], token: Token) -> Option<f32> {
    Some(logprob_of(*logits.get(token as usize)?, log_sum_exp(logits)))
}

/// The most likely tokens and the natural logarithms of their probabilities, the most likely first.
pub fn top_logprobs(logits: &[f32], count: usize) -> Result<Vec<(Token, f32)>, SampleError> {
    check(logits)?;
    let total = log_sum_exp(logits);
    let mut candidates = Candidates::default();
    candidates.take_top(Offered::All(logits), count, f32::NEG_INFINITY);
    Ok(candidates.iter().map(|(token, logit)| (token, logprob_of(logit, total))).collect())
}

/// Adds biases; sums stay below plus infinity.
fn add_biases(logits: &mut (impl Changing + ?Sized), biases: &[(Token, f32)]) {
    for &(token, bias) in biases {
        if let Some(logit) = logits.of(token) {
            *logit = (*logit + bias).min(f32::MAX);
        }
    }
}

/// The token with the largest logit, of equals the first; those of minus infinity are never chosen.
fn first_of_largest(logits: &[(Token, f32)]) -> Option<Token> {
    let mut best = (None, f32::NEG_INFINITY);
    for &(token, logit) in logits {
        if logit > best.1 {
            best = (Some(token), logit);
        }
    }
    best.0
}

/// The token with the largest logit, of equals the first. All must be numbers, and one at least finite.
fn check(logits: &[f32]) -> Result<Token, SampleError> {
    let mut best = (f32::NEG_INFINITY, None);
    for (block, logits) in logits.chunks(BLOCK).enumerate() {
        // Without a branch, so that it becomes vector code.
        let odd = logits.iter().fold(false, |odd, logit| odd | logit.is_nan());
        if !odd && largest_of(logits) <= best.0 {
            continue;
        }
        for (token, &logit) in (block as Token * BLOCK as Token..).zip(logits) {
            if logit > best.0 {
                best = (logit, Some(token));
            } else if logit.is_nan() {
                return Err(SampleError::NotFinite { token, value: logit });
            }
        }
    }
    match best {
        (f32::INFINITY, Some(token)) => Err(SampleError::NotFinite { token, value: f32::INFINITY }),
        (_, Some(token)) => Ok(token),
        (_, None) => Err(SampleError::NothingLeft),
    }
}

fn logprob_of(logit: f32, total: f64) -> f32 {
    (f64::from(logit) - total) as f32
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let largest = largest_of(logits);
    // Differences are exact enough in f32, and sums of many need more.
    let sum: f64 = logits.iter().map(|&logit| f64::from((logit - largest).exp())).sum();
    f64::from(largest) + sum.ln()
}

#[cfg(test)]
mod tests;
