//! What guesses gain and cost: answers to seventy-five prompts with and without look-up, on text that repeats itself and on text that
//! does not. Every answer with guesses must be the one without, token for token, or the benchmark fails.
//!
//! `OXCART_SMOLLM2=model.gguf cargo bench -p oxcart-llm --bench speculation -- [threads] [draft.gguf]`
//!
//! Both ways take turns, prompt by prompt, and the best of two times counts, so that other programs disturb both alike. The
//! column `repeats` says how much of the answers was said before: tokens that followed the same three tokens earlier.
#![allow(clippy::print_stdout, reason = "a benchmark")]

use std::collections::HashSet;
use std::error::Error;
use std::sync::Arc;

use oxcart_backend::{Device, StreamOptions};
use oxcart_llm::engine::{Draft, Engine, EngineOptions, Event, Report, Request, Speculation};
use oxcart_llm::model::{Model, ModelFile, Placement, PlacementOptions};
use oxcart_llm::runner::{Runner, RunnerOptions};
use oxcart_llm::text::{Encode, LookupSettings, SamplerSettings, Vocab};

const ANSWER: usize = 96;

const SUBJECTS: [&str; 25] = [
    "a lighthouse",
    "the winter of 1816",
    "bees",
    "a clockmaker",
    "the river Elbe",
    "glass",
    "an old map",
    "the first trains",
    "salt",
    "a violin",
    "tides",
    "the moon",
    "paper",
    "a bridge",
    "mushrooms",
    "the desert",
    "ink",
    "a harbour",
    "owls",
    "the printing press",
    "chess",
    "rust",
    "a garden",
    "thunder",
    "bread",
];

/// Prompts that make a model say what was said before: lists that go on as they began. The next row is begun, because a model
/// that is asked for one more row may end the list and speak of something new.
fn repeating(subject: &str) -> String {
    let row = |number: usize| {
        format!(
            "    {{ \"id\": {number}, \"subject\": \"{subject}\", \"kind\": \"note\", \"public\": true, \"tags\": [] }},\n"
        )
    };
    format!("{{\n  \"notes\": [\n{}    {{ \"id\": 6,", (1..6).map(row).collect::<String>())
}

/// Prompts after which nothing was said before.
fn telling(subject: &str) -> String {
    format!("A short essay about {subject}, for readers who have never thought about it.\n\n")
}

fn runner(path: &std::ffi::OsStr, threads: usize) -> Result<(Runner, Arc<Vocab>), Box<dyn Error>> {
    let device = oxcart_cpu::CpuDevice::new()?;
    let file = ModelFile::open(path)?;
    let vocab = Arc::new(Vocab::from_gguf(&file.metadata())?);
    let placement = Placement::new(&file, vec![device.clone()], &PlacementOptions::default())?;
    let model = Model::load(file, placement, &|_| {})?;
    let options = RunnerOptions { context: 2048, ..RunnerOptions::default() };
    Ok((Runner::new(model, vec![device.open(&StreamOptions::threads(threads))?], options)?, vocab))
}

fn tokens(engine: &Engine, prompt: &str) -> Vec<u32> {
    engine.vocab().encode(prompt, Encode { add_special: true, parse_special: false })
}

/// The answer to a prompt.
fn answer(engine: &mut Engine, prompt: &str, temperature: f32) -> Result<(Vec<u32>, Report), Box<dyn Error>> {
    let prompt = tokens(engine, prompt);
    let sampler = SamplerSettings { temperature, seed: 7, ..SamplerSettings::default() };
    let request = Request { sampler, limit: ANSWER, ignore_end: true, ..Request::new(prompt) };
    let (mut tokens, mut answer) = (Vec::new(), engine.answer(request)?);
    while let Some(event) = answer.next_event() {
        match event? {
            Event::Token(token) => tokens.push(token.token),
            Event::Finished { report, .. } => return Ok((tokens, report)),
            Event::Failed { error, .. } => return Err(error.into()),
            Event::Lost(_) | Event::DraftLost { .. } | Event::Returned(_) | Event::Recovered(_) => {}
        }
    }
    Err("the answer broke off".into())
}

/// How many tokens of an answer followed the same three tokens before, in it or in the prompt.
fn repeated(prompt: &[u32], answer: &[u32]) -> usize {
    let text = [prompt, answer].concat();
    let mut before = HashSet::new();
    let runs = text.windows(4).enumerate();
    runs.filter(|&(at, run)| !before.insert(run) && at + 3 >= prompt.len()).count()
}

fn main() -> Result<(), Box<dyn Error>> {
    let Some(path) = std::env::var_os("OXCART_SMOLLM2") else {
        println!("OXCART_SMOLLM2 names no model");
        return Ok(());
    };
    let mut given = std::env::args_os().skip(1).filter(|argument| argument != "--bench");
    let threads = given.next().and_then(|count| count.to_str()?.parse().ok()).unwrap_or(2);
    let engine = || -> Result<Engine, Box<dyn Error>> {
        let (runner, vocab) = runner(&path, threads)?;
        Ok(Engine::new(runner, vocab, EngineOptions::default()))
    };
    let (mut plain, mut guessing) = (engine()?, engine()?);
    match given.next() {
        Some(draft) => {
            let (draft, vocab) = runner(&draft, threads)?;
            let draft = Draft::new(draft, &vocab, guessing.vocab(), 6)?;
            guessing.speculate(Speculation::Draft(Box::new(draft)));
        }
        None => guessing.speculate(Speculation::Lookup(LookupSettings::default())),
    }
    println!("text         prompts  repeats  without    with       ratio  guessed  right");
    type Prompt = fn(&str) -> String;
    for (name, prompt, temperature) in
        [("repeating", repeating as Prompt, 0.0), ("new", telling, 0.8), ("new, greedy", telling, 0.0)]
    {
        let (mut without, mut with, mut guessed, mut right, mut repeats) = (0.0, 0.0, 0, 0, 0);
        for subject in SUBJECTS {
            let text = prompt(subject);
            let mut best = [f64::INFINITY; 2];
            for round in 0..2 {
                let (expected, slow) = answer(&mut plain, &text, temperature)?;
                let (found, quick) = answer(&mut guessing, &text, temperature)?;
                assert!(found == expected, "guesses changed the answer to {text:?}");
                best[0] = best[0].min(slow.answer_time.as_secs_f64());
                best[1] = best[1].min(quick.answer_time.as_secs_f64());
                if round == 0 {
                    guessed += quick.guessed_tokens;
                    right += quick.right_guesses;
                    repeats += repeated(&tokens(&plain, &text), &found);
                }
            }
            without += best[0];
            with += best[1];
        }
        let rate = |seconds: f64| ((ANSWER - 1) * SUBJECTS.len()) as f64 / seconds;
        println!(
            "{name:<12} {:>7}  {:>5} %  {:>6.1}/s  {:>6.1}/s  {:>6.2}  {guessed:>7}  {right:>5}",
            SUBJECTS.len(),
            100 * repeats / (ANSWER * SUBJECTS.len()),
            rate(without),
            rate(with),
            without / with
        );
    }
    Ok(())
}
