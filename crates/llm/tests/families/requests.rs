//! Requests to an engine, whatever its model remembers.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use oxcart_backend::{Device, StreamOptions};
use oxcart_cpu::CpuDevice;
use oxcart_llm::engine::{AtLimit, Engine, EngineOptions, Event, Request};
use oxcart_llm::model::{Model, ModelFile, PlacementOptions, Proportions};
use oxcart_llm::runner::{Lineup, Runner, RunnerOptions};
use oxcart_llm::text::{SamplerSettings, Vocab};
use oxcart_tensor::DType;
use oxcart_testdev::FrailDevice;

use super::samples::VOCABULARY;
use super::{each, model_support, together};

fn engine(path: &Path, options: RunnerOptions) -> Engine {
    let (model, streams) = model_support::load(path, 1);
    let vocab = Arc::new(Vocab::from_gguf(&ModelFile::open(path).unwrap().metadata()).unwrap());
    let options = RunnerOptions { context: 128, cache_type: DType::F32, ..options };
    Engine::new(Runner::new(model, streams, options).unwrap(), vocab, EngineOptions::default())
}

/// Some prompts are longer than a page, some begin like others.
fn request(number: usize) -> Request {
    let length = 3 + number * 29 % 80;
    let token = |at: usize| (at * at + at * (number % 3) * 5 + 1) % VOCABULARY;
    let prompt = (0..length).map(|at| token(at) as u32).collect();
    let sampler = SamplerSettings { seed: number as u64, ..SamplerSettings::default() };
    let at_limit = AtLimit::Shift { keep: 0, exact: true };
    Request { sampler, limit: 5 + number * 13 % 70, ignore_end: true, at_limit, ..Request::new(prompt) }
}

/// The tokens of all answers, and how many tokens of each prompt were there already.
pub(crate) fn answers(engine: &mut Engine, requests: Vec<Request>) -> Vec<(Vec<u32>, usize)> {
    let mut order = BTreeMap::new();
    let mut answers = vec![(Vec::new(), 0); requests.len()];
    for (index, request) in requests.into_iter().enumerate() {
        order.insert(engine.submit(request).unwrap(), index);
        if index % 3 == 0 {
            engine.step().unwrap();
        }
    }
    while engine.is_busy() {
        engine.step().unwrap();
    }
    while let Some(event) = engine.next_event() {
        // News of devices is about none of them.
        let Some(request) = event.request() else { continue };
        let answer = &mut answers[order[&request]];
        match event {
            Event::Token(token) => answer.0.push(token.token),
            Event::Finished { report, .. } => answer.1 = report.reused_tokens,
            event => panic!("{event:?}"),
        }
    }
    answers
}

/// With room for all of them, and with room for little more than one, so that some make way and are computed again.
#[test]
fn requests_are_answered_as_if_they_were_alone() {
    each(|sample, path| {
        // What is drawn at random may depend on the last digits.
        if together::looks_through_masks(model_support::load(path, 1).0.hyper()) {
            return;
        }
        let alone = |number| {
            let mut engine = engine(path, RunnerOptions { sequences: 1, ..RunnerOptions::default() });
            answers(&mut engine, vec![request(number)]).remove(0).0
        };
        let expected: Vec<Vec<u32>> = (0..8).map(alone).collect();
        for (sequences, tokens) in [(4, 0), (8, 192)] {
            let mut engine = engine(path, RunnerOptions { sequences, tokens, ..RunnerOptions::default() });
            let found = answers(&mut engine, (0..8).map(request).collect());
            for (number, (found, _)) in found.iter().enumerate() {
                assert_eq!(*found, expected[number], "{}: request {number} of {sequences}", sample.name);
            }
        }
    });
}

/// Blocks that remember all tokens together compute several tokens of one sequence alone, so prompts take turns.
#[test]
fn short_prompts_and_long_ones_take_turns() {
    let folder = tempfile::TempDir::new().unwrap();
    let sample = super::samples::all().into_iter().find(|sample| sample.name == "mamba2").unwrap();
    let path = sample.write(folder.path());
    let (model, streams) = model_support::load(&path, 1);
    let vocab = Arc::new(Vocab::from_gguf(&ModelFile::open(&path).unwrap().metadata()).unwrap());
    let options = RunnerOptions { context: 2048, sequences: 4, ..RunnerOptions::default() };
    let settings = EngineOptions { prompt_tokens_beside: 32, ..EngineOptions::default() };
    let mut engine = Engine::new(Runner::new(model, streams, options).unwrap(), vocab, settings);
    let ask = |length: u32, limit| {
        let prompt = (0..length).map(|at| at % VOCABULARY as u32).collect();
        Request { limit, ignore_end: true, ..Request::new(prompt) }
    };
    engine.submit(ask(1, 200)).unwrap();
    let long = engine.submit(ask(1000, 1)).unwrap();
    engine.step().unwrap();
    let (mut shorts, mut steps) = (0, 1);
    while shorts < 5 {
        let short = engine.submit(ask(20, 1)).unwrap();
        let told = (0..2).any(|_| {
            engine.step().unwrap();
            steps += 1;
            std::iter::from_fn(|| engine.next_event()).any(|event| event.request() == Some(short))
        });
        assert!(told, "a short prompt has waited for more than two steps");
        shorts += 1;
    }
    while !std::iter::from_fn(|| engine.next_event()).any(|event| event.request() == Some(long)) {
        engine.step().unwrap();
        steps += 1;
    }
    assert!(steps <= 1000 / 32 + 1 + 2 * shorts, "{steps} steps");
}

/// The next message of a conversation goes on where the last answer ended; one that differs in the middle begins anew where
/// blocks remember all tokens together.
#[test]
fn conversations_go_on() {
    each(|sample, path| {
        let mut engine = engine(path, RunnerOptions { sequences: 3, ..RunnerOptions::default() });
        let recurrent = engine.runner().model().hyper().is_recurrent();
        let greedy = |prompt: Vec<u32>| Request {
            sampler: SamplerSettings::greedy(),
            limit: 4,
            ignore_end: true,
            ..Request::new(prompt)
        };
        let mut tokens: Vec<u32> = (0..20).collect();
        let (answer, reused) = answers(&mut engine, vec![greedy(tokens.clone())]).remove(0);
        assert_eq!(reused, 0, "{}", sample.name);
        tokens.extend(answer);
        tokens.extend([7, 8, 9]);
        let (_, reused) = answers(&mut engine, vec![greedy(tokens.clone())]).remove(0);
        // All but the last token of the answer, which was chosen and not computed.
        assert_eq!(reused, 23, "{}", sample.name);
        tokens[10] = 31;
        let (found, reused) = answers(&mut engine, vec![greedy(tokens.clone())]).remove(0);
        assert_eq!(reused, if recurrent { 0 } else { 10 }, "{}", sample.name);
        engine.forget_parked();
        assert_eq!(answers(&mut engine, vec![greedy(tokens)]).remove(0).0, found, "{}", sample.name);
    });
}

/// An engine on two devices that can be lost, beside one that cannot.
pub(super) fn on_frail_devices(path: &Path) -> (Engine, [Arc<FrailDevice>; 2]) {
    let frail = ["first", "second"].map(|name| FrailDevice::new(name, CpuDevice::new().unwrap(), 1 << 30));
    let mut devices: Vec<Arc<dyn Device>> =
        frail.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect();
    devices.push(CpuDevice::new().unwrap());
    let runner =
        RunnerOptions { context: 128, sequences: 3, cache_type: DType::F32, ..RunnerOptions::default() };
    let proportions = Proportions::Ratios(vec![1.0, 1.0, 0.0]);
    let options = PlacementOptions { proportions, runner, ..PlacementOptions::default() };
    let lineup = Lineup::new(devices, options, StreamOptions::threads(1));
    let file = ModelFile::open(path).unwrap();
    let vocab = Arc::new(Vocab::from_gguf(&file.metadata()).unwrap());
    let placement = lineup.place(&file).unwrap();
    let model = Model::load(file, placement, &|_| {}).unwrap();
    let mut engine = Engine::new(lineup.runner(model).unwrap(), vocab, EngineOptions::default());
    engine.recover_with(lineup);
    (engine, frail)
}

/// One of two devices is lost early, in the middle and late: what it held is computed again elsewhere, whatever the model remembers.
#[test]
fn requests_are_answered_as_if_no_device_was_lost() {
    let tokens = |engine: &mut Engine| -> Vec<Vec<u32>> {
        answers(engine, (0..4).map(request).collect()).into_iter().map(|(tokens, _)| tokens).collect()
    };
    each(|sample, path| {
        let (mut engine, frail) = on_frail_devices(path);
        // What is drawn at random may depend on the last digits.
        if together::looks_through_masks(engine.runner().model().hyper()) {
            return;
        }
        let before = frail.each_ref().map(|device| device.calls());
        let expected = tokens(&mut engine);
        for at in 0..2 {
            let calls = frail[at].calls() - before[at];
            for part in [2, 5, 9] {
                let (mut engine, frail) = on_frail_devices(path);
                frail[at].lose_after(calls * part / 10);
                let found = tokens(&mut engine);
                let what = format!("{}: device {at} lost after {part} tenths of {calls} calls", sample.name);
                assert_eq!(found, expected, "{what}");
                assert_eq!(engine.runner().epoch(), 1, "{what}");
            }
        }
    });
}
