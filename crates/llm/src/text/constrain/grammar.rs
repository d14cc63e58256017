//! What form an answer shall have.

use std::fmt;

use serde_json::Value;

use super::{ConstrainError, bounds, gbnf, schema};
use crate::text::limits::MAX_GRAMMAR_BYTES;

/// What form an answer shall have.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Grammar {
    /// A JSON object, whatever is in it.
    JsonObject,
    /// JSON that a schema describes: draft 2020-12, with references within it alone. Properties come in the order in which
    /// the schema names them. A keyword that could not be kept is an error.
    JsonSchema {
        /// The schema.
        schema: Value,
        /// How JSON is written.
        options: JsonOptions,
    },
    /// A regular expression in the syntax of the crate `regex`, without look-around, that the whole answer matches.
    Regex(String),
    /// A grammar in Lark's syntax, as `llguidance` reads it: with special tokens as `<|name|>` and schemas as `%json {…}`.
    Lark(String),
    /// A grammar in llama.cpp's format. A terminal takes as much as it can: where the text after it could have begun
    /// earlier, that reading is lost.
    Gbnf(String),
}

impl Grammar {
    /// JSON that a schema describes, with the usual options.
    pub fn json_schema(schema: Value) -> Grammar {
        Grammar::JsonSchema { schema, options: JsonOptions::default() }
    }

    /// What kind it is.
    pub fn kind(&self) -> GrammarKind {
        match self {
            Grammar::JsonObject | Grammar::JsonSchema { .. } => GrammarKind::JsonSchema,
            Grammar::Regex(_) => GrammarKind::Regex,
            Grammar::Lark(_) => GrammarKind::Lark,
            Grammar::Gbnf(_) => GrammarKind::Gbnf,
        }
    }
}

/// How JSON is written. These options take the place of a schema's own `x-guidance`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JsonOptions {
    /// White space between values.
    pub whitespace: JsonWhitespace,
    /// Takes `oneOf` for `anyOf` where it cannot be shown that the alternatives exclude each other, so that an answer may
    /// match several. Otherwise such a schema is an error.
    pub one_of_is_any_of: bool,
}

/// White space between the values of JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JsonWhitespace {
    /// None.
    None,
    /// At each place at most a space, or a line break with up to 16 blanks to indent. So JSON can be laid out for people,
    /// but a small model cannot go on with blanks for ever.
    #[default]
    Short,
    /// Any amount.
    Any,
}

/// A kind of grammar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GrammarKind {
    /// A JSON schema.
    JsonSchema,
    /// A regular expression.
    Regex,
    /// A grammar in Lark's syntax.
    Lark,
    /// A grammar in llama.cpp's format.
    Gbnf,
}

impl fmt::Display for GrammarKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GrammarKind::JsonSchema => "JSON schema",
            GrammarKind::Regex => "regular expression",
            GrammarKind::Lark => "Lark grammar",
            GrammarKind::Gbnf => "GBNF grammar",
        })
    }
}

/// A grammar that has kept all bounds, as text; equal ones have the same text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) kind: GrammarKind,
    /// A JSON schema, a regular expression, or Lark.
    pub(super) text: String,
}

impl Source {
    pub(super) fn new(grammar: &Grammar) -> Result<Source, ConstrainError> {
        let kind = grammar.kind();
        let fault = |reason: String| ConstrainError::Grammar { kind, reason };
        let text = match grammar {
            Grammar::JsonObject => {
                schema::prepare(&serde_json::json!({ "type": "object" }), JsonOptions::default())?
            }
            Grammar::JsonSchema { schema, options } => schema::prepare(schema, *options)?,
            Grammar::Regex(text) => short(kind, text)?.to_owned(),
            Grammar::Lark(text) => {
                let text = short(kind, text)?;
                bounds::check_inline_schemas(text)?;
                text.to_owned()
            }
            Grammar::Gbnf(text) => gbnf::to_lark(short(kind, text)?).map_err(fault)?,
        };
        Ok(Source { kind, text })
    }
}

fn short(kind: GrammarKind, text: &str) -> Result<&str, ConstrainError> {
    match text.len() {
        size if size > MAX_GRAMMAR_BYTES => {
            Err(ConstrainError::TooLarge { kind, what: "bytes", size, limit: MAX_GRAMMAR_BYTES })
        }
        _ => Ok(text),
    }
}
