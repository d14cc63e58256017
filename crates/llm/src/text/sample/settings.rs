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
    /// How adventurous: logits are divided by it. Zero always takes the likeliest token.
    pub temperature: f32,
    /// Keeps this many of the likeliest tokens; zero keeps all.
    pub top_k: usize,
    /// Keeps the most typical tokens (those about as surprising as is to be expected) that together have this
    /// probability; one keeps all.
    pub typical_p: f32,
    /// Keeps the likeliest tokens that together have this probability; one keeps all.
    pub top_p: f32,
    /// Keeps tokens at least this likely, relative to the likeliest; zero keeps all.
    pub min_p: f32,
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
    /// Added to the logits of these tokens; minus infinity bans one, such as
    /// [those the file suppresses](crate::text::Vocab::suppressed).
    pub logit_bias: Vec<(Token, f32)>,
    /// The same seed gives the same draws: those of a token depend on it and on the token's index in the answer.
    pub seed: u64,
    /// Gives the probability of every choice and of so many of the likeliest tokens, which takes a look at all of them.
    pub logprobs: Option<usize>,
}

impl Default for SamplerSettings {
    fn default() -> SamplerSettings {
        SamplerSettings {
            temperature: 0.8,
            top_k: 40,
            typical_p: 1.0,
            top_p: 0.95,
            min_p: 0.05,
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            penalty_window: 64,
            penalize_prompt: true,
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
        self.temperature == 0.0 || self.top_k == 1
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
        let rules: [(&'static str, f32, bool, &'static str); 7] = [
            ("temperature", self.temperature, at_least_zero(self.temperature), no_less),
            ("typical-p", self.typical_p, share(self.typical_p), "between 0 and 1"),
            ("top-p", self.top_p, share(self.top_p), "between 0 and 1"),
            ("min-p", self.min_p, share(self.min_p), "between 0 and 1"),
            ("the repeat penalty", self.repeat_penalty, positive(self.repeat_penalty), "finite and above 0"),
            ("the frequency penalty", self.frequency_penalty, self.frequency_penalty.is_finite(), finite),
            ("the presence penalty", self.presence_penalty, self.presence_penalty.is_finite(), finite),
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
            ("likeliest tokens", self.logprobs.unwrap_or_default(), MAX_TOP_LOGPROBS),
        ] {
            if count > limit {
                return Err(SampleError::TooMany { name, count, limit });
            }
        }
        Ok(())
    }
}
