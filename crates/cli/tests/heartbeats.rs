//! Workers and clients that are really stopped, as processes, and go on later. `docs/threats.md` says which test answers which threat.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "user/without_settings.rs"]
mod user;
#[path = "user/worker.rs"]
mod worker;

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use oxcart::backend::{Buffers, Device, Error, Registry, StreamOptions, Work, allocate, place_all};
use oxcart::rpc::client::{Options, RemoteRegistry, Timeouts, WorkerFault};
use oxcart::tensor::{DType, Graph};
use worker::Worker;

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tiny.gguf");

/// How long a worker may leave a beat without an echo here: longer than any process has to wait for a processor, on a machine that is busy
/// with other tests and worse.
const LIMIT: Duration = Duration::from_secs(10);
/// What is longer.
const LONGER: Duration = Duration::from_secs(12);
/// How long a test waits for what should happen soon.
const PATIENCE: Duration = Duration::from_secs(120);

fn signal(id: u32, name: &str) {
    let status = Command::new("kill").args([name, &id.to_string()]).status().unwrap();
    assert!(status.success());
}

fn connect(worker: &Worker) -> Arc<RemoteRegistry> {
    // Whatever else has an end in time does not end within a test.
    let (connect, control) = (PATIENCE, 10 * PATIENCE);
    let timeouts = Timeouts { heartbeat: Some(LIMIT), connect, control, ..Timeouts::default() };
    let options = Options { timeouts, ..Options::default() };
    let registry = RemoteRegistry::connect(&worker.address, &options).unwrap();
    assert!(registry.has_heartbeats());
    registry
}

fn free_bytes(registry: &RemoteRegistry) -> usize {
    registry.devices()[0].memory().unwrap().free
}

/// Multiplies matrices for minutes on one thread.
fn compute_for_long(device: Arc<dyn Device>) -> Result<(), Error> {
    const SIDE: usize = 1024;
    let (mut graph, mut buffers) = (Graph::new(), Buffers::new());
    let input = graph.leaf(DType::F32, [SIDE, SIDE]).unwrap();
    let products: Vec<_> = (0..4000).map(|_| graph.mul_mat(input, input).unwrap()).collect();
    products.iter().for_each(|&product| graph.expand(product).unwrap());
    place_all(&mut graph, &[input], &device.buffer_type(), &mut buffers).unwrap();
    // All of them write to one place.
    let result = buffers.add(allocate(&device.buffer_type(), SIDE * SIDE * 4).unwrap());
    for &product in &products {
        let storage = oxcart::tensor::graph::Storage { buffer: result, offset: 0 };
        graph.bind(product, storage, SIDE * SIDE * 4).unwrap();
    }
    let place = buffers.place_of(graph.tensor(products[0]).unwrap()).unwrap();
    let stream = device.open(&StreamOptions::default())?;
    let nodes = graph.range(0..graph.nodes().len()).unwrap();
    stream.compute(Work { nodes, buffers: &buffers })?;
    stream.read(&place, &mut vec![0; SIDE * SIDE * 4])
}

/// Freezes a worker that something waits for, until it is lost.
fn lose(worker: &Worker, registry: &RemoteRegistry) {
    signal(worker.child.id(), "-STOP");
    let since = Instant::now();
    while registry.failure().is_none() {
        assert!(since.elapsed() < PATIENCE, "it is not lost");
        thread::sleep(Duration::from_millis(5));
    }
    let failure = registry.failure().unwrap();
    assert!(matches!(failure.fault(), WorkerFault::Lifeless { limit: LIMIT }), "{failure}");
}

/// Has a worker freeze, and go on: then it frees what the client had, and serves others.
fn freeze(lose_while_busy: impl FnOnce(&Worker, Arc<RemoteRegistry>)) {
    let worker = Worker::start(&["--max-memory", "1G"]);
    let first = connect(&worker);
    let free = free_bytes(&first);
    drop(first);
    lose_while_busy(&worker, connect(&worker));
    signal(worker.child.id(), "-CONT");
    let registry = connect(&worker);
    let since = Instant::now();
    while free_bytes(&registry) != free {
        assert!(since.elapsed() < PATIENCE, "{} of {free} bytes", free_bytes(&registry));
        thread::sleep(Duration::from_millis(5));
    }
}

fn does_nothing(worker: &Worker, registry: Arc<RemoteRegistry>) {
    let buffer = allocate(&registry.devices()[0].buffer_type(), 1 << 20).unwrap();
    thread::scope(|scope| {
        // Until it has really stopped, it answers.
        let reading = scope.spawn(|| {
            loop {
                if let Err(error) = buffer.read(0, &mut [0]) {
                    return error;
                }
                thread::sleep(Duration::from_millis(100));
            }
        });
        lose(worker, &registry);
        let error = reading.join().unwrap();
        assert!(matches!(error, Error::DeviceLost { .. }), "{error}");
    });
}

/// For longer than the limit first.
fn computes(worker: &Worker, registry: Arc<RemoteRegistry>) {
    thread::scope(|scope| {
        let device = registry.devices().remove(0);
        let computing = scope.spawn(move || compute_for_long(device));
        thread::sleep(LONGER);
        assert!(!computing.is_finished() && registry.failure().is_none());
        lose(worker, &registry);
        let error = computing.join().unwrap().unwrap_err();
        assert!(error.to_string().contains("has not answered for 10 s"), "{error}");
    });
}

fn takes_data(worker: &Worker, registry: Arc<RemoteRegistry>) {
    let written = AtomicUsize::new(0);
    thread::scope(|scope| {
        let buffer = allocate(&registry.devices()[0].buffer_type(), 64 << 20).unwrap();
        let count = &written;
        let writing = scope.spawn(move || {
            let data = vec![1; 64 << 20];
            loop {
                let mut byte = [0];
                let done = buffer.write(0, &data).and_then(|()| buffer.read(0, &mut byte));
                if let Err(error) = done {
                    return error;
                }
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        while written.load(Ordering::Relaxed) < 2 {
            assert!(!writing.is_finished(), "{:?}", registry.failure());
            thread::sleep(Duration::from_millis(1));
        }
        lose(worker, &registry);
        let error = writing.join().unwrap();
        assert!(matches!(error, Error::DeviceLost { .. }), "{error}");
    });
}

/// Whatever it does when it freezes.
#[test]
fn a_frozen_worker_is_lost_and_serves_others_later() {
    thread::scope(|scope| {
        let all = [does_nothing, computes, takes_data].map(|busy| scope.spawn(move || freeze(busy)));
        all.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// A client that is stopped itself, for longer than the limit, goes on with all of its workers.
#[test]
fn a_client_that_is_stopped_blames_no_worker() {
    let workers = [(); 2].map(|()| Worker::start(&[]));
    let answer = |stop: bool| {
        let mut command = user::command(env!("CARGO_BIN_EXE_oxcart"));
        command.args(["run", "-m", TINY, "the end", "--raw", "-n", "1500", "--ctx", "2048", "--ignore-eos"]);
        let addresses = workers.each_ref().map(|worker| worker.address.as_str()).join(",");
        command.args(["--temp", "0", "--threads", "1", "--heartbeat", "10s", "--workers", &addresses]);
        command.args(["--split", "1,1"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (mut text, mut out) = (vec![0], child.stdout.take().unwrap());
        out.read_exact(&mut text).unwrap();
        if stop {
            signal(child.id(), "-STOP");
            thread::sleep(LONGER);
            signal(child.id(), "-CONT");
        }
        out.read_to_end(&mut text).unwrap();
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && !errors.contains("lost"), "{errors}");
        text
    };
    let undisturbed = answer(false);
    assert!(answer(true) == undisturbed);
}
