//! A call as an object of JSON: `{"name": …, "arguments": {…}}` and what is like it.
//!
//! Invariant: what turns out to be no call is kept until that is known, and handed back as it was.

use super::super::tools::Tool;
use super::sink::Sink;
use super::text::{Part, StringReader, ValueReader};
use crate::text::limits::MAX_CALL_HELD;

/// What an object is expected to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expect {
    /// A call, of whatever tool.
    Call,
    /// A call of a tool that is there, or something else altogether.
    Perhaps,
    /// The name of the tool, and its arguments as the value.
    Keyed,
}

/// An object in the making, from its opening brace on.
#[derive(Clone, Debug)]
pub(super) struct ObjectReader {
    expect: Expect,
    place: Place,
    /// Objects around this one: calls within `"function": {…}`.
    nested: usize,
    id: Option<String>,
    /// What came while there was no name.
    raw: String,
    arguments: String,
    begun: bool,
}

#[derive(Clone, Debug)]
enum Place {
    /// Before a key or the end.
    Key,
    KeyText(StringReader, String),
    Colon(Member),
    Value(Member),
    Text(Member, StringReader, String),
    /// A value that is arguments, as it is.
    Arguments(ValueReader),
    /// Arguments as text.
    ArgumentsText(StringReader),
    Skipped(ValueReader),
    /// A number that is an id.
    Number(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Member {
    Name,
    Id,
    Arguments,
    Function,
    Other,
}

/// What a character did to an object.
pub(super) enum Step {
    More,
    /// The object ended with it.
    End,
    /// There is no call, and this came instead.
    NoCall(String),
}

impl ObjectReader {
    /// After the opening brace.
    pub(super) fn new(expect: Expect) -> ObjectReader {
        ObjectReader {
            expect,
            place: Place::Key,
            nested: 0,
            id: None,
            raw: "{".to_owned(),
            arguments: String::new(),
            begun: false,
        }
    }

    /// What was held back, if it is no call.
    pub(super) fn finish(self) -> Option<String> {
        (!self.begun).then_some(self.raw)
    }

    pub(super) fn feed(&mut self, c: char, tools: &[Tool], sink: &mut Sink) -> Step {
        if !self.begun {
            self.raw.push(c);
            if self.raw.len() > MAX_CALL_HELD {
                return self.no_call();
            }
        }
        let place = std::mem::replace(&mut self.place, Place::Key);
        self.place = match place {
            Place::Key => match c {
                '"' => Place::KeyText(StringReader::new('"'), String::new()),
                '}' if self.nested > 0 => {
                    self.nested -= 1;
                    Place::Key
                }
                '}' if self.begun => return Step::End,
                ',' => Place::Key,
                c if c.is_ascii_whitespace() => Place::Key,
                _ if self.begun => return Step::End,
                _ => return self.no_call(),
            },
            Place::KeyText(mut reader, mut key) => match reader.feed(c, &mut key) {
                true if self.expect == Expect::Keyed => {
                    if let Some(refused) = self.begin(key, tools, sink) {
                        return refused;
                    }
                    Place::Colon(Member::Arguments)
                }
                true => Place::Colon(member(&key)),
                false => Place::KeyText(reader, key),
            },
            Place::Colon(member) if c == ':' => Place::Value(member),
            Place::Colon(member) => Place::Colon(member),
            Place::Value(member) if c.is_ascii_whitespace() => Place::Value(member),
            Place::Value(member) => match (member, c) {
                (member @ (Member::Name | Member::Id | Member::Function), '"') => {
                    Place::Text(member, StringReader::new('"'), String::new())
                }
                (Member::Function, '{') => {
                    self.nested += 1;
                    Place::Key
                }
                (Member::Id, '0'..='9') => Place::Number(c.to_string()),
                (Member::Arguments, '"') => Place::ArgumentsText(StringReader::new('"')),
                (Member::Arguments, _) => {
                    return self.value(Place::Arguments(ValueReader::default()), c, tools, sink);
                }
                _ => return self.value(Place::Skipped(ValueReader::default()), c, tools, sink),
            },
            Place::Text(member, mut reader, mut text) => match reader.feed(c, &mut text) {
                false => Place::Text(member, reader, text),
                true if member == Member::Id => {
                    self.id = Some(text);
                    Place::Key
                }
                true => {
                    if let Some(refused) = self.begin(text, tools, sink) {
                        return refused;
                    }
                    Place::Key
                }
            },
            Place::ArgumentsText(mut reader) => {
                let mut text = String::new();
                let ended = reader.feed(c, &mut text);
                self.say(&text, sink);
                if ended { Place::Key } else { Place::ArgumentsText(reader) }
            }
            Place::Number(mut text) if c.is_ascii_digit() => {
                text.push(c);
                Place::Number(text)
            }
            Place::Number(text) => {
                self.id = Some(text);
                return self.again(c, tools, sink);
            }
            place @ (Place::Arguments(_) | Place::Skipped(_)) => return self.value(place, c, tools, sink),
        };
        Step::More
    }

    /// A character of a value that is taken as it is.
    fn value(&mut self, mut place: Place, c: char, tools: &[Tool], sink: &mut Sink) -> Step {
        let (Place::Arguments(reader) | Place::Skipped(reader)) = &mut place else { return Step::More };
        let part = reader.feed(c);
        if part != Part::Behind && matches!(place, Place::Arguments(_)) {
            self.say(c.encode_utf8(&mut [0; 4]), sink);
        }
        match part {
            Part::Inside => self.place = place,
            Part::Last => self.place = Place::Key,
            Part::Behind => return self.again(c, tools, sink),
        }
        Step::More
    }

    /// Takes a character again that ended what stood before it.
    fn again(&mut self, c: char, tools: &[Tool], sink: &mut Sink) -> Step {
        self.place = Place::Key;
        if !self.begun {
            self.raw.pop();
        }
        self.feed(c, tools, sink)
    }

    fn say(&mut self, json: &str, sink: &mut Sink) {
        if self.begun { sink.arguments(json) } else { self.arguments.push_str(json) }
    }

    /// The name is there.
    fn begin(&mut self, name: String, tools: &[Tool], sink: &mut Sink) -> Option<Step> {
        let unknown = self.expect == Expect::Perhaps && !tools.iter().any(|tool| tool.name == name);
        if self.begun || unknown {
            return unknown.then(|| self.no_call());
        }
        self.begun = true;
        sink.begin_call(self.id.take(), name);
        sink.arguments(&std::mem::take(&mut self.arguments));
        self.raw.clear();
        None
    }

    fn no_call(&mut self) -> Step {
        self.begun = true;
        Step::NoCall(std::mem::take(&mut self.raw))
    }
}

fn member(key: &str) -> Member {
    match key {
        "name" | "tool_name" => Member::Name,
        "id" | "tool_call_id" | "call_id" => Member::Id,
        "arguments" | "parameters" | "args" | "input" => Member::Arguments,
        "function" => Member::Function,
        _ => Member::Other,
    }
}
