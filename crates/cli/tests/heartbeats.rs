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

/// How long a worker may leave a beat without an echo here; it is lost a second later at the latest.
const LIMIT: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_secs(2);

fn signal(id: u32, name: &str) {
    let status = Command::new("kill").args([name, &id.to_string()]).status().unwrap();
    assert!(status.success());
}

fn connect(worker: &Worker) -> Arc<RemoteRegistry> {
    let timeouts = Timeouts { heartbeat: Some(LIMIT), ..Timeouts::default() };
    let options = Options { timeouts, ..Options::default() };
    let registry = RemoteRegistry::connect(&worker.address, &options).unwrap();
    assert!(registry.has_heartbeats());
    registry
}

fn free_bytes(registry: &RemoteRegistry) -> usize {
    registry.devices()[0].memory().unwrap().free
}

/// Multiplies matrices for many seconds on one thread.
fn compute_for_long(device: Arc<dyn Device>) -> Result<(), Error> {
    const SIDE: usize = 1024;
    let (mut graph, mut buffers) = (Graph::new(), Buffers::new());
    let input = graph.leaf(DType::F32, [SIDE, SIDE]).unwrap();
    let products: Vec<_> = (0..2000).map(|_| graph.mul_mat(input, input).unwrap()).collect();
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

/// Freezes a worker, and gives what is known of it as soon as it is lost.
fn lost(worker: &Worker, registry: &RemoteRegistry) {
    signal(worker.child.id(), "-STOP");
    let since = Instant::now();
    while registry.failure().is_none() {
        assert!(since.elapsed() < Duration::from_secs(60), "it is not lost");
        thread::sleep(Duration::from_millis(5));
    }
    assert!(since.elapsed() < SOON, "{:?}", since.elapsed());
    let failure = registry.failure().unwrap();
    assert!(matches!(failure.fault(), WorkerFault::Lifeless { .. }), "{failure}");
}

/// Whatever it does when it freezes; and once it goes on, it frees what the client had and serves others.
#[test]
fn a_frozen_worker_is_lost_and_serves_others_later() {
    let worker = Worker::start(&["--max-memory", "1G"]);
    let first = connect(&worker);
    let free = free_bytes(&first);
    drop(first);
    let thaw = || {
        signal(worker.child.id(), "-CONT");
        let registry = connect(&worker);
        let since = Instant::now();
        while free_bytes(&registry) != free {
            assert!(since.elapsed() < Duration::from_secs(60), "{} of {free} bytes", free_bytes(&registry));
            thread::sleep(Duration::from_millis(5));
        }
    };
    // It does nothing.
    let registry = connect(&worker);
    let buffer = allocate(&registry.devices()[0].buffer_type(), 1 << 20).unwrap();
    lost(&worker, &registry);
    let error = buffer.read(0, &mut [0]).unwrap_err();
    assert!(matches!(error, Error::DeviceLost { .. }), "{error}");
    thaw();
    // It computes, for longer than the limit first.
    let registry = connect(&worker);
    thread::scope(|scope| {
        let device = registry.devices().remove(0);
        let computing = scope.spawn(move || compute_for_long(device));
        thread::sleep(2 * LIMIT);
        assert!(!computing.is_finished() && registry.failure().is_none());
        lost(&worker, &registry);
        let error = computing.join().unwrap().unwrap_err();
        assert!(error.to_string().contains("has not answered for 1 s"), "{error}");
    });
    thaw();
    // It takes data.
    let registry = connect(&worker);
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
            thread::sleep(Duration::from_millis(1));
        }
        lost(&worker, &registry);
        let error = writing.join().unwrap();
        assert!(matches!(error, Error::DeviceLost { .. }), "{error}");
    });
    thaw();
}

/// A client that is stopped itself, for three times the limit, goes on with all of its workers.
#[test]
fn a_client_that_is_stopped_blames_no_worker() {
    let workers = [(); 2].map(|()| Worker::start(&[]));
    let answer = |stop: bool| {
        let mut command = user::command(env!("CARGO_BIN_EXE_oxcart"));
        command.args(["run", "-m", TINY, "the end", "--raw", "-n", "1500", "--ctx", "2048", "--ignore-eos"]);
        let addresses = workers.each_ref().map(|worker| worker.address.as_str()).join(",");
        command.args(["--temp", "0", "--threads", "1", "--heartbeat", "1s", "--workers", &addresses]);
        command.args(["--split", "1,1"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (mut text, mut out) = (vec![0], child.stdout.take().unwrap());
        out.read_exact(&mut text).unwrap();
        if stop {
            signal(child.id(), "-STOP");
            thread::sleep(3 * LIMIT);
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
