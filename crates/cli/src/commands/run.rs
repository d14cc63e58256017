//! `oxcart run`: one prompt, one answer.

use std::io::{self, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use oxcart::llm::engine::{AtLimit, End, Engine, Request};
use oxcart::llm::text::{Encode, Message};
use serde_json::{Value, json};

use crate::conversation;
use crate::failure::Failure;
use crate::form::FormArgs;
use crate::generation::{Answered, LengthArgs, Limit, SamplerArgs, answer, room_for_more, summary};
use crate::loaded::{EngineArgs, Loaded, Opened, Unloaded};
use crate::plan::placement_report;
use crate::printable;
use crate::speculation::SpeculationArgs;
use crate::terminal::Terminal;
use crate::wrap::Wrap;

/// Answer a prompt
///
/// The default model, smollm2, is fetched on first use (94 MiB). The answer is written to stdout as it comes, timings to stderr.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Args {
    /// The prompt; '-', or none at all, reads it from stdin
    prompt: Option<String>,

    /// The same as an option, as llama.cpp has it.
    #[arg(short = 'p', long = "prompt", value_name = "TEXT", hide = true, conflicts_with_all = ["prompt", "file"], allow_hyphen_values = true)]
    prompt_option: Option<String>,

    /// Read the prompt from this file
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompt")]
    file: Option<PathBuf>,

    #[command(flatten)]
    engine: EngineArgs,

    #[command(flatten)]
    sampler: SamplerArgs,

    #[command(flatten)]
    form: FormArgs,

    #[command(flatten)]
    speculation: SpeculationArgs,

    #[command(flatten)]
    length: LengthArgs,

    /// Continue the prompt as plain text instead of answering it as a message
    #[arg(long)]
    raw: bool,

    /// System prompt: instructions that the model follows throughout
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    system: Option<String>,

    /// Stop before this text would appear in the answer; may be repeated
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,

    /// When the context is full, drop its older half instead of stopping
    #[arg(long)]
    shift: bool,

    /// Print one JSON object at the end instead of text
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "Examples:
  oxcart run \"Why is the sky blue?\"
  oxcart run --regex \"(yes|no)\" \"Is the sky blue?\"
      Only yes or no; see also --json-schema and --grammar
  oxcart run --workers local:3 \"Why is the sky blue?\"
      The same over three workers on this machine, to try it out
  oxcart run -m model.gguf --workers 192.168.1.5:50052,192.168.1.6:50052 \"…\"
      A model too large for any one of three machines
  oxcart run -m model.gguf --workers 192.168.1.5:50052 --plan
      Show which machine would get what";

pub(crate) fn run(args: &Args, terminal: Terminal, out: &mut dyn Write) -> Result<(), Failure> {
    let given = args.prompt.as_ref().or(args.prompt_option.as_ref()).map(String::as_str);
    let prompt_on_stdin = matches!(given, None | Some("-")) && args.file.is_none();
    if prompt_on_stdin && args.form.reads_stdin() {
        return Err(Failure::Usage("the schema and the prompt cannot both come from stdin".into()));
    }
    let form = args.form.read()?;
    // Before the model is loaded, which may take a while.
    let in_file = args.file.as_deref().map(read_file).transpose()?;
    let mut tokens = Vec::new();
    let opened = Loaded::open_for(&args.engine, terminal, out, args.json, |file| {
        let text = match (in_file, given) {
            (Some(text), _) => text,
            // A plan needs no prompt.
            (None, None | Some("-")) if args.engine.plan => return Ok(0),
            (None, None | Some("-")) => read_prompt()?,
            (None, Some(prompt)) => prompt.to_owned(),
        };
        tokens = prompt_tokens(args, &text, file)?;
        let answer = if args.length.n == Limit::NONE { 0 } else { args.length.n.0 };
        Ok(tokens.len().saturating_add(answer))
    });
    let Opened::Ready(mut loaded) = opened? else { return Ok(()) };
    let mut engine = loaded.engine(None)?;
    args.speculation.apply(&mut engine, &args.engine, terminal, out)?;
    let at_limit = match args.shift {
        true => AtLimit::Shift { keep: tokens.len().min(64), exact: false },
        false => AtLimit::End,
    };
    let request = Request {
        sampler: args.sampler.settings(&loaded.vocab),
        limit: args.length.n.0,
        stop: args.stop.clone(),
        constraint: form.map(|form| form.compile(&mut engine)).transpose()?,
        ignore_end: args.length.ignore_eos,
        at_limit,
        ..Request::new(tokens.clone())
    };
    // A file or another program gets the answer as it is.
    let mut wrap = Terminal::width().map(|_| Wrap::default());
    let answered = answer(&loaded, &mut engine, request, |text| {
        if !args.json && !text.is_empty() {
            match &mut wrap {
                Some(wrap) => {
                    // A window may be made wider or narrower at any time.
                    wrap.set_width(Terminal::width());
                    wrap.push(text, out)?;
                }
                None => out.write_all(text.as_bytes())?,
            }
            out.flush()?;
        }
        Ok(())
    });
    wrap.map_or(Ok(()), |mut wrap| wrap.end_word(out))?;
    let answered = answered?;
    if args.json {
        return printable::write_json(&report(&loaded, &engine, &tokens, &answered), out);
    }
    writeln!(out)?;
    out.flush()?;
    tracing::info!("{}", line(&loaded, &answered));
    if answered.end == End::Context {
        let (context, trained) = (engine.runner().options().context, loaded.model.hyper().context);
        tracing::warn!(
            "the answer ended because the context of {context} tokens is full: use {}, or --shift to drop the older half and go on",
            room_for_more(context, trained)
        );
    }
    Ok(())
}

/// The prompt as the model is to read it.
fn prompt_tokens(args: &Args, text: &str, file: &Unloaded<'_>) -> Result<Vec<u32>, Failure> {
    // A model without a template was never taught to answer.
    let tokens = if args.raw || !conversation::has_template(file)? {
        file.encode(text, Encode { add_special: true, parse_special: true })?
    } else if text.trim().is_empty() {
        // Models answer nothing at length.
        return Err(Failure::Usage("the prompt is empty; try: oxcart run \"Why is the sky blue?\"".into()));
    } else {
        let mut messages = Vec::new();
        messages.extend(args.system.as_ref().map(|system| Message::new("system", system)));
        messages.push(Message::new("user", text));
        conversation::prompt(file, &messages)?
    };
    match tokens.is_empty() {
        true => Err(Failure::Usage("the prompt is empty".into())),
        false => Ok(tokens),
    }
}

fn read_file(path: &Path) -> Result<String, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::Usage(format!("cannot read the prompt in {}: {error}", path.display())))?;
    Ok(text.trim_end_matches('\n').to_owned())
}

fn read_prompt() -> Result<String, Failure> {
    if io::stdin().is_terminal() {
        return Err(Failure::Usage("no prompt was given; try: oxcart run \"Why is the sky blue?\"".into()));
    }
    let mut text = String::new();
    io::stdin()
        .read_to_string(&mut text)
        .map_err(|error| Failure::Usage(format!("cannot read the prompt on stdin: {error}")))?;
    Ok(text.trim_end_matches('\n').to_owned())
}

/// `prompt 36 tokens, 210 per second; answer 58 tokens, 41 per second (stop); loaded in 0.02 s, first token after 0.31 s`
fn line(loaded: &Loaded, answered: &Answered) -> String {
    format!(
        "{} ({}); loaded in {:.2} s, first token after {:.2} s",
        summary(&answered.report),
        answered.end.name(),
        loaded.load.as_secs_f64(),
        answered.report.prompt_time.as_secs_f64(),
    )
}

fn report(loaded: &Loaded, engine: &Engine, prompt: &[u32], answered: &Answered) -> Value {
    let milliseconds = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    let (traffic, report) = (loaded.workers.traffic(), &answered.report);
    json!({
        "model": loaded.path.to_string_lossy(),
        "prompt_tokens": prompt,
        "tokens": answered.tokens,
        "text": answered.text,
        "end": answered.end.name(),
        "timings": {
            "load_ms": milliseconds(loaded.load),
            "first_token_ms": milliseconds(report.prompt_time),
            "prompt_ms": milliseconds(report.prompt_time),
            "decode_ms": milliseconds(report.answer_time),
            "prompt_per_second": report.prompt_rate(),
            "decode_per_second": report.answer_rate(),
        },
        "guesses": { "computed": report.guessed_tokens, "right": report.right_guesses },
        "placement": placement_report(engine.runner().model(), &loaded.workers),
        "traffic": { "sent_bytes": traffic.sent, "received_bytes": traffic.received, "round_trips": traffic.waits },
    })
}
