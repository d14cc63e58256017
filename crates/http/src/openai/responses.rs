//! `/v1/responses`. Nothing is kept between requests: a conversation is sent whole each time.

use oxcart_llm::engine::End;
use oxcart_llm::text::{AnswerEvent, ToolCall};
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use super::chat::{Content, answered_call, arguments_text, chosen_tools, tools};
use super::fields::SamplingFields;
use super::shared::{Likelihoods, TokenLogprob};
use crate::answers::{self, Answers, Ended, Script, Told};
use crate::ask::{Ask, Conversation, Form, Prompt, Turn};
use crate::call::{Call, Context, Output};
use crate::error::{ApiError, Dialect, Kind};
use crate::ids;
use crate::json;
use crate::reply::{Reply, StreamKind, write_event};

#[derive(Debug, Deserialize)]
struct ResponsesRequest {
    model: Option<String>,
    input: Input,
    instructions: Option<String>,
    #[serde(default)]
    stream: Option<bool>,
    max_output_tokens: Option<usize>,
    previous_response_id: Option<String>,
    conversation: Option<Value>,
    prompt: Option<Value>,
    background: Option<bool>,
    text: Option<TextOptions>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    reasoning: Option<ReasoningOptions>,
    include: Option<Vec<String>>,
    top_logprobs: Option<usize>,
    #[serde(flatten)]
    sampling: SamplingFields,
}

/// What a request includes to be told how likely tokens were.
const LOGPROBS: &str = "message.output_text.logprobs";

/// What a response repeats of its request, and what stands there if the request does not say it.
fn settings() -> Map<String, Value> {
    let settings = json!({
        "instructions": null,
        "max_output_tokens": null,
        "metadata": {},
        "parallel_tool_calls": true,
        "reasoning": { "effort": null, "summary": null },
        "safety_identifier": null,
        "temperature": null,
        "text": { "format": { "type": "text" } },
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": null,
        "user": null,
    });
    match settings {
        Value::Object(settings) => settings,
        _ => Map::new(),
    }
}

/// A request, and what its response repeats of it.
#[derive(Debug)]
struct Asked {
    request: ResponsesRequest,
    settings: Map<String, Value>,
}

impl<'de> Deserialize<'de> for Asked {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Asked, D::Error> {
        let said = Map::<String, Value>::deserialize(deserializer)?;
        let mut settings = settings();
        for (name, setting) in &mut settings {
            if let Some(said) = said.get(name).filter(|said| !said.is_null()) {
                setting.clone_from(said);
            }
        }
        let request = ResponsesRequest::deserialize(Value::Object(said)).map_err(D::Error::custom)?;
        Ok(Asked { request, settings })
    }
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "input must be text or a list of items")]
enum Input {
    Text(String),
    Items(Vec<Item>),
}

/// An item of a conversation; a message need not say that it is one.
#[derive(Debug, Deserialize)]
struct Item {
    #[serde(rename = "type")]
    kind: Option<String>,
    role: Option<String>,
    content: Option<Content>,
    call_id: Option<String>,
    name: Option<String>,
    arguments: Option<Value>,
    output: Option<Content>,
}

#[derive(Debug, Deserialize)]
struct TextOptions {
    format: Option<TextFormat>,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum TextFormat {
    Text,
    JsonObject,
    JsonSchema { schema: Value },
}

#[derive(Debug, Deserialize)]
struct ReasoningOptions {
    effort: Option<String>,
}

fn text_of(content: Option<Content>) -> Result<String, ApiError> {
    Ok(content.map(Content::text).transpose()?.unwrap_or_default())
}

impl ResponsesRequest {
    fn turns(&mut self) -> Result<Vec<Turn>, ApiError> {
        let mut turns = Vec::new();
        if let Some(instructions) = self.instructions.take() {
            turns.push(Turn::Said { role: "system".into(), content: instructions });
        }
        let items = match std::mem::replace(&mut self.input, Input::Items(Vec::new())) {
            Input::Text(content) => {
                turns.push(Turn::Said { role: "user".into(), content });
                return Ok(turns);
            }
            Input::Items(items) => items,
        };
        for item in items {
            match (item.kind.as_deref(), item.role.as_deref()) {
                (None | Some("message"), Some("assistant")) => {
                    let content = text_of(item.content)?;
                    turns.push(Turn::Answered { content, reasoning: None, calls: Vec::new() });
                }
                (None | Some("message"), Some(role @ ("user" | "system" | "developer"))) => {
                    let role = if role == "developer" { "system" } else { role };
                    turns.push(Turn::Said { role: role.to_owned(), content: text_of(item.content)? });
                }
                (Some("function_call"), _) => {
                    let call = ToolCall {
                        id: item.call_id,
                        name: item.name.unwrap_or_default(),
                        arguments: arguments_text(item.arguments.unwrap_or_default()),
                    };
                    // Calls that were made together are one turn.
                    match turns.last_mut() {
                        Some(Turn::Answered { calls, .. }) => calls.push(call),
                        _ => turns.push(Turn::Answered {
                            content: String::new(),
                            reasoning: None,
                            calls: vec![call],
                        }),
                    }
                }
                (Some("function_call_output"), _) => {
                    let call = answered_call(&turns, item.call_id, None);
                    turns.push(Turn::Returned { call, content: text_of(item.output)? });
                }
                // What a model thought before is its own; templates leave it out.
                (Some("reasoning"), _) => {}
                _ => return Err(ApiError::field("input", "items of this type are not supported")),
            }
        }
        Ok(turns)
    }

    fn ask(mut self) -> Result<Ask, ApiError> {
        if self.previous_response_id.is_some() {
            let problem =
                "is not supported, because responses are not stored; send the conversation as input";
            return Err(ApiError::field("previous_response_id", problem));
        }
        for (field, given) in [("conversation", &self.conversation), ("prompt", &self.prompt)] {
            if given.as_ref().is_some_and(|given| !given.is_null()) {
                return Err(ApiError::field(
                    field,
                    "is not supported, because nothing is stored; send the conversation as input",
                ));
            }
        }
        if self.background == Some(true) {
            return Err(ApiError::field("background", "is not supported, because responses are not stored"));
        }
        let tools = tools(self.tools.take())?;
        let mut variables = Map::new();
        if let Some(effort) = self.reasoning.take().and_then(|reasoning| reasoning.effort) {
            if effort == "none" {
                variables.insert("enable_thinking".into(), false.into());
            }
            variables.insert("reasoning_effort".into(), effort.into());
        }
        let conversation = Conversation {
            turns: self.turns()?,
            choice: chosen_tools(self.tool_choice.take(), &tools)?,
            tools,
            parallel: self.parallel_tool_calls.unwrap_or(true),
            variables,
        };
        let wants_logprobs = self.include.take().is_some_and(|all| all.iter().any(|one| one == LOGPROBS));
        let form = match self.text.and_then(|text| text.format) {
            None | Some(TextFormat::Text) => Form::Any,
            Some(TextFormat::JsonObject) => Form::Json,
            Some(TextFormat::JsonSchema { schema }) => Form::Schema(schema),
        };
        Ok(Ask {
            sampling: self.sampling.sampling()?,
            limit: self.max_output_tokens,
            form,
            logprobs: wants_logprobs.then_some(self.top_logprobs.unwrap_or(0)),
            // Even a stream ends with all of them.
            is_whole: true,
            ..Ask::new(Prompt::Chat(conversation))
        })
    }
}

/// A response in the course of its life.
struct Response {
    id: String,
    created: u64,
    model: String,
    settings: Map<String, Value>,
    /// What is repeated of a body counts as much as the body.
    _context: Option<Context>,
}

impl Response {
    fn new(model: &str, settings: Map<String, Value>, context: Option<Context>) -> Response {
        Response {
            id: ids::fresh("resp_"),
            created: ids::now(),
            model: model.to_owned(),
            settings,
            _context: context,
        }
    }

    fn to_value(&self, output: &[Value], ended: Option<&Ended>) -> Value {
        let is_cut =
            ended.is_some_and(|ended| matches!(ended.end, End::Length | End::Context | End::Deadline));
        let status = match ended {
            None => "in_progress",
            Some(_) if is_cut => "incomplete",
            Some(_) => "completed",
        };
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": false,
            "error": null,
            "incomplete_details": is_cut.then(|| json!({ "reason": "max_output_tokens" })),
            "model": self.model,
            "output": output,
            "previous_response_id": null,
            "store": false,
            "truncation": "disabled",
            "usage": ended.map(usage),
        });
        if let Value::Object(response) = &mut response {
            response.extend(self.settings.clone());
        }
        response
    }
}

fn usage(ended: &Ended) -> Value {
    let report = &ended.report;
    json!({
        "input_tokens": report.prompt_tokens,
        "input_tokens_details": { "cached_tokens": report.reused_tokens },
        "output_tokens": report.answer_tokens,
        "output_tokens_details": { "reasoning_tokens": ended.reasoning_tokens },
        "total_tokens": report.prompt_tokens + report.answer_tokens,
    })
}

fn message_item(id: &str, part: Option<Value>) -> Value {
    let status = if part.is_some() { "completed" } else { "in_progress" };
    let content: Vec<Value> = part.into_iter().collect();
    json!({ "type": "message", "id": id, "status": status, "role": "assistant", "content": content })
}

fn text_part(text: &str, logprobs: &[TokenLogprob]) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": logprobs })
}

fn reasoning_item(id: &str, text: Option<&str>) -> Value {
    let content: Vec<Value> =
        text.map(|text| json!({ "type": "reasoning_text", "text": text })).into_iter().collect();
    json!({ "type": "reasoning", "id": id, "summary": [], "content": content })
}

fn call_item(id: &str, call_id: &str, name: &str, arguments: &str, is_done: bool) -> Value {
    json!({
        "type": "function_call",
        "id": id,
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        "status": if is_done { "completed" } else { "in_progress" },
    })
}

/// What a body asks for.
pub(crate) fn read(body: &[u8]) -> Result<Ask, ApiError> {
    json::parse::<Asked>(body)?.request.ask()
}

pub(crate) async fn create(call: Call) -> Result<Reply, ApiError> {
    let (Asked { mut request, settings }, context) = call.json::<Asked>().await?;
    let (name, stream) = (request.model.take(), request.stream == Some(true));
    let ask = request.ask()?;
    let wants_logprobs = ask.logprobs.is_some();
    let (silence, output) = (context.app.silence, context.output());
    let begin = ask.start(name, context.clone());
    let script = move |answers: &Answers| {
        let response = Response::new(answers.model.name(), settings, Some(context));
        let likelihoods = wants_logprobs.then(|| Likelihoods::new(answers));
        ResponseScript { likelihoods, ..ResponseScript::new(response) }
    };
    if stream {
        return answers::stream(StreamKind::Events, silence, begin, script).await;
    }
    let mut answers = begin.await?;
    let mut script = script(&answers);
    // Items are the same as in a stream, whose events are not wanted.
    let mut events = Vec::new();
    while let Some((choice, told)) = answers.next().await? {
        script.tell(choice, told, &mut events);
        events.clear();
    }
    let response = move |output: &Output| match &script.ended {
        Some(ended) => output.json(&script.response.to_value(&script.output, Some(ended))),
        None => Err(ApiError::new(Kind::Internal, "an answer ended unexpectedly")),
    };
    output.reply(response).await
}

/// An item that is open in a stream.
enum Open {
    Reasoning { id: String, text: String },
    Message { id: String, text: String, logprobs: Vec<TokenLogprob> },
    Call { id: String, call_id: String, name: String, arguments: String },
}

/// An answer as events.
struct ResponseScript {
    response: Response,
    /// Of the next event.
    number: usize,
    open: Option<Open>,
    output: Vec<Value>,
    ended: Option<Ended>,
    /// None where they are not wanted.
    likelihoods: Option<Likelihoods>,
}

/// The event of an error, which is the last one.
fn write_error(error: &ApiError, number: usize, out: &mut Vec<u8>) {
    let inner = error.to_value(Dialect::OpenAi)["error"].take();
    let event = json!({
        "type": "error",
        "sequence_number": number,
        "code": inner["code"],
        "message": inner["message"],
        "param": inner["param"],
    });
    write_event(out, Some("error"), &event);
}

/// An answer of a model as events.
pub(crate) fn script(model: &str) -> impl Script {
    ResponseScript::new(Response::new(model, settings(), None))
}

impl ResponseScript {
    fn new(response: Response) -> ResponseScript {
        ResponseScript { response, number: 0, open: None, output: Vec::new(), ended: None, likelihoods: None }
    }

    fn event(&mut self, kind: &str, fields: Value, out: &mut Vec<u8>) {
        let mut event = Map::new();
        event.insert("type".into(), kind.into());
        event.insert("sequence_number".into(), self.number.into());
        if let Value::Object(fields) = fields {
            event.extend(fields);
        }
        self.number += 1;
        write_event(out, Some(kind), &event);
    }

    /// Begins an item at the next index.
    fn begin_item(&mut self, open: Open, out: &mut Vec<u8>) {
        self.close(out);
        let item = match &open {
            Open::Reasoning { id, .. } => reasoning_item(id, None),
            Open::Message { id, .. } => message_item(id, None),
            Open::Call { id, call_id, name, .. } => call_item(id, call_id, name, "", false),
        };
        let index = self.output.len();
        self.event("response.output_item.added", json!({ "output_index": index, "item": item }), out);
        if let Open::Message { id, .. } = &open {
            let part = text_part("", &[]);
            let added = json!({ "item_id": id, "output_index": index, "content_index": 0, "part": part });
            self.event("response.content_part.added", added, out);
        }
        self.open = Some(open);
    }

    fn begin_message(&mut self, out: &mut Vec<u8>) {
        let open = Open::Message { id: ids::fresh("msg_"), text: String::new(), logprobs: Vec::new() };
        self.begin_item(open, out);
    }

    /// Ends the item that is open.
    fn close(&mut self, out: &mut Vec<u8>) {
        let index = self.output.len();
        let item = match self.open.take() {
            None => return,
            Some(Open::Reasoning { id, text }) => {
                let done = json!({ "item_id": id, "output_index": index, "content_index": 0, "text": text });
                self.event("response.reasoning_text.done", done, out);
                reasoning_item(&id, Some(&text))
            }
            Some(Open::Message { id, text, logprobs }) => {
                let part = text_part(&text, &logprobs);
                let place = |more: Value| {
                    let mut fields = json!({ "item_id": id, "output_index": index, "content_index": 0 });
                    if let (Value::Object(fields), Value::Object(more)) = (&mut fields, more) {
                        fields.extend(more);
                    }
                    fields
                };
                let done = place(json!({ "text": text, "logprobs": logprobs }));
                self.event("response.output_text.done", done, out);
                self.event("response.content_part.done", place(json!({ "part": part })), out);
                message_item(&id, Some(part))
            }
            Some(Open::Call { id, call_id, name, arguments }) => {
                let done =
                    json!({ "item_id": id, "output_index": index, "name": name, "arguments": arguments });
                self.event("response.function_call_arguments.done", done, out);
                call_item(&id, &call_id, &name, &arguments, true)
            }
        };
        self.event("response.output_item.done", json!({ "output_index": index, "item": item }), out);
        self.output.push(item);
    }

    fn delta(&mut self, kind: &str, id: &str, text: &str, logprobs: &[TokenLogprob], out: &mut Vec<u8>) {
        let index = self.output.len();
        let delta = match kind {
            "response.function_call_arguments.delta" => {
                json!({ "item_id": id, "output_index": index, "delta": text })
            }
            "response.output_text.delta" => json!({
                "item_id": id, "output_index": index, "content_index": 0, "delta": text, "logprobs": logprobs,
            }),
            _ => json!({ "item_id": id, "output_index": index, "content_index": 0, "delta": text }),
        };
        self.event(kind, delta, out);
    }

    fn part(&mut self, part: AnswerEvent, out: &mut Vec<u8>) {
        // Those of the tokens that the part is made of; only of texts are they told.
        let logprobs = self.likelihoods.as_mut().map(|likelihoods| likelihoods.told(0)).unwrap_or_default();
        match part {
            AnswerEvent::Reasoning(more) => {
                if !matches!(self.open, Some(Open::Reasoning { .. })) {
                    self.begin_item(Open::Reasoning { id: ids::fresh("rs_"), text: String::new() }, out);
                }
                if let Some(Open::Reasoning { id, text }) = &mut self.open {
                    text.push_str(&more);
                    let id = id.clone();
                    self.delta("response.reasoning_text.delta", &id, &more, &[], out);
                }
            }
            AnswerEvent::Text(more) => {
                if !matches!(self.open, Some(Open::Message { .. })) {
                    self.begin_message(out);
                }
                if let Some(Open::Message { id, text, logprobs: all }) = &mut self.open {
                    text.push_str(&more);
                    all.extend_from_slice(&logprobs);
                    let id = id.clone();
                    self.delta("response.output_text.delta", &id, &more, &logprobs, out);
                }
            }
            AnswerEvent::ToolCallStart { id, name, .. } => {
                let call_id = id.unwrap_or_else(|| ids::fresh("call_"));
                let open = Open::Call { id: ids::fresh("fc_"), call_id, name, arguments: String::new() };
                self.begin_item(open, out);
            }
            AnswerEvent::ToolCallArguments { json: more, .. } => {
                if let Some(Open::Call { id, arguments, .. }) = &mut self.open {
                    arguments.push_str(&more);
                    let id = id.clone();
                    self.delta("response.function_call_arguments.delta", &id, &more, &[], out);
                }
            }
            AnswerEvent::ToolCallEnd { .. } => self.close(out),
        }
    }
}

impl Script for ResponseScript {
    fn begin(&mut self, out: &mut Vec<u8>) {
        for kind in ["response.created", "response.in_progress"] {
            let response = self.response.to_value(&[], None);
            self.event(kind, json!({ "response": response }), out);
        }
    }

    fn tell(&mut self, _: usize, told: Told, out: &mut Vec<u8>) {
        let (parts, ended) = Likelihoods::parts(self.likelihoods.as_mut(), 0, told);
        parts.into_iter().for_each(|part| self.part(part, out));
        let Some(ended) = ended else { return };
        self.close(out);
        if self.output.is_empty() {
            // An answer without a word is still an answer.
            self.begin_message(out);
            self.close(out);
        }
        self.ended = Some(ended);
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        let response = self.response.to_value(&self.output, self.ended.as_ref());
        let kind = match response["status"].as_str() {
            Some("incomplete") => "response.incomplete",
            _ => "response.completed",
        };
        self.event(kind, json!({ "response": response }), out);
    }

    fn fail(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        write_error(error, self.number, out);
    }

    fn refuse(error: &ApiError, out: &mut Vec<u8>) {
        write_error(error, 0, out);
    }
}
