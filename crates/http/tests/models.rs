//! Several models: loaded when they are asked for, unloaded when they are not or another needs the room.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use oxcart_http::{
    About, Available, Config, Features, Keeping, Keys, Limits, Listeners, LoadError, Models, ModelsError,
    Purpose, Served, Server, Source,
};
use serde_json::{Value, json};
use support::{
    Gate, Held, address, connect, engine_by, get, metric, options, post, read_response, request_bytes,
    send_raw, served, wait_until,
};

/// What the sources of a test share.
#[derive(Default)]
struct Machine {
    /// Models that are loaded.
    loaded: AtomicUsize,
    /// How many have room; none means any number.
    room: Option<usize>,
    /// Whether loading fails.
    is_broken: AtomicBool,
    /// Held by a test that wants answers to stay where they are.
    gate: Gate,
    /// Whether the next step of an engine panics.
    panics: AtomicBool,
}

struct Tiny {
    name: String,
    machine: Arc<Machine>,
}

impl Source for Tiny {
    fn load(&self) -> Result<Served, LoadError> {
        if self.machine.is_broken.load(Ordering::Relaxed) {
            return Err(LoadError::Failed("the file is gone".into()));
        }
        if self.machine.room.is_some_and(|room| self.machine.loaded.load(Ordering::Relaxed) >= room) {
            return Err(LoadError::NoRoom("it needs more than there is".into()));
        }
        self.machine.loaded.fetch_add(1, Ordering::Relaxed);
        let (machine, start) = (Arc::clone(&self.machine), Instant::now());
        let engine = engine_by(options(4), move || {
            machine.gate.pass();
            assert!(!machine.panics.swap(false, Ordering::Relaxed), "as the test wants it");
            start.elapsed()
        });
        Ok(served(&self.name, engine, Limits::default()))
    }

    fn features(&self) -> Result<Features, LoadError> {
        Ok(Features::default())
    }

    fn unloaded(&self) {
        self.machine.loaded.fetch_sub(1, Ordering::Relaxed);
    }
}

const KEEPING: Keeping =
    Keeping { most: 1, idle: Duration::from_secs(600), queue: 4, time: Duration::from_secs(60) };

fn available(name: &str, machine: &Arc<Machine>) -> Available {
    let source = Box::new(Tiny { name: name.to_owned(), machine: Arc::clone(machine) });
    let about = About { architecture: "llama".into(), trained_context: 8192, ..About::default() };
    Available { name: name.to_owned(), about, purpose: Purpose::Chat, context: support::CONTEXT, source }
}

fn server(machine: &Arc<Machine>, keeping: Keeping) -> Server {
    let all = ["one", "two", "three"].map(|name| available(name, machine));
    let models = Models::on_demand(all.into(), keeping).unwrap();
    Server::start(Listeners::local().unwrap(), Config::new(models)).unwrap()
}

fn question(model: &str) -> Value {
    json!({ "model": model, "prompt": "x", "max_tokens": 3, "ignore_eos": true, "temperature": 0 })
}

/// An answer under way, by a model that is loaded for it. It goes on until the gate is open.
fn begin_held(server: &Server, model: &str, _held: &Held) -> TcpStream {
    let stream = begin_long(server, model);
    wait_until("it runs", || figure(server, "oxcart_requests_running", model) == 1.0);
    stream
}

/// An answer of many tokens, by a model that is loaded for it.
fn begin_long(server: &Server, model: &str) -> TcpStream {
    let body =
        json!({ "model": model, "prompt": "x", "max_tokens": 500, "ignore_eos": true, "stream": true });
    let stream = begin(server, &body);
    wait_until("it is loaded", || figure(server, "oxcart_model_loads_total", model) == 1.0);
    stream
}

fn begin(server: &Server, body: &Value) -> TcpStream {
    let mut stream = connect(address(server));
    let bytes = request_bytes("POST", "/v1/completions", &[], body.to_string().as_bytes());
    stream.write_all(&bytes).unwrap();
    stream
}

fn figure(server: &Server, name: &str, model: &str) -> f64 {
    metric(server, &format!("{name}{{model=\"{model}\"}}"))
}

/// Waits until a request waits for a model for which another one makes way.
fn wait_for_way(server: &Server, wanted: &str, leaving: usize) {
    wait_until("it waits", || figure(server, "oxcart_requests_waiting", wanted) == 1.0);
    let makes_way = || get(server, "/cluster").json()["models"][leaving]["is_leaving"] == json!(true);
    wait_until("the other one makes way", makes_way);
}

fn loaded(server: &Server) -> Vec<String> {
    let ps = get(server, "/api/ps").json();
    ps["models"].as_array().unwrap().iter().map(|model| model["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn models_are_loaded_when_they_are_asked_for() {
    let server = server(&Arc::default(), KEEPING);
    let listed = get(&server, "/v1/models").json();
    let ids: Vec<&str> =
        listed["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["one", "two", "three"]);
    assert_eq!(listed["data"][0]["status"]["value"], "unloaded");
    assert_eq!(get(&server, "/api/tags").json()["models"].as_array().unwrap().len(), 3);
    assert_eq!(loaded(&server), Vec::<String>::new());
    assert_eq!(get(&server, "/health").status, 200);
    // What is only looked at is not loaded.
    let show = post(&server, "/api/show", &json!({ "model": "two" })).json();
    assert_eq!(show["details"]["family"], "llama");
    assert_eq!(show["model_info"]["llama.context_length"], support::CONTEXT, "what will be served");
    assert_eq!(post(&server, "/api/pull", &json!({ "model": "two", "stream": false })).status, 200);
    assert_eq!(get(&server, "/v1/models/two").json()["status"]["value"], "unloaded");

    let answer = post(&server, "/v1/completions", &question("two")).json();
    assert_eq!((&answer["model"], &answer["usage"]["completion_tokens"]), (&json!("two"), &json!(3)));
    assert_eq!(loaded(&server), ["two"]);
    assert_eq!(get(&server, "/v1/models/two").json()["status"]["value"], "loaded");
    // Ollama's tag, any case, and again: it is loaded once.
    assert_eq!(post(&server, "/v1/completions", &question("TWO:latest")).status, 200);
    assert_eq!(figure(&server, "oxcart_model_loads_total", "two"), 1.0);
    // Without a name, it is the first one.
    let answer = post(&server, "/v1/completions", &json!({ "prompt": "x", "max_tokens": 2 })).json();
    assert_eq!(answer["model"], "one");
    // There is room for one, and what the other did is not forgotten.
    assert_eq!(loaded(&server), ["one"]);
    assert_eq!(figure(&server, "oxcart_model_loaded", "two"), 0.0);
    assert_eq!(figure(&server, "oxcart_requests_finished_total", "two"), 2.0);
    assert_eq!(figure(&server, "oxcart_answer_tokens_total", "two"), 6.0);
    assert_eq!(post(&server, "/v1/completions", &question("two")).status, 200);
    assert_eq!(figure(&server, "oxcart_requests_finished_total", "two"), 3.0);
}

#[test]
fn a_wrong_request_loads_no_model() {
    let server = server(&Arc::default(), KEEPING);
    let king = json!([{ "role": "king", "content": "x" }]);
    let image = json!([{ "type": "image", "source": {} }]);
    for (path, wrong) in [
        ("/v1/chat/completions", json!({ "messages": king })),
        ("/v1/completions", json!({ "prompt": "x", "echo": true })),
        ("/v1/responses", json!({ "input": "x", "background": true })),
        ("/v1/messages", json!({ "max_tokens": 1, "messages": [{ "role": "user", "content": image }] })),
        ("/v1/messages/count_tokens", json!({ "messages": [{ "role": "user", "content": image }] })),
        ("/api/chat", json!({ "messages": king })),
        ("/api/generate", json!({ "prompt": "x", "format": 5 })),
        ("/completion", json!({ "prompt": "x", "logit_bias": { "x": 1 } })),
        ("/apply-template", json!({ "messages": king })),
    ] {
        assert_eq!(post(&server, path, &wrong).status, 400, "{path}");
        assert_eq!(loaded(&server), Vec::<String>::new(), "{path}");
    }
    assert_eq!(figure(&server, "oxcart_model_loads_total", "one"), 0.0);
}

#[test]
fn unknown_models_are_refused_in_every_format() {
    let server = server(&Arc::default(), KEEPING);
    let chat = json!({ "model": "four", "max_tokens": 3, "messages": [{ "role": "user", "content": "x" }] });
    for path in ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize", "/completion"] {
        // A prompt of responses is one that is stored, which is refused before the name is looked at.
        let asked = if path == "/v1/responses" { "input" } else { "prompt" };
        let body = json!({ "model": "four", asked: "x", "content": "x", "messages": chat["messages"] });
        let refused = post(&server, path, &body);
        assert_eq!(refused.status, 404, "{path}: {}", refused.text());
        assert_eq!(refused.json()["error"]["code"], "model_not_found", "{path}");
    }
    let refused = post(&server, "/v1/messages", &chat);
    assert_eq!((refused.status, &refused.json()["error"]["type"]), (404, &json!("not_found_error")));
    for path in ["/api/chat", "/api/generate", "/api/show", "/api/pull", "/api/embed"] {
        let body = json!({ "model": "four", "messages": chat["messages"], "prompt": "x", "input": "x" });
        let refused = post(&server, path, &body);
        assert_eq!(refused.status, 404, "{path}: {}", refused.text());
        assert!(refused.json()["error"].as_str().unwrap().contains("one, two, three"), "{path}");
    }
    // One that answers is not loaded for embeddings.
    assert_eq!(post(&server, "/v1/embeddings", &json!({ "model": "one", "input": "x" })).status, 501);
    assert_eq!(loaded(&server), Vec::<String>::new());
}

#[test]
fn a_model_in_use_is_not_unloaded_and_cannot_keep_others_out() {
    let machine: Arc<Machine> = Arc::default();
    let server = server(&machine, KEEPING);
    let held = machine.gate.hold();
    let mut stream = begin_held(&server, "one", &held);
    let for_two = begin(&server, &question("two"));
    wait_for_way(&server, "two", 0);
    assert_eq!(loaded(&server), ["one"], "its stream runs");
    // The next request for the model that is to make way is behind the one that waits.
    let for_one = begin(&server, &question("one"));
    wait_until("it waits", || figure(&server, "oxcart_requests_waiting", "one") == 1.0);
    assert_eq!(get(&server, "/health").status, 200);
    let picture = get(&server, "/cluster").json();
    assert_eq!(picture["models"][0]["presence"], "loaded");
    assert_eq!(
        (&picture["models"][1]["presence"], &picture["models"][1]["waiting"]),
        (&json!("unloaded"), &json!(1))
    );
    // The stream has its proper end, and only then does the model go.
    drop(held);
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("data: [DONE]") && rest.ends_with("0\r\n\r\n"), "{rest}");
    assert_eq!(read_response(for_two).unwrap().json()["model"], "two");
    assert_eq!(read_response(for_one).unwrap().json()["model"], "one");
    assert_eq!(figure(&server, "oxcart_model_loads_total", "one"), 2.0);
    assert_eq!(figure(&server, "oxcart_requests_cancelled_total", "one"), 0.0);
}

#[test]
fn a_model_stays_if_those_who_wanted_its_room_are_gone() {
    let machine: Arc<Machine> = Arc::default();
    let server = server(&machine, KEEPING);
    let held = machine.gate.hold();
    let _stream = begin_held(&server, "one", &held);
    let for_two = begin(&server, &question("two"));
    wait_for_way(&server, "two", 0);
    let for_one = begin(&server, &question("one"));
    wait_until("it waits", || figure(&server, "oxcart_requests_waiting", "one") == 1.0);
    drop(for_two);
    wait_until("no request waits for the room", || figure(&server, "oxcart_requests_waiting", "two") == 0.0);
    drop(held);
    assert_eq!(read_response(for_one).unwrap().json()["model"], "one");
    assert_eq!(figure(&server, "oxcart_model_loads_total", "one"), 1.0);
    assert_eq!(figure(&server, "oxcart_model_loads_total", "two"), 0.0);
}

/// A model whose engine has panicked is loaded anew with the next request; one that cannot be says why it does not answer.
#[test]
fn a_model_that_has_failed_is_loaded_again() {
    let machine: Arc<Machine> = Arc::default();
    let always = Tiny { name: "always".into(), machine: Arc::clone(&machine) }.load().unwrap();
    let always = Models::new(vec![always]).unwrap();
    let always = Server::start(Listeners::local().unwrap(), Config::new(always)).unwrap();
    let on_demand = server(&machine, KEEPING);
    let ask = |server: &Server, name: &str| post(server, "/v1/completions", &question(name));
    for (server, name) in [(&on_demand, "one"), (&always, "always")] {
        assert_eq!(ask(server, name).status, 200);
        machine.panics.store(true, Ordering::Relaxed);
        let failed = ask(server, name);
        assert_eq!(failed.status, 500, "{}", failed.text());
    }
    for _ in 0..2 {
        assert_eq!(ask(&on_demand, "one").status, 200);
        let refused = ask(&always, "always");
        assert_eq!(refused.status, 503);
        assert!(refused.text().contains("the model has failed"), "{}", refused.text());
    }
    assert_eq!(figure(&on_demand, "oxcart_model_loads_total", "one"), 2.0);
}

/// Whose requests fill the list of those that wait for a model leaves room to another key.
#[test]
fn the_waiting_list_of_a_model_is_shared() {
    const KEYS: [&str; 2] = ["a-key-of-some-length-that-is-long", "another-key-that-is-as-long-as-it"];
    let machine = Arc::new(Machine::default());
    let all = ["one", "two"].map(|name| available(name, &machine));
    let models = Models::on_demand(all.into(), KEEPING).unwrap();
    let config = Config::new(models);
    let server =
        Server::start(Listeners::local().unwrap(), Config { keys: Keys::new(KEYS).unwrap(), ..config })
            .unwrap();
    let held = machine.gate.hold();
    let ask = |key: &str, model: &str| {
        let mut stream = connect(address(&server));
        let bearer = format!("Bearer {key}");
        let headers = [("Authorization", bearer.as_str())];
        let body = question(model).to_string();
        stream.write_all(&request_bytes("POST", "/v1/completions", &headers, body.as_bytes())).unwrap();
        stream
    };
    let headers = format!("Bearer {}", KEYS[0]);
    let waiting = || {
        let request = request_bytes("GET", "/metrics", &[("Authorization", &headers)], b"");
        let metrics = send_raw(address(&server), &request).unwrap();
        let figure = |name: &str| {
            let line = metrics.text().lines().find(|line| line.starts_with(name)).unwrap();
            line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
        };
        (figure("oxcart_requests_running{model=\"one\"}"), figure("oxcart_requests_waiting{model=\"two\"}"))
    };
    // While the first model answers, the second waits for its room.
    let running = ask(KEYS[0], "one");
    wait_until("it runs", || waiting().0 == 1.0);
    let mut mine: Vec<TcpStream> = Vec::new();
    for count in 1..=KEEPING.queue {
        mine.push(ask(KEYS[0], "two"));
        wait_until("it waits", || waiting().1 == count as f64);
    }
    assert_eq!(read_response(ask(KEYS[0], "two")).unwrap().status, 429, "its own are no reason");
    let other = ask(KEYS[1], "two");
    // The latest of the key that has most.
    assert_eq!(read_response(mine.pop().unwrap()).unwrap().status, 429);
    drop(held);
    for stream in mine.into_iter().chain([running, other]) {
        assert_eq!(read_response(stream).unwrap().status, 200);
    }
}

#[test]
fn only_so_many_wait_for_a_model() {
    let machine: Arc<Machine> = Arc::default();
    let server = server(&machine, Keeping { queue: 1, ..KEEPING });
    let held = machine.gate.hold();
    let _stream = begin_held(&server, "one", &held);
    let waiting = begin(&server, &question("two"));
    wait_until("it waits", || figure(&server, "oxcart_requests_waiting", "two") == 1.0);
    let refused = post(&server, "/v1/completions", &question("two"));
    assert_eq!(refused.status, 429, "{}", refused.text());
    assert!(refused.header("retry-after").is_some());
    // The server ends: who waits is told.
    std::thread::scope(|scope| {
        scope.spawn(|| server.shutdown(Duration::ZERO));
        let answer = read_response(waiting);
        drop(held);
        assert_eq!(answer.unwrap().status, 503);
    });
}

#[test]
fn models_that_nobody_uses_are_unloaded() {
    let machine = Arc::default();
    let server = server(&machine, Keeping { most: 3, idle: Duration::from_millis(50), ..KEEPING });
    let stream = begin_long(&server, "one");
    assert_eq!(post(&server, "/v1/completions", &question("two")).status, 200);
    wait_until("two is unloaded", || figure(&server, "oxcart_model_loaded", "two") == 0.0);
    drop(stream);
    wait_until("all are", || loaded(&server).is_empty() && machine.loaded.load(Ordering::Relaxed) == 0);
    // A request may say how long.
    let ask = json!({ "model": "three", "prompt": "x", "stream": false, "keep_alive": -1, "options": { "num_predict": 1 } });
    assert_eq!(post(&server, "/api/generate", &ask).status, 200);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(loaded(&server), ["three"]);
    let gone = post(&server, "/api/generate", &json!({ "model": "three", "keep_alive": 0 })).json();
    assert_eq!(gone["done_reason"], "unload");
    wait_until("it is unloaded", || loaded(&server).is_empty());
}

/// Where several clients share the models, none of them shortens the time for which a model stays.
#[test]
fn one_key_does_not_unload_what_others_use() {
    let keys = ["a-key-for-the-tests", "another-key-for-tests"];
    let machine = Arc::default();
    let all = ["one", "two"].map(|name| available(name, &machine));
    let mut config = Config::new(Models::on_demand(all.into(), Keeping { most: 2, ..KEEPING }).unwrap());
    config.keys = Keys::new(keys).unwrap();
    let server = Server::start(Listeners::local().unwrap(), config).unwrap();
    let send = |method: &str, key: &str, path: &str, body: &[u8]| {
        let key = format!("Bearer {key}");
        send_raw(address(&server), &request_bytes(method, path, &[("Authorization", &key)], body)).unwrap()
    };
    let ask = |key: &str, path: &str, body: &Value| send("POST", key, path, body.to_string().as_bytes());
    assert_eq!(ask(keys[0], "/v1/completions", &question("one")).status, 200);
    let told = ask(keys[1], "/api/generate", &json!({ "model": "one", "keep_alive": 0 }));
    assert_eq!(told.json()["done_reason"], "load", "it does not say what it does not do");
    // The loader has looked at all models once more when it has loaded another.
    assert_eq!(ask(keys[1], "/v1/completions", &question("two")).status, 200);
    let listed = || send("GET", keys[0], "/api/ps", b"").json()["models"].clone();
    assert_eq!(listed().as_array().map(Vec::len), Some(2), "{}", listed());
    // Longer may it be.
    assert_eq!(ask(keys[1], "/api/generate", &json!({ "model": "one", "keep_alive": -1 })).status, 200);
    assert_eq!(listed()[0]["expires_at"], "9999-12-31T23:59:59Z");
}

#[test]
fn the_one_that_was_not_used_for_longest_makes_way() {
    let server = server(&Arc::default(), Keeping { most: 2, ..KEEPING });
    for model in ["one", "two", "one", "three"] {
        assert_eq!(post(&server, "/v1/completions", &question(model)).status, 200, "{model}");
    }
    assert_eq!(loaded(&server), ["one", "three"]);
}

#[test]
fn models_make_way_when_memory_is_needed() {
    let machine = Arc::new(Machine { room: Some(1), ..Machine::default() });
    let crowded = server(&machine, Keeping { most: 3, ..KEEPING });
    for model in ["one", "two", "one"] {
        assert_eq!(post(&crowded, "/v1/completions", &question(model)).json()["model"], model);
    }
    assert_eq!(loaded(&crowded), ["one"]);
    // Where there is none to make way, it is said.
    let full = server(&Arc::new(Machine { room: Some(0), ..Machine::default() }), KEEPING);
    let refused = post(&full, "/v1/completions", &question("one"));
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert!(refused.text().contains("needs more than there is"), "{}", refused.text());
}

#[test]
fn a_model_that_cannot_be_loaded_is_tried_again() {
    let machine: Arc<Machine> = Arc::default();
    let server = server(&machine, KEEPING);
    machine.is_broken.store(true, Ordering::Relaxed);
    let failed = post(&server, "/v1/completions", &question("one"));
    assert_eq!(failed.status, 500);
    assert!(failed.text().contains("cannot be loaded: the file is gone"), "{}", failed.text());
    let listed = get(&server, "/v1/models/one").json();
    assert_eq!(listed["status"], json!({ "value": "unloaded", "error": "the file is gone" }));
    assert!(get(&server, "/cluster").json()["models"][0]["trouble"].is_string());
    machine.is_broken.store(false, Ordering::Relaxed);
    assert_eq!(post(&server, "/v1/completions", &question("one")).status, 200);
    assert_eq!(get(&server, "/v1/models/one").json()["status"], json!({ "value": "loaded" }));
}

#[test]
fn two_models_cannot_have_one_name() {
    let machine = Arc::default();
    let twice = vec![available("one", &machine), available("One", &machine)];
    assert!(matches!(Models::on_demand(twice, KEEPING), Err(ModelsError::Name(name)) if name == "One"));
}

/// The loader would look for a model to unload for ever.
#[test]
fn no_model_at_a_time_is_refused() {
    let one = vec![available("one", &Arc::default())];
    let none = Models::on_demand(one, Keeping { most: 0, ..KEEPING });
    assert!(matches!(none, Err(ModelsError::NoneAtATime)));
}
