//! `/v1/completions`: what follows a text as it is.

use oxcart_llm::text::{AnswerEvent, Token, Vocab};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::chat::StreamOptions;
use super::fields::{FormFields, OneOrMany, SamplingFields, limit};
use super::shared::{Likelihoods, Usage, finish_reason, token_text, write_done, write_failure};
use crate::answers::{self, Answers, Likelihood, Script, Told};
use crate::ask::{Ask, Prompt};
use crate::call::{Call, Output};
use crate::error::ApiError;
use crate::ids;
use crate::json;
use crate::reply::{Reply, StreamKind, write_event};

/// Tokens of an answer where nothing is said, as OpenAI has it.
const USUAL_LIMIT: usize = 16;

#[derive(Debug, Deserialize)]
struct CompletionRequest {
    model: Option<String>,
    prompt: Prompts,
    suffix: Option<String>,
    #[serde(default)]
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    n: Option<usize>,
    best_of: Option<usize>,
    echo: Option<bool>,
    stop: Option<OneOrMany>,
    logprobs: Option<usize>,
    max_tokens: Option<i64>,
    ignore_eos: Option<bool>,
    #[serde(flatten)]
    sampling: SamplingFields,
    #[serde(flatten)]
    form: FormFields,
}

/// One prompt or several, as text or as tokens.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "prompt must be text, a list of tokens, or a list of either")]
pub(crate) enum Prompts {
    Text(String),
    Tokens(Vec<Token>),
    Texts(Vec<String>),
    ManyTokens(Vec<Vec<Token>>),
}

impl Prompts {
    pub(crate) fn into_vec(self) -> Vec<Prompt> {
        let text = |text| Prompt::Text { text, special: true };
        match self {
            Prompts::Text(one) => vec![text(one)],
            Prompts::Tokens(tokens) => vec![Prompt::Tokens(tokens)],
            Prompts::Texts(texts) => texts.into_iter().map(text).collect(),
            Prompts::ManyTokens(all) => all.into_iter().map(Prompt::Tokens).collect(),
        }
    }
}

impl CompletionRequest {
    fn ask(self) -> Result<Ask, ApiError> {
        if self.echo == Some(true) {
            return Err(ApiError::field("echo", "is not supported"));
        }
        if self.best_of.is_some_and(|best_of| best_of != self.n.unwrap_or(1)) {
            return Err(ApiError::field("best_of", "must equal n: all answers are returned"));
        }
        let mut prompts = self.prompt.into_vec();
        if let Some(after) = self.suffix.filter(|suffix| !suffix.is_empty()) {
            for prompt in &mut prompts {
                let Prompt::Text { text, .. } = prompt else {
                    return Err(ApiError::field("suffix", "requires the prompt to be text"));
                };
                let before = std::mem::take(text);
                *prompt = Prompt::Gap { before, after: after.clone(), files: Vec::new() };
            }
        }
        Ok(Ask {
            prompts,
            sampling: self.sampling.sampling()?,
            limit: match self.max_tokens {
                None => Some(USUAL_LIMIT),
                given => limit(given),
            },
            stop: self.stop.map(OneOrMany::into_vec).unwrap_or_default(),
            form: self.form.form()?,
            choices: self.n.unwrap_or(1),
            logprobs: self.logprobs,
            ignore_end: self.ignore_eos.unwrap_or(false),
            is_whole: self.stream != Some(true),
        })
    }
}

#[derive(Serialize)]
struct Completion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<Choice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
}

#[derive(Serialize)]
struct Choice {
    index: usize,
    text: String,
    logprobs: Option<Logprobs>,
    finish_reason: Option<&'static str>,
}

/// How likely tokens were, in the older format.
#[derive(Default, Serialize)]
struct Logprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<f32>,
    top_logprobs: Vec<Map<String, Value>>,
    text_offset: Vec<usize>,
}

impl Logprobs {
    /// `offset` is where the first of them begins in the answer, in characters, and is moved along.
    fn new(vocab: &Vocab, likelihoods: &[Likelihood], offset: &mut usize) -> Logprobs {
        let mut all = Logprobs::default();
        let finite = |logprob: f32| logprob.max(-9999.0);
        for likelihood in likelihoods {
            let text = token_text(vocab, likelihood.token);
            all.text_offset.push(*offset);
            *offset += text.chars().count();
            all.tokens.push(text);
            all.token_logprobs.push(finite(likelihood.logprob));
            let top = likelihood.alternatives.iter();
            all.top_logprobs.push(
                top.map(|&(token, logprob)| (token_text(vocab, token), finite(logprob).into())).collect(),
            );
        }
        all
    }
}

/// What a body asks for.
pub(crate) fn read(body: &[u8]) -> Result<Ask, ApiError> {
    json::parse::<CompletionRequest>(body)?.ask()
}

pub(crate) async fn create(call: Call) -> Result<Reply, ApiError> {
    let (mut request, context) = call.json::<CompletionRequest>().await?;
    let name = request.model.take();
    let stream = request.stream == Some(true);
    let wants_usage = request.stream_options.take().and_then(|options| options.include_usage) == Some(true);
    let (wants_logprobs, per_prompt) = (request.logprobs.is_some(), request.n.unwrap_or(1));
    let (silence, output) = (context.app.silence, context.output());
    let begin = request.ask()?.start(name, context);
    if stream {
        let script = move |answers: &Answers| CompletionScript {
            usage: wants_usage.then(Usage::default),
            likelihoods: wants_logprobs.then(|| Likelihoods::new(answers)),
            offsets: vec![0; answers.len()],
            per_prompt,
            ..CompletionScript::new(answers.model.name())
        };
        return answers::stream(StreamKind::Events, silence, begin, script).await;
    }
    let answers = begin.await?;
    let model = answers.model.clone();
    let all = answers.collect().await?;
    let completion = move |output: &Output| {
        let mut usage = Usage::default();
        let mut choices = Vec::new();
        for (index, whole) in all.into_iter().enumerate() {
            usage.add(&whole.ended, index % per_prompt == 0);
            choices.push(Choice {
                index,
                text: whole.answer.text,
                logprobs: wants_logprobs.then(|| Logprobs::new(&model.vocab, &whole.likelihoods, &mut 0)),
                finish_reason: Some(finish_reason(&whole.ended)),
            });
        }
        output.json(&Completion {
            id: &ids::fresh("cmpl-"),
            object: "text_completion",
            created: ids::now(),
            model: model.name(),
            choices,
            usage: Some(usage),
        })
    };
    output.reply(completion).await
}

/// Answers as chunks.
struct CompletionScript {
    id: String,
    created: u64,
    model: String,
    /// None where they are not wanted.
    likelihoods: Option<Likelihoods>,
    /// Where the next likelihood of each choice begins.
    offsets: Vec<usize>,
    usage: Option<Usage>,
    per_prompt: usize,
}

/// An answer of a model as chunks.
pub(crate) fn script(model: &str) -> impl Script {
    CompletionScript::new(model)
}

impl CompletionScript {
    fn new(model: &str) -> CompletionScript {
        CompletionScript {
            id: ids::fresh("cmpl-"),
            created: ids::now(),
            model: model.to_owned(),
            likelihoods: None,
            offsets: vec![0],
            usage: None,
            per_prompt: 1,
        }
    }

    fn write(&self, choices: Vec<Choice>, usage: Option<Usage>, out: &mut Vec<u8>) {
        let chunk = Completion {
            id: &self.id,
            object: "text_completion",
            created: self.created,
            model: &self.model,
            choices,
            usage,
        };
        write_event(out, None, &chunk);
    }

    fn chunk(&mut self, index: usize, parts: Vec<AnswerEvent>, end: Option<&'static str>, out: &mut Vec<u8>) {
        let mut text = String::new();
        for part in parts {
            if let AnswerEvent::Text(more) = part {
                text.push_str(&more);
            }
        }
        if text.is_empty() && end.is_none() {
            return;
        }
        let logprobs = match (&mut self.likelihoods, self.offsets.get_mut(index)) {
            (Some(likelihoods), Some(offset)) => {
                let waiting = likelihoods.take(index);
                Some(Logprobs::new(&likelihoods.vocab, &waiting, offset))
            }
            _ => None,
        };
        self.write(vec![Choice { index, text, logprobs, finish_reason: end }], None, out);
    }
}

impl Script for CompletionScript {
    fn begin(&mut self, _: &mut Vec<u8>) {}

    fn tell(&mut self, choice: usize, told: Told, out: &mut Vec<u8>) {
        let (parts, ended) = Likelihoods::parts(self.likelihoods.as_mut(), choice, told);
        if let (Some(usage), Some(ended)) = (&mut self.usage, &ended) {
            usage.add(ended, choice.is_multiple_of(self.per_prompt));
        }
        self.chunk(choice, parts, ended.as_ref().map(finish_reason), out);
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        if let Some(usage) = self.usage {
            self.write(Vec::new(), Some(usage), out);
        }
        write_done(out);
    }

    fn fail(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        write_failure(error, out);
    }

    fn refuse(error: &ApiError, out: &mut Vec<u8>) {
        write_failure(error, out);
    }
}
