//! `/v1/messages`, and how many tokens one would have.

use oxcart_llm::engine::{End, Report};
use oxcart_llm::text::{AnswerEvent, ToolCall, ToolChoice};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::answers::{self, Answers, Ended, Script, Told};
use crate::ask::{Ask, Conversation, Form, Prompt, Sampling, Turn, render_chat};
use crate::call::{Call, Output};
use crate::error::{ApiError, Dialect, NO_IMAGES};
use crate::ids;
use crate::json;
use crate::openai::chat::{among, answered_call, tools};
use crate::reply::{self, Reply, StreamKind, write_event};

#[derive(Debug, Deserialize)]
struct MessagesRequest {
    model: Option<String>,
    max_tokens: Option<usize>,
    messages: Vec<Message>,
    system: Option<Text>,
    #[serde(default)]
    stream: Option<bool>,
    stop_sequences: Option<Vec<String>>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<usize>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Choice>,
    thinking: Option<Thinking>,
    output_config: Option<OutputConfig>,
    /// What came before `output_config`.
    output_format: Option<OutputFormat>,
}

#[derive(Debug, Deserialize)]
struct OutputConfig {
    format: Option<OutputFormat>,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum OutputFormat {
    JsonSchema { schema: Value },
}

#[derive(Debug, Deserialize)]
struct Message {
    role: Role,
    content: Text,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Role {
    User,
    Assistant,
    System,
}

/// A text, or blocks, which in some places can only be texts.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected text or a list of blocks")]
enum Text {
    Text(String),
    Blocks(Vec<Block>),
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block {
    Text {
        text: String,
    },
    Thinking {
        thinking: String,
    },
    /// What only the server that wrote it can read.
    RedactedThinking {},
    ToolUse {
        id: String,
        name: String,
        input: Value,
    },
    ToolResult {
        tool_use_id: String,
        content: Option<Text>,
    },
    Image {},
    Document {},
    #[serde(other)]
    Other,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Choice {
    Auto { disable_parallel_tool_use: Option<bool> },
    Any { disable_parallel_tool_use: Option<bool> },
    Tool { name: String, disable_parallel_tool_use: Option<bool> },
    None,
}

#[derive(Debug, Deserialize)]
struct Thinking {
    #[serde(rename = "type")]
    kind: String,
}

impl Text {
    fn into_string(self) -> Result<String, ApiError> {
        match self {
            Text::Text(text) => Ok(text),
            Text::Blocks(blocks) => {
                let mut all = String::new();
                for block in blocks {
                    match block {
                        Block::Text { text } => all.push_str(&text),
                        Block::Image {} => return Err(ApiError::bad(NO_IMAGES)),
                        _ => return Err(ApiError::bad("only text blocks are supported here")),
                    }
                }
                Ok(all)
            }
        }
    }
}

impl Message {
    /// Its turns: results of tools are turns of their own.
    fn into_turns(self, turns: &mut Vec<Turn>) -> Result<(), ApiError> {
        let blocks = match self.content {
            Text::Text(text) => vec![Block::Text { text }],
            Text::Blocks(blocks) => blocks,
        };
        let (mut content, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
        for block in blocks {
            match (block, self.role) {
                (Block::Text { text }, _) => content.push_str(&text),
                (Block::Thinking { thinking }, Role::Assistant) => reasoning.push_str(&thinking),
                (Block::RedactedThinking {}, Role::Assistant) => {}
                (Block::ToolUse { id, name, input }, Role::Assistant) => {
                    calls.push(ToolCall { id: Some(id), name, arguments: input.to_string() });
                }
                (Block::ToolResult { tool_use_id, content }, Role::User) => {
                    let call = answered_call(turns, Some(tool_use_id), None);
                    let content = content.map(Text::into_string).transpose()?.unwrap_or_default();
                    turns.push(Turn::Returned { call, content });
                }
                (Block::Image {}, _) => return Err(ApiError::field("messages", NO_IMAGES)),
                (Block::Document {}, _) => {
                    return Err(ApiError::field("messages", "documents are not supported; send their text"));
                }
                _ => return Err(ApiError::field("messages", "blocks of this type are not supported here")),
            }
        }
        match self.role {
            Role::Assistant => {
                let reasoning = (!reasoning.is_empty()).then_some(reasoning);
                turns.push(Turn::Answered { content, reasoning, calls });
            }
            // What is nothing but results of tools says nothing else.
            Role::User | Role::System if content.is_empty() && !turns.is_empty() => {}
            Role::User => turns.push(Turn::Said { role: "user".into(), content }),
            Role::System => turns.push(Turn::Said { role: "system".into(), content }),
        }
        Ok(())
    }
}

impl MessagesRequest {
    fn ask(mut self) -> Result<Ask, ApiError> {
        let Some(limit) = self.max_tokens else {
            return Err(ApiError::field("max_tokens", "is required"));
        };
        let format = self.output_config.take().and_then(|config| config.format).or(self.output_format.take());
        let conversation = self.conversation()?;
        if matches!(conversation.turns.last(), Some(Turn::Answered { .. })) {
            // To some of Anthropic's models, that is how the answer is to begin.
            let problem =
                "must not end with one of the assistant: the beginning of an answer cannot be given";
            return Err(ApiError::field("messages", problem));
        }
        Ok(Ask {
            sampling: Sampling {
                temperature: self.temperature,
                top_p: self.top_p,
                top_k: self.top_k,
                ..Sampling::default()
            },
            limit: Some(limit),
            stop: self.stop_sequences.take().unwrap_or_default(),
            form: format.map_or(Form::Any, |OutputFormat::JsonSchema { schema }| Form::Schema(schema)),
            ..Ask::new(Prompt::Chat(conversation))
        })
    }

    fn conversation(&mut self) -> Result<Conversation, ApiError> {
        let mut turns = Vec::new();
        let system = self.system.take().map(Text::into_string).transpose()?.unwrap_or_default();
        if !system.is_empty() {
            turns.push(Turn::Said { role: "system".into(), content: system });
        }
        for message in std::mem::take(&mut self.messages) {
            message.into_turns(&mut turns)?;
        }
        let tools = tools(self.tools.take())?;
        let (choice, disable_parallel) = match self.tool_choice.take() {
            None => (ToolChoice::Auto, None),
            Some(Choice::Auto { disable_parallel_tool_use }) => (ToolChoice::Auto, disable_parallel_tool_use),
            Some(Choice::Any { disable_parallel_tool_use }) => {
                (ToolChoice::Required, disable_parallel_tool_use)
            }
            Some(Choice::Tool { name, disable_parallel_tool_use }) => {
                (ToolChoice::Named(name), disable_parallel_tool_use)
            }
            Some(Choice::None) => (ToolChoice::None, None),
        };
        let mut variables = Map::new();
        if let Some(thinking) = &self.thinking {
            variables.insert("enable_thinking".into(), (thinking.kind != "disabled").into());
        }
        let choice = among(choice, &tools)?;
        Ok(Conversation { turns, tools, choice, parallel: disable_parallel != Some(true), variables })
    }
}

#[derive(Clone, Serialize)]
struct MessageObject {
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    role: &'static str,
    model: String,
    content: Vec<BlockObject>,
    stop_reason: Option<&'static str>,
    stop_sequence: Option<String>,
    usage: Usage,
}

#[derive(Clone, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum BlockObject {
    Thinking { thinking: String, signature: String },
    Text { text: String },
    ToolUse { id: String, name: String, input: Value },
}

#[derive(Clone, Copy, Serialize)]
struct Usage {
    input_tokens: usize,
    output_tokens: usize,
    cache_read_input_tokens: usize,
}

impl Usage {
    fn new((prompt, reused): (usize, usize), output_tokens: usize) -> Usage {
        Usage { input_tokens: prompt - reused, output_tokens, cache_read_input_tokens: reused }
    }

    fn of(report: &Report) -> Usage {
        Usage::new((report.prompt_tokens, report.reused_tokens), report.answer_tokens)
    }
}

impl MessageObject {
    /// A message that has nothing in it yet.
    fn new(model: &str, usage: Usage) -> MessageObject {
        MessageObject {
            id: ids::fresh("msg_"),
            kind: "message",
            role: "assistant",
            model: model.to_owned(),
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage,
        }
    }
}

fn stop_reason(ended: &Ended) -> &'static str {
    match ended.end {
        End::Length | End::Context | End::Deadline => "max_tokens",
        _ if ended.calls => "tool_use",
        End::Stop => "stop_sequence",
        End::Model | End::Complete | End::Cancelled => "end_turn",
    }
}

/// What a body asks for.
pub(crate) fn read(body: &[u8]) -> Result<Ask, ApiError> {
    json::parse::<MessagesRequest>(body)?.ask()
}

pub(crate) async fn create(call: Call) -> Result<Reply, ApiError> {
    let (mut request, context) = call.json::<MessagesRequest>().await?;
    let (name, stream) = (request.model.take(), request.stream == Some(true));
    let ask = request.ask()?;
    let stop = ask.stop.clone();
    let (silence, output) = (context.app.silence, context.output());
    let begin = ask.start(name, context);
    let message = |answers: &Answers| {
        let usage = Usage::new(answers.prompt(), 0);
        MessageObject::new(answers.model.name(), usage)
    };
    if stream {
        let script = move |answers: &Answers| MessageScript::new(message(answers), stop);
        return answers::stream(StreamKind::Events, silence, begin, script).await;
    }
    let answers = begin.await?;
    let message = message(&answers);
    let whole = answers.whole().await?;
    let message = move |output: &Output| {
        let mut content = Vec::new();
        if !whole.answer.reasoning.is_empty() {
            content
                .push(BlockObject::Thinking { thinking: whole.answer.reasoning, signature: String::new() });
        }
        if !whole.answer.text.is_empty() || whole.answer.calls.is_empty() {
            content.push(BlockObject::Text { text: whole.answer.text });
        }
        for call in whole.answer.calls {
            let id = call.id.unwrap_or_else(|| ids::fresh("toolu_"));
            // A call that was cut off is no JSON yet.
            let input = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
            content.push(BlockObject::ToolUse { id, name: call.name, input });
        }
        output.json(&MessageObject {
            content,
            stop_reason: Some(stop_reason(&whole.ended)),
            stop_sequence: stop_sequence(&whole.ended, &stop),
            usage: Usage::of(&whole.ended.report),
            ..message
        })
    };
    output.reply(message).await
}

fn stop_sequence(ended: &Ended, stop: &[String]) -> Option<String> {
    // Empty ones were left out before they were counted.
    stop.iter().filter(|stop| !stop.is_empty()).nth(ended.stopped_by?).cloned()
}

/// `/v1/messages/count_tokens`.
pub(crate) async fn count_tokens(call: Call) -> Result<Reply, ApiError> {
    let (mut request, context) = call.json::<MessagesRequest>().await?;
    let conversation = request.conversation()?;
    let model = context.app.models.talking(request.model.as_deref(), context.client).await?;
    let counting = context.work("tokens could not be counted", move || {
        let prompt = render_chat(&model, model.talker()?, &conversation)?;
        Ok::<_, ApiError>(model.vocab.encode_prompt(&prompt).len())
    });
    let count = counting.await??;
    reply::json(&json!({ "input_tokens": count }))
}

/// A block that is open in a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    Thinking,
    Text,
    Call(usize),
}

/// An answer as events.
struct MessageScript {
    message: MessageObject,
    stop: Vec<String>,
    open: Option<Open>,
    /// Blocks that were begun.
    blocks: usize,
}

/// An answer of a model as events.
pub(crate) fn script(model: &str) -> impl Script {
    MessageScript::new(MessageObject::new(model, Usage::new((0, 0), 0)), Vec::new())
}

impl MessageScript {
    fn new(message: MessageObject, stop: Vec<String>) -> MessageScript {
        MessageScript { message, stop, open: None, blocks: 0 }
    }

    /// Makes a block the open one, unless it is.
    fn open(&mut self, wanted: Open, block: impl FnOnce() -> Value, out: &mut Vec<u8>) {
        if self.open == Some(wanted) {
            return;
        }
        self.close(out);
        let event = json!({ "type": "content_block_start", "index": self.blocks, "content_block": block() });
        write_event(out, Some("content_block_start"), &event);
        self.open = Some(wanted);
        self.blocks += 1;
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        if self.open.take().is_some() {
            let event = json!({ "type": "content_block_stop", "index": self.blocks - 1 });
            write_event(out, Some("content_block_stop"), &event);
        }
    }

    fn delta(&self, delta: &Value, out: &mut Vec<u8>) {
        let index = self.blocks.saturating_sub(1);
        let event = json!({ "type": "content_block_delta", "index": index, "delta": delta });
        write_event(out, Some("content_block_delta"), &event);
    }

    fn part(&mut self, part: AnswerEvent, out: &mut Vec<u8>) {
        match part {
            AnswerEvent::Reasoning(text) => {
                self.open(
                    Open::Thinking,
                    || json!({"type": "thinking", "thinking": "", "signature": ""}),
                    out,
                );
                self.delta(&json!({ "type": "thinking_delta", "thinking": text }), out);
            }
            AnswerEvent::Text(text) => {
                self.open(Open::Text, || json!({ "type": "text", "text": "" }), out);
                self.delta(&json!({ "type": "text_delta", "text": text }), out);
            }
            AnswerEvent::ToolCallStart { index, id, name } => {
                let id = id.unwrap_or_else(|| ids::fresh("toolu_"));
                let block = || json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
                self.open(Open::Call(index), block, out);
            }
            AnswerEvent::ToolCallArguments { json: text, .. } => {
                self.delta(&json!({ "type": "input_json_delta", "partial_json": text }), out);
            }
            AnswerEvent::ToolCallEnd { .. } => self.close(out),
        }
    }
}

impl Script for MessageScript {
    fn begin(&mut self, out: &mut Vec<u8>) {
        let event = json!({ "type": "message_start", "message": self.message });
        write_event(out, Some("message_start"), &event);
    }

    fn tell(&mut self, _: usize, told: Told, out: &mut Vec<u8>) {
        match told {
            Told::Token { parts, .. } => parts.into_iter().for_each(|part| self.part(part, out)),
            Told::Ended { parts, ended } => {
                parts.into_iter().for_each(|part| self.part(part, out));
                self.close(out);
                let delta = json!({
                    "type": "message_delta",
                    "delta": {
                        "stop_reason": stop_reason(&ended),
                        "stop_sequence": stop_sequence(&ended, &self.stop),
                    },
                    "usage": Usage::of(&ended.report),
                });
                write_event(out, Some("message_delta"), &delta);
            }
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        write_event(out, Some("message_stop"), &json!({ "type": "message_stop" }));
    }

    fn fail(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        MessageScript::refuse(error, out);
    }

    fn refuse(error: &ApiError, out: &mut Vec<u8>) {
        write_event(out, Some("error"), &error.to_value(Dialect::Anthropic));
    }

    /// Anthropic has an event for it, which comes after `message_start`.
    fn ping(&self, out: &mut Vec<u8>) {
        write_event(out, Some("ping"), &json!({ "type": "ping" }));
    }
}
