//! Recorded models over workers: two that this test starts, or those that `OXCART_WORKERS` names (`host:port,host:port`),
//! which may be llama.cpp's.
//!
//! Needs the recorded data (`OXCART_GOLDEN`); says so and stops where it is not given. What is waited for is counted with the
//! small model that is always there.
#![allow(clippy::print_stderr, clippy::unwrap_used, reason = "tests")]

mod model_support;

use std::path::Path;

use model_support::{Golden, PLAINEST, Way, decode, decode_on, judge, remote};
use oxcart_llm::runner::{Piece, Runner, RunnerOptions, Wanted};
use oxcart_rpc::wire::Command;
use oxcart_tensor::DType;

#[test]
fn recorded_models_over_workers() {
    let Some(models) = Golden::all() else { return };
    let given = std::env::var("OXCART_WORKERS").ok();
    let (_workers, endpoints) = match &given {
        Some(list) => (Vec::new(), list.split(',').map(str::to_owned).collect()),
        None => remote::workers(2),
    };
    let mut failures = Vec::new();
    for golden in models.iter().filter(|golden| !golden.is_encoder()) {
        for cache_type in [DType::F32, DType::F16] {
            let registries = remote::connect(&endpoints);
            let (model, streams) = remote::load(&golden.path(), &registries);
            let way = Way { cache_type, ..PLAINEST };
            let (rows, session) = decode_on(golden, way, model, streams);
            match judge(golden, &rows, cache_type) {
                Ok(said) => eprintln!("{} {cache_type}: {said}", golden.name()),
                Err(said) => failures.push(format!("{} {cache_type}: {said}", golden.name())),
            }
            if given.is_some() {
                continue;
            }
            assert_eq!(rows, decode(golden, way), "{}: workers compute what is computed here", golden.name());
            // One split here, one on each worker; graphs are sent once for the prompt and once for all that follow.
            assert_eq!(session.runner.prepared().unwrap().splits().len(), 3, "{}", golden.name());
            for registry in &registries {
                let messages = |command| registry.traffic().of(command).messages;
                assert_eq!(messages(Command::GraphCompute), 2, "{}", golden.name());
                assert_eq!(messages(Command::GraphRecompute), 7, "{}", golden.name());
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// What is written, and what is computed, is not waited for; of every worker in the chain one thing is read: what the next one, or the
/// sampler, needs.
#[test]
fn every_worker_is_waited_for_once_per_token() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/data/tiny.gguf");
    for count in [1, 2] {
        let (_workers, endpoints) = remote::workers(count);
        let registries = remote::connect(&endpoints);
        let (model, streams) = remote::load(&path, &registries);
        let mut runner = Runner::new(model, streams, RunnerOptions::default()).unwrap();
        let sequence = runner.open().unwrap();
        let mut step = |tokens: &[u32]| {
            runner.compute(&[Piece { sequence, tokens, wanted: Wanted::Last }]).unwrap();
            registries.iter().map(|registry| registry.traffic().total().waits).collect::<Vec<_>>()
        };
        step(&[1, 2, 3]);
        let mut before = step(&[4]);
        for token in 5..25 {
            let after = step(&[token]);
            for (worker, (before, after)) in before.iter().zip(&after).enumerate() {
                assert_eq!(after - before, 1, "worker {worker} of {count}, token {token}");
            }
            before = after;
        }
    }
}
