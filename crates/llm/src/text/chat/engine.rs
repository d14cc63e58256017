//! The template engine, and the walls around it.
//!
//! Invariant: a template reaches nothing of the host. Everything it makes lives and dies on a thread of its own.

use std::fmt;
use std::io::{self, Write};
use std::panic::resume_unwind;
use std::thread;
use std::time::SystemTime;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior, Value};
use minijinja_contrib::pycompat::unknown_method_callback;
use oxcart_gguf::Text;

use super::TemplateError;
use super::bounded;
use super::json::to_json;
use crate::text::limits::{MAX_TEMPLATE_DEPTH, MAX_TEMPLATE_OUTPUT, MAX_TEMPLATE_STACK, MAX_TEMPLATE_STEPS};

/// Whether this is a template.
pub(super) fn check(source: &str) -> Result<(), TemplateError> {
    apart(|| environment(None).template_from_str(source).map(|_| ()).map_err(|error| refused(&error)))
}

/// Renders a template.
pub(super) fn render(
    source: &str,
    variables: serde_json::Map<String, serde_json::Value>,
    now: Option<SystemTime>,
) -> Result<String, TemplateError> {
    apart(move || {
        let environment = environment(now);
        let template = environment.template_from_str(source).map_err(|error| refused(&error))?;
        let mut output = Output::default();
        let result = template.render_captured_to(Value::from(Serde(&variables)), &mut output).map(|_| ());
        if output.full {
            return Err(TemplateError::OutputTooLong);
        }
        result.map_err(|error| refused(&error))?;
        String::from_utf8(output.bytes)
            .map_err(|error| TemplateError::Failed { line: None, reason: error.to_string() })
    })
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
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

fn environment<'source>(now: Option<SystemTime>) -> Environment<'source> {
    let mut environment = Environment::new();
    let syntax =
        SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(false).build();
    // Only other delimiters could make it fail.
    environment.set_syntax(syntax.unwrap_or_default());
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_fuel(Some(MAX_TEMPLATE_STEPS));
    environment.set_recursion_limit(MAX_TEMPLATE_DEPTH);
    environment.set_unknown_method_callback(|state, value, method, arguments| {
        bounded::check_method(value, method, arguments)?;
        unknown_method_callback(state, value, method, arguments)
    });
    environment.add_filter("tojson", to_json);
    bounded::add_filters(&mut environment);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "raised").with_source(Raised(message)))
    });
    environment.add_function("strftime_now", move |format: &str| strftime(now, format));
    environment
}

/// The time in the zone of this machine, as Python's `strftime` writes it.
fn strftime(now: Option<SystemTime>, format: &str) -> Result<String, Error> {
    let bad = |error: jiff::Error| Error::new(ErrorKind::InvalidOperation, error.to_string());
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

/// What a template writes, up to a bound.
#[derive(Default)]
struct Output {
    bytes: Vec<u8>,
    full: bool,
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len().saturating_add(bytes.len()) > MAX_TEMPLATE_OUTPUT {
            self.full = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
