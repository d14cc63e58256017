//! Answers of models as they come: reasoning, text and calls of tools told apart.
//!
//! Invariant: the events of an answer do not depend on how it was cut into pieces, apart from where fragments of text end. Markers
//! are never handed out. Time is linear in the answer; what is held back is at most a marker, a name, an argument that is not
//! text, or an object that may be a call, all of them bounded.

mod literal;
mod near;
mod nested;
mod object;
mod sink;
mod tagged;
mod text;

use std::sync::Arc;

use literal::LiteralReader;
use near::{Near, Nearby, Search};
pub(super) use nested::ITEM;
use object::{Expect, ObjectReader, Step};
use sink::Sink;
use tagged::{Tagged, TaggedStep};
use text::{Begins, Found, begins, find};

use super::format::{Channels, Literals, Objects, Syntax};
use super::tools::{Tool, ToolCall};

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerEvent {
    /// Text that the model has marked as reasoning.
    Reasoning(String),
    /// Text for the reader.
    Text(String),
    /// A call begins.
    ToolCallStart {
        /// Which call of the answer.
        index: usize,
        /// What the model calls it, if it says so before the arguments.
        id: Option<String>,
        /// The tool. It is not known whether there is such a one.
        name: String,
    },
    /// More of the arguments. All of a call, put together, are JSON, as far as the model has written what it should.
    ToolCallArguments {
        /// Which call.
        index: usize,
        /// A fragment.
        json: String,
    },
    /// A call ends.
    ToolCallEnd {
        /// Which call.
        index: usize,
    },
}

/// A whole answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// What the model has marked as reasoning.
    pub reasoning: String,
    /// Text for the reader.
    pub text: String,
    /// Calls, in their order.
    pub calls: Vec<ToolCall>,
}

impl Answer {
    /// Takes one more part in.
    pub fn add(&mut self, event: &AnswerEvent) {
        match event {
            AnswerEvent::Reasoning(text) => self.reasoning.push_str(text),
            AnswerEvent::Text(text) => self.text.push_str(text),
            AnswerEvent::ToolCallStart { id, name, .. } => {
                self.calls.push(ToolCall { id: id.clone(), name: name.clone(), arguments: String::new() });
            }
            AnswerEvent::ToolCallArguments { index, json } => {
                if let Some(call) = self.calls.get_mut(*index) {
                    call.arguments.push_str(json);
                }
            }
            AnswerEvent::ToolCallEnd { .. } => {}
        }
    }
}

/// What a parser looks for.
#[derive(Clone, Debug)]
pub(super) struct Grounds {
    pub(super) syntax: &'static Syntax,
    /// Markers before and behind reasoning.
    pub(super) reasoning: Vec<(&'static str, &'static str)>,
    pub(super) channels: Option<Channels>,
    pub(super) tools: Arc<[Tool]>,
}

/// What a marker in text means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    Reasoning(usize),
    Calls,
    Tags(usize),
    Channel,
    Nothing,
}

#[derive(Clone, Debug)]
enum State {
    /// At the beginning of the answer, or of what follows reasoning: a call without markers may come.
    Start,
    Text,
    Reasoning(usize),
    /// In a section of calls, between two of them.
    Calls,
    Object(ObjectReader),
    Tags(Tagged),
    /// The name of a call that is written with literals, so far.
    LiteralName(String),
    Literal(LiteralReader),
    /// What stands before a message in a channel.
    ChannelHeader,
    /// Reasoning in a channel.
    ChannelReasoning,
    /// Arguments in a channel.
    ChannelArguments,
}

/// The parser of one answer; [`ChatFormat::parser`](super::ChatFormat::parser) makes one.
///
/// Pieces may be cut anywhere, within markers too.
#[derive(Clone, Debug)]
pub struct AnswerParser {
    grounds: Grounds,
    /// What is looked for in text.
    markers: Vec<(&'static str, Meaning)>,
    state: State,
    /// What has come and is not yet understood.
    held: String,
    nearby: Nearby,
    sink: Sink,
    /// Of a section of calls, the object that may be none.
    bare: bool,
}

impl AnswerParser {
    pub(super) fn new(grounds: Grounds, prompt: &str) -> AnswerParser {
        let syntax = grounds.syntax;
        let calls = !grounds.tools.is_empty() || prompt_begins_call(syntax, prompt);
        let mut markers: Vec<(&'static str, Meaning)> = Vec::new();
        if let Some(channels) = &grounds.channels {
            markers.extend(channels.ends.iter().map(|end| (*end, Meaning::Channel)));
        }
        markers.extend((0..).zip(&grounds.reasoning).map(|(at, (open, _))| (*open, Meaning::Reasoning(at))));
        // An end without a beginning means nothing.
        markers.extend(grounds.reasoning.iter().map(|(_, close)| (*close, Meaning::Nothing)));
        if calls {
            markers.extend(syntax.opens.iter().map(|open| (*open, Meaning::Calls)));
            let tags = (0..).zip(syntax.tags).filter(|(_, tags)| tags.alone);
            markers.extend(tags.map(|(at, tags)| (tags.open, Meaning::Tags(at))));
            let closes = syntax.closes.iter().copied().chain(syntax.tags.iter().map(|tags| tags.close));
            markers.extend(closes.filter(|close| close.len() > 3).map(|close| (close, Meaning::Nothing)));
        }
        markers.extend(syntax.ignored.iter().map(|marker| (*marker, Meaning::Nothing)));
        let mut seen = Vec::new();
        markers.retain(|(marker, _)| {
            let new = !seen.contains(marker);
            seen.push(*marker);
            new
        });

        let prompt = prompt.trim_end();
        let opened = grounds.reasoning.iter().position(|(open, _)| prompt.ends_with(open.trim_end()));
        let mut sink = Sink::default();
        let state = match (&grounds.channels, opened) {
            (Some(channels), _) if !prompt.ends_with(channels.message) => State::ChannelHeader,
            (Some(_), _) => State::Text,
            (None, Some(which)) => {
                sink.begin_reasoning();
                State::Reasoning(which)
            }
            (None, None) if prompt_begins_call(syntax, prompt) => State::Calls,
            (None, None) => State::Start,
        };
        AnswerParser {
            grounds,
            markers,
            state,
            held: String::new(),
            nearby: Nearby::default(),
            sink,
            bare: false,
        }
    }

    /// Takes a piece of the answer, and hands out what is complete with it.
    pub fn push(&mut self, text: &str) -> Vec<AnswerEvent> {
        self.held.push_str(text);
        self.run(false);
        self.sink.take()
    }

    /// At the end of the answer: what was held back, and the ends of calls that were cut off.
    pub fn finish(&mut self) -> Vec<AnswerEvent> {
        self.run(true);
        let held = std::mem::take(&mut self.held);
        match std::mem::replace(&mut self.state, State::Text) {
            State::Start | State::Text => self.sink.text(&held),
            State::Reasoning(_) | State::ChannelReasoning => self.sink.reasoning(&held),
            State::ChannelArguments => self.sink.arguments(&held),
            // A whole answer without a channel is text.
            State::ChannelHeader if !held.contains("<|") => self.sink.text(&held),
            State::Object(reader) => {
                if let Some(raw) = reader.finish() {
                    self.sink.text(&raw);
                }
            }
            State::LiteralName(name) => self.sink.text(&(name + &held)),
            State::Tags(mut tagged) => tagged.finish(&held, &self.grounds, &mut self.sink),
            State::ChannelHeader | State::Calls | State::Literal(_) => {}
        }
        self.sink.finish();
        self.sink.take()
    }

    /// Goes on as long as there is something to understand. `last` says that nothing follows.
    fn run(&mut self, last: bool) {
        let mut held = std::mem::take(&mut self.held);
        let mut at = 0;
        while let Some(rest) = held.get(at..) {
            let Some(read) = self.step(rest, last) else { break };
            self.nearby.advance(read);
            at += read;
        }
        // What waits stays where it is, however often something is added.
        if held.is_char_boundary(at) {
            held.drain(..at);
        } else {
            held.clear();
        }
        self.held = held;
    }

    /// Understands the beginning of what is there. How many bytes that were, or nothing if more has to come first.
    fn step(&mut self, rest: &str, last: bool) -> Option<usize> {
        match std::mem::replace(&mut self.state, State::Text) {
            State::Start => self.start(rest),
            State::Text => self.text(rest, last),
            State::Reasoning(which) => self.reasoning(which, rest),
            State::Calls => self.calls(rest, last),
            State::Object(reader) => self.object(reader, rest),
            State::Tags(tagged) => self.tags(tagged, rest),
            State::LiteralName(name) => self.literal_name(name, rest),
            State::Literal(reader) => self.literal(reader, rest),
            State::ChannelHeader => self.channel_header(rest),
            State::ChannelReasoning => self.channel(rest, State::ChannelReasoning),
            State::ChannelArguments => self.channel(rest, State::ChannelArguments),
        }
    }

    /// Stays where it is until more has come.
    fn wait(&mut self, state: State) -> Option<usize> {
        self.state = state;
        None
    }

    fn go(&mut self, state: State, read: usize) -> Option<usize> {
        self.state = state;
        Some(read)
    }

    fn start(&mut self, rest: &str) -> Option<usize> {
        let body = rest.trim_start();
        let bare = self.grounds.syntax.bare && !self.grounds.tools.is_empty();
        match body.chars().next() {
            // White space is the sink's to keep.
            None if rest.is_empty() => self.wait(State::Start),
            None => {
                self.sink.text(rest);
                self.go(State::Start, rest.len())
            }
            Some('{') if bare => {
                self.bare = true;
                self.sink.text(rest.get(..rest.len() - body.len()).unwrap_or_default());
                self.go(State::Object(ObjectReader::new(Expect::Perhaps)), rest.len() - body.len() + 1)
            }
            Some(_) => self.go(State::Text, 0),
        }
    }

    fn text(&mut self, rest: &str, last: bool) -> Option<usize> {
        if rest.is_empty() {
            return self.wait(State::Text);
        }
        let markers: Vec<&str> = self.markers.iter().map(|(marker, _)| *marker).collect();
        let (said, meaning) = match find(rest, &markers) {
            Found::Nothing(0) if !last => return self.wait(State::Text),
            Found::Nothing(_) if last => (rest.len(), None),
            Found::Nothing(len) => (len, None),
            Found::Marker(at, which) => (at, self.markers.get(which)),
        };
        self.sink.text(rest.get(..said).unwrap_or_default());
        let Some(&(marker, meaning)) = meaning else { return self.go(State::Text, said) };
        // Around the end of a call that was none, white space is the text's own.
        if meaning != Meaning::Nothing || self.grounds.reasoning.iter().any(|(_, close)| *close == marker) {
            self.sink.part();
        }
        let read = said + marker.len();
        self.bare = false;
        match meaning {
            Meaning::Reasoning(which) => {
                self.sink.begin_reasoning();
                self.go(State::Reasoning(which), read)
            }
            Meaning::Calls => self.go(State::Calls, read),
            Meaning::Tags(which) => self.go(State::Tags(Tagged::new(which)), read),
            Meaning::Channel => self.go(State::ChannelHeader, read),
            Meaning::Nothing => self.go(State::Text, read),
        }
    }

    fn reasoning(&mut self, which: usize, rest: &str) -> Option<usize> {
        let close = self.grounds.reasoning.get(which).map_or("", |(_, close)| *close);
        match find(rest, &[close]) {
            Found::Marker(at, _) => {
                self.sink.reasoning(rest.get(..at).unwrap_or_default());
                self.sink.part();
                self.go(State::Start, at + close.len())
            }
            Found::Nothing(0) => self.wait(State::Reasoning(which)),
            Found::Nothing(len) => {
                self.sink.reasoning(rest.get(..len).unwrap_or_default());
                self.go(State::Reasoning(which), len)
            }
        }
    }

    /// Between calls: what the next one looks like, or that there is none.
    fn calls(&mut self, rest: &str, last: bool) -> Option<usize> {
        let syntax = self.grounds.syntax;
        let Some(c) = rest.chars().next() else { return self.wait(State::Calls) };
        // A fence around the list, and what stands between its elements.
        let fence = if self.bare { &[][..] } else { &["```json", "```"][..] };
        let closes: Vec<&str> = syntax.closes.iter().chain(fence).copied().collect();
        let opens: Vec<&str> =
            syntax.tags.iter().map(|tags| tags.open).filter(|open| !open.is_empty()).collect();
        let before =
            syntax.literals.map(|Literals { before, .. }| before).filter(|before| !before.is_empty());
        let known: Vec<&str> = [opens.as_slice(), closes.as_slice(), syntax.opens, before.as_slice()]
            .into_iter()
            .flatten()
            .copied()
            .collect();
        match begins(rest, &known, last) {
            Begins::Perhaps => return self.wait(State::Calls),
            Begins::With(which) => {
                let marker = known.get(which).copied().unwrap_or_default();
                let ends = syntax.closes.contains(&marker);
                let tags = syntax.tags.iter().position(|tags| tags.open == marker);
                return match tags {
                    Some(which) => self.go(State::Tags(Tagged::new(which)), marker.len()),
                    None if Some(marker) == before => {
                        self.go(State::LiteralName(String::new()), marker.len())
                    }
                    None if ends => {
                        self.sink.part();
                        self.go(State::Text, marker.len())
                    }
                    None => self.go(State::Calls, marker.len()),
                };
            }
            Begins::No => {}
        }
        let expect = match syntax.objects {
            Objects::Keyed => Expect::Keyed,
            _ if self.bare => Expect::Perhaps,
            _ => Expect::Call,
        };
        match c {
            '{' => self.go(State::Object(ObjectReader::new(expect)), 1),
            c if c.is_whitespace() || matches!(c, ',' | ';') => self.go(State::Calls, c.len_utf8()),
            '[' | ']' if !self.bare => self.go(State::Calls, 1),
            _ if syntax.tags.iter().any(|tags| tags.open.is_empty()) => {
                let which = syntax.tags.iter().position(|tags| tags.open.is_empty()).unwrap_or(0);
                self.go(State::Tags(Tagged::new(which)), 0)
            }
            c if !self.bare
                && before.is_none()
                && syntax.literals.is_some()
                && (c.is_alphabetic() || c == '_') =>
            {
                self.go(State::LiteralName(String::new()), 0)
            }
            _ => self.go(State::Text, 0),
        }
    }

    fn object(&mut self, mut reader: ObjectReader, rest: &str) -> Option<usize> {
        for (at, c) in rest.char_indices() {
            match reader.feed(c, &self.grounds.tools, &mut self.sink) {
                Step::More => {}
                Step::End => {
                    self.sink.end_call();
                    return self.go(State::Calls, at + c.len_utf8());
                }
                Step::NoCall(raw) => {
                    self.sink.text(&raw);
                    return self.go(State::Text, at + c.len_utf8());
                }
            }
        }
        self.state = State::Object(reader);
        (!rest.is_empty()).then_some(rest.len())
    }

    fn tags(&mut self, mut tagged: Tagged, rest: &str) -> Option<usize> {
        match tagged.step(rest, &mut self.nearby, &self.grounds, &mut self.sink) {
            TaggedStep::Wait => self.wait(State::Tags(tagged)),
            TaggedStep::Read(read) => self.go(State::Tags(tagged), read),
            TaggedStep::Text(read) => self.go(State::Text, read),
            TaggedStep::End(read) => {
                self.sink.end_call();
                // Where calls have no tag of their own, the next one needs the marker of the section.
                let open = tagged.open(&self.grounds);
                self.go(if open.is_empty() { State::Text } else { State::Calls }, read)
            }
        }
    }

    fn literal_name(&mut self, mut name: String, rest: &str) -> Option<usize> {
        let quote = self.grounds.syntax.literals.map_or("", |literals| literals.quote);
        for (at, c) in rest.char_indices() {
            let read = at + c.len_utf8();
            match c {
                '(' | '{' if !name.trim().is_empty() => {
                    let name = name.trim();
                    self.sink.begin_call(None, name.strip_suffix(".call").unwrap_or(name).to_owned());
                    let reader = LiteralReader::new(c, quote, &mut self.sink);
                    return self.go(State::Literal(reader), read);
                }
                c if (c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/' | ' '))
                    && name.len() < MAX_NAME =>
                {
                    name.push(c);
                }
                _ => {
                    self.sink.text(&name);
                    return self.go(State::Text, at);
                }
            }
        }
        self.state = State::LiteralName(name);
        (!rest.is_empty()).then_some(rest.len())
    }

    fn literal(&mut self, mut reader: LiteralReader, rest: &str) -> Option<usize> {
        for (at, c) in rest.char_indices() {
            if reader.feed(c, &mut self.sink) {
                self.sink.end_call();
                return self.go(State::Calls, at + c.len_utf8());
            }
        }
        self.state = State::Literal(reader);
        (!rest.is_empty()).then_some(rest.len())
    }

    fn channel_header(&mut self, rest: &str) -> Option<usize> {
        let Some(channels) = self.grounds.channels else { return self.go(State::Text, 0) };
        let at = match self.nearby.find(Search::Message, rest, &[channels.message]) {
            Near::Marker(at, _) => at,
            Near::NotYet => return self.wait(State::ChannelHeader),
            Near::TooFar => return self.go(State::Text, 0),
        };
        let header = rest.get(..at).unwrap_or_default();
        let read = at + channels.message.len();
        let word = |before: &str| {
            let rest = header.rsplit_once(before)?.1;
            let end = rest.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(rest.len());
            rest.get(..end).filter(|word| !word.is_empty())
        };
        let recipient = word("to=");
        let reasons = word(channels.channel) == Some("analysis") || recipient == Some("self");
        self.sink.part();
        match recipient.and_then(|name| name.strip_prefix("functions.")) {
            Some(name) if !self.grounds.tools.is_empty() => {
                self.sink.begin_call(None, name.to_owned());
                self.go(State::ChannelArguments, read)
            }
            _ if reasons => {
                self.sink.begin_reasoning();
                self.go(State::ChannelReasoning, read)
            }
            _ => self.go(State::Text, read),
        }
    }

    /// What is in a channel, up to its end.
    fn channel(&mut self, rest: &str, state: State) -> Option<usize> {
        let ends = self.grounds.channels.map_or(&[][..], |channels| channels.ends);
        let (said, end) = match find(rest, ends) {
            Found::Nothing(0) => return self.wait(state),
            Found::Nothing(len) => (len, None),
            Found::Marker(at, which) => (at, ends.get(which)),
        };
        let text = rest.get(..said).unwrap_or_default();
        match state {
            State::ChannelArguments => self.sink.arguments(text),
            _ => self.sink.reasoning(text),
        }
        match end {
            None => self.go(state, said),
            Some(end) => {
                self.sink.end_call();
                self.sink.part();
                self.go(State::ChannelHeader, said + end.len())
            }
        }
    }
}

/// Whether the prompt ends within a call: some templates begin every answer with the marker.
fn prompt_begins_call(syntax: &Syntax, prompt: &str) -> bool {
    syntax.opens.iter().any(|open| prompt.trim_end().ends_with(open))
}

/// Bytes of a name that is written with literals.
const MAX_NAME: usize = 256;

#[cfg(test)]
mod tests;
