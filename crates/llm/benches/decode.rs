//! Tokens per second of a model on the CPU: a prompt of 512 tokens, then 128 tokens one by one.
//!
//! `OXCART_SMOLLM2=model.gguf cargo bench -p oxcart-llm --bench decode -- [threads] [repetitions] [cache type]`
#![allow(clippy::print_stdout, reason = "a benchmark")]

use std::error::Error;
use std::time::Instant;

use oxcart_backend::{Device, StreamOptions};
use oxcart_llm::model::{Model, ModelFile, Placement, PlacementOptions};
use oxcart_llm::runner::{AttentionChoice, Piece, Runner, RunnerOptions, SequenceId, Wanted};

/// Seconds that this thread has computed, where the system tells; on a busy machine the only time that means something,
/// as long as there is one thread.
fn computed() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(text.split_whitespace().next()?.parse::<f64>().ok()? * 1e-9)
}

/// Runs something that computes so many tokens, and says how many a second.
fn rate(
    tokens: usize,
    run: impl FnOnce() -> Result<(), Box<dyn Error>>,
) -> Result<(f64, f64), Box<dyn Error>> {
    let (started, before) = (Instant::now(), computed());
    run()?;
    let wall = started.elapsed().as_secs_f64();
    let own = before.zip(computed()).map_or(wall, |(before, after)| after - before);
    Ok((tokens as f64 / wall, tokens as f64 / own))
}

/// Exchanges a sequence for one without tokens.
fn begin_anew(runner: &mut Runner, sequence: &mut SequenceId) -> Result<(), Box<dyn Error>> {
    runner.close(*sequence)?;
    *sequence = runner.open()?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let argument = |index: usize, default: &str| arguments.get(index).cloned().unwrap_or(default.to_owned());
    let Ok(path) = std::env::var("OXCART_SMOLLM2") else {
        println!("skipped: OXCART_SMOLLM2 is not set");
        return Ok(());
    };
    let started = Instant::now();
    let device = oxcart_cpu::CpuDevice::new()?;
    let file = ModelFile::open(path)?;
    let placement = Placement::new(&file, vec![device.clone()], &PlacementOptions::default())?;
    print!("{placement}");
    let model = Model::load(file, placement, &|_| {})?;
    let stream = device.open(&StreamOptions::threads(argument(0, "2").parse()?))?;
    let attention = match argument(3, "auto").as_str() {
        "plain" => AttentionChoice::Plain,
        "flash" => AttentionChoice::Flash,
        _ => AttentionChoice::Auto,
    };
    let options = RunnerOptions {
        context: 1024,
        cache_type: argument(2, "f16").parse()?,
        attention,
        ..RunnerOptions::default()
    };
    let mut runner = Runner::new(model, vec![stream], options)?;
    let mut sequence = runner.open()?;
    println!("loaded in {:.1} ms", started.elapsed().as_secs_f64() * 1e3);
    let vocabulary = runner.model().hyper().vocabulary as u32;
    let prompt: Vec<u32> = (0..512).map(|i| (100 + i * 37 % 20_000) % vocabulary).collect();
    let (mut prompts, mut decodes) = (Vec::new(), Vec::new());
    for round in 0..argument(1, "5").parse()? {
        begin_anew(&mut runner, &mut sequence)?;
        let (prompt_rate, prompt_own) = rate(prompt.len(), || {
            runner.compute(&[Piece { sequence, tokens: &prompt, wanted: Wanted::Last }])?;
            Ok(())
        })?;
        // As llama-bench does: from an empty context.
        begin_anew(&mut runner, &mut sequence)?;
        let (decode_rate, decode_own) = rate(128, || {
            let mut step = |token: u32| -> Result<(), Box<dyn Error>> {
                let tokens = [(1000 + token) % vocabulary];
                runner.compute(&[Piece { sequence, tokens: &tokens, wanted: Wanted::Last }])?;
                Ok(())
            };
            (0..128).try_for_each(&mut step)
        })?;
        println!(
            "round {round}: tokens/s (of this thread's time): pp512 {prompt_rate:.1} ({prompt_own:.1}), \
             tg128 {decode_rate:.1} ({decode_own:.1}); {} graphs so far",
            runner.usage().graphs
        );
        prompts.push(prompt_rate);
        decodes.push(decode_rate);
    }
    for (name, rates) in [("pp512", &mut prompts), ("tg128", &mut decodes)] {
        rates.sort_by(f64::total_cmp);
        println!("{name}: median {:.1} tokens/s", rates[rates.len() / 2]);
    }
    Ok(())
}
