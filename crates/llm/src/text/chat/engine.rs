//! The template engine, and the walls around it.
//!
//! Invariant: a template reaches nothing of the host. Everything it makes lives and dies on a thread of its own, and is paid
//! for from one [`Budget`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::thread;
use std::time::SystemTime;

use minijinja::machinery::{CodeGenerator, eval, make_string_output, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior, Value};
use oxcart_gguf::Text;

use super::TemplateError;
use super::bounded::{self, check_widths};
use super::budget::{Budget, OverBudget};
use super::rewrite::{Rewritten, rewrite};
use crate::text::limits::{MAX_TEMPLATE_DEPTH, MAX_TEMPLATE_OUTPUT, MAX_TEMPLATE_STACK, MAX_TEMPLATE_STEPS};

/// What errors call a template.
const NAME: &str = "chat template";

/// Whether this is a template.
pub(super) fn check(source: &str) -> Result<(), TemplateError> {
    apart(|| {
        let environment = environment(None, &Budget::default());
        parsed(&environment, source).map(|_| ()).map_err(|error| refused(&error))
    })
}

/// Renders a template.
pub(super) fn render(
    source: &str,
    variables: serde_json::Map<String, serde_json::Value>,
    now: Option<SystemTime>,
) -> Result<String, TemplateError> {
    apart(move || {
        let budget = Budget::default();
        let environment = environment(now, &budget);
        let rewritten = parsed(&environment, source).map_err(|error| refused(&error))?;
        let mut compiled = CodeGenerator::new(NAME, source);
        compiled.compile_stmt(&rewritten.template);
        let (instructions, blocks) = compiled.finish();
        let mut text = String::new();
        let result = eval(
            &environment,
            &instructions,
            Value::from(Serde(&variables)),
            &blocks,
            &mut make_string_output(&mut text),
            AutoEscape::None,
        )
        .map(|_| ())
        .map_err(|error| refused(&error));
        untangle(&budget.take_namespaces(), &rewritten.assigned);
        result?;
        if text.len() > MAX_TEMPLATE_OUTPUT { Err(TemplateError::OutputTooLong) } else { Ok(text) }
    })
}

/// A template whose operators pay for what they do.
fn parsed<'s>(environment: &Environment<'_>, source: &'s str) -> Result<Rewritten<'s>, Error> {
    rewrite(&parse(source, NAME, environment.syntax().clone())?)
}

/// Empties everything that could hold itself and so would never be freed. Takes time in proportion to what is there, not to the
/// names that a template mentions.
fn untangle(namespaces: &[Value], assigned: &BTreeSet<&str>) {
    let mut holders: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for namespace in namespaces {
        for key in namespace.try_iter().into_iter().flatten() {
            if let Some(name) = key.as_str().and_then(|key| assigned.get(key)) {
                holders.entry(name).or_default().push(namespace.clone());
            }
        }
    }
    let mut source = String::new();
    for (at, name) in holders.keys().enumerate() {
        // Writing into a text does not fail.
        let _ = write!(source, "{{% for n in holders[{at}] %}}{{% set n.{name} = none %}}{{% endfor %}}");
    }
    // Names come out of a template that was read, so this can be read, too.
    let holders: Vec<Value> = holders.into_values().map(Value::from).collect();
    let _ = Environment::empty().render_str(&source, Value::from_iter([("holders", Value::from(holders))]));
}

/// Templates mark what an assistant has said for training; such marks mean nothing here, and the engine does not know
/// them. They become conditions that always hold, so that white space around them is treated as it should be.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut replaced = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start + 2);
        replaced.push_str(before);
        let word_start =
            tag.find(|c: char| !(c.is_ascii_whitespace() || matches!(c, '-' | '+'))).unwrap_or(0);
        let (lead, word) = tag.split_at(word_start);
        let word_end = word.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(word.len());
        let (name, after) = word.split_at(word_end);
        let ends = after.trim_start().trim_start_matches(['-', '+']).starts_with("%}");
        replaced.push_str(lead);
        replaced.push_str(match name {
            "generation" if ends => "if true",
            "endgeneration" if ends => "endif",
            name => name,
        });
        rest = after;
    }
    replaced.push_str(rest);
    replaced
}

/// Runs something on a thread of its own. Values can be nested as deeply as steps allow, and they are shown and freed
/// by recursion.
fn apart<T: Send>(work: impl FnOnce() -> Result<T, TemplateError> + Send) -> Result<T, TemplateError> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("template".into()).stack_size(MAX_TEMPLATE_STACK);
        let thread = thread
            .spawn_scoped(scope, work)
            .map_err(|error| TemplateError::NoThread { reason: error.to_string() })?;
        thread.join().unwrap_or(Err(TemplateError::Broken))
    })
}

fn environment<'source>(now: Option<SystemTime>, budget: &Budget) -> Environment<'source> {
    let mut environment = Environment::empty();
    let syntax =
        SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(false).build();
    // Only other delimiters could make it fail.
    environment.set_syntax(syntax.unwrap_or_default());
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_fuel(Some(MAX_TEMPLATE_STEPS));
    environment.set_recursion_limit(MAX_TEMPLATE_DEPTH);
    bounded::add_all(&mut environment, budget);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "raised").with_source(Raised(message)))
    });
    environment.add_function("strftime_now", move |format: &str| strftime(now, format));
    environment
}

/// The time in the zone of this machine, as Python's `strftime` writes it.
fn strftime(now: Option<SystemTime>, format: &str) -> Result<String, Error> {
    let bad = |error: jiff::Error| Error::new(ErrorKind::InvalidOperation, error.to_string());
    check_widths(format)?;
    let time = jiff::Timestamp::try_from(now.unwrap_or_else(SystemTime::now)).map_err(bad)?;
    let time = time.to_zoned(jiff::tz::TimeZone::system());
    jiff::fmt::strtime::format(format, &time).map_err(bad)
}

/// What `raise_exception` was called with.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn refused(error: &Error) -> TemplateError {
    let clean = |text: String| Text::from(text.as_str()).to_string();
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(one) = cause {
        if let Some(Raised(message)) = one.downcast_ref() {
            return TemplateError::Refused { message: clean(message.clone()) };
        }
        if one.is::<OverBudget>() {
            return TemplateError::OutOfBudget;
        }
        cause = one.source();
    }
    match error.kind() {
        ErrorKind::OutOfFuel => TemplateError::OutOfSteps,
        ErrorKind::SyntaxError => {
            TemplateError::Invalid { line: error.line(), reason: clean(error.to_string()) }
        }
        _ => TemplateError::Failed { line: error.line(), reason: clean(error.to_string()) },
    }
}
