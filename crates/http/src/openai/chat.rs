//! `/v1/chat/completions`.

use oxcart_llm::text::{AnswerEvent, Tool, ToolCall, ToolChoice};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::fields::{FormFields, OneOrMany, SamplingFields, TemplateFields, limit};
use super::shared::{ChoiceLogprobs, Likelihoods, Usage, finish_reason, write_done, write_failure};
use crate::answers::{self, Answers, Ended, Script, Told, Whole};
use crate::ask::{Ask, Conversation, Prompt, Turn};
use crate::call::{Call, Output};
use crate::error::{ApiError, NO_IMAGES};
use crate::ids;
use crate::json;
use crate::limits::MAX_CALLS_BACK;
use crate::reply::{Reply, StreamKind, write_event};

#[derive(Debug, Deserialize)]
pub(crate) struct ChatRequest {
    model: Option<String>,
    pub(crate) messages: Vec<ChatMessage>,
    #[serde(default)]
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    n: Option<usize>,
    stop: Option<OneOrMany>,
    logprobs: Option<bool>,
    top_logprobs: Option<usize>,
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    ignore_eos: Option<bool>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    /// What came before `tools`.
    functions: Option<Vec<Value>>,
    modalities: Option<Vec<String>>,
    audio: Option<Value>,
    web_search_options: Option<Value>,
    #[serde(flatten)]
    sampling: SamplingFields,
    #[serde(flatten)]
    form: FormFields,
    #[serde(flatten)]
    template: TemplateFields,
}

#[derive(Debug, Deserialize)]
pub(crate) struct StreamOptions {
    #[serde(default)]
    pub(crate) include_usage: Option<bool>,
}

/// A message of a conversation.
#[derive(Debug, Deserialize)]
pub(crate) struct ChatMessage {
    role: String,
    content: Option<Content>,
    reasoning_content: Option<String>,
    /// The same by the name that others give it; clients send back both.
    reasoning: Option<String>,
    tool_calls: Option<Vec<CallOfTool>>,
    tool_call_id: Option<String>,
    name: Option<String>,
}

/// A text, or parts of one.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected text or a list of parts")]
pub(crate) enum Content {
    Text(String),
    Parts(Vec<ContentPart>),
}

/// A part of a message.
#[derive(Debug, Deserialize)]
pub(crate) struct ContentPart {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    refusal: Option<String>,
}

impl Content {
    /// The text of all parts.
    pub(crate) fn text(self) -> Result<String, ApiError> {
        let parts = match self {
            Content::Text(text) => return Ok(text),
            Content::Parts(parts) => parts,
        };
        let mut all = String::new();
        for part in parts {
            match (part.kind.as_str(), part.text) {
                ("text" | "input_text" | "output_text", Some(text)) => all.push_str(&text),
                ("text" | "input_text" | "output_text", None) => {
                    return Err(ApiError::field("content", "a part of type text has no text"));
                }
                // Answers that were refused elsewhere are part of some conversations.
                ("refusal", _) => all.push_str(&part.refusal.unwrap_or_default()),
                ("image_url" | "input_image", _) => return Err(ApiError::field("content", NO_IMAGES)),
                (kind, _) => {
                    let shown: String = kind.chars().take(50).collect();
                    return Err(ApiError::field(
                        "content",
                        format!("parts of type {shown:?} are not supported"),
                    ));
                }
            }
        }
        Ok(all)
    }
}

/// A call that the assistant made.
#[derive(Debug, Deserialize)]
pub(crate) struct CallOfTool {
    id: Option<String>,
    function: Function,
}

#[derive(Debug, Deserialize)]
struct Function {
    name: String,
    #[serde(default)]
    arguments: Value,
}

impl From<CallOfTool> for ToolCall {
    fn from(call: CallOfTool) -> ToolCall {
        let Function { name, arguments } = call.function;
        ToolCall { id: call.id, name, arguments: arguments_text(arguments) }
    }
}

/// Arguments as JSON text: OpenAI sends them as such, others as a value.
pub(crate) fn arguments_text(arguments: Value) -> String {
    match arguments {
        Value::String(text) => text,
        Value::Null => "{}".to_owned(),
        value => value.to_string(),
    }
}

/// Turns of a conversation. Results of tools name the call that they belong to by its id, which may be found before them.
pub(crate) fn turns(messages: Vec<ChatMessage>) -> Result<Vec<Turn>, ApiError> {
    let mut turns: Vec<Turn> = Vec::with_capacity(messages.len());
    for message in messages {
        let content = message.content.map(Content::text).transpose()?.unwrap_or_default();
        let turn = match message.role.as_str() {
            "assistant" => {
                let calls = message.tool_calls.unwrap_or_default().into_iter().map(ToolCall::from);
                let reasoning = message.reasoning_content.or(message.reasoning);
                Turn::Answered { content, reasoning, calls: calls.collect() }
            }
            "tool" | "function" => {
                let call = answered_call(&turns, message.tool_call_id, message.name);
                Turn::Returned { call, content }
            }
            // Templates know the older name.
            "developer" => Turn::Said { role: "system".into(), content },
            "system" | "user" => Turn::Said { role: message.role, content },
            other => return Err(not_a_role(other)),
        };
        turns.push(turn);
    }
    Ok(turns)
}

pub(crate) fn not_a_role(role: &str) -> ApiError {
    let shown: String = role.chars().take(50).collect();
    ApiError::field("messages", format!("{shown:?} is not a role"))
}

/// The call that a result belongs to, as far as it is known.
pub(crate) fn answered_call(turns: &[Turn], id: Option<String>, name: Option<String>) -> ToolCall {
    let calls = turns.iter().rev().filter_map(|turn| match turn {
        Turn::Answered { calls, .. } => Some(calls),
        _ => None,
    });
    // Bounded, since there may be as many results as calls.
    let known = calls.flatten().take(MAX_CALLS_BACK).find(|call| id.is_some() && call.id == id);
    let name = name.or_else(|| known.map(|call| call.name.clone())).unwrap_or_default();
    ToolCall { id, name, arguments: String::new() }
}

/// Tools as they were described: functions of the client. What other servers do themselves, such as searches, is not done here.
pub(crate) fn tools(described: Option<Vec<Value>>) -> Result<Vec<Tool>, ApiError> {
    let one = |tool: &Value| {
        let kind = tool.get("type").and_then(Value::as_str).unwrap_or("function");
        // Anthropic's name for those of the client; to OpenAI, a custom tool is one that takes plain text.
        let is_function = kind == "function" || (kind == "custom" && tool.get("input_schema").is_some());
        if !is_function {
            let shown: String = kind.chars().take(50).collect();
            return Err(ApiError::field("tools", format!("tools of type {shown:?} are not supported")));
        }
        Tool::from_json(tool).map_err(|error| ApiError::field("tools", error))
    };
    described.unwrap_or_default().iter().map(one).collect()
}

/// `"auto"`, `"none"`, `"required"`, `{"type": "function", "function": {"name": …}}`, or with the name beside the type.
fn tool_choice(choice: Option<Value>) -> Result<ToolChoice, ApiError> {
    let wrong = || ApiError::field("tool_choice", "must be auto, none, required or a function");
    match choice {
        None | Some(Value::Null) => Ok(ToolChoice::Auto),
        Some(Value::String(word)) => match word.as_str() {
            "auto" => Ok(ToolChoice::Auto),
            "none" => Ok(ToolChoice::None),
            "required" | "any" => Ok(ToolChoice::Required),
            _ => Err(wrong()),
        },
        Some(value) => {
            let name = value.pointer("/function/name").or(value.get("name")).and_then(Value::as_str);
            name.map(|name| ToolChoice::Named(name.to_owned())).ok_or_else(wrong)
        }
    }
}

/// What a choice of tools means for a conversation with these tools.
pub(crate) fn chosen_tools(choice: Option<Value>, tools: &[Tool]) -> Result<ToolChoice, ApiError> {
    among(tool_choice(choice)?, tools)
}

/// A choice, if there is something to choose from.
pub(crate) fn among(choice: ToolChoice, tools: &[Tool]) -> Result<ToolChoice, ApiError> {
    match choice {
        ToolChoice::Required | ToolChoice::Named(_) if tools.is_empty() => {
            Err(ApiError::field("tool_choice", "requires tools, and none are given"))
        }
        choice => Ok(choice),
    }
}

impl ChatRequest {
    pub(crate) fn conversation(
        messages: Vec<ChatMessage>,
        described: Option<Vec<Value>>,
        choice: Option<Value>,
        parallel: Option<bool>,
        template: TemplateFields,
    ) -> Result<Conversation, ApiError> {
        let tools = tools(described)?;
        Ok(Conversation {
            turns: turns(messages)?,
            choice: chosen_tools(choice, &tools)?,
            tools,
            parallel: parallel.unwrap_or(true),
            variables: template.variables(),
        })
    }

    fn ask(self) -> Result<Ask, ApiError> {
        if self.top_logprobs.is_some() && self.logprobs != Some(true) {
            return Err(ApiError::field("top_logprobs", "requires logprobs to be true"));
        }
        if self.functions.is_some_and(|functions| !functions.is_empty()) {
            return Err(ApiError::field("functions", "is not supported; use tools"));
        }
        if self.modalities.is_some_and(|kinds| kinds.iter().any(|kind| kind != "text")) {
            return Err(ApiError::field("modalities", "can only be text"));
        }
        for (field, given) in [("audio", &self.audio), ("web_search_options", &self.web_search_options)] {
            if given.as_ref().is_some_and(|given| !given.is_null()) {
                return Err(ApiError::field(field, "is not supported"));
            }
        }
        let conversation = ChatRequest::conversation(
            self.messages,
            self.tools,
            self.tool_choice,
            self.parallel_tool_calls,
            self.template,
        )?;
        Ok(Ask {
            sampling: self.sampling.sampling()?,
            limit: limit(self.max_completion_tokens.or(self.max_tokens)),
            stop: self.stop.map(OneOrMany::into_vec).unwrap_or_default(),
            form: self.form.form()?,
            choices: self.n.unwrap_or(1),
            logprobs: (self.logprobs == Some(true)).then(|| self.top_logprobs.unwrap_or(0)),
            ignore_end: self.ignore_eos.unwrap_or(false),
            is_whole: self.stream != Some(true),
            ..Ask::new(Prompt::Chat(conversation))
        })
    }
}

/// What a body asks for.
pub(crate) fn read(body: &[u8]) -> Result<Ask, ApiError> {
    json::parse::<ChatRequest>(body)?.ask()
}

#[derive(Serialize)]
struct ChatCompletion {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    choices: Vec<ChatChoice>,
    usage: Usage,
}

#[derive(Serialize)]
struct ChatChoice {
    index: usize,
    message: AssistantMessage,
    logprobs: Option<ChoiceLogprobs>,
    finish_reason: &'static str,
}

#[derive(Serialize)]
struct AssistantMessage {
    role: &'static str,
    content: Option<String>,
    refusal: Option<()>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<CallObject>,
}

#[derive(Serialize)]
struct CallObject {
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    function: FunctionObject,
}

#[derive(Serialize)]
struct FunctionObject {
    name: String,
    arguments: String,
}

impl AssistantMessage {
    fn new(whole: &Whole) -> AssistantMessage {
        let answer = &whole.answer;
        let tool_calls: Vec<CallObject> = answer
            .calls
            .iter()
            .map(|call| CallObject {
                id: call.id.clone().unwrap_or_else(|| ids::fresh("call_")),
                kind: "function",
                function: FunctionObject { name: call.name.clone(), arguments: call.arguments.clone() },
            })
            .collect();
        let has_text = !answer.text.is_empty() || tool_calls.is_empty();
        AssistantMessage {
            role: "assistant",
            content: has_text.then(|| answer.text.clone()),
            refusal: None,
            reasoning_content: (!answer.reasoning.is_empty()).then(|| answer.reasoning.clone()),
            tool_calls,
        }
    }
}

pub(crate) async fn create(call: Call) -> Result<Reply, ApiError> {
    let (mut request, context) = call.json::<ChatRequest>().await?;
    let name = request.model.take();
    let stream = request.stream == Some(true);
    let usage = request.stream_options.take().and_then(|options| options.include_usage);
    let wants_logprobs = request.logprobs == Some(true);
    let (silence, output) = (context.app.silence, context.output());
    let begin = request.ask()?.start(name, context);
    if stream {
        let script = move |answers: &Answers| ChatScript {
            usage: (usage == Some(true)).then(Usage::default),
            likelihoods: wants_logprobs.then(|| Likelihoods::new(answers)),
            ..ChatScript::new(answers.model.name(), answers.len())
        };
        return answers::stream(StreamKind::Events, silence, begin, script).await;
    }
    let answers = begin.await?;
    let model = answers.model.clone();
    let all = answers.collect().await?;
    let completion = move |output: &Output| {
        let mut usage = Usage::default();
        let mut choices = Vec::new();
        for (index, whole) in all.iter().enumerate() {
            usage.add(&whole.ended, index == 0);
            let logprobs = wants_logprobs.then(|| ChoiceLogprobs::new(&model.vocab, &whole.likelihoods));
            choices.push(ChatChoice {
                index,
                message: AssistantMessage::new(whole),
                logprobs,
                finish_reason: finish_reason(&whole.ended),
            });
        }
        output.json(&ChatCompletion {
            id: ids::fresh("chatcmpl-"),
            object: "chat.completion",
            created: ids::now(),
            model: model.name().to_owned(),
            choices,
            usage,
        })
    };
    output.reply(completion).await
}

#[derive(Serialize)]
struct Chunk<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<ChunkChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
}

#[derive(Serialize)]
struct ChunkChoice {
    index: usize,
    delta: Delta,
    logprobs: Option<ChoiceLogprobs>,
    finish_reason: Option<&'static str>,
}

#[derive(Default, Serialize)]
struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[CallDelta; 1]>,
}

#[derive(Serialize)]
struct CallDelta {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    function: FunctionDelta,
}

#[derive(Serialize)]
struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    arguments: String,
}

impl Delta {
    fn of(part: AnswerEvent) -> Option<Delta> {
        match part {
            AnswerEvent::Text(text) => Some(Delta { content: Some(text), ..Delta::default() }),
            AnswerEvent::Reasoning(text) => Some(Delta { reasoning_content: Some(text), ..Delta::default() }),
            AnswerEvent::ToolCallStart { index, id, name } => Some(Delta::call(CallDelta {
                index,
                id: Some(id.unwrap_or_else(|| ids::fresh("call_"))),
                kind: Some("function"),
                function: FunctionDelta { name: Some(name), arguments: String::new() },
            })),
            AnswerEvent::ToolCallArguments { index, json } => Some(Delta::call(CallDelta {
                index,
                id: None,
                kind: None,
                function: FunctionDelta { name: None, arguments: json },
            })),
            AnswerEvent::ToolCallEnd { .. } => None,
        }
    }

    fn call(call: CallDelta) -> Delta {
        Delta { tool_calls: Some([call]), ..Delta::default() }
    }
}

/// Answers as chunks.
struct ChatScript {
    id: String,
    created: u64,
    model: String,
    /// None where they are not wanted.
    likelihoods: Option<Likelihoods>,
    usage: Option<Usage>,
    choices: usize,
}

/// An answer of a model as chunks.
pub(crate) fn script(model: &str) -> impl Script {
    ChatScript::new(model, 1)
}

impl ChatScript {
    fn new(model: &str, choices: usize) -> ChatScript {
        ChatScript {
            id: ids::fresh("chatcmpl-"),
            created: ids::now(),
            model: model.to_owned(),
            likelihoods: None,
            usage: None,
            choices,
        }
    }

    fn write(&self, choices: Vec<ChunkChoice>, usage: Option<Usage>, out: &mut Vec<u8>) {
        let chunk = Chunk {
            id: &self.id,
            object: "chat.completion.chunk",
            created: self.created,
            model: &self.model,
            choices,
            usage,
        };
        write_event(out, None, &chunk);
    }

    fn chunk(&mut self, index: usize, delta: Delta, end: Option<&'static str>, out: &mut Vec<u8>) {
        let logprobs = self.likelihoods.as_mut().and_then(|likelihoods| {
            let waiting = likelihoods.take(index);
            (!waiting.is_empty()).then(|| ChoiceLogprobs::new(&likelihoods.vocab, &waiting))
        });
        self.write(vec![ChunkChoice { index, delta, logprobs, finish_reason: end }], None, out);
    }

    fn parts(&mut self, index: usize, parts: Vec<AnswerEvent>, out: &mut Vec<u8>) {
        for delta in parts.into_iter().filter_map(Delta::of) {
            self.chunk(index, delta, None, out);
        }
    }

    fn ended(&mut self, index: usize, ended: &Ended, out: &mut Vec<u8>) {
        if let Some(usage) = &mut self.usage {
            usage.add(ended, index == 0);
        }
        self.chunk(index, Delta::default(), Some(finish_reason(ended)), out);
    }
}

impl Script for ChatScript {
    fn begin(&mut self, out: &mut Vec<u8>) {
        for index in 0..self.choices {
            let delta = Delta { role: Some("assistant"), content: Some(String::new()), ..Delta::default() };
            self.chunk(index, delta, None, out);
        }
    }

    fn tell(&mut self, choice: usize, told: Told, out: &mut Vec<u8>) {
        let (parts, ended) = Likelihoods::parts(self.likelihoods.as_mut(), choice, told);
        self.parts(choice, parts, out);
        if let Some(ended) = ended {
            self.ended(choice, &ended, out);
        }
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
