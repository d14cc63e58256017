//! `oxcart score`: how likely a model finds given tokens, one after another.

use std::io::Write;

use oxcart::llm::runner::{EncoderOptions, Wanted};
use oxcart::llm::text::{Encode, logprob};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::loaded::{EngineArgs, Loaded, Opened};
use crate::printable;
use crate::table::{Align, Cell, Table};
use crate::terminal::Terminal;
use crate::units;

/// Score given tokens
///
/// The first tokens go in as one batch, the others one at a time, as if the model had chosen them. For evaluation tools.
/// Diffusion models see the whole text at once, so every token is scored in place.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The text to score
    #[arg(required_unless_present = "tokens")]
    text: Option<String>,

    /// Tokens to score instead of a text, for example 1,2,3
    #[arg(long, value_name = "IDS", value_delimiter = ',', conflicts_with = "text", value_parser = units::whole(0_u32..))]
    tokens: Vec<u32>,

    #[command(flatten)]
    engine: EngineArgs,

    /// Tokens to compute as one batch
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = units::whole(1_usize..))]
    prompt: usize,

    /// Also print this many of the largest logits at each position, from the last token of the prompt on
    #[arg(long, value_name = "K", default_value_t = 0, value_parser = units::whole(0_usize..))]
    top: usize,

    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args, terminal: Terminal, out: &mut dyn Write) -> Result<(), Failure> {
    let mut tokens = args.tokens.clone();
    let opened = Loaded::open_for(&args.engine, terminal, out, args.json, |file| {
        if let Some(text) = &args.text {
            tokens = file.encode(text, Encode { add_special: true, parse_special: true })?;
        }
        Ok(tokens.len())
    });
    let Opened::Ready(loaded) = opened? else { return Ok(()) };
    let prompt = args.prompt;
    if prompt > tokens.len() {
        return Err(Failure::Usage(format!(
            "--prompt is {prompt}, but must be from 1 to the number of tokens, {}",
            tokens.len()
        )));
    }
    let scores = match loaded.model.hyper().fills_in() {
        true => score_whole(args, &loaded, &tokens)?,
        false => score_onward(args, &loaded, &tokens)?,
    };
    report(args, &loaded, &tokens, &scores, terminal, out)
}

/// Logarithms of probabilities of tokens, and the largest logits at places.
type Scores = (Vec<Option<f32>>, Vec<Vec<(u32, f32)>>);

/// Each token where it stands.
fn score_whole(args: &Args, loaded: &Loaded, tokens: &[u32]) -> Result<Scores, Failure> {
    let width = loaded.model.hyper().vocabulary;
    let mut encoder = loaded.encoder(EncoderOptions::default())?;
    let logits = encoder.logits(tokens).map_err(|error| loaded.failure(error))?;
    let rows = || logits.chunks_exact(width);
    let logprobs = rows().zip(tokens).map(|(row, token)| logprob(row, *token)).collect();
    let tops = rows().skip(args.prompt - 1).filter(|_| args.top > 0).map(|row| largest(row, args.top));
    Ok((logprobs, tops.collect()))
}

/// Each token after those before it.
fn score_onward(args: &Args, loaded: &Loaded, tokens: &[u32]) -> Result<Scores, Failure> {
    let prompt = args.prompt;
    let mut sequence = loaded.sequence()?;
    // Of the prompt itself the first token has no probability: nothing comes before it.
    let (mut logprobs, mut tops) = (vec![None], Vec::new());
    let mut note = |row: &[f32], next: Option<&u32>, is_last: bool| {
        if let Some(next) = next {
            logprobs.push(logprob(row, *next));
        }
        if is_last && args.top > 0 {
            tops.push(largest(row, args.top));
        }
    };
    let wanted = if prompt > 1 { Wanted::From(0) } else { Wanted::Last };
    let logits = sequence.compute(&tokens[..prompt], wanted)?;
    let rows = logits.len();
    for (at, row) in logits.rows().enumerate() {
        note(row, tokens.get(at + 1 + prompt - rows), at + 1 == rows);
    }
    for at in prompt..tokens.len() {
        let logits = sequence.compute(&tokens[at..=at], Wanted::Last)?;
        note(logits.row(0), tokens.get(at + 1), true);
    }
    Ok((logprobs, tops))
}

fn report(
    args: &Args,
    loaded: &Loaded,
    tokens: &[u32],
    (logprobs, tops): &Scores,
    terminal: Terminal,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    if args.json {
        let mut report = json!({ "tokens": tokens, "prompt": args.prompt, "logprobs": logprobs });
        if args.top > 0 {
            report["top"] = Value::from(
                tops.iter()
                    .map(|top| top.iter().map(|(id, logit)| json!([id, logit])).collect())
                    .collect::<Vec<Value>>(),
            );
        }
        return printable::write_json(&report, out);
    }
    let rows = tokens.iter().zip(logprobs).map(|(token, logprob)| {
        let piece = oxcart::gguf::Text::new(loaded.vocab.bytes(*token).unwrap_or_default()).to_string();
        let shown = logprob.map_or_else(|| "-".into(), |logprob| format!("{logprob:.4}"));
        [Cell::plain(token.to_string()), Cell::plain(shown), Cell::plain(format!("'{piece}'"))]
    });
    let columns = [Align::Right, Align::Right, Align::Left];
    Ok(Table { columns, titles: Some(["token", "logprob", "text"]), rows }.write(out, terminal)?)
}

/// The largest logits, largest first; of equal ones, the first token first.
fn largest(row: &[f32], count: usize) -> Vec<(u32, f32)> {
    let mut all: Vec<(u32, f32)> = row.iter().enumerate().map(|(id, logit)| (id as u32, *logit)).collect();
    let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    let count = count.min(all.len());
    if count < all.len() && count > 0 {
        all.select_nth_unstable_by(count - 1, order);
    }
    all.truncate(count);
    all.sort_by(order);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_come_first() {
        assert_eq!(largest(&[0.5, 2.0, -1.0, 2.0], 3), [(1, 2.0), (3, 2.0), (0, 0.5)]);
        assert_eq!(largest(&[1.0], 5), [(0, 1.0)]);
        assert!(largest(&[1.0], 0).is_empty());
    }
}
