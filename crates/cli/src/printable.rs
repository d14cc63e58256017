//! JSON that is safe to look at: the same values as always, spelled with visible characters.
//!
//! JSON itself escapes only what is below U+0020. Here, whatever [`Text`] escapes for a terminal (delete, the C1
//! controls, bidirectional overrides, invisible characters) is written as `\uXXXX`, which every parser reads as the
//! character.

use std::io::{self, Write};

use oxcart::gguf::Text;
use serde_core::Serialize;
use serde_json::Value;
use serde_json::ser::Formatter;

use crate::failure::Failure;

/// Writes a value as one line.
pub(crate) fn write_json(value: &Value, out: &mut dyn Write) -> Result<(), Failure> {
    value
        .serialize(&mut serde_json::Serializer::with_formatter(&mut *out, Printable))
        .map_err(io::Error::from)?;
    Ok(writeln!(out)?)
}

/// A value as one line, without its end.
pub(crate) fn line(value: &Value) -> String {
    let mut out = Vec::new();
    let written = value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, Printable));
    written.map(|()| String::from_utf8_lossy(&out).into_owned()).unwrap_or_default()
}

/// Formats JSON on one line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Printable;

impl Formatter for Printable {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, out: &mut W, fragment: &str) -> io::Result<()> {
        let mut plain_from = 0;
        for (at, c) in fragment.char_indices().filter(|&(_, c)| !Text::is_plain(c)) {
            out.write_all(&fragment.as_bytes()[plain_from..at])?;
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04x}")?;
            }
            plain_from = at + c.len_utf8();
        }
        out.write_all(&fragment.as_bytes()[plain_from..])
    }
}

#[cfg(test)]
mod tests {
    use serde_core::Serialize;

    use super::*;

    fn printed(text: &str) -> String {
        let mut out = Vec::new();
        text.serialize(&mut serde_json::Serializer::with_formatter(&mut out, Printable)).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_character_reads_back_and_none_is_invisible() {
        let all: String =
            (0..=0x3_0000).filter_map(char::from_u32).chain(['\u{e0001}', '\u{10ffff}']).collect();
        let json = printed(&all);
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), all);
        assert!(json.chars().all(|c| c == '\\' || Text::is_plain(c)));
        assert!(!json.contains([
            '\u{7f}',
            '\u{9b}',
            '\u{202e}',
            '\u{2066}',
            '\u{200b}',
            '\u{feff}',
            '\u{e0001}'
        ]));
    }

    #[test]
    fn what_is_visible_stays() {
        assert_eq!(printed("it's \"fine\" \\ ✓ ▁é 漢"), r#""it's \"fine\" \\ ✓ ▁é 漢""#);
        assert_eq!(printed("\u{1b}[31m\u{9b}\u{202e}\u{e0001}"), r#""\u001b[31m\u009b\u202e\udb40\udc01""#);
    }
}
