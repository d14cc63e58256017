//! JSON from clients: bounded before it is read.
//!
//! Invariant: a body that is parsed has a bounded number of values and bounded nesting, so that what it takes once it is read is a
//! small multiple of its length.

use serde::de::DeserializeOwned;

use crate::error::{ApiError, Kind};
use crate::limits::{MAX_JSON_DEPTH, MAX_JSON_VALUES};

/// Reads a body.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    check(bytes)?;
    // All of it, not only what is looked at.
    let text = std::str::from_utf8(bytes).map_err(|_| ApiError::bad("the body is not UTF-8"))?;
    serde_json::from_str(text)
        .map_err(|error| ApiError::bad(format!("the body is not valid for this endpoint: {error}")))
}

/// Counts values and nesting; whether it is JSON at all is not its concern.
fn check(bytes: &[u8]) -> Result<(), ApiError> {
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
                values += 1;
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' => values += 1,
            _ => {}
        }
        if depth > MAX_JSON_DEPTH {
            return Err(ApiError::bad(format!("the body is nested deeper than {MAX_JSON_DEPTH} levels")));
        }
    }
    match values > MAX_JSON_VALUES {
        true => {
            Err(ApiError::new(Kind::TooLarge, format!("the body has more than {MAX_JSON_VALUES} values")))
        }
        false => Ok(()),
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
    fn messages_are_short() {
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Nothing {}
        let long = format!("{{\"{}\": 1}}", "é".repeat(1 << 16));
        let Err(error) = parse::<Nothing>(long.as_bytes()) else { panic!("taken") };
        assert!(error.message.len() <= MAX_MESSAGE_BYTES + 3, "{}", error.message.len());
    }
}
