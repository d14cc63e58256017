//! Filters that are as Jinja2 has them, where the engine's own are not.

use minijinja::value::Kwargs;
use minijinja::{Error, Value, filters};

/// `length`: what is not there has none.
pub(super) fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() { Ok(0) } else { filters::length(value) }
}

/// `indent`: a line break at the end stays.
pub(super) fn indent(
    text: String,
    width: Option<usize>,
    first: Option<bool>,
    blank: Option<bool>,
    named: Kwargs,
) -> Result<String, Error> {
    let flag = |given: Option<bool>, name: &str| -> Result<bool, Error> {
        let named = named.get::<Option<bool>>(name)?;
        Ok(given.or(named).unwrap_or(false))
    };
    let width = width.or(named.get::<Option<usize>>("width")?).unwrap_or(4);
    let (first, blank) = (flag(first, "first")?, flag(blank, "blank")?);
    named.assert_all_used()?;
    let space = " ".repeat(width);
    let mut indented = String::with_capacity(text.len());
    for (at, line) in text.split('\n').enumerate() {
        if at > 0 {
            indented.push('\n');
        }
        let is_indented = if at == 0 { first } else { blank || !line.is_empty() };
        if is_indented {
            indented.push_str(&space);
        }
        indented.push_str(line);
    }
    Ok(indented)
}

/// What becomes of text that is added to text marked as `safe`: it could be taken for markup, so it is escaped. That text has nothing
/// to do with markup here changes nothing about it.
pub(super) fn escaped(value: Value) -> Value {
    let Some(text) = value.as_str().filter(|_| !value.is_safe()) else { return value };
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\'' => escaped.push_str("&#39;"),
            '"' => escaped.push_str("&#34;"),
            c => escaped.push(c),
        }
    }
    Value::from_safe_string(escaped)
}
