//! Templates as Jinja2 renders them, and calls read back from what they render: `tools/templates.sh` has it render them and runs
//! this.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use oxcart_gguf::{Builder, Header};
use oxcart_llm::text::{Answer, ChatFormat, ChatOptions, ChatTemplate, Message, Tool, ToolCall, Vocab};
use serde_json::Value;

/// Templates whose text for a call does not look like what the model writes, and why.
const NO_CALLS: [(&str, &str); 1] = [
    // What was said before a call is a message of its own, and reasoning is left out, but not where it would begin.
    ("NVIDIA-Nemotron-Nano-v2", "calls-object"),
];

fn message(value: &Value) -> Message {
    let mut more = value.as_object().unwrap().clone();
    let mut take = |key: &str| more.remove(key).unwrap().as_str().unwrap().to_owned();
    Message { role: take("role"), content: take("content"), more }
}

fn vocab() -> Vocab {
    let mut file = Vec::new();
    let mut builder = Builder::new();
    builder
        .set("tokenizer.ggml.model", "gpt2")
        .set("tokenizer.ggml.tokens", ["a", "</s>"])
        .set("tokenizer.ggml.merges", ["a a"]);
    builder.write(&mut file).unwrap();
    Vocab::from_gguf(&Header::parse(&file).unwrap().metadata()).unwrap()
}

/// What stands around a place.
fn around(text: &str, at: usize) -> String {
    let (start, end) = (at.saturating_sub(80), (at + 120).min(text.len()));
    String::from_utf8_lossy(&text.as_bytes()[start.min(end)..end]).into_owned()
}

#[test]
#[ignore = "tools/templates.sh runs it with what Jinja2 has made"]
fn every_template() {
    let path = std::env::var_os("OXCART_TEMPLATES").expect("OXCART_TEMPLATES names the file");
    let cases = fs::read_to_string(path).unwrap();
    // The noon of the second of January of 2026, wherever this is.
    let now = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_355_200));
    let vocab = vocab();
    let mut templates: BTreeMap<String, ChatTemplate> = BTreeMap::new();
    let mut prompts: BTreeMap<String, String> = BTreeMap::new();
    let (mut same, mut both_fail, mut only_theirs, mut read_back) = (0, 0, 0, BTreeSet::new());
    let mut failed = Vec::new();
    for line in cases.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let path = case["template"].as_str().unwrap();
        let name = Path::new(path).file_stem().unwrap().to_str().unwrap().to_owned();
        let conversation = case["name"].as_str().unwrap();
        let template = match templates.get(&name) {
            Some(template) => template.clone(),
            None => match ChatTemplate::new(&fs::read_to_string(path).unwrap()) {
                Ok(template) => templates.entry(name.clone()).or_insert(template).clone(),
                Err(error) => {
                    failed.push(format!("{name}: {error}"));
                    continue;
                }
            },
        };
        let messages: Vec<Message> = case["messages"].as_array().unwrap().iter().map(message).collect();
        let tools = case["tools"].as_array().unwrap().clone();
        let options = ChatOptions {
            add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
            bos_token: "<BOS>".into(),
            eos_token: "<EOS>".into(),
            tools: tools.clone(),
            variables: case["variables"].as_object().unwrap().clone(),
            now,
        };
        let ours = template.render(&messages, &options);
        match (&ours, case["text"].as_str()) {
            (Ok(ours), Some(theirs)) if ours == theirs => same += 1,
            (Err(_), None) => both_fail += 1,
            // Some templates use filters of other programs, or what a sandbox forbids.
            (Ok(_), None) => only_theirs += 1,
            (Ok(ours), Some(theirs)) => {
                let at = ours.bytes().zip(theirs.bytes()).take_while(|(a, b)| a == b).count();
                let [ours, theirs] = [ours.as_str(), theirs].map(|text| around(text, at));
                failed.push(format!("{name}, {conversation}:\n ours   {ours:?}\n theirs {theirs:?}"));
            }
            (Err(error), Some(_)) => failed.push(format!("{name}, {conversation}: {error}")),
        }
        let Ok(text) = ours else { continue };
        if conversation == "tools" && options.add_generation_prompt {
            prompts.insert(name.clone(), text);
            continue;
        }
        // Calls that were written are read.
        let Some(count) = conversation.strip_prefix("call").filter(|_| !options.add_generation_prompt) else {
            continue;
        };
        let count = if count.starts_with('s') { 2 } else { 1 };
        let Some(prompt) = prompts.get(&name) else { continue };
        let shared = prompt.bytes().zip(text.bytes()).take_while(|(a, b)| a == b).count();
        let shared = (0..=shared).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        // A marker that begins as another one does belongs to the answer.
        let shared = match text[..shared].rfind('<') {
            Some(open) if !text[open..shared].contains('>') => open,
            _ => shared,
        };
        let tools: Vec<Tool> = tools.iter().map(|tool| Tool::from_json(tool).unwrap()).collect();
        let format = ChatFormat::detect(&template, &vocab);
        let mut parser = format.parser(&text[..shared], &tools);
        let mut answer = Answer::default();
        parser.push(&text[shared..]).iter().for_each(|event| answer.add(event));
        parser.finish().iter().for_each(|event| answer.add(event));
        if !text[shared..].contains("Paris") {
            continue;
        }
        // Calls are given to templates as they want them, with arguments as objects or as text.
        let call = ToolCall { id: None, name: "get_weather".into(), arguments: "{}".into() };
        let given = format.assistant_message("", None, &[call]);
        let as_text = given.more["tool_calls"][0]["function"]["arguments"].is_string();
        if as_text != conversation.ends_with("-text") {
            continue;
        }
        // Some templates show the first of several calls alone.
        let count = if text[shared..].contains("Rome") { count } else { 1 };
        let expected = [
            serde_json::json!({ "city": "Paris", "days": 3 }),
            serde_json::json!({ "city": "Rome \"x\" <é>", "days": 1 }),
        ];
        let arguments: Vec<Value> = answer
            .calls
            .iter()
            .map(|call| serde_json::from_str(&call.arguments).unwrap_or(Value::Null))
            .collect();
        let named = answer.calls.iter().all(|call| call.name == "get_weather");
        if named && arguments == expected[..count] {
            read_back.insert(name.clone());
        } else if !NO_CALLS.contains(&(name.as_str(), conversation)) {
            failed.push(format!(
                "{name}, {conversation}: {:?} read {answer:?}\n from {:?}",
                format.call_syntax(),
                &text[shared..]
            ));
        }
    }
    println!(
        "{} templates: {same} texts the same, {both_fail} fail here and there, {only_theirs} fail with Jinja2 alone; calls of {} read back",
        templates.len(),
        read_back.len()
    );
    assert!(failed.is_empty(), "{} differences\n{}", failed.len(), failed.join("\n"));
}
