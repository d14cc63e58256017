//! A tiny model of every family: what the reference computed with it, and what must hold whatever it computes.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../model_support/mod.rs"]
mod model_support;
mod requests;
mod samples;
mod sources;

use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use model_support::{remote, together};
use oxcart_llm::model::Pooling;
use oxcart_llm::runner::{Encoder, EncoderOptions, Piece, Runner, RunnerOptions, SequenceId, Wanted};
use oxcart_tensor::DType;
use samples::{AFTER_PROMPT, Sample, TOKENS, VOCABULARY};
use serde_json::Value;
use tempfile::TempDir;

const PROMPT: usize = TOKENS - AFTER_PROMPT;

fn options() -> RunnerOptions {
    RunnerOptions { context: 512, sequences: 4, cache_type: DType::F32, ..RunnerOptions::default() }
}

fn runner(path: &Path, devices: usize, options: RunnerOptions) -> Runner {
    let (model, streams) = model_support::load(path, devices);
    Runner::new(model, streams, options).unwrap()
}

/// Tokens that look random.
fn text(number: usize) -> Vec<u32> {
    text_of(TOKENS, number)
}

/// Runs of tokens that come again would be as good as each other to an index, so later ones follow no pattern.
fn text_of(tokens: usize, number: usize) -> Vec<u32> {
    let first = |at: usize| (at * at * 7 + at * 3 + number * 11 + 5) % VOCABULARY;
    let later = |at: usize| {
        let hash = ((at + 1000 * number) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ((hash ^ hash >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 40) as usize % VOCABULARY
    };
    let token = |at| if at < TOKENS { first(at) } else { later(at) };
    (0..tokens).map(|at| token(at) as u32).collect()
}

/// How far results may be apart that are the same but for where sequences lie.
fn slack(runner: &Runner) -> f32 {
    if together::looks_through_masks(runner.model().hyper()) { 1e-4 } else { 0.0 }
}

fn compute(runner: &mut Runner, sequence: SequenceId, tokens: &[u32]) -> Vec<f32> {
    let outputs = runner.compute(&[Piece { sequence, tokens, wanted: Wanted::Last }]).unwrap();
    outputs.of(0).row(0).to_vec()
}

/// Logits after the prompt and after each token that follows.
fn logits(runner: &mut Runner, tokens: &[u32]) -> Vec<Vec<f32>> {
    let sequence = runner.open().unwrap();
    let (prompt, others) = tokens.split_at(tokens.len() - AFTER_PROMPT);
    let rows = std::iter::once(prompt).chain(others.chunks(1));
    let rows = rows.map(|tokens| compute(runner, sequence, tokens)).collect();
    runner.close(sequence).unwrap();
    rows
}

/// The largest difference of two rows, as a part of the largest number of the first.
fn distance(expected: &[f32], found: &[f32]) -> f32 {
    let largest = expected.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
    let off = expected.iter().zip(found).map(|(a, b)| (a - b).abs());
    off.fold(0.0, |worst: f32, d| if d.is_nan() { d } else { worst.max(d) }) / largest
}

#[track_caller]
fn assert_close(what: &str, expected: &[Vec<f32>], found: &[Vec<f32>], tolerance: f32) {
    assert_eq!(expected.len(), found.len(), "{what}");
    for (index, (expected, found)) in expected.iter().zip(found).enumerate() {
        let off = distance(expected, found);
        assert!(off <= tolerance, "{what}: row {index} is off by {off:.1e}");
    }
}

fn each(check: impl Fn(&Sample, &Path)) {
    let folder = TempDir::new().unwrap();
    for sample in samples::all() {
        check(&sample, &sample.write(folder.path()));
    }
}

/// What the reference computed, by sample.
struct Recorded(Value);

impl Recorded {
    fn read() -> Recorded {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/families.json");
        Recorded(serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap())
    }

    fn rows(&self, sample: &Sample) -> Vec<Vec<f32>> {
        let rows =
            self.0[sample.name].as_array().unwrap_or_else(|| panic!("{} is not recorded", sample.name));
        let row = |row: &Value| row.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect();
        rows.iter().map(row).collect()
    }
}

/// Of the first, the second and the last token; or one row for the whole text. Wherever the parts of the model are.
#[test]
fn encoders_compute_what_the_reference_does() {
    let (recorded, folder) = (Recorded::read(), TempDir::new().unwrap());
    for sample in samples::encoders() {
        let (path, expected) = (sample.write(folder.path()), recorded.rows(&sample));
        for devices in [1, 2] {
            let (model, streams) = model_support::load(&path, devices);
            let mut encoder =
                Encoder::new(model, streams, EncoderOptions { pooling: sample.pooling }).unwrap();
            let tokens = text(0);
            let found = match sample.pooling {
                Some(Pooling::Rank) => encoder.rank(&tokens).unwrap(),
                _ => encoder.embed(&tokens).unwrap(),
            };
            let rows: Vec<Vec<f32>> = found.chunks(expected[0].len()).map(<[f32]>::to_vec).collect();
            let compared: Vec<Vec<f32>> = match expected.len() {
                1 => rows,
                _ => [0, 1, TOKENS - 1].map(|at| rows[at].clone()).to_vec(),
            };
            assert_close(sample.name, &expected, &compared, 1e-3);
        }
    }
}

/// The recorded logits: after the prompt, after the first and after the last of the tokens that follow.
#[test]
fn every_family_computes_what_the_reference_does() {
    let recorded = Recorded::read();
    each(|sample, path| {
        let expected = recorded.rows(sample);
        let found = logits(&mut runner(path, 1, options()), &text_of(sample.tokens, 0));
        let found = [0, 1, AFTER_PROMPT].map(|at| found[at].clone());
        // The reference's flash attention rounds more; another choice of tokens would be off by much more.
        let tolerance = if sample.flash { 5e-3 } else { 1e-3 };
        for &row in sample.compared {
            assert_close(sample.name, &expected[row..=row], &found[row..=row], tolerance);
        }
    });
}

#[test]
#[ignore = "tools/archs.sh --record has the reference compute them"]
fn samples_are_written() {
    let folder = PathBuf::from(std::env::var("OXCART_ARCHS").unwrap());
    for sample in samples::all().into_iter().chain(samples::encoders()).chain(samples::sourced()) {
        let path = sample.write(&folder);
        let numbers: Vec<String> = sources::text_of(&sample, 0).iter().map(u32::to_string).collect();
        let pooling = sample.pooling.map_or(String::new(), |pooling| format!("{pooling:?}").to_lowercase());
        let (prompt, flash) = (sample.prompt(), u8::from(sample.flash));
        let lines = format!("{prompt}\n{}\n{flash}\n{pooling}\n{}\n", numbers.join(","), sample.source);
        std::fs::write(path.with_extension("txt"), lines).unwrap();
    }
}

#[test]
fn cuts_and_neighbours_change_nothing() {
    each(|_, path| together::check(path, together::Count { of_all: 6, scalar: 3 }, DType::F32, 3));
}

/// A step that fails when the first of two blocks is done leaves nothing half remembered.
#[test]
fn a_step_that_fails_leaves_nothing_half_done() {
    each(|sample, path| {
        // The last device is where tokens become embeddings.
        let (model, streams) = model_support::try_load(path, vec![1.0, 1.0, 0.0]).unwrap();
        let stop = streams[1].cancel_flag().unwrap();
        let mut runner = Runner::new(model, streams, options()).unwrap();
        let texts = [text(0), text(1)];
        let ids = texts.each_ref().map(|tokens| {
            let sequence = runner.open().unwrap();
            compute(&mut runner, sequence, &tokens[..PROMPT]);
            sequence
        });
        let piece =
            |at: usize| Piece { sequence: ids[at], tokens: &texts[at][PROMPT..], wanted: Wanted::Last };
        stop.store(true, Ordering::Relaxed);
        assert!(runner.compute(&[piece(0), piece(1)]).is_err());
        stop.store(false, Ordering::Relaxed);
        for (sequence, tokens) in ids.into_iter().zip(&texts) {
            let held = runner.tokens(sequence).unwrap().len();
            assert!(held == 0 || held == PROMPT, "{}: {held} tokens", sample.name);
            let found = compute(&mut runner, sequence, &tokens[held..]);
            let fresh = runner.open().unwrap();
            let cuts = [&tokens[..held], &tokens[held..]];
            let rows =
                cuts.into_iter().filter(|cut| !cut.is_empty()).map(|cut| compute(&mut runner, fresh, cut));
            let what = format!("{}: {held} tokens were held", sample.name);
            let (last, slack) = (rows.last().unwrap(), slack(&runner));
            assert_close(&what, &[last], &[found], slack);
        }
    });
}

/// What a sequence remembers goes with it: to a fork, to a file and back, and not to the next sequence in its row.
#[test]
fn states_are_forked_saved_and_restored() {
    each(|sample, path| {
        let mut runner = runner(path, 1, options());
        let (tokens, other) = (text(0), text(1));
        let first = runner.open().unwrap();
        compute(&mut runner, first, &tokens[..PROMPT]);
        let fork = runner.fork(first).unwrap();
        let mut file = Vec::new();
        runner.save(first, b"extra", &mut file).unwrap();
        // The fork goes another way, and what it remembers is its own.
        let otherwise = compute(&mut runner, fork, &other[..3]);
        let expected = compute(&mut runner, first, &tokens[PROMPT..]);
        assert!(distance(&expected, &otherwise) > 1e-3, "{}", sample.name);
        let (restored, extra) = runner.restore(Cursor::new(&file)).unwrap();
        assert_eq!(extra, b"extra");
        let again = compute(&mut runner, restored, &tokens[PROMPT..]);
        let what = format!("{}: a restored sequence goes on as it would have", sample.name);
        assert_close(&what, &[expected], &[again], slack(&runner));
        for id in [first, fork, restored] {
            runner.close(id).unwrap();
        }
        let fresh = logits(&mut runner, &tokens);
        let slack = slack(&runner);
        assert_close(sample.name, &logits(&mut self::runner(path, 1, options()), &tokens), &fresh, slack);
    });
}

/// A sequence goes back to any position, or says that it cannot and is as it was; to its beginning it always can.
#[test]
fn what_cannot_be_forgotten_in_part_is_forgotten_whole() {
    each(|sample, path| {
        let mut runner = runner(path, 1, options());
        let recurrent = runner.model().hyper().is_recurrent();
        let tokens = text(0);
        let sequence = runner.open().unwrap();
        compute(&mut runner, sequence, &tokens[..PROMPT]);
        let refused = runner.truncate(sequence, 10);
        assert_eq!(refused.is_err(), recurrent, "{}: {refused:?}", sample.name);
        let kept = if recurrent { PROMPT } else { 10 };
        assert_eq!(runner.tokens(sequence).unwrap(), &tokens[..kept]);
        let gone_on = compute(&mut runner, sequence, &tokens[kept..]);
        runner.truncate(sequence, 0).unwrap();
        let whole = compute(&mut runner, sequence, &tokens);
        assert!(distance(&whole, &gone_on) <= 1e-5, "{}", sample.name);
    });
}

/// Half of a model on each of two workers, over sockets.
#[test]
fn workers_compute_every_family() {
    let (_workers, endpoints) = remote::workers(2);
    each(|sample, path| {
        let (model, streams) = remote::load(path, &remote::connect(&endpoints));
        let found = logits(&mut Runner::new(model, streams, options()).unwrap(), &text(0));
        assert_close(sample.name, &logits(&mut runner(path, 1, options()), &text(0)), &found, 0.0);
    });
}

/// A model that fills in text sees what comes after a token, wherever its parts are, and does nothing else.
#[test]
fn models_that_fill_in_see_a_text_whole() {
    let folder = TempDir::new().unwrap();
    let path = samples::filling_in().write(folder.path());
    let encoder = |devices| {
        let (model, streams) = model_support::load(&path, devices);
        Encoder::new(model, streams, EncoderOptions::default()).unwrap()
    };
    let (mut alone, tokens) = (encoder(1), text(0));
    let rows = alone.logits(&tokens).unwrap().to_vec();
    assert_eq!(rows.len(), TOKENS * VOCABULARY);
    assert_eq!(rows, encoder(2).logits(&tokens).unwrap());
    let mut other = tokens.clone();
    other[TOKENS - 1] = (other[TOKENS - 1] + 1) % VOCABULARY as u32;
    assert_ne!(rows[..VOCABULARY], alone.logits(&other).unwrap()[..VOCABULARY]);
    let refused = alone.embed(&tokens).unwrap_err();
    assert_eq!(refused.to_string(), "llada models cannot make embeddings");
    let (model, streams) = model_support::load(&path, 1);
    let refused = Runner::new(model, streams, options()).unwrap_err();
    assert_eq!(refused.to_string(), "llada models cannot continue text; they see it whole");
}

/// Single tokens of a changing number of sequences, and prompts of all lengths, need few graphs.
#[test]
fn recurrent_models_have_few_graphs() {
    let folder = TempDir::new().unwrap();
    let sample = samples::all().into_iter().find(|sample| sample.name == "mamba2").unwrap();
    let options = RunnerOptions { context: 1024, sequences: 64, ..options() };
    let mut runner = runner(&sample.write(folder.path()), 1, options);
    let tokens: Vec<u32> = (0..1000).map(|at| at % VOCABULARY as u32).collect();
    for length in (33..1000).step_by(41) {
        let sequence = runner.open().unwrap();
        compute(&mut runner, sequence, &tokens[..length]);
        runner.close(sequence).unwrap();
    }
    // Whole sizes, eight for each power of two, and what is left over.
    assert!(runner.usage().graphs <= 8 * 4 + 32, "{}", runner.usage().graphs);
}
