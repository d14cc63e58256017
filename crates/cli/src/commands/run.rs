//! `oxcart run`: one prompt, one answer.

use std::io::{self, IsTerminal, Read, Write};

use oxcart::llm::model::AtLimit;
use oxcart::llm::text::{Encode, Message};
use serde_json::{Value, json};

use crate::conversation;
use crate::engine::{Engine, EngineArgs, Opened};
use crate::failure::Failure;
use crate::generation::{Generated, Request, SamplerArgs, generate};
use crate::printable;
use crate::terminal::{Terminal, Tone};

/// Answer a prompt
///
/// The first time the default model, smollm2, is fetched (94 MB). The answer goes to stdout as it comes; how fast it was,
/// to stderr.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// What to answer; '-' or nothing reads it from stdin
    prompt: Option<String>,

    #[command(flatten)]
    engine: EngineArgs,

    #[command(flatten)]
    sampler: SamplerArgs,

    /// Tokens at most
    #[arg(short, long, value_name = "N", default_value_t = 512)]
    n: usize,

    /// Go on from the prompt as it is, instead of answering it as a message
    #[arg(long)]
    raw: bool,

    /// Tell the model beforehand what it is
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    system: Option<String>,

    /// End the answer before this text; may be repeated
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,

    /// Go on after tokens that end an answer
    #[arg(long)]
    ignore_eos: bool,

    /// When the context is full, forget the older half of it instead of stopping
    #[arg(long)]
    shift: bool,

    /// Print one JSON object at the end instead of text
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "Examples:
  oxcart run \"Why is the sky blue?\"
  oxcart run --workers local:3 \"Why is the sky blue?\"
      The same on three workers of this machine, to see how it works
  oxcart run -m model.gguf --workers 192.168.1.5:50052,192.168.1.6:50052 \"…\"
      A model that fits on none of three machines
  oxcart run -m model.gguf --workers 192.168.1.5:50052 --plan
      Which machine would get what";

pub(crate) fn run(args: &Args, terminal: Terminal, out: &mut dyn Write) -> Result<(), Failure> {
    let Opened::Ready(engine) = Engine::open(&args.engine, terminal, out, args.json)? else { return Ok(()) };
    let text = match args.prompt.as_deref() {
        None | Some("-") => read_prompt()?,
        Some(prompt) => prompt.to_owned(),
    };
    // A model without a template was never taught to answer.
    let tokens = if args.raw || !conversation::has_template(&engine)? {
        engine.vocab.encode(&text, Encode { add_special: true, parse_special: true })
    } else {
        let mut messages = Vec::new();
        messages.extend(args.system.as_ref().map(|system| Message::new("system", system)));
        messages.push(Message::new("user", &text));
        conversation::prompt(&engine, &conversation::template(&engine)?, &messages)?
    };
    if tokens.is_empty() {
        return Err(Failure::Usage("the prompt is empty".into()));
    }
    let at_limit = if args.shift { AtLimit::Shift { keep: tokens.len().min(64) } } else { AtLimit::Refuse };
    let mut context = engine.context(at_limit)?;
    let mut sampler = args.sampler.sampler(&engine.vocab)?;
    let request = Request {
        prompt: &tokens,
        limit: args.n,
        stop: &args.stop,
        ignore_end: args.ignore_eos,
        shifts: args.shift,
    };
    let made = generate(&engine, &mut context, &mut sampler, &request, |text| {
        if !args.json && !text.is_empty() {
            out.write_all(text.as_bytes())?;
            out.flush()?;
        }
        Ok(())
    })?;
    if args.json {
        return printable::write_json(&report(&engine, &tokens, &made), out);
    }
    writeln!(out)?;
    out.flush()?;
    let line = summary(&engine, &made);
    let shown = Terminal { colour: terminal.colour && io::stderr().is_terminal() };
    // If nobody can hear how fast it was, the answer is there all the same.
    let _ = writeln!(io::stderr(), "{}", shown.paint(&line, Tone::Dim));
    Ok(())
}

fn read_prompt() -> Result<String, Failure> {
    if io::stdin().is_terminal() {
        return Err(Failure::Usage("there is no prompt: oxcart run \"Why is the sky blue?\"".into()));
    }
    let mut text = String::new();
    io::stdin()
        .read_to_string(&mut text)
        .map_err(|error| Failure::Usage(format!("the prompt on stdin cannot be read: {error}")))?;
    Ok(text.trim_end_matches('\n').to_owned())
}

/// `prompt 36 tokens, 210 per second; answer 58 tokens, 41 per second (stop); loaded in 0.02 s, first token after 0.31 s`
fn summary(engine: &Engine, made: &Generated) -> String {
    format!(
        "{} ({}); loaded in {:.2} s, first token after {:.2} s",
        made.speed.summary(made.tokens.len()),
        made.end.name(),
        engine.load.as_secs_f64(),
        made.first.as_secs_f64(),
    )
}

fn report(engine: &Engine, prompt: &[u32], made: &Generated) -> Value {
    let milliseconds = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    let traffic = engine.workers.traffic();
    json!({
        "model": engine.path.to_string_lossy(),
        "prompt_tokens": prompt,
        "tokens": made.tokens,
        "text": made.text,
        "end": made.end.name(),
        "timings": {
            "load_ms": milliseconds(engine.load),
            "first_token_ms": milliseconds(made.first),
            "prompt_ms": milliseconds(made.speed.prompt),
            "decode_ms": milliseconds(made.speed.decode),
            "prompt_per_second": made.speed.prompt_rate(),
            "decode_per_second": made.speed.decode_rate(),
        },
        "placement": engine.placement(),
        "traffic": { "sent_bytes": traffic.sent, "received_bytes": traffic.received, "round_trips": traffic.waits },
    })
}
