//! A JSON schema as it is given to the compiler: within bounds, and with our options.
//!
//! Invariant: whatever matches the result matches the schema. Upper bounds that nothing reaches, and lower ones likewise, are
//! brought to where the compiler's arithmetic is exact.

use serde_json::{Map, Value, json};

use super::bounds::{self, Repair};
use super::{ConstrainError, JsonOptions, JsonWhitespace};

/// Where the compiler looks for options.
const OPTIONS: &str = "x-guidance";

/// A space, or a line break with a few blanks.
const SHORT_SPACE: &str = r"\x20|\x0A[\x20\x09]{0,16}";

pub(in crate::text) fn prepare(schema: &Value, options: JsonOptions) -> Result<String, ConstrainError> {
    // Only what is not nested too deeply can be copied and written.
    bounds::measure(schema)?;
    let mut schema = match schema {
        Value::Bool(true) => Value::Object(Map::new()),
        other => other.clone(),
    };
    bounds::check(&mut schema, Repair::Allowed)?;
    if let Some(members) = schema.as_object_mut() {
        members.insert(OPTIONS.to_owned(), guidance(options));
    }
    Ok(schema.to_string())
}

fn guidance(options: JsonOptions) -> Value {
    let mut guidance = json!({ "coerce_one_of": options.one_of_is_any_of });
    match options.whitespace {
        JsonWhitespace::None => guidance["whitespace_flexible"] = json!(false),
        JsonWhitespace::Short => guidance["whitespace_pattern"] = json!(SHORT_SPACE),
        JsonWhitespace::Any => {}
    }
    guidance
}
