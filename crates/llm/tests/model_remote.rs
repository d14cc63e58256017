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
use oxcart_rpc::wire::{Command, Dialect};
use oxcart_rpc::worker::DialectChoice;
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
                assert_eq!(messages(Command::GraphKeep), 2, "{}", golden.name());
                assert_eq!(messages(Command::GraphRun), 7, "{}", golden.name());
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// Round trips to each worker for every token, over so many workers that speak a protocol.
fn trips(count: usize, choice: DialectChoice) -> Vec<u64> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/data/tiny.gguf");
    let (_workers, endpoints) = remote::workers_speaking(count, choice);
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
    let mut trips: Option<Vec<u64>> = None;
    for token in 5..25 {
        let after = step(&[token]);
        let now = before.iter().zip(&after).map(|(before, after)| after - before).collect();
        let first = trips.get_or_insert_with(|| Vec::clone(&now));
        assert_eq!(*first, now, "{count} workers, token {token}");
        before = after;
    }
    trips.unwrap()
}

/// What is written, and what is computed, is not waited for; what the next worker needs goes there by itself. So one thing is read for
/// every token, by whatever samples from it.
#[test]
fn tokens_are_waited_for_once() {
    for count in [1, 2] {
        let mut once = vec![0; count];
        once[count - 1] = 1;
        assert_eq!(trips(count, DialectChoice::Auto), once, "{count} workers");
    }
}

/// All pieces of a prompt are on their way before anything is waited for: every worker computes one while the next computes another.
#[test]
fn a_prompt_of_several_pieces_is_waited_for_once() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/data/tiny.gguf");
    let (_workers, endpoints) = remote::workers(2);
    let registries = remote::connect(&endpoints);
    let (model, streams) = remote::load(&path, &registries);
    let options = RunnerOptions { batch: 8, ..RunnerOptions::default() };
    let mut runner = Runner::new(model, streams, options).unwrap();
    let prompt: Vec<u32> = (1..=64).collect();
    let mut compute = || {
        let sequence = runner.open().unwrap();
        runner.compute(&[Piece { sequence, tokens: &prompt, wanted: Wanted::Last }]).unwrap();
        runner.close(sequence).unwrap();
    };
    let waits = || registries.iter().map(|registry| registry.traffic().total().waits).sum::<u64>();
    let pushes = || registries[0].traffic().of(Command::Push).messages;
    compute();
    let before = (waits(), pushes());
    compute();
    let (waits, pushes) = (waits() - before.0, pushes() - before.1);
    assert!(waits == 1 && pushes >= 8, "{waits} waits for {pushes} pushes");
}

/// Of every worker of another make in the chain one thing is read: what the next one, or the sampler, needs.
#[test]
fn every_stock_worker_is_waited_for_once_per_token() {
    for count in [1, 2] {
        let stock = DialectChoice::Fixed(Dialect::newest());
        assert_eq!(trips(count, stock), vec![1; count], "{count} workers");
    }
}

/// Bytes that describe graphs and ask for them, for each of some steps whose shapes alternate: one sequence alone, and a prompt's next piece
/// beside it. Both shapes were there before.
fn graph_bytes(choice: DialectChoice) -> Vec<u64> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/data/tiny.gguf");
    let (_workers, endpoints) = remote::workers_speaking(1, choice);
    let registries = remote::connect(&endpoints);
    let (model, streams) = remote::load(&path, &registries);
    let options = RunnerOptions { sequences: 2, ..RunnerOptions::default() };
    let mut runner = Runner::new(model, streams, options).unwrap();
    let (alone, beside) = (runner.open().unwrap(), runner.open().unwrap());
    let mut step = |number: u32| {
        let (token, piece) = ([1 + number % 9], [2, 3, 4, 5]);
        let mut pieces = vec![Piece { sequence: alone, tokens: &token, wanted: Wanted::Last }];
        if number % 2 == 1 {
            pieces.push(Piece { sequence: beside, tokens: &piece, wanted: Wanted::Last });
        }
        runner.compute(&pieces).unwrap();
        let commands =
            [Command::GraphCompute, Command::GraphRecompute, Command::GraphKeep, Command::GraphRun];
        commands.map(|command| registries[0].traffic().of(command).bytes_sent).iter().sum::<u64>()
    };
    let sums: Vec<u64> = (0..20).map(&mut step).collect();
    sums[3..].windows(2).map(|pair| pair[1] - pair[0]).collect()
}

/// Workers keep the graphs of all shapes, so that going from one to another and back takes a few bytes; other workers have the last one only.
#[test]
fn alternating_shapes_are_sent_once() {
    let (kept, last) =
        (graph_bytes(DialectChoice::Auto), graph_bytes(DialectChoice::Fixed(Dialect::newest())));
    eprintln!("bytes of graphs per step: {kept:?} where they are kept, {last:?} where the last one is");
    assert!(kept.iter().all(|&bytes| bytes <= 64), "{kept:?}");
    assert!(last.iter().all(|&bytes| bytes > 10_000), "{last:?}");
}
