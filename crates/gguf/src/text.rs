//! Text out of a file: bytes that should be UTF-8 and often are.
//!
//! Invariant: nothing here prints a control character, a bidirectional override or any other invisible character as
//! it is. `Display` escapes, so hostile metadata cannot reach a terminal or a log line.

use std::fmt::{self, Write as _};

use crate::limits::MAX_QUOTED_CHARS;

/// A string value. Files promise UTF-8, but vocabularies hold arbitrary bytes, so nothing is promised here.
///
/// ```
/// use oxcart_gguf::Text;
///
/// let text = Text::new(b"caf\xc3\xa9 \x1b[31m \xff");
/// assert_eq!(text.to_string(), r"café \u{1b}[31m \xff");
/// assert_eq!(text.to_str(), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Text<'a>(&'a [u8]);

impl<'a> Text<'a> {
    /// Any bytes.
    pub const fn new(bytes: &'a [u8]) -> Text<'a> {
        Text(bytes)
    }

    /// The bytes as stored.
    pub const fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// Whether a character is printed as it is. Others are escaped.
    pub fn is_plain(c: char) -> bool {
        matches!(c, ' '..='[' | ']'..='~') || c.escape_debug().len() == 1
    }

    /// The text, when it is UTF-8.
    pub fn to_str(self) -> Option<&'a str> {
        std::str::from_utf8(self.0).ok()
    }
}

/// Escaped: printable characters as they are, everything else as `\n`, `\u{..}` or, for bytes that are no UTF-8,
/// `\xNN`.
impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if Text::is_plain(c) {
                    f.write_char(c)?;
                } else {
                    write!(f, "{}", c.escape_debug())?;
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Text<'a> {
        Text(text.as_bytes())
    }
}

/// A key or a tensor name quoted in an error: escaped, shortened, fit for one line.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Name(Box<str>);

impl Name {
    /// The escaped text without quotes.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&[u8]> for Name {
    fn from(bytes: &[u8]) -> Name {
        // A character has at most four bytes and escaping never makes fewer characters, so a prefix is enough.
        let prefix = bytes.get(..MAX_QUOTED_CHARS.saturating_add(1).saturating_mul(4)).unwrap_or(bytes);
        let escaped = Text(prefix).to_string();
        match escaped.char_indices().nth(MAX_QUOTED_CHARS) {
            Some((end, _)) => Name(format!("{}…", escaped.get(..end).unwrap_or_default()).into()),
            None => Name(escaped.into()),
        }
    }
}

impl From<&str> for Name {
    fn from(text: &str) -> Name {
        Name::from(text.as_bytes())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}'", self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_invisible_is_printed() {
        let hostile = "a\u{1b}[2J\u{202e}\r\n\u{0}\u{200b}\u{feff}b";
        let shown = Text::from(hostile).to_string();
        assert!(shown.chars().all(|c| c.is_ascii_graphic()), "{shown}");
        assert!(shown.starts_with('a') && shown.ends_with('b'));
        assert_eq!(Text::from("it's \"fine\" ✓").to_string(), "it's \"fine\" ✓");
    }

    #[test]
    fn names_are_short() {
        assert_eq!(Name::from("general.name").to_string(), "'general.name'");
        let long = Name::from("é".repeat(1000).as_str());
        assert_eq!(long.as_str().chars().count(), MAX_QUOTED_CHARS + 1);
        assert_eq!(Name::from([0xff; 1000].as_slice()).as_str().chars().count(), MAX_QUOTED_CHARS + 1);
    }
}
