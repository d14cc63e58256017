//! Fields that requests for answers have in common, OpenAI's and those that llama-server adds to them.

use std::collections::BTreeMap;

use oxcart_llm::text::{Grammar, Token};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::ask::{Form, Sampling};
use crate::error::ApiError;

/// One text, or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
pub(crate) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    pub(crate) fn into_vec(self) -> Vec<String> {
        match self {
            OneOrMany::One(text) => vec![text],
            OneOrMany::Many(texts) => texts,
        }
    }
}

/// Tokens that are to be more or less likely: `{"15043": -100}`, or llama-server's `[[15043, -1.5], [123, false]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "logit_bias must be an object or a list of pairs of a token and a number")]
pub(crate) enum LogitBias {
    ByName(BTreeMap<String, f32>),
    Pairs(Vec<(Token, BiasBy)>),
}

/// By how much.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a number or false")]
pub(crate) enum BiasBy {
    Number(f32),
    /// `false` is never.
    Never(bool),
}

impl LogitBias {
    fn into_vec(self) -> Result<Vec<(Token, f32)>, ApiError> {
        match self {
            LogitBias::ByName(map) => map
                .into_iter()
                .map(|(name, bias)| match name.parse() {
                    Ok(token) => Ok((token, bias)),
                    Err(_) => Err(ApiError::field("logit_bias", format!("{name:?} is not a token number"))),
                })
                .collect(),
            LogitBias::Pairs(pairs) => pairs
                .into_iter()
                .map(|(token, by)| match by {
                    BiasBy::Number(bias) => Ok((token, bias)),
                    BiasBy::Never(false) => Ok((token, f32::NEG_INFINITY)),
                    BiasBy::Never(true) => {
                        Err(ApiError::field("logit_bias", "a bias must be a number or false"))
                    }
                })
                .collect(),
        }
    }
}

/// How tokens are chosen.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct SamplingFields {
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    min_p: Option<f32>,
    typical_p: Option<f32>,
    repeat_penalty: Option<f32>,
    /// The same by the name that others give it; some clients send both.
    repetition_penalty: Option<f32>,
    repeat_last_n: Option<i64>,
    frequency_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    seed: Option<i64>,
    logit_bias: Option<LogitBias>,
}

impl SamplingFields {
    /// As OpenAI means it: penalties count the answer alone, unless what counts as lately is said.
    pub(crate) fn sampling(self) -> Result<Sampling, ApiError> {
        let repeat_penalty = self.repeat_penalty.or(self.repetition_penalty);
        Ok(Sampling {
            temperature: self.temperature,
            top_p: self.top_p,
            // What is not positive keeps all.
            top_k: self.top_k.map(|top_k| usize::try_from(top_k).unwrap_or(0)),
            min_p: self.min_p,
            typical_p: self.typical_p,
            answer_only: repeat_penalty.is_none() && self.repeat_last_n.is_none(),
            repeat_penalty,
            repeat_last_n: self.repeat_last_n,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            // llama-server's way to ask for any.
            seed: self.seed.filter(|&seed| seed != -1).map(i64::cast_unsigned),
            logit_bias: self.logit_bias.map(LogitBias::into_vec).transpose()?.unwrap_or_default(),
        })
    }
}

/// `max_tokens`; llama-server's -1 is no limit.
pub(crate) fn limit(tokens: Option<i64>) -> Option<usize> {
    tokens.and_then(|tokens| usize::try_from(tokens).ok())
}

/// The form of an answer.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ResponseFormat {
    Text,
    /// llama-server takes a schema here, too.
    JsonObject {
        schema: Option<Value>,
    },
    JsonSchema {
        json_schema: NamedSchema,
    },
}

/// A schema with its name, which says nothing to a model.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct NamedSchema {
    schema: Option<Value>,
}

impl ResponseFormat {
    fn form(self) -> Form {
        match self {
            ResponseFormat::Text => Form::Any,
            ResponseFormat::JsonObject { schema: None }
            | ResponseFormat::JsonSchema { json_schema: NamedSchema { schema: None } } => Form::Json,
            ResponseFormat::JsonObject { schema: Some(schema) }
            | ResponseFormat::JsonSchema { json_schema: NamedSchema { schema: Some(schema) } } => {
                Form::Schema(schema)
            }
        }
    }
}

/// The form of an answer, in OpenAI's field or in those that llama-server adds.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct FormFields {
    response_format: Option<ResponseFormat>,
    json_schema: Option<Value>,
    grammar: Option<String>,
}

impl FormFields {
    pub(crate) fn form(self) -> Result<Form, ApiError> {
        let response_format =
            self.response_format.map(ResponseFormat::form).filter(|form| *form != Form::Any);
        let schema = self.json_schema.filter(|schema| !schema.is_null()).map(Form::Schema);
        let grammar =
            self.grammar.filter(|grammar| !grammar.is_empty()).map(Grammar::Gbnf).map(Form::Grammar);
        let mut given = [response_format, schema, grammar].into_iter().flatten();
        let form = given.next().unwrap_or_default();
        match given.next() {
            Some(_) => {
                Err(ApiError::bad("only one of response_format, json_schema and grammar may be given"))
            }
            None => Ok(form),
        }
    }
}

/// What a template is told beside the messages.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct TemplateFields {
    chat_template_kwargs: Option<Map<String, Value>>,
    reasoning_effort: Option<Value>,
}

impl TemplateFields {
    pub(crate) fn variables(self) -> Map<String, Value> {
        let mut variables = self.chat_template_kwargs.unwrap_or_default();
        if let Some(effort @ Value::String(_)) = self.reasoning_effort {
            if effort == "none" {
                variables.entry("enable_thinking").or_insert(Value::Bool(false));
            }
            variables.entry("reasoning_effort").or_insert(effort);
        }
        variables
    }
}
