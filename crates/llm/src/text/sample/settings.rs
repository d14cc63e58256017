//! What a sampler does.

use super::SampleError;
use crate::text::vocab::Token;

/// What a sampler does. The default suits most models; [`greedy`](SamplerSettings::greedy) always takes the likeliest.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerSettings {
    /// How adventurous: logits are divided by it. Zero always takes the likeliest token.
    pub temperature: f32,
    /// Keeps this many of the likeliest tokens; zero keeps all.
    pub top_k: usize,
    /// Keeps the likeliest tokens that together have this probability; one keeps all.
    pub top_p: f32,
    /// Keeps tokens at least this likely, relative to the likeliest; zero keeps all.
    pub min_p: f32,
    /// Keeps the most typical tokens (those about as surprising as is to be expected) that together have this
    /// probability; one keeps all.
    pub typical_p: f32,
    /// Divides the logits of tokens seen lately, or multiplies them where they are negative; one does nothing.
    pub repeat_penalty: f32,
    /// Taken from a token's logit for every time it was seen lately; zero does nothing.
    pub frequency_penalty: f32,
    /// Taken from a token's logit if it was seen lately; zero does nothing.
    pub presence_penalty: f32,
    /// How many tokens count as seen lately.
    pub penalty_window: usize,
    /// Tokens that are never chosen, such as [`Vocab::suppressed`](crate::text::Vocab::suppressed) ones.
    pub banned: Vec<Token>,
    /// The same seed gives the same draws: those of a token depend on it and on the token's index in the answer.
    pub seed: u64,
    /// Gives the probability of every choice, which takes a look at all tokens.
    pub logprobs: bool,
}

impl Default for SamplerSettings {
    fn default() -> SamplerSettings {
        SamplerSettings {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 1.0,
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            penalty_window: 64,
            banned: Vec::new(),
            seed: 0,
            logprobs: false,
        }
    }
}

impl SamplerSettings {
    /// Always the likeliest token; of equally likely ones, the first.
    pub fn greedy() -> SamplerSettings {
        SamplerSettings { temperature: 0.0, ..SamplerSettings::default() }
    }

    /// Whether chance has no say.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0 || self.top_k == 1
    }

    pub(super) fn check(&self) -> Result<(), SampleError> {
        let share = |value: f32| (0.0..=1.0).contains(&value);
        let finite = "a finite number";
        let rules: [(&'static str, f32, bool, &'static str); 7] = [
            (
                "temperature",
                self.temperature,
                self.temperature.is_finite() && self.temperature >= 0.0,
                "finite and not negative",
            ),
            ("top-p", self.top_p, share(self.top_p), "between 0 and 1"),
            ("min-p", self.min_p, share(self.min_p), "between 0 and 1"),
            ("typical-p", self.typical_p, share(self.typical_p), "between 0 and 1"),
            (
                "the repeat penalty",
                self.repeat_penalty,
                self.repeat_penalty.is_normal() && self.repeat_penalty > 0.0,
                "finite and above 0",
            ),
            ("the frequency penalty", self.frequency_penalty, self.frequency_penalty.is_finite(), finite),
            ("the presence penalty", self.presence_penalty, self.presence_penalty.is_finite(), finite),
        ];
        match rules.into_iter().find(|(_, _, holds, _)| !holds) {
            Some((name, value, _, wanted)) => Err(SampleError::Setting { name, value, wanted }),
            None => Ok(()),
        }
    }
}
