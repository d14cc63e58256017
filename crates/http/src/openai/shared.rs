//! What responses have in common.

use std::sync::Arc;

use oxcart_llm::engine::End;
use oxcart_llm::text::{AnswerEvent, Decode, Token, Vocab};
use serde::Serialize;

use crate::answers::{Answers, Ended, Likelihood, Told};
use crate::error::{ApiError, Dialect};
use crate::reply::write_event;

/// The end of a stream.
pub(crate) fn write_done(out: &mut Vec<u8>) {
    out.extend_from_slice(b"data: [DONE]\n\n");
}

/// What a stream ends with that cannot go on.
pub(crate) fn write_failure(error: &ApiError, out: &mut Vec<u8>) {
    write_event(out, None, &error.to_value(Dialect::OpenAi));
    write_done(out);
}

/// Tokens that were used.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptDetails,
    completion_tokens_details: CompletionDetails,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct PromptDetails {
    cached_tokens: usize,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct CompletionDetails {
    reasoning_tokens: usize,
}

impl Usage {
    /// Counts another answer; the prompt of the choices of one prompt counts once.
    pub(crate) fn add(&mut self, ended: &Ended, is_first_choice: bool) {
        let report = &ended.report;
        if is_first_choice {
            self.prompt_tokens += report.prompt_tokens;
            self.prompt_tokens_details.cached_tokens += report.reused_tokens;
        }
        self.completion_tokens += report.answer_tokens;
        self.completion_tokens_details.reasoning_tokens += ended.reasoning_tokens;
        self.total_tokens = self.prompt_tokens + self.completion_tokens;
    }
}

/// Why an answer ended.
pub(crate) fn finish_reason(ended: &Ended) -> &'static str {
    match ended.end {
        End::Length | End::Context | End::Deadline => "length",
        End::Model | End::Complete | End::Stop | End::Cancelled if ended.calls => "tool_calls",
        End::Model | End::Complete | End::Stop | End::Cancelled => "stop",
    }
}

/// A token's text; what is no text by itself is shown as a replacement character.
pub(crate) fn token_text(vocab: &Vocab, token: Token) -> String {
    String::from_utf8_lossy(&token_bytes(vocab, token)).into_owned()
}

fn token_bytes(vocab: &Vocab, token: Token) -> Vec<u8> {
    vocab.decode(&[token], Decode { show_special: true, whole_text: false })
}

/// A token and how likely it was.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct TokenLogprob {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<Vec<TokenLogprob>>,
}

impl TokenLogprob {
    fn new(vocab: &Vocab, token: Token, logprob: f32) -> TokenLogprob {
        let bytes = token_bytes(vocab, token);
        // Minus infinity is not JSON; this is OpenAI's number for what never comes.
        let logprob = logprob.max(-9999.0);
        TokenLogprob { token: token_text(vocab, token), logprob, bytes, top_logprobs: None }
    }

    /// A token of an answer, with the likeliest ones in its place.
    pub(crate) fn of(vocab: &Vocab, likelihood: &Likelihood) -> TokenLogprob {
        let alternatives = likelihood.alternatives.iter();
        let top = alternatives.map(|&(token, logprob)| TokenLogprob::new(vocab, token, logprob)).collect();
        let own = TokenLogprob::new(vocab, likelihood.token, likelihood.logprob);
        TokenLogprob { top_logprobs: Some(top), ..own }
    }
}

/// Likelihoods that wait for a chunk of a stream to go with, for each choice.
pub(crate) struct Likelihoods {
    pub(crate) vocab: Arc<Vocab>,
    waiting: Vec<Vec<Likelihood>>,
}

impl Likelihoods {
    pub(crate) fn new(answers: &Answers) -> Likelihoods {
        Likelihoods { vocab: Arc::clone(&answers.model.vocab), waiting: vec![Vec::new(); answers.len()] }
    }

    pub(crate) fn add(&mut self, choice: usize, likelihood: Likelihood) {
        if let Some(waiting) = self.waiting.get_mut(choice) {
            waiting.push(likelihood);
        }
    }

    /// What is told of a choice, whose likelihood waits from now on if it is wanted.
    pub(crate) fn parts(
        wanted: Option<&mut Likelihoods>,
        choice: usize,
        told: Told,
    ) -> (Vec<AnswerEvent>, Option<Ended>) {
        told.into_parts(|likelihood| {
            if let Some(wanted) = wanted {
                wanted.add(choice, likelihood);
            }
        })
    }

    pub(crate) fn take(&mut self, choice: usize) -> Vec<Likelihood> {
        self.waiting.get_mut(choice).map(std::mem::take).unwrap_or_default()
    }

    /// As [`take`](Likelihoods::take), in words.
    pub(crate) fn told(&mut self, choice: usize) -> Vec<TokenLogprob> {
        let waiting = self.take(choice);
        self.of(&waiting)
    }

    /// Some of this vocabulary's tokens in words.
    pub(crate) fn of(&self, likelihoods: &[Likelihood]) -> Vec<TokenLogprob> {
        likelihoods.iter().map(|one| TokenLogprob::of(&self.vocab, one)).collect()
    }
}

/// How likely the tokens of a choice were.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ChoiceLogprobs {
    content: Vec<TokenLogprob>,
    refusal: Option<()>,
}

impl ChoiceLogprobs {
    pub(crate) fn new(vocab: &Vocab, likelihoods: &[Likelihood]) -> ChoiceLogprobs {
        let content = likelihoods.iter().map(|one| TokenLogprob::of(vocab, one)).collect();
        ChoiceLogprobs { content, refusal: None }
    }
}
