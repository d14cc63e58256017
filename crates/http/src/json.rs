//! JSON from clients: bounded before it is read.
//!
//! Invariant: a body that is parsed has bounded nesting, and what it takes once it is read is known before, from its text alone, and
//! bounded.

use serde::de::DeserializeOwned;

use crate::error::{ApiError, Kind};
use crate::limits::{JSON_VALUE_BYTES, MAX_JSON_DEPTH, MAX_JSON_VALUES};

/// Reads a body.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    parse_in(bytes, |_| Ok(()))
}

/// Reads a body for which room is made, before anything is built: so many bytes beside its text.
pub(crate) fn parse_in<T: DeserializeOwned>(
    bytes: &[u8],
    make_room: impl FnOnce(usize) -> Result<(), ApiError>,
) -> Result<T, ApiError> {
    make_room(count(bytes)?.saturating_mul(JSON_VALUE_BYTES))?;
    // All of it, not only what is looked at.
    let text = std::str::from_utf8(bytes).map_err(|_| ApiError::bad("the body is not UTF-8"))?;
    serde_json::from_str(text).map_err(|error| ApiError::bad(format!("the body could not be read: {error}")))
}

/// What lists, objects and their members count that take more than a value: their first member has memory for four, a member has a name and
/// a place in an index.
const LIST: usize = 4;
const OBJECT: usize = 6;
const NAME: usize = 2;

/// Counts nesting and values, in which lists and objects are several; whether it is JSON at all is not its concern.
fn count(bytes: &[u8]) -> Result<usize, ApiError> {
    let (mut depth, mut values, mut in_string, mut is_escaped) = (0_usize, 1_usize, false, false);
    for &byte in bytes {
        if in_string {
            in_string = is_escaped || byte != b'"';
            is_escaped = !is_escaped && byte == b'\\';
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'[' | b'{' => {
                depth += 1;
                values += if byte == b'[' { LIST } else { OBJECT };
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b':' => values += NAME,
            b',' => values += 1,
            _ => {}
        }
        if depth > MAX_JSON_DEPTH {
            return Err(ApiError::bad(format!("the body is nested deeper than {MAX_JSON_DEPTH} levels")));
        }
    }
    match values > MAX_JSON_VALUES {
        true => {
            let message = format!(
                "the body has more than {MAX_JSON_VALUES} values, of which a list counts as {LIST} and an object as {OBJECT}"
            );
            Err(ApiError::new(Kind::TooLarge, message))
        }
        false => Ok(values),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::MAX_MESSAGE_BYTES;
    use serde_json::Value;

    #[test]
    fn what_would_take_much_memory_is_refused() {
        let kind = |text: &str| parse::<Value>(text.as_bytes()).map(|_| ()).map_err(|error| error.kind);
        assert_eq!(kind(&format!("{}{}", "[".repeat(64), "]".repeat(64))), Ok(()));
        assert_eq!(kind(&format!("{}{}", "[".repeat(65), "]".repeat(65))), Err(Kind::BadRequest));
        assert_eq!(kind(&"[".repeat(1 << 20)), Err(Kind::BadRequest));
        assert_eq!(kind(&format!("[{}0]", "0,".repeat(MAX_JSON_VALUES))), Err(Kind::TooLarge));
        assert_eq!(kind(&format!("[{:?}]", "[,{".repeat(MAX_JSON_VALUES))), Ok(()), "in a string it is text");
        assert_eq!(kind(r#"["\"[[[[", "\\"]"#), Ok(()));
        for broken in ["", "{", "\"", "nul", "{\"a\":1}}", "\u{feff}{}", "[1e999]", "\"\\ud800\""] {
            assert_eq!(kind(broken), Err(Kind::BadRequest), "{broken:?}");
        }
        assert!(parse::<Value>(b"\"\xff\"").is_err(), "bad UTF-8");
    }

    #[test]
    fn objects_and_lists_count_for_what_they_take() {
        let counted = |text: &str| {
            let mut counted = 0;
            let read = parse_in::<Value>(text.as_bytes(), |bytes| {
                counted = bytes / JSON_VALUE_BYTES;
                Ok(())
            });
            read.map(|_| counted).map_err(|error| error.kind)
        };
        assert_eq!(counted("1"), Ok(1));
        assert_eq!(counted("[1,2,3]"), Ok(1 + LIST + 2));
        assert_eq!(counted(r#"{"a:{":1,"b":[]}"#), Ok(1 + OBJECT + 2 * NAME + 1 + LIST));
        let objects = |count: usize| format!("[{}0]", "{},".repeat(count));
        let most = (MAX_JSON_VALUES - 1 - LIST) / (OBJECT + 1);
        assert!(counted(&objects(most)).is_ok());
        assert_eq!(counted(&objects(most + 1)), Err(Kind::TooLarge));
        // Nothing is built where there is no room.
        let full = || ApiError::new(Kind::Busy, "full");
        assert_eq!(parse_in::<Value>(b"{", |_| Err(full())).unwrap_err(), full());
    }

    #[test]
    fn messages_are_short() {
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Nothing {}
        let long = format!("{{\"{}\": 1}}", "é".repeat(1 << 16));
        let Err(error) = parse::<Nothing>(long.as_bytes()) else { panic!("taken") };
        assert!(error.message.len() <= MAX_MESSAGE_BYTES + 3, "{}", error.message.len());
    }
}
