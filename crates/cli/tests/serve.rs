//! `oxcart serve`, run as people run it, with a tiny model of random weights.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![cfg(unix)]

#[path = "user/without_settings.rs"]
mod user;
#[path = "user/worker.rs"]
mod worker;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use oxcart::backend::Registry;
use oxcart::rpc::client::{Options, RemoteRegistry};
use oxcart_http::{Cluster, ClusterPlacement, DeviceBlocks};
use serde_json::{Value, json};
use worker::Worker;

/// 320 tokens, a few blocks, words that mean nothing.
const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tiny.gguf");

/// A model of random weights that makes embeddings.
const BERT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tiny-bert.gguf");

const KEY: &str = "a-key-of-some-length";

fn oxcart(args: &[&str]) -> Command {
    oxcart_with(&[&["-m", TINY][..], args].concat())
}

fn oxcart_with(args: &[&str]) -> Command {
    let mut command = user::command(env!("CARGO_BIN_EXE_oxcart"));
    command.args(["serve", "--threads", "1"]).args(args);
    if !args.contains(&"--ctx") {
        command.args(["--ctx", "256"]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).env("NO_COLOR", "1");
    command
}

struct Server {
    child: Child,
    log: BufReader<ChildStderr>,
    /// `http://127.0.0.1:1234`.
    url: String,
}

impl Server {
    fn start(args: &[&str]) -> Server {
        Server::start_with(&[&["-m", TINY][..], args].concat())
    }

    /// With other models than the tiny one.
    fn start_with(args: &[&str]) -> Server {
        let mut child = oxcart_with(&[&["--port", "0"][..], args].concat()).spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let mut server = Server { child, log, url: String::new() };
        let line = server.line_with("listening on ");
        server.url = line.split_once("listening on ").unwrap().1.to_owned();
        server
    }

    /// The next line of the log that has something in it.
    fn line_with(&mut self, wanted: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.log.read_line(&mut line).unwrap() > 0, "the log ended before '{wanted}'");
            if line.contains(wanted) {
                return line.trim_end().to_owned();
            }
        }
    }

    fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// The machines and models as they are.
    fn picture(&self) -> Cluster {
        let (status, body) = self.ask("/cluster", None, None);
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    /// Status and body of a request.
    fn ask(&self, path: &str, key: Option<&str>, body: Option<&Value>) -> (u16, String) {
        let mut stream = TcpStream::connect(self.url.rsplit('/').next().unwrap()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let (method, body) = body.map_or(("GET", String::new()), |body| ("POST", body.to_string()));
        let key = key.map_or_else(String::new, |key| format!("Authorization: Bearer {key}\r\n"));
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\n{key}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )
        .unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn signal(id: u32, name: &str) {
    assert!(Command::new("kill").args([name, &id.to_string()]).status().unwrap().success());
}

/// Elements of all tensors of a file.
fn parameters(path: &str) -> usize {
    let file = oxcart::gguf::Gguf::open(path).unwrap();
    file.tensors().iter().map(|tensor| tensor.layout().elements()).sum()
}

fn question() -> Value {
    json!({ "messages": [{ "role": "user", "content": "hello" }], "max_tokens": 5, "ignore_eos": true, "temperature": 0 })
}

#[test]
fn a_model_is_served_until_a_signal_comes() {
    let mut server = Server::start(&["--parallel", "2"]);
    assert!(server.url.starts_with("http://127.0.0.1:"), "{}", server.url);
    let (status, body) = server.ask("/v1/chat/completions", None, Some(&question()));
    assert_eq!(status, 200, "{body}");
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&answer["model"], &answer["usage"]["completion_tokens"]), (&json!("tiny"), &json!(5)));
    let (_, models) = server.ask("/v1/models", None, None);
    assert!(models.contains("\"id\":\"tiny\"") && models.contains("\"n_ctx\":256"), "{models}");
    // As many as its tensors have; the file does not say.
    let models: Value = serde_json::from_str(&models).unwrap();
    assert_eq!(models["data"][0]["meta"]["n_params"], json!(parameters(TINY)));
    server.signal("-TERM");
    server.line_with("stopping");
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

#[test]
fn workers_compute_the_same() {
    let alone = Server::start(&[]);
    let spread = Server::start(&["--workers", "local:2", "--split", "1,1,1"]);
    let text = |server: &Server| {
        let (status, body) = server.ask("/v1/chat/completions", None, Some(&question()));
        assert_eq!(status, 200, "{body}");
        serde_json::from_str::<Value>(&body).unwrap()["choices"][0]["message"].clone()
    };
    assert_eq!(text(&spread), text(&alone));
    let (_, metrics) = spread.ask("/metrics", None, None);
    assert_eq!(metrics.matches("oxcart_worker_round_trips_total{worker=").count(), 2, "{metrics}");
}

#[test]
fn a_dead_worker_is_shown_as_dead_and_what_would_be_without_it() {
    let (first, second) = (Worker::start(&[]), Worker::start(&[]));
    let addresses = [first.address.clone(), second.address.clone()];
    let server = Server::start(&["--workers", &addresses.join(","), "--split", "1,1,1"]);
    let picture = || server.picture();
    let now = picture();
    let names: Vec<&str> = now.machines.iter().map(|machine| machine.name.as_str()).collect();
    assert_eq!(names, [addresses[0].as_str(), &addresses[1], "this machine"]);
    assert!(now.machines.iter().all(|machine| machine.failure.is_none()), "{now:?}");
    let plans = &now.models[0].plans;
    let blocks = |plan: &ClusterPlacement| {
        plan.shares.iter().map(|share| share.blocks[1] - share.blocks[0]).sum::<usize>()
    };
    assert!(plans.blocks > 0);
    assert_eq!(blocks(&plans.now), plans.blocks);
    let owners: Vec<&str> = plans.now.shares.iter().map(|share| share.machine.as_str()).collect();
    assert_eq!(owners, names);
    assert_eq!(plans.without.len(), 2);
    for (without, gone) in plans.without.iter().zip(&addresses) {
        assert_eq!((&without.machine, &without.plan.problem), (gone, &None));
        assert_eq!(blocks(&without.plan), plans.blocks, "the others have all of it");
        assert!(without.plan.shares.iter().all(|share| share.machine != *gone));
    }

    // Nothing is asked of it: its connection alone shows that it is gone.
    drop(first);
    let start = Instant::now();
    while picture().machines[0].failure.is_none() {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", picture());
        std::thread::sleep(Duration::from_millis(20));
    }
    let dead = picture();
    assert!(dead.machines[0].failure.as_ref().unwrap().contains("closed the connection"), "{dead:?}");
    assert!(dead.machines[1].failure.is_none());
    // It had a block. The others take it over, and then this machine takes all of them.
    let said = |server: &Server| {
        let (status, body) = server.ask("/v1/chat/completions", None, Some(&question()));
        assert_eq!(status, 200, "{body}");
        serde_json::from_str::<Value>(&body).unwrap()["choices"][0]["message"].clone()
    };
    let expected = said(&Server::start(&[]));
    assert_eq!(said(&server), expected);
    let moved = picture();
    let owners = |picture: &Cluster| -> Vec<String> {
        picture.models[0].plans.now.shares.iter().map(|share| share.machine.clone()).collect()
    };
    assert_eq!(owners(&moved), [addresses[1].as_str(), "this machine"]);
    let plans = &moved.models[0].plans;
    assert_eq!(blocks(&plans.now), plans.blocks);
    let left: Vec<&str> = plans.without.iter().map(|without| without.machine.as_str()).collect();
    assert_eq!((left, &moved.models[0].trouble), (vec![addresses[1].as_str()], &None));
    drop(second);
    assert_eq!(said(&server), expected);
    assert_eq!(owners(&picture()), ["this machine"]);
}

/// Its connections stay open: heartbeats show that it is gone as soon as an answer waits for it, and the answer goes on elsewhere.
#[test]
fn a_frozen_worker_is_shown_as_dead() {
    let frozen = Worker::start(&[]);
    let server = Server::start(&["--workers", &frozen.address, "--split", "1,1"]);
    assert!(server.picture().machines.iter().all(|machine| machine.failure.is_none()));
    signal(frozen.child.id(), "-STOP");
    let (status, body) = server.ask("/v1/chat/completions", None, Some(&question()));
    assert_eq!(status, 200, "{body}");
    let picture = server.picture();
    assert_eq!(picture.machines[0].name, frozen.address);
    assert!(picture.machines[0].failure.is_some(), "{picture:?}");
    assert!(
        picture.models[0].plans.now.shares.iter().all(|share| share.machine == "this machine"),
        "{picture:?}"
    );
}

/// Clients see a pause and the same words.
#[test]
fn streams_go_on_when_a_worker_is_lost() {
    let mut workers = [Worker::start(&[]), Worker::start(&[])];
    let addresses = workers.each_ref().map(|worker| worker.address.clone()).join(",");
    let mut server = Server::start(&["--workers", &addresses, "--split", "1,1", "--ctx", "1024"]);
    let mut question = question();
    question["max_tokens"] = json!(900);
    question["temperature"] = json!(1.1);
    question["seed"] = json!(5);
    let (status, body) = server.ask("/v1/chat/completions", None, Some(&question));
    assert_eq!(status, 200, "{body}");
    let expected = serde_json::from_str::<Value>(&body).unwrap();
    question["stream"] = json!(true);
    let body = question.to_string();
    let mut stream = TcpStream::connect(server.url.rsplit('/').next().unwrap()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let length = body.len();
    write!(
        stream,
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
    .unwrap();
    let (mut text, mut chunks, mut finish) = (String::new(), 0, Value::Null);
    for line in BufReader::new(stream).lines() {
        let line = line.unwrap();
        let Some(chunk) = line.strip_prefix("data: ").filter(|data| data.starts_with('{')) else { continue };
        let chunk: Value = serde_json::from_str(chunk).unwrap();
        text.push_str(chunk["choices"][0]["delta"]["content"].as_str().unwrap_or_default());
        if !chunk["choices"][0]["finish_reason"].is_null() {
            finish = chunk["choices"][0]["finish_reason"].clone();
        }
        chunks += 1;
        if chunks == 20 {
            workers[0].child.kill().unwrap();
        }
    }
    assert_eq!(expected["choices"][0]["message"]["content"].as_str().unwrap(), text);
    assert_eq!(finish, "length");
    let line = server.line_with("is lost; continuing without it");
    assert!(line.contains(&workers[0].address), "{line}");
    server.line_with("continued after");
}

/// A worker that was killed and is started again gets its part again while answers are under way, and no word changes. Afterwards nothing is
/// held there.
#[test]
fn a_worker_that_comes_back_is_used_again() {
    let memory = ["--max-memory", "256M"];
    let mut workers = [Worker::start_to_stay(&memory), Worker::start(&memory)];
    let addresses = workers.each_ref().map(|worker| worker.address.clone());
    let free = |address: &str| {
        let worker = RemoteRegistry::connect(address, &Options::default()).unwrap();
        worker.devices()[0].memory().unwrap().free
    };
    let unused = free(&addresses[0]);
    let args = ["--workers", &addresses.join(","), "--split", "1,1", "--ctx", "1024", "--parallel", "2"];
    let mut server = Server::start(&args);
    let mut question = question();
    question["max_tokens"] = json!(400);
    question["temperature"] = json!(1.1);
    question["seed"] = json!(5);
    let text = |server: &Server| {
        let (status, body) = server.ask("/v1/chat/completions", None, Some(&question));
        assert_eq!(status, 200, "{body}");
        serde_json::from_str::<Value>(&body).unwrap()["choices"][0]["message"]["content"].clone()
    };
    // Those that have blocks.
    let owners = |server: &Server| -> Vec<String> {
        let (_, body) = server.ask("/cluster", None, None);
        let picture = serde_json::from_str::<Cluster>(&body).unwrap();
        let shares = picture.models[0].plans.now.shares.iter();
        let with_blocks = shares.filter(|share| share.blocks[0] < share.blocks[1]);
        with_blocks.map(|share| share.machine.clone()).collect()
    };
    let expected = text(&server);
    assert_eq!(owners(&server), addresses);
    workers[0].child.kill().unwrap();
    assert_eq!(text(&server), expected);
    assert_eq!(owners(&server), [addresses[1].as_str()]);
    workers[0].restart(&memory);
    let (since, served) = (Instant::now(), &server);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while owners(served) != addresses {
                    assert_eq!(text(served), expected);
                    assert!(since.elapsed() < Duration::from_secs(120), "{:?}", owners(served));
                }
                assert_eq!(text(served), expected);
            });
        }
    });
    let (_, picture) = server.ask("/cluster", None, None);
    let picture = serde_json::from_str::<Cluster>(&picture).unwrap();
    assert!(picture.machines.iter().all(|machine| machine.failure.is_none()), "{picture:?}");
    // What happened is told of the worker by its address, and who had what before and after.
    let past = &picture.models[0].interruptions;
    let (loss, back) = (past.first().unwrap(), past.last().unwrap());
    assert_eq!((&loss.lost[0].machine, &loss.returned), (&addresses[0], &vec![]), "{past:?}");
    assert_eq!((back.lost.len(), &back.returned), (0, &vec![addresses[0].clone()]), "{past:?}");
    for (with, without) in [(&loss.before, &loss.after), (&back.after, &back.before)] {
        let machines =
            |blocks: &[DeviceBlocks]| blocks.iter().map(|one| one.machine.clone()).collect::<Vec<_>>();
        assert_eq!((machines(with), machines(without)), (addresses.to_vec(), vec![addresses[1].clone()]));
    }
    let line = server.line_with("is back; continuing with it");
    assert!(line.contains(&addresses[0]), "{line}");
    server.line_with("continued after");
    drop(server);
    let since = Instant::now();
    while free(&addresses[0]) != unused {
        assert!(since.elapsed() < Duration::from_secs(60), "{} of {unused}", free(&addresses[0]));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_devices_of_a_worker_are_shown() {
    let worker = Worker::start(&[]);
    let top = |args: &[&str]| {
        let mut command = user::command(env!("CARGO_BIN_EXE_oxcart"));
        let output = command.args(["top", &worker.address]).args(args).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, json) = top(&["--json"]);
    assert_eq!(code, Some(0));
    let picture: Cluster = serde_json::from_str(&json).unwrap();
    assert!(picture.models.is_empty());
    let [machine] = picture.machines.as_slice() else { panic!("{json}") };
    assert_eq!((&machine.name, &machine.failure), (&worker.address, &None));
    assert!(
        machine.devices[0].free_bytes > 0 && machine.devices[0].free_bytes <= machine.devices[0].total_bytes
    );
    let (_, text) = top(&["--once"]);
    assert!(text.contains(&worker.address) && text.contains(" free"), "{text}");
    assert_eq!(top(&["--api-key", KEY]).0, Some(2), "it has no keys");
}

/// The same picture as the page's, for those who have a key.
#[test]
fn a_server_is_shown_to_those_who_have_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    std::fs::write(&file, format!("# mine\n{KEY}\n")).unwrap();
    let file = file.to_str().unwrap();
    let server = Server::start(&["--api-key-file", file, "--workers", "local:1", "--split", "1,1"]);
    let top = |args: &[&str]| {
        let mut command = user::command(env!("CARGO_BIN_EXE_oxcart"));
        let output = command.args(["top", &server.url, "--every", "1s"]).args(args).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, json, _) = top(&["--json", "--api-key-file", file]);
    assert_eq!(code, Some(0));
    let picture: Cluster = serde_json::from_str(&json).unwrap();
    assert_eq!((picture.models[0].name.as_str(), picture.machines.len()), ("tiny", 2));
    // Not on a terminal, it is one picture as text.
    for args in [&["--once"][..], &[]] {
        let (code, text, _) = top(&[args, &["--api-key", KEY]].concat());
        assert_eq!(code, Some(0));
        let names = picture.machines.iter().map(|machine| machine.name.as_str());
        for part in
            names.chain([server.url.as_str(), "tiny", "0 of 8 running", "round trips/s", "if it left: "])
        {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
    }
    let (code, _, error) = top(&["--once"]);
    assert!(code == Some(1) && error.contains("needs an API key"), "{error}");
}

#[test]
fn models_are_loaded_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for name in ["one.gguf", "two.gguf"] {
        std::fs::copy(TINY, path(name)).unwrap();
    }
    std::fs::copy(BERT, path("vectors.gguf")).unwrap();
    std::fs::write(path("broken.gguf"), "GGUF").unwrap();
    std::fs::write(path("notes.txt"), "no model").unwrap();
    let mut server = Server::start_with(&["--models", folder.path().to_str().unwrap(), "--max-models", "1"]);
    let ask = |server: &Server, model: &str| {
        let mut question = question();
        question["model"] = model.into();
        let (status, body) = server.ask("/v1/chat/completions", None, Some(&question));
        (status, serde_json::from_str::<Value>(&body).unwrap())
    };
    let names = |server: &Server, path: &str| {
        let listed: Value = serde_json::from_str(&server.ask(path, None, None).1).unwrap();
        let all = listed["models"].as_array().unwrap().iter();
        all.map(|model| model["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&server, "/api/tags"), ["one", "two", "vectors"]);
    assert_eq!(names(&server, "/api/ps"), Vec::<String>::new());
    // What is told of models that are not loaded comes from the headers of their files.
    let tags: Value = serde_json::from_str(&server.ask("/api/tags", None, None).1).unwrap();
    let vectors = &tags["models"][2]["details"]["parameter_size"];
    assert_eq!(*vectors, json!(format!("{:.2}K", parameters(BERT) as f64 / 1e3)));
    let (_, shown) = server.ask("/api/show", None, Some(&json!({ "model": "two" })));
    assert!(shown.contains("\"completion\""), "{shown}");
    let (status, answer) = ask(&server, "two");
    assert_eq!((status, &answer["model"]), (200, &json!("two")), "{answer}");
    server.line_with("loaded two in ");
    assert_eq!(ask(&server, "one").0, 200);
    server.line_with("unloaded two");
    assert_eq!(names(&server, "/api/ps"), ["one"]);
    let body = json!({ "model": "vectors", "input": "the end" });
    let (status, vector) = server.ask("/v1/embeddings", None, Some(&body));
    assert_eq!(status, 200, "{vector}");
    assert_eq!(names(&server, "/api/ps"), ["vectors"]);
    assert_eq!(ask(&server, "three").0, 404);
    assert_eq!(ask(&server, "vectors").0, 400);
    // A file that is gone is an error of the request, not of the server.
    std::fs::remove_file(path("two.gguf")).unwrap();
    assert_eq!(ask(&server, "two").0, 500);
    assert_eq!(ask(&server, "one").0, 200);
    server.signal("-TERM");
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

#[test]
fn several_models_share_their_workers() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["one.gguf", "two.gguf"] {
        std::fs::copy(TINY, folder.path().join(name)).unwrap();
    }
    let folder = folder.path().to_str().unwrap();
    let server = Server::start_with(&["--models", folder, "--workers", "local:2", "--split", "1,1,1"]);
    let mut texts = Vec::new();
    for model in ["one", "two"] {
        let mut question = question();
        question["model"] = model.into();
        let (status, body) = server.ask("/v1/chat/completions", None, Some(&question));
        assert_eq!(status, 200, "{body}");
        texts.push(serde_json::from_str::<Value>(&body).unwrap()["choices"].clone());
    }
    assert_eq!(texts[0], texts[1]);
    let picture = server.picture();
    assert_eq!(picture.machines.len(), 3);
    assert!(picture.models.iter().all(|model| model.plans.now.shares.len() == 3), "{picture:?}");
}

#[test]
fn keys_are_read_again_on_a_signal() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    std::fs::write(&file, format!("# mine\n{KEY}\n")).unwrap();
    let mut server =
        Server::start(&["--api-key-file", file.to_str().unwrap(), "--api-key", "given-on-the-line"]);
    let status = |server: &Server, key| server.ask("/v1/models", key, None).0;
    assert_eq!(status(&server, Some(KEY)), 200);
    assert_eq!(status(&server, Some("given-on-the-line")), 200);
    assert_eq!(status(&server, None), 401);
    std::fs::write(&file, "another-key-of-mine\n").unwrap();
    server.signal("-HUP");
    server.line_with("keys reloaded; 2 in use");
    assert_eq!(status(&server, Some(KEY)), 401);
    assert_eq!(status(&server, Some("another-key-of-mine")), 200);
    // What cannot be used changes nothing.
    std::fs::write(&file, "short\n").unwrap();
    server.signal("-HUP");
    server.line_with("the keys were not changed");
    assert_eq!(status(&server, Some("another-key-of-mine")), 200);
}

/// An address is taken before anything is loaded for it, or even looked for.
#[test]
fn a_port_in_use_is_noticed_first() {
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port().to_string();
    let output = oxcart_with(&["-m", "/nowhere.gguf", "--port", &port]).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(1) && errors.contains("is another program using that port?"),
        "{errors}"
    );
    // A plan needs no address.
    let output = oxcart(&["--plan", "--port", &port]).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn what_would_be_open_to_all_is_refused() {
    let refused = |args: &[&str]| {
        let output = oxcart(args).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, error) = refused(&["--host", "0.0.0.0"]);
    assert!(code == Some(2) && error.contains("--api-key-file"), "{error}");
    let (code, error) = refused(&["--api-key", "short"]);
    assert!(code == Some(2) && error.contains("openssl rand"), "{error}");
    let (code, error) = refused(&["--host", "no.such.host.invalid"]);
    assert!(code == Some(2) && error.contains("cannot listen on"), "{error}");
    let (code, error) = refused(&["--tls-cert", TINY, "--tls-key", TINY]);
    assert!(code == Some(2) && error.contains("tiny.gguf"), "{error}");
    assert_eq!(refused(&["--tls-cert", TINY]).0, Some(2));
}

#[test]
fn a_certificate_is_made_where_none_is_given() {
    let mut server = Server::start(&["--tls"]);
    assert!(server.url.starts_with("https://127.0.0.1:"), "{}", server.url);
    let line = server.line_with("certificate fingerprint ");
    let fingerprint = line.split_once("certificate fingerprint ").unwrap().1;
    assert_eq!(fingerprint.split(':').count(), 32, "{line}");
    // It is how `top` knows the server, and nothing else is trusted.
    let top = |args: &[&str]| {
        let mut command = user::command(env!("CARGO_BIN_EXE_oxcart"));
        let output = command.args(["top", &server.url, "--json"]).args(args).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, json, error) = top(&["--fingerprint", fingerprint]);
    assert_eq!(code, Some(0), "{error}");
    assert_eq!(serde_json::from_str::<Cluster>(&json).unwrap().models[0].name, "tiny");
    let (code, _, error) = top(&["--fingerprint", &"00".repeat(32)]);
    assert!(code == Some(1) && error.contains(&format!("another fingerprint: {fingerprint}")), "{error}");
    let (code, _, error) = top(&[]);
    assert!(code == Some(1) && error.contains("--fingerprint trusts"), "{error}");
    assert_eq!(top(&["--fingerprint", "00"]).0, Some(2));
    // What is not encrypted is not answered.
    let mut stream = TcpStream::connect(server.url.rsplit('/').next().unwrap()).unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut answer = Vec::new();
    // However it ends.
    let _ = stream.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP/"), "{answer:?}");
}

#[test]
fn the_plan_is_shown_and_nothing_served() {
    let output = oxcart(&["--plan", "--port", "0"]).output().unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8(output.stdout).unwrap().contains("CPU"));
}
