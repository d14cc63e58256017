//! A call in tags: a header with the name, then JSON or one tag for each argument.
//!
//! Invariant: what is handed out as arguments is an object; text becomes a string of it as it comes, anything else once it is whole.

use super::super::format::{Header, Parameters, Tags};
use super::super::tools::Tool;
use super::Grounds;
use super::near::{Near, Nearby, Search};
use super::nested::{NestedReader, NestedStep};
use super::sink::Sink;
use super::text::{Begins, Found, Part, StringReader, ValueReader, begins, escape_into, find, find_from};
use crate::text::limits::MAX_CALL_HELD;

/// A call in the making, from behind its opening tag on.
#[derive(Clone, Debug)]
pub(super) struct Tagged {
    /// Which tags of the syntax.
    which: usize,
    place: Place,
    name: String,
    /// Arguments that have come.
    count: usize,
    /// Bytes of a value that waits in which its end does not begin.
    looked: usize,
}

#[derive(Clone, Debug)]
enum Place {
    Header,
    /// The line with the name.
    Name,
    /// Before JSON or tags.
    Arguments,
    Json(ValueReader),
    /// JSON that is written as a string.
    JsonText(StringReader),
    /// Behind the arguments.
    Close,
    Parameters,
    Key,
    Attributes(String),
    Value {
        key: String,
        as_text: Option<bool>,
        begun: bool,
        space: bool,
        quoted: Option<bool>,
    },
    /// A value that may be made of tags.
    Nested(NestedReader),
    Tail,
}

pub(super) enum TaggedStep {
    /// More has to come.
    Wait,
    /// So many bytes were understood.
    Read(usize),
    /// After so many bytes there is text.
    Text(usize),
    /// After so many bytes the call has ended.
    End(usize),
}

use TaggedStep::{End, Read, Wait};

impl Tagged {
    pub(super) fn new(which: usize) -> Tagged {
        Tagged { which, place: Place::Header, name: String::new(), count: 0, looked: 0 }
    }

    /// What stands before each call.
    pub(super) fn open(&self, grounds: &Grounds) -> &'static str {
        grounds.syntax.tags.get(self.which).map_or("", |tags| tags.open)
    }

    pub(super) fn step(
        &mut self,
        rest: &str,
        nearby: &mut Nearby,
        grounds: &Grounds,
        sink: &mut Sink,
    ) -> TaggedStep {
        let Some(tags) = grounds.syntax.tags.get(self.which) else { return TaggedStep::Text(0) };
        match std::mem::replace(&mut self.place, Place::Close) {
            Place::Header => self.header(rest, tags, nearby, sink),
            Place::Name => self.name_line(rest, nearby, sink),
            Place::Arguments => self.arguments(rest, tags),
            Place::Json(reader) => self.json(reader, rest, sink),
            Place::JsonText(reader) => self.json_text(reader, rest, sink),
            Place::Close => self.close(rest, tags, grounds),
            Place::Parameters => self.parameters(rest, tags, grounds, sink),
            Place::Key => self.key(rest, tags, nearby, sink),
            Place::Attributes(key) => {
                let Some(parameters) = tags.parameters else { return End(0) };
                self.attributes(key, rest, parameters, nearby, grounds, sink)
            }
            Place::Nested(reader) => {
                let Some(parameters) = tags.parameters else { return End(0) };
                self.nested(reader, rest, parameters, grounds, sink)
            }
            Place::Value { key, as_text, begun, space, quoted } => {
                let Some(parameters) = tags.parameters else { return End(0) };
                self.value(Value { key, as_text, begun, space, quoted }, rest, parameters, sink)
            }
            Place::Tail => match tags.parameters.map(|parameters| find(rest, &[parameters.tail])) {
                Some(Found::Marker(at, _)) => self.go(Place::Parameters, at + 1),
                _ => self.go(Place::Tail, rest.len()),
            },
        }
    }

    /// At the end of the answer.
    pub(super) fn finish(&mut self, held: &str, grounds: &Grounds, sink: &mut Sink) {
        let place = std::mem::replace(&mut self.place, Place::Close);
        match place {
            Place::Value { key, as_text, begun, space, quoted } => {
                let parameters = grounds.syntax.tags.get(self.which).and_then(|tags| tags.parameters);
                let lines = parameters.is_some_and(|parameters| parameters.lines);
                let value = Value { key, as_text, begun, space, quoted };
                self.end_value(value, held, lines, sink);
                sink.arguments("}");
            }
            Place::Nested(reader) => {
                let key = reader.key.clone();
                let value = reader.finish(held, self.tool(grounds));
                self.say_value(&key, &value, sink);
                self.end_arguments(sink);
            }
            Place::Parameters | Place::Key | Place::Attributes(_) | Place::Tail => self.end_arguments(sink),
            // A name that never ended, such as that of a tool without arguments.
            Place::Header if !sink.in_call() && grounds.tools.iter().any(|tool| tool.name == held.trim()) => {
                sink.begin_call(None, held.trim().to_owned());
            }
            Place::Header => sink.text(held),
            _ => {}
        }
    }

    fn go(&mut self, place: Place, read: usize) -> TaggedStep {
        (self.place, self.looked) = (place, 0);
        if read == 0 { Wait } else { Read(read) }
    }

    /// Goes on at once, even if nothing was read.
    fn at_once(&mut self, place: Place, read: usize) -> TaggedStep {
        (self.place, self.looked) = (place, 0);
        Read(read)
    }

    /// Stays until more has come; in so many bytes there is no need to look again.
    fn wait(&mut self, place: Place, looked: usize) -> TaggedStep {
        (self.place, self.looked) = (place, looked);
        Wait
    }

    /// The object of arguments ends, if it has begun.
    fn end_arguments(&self, sink: &mut Sink) {
        if self.count > 0 {
            sink.arguments("}");
        }
    }

    /// What was to be short is not: the call ends here.
    fn give_up(&self, sink: &mut Sink) -> TaggedStep {
        self.end_arguments(sink);
        End(0)
    }

    /// The tool that is called, if there is such a one.
    fn tool<'g>(&self, grounds: &'g Grounds) -> Option<&'g Tool> {
        grounds.tools.iter().find(|tool| tool.name == self.name)
    }

    fn header(&mut self, rest: &str, tags: &Tags, nearby: &mut Nearby, sink: &mut Sink) -> TaggedStep {
        // A line break before the name is no end of it.
        let skipped = rest.len() - rest.trim_start().len();
        if skipped > 0 {
            return self.at_once(Place::Header, skipped);
        }
        // Arguments or the end may also come at once.
        let stops: Vec<&str> =
            tags.parameters.iter().map(|parameters| parameters.open).chain([tags.close]).collect();
        let stops: Vec<&str> = stops.into_iter().filter(|stop| !stop.is_empty()).collect();
        let markers: Vec<&str> = tags.header_end.iter().chain(&stops).copied().collect();
        let (at, which) = match nearby.find(Search::Header(self.which), rest, &markers) {
            Near::Marker(at, which) => (at, which),
            Near::NotYet => return self.wait(Place::Header, 0),
            Near::TooFar => return TaggedStep::Text(0),
        };
        let header = rest.get(..at).unwrap_or_default().trim();
        let marker = markers.get(which).copied().unwrap_or_default();
        let consumed = if tags.header_end.contains(&marker) { marker.len() } else { 0 };
        let read = at + consumed;
        let (id, name) = match tags.header {
            Header::Name => (None, header.trim_matches('"')),
            Header::Quoted => (None, header.split('"').next().unwrap_or_default()),
            Header::NameId(between) => match header.split_once(between) {
                Some((name, id)) => (Some(id), name),
                None => (None, header),
            },
            Header::IdName(between) => match header.split_once(between) {
                Some((id, name)) => (Some(id), name),
                None => (None, header),
            },
            Header::Numbered => {
                let name = header.strip_prefix("functions.").unwrap_or(header);
                (Some(header), name.rsplit_once(':').map_or(name, |(name, _)| name))
            }
            Header::Function if header == "function" => return self.at_once(Place::Name, read),
            Header::Function => (None, header),
        };
        // What is for all is text.
        if name.is_empty() || (name == "all" && tags.open.is_empty() && tags.close.is_empty()) {
            return TaggedStep::Text(read);
        }
        self.begin(id.map(str::trim).filter(|id| !id.is_empty()), name.trim(), sink);
        self.at_once(Place::Arguments, read)
    }

    fn begin(&mut self, id: Option<&str>, name: &str, sink: &mut Sink) {
        name.clone_into(&mut self.name);
        sink.begin_call(id.map(str::to_owned), name.to_owned());
    }

    fn name_line(&mut self, rest: &str, nearby: &mut Nearby, sink: &mut Sink) -> TaggedStep {
        let skipped = rest.len() - rest.trim_start().len();
        if skipped > 0 {
            return self.at_once(Place::Name, skipped);
        }
        let end = match nearby.find(Search::Line, rest, &["\n"]) {
            Near::Marker(at, _) => at,
            Near::NotYet => return self.wait(Place::Name, 0),
            Near::TooFar => return TaggedStep::Text(0),
        };
        let name = rest.get(..end).unwrap_or_default().trim();
        self.begin(None, name, sink);
        self.at_once(Place::Arguments, end)
    }

    fn arguments(&mut self, rest: &str, tags: &Tags) -> TaggedStep {
        let Some(c) = rest.chars().next() else { return self.go(Place::Arguments, 0) };
        if c.is_whitespace() {
            return self.at_once(Place::Arguments, c.len_utf8());
        }
        let fences = ["```json", "```"];
        match begins(rest, &fences, false) {
            Begins::Perhaps => return self.go(Place::Arguments, 0),
            Begins::With(which) => {
                return self.at_once(Place::Arguments, fences.get(which).map_or(3, |fence| fence.len()));
            }
            Begins::No => {}
        }
        match c {
            '{' => self.at_once(Place::Json(ValueReader::default()), 0),
            '"' => self.at_once(Place::JsonText(StringReader::new('"')), 1),
            _ if tags.parameters.is_some() => self.at_once(Place::Parameters, 0),
            _ => self.at_once(Place::Close, 0),
        }
    }

    fn json(&mut self, mut reader: ValueReader, rest: &str, sink: &mut Sink) -> TaggedStep {
        for (at, c) in rest.char_indices() {
            if reader.feed(c) == Part::Last {
                let read = at + c.len_utf8();
                sink.arguments(rest.get(..read).unwrap_or_default());
                return self.at_once(Place::Close, read);
            }
        }
        sink.arguments(rest);
        self.go(Place::Json(reader), rest.len())
    }

    fn json_text(&mut self, mut reader: StringReader, rest: &str, sink: &mut Sink) -> TaggedStep {
        let mut text = String::new();
        for (at, c) in rest.char_indices() {
            if reader.feed(c, &mut text) {
                sink.arguments(&text);
                return self.at_once(Place::Close, at + c.len_utf8());
            }
        }
        sink.arguments(&text);
        self.go(Place::JsonText(reader), rest.len())
    }

    /// Anything up to the end of the call is lost.
    fn close(&mut self, rest: &str, tags: &Tags, grounds: &Grounds) -> TaggedStep {
        if tags.close.is_empty() {
            return End(0);
        }
        let others = grounds.syntax.opens.iter().chain(grounds.syntax.closes).copied();
        let markers: Vec<&str> = [tags.close].into_iter().chain(others).collect();
        match find(rest, &markers) {
            Found::Marker(at, 0) => End(at + tags.close.len()),
            Found::Marker(at, _) => End(at),
            Found::Nothing(len) => self.go(Place::Close, len),
        }
    }

    fn parameters(&mut self, rest: &str, tags: &Tags, grounds: &Grounds, sink: &mut Sink) -> TaggedStep {
        let Some(parameters) = tags.parameters else { return End(0) };
        let others = grounds.syntax.opens.iter().chain(grounds.syntax.closes).copied();
        let markers: Vec<&str> = [parameters.open, tags.close].into_iter().chain(others).collect();
        match find(rest, &markers) {
            Found::Marker(at, 0) => self.go(Place::Key, at + parameters.open.len()),
            Found::Marker(at, 1) => {
                self.end_arguments(sink);
                End(at + tags.close.len())
            }
            Found::Marker(at, _) => {
                self.end_arguments(sink);
                End(at)
            }
            Found::Nothing(len) => self.go(Place::Parameters, len),
        }
    }

    fn key(&mut self, rest: &str, tags: &Tags, nearby: &mut Nearby, sink: &mut Sink) -> TaggedStep {
        let Some(parameters) = tags.parameters else { return End(0) };
        match nearby.find(Search::Key(self.which), rest, &[parameters.key_end]) {
            Near::Marker(at, _) => {
                let key = rest.get(..at).unwrap_or_default().trim().trim_matches('"').to_owned();
                self.go(Place::Attributes(key), at + parameters.key_end.len())
            }
            Near::NotYet => self.wait(Place::Key, 0),
            Near::TooFar => self.give_up(sink),
        }
    }

    /// What stands between a key and its value may say what kind it is.
    fn attributes(
        &mut self,
        key: String,
        rest: &str,
        parameters: Parameters,
        nearby: &mut Nearby,
        grounds: &Grounds,
        sink: &mut Sink,
    ) -> TaggedStep {
        let tool = self.tool(grounds);
        let by_schema = tool.and_then(|tool| tool.parameter(&key).map(|_| tool.is_text(&key)));
        let (said, read) = if parameters.value_open.is_empty() {
            ("", 0)
        } else {
            match nearby.find(Search::Value(self.which), rest, &[parameters.value_open]) {
                Near::Marker(at, _) => (rest.get(..at).unwrap_or_default(), at + parameters.value_open.len()),
                Near::NotYet => return self.wait(Place::Attributes(key), 0),
                Near::TooFar => return self.give_up(sink),
            }
        };
        let as_text = match said {
            said if said.contains("string=\"true\"") || said.contains("type=\"string\"") => Some(true),
            said if said.contains("string=\"false\"") || said.contains("type=\"") => Some(false),
            _ => by_schema,
        };
        if parameters.nested && as_text != Some(true) {
            return self.at_once(Place::Nested(NestedReader::new(key)), read);
        }
        self.at_once(Place::Value { key, as_text, begun: false, space: false, quoted: None }, read)
    }

    fn value(&mut self, mut value: Value, rest: &str, parameters: Parameters, sink: &mut Sink) -> TaggedStep {
        let mut value_end = parameters.value_end;
        if let Some((open, close)) = parameters.quotes {
            let quoted = match value.quoted {
                Some(quoted) => quoted,
                None => {
                    let (quoted, read) = match begins(rest, &[open], false) {
                        Begins::Perhaps => return self.wait(value.place(), 0),
                        Begins::With(_) => (true, open.len()),
                        Begins::No => (false, 0),
                    };
                    value.quoted = Some(quoted);
                    return self.at_once(value.place(), read);
                }
            };
            value_end = if quoted { close } else { value_end };
        }
        match find_from(rest, self.looked, &[value_end]) {
            Found::Marker(at, _) => {
                // What is too long to be held is text.
                if value.as_text != Some(true) && at > MAX_CALL_HELD {
                    value.as_text = Some(true);
                }
                self.end_value(value, rest.get(..at).unwrap_or_default(), parameters.lines, sink);
                let next = if parameters.tail.is_empty() { Place::Parameters } else { Place::Tail };
                self.at_once(next, at + value_end.len())
            }
            Found::Nothing(len) => {
                if value.as_text != Some(true) && len > MAX_CALL_HELD {
                    value.as_text = Some(true);
                }
                let mut read = 0;
                if value.as_text == Some(true) && len > 0 {
                    let mut text = rest.get(..len).unwrap_or_default();
                    // The last line break may be the one before the end.
                    if parameters.lines {
                        text = text.strip_suffix('\n').unwrap_or(text);
                    }
                    read = text.len();
                    self.say_text(&mut value, text, parameters.lines, sink);
                }
                let place = value.place();
                if read == 0 { self.wait(place, len) } else { self.go(place, read) }
            }
        }
    }

    fn nested(
        &mut self,
        mut reader: NestedReader,
        rest: &str,
        parameters: Parameters,
        grounds: &Grounds,
        sink: &mut Sink,
    ) -> TaggedStep {
        let step = reader.step(rest, parameters, self.tool(grounds));
        match step {
            NestedStep::Wait => self.wait(Place::Nested(reader), 0),
            NestedStep::Read(read) => self.at_once(Place::Nested(reader), read),
            NestedStep::End(read, value) => {
                self.say_value(&reader.key, &value, sink);
                self.at_once(Place::Parameters, read)
            }
            NestedStep::Broken(value) => {
                self.say_value(&reader.key, &value, sink);
                self.give_up(sink)
            }
        }
    }

    fn say_value(&mut self, key: &str, value: &serde_json::Value, sink: &mut Sink) {
        let mut json = String::new();
        self.say_key(key, &mut json);
        json.push_str(&value.to_string());
        sink.arguments(&json);
    }

    /// Text of a value that goes on.
    fn say_text(&mut self, value: &mut Value, text: &str, lines: bool, sink: &mut Sink) {
        if text.is_empty() {
            return;
        }
        let mut json = String::new();
        let mut text = text;
        if !value.begun {
            self.say_key(&value.key, &mut json);
            json.push('"');
            value.begun = true;
            value.space = true;
        }
        if std::mem::take(&mut value.space) && lines {
            text = text.strip_prefix('\n').unwrap_or(text);
        }
        escape_into(text, &mut json);
        sink.arguments(&json);
    }

    /// All that is left of a value.
    fn end_value(&mut self, mut value: Value, rest: &str, lines: bool, sink: &mut Sink) {
        let mut json = String::new();
        if value.as_text != Some(true) {
            let trimmed = rest.trim();
            self.say_key(&value.key, &mut json);
            if serde_json::from_str::<serde::de::IgnoredAny>(trimmed).is_ok() {
                json.push_str(trimmed);
                sink.arguments(&json);
                return;
            }
            value.begun = true;
            value.space = true;
            json.push('"');
            sink.arguments(&json);
        }
        let rest = if lines { rest.strip_suffix('\n').unwrap_or(rest) } else { rest };
        self.say_text(&mut value, rest, lines, sink);
        if value.begun {
            sink.arguments("\"");
        } else {
            let mut json = String::new();
            self.say_key(&value.key, &mut json);
            json.push_str("\"\"");
            sink.arguments(&json);
        }
    }

    fn say_key(&mut self, key: &str, json: &mut String) {
        json.push_str(if self.count == 0 { "{\"" } else { ",\"" });
        escape_into(key, json);
        json.push_str("\":");
        self.count += 1;
    }
}

/// A value in the making.
struct Value {
    key: String,
    /// Whether it is text; unknown where nothing says so.
    as_text: Option<bool>,
    begun: bool,
    /// Nothing of it has come yet.
    space: bool,
    /// Whether it stands in quotes; unknown before it begins.
    quoted: Option<bool>,
}

impl Value {
    fn place(self) -> Place {
        let Value { key, as_text, begun, space, quoted } = self;
        Place::Value { key, as_text, begun, space, quoted }
    }
}
