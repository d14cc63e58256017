//! Values as JSON, with the white space that Python's `json.dumps` writes: models were trained on that.

use std::fmt::Write as _;
use std::io::{self, Write};

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use crate::text::limits::{MAX_TEMPLATE_VALUE, MAX_TEMPLATE_WIDTH};

/// The filter `tojson`. Other arguments of `json.dumps` than `indent` and `ensure_ascii` are accepted and change nothing.
pub(super) fn to_json(value: &Value, indent: Option<Value>, named: Kwargs) -> Result<String, Error> {
    let indent = match indent {
        Some(indent) => indent,
        None => named.get::<Option<Value>>("indent")?.unwrap_or_default(),
    };
    let width = if indent.is_undefined() || indent.is_none() { None } else { Some(usize::try_from(indent)?) };
    if width.is_some_and(|width| width > MAX_TEMPLATE_WIDTH) {
        return Err(Error::new(ErrorKind::InvalidOperation, format!("a width above {MAX_TEMPLATE_WIDTH}")));
    }
    let mut json = Bounded(Vec::new());
    let written = match width {
        None => serialize(value, &mut Serializer::with_formatter(&mut json, Spaced)),
        Some(width) => {
            let indent = " ".repeat(width);
            serialize(
                value,
                &mut Serializer::with_formatter(&mut json, PrettyFormatter::with_indent(indent.as_bytes())),
            )
        }
    };
    let bad = |reason: String| Error::new(ErrorKind::BadSerialization, reason);
    written.map_err(|error| bad(error.to_string()))?;
    let json = String::from_utf8(json.0).map_err(|error| bad(error.to_string()))?;
    match named.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false) {
        true => ascii(&json).ok_or_else(|| bad("a value grows too large".to_owned())),
        false => Ok(json),
    }
}

/// JSON with all other characters than those of ASCII by their numbers. They stand in strings alone. Nothing if it grows too large.
fn ascii(json: &str) -> Option<String> {
    let mut ascii = String::with_capacity(json.len());
    for c in json.chars() {
        if c.is_ascii() {
            ascii.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing into a text does not fail.
            let _ = write!(ascii, "\\u{unit:04x}");
        }
        if ascii.len() > MAX_TEMPLATE_VALUE {
            return None;
        }
    }
    Some(ascii)
}

fn serialize<W: Write, F: Formatter>(value: &Value, out: &mut Serializer<W, F>) -> serde_json::Result<()> {
    serde::Serialize::serialize(value, out)
}

/// As much as a value may have: indentation grows with the depth.
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len().saturating_add(bytes.len()) > MAX_TEMPLATE_VALUE {
            return Err(io::Error::other("a value grows too large"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `, ` between elements and `: ` behind names.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}
