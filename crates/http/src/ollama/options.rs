//! Fields that requests have in common.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::ask::{Form, Sampling};
use crate::error::ApiError;

/// What Ollama calls options.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Options {
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    min_p: Option<f32>,
    typical_p: Option<f32>,
    repeat_penalty: Option<f32>,
    repeat_last_n: Option<i64>,
    frequency_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    seed: Option<i64>,
    num_predict: Option<i64>,
    stop: Option<Vec<String>>,
}

impl Options {
    pub(crate) fn sampling(&self) -> Sampling {
        Sampling {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k.map(|top_k| usize::try_from(top_k).unwrap_or(0)),
            min_p: self.min_p,
            typical_p: self.typical_p,
            repeat_penalty: self.repeat_penalty,
            repeat_last_n: self.repeat_last_n,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            seed: self.seed.filter(|&seed| seed != -1).map(i64::cast_unsigned),
            ..Sampling::default()
        }
    }

    /// Tokens at most; what is negative is no limit.
    pub(crate) fn limit(&self) -> Option<usize> {
        self.num_predict.and_then(|tokens| usize::try_from(tokens).ok())
    }

    pub(crate) fn stop(&mut self) -> Vec<String> {
        self.stop.take().unwrap_or_default()
    }
}

/// `"json"`, or a schema.
pub(crate) fn form(format: Option<Value>) -> Result<Form, ApiError> {
    match format {
        None | Some(Value::Null) => Ok(Form::Any),
        Some(Value::String(word)) if word.is_empty() => Ok(Form::Any),
        Some(Value::String(word)) if word == "json" => Ok(Form::Json),
        Some(schema @ Value::Object(_)) => Ok(Form::Schema(schema)),
        Some(_) => Err(ApiError::field("format", "it should be \"json\" or a schema")),
    }
}

/// `true`, `false`, or how much.
pub(crate) fn thinking(think: Option<Value>) -> Map<String, Value> {
    let mut variables = Map::new();
    match think {
        Some(Value::Bool(think)) => {
            variables.insert("enable_thinking".into(), think.into());
        }
        Some(effort @ Value::String(_)) => {
            variables.insert("enable_thinking".into(), true.into());
            variables.insert("reasoning_effort".into(), effort);
        }
        _ => {}
    }
    variables
}
