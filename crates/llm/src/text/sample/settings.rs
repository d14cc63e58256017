//! What a sampler does.

use super::SampleError;
use crate::text::limits::{MAX_LOGIT_BIASES, MAX_TOP_LOGPROBS};
use crate::text::vocab::Token;

/// What a sampler does. The default suits most models; [`greedy`](SamplerSettings::greedy) always takes the likeliest.
///
/// What servers of OpenAI's interface do: `penalty_window: usize::MAX` and `penalize_prompt: false`, so that the
/// penalties count all tokens of the answer and no others. The defaults are llama.cpp's.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerSettings {
    /// What logits are divided by: the larger, the less likely tokens are chosen too. Zero always takes the likeliest token.
    pub temperature: f32,
    /// Lets the temperature vary by so much in either direction: low where the model is sure, high where it is not. Zero
    /// does nothing.
    pub temperature_range: f32,
    /// How quickly the temperature follows the model's uncertainty, where it varies.
    pub temperature_exponent: f32,
    /// Keeps tokens whose logits are within this many standard deviations of the largest; zero keeps all.
    pub top_n_sigma: f32,
    /// Keeps this many of the likeliest tokens; zero keeps all.
    pub top_k: usize,
    /// Keeps the most typical tokens (those about as surprising as is to be expected) that together have this
    /// probability; one keeps all.
    pub typical_p: f32,
    /// Keeps the likeliest tokens that together have this probability; one keeps all.
    pub top_p: f32,
    /// Keeps tokens at least this likely, relative to the likeliest; zero keeps all.
    pub min_p: f32,
    /// How often the likeliest tokens are left out so that something less obvious is said; zero is never.
    pub xtc_probability: f32,
    /// How likely a token is that is left out then, all but the least likely of them. More than a half leaves nothing out.
    pub xtc_threshold: f32,
    /// Keeps the surprise of the text constant instead of all the cuts above.
    pub mirostat: Option<Mirostat>,
    /// Divides the logits of tokens seen lately, or multiplies them where they are negative; one does nothing.
    pub repeat_penalty: f32,
    /// Taken from a token's logit for every time it was seen lately; zero does nothing.
    pub frequency_penalty: f32,
    /// Taken from a token's logit if it was seen lately; zero does nothing.
    pub presence_penalty: f32,
    /// How many tokens count as seen lately, `usize::MAX` for all.
    pub penalty_window: usize,
    /// Whether tokens of the prompt count as seen.
    pub penalize_prompt: bool,
    /// Makes what would continue a repetition less likely.
    pub dry: Option<Dry>,
    /// Added to the logits of these tokens; minus infinity bans one, such as
    /// [those the file suppresses](crate::text::Vocab::suppressed).
    pub logit_bias: Vec<(Token, f32)>,
    /// The same seed gives the same draws: those of a token depend on it and on the token's index in the answer.
    pub seed: u64,
    /// Gives the probability of every choice and of so many of the likeliest tokens, which takes a look at all of them.
    pub logprobs: Option<usize>,
}

/// A text whose surprise is kept constant (Basu et al. 2021, the second version).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mirostat {
    /// The surprise, in bits per token.
    pub tau: f32,
    /// How quickly deviations are made up for.
    pub eta: f32,
}

impl Default for Mirostat {
    fn default() -> Mirostat {
        Mirostat { tau: 5.0, eta: 0.1 }
    }
}

/// A penalty for repeating whole sequences, which spares single words ("Don't repeat yourself").
///
/// A token that would continue a repetition of `n` tokens loses `multiplier * base^(n - allowed_length)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Dry {
    /// How much a repetition of the allowed length costs.
    pub multiplier: f32,
    /// How much more every further token costs.
    pub base: f32,
    /// Repetitions shorter than this cost nothing.
    pub allowed_length: usize,
    /// How many tokens are searched for repetitions, those of the prompt included.
    pub window: usize,
    /// Tokens that no repetition goes beyond, such as ends of lines; found by text with
    /// [`Vocab::tokens_containing`](crate::text::Vocab::tokens_containing).
    pub breakers: Vec<Token>,
}

impl Default for Dry {
    fn default() -> Dry {
        Dry { multiplier: 0.8, base: 1.75, allowed_length: 2, window: 1024, breakers: Vec::new() }
    }
}

impl Default for SamplerSettings {
    fn default() -> SamplerSettings {
        SamplerSettings {
            temperature: 0.8,
            temperature_range: 0.0,
            temperature_exponent: 1.0,
            top_n_sigma: 0.0,
            top_k: 40,
            typical_p: 1.0,
            top_p: 0.95,
            min_p: 0.05,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            mirostat: None,
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            penalty_window: 64,
            penalize_prompt: true,
            dry: None,
            logit_bias: Vec::new(),
            seed: 0,
            logprobs: None,
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
        self.temperature == 0.0 || (self.top_k == 1 && self.mirostat.is_none())
    }

    /// Never chooses these tokens.
    #[must_use]
    pub fn ban(mut self, tokens: &[Token]) -> SamplerSettings {
        self.logit_bias.extend(tokens.iter().map(|&token| (token, f32::NEG_INFINITY)));
        self
    }

    pub(super) fn check(&self) -> Result<(), SampleError> {
        let share = |value: f32| (0.0..=1.0).contains(&value);
        let positive = |value: f32| value.is_normal() && value > 0.0;
        let at_least_zero = |value: f32| value.is_finite() && value >= 0.0;
        let (finite, no_less) = ("a finite number", "finite and not negative");
        let mirostat = self.mirostat.unwrap_or_default();
        let (multiplier, base) = self.dry.as_ref().map_or((0.0, 1.0), |dry| (dry.multiplier, dry.base));
        let rules: [(&'static str, f32, bool, &'static str); 16] = [
            ("temperature", self.temperature, at_least_zero(self.temperature), no_less),
            (
                "the temperature's range",
                self.temperature_range,
                at_least_zero(self.temperature_range),
                no_less,
            ),
            (
                "the temperature's exponent",
                self.temperature_exponent,
                at_least_zero(self.temperature_exponent),
                no_less,
            ),
            ("top-n-sigma", self.top_n_sigma, at_least_zero(self.top_n_sigma), no_less),
            ("typical-p", self.typical_p, share(self.typical_p), "between 0 and 1"),
            ("top-p", self.top_p, share(self.top_p), "between 0 and 1"),
            ("min-p", self.min_p, share(self.min_p), "between 0 and 1"),
            ("the xtc probability", self.xtc_probability, share(self.xtc_probability), "between 0 and 1"),
            ("the xtc threshold", self.xtc_threshold, share(self.xtc_threshold), "between 0 and 1"),
            ("mirostat's tau", mirostat.tau, at_least_zero(mirostat.tau), no_less),
            ("mirostat's eta", mirostat.eta, at_least_zero(mirostat.eta), no_less),
            ("the repeat penalty", self.repeat_penalty, positive(self.repeat_penalty), "finite and above 0"),
            ("the frequency penalty", self.frequency_penalty, self.frequency_penalty.is_finite(), finite),
            ("the presence penalty", self.presence_penalty, self.presence_penalty.is_finite(), finite),
            ("the dry multiplier", multiplier, at_least_zero(multiplier), no_less),
            ("the dry base", base, base.is_finite() && base >= 1.0, "finite and at least 1"),
        ];
        if let Some((name, value, _, wanted)) = rules.into_iter().find(|(_, _, holds, _)| !holds) {
            return Err(SampleError::Setting { name, value, wanted });
        }
        let bias = self.logit_bias.iter().find(|(_, bias)| bias.is_nan() || *bias == f32::INFINITY);
        if let Some(&(token, value)) = bias {
            return Err(SampleError::Bias { token, value });
        }
        for (name, count, limit) in [
            ("logit biases", self.logit_bias.len(), MAX_LOGIT_BIASES),
            ("dry breakers", self.dry.as_ref().map_or(0, |dry| dry.breakers.len()), MAX_LOGIT_BIASES),
            ("likeliest tokens", self.logprobs.unwrap_or_default(), MAX_TOP_LOGPROBS),
        ] {
            if count > limit {
                return Err(SampleError::TooMany { name, count, limit });
            }
        }
        Ok(())
    }
}
