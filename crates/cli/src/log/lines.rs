//! Events as lines.
//!
//! Invariant: nothing in an event can talk to a terminal or look like another line.

use std::fmt::{Debug, Write as _};
use std::sync::mpsc::SyncSender;

use jiff::Timestamp;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::queue::Queued;
use crate::door;
use crate::printable;
use crate::terminal::{Terminal, Tone};
use crate::wrap::wrapped;

/// What those events belong to that are told: what other packages say is for their authors.
const OURS: &str = "oxcart";

/// A field that stands for several: a JSON object, whose members become fields of the line.
const SEVERAL: &str = "fields.json";

/// How lines look.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Style {
    /// For the person at the terminal.
    Notes(Terminal),
    /// With the time in front.
    Timed,
    /// One JSON object each, with the time.
    Json,
}

/// Where lines go.
#[derive(Debug)]
pub(super) enum To {
    /// To stderr, at once.
    Stderr,
    /// To those who wait for lines.
    Queue(SyncSender<Queued>),
}

/// What takes events, and makes lines of them.
#[derive(Debug)]
pub(super) struct Lines {
    style: Style,
    level: LevelFilter,
    to: To,
}

impl Lines {
    pub(super) fn new(style: Style, level: LevelFilter, to: To) -> Lines {
        Lines { style, level, to }
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level && metadata.target().starts_with(OURS)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let line = match self.style {
            Style::Notes(terminal) => {
                let width = if matches!(self.to, To::Stderr) { Terminal::width_for_notes() } else { None };
                note(*event.metadata().level(), &fields.message, width, terminal)
            }
            Style::Timed => format!("{} {}", now(), one_line(&fields.message)),
            Style::Json => json(event.metadata(), fields),
        };
        match &self.to {
            // What goes on is more than what can be told of it.
            To::Stderr => drop(door::note(&line)),
            // A full queue means that no one reads; the line is lost, not the time of those who tell.
            To::Queue(queue) => drop(queue.try_send(Some(line))),
        }
    }

    // Events are told as they come; what they are part of is not kept.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// What stands on a terminal: what went wrong is said by name, everything else is an aside.
fn note(level: Level, text: &str, width: Option<usize>, terminal: Terminal) -> String {
    match level {
        Level::ERROR | Level::WARN => wrapped(&format!("oxcart: {text}"), width),
        _ => terminal.paint(&wrapped(text, width), Tone::Dim),
    }
}

fn one_line(text: &str) -> String {
    door::visible(text).replace('\n', "\\n")
}

/// `2026-11-15T14:48:52Z`.
fn now() -> String {
    format!("{:.0}", Timestamp::now())
}

/// An object with all fields that an event of its kind has; those without a value are null.
fn json(metadata: &Metadata<'_>, mut fields: Fields) -> String {
    let mut object = Map::new();
    object.insert("time".into(), now().into());
    for name in metadata.fields().iter().map(|field| field.name()) {
        match name {
            SEVERAL => object.extend(std::mem::take(&mut fields.several)),
            "message" => {}
            name => drop(object.insert(name.into(), fields.values.remove(name).unwrap_or(Value::Null))),
        }
    }
    object.entry("message").or_insert(fields.message.into());
    printable::line(&object.into())
}

/// What an event says.
#[derive(Debug, Default)]
struct Fields {
    message: String,
    values: Map<String, Value>,
    several: Map<String, Value>,
}

impl Fields {
    fn set(&mut self, field: &Field, value: impl Into<Value>) {
        self.values.insert(field.name().into(), value.into());
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            // Writing to a string does not fail.
            "message" => drop(write!(self.message, "{value:?}")),
            SEVERAL => {
                self.several = serde_json::from_str(&format!("{value:?}")).unwrap_or_default();
            }
            _ => self.set(field, format!("{value:?}")),
        }
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message.push_str(value),
            _ => self.set(field, value),
        }
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, value);
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, value);
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field, value);
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, value);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use tracing::{debug, info, warn};

    use super::super::queue::QUEUED_LINES;
    use super::*;

    fn told(style: Style, level: LevelFilter, tell: impl FnOnce()) -> Vec<String> {
        let (sender, lines) = sync_channel(QUEUED_LINES);
        tracing::subscriber::with_default(Lines::new(style, level, To::Queue(sender)), tell);
        lines.try_iter().flatten().collect()
    }

    #[test]
    fn a_full_queue_drops_lines_and_blocks_no_client() {
        let lines = told(Style::Timed, LevelFilter::INFO, || {
            for _ in 0..3 * QUEUED_LINES {
                info!("text");
            }
        });
        assert_eq!(lines.len(), QUEUED_LINES);
    }

    #[test]
    fn levels_and_notes() {
        let tell = || {
            debug!("detail");
            info!("note");
            warn!("warning");
            info!(target: "others", "theirs");
        };
        let notes = Style::Notes(Terminal { colour: false });
        assert_eq!(told(notes, LevelFilter::INFO, tell), ["note", "oxcart: warning"]);
        assert_eq!(told(notes, LevelFilter::WARN, tell), ["oxcart: warning"]);
        assert_eq!(told(notes, LevelFilter::DEBUG, tell), ["detail", "note", "oxcart: warning"]);
    }

    #[test]
    fn a_line_is_one_line() {
        let lines = told(Style::Timed, LevelFilter::INFO, || info!("a\n2026 b\x1b[2J"));
        assert!(lines.len() == 1 && lines[0].ends_with("Z a\\n2026 b\\u{1b}[2J"), "{lines:?}");
        let time = lines[0].split(' ').next().unwrap();
        assert!(time.len() == 20 && time.parse::<Timestamp>().is_ok(), "{time}");
    }

    #[test]
    fn objects_have_what_events_have() {
        let except = None::<&str>;
        let lines = told(Style::Json, LevelFilter::INFO, || {
            info!(event = "kept", client = 7_u64, seconds = 0.5, peer = %"[::1]:1", except, fields.json = %r#"{"a":{"b":1}}"#, "client {}\x1b", 7);
        });
        let mut object: Value = serde_json::from_str(&lines[0]).unwrap();
        assert!(object["time"].take().is_string() && !lines[0].contains('\x1b'));
        assert_eq!(
            object.to_string(),
            r#"{"time":null,"event":"kept","client":7,"seconds":0.5,"peer":"[::1]:1","except":null,"a":{"b":1},"message":"client 7\u001b"}"#
        );
    }
}
