//! What constraints cost: microseconds to find out which tokens may come next, to take one, and to sample under a mask,
//! against the time of a decode step.
//!
//! `OXCART_SMOLLM2=model.gguf cargo bench -p oxcart-llm --bench constrain -- [vocabulary.gguf]...`
//!
//! The vocabularies are those of the files, of SmolLM2 where it is given, and a made-up one of 128,000 tokens. Answers are
//! babble that follows the grammar. Times are medians, or means without the slowest two in a hundred, so that other programs
//! disturb little.
#![allow(clippy::print_stdout, reason = "a benchmark")]

use std::error::Error;
use std::time::Instant;

use oxcart_backend::{Device, StreamOptions};
use oxcart_gguf::{Builder, Gguf, Header};
use oxcart_llm::model::{Model, ModelFile, Placement, PlacementOptions};
use oxcart_llm::runner::{Piece, Runner, RunnerOptions, Wanted};
use oxcart_llm::text::{Constraints, Grammar, Sampler, SamplerSettings, Token, TokenMask, Vocab};
use serde_json::json;

/// What something gives, and the microseconds that it took.
fn time<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed().as_secs_f64() * 1e6)
}

/// Microseconds of many calls.
#[derive(Default)]
struct Times(Vec<f64>);

impl Times {
    fn at(&mut self, share: f64) -> f64 {
        self.0.sort_by(f64::total_cmp);
        let last = self.0.len().saturating_sub(1);
        self.0.get((last as f64 * share) as usize).copied().unwrap_or_default()
    }

    /// Without the slowest two in a hundred, in which another program had the processor.
    fn mean(&mut self) -> f64 {
        self.at(1.0);
        let kept = self.0.get(..self.0.len() * 98 / 100).unwrap_or_default();
        kept.iter().sum::<f64>() / kept.len().max(1) as f64
    }
}

/// A vocabulary of as many words as asked for, made of syllables, with all bytes.
fn made_up(count: usize) -> Result<Vocab, Box<dyn Error>> {
    let syllables = [
        "ka", "lo", "mi", "ne", "ru", "ta", "shi", "er", "on", "ing", "the", "ex", "pro", "con", "ty", "sch",
        "ä", "ö", "st", "qu", "tr", "ble", "ion", "ous", "ly", "un", "re", "ment", "al", "ic", "o", "i",
        "{\"", "\":", "\",", "1", "20", "_", "(", ");", ".", "</", "=\"", "   ", "\t", "é", "の", "是",
    ];
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).into();
    let mut types = vec![2_i32, 3, 3];
    tokens.extend((0..=255_u8).map(|byte| format!("<0x{byte:02X}>")));
    types.resize(tokens.len(), 6);
    for number in 0.. {
        if tokens.len() == count {
            break;
        }
        let mut word = if number % 2 == 0 { "▁".to_owned() } else { String::new() };
        let mut rest = number / 2 + 1;
        while rest > 0 {
            word.push_str(syllables[(rest - 1) % syllables.len()]);
            rest = (rest - 1) / syllables.len();
        }
        tokens.push(word);
    }
    tokens.sort();
    tokens.dedup();
    types.resize(tokens.len(), 1);
    for (kind, token) in types.iter_mut().zip(&tokens) {
        *kind = match token.as_str() {
            "<unk>" => 2,
            "<s>" | "</s>" => 3,
            byte if byte.starts_with("<0x") => 6,
            _ => 1,
        };
    }
    let end = tokens.iter().position(|token| token == "</s>").unwrap_or_default();
    let mut builder = Builder::new();
    builder
        .set("tokenizer.ggml.model", "llama")
        .set("tokenizer.ggml.scores", vec![0.0_f32; tokens.len()])
        .set("tokenizer.ggml.eos_token_id", end as u32)
        .set(
            "tokenizer.ggml.unknown_token_id",
            tokens.iter().position(|token| token == "<unk>").unwrap_or_default() as u32,
        )
        .set(
            "tokenizer.ggml.bos_token_id",
            tokens.iter().position(|token| token == "<s>").unwrap_or_default() as u32,
        )
        .set("tokenizer.ggml.tokens", tokens)
        .set("tokenizer.ggml.token_type", types);
    let mut file = Vec::new();
    builder.write(&mut file)?;
    Ok(Vocab::from_gguf(&Header::parse(&file)?.metadata())?)
}

fn grammars() -> Vec<(&'static str, Grammar)> {
    let person = json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "maxLength": 40 },
            "age": { "type": "integer", "minimum": 0, "maximum": 130 },
            "email": { "type": "string", "format": "email" },
            "tags": { "type": "array", "items": { "type": "string", "maxLength": 20 }, "maxItems": 5 },
            "kind": { "enum": ["person", "company", "other"] },
            "address": {
                "type": "object",
                "properties": { "street": { "type": "string" }, "zip": { "type": "string", "pattern": "^[0-9]{5}$" } },
                "required": ["street", "zip"],
            },
        },
        "required": ["name", "age", "tags", "kind", "address"],
    });
    let expression = "start: sum\nsum: product ((\"+\" | \"-\") product)*\nproduct: atom ((\"*\" | \"/\") atom)*\n\
                      atom: /[0-9]{1,9}/ | NAME | NAME \"(\" sum (\",\" sum)* \")\" | \"(\" sum \")\"\n\
                      NAME: /[a-z_]{1,20}/\n%ignore / ?/";
    vec![
        ("any JSON object", Grammar::JsonObject),
        ("a schema", Grammar::json_schema(person)),
        ("a regular expression", Grammar::Regex("(?s:.{0,2000})END".into())),
        ("a Lark grammar", Grammar::Lark(expression.into())),
    ]
}

/// Numbers that look random.
fn noise(state: &mut u64) -> f32 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 40) as f32 / (1 << 24) as f32
}

fn measure(name: &str, vocab: &Vocab, step: Option<f64>) -> Result<(), Box<dyn Error>> {
    let (constraints, preparing) = time(|| Constraints::new(vocab));
    let constraints = constraints?;
    println!("{name}: {} tokens, prepared in {:.0} ms", vocab.len(), preparing / 1e3);
    let mut state = 1;
    let mut logits: Vec<f32> = (0..vocab.len()).map(|_| 10.0 * noise(&mut state)).collect();
    let mut plain = Sampler::new(SamplerSettings::default())?;
    let mut plainly = Times::default();
    for _ in 0..100 {
        plainly.0.push(time(|| plain.sample(&logits)).1);
    }
    println!("  sampling without a mask: {:.0} us", plainly.at(0.5));
    for (what, grammar) in grammars() {
        let (first, compiling) = time(|| constraints.compile(&grammar));
        let (again, finding) = time(|| constraints.compile(&grammar));
        let (mut masks, mut accepts, mut samples) = (Times::default(), Times::default(), Times::default());
        let mut mask = TokenMask::default();
        // The first answers find out what the others then know.
        for (round, begin) in [first?, again?].into_iter().cycle().take(12).enumerate() {
            let mut constraint = begin.clone();
            let mut sampler =
                Sampler::new(SamplerSettings { seed: round as u64, ..SamplerSettings::default() })?;
            for _ in 0..200 {
                if constraint.must_end() {
                    break;
                }
                for _ in 0..vocab.len() / 8 {
                    let at = (noise(&mut state) * logits.len() as f32) as usize % logits.len();
                    logits[at] = 10.0 * noise(&mut state);
                }
                let (found, mask_time) = time(|| constraint.mask(&mut mask));
                found?;
                let (choice, sample_time) = time(|| sampler.sample_masked(&logits, &mask));
                let token: Token = choice?.token;
                let (accepted, accept_time) = time(|| constraint.accept(token));
                accepted?;
                if round >= 2 {
                    masks.0.push(mask_time);
                    samples.0.push(sample_time);
                    accepts.0.push(accept_time);
                }
            }
        }
        let cost = masks.mean() + accepts.mean() + (samples.at(0.5) - plainly.at(0.5)).max(0.0);
        let share =
            step.map_or_else(String::new, |step| format!(", {:.2} % of a decode step", cost / step * 100.0));
        println!(
            "  {what}: compiled in {:.1} ms, found again in {finding:.0} us; mask {:.0} us (median {:.0}, 99 % {:.0}), \
             accept {:.0} us, masked sampling {:.0} us: {cost:.0} us a token{share}",
            compiling / 1e3,
            masks.mean(),
            masks.at(0.5),
            masks.at(0.99),
            accepts.mean(),
            samples.at(0.5),
        );
    }
    Ok(())
}

/// Microseconds of a decode step on two threads.
fn decode_step(path: &str) -> Result<f64, Box<dyn Error>> {
    let device = oxcart_cpu::CpuDevice::new()?;
    let file = ModelFile::open(path)?;
    let placement = Placement::new(&file, vec![device.clone()], &PlacementOptions::default())?;
    let model = Model::load(file, placement, &|_| {})?;
    let stream = device.open(&StreamOptions::threads(2))?;
    let mut runner =
        Runner::new(model, vec![stream], RunnerOptions { context: 512, ..RunnerOptions::default() })?;
    let sequence = runner.open()?;
    let mut step = |token: u32| {
        let piece = Piece { sequence, tokens: &[1000 + token], wanted: Wanted::Last };
        runner.compute(&[piece]).map(|_| ())
    };
    (0..8).try_for_each(&mut step)?;
    let mut times = Times::default();
    for token in 0..64 {
        let (done, took) = time(|| step(token));
        done?;
        times.0.push(took);
    }
    Ok(times.at(0.5))
}

fn main() -> Result<(), Box<dyn Error>> {
    let files = std::env::args().skip(1).filter(|argument| !argument.starts_with('-'));
    for file in files {
        measure(&file, &Vocab::from_gguf(&Gguf::open(&file)?.metadata())?, None)?;
    }
    match std::env::var("OXCART_SMOLLM2") {
        Err(_) => println!("skipped: OXCART_SMOLLM2 is not set"),
        Ok(path) => {
            let step = decode_step(&path)?;
            println!("a decode step of SmolLM2 on two threads: {step:.0} us");
            measure("SmolLM2", &Vocab::from_gguf(&Gguf::open(&path)?.metadata())?, Some(step))?;
        }
    }
    measure("made up", &made_up(128_000)?, None)
}
