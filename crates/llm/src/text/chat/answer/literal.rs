//! A call whose arguments are written as literals: `name(a=1, b='x')` as Python writes it, `name{a:1,b:<|"|>x<|"|>}` as Gemma does.
//!
//! Invariant: what is handed out is JSON as long as the literals are sound; nesting takes a byte each.

use super::sink::Sink;
use super::text::{StringReader, escape_into};
use crate::text::limits::MAX_CALL_HELD;

/// A call in the making, from behind its opening bracket on.
#[derive(Clone, Debug)]
pub(super) struct LiteralReader {
    /// What stands around strings, where that is not a quote.
    quote: &'static str,
    /// Closing brackets, as they are written and as JSON has them.
    open: Vec<(char, char)>,
    place: Place,
    comma: bool,
}

#[derive(Clone, Debug)]
enum Place {
    Between,
    Word(String),
    Text(StringReader),
    /// So many characters of the marker around strings have come.
    OpenQuote(usize),
    Quoted,
    CloseQuote(usize),
}

impl LiteralReader {
    /// After an opening bracket, which is not the first character of the arguments.
    pub(super) fn new(bracket: char, quote: &'static str, sink: &mut Sink) -> LiteralReader {
        sink.arguments("{");
        let close = if bracket == '(' { ')' } else { '}' };
        LiteralReader { quote, open: vec![(close, '}')], place: Place::Between, comma: false }
    }

    /// Takes a character; `true` at the end of the call.
    pub(super) fn feed(&mut self, c: char, sink: &mut Sink) -> bool {
        let mut json = String::new();
        let ended = self.read(c, &mut json);
        sink.arguments(&json);
        ended
    }

    fn read(&mut self, c: char, json: &mut String) -> bool {
        let quote = self.quote;
        let quoted = |at: usize| quote.chars().nth(at);
        match std::mem::replace(&mut self.place, Place::Between) {
            Place::Text(mut reader) => {
                let mut text = String::new();
                let ended = reader.feed(c, &mut text);
                escape_into(&text, json);
                if ended {
                    json.push('"');
                } else {
                    self.place = Place::Text(reader);
                }
            }
            Place::OpenQuote(at) if quoted(at) == Some(c) => {
                let whole = quoted(at + 1).is_none();
                if whole {
                    json.push('"');
                }
                self.place = if whole { Place::Quoted } else { Place::OpenQuote(at + 1) };
            }
            Place::OpenQuote(at) => {
                self.place = Place::Word(self.quote.chars().take(at).collect());
                return self.read(c, json);
            }
            Place::Quoted if quoted(0) == Some(c) => self.place = Place::CloseQuote(1),
            Place::Quoted => {
                escape_into(c.encode_utf8(&mut [0; 4]), json);
                self.place = Place::Quoted;
            }
            Place::CloseQuote(at) if quoted(at) == Some(c) => {
                let whole = quoted(at + 1).is_none();
                if whole {
                    json.push('"');
                } else {
                    self.place = Place::CloseQuote(at + 1);
                }
            }
            Place::CloseQuote(at) => {
                escape_into(&self.quote.chars().take(at).collect::<String>(), json);
                self.place = Place::Quoted;
                return self.read(c, json);
            }
            Place::Word(word)
                if matches!(c, ',' | ':' | '=' | ')' | ']' | '}') || word.len() > MAX_CALL_HELD =>
            {
                json.push_str(&literal(word.trim(), matches!(c, ':' | '=')));
                return self.between(c, json);
            }
            Place::Word(mut word) => {
                word.push(c);
                self.place = Place::Word(word);
            }
            Place::Between => return self.between(c, json),
        }
        false
    }

    fn between(&mut self, c: char, json: &mut String) -> bool {
        match c {
            c if c.is_whitespace() => return false,
            ',' => {
                self.comma = true;
                return false;
            }
            ':' | '=' => {
                json.push(':');
                return false;
            }
            ')' | ']' | '}' => {
                self.comma = false;
                let (_, close) = self.open.pop().unwrap_or((c, c));
                json.push(close);
                return self.open.is_empty();
            }
            _ => {}
        }
        if std::mem::take(&mut self.comma) {
            json.push(',');
        }
        match c {
            '{' => self.push(c, ('}', '}'), json),
            '[' => self.push(c, (']', ']'), json),
            '(' => self.push('[', (')', ']'), json),
            '"' => {
                json.push('"');
                self.place = Place::Text(StringReader::new(c));
            }
            '\'' if self.quote.is_empty() => {
                json.push('"');
                self.place = Place::Text(StringReader::new(c));
            }
            c if self.quote.starts_with(c) => self.place = Place::OpenQuote(1),
            c => self.place = Place::Word(c.to_string()),
        }
        false
    }

    fn push(&mut self, bracket: char, close: (char, char), json: &mut String) {
        json.push(bracket);
        self.open.push(close);
    }
}

/// A word as JSON: numbers and the like as they are, anything else, and keys, as strings.
fn literal(word: &str, is_key: bool) -> String {
    let plain = match word {
        "True" => "true",
        "False" => "false",
        "None" => "null",
        other => other,
    };
    if !is_key && serde_json::from_str::<serde_json::Value>(plain).is_ok() {
        return plain.to_owned();
    }
    let mut json = "\"".to_owned();
    escape_into(word.trim_matches('"'), &mut json);
    json.push('"');
    json
}
