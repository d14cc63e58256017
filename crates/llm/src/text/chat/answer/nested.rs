//! Values made of tags within tags: an object is its members by key, a list is its elements under `item`.
//!
//! Invariant: what comes out is JSON, and what is held until then is bounded, in bytes and in depth.

use serde_json::{Map, Value};

use super::super::format::Parameters;
use super::super::tools::{Tool, is_text};
use super::text::{Found, find_from};
use crate::text::limits::{MAX_CALL_DEPTH, MAX_CALL_HEADER, MAX_CALL_HELD};

/// What elements of a list are called.
pub(in super::super) const ITEM: &str = "item";

/// A value in the making.
#[derive(Clone, Debug)]
pub(super) struct NestedReader {
    /// The argument.
    pub(super) key: String,
    /// The tags that are open, the argument itself first.
    open: Vec<Element>,
    place: Place,
    held: usize,
    /// Bytes of what waits in which nothing begins that is looked for.
    looked: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Inside,
    /// In the name of a tag that opens.
    Opening,
    /// In the name of a tag that closes.
    Closing,
}

#[derive(Clone, Debug)]
struct Element {
    key: String,
    text: String,
    members: Vec<(String, Value)>,
}

impl Element {
    fn new(key: String) -> Element {
        Element { key, text: String::new(), members: Vec::new() }
    }
}

/// What became of a value.
pub(super) enum NestedStep {
    /// More has to come.
    Wait,
    /// So many bytes were understood.
    Read(usize),
    /// After so many bytes it is whole.
    End(usize, Value),
    /// It is too long, or no such thing; this is what there was of it.
    Broken(Value),
}

impl NestedReader {
    /// Behind the tag of an argument.
    pub(super) fn new(key: String) -> NestedReader {
        let open = vec![Element::new(key.clone())];
        NestedReader { key, open, place: Place::Inside, held: 0, looked: 0 }
    }

    pub(super) fn step(&mut self, rest: &str, tags: Parameters, tool: Option<&Tool>) -> NestedStep {
        let markers: &[&str] = match self.place {
            Place::Inside => &[tags.value_end, tags.open],
            Place::Opening => &[tags.key_end],
            Place::Closing => &[tags.tail],
        };
        let (at, which) = match find_from(rest, self.looked, markers) {
            Found::Marker(at, which) => (at, which),
            Found::Nothing(at) => {
                self.looked = at;
                let most = if self.place == Place::Inside { MAX_CALL_HELD } else { MAX_CALL_HEADER };
                if at > most {
                    return NestedStep::Broken(self.whole(tool));
                }
                return NestedStep::Wait;
            }
        };
        self.looked = 0;
        self.held += at;
        let said = rest.get(..at).unwrap_or_default();
        let read = at + markers.get(which).map_or(0, |marker| marker.len());
        match self.place {
            Place::Inside => {
                if let Some(element) = self.open.last_mut() {
                    element.text.push_str(said);
                }
                self.place = if which == 0 { Place::Closing } else { Place::Opening };
            }
            Place::Opening => {
                self.place = Place::Inside;
                self.open.push(Element::new(said.trim().to_owned()));
            }
            Place::Closing => {
                self.place = Place::Inside;
                if let Some(value) = self.close(tool) {
                    return NestedStep::End(read, value);
                }
            }
        }
        // A tag takes room, too.
        self.held += size_of::<Element>();
        if self.held > MAX_CALL_HELD || self.open.len() > MAX_CALL_DEPTH {
            return NestedStep::Broken(self.whole(tool));
        }
        NestedStep::Read(read)
    }

    /// All there is, as if every tag were closed here.
    pub(super) fn whole(&mut self, tool: Option<&Tool>) -> Value {
        loop {
            if let Some(value) = self.close(tool) {
                return value;
            }
        }
    }

    /// What was never followed by a tag belongs to the last one.
    pub(super) fn finish(mut self, held: &str, tool: Option<&Tool>) -> Value {
        if let (Place::Inside, Some(element)) = (self.place, self.open.last_mut()) {
            element.text.push_str(held);
        }
        self.whole(tool)
    }

    /// Closes the last tag: the value, if it was the argument itself.
    fn close(&mut self, tool: Option<&Tool>) -> Option<Value> {
        let schema = self.schema(tool);
        let Some(element) = self.open.pop() else { return Some(Value::Null) };
        let value = value(element.text, element.members, schema);
        match self.open.last_mut() {
            Some(parent) => {
                parent.members.push((element.key, value));
                None
            }
            None => Some(value),
        }
    }

    /// What the tool says of the last tag.
    fn schema<'t>(&self, tool: Option<&'t Tool>) -> Option<&'t Value> {
        let mut schema = &tool?.parameters;
        for element in &self.open {
            let member = schema.get("properties").and_then(|properties| properties.get(&element.key));
            schema = member.or_else(|| schema.get("items").filter(|_| element.key == ITEM))?;
        }
        Some(schema)
    }
}

fn value(text: String, members: Vec<(String, Value)>, schema: Option<&Value>) -> Value {
    let is = |kind: &str| schema.and_then(|schema| schema.get("type")).is_some_and(|other| other == kind);
    if !members.is_empty() {
        let is_list = !is("object") && members.iter().all(|(key, _)| key == ITEM);
        return match is_list {
            true => members.into_iter().map(|(_, value)| value).collect(),
            false => members.into_iter().collect::<Map<_, _>>().into(),
        };
    }
    match schema {
        Some(schema) if is_text(schema) => text.into(),
        _ if text.trim().is_empty() && is("array") => Value::Array(Vec::new()),
        _ if text.trim().is_empty() && is("object") => Value::Object(Map::new()),
        _ => serde_json::from_str(text.trim()).unwrap_or_else(|_| text.into()),
    }
}
