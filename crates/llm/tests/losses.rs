//! Devices that are lost at any call, and come back: every answer is, token for token, what it is when nothing happens.
//! `OXCART_LOSSES=N` tries every Nth call; 1 tries all of them.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use oxcart_backend::{ByteSize, Device, StreamOptions};
use oxcart_cpu::CpuDevice;
use oxcart_llm::engine::{
    Draft, End, Engine, EngineOptions, Event, Recover, Recovery, Request, RequestId, Return, Speculation,
};
use oxcart_llm::model::{Error, Model, ModelFile, Override, PlacementOptions, Proportions, Share};
use oxcart_llm::runner::{Lineup, Loss, Piece, Runner, RunnerOptions, Wanted};
use oxcart_llm::text::{Dry, Grammar, LookupSettings, Mirostat, SamplerSettings, Vocab};
use oxcart_testdev::FrailDevice;

const NAMES: [&str; 3] = ["first", "second", "third"];
const ROOM: usize = 1 << 30;

fn stride(usual: usize) -> usize {
    std::env::var("OXCART_LOSSES").map_or(usual, |value| value.parse().unwrap())
}

/// Devices that may be lost, and an engine on them, the host's being the last and without work.
struct Cluster {
    frail: Vec<Arc<FrailDevice>>,
    engine: Engine,
}

fn file() -> ModelFile {
    ModelFile::open(Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/data/tiny.gguf")).unwrap()
}

fn lineup(frail: &[Arc<FrailDevice>], ratios: &[f64], runner: RunnerOptions) -> Lineup {
    let mut devices: Vec<Arc<dyn Device>> = frail.iter().map(|device| Arc::clone(device) as _).collect();
    devices.push(CpuDevice::new().unwrap());
    let proportions = Proportions::Ratios(ratios.to_vec());
    let options = PlacementOptions { proportions, runner, ..PlacementOptions::default() };
    Lineup::new(devices, options, StreamOptions::threads(1))
}

fn devices(count: usize, capacity: usize) -> Vec<Arc<FrailDevice>> {
    let device = |name: &&str| FrailDevice::new(name, CpuDevice::new().unwrap(), capacity);
    NAMES[..count].iter().map(device).collect()
}

fn cluster_on(frail: Vec<Arc<FrailDevice>>, ratios: &[f64], runner: RunnerOptions) -> Cluster {
    let lineup = lineup(&frail, ratios, runner);
    cluster_with(frail, lineup)
}

fn cluster_with(frail: Vec<Arc<FrailDevice>>, lineup: Lineup) -> Cluster {
    let file = file();
    let vocab = Arc::new(Vocab::from_gguf(&file.metadata()).unwrap());
    let placement = lineup.place(&file).unwrap();
    let model = Model::load(file, placement, &|_| {}).unwrap();
    let runner = lineup.runner(model).unwrap();
    let mut engine = Engine::new(runner, vocab, EngineOptions { prompt_tokens_beside: 24, queue: 64 });
    engine.recover_with(lineup);
    Cluster { frail, engine }
}

fn cluster(count: usize) -> Cluster {
    // Two blocks, and what comes after them.
    let mut ratios = [2.0, 2.0, 1.0][..count].to_vec();
    ratios.push(0.0);
    cluster_on(devices(count, ROOM), &ratios, options())
}

fn options() -> RunnerOptions {
    RunnerOptions { context: 256, sequences: 4, batch: 64, ..RunnerOptions::default() }
}

fn prompt(number: u32, length: u32) -> Vec<u32> {
    (0..length).map(|at| (at * at * 3 + at * number + 7 * number) % 300).collect()
}

/// Requests with everything that remembers something from one token to the next.
fn requests(engine: &mut Engine) -> Vec<Request> {
    let seeded = |seed| SamplerSettings { seed, temperature: 1.1, ..SamplerSettings::default() };
    let request = |number: u32, length: u32, sampler| Request {
        sampler,
        limit: 14,
        ignore_end: true,
        ..Request::new(prompt(number, length))
    };
    let said_twice = [prompt(3, 20), prompt(3, 20)].concat();
    let schema = serde_json::json!({
        "type": "object",
        "properties": { "ok": { "type": "boolean" }, "word": { "type": "string", "maxLength": 4 } },
        "required": ["ok", "word"],
        "additionalProperties": false,
    });
    let penalties = SamplerSettings {
        repeat_penalty: 1.3,
        frequency_penalty: 0.4,
        presence_penalty: 0.2,
        dry: Some(Dry::default()),
        ..seeded(2)
    };
    let biased = SamplerSettings { logprobs: Some(3), logit_bias: vec![(5, 2.5), (9, -3.0)], ..seeded(4) };
    vec![
        request(0, 90, SamplerSettings { logprobs: Some(2), ..SamplerSettings::greedy() }),
        request(1, 5, penalties),
        request(2, 30, SamplerSettings { mirostat: Some(Mirostat::default()), ..seeded(3) }),
        Request { prompt: said_twice, ..request(3, 1, SamplerSettings::greedy()) },
        request(4, 70, biased),
        Request {
            constraint: Some(engine.compile(&Grammar::json_schema(schema)).unwrap()),
            limit: 60,
            ignore_end: false,
            ..request(5, 12, seeded(6))
        },
        Request { stop: vec!["e".into(), "th".into()], limit: 40, ..request(6, 9, seeded(7)) },
        Request { prompt: prompt(0, 80), ..request(0, 1, seeded(8)) },
    ]
}

/// A token as it was told of, with the bits of its probability and of the others'.
type Said = (u32, String, Option<u32>, Vec<(u32, u32)>);

/// What was told of a request, but for times and for what was found computed.
#[derive(Clone, Debug, Default, PartialEq)]
struct Answer {
    tokens: Vec<Said>,
    end: Option<(End, String, Option<usize>)>,
}

#[derive(Debug, Default)]
struct Told {
    answers: BTreeMap<RequestId, Answer>,
    losses: Vec<Loss>,
    returns: Vec<Return>,
    recoveries: Vec<Recovery>,
    /// Whether requests wait for what they had before.
    is_interrupted: bool,
}

impl Told {
    fn listen(&mut self, engine: &mut Engine) {
        while let Some(event) = engine.next_event() {
            match event {
                Event::Token(token) => {
                    let answer = self.answers.entry(token.request).or_default();
                    assert!(answer.end.is_none(), "nothing is told of {} after its end", token.request);
                    let bits = token.alternatives.iter().map(|(token, p)| (*token, p.to_bits())).collect();
                    answer.tokens.push((token.token, token.text, token.logprob.map(f32::to_bits), bits));
                }
                Event::Finished { request, end, text, stopped_by, report } => {
                    let answer = self.answers.entry(request).or_default();
                    assert_eq!(report.answer_tokens, answer.tokens.len());
                    assert_eq!(answer.end.replace((end, text, stopped_by)), None, "{request} ends once");
                }
                Event::Lost(loss) => {
                    self.losses.push(loss);
                    self.is_interrupted = true;
                }
                Event::Returned(returned) => {
                    assert!(!self.is_interrupted, "nothing moves before all have gone on");
                    self.returns.push(returned);
                    self.is_interrupted = true;
                }
                Event::Recovered(recovery) => {
                    self.recoveries.push(recovery);
                    self.is_interrupted = false;
                }
                event => panic!("{event:?}"),
            }
        }
    }
}

/// Answers all requests; some come while others are under way.
fn answers(engine: &mut Engine) -> Told {
    answers_while(engine, |_, _| {})
}

/// The same, while something happens before each step.
fn answers_while(engine: &mut Engine, mut happens: impl FnMut(&Engine, &Told)) -> Told {
    let mut told = Told::default();
    for (number, request) in requests(engine).into_iter().enumerate() {
        engine.submit(request).unwrap();
        if number % 3 == 2 {
            engine.step().unwrap();
        }
        told.listen(engine);
    }
    let mut steps = 0;
    while engine.is_busy() {
        happens(engine, &told);
        engine.step().unwrap();
        told.listen(engine);
        steps += 1;
        assert!(steps < 2000, "it comes to an end");
    }
    // What is told at the end of the last step, and of interruptions that ended with the last request.
    engine.step().unwrap();
    told.listen(engine);
    told
}

fn guessing(engine: &mut Engine) {
    let settings = LookupSettings { token_cost: 0.05, waste: 0.5, ..LookupSettings::default() };
    engine.speculate(Speculation::Lookup(settings));
}

/// The answers when nothing happens, and how many calls each device gets.
fn undisturbed(count: usize) -> (Told, Vec<usize>) {
    let mut cluster = cluster(count);
    guessing(&mut cluster.engine);
    let before: Vec<usize> = cluster.frail.iter().map(|device| device.calls()).collect();
    let told = answers(&mut cluster.engine);
    assert!(told.losses.is_empty() && told.recoveries.is_empty());
    assert_eq!(told.answers.len(), 8);
    assert!(told.answers.values().all(|answer| answer.end.is_some()));
    let calls = cluster.frail.iter().zip(before).map(|(device, before)| device.calls() - before);
    (told, calls.collect())
}

#[track_caller]
fn assert_same(what: &str, expected: &Told, found: &Told) {
    for (id, expected) in &expected.answers {
        assert_eq!(found.answers.get(id), Some(expected), "{what}: {id}");
    }
    assert_eq!(found.answers.len(), expected.answers.len(), "{what}");
}

#[test]
fn a_device_may_be_lost_at_any_call() {
    for count in [2, 3] {
        let (expected, calls) = undisturbed(count);
        for (at, &calls) in calls.iter().enumerate() {
            assert!(calls > 100, "{calls} calls of device {at}");
            for call in (0..calls).step_by(stride(9)) {
                let what = format!("device {at} of {count}, lost after {call} calls of {calls}");
                let mut cluster = cluster(count);
                guessing(&mut cluster.engine);
                cluster.frail[at].lose_after(call);
                let told = answers(&mut cluster.engine);
                assert_same(&what, &expected, &told);
                let lost: Vec<(&str, u64)> =
                    told.losses.iter().map(|loss| (loss.device.as_str(), loss.epoch)).collect();
                assert_eq!(lost, [(NAMES[at], 0)], "{what}");
                assert_eq!(told.recoveries.len(), 1, "{what}");
                assert_eq!((told.recoveries[0].epoch, cluster.engine.runner().epoch()), (1, 1), "{what}");
                assert_eq!(cluster.frail[at].allocated_bytes(), 0, "{what}: nothing of it is kept");
            }
        }
    }
}

/// Where something moves to or from a device that promises nothing, the event says that last digits may have changed.
#[test]
fn a_recovery_says_whether_last_digits_may_change() {
    for (vague, is_changed) in [(None, false), (Some(0), true), (Some(1), true)] {
        let frail = devices(2, ROOM);
        vague.iter().for_each(|&at: &usize| frail[at].be_vague());
        let mut cluster = cluster_on(frail, &[2.0, 2.0, 0.0], options());
        cluster.frail[0].lose_after(200);
        let told = answers(&mut cluster.engine);
        let changed: Vec<bool> = told.recoveries.iter().map(|recovery| recovery.numerics_changed).collect();
        assert_eq!(changed, [is_changed], "{vague:?}");
        let is_vague = |share: &Share| share.arithmetic.is_none();
        assert_eq!(told.recoveries[0].before.iter().position(is_vague), vague);
    }
}

/// One that says again and again that it waited for another one is there, so far as it can be asked, but keeps requests from going on. One that
/// says so now and then is interrupted and no more.
#[test]
fn a_device_that_is_interrupted_without_end_is_left_out() {
    let (expected, _) = undisturbed(2);
    let run = |pauses: usize| {
        let mut cluster = cluster(2);
        guessing(&mut cluster.engine);
        let (device, mut since) = (Arc::clone(&cluster.frail[1]), usize::MAX);
        let told = answers_while(&mut cluster.engine, |_, told| {
            let tokens: usize = told.answers.values().map(|answer| answer.tokens.len()).sum();
            // Anew once there was a token.
            let does = if since == tokens { pauses == 0 } else { tokens > 0 && told.losses.len() < 6 };
            (since, _) = (tokens, device.wait_in_vain(does));
        });
        assert_same(&format!("pauses: {pauses}"), &expected, &told);
        let losses = told.losses.iter().map(|loss| (loss.device.clone(), loss.is_gone, loss.in_vain));
        let is_there = cluster
            .engine
            .runner()
            .model()
            .placement()
            .shares()
            .iter()
            .any(|share| share.name == "second" && share.weights > 0);
        (losses.collect::<Vec<_>>(), is_there)
    };
    let loss = |in_vain| ("second".to_owned(), false, in_vain);
    assert_eq!(run(0), (vec![loss(1), loss(2), loss(3)], false));
    assert_eq!(run(1), (vec![loss(1); 6], true));
}

/// The second one at any moment, while the loss of the first one is made good too; in the end there is only the host.
#[test]
fn devices_may_be_lost_one_after_another() {
    let (expected, calls) = undisturbed(3);
    let stride = stride(23);
    for first in (0..calls[0]).step_by(stride) {
        for second in (0..2 * calls[1]).step_by(3 * stride) {
            let what = format!("lost after {first} and {second} calls");
            let mut cluster = cluster(3);
            guessing(&mut cluster.engine);
            cluster.frail[0].lose_after(first);
            cluster.frail[1].lose_after(second);
            let told = answers(&mut cluster.engine);
            assert_same(&what, &expected, &told);
            assert!((1..=2).contains(&told.losses.len()), "{what}: {:?}", told.losses);
            assert!((1..=2).contains(&told.recoveries.len()), "{what}: {:?}", told.recoveries);
        }
    }
    let mut cluster = cluster(3);
    let calls = |device: usize| 50 * (device + 1);
    cluster.frail.iter().enumerate().for_each(|(at, device)| device.lose_after(calls(at)));
    let told = answers(&mut cluster.engine);
    assert_same("all of them", &expected, &told);
    assert_eq!(told.losses.len(), 3);
    let placement = cluster.engine.runner().model().placement();
    assert_eq!((placement.shares().len(), placement.shares()[0].name.as_str()), (1, "CPU"));
}

/// Survivors keep the weights that they have, and get only what is missing; what they hold twice for is given back.
#[test]
fn only_what_is_missing_is_loaded() {
    let mut cluster = cluster(2);
    let shares = |cluster: &Cluster| cluster.engine.runner().model().placement().shares().to_vec();
    let before = shares(&cluster);
    assert!(before[..2].iter().all(|share| share.blocks.len() == 1), "{before:?}");
    assert_eq!(cluster.frail[1].weight_bytes(), before[1].weights);
    let held = cluster.frail[1].allocated_bytes();
    cluster.frail[0].lose_after(30);
    answers(&mut cluster.engine);
    let after = shares(&cluster);
    let names: Vec<&str> = after.iter().map(|share| share.name.as_str()).collect();
    assert_eq!((names, after[0].blocks.clone()), (vec!["second", "CPU"], 0..2));
    assert_eq!(cluster.frail[1].weight_bytes(), after[0].weights, "each weight was written once");
    // The state of two blocks, and results of a larger part.
    assert!(cluster.frail[1].allocated_bytes() < 3 * held, "{held} bytes before");
    cluster.frail[1].lose_after(0);
    answers(&mut cluster.engine);
    assert_eq!(shares(&cluster)[0].name, "CPU");
    assert!(cluster.frail.iter().all(|device| device.allocated_bytes() == 0), "nothing is kept of either");
}

/// A part that moves from one survivor to another gives its memory back where it was.
#[test]
fn what_has_moved_on_is_given_back() {
    let mut cluster = cluster_on(devices(3, ROOM), &[3.0, 4.2, 2.8, 0.0], options());
    let blocks = |cluster: &Cluster| -> Vec<std::ops::Range<usize>> {
        let shares = cluster.engine.runner().model().placement().shares();
        shares.iter().map(|share| share.blocks.clone()).collect()
    };
    assert_eq!(blocks(&cluster), [0..1, 1..2, 0..0, 0..0]);
    cluster.frail[0].lose_after(50);
    let told = answers(&mut cluster.engine);
    assert_eq!((told.losses.len(), told.recoveries.len()), (1, 1));
    // The second has block 0 instead of block 1, which went to the third.
    assert_eq!(blocks(&cluster), [0..1, 1..2, 0..0]);
    let shares = cluster.engine.runner().model().placement().shares();
    for (share, device) in shares.iter().zip(&cluster.frail[1..]) {
        let (held, padding) = (device.weights_held(), 4096);
        assert!((share.weights..share.weights + padding).contains(&held), "{held} bytes for {share:?}");
    }
}

/// Where nothing can hold the model, the step says what is missing where; when there is room again, requests go on with the same tokens.
#[test]
fn without_room_the_error_says_how_much_is_missing() {
    let (expected, _) = undisturbed(2);
    let frail = devices(2, ROOM);
    let small = FrailDevice::new("small", CpuDevice::new().unwrap(), 4096);
    let host: Arc<dyn Device> = small;
    let devices = vec![Arc::clone(&frail[0]) as Arc<dyn Device>, host];
    let proportions = Proportions::Ratios(vec![1.0, 0.0]);
    let placement = PlacementOptions { proportions, runner: options(), ..PlacementOptions::default() };
    let lineup = Lineup::new(devices, placement, StreamOptions::threads(1));
    let file = file();
    let vocab = Arc::new(Vocab::from_gguf(&file.metadata()).unwrap());
    let placement = lineup.place(&file).unwrap();
    let model = Model::load(file, placement, &|_| {}).unwrap();
    let mut engine = Engine::new(
        lineup.runner(model).unwrap(),
        vocab,
        EngineOptions { prompt_tokens_beside: 24, queue: 64 },
    );
    engine.recover_with(lineup);
    guessing(&mut engine);
    let ids: Vec<RequestId> =
        requests(&mut engine).into_iter().map(|request| engine.submit(request).unwrap()).collect();
    assert!(engine.step().unwrap());
    frail[0].lose_after(20);
    let error = loop {
        match engine.step() {
            Ok(went_on) => assert!(went_on),
            Err(error) => break error,
        }
    };
    assert!(
        matches!(&error, Error::NoRoom { device, free: 4096, needed } if device == "small" && *needed > 4096)
    );
    assert!(
        error.to_string().starts_with("small has 4.0 KiB free, but its part of the model needs"),
        "{error}"
    );
    let Error::NoRoom { needed, .. } = error else { unreachable!() };
    assert!(
        error.to_string().ends_with(&format!("{} are missing", ByteSize(needed as u64 - 4096))),
        "{error}"
    );
    // Again, and cancelling needs no device.
    assert!(matches!(engine.step(), Err(Error::NoRoom { .. })) && engine.lacks_room());
    assert!(engine.cancel(ids[7]) && engine.runner().is_released());
    let mut told = Told::default();
    told.listen(&mut engine);
    assert_eq!(told.losses.len(), 1, "it is told once");
    // There is room elsewhere.
    let last = PlacementOptions { runner: options(), ..PlacementOptions::default() };
    engine.recover_with(Lineup::new(vec![CpuDevice::new().unwrap()], last, StreamOptions::threads(1)));
    while engine.is_busy() {
        engine.step().unwrap();
        told.listen(&mut engine);
    }
    engine.step().unwrap();
    told.listen(&mut engine);
    for (id, expected) in expected.answers.iter().filter(|(id, _)| **id != ids[7]) {
        assert_eq!(told.answers.get(id), Some(expected), "{id}");
    }
    assert_eq!((told.losses.len(), told.recoveries.len()), (1, 1));
    assert!(!engine.lacks_room());
}

/// The ids of a plan that is gone mean nothing.
#[test]
fn what_belongs_to_an_earlier_plan_is_refused() {
    let mut cluster = cluster(2);
    let runner = cluster.engine.runner_mut();
    let old = runner.open().unwrap();
    runner.compute(&[Piece { sequence: old, tokens: &[1, 2, 3], wanted: Wanted::Last }]).unwrap();
    cluster.frail[0].lose_after(12);
    let computed = cluster.engine.runner().usage().computed_tokens;
    answers(&mut cluster.engine);
    cluster.engine.forget_parked();
    let runner = cluster.engine.runner_mut();
    assert!(runner.usage().computed_tokens > computed, "counters go on");
    assert!(matches!(runner.tokens(old), Err(Error::NoSuchSequence { .. })));
    let new = runner.open().unwrap();
    assert_ne!(new, old);
    runner.release();
    assert!(matches!(runner.open(), Err(Error::Released)));
    let piece = [Piece { sequence: new, tokens: &[1], wanted: Wanted::Last }];
    assert!(matches!(runner.compute(&piece), Err(Error::NoSuchSequence { .. })));
    assert!(matches!(runner.result_bytes(), Err(Error::Released)));
}

/// A smaller model that guesses is lost, at any call: answers go on without it.
#[test]
fn a_draft_model_may_be_lost_at_any_call() {
    let (expected, _) = undisturbed(2);
    let with_draft = |call: usize| {
        let mut main = cluster(2);
        let frail = devices(1, ROOM);
        let file = file();
        let lineup = lineup(&frail, &[1.0, 0.0], options());
        let placement = lineup.place(&file).unwrap();
        let runner = lineup.runner(Model::load(file, placement, &|_| {}).unwrap()).unwrap();
        let vocab = Arc::clone(main.engine.vocab());
        let draft = Draft::new(runner, &vocab, &vocab, 3).unwrap();
        main.engine.speculate(Speculation::Draft(Box::new(draft)));
        let before = frail[0].calls();
        frail[0].lose_after(call);
        let (mut told, mut lost) = (Told::default(), 0);
        for request in requests(&mut main.engine) {
            main.engine.submit(request).unwrap();
        }
        while main.engine.is_busy() {
            main.engine.step().unwrap();
            let mut others = Vec::new();
            while let Some(event) = main.engine.next_event() {
                match event {
                    Event::DraftLost { device, .. } => {
                        assert_eq!(device, "first");
                        lost += 1;
                    }
                    event => others.push(event),
                }
            }
            for event in others {
                if let Event::Token(token) = event {
                    let bits = token.alternatives.iter().map(|(token, p)| (*token, p.to_bits())).collect();
                    let said = (token.token, token.text, token.logprob.map(f32::to_bits), bits);
                    told.answers.entry(token.request).or_default().tokens.push(said);
                }
            }
        }
        for (id, answer) in &told.answers {
            assert_eq!(answer.tokens, expected.answers[id].tokens, "{id}, draft lost after {call} calls");
        }
        (lost, frail[0].calls() - before)
    };
    let (lost, calls) = with_draft(usize::MAX - (1 << 32));
    assert!(lost == 0 && calls > 100, "{calls}");
    for call in (0..calls).step_by(stride(13)) {
        assert_eq!(with_draft(call).0, 1, "lost after {call} calls of {calls}");
    }
}

#[test]
fn shares_that_remain_keep_their_proportion() {
    let given = |ratios: &[f64]| PlacementOptions {
        proportions: Proportions::Ratios(ratios.to_vec()),
        overrides: vec![
            Override { pattern: "blk.0.*".into(), device: 0 },
            Override { pattern: "blk.1.*".into(), device: 2 },
        ],
        ..PlacementOptions::default()
    };
    let left = given(&[3.0, 2.0, 1.0, 0.0]).without(4, |at| at == 0);
    assert!(matches!(&left.proportions, Proportions::Ratios(ratios) if *ratios == [2.0, 1.0, 0.0]));
    assert_eq!(left.overrides, [Override { pattern: "blk.1.*".into(), device: 1 }]);
    // Who had all is gone.
    let left = given(&[0.0, 5.0, 0.0, 0.0]).without(4, |at| at == 1);
    assert!(matches!(left.proportions, Proportions::SpareLast { most: None }), "{left:?}");
    let left = PlacementOptions::default().without(3, |at| at < 2);
    assert!(matches!(left.proportions, Proportions::ByFreeMemory), "{left:?}");
    // The host has nothing for as long as there is another.
    let file = file();
    let skip = PlacementOptions { proportions: Proportions::SkipLast, ..PlacementOptions::default() };
    let mut all: Vec<Arc<dyn Device>> =
        devices(2, ROOM).into_iter().map(|device| device as Arc<dyn Device>).collect();
    all.push(CpuDevice::new().unwrap());
    let lineup = Lineup::new(all, skip, StreamOptions::threads(1));
    let blocks = |lineup: &Lineup| -> Vec<usize> {
        lineup.place(&file).unwrap().shares().iter().map(|share| share.blocks.len()).collect()
    };
    assert_eq!(blocks(&lineup), [1, 1, 0]);
    assert_eq!(blocks(&lineup.without(|at| at == 0)), [2, 0]);
    assert_eq!(blocks(&lineup.without(|at| at < 2)), [2]);
}

/// Devices in places of a lineup.
type Offers = Vec<(usize, Arc<dyn Device>)>;

/// Takes in what it is offered.
struct Welcoming {
    lineup: Lineup,
    offers: Arc<Mutex<Offers>>,
    better: Option<Lineup>,
}

impl Recover for Welcoming {
    fn recover(&mut self, loss: &Loss, runner: &mut Runner) -> Result<(), Error> {
        self.lineup.recover(loss, runner)
    }

    fn returned(&mut self, runner: &Runner) -> Vec<String> {
        let offers = std::mem::take(&mut *self.offers.lock().unwrap());
        self.better = self.lineup.better(runner, &offers).unwrap();
        let Some(better) = &self.better else { return Vec::new() };
        let is_new = |device: &&Arc<dyn Device>| offers.iter().any(|(_, new)| Arc::ptr_eq(new, device));
        better.devices().iter().filter(is_new).map(|device| device.name().to_owned()).collect()
    }

    fn take_in(&mut self, runner: &mut Runner) -> Result<(), Error> {
        runner.release();
        let Some(better) = self.better.take() else { return self.lineup.take_in(runner) };
        let settle = |lineup: &Lineup, runner: &mut Runner| lineup.clone().take_in(runner);
        assert!(self.lineup.change_to(better, runner, settle)?.is_none());
        Ok(())
    }
}

/// A cluster whose devices may come back, and where they are offered.
fn welcoming(count: usize) -> (Cluster, Arc<Mutex<Offers>>) {
    let mut cluster = cluster(count);
    let offers = Arc::new(Mutex::new(Offers::new()));
    let ratios = [&[2.0, 2.0, 1.0][..count], &[0.0]].concat();
    let lineup = lineup(&cluster.frail, &ratios, options());
    cluster.engine.recover_with(Welcoming { lineup, offers: Arc::clone(&offers), better: None });
    guessing(&mut cluster.engine);
    (cluster, offers)
}

fn blocks_of(shares: &[Share]) -> Vec<(String, std::ops::Range<usize>)> {
    shares.iter().map(|share| (share.name.clone(), share.blocks.clone())).collect()
}

/// A device that comes back under the same name gets what the one before it had, and nothing is held twice.
#[test]
fn a_device_that_comes_back_is_used_again() {
    let (expected, calls) = undisturbed(2);
    for at in 0..2 {
        for call in (0..calls[at]).step_by(stride(61)) {
            let what = format!("device {at}, lost after {call} calls of {}", calls[at]);
            let (mut cluster, offers) = welcoming(2);
            let before = cluster.engine.runner().model().placement().shares().to_vec();
            cluster.frail[at].lose_after(call);
            let new = FrailDevice::new(NAMES[at], CpuDevice::new().unwrap(), ROOM);
            let mut is_offered = false;
            let told = answers_while(&mut cluster.engine, |_, told| {
                if !told.recoveries.is_empty() && !is_offered {
                    offers.lock().unwrap().push((at, Arc::clone(&new) as Arc<dyn Device>));
                    is_offered = true;
                }
            });
            assert_same(&what, &expected, &told);
            assert_eq!(told.losses.len(), 1, "{what}");
            if !is_offered || told.returns.is_empty() {
                assert!(call > calls[at] / 2, "{what}: the answers had ended");
                continue;
            }
            assert_eq!(told.returns, [Return { devices: vec![NAMES[at].into()], epoch: 1 }], "{what}");
            let [lost, back] = told.recoveries.as_slice() else { panic!("{what}: {:?}", told.recoveries) };
            assert_eq!((lost.epoch, back.epoch, cluster.engine.runner().epoch()), (1, 2, 2), "{what}");
            assert_eq!(blocks_of(&lost.before), blocks_of(&before), "{what}");
            assert_eq!(blocks_of(&back.before), blocks_of(&lost.after), "{what}");
            assert_eq!(blocks_of(&back.after), blocks_of(&before), "{what}");
            let held: Vec<usize> = [&new, &cluster.frail[1 - at]].map(|device| device.weights_held()).into();
            for (held, share) in held.iter().zip([&before[at], &before[1 - at]]) {
                assert!((share.weights..share.weights + 4096).contains(held), "{what}: {held}, {share:?}");
            }
            assert_eq!(cluster.frail[at].allocated_bytes(), 0, "{what}: nothing of the old one is kept");
        }
    }
}

/// At any call while it is taken in, and afterwards; another one is taken in after that.
#[test]
fn a_device_may_be_lost_again_at_any_call() {
    let (expected, _) = undisturbed(2);
    let mut most = 0;
    let mut call = 0;
    loop {
        let what = format!("lost again after {call} calls");
        let (mut cluster, offers) = welcoming(2);
        cluster.frail[0].lose_after(60);
        let device = || FrailDevice::new("first", CpuDevice::new().unwrap(), ROOM);
        let (second, third) = (device(), device());
        second.lose_after(call);
        let offer = |device: &Arc<FrailDevice>| {
            offers.lock().unwrap().push((0, Arc::clone(device) as Arc<dyn Device>));
        };
        let mut offered = 0;
        let told = answers_while(&mut cluster.engine, |_, told| {
            let is_over = |loss: &Loss| told.recoveries.last().is_some_and(|last| last.epoch > loss.epoch);
            if told.losses.len() > offered && offered < 2 && told.losses.last().is_some_and(is_over) {
                offer([&second, &third][offered]);
                offered += 1;
            }
        });
        assert_same(&what, &expected, &told);
        most = most.max(second.calls());
        if told.losses.len() == 1 {
            assert!(call > 100, "{what}");
            break;
        }
        assert_eq!(told.losses.len(), 2, "{what}: {:?}", told.losses);
        assert_eq!(second.allocated_bytes(), 0, "{what}: nothing of it is kept");
        let placement = cluster.engine.runner().model().placement();
        if told.returns.len() == 2 {
            assert_eq!(placement.shares().len(), 3, "{what}");
            assert!(third.weights_held() > 0, "{what}");
        }
        call += stride(41);
    }
    assert!(most > 100);
}

/// Not before all that was interrupted has gone on, however often devices come and go.
#[test]
fn requests_go_on_between_two_moves() {
    let (expected, _) = undisturbed(2);
    let (mut cluster, offers) = welcoming(2);
    cluster.frail[0].lose_after(40);
    let mut tokens = 0;
    let mut flapping: Vec<Arc<FrailDevice>> = Vec::new();
    let told = answers_while(&mut cluster.engine, |engine, told| {
        let now = told.answers.values().map(|answer| answer.tokens.len()).sum();
        assert!(now >= tokens && engine.is_busy());
        tokens = now;
        // Each one computes a little and is lost.
        if told.losses.len() == flapping.len() + 1 {
            let device = FrailDevice::new("first", CpuDevice::new().unwrap(), ROOM);
            device.lose_after(100);
            offers.lock().unwrap().push((0, Arc::clone(&device) as Arc<dyn Device>));
            flapping.push(device);
        }
    });
    assert_same("flapping", &expected, &told);
    assert!(told.losses.len() >= 3, "{}", told.losses.len());
    for device in &flapping[..flapping.len() - 1] {
        assert_eq!(device.allocated_bytes(), 0);
    }
}

/// A device without a part, or without room for it, is left out; one in a place that is taken, too.
#[test]
fn devices_that_make_no_better_plan_are_left_out() {
    let (mut cluster, _) = welcoming(3);
    cluster.frail[1].lose_after(30);
    answers(&mut cluster.engine);
    let runner = cluster.engine.runner();
    let of = |ratios: &[f64]| lineup(&cluster.frail, ratios, options()).without(|at| at == 1);
    let device =
        |capacity| FrailDevice::new("second", CpuDevice::new().unwrap(), capacity) as Arc<dyn Device>;
    let names = |ratios: &[f64], place, capacity| {
        let better = of(ratios).better(runner, &[(place, device(capacity))]).unwrap();
        better.map(|better| {
            let names = better.devices().iter().map(|device| device.name().to_owned());
            names.collect::<Vec<_>>()
        })
    };
    let whole = ["first", "second", "third", "CPU"].map(str::to_owned).to_vec();
    assert_eq!(names(&[2.0, 2.0, 1.0, 0.0], 1, ROOM), Some(whole));
    assert_eq!(names(&[2.0, 0.0, 1.0, 0.0], 1, ROOM), None, "it would have no part");
    assert_eq!(names(&[2.0, 2.0, 1.0, 0.0], 0, ROOM), None, "the place is taken");
    assert_eq!(names(&[2.0, 2.0, 1.0, 0.0], 9, ROOM), None, "there is no such place");
    assert_eq!(of(&[2.0, 2.0, 1.0, 0.0]).left_out().map(|(place, _)| place).collect::<Vec<_>>(), [1]);
    // Where it has too little for its share, the others take what it has no room for, which is everything.
    assert_eq!(names(&[2.0, 2.0, 1.0, 0.0], 1, 4096), None);
}

/// A device that was not there from the beginning gets a place, and is taken in like one that comes back, at any moment; it can be lost like any
/// other.
#[test]
fn a_device_that_was_never_there_is_taken_in() {
    let expected = undisturbed(2).0;
    for at in [0, 1, 3, 8] {
        let frail = devices(2, ROOM);
        let first: Vec<Arc<dyn Device>> = vec![Arc::clone(&frail[0]) as _, CpuDevice::new().unwrap()];
        // The host has the model only if it is alone.
        let proportions = Proportions::SkipLast;
        let given = PlacementOptions { proportions, runner: options(), ..PlacementOptions::default() };
        let mut lineup = Lineup::new(first, given, StreamOptions::threads(1));
        let mut cluster = cluster_with(frail[..1].to_vec(), lineup.clone());
        let offers = Arc::new(Mutex::new(Offers::new()));
        assert!(lineup.make_place(1, Arc::clone(&frail[1]) as _));
        assert_eq!(lineup.devices().len(), 2, "it is left out");
        assert_eq!(lineup.left_out().map(|(place, _)| place).collect::<Vec<_>>(), [1]);
        cluster.engine.recover_with(Welcoming { lineup, offers: Arc::clone(&offers), better: None });
        guessing(&mut cluster.engine);
        let mut steps = 0;
        let found = answers_while(&mut cluster.engine, |engine, _| {
            steps += 1;
            if steps == at + 1 {
                offers.lock().unwrap().push((1, Arc::clone(&frail[1]) as _));
            }
            if steps == at + 4 {
                let shares = blocks_of(engine.runner().model().placement().shares());
                assert!(
                    shares.iter().any(|(name, blocks)| name == "second" && !blocks.is_empty()),
                    "{shares:?}"
                );
                frail[1].lose_after(0);
            }
        });
        assert_same(&format!("after {at} steps"), &expected, &found);
        let shares = blocks_of(cluster.engine.runner().model().placement().shares());
        assert!(shares.iter().all(|(name, _)| name != "second"), "{shares:?}");
    }
    // Where devices are meant by their numbers, there is no place for others.
    let mut numbered = lineup(&devices(1, ROOM), &[1.0, 0.0], options());
    assert!(!numbered.make_place(1, CpuDevice::new().unwrap()));
    let given = PlacementOptions { runner: options(), ..PlacementOptions::default() };
    let mut short = Lineup::new(vec![CpuDevice::new().unwrap()], given, StreamOptions::threads(1));
    assert!(!short.make_place(2, CpuDevice::new().unwrap()), "there are not so many places");
}

/// What was lost under a name is not held against what has it later.
#[test]
fn a_device_that_is_back_is_lost_like_any_other() {
    let mut lineup = lineup(&devices(2, ROOM), &[1.0, 1.0, 0.0], options());
    let loss = |epoch| {
        let (device, reason) = ("first".into(), "it is gone".into());
        Loss { device, reason, is_gone: true, in_vain: 0, epoch }
    };
    let leave_out = |lineup: &mut Lineup, epoch| -> Result<usize, Error> {
        Ok(lineup.leave_out_lost(&loss(epoch))?.iter().filter(|lost| lost.device.name() == "first").count())
    };
    assert_eq!(leave_out(&mut lineup, 0).unwrap(), 1);
    assert_eq!(leave_out(&mut lineup, 0).unwrap(), 0, "it is told of again");
    assert!(leave_out(&mut lineup, 1).is_err(), "nothing would be better after this");
    let back = FrailDevice::new("first", CpuDevice::new().unwrap(), ROOM);
    lineup = lineup.with(&[(0, back)]);
    assert_eq!((lineup.devices().len(), lineup.left_out().count()), (3, 0));
    assert!(
        matches!(&lineup.options().proportions, Proportions::Ratios(ratios) if *ratios == [1.0, 1.0, 0.0])
    );
    assert_eq!(leave_out(&mut lineup, 2).unwrap(), 1);
    assert_eq!(leave_out(&mut lineup, 2).unwrap(), 0, "it is told of again");
    assert!(leave_out(&mut lineup, 3).is_err(), "nothing would be better after this");
}

/// What cannot be used after all is left out again, and the runner is where it was.
#[test]
fn a_move_that_fails_is_undone() {
    let (mut cluster, _) = welcoming(2);
    cluster.frail[0].lose_after(30);
    let expected = answers(&mut cluster.engine);
    cluster.engine.forget_parked();
    let mut lineup = lineup(&cluster.frail, &[2.0, 2.0, 0.0], options()).without(|at| at == 0);
    let device: Arc<dyn Device> = FrailDevice::new("first", CpuDevice::new().unwrap(), ROOM);
    let runner = cluster.engine.runner_mut();
    let better = lineup.better(runner, &[(0, device)]).unwrap().unwrap();
    runner.release();
    let refuse = || Error::NoRoom { device: "first".into(), free: 1, needed: 2 };
    let error = lineup.change_to(better.clone(), runner, |lineup, runner| match lineup.devices().len() {
        3 => Err(refuse()),
        _ => lineup.clone().take_in(runner),
    });
    assert!(matches!(error, Ok(Some(Error::NoRoom { free: 1, .. }))), "{error:?}");
    assert_eq!((lineup.devices().len(), lineup.left_out().count(), runner.is_released()), (2, 1, false));
    // A loss is for the caller, and is about the new devices.
    runner.release();
    let lost =
        || Error::from(oxcart_backend::Error::DeviceLost { device: "first".into(), reason: "".into() });
    let error = lineup.change_to(better, runner, |_, _| Err(lost()));
    assert!(error.is_err_and(|error| error.lost_work().is_some()));
    assert_eq!((lineup.devices().len(), runner.is_released()), (3, true));
    lineup.take_in(runner).unwrap();
    cluster.engine.recover_with(lineup);
    let told = answers(&mut cluster.engine);
    let tokens = |told: &Told| told.answers.values().map(|answer| answer.tokens.clone()).collect::<Vec<_>>();
    assert_eq!(tokens(&told), tokens(&expected));
}
