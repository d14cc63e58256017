//! Requests of all kinds, together and alone: what is answered does not depend on who else asks.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use oxcart_backend::{Device, StreamOptions};
use oxcart_cpu::CpuDevice;
use oxcart_llm::engine::{
    AtLimit, Draft, End, Engine, EngineOptions, Event, Report, Request, RequestError, RequestId, Speculation,
};
use oxcart_llm::model::{Error, Model, ModelFile, Placement, PlacementOptions};
use oxcart_llm::runner::{Runner, RunnerOptions};
use oxcart_llm::text::{Constraints, Grammar, LookupSettings, SamplerSettings, Vocab};

fn model() -> (Arc<Model>, Arc<Vocab>, Arc<CpuDevice>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/data/tiny.gguf");
    let file = ModelFile::open(path).unwrap();
    let vocab = Arc::new(Vocab::from_gguf(&file.metadata()).unwrap());
    let device = CpuDevice::new().unwrap();
    let placement = Placement::new(&file, vec![device.clone()], &PlacementOptions::default()).unwrap();
    (Model::load(file, placement, &|_| {}).unwrap(), vocab, device)
}

fn engine(runner: RunnerOptions, options: EngineOptions) -> Engine {
    let (model, vocab, device) = model();
    let stream = device.open(&StreamOptions::threads(1)).unwrap();
    Engine::new(Runner::new(model, vec![stream], runner).unwrap(), vocab, options)
}

fn small(sequences: usize) -> RunnerOptions {
    RunnerOptions { context: 256, sequences, ..RunnerOptions::default() }
}

/// Some prompt that others do not begin with, unless their numbers are the same modulo 4.
fn prompt(number: u32, length: usize) -> Vec<u32> {
    (0..length as u32).map(|at| if at < 70 { at * 3 + number % 4 } else { at * 5 + number } % 300).collect()
}

fn request(number: u32) -> Request {
    let sampler = match number % 3 {
        0 => SamplerSettings::greedy(),
        _ => SamplerSettings { seed: u64::from(number), ..SamplerSettings::default() },
    };
    let (limit, length) = (5 + number as usize % 23, 3 + number as usize * 37 % 150);
    Request { sampler, limit, ignore_end: true, ..Request::new(prompt(number, length)) }
}

type Answers = BTreeMap<u64, (Vec<u32>, String, End, Report)>;

/// Runs an engine until nothing is left to do; answers by request.
fn finish(engine: &mut Engine, answers: &mut Answers, ids: &BTreeMap<String, u64>) {
    let mut open: BTreeMap<u64, (Vec<u32>, String)> = BTreeMap::new();
    while engine.is_busy() {
        engine.step().unwrap();
        while let Some(event) = engine.next_event() {
            let id = ids[&event.request().unwrap().to_string()];
            let entry = open.entry(id).or_default();
            match event {
                Event::Token(token) => {
                    entry.0.push(token.token);
                    entry.1.push_str(&token.text);
                }
                Event::Finished { end, text, report, .. } => {
                    let (tokens, so_far) = open.remove(&id).unwrap();
                    answers.insert(id, (tokens, so_far + &text, end, report));
                }
                Event::Failed { error, .. } => panic!("{id}: {error}"),
                event => panic!("{event:?}"),
            }
        }
    }
}

fn alone(number: u32) -> (Vec<u32>, String, End) {
    thread_local!(static ENGINE: Cell<Option<Engine>> = const { Cell::new(None) });
    let mut engine = ENGINE.take().unwrap_or_else(|| engine(small(1), EngineOptions::default()));
    let id = engine.submit(request(number)).unwrap();
    let mut answers = Answers::new();
    finish(&mut engine, &mut answers, &BTreeMap::from([(id.to_string(), 0)]));
    engine.forget_parked();
    ENGINE.set(Some(engine));
    let (tokens, text, end, _) = answers.remove(&0).unwrap();
    (tokens, text, end)
}

fn all_together(mut engine: Engine, numbers: impl Iterator<Item = u32>) -> Answers {
    let (mut ids, mut answers) = (BTreeMap::new(), Answers::new());
    for number in numbers {
        let id = engine.submit(request(number)).unwrap();
        ids.insert(id.to_string(), u64::from(number));
        // Some come while others are under way.
        if number % 5 == 0 {
            engine.step().unwrap();
        }
    }
    finish(&mut engine, &mut answers, &ids);
    answers
}

#[track_caller]
fn assert_as_alone(answers: &Answers) {
    for (&number, (tokens, text, end, _)) in answers {
        let expected = alone(number as u32);
        assert_eq!((tokens, text, end), (&expected.0, &expected.1, &expected.2), "request {number}");
    }
}

#[test]
fn requests_are_answered_as_if_they_were_alone() {
    let answers = all_together(engine(small(7), EngineOptions::default()), 0..40);
    assert_eq!(answers.len(), 40);
    assert_as_alone(&answers);
    let reused: usize = answers.values().map(|(.., report)| report.reused_tokens).sum();
    assert!(reused > 500, "beginnings are shared: {reused}");
}

#[test]
fn those_that_make_way_go_on_where_they_were() {
    // Room for little more than one of them.
    let options = RunnerOptions { tokens: 256, ..small(6) };
    let answers = all_together(engine(options, EngineOptions::default()), 0..20);
    assert_eq!(answers.len(), 20);
    assert_as_alone(&answers);
}

#[test]
fn long_prompts_do_not_hold_others_up() {
    const STREAMS: usize = 8;
    let mut engine = engine(RunnerOptions { context: 4096, ..small(STREAMS + 1) }, EngineOptions::default());
    let beside = EngineOptions::default().prompt_tokens_beside;
    assert!(beside <= 128);
    for number in 0..STREAMS as u32 {
        let talking = Request { limit: 100, ignore_end: true, ..Request::new(vec![number]) };
        engine.submit(talking).unwrap();
    }
    engine.step().unwrap();
    while engine.next_event().is_some() {}
    let long = engine.submit(Request { limit: 1, ..Request::new(prompt(3, 4000)) }).unwrap();
    let mut steps = 0;
    // Each step brings a token to every other request, and computes no more than a piece of the prompt.
    loop {
        let before = engine.runner().usage().computed_tokens;
        assert!(engine.step().unwrap());
        steps += 1;
        assert!(engine.runner().usage().computed_tokens - before <= (STREAMS + beside) as u64);
        let events: Vec<Event> = std::iter::from_fn(|| engine.next_event()).collect();
        let told =
            events.iter().filter(|event| matches!(event, Event::Token(_)) && event.request() != Some(long));
        assert_eq!(told.count(), STREAMS, "in step {steps}");
        if events.iter().any(|event| event.request() == Some(long)) {
            break;
        }
    }
    assert_eq!(steps, 4000_usize.div_ceil(beside));
}

/// A short prompt is computed beside a long one that came first, and any number of short ones leave the long one half of each step.
#[test]
fn a_long_prompt_does_not_keep_short_ones_waiting() {
    let mut engine = engine(RunnerOptions { context: 4096, ..small(4) }, EngineOptions::default());
    let beside = EngineOptions::default().prompt_tokens_beside;
    let talking = Request { limit: 2000, ignore_end: true, ..Request::new(vec![1]) };
    let talking = engine.submit(talking).unwrap();
    engine.step().unwrap();
    let one = |number, length| Request { limit: 1, ignore_end: true, ..Request::new(prompt(number, length)) };
    let long = engine.submit(one(3, 4000)).unwrap();
    engine.step().unwrap();
    let (mut short, mut waited) = (None, 0);
    for step in 2.. {
        let wanted = *short.get_or_insert_with(|| {
            waited = 0;
            // Nothing of it is held already.
            let prompt = (0..100).map(|at| (at * 7 + step) % 300).collect();
            engine.submit(Request { limit: 1, ignore_end: true, ..Request::new(prompt) }).unwrap()
        });
        let before = engine.runner().usage().computed_tokens;
        engine.step().unwrap();
        waited += 1;
        assert!(engine.runner().usage().computed_tokens - before <= (1 + beside) as u64);
        let told: Vec<RequestId> = std::iter::from_fn(|| engine.next_event())
            .filter(|event| matches!(event, Event::Token(_)))
            .filter_map(|event| event.request())
            .collect();
        assert!(told.contains(&talking), "in step {step}");
        if told.contains(&wanted) {
            short = None;
        }
        assert!(waited <= 2, "a short prompt has waited for {waited} steps");
        if told.contains(&long) {
            assert!(step as usize <= 4000_usize.div_ceil(beside / 2) + 1, "{step} steps");
            break;
        }
    }
}

#[test]
fn a_request_ends_by_its_clock_or_from_elsewhere() {
    let (model, vocab, device) = model();
    let stream = device.open(&StreamOptions::threads(1)).unwrap();
    let runner = Runner::new(model, vec![stream], small(2)).unwrap();
    let now = Arc::new(AtomicU64::new(0));
    let clock = Arc::clone(&now);
    let clock = Box::new(move || Duration::from_secs(clock.load(Ordering::Relaxed)));
    let mut engine = Engine::with_clock(runner, vocab, EngineOptions::default(), clock);
    let endless = Request { ignore_end: true, ..Request::new(vec![1, 2, 3]) };
    engine.submit(Request { deadline: Some(Duration::from_secs(10)), ..endless.clone() }).unwrap();
    let stopped = endless.clone();
    engine.submit(stopped.clone()).unwrap();
    for _ in 0..5 {
        engine.step().unwrap();
    }
    let ends = |engine: &mut Engine| {
        let mut ends = Vec::new();
        while let Some(event) = engine.next_event() {
            if let Event::Finished { end, report, .. } = event {
                ends.push((end, report.answer_tokens));
            }
        }
        ends
    };
    assert_eq!(ends(&mut engine), []);
    now.store(10, Ordering::Relaxed);
    engine.step().unwrap();
    assert_eq!(ends(&mut engine), [(End::Deadline, 5)]);
    stopped.cancel.cancel();
    engine.step().unwrap();
    assert_eq!(ends(&mut engine), [(End::Cancelled, 6)]);
    assert!(!engine.is_busy() && !engine.step().unwrap());
}

#[test]
fn the_context_ends_an_answer_or_moves_on() {
    let mut engine = engine(small(1), EngineOptions::default());
    let endless = Request { ignore_end: true, limit: 600, ..Request::new(prompt(0, 100)) };
    let run = |engine: &mut Engine, request: Request| {
        let mut answer = engine.answer(request).unwrap();
        while let Some(event) = answer.next_event() {
            if let Event::Finished { end, report, .. } = event.unwrap() {
                return (end, report.answer_tokens);
            }
        }
        unreachable!("an answer ends")
    };
    // The last one is chosen, but nothing can follow it.
    assert_eq!(run(&mut engine, endless.clone()), (End::Context, 157));
    for exact in [false, true] {
        let at_limit = AtLimit::Shift { keep: 10, exact };
        assert_eq!(run(&mut engine, Request { at_limit, ..endless.clone() }), (End::Length, 600));
    }
}

#[test]
fn bad_requests_are_refused_and_others_go_on() {
    let mut engine = engine(small(2), EngineOptions { queue: 3, ..EngineOptions::default() });
    let refused = |engine: &mut Engine, request: Request| engine.submit(request).unwrap_err().to_string();
    assert_eq!(refused(&mut engine, Request::new(Vec::new())), "the prompt is empty");
    let error = refused(&mut engine, Request::new(vec![1; 300]));
    assert_eq!(error, "300 tokens after 0 do not fit into a context of 256");
    assert!(refused(&mut engine, Request::new(vec![4000])).contains("token 4000 is not one of"));
    let sampler = SamplerSettings { top_p: f32::NAN, ..SamplerSettings::default() };
    assert!(matches!(
        engine.submit(Request { sampler, ..Request::new(vec![1]) }),
        Err(RequestError::Sample(_))
    ));
    for number in 0..3 {
        engine.submit(request(number)).unwrap();
    }
    assert_eq!(refused(&mut engine, request(3)), "3 requests are waiting already");
    engine.step().unwrap();
    engine.submit(request(3)).unwrap();
    let open = engine.runner().sequence_ids();
    let refused = engine.runner_mut().truncate(open[0], 9999);
    assert!(matches!(refused, Err(Error::CannotTruncate { .. })));
    while engine.is_busy() {
        engine.step().unwrap();
    }
}

/// The next message of a conversation finds the ones before.
#[test]
fn what_was_computed_is_found_again() {
    let mut engine = engine(small(2), EngineOptions::default());
    let mut tokens = prompt(1, 90);
    let mut known = Vec::new();
    for _ in 0..4 {
        let request = Request {
            limit: 10,
            ignore_end: true,
            sampler: SamplerSettings::greedy(),
            ..Request::new(tokens.clone())
        };
        let mut answer = engine.answer(request).unwrap();
        while let Some(event) = answer.next_event() {
            match event.unwrap() {
                Event::Token(token) => tokens.push(token.token),
                Event::Finished { report, .. } => known.push(report.reused_tokens),
                event => unreachable!("{event:?}"),
            }
        }
        tokens.extend([7, 8, 9]);
    }
    // All but the last token of each answer, which was chosen and not computed.
    assert_eq!(known, [0, 99, 112, 125]);
}

/// A prompt that begins like others, and ends like none.
fn variation(number: u32, common: usize) -> Request {
    let prompt = (0..common as u32).map(|at| at * 7 % 300).chain([number, 9, number]).collect();
    Request { limit: 6, ignore_end: true, ..Request::new(prompt) }
}

#[test]
fn a_beginning_that_comes_several_times_at_once_is_computed_once() {
    const COMMON: usize = 600;
    let options = RunnerOptions { context: 1024, ..small(8) };
    let mut engine = engine(options, EngineOptions::default());
    let ask = |engine: &mut Engine, number| {
        let sampler = SamplerSettings { seed: u64::from(number), ..SamplerSettings::default() };
        engine.submit(Request { sampler, ..variation(number, COMMON) }).unwrap().to_string()
    };
    let (mut together, mut alone) = (Answers::new(), Answers::new());
    let mut ids: BTreeMap<String, u64> =
        (0..8).map(|number| (ask(&mut engine, number), u64::from(number))).collect();
    // One with nothing in common need not wait for it.
    ids.insert(engine.submit(request(11)).unwrap().to_string(), 11);
    finish(&mut engine, &mut together, &ids);
    let computed = engine.runner().usage().computed_tokens as usize;
    assert!(computed < COMMON + 9 * 100, "{computed} tokens");
    let reused: Vec<usize> = (0..8).map(|number| together[&number].3.reused_tokens).collect();
    assert_eq!(reused[0], 0);
    assert!(reused[1..].iter().all(|reused| *reused >= COMMON / 64 * 64), "{reused:?}");
    for number in 0..8 {
        let id = ask(&mut engine, number);
        finish(&mut engine, &mut alone, &BTreeMap::from([(id, u64::from(number))]));
        engine.forget_parked();
    }
    let said =
        |answers: &Answers| -> Vec<Vec<u32>> { (0..8).map(|number| answers[&number].0.clone()).collect() };
    assert_eq!(said(&together), said(&alone));
}

/// Neither pages nor the sequences of requests that have ended are found from another scope, and none waits for another's beginning.
#[test]
fn scopes_share_nothing() {
    const COMMON: usize = 600;
    let options = RunnerOptions { context: 1024, ..small(8) };
    let mut engine = engine(options, EngineOptions::default());
    let (mut answers, mut ids) = (Answers::new(), BTreeMap::new());
    for number in 0..4 {
        let request = Request { scope: u64::from(number % 2), ..variation(number, COMMON) };
        ids.insert(engine.submit(request).unwrap().to_string(), u64::from(number));
    }
    finish(&mut engine, &mut answers, &ids);
    let reused: Vec<usize> = (0..4).map(|number| answers[&number].3.reused_tokens).collect();
    assert_eq!((reused[0], reused[1]), (0, 0), "{reused:?}");
    assert!(reused[2..].iter().all(|reused| *reused >= COMMON / 64 * 64), "{reused:?}");
    // Later, too: only a scope's own conversation is there to go on with.
    for (number, scope, least, most) in
        [(0, 2, 0, 0), (0, 0, COMMON, COMMON + 3), (1, 0, COMMON / 64 * 64, COMMON + 3)]
    {
        let request = Request { scope, ..variation(number, COMMON) };
        let ids = BTreeMap::from([(engine.submit(request).unwrap().to_string(), 9)]);
        finish(&mut engine, &mut answers, &ids);
        let reused = answers[&9].3.reused_tokens;
        assert!((least..=most).contains(&reused), "{reused} of {number} in {scope}");
    }
}

/// A conversation that has ended has the first few tokens, one that goes on has many more.
#[test]
fn the_longest_beginning_is_shared_wherever_it_is() {
    let mut engine = engine(RunnerOptions { context: 512, ..small(3) }, EngineOptions::default());
    let run = |engine: &mut Engine, request: Request| {
        let id = engine.submit(request).unwrap();
        loop {
            assert!(engine.step().unwrap());
            while let Some(event) = engine.next_event() {
                if let Event::Finished { request, report, .. } = event
                    && request == id
                {
                    return report.reused_tokens;
                }
            }
        }
    };
    engine.submit(Request { limit: 300, ..variation(2, 200) }).unwrap();
    engine.step().unwrap();
    run(&mut engine, variation(1, 20));
    assert_eq!(run(&mut engine, variation(3, 200)), 192);
    assert_eq!(run(&mut engine, variation(1, 20)), 22, "and the other conversation is still there");
}

/// A request that is set aside keeps no other from its turn, and goes on where it was; what devices held of it may be gone by then.
#[test]
fn a_request_can_be_set_aside() {
    let mut engine = engine(small(2), EngineOptions::default());
    let long = |number: u32| Request { limit: 60, ..request(number) };
    let expected: Vec<Vec<u32>> = (1..4)
        .map(|number| {
            let id = engine.submit(long(number)).unwrap();
            let mut answers = Answers::new();
            finish(&mut engine, &mut answers, &BTreeMap::from([(id.to_string(), 0)]));
            engine.forget_parked();
            answers.remove(&0).unwrap().0
        })
        .collect();
    let ids = [1, 2].map(|number| engine.submit(long(number)).unwrap());
    let mut told: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    let step = |engine: &mut Engine, told: &mut BTreeMap<String, Vec<u32>>| {
        engine.step().unwrap();
        while let Some(event) = engine.next_event() {
            if let Event::Token(token) = event {
                told.entry(token.request.to_string()).or_default().push(token.token);
            }
        }
    };
    for _ in 0..20 {
        step(&mut engine, &mut told);
    }
    assert!(engine.set_aside(ids[0]));
    let before = told[&ids[0].to_string()].clone();
    assert_eq!(before.len(), 20);
    // Its place goes to another.
    let third = engine.submit(long(3)).unwrap();
    for _ in 0..20 {
        step(&mut engine, &mut told);
    }
    assert_eq!(told[&ids[0].to_string()], before);
    assert!(!told[&third.to_string()].is_empty());
    assert!(engine.take_up(ids[0]) && !engine.take_up(ids[0]));
    while engine.is_busy() {
        step(&mut engine, &mut told);
    }
    for (id, expected) in [ids[0], ids[1], third].iter().zip(&expected) {
        assert_eq!(&told[&id.to_string()], expected);
    }
    // It can be ended while it is aside.
    let id = engine.submit(long(1)).unwrap();
    engine.step().unwrap();
    assert!(engine.set_aside(id) && engine.cancel(id) && !engine.is_busy());
    assert!(!engine.set_aside(id) && !engine.take_up(id));
}

/// What is told of a request until it ends, or for so many steps.
fn told(engine: &mut Engine, steps: usize, told: &mut (Vec<u32>, String)) -> Option<End> {
    for _ in 0..steps {
        engine.step().unwrap();
        while let Some(event) = engine.next_event() {
            match event {
                Event::Token(token) => {
                    told.0.push(token.token);
                    told.1.push_str(&token.text);
                }
                Event::Finished { end, text, .. } => {
                    told.1.push_str(&text);
                    return Some(end);
                }
                event => panic!("{event:?}"),
            }
        }
    }
    None
}

/// A request that was saved after any of its steps goes on in another engine with the very tokens and the very text.
#[test]
fn a_saved_request_goes_on_elsewhere() {
    let ask = |engine: &mut Engine, number: u32, stop: &[String]| {
        let plain = Request { limit: 60, stop: stop.to_vec(), ..request(number) };
        match number % 3 {
            0 => plain,
            1 => {
                let schema = serde_json::json!({ "type": "string", "minLength": 40, "maxLength": 50 });
                let constraint = engine.compile(&Grammar::json_schema(schema)).unwrap();
                Request { constraint: Some(constraint), ..plain }
            }
            _ => {
                let at_limit = AtLimit::Shift { keep: 10, exact: false };
                Request { at_limit, limit: 190, prompt: prompt(number, 120), ..plain }
            }
        }
    };
    let mut one = engine(small(1), EngineOptions::default());
    let mut other = engine(small(2), EngineOptions::default());
    // Parked sequences make way, and requests beside it change nothing.
    other.submit(Request { limit: 100, ..request(77) }).unwrap();
    told(&mut other, usize::MAX, &mut Default::default());
    let mut went_on = 0;
    for number in 0..9 {
        let plain = ask(&mut one, number, &[]);
        one.submit(plain).unwrap();
        let mut free = (Vec::new(), String::new());
        told(&mut one, usize::MAX, &mut free);
        // One that comes late, and one that often begins and never comes.
        let chars: Vec<char> = free.1.chars().collect();
        let stop = [chars[chars.len() - 5..].iter().collect(), format!("{}\0", &chars[0])];
        let mut expected = (Vec::new(), String::new());
        let whole = ask(&mut one, number, &stop);
        one.submit(whole).unwrap();
        let end = told(&mut one, usize::MAX, &mut expected).unwrap();
        for steps in [0, 1, 2, 3, 9, 30, 170] {
            one.forget_parked();
            let mut found = (Vec::new(), String::new());
            let whole = ask(&mut one, number, &stop);
            let id = one.submit(whole).unwrap();
            if told(&mut one, steps, &mut found).is_some() {
                break;
            }
            let mut file = Vec::new();
            one.save(id, &mut file).unwrap();
            assert!(one.cancel(id));
            told(&mut one, 1, &mut Default::default());
            let whole = ask(&mut other, number, &stop);
            other.restore(whole, Cursor::new(&file)).unwrap();
            let found_end = told(&mut other, usize::MAX, &mut found).unwrap();
            assert_eq!((&found, found_end), (&expected, end), "request {number} after {steps} steps");
            went_on += 1;
        }
    }
    assert!(went_on >= 45, "{went_on}");
}

#[test]
fn a_saved_request_is_restored_as_it_was_or_refused() {
    let mut one = engine(small(1), EngineOptions::default());
    let whole = Request { limit: 20, ..request(1) };
    let id = one.submit(whole.clone()).unwrap();
    told(&mut one, 10, &mut Default::default());
    let mut file = Vec::new();
    one.save(id, &mut file).unwrap();
    assert!(one.cancel(id));
    assert!(one.save(id, Vec::new()).unwrap_err().to_string().contains("there is no request"));
    told(&mut one, 1, &mut Default::default());
    one.forget_parked();
    let free = one.runner().usage().free_tokens;
    let mut refused = |request: Request, file: &[u8]| {
        let error = one.restore(request, Cursor::new(file)).unwrap_err().to_string();
        assert_eq!((one.runner().usage().free_tokens, one.is_busy()), (free, false), "{error}");
        error
    };
    let sampler = SamplerSettings { top_k: 7, ..whole.sampler.clone() };
    let mut prompt = whole.prompt.clone();
    *prompt.last_mut().unwrap() += 1;
    let cases = [
        (Request { sampler, ..whole.clone() }, "other settings of the sampler"),
        (Request { prompt, ..whole.clone() }, "another prompt"),
        (Request { prompt: vec![1], ..whole.clone() }, "another prompt"),
        (Request { prompt: vec![], ..whole.clone() }, "the prompt is empty"),
        (Request { limit: 9, ..whole.clone() }, "as many tokens as are asked for"),
    ];
    for (request, why) in cases {
        let error = refused(request, &file);
        assert!(error.contains(why), "{error}");
    }
    assert!(refused(whole.clone(), &file[..file.len() - 1]).contains("damaged"));
    // What is no number would reach all sequences: the last of the keys and values, before what the engine adds.
    let mut poisoned = file[..file.len() - 32].to_vec();
    let state = poisoned.len() * 3 / 4;
    poisoned[state..state + 64].fill(0xFF);
    poisoned.extend(blake3::hash(&poisoned).as_bytes());
    assert!(refused(whole.clone(), &poisoned).contains("not all numbers"));
    // Nothing vouches for what came from a file, so it is of no use to others.
    let mut other = engine(small(2), EngineOptions::default());
    other.restore(whole.clone(), Cursor::new(&file)).unwrap();
    told(&mut other, usize::MAX, &mut Default::default());
    let mut answer = other.answer(whole.clone()).unwrap();
    let first = std::iter::from_fn(|| answer.next_event()).find_map(|event| match event.unwrap() {
        Event::Token(token) => Some(token),
        _ => None,
    });
    assert_eq!(first.unwrap().reused_tokens, 0);
    // A sequence alone is no request.
    let mut runner = engine(small(1), EngineOptions::default());
    let sequence = runner.runner_mut().open().unwrap();
    let mut file = Vec::new();
    runner.runner().save(sequence, b"", &mut file).unwrap();
    assert!(refused(whole, &file).contains("it ends too early"));
}

/// What the tiny model says under grammars of all kinds, beside others that are free.
#[test]
fn constrained_answers_have_their_form() {
    let grammars = [
        Grammar::Regex("(yes|no), [a-z]{3,9}!".into()),
        Grammar::Gbnf("root ::= \"[\" (item (\",\" item)*)? \"]\"\nitem ::= [0-9] | root".into()),
        Grammar::json_schema(serde_json::json!({
            "type": "object",
            "properties": { "ok": { "type": "boolean" }, "word": { "type": "string", "maxLength": 6 } },
            "required": ["ok", "word"],
            "additionalProperties": false,
        })),
        Grammar::Regex("".into()),
    ];
    let ask = |engine: &mut Engine, number: u32| {
        let constraint = grammars.get(number as usize % 5).map(|grammar| engine.compile(grammar).unwrap());
        let ignore_end = constraint.is_none() || number.is_multiple_of(2);
        let plain = request(number);
        let limit = if constraint.is_some() { 150 } else { plain.limit };
        engine.submit(Request { constraint, ignore_end, limit, ..plain }).unwrap()
    };
    let mut engine = engine(small(6), EngineOptions::default());
    let ids = (0..25).map(|number| (ask(&mut engine, number).to_string(), u64::from(number))).collect();
    let (mut answers, mut complete) = (Answers::new(), 0);
    finish(&mut engine, &mut answers, &ids);
    assert_eq!(answers.len(), 25);
    for (number, (_, text, end, _)) in &answers {
        if !matches!(end, End::Complete | End::Model) {
            assert!(*end == End::Length, "request {number}: {end:?}");
            continue;
        }
        complete += 1;
        match number % 5 {
            0 => assert!(
                text.ends_with('!') && (text.starts_with("yes, ") || text.starts_with("no, ")),
                "{text}"
            ),
            1 | 2 => assert!(serde_json::from_str::<serde_json::Value>(text).is_ok(), "{text}"),
            3 => assert_eq!((text.as_str(), *end), ("", End::Complete)),
            _ => panic!("{text}"),
        }
    }
    assert!(complete >= 15, "{complete}");
}

#[test]
fn a_constraint_of_another_vocabulary_is_refused() {
    let mut builder = oxcart_gguf::Builder::new();
    builder
        .set("tokenizer.ggml.model", "gpt2")
        .set("tokenizer.ggml.tokens", ["a", "b"])
        .set("tokenizer.ggml.token_type", [1, 1])
        .set("tokenizer.ggml.merges", ["a b"]);
    let mut file = Vec::new();
    builder.write(&mut file).unwrap();
    let other = Vocab::from_gguf(&oxcart_gguf::Header::parse(&file).unwrap().metadata()).unwrap();
    let constraint = Constraints::new(&other).unwrap().compile(&Grammar::Regex("a*".into())).unwrap();
    let mut engine = engine(small(1), EngineOptions::default());
    let refused = engine.submit(Request { constraint: Some(constraint), ..Request::new(vec![1]) });
    assert_eq!(refused.unwrap_err().to_string(), "the constraint was made for another vocabulary");
    assert!(engine.compile(&Grammar::Regex("(".into())).is_err());
    assert!(engine.compile(&Grammar::Regex("a".into())).is_ok());
}

/// Answers of an engine with guesses, and how many of these were right.
fn with_guesses(speculation: impl FnOnce(&Engine) -> Speculation) -> (Answers, usize) {
    let mut engine = engine(small(4), EngineOptions::default());
    let speculation = speculation(&engine);
    engine.speculate(speculation);
    let mut ids = BTreeMap::new();
    for number in 0..20 {
        ids.insert(engine.submit(repeating(number)).unwrap().to_string(), u64::from(number));
    }
    let mut answers = Answers::new();
    finish(&mut engine, &mut answers, &ids);
    let right = answers.values().map(|(.., report)| report.right_guesses).sum();
    (answers, right)
}

/// A request whose prompt says things more than once.
fn repeating(number: u32) -> Request {
    let plain = request(number);
    let mut prompt = plain.prompt.clone();
    (0..3).for_each(|_| prompt.extend_from_slice(&plain.prompt));
    prompt.truncate(90);
    let temperature = if number.is_multiple_of(2) { 0.0 } else { 0.7 };
    let sampler = SamplerSettings { temperature, ..plain.sampler.clone() };
    Request { prompt, sampler, limit: 40, ..plain }
}

/// Neither where guesses come from nor whether there are any changes a token.
#[test]
fn guesses_change_no_answer() {
    let (plain, none) = with_guesses(|_| Speculation::None);
    assert_eq!(none, 0);
    let check = |answers: &Answers| {
        for (number, (tokens, text, end, _)) in answers {
            let (expected, expected_text, expected_end, _) = &plain[number];
            assert_eq!((tokens, text, end), (expected, expected_text, expected_end), "request {number}");
        }
        assert_eq!(answers.len(), plain.len());
    };
    let settings = LookupSettings { token_cost: 0.05, waste: 0.5, ..LookupSettings::default() };
    let (looked_up, right) = with_guesses(|_| Speculation::Lookup(settings));
    assert!(right > 0, "the tiny model repeats itself");
    check(&looked_up);
    // A model is its own best draft: with the same numbers, it is never wrong.
    let (drafted, right) = with_guesses(|engine| {
        let (model, vocab, device) = model();
        let stream = device.open(&StreamOptions::threads(1)).unwrap();
        let runner = Runner::new(model, vec![stream], small(4)).unwrap();
        Speculation::Draft(Box::new(Draft::new(runner, &vocab, engine.vocab(), 4).unwrap()))
    });
    let made: usize = plain.values().map(|(tokens, ..)| tokens.len()).sum();
    assert!(right > made / 2, "{right} of {made}");
    check(&drafted);
}
