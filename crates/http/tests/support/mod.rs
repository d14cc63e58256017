//! A real server on loopback with a tiny model of random weights, and a client that sends whatever bytes a test wants.
#![allow(dead_code, reason = "every test uses some of it")]

pub(crate) mod hostile;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use oxcart_backend::{Device, StreamOptions};
use oxcart_cpu::CpuDevice;
use oxcart_gguf::{Builder, Gguf};
use oxcart_http::{About, Config, Limits, Listeners, Models, Served, Server};
use oxcart_llm::engine::{Engine, EngineOptions};
use oxcart_llm::model::{Model, ModelFile, Placement, PlacementOptions};
use oxcart_llm::runner::{Runner, RunnerOptions};
use oxcart_llm::text::Vocab;
use serde_json::Value;

/// Tokens of a context in tests.
pub(crate) const CONTEXT: usize = 512;

/// An engine for so many requests at a time.
pub(crate) fn engine(sequences: usize) -> Engine {
    let start = Instant::now();
    engine_by(options(sequences), move || start.elapsed())
}

/// Settings for so many requests at a time.
pub(crate) fn options(sequences: usize) -> RunnerOptions {
    RunnerOptions { context: CONTEXT, sequences, ..RunnerOptions::default() }
}

/// An engine with other settings and a clock of its own.
pub(crate) fn engine_by(options: RunnerOptions, clock: impl Fn() -> Duration + Send + 'static) -> Engine {
    let (runner, vocab) = runner(options);
    Engine::with_clock(runner, vocab, EngineOptions::default(), Box::new(clock))
}

/// An engine whose clock goes by a gate: it gets no further than the gate lets it.
pub(crate) fn gated_engine(options: RunnerOptions, gate: &Gate) -> Engine {
    let (gate, start) = (gate.clone(), Instant::now());
    engine_by(options, move || {
        gate.pass();
        start.elapsed()
    })
}

/// Where engines stop when a test wants things to stay as they are, so that no test has to be quicker than an answer. It is open unless
/// it is held.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate(Arc<Passing>);

#[derive(Debug, Default)]
struct Passing {
    /// How many looks at a clock are let by; none means any number.
    left: Mutex<Option<usize>>,
    changed: Condvar,
}

impl Gate {
    /// Engines wait from now on, until they are let by or what is returned is dropped. Declare it after the server, which waits for
    /// its engines when it is dropped.
    pub(crate) fn hold(&self) -> Held {
        self.set(|left| *left = Some(0));
        Held(self.clone())
    }

    fn set(&self, change: impl FnOnce(&mut Option<usize>)) {
        change(&mut self.0.left.lock().unwrap());
        self.0.changed.notify_all();
    }

    /// Waits until it may be passed.
    pub(crate) fn pass(&self) {
        let left = self.0.left.lock().unwrap();
        let mut left = self.0.changed.wait_while(left, |left| *left == Some(0)).unwrap();
        if let Some(left) = &mut *left {
            *left -= 1;
        }
    }
}

/// A gate that is held.
#[derive(Debug)]
pub(crate) struct Held(Gate);

impl Held {
    /// Lets clocks be looked at so many times more: twice for a step, three times for a request that begins. So an answer gets fewer
    /// tokens than that.
    pub(crate) fn let_by(&self, looks: usize) {
        self.0.set(|left| *left = left.map(|left| left + looks));
    }

    /// Waits until something holds that needs steps. They are few: an answer of some hundred tokens would go on for ten seconds, which is
    /// longer than the system keeps a thread waiting that is to see to its end.
    #[track_caller]
    pub(crate) fn step_until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        wait_until(what, || {
            let holds = holds();
            if !holds {
                self.let_by(1);
                std::thread::sleep(Duration::from_millis(15));
            }
            holds
        });
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.set(|left| *left = None);
    }
}

/// Where the tiny model is.
pub(crate) fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/data/tiny.gguf")
}

/// The tiny model, unloaded.
pub(crate) fn tiny_file() -> ModelFile {
    ModelFile::open(tiny()).unwrap()
}

fn runner(options: RunnerOptions) -> (Runner, Arc<Vocab>) {
    runner_of(&tiny(), options)
}

/// An engine of the tiny model with other metadata.
pub(crate) fn engine_with(sequences: usize, change: impl FnOnce(&mut Builder<'_>)) -> Engine {
    let model = Gguf::open(tiny()).unwrap();
    let mut builder = model.to_builder();
    change(&mut builder);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("changed.gguf");
    builder.write(File::create(&path).unwrap()).unwrap();
    let (runner, vocab) = runner_of(&path, options(sequences));
    let start = Instant::now();
    Engine::with_clock(runner, vocab, EngineOptions::default(), Box::new(move || start.elapsed()))
}

fn runner_of(path: &Path, options: RunnerOptions) -> (Runner, Arc<Vocab>) {
    let file = ModelFile::open(path).unwrap();
    let vocab = Arc::new(Vocab::from_gguf(&file.metadata()).unwrap());
    let device = CpuDevice::new().unwrap();
    let placement = Placement::new(&file, vec![device.clone()], &PlacementOptions::default()).unwrap();
    let model = Model::load(file, placement, &|_| {}).unwrap();
    let stream = device.open(&StreamOptions::threads(1)).unwrap();
    (Runner::new(model, vec![stream], options).unwrap(), vocab)
}

/// A model that answers.
pub(crate) fn served(name: &str, engine: Engine, limits: Limits) -> Served {
    let about = About { architecture: "llama".into(), trained_context: 512, ..About::default() };
    Served::talking(name, engine, about, limits).unwrap()
}

/// A server with a model named `tiny`.
pub(crate) fn server(sequences: usize, limits: Limits) -> Server {
    server_with(sequences, limits, |_| {})
}

/// As [`server`], with other settings.
pub(crate) fn server_with(sequences: usize, limits: Limits, change: impl FnOnce(&mut Config)) -> Server {
    server_of(engine(sequences), limits, change)
}

/// As [`server`], with an engine that goes by a gate.
pub(crate) fn gated_server(sequences: usize, limits: Limits, gate: &Gate) -> Server {
    server_of(gated_engine(options(sequences), gate), limits, |_| {})
}

/// As [`server`], with another engine and other settings.
pub(crate) fn server_of(engine: Engine, limits: Limits, change: impl FnOnce(&mut Config)) -> Server {
    let models = Models::new(vec![served("tiny", engine, limits)]).unwrap();
    let mut config = Config::new(models);
    change(&mut config);
    Server::start(Listeners::local().unwrap(), config).unwrap()
}

/// A response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Whether the body came to its proper end.
    pub(crate) is_complete: bool,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {:?}", String::from_utf8_lossy(&self.body)))
    }

    /// The data of server-sent events, with their names.
    pub(crate) fn events(&self) -> Vec<(String, String)> {
        assert_eq!(self.header("content-type"), Some("text/event-stream"), "{}", self.text());
        let mut events = Vec::new();
        for block in self.text().split_terminator("\n\n") {
            let (mut name, mut data) = (String::new(), None);
            for line in block.lines() {
                match line.split_once(": ") {
                    Some(("event", value)) => name = value.to_owned(),
                    Some(("data", value)) => data = Some(value.to_owned()),
                    _ => panic!("{line:?} is no line of an event"),
                }
            }
            events.push((name, data.unwrap()));
        }
        events
    }

    /// The events of a stream in OpenAI's style, without its end, which must be there.
    pub(crate) fn chunks(&self) -> Vec<Value> {
        let mut events = self.events();
        assert_eq!(events.pop().map(|(_, data)| data).as_deref(), Some("[DONE]"));
        events.iter().map(|(_, data)| serde_json::from_str(data).unwrap()).collect()
    }

    /// Lines of JSON.
    pub(crate) fn lines(&self) -> Vec<Value> {
        assert_eq!(self.header("content-type"), Some("application/x-ndjson"), "{}", self.text());
        self.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Where a server is.
pub(crate) fn address(server: &Server) -> SocketAddr {
    server.addresses()[0]
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

/// The bytes of a request.
pub(crate) fn request_bytes(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("{method} {path} HTTP/1.1\r\n").into_bytes();
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        bytes.extend_from_slice(b"Host: localhost\r\n");
    }
    for (name, value) in headers {
        bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    }
    if !body.is_empty() || method == "POST" {
        bytes.extend_from_slice(format!("Content-Length: {}\r\n", body.len()).as_bytes());
    }
    bytes.extend_from_slice(b"Connection: close\r\n\r\n");
    bytes.extend_from_slice(body);
    bytes
}

/// Reads a response; `None` if the connection ends before there is one.
pub(crate) fn read_response(stream: impl Read) -> Option<Response> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    if reader.read_line(&mut line).ok()? == 0 {
        return None;
    }
    let status = line.split(' ').nth(1)?.parse().ok()?;
    let mut headers = Vec::new();
    loop {
        line.clear();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.push((name.to_ascii_lowercase(), value.to_owned()));
    }
    let find = |name: &str| headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
    let (mut body, mut is_complete) = (Vec::new(), false);
    if find("transfer-encoding").as_deref() == Some("chunked") {
        loop {
            line.clear();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                break;
            }
            let size = usize::from_str_radix(line.trim_end(), 16).unwrap();
            let mut chunk = vec![0; size + 2];
            if reader.read_exact(&mut chunk).is_err() {
                break;
            }
            if size == 0 {
                is_complete = true;
                break;
            }
            body.extend_from_slice(&chunk[..size]);
        }
    } else {
        let length: usize = find("content-length").map_or(0, |length| length.parse().unwrap());
        body.resize(length, 0);
        is_complete = reader.read_exact(&mut body).is_ok();
    }
    Some(Response { status, headers, body, is_complete })
}

/// Sends bytes as they are and reads what comes back.
pub(crate) fn send_raw(address: SocketAddr, bytes: &[u8]) -> Option<Response> {
    let mut stream = connect(address);
    // The server may have closed it already.
    let _ = stream.write_all(bytes);
    read_response(stream)
}

pub(crate) fn get(server: &Server, path: &str) -> Response {
    send_raw(address(server), &request_bytes("GET", path, &[], b"")).unwrap()
}

pub(crate) fn post(server: &Server, path: &str, body: &Value) -> Response {
    post_with(server, path, &[], body)
}

pub(crate) fn post_with(server: &Server, path: &str, headers: &[(&str, &str)], body: &Value) -> Response {
    send_raw(address(server), &request_bytes("POST", path, headers, body.to_string().as_bytes())).unwrap()
}

/// A figure of `/metrics`.
pub(crate) fn metric(server: &Server, name: &str) -> f64 {
    let metrics = get(server, "/metrics");
    let line = metrics.text().lines().find(|line| line.starts_with(name) && !line.starts_with('#'));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok())
        .unwrap_or_else(|| panic!("no {name}: {}", metrics.text()))
}

/// Waits until something holds.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}: not in a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
}
