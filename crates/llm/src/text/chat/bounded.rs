//! Filters and methods of the engine that could make much out of little in one step, with bounds.
//!
//! Invariant: none of them makes more than [`MAX_TEMPLATE_VALUE`] bytes or [`MAX_TEMPLATE_ELEMENTS`] elements.

use minijinja::value::{Kwargs, Rest, StringInput, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};

use crate::text::limits::{MAX_TEMPLATE_ELEMENTS, MAX_TEMPLATE_VALUE, MAX_TEMPLATE_WIDTH};

pub(super) fn add_filters(environment: &mut Environment<'_>) {
    environment.add_filter("indent", indent);
    environment.add_filter("format", format);
    environment.add_filter("replace", replace);
    environment.add_filter("join", join);
    environment.add_filter("batch", batch);
    environment.add_filter("slice", slice);
}

/// Whether a method of a string may be called.
pub(super) fn check_method(value: &Value, method: &str, arguments: &[Value]) -> Result<(), Error> {
    let Some(text) = value.as_str() else { return Ok(()) };
    let argument = |at: usize| arguments.get(at).and_then(Value::as_str).unwrap_or_default();
    match method {
        "format" => check_widths(text),
        "replace" => check_replaced(text, argument(0), argument(1)),
        "join" => match arguments.first() {
            Some(items) => check_joined(items, text),
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

fn indent(
    text: StringInput<'_>,
    width: Option<usize>,
    first: Option<bool>,
    blank: Option<bool>,
    named: Kwargs,
) -> Result<Value, Error> {
    let spaces = width.or(named.peek::<Option<usize>>("width")?).unwrap_or(4);
    if spaces > MAX_TEMPLATE_WIDTH {
        return Err(too_much());
    }
    check_replaced(text.as_str(), "\n", &" ".repeat(spaces + 1))?;
    filters::indent(text, width, first, blank, named)
}

fn format(state: &mut State<'_, '_>, text: &Value, arguments: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    check_widths(text.as_str().unwrap_or_default())?;
    filters::format(state, text, arguments)
}

fn replace(
    state: &mut State<'_, '_>,
    text: StringInput<'_>,
    from: StringInput<'_>,
    to: StringInput<'_>,
) -> Result<Value, Error> {
    check_replaced(text.as_str(), from.as_str(), to.as_str())?;
    filters::replace(state, text, from, to)
}

fn join(
    state: &mut State<'_, '_>,
    items: &Value,
    joiner: Option<StringInput<'_>>,
    attribute: Option<&str>,
    named: Kwargs,
) -> Result<Value, Error> {
    let between = named.peek::<Option<String>>("d")?;
    check_joined(items, joiner.as_ref().map(StringInput::as_str).or(between.as_deref()).unwrap_or_default())?;
    filters::join(state, items, joiner, attribute, named)
}

fn batch(state: &State<'_, '_>, items: Value, count: usize, fill: Option<Value>) -> Result<Value, Error> {
    check_count(count)?;
    filters::batch(state, items, count, fill)
}

fn slice(state: &State<'_, '_>, items: Value, count: usize, fill: Option<Value>) -> Result<Value, Error> {
    check_count(count)?;
    filters::slice(state, items, count, fill)
}

/// Widths and precisions in a format are digits; none may be larger than the bound, and none may come from elsewhere.
fn check_widths(format: &str) -> Result<(), Error> {
    let digits = MAX_TEMPLATE_WIDTH.ilog10() as usize + 1;
    let too_many = format.split(|c: char| !c.is_ascii_digit()).any(|run| run.len() > digits);
    if too_many || format.contains('*') { Err(too_much()) } else { Ok(()) }
}

fn check_replaced(text: &str, from: &str, to: &str) -> Result<(), Error> {
    check_len(text.matches(from).count().saturating_mul(to.len()).saturating_add(text.len()))
}

fn check_joined(items: &Value, joiner: &str) -> Result<(), Error> {
    let mut len = 0_usize;
    for item in items.try_iter()? {
        let own = item.as_str().map_or_else(|| item.to_string().len(), str::len);
        len = len.saturating_add(own).saturating_add(joiner.len());
        check_len(len)?;
    }
    Ok(())
}

fn check_len(len: usize) -> Result<(), Error> {
    if len > MAX_TEMPLATE_VALUE { Err(too_much()) } else { Ok(()) }
}

fn check_count(count: usize) -> Result<(), Error> {
    if count > MAX_TEMPLATE_ELEMENTS { Err(too_much()) } else { Ok(()) }
}

fn too_much() -> Error {
    Error::new(ErrorKind::InvalidOperation, "a value grows too large")
}
