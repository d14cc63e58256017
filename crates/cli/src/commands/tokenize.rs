//! `oxcart tokenize`: text as the tokens of a model.

use std::io::Write;

use oxcart::gguf::Text;
use oxcart::llm::text::{Encode, Vocab};
use serde_json::json;

use crate::failure::Failure;
use crate::loaded::{ModelArgs, encode};
use crate::printable;
use crate::table::{Align, Cell, Table};
use crate::terminal::Terminal;

/// Show the tokens of a text
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// The text
    text: String,

    /// Do not add the tokens that begin and end a text
    #[arg(long)]
    no_special: bool,

    /// Read names of special tokens in the text as those tokens
    #[arg(long)]
    parse_special: bool,

    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args, terminal: Terminal, out: &mut dyn Write) -> Result<(), Failure> {
    let path = args.model.path()?;
    // Only the vocabulary is needed: files without weights will do.
    let file = oxcart::gguf::GgufSet::open(&path).map_err(|error| Failure::model(&path, error))?;
    let vocab = Vocab::from_gguf(&file.metadata()).map_err(|error| Failure::vocabulary(&path, &error))?;
    let options = Encode { add_special: !args.no_special, parse_special: args.parse_special };
    let tokens = encode(&vocab, &path, &args.text, options)?;
    if args.json {
        let pieces: Vec<String> = tokens
            .iter()
            .map(|token| String::from_utf8_lossy(vocab.bytes(*token).unwrap_or_default()).into_owned())
            .collect();
        return printable::write_json(&json!({ "tokens": tokens, "pieces": pieces }), out);
    }
    let rows = tokens.iter().map(|token| {
        let piece = Text::new(vocab.bytes(*token).unwrap_or_default()).to_string();
        [Cell::plain(token.to_string()), Cell::plain(format!("'{piece}'"))]
    });
    Ok(Table { columns: [Align::Right, Align::Left], titles: None, rows }.write(out, terminal)?)
}
