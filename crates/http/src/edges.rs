//! What clients send and what they are sent, made of any bytes: for fuzzing, and for tests with bytes from a generator.
//!
//! What must hold is asserted here: bodies are taken or refused with a short error that is JSON; streams are whole events or lines,
//! and a client that puts their parts together has the answer.

use oxcart_llm::engine::{End, Report};
use oxcart_llm::text::{Answer, AnswerEvent};
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::answers::{Ended, Script, Told};
use crate::ask::Ask;
use crate::error::{ApiError, Dialect};
use crate::{anthropic, json, ollama, openai};

/// Bytes that a refusal has at most, in any format. It may say a name that the client sent, shortened.
const SHORT: usize = 4096;

/// What makes a request of a body.
type Read = fn(&[u8]) -> Result<Ask, ApiError>;

const READERS: [Read; 5] = [
    openai::chat::read,
    openai::completions::read,
    openai::responses::read,
    anthropic::messages::read,
    ollama::generate::read,
];

/// A body, for each interface.
pub fn body(bytes: &[u8]) {
    let is_json = json::parse::<IgnoredAny>(bytes).is_ok();
    for read in READERS {
        match read(bytes).and_then(|ask| ask.check()) {
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
        let ended = Ended { end: End::Model, stopped_by: None, report: Report::default(), calls };
        script.tell(0, Told::Ended { parts: Vec::new(), ended }, &mut out);
        script.end(&mut out);
        out
    };
    let (mut text, mut arguments) = (String::new(), String::new());
    for event in events(&told(&mut anthropic::messages::script("m")), true) {
        assert_eq!(event["type"].as_str().is_some(), event.is_object());
        text.push_str(event["delta"]["text"].as_str().unwrap_or_default());
        arguments.push_str(event["delta"]["partial_json"].as_str().unwrap_or_default());
    }
    let all: String = answer.calls.iter().map(|call| call.arguments.as_str()).collect();
    assert_eq!((&text, &arguments), (&answer.text, &all));
    let (mut text, mut arguments) = (String::new(), String::new());
    for event in events(&told(&mut openai::responses::script("m")), true) {
        let delta = event["delta"].as_str().unwrap_or_default();
        match event["type"].as_str() {
            Some("response.output_text.delta") => text.push_str(delta),
            Some("response.function_call_arguments.delta") => arguments.push_str(delta),
            _ => {}
        }
    }
    assert_eq!((&text, &arguments), (&answer.text, &all));
    let (mut text, mut reasoning, mut calls) = (String::new(), String::new(), 0);
    for line in events(&told(&mut ollama::generate::script("m")), false) {
        text.push_str(line["message"]["content"].as_str().unwrap_or_default());
        reasoning.push_str(line["message"]["thinking"].as_str().unwrap_or_default());
        calls += line["message"]["tool_calls"].as_array().map_or(0, Vec::len);
    }
    assert_eq!((&text, &reasoning, calls), (&answer.text, &answer.reasoning, answer.calls.len()));
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

/// What a client reads, strictly: each event is a name, if they have some, and one line of JSON; or each line is JSON.
fn events(stream: &[u8], is_sse: bool) -> Vec<Value> {
    let Ok(text) = std::str::from_utf8(stream) else { panic!("a stream is no text") };
    let blocks = text.split_terminator(if is_sse { "\n\n" } else { "\n" });
    let value = |block: &str| {
        let data = match is_sse {
            false => block,
            true => {
                let lines: Vec<&str> = block.split('\n').collect();
                let [name, data] = lines.as_slice() else { panic!("{} lines in an event", lines.len()) };
                assert!(name.starts_with("event: ") && !name.contains('\r'), "{name:?}");
                data.strip_prefix("data: ").unwrap_or_else(|| panic!("an event without data"))
            }
        };
        assert!(!data.contains(['\r', '\n']), "a line break in the data of an event");
        serde_json::from_str(data).unwrap_or_else(|error| panic!("what was sent is no JSON: {error}"))
    };
    blocks.map(value).collect()
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
            "input":[{"role":"user","content":"x"}],"format":"json","options":{"stop":["x"]},"logit_bias":{"5":1}}"#;
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
