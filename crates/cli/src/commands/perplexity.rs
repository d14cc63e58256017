//! `oxcart perplexity`: how well a model predicts a text.

use std::io::Write;
use std::path::PathBuf;

use oxcart::llm::runner::Wanted;
use oxcart::llm::text::{Encode, logprob};
use serde_json::json;

use crate::failure::Failure;
use crate::loaded::{EngineArgs, Loaded, Opened};
use crate::printable;
use crate::progress::Progress;
use crate::terminal::Terminal;

/// Measure how well a model predicts a text
///
/// The text is cut into windows of --ctx tokens, of which the second half is scored. Lower is better.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    engine: EngineArgs,

    /// File with the text
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,

    /// Score at most this many windows
    #[arg(long, value_name = "N")]
    chunks: Option<usize>,

    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// Tokens of a window, unless --ctx says otherwise.
const WINDOW: usize = 512;

pub(crate) fn run(args: &Args, terminal: Terminal, out: &mut dyn Write) -> Result<(), Failure> {
    let mut settings = args.engine.clone();
    let window = *settings.ctx.get_or_insert(WINDOW);
    let text = std::fs::read(&args.file)
        .map_err(|error| Failure::Usage(format!("{}: {error}, check the path", args.file.display())))?;
    let Opened::Ready(loaded) = Loaded::open(&settings, terminal, out, args.json)? else { return Ok(()) };
    let text = text.strip_suffix(b"\n").unwrap_or(&text);
    let tokens = loaded.encode(text, Encode { add_special: true, parse_special: false })?;
    let count = (tokens.len() / window.max(1)).min(args.chunks.unwrap_or(usize::MAX));
    if window < 4 || count == 0 {
        return Err(Failure::Usage(format!(
            "the text has {} tokens, which is less than one window of {window}",
            tokens.len()
        )));
    }
    let mut sequence = loaded.sequence()?;
    let mut progress = Progress::counting("windows");
    let (mut sum, mut squares, mut scored, mut after) = (0f64, 0f64, 0usize, Vec::new());
    for (at, window_tokens) in tokens.chunks_exact(window).take(count).enumerate() {
        sequence.clear()?;
        let mut window_tokens = window_tokens.to_vec();
        // Every window begins like a text of its own.
        if let Some(bos) = loaded.vocab.special().bos.filter(|_| loaded.vocab.adds_bos()) {
            window_tokens[0] = bos;
        }
        let first = window / 2;
        sequence.compute(&window_tokens[..first], Wanted::None)?;
        let logits = sequence.compute(&window_tokens[first..], Wanted::From(0))?;
        for (row, next) in logits.rows().zip(&window_tokens[first + 1..]) {
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
            "tokens": tokens.len(),
            "scored": scored,
            "after_window": after,
        });
        return printable::write_json(&report, out);
    }
    Ok(writeln!(out, "{perplexity:.4} +/- {uncertainty:.4} over {count} windows of {window} tokens")?)
}
