//! Chat templates: a conversation as the text that a model was trained on.
//!
//! A template is a program from a file that is not trusted. It is given the conversation and nothing else: no
//! files, no environment, no clock beyond `strftime_now`. Its steps, its depth, its output and the bytes that it looks at and
//! makes are bounded (`budget`), whichever filter, method or operator it uses (`bounded`, `rewrite`), and it runs on a thread
//! of its own whose stack is large enough for all that its steps can nest.
//!
//! Invariant: no template and no message can make rendering panic, overflow the stack or hang, and no message can put a control token into a
//! [`Prompt`].

mod answer;
mod bounded;
mod budget;
mod engine;
mod error;
mod format;
mod guard;
mod json;
mod python;
mod rewrite;
mod slice;
mod tools;

use std::time::SystemTime;

use oxcart_gguf::Metadata;
use serde_json::{Map, Value};

pub use answer::{Answer, AnswerEvent, AnswerParser};
pub use error::TemplateError;
pub use format::{CallSyntax, ChatFormat};
pub use tools::{Tool, ToolCall, ToolChoice, ToolError};

use super::limits::MAX_TEMPLATE_BYTES;
use super::vocab::{Vocab, VocabError};

/// One message of a conversation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`, `tool`.
    pub role: String,
    /// What is said.
    pub content: String,
    /// Whatever else a template may look for, such as `tool_calls`. A `content` here replaces the one above.
    pub more: Map<String, Value>,
}

impl Message {
    /// A message with nothing but a role and a content.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Message {
        Message { role: role.into(), content: content.into(), more: Map::new() }
    }

    fn to_value(&self) -> Value {
        let mut fields = Map::new();
        fields.insert("role".into(), self.role.as_str().into());
        fields.insert("content".into(), self.content.as_str().into());
        fields.extend(self.more.clone());
        Value::Object(fields)
    }
}

/// What a template is told besides the messages.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatOptions {
    /// Ends the text where the assistant is to go on.
    pub add_generation_prompt: bool,
    /// Text of the beginning-of-text token. [`ChatTemplate::prompt`] takes it from the vocabulary.
    pub bos_token: String,
    /// Text of the end-of-text token. [`ChatTemplate::prompt`] takes it from the vocabulary.
    pub eos_token: String,
    /// Descriptions of tools that the model may call.
    pub tools: Vec<Value>,
    /// Further variables, such as `enable_thinking`.
    pub variables: Map<String, Value>,
    /// The time that `strftime_now` shows; the time of rendering where it is not given.
    pub now: Option<SystemTime>,
}

impl Default for ChatOptions {
    fn default() -> ChatOptions {
        ChatOptions {
            add_generation_prompt: true,
            bos_token: String::new(),
            eos_token: String::new(),
            tools: Vec::new(),
            variables: Map::new(),
            now: None,
        }
    }
}

/// A rendered conversation that remembers where messages have spelled control tokens. [`Vocab::encode_prompt`] makes
/// tokens of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    text: String,
    /// Bytes that belong to no control token, ascending.
    guards: Vec<usize>,
}

impl Prompt {
    /// The text as the template has rendered it.
    pub fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn guards(&self) -> &[usize] {
        &self.guards
    }
}

/// The template of a model.
///
/// ```
/// use oxcart_llm::text::{ChatOptions, ChatTemplate, Message};
///
/// let template = ChatTemplate::new(
///     "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}\n{% endfor %}\
///      {% if add_generation_prompt %}<assistant>{% endif %}",
/// )?;
/// let text = template.render(&[Message::new("user", " Hi! ")], &ChatOptions::default())?;
/// assert_eq!(text, "<user>Hi!\n<assistant>");
/// # Ok::<(), oxcart_llm::text::TemplateError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    source: String,
}

/// What many models understand that have no template of their own.
const PLAIN: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                     {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

impl ChatTemplate {
    /// A template in the dialect of Jinja that Hugging Face uses.
    pub fn new(source: &str) -> Result<ChatTemplate, TemplateError> {
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(TemplateError::TooLong { bytes: source.len() });
        }
        let source = engine::without_generation_tags(source);
        engine::check(&source)?;
        Ok(ChatTemplate { source })
    }

    /// The template of a model: its own, or a plain one that many models understand.
    pub fn for_model(metadata: &Metadata<'_>) -> Result<ChatTemplate, TemplateError> {
        let source = ChatTemplate::source_in(metadata, None).map_err(|error| {
            let reason = error.to_string();
            TemplateError::Invalid { line: None, reason }
        })?;
        ChatTemplate::new(source.unwrap_or(PLAIN))
    }

    /// The source of a file's template, if it has one: the template of that name, or the one without a name.
    pub fn source_in<'a>(metadata: &Metadata<'a>, name: Option<&str>) -> Result<Option<&'a str>, VocabError> {
        let key = match name {
            Some(name) => format!("tokenizer.chat_template.{name}"),
            None => "tokenizer.chat_template".to_owned(),
        };
        Ok(metadata.get(&key).map(|entry| entry.str()).transpose()?)
    }

    /// The conversation as text. For a prompt use [`prompt`](ChatTemplate::prompt), which keeps messages from spelling
    /// control tokens.
    pub fn render(&self, messages: &[Message], options: &ChatOptions) -> Result<String, TemplateError> {
        engine::render(&self.source, variables(messages, options), options.now)
    }

    /// The conversation as a prompt for a model with this vocabulary.
    pub fn prompt(
        &self,
        messages: &[Message],
        options: &ChatOptions,
        vocab: &Vocab,
    ) -> Result<Prompt, TemplateError> {
        let text = |token: Option<u32>| {
            let text = token.and_then(|token| vocab.text(token)).unwrap_or_default();
            String::from_utf8_lossy(text).into_owned()
        };
        let special = vocab.special();
        let options =
            ChatOptions { bos_token: text(special.bos), eos_token: text(special.eos), ..options.clone() };
        let mut variables = variables(messages, &options);
        // What the file itself says, its own tokens, is not marked.
        let mut foreign: Vec<&mut Value> = variables
            .iter_mut()
            .filter(|(name, _)| !OWN.contains(&name.as_str()))
            .map(|(_, value)| value)
            .collect();
        let marker = guard::mark(&self.source, &mut foreign, vocab)?;
        let text = engine::render(&self.source, variables, options.now)?;
        Ok(guard::unmark(text, marker))
    }
}

/// Variables that come from the vocabulary.
const OWN: [&str; 2] = ["bos_token", "eos_token"];

/// What a template sees.
fn variables(messages: &[Message], options: &ChatOptions) -> Map<String, Value> {
    let mut variables = options.variables.clone();
    variables.insert("messages".into(), messages.iter().map(Message::to_value).collect());
    variables.insert("add_generation_prompt".into(), options.add_generation_prompt.into());
    variables.insert("bos_token".into(), options.bos_token.as_str().into());
    variables.insert("eos_token".into(), options.eos_token.as_str().into());
    if !options.tools.is_empty() {
        variables.insert("tools".into(), options.tools.clone().into());
    }
    variables
}

#[cfg(test)]
mod tests;
