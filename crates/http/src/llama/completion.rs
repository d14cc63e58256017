//! `/completion` and `/infill`: what follows a text, and what belongs between two.

use oxcart_llm::engine::{End, Report};
use oxcart_llm::text::{AnswerEvent, Token};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::answers::{self, Answers, Ended, Script, Told, Whole};
use crate::ask::{Ask, Prompt};
use crate::call::{Call, Context};
use crate::error::{ApiError, Dialect};
use crate::json;
use crate::openai::completions::Prompts;
use crate::openai::fields::{FormFields, OneOrMany, SamplingFields, limit};
use crate::reply::{Reply, StreamKind, write_event};

#[derive(Debug, Deserialize)]
struct Settings {
    model: Option<String>,
    n_predict: Option<i64>,
    /// The same by OpenAI's name; some clients send both.
    max_tokens: Option<i64>,
    #[serde(default)]
    stream: Option<bool>,
    stop: Option<OneOrMany>,
    ignore_eos: Option<bool>,
    #[serde(default)]
    return_tokens: bool,
    #[serde(flatten)]
    sampling: SamplingFields,
    #[serde(flatten)]
    form: FormFields,
}

#[derive(Debug, Deserialize)]
struct CompletionRequest {
    prompt: Prompts,
    #[serde(flatten)]
    settings: Settings,
}

#[derive(Debug, Deserialize)]
struct InfillRequest {
    #[serde(default)]
    input_prefix: String,
    #[serde(default)]
    input_suffix: String,
    #[serde(default)]
    input_extra: Vec<Extra>,
    /// What the middle begins with.
    #[serde(default)]
    prompt: String,
    #[serde(flatten)]
    settings: Settings,
}

/// A file beside the one with the gap.
#[derive(Debug, Deserialize)]
struct Extra {
    #[serde(default)]
    filename: String,
    text: String,
}

impl Settings {
    fn ask(self, prompt: Prompt) -> Result<Ask, ApiError> {
        Ok(Ask {
            sampling: self.sampling.sampling()?,
            limit: limit(self.n_predict.or(self.max_tokens)),
            stop: self.stop.map(OneOrMany::into_vec).unwrap_or_default(),
            form: self.form.form()?,
            ignore_end: self.ignore_eos.unwrap_or(false),
            ..Ask::new(prompt)
        })
    }

    async fn answer(mut self, prompt: Prompt, context: Context) -> Result<Reply, ApiError> {
        let (name, stream, return_tokens) =
            (self.model.take(), self.stream == Some(true), self.return_tokens);
        let ask = self.ask(prompt)?;
        let stop = ask.stop.clone();
        let (silence, output) = (context.app.silence, context.output());
        let begin = ask.start(name, context);
        let words =
            move |answers: &Answers| Words { model: answers.model.name().to_owned(), stop, return_tokens };
        if stream {
            let script = |answers: &Answers| CompletionScript { words: words(answers) };
            return answers::stream(StreamKind::Events, silence, begin, script).await;
        }
        let answers = begin.await?;
        let words = words(&answers);
        let Whole { answer, tokens, ended, .. } = answers.whole().await?;
        output.reply(move |output| output.json(&words.last(answer.text, tokens, &ended))).await
    }
}

impl CompletionRequest {
    fn into_parts(self) -> Result<(Prompt, Settings), ApiError> {
        let mut prompts = self.prompt.into_vec();
        match (prompts.pop(), prompts.is_empty()) {
            (Some(prompt), true) => Ok((prompt, self.settings)),
            _ => Err(ApiError::field("prompt", "must be a single prompt")),
        }
    }
}

impl InfillRequest {
    fn into_parts(self) -> (Prompt, Settings) {
        let prompt = Prompt::Gap {
            before: self.input_prefix + &self.prompt,
            after: self.input_suffix,
            files: self.input_extra.into_iter().map(|extra| (extra.filename, extra.text)).collect(),
        };
        (prompt, self.settings)
    }
}

/// What a body asks for.
pub(crate) fn read(body: &[u8]) -> Result<Ask, ApiError> {
    let (prompt, settings) = json::parse::<CompletionRequest>(body)?.into_parts()?;
    settings.ask(prompt)
}

/// What a body asks for that has a gap.
pub(crate) fn read_infill(body: &[u8]) -> Result<Ask, ApiError> {
    let (prompt, settings) = json::parse::<InfillRequest>(body)?.into_parts();
    settings.ask(prompt)
}

pub(crate) async fn create(call: Call) -> Result<Reply, ApiError> {
    let (request, context) = call.json::<CompletionRequest>().await?;
    let (prompt, settings) = request.into_parts()?;
    settings.answer(prompt, context).await
}

pub(crate) async fn infill(call: Call) -> Result<Reply, ApiError> {
    let (request, context) = call.json::<InfillRequest>().await?;
    let (prompt, settings) = request.into_parts();
    settings.answer(prompt, context).await
}

/// What is said in all parts of an answer.
struct Words {
    model: String,
    stop: Vec<String>,
    return_tokens: bool,
}

#[derive(Serialize)]
struct Part {
    index: usize,
    content: String,
    tokens: Vec<Token>,
    stop: bool,
}

impl Words {
    fn part(&self, content: String, token: Token) -> Part {
        let tokens = if self.return_tokens { vec![token] } else { Vec::new() };
        Part { index: 0, content, tokens, stop: false }
    }

    fn last(&self, content: String, tokens: Vec<Token>, ended: &Ended) -> Value {
        let stop_type = match ended.end {
            End::Model | End::Complete => "eos",
            End::Stop => "word",
            End::Length | End::Context | End::Deadline => "limit",
            End::Cancelled => "none",
        };
        let word = ended.stopped_by.and_then(|at| self.stop.iter().filter(|stop| !stop.is_empty()).nth(at));
        json!({
            "index": 0,
            "content": content,
            "tokens": if self.return_tokens { tokens } else { Vec::new() },
            "stop": true,
            "model": self.model,
            "tokens_predicted": ended.report.answer_tokens,
            "tokens_evaluated": ended.report.prompt_tokens,
            "tokens_cached": ended.report.reused_tokens,
            "truncated": false,
            "stop_type": stop_type,
            "stopping_word": word.map_or("", String::as_str),
            "timings": timings(&ended.report),
        })
    }
}

fn timings(report: &Report) -> Value {
    let milliseconds = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    json!({
        "prompt_n": report.prompt_tokens - report.reused_tokens,
        "prompt_ms": milliseconds(report.prompt_time),
        "prompt_per_second": report.prompt_rate(),
        "predicted_n": report.answer_tokens,
        "predicted_ms": milliseconds(report.answer_time),
        "predicted_per_second": report.answer_rate(),
    })
}

/// The text among parts of an answer that is nothing but text.
fn text(parts: Vec<AnswerEvent>) -> String {
    parts.into_iter().fold(String::new(), |mut all, part| {
        if let AnswerEvent::Text(text) = part {
            all.push_str(&text);
        }
        all
    })
}

struct CompletionScript {
    words: Words,
}

/// An answer of a model as parts.
pub(crate) fn script(model: &str) -> impl Script {
    CompletionScript { words: Words { model: model.to_owned(), stop: Vec::new(), return_tokens: true } }
}

impl Script for CompletionScript {
    fn begin(&mut self, _: &mut Vec<u8>) {}

    fn tell(&mut self, _: usize, told: Told, out: &mut Vec<u8>) {
        match told {
            Told::Token { token, parts, .. } => {
                write_event(out, None, &self.words.part(text(parts), token));
            }
            Told::Ended { parts, ended } => {
                write_event(out, None, &self.words.last(text(parts), Vec::new(), &ended));
            }
        }
    }

    fn end(&mut self, _: &mut Vec<u8>) {}

    fn fail(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        CompletionScript::refuse(error, out);
    }

    fn refuse(error: &ApiError, out: &mut Vec<u8>) {
        write_event(out, None, &error.to_value(Dialect::OpenAi));
    }
}
