//! Tools that a model may call, and calls of them.

use serde_json::{Map, Value, json};

use crate::text::ConstrainError;

/// A tool that a model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// What it is called by.
    pub name: String,
    /// What it does, for the model.
    pub description: String,
    /// A JSON schema of an object: its arguments.
    pub parameters: Value,
}

/// Whether tools are to be called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// None is.
    None,
    /// At least one is.
    Required,
    /// This one is.
    Named(String),
}

/// A call of a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCall {
    /// What the model, or the program before it, calls this call.
    pub id: Option<String>,
    /// The tool.
    pub name: String,
    /// JSON text.
    pub arguments: String,
}

/// Why tools cannot be used as they were given.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ToolError {
    /// A tool that is no object with a name.
    #[error("a tool should be an object with a name, or one with such an object as its \"function\"")]
    NoTool,
    /// A name that no format could carry.
    #[error(
        "{name:?} is no name for a tool: letters, digits, '_', '-', '.', ':' and '/' make one, 128 of them at most"
    )]
    BadName {
        /// The name.
        name: String,
    },
    /// A tool was to be called that is not among those given.
    #[error("there is no tool {name:?}")]
    UnknownTool {
        /// The name.
        name: String,
    },
    /// A tool has to be called, and there is none.
    #[error("a tool is to be called, but none is given")]
    NoTools,
    /// The arguments of a tool cannot be described.
    #[error("the parameters of the tool {name:?} are not supported: {error}")]
    Parameters {
        /// The tool.
        name: String,
        /// Why.
        error: ConstrainError,
    },
}

/// Letters of a tool's name at most.
const MAX_NAME: usize = 128;

impl Tool {
    /// A tool as programs describe one: `{"type": "function", "function": {"name": …}}`, or the inner object alone. A schema may be
    /// called `parameters` or `input_schema`; without one there are no arguments.
    pub fn from_json(value: &Value) -> Result<Tool, ToolError> {
        let inner = value.get("function").unwrap_or(value);
        let name = inner.get("name").and_then(Value::as_str).ok_or(ToolError::NoTool)?;
        let sound = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/');
        if name.is_empty() || name.chars().count() > MAX_NAME || !name.chars().all(sound) {
            return Err(ToolError::BadName { name: name.chars().take(MAX_NAME).collect() });
        }
        let parameters = ["parameters", "input_schema"].iter().find_map(|key| inner.get(key));
        let none = || json!({ "type": "object", "properties": {} });
        Ok(Tool {
            name: name.to_owned(),
            description: inner.get("description").and_then(Value::as_str).unwrap_or_default().to_owned(),
            parameters: parameters.filter(|schema| schema.is_object()).cloned().unwrap_or_else(none),
        })
    }

    /// The tool as templates expect it.
    pub fn to_json(&self) -> Value {
        json!({
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": self.parameters,
            },
        })
    }

    /// The schema of one of its arguments.
    pub(super) fn parameter(&self, name: &str) -> Option<&Value> {
        self.parameters.get("properties")?.get(name)
    }

    /// Whether an argument is text and nothing else.
    pub(super) fn is_text(&self, parameter: &str) -> bool {
        self.parameter(parameter).is_some_and(is_text)
    }
}

/// Whether a schema allows text and nothing else.
pub(super) fn is_text(schema: &Value) -> bool {
    match (schema.get("type"), schema.get("enum").and_then(Value::as_array)) {
        (Some(Value::String(kind)), _) => kind == "string",
        (None, Some(values)) => !values.is_empty() && values.iter().all(Value::is_string),
        _ => false,
    }
}

impl ToolCall {
    /// The call as templates expect it; its arguments as an object, or as the text that they are.
    pub(super) fn to_json(&self, as_text: bool) -> Value {
        let parsed = || serde_json::from_str::<Map<String, Value>>(&self.arguments).ok().map(Value::Object);
        let arguments = if as_text { None } else { parsed() };
        let arguments = arguments.unwrap_or_else(|| self.arguments.as_str().into());
        let mut call =
            json!({ "type": "function", "function": { "name": self.name, "arguments": arguments } });
        if let Some(id) = &self.id {
            call["id"] = id.as_str().into();
        }
        call
    }
}
