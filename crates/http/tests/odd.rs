//! What clients send that is allowed but unusual, and what no model here can do: the one is understood as its interface means it, the
//! other is refused rather than left out of what is answered.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use oxcart_http::{Limits, Server};
use serde_json::{Value, json};
use support::{get, post, server};

fn a_server() -> Server {
    server(4, Limits::default())
}

fn hello() -> Value {
    json!([{ "role": "user", "content": "hello there" }])
}

/// A body with more fields.
fn with(body: &Value, more: Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// What is answered, without what differs from one answer to the next.
#[track_caller]
fn answered(server: &Server, path: &str, body: &Value) -> Value {
    let response = post(server, path, body);
    assert_eq!(response.status, 200, "{path}: {body}: {}", response.text());
    let all = response.json();
    let part = ["choices", "output", "content", "message", "response"].iter().find_map(|name| all.get(name));
    let mut part = part.unwrap_or(&all).clone();
    for item in part.as_array_mut().into_iter().flatten() {
        if let Some(item) = item.as_object_mut() {
            item.remove("id");
        }
    }
    part
}

const CHAT: &str = "/v1/chat/completions";

fn chat() -> Value {
    json!({ "messages": hello(), "temperature": 0, "max_tokens": 6, "ignore_eos": true })
}

#[test]
fn fields_that_say_nothing_change_nothing() {
    let server = a_server();
    let plain = answered(&server, CHAT, &chat());
    for nothing in [
        json!({ "model": null }),
        json!({ "model": "" }),
        json!({ "model": "TINY:latest" }),
        json!({ "stop": null }),
        json!({ "stop": "" }),
        json!({ "stop": [] }),
        json!({ "stop": ["", "\u{1}never"] }),
        json!({ "stream": null, "stream_options": null, "n": null, "logprobs": null, "top_logprobs": null }),
        json!({ "logprobs": false, "logit_bias": {}, "seed": -1, "top_k": -1, "user": "me", "store": true }),
        json!({ "tools": null, "tool_choice": null, "parallel_tool_calls": null, "functions": [] }),
        json!({ "tools": [], "tool_choice": "auto" }),
        json!({ "tools": [], "tool_choice": "none" }),
        json!({ "response_format": null, "json_schema": null, "grammar": "" }),
        json!({ "response_format": { "type": "text" } }),
        json!({ "modalities": ["text"], "audio": null, "web_search_options": null }),
        json!({ "max_completion_tokens": 6, "max_tokens": 60 }),
        json!({ "messages": [{ "role": "user", "name": "me", "content": [{ "type": "text", "text": "hello " }, { "type": "text", "text": "there" }] }] }),
    ] {
        assert_eq!(answered(&server, CHAT, &with(&chat(), nothing.clone())), plain, "{nothing}");
    }

    let options = json!({ "temperature": 0, "num_predict": 6 });
    let ollama = json!({ "prompt": "hello there", "stream": false, "options": options });
    let plain = answered(&server, "/api/generate", &ollama);
    for nothing in [
        json!({ "suffix": "", "system": "", "template": "", "context": [], "format": "" }),
        json!({ "suffix": null, "system": null, "template": null, "context": null, "format": null, "images": [] }),
        json!({ "raw": false, "keep_alive": null, "logprobs": false, "think": null }),
        json!({ "keep_alive": "5m" }),
    ] {
        assert_eq!(answered(&server, "/api/generate", &with(&ollama, nothing.clone())), plain, "{nothing}");
    }

    let messages = json!({ "max_tokens": 6, "temperature": 0, "messages": hello() });
    let plain = answered(&server, "/v1/messages", &messages);
    for nothing in [
        json!({ "system": "" }),
        json!({ "system": [] }),
        json!({ "stop_sequences": [], "tools": [], "metadata": { "user_id": "me" }, "tool_choice": { "type": "auto" } }),
        json!({ "messages": [{ "role": "user", "content": [{ "type": "text", "text": "hello there", "cache_control": { "type": "ephemeral" } }] }] }),
    ] {
        assert_eq!(answered(&server, "/v1/messages", &with(&messages, nothing.clone())), plain, "{nothing}");
    }

    let response = json!({ "input": "hello there", "temperature": 0, "max_output_tokens": 6 });
    let plain = answered(&server, "/v1/responses", &response);
    for nothing in [
        json!({ "previous_response_id": null, "conversation": null, "prompt": null, "background": false }),
        json!({ "instructions": null, "include": [], "tools": [], "store": true, "truncation": "auto" }),
        json!({ "text": { "format": { "type": "text" }, "verbosity": "low" }, "reasoning": { "effort": null } }),
        json!({ "input": [{ "type": "message", "role": "user", "content": "hello there" }] }),
    ] {
        assert_eq!(answered(&server, "/v1/responses", &with(&response, nothing.clone())), plain, "{nothing}");
    }
}

#[test]
fn what_cannot_be_done_is_refused() {
    let server = a_server();
    let messages = json!({ "max_tokens": 5, "messages": hello() });
    let ollama = json!({ "messages": hello() });
    let function = json!({ "type": "function", "function": { "name": "f" } });
    let began = json!([hello()[0], { "role": "assistant", "content": "{" }]);
    for (path, base, wrong, named) in [
        (CHAT, chat(), json!({ "modalities": ["text", "audio"] }), "modalities"),
        (CHAT, chat(), json!({ "audio": { "voice": "x", "format": "wav" } }), "audio"),
        (CHAT, chat(), json!({ "web_search_options": {} }), "web_search_options"),
        (CHAT, chat(), json!({ "tools": [{ "type": "custom", "custom": { "name": "f" } }] }), "tools"),
        (CHAT, chat(), json!({ "tools": [{ "type": "web_search", "name": "web_search" }] }), "tools"),
        (CHAT, chat(), json!({ "tools": ["f"] }), "tools"),
        (CHAT, chat(), json!({ "tools": [function], "tool_choice": "f" }), "tool_choice"),
        (CHAT, chat(), json!({ "tools": [function], "tool_choice": 1 }), "tool_choice"),
        (
            CHAT,
            chat(),
            json!({ "tools": [function], "tool_choice": { "type": "allowed_tools" } }),
            "tool_choice",
        ),
        (CHAT, chat(), json!({ "response_format": "json_object" }), ""),
        (CHAT, chat(), json!({ "response_format": { "type": "xml" } }), ""),
        (CHAT, chat(), json!({ "response_format": { "type": "json_schema" } }), ""),
        (
            CHAT,
            chat(),
            json!({ "response_format": { "type": "json_schema", "json_schema": { "schema": false } } }),
            "",
        ),
        (
            CHAT,
            chat(),
            json!({ "response_format": { "type": "json_schema", "json_schema": { "schema": "x" } } }),
            "",
        ),
        (CHAT, chat(), json!({ "stop": [1] }), ""),
        (CHAT, chat(), json!({ "stop": { "a": "b" } }), ""),
        (CHAT, chat(), json!({ "n": 2.5 }), ""),
        (CHAT, chat(), json!({ "max_tokens": "5" }), ""),
        (CHAT, chat(), json!({ "logit_bias": { "99999999": 1 } }), "logit_bias"),
        ("/v1/completions", json!({ "prompt": null }), json!({}), ""),
        ("/v1/completions", json!({ "prompt": "x" }), json!({ "best_of": 3, "n": 2 }), "best_of"),
        (
            "/v1/responses",
            json!({ "input": "x" }),
            json!({ "tools": [{ "type": "custom", "name": "f" }] }),
            "tools",
        ),
        ("/v1/responses", json!({ "input": "x" }), json!({ "tools": [{ "type": "web_search" }] }), "tools"),
        ("/v1/responses", json!({ "input": [] }), json!({}), "messages"),
        ("/v1/messages", messages.clone(), json!({ "messages": began }), "messages"),
        ("/v1/messages", messages.clone(), json!({ "messages": [] }), "messages"),
        ("/v1/messages", messages.clone(), json!({ "max_tokens": 0 }), "max_tokens"),
        (
            "/v1/messages",
            messages.clone(),
            json!({ "system": [{ "type": "tool_use", "id": "a", "name": "b", "input": {} }] }),
            "",
        ),
        (
            "/v1/messages",
            messages,
            json!({ "tools": [{ "type": "web_search_20250305", "name": "web_search" }] }),
            "tools",
        ),
        ("/api/generate", json!({ "prompt": "x" }), json!({ "context": [1, 2] }), "context"),
        ("/api/generate", json!({ "prompt": "x" }), json!({ "template": "{{ .Prompt }}" }), "template"),
        ("/api/chat", ollama.clone(), json!({ "keep_alive": "soon" }), "keep_alive"),
        ("/api/chat", ollama.clone(), json!({ "keep_alive": [] }), ""),
        ("/api/chat", ollama.clone(), json!({ "format": "xml" }), "format"),
        ("/api/chat", ollama, json!({ "logprobs": true, "top_logprobs": 21 }), "top_logprobs"),
    ] {
        let body = with(&base, wrong.clone());
        let refused = post(&server, path, &body);
        assert_eq!(refused.status, 400, "{path}: {wrong}: {}", refused.text());
        let told = refused.json();
        let message = told["error"]["message"].as_str().or(told["error"].as_str()).unwrap();
        assert!(message.starts_with(named), "{wrong}: {message}");
        if path.starts_with("/v1/") && path != "/v1/messages" && !named.is_empty() {
            assert_eq!(told["error"]["param"], named, "{told}");
        }
    }
    // What is not Ollama's to be done by clients is not there.
    for path in ["/api/delete", "/api/create", "/api/copy", "/api/push"] {
        let refused = post(&server, path, &json!({ "model": "tiny" }));
        assert!(refused.status == 404 && refused.json()["error"].is_string(), "{path}: {}", refused.text());
    }
    assert_eq!(get(&server, "/v1/responses/resp_1").status, 404);
}

/// Tools that Anthropic's clients call their own, and a call and its result in blocks of several forms.
#[test]
fn anthropics_forms_mean_the_same() {
    let server = a_server();
    let count = |body: &Value| {
        let counted = post(&server, "/v1/messages/count_tokens", body);
        assert_eq!(counted.status, 200, "{}", counted.text());
        counted.json()["input_tokens"].as_u64().unwrap()
    };
    let tool = json!({ "name": "f", "input_schema": { "type": "object", "properties": {} } });
    let custom = with(&tool, json!({ "type": "custom", "cache_control": { "type": "ephemeral" } }));
    let call = json!({ "type": "tool_use", "id": "toolu_1", "name": "f", "input": {} });
    let result = |content: Value| json!({ "type": "tool_result", "tool_use_id": "toolu_1", "content": content, "is_error": false });
    let said = |tool: &Value, system: Value, result: Value, more: Value| {
        let messages = json!([
            { "role": "user", "content": "x" },
            { "role": "assistant", "content": [{ "type": "text", "text": "so" }, call] },
            { "role": "user", "content": [result, more] },
        ]);
        json!({ "max_tokens": 4, "tools": [tool], "system": system, "messages": messages })
    };
    let text = |text: &str| json!({ "type": "text", "text": text });
    let first = said(&tool, json!("Be brief."), result(json!("done")), text("and now?"));
    let blocks = json!([text("Be "), text("brief.")]);
    let second = said(&custom, blocks, result(json!([text("do"), text("ne")])), text("and now?"));
    assert_eq!(count(&first), count(&second));
    assert_ne!(count(&first), count(&said(&tool, json!(""), result(json!("done")), text("and now?"))));
    assert_ne!(
        count(&first),
        count(&said(&tool, json!("Be brief."), result(json!("done, it is")), text("and now?")))
    );
    assert_ne!(
        count(&first),
        count(&said(&tool, json!("Be brief."), result(json!("done")), text("and now what?")))
    );
    for body in [&first, &second] {
        assert_eq!(post(&server, "/v1/messages", body).status, 200);
    }
}

/// The context ends such an answer.
#[test]
fn any_number_of_tokens_may_be_asked_for() {
    let server = a_server();
    let ends = |path: &str, body: Value, pointer: &str| {
        let answer = post(&server, path, &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json().pointer(pointer).cloned().unwrap()
    };
    let vast = json!({ "max_tokens": i64::MAX });
    assert_eq!(ends(CHAT, with(&chat(), vast), "/choices/0/finish_reason"), "length");
    assert_eq!(ends(CHAT, with(&chat(), json!({ "max_tokens": -1 })), "/choices/0/finish_reason"), "length");
    let none = json!({ "prompt": "x", "n_predict": -1, "ignore_eos": true });
    assert_eq!(ends("/completion", none, "/stop_type"), "limit");
}

/// Several answers in one stream: each with an end and likelihoods of its own, and one account of them all.
#[test]
fn several_streamed_answers_are_told_apart() {
    let server = a_server();
    let ask = json!({
        "messages": hello(), "n": 3, "seed": 11, "temperature": 1.2, "max_tokens": 7, "ignore_eos": true,
        "logprobs": true, "top_logprobs": 1,
    });
    let whole = post(&server, CHAT, &ask).json();
    let streamed = with(&ask, json!({ "stream": true, "stream_options": { "include_usage": true } }));
    let mut chunks = post(&server, CHAT, &streamed).chunks();
    let usage = chunks.pop().unwrap()["usage"].clone();
    assert_eq!(usage["completion_tokens"], 21);
    assert_eq!(usage["prompt_tokens"], whole["usage"]["prompt_tokens"]);
    for choice in whole["choices"].as_array().unwrap() {
        let own: Vec<&Value> = chunks
            .iter()
            .map(|chunk| &chunk["choices"][0])
            .filter(|one| one["index"] == choice["index"])
            .collect();
        let logprobs: Vec<&Value> =
            own.iter().filter_map(|one| one["logprobs"]["content"].as_array()).flatten().collect();
        assert_eq!(logprobs, choice["logprobs"]["content"].as_array().unwrap().iter().collect::<Vec<_>>());
        assert_eq!(own.iter().filter(|one| !one["finish_reason"].is_null()).count(), 1);
        assert_eq!(own.last().unwrap()["finish_reason"], choice["finish_reason"]);
    }
}

/// A value whose numbers are as exact as likelihoods are.
fn rounded(value: &Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_f64().unwrap() as f32),
        Value::Array(items) => items.iter().map(rounded).collect(),
        Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), rounded(value))).collect(),
        other => other.clone(),
    }
}

/// How likely tokens were is the same in all interfaces that have a place for it.
#[test]
fn likelihoods_are_told_in_every_interface() {
    let server = a_server();
    let told = json!({ "logprobs": true, "top_logprobs": 2 });
    let chat = post(&server, CHAT, &with(&chat(), told.clone())).json();
    let expected = rounded(&chat["choices"][0]["logprobs"]["content"]);
    assert_eq!(expected.as_array().unwrap().len(), 6);

    let input = json!({ "input": "hello there", "temperature": 0, "max_output_tokens": 6 });
    let included = json!({ "include": ["message.output_text.logprobs"], "top_logprobs": 2 });
    let mut response = with(&input, included);
    // The model may end the answer here.
    let is_start = |told: &Value| {
        let told = rounded(told);
        let told = told.as_array().unwrap_or_else(|| panic!("{told}"));
        assert!(!told.is_empty());
        assert_eq!(told[..], expected.as_array().unwrap()[..told.len()]);
    };
    let whole = post(&server, "/v1/responses", &response).json();
    is_start(&whole["output"][0]["content"][0]["logprobs"]);
    assert_eq!(whole["top_logprobs"], 2);
    response["stream"] = true.into();
    let events = post(&server, "/v1/responses", &response).events();
    let of = |name: &str| -> Vec<Value> {
        let own = events.iter().filter(|(kind, _)| kind == name);
        own.map(|(_, data)| serde_json::from_str(data).unwrap()).collect()
    };
    let deltas: Vec<Value> = of("response.output_text.delta")
        .iter()
        .flat_map(|one| one["logprobs"].as_array().unwrap().clone())
        .collect();
    is_start(&deltas.into());
    is_start(&of("response.output_text.done")[0]["logprobs"]);
    is_start(&of("response.content_part.done")[0]["part"]["logprobs"]);
    let without = post(&server, "/v1/responses", &input).json();
    assert_eq!(without["output"][0]["content"][0]["logprobs"], json!([]));

    let options = json!({ "options": { "temperature": 0, "num_predict": 6 } });
    for (path, body) in
        [("/api/chat", json!({ "messages": hello() })), ("/api/generate", json!({ "prompt": "hello there" }))]
    {
        let body = with(&with(&body, options.clone()), told.clone());
        is_start(&post(&server, path, &with(&body, json!({ "stream": false }))).json()["logprobs"]);
        let lines = post(&server, path, &body).lines();
        let all: Vec<Value> =
            lines.iter().flat_map(|line| line["logprobs"].as_array().unwrap().clone()).collect();
        is_start(&all.into());
        let silent = with(&body, json!({ "logprobs": false }));
        assert!(post(&server, path, &silent).lines().iter().all(|line| line.get("logprobs").is_none()));
    }
}
