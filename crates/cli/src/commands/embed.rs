//! `oxcart embed`: texts as vectors.

use std::io::{self, BufRead, IsTerminal, Write};

use oxcart::llm::model::Pooling;
use oxcart::llm::runner::EncoderOptions;
use oxcart::llm::text::Encode;
use serde_json::json;

use crate::failure::Failure;
use crate::listed::listed;
use crate::loaded::{EngineArgs, Loaded, Opened};
use crate::models;
use crate::printable;
use crate::terminal::Terminal;
use crate::units;

/// Turn texts into embedding vectors
///
/// Uses an embedding model (BERT, EmbeddingGemma and others) and prints one line per text. The default model, nomic-embed, is fetched on first use (139 MiB). A model that ranks texts gives scores instead of vectors.
#[derive(Debug, clap::Args)]
#[command(mut_arg("model", |model| model.default_value(models::DEFAULT_EMBEDDER)))]
pub(crate) struct Args {
    /// The texts; if there are none, each line of stdin is one
    texts: Vec<String>,

    /// Token numbers instead of texts, for example 1,2,3; nothing is added to them
    #[arg(long, value_name = "IDS", value_delimiter = ',', conflicts_with = "texts", value_parser = units::whole(0_u32..))]
    tokens: Vec<u32>,

    #[command(flatten)]
    engine: EngineArgs,

    /// How tokens become one vector: mean, cls or last. By default, as the model file says
    #[arg(long, value_name = "HOW", value_parser = listed(["mean", "cls", "last"], parse_pooling))]
    pooling: Option<Pooling>,

    /// Do not scale vectors to length 1
    #[arg(long)]
    no_normalize: bool,

    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

fn parse_pooling(text: &str) -> Result<Pooling, String> {
    match text {
        "mean" => Ok(Pooling::Mean),
        "cls" => Ok(Pooling::Cls),
        "last" => Ok(Pooling::Last),
        _ => Err("must be mean, cls or last".into()),
    }
}

pub(crate) fn run(args: &Args, terminal: Terminal, out: &mut dyn Write) -> Result<(), Failure> {
    // Before anything is loaded or sent anywhere.
    let opened = Loaded::open_for(&args.engine, terminal, out, args.json, |file| match file.is_encoder {
        true => Ok(0),
        false => Err(Failure::Usage(format!(
            "{} generates text, not embeddings; leave -m out for {}, or name another embedding model",
            args.engine.model.model,
            models::DEFAULT_EMBEDDER
        ))),
    });
    let Opened::Ready(loaded) = opened? else { return Ok(()) };
    let encode = |text: &String| loaded.encode(text, Encode { add_special: true, parse_special: false });
    let texts: Vec<Vec<u32>> = if !args.tokens.is_empty() {
        vec![args.tokens.clone()]
    } else if args.texts.is_empty() {
        read_lines()?.iter().map(encode).collect::<Result<_, _>>()?
    } else {
        args.texts.iter().map(encode).collect::<Result<_, _>>()?
    };
    let mut encoder = loaded.encoder(EncoderOptions { pooling: args.pooling })?;
    let ranks = args.pooling.unwrap_or(loaded.model.hyper().pooling) == Pooling::Rank;
    let mut vectors = Vec::new();
    for tokens in &texts {
        if tokens.is_empty() {
            return Err(Failure::Usage("a text is empty, and the model adds no tokens of its own".into()));
        }
        let found = if ranks { encoder.rank(tokens) } else { encoder.embed(tokens) };
        let mut vector = found.map_err(|error| loaded.failure(error))?.to_vec();
        // The length of a vector means nothing; scores do.
        if !args.no_normalize && !ranks {
            normalize(&mut vector);
        }
        match args.json {
            true => vectors.push(json!({ "tokens": tokens.len(), "embedding": vector })),
            false => {
                let numbers: Vec<String> = vector.iter().map(f32::to_string).collect();
                writeln!(out, "{}", numbers.join(" "))?;
            }
        }
    }
    match args.json {
        true => printable::write_json(&json!({ "embeddings": vectors }), out),
        false => Ok(()),
    }
}

/// Makes a vector 1 long; one of zeros stays as it is.
fn normalize(vector: &mut [f32]) {
    let length = vector.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    }
}

fn read_lines() -> Result<Vec<String>, Failure> {
    if io::stdin().is_terminal() {
        return Err(Failure::Usage("no text was given; try: oxcart embed \"a text\"".into()));
    }
    let lines: Result<Vec<String>, _> = io::stdin().lock().lines().collect();
    lines.map_err(|error| Failure::Usage(format!("cannot read the texts on stdin: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_become_one_long() {
        let mut vector = [3.0, 4.0];
        normalize(&mut vector);
        assert_eq!(vector, [0.6, 0.8]);
        let mut zero = [0.0, 0.0];
        normalize(&mut zero);
        assert_eq!(zero, [0.0, 0.0]);
    }
}
