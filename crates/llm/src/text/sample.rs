//! Choosing the next token.
//!
//! The steps and their order: penalties, banned tokens, top-k, typical, top-p, min-p, temperature, a draw. Each looks at
//! what the ones before have left, with probabilities at temperature one; this is the order that llama.cpp has by default.
//!
//! Invariant: the same settings and the same logits give the same tokens, on every machine whose `exp` and `ln` agree. No
//! logits panic: those that are no numbers are an error.

mod candidates;
mod penalties;
mod random;
mod settings;

pub use settings::SamplerSettings;

use super::vocab::Token;
use candidates::Candidates;
use penalties::Penalties;
use random::Random;

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
    /// The natural logarithm of its probability by the model alone, before any penalty or cut. Only where the settings
    /// ask for it.
    pub logprob: Option<f32>,
}

/// Chooses tokens, one after another.
///
/// ```
/// use oxcart_llm::text::{Sampler, SamplerSettings};
///
/// let mut greedy = Sampler::new(SamplerSettings::greedy())?;
/// assert_eq!(greedy.sample(&[0.0, 2.0, 1.0])?.token, 1);
///
/// let settings = SamplerSettings { seed: 7, ..SamplerSettings::default() };
/// let tokens = |settings: SamplerSettings| -> Result<Vec<u32>, _> {
///     let mut sampler = Sampler::new(settings)?;
///     (0..10).map(|_| Ok(sampler.sample(&[1.0, 1.5, 0.5])?.token)).collect()
/// };
/// assert_eq!(tokens(settings.clone())?, tokens(settings)?);
/// # Ok::<(), oxcart_llm::text::SampleError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Sampler {
    settings: SamplerSettings,
    random: Random,
    penalties: Penalties,
    candidates: Candidates,
    /// Logits after penalties; only used where there are any.
    changed: Vec<f32>,
}

impl Sampler {
    /// A sampler with these settings, unless they make no sense.
    pub fn new(settings: SamplerSettings) -> Result<Sampler, SampleError> {
        settings.check()?;
        Ok(Sampler {
            random: Random::new(settings.seed),
            penalties: Penalties::new(&settings),
            candidates: Candidates::default(),
            changed: Vec::new(),
            settings,
        })
    }

    /// The settings.
    pub fn settings(&self) -> &SamplerSettings {
        &self.settings
    }

    /// Takes note of a token that was not chosen here, such as those of a prompt, for the penalties.
    pub fn accept(&mut self, token: Token) {
        self.penalties.accept(token);
    }

    /// Begins anew, with nothing noted and the seed as it was.
    pub fn reset(&mut self) {
        self.random = Random::new(self.settings.seed);
        self.penalties.clear();
    }

    /// Chooses a token and takes note of it. Logits of minus infinity are never chosen.
    pub fn sample(&mut self, logits: &[f32]) -> Result<Choice, SampleError> {
        let best = check(logits)?;
        let plain = !self.penalties.are_active() && self.settings.banned.is_empty();
        let token = match (plain, self.settings.is_greedy()) {
            (true, true) => best,
            (true, false) => self.candidates.choose(logits, &self.settings, &mut self.random)?,
            (false, greedy) => {
                self.changed.clear();
                self.changed.extend_from_slice(logits);
                self.penalties.apply(&mut self.changed);
                for &token in &self.settings.banned {
                    if let Some(logit) = self.changed.get_mut(token as usize) {
                        *logit = f32::NEG_INFINITY;
                    }
                }
                match greedy {
                    true => check(&self.changed)?,
                    false => self.candidates.choose(&self.changed, &self.settings, &mut self.random)?,
                }
            }
        };
        self.accept(token);
        let logprob = if self.settings.logprobs { logprob(logits, token) } else { None };
        Ok(Choice { token, logprob })
    }
}

/// The natural logarithm of a token's probability.
pub fn logprob(logits: &[f32], token: Token) -> Option<f32> {
    let logit = *logits.get(token as usize)?;
    Some((f64::from(logit) - log_sum_exp(logits)) as f32)
}

/// The most likely tokens and the natural logarithms of their probabilities, the most likely first.
pub fn top_logprobs(logits: &[f32], count: usize) -> Result<Vec<(Token, f32)>, SampleError> {
    check(logits)?;
    let total = log_sum_exp(logits);
    let mut candidates = Candidates::default();
    candidates.take_top(logits, count);
    let tokens = candidates.iter().map(|(token, logit)| (token, (f64::from(logit) - total) as f32));
    Ok(tokens.collect())
}

/// The token with the largest logit, of equals the first. All must be numbers, and one at least finite.
fn check(logits: &[f32]) -> Result<Token, SampleError> {
    let mut best = (f32::NEG_INFINITY, None);
    for (token, &logit) in (0..).zip(logits) {
        if logit > best.0 {
            best = (logit, Some(token));
        } else if logit.is_nan() {
            return Err(SampleError::NotFinite { token, value: logit });
        }
    }
    match best {
        (f32::INFINITY, Some(token)) => Err(SampleError::NotFinite { token, value: f32::INFINITY }),
        (_, Some(token)) => Ok(token),
        (_, None) => Err(SampleError::NothingLeft),
    }
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    // Differences are exact enough in f32, and sums of many need more.
    let sum: f64 = logits.iter().map(|&logit| f64::from((logit - largest).exp())).sum();
    f64::from(largest) + sum.ln()
}

#[cfg(test)]
mod tests;
