//! Recorded models over workers: two that this test starts, or those that `OXCART_WORKERS` names (`host:port,host:port`),
//! which may be llama.cpp's.
//!
//! Needs the recorded data (`OXCART_GOLDEN`); says so and stops where it is not given. What is waited for is counted with the
//! small model that is always there.
#![allow(clippy::print_stderr, clippy::unwrap_used, reason = "tests")]

mod model_support;

use std::path::Path;
use std::sync::Arc;

use model_support::{Golden, Loaded, PLAINEST, Way, decode, decode_on, judge, load, remote};
use oxcart_llm::engine::{Engine, EngineOptions, Event, Request, Speculation};
use oxcart_llm::runner::{AttentionChoice, Piece, Runner, RunnerOptions, Wanted};
use oxcart_llm::text::{Dry, LookupSettings, Mirostat, SamplerSettings, Vocab};
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

/// Tokens of an answer with their probabilities and those of the likeliest.
type Answer = Vec<(u32, Option<f32>, Vec<(u32, f32)>)>;

/// Tokens of an answer after which its traffic is counted, and up to which.
const COUNTED: std::ops::Range<usize> = 4..36;

/// An answer, and what a function counts in the course of it, per token.
fn answer(
    engine: &mut Engine,
    settings: &SamplerSettings,
    count: impl Fn() -> [u64; 2],
) -> (Answer, [f64; 2]) {
    // Words that come again, so that there is something to guess and to penalize.
    let prompt: Vec<u32> = (0..60).map(|at| at % 7 * 11 + at / 30).collect();
    let request =
        Request { sampler: settings.clone(), limit: COUNTED.end, ignore_end: true, ..Request::new(prompt) };
    engine.submit(request).unwrap();
    let (mut tokens, mut begin) = (Vec::new(), None);
    while engine.is_busy() {
        if tokens.len() >= COUNTED.start {
            begin.get_or_insert_with(|| (tokens.len(), count()));
        }
        engine.step().unwrap();
        while let Some(event) = engine.next_event() {
            match event {
                Event::Token(token) => tokens.push((token.token, token.logprob, token.alternatives)),
                Event::Finished { .. } => {}
                event => panic!("{event:?}"),
            }
        }
    }
    let (first, before) = begin.unwrap();
    let steps = (tokens.len() - first) as f64;
    let after = count();
    (tokens, [0, 1].map(|at| (after[at] - before[at]) as f64 / steps))
}

/// Settings, and whether the largest logits are enough for them.
fn settings() -> Vec<(SamplerSettings, bool)> {
    let usual = || SamplerSettings { seed: 5, ..SamplerSettings::default() };
    let wide = SamplerSettings { temperature: 1.5, top_p: 1.0, min_p: 0.0, ..usual() };
    vec![
        (SamplerSettings::greedy(), true),
        (usual(), true),
        (wide.clone(), true),
        (SamplerSettings { top_k: 0, min_p: 0.9, ..wide.clone() }, true),
        (SamplerSettings { repeat_penalty: 1.3, penalty_window: 16, ..wide.clone() }, true),
        (SamplerSettings { presence_penalty: 2.0, penalty_window: 16, ..SamplerSettings::greedy() }, true),
        (wide.clone().ban(&[3, 5, 8]), true),
        (SamplerSettings { logprobs: Some(3), ..usual() }, false),
        (SamplerSettings { top_k: 0, ..wide.clone() }, false),
        (SamplerSettings { top_k: 150, ..wide.clone() }, false),
        // There is no bound that the largest could meet.
        (SamplerSettings { top_k: 0, min_p: f32::MIN_POSITIVE, ..wide.clone() }, false),
        (SamplerSettings { mirostat: Some(Mirostat::default()), ..usual() }, false),
        (SamplerSettings { dry: Some(Dry::default()), ..usual() }, false),
        (SamplerSettings { logit_bias: vec![(9, 2.0)], ..usual() }, false),
    ]
}

fn engine((model, streams): Loaded, attention: AttentionChoice, is_guessing: bool) -> Engine {
    let vocab = Arc::new(Vocab::from_gguf(&model.file().metadata()).unwrap());
    let options = RunnerOptions { context: 256, attention, ..RunnerOptions::default() };
    let runner = Runner::new(model, streams, options).unwrap();
    let mut engine = Engine::new(runner, vocab, EngineOptions::default());
    if is_guessing {
        engine.speculate(Speculation::Lookup(LookupSettings::default()));
    }
    engine
}

/// Compares answers over so many workers, of our make or another, with those without, and what is received for each token with what has
/// to be.
fn compare(
    path: &Path,
    count: usize,
    is_stock: bool,
    is_guessing: bool,
    settings: &[(SamplerSettings, bool)],
) {
    // Attention is what workers of another make have, so that last digits are equal, too.
    let (choice, attention) = match is_stock {
        true => (DialectChoice::Fixed(Dialect::newest()), AttentionChoice::Flash),
        false => (DialectChoice::Auto, AttentionChoice::Auto),
    };
    let (_workers, endpoints) = remote::workers_speaking(count, choice);
    let registries = remote::connect(&endpoints);
    let traffic = || {
        let totals = registries.iter().map(|registry| registry.traffic().total());
        totals.fold([0, 0], |[bytes, waits], one| [bytes + one.bytes_received, waits + one.waits])
    };
    let mut here = engine(load(path, 1), attention, is_guessing);
    let mut there = engine(remote::load(path, &registries), attention, is_guessing);
    let all = (4 * there.vocab().len()) as f64;
    for (settings, is_enough) in settings {
        let (expected, _) = answer(&mut here, settings, || [0, 0]);
        let (found, [bytes, trips]) = answer(&mut there, settings, traffic);
        let make = if is_stock { "another make" } else { "our make" };
        let what = format!("{bytes} bytes in {trips} trips per token, workers: {count} of {make}");
        eprintln!("{what}");
        assert_eq!(found, expected, "{what}: {settings:?}");
        if is_guessing {
            continue;
        }
        match *is_enough && !is_stock {
            true => assert!(bytes < 600.0 && trips <= 1.1, "{what}: {settings:?}"),
            // The few steps in which the largest turned out to be too few cost a trip more.
            false => assert!(bytes >= all && trips <= 1.3, "{what}: {settings:?}"),
        }
    }
}

/// Where the sampler needs no more, the largest logits come from the last worker, and not all of them; tokens and probabilities are the
/// same as without workers. Workers of another make send all.
#[test]
fn what_samplers_need_is_all_that_is_sent() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/data/tiny.gguf");
    for (count, is_stock, is_guessing) in
        [(1, false, false), (2, false, false), (1, false, true), (1, true, false)]
    {
        compare(&path, count, is_stock, is_guessing, &settings());
    }
}

/// The same for a vocabulary of 49,152 tokens.
#[test]
fn what_is_sent_does_not_grow_with_the_vocabulary() {
    let Some(path) = oxcart_fixtures::smollm2() else { return };
    compare(&path, 1, false, false, &settings()[..2]);
}
