//! `oxcart perplexity`: how well a model predicts a text.

use std::io::Write;
use std::path::PathBuf;

use oxcart::llm::model::limits::MAX_CONTEXT;
use oxcart::llm::runner::Wanted;
use oxcart::llm::text::logprob;
use serde_json::json;

use crate::failure::Failure;
use crate::loaded::{EngineArgs, Loaded, Opened};
use crate::printable;
use crate::progress::Progress;
use crate::quantity::counted;
use crate::terminal::Terminal;
use crate::text_windows::{CTX_HELP, LEAST_WINDOW, TextWindows, WINDOW, read_text};
use crate::units;

/// Measure how well a model predicts a text
///
/// The text is cut into windows of --ctx tokens, of which the second half is scored. Lower is better.
#[derive(Debug, clap::Args)]
#[command(mut_arg("ctx", |ctx| ctx.help(CTX_HELP).value_parser(units::whole(LEAST_WINDOW..=MAX_CONTEXT))))]
pub(crate) struct Args {
    #[command(flatten)]
    engine: EngineArgs,

    /// File with the text
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,

    /// Score at most this many windows
    #[arg(long, value_name = "N", value_parser = units::whole(1_usize..))]
    chunks: Option<usize>,

    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args, terminal: Terminal, out: &mut dyn Write) -> Result<(), Failure> {
    let mut settings = args.engine.clone();
    let window = *settings.ctx.get_or_insert(WINDOW);
    let text = read_text(&args.file)?;
    let Opened::Ready(loaded) = Loaded::open(&settings, terminal, out, args.json)? else { return Ok(()) };
    let windows = TextWindows::cut(&loaded, &text, window, args.chunks)?;
    let count = windows.len();
    let mut sequence = loaded.sequence()?;
    let mut progress = Progress::counting("windows");
    let (mut sum, mut squares, mut scored, mut after) = (0f64, 0f64, 0usize, Vec::new());
    for (at, tokens) in windows.iter().enumerate() {
        sequence.clear()?;
        let first = window / 2;
        sequence.compute(&tokens[..first], Wanted::None)?;
        let logits = sequence.compute(&tokens[first..], Wanted::From(0))?;
        for (row, next) in logits.rows().zip(&tokens[first + 1..]) {
            let loss = -f64::from(logprob(row, *next).unwrap_or(f32::NAN));
            sum += loss;
            squares += loss * loss;
            scored += 1;
        }
        after.push((sum / scored as f64).exp());
        if !args.json {
            progress.set(at as u64 + 1, Some(count as u64));
        }
    }
    progress.finish();
    let mean = sum / scored as f64;
    let perplexity = mean.exp();
    let variance = (squares / scored as f64 - mean * mean).max(0.0);
    let uncertainty = (variance / (scored.max(2) - 1) as f64).sqrt() * perplexity;
    if !perplexity.is_finite() {
        return Err(Failure::Machine(
            "the model gave results that are not numbers; its weights may be damaged".into(),
        ));
    }
    if args.json {
        let report = json!({
            "perplexity": perplexity,
            "uncertainty": uncertainty,
            "windows": count,
            "ctx": window,
            "tokens": windows.tokens,
            "scored": scored,
            "after_window": after,
        });
        return printable::write_json(&report, out);
    }
    let windows = counted(count, "window");
    Ok(writeln!(out, "{perplexity:.4} +/- {uncertainty:.4} over {windows} of {window} tokens")?)
}
