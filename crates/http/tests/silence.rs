//! Streams while there is nothing to tell: they begin all the same, and say that they go on.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::io::{Read, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use oxcart_http::{
    About, Available, Config, Features, Keeping, Limits, Listeners, LoadError, Models, Purpose, Served,
    Server, Source,
};
use serde_json::{Value, json};
use support::{Gate, address, connect, gated_engine, options, post, request_bytes, server_of, wait_until};

/// What streams of events say meanwhile.
const COMMENT: &str = "\n:\n\n";

/// A request for a stream: where to, what, and how the stream ends.
fn requests() -> [(&'static str, Value, &'static str); 6] {
    let chat = json!([{ "role": "user", "content": "hello" }]);
    [
        ("/v1/chat/completions", json!({ "messages": chat, "max_tokens": 3 }), "data: [DONE]\n\n"),
        ("/v1/completions", json!({ "prompt": "x", "max_tokens": 3 }), "data: [DONE]\n\n"),
        ("/v1/responses", json!({ "input": "x", "max_output_tokens": 3 }), "event: response."),
        ("/v1/messages", json!({ "messages": chat, "max_tokens": 3 }), "event: message_stop\n"),
        ("/completion", json!({ "prompt": "x", "n_predict": 3 }), "\"stop\":true"),
        ("/api/chat", json!({ "messages": chat, "options": { "num_predict": 3 } }), "\"done\":true"),
    ]
}

/// A response that is read as it comes.
struct Reading {
    bytes: Arc<Mutex<Vec<u8>>>,
    thread: JoinHandle<()>,
}

impl Reading {
    fn of(server: &Server, path: &str, body: &Value) -> Reading {
        let mut body = body.clone();
        body["stream"] = json!(true);
        let mut stream = connect(address(server));
        stream.write_all(&request_bytes("POST", path, &[], body.to_string().as_bytes())).unwrap();
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&bytes);
        let thread = std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(count @ 1..) = stream.read(&mut piece) {
                all.lock().unwrap().extend_from_slice(&piece[..count]);
            }
        });
        Reading { bytes, thread }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().unwrap()).into_owned()
    }

    #[track_caller]
    fn wait_for(&self, what: &str) {
        wait_until(what, || self.text().contains(what));
    }

    /// All of it.
    fn end(self) -> String {
        self.thread.join().unwrap();
        String::from_utf8_lossy(&self.bytes.lock().unwrap()).into_owned()
    }
}

fn is_of_lines(path: &str) -> bool {
    path.starts_with("/api/")
}

/// An engine that gets nowhere for as long as the test wants: no client is left without a word.
#[test]
fn streams_begin_and_go_on_while_there_is_nothing_to_tell() {
    let gate = Gate::default();
    let server = server_of(gated_engine(options(4), &gate), Limits::default(), |config| {
        config.silence = Duration::from_millis(50);
    });
    for (path, body, end) in requests() {
        let held = gate.hold();
        let reading = Reading::of(&server, path, &body);
        match is_of_lines(path) {
            true => reading.wait_for("content-type: application/x-ndjson"),
            false => {
                reading.wait_for(COMMENT);
                wait_until("again", || reading.text().matches(COMMENT).count() > 1);
            }
        }
        let text = reading.text();
        assert!(text.starts_with("HTTP/1.1 200"), "{path}: {text}");
        assert!(!text.contains('{'), "{path}: nothing is told before there is something: {text}");
        drop(held);
        let text = reading.end();
        assert!(text.contains(end) && text.ends_with("0\r\n\r\n"), "{path}: {text}");
        assert!(!text.contains("error\":{"), "{path}: {text}");
    }
}

/// In the middle of an answer, too; Anthropic has an event for it.
#[test]
fn answers_that_pause_are_not_silent() {
    let gate = Gate::default();
    let server = server_of(gated_engine(options(4), &gate), Limits::default(), |config| {
        config.silence = Duration::from_millis(50);
    });
    let held = gate.hold();
    let body = json!({ "messages": [{ "role": "user", "content": "hello" }], "max_tokens": 100 });
    let reading = Reading::of(&server, "/v1/messages", &body);
    held.step_until("it begins", || reading.text().contains("message_start"));
    reading.wait_for("event: ping\ndata: {\"type\":\"ping\"}\n\n");
    let start = reading.text();
    let usage = start.find("\"input_tokens\":").map(|at| &start[at + 15..at + 16]);
    assert!(usage.is_some_and(|digit| digit != "0"), "the tokens of the prompt are known: {start}");
    drop(held);
    assert!(reading.end().contains("event: message_stop"));
}

/// A model that cannot be loaded, which turns out when the test wants it.
struct Late(Mutex<Receiver<()>>);

impl Source for Late {
    fn load(&self) -> Result<Served, LoadError> {
        // Without the test there is no reason to wait.
        let _ = self.0.lock().unwrap().recv();
        Err(LoadError::Failed("the file is gone".into()))
    }

    fn features(&self) -> Result<Features, LoadError> {
        Ok(Features::default())
    }
}

fn late_server(silence: Duration) -> (Server, Sender<()>) {
    let (sender, receiver) = channel();
    let late = Available {
        name: "late".into(),
        about: About::default(),
        purpose: Purpose::Chat,
        context: support::CONTEXT,
        source: Box::new(Late(Mutex::new(receiver))),
    };
    let keeping =
        Keeping { most: 1, idle: Duration::from_secs(600), queue: 4, time: Duration::from_secs(60) };
    let models = Models::on_demand(vec![late], keeping).unwrap();
    let config = Config { silence, ..Config::new(models) };
    (Server::start(Listeners::local().unwrap(), config).unwrap(), sender)
}

/// A stream that has begun has no other status any more, so the error is its last word, as the interface says it.
#[test]
fn what_fails_late_is_told_in_the_stream() {
    let (server, go) = late_server(Duration::from_millis(50));
    for (path, body, _) in requests() {
        let reading = Reading::of(&server, path, &body);
        reading.wait_for(if is_of_lines(path) { "x-ndjson" } else { COMMENT });
        go.send(()).unwrap();
        let text = reading.end();
        let wanted = match path {
            "/v1/responses" => "event: error\ndata: {\"type\":\"error\",\"sequence_number\":0,",
            "/v1/messages" => "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\"",
            path if is_of_lines(path) => "{\"error\":\"the model cannot be loaded: the file is gone\"}\n",
            _ => "data: {\"error\":{\"message\":\"the model cannot be loaded: the file is gone\"",
        };
        assert!(text.starts_with("HTTP/1.1 200") && text.contains(wanted), "{path}: {text}");
        assert!(text.ends_with("0\r\n\r\n"), "{path}: {text}");
    }
}

#[test]
fn what_fails_at_once_has_a_status() {
    let (server, go) = late_server(Duration::from_secs(60));
    for (path, mut body, _) in requests() {
        body["stream"] = json!(true);
        go.send(()).unwrap();
        let refused = post(&server, path, &body);
        assert_eq!(refused.status, 500, "{path}: {}", refused.text());
        assert_eq!(refused.header("content-type"), Some("application/json"));
    }
}
