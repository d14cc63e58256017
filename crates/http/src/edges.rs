//! What clients send and what they are sent, made of any bytes: for fuzzing, and for tests with bytes from a generator.
//!
//! What must hold is asserted here: bodies are taken or refused with a short error that is JSON; streams are whole events or lines,
//! and a client that puts their parts together has the answer.

use oxcart_llm::engine::{End, Report};
use oxcart_llm::text::{Answer, AnswerEvent};
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::answers::{Ended, Script, Told};
use crate::error::{ApiError, Dialect};
use crate::{anthropic, json, llama, ollama, openai};

/// Bytes that a refusal has at most, in any format. It may say a name that the client sent, shortened.
const SHORT: usize = 4096;

/// What makes a request of a body, and looks whether it can be answered.
type Read = fn(&[u8]) -> Result<(), ApiError>;

const READERS: [Read; 9] = [
    |body| openai::chat::read(body)?.check(),
    |body| openai::completions::read(body)?.check(),
    |body| openai::responses::read(body)?.check(),
    |body| openai::embeddings::read(body).map(drop),
    |body| anthropic::messages::read(body)?.check(),
    |body| ollama::generate::read(body)?.check(),
    |body| ollama::generate::read_plain(body)?.check(),
    |body| llama::completion::read(body)?.check(),
    |body| llama::completion::read_infill(body)?.check(),
];

/// A body, for each interface.
pub fn body(bytes: &[u8]) {
    let is_json = json::parse::<IgnoredAny>(bytes).is_ok();
    for read in READERS {
        match read(bytes) {
            Ok(()) => assert!(is_json, "what is no JSON was taken for a request"),
            Err(error) => {
                for dialect in [Dialect::OpenAi, Dialect::Anthropic, Dialect::Ollama] {
                    let told = error.to_bytes(dialect);
                    assert!(serde_json::from_slice::<Value>(&told).is_ok());
                    assert!(told.len() <= SHORT, "{} bytes", told.len());
                }
            }
        }
    }
}

/// An answer: what a stream tells of it is what it was.
pub fn stream(bytes: &[u8]) {
    let parts = parts(bytes);
    let mut answer = Answer::default();
    parts.iter().for_each(|part| answer.add(part));
    let told = |script: &mut dyn Script| {
        let mut out = Vec::new();
        script.begin(&mut out);
        for part in &parts {
            let parts = vec![part.clone()];
            script.tell(0, Told::Token { token: 0, likelihood: None, parts, reused_tokens: 0 }, &mut out);
        }
        let calls = !answer.calls.is_empty();
        let ended = Ended {
            end: End::Model,
            stopped_by: None,
            report: Report::default(),
            reasoning_tokens: 0,
            calls,
        };
        script.tell(0, Told::Ended { parts: Vec::new(), ended }, &mut out);
        script.end(&mut out);
        out
    };
    let all: String = answer.calls.iter().map(|call| call.arguments.as_str()).collect();
    let joined = |values: &[Value], pointer: &str| -> String {
        values.iter().filter_map(|value| value.pointer(pointer)?.as_str()).collect()
    };
    let messages = events(&told(&mut anthropic::messages::script("m")), Shape::Named);
    assert!(messages.iter().all(|event| event["type"].is_string()));
    assert_eq!(joined(&messages, "/delta/text"), answer.text);
    assert_eq!(joined(&messages, "/delta/thinking"), answer.reasoning);
    assert_eq!(joined(&messages, "/delta/partial_json"), all);
    let responses = events(&told(&mut openai::responses::script("m")), Shape::Named);
    let deltas = |kind: &str| -> String {
        let own = responses.iter().filter(|event| event["type"] == kind);
        own.filter_map(|event| event["delta"].as_str()).collect()
    };
    assert_eq!(deltas("response.output_text.delta"), answer.text);
    assert_eq!(deltas("response.reasoning_text.delta"), answer.reasoning);
    assert_eq!(deltas("response.function_call_arguments.delta"), all);
    let chat = events(&told(&mut openai::chat::script("m")), Shape::Chunks);
    assert_eq!(joined(&chat, "/choices/0/delta/content"), answer.text);
    assert_eq!(joined(&chat, "/choices/0/delta/reasoning_content"), answer.reasoning);
    assert_eq!(joined(&chat, "/choices/0/delta/tool_calls/0/function/arguments"), all);
    let names: String = answer.calls.iter().map(|call| call.name.as_str()).collect();
    assert_eq!(joined(&chat, "/choices/0/delta/tool_calls/0/function/name"), names);
    // These two have nothing but text.
    let completion = events(&told(&mut openai::completions::script("m")), Shape::Chunks);
    assert_eq!(joined(&completion, "/choices/0/text"), answer.text);
    let completion = events(&told(&mut llama::completion::script("m")), Shape::Data);
    assert_eq!(joined(&completion, "/content"), answer.text);
    let lines = events(&told(&mut ollama::generate::script("m")), Shape::Lines);
    assert_eq!(joined(&lines, "/message/content"), answer.text);
    assert_eq!(joined(&lines, "/message/thinking"), answer.reasoning);
    let calls: usize =
        lines.iter().filter_map(|line| Some(line["message"]["tool_calls"].as_array()?.len())).sum();
    assert_eq!(calls, answer.calls.len());
}

/// An answer as a parser of answers could tell it: calls come one after the other and are not cut off.
fn parts(bytes: &[u8]) -> Vec<AnswerEvent> {
    let (mut parts, mut calls) = (Vec::new(), 0);
    for piece in bytes.split(|byte| *byte == 0) {
        let Some((kind, rest)) = piece.split_first() else { continue };
        let text = String::from_utf8_lossy(rest).into_owned();
        match kind % 4 {
            0 | 1 => parts.push(AnswerEvent::Text(text)),
            2 => parts.push(AnswerEvent::Reasoning(text)),
            _ => {
                let middle = text.char_indices().nth(text.chars().count() / 2).map_or(0, |(at, _)| at);
                let (name, arguments) = text.split_at(middle);
                let index = calls;
                calls += 1;
                parts.push(AnswerEvent::ToolCallStart { index, id: None, name: name.to_owned() });
                parts.push(AnswerEvent::ToolCallArguments { index, json: arguments.to_owned() });
                parts.push(AnswerEvent::ToolCallEnd { index });
            }
        }
    }
    parts
}

/// What a stream is made of.
#[derive(Clone, Copy, PartialEq)]
enum Shape {
    /// Events with names.
    Named,
    /// Events without.
    Data,
    /// The same, and `[DONE]` in the end.
    Chunks,
    /// One JSON value per line.
    Lines,
}

/// What a client reads, strictly: each event is a name, if they have some, and one line of JSON; or each line is JSON.
fn events(stream: &[u8], shape: Shape) -> Vec<Value> {
    let Ok(mut text) = std::str::from_utf8(stream) else { panic!("a stream is no text") };
    if shape == Shape::Chunks {
        text = text.strip_suffix("data: [DONE]\n\n").unwrap_or_else(|| panic!("a stream without its end"));
    }
    let (end, names) = match shape {
        Shape::Lines => ("\n", 0),
        Shape::Data | Shape::Chunks => ("\n\n", 0),
        Shape::Named => ("\n\n", 1),
    };
    assert!(text.is_empty() || text.ends_with(end), "a stream breaks off");
    let value = |block: &str| {
        let mut lines: Vec<&str> = block.split('\n').collect();
        assert_eq!(lines.len(), names + 1, "lines in an event: {lines:?}");
        let mut data = lines.pop().unwrap_or_default();
        for name in lines {
            assert!(name.starts_with("event: ") && !name.contains('\r'), "{name:?}");
        }
        if shape != Shape::Lines {
            data = data.strip_prefix("data: ").unwrap_or_else(|| panic!("an event without data"));
        }
        assert!(!data.contains('\r'), "a line break in the data of an event");
        serde_json::from_str(data).unwrap_or_else(|error| panic!("what was sent is no JSON: {error}"))
    };
    text.split_terminator(end).map(value).collect()
}

#[cfg(test)]
mod tests {
    /// A generator of bytes; the same each time.
    fn drawn(seed: u64) -> impl FnMut(u64) -> u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        move |below| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        }
    }

    #[test]
    fn random_answers_are_told_as_they_are() {
        let pieces: [&[u8]; 12] = [
            b"\0",
            b"a",
            b"b",
            b"c",
            b"d",
            b"\n\n",
            b"\r\n",
            b"data: ",
            b"event: x\n",
            "é\u{2028}".as_bytes(),
            b"\xff",
            b"{\"a\":1}",
        ];
        for seed in 0..300 {
            let mut draw = drawn(seed);
            let bytes: Vec<u8> =
                (0..draw(40)).flat_map(|_| pieces[draw(12) as usize].iter().copied()).collect();
            super::stream(&bytes);
        }
    }

    #[test]
    fn damaged_bodies_are_refused_shortly() {
        let whole = br#"{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"x"}]}],"max_tokens":5,
            "tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],"tool_choice":"required",
            "response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{}}},"stop":["a"],"prompt":[1,2],
            "input":[{"role":"user","content":"x"}],"input_prefix":"a","input_extra":[{"text":"b"}],"format":"json","options":{"stop":["x"]},"logit_bias":{"5":1}}"#;
        super::body(whole);
        for seed in 0..2000 {
            let mut draw = drawn(seed);
            let mut bytes = whole.to_vec();
            for _ in 0..1 + draw(3) {
                let at = draw(bytes.len() as u64) as usize;
                match draw(3) {
                    0 => bytes[at] = draw(256) as u8,
                    1 => drop(bytes.remove(at)),
                    _ => bytes.truncate(at + 1),
                }
            }
            super::body(&bytes);
        }
        // A long name is not repeated.
        let long = "x".repeat(100_000);
        for body in [
            format!(r#"{{"messages":[{{"role":"{long}","content":"x"}}],"max_tokens":1}}"#),
            format!(r#"{{"messages":[],"{long}":1,"tool_choice":"{long}","tools":[{{"{long}":1}}]}}"#),
            format!(r#"{{"messages":[{{"role":"user","content":"x"}}],"logit_bias":{{"{long}":1}}}}"#),
            format!(
                r#"{{"messages":[{{"role":"user","content":"x"}}],"max_tokens":1,"tools":[{{"name":"{long}"}}]}}"#
            ),
            format!(r#"{{"input":[{{"type":"{long}"}}],"tool_choice":{{"type":"{long}"}}}}"#),
        ] {
            super::body(body.as_bytes());
        }
    }
}
