//! The form that an answer shall have: its arguments, and the files they name.
//!
//! Invariant: files are read once, before the model is loaded, and no further than a bound.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use oxcart::gguf::Text;
use oxcart::llm::engine::Engine;
use oxcart::llm::text::{Constraint, Grammar};

use crate::failure::Failure;
use crate::limits::MAX_FORM_BYTES;

/// The form of answers
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct FormArgs {
    /// Answer with JSON that follows the schema in this file; '-' reads it from stdin
    #[arg(long, value_name = "FILE", conflicts_with_all = ["grammar", "regex"])]
    json_schema: Option<PathBuf>,

    /// Answer by the grammar in this file: in llama.cpp's format (GBNF), or in Lark's if the name ends with .lark
    #[arg(long, value_name = "FILE", conflicts_with = "regex")]
    grammar: Option<PathBuf>,

    /// Answer with a text that matches this regular expression from beginning to end
    #[arg(long, value_name = "RE")]
    regex: Option<String>,
}

/// A form as it was read, and where from.
#[derive(Debug)]
pub(crate) struct Form {
    grammar: Grammar,
    source: String,
}

impl FormArgs {
    /// Whether it comes from stdin, so that nothing else can.
    pub(crate) fn reads_stdin(&self) -> bool {
        self.json_schema.as_deref() == Some(Path::new("-"))
    }

    /// Reads what was asked for, if anything was.
    pub(crate) fn read(&self) -> Result<Option<Form>, Failure> {
        let grammar = match (&self.json_schema, &self.grammar, &self.regex) {
            (Some(path), ..) => {
                let text =
                    if self.reads_stdin() { bounded(path, io::stdin().lock())? } else { read_file(path)? };
                let schema = serde_json::from_str(&text)
                    .map_err(|error| Failure::Usage(format!("{} is not valid JSON: {error}", shown(path))))?;
                Grammar::json_schema(schema)
            }
            (None, Some(path), _) => {
                let text = read_file(path)?;
                match path.extension().is_some_and(|extension| extension == "lark") {
                    true => Grammar::Lark(text),
                    false => Grammar::Gbnf(text),
                }
            }
            (None, None, Some(expression)) => Grammar::Regex(expression.clone()),
            (None, None, None) => return Ok(None),
        };
        let path = self.json_schema.as_ref().or(self.grammar.as_ref());
        let source = path.map_or_else(|| "--regex".to_owned(), |path| shown(path));
        Ok(Some(Form { grammar, source }))
    }
}

impl Form {
    /// What answers of this engine are held to.
    pub(crate) fn compile(&self, engine: &mut Engine) -> Result<Constraint, Failure> {
        engine.compile(&self.grammar).map_err(|error| Failure::Usage(format!("{}: {error}", self.source)))
    }
}

fn shown(path: &Path) -> String {
    match path == Path::new("-") {
        true => "stdin".to_owned(),
        false => Text::new(path.as_os_str().as_encoded_bytes()).to_string(),
    }
}

fn read_file(path: &Path) -> Result<String, Failure> {
    let file = File::open(path).map_err(|error| unreadable(path, &error))?;
    bounded(path, file)
}

fn bounded(path: &Path, from: impl Read) -> Result<String, Failure> {
    let mut text = String::new();
    from.take(MAX_FORM_BYTES + 1).read_to_string(&mut text).map_err(|error| unreadable(path, &error))?;
    match text.len() as u64 > MAX_FORM_BYTES {
        true => Err(Failure::Usage(format!("{} has more than {MAX_FORM_BYTES} bytes", shown(path)))),
        false => Ok(text),
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    Failure::Usage(format!("cannot read {}: {error}", shown(path)))
}
