//! Requests while no devices have room for the model: they are kept, and go on when some do.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use oxcart_backend::StreamOptions;
use oxcart_cpu::CpuDevice;
use oxcart_http::{Limits, Server};
use oxcart_llm::engine::{Engine, EngineOptions, Recover};
use oxcart_llm::model::{Error, Model, ModelFile, PlacementOptions};
use oxcart_llm::runner::{Lineup, Loss, Runner};
use oxcart_llm::text::Vocab;
use serde_json::{Value, json};
use support::{address, engine, get, options, post, request_bytes, send_raw, server_of, tiny, wait_until};

/// Before this step, a model is to move to other devices.
const MOVES_AT: usize = 10;

/// What is said while these have no room for it.
const MISSING: &str = "CPU has 1.0 MiB free, but its part of the model needs 3.0 MiB: 2.0 MiB are missing";

/// Moves a model once, as soon as there is room.
struct Moving {
    lineup: Lineup,
    steps: usize,
    has_room: Arc<AtomicBool>,
}

impl Recover for Moving {
    fn recover(&mut self, _: &Loss, runner: &mut Runner) -> Result<(), Error> {
        self.take_in(runner)
    }

    fn returned(&mut self, _: &Runner) -> Vec<String> {
        self.steps += 1;
        if self.steps == MOVES_AT { vec!["another".into()] } else { Vec::new() }
    }

    fn take_in(&mut self, runner: &mut Runner) -> Result<(), Error> {
        runner.release();
        match self.has_room.load(Ordering::SeqCst) {
            true => self.lineup.take_in(runner),
            false => Err(Error::NoRoom { device: "CPU".into(), free: 1 << 20, needed: 3 << 20 }),
        }
    }
}

/// A server of an engine for two requests at a time, which moves once there is room.
fn server(has_room: &Arc<AtomicBool>, limits: Limits) -> Server {
    let file = ModelFile::open(tiny()).unwrap();
    let vocab = Arc::new(Vocab::from_gguf(&file.metadata()).unwrap());
    let placement = PlacementOptions { runner: options(2), ..PlacementOptions::default() };
    let lineup = Lineup::new(vec![CpuDevice::new().unwrap()], placement, StreamOptions::threads(1));
    let model = Model::load(file, lineup.place(&ModelFile::open(tiny()).unwrap()).unwrap(), &|_| {}).unwrap();
    let mut engine = Engine::new(lineup.runner(model).unwrap(), vocab, EngineOptions::default());
    engine.recover_with(Moving { lineup, steps: 0, has_room: Arc::clone(has_room) });
    server_of(engine, limits, |_| {})
}

fn question(seed: u64) -> Value {
    json!({ "prompt": "the end", "max_tokens": 60, "temperature": 1.1, "seed": seed, "ignore_eos": true })
}

fn text(server: &Server, seed: u64) -> Value {
    let answer = post(server, "/v1/completions", &question(seed));
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["choices"][0]["text"].clone()
}

fn trouble(server: &Server) -> Value {
    get(server, "/cluster").json()["models"][0]["trouble"].clone()
}

#[test]
fn requests_are_kept_until_there_is_room() {
    let undisturbed = server_of(engine(2), Limits::default(), |_| {});
    let expected = [1, 2, 3].map(|seed| text(&undisturbed, seed));
    let has_room = Arc::default();
    let server = server(&has_room, Limits::default());
    std::thread::scope(|scope| {
        // One more than are computed at a time.
        let asking = [1, 2, 3].map(|seed| {
            scope.spawn({
                let server = &server;
                move || text(server, seed)
            })
        });
        wait_until("there is no room", || trouble(&server) == MISSING);
        assert!(asking.iter().all(|asking| !asking.is_finished()));
        has_room.store(true, Ordering::SeqCst);
        let answers = asking.map(|asking| asking.join().unwrap());
        assert_eq!(answers, expected);
    });
    assert_eq!(trouble(&server), Value::Null);
}

#[test]
fn a_request_whose_time_is_over_is_told_what_is_missing() {
    let time = Duration::from_secs(2);
    let server = server(&Arc::default(), Limits { time, ..Limits::default() });
    let since = Instant::now();
    let failed = post(&server, "/v1/completions", &question(1));
    assert_eq!(failed.status, 500, "{}", failed.text());
    assert!(failed.text().contains(MISSING), "{}", failed.text());
    assert!(since.elapsed() >= time);
}

/// Neither a client that waits nor the server's end has to wait for room.
#[test]
fn a_server_ends_while_there_is_no_room() {
    let server = server(&Arc::default(), Limits::default());
    let at = address(&server);
    let asking = std::thread::spawn(move || {
        let body = question(1).to_string();
        send_raw(at, &request_bytes("POST", "/v1/completions", &[], body.as_bytes()))
    });
    wait_until("there is no room", || trouble(&server) == MISSING);
    drop(server);
    assert!(asking.join().unwrap().is_none_or(|response| response.status != 200));
}
