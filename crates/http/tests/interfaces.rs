//! Every interface against a real server: what is answered is what the engine answers, whole or piece by piece.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use oxcart_http::{About, Config, Limits, Listeners, Models, Served, Server};
use oxcart_llm::engine::{Event, Request};
use oxcart_llm::text::{ChatOptions, ChatTemplate, Encode, Message, SamplerSettings};
use serde_json::{Value, json};
use support::{CONTEXT, engine, engine_with, get, post, server, server_of};

fn a_server() -> Server {
    server(4, Limits::default())
}

/// What the engine answers to a prompt, greedily.
fn expected(prompt: &Prompt, limit: usize) -> (String, usize) {
    let mut engine = engine(1);
    let tokens = match prompt {
        Prompt::Text(text) => engine.vocab().encode(text, Encode { add_special: true, parse_special: true }),
        Prompt::Chat(text) => {
            let template = ChatTemplate::for_model(&engine.runner().model().metadata()).unwrap();
            let messages = [Message::new("user", *text)];
            let prompt = template.prompt(&messages, &ChatOptions::default(), engine.vocab()).unwrap();
            engine.vocab().encode_prompt(&prompt)
        }
    };
    let count = tokens.len();
    let sampler = SamplerSettings::greedy().ban(engine.vocab().suppressed());
    let mut answer = engine.answer(Request { sampler, limit, ..Request::new(tokens) }).unwrap();
    let mut text = String::new();
    while let Some(event) = answer.next_event() {
        match event.unwrap() {
            Event::Token(token) => text.push_str(&token.text),
            Event::Finished { text: rest, .. } => text.push_str(&rest),
            event => panic!("{event:?}"),
        }
    }
    (text, count)
}

enum Prompt {
    Text(&'static str),
    Chat(&'static str),
}

fn hello() -> Value {
    json!([{ "role": "user", "content": "hello there" }])
}

/// The text of a stream's chunks.
fn joined(chunks: &[Value], pointer: &str) -> String {
    chunks.iter().filter_map(|chunk| chunk.pointer(pointer)?.as_str()).collect()
}

#[test]
fn chat_is_what_the_engine_says() {
    let server = a_server();
    let (text, prompt_tokens) = expected(&Prompt::Chat("hello there"), 20);
    let mut request = json!({ "model": "tiny", "messages": hello(), "temperature": 0, "max_tokens": 20 });
    let whole = post(&server, "/v1/chat/completions", &request);
    assert_eq!(whole.status, 200, "{}", whole.text());
    let whole = whole.json();
    assert_eq!(whole["object"], "chat.completion");
    assert_eq!(whole["choices"][0]["message"]["content"], text.as_str());
    assert_eq!(whole["choices"][0]["message"]["role"], "assistant");
    assert_eq!(whole["usage"]["prompt_tokens"], prompt_tokens);
    let made = whole["usage"]["completion_tokens"].as_u64().unwrap();
    assert_eq!(whole["choices"][0]["finish_reason"], if made == 20 { "length" } else { "stop" });

    request["stream"] = true.into();
    let streamed = post(&server, "/v1/chat/completions", &request);
    assert!(streamed.is_complete);
    let chunks = streamed.chunks();
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({ "role": "assistant", "content": "" }));
    assert_eq!(joined(&chunks, "/choices/0/delta/content"), text);
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], whole["choices"][0]["finish_reason"]);
    assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none()), "usage only where it is asked for");
    assert!(chunks.iter().all(|chunk| chunk["id"] == chunks[0]["id"]));

    request["stream_options"] = json!({ "include_usage": true });
    let chunks = post(&server, "/v1/chat/completions", &request).chunks();
    let last = chunks.last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], made);
}

/// Reasoning that only another server can read is part of conversations that began there.
#[test]
fn redacted_reasoning_is_passed_over() {
    let server = a_server();
    let ask = |blocks: Value| {
        let messages = json!([
            { "role": "user", "content": "hello" },
            { "role": "assistant", "content": blocks },
            { "role": "user", "content": "again" },
        ]);
        let body = json!({ "messages": messages, "max_tokens": 5, "temperature": 0 });
        post(&server, "/v1/messages", &body)
    };
    let (redacted, text) =
        (json!({ "type": "redacted_thinking", "data": "x" }), json!({ "type": "text", "text": "hi" }));
    let with = ask(json!([redacted, text]));
    assert_eq!(with.status, 200, "{}", with.text());
    assert_eq!(with.json()["content"], ask(json!([text])).json()["content"]);
}

/// A response that is sent whole is held until then; one that is not is not.
#[test]
fn more_likelihoods_than_can_be_held_are_refused() {
    let server = a_server();
    let ask = |answers: usize, limit: usize, stream: bool| {
        let body = json!({
            "prompt": vec!["x"; answers], "n": 16, "max_tokens": limit, "logprobs": 20, "stream": stream, "temperature": 0,
            "stop": [" ", "a", "e"],
        });
        post(&server, "/v1/completions", &body)
    };
    let refused = ask(16, 500, false);
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("logprobs")));
    assert_eq!(ask(16, 10, false).json()["choices"].as_array().unwrap().len(), 256);
    assert_eq!(ask(16, 500, true).status, 200);
}

#[test]
fn several_choices_differ_and_seeds_do_not() {
    let server = a_server();
    let request = json!({ "messages": hello(), "n": 3, "seed": 7, "temperature": 1.5, "max_tokens": 12, "ignore_eos": true });
    let texts = |response: &Value| -> Vec<String> {
        let choices = response["choices"].as_array().unwrap();
        assert_eq!(
            choices.iter().map(|choice| choice["index"].as_u64().unwrap()).collect::<Vec<_>>(),
            [0, 1, 2]
        );
        choices.iter().map(|choice| choice["message"]["content"].as_str().unwrap().to_owned()).collect()
    };
    let first = post(&server, "/v1/chat/completions", &request).json();
    let once = texts(&first);
    assert!(once[0] != once[1] && once[1] != once[2], "{once:?}");
    assert_eq!(first["usage"]["completion_tokens"], 36);
    assert_eq!(texts(&post(&server, "/v1/chat/completions", &request).json()), once);

    let mut streamed = request.clone();
    streamed["stream"] = true.into();
    let chunks = post(&server, "/v1/chat/completions", &streamed).chunks();
    for (index, text) in once.iter().enumerate() {
        let own: Vec<Value> =
            chunks.iter().filter(|chunk| chunk["choices"][0]["index"] == index).cloned().collect();
        assert_eq!(&joined(&own, "/choices/0/delta/content"), text);
    }
}

#[test]
fn likelihoods_are_told_with_every_token() {
    let server = a_server();
    let mut request = json!({
        "messages": hello(), "temperature": 0, "max_tokens": 8, "logprobs": true, "top_logprobs": 3, "ignore_eos": true,
    });
    let whole = post(&server, "/v1/chat/completions", &request).json();
    let tokens = whole["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    assert_eq!(tokens.len(), 8);
    for token in &tokens {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        assert_eq!(top[0]["token"], token["token"], "greedy takes the likeliest");
        assert!(token["logprob"].as_f64().unwrap() <= 0.0);
        assert!(token["bytes"].as_array().unwrap().iter().all(|byte| byte.as_u64().unwrap() < 256));
    }
    request["stream"] = true.into();
    let chunks = post(&server, "/v1/chat/completions", &request).chunks();
    let streamed: Vec<Value> = chunks
        .iter()
        .filter_map(|chunk| chunk.pointer("/choices/0/logprobs/content")?.as_array())
        .flatten()
        .cloned()
        .collect();
    assert_eq!(streamed, tokens);
}

#[test]
fn biases_and_penalties_count() {
    let server = a_server();
    let plain =
        json!({ "prompt": "the end", "temperature": 0, "max_tokens": 6, "ignore_eos": true, "logprobs": 1 });
    let first = post(&server, "/v1/completions", &plain).json();
    let text = first["choices"][0]["logprobs"]["tokens"][0].as_str().unwrap();
    let token = post(&server, "/tokenize", &json!({ "content": text })).json()["tokens"][0].clone();
    let mut biased = plain.clone();
    biased["logit_bias"] = json!({ token.to_string(): -100 });
    let other = post(&server, "/v1/completions", &biased).json();
    assert_ne!(other["choices"][0]["logprobs"]["tokens"][0], text);
    let mut never = plain.clone();
    never["logit_bias"] = json!([[token, false]]);
    let same = post(&server, "/v1/completions", &never).json();
    assert_eq!(same["choices"][0]["text"], other["choices"][0]["text"]);
    let refused = post(&server, "/v1/completions", &json!({ "prompt": "a", "logit_bias": { "x": 1 } }));
    assert_eq!(refused.status, 400);
    // The most frequent token of an answer is less frequent if that is penalized.
    let most = |penalties: Value| {
        let mut ask = json!({ "prompt": "the end", "temperature": 0, "max_tokens": 60, "ignore_eos": true, "logprobs": 0 });
        ask.as_object_mut().unwrap().extend(penalties.as_object().unwrap().clone());
        let whole = post(&server, "/v1/completions", &ask).json();
        let tokens = whole["choices"][0]["logprobs"]["tokens"].as_array().unwrap().clone();
        tokens.iter().map(|token| tokens.iter().filter(|other| *other == token).count()).max().unwrap()
    };
    let plain = most(json!({}));
    for name in ["frequency_penalty", "presence_penalty"] {
        let penalized = most(json!({ name: 2 }));
        assert!(penalized < plain, "{name}: {penalized} times, {plain} without");
    }
}

#[test]
fn completions_take_texts_and_tokens() {
    let server = a_server();
    let (text, _) = expected(&Prompt::Text("the end"), 10);
    let tokens =
        post(&server, "/tokenize", &json!({ "content": "the end", "add_special": true })).json()["tokens"]
            .clone();
    for prompt in [json!("the end"), json!(["the end"]), tokens.clone(), json!([tokens])] {
        let request = json!({ "prompt": prompt, "temperature": 0, "max_tokens": 10 });
        let whole = post(&server, "/v1/completions", &request).json();
        assert_eq!(whole["choices"][0]["text"], text.as_str(), "{prompt}");
        assert_eq!(whole["object"], "text_completion");
    }
    let several = json!({ "prompt": ["the end", "a", "the end"], "temperature": 0, "max_tokens": 10 });
    let whole = post(&server, "/v1/completions", &several).json();
    let choices = whole["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 3);
    assert_eq!((&choices[0]["text"], &choices[2]["text"]), (&json!(text), &json!(text)));
    // For each prompt all its answers, one prompt after the other; a prompt counts once.
    let twice = json!({
        "prompt": ["the end", "a"], "n": 2, "temperature": 1.5, "seed": 7, "max_tokens": 10, "ignore_eos": true,
    });
    let whole = post(&server, "/v1/completions", &twice).json();
    let choices = whole["choices"].as_array().unwrap();
    assert_eq!(choices.iter().map(|choice| &choice["index"]).collect::<Vec<_>>(), [0, 1, 2, 3]);
    let one =
        json!({ "prompt": "a", "n": 2, "temperature": 1.5, "seed": 7, "max_tokens": 10, "ignore_eos": true });
    let one = post(&server, "/v1/completions", &one).json();
    assert_eq!(
        (&choices[2]["text"], &choices[3]["text"]),
        (&one["choices"][0]["text"], &one["choices"][1]["text"])
    );
    assert_ne!(choices[0]["text"], choices[1]["text"]);
    assert_eq!(whole["usage"]["completion_tokens"], 40);
    let prompts = ["the end", "a"].map(|text| {
        let tokens = post(&server, "/tokenize", &json!({ "content": text, "add_special": true })).json();
        tokens["tokens"].as_array().unwrap().len()
    });
    assert_eq!(whole["usage"]["prompt_tokens"], prompts[0] + prompts[1]);
    let mut streamed = json!({ "prompt": "the end", "temperature": 0, "max_tokens": 10, "stream": true });
    let chunks = post(&server, "/v1/completions", &streamed).chunks();
    assert_eq!(joined(&chunks, "/choices/0/text"), text);
    streamed["logprobs"] = 2.into();
    let chunks = post(&server, "/v1/completions", &streamed).chunks();
    assert_eq!(joined(&chunks, "/choices/0/text"), text);
    assert!(chunks[0]["choices"][0]["logprobs"]["tokens"].is_array());
}

#[test]
fn an_answer_ends_at_stop_strings() {
    let server = a_server();
    let (text, _) = expected(&Prompt::Text("the end"), 30);
    let at = text.char_indices().nth(text.chars().count() / 2).unwrap().0;
    let stop: String = text[at..].chars().take(2).collect();
    let before = &text[..text.find(&stop).unwrap()];
    let request = json!({ "prompt": "the end", "temperature": 0, "max_tokens": 30, "stop": [stop] });
    let whole = post(&server, "/v1/completions", &request).json();
    assert_eq!(whole["choices"][0]["text"], before);
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    let own = json!({ "prompt": "the end", "temperature": 0, "n_predict": 30, "stop": ["\u{1}never", stop] });
    let whole = post(&server, "/completion", &own).json();
    assert_eq!((&whole["stop_type"], &whole["stopping_word"]), (&json!("word"), &json!(stop)));
    assert_eq!(whole["content"], before);
}

/// A schema that even random weights can fill in.
fn schema() -> Value {
    json!({
        "type": "object",
        "properties": { "yes": { "type": "boolean" }, "kind": { "enum": ["a", "b"] } },
        "required": ["yes", "kind"],
        "additionalProperties": false,
    })
}

#[track_caller]
fn assert_follows_schema(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert!(value["yes"].is_boolean() && ["a", "b"].contains(&value["kind"].as_str().unwrap()), "{text}");
}

#[test]
fn answers_follow_schemas_in_every_interface() {
    let server = a_server();
    let format =
        json!({ "type": "json_schema", "json_schema": { "name": "x", "strict": true, "schema": schema() } });
    let chat = json!({ "messages": hello(), "max_tokens": 200, "response_format": format });
    let whole = post(&server, "/v1/chat/completions", &chat).json();
    assert_follows_schema(
        whole["choices"][0]["message"]["content"].as_str().unwrap_or_else(|| panic!("{whole}")),
    );
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    let completion = json!({ "prompt": "x", "max_tokens": 200, "json_schema": schema() });
    let whole = post(&server, "/v1/completions", &completion).json();
    assert_follows_schema(whole["choices"][0]["text"].as_str().unwrap());
    let responses = json!({
        "input": "x", "max_output_tokens": 200, "text": { "format": { "type": "json_schema", "name": "x", "schema": schema() } },
    });
    let whole = post(&server, "/v1/responses", &responses).json();
    assert_follows_schema(whole["output"][0]["content"][0]["text"].as_str().unwrap());
    let ollama = json!({ "model": "tiny", "messages": hello(), "stream": false, "format": schema() });
    let whole = post(&server, "/api/chat", &ollama).json();
    assert_follows_schema(whole["message"]["content"].as_str().unwrap());
    let grammar = json!({ "messages": hello(), "max_tokens": 50, "grammar": "root ::= \"yes\" | \"no\"" });
    let whole = post(&server, "/v1/chat/completions", &grammar).json();
    assert!(["yes", "no"].contains(&whole["choices"][0]["message"]["content"].as_str().unwrap()));
    let both = json!({ "messages": hello(), "grammar": "root ::= \"a\"", "response_format": { "type": "json_object" } });
    assert_eq!(post(&server, "/v1/chat/completions", &both).status, 400);
    let bad = json!({ "messages": hello(), "json_schema": { "type": "nonsense" } });
    assert_eq!(post(&server, "/v1/chat/completions", &bad).status, 400);
}

#[test]
fn responses_are_told_event_by_event() {
    let server = a_server();
    let (text, prompt_tokens) = expected(&Prompt::Chat("hello there"), 15);
    let mut request =
        json!({ "model": "tiny", "input": "hello there", "temperature": 0, "max_output_tokens": 15 });
    let whole = post(&server, "/v1/responses", &request).json();
    assert_eq!(whole["output"][0]["content"][0]["text"], text.as_str(), "{whole}");
    assert_eq!(whole["usage"]["input_tokens"], prompt_tokens);
    let items = json!([{ "role": "user", "content": [{ "type": "input_text", "text": "hello there" }] }]);
    let as_items = json!({ "input": items, "temperature": 0, "max_output_tokens": 15 });
    let same = post(&server, "/v1/responses", &as_items).json();
    assert_eq!(same["output"][0]["content"], whole["output"][0]["content"]);

    request["stream"] = true.into();
    let events = post(&server, "/v1/responses", &request).events();
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names[..4],
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added"
        ]
    );
    let end = &names[names.len() - 4..];
    assert_eq!(
        end[..3],
        ["response.output_text.done", "response.content_part.done", "response.output_item.done"]
    );
    assert!(matches!(end[3], "response.completed" | "response.incomplete"));
    let values: Vec<Value> = events.iter().map(|(_, data)| serde_json::from_str(data).unwrap()).collect();
    for (number, (value, name)) in values.iter().zip(&names).enumerate() {
        assert_eq!((&value["type"], &value["sequence_number"]), (&json!(name), &json!(number)));
    }
    let deltas: String = values
        .iter()
        .filter(|value| value["type"] == "response.output_text.delta")
        .map(|value| value["delta"].as_str().unwrap())
        .collect();
    assert_eq!(deltas, text);
    let last = &values.last().unwrap()["response"];
    assert_eq!(last["output"][0]["content"][0]["text"], text.as_str());
    assert_eq!(last["status"], whole["status"]);
    // What was asked for is repeated.
    assert_eq!((&whole["temperature"], &whole["max_output_tokens"]), (&json!(0), &json!(15)));
    assert_eq!((&whole["tool_choice"], &whole["tools"]), (&json!("auto"), &json!([])));
    let tool =
        json!({ "type": "function", "name": "now", "parameters": { "type": "object", "properties": {} } });
    let said = json!({
        "input": "x", "instructions": "Be brief.", "max_output_tokens": 2, "tools": [tool], "tool_choice": "none", "top_p": 0.5,
        "parallel_tool_calls": false, "metadata": { "mine": "1" }, "stream": true,
    });
    let events = post(&server, "/v1/responses", &said).events();
    for at in [0, events.len() - 1] {
        let response = &serde_json::from_str::<Value>(&events[at].1).unwrap()["response"];
        for name in [
            "instructions",
            "max_output_tokens",
            "tools",
            "tool_choice",
            "top_p",
            "parallel_tool_calls",
            "metadata",
        ] {
            assert_eq!(response[name], said[name], "{name}");
        }
    }
    for refused in [
        json!({ "input": "x", "previous_response_id": "resp_1" }),
        json!({ "input": "x", "conversation": "conv_1" }),
        json!({ "input": "x", "prompt": { "id": "pmpt_1" } }),
        json!({ "input": "x", "background": true }),
        json!({ "input": [{ "type": "image" }] }),
    ] {
        assert_eq!(post(&server, "/v1/responses", &refused).status, 400, "{refused}");
    }
}

#[test]
fn messages_are_told_block_by_block() {
    let server = a_server();
    let (text, prompt_tokens) = expected(&Prompt::Chat("hello there"), 15);
    let mut request = json!({ "model": "tiny", "max_tokens": 15, "temperature": 0, "messages": hello() });
    let whole = post(&server, "/v1/messages", &request).json();
    assert_eq!(whole["content"], json!([{ "type": "text", "text": text }]), "{whole}");
    assert_eq!(whole["role"], "assistant");
    let usage = &whole["usage"];
    let input = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(input, prompt_tokens as u64);
    request["stream"] = true.into();
    let events = post(&server, "/v1/messages", &request).events();
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names[..2], ["message_start", "content_block_start"]);
    assert_eq!(names[names.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    let values: Vec<Value> = events.iter().map(|(_, data)| serde_json::from_str(data).unwrap()).collect();
    assert!(values.iter().zip(&names).all(|(value, name)| value["type"] == *name));
    assert_eq!(joined(&values, "/delta/text"), text);
    assert_eq!(values[values.len() - 2]["delta"]["stop_reason"], whole["stop_reason"]);
    let count = json!({ "model": "tiny", "messages": hello() });
    assert_eq!(post(&server, "/v1/messages/count_tokens", &count).json()["input_tokens"], prompt_tokens);
    let first: String = text.chars().take(1).collect();
    let stopped =
        json!({ "max_tokens": 15, "temperature": 0, "messages": hello(), "stop_sequences": [first] });
    let stopped = post(&server, "/v1/messages", &stopped).json();
    assert_eq!(
        (&stopped["stop_reason"], &stopped["stop_sequence"]),
        (&json!("stop_sequence"), &json!(first))
    );
    assert_eq!(
        post(&server, "/v1/messages", &json!({ "messages": hello() })).status,
        400,
        "without max_tokens"
    );
}

#[test]
fn ollamas_lines_are_what_the_engine_says() {
    let server = a_server();
    let (text, prompt_tokens) = expected(&Prompt::Chat("hello there"), 15);
    let options = json!({ "temperature": 0, "num_predict": 15 });
    let chat = json!({ "model": "tiny:latest", "messages": hello(), "options": options });
    let lines = post(&server, "/api/chat", &chat).lines();
    assert_eq!(joined(&lines, "/message/content"), text);
    let last = lines.last().unwrap();
    assert_eq!((&last["done"], &last["prompt_eval_count"]), (&json!(true), &json!(prompt_tokens)));
    assert!(lines[..lines.len() - 1].iter().all(|line| line["done"] == false));
    let generate = json!({ "model": "tiny", "prompt": "hello there", "options": options, "stream": false });
    let whole = post(&server, "/api/generate", &generate).json();
    assert_eq!(whole["response"], text.as_str());
    let (raw, _) = expected(&Prompt::Text("the end"), 15);
    let generate = json!({ "model": "tiny", "prompt": "the end", "raw": true, "options": options });
    assert_eq!(joined(&post(&server, "/api/generate", &generate).lines(), "/response"), raw);
    let load = post(&server, "/api/generate", &json!({ "model": "tiny" })).json();
    assert_eq!((&load["done"], &load["done_reason"]), (&json!(true), &json!("load")));

    assert_eq!(get(&server, "/api/tags").json()["models"][0]["name"], "tiny");
    assert_eq!(get(&server, "/api/ps").json()["models"][0]["model"], "tiny");
    let version = get(&server, "/api/version").json();
    let number =
        |at| version["version"].as_str().unwrap().split('.').nth(at).unwrap().parse::<u32>().unwrap();
    assert!([0, 1, 2].map(number) >= [0, 6, 4], "GitHub Copilot wants at least 0.6.4: {version}");
    assert_eq!(version["oxcart"], env!("CARGO_PKG_VERSION"));
    let show = post(&server, "/api/show", &json!({ "model": "tiny" })).json();
    assert_eq!(show["details"]["family"], "llama");
    assert_eq!(show["model_info"]["general.basename"], "tiny");
    assert_eq!(show["model_info"]["llama.context_length"], 512);
    assert_eq!(
        post(&server, "/api/pull", &json!({ "model": "tiny" })).lines(),
        [json!({ "status": "success" })]
    );
    assert_eq!(post(&server, "/api/pull", &json!({ "model": "other" })).status, 404);
}

/// Clients fill the context that they are told of, so it is the one that is served.
#[test]
fn the_context_that_is_told_is_served() {
    let about = |trained_context| About {
        architecture: "llama".into(),
        basename: Some("Tiny".into()),
        trained_context,
        ..About::default()
    };
    let all = [("long", 8192), ("short", 128)]
        .map(|(name, trained)| Served::talking(name, engine(1), about(trained), Limits::default()).unwrap());
    let models = Models::new(all.into()).unwrap();
    let server = Server::start(Listeners::local().unwrap(), Config::new(models)).unwrap();
    for (name, context) in [("long", 512), ("short", 128)] {
        let info = &post(&server, "/api/show", &json!({ "model": name })).json()["model_info"];
        assert_eq!(info["llama.context_length"], context, "{name}");
        assert_eq!(info["general.basename"], "Tiny");
    }
}

#[test]
fn what_llama_server_offers_beside() {
    let server = a_server();
    assert_eq!(get(&server, "/health").json(), json!({ "status": "ok" }));
    let props = get(&server, "/props").json();
    assert_eq!(
        (&props["total_slots"], &props["default_generation_settings"]["n_ctx"]),
        (&json!(4), &json!(512))
    );
    let slots = get(&server, "/slots").json();
    assert_eq!(slots.as_array().unwrap().len(), 4);
    let tokens = post(&server, "/tokenize", &json!({ "content": "the end é" })).json()["tokens"].clone();
    let back = post(&server, "/detokenize", &json!({ "tokens": tokens })).json();
    assert_eq!(back["content"], "the end é");
    let pieces = post(&server, "/tokenize", &json!({ "content": "the", "with_pieces": true })).json();
    assert!(pieces["tokens"][0]["id"].is_u64() && pieces["tokens"][0]["piece"].is_string());
    let prompt = post(&server, "/apply-template", &json!({ "messages": hello() })).json();
    assert_eq!(prompt["prompt"], "<|im_start|>user\nhello there<|im_end|>\n<|im_start|>assistant\n");
    let infill = post(&server, "/infill", &json!({ "input_prefix": "a", "input_suffix": "b" }));
    assert_eq!(infill.status, 501, "the vocabulary has no such tokens");
    assert_eq!(post(&server, "/detokenize", &json!({ "tokens": [999_999] })).status, 400);
    let (text, _) = expected(&Prompt::Text("the end"), 10);
    let stream = json!({ "prompt": "the end", "temperature": 0, "n_predict": 10, "stream": true });
    let events = post(&server, "/completion", &stream).events();
    let values: Vec<Value> = events.iter().map(|(_, data)| serde_json::from_str(data).unwrap()).collect();
    assert_eq!(joined(&values, "/content"), text);
    assert_eq!(values.last().unwrap()["stop"], true);
}

/// A vocabulary with tokens for gaps: `/infill`, and what other interfaces call a suffix.
#[test]
fn gaps_are_filled_where_the_vocabulary_can_say_so() {
    let token = |server: &Server, text: &str| {
        post(server, "/tokenize", &json!({ "content": text })).json()["tokens"][0].as_u64().unwrap() as u32
    };
    let marks = {
        let plain = a_server();
        ["<|user|>", "<|bot|>", "<|tool|>", "<|sep|>"].map(|text| token(&plain, text))
    };
    let [before, behind, middle, file] = marks;
    let engine = engine_with(2, |model| {
        for (name, token) in
            [("fim_pre", before), ("fim_suf", behind), ("fim_mid", middle), ("fim_sep", file)]
        {
            model.set(&format!("tokenizer.ggml.{name}_token_id"), token);
        }
    });
    let server = server_of(engine, Limits::default(), |_| {});
    let plain = |text: &str| {
        let tokens = post(&server, "/tokenize", &json!({ "content": text, "parse_special": false })).json();
        tokens["tokens"].as_array().unwrap().clone()
    };
    let start =
        post(&server, "/tokenize", &json!({ "content": "", "add_special": true })).json()["tokens"].clone();
    let gap = |files: &[(&str, &str)], first: &str, last: &str| {
        let mut tokens = start.as_array().unwrap().clone();
        for &(name, text) in files {
            tokens.push(file.into());
            tokens.extend(plain(&format!("{name}\n")));
            tokens.extend(plain(text));
        }
        if !files.is_empty() {
            tokens.push(file.into());
        }
        tokens.push(before.into());
        tokens.extend(plain(first));
        tokens.push(behind.into());
        tokens.extend(plain(last));
        tokens.push(middle.into());
        Value::Array(tokens)
    };
    let settings = json!({ "temperature": 0, "n_predict": 12, "max_tokens": 12, "ignore_eos": true });
    let ask = |path: &str, more: Value| {
        let mut ask = settings.clone();
        ask.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let reply = post(&server, path, &ask);
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()
    };
    let filled = |tokens: Value| ask("/completion", json!({ "prompt": tokens }))["content"].clone();
    let expected = filled(gap(&[], "the end", "and then"));
    let infill = json!({ "input_prefix": "the ", "prompt": "end", "input_suffix": "and then" });
    assert_eq!(ask("/infill", infill)["content"], expected);
    let suffix = json!({ "prompt": "the end", "suffix": "and then" });
    assert_eq!(ask("/v1/completions", suffix)["choices"][0]["text"], expected);
    let ollama = json!({
        "prompt": "the end", "suffix": "and then", "stream": false, "options": { "temperature": 0, "num_predict": 12 },
    });
    let ollama = post(&server, "/api/generate", &ollama).json()["response"].clone();
    // It may end earlier there.
    assert!(expected.as_str().unwrap().starts_with(ollama.as_str().unwrap()), "{ollama} {expected}");
    let files = json!({
        "input_prefix": "the end", "input_suffix": "and then",
        "input_extra": [{ "filename": "a.txt", "text": "first" }, { "filename": "b.txt", "text": "second" }],
    });
    let files = ask("/infill", files);
    assert_eq!(
        files["content"],
        filled(gap(&[("a.txt", "first"), ("b.txt", "second")], "the end", "and then"))
    );
    let show = post(&server, "/api/show", &json!({ "model": "tiny" })).json();
    assert!(show["capabilities"].as_array().unwrap().contains(&json!("insert")), "{show}");
}

/// The engine reads text only, and an image that is left out would be an answer to another question.
#[test]
fn images_are_refused_in_every_interface() {
    let server = a_server();
    let said = |content: Value| json!([{ "role": "user", "content": content }]);
    let text = json!({ "type": "text", "text": "What is this?" });
    let base64 = json!({ "type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo=" });
    let image = json!({ "type": "image", "source": base64 });
    let result = json!({ "type": "tool_result", "tool_use_id": "toolu_1", "content": [image] });
    for (path, body) in [
        (
            "/v1/chat/completions",
            json!({ "messages": said(json!([text, { "type": "image_url", "image_url": { "url": "data:image/png;base64,iVBORw0KGgo=" } }])) }),
        ),
        (
            "/v1/responses",
            json!({ "input": said(json!([{ "type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo=" }])) }),
        ),
        ("/v1/messages", json!({ "max_tokens": 5, "messages": said(json!([text, image])) })),
        ("/v1/messages", json!({ "max_tokens": 5, "messages": said(json!([result])) })),
        (
            "/api/chat",
            json!({ "messages": [{ "role": "user", "content": "What is this?", "images": ["iVBORw0KGgo="] }] }),
        ),
        ("/api/generate", json!({ "prompt": "What is this?", "images": ["iVBORw0KGgo="] })),
    ] {
        let refused = post(&server, path, &body);
        assert_eq!(refused.status, 400, "{path}");
        assert!(refused.text().contains("images are not supported"), "{path}: {}", refused.text());
    }
    assert_eq!(get(&server, "/props").json()["modalities"], json!({ "vision": false, "audio": false }));
}

#[test]
fn metrics_are_what_prometheus_reads() {
    let server = a_server();
    post(&server, "/v1/completions", &json!({ "prompt": "the end", "max_tokens": 5, "ignore_eos": true }));
    let metrics = get(&server, "/metrics");
    assert_eq!(metrics.header("content-type"), Some("text/plain; version=0.0.4"));
    let mut known = Vec::new();
    for line in metrics.text().lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            known.push(rest.split(' ').next().unwrap().to_owned());
        } else if !line.starts_with('#') {
            let (name, value) = line.rsplit_once(' ').unwrap();
            let name = name.split('{').next().unwrap();
            assert!(known.iter().any(|known| known == name), "{line}");
            assert!(value.parse::<f64>().unwrap() >= 0.0);
        }
    }
    assert_eq!(support::metric(&server, "oxcart_answer_tokens_total"), 5.0);
    assert_eq!(support::metric(&server, "oxcart_requests_finished_total"), 1.0);
    assert!(support::metric(&server, "oxcart_steps_total") >= 5.0);
}

#[test]
fn models_are_listed_and_found() {
    let server = a_server();
    let list = get(&server, "/v1/models").json();
    assert_eq!((&list["object"], &list["data"][0]["id"]), (&json!("list"), &json!("tiny")));
    assert_eq!(get(&server, "/v1/models/tiny").json()["object"], "model");
    assert_eq!(get(&server, "/v1/models/other").status, 404);
}

/// Megabytes are refused by their length, in every interface; what is somewhat too long is counted.
#[test]
fn what_cannot_fit_is_refused_by_its_length() {
    let server = a_server();
    let long = "the end ".repeat(500_000);
    for (path, body) in [
        ("/v1/chat/completions", json!({ "messages": [{ "role": "user", "content": long }] })),
        ("/v1/completions", json!({ "prompt": long })),
        ("/v1/responses", json!({ "input": long })),
        ("/v1/messages", json!({ "max_tokens": 5, "messages": [{ "role": "user", "content": long }] })),
        ("/api/generate", json!({ "prompt": long })),
        ("/completion", json!({ "prompt": long })),
    ] {
        let refused = post(&server, path, &body);
        assert_eq!(refused.status, 400, "{path}: {}", refused.text());
        let told = refused.text();
        assert!(told.contains("the prompt has at least "), "{path}: {told}");
        assert!(told.contains("but the context holds only 512"), "{path}: {told}");
    }
    let prompt = "the end ".repeat(CONTEXT);
    let told = post(&server, "/v1/completions", &json!({ "prompt": prompt }));
    let tokens = post(&server, "/tokenize", &json!({ "content": prompt, "add_special": true })).json();
    let count = tokens["tokens"].as_array().unwrap().len();
    assert!(told.text().contains(&format!("the prompt has {count} tokens,")), "{}", told.text());
}

#[test]
fn errors_have_the_format_of_their_interface() {
    let server = a_server();
    let of = |path: &str, body: Value| {
        let response = post(&server, path, &body);
        (response.status, response.json())
    };
    let (status, error) = of("/v1/chat/completions", json!({ "model": "gpt-4o", "messages": hello() }));
    assert_eq!((status, &error["error"]["code"]), (404, &json!("model_not_found")));
    assert_eq!(error["error"]["param"], "model");
    let long = "the end ".repeat(1000);
    let (status, error) =
        of("/v1/chat/completions", json!({ "messages": [{ "role": "user", "content": long }] }));
    assert_eq!((status, &error["error"]["code"]), (400, &json!("context_length_exceeded")));
    for (path, wrong) in [
        ("/v1/chat/completions", json!({ "messages": hello(), "temperature": -1 })),
        ("/v1/chat/completions", json!({ "messages": hello(), "top_p": 7 })),
        ("/v1/chat/completions", json!({ "messages": hello(), "n": 1000 })),
        ("/v1/chat/completions", json!({ "messages": hello(), "n": 0 })),
        ("/v1/chat/completions", json!({ "messages": hello(), "max_tokens": 0 })),
        ("/v1/chat/completions", json!({ "messages": hello(), "top_logprobs": 3 })),
        ("/v1/chat/completions", json!({ "messages": hello(), "logprobs": true, "top_logprobs": 500 })),
        ("/v1/chat/completions", json!({ "messages": hello(), "tool_choice": "required" })),
        ("/v1/chat/completions", json!({ "messages": hello(), "tools": [{ "type": "function" }] })),
        ("/v1/chat/completions", json!({ "messages": [] })),
        ("/v1/chat/completions", json!({ "messages": [{ "role": "king", "content": "x" }] })),
        (
            "/v1/chat/completions",
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url" }] }] }),
        ),
        ("/v1/chat/completions", json!({ "messages": "hello" })),
        ("/v1/chat/completions", json!({ "messages": hello(), "functions": [{ "name": "now" }] })),
        ("/v1/chat/completions", json!({})),
        ("/v1/completions", json!({ "prompt": [] })),
        ("/v1/completions", json!({ "prompt": [999_999] })),
        ("/v1/completions", json!({ "prompt": "x", "echo": true })),
    ] {
        let (status, error) = of(path, wrong.clone());
        assert_eq!(status, 400, "{wrong}: {error}");
        assert!(
            error["error"]["message"].is_string() && error["error"]["type"] == "invalid_request_error",
            "{error}"
        );
    }
    let (status, error) =
        of("/v1/messages", json!({ "model": "other", "max_tokens": 5, "messages": hello() }));
    assert_eq!(
        (status, &error["type"], &error["error"]["type"]),
        (404, &json!("error"), &json!("not_found_error"))
    );
    let (status, error) = of("/api/chat", json!({ "model": "other", "messages": hello() }));
    assert!(status == 404 && error["error"].is_string(), "{error}");
    let (status, error) = of("/v1/embeddings", json!({ "input": "x", "model": "tiny" }));
    assert!(
        status == 501 && error["error"]["message"].as_str().unwrap().contains("no embeddings"),
        "{error}"
    );
    let wrong = get(&server, "/v1/chat/completions");
    assert_eq!((wrong.status, wrong.header("allow")), (405, Some("POST")));
    let wrong = post(&server, "/v1/models", &json!({}));
    assert_eq!((wrong.status, wrong.header("allow")), (405, Some("GET, HEAD")));
    assert_eq!(get(&server, "/nothing").status, 404);
}
