//! Every filter, test, function and method that a template may use, and what it pays.
//!
//! What is not listed here does not exist, so a newer engine brings nothing that has no price. Left out on purpose: `debug`
//! and `pprint`, which write without bounds and tell about the host, and `chain` and `zip`, which Jinja does not have.
//!
//! Invariant: all of them pay for what they look at before they look, and for what they make before anything else sees it.
//! Those that could make much out of little pay for that beforehand, too.

use minijinja::value::{Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters, functions, tests};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::budget::{Budget, too_large};
use super::json::to_json;
use super::python;
use super::rewrite::{CYCLE, ESCAPED, FIND, MADE, PRODUCT, READ, SHAPE, SLICE};
use super::slice::slice;
use crate::text::limits::{MAX_TEMPLATE_ELEMENTS, MAX_TEMPLATE_VALUE, MAX_TEMPLATE_WIDTH};

/// What is looked at.
#[derive(Clone, Copy, Debug)]
enum Cost {
    /// The kind of a value.
    Kind,
    /// One element of the first argument, or how many there are.
    Find,
    /// The elements of the first argument, and all of the others.
    Shape,
    /// All of all arguments.
    Read,
    /// All of all arguments, again and again.
    Sort,
}

/// How often sorting looks at a value.
const SORTED: u64 = 16;

pub(super) fn add_all(environment: &mut Environment<'_>, budget: &Budget) {
    for (name, filter, cost) in all_filters() {
        environment.add_filter(name, paying(budget, name, filter, cost));
    }
    for (names, test, cost) in all_tests() {
        for name in names {
            environment.add_test(*name, paying(budget, name, test.clone(), cost));
        }
    }
    for (name, function) in
        [("range", Value::from_function(functions::range)), ("dict", Value::from_function(functions::dict))]
    {
        environment.add_function(name, paying(budget, name, function, Cost::Shape));
    }
    let (noted, namespace) = (budget.clone(), Value::from_function(functions::namespace));
    let namespace = paying(budget, "namespace", namespace, Cost::Shape);
    environment.add_function("namespace", move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
        let namespace = namespace(state, args)?;
        noted.note_namespace(&namespace);
        Ok::<_, Error>(namespace)
    });
    add_operators(environment, budget);
    let paid = budget.clone();
    environment.set_unknown_method_callback(move |state, value, method, arguments| {
        pay_method(&paid, value, method, arguments)?;
        paid.made(unknown_method_callback(state, value, method, arguments)?)
    });
}

/// What `rewrite` puts around operators.
fn add_operators(environment: &mut Environment<'_>, budget: &Budget) {
    let paid = budget.clone();
    environment.add_filter(READ, move |value: Value| paid.read(&value).map(|_| value));
    let paid = budget.clone();
    environment.add_filter(SHAPE, move |value: Value| paid.shape(&value).map(|()| value));
    let paid = budget.clone();
    environment.add_filter(FIND, move |value: Value| paid.find(&value).map(|()| value));
    let paid = budget.clone();
    environment.add_filter(MADE, move |value: Value| paid.made(value));
    let paid = budget.clone();
    environment.add_filter(ESCAPED, move |value: Value| {
        paid.read(&value)?;
        paid.made(python::escaped(value))
    });
    let paid = budget.clone();
    environment.add_filter(PRODUCT, move |left: Value, right: Value| paid.product(&left, &right));
    let paid = budget.clone();
    environment.add_filter(SLICE, move |value: Value, start: Value, stop: Value, step: Value| {
        paid.shape(&value)?;
        paid.made(slice(&value, &start, &stop, &step)?)
    });
    environment.add_filter(CYCLE, |index: usize, values: Rest<Value>| {
        let at =
            index.checked_rem(values.len()).ok_or_else(|| bad("loop.cycle() has nothing to choose from"))?;
        Ok::<_, Error>(values[at].clone())
    });
}

/// A function that pays.
fn paying(
    budget: &Budget,
    name: &'static str,
    function: Value,
    cost: Cost,
) -> impl Fn(&mut State<'_, '_>, Rest<ValueOrKwargs>) -> Result<Value, Error> + Send + Sync + 'static {
    let budget = budget.clone();
    move |state, arguments| {
        let arguments = arguments.into_values();
        pay(&budget, cost, &arguments)?;
        pay_growth(&budget, name, &arguments)?;
        budget.made(function.call(state, &arguments)?)
    }
}

fn pay(budget: &Budget, cost: Cost, arguments: &[Value]) -> Result<(), Error> {
    let (first, others) =
        arguments.split_first().map_or((None, arguments), |(first, others)| (Some(first), others));
    let (times, all) = match cost {
        Cost::Kind => return Ok(()),
        Cost::Find => {
            first.map(|first| budget.find(first)).transpose()?;
            (0, others)
        }
        Cost::Shape => {
            first.map(|first| budget.shape(first)).transpose()?;
            (0, others)
        }
        Cost::Read => (0, arguments),
        Cost::Sort => (SORTED, arguments),
    };
    for argument in all {
        let read = budget.read(argument)?;
        budget.spend(read.saturating_mul(times))?;
    }
    Ok(())
}

fn pay_method(budget: &Budget, value: &Value, method: &str, arguments: &[Value]) -> Result<(), Error> {
    let is_get = method == "get";
    match value.kind() {
        ValueKind::Map if is_get => {}
        ValueKind::Map => budget.shape(value)?,
        _ => {
            budget.read(value)?;
        }
    }
    // The second argument of `get` is given back as it is.
    for argument in &arguments[..if is_get { arguments.len().min(1) } else { arguments.len() }] {
        budget.read(argument)?;
    }
    let as_filter = match method {
        // The other way round than the filter.
        "join" => return pay_join(budget, arguments.first(), value.as_str().unwrap_or_default()),
        "strip" | "lstrip" | "rstrip" => "trim",
        other => other,
    };
    let mut all = vec![value.clone()];
    all.extend_from_slice(arguments);
    pay_growth(budget, as_filter, &all)
}

/// Pays for what grows with the product of its arguments.
fn pay_growth(budget: &Budget, name: &str, arguments: &[Value]) -> Result<(), Error> {
    let text = |at: usize| arguments.get(at).and_then(Value::as_str).unwrap_or_default();
    let named = |name: &str| {
        let named = arguments.last().filter(|last| last.is_kwargs())?;
        named.get_attr(name).ok().filter(|value| !value.is_undefined())
    };
    let number = |at: usize, name: &str| {
        let given = arguments.get(at).filter(|value| value.is_number()).cloned().or_else(|| named(name));
        given.map_or(Ok(0), usize::try_from)
    };
    match name {
        "indent" => {
            let width = number(1, "width")?;
            check_width(width)?;
            pay_replaced(budget, text(0), "\n", width.max(4) + 1)
        }
        "replace" => pay_replaced(budget, text(0), text(1), text(2).len()),
        "join" => match arguments.get(1).and_then(Value::as_str) {
            Some(joiner) => pay_join(budget, arguments.first(), joiner),
            None => pay_join(
                budget,
                arguments.first(),
                named("d").as_ref().and_then(Value::as_str).unwrap_or_default(),
            ),
        },
        "format" => pay_format(budget, text(0), &arguments[1.min(arguments.len())..]),
        "batch" | "slice" => {
            let count = number(1, "count")?.max(number(1, "slices")?).max(number(1, "linecount")?);
            if count > MAX_TEMPLATE_ELEMENTS { Err(too_large()) } else { Ok(()) }
        }
        // Every character is looked for among those that are to go.
        "trim" => budget.spend((text(0).len() as u64).saturating_mul(text(1).len() as u64)),
        _ => Ok(()),
    }
}

fn pay_len(budget: &Budget, len: usize) -> Result<(), Error> {
    if len > MAX_TEMPLATE_VALUE { Err(too_large()) } else { budget.spend(len as u64) }
}

fn pay_replaced(budget: &Budget, text: &str, from: &str, to_len: usize) -> Result<(), Error> {
    pay_len(budget, text.matches(from).count().saturating_mul(to_len).saturating_add(text.len()))
}

fn pay_join(budget: &Budget, items: Option<&Value>, joiner: &str) -> Result<(), Error> {
    let Some(items) = items else { return Ok(()) };
    let count = match items.as_str() {
        Some(text) => text.len(),
        None => items.len().unwrap_or(0),
    };
    pay_len(budget, count.saturating_mul(joiner.len()))
}

/// Each placeholder may name each argument. Widths and precisions are digits, none of them may come from elsewhere.
fn pay_format(budget: &Budget, format: &str, arguments: &[Value]) -> Result<(), Error> {
    check_widths(format)?;
    let mut len = MAX_TEMPLATE_WIDTH as u64;
    for argument in arguments {
        len = len.max(budget.read(argument)?);
    }
    let places = format.matches(['%', '{']).count() as u64;
    pay_len(budget, usize::try_from(places.saturating_mul(len)).unwrap_or(usize::MAX))
}

pub(super) fn check_widths(format: &str) -> Result<(), Error> {
    let digits = MAX_TEMPLATE_WIDTH.ilog10() as usize + 1;
    let too_many = format.split(|c: char| !c.is_ascii_digit()).any(|run| run.len() > digits);
    if too_many || format.contains('*') { Err(too_large()) } else { Ok(()) }
}

fn check_width(width: usize) -> Result<(), Error> {
    if width > MAX_TEMPLATE_WIDTH { Err(too_large()) } else { Ok(()) }
}

fn bad(reason: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}

fn all_filters() -> Vec<(&'static str, Value, Cost)> {
    vec![
        ("abs", Value::from_function(filters::abs), Cost::Read),
        ("attr", Value::from_function(filters::attr), Cost::Shape),
        ("batch", Value::from_function(filters::batch), Cost::Shape),
        ("bool", Value::from_function(filters::bool), Cost::Shape),
        ("capitalize", Value::from_function(filters::capitalize), Cost::Read),
        ("count", Value::from_function(python::length), Cost::Find),
        ("d", Value::from_function(filters::default), Cost::Kind),
        ("default", Value::from_function(filters::default), Cost::Kind),
        ("dictsort", Value::from_function(filters::dictsort), Cost::Sort),
        ("e", Value::from_function(filters::escape), Cost::Read),
        ("escape", Value::from_function(filters::escape), Cost::Read),
        ("first", Value::from_function(filters::first), Cost::Find),
        ("float", Value::from_function(filters::float), Cost::Read),
        ("format", Value::from_function(filters::format), Cost::Read),
        ("groupby", Value::from_function(filters::groupby), Cost::Sort),
        ("indent", Value::from_function(python::indent), Cost::Read),
        ("int", Value::from_function(filters::int), Cost::Read),
        ("items", Value::from_function(filters::items), Cost::Shape),
        ("join", Value::from_function(filters::join), Cost::Read),
        ("last", Value::from_function(filters::last), Cost::Find),
        ("length", Value::from_function(python::length), Cost::Find),
        ("lines", Value::from_function(filters::lines), Cost::Read),
        ("list", Value::from_function(filters::list), Cost::Shape),
        ("lower", Value::from_function(filters::lower), Cost::Read),
        ("map", Value::from_function(filters::map), Cost::Read),
        ("max", Value::from_function(filters::max), Cost::Sort),
        ("min", Value::from_function(filters::min), Cost::Sort),
        ("reject", Value::from_function(filters::reject), Cost::Read),
        ("rejectattr", Value::from_function(filters::rejectattr), Cost::Read),
        ("replace", Value::from_function(filters::replace), Cost::Read),
        ("reverse", Value::from_function(filters::reverse), Cost::Shape),
        ("round", Value::from_function(filters::round), Cost::Read),
        ("safe", Value::from_function(filters::safe), Cost::Read),
        ("select", Value::from_function(filters::select), Cost::Read),
        ("selectattr", Value::from_function(filters::selectattr), Cost::Read),
        ("slice", Value::from_function(filters::slice), Cost::Shape),
        ("sort", Value::from_function(filters::sort), Cost::Sort),
        ("split", Value::from_function(filters::split), Cost::Read),
        ("string", Value::from_function(filters::string), Cost::Read),
        ("sum", Value::from_function(filters::sum), Cost::Read),
        ("title", Value::from_function(filters::title), Cost::Read),
        ("tojson", Value::from_function(to_json), Cost::Read),
        ("trim", Value::from_function(filters::trim), Cost::Read),
        ("unique", Value::from_function(filters::unique), Cost::Sort),
        ("upper", Value::from_function(filters::upper), Cost::Read),
    ]
}

fn all_tests() -> Vec<(&'static [&'static str], Value, Cost)> {
    vec![
        (&["boolean"], Value::from_function(tests::is_boolean), Cost::Kind),
        (&["defined"], Value::from_function(tests::is_defined), Cost::Kind),
        (&["divisibleby"], Value::from_function(tests::is_divisibleby), Cost::Read),
        (&["endingwith"], Value::from_function(tests::is_endingwith), Cost::Read),
        (&["eq", "equalto", "=="], Value::from_function(tests::is_eq), Cost::Read),
        (&["even"], Value::from_function(tests::is_even), Cost::Read),
        (&["false"], Value::from_function(tests::is_false), Cost::Kind),
        (&["filter"], Value::from_function(tests::is_filter), Cost::Read),
        (&["float"], Value::from_function(tests::is_float), Cost::Kind),
        (&["ge", ">="], Value::from_function(tests::is_ge), Cost::Read),
        (&["gt", "greaterthan", ">"], Value::from_function(tests::is_gt), Cost::Read),
        (&["in"], Value::from_function(tests::is_in), Cost::Read),
        (&["integer", "int"], Value::from_function(tests::is_integer), Cost::Kind),
        (&["iterable"], Value::from_function(tests::is_iterable), Cost::Kind),
        (&["le", "<="], Value::from_function(tests::is_le), Cost::Read),
        (&["lower"], Value::from_function(tests::is_lower), Cost::Read),
        (&["lt", "lessthan", "<"], Value::from_function(tests::is_lt), Cost::Read),
        (&["mapping"], Value::from_function(tests::is_mapping), Cost::Kind),
        (&["ne", "!="], Value::from_function(tests::is_ne), Cost::Read),
        (&["none"], Value::from_function(tests::is_none), Cost::Kind),
        (&["number"], Value::from_function(tests::is_number), Cost::Kind),
        (&["odd"], Value::from_function(tests::is_odd), Cost::Read),
        (&["safe", "escaped"], Value::from_function(tests::is_safe), Cost::Kind),
        (&["sameas"], Value::from_function(tests::is_sameas), Cost::Read),
        (&["sequence"], Value::from_function(tests::is_sequence), Cost::Kind),
        (&["startingwith"], Value::from_function(tests::is_startingwith), Cost::Read),
        (&["string"], Value::from_function(tests::is_string), Cost::Kind),
        (&["test"], Value::from_function(tests::is_test), Cost::Read),
        (&["true"], Value::from_function(tests::is_true), Cost::Kind),
        (&["undefined"], Value::from_function(tests::is_undefined), Cost::Kind),
        (&["upper"], Value::from_function(tests::is_upper), Cost::Read),
    ]
}
