//! Text piece by piece: markers that may be cut anywhere, strings of JSON, values of JSON.

/// What was looked for in a text that goes on.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Where the first marker begins, and which one it is.
    Marker(usize, usize),
    /// Nothing; no marker begins in so many bytes.
    Nothing(usize),
}

/// Looks for the first of some markers; of those at the same place, for the longest. Nothing behind it is looked at.
pub(super) fn find(text: &str, markers: &[&str]) -> Found {
    find_from(text, 0, markers)
}

/// The same, where it is known that none begins in the first bytes.
pub(super) fn find_from(text: &str, from: usize, markers: &[&str]) -> Found {
    let may_begin = |byte: &u8| markers.iter().any(|marker| marker.as_bytes().first() == Some(byte));
    let mut at = from;
    while let Some(skipped) = text.as_bytes().get(at..).and_then(|rest| rest.iter().position(may_begin)) {
        at += skipped;
        // Markers begin with a whole character, and so does what is looked at.
        match begins(text.get(at..).unwrap_or_default(), markers, false) {
            Begins::With(which) => return Found::Marker(at, which),
            Begins::Perhaps => return Found::Nothing(at),
            Begins::No => at += 1,
        }
    }
    Found::Nothing(text.len())
}

/// Whether a text begins with one of some markers.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Begins {
    /// With this one.
    With(usize),
    /// That cannot be said yet.
    Perhaps,
    /// With none.
    No,
}

/// `last` says that nothing follows the text.
pub(super) fn begins(text: &str, markers: &[&str], last: bool) -> Begins {
    // A longer marker may still be on its way.
    if !last && markers.iter().any(|marker| marker.len() > text.len() && marker.starts_with(text)) {
        return Begins::Perhaps;
    }
    let fitting = markers.iter().enumerate().filter(|(_, marker)| text.starts_with(**marker));
    match fitting.max_by_key(|(_, marker)| marker.len()) {
        Some((which, _)) => Begins::With(which),
        None => Begins::No,
    }
}

/// Appends text as it stands in a string of JSON.
pub(super) fn escape_into(text: &str, json: &mut String) {
    for c in text.chars() {
        match c {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            '\n' => json.push_str("\\n"),
            '\r' => json.push_str("\\r"),
            '\t' => json.push_str("\\t"),
            c if c < ' ' => {
                json.push_str("\\u00");
                json.push(char::from_digit(u32::from(c) >> 4, 16).unwrap_or('0'));
                json.push(char::from_digit(u32::from(c) & 15, 16).unwrap_or('0'));
            }
            c => json.push(c),
        }
    }
}

/// A string of JSON or Python after its opening quote, character by character.
#[derive(Clone, Debug)]
pub(super) struct StringReader {
    quote: char,
    escape: Escape,
    /// The first half of a character that is written in two.
    high: Option<u32>,
}

#[derive(Clone, Debug)]
enum Escape {
    None,
    Begun,
    /// Digits that are missing, and the number so far.
    Hex(u8, u32),
}

impl StringReader {
    pub(super) fn new(quote: char) -> StringReader {
        StringReader { quote, escape: Escape::None, high: None }
    }

    /// Takes a character; `true` at the end of the string. What it stands for is appended.
    pub(super) fn feed(&mut self, c: char, text: &mut String) -> bool {
        match self.escape {
            Escape::None if c == self.quote => {
                self.flush(text);
                return true;
            }
            Escape::None if c == '\\' => self.escape = Escape::Begun,
            Escape::None => {
                self.flush(text);
                text.push(c);
            }
            Escape::Begun => {
                self.escape = Escape::None;
                match c {
                    'u' => self.escape = Escape::Hex(4, 0),
                    'x' if self.quote != '"' => self.escape = Escape::Hex(2, 0),
                    _ => {
                        self.flush(text);
                        text.push(match c {
                            'n' => '\n',
                            't' => '\t',
                            'r' => '\r',
                            'b' => '\u{8}',
                            'f' => '\u{c}',
                            other => other,
                        });
                    }
                }
            }
            Escape::Hex(missing, number) => match c.to_digit(16) {
                Some(digit) if missing > 1 => self.escape = Escape::Hex(missing - 1, number << 4 | digit),
                Some(digit) => {
                    self.escape = Escape::None;
                    self.unit(number << 4 | digit, text);
                }
                None => {
                    self.escape = Escape::None;
                    text.push(char::REPLACEMENT_CHARACTER);
                    return self.feed(c, text);
                }
            },
        }
        false
    }

    /// Takes a unit of UTF-16.
    fn unit(&mut self, unit: u32, text: &mut String) {
        match (self.high.take(), unit) {
            (Some(high), 0xdc00..0xe000) => {
                let code = 0x1_0000 + ((high - 0xd800) << 10) + (unit - 0xdc00);
                text.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            (before, unit) => {
                if before.is_some() {
                    text.push(char::REPLACEMENT_CHARACTER);
                }
                match unit {
                    0xd800..0xdc00 => self.high = Some(unit),
                    _ => text.push(char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER)),
                }
            }
        }
    }

    fn flush(&mut self, text: &mut String) {
        if self.high.take().is_some() {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

/// Where a value of JSON ends, whatever is in it.
#[derive(Clone, Debug, Default)]
pub(super) struct ValueReader {
    depth: usize,
    in_string: bool,
    escaped: bool,
    begun: bool,
}

/// What a character is to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// It is in it, and more follows.
    Inside,
    /// It is its last.
    Last,
    /// It is behind it.
    Behind,
}

impl ValueReader {
    pub(super) fn feed(&mut self, c: char) -> Part {
        if self.in_string {
            match c {
                _ if self.escaped => self.escaped = false,
                '\\' => self.escaped = true,
                '"' => {
                    self.in_string = false;
                    return if self.depth == 0 { Part::Last } else { Part::Inside };
                }
                _ => {}
            }
            return Part::Inside;
        }
        match c {
            '"' => self.in_string = true,
            '{' | '[' => self.depth += 1,
            '}' | ']' | ',' if self.depth == 0 => return Part::Behind,
            '}' | ']' => {
                self.depth -= 1;
                if self.depth == 0 {
                    return Part::Last;
                }
            }
            c if c.is_ascii_whitespace() && self.depth == 0 && self.begun => return Part::Behind,
            _ => {}
        }
        self.begun = true;
        Part::Inside
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_are_found_once_they_are_whole() {
        let markers = ["<tool>", "[X]"];
        assert_eq!(find("ab<tool>[X]", &markers), Found::Marker(2, 0));
        assert_eq!(find("ab[X]<tool>", &markers), Found::Marker(2, 1));
        assert_eq!(find("ab<too", &markers), Found::Nothing(2));
        assert_eq!(find("ab<tool ", &markers), Found::Nothing(8));
        assert_eq!(find("é<<", &markers), Found::Nothing(3));
        assert_eq!(begins("<to", &markers, false), Begins::Perhaps);
        assert_eq!(begins("", &markers, false), Begins::Perhaps);
        assert_eq!(begins("<ta", &markers, false), Begins::No);
        assert_eq!(begins("[X]y", &markers, false), Begins::With(1));
        let nested = ["<a>", "<a>b", "<a>bc"];
        assert_eq!(find("x<a>", &nested), Found::Nothing(1));
        assert_eq!(find("x<a>c", &nested), Found::Marker(1, 0));
        assert_eq!(find("x<a>bd", &nested), Found::Marker(1, 1));
        // What may be a marker is not given up for one within it.
        assert_eq!(find("x[X]", &["[X]Y", "]"]), Found::Nothing(1));
        assert_eq!(find("x[X]Z", &["[X]Y", "]"]), Found::Marker(3, 1));
        assert_eq!(find_from("ab<too", 2, &markers), Found::Nothing(2));
        assert_eq!(find_from("ab<tool>", 2, &markers), Found::Marker(2, 0));
    }

    #[test]
    fn strings_are_read_as_serde_reads_them() {
        for json in [r#""a\n\"\\\/\u00e9\ud83d\ude00""#, r#""""#, r#""\u0041\ud83dx""#] {
            let mut reader = StringReader::new('"');
            let mut text = String::new();
            let ended =
                json.chars().skip(1).map(|c| reader.feed(c, &mut text)).filter(|ended| *ended).count();
            assert_eq!(ended, 1);
            match serde_json::from_str::<String>(json) {
                Ok(expected) => assert_eq!(text, expected),
                Err(_) => assert_eq!(text, "A\u{fffd}x"),
            }
        }
        let mut json = String::new();
        let text = "a\"\\\n\t\u{1}é😀\u{1f}";
        escape_into(text, &mut json);
        assert_eq!(serde_json::from_str::<String>(&format!("\"{json}\"")).unwrap(), text);
    }

    #[test]
    fn values_end_where_they_end() {
        for (json, expected) in
            [("{\"a\":[1,{}],\"}\":2}x", 19 - 1), ("12,", 2), ("\"a\\\"\" ", 5), ("true}", 4), ("[] ", 2)]
        {
            let mut reader = ValueReader::default();
            let mut len = 0;
            for c in json.chars() {
                match reader.feed(c) {
                    Part::Inside => len += 1,
                    Part::Last => {
                        len += 1;
                        break;
                    }
                    Part::Behind => break,
                }
            }
            assert_eq!(len, expected, "{json}");
        }
    }
}
