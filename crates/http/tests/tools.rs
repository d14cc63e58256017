//! Calls of tools through every interface: they are held to the schema of a tool that was given, whatever the model would rather say.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::collections::BTreeSet;

use oxcart_http::{Limits, Server};
use serde_json::{Value, json};
use support::{engine_with, post, server_of};

/// As models are trained to call: each call in tags of its own, so that there may be several.
const TEMPLATE: &str = "{% if tools %}{{ tools | length }} tools, <tool_call>…</tool_call>\n{% endif %}\
    {% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}";

fn a_server() -> Server {
    let engine = engine_with(4, |file| {
        file.set("tokenizer.chat_template", TEMPLATE);
    });
    server_of(engine, Limits::default(), |_| {})
}

/// Schemas that even random weights can fill in, and that tell the tools apart.
fn light() -> Value {
    json!({
        "type": "object",
        "properties": { "on": { "type": "boolean" }, "room": { "enum": ["hall", "attic"] } },
        "required": ["on", "room"],
        "additionalProperties": false,
    })
}

fn door() -> Value {
    json!({
        "type": "object",
        "properties": { "open": { "enum": ["wide", "a little"] } },
        "required": ["open"],
        "additionalProperties": false,
    })
}

fn tools() -> Value {
    json!([
        { "type": "function", "function": { "name": "light", "description": "Switches a light", "parameters": light() } },
        { "type": "function", "function": { "name": "door", "parameters": door() } },
    ])
}

fn hello() -> Value {
    json!([{ "role": "user", "content": "hello there" }])
}

#[track_caller]
fn check_arguments(name: &str, arguments: &Value) {
    let fields: BTreeSet<&str> = arguments.as_object().unwrap().keys().map(String::as_str).collect();
    match name {
        "light" => {
            assert_eq!(fields, BTreeSet::from(["on", "room"]));
            assert!(arguments["on"].is_boolean());
            assert!(["hall", "attic"].contains(&arguments["room"].as_str().unwrap()));
        }
        "door" => {
            assert_eq!(fields, BTreeSet::from(["open"]));
            assert!(["wide", "a little"].contains(&arguments["open"].as_str().unwrap()));
        }
        other => panic!("{other:?} is not a tool that was given"),
    }
}

/// Name and arguments of the calls of a chat message.
#[track_caller]
fn calls(message: &Value) -> Vec<(String, Value)> {
    let calls = message["tool_calls"].as_array().unwrap_or_else(|| panic!("no calls: {message}"));
    let ids: BTreeSet<&str> = calls.iter().map(|call| call["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), calls.len(), "every call has an id of its own");
    let call = |call: &Value| {
        assert_eq!(call["type"], "function");
        let arguments = call["function"]["arguments"].as_str().unwrap();
        let name = call["function"]["name"].as_str().unwrap().to_owned();
        let arguments =
            serde_json::from_str(arguments).unwrap_or_else(|error| panic!("{error}: {arguments}"));
        check_arguments(&name, &arguments);
        (name, arguments)
    };
    calls.iter().map(call).collect()
}

/// A request whose answer must not end by the model's own choice: it goes on as long as its form lets it.
fn endless(server: &Server, parallel: bool) -> Value {
    let end = post(server, "/tokenize", &json!({ "content": "<|end|>" })).json()["tokens"].clone();
    assert_eq!(end.as_array().unwrap().len(), 1, "{end}");
    json!({
        "messages": hello(), "tools": tools(), "tool_choice": "required", "parallel_tool_calls": parallel,
        "logit_bias": { end[0].to_string(): -100 }, "max_tokens": 300, "temperature": 1, "seed": 3,
    })
}

#[test]
fn calls_that_are_demanded_follow_the_schema() {
    let server = a_server();
    for (choice, name) in [
        (json!("required"), None),
        (json!({ "type": "function", "function": { "name": "door" } }), Some("door")),
        (json!({ "type": "function", "function": { "name": "light" } }), Some("light")),
    ] {
        for seed in 0..4 {
            let mut ask = json!({
                "messages": hello(), "tools": tools(), "tool_choice": choice, "parallel_tool_calls": false,
                "max_tokens": 300, "temperature": 1, "seed": seed,
            });
            let whole = post(&server, "/v1/chat/completions", &ask).json();
            let answer = &whole["choices"][0];
            assert_eq!(answer["finish_reason"], "tool_calls", "{whole}");
            assert_eq!(answer["message"]["content"], Value::Null, "{whole}");
            let made = calls(&answer["message"]);
            assert_eq!(made.len(), 1);
            assert!(name.is_none_or(|name| made[0].0 == name), "{made:?}");

            ask["stream"] = true.into();
            let chunks = post(&server, "/v1/chat/completions", &ask).chunks();
            let deltas: Vec<&Value> =
                chunks.iter().filter_map(|chunk| chunk.pointer("/choices/0/delta/tool_calls/0")).collect();
            assert!(deltas[0]["id"].is_string() && deltas[0]["type"] == "function", "{}", deltas[0]);
            assert_eq!(deltas[0]["function"]["name"], made[0].0.as_str());
            assert!(deltas.iter().all(|delta| delta["index"] == 0));
            let text: String =
                deltas.iter().filter_map(|delta| delta["function"]["arguments"].as_str()).collect();
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), made[0].1);
            assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
        }
    }
}

#[test]
fn several_calls_come_only_where_they_are_allowed() {
    let server = a_server();
    let one = post(&server, "/v1/chat/completions", &endless(&server, false)).json();
    assert_eq!(calls(&one["choices"][0]["message"]).len(), 1, "{one}");
    assert_eq!(one["choices"][0]["finish_reason"], "tool_calls");
    let mut ask = endless(&server, true);
    let whole = post(&server, "/v1/chat/completions", &ask).json();
    let mut message = whole["choices"][0]["message"].clone();
    // The last one may be cut off.
    let cut = message["tool_calls"].as_array_mut().unwrap_or_else(|| panic!("{whole}")).pop().unwrap();
    let all = calls(&message);
    assert!(all.len() >= 2, "{whole}");
    ask["stream"] = true.into();
    let chunks = post(&server, "/v1/chat/completions", &ask).chunks();
    let mut told: Vec<(String, String)> = Vec::new();
    for delta in chunks.iter().filter_map(|chunk| chunk.pointer("/choices/0/delta/tool_calls/0")) {
        let index = delta["index"].as_u64().unwrap() as usize;
        let function = &delta["function"];
        match function["name"].as_str() {
            Some(name) => {
                assert_eq!(index, told.len(), "calls come one after the other");
                told.push((name.to_owned(), function["arguments"].as_str().unwrap().to_owned()));
            }
            None => told[index].1.push_str(function["arguments"].as_str().unwrap()),
        }
    }
    let last = told.pop().unwrap();
    assert_eq!(
        (Some(last.0.as_str()), Some(last.1.as_str())),
        (cut["function"]["name"].as_str(), cut["function"]["arguments"].as_str())
    );
    let told: Vec<(String, Value)> =
        told.into_iter().map(|(name, text)| (name, serde_json::from_str(&text).unwrap())).collect();
    assert_eq!(told, all);
}

#[test]
fn calls_are_told_in_the_words_of_every_interface() {
    let server = a_server();
    let flat = json!([
        { "type": "function", "name": "light", "parameters": light() },
        { "type": "function", "name": "door", "parameters": door(), "strict": true },
    ]);
    let responses = json!({
        "input": "hello", "tools": flat, "tool_choice": { "type": "function", "name": "door" }, "parallel_tool_calls": false,
        "max_output_tokens": 300, "temperature": 1, "seed": 1,
    });
    let whole = post(&server, "/v1/responses", &responses).json();
    let item = &whole["output"][0];
    assert_eq!((&item["type"], &item["name"]), (&json!("function_call"), &json!("door")), "{whole}");
    check_arguments("door", &serde_json::from_str(item["arguments"].as_str().unwrap()).unwrap());
    // The call and its result go back.
    let items = json!([
        { "role": "user", "content": "hello" }, item,
        { "type": "function_call_output", "call_id": item["call_id"], "output": "done" },
    ]);
    let next = json!({ "input": items, "tools": flat, "tool_choice": "none", "max_output_tokens": 5 });
    let next = post(&server, "/v1/responses", &next);
    assert_eq!((next.status, &next.json()["output"][0]["type"]), (200, &json!("message")), "{}", next.text());

    let described = json!([
        { "name": "light", "input_schema": light() },
        { "name": "door", "description": "A door", "input_schema": door() },
    ]);
    let mut messages = json!({
        "max_tokens": 300, "messages": hello(), "tools": described, "temperature": 1,
        "tool_choice": { "type": "tool", "name": "light", "disable_parallel_tool_use": true },
    });
    let whole = post(&server, "/v1/messages", &messages).json();
    assert_eq!(
        (&whole["stop_reason"], &whole["content"][0]["type"]),
        (&json!("tool_use"), &json!("tool_use")),
        "{whole}"
    );
    assert_eq!(whole["content"][0]["name"], "light");
    check_arguments("light", &whole["content"][0]["input"]);
    messages["stream"] = true.into();
    let events = post(&server, "/v1/messages", &messages).events();
    let values: Vec<Value> = events.iter().map(|(_, data)| serde_json::from_str(data).unwrap()).collect();
    let text: String =
        values.iter().filter_map(|value| value.pointer("/delta/partial_json")?.as_str()).collect();
    check_arguments("light", &serde_json::from_str(&text).unwrap());
    let result = json!([
        { "role": "user", "content": "hello" },
        { "role": "assistant", "content": whole["content"] },
        { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": whole["content"][0]["id"], "content": "done" }] },
    ]);
    let next =
        json!({ "max_tokens": 5, "messages": result, "tools": described, "tool_choice": { "type": "none" } });
    let next = post(&server, "/v1/messages", &next);
    assert_eq!((next.status, &next.json()["content"][0]["type"]), (200, &json!("text")), "{}", next.text());

    // Ollama's clients cannot demand a call, but a call that the model begins is one of a tool.
    let call = json!([{ "function": { "name": "door", "arguments": { "open": "wide" } } }]);
    let back = json!([
        { "role": "user", "content": "hello" },
        { "role": "assistant", "content": "", "tool_calls": call },
        { "role": "tool", "tool_name": "door", "content": "done" },
    ]);
    let chat =
        json!({ "messages": back, "tools": tools(), "stream": false, "options": { "num_predict": 5 } });
    let answer = post(&server, "/api/chat", &chat);
    assert_eq!(
        (answer.status, &answer.json()["message"]["role"]),
        (200, &json!("assistant")),
        "{}",
        answer.text()
    );
}

#[test]
fn choices_that_cannot_be_kept_are_refused() {
    let server = a_server();
    let status = |choice: Value, tools: Value| {
        let ask = json!({ "messages": hello(), "tools": tools, "tool_choice": choice, "max_tokens": 5 });
        post(&server, "/v1/chat/completions", &ask).status
    };
    assert_eq!(status(json!({ "type": "function", "function": { "name": "window" } }), tools()), 400);
    assert_eq!(status(json!("sometimes"), tools()), 400);
    assert_eq!(status(json!({ "type": "function" }), tools()), 400);
    assert_eq!(status(json!("required"), json!([])), 400);
    assert_eq!(
        status(json!("auto"), json!([{ "type": "function", "function": { "name": "two words" } }])),
        400
    );
    assert_eq!(status(json!("none"), tools()), 200);
    // A form and a call exclude each other.
    let both = json!({
        "messages": hello(), "tools": tools(), "tool_choice": "required", "response_format": { "type": "json_object" },
    });
    assert_eq!(post(&server, "/v1/chat/completions", &both).status, 400);
    let anthropic = json!({
        "max_tokens": 5, "messages": hello(), "tools": [{ "name": "door", "input_schema": door() }],
        "tool_choice": { "type": "tool", "name": "window" },
    });
    let refused = post(&server, "/v1/messages", &anthropic);
    assert_eq!((refused.status, &refused.json()["error"]["type"]), (400, &json!("invalid_request_error")));
}
