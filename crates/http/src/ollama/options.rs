//! Fields that requests have in common.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::ask::{Ask, Form, Prompt, Sampling};
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
    /// What is asked for with these options.
    pub(crate) fn ask(&mut self, prompt: Prompt, format: Option<Value>) -> Result<Ask, ApiError> {
        Ok(Ask {
            sampling: self.sampling(),
            limit: self.limit(),
            stop: self.stop(),
            form: form(format)?,
            ..Ask::new(prompt)
        })
    }

    fn sampling(&self) -> Sampling {
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
    fn limit(&self) -> Option<usize> {
        self.num_predict.and_then(|tokens| usize::try_from(tokens).ok())
    }

    fn stop(&mut self) -> Vec<String> {
        self.stop.take().unwrap_or_default()
    }
}

/// How long a model stays after a request: seconds, or a time such as `1h30m`; what is negative has no end.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum KeepAlive {
    Seconds(f64),
    Text(String),
}

impl KeepAlive {
    pub(crate) fn duration(&self) -> Result<Duration, ApiError> {
        let seconds = match self {
            KeepAlive::Seconds(seconds) => Some(*seconds),
            KeepAlive::Text(text) => text.parse().ok().or_else(|| time(text)),
        };
        let seconds = seconds
            .filter(|seconds| !seconds.is_nan())
            .ok_or_else(|| ApiError::field("keep_alive", "must be a time such as 5m, or seconds"))?;
        Ok(match seconds < 0.0 {
            true => Duration::MAX,
            false => Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX),
        })
    }
}

/// The seconds of numbers with units, as Go writes them.
fn time(text: &str) -> Option<f64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text),
    };
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..end].parse().ok()?;
        let unit = &rest[end..];
        let end = unit.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(unit.len());
        seconds += number
            * match &unit[..end] {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                "us" | "µs" => 1e-6,
                "ns" => 1e-9,
                _ => return None,
            };
        rest = &unit[end..];
    }
    (!text.is_empty()).then_some(sign * seconds)
}

/// `"json"`, or a schema.
fn form(format: Option<Value>) -> Result<Form, ApiError> {
    match format {
        None | Some(Value::Null) => Ok(Form::Any),
        Some(Value::String(word)) if word.is_empty() => Ok(Form::Any),
        Some(Value::String(word)) if word == "json" => Ok(Form::Json),
        Some(schema @ Value::Object(_)) => Ok(Form::Schema(schema)),
        Some(_) => Err(ApiError::field("format", "must be \"json\" or a schema")),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_as_ollama_writes_them() {
        let seconds = |value: Value| {
            let keep: KeepAlive = serde_json::from_value(value).ok()?;
            keep.duration().ok().map(|time| time.as_secs_f64())
        };
        assert_eq!(seconds("5m".into()), Some(300.0));
        assert_eq!(seconds("1h30m".into()), Some(5400.0));
        assert_eq!(seconds("1.5s".into()), Some(1.5));
        assert_eq!(seconds("250ms".into()), Some(0.25));
        assert_eq!(seconds("0".into()), Some(0.0));
        assert_eq!(seconds(0.into()), Some(0.0));
        for forever in [Value::from(-1), "-1m".into(), "-1".into(), 1e300.into()] {
            assert_eq!(seconds(forever.clone()), Some(Duration::MAX.as_secs_f64()), "{forever}");
        }
        for bad in ["", "m", "5", "5 m", "5x", "soon", "1m-", "nan", "é"] {
            let is_number = bad.parse::<f64>().is_ok_and(|number| !number.is_nan());
            assert_eq!(seconds(bad.into()).is_some(), is_number, "{bad}");
        }
        assert_eq!(seconds(true.into()), None);
    }
}
