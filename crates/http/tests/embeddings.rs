//! Vectors of texts: how many texts, and how long they may be.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::path::Path;
use std::sync::Arc;

use oxcart_backend::{Device, StreamOptions};
use oxcart_cpu::CpuDevice;
use oxcart_http::{About, Config, Limits, Listeners, Models, Served, Server};
use oxcart_llm::model::{Model, ModelFile, Placement, PlacementOptions};
use oxcart_llm::runner::{Encoder, EncoderOptions};
use oxcart_llm::text::Vocab;
use serde_json::{Value, json};
use support::post;

/// A server with a model that makes embeddings, and how many tokens a text may have.
fn a_server() -> (Server, usize) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/data/tiny-bert.gguf");
    let file = ModelFile::open(&path).unwrap();
    let vocab = Arc::new(Vocab::from_gguf(&file.metadata()).unwrap());
    let device = CpuDevice::new().unwrap();
    let placement = Placement::new(&file, vec![device.clone()], &PlacementOptions::default()).unwrap();
    let model = Model::load(file, placement, &|_| {}).unwrap();
    let context = model.hyper().context;
    let stream = device.open(&StreamOptions::threads(1)).unwrap();
    let encoder = Encoder::new(model, vec![stream], EncoderOptions { pooling: None }).unwrap();
    let about = About { architecture: "bert".into(), trained_context: context, ..About::default() };
    let served = Served::embedding("vectors", encoder, vocab, about, Limits::default()).unwrap();
    let models = Models::new(vec![served]).unwrap();
    (Server::start(Listeners::local().unwrap(), Config::new(models)).unwrap(), context)
}

/// As many as OpenAI takes.
#[test]
fn many_texts_are_embedded_at_once() {
    let (server, _) = a_server();
    let ask = |count: usize| post(&server, "/v1/embeddings", &json!({ "input": vec!["the end"; count] }));
    let answer = ask(2048).json();
    let vectors = answer["data"].as_array().unwrap();
    assert_eq!(vectors.len(), 2048);
    assert!(vectors.iter().all(|vector| vector["embedding"] == vectors[0]["embedding"]));
    assert_eq!(ask(2049).status, 400);
}

/// To Ollama's clients the end of a text is left out, unless they do not want that; to others, what does not fit is an error.
#[test]
fn long_texts_are_cut_off_where_clients_expect_it() {
    let (server, context) = a_server();
    let long = "the end ".repeat(context);
    let with = |truncate: Value| {
        let body = json!({ "input": ["the end", long], "truncate": truncate });
        post(&server, "/api/embed", &body)
    };
    for truncate in [Value::Null, json!(true)] {
        let answer = with(truncate).json();
        assert_eq!(answer["embeddings"].as_array().unwrap().len(), 2, "{answer}");
        let short = post(&server, "/api/embed", &json!({ "input": "the end" })).json();
        let tokens = short["prompt_eval_count"].as_u64().unwrap() + context as u64;
        assert_eq!(answer["prompt_eval_count"], tokens, "as many as there is room for");
    }
    // What comes behind the end makes no difference.
    let longer = post(&server, "/api/embed", &json!({ "input": format!("{long} and more") })).json();
    assert_eq!(longer["embeddings"][0], with(Value::Null).json()["embeddings"][1]);
    let refused = with(json!(false));
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert!(refused.text().contains("the context holds only"), "{}", refused.text());
    assert_eq!(post(&server, "/v1/embeddings", &json!({ "input": long })).status, 400);
    let endless = post(&server, "/v1/embeddings", &json!({ "input": "the end ".repeat(500_000) }));
    assert!(endless.status == 400 && endless.text().contains("at least"), "{}", endless.text());
    let tokens = post(&server, "/v1/embeddings", &json!({ "input": vec![5; context + 1] }));
    let told = format!("a text has {} tokens, but the context holds only {context}", context + 1);
    assert!(tokens.status == 400 && tokens.text().contains(&told), "{}", tokens.text());
}
