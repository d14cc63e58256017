//! What a model's answers look like: how it marks reasoning and calls of tools.
//!
//! It is read off the template, which spells the markers that it puts around what an assistant has said, and off the vocabulary,
//! which has tokens for some of them; never off the name of a model.

mod grammar;
mod messages;
mod syntax;

use std::sync::Arc;

pub use syntax::CallSyntax;
use syntax::{ALL, REASONING};
pub(super) use syntax::{Header, Literals, Objects, Parameters, Syntax, Tags};

use super::answer::{AnswerParser, Grounds};
use super::tools::Tool;
use super::{ChatTemplate, Message};
use crate::text::vocab::{Token, Vocab};

/// Messages that say in a header what they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Channels {
    /// Ends a header.
    pub(super) message: &'static str,
    /// Stands before the name of a channel.
    pub(super) channel: &'static str,
    /// Behind a message.
    pub(super) ends: &'static [&'static str],
    /// Stands before reasoning.
    reasoning: &'static str,
    /// Stands before text that comes before a call.
    aside: &'static str,
    /// Stands before the answer.
    answer: &'static str,
    /// Stands between two messages of one answer.
    again: &'static str,
}

const HARMONY: Channels = Channels {
    message: "<|message|>",
    channel: "<|channel|>",
    ends: &["<|end|>", "<|return|>", "<|call|>", "<|start|>"],
    reasoning: "<|channel|>analysis<|message|>",
    aside: "<|channel|>commentary<|message|>",
    answer: "<|channel|>final<|message|>",
    again: "<|end|><|start|>assistant",
};
const ATEM: Channels = Channels {
    message: "<|message|>",
    channel: "<|channel|>",
    ends: &["<|eom|>", "<|eot|>", "<|start|>"],
    reasoning: " to=self<|message|>",
    aside: " to=user<|message|>",
    answer: " to=user<|message|>",
    again: "<|eom|><|start|>assistant",
};

/// How a model marks reasoning and calls of tools in its answers.
///
/// ```
/// use oxcart_llm::text::{Answer, CallSyntax, ChatFormat, ChatTemplate, Tool};
/// # use oxcart_gguf::{Builder, Header};
/// # let mut file = Vec::new();
/// # let mut builder = Builder::new();
/// # builder
/// #     .set("tokenizer.ggml.model", "gpt2")
/// #     .set("tokenizer.ggml.tokens", ["a", "</s>"])
/// #     .set("tokenizer.ggml.merges", ["a a"]);
/// # builder.write(&mut file)?;
/// # let vocab = oxcart_llm::text::Vocab::from_gguf(&Header::parse(&file)?.metadata())?;
/// let template = ChatTemplate::new("… <think></think> <tool_call>{{ call | tojson }}</tool_call> …")?;
/// let format = ChatFormat::detect(&template, &vocab);
/// assert_eq!(format.call_syntax(), CallSyntax::Hermes);
///
/// let tools = [Tool::from_json(&serde_json::json!({ "name": "weather" }))?];
/// let mut parser = format.parser("<|im_start|>assistant\n", &tools);
/// let mut answer = Answer::default();
/// for piece in ["<think>Ask.</think><tool", "_call>{\"name\": \"weather\", \"argum", "ents\": {}}</tool_call>"] {
///     parser.push(piece).iter().for_each(|event| answer.add(event));
/// }
/// parser.finish().iter().for_each(|event| answer.add(event));
/// assert_eq!((answer.reasoning.as_str(), answer.text.as_str()), ("Ask.", ""));
/// assert_eq!((answer.calls[0].name.as_str(), answer.calls[0].arguments.as_str()), ("weather", "{}"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ChatFormat {
    syntax: &'static Syntax,
    reasoning: Vec<(&'static str, &'static str)>,
    channels: Option<Channels>,
    /// The template wants arguments of calls as text.
    arguments_as_text: bool,
}

impl ChatFormat {
    /// What a template and a vocabulary tell.
    pub fn detect(template: &ChatTemplate, vocab: &Vocab) -> ChatFormat {
        let source = template.source.as_str();
        let has = |text: &str| source.contains(text) || source.contains(&text.replace('\n', "\\n"));
        let proves = |syntax: &&Syntax| {
            let by_template = syntax.evidence.iter().any(|texts| texts.iter().all(|text| has(text)));
            by_template || syntax.tokens.iter().any(|token| vocab.find(token).is_some())
        };
        // What the template says counts for more than tokens that a family of models shares.
        let by_template =
            |syntax: &&Syntax| syntax.evidence.iter().any(|texts| texts.iter().all(|text| has(text)));
        let found = ALL.iter().find(by_template).or_else(|| ALL.iter().find(proves));
        let syntax = found.unwrap_or_else(|| syntax::syntax(CallSyntax::Json));
        let channels = channels(syntax.kind);
        let marked = |(open, close): &&(&str, &str)| {
            let tokens = [open, close].iter().all(|marker| vocab.find(marker.trim_end()).is_some());
            let spelled = has(close) && (has(open) || vocab.find(close).is_some());
            // This one ends with what ends a message elsewhere.
            let own = *close != "<|end|>" || syntax.kind == CallSyntax::Solar;
            own && channels.is_none() && (tokens || spelled)
        };
        let reasoning = REASONING.iter().filter(marked).copied().collect();
        let arguments_as_text = messages::arguments_as_text(template);
        ChatFormat { syntax, reasoning, channels, arguments_as_text }
    }

    /// How calls of tools are written.
    pub fn call_syntax(&self) -> CallSyntax {
        self.syntax.kind
    }

    /// Whether there are markers for reasoning.
    pub fn has_reasoning(&self) -> bool {
        !self.reasoning.is_empty() || self.channels.is_some()
    }

    /// Control tokens that must be handed out as text, so that a parser sees them: for
    /// [`Request::shown`](crate::engine::Request::shown).
    pub fn shown_tokens(&self, vocab: &Vocab) -> Vec<Token> {
        let markers = self.markers();
        let shown = |token: &Token| {
            let text = vocab.text(*token).unwrap_or_default();
            vocab.is_control(*token)
                && !vocab.is_end_of_generation(*token)
                && !text.is_empty()
                && markers.iter().any(|marker| memchr::memmem::find(marker.as_bytes(), text).is_some())
        };
        (0..vocab.len() as Token).filter(shown).collect()
    }

    /// The parser of an answer to a prompt ([`Prompt::text`](super::Prompt::text)), whose end tells whether the template has begun
    /// reasoning, with the tools of the request. Without tools nothing is taken for a call.
    pub fn parser(&self, prompt: &str, tools: &[Tool]) -> AnswerParser {
        AnswerParser::new(self.grounds(tools), prompt)
    }

    fn grounds(&self, tools: &[Tool]) -> Grounds {
        Grounds {
            syntax: self.syntax,
            reasoning: self.reasoning.clone(),
            channels: self.channels,
            tools: Arc::from(tools),
        }
    }

    /// A format by its syntax, with all markers for reasoning that go with it.
    #[cfg(test)]
    pub(super) fn of(kind: CallSyntax) -> ChatFormat {
        let channels = channels(kind);
        let own = |(_, close): &&(&str, &str)| *close != "<|end|>" || kind == CallSyntax::Solar;
        let reasoning = REASONING.iter().filter(own).filter(|_| channels.is_none()).copied().collect();
        ChatFormat { syntax: syntax::syntax(kind), reasoning, channels, arguments_as_text: false }
    }

    #[cfg(test)]
    pub(super) fn all_markers(&self) -> Vec<&'static str> {
        self.markers()
    }

    /// Everything that is no text.
    fn markers(&self) -> Vec<&'static str> {
        let syntax = self.syntax;
        let mut markers: Vec<&'static str> = [syntax.opens, syntax.closes, syntax.ignored].concat();
        for tags in syntax.tags {
            markers.extend([tags.open, tags.close]);
            markers.extend(tags.header_end);
            if let Header::NameId(between) | Header::IdName(between) = tags.header {
                markers.push(between);
            }
            if let Some(Parameters { open, key_end, value_open, value_end, tail, .. }) = tags.parameters {
                markers.extend([open, key_end, value_open, value_end, tail]);
            }
        }
        markers.extend(syntax.literals.map(|literals| literals.quote));
        markers.extend(self.reasoning.iter().flat_map(|(open, close)| [*open, *close]));
        if let Some(Channels { message, channel, ends, .. }) = self.channels {
            markers.extend([message, channel, "<|constrain|>"]);
            markers.extend(ends);
        }
        markers.retain(|marker| !marker.is_empty());
        markers
    }
}

fn channels(kind: CallSyntax) -> Option<Channels> {
    match kind {
        CallSyntax::Harmony => Some(HARMONY),
        CallSyntax::Atem => Some(ATEM),
        _ => None,
    }
}

/// One format for each syntax.
#[cfg(test)]
pub(super) fn all_formats() -> Vec<ChatFormat> {
    ALL.iter().map(|syntax| ChatFormat::of(syntax.kind)).collect()
}

#[cfg(test)]
mod tests;
