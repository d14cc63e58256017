//! How an answer has to look so that its calls are sound: a grammar for each format.
//!
//! Where the model may also answer with text, the grammar lets everything pass until the marker of a call has come. Markers that
//! are control tokens are named by their numbers, since no text spells them.
//!
//! Invariant: what the grammar makes a model write, the parser reads as calls of tools that were given.

use std::fmt::Write;

use serde_json::{Value, json};

use super::{Channels, ChatFormat, Header, Objects, Parameters, Tags};
use crate::text::chat::answer::ITEM;
use crate::text::chat::tools::{Tool, ToolChoice, ToolError, is_text};
use crate::text::constrain::schema;
use crate::text::limits::MAX_GRAMMAR_BYTES;
use crate::text::vocab::{Token, Vocab};
use crate::text::{CallSyntax, ConstrainError, Grammar, JsonOptions};

/// What may stand before a marker. Bounded, or a model that has nothing to say would say it until its answer is cut off.
const SPACE: &str = r"/[ \t\r\n]{0,16}/";

/// How deep tags within tags go in a grammar; what is deeper is JSON.
const MAX_NESTED: usize = 8;

impl ChatFormat {
    /// How an answer has to look; nothing where anything goes: without tools, or if none is to be called.
    ///
    /// If the model decides, it may answer with text, and what follows the marker of a call is a call of one of the tools. If a call
    /// is required, there is one, behind reasoning if the model reasons. `parallel` allows for several, where the format does.
    /// Schemas that are too long for a grammar are left out: then arguments are objects.
    pub fn grammar(
        &self,
        vocab: &Vocab,
        prompt: &str,
        tools: &[Tool],
        choice: &ToolChoice,
        parallel: bool,
    ) -> Result<Option<Grammar>, ToolError> {
        let named: Vec<&Tool> = match choice {
            ToolChoice::None => return Ok(None),
            ToolChoice::Auto if tools.is_empty() => return Ok(None),
            ToolChoice::Required if tools.is_empty() => return Err(ToolError::NoTools),
            ToolChoice::Auto | ToolChoice::Required => tools.iter().collect(),
            ToolChoice::Named(name) => {
                let tool = tools.iter().find(|tool| tool.name == *name);
                vec![tool.ok_or_else(|| ToolError::UnknownTool { name: name.clone() })?]
            }
        };
        let text = |schemas: bool| -> Result<String, ToolError> {
            let mut writer = Writer::new(self, vocab, schemas);
            let calls = writer.calls(&named, parallel)?;
            writer.start(prompt, calls, *choice == ToolChoice::Auto);
            Ok(writer.text)
        };
        let mut lark = text(true)?;
        if lark.len() > MAX_GRAMMAR_BYTES {
            lark = text(false)?;
        }
        Ok(Some(Grammar::Lark(lark)))
    }

    /// An answer that is JSON, behind reasoning if the model reasons: any object, or what a schema describes.
    pub fn answer_grammar(
        &self,
        vocab: &Vocab,
        prompt: &str,
        schema: Option<&Value>,
    ) -> Result<Grammar, ConstrainError> {
        let object = json!({ "type": "object" });
        if !self.has_reasoning() {
            return Ok(match schema {
                Some(schema) => Grammar::json_schema(schema.clone()),
                None => Grammar::JsonObject,
            });
        }
        let json = schema::prepare(schema.unwrap_or(&object), JsonOptions::default())?;
        let mut writer = Writer::new(self, vocab, true);
        writer.line(&format!("answer: %json {json}"));
        let body = match self.channels {
            Some(channels) => format!("{} answer", writer.literal(channels.answer)),
            None => "answer".to_owned(),
        };
        writer.start(prompt, Calls { lead: String::new(), body }, false);
        Ok(Grammar::Lark(writer.text))
    }
}

/// A grammar in the making.
struct Writer<'a> {
    format: &'a ChatFormat,
    /// Control tokens that are part of a marker, longest first.
    control: Vec<(String, Token)>,
    schemas: bool,
    text: String,
    rules: usize,
}

/// What calls look like: the marker that they begin with, which may be empty, and what follows.
struct Calls {
    lead: String,
    body: String,
}

impl<'a> Writer<'a> {
    fn new(format: &'a ChatFormat, vocab: &Vocab, schemas: bool) -> Writer<'a> {
        let mut control: Vec<(String, Token)> = (format.shown_tokens(vocab).into_iter())
            .filter_map(|token| Some((String::from_utf8(vocab.text(token)?.to_vec()).ok()?, token)))
            .collect();
        control.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        Writer { format, control, schemas, text: String::new(), rules: 0 }
    }

    fn line(&mut self, line: &str) {
        // Writing into a text does not fail.
        let _ = writeln!(self.text, "{line}");
    }

    /// The name of a new rule, or of a new terminal.
    fn name(&mut self, stem: &str) -> String {
        self.rules += 1;
        format!("{stem}{}", self.rules)
    }

    /// Text as a sequence of strings and control tokens.
    fn literal(&self, text: &str) -> String {
        let parts = self.parts(text);
        if parts.is_empty() { "\"\"".to_owned() } else { parts.join(" ") }
    }

    fn parts(&self, text: &str) -> Vec<String> {
        let first = |text: &str| {
            let places =
                self.control.iter().filter_map(|(own, token)| Some((text.find(own.as_str())?, own, *token)));
            places
                .min_by_key(|(at, own, _)| (*at, std::cmp::Reverse(own.len())))
                .map(|(at, own, token)| (at, own.len(), token))
        };
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((at, len, token)) = first(rest) {
            parts.extend(quoted(rest.get(..at).unwrap_or_default()));
            parts.push(format!("<[{token}]>"));
            rest = rest.get(at + len..).unwrap_or_default();
        }
        parts.extend(quoted(rest));
        parts
    }

    /// Any text up to a marker, and the marker. `not` is what the text does not begin with.
    fn until(&mut self, marker: &str, not: &[&str]) -> String {
        let not: String = not.iter().map(|text| format!(" & ~/(?s:\\s*{}.*)/", pattern(text))).collect();
        let free = self.name("FREE");
        let parts = self.parts(marker);
        self.line(&format!("{free}: /(?s:.*)/{not}"));
        // Only the text before the first control token can end the text.
        match parts.split_first() {
            Some((text, others)) if quoted_alone(text) => {
                let rule = self.name("until_");
                self.line(&format!("{rule}[suffix={text}]: {free}"));
                format!("{rule} {}", others.join(" "))
            }
            _ => format!("{free} {}", parts.join(" ")),
        }
    }

    /// Any text without some markers.
    fn without(&mut self, markers: &[&str], not: &[&str]) -> String {
        let free = self.name("PLAIN");
        let mut line = format!("{free}: /(?s:.*)/");
        for marker in markers.iter().filter(|marker| quoted_alone(&self.literal(marker))) {
            let _ = write!(line, " & ~/(?s:.*{}.*)/", pattern(marker));
        }
        for text in not {
            let _ = write!(line, " & ~/(?s:\\s*{}.*)/", pattern(text));
        }
        self.line(&line);
        free
    }

    /// The whole: reasoning if there may be some, and calls; text instead of them, or before them, if that is allowed.
    fn start(&mut self, prompt: &str, calls: Calls, may_be_text: bool) {
        let Calls { lead, body } = calls;
        if let Some(channels) = self.format.channels {
            return self.start_in_channels(channels, &body, may_be_text);
        }
        let mut openings: Vec<(String, &'static str)> = Vec::new();
        let mut open_already = None;
        let prompt = prompt.trim_end();
        for &(open, close) in &self.format.reasoning {
            if prompt.ends_with(open.trim_end()) {
                open_already = Some(close);
            }
            openings.push((self.literal(open), close));
        }
        let not: Vec<&str> = self.format.reasoning.iter().map(|(open, _)| open.trim_end()).collect();
        let begun = !lead.is_empty() && prompt.ends_with(lead.trim_end());
        let marked = match (begun, lead.is_empty()) {
            (true, _) | (_, true) => body.clone(),
            (false, false) => format!("{SPACE} {} {body}", self.literal(&lead)),
        };
        let rest = match may_be_text {
            false => marked,
            true if lead.is_empty() => {
                // A call is the whole answer or none of it.
                let plain = self.without(&[], &[&["{"], not.as_slice()].concat());
                format!("{plain} | {marked}")
            }
            true => {
                let plain = self.without(&[&lead], &not);
                let until = self.until(&lead, &not);
                let text = format!("{plain} | {until} {body}");
                // Where every answer begins with the marker, text has a name, too.
                if begun { format!("\"all\\n\" ({text}) | {body}") } else { text }
            }
        };
        self.line(&format!("rest: {rest}"));
        if let Some(close) = open_already {
            let until = self.until(close, &[]);
            let unclosed =
                if may_be_text { format!("{} | ", self.without(&[close], &[])) } else { String::new() };
            self.line(&format!("start: {unclosed}{until} rest"));
            return;
        }
        let mut alternatives = vec!["rest".to_owned()];
        // In a call that the prompt has begun, nothing is reasoning.
        for (open, close) in openings.into_iter().filter(|_| !begun) {
            let until = self.until(close, &[]);
            alternatives.push(format!("{SPACE} {open} {until} rest"));
        }
        self.line(&format!("start: {}", alternatives.join(" | ")));
    }

    /// The same where every message says in a header what it is: reasoning and asides may come before calls, the answer instead
    /// of them.
    fn start_in_channels(&mut self, channels: Channels, body: &str, may_be_text: bool) {
        let until = self.until(channels.again, &[]);
        let reasoning = format!("{} {until}", self.literal(channels.reasoning));
        if !may_be_text {
            self.line(&format!("start: ({reasoning})? {body}"));
            return;
        }
        let aside = format!("{} {until}", self.literal(channels.aside));
        let text = self.without(&[channels.again], &[]);
        let answer = format!("{} {text}", self.literal(channels.answer));
        self.line(&format!("start: ({reasoning} | {aside})* ({answer} | {body})"));
    }

    /// Calls with the headers of the messages that they stand in.
    fn calls_in_channels(
        &mut self,
        channels: Channels,
        tools: &[&Tool],
        parallel: bool,
    ) -> Result<Calls, ToolError> {
        let syntax = self.format.syntax;
        let (message, mut alternatives) = (channels.message, Vec::new());
        for tool in tools {
            alternatives.push(match (syntax.tags.first(), syntax.opens.first(), syntax.closes.first()) {
                (Some(tags), Some(open), Some(close)) => {
                    let header = self.literal(&format!(" to={}{message}{open}", tool.name));
                    let call = self.tagged(tool, tags)?;
                    let (open, close) = (self.literal(tags.open), self.literal(close));
                    format!("{header} {SPACE} {open} {call} {SPACE} {close}")
                }
                _ => {
                    let arguments = self.arguments(tool)?;
                    let header = self.literal(&format!("<|channel|>commentary to=functions.{}", tool.name));
                    let kind = self.literal(" <|constrain|>json");
                    let channel = self.literal("<|channel|>commentary json");
                    let message = self.literal(message);
                    format!("{header} ({kind} | {channel} | \"\") {message} {arguments}")
                }
            });
        }
        let call = self.name("call_");
        self.line(&format!("{call}: {}", alternatives.join(" | ")));
        // With tags, a message is over before the answer is.
        let more = match parallel && !syntax.tags.is_empty() {
            true => format!(" ({} {call})*", self.literal(channels.again)),
            false => String::new(),
        };
        Ok(Calls { lead: String::new(), body: format!("{call}{more}") })
    }

    /// All calls, from behind the first marker on.
    fn calls(&mut self, tools: &[&Tool], parallel: bool) -> Result<Calls, ToolError> {
        let syntax = self.format.syntax;
        if let Some(channels) = self.format.channels {
            return self.calls_in_channels(channels, tools, parallel);
        }
        let mut alternatives = Vec::new();
        for tool in tools {
            alternatives.push(match (syntax.tags.first(), syntax.literals) {
                (Some(tags), _) if !matches!(syntax.kind, CallSyntax::Hermes) => self.tagged(tool, tags)?,
                (_, Some(literals)) if syntax.kind != CallSyntax::Llama3 => {
                    self.literals(tool, literals.before, literals.quote)?
                }
                _ => self.object(tool)?,
            });
        }
        let call = self.name("call_");
        self.line(&format!("{call}: {}", alternatives.join(" | ")));
        Ok(self.section(&call, parallel))
    }

    /// Calls with what stands around and between them.
    fn section(&mut self, call: &str, parallel: bool) -> Calls {
        let syntax = self.format.syntax;
        let open = syntax.opens.first().copied().unwrap_or_default();
        let close = syntax.closes.first().copied().unwrap_or_default();
        let own = syntax.tags.first().filter(|_| syntax.kind != CallSyntax::Hermes);
        let close_literal =
            if close.is_empty() { String::new() } else { format!("{SPACE} {}", self.literal(close)) };
        match own {
            // Every call has the marker.
            Some(tags) if tags.open.is_empty() => {
                let again = format!("({SPACE} {} {call})*", self.literal(open));
                let (lead, body) = match syntax.kind {
                    CallSyntax::Hunyuan => {
                        let each = self.literal("<tool_call:opensource>");
                        let more = if parallel { format!("({SPACE} {each} {call})*") } else { String::new() };
                        (open, format!("{SPACE} {each} {call} {more} {close_literal}"))
                    }
                    _ => (open, format!("{call} {}", if parallel { again } else { String::new() })),
                };
                Calls { lead: lead.to_owned(), body }
            }
            // Tags of their own, within a section or not.
            Some(tags) => {
                let each = format!("{} {call}", self.literal(tags.open));
                let more = if parallel { format!("({SPACE} {each})*") } else { String::new() };
                if open.is_empty() {
                    return Calls { lead: tags.open.to_owned(), body: format!("{call} {more}") };
                }
                let many = format!("{SPACE} {each} {more} {close_literal}");
                // One call to a section where the section is as good as a tag.
                let body = match syntax.kind {
                    CallSyntax::QwenCoder | CallSyntax::SeedOss => {
                        let one = format!("{SPACE} {each} {close_literal}");
                        let again = format!("({SPACE} {} {one})*", self.literal(open));
                        format!("{one} {}", if parallel { again } else { String::new() })
                    }
                    _ => many,
                };
                Calls { lead: open.to_owned(), body }
            }
            None => {
                let more = if parallel { format!("(\", \" {call})*") } else { String::new() };
                let list = match syntax.kind {
                    CallSyntax::CommandR => {
                        format!("{SPACE} \"```json\\n[\" {SPACE} {call} {more} {SPACE} \"]\" ")
                    }
                    // The bracket is part of the marker.
                    CallSyntax::FireFunction => format!("{call} {more}"),
                    _ if syntax.list => format!("{SPACE} \"[\" {call} {more} \"]\""),
                    _ => format!("{SPACE} {call}"),
                };
                let one = format!("{list} {close_literal}");
                let again =
                    !syntax.list && parallel && !open.is_empty() && syntax.kind != CallSyntax::FireFunction;
                let again =
                    if again { format!("({SPACE} {} {one})*", self.literal(open)) } else { String::new() };
                let lead = if syntax.bare { "" } else { open };
                Calls { lead: lead.to_owned(), body: format!("{one} {again}") }
            }
        }
    }

    /// The arguments of a tool as JSON: the name of a rule.
    fn arguments(&mut self, tool: &Tool) -> Result<String, ToolError> {
        let any = json!({ "type": "object" });
        self.json(tool, if self.schemas { &tool.parameters } else { &any })
    }

    /// JSON that a schema describes: the name of a rule.
    fn json(&mut self, tool: &Tool, schema: &Value) -> Result<String, ToolError> {
        let json = schema::prepare(schema, JsonOptions::default())
            .map_err(|error| ToolError::Parameters { name: tool.name.clone(), error })?;
        let rule = self.name("json_");
        self.line(&format!("{rule}: %json {json}"));
        Ok(rule)
    }

    fn object(&mut self, tool: &Tool) -> Result<String, ToolError> {
        let arguments = self.arguments(tool)?;
        let name = Value::from(tool.name.as_str());
        let (before, key) = match self.format.syntax.objects {
            Objects::Named => (format!("{{\"name\": {name}, "), "arguments"),
            Objects::Parameters => (format!("{{\"name\": {name}, "), "parameters"),
            Objects::ToolName => (format!("{{\"tool_name\": {name}, "), "parameters"),
            Objects::Keyed => {
                let before = self.literal(&format!("{{{name}: "));
                return Ok(format!("{before} {arguments} \"}}\""));
            }
            Objects::Numbered => {
                let after = self.literal(&format!("\", \"tool_name\": {name}, \"parameters\": "));
                return Ok(format!(
                    "\"{{\\\"tool_call_id\\\": \\\"\" /[0-9]{{1,3}}/ {after} {arguments} \"}}\""
                ));
            }
        };
        let before = self.literal(&format!("{before}\"{key}\": "));
        Ok(format!("{before} {arguments} \"}}\""))
    }

    /// A call in tags, from behind its opening tag on.
    fn tagged(&mut self, tool: &Tool, tags: &Tags) -> Result<String, ToolError> {
        let name = &tool.name;
        let end = tags.header_end.first().copied().unwrap_or_default();
        let header = match tags.header {
            Header::Name | Header::Function | Header::NameId(_) => {
                format!("{}{}", self.padded(name), self.literal(end))
            }
            Header::Quoted => format!(
                "{} /\\d{{1,3}}/ {}",
                self.literal(&format!("{name}\" index=\"")),
                self.literal(&format!("\"{end}"))
            ),
            Header::IdName(between) => {
                format!(
                    "/[A-Za-z0-9_-]{{1,40}}/ {} {}",
                    self.literal(&format!("{between}{name}")),
                    self.literal(end)
                )
            }
            Header::Numbered => format!(
                "{} /[0-9]{{1,3}}/ {}",
                self.literal(&format!("functions.{name}:")),
                self.literal(end)
            ),
        };
        let close = if tags.close.is_empty() {
            String::new()
        } else {
            format!("{SPACE} {}", self.literal(tags.close))
        };
        let Some(parameters) = tags.parameters else {
            let arguments = self.arguments(tool)?;
            return Ok(format!("{header} {arguments} {close}"));
        };
        let arguments = self.parameters(tool, &tool.parameters, parameters, 0)?;
        Ok(format!("{header} {arguments} {close}"))
    }

    /// A tag for each member of an object.
    fn parameters(
        &mut self,
        tool: &Tool,
        object: &Value,
        tags: Parameters,
        depth: usize,
    ) -> Result<String, ToolError> {
        let mut parts = Vec::new();
        let properties = object.get("properties").and_then(Value::as_object);
        let required = object.get("required").and_then(Value::as_array);
        for (key, schema) in properties.into_iter().flatten() {
            let value = self.parameter(tool, key, schema, tags, depth)?;
            let needed = required.is_some_and(|required| required.iter().any(|name| name == key));
            parts.push(if needed { format!("{SPACE} {value}") } else { format!("({SPACE} {value})?") });
        }
        Ok(parts.join(" "))
    }

    /// A value that is no text: tags within tags where the format has them and the schema says what is in it, else JSON.
    fn value(
        &mut self,
        tool: &Tool,
        schema: &Value,
        tags: Parameters,
        depth: usize,
    ) -> Result<String, ToolError> {
        if !self.schemas {
            return self.json(tool, &json!({}));
        }
        let goes_deeper = tags.nested && depth < MAX_NESTED;
        let kind = schema.get("type").and_then(Value::as_str).filter(|_| goes_deeper);
        match (kind, schema.get("properties"), schema.get("items")) {
            (Some("object"), Some(_), _) => self.parameters(tool, schema, tags, depth + 1),
            (Some("array"), _, Some(items)) => {
                let item = self.parameter(tool, ITEM, items, tags, depth + 1)?;
                Ok(format!("({SPACE} {item})*"))
            }
            _ => self.json(tool, schema),
        }
    }

    fn padded(&self, name: &str) -> String {
        format!("{} ", self.literal(name))
    }

    fn parameter(
        &mut self,
        tool: &Tool,
        key: &str,
        schema: &Value,
        tags: Parameters,
        depth: usize,
    ) -> Result<String, ToolError> {
        let text = is_text(schema);
        let attributes = match (self.format.syntax.kind, text) {
            (CallSyntax::DeepSeekMarkup, true) => " string=\"true\"",
            (CallSyntax::DeepSeekMarkup, false) => " string=\"false\"",
            (CallSyntax::KimiK3, true) => " type=\"string\"",
            (CallSyntax::KimiK3, false) => " type=\"object\"",
            _ => "",
        };
        let line = if tags.lines { "\n" } else { "" };
        let open =
            self.literal(&format!("{}{key}{}{attributes}{}{line}", tags.open, tags.key_end, tags.value_open));
        let tail = if tags.tail.is_empty() { String::new() } else { format!("{key}{}", tags.tail) };
        let end = format!("{line}{}{tail}", tags.value_end);
        if !text {
            let value = self.value(tool, schema, tags, depth)?;
            return Ok(format!("{open} {value} {}", self.literal(&end)));
        }
        if let Some(values) = schema.get("enum").and_then(Value::as_array) {
            let values: Vec<String> =
                values.iter().filter_map(Value::as_str).map(|value| self.literal(value)).collect();
            return Ok(format!("{open} ({}) {}", values.join(" | "), self.literal(&end)));
        }
        // For the parser, a value is over where its end begins.
        let value = self.until(&format!("{line}{}", tags.value_end), &[]);
        let tail = if tail.is_empty() { String::new() } else { self.literal(&tail) };
        Ok(format!("{open} {value} {tail}"))
    }

    /// A call with literals. Values are JSON, which the parser reads as well; text has the marks that the model knows.
    fn literals(&mut self, tool: &Tool, before: &str, quote: &str) -> Result<String, ToolError> {
        let (open, between, equals, close) =
            if before.is_empty() { ("(", ", ", "=", ")") } else { ("{", ",", ":", "}") };
        let mut needed = Vec::new();
        let mut others = Vec::new();
        let properties = tool.parameters.get("properties").and_then(Value::as_object);
        let required = tool.parameters.get("required").and_then(Value::as_array);
        for (key, schema) in properties.into_iter().flatten() {
            let any = json!({});
            let value = if is_text(schema) && !quote.is_empty() {
                let until = self.until(quote, &[]);
                format!("{} {until}", self.literal(quote))
            } else {
                self.json(tool, if self.schemas { schema } else { &any })?
            };
            let argument = format!("{} {value}", self.literal(&format!("{key}{equals}")));
            let is_needed = required.is_some_and(|required| required.iter().any(|name| name == key));
            if is_needed { needed.push(argument) } else { others.push(argument) }
        }
        let separator = self.literal(between);
        let mut arguments = needed.join(&format!(" {separator} "));
        if needed.is_empty() {
            // Any of the others may be the first one. Rules for that from the last on, so that all are as long as the arguments.
            let (mut first, mut more) = (String::new(), String::new());
            for argument in others.iter().rev() {
                let own = self.name("first_");
                let or = if first.is_empty() { String::new() } else { format!(" | {first}") };
                self.line(&format!("{own}: {argument} {more}{or}"));
                let next = self.name("more_");
                self.line(&format!("{next}: ({separator} {argument})? {more}"));
                (first, more) = (own, next);
            }
            arguments = if first.is_empty() { String::new() } else { format!("({first})?") };
        } else {
            for argument in &others {
                let _ = write!(arguments, " ({separator} {argument})?");
            }
        }
        let head = self.literal(&format!("{before}{}{open}", tool.name));
        Ok(format!("{head} {arguments} {}", self.literal(close)))
    }
}

/// A string of a grammar, unless it is empty.
fn quoted(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| Value::from(text).to_string())
}

/// Whether a literal is a single string.
fn quoted_alone(literal: &str) -> bool {
    literal.starts_with('"')
}

/// A regular expression for exactly this text.
fn pattern(text: &str) -> String {
    let mut pattern = String::new();
    for c in text.chars() {
        match c {
            c if c.is_alphanumeric() => pattern.push(c),
            c => {
                let _ = write!(pattern, "\\x{{{:X}}}", u32::from(c));
            }
        }
    }
    pattern
}
