//! Reasoning of a model is told apart from its answer, in the words of every interface, and can be left out where the template lets it.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use oxcart_http::{Limits, Server};
use serde_json::{Value, json};
use support::{engine_with, post, server_of};

/// The prompt begins the reasoning, as that of many models does, or ends it at once.
const TEMPLATE: &str = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}\
    {% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}";

fn a_server() -> Server {
    let engine = engine_with(2, |file| {
        file.set("tokenizer.chat_template", TEMPLATE);
    });
    server_of(engine, Limits::default(), |_| {})
}

fn hello() -> Value {
    json!([{ "role": "user", "content": "hello there" }])
}

#[test]
fn reasoning_is_told_apart_whole_and_in_streams() {
    let server = a_server();
    let mut ask =
        json!({ "messages": hello(), "max_tokens": 60, "grammar": "root ::= \"so and so</think>yes\"" });
    let whole = post(&server, "/v1/chat/completions", &ask).json();
    let message = &whole["choices"][0]["message"];
    assert_eq!(
        (&message["reasoning_content"], &message["content"]),
        (&json!("so and so"), &json!("yes")),
        "{whole}"
    );
    let usage = &whole["usage"];
    let reasoned = usage["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
    assert!(reasoned > 0 && reasoned < usage["completion_tokens"].as_u64().unwrap(), "{usage}");
    ask["stream"] = true.into();
    let chunks = post(&server, "/v1/chat/completions", &ask).chunks();
    let joined = |pointer: &str| -> String {
        chunks.iter().filter_map(|chunk| chunk.pointer(pointer)?.as_str()).collect()
    };
    assert_eq!(joined("/choices/0/delta/reasoning_content"), "so and so");
    assert_eq!(joined("/choices/0/delta/content"), "yes");
}

/// Random weights do not come to an end of their reasoning by themselves.
#[test]
fn every_interface_has_a_place_for_reasoning() {
    let server = a_server();
    let said = json!({ "input": "hello there", "max_output_tokens": 8, "temperature": 0 });
    let response = post(&server, "/v1/responses", &said).json();
    assert_eq!(response["output"][0]["type"], "reasoning", "{response}");
    let usage = &response["usage"];
    assert_eq!(usage["output_tokens_details"]["reasoning_tokens"], usage["output_tokens"], "{usage}");
    let mut said = json!({ "max_tokens": 8, "temperature": 0, "messages": hello() });
    let message = post(&server, "/v1/messages", &said).json();
    let thought =
        message["content"][0]["thinking"].as_str().unwrap_or_else(|| panic!("{message}")).to_owned();
    said["stream"] = true.into();
    let events = post(&server, "/v1/messages", &said).events();
    let values: Vec<Value> = events.iter().map(|(_, data)| serde_json::from_str(data).unwrap()).collect();
    let told: String = values.iter().filter_map(|value| value.pointer("/delta/thinking")?.as_str()).collect();
    assert_eq!(told, thought);
    let options = json!({ "num_predict": 8, "temperature": 0 });
    let chat = json!({ "messages": hello(), "stream": false, "options": options });
    assert_eq!(post(&server, "/api/chat", &chat).json()["message"]["thinking"], thought.as_str());
}

#[test]
fn reasoning_can_be_left_out() {
    let server = a_server();
    let settings = json!({ "temperature": 0, "num_predict": 8 });
    let chat = json!({ "messages": hello(), "max_tokens": 8, "temperature": 0, "reasoning_effort": "none" });
    let message = post(&server, "/v1/chat/completions", &chat).json()["choices"][0]["message"].clone();
    assert!(message.get("reasoning_content").is_none(), "{message}");
    let text = &message["content"];
    let response = json!({ "input": "hello there", "max_output_tokens": 8, "temperature": 0, "reasoning": { "effort": "none" } });
    assert_eq!(&post(&server, "/v1/responses", &response).json()["output"][0]["content"][0]["text"], text);
    let plain =
        json!({ "messages": hello(), "max_tokens": 8, "temperature": 0, "thinking": { "type": "disabled" } });
    assert_eq!(&post(&server, "/v1/messages", &plain).json()["content"][0]["text"], text);
    let ollama = json!({ "messages": hello(), "stream": false, "think": false, "options": settings });
    assert_eq!(&post(&server, "/api/chat", &ollama).json()["message"]["content"], text);
}
