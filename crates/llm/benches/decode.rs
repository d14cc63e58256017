//! Tokens per second of a model on the CPU: a prompt of 512 tokens, then 128 tokens one by one.
//!
//! `OXCART_SMOLLM2=model.gguf cargo bench -p oxcart-llm --bench decode -- [threads] [repetitions] [cache type]`
#![allow(clippy::print_stdout, reason = "a benchmark")]

use std::error::Error;
use std::time::Instant;

use oxcart_backend::Device;
use oxcart_llm::model::{AttentionChoice, Context, ContextOptions, Model, ModelFile, Plan, PlanOptions, Wanted};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let argument = |index: usize, default: &str| arguments.get(index).cloned().unwrap_or(default.to_owned());
    let Ok(path) = std::env::var("OXCART_SMOLLM2") else {
        println!("skipped: OXCART_SMOLLM2 is not set");
        return Ok(());
    };
    let started = Instant::now();
    let device = oxcart_cpu::CpuDevice::new()?;
    let file = ModelFile::open(path)?;
    let plan = Plan::new(&file, vec![device.clone()], &PlanOptions::default())?;
    print!("{plan}");
    let model = Model::load(file, plan, &|_| {})?;
    let backend = device.open(&format!("threads={}", argument(0, "2")))?;
    let attention = match argument(3, "auto").as_str() {
        "plain" => AttentionChoice::Plain,
        "flash" => AttentionChoice::Flash,
        _ => AttentionChoice::Auto,
    };
    let options = ContextOptions {
        context: 1024,
        cache_type: argument(2, "f16").parse()?,
        attention,
        ..ContextOptions::default()
    };
    let mut context = Context::new(model, vec![backend], options)?;
    println!("loaded in {:.1} ms", started.elapsed().as_secs_f64() * 1e3);
    let prompt: Vec<u32> = (0..512).map(|i| 100 + i * 37 % 20_000).collect();
    let (mut prompts, mut decodes) = (Vec::new(), Vec::new());
    for round in 0..argument(1, "5").parse()? {
        context.reset();
        context.reset_timings();
        let started = Instant::now();
        context.evaluate(&prompt, Wanted::Last)?;
        let prompt_rate = prompt.len() as f64 / started.elapsed().as_secs_f64();
        // As llama-bench does: from an empty context.
        context.reset();
        let started = Instant::now();
        for token in 0..128 {
            context.evaluate(&[1000 + token], Wanted::Last)?;
        }
        let decode_rate = 128.0 / started.elapsed().as_secs_f64();
        let timings = context.timings();
        let preparing = timings.preparing.as_secs_f64() * 1e3;
        println!(
            "round {round}: pp512 {prompt_rate:.1} tokens/s, tg128 {decode_rate:.1} tokens/s, {} graphs in {preparing:.2} ms",
            timings.graphs
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
