//! `/api/chat` and `/api/generate`: answers, as one line of JSON each or piece by piece.

use std::time::{Duration, Instant, SystemTime};

use oxcart_llm::engine::{End, Report};
use oxcart_llm::text::{AnswerEvent, ToolCall, ToolChoice};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::options::{KeepAlive, Options, thinking};
use crate::answers::{self, Answers, Ended, Script, Told};
use crate::ask::{Ask, Conversation, Prompt, Turn};
use crate::call::{Call, Context, Output};
use crate::error::{ApiError, Dialect, NO_IMAGES};
use crate::ids;
use crate::json;
use crate::openai::chat::{CallOfTool, answered_call, not_a_role, tools};
use crate::openai::shared::{Likelihoods, TokenLogprob};
use crate::reply::{self, Reply, StreamKind, write_line};

#[derive(Debug, Deserialize)]
struct ChatRequest {
    model: Option<String>,
    #[serde(default)]
    messages: Vec<Message>,
    tools: Option<Vec<Value>>,
    format: Option<Value>,
    #[serde(default)]
    options: Option<Options>,
    stream: Option<bool>,
    think: Option<Value>,
    keep_alive: Option<KeepAlive>,
    logprobs: Option<bool>,
    top_logprobs: Option<usize>,
}

#[derive(Debug, Deserialize)]
struct Message {
    role: String,
    content: Option<String>,
    thinking: Option<String>,
    images: Option<Vec<Value>>,
    tool_calls: Option<Vec<CallOfTool>>,
    tool_name: Option<String>,
    name: Option<String>,
    tool_call_id: Option<String>,
}

#[derive(Debug, Deserialize)]
struct GenerateRequest {
    model: Option<String>,
    #[serde(default)]
    prompt: String,
    suffix: Option<String>,
    system: Option<String>,
    images: Option<Vec<Value>>,
    format: Option<Value>,
    #[serde(default)]
    options: Option<Options>,
    stream: Option<bool>,
    raw: Option<bool>,
    think: Option<Value>,
    keep_alive: Option<KeepAlive>,
    /// Tokens of an earlier answer that this one continues.
    context: Option<Vec<Value>>,
    /// In the place of the model's own.
    template: Option<String>,
    logprobs: Option<bool>,
    top_logprobs: Option<usize>,
}

/// How many of the likeliest tokens are to be told with each token, if these are.
fn logprobs(wanted: Option<bool>, top: Option<usize>) -> Option<usize> {
    (wanted == Some(true)).then(|| top.unwrap_or(0))
}

fn no_images(images: Option<Vec<Value>>) -> Result<(), ApiError> {
    match images.is_some_and(|images| !images.is_empty()) {
        true => Err(ApiError::field("images", NO_IMAGES)),
        false => Ok(()),
    }
}

fn turns(messages: Vec<Message>) -> Result<Vec<Turn>, ApiError> {
    let mut turns = Vec::with_capacity(messages.len());
    for message in messages {
        no_images(message.images)?;
        let content = message.content.unwrap_or_default();
        let turn = match message.role.as_str() {
            "assistant" => {
                let calls = message.tool_calls.unwrap_or_default().into_iter().map(ToolCall::from);
                Turn::Answered { content, reasoning: message.thinking, calls: calls.collect() }
            }
            "tool" => {
                let call = answered_call(&turns, message.tool_call_id, message.tool_name.or(message.name));
                Turn::Returned { call, content }
            }
            "system" | "user" => Turn::Said { role: message.role, content },
            other => return Err(not_a_role(other)),
        };
        turns.push(turn);
    }
    Ok(turns)
}

impl ChatRequest {
    fn ask(self) -> Result<Ask, ApiError> {
        let mut options = self.options.unwrap_or_default();
        let conversation = Conversation {
            turns: turns(self.messages)?,
            tools: tools(self.tools)?,
            choice: ToolChoice::Auto,
            parallel: true,
            variables: thinking(self.think),
        };
        let ask = options.ask(Prompt::Chat(conversation), self.format)?;
        let is_whole = self.stream == Some(false);
        Ok(Ask { logprobs: logprobs(self.logprobs, self.top_logprobs), is_whole, ..ask })
    }
}

impl GenerateRequest {
    fn ask(self) -> Result<Ask, ApiError> {
        no_images(self.images)?;
        if self.context.is_some_and(|context| !context.is_empty()) {
            return Err(ApiError::field("context", "is not supported; send the conversation to /api/chat"));
        }
        if self.template.is_some_and(|template| !template.is_empty()) {
            return Err(ApiError::field(
                "template",
                "is not supported; with raw, the prompt is taken as it is",
            ));
        }
        let mut options = self.options.unwrap_or_default();
        // Some clients send fields that they have no value for as empty text.
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        let prompt = match (given(self.suffix), self.raw) {
            (Some(after), _) => Prompt::Gap { before: self.prompt, after, files: Vec::new() },
            (None, Some(true)) => Prompt::Text { text: self.prompt, special: true },
            (None, _) => {
                let said = |role: &str, content| Turn::Said { role: role.into(), content };
                let mut turns: Vec<Turn> =
                    given(self.system).map(|system| said("system", system)).into_iter().collect();
                turns.push(said("user", self.prompt));
                let variables = thinking(self.think);
                Prompt::Chat(Conversation { turns, variables, ..Conversation::default() })
            }
        };
        let ask = options.ask(prompt, self.format)?;
        let is_whole = self.stream == Some(false);
        Ok(Ask { logprobs: logprobs(self.logprobs, self.top_logprobs), is_whole, ..ask })
    }
}

/// What a body asks for.
pub(crate) fn read(body: &[u8]) -> Result<Ask, ApiError> {
    json::parse::<ChatRequest>(body)?.ask()
}

/// What a body asks for that is no conversation.
pub(crate) fn read_plain(body: &[u8]) -> Result<Ask, ApiError> {
    json::parse::<GenerateRequest>(body)?.ask()
}

pub(crate) async fn chat(call: Call) -> Result<Reply, ApiError> {
    let (mut request, context) = call.json::<ChatRequest>().await?;
    let (name, stream) = (request.model.take(), request.stream != Some(false));
    let keep = KeepAlive::wanted(request.keep_alive.as_ref())?;
    // What is wrong is not worth loading a model for.
    let ask = (!request.messages.is_empty()).then(|| request.ask()).transpose()?;
    match ask {
        Some(ask) => answer(ask, name, keep, context, stream, true).await,
        None => load(name, keep, &context, true).await,
    }
}

pub(crate) async fn generate(call: Call) -> Result<Reply, ApiError> {
    let (mut request, context) = call.json::<GenerateRequest>().await?;
    let (name, stream) = (request.model.take(), request.stream != Some(false));
    let keep = KeepAlive::wanted(request.keep_alive.as_ref())?;
    let has_prompt =
        !request.prompt.is_empty() || request.suffix.as_ref().is_some_and(|suffix| !suffix.is_empty());
    let ask = request.ask()?;
    match has_prompt {
        true => answer(ask, name, keep, context, stream, false).await,
        false => load(name, keep, &context, false).await,
    }
}

async fn answer(
    ask: Ask,
    name: Option<String>,
    keep: Option<Duration>,
    context: Context,
    stream: bool,
    is_chat: bool,
) -> Result<Reply, ApiError> {
    let (silence, wants_logprobs, start) = (context.app.silence, ask.logprobs.is_some(), Instant::now());
    let output = context.output();
    let begin = async move {
        ask.check()?;
        let model = context.app.models.talking(name.as_deref(), context.client).await?;
        context.keep(&model, keep);
        ask.send(&model, &context).await
    };
    let lines = move |answers: &Answers| Lines { model: answers.model.name().to_owned(), is_chat, start };
    let likelihoods = move |answers: &Answers| wants_logprobs.then(|| Likelihoods::new(answers));
    if stream {
        let script = move |answers: &Answers| LineScript {
            likelihoods: likelihoods(answers),
            ..LineScript::new(lines(answers))
        };
        return answers::stream(StreamKind::Lines, silence, begin, script).await;
    }
    let answers = begin.await?;
    let (lines, likelihoods) = (lines(&answers), likelihoods(&answers));
    let whole = answers.whole().await?;
    let line = move |output: &Output| {
        let answer = whole.answer;
        let thinking = (!answer.reasoning.is_empty()).then_some(answer.reasoning);
        let mut line = lines.line(answer.text, thinking, answer.calls, Some(&whole.ended));
        line.logprobs = likelihoods.map(|all| all.of(&whole.likelihoods));
        output.json(&line)
    };
    output.reply(line).await
}

/// What Ollama says to a request without a prompt: the model is there, or will not be much longer.
async fn load(
    name: Option<String>,
    keep: Option<Duration>,
    context: &Context,
    is_chat: bool,
) -> Result<Reply, ApiError> {
    let model = context.app.models.talking(name.as_deref(), context.client).await?;
    let keep = context.keep(&model, keep);
    let lines = Lines { model: model.name().to_owned(), is_chat, start: Instant::now() };
    let mut line = lines.line(String::new(), None, Vec::new(), None);
    line.done = true;
    line.done_reason = Some(if keep == Some(Duration::ZERO) { "unload" } else { "load" });
    reply::json(&line)
}

/// A line of an answer.
#[derive(Serialize)]
struct Line {
    model: String,
    created_at: String,
    #[serde(flatten)]
    body: LineBody,
    done: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    done_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<TokenLogprob>>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    figures: Option<Figures>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum LineBody {
    Chat {
        message: MessageObject,
    },
    Generate {
        response: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        thinking: Option<String>,
    },
}

#[derive(Serialize)]
struct MessageObject {
    role: &'static str,
    content: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<CallObject>,
}

#[derive(Serialize)]
struct CallObject {
    id: String,
    function: FunctionObject,
}

#[derive(Serialize)]
struct FunctionObject {
    name: String,
    arguments: Value,
}

/// How an answer came about; times are nanoseconds.
#[derive(Serialize)]
struct Figures {
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
    prompt_eval_duration: u64,
    eval_count: usize,
    eval_duration: u64,
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Figures {
    fn new(report: &Report, total: Duration) -> Figures {
        Figures {
            total_duration: nanoseconds(total),
            load_duration: 0,
            prompt_eval_count: report.prompt_tokens,
            prompt_eval_duration: nanoseconds(report.prompt_time),
            eval_count: report.answer_tokens,
            eval_duration: nanoseconds(report.answer_time),
        }
    }
}

/// What lines of one answer have in common.
struct Lines {
    model: String,
    is_chat: bool,
    start: Instant,
}

impl Lines {
    fn line(
        &self,
        text: String,
        thinking: Option<String>,
        calls: Vec<ToolCall>,
        ended: Option<&Ended>,
    ) -> Line {
        let body = match self.is_chat {
            false => LineBody::Generate { response: text, thinking },
            true => {
                let tool_calls = calls.into_iter().map(|call| CallObject {
                    id: call.id.unwrap_or_else(|| ids::fresh("call_")),
                    function: FunctionObject {
                        name: call.name,
                        // A call that was cut off is no JSON yet.
                        arguments: serde_json::from_str(&call.arguments)
                            .unwrap_or_else(|_| Value::Object(serde_json::Map::new())),
                    },
                });
                let tool_calls = tool_calls.collect();
                LineBody::Chat {
                    message: MessageObject { role: "assistant", content: text, thinking, tool_calls },
                }
            }
        };
        Line {
            model: self.model.clone(),
            created_at: ids::rfc3339(SystemTime::now()),
            body,
            done: ended.is_some(),
            done_reason: ended.map(|ended| match ended.end {
                End::Length | End::Context | End::Deadline => "length",
                End::Model | End::Complete | End::Stop | End::Cancelled => "stop",
            }),
            logprobs: None,
            figures: ended.map(|ended| Figures::new(&ended.report, self.start.elapsed())),
        }
    }
}

/// An answer as lines. Calls are told whole.
struct LineScript {
    lines: Lines,
    /// Calls that have not ended.
    calls: Vec<(usize, ToolCall)>,
    /// None where they are not wanted.
    likelihoods: Option<Likelihoods>,
}

/// An answer of a model as lines.
pub(crate) fn script(model: &str) -> impl Script {
    LineScript::new(Lines { model: model.to_owned(), is_chat: true, start: Instant::now() })
}

impl LineScript {
    fn new(lines: Lines) -> LineScript {
        LineScript { lines, calls: Vec::new(), likelihoods: None }
    }

    /// Writes a line, with the likelihoods of the tokens that it is made of.
    fn write(&mut self, mut line: Line, out: &mut Vec<u8>) {
        line.logprobs = self.likelihoods.as_mut().map(|likelihoods| likelihoods.told(0));
        write_line(out, &line);
    }

    fn part(&mut self, part: AnswerEvent, out: &mut Vec<u8>) {
        match part {
            AnswerEvent::Text(text) => self.write(self.lines.line(text, None, Vec::new(), None), out),
            AnswerEvent::Reasoning(text) => {
                self.write(self.lines.line(String::new(), Some(text), Vec::new(), None), out);
            }
            AnswerEvent::ToolCallStart { index, id, name } => {
                self.calls.push((index, ToolCall { id, name, arguments: String::new() }));
            }
            AnswerEvent::ToolCallArguments { index, json } => {
                if let Some((_, call)) = self.calls.iter_mut().find(|(at, _)| *at == index) {
                    call.arguments.push_str(&json);
                }
            }
            AnswerEvent::ToolCallEnd { index } => {
                if let Some(at) = self.calls.iter().position(|(at, _)| *at == index) {
                    let (_, call) = self.calls.remove(at);
                    self.write(self.lines.line(String::new(), None, vec![call], None), out);
                }
            }
        }
    }
}

impl Script for LineScript {
    fn begin(&mut self, _: &mut Vec<u8>) {}

    fn tell(&mut self, _: usize, told: Told, out: &mut Vec<u8>) {
        let (parts, ended) = Likelihoods::parts(self.likelihoods.as_mut(), 0, told);
        parts.into_iter().for_each(|part| self.part(part, out));
        if let Some(ended) = ended {
            self.write(self.lines.line(String::new(), None, Vec::new(), Some(&ended)), out);
        }
    }

    fn end(&mut self, _: &mut Vec<u8>) {}

    fn fail(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        LineScript::refuse(error, out);
    }

    fn refuse(error: &ApiError, out: &mut Vec<u8>) {
        write_line(out, &error.to_value(Dialect::Ollama));
    }
}
