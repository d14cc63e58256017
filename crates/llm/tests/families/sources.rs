//! Models that read a source whole before they write: what the reference computed with them, and what becomes of sources.

use std::io::Cursor;
use std::path::Path;

use oxcart_llm::engine::{AtLimit, Engine, Request};
use oxcart_llm::runner::{Piece, Runner, RunnerOptions, SequenceId, Wanted};
use oxcart_llm::text::SamplerSettings;
use oxcart_tensor::DType;
use tempfile::TempDir;

use super::model_support::{self, remote};
use super::requests::{answers, on_frail_devices};
use super::samples::{self, AFTER_PROMPT, START, Sample};
use super::{Recorded, assert_close, compute, distance, logits, options, runner};

/// Tokens that look random, with a source before the token that answers begin with, if the sample has one.
pub(crate) fn text_of(sample: &Sample, number: usize) -> Vec<u32> {
    let mut tokens = super::text_of(sample.tokens, number);
    if sample.source > 0 {
        let (source, rest) = tokens.split_at_mut(sample.source);
        source.iter_mut().filter(|token| **token == START).for_each(|token| *token = START + 1);
        rest[0] = START;
    }
    tokens
}

fn each(check: impl Fn(&Sample, &Path)) {
    let folder = TempDir::new().unwrap();
    for sample in samples::sourced() {
        check(&sample, &sample.write(folder.path()));
    }
}

#[test]
fn models_with_sources_compute_what_the_reference_does() {
    let recorded = Recorded::read();
    each(|sample, path| {
        let expected = recorded.rows(sample);
        // The last one has small caches, which are what people get.
        for (devices, cache_type, tolerance) in
            [(1, DType::F32, 1e-3), (2, DType::F32, 1e-3), (3, DType::F32, 1e-3), (1, DType::F16, 5e-3)]
        {
            let options = RunnerOptions { cache_type, ..options() };
            let found = logits(&mut runner(path, devices, options), &text_of(sample, 0));
            let found = [0, 1, AFTER_PROMPT].map(|at| found[at].clone());
            assert_close(sample.name, &expected, &found, tolerance);
        }
    });
}

/// Three sequences, each with a source of its own and of another length, in the same steps; what follows a source is cut anywhere.
#[test]
fn each_sequence_looks_at_its_own_source() {
    each(|sample, path| {
        let texts = [0, 1, 2].map(|number| text_of(sample, number)[number * 5..].to_vec());
        let alone = texts.each_ref().map(|tokens| logits(&mut runner(path, 1, options()), tokens));
        assert!(distance(&alone[0][0], &alone[1][0]) > 1e-2);
        let mut runner = runner(path, 1, options());
        let ids = texts.each_ref().map(|_| runner.open().unwrap());
        let mut done = [0; 3];
        // A source with what follows it, then one token of one and some of another, then what is left up to the last token.
        for cut in [[30, 0, 0], [31, 27, 0], [33, 28, 20], [39, 34, 29], [40, 35, 30]] {
            let part = |at: usize| Piece {
                sequence: ids[at],
                tokens: &texts[at][done[at]..cut[at]],
                wanted: Wanted::Last,
            };
            let outputs = runner.compute(&[part(0), part(1), part(2)]).unwrap();
            done = cut;
            if cut == [40, 35, 30] {
                for (at, alone) in alone.iter().enumerate() {
                    assert_close(sample.name, &alone[..1], &[outputs.of(at).row(0).to_vec()], 1e-4);
                }
            }
        }
    });
}

#[test]
fn sources_are_forked_saved_and_restored() {
    each(|sample, path| {
        let mut runner = runner(path, 1, options());
        let tokens = text_of(sample, 0);
        let (prompt, others) = tokens.split_at(sample.prompt());
        let first = runner.open().unwrap();
        compute(&mut runner, first, prompt);
        let fork = runner.fork(first).unwrap();
        let mut file = Vec::new();
        runner.save(first, b"", &mut file).unwrap();
        compute(&mut runner, fork, &[9, 8, 7]);
        let expected = compute(&mut runner, first, others);
        let (restored, _) = runner.restore(Cursor::new(&file)).unwrap();
        let again = compute(&mut runner, restored, others);
        assert_close(sample.name, &[expected], &[again], 1e-4);
    });
}

#[test]
fn a_source_comes_whole_and_is_forgotten_whole() {
    each(|sample, path| {
        let mut runner = runner(path, 1, options());
        let tokens = text_of(sample, 0);
        let sequence = runner.open().unwrap();
        let mut refused = |tokens: &[u32], wanted| {
            let refused = runner.compute(&[Piece { sequence, tokens, wanted }]).unwrap_err().to_string();
            assert!(refused.contains("source"), "{refused}");
            assert!(runner.tokens(sequence).unwrap().is_empty());
        };
        refused(&tokens[..sample.source], Wanted::Last);
        refused(&tokens[sample.source..], Wanted::Last);
        refused(&tokens, Wanted::From(0));
        let whole = compute(&mut runner, sequence, &tokens);
        for position in [1, sample.source] {
            let refused = runner.truncate(sequence, position).unwrap_err().to_string();
            assert!(refused.contains("a source is read whole"), "{refused}");
        }
        runner.truncate(sequence, sample.source + 1).unwrap();
        let again = compute(&mut runner, sequence, &tokens[sample.source + 1..]);
        assert_close(sample.name, &[whole], &[again], 1e-4);
        assert_eq!(runner.reusable(0, &tokens), 0);
        assert!(runner.forget(sequence, 0, 0, true).is_ok());
        runner.truncate(sequence, 0).unwrap();
        let long: Vec<u32> = tokens.iter().chain([5; 30].iter()).copied().collect();
        compute(&mut runner, sequence, &long);
        let refused = runner.forget(sequence, 0, 64, false).unwrap_err().to_string();
        assert_eq!(refused, "t5 models cannot forget part of a text");
    });
    each(|_, path| {
        let (model, streams) = model_support::load(path, 1);
        let quantized = RunnerOptions { cache_type: DType::Q8_0, ..options() };
        assert!(Runner::new(model, streams, quantized).is_err());
    });
}

/// Half of a model on each of two workers, over sockets.
#[test]
fn workers_read_sources() {
    let (_workers, endpoints) = remote::workers(2);
    each(|sample, path| {
        let (model, streams) = remote::load(path, &remote::connect(&endpoints));
        let found = logits(&mut Runner::new(model, streams, options()).unwrap(), &text_of(sample, 0));
        assert_close(sample.name, &logits(&mut runner(path, 1, options()), &text_of(sample, 0)), &found, 0.0);
    });
}

fn greedy(sample: &Sample, number: usize) -> Request {
    let sampler = SamplerSettings { temperature: 0.0, ..SamplerSettings::default() };
    let prompt = text_of(sample, number)[number * 3..sample.source].to_vec();
    let at_limit = AtLimit::Shift { keep: 0, exact: true };
    Request { sampler, limit: 20, ignore_end: true, at_limit, ..Request::new(prompt) }
}

/// What a runner alone writes after a source.
fn written(path: &Path, sample: &Sample, number: usize) -> Vec<u32> {
    let mut runner = runner(path, 1, options());
    let sequence: SequenceId = runner.open().unwrap();
    let mut tokens = greedy(sample, number).prompt;
    tokens.push(START);
    let mut answer = Vec::new();
    for _ in 0..20 {
        let row = compute(&mut runner, sequence, &tokens);
        let best = (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as u32;
        answer.push(best);
        tokens = vec![best];
    }
    answer
}

/// A prompt is a source, whether requests come one by one or together, and whichever device is lost on the way.
#[test]
fn requests_give_sources() {
    each(|sample, path| {
        let expected: Vec<Vec<u32>> = (0..3).map(|number| written(path, sample, number)).collect();
        let requests = || (0..3).map(|number| greedy(sample, number)).collect();
        let tokens = |engine: &mut Engine| -> Vec<Vec<u32>> {
            answers(engine, requests()).into_iter().map(|(tokens, _)| tokens).collect()
        };
        let (mut whole, frail) = on_frail_devices(path);
        let before = frail.each_ref().map(|device| device.calls());
        assert_eq!(tokens(&mut whole), expected, "{}", sample.name);
        for at in 0..2 {
            let calls = frail[at].calls() - before[at];
            let (mut engine, frail) = on_frail_devices(path);
            frail[at].lose_after(calls / 2);
            assert_eq!(tokens(&mut engine), expected, "{}: device {at} lost", sample.name);
            assert_eq!(engine.runner().epoch(), 1);
        }
        // Once more, from where the first one was: only the last token that was chosen is computed again.
        let again = answers(&mut whole, vec![greedy(sample, 2)]).remove(0);
        assert_eq!(again.0, expected[2], "{}", sample.name);
    });
}
