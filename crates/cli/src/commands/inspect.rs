//! `oxcart inspect`: what is in a model file.
//!
//! Only the header is read, so the answer comes at once whatever the size of the model.

mod human;
mod json;
mod summary;

use std::io::Write;
use std::path::PathBuf;

use oxcart::gguf::GgufSet;

use crate::failure::Failure;
use crate::terminal::Terminal;
use summary::Summary;

/// Show what is in a GGUF model file
///
/// Reads the header only. Of a model that is split over several files, give the first.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The model, or the first of its files
    file: PathBuf,

    /// List every tensor
    #[arg(long)]
    tensors: bool,

    /// Print one JSON object instead of text (described in docs/inspect.md)
    #[arg(long)]
    json: bool,

    /// With --json, print every element of long arrays
    #[arg(long, requires = "json")]
    full: bool,
}

pub(crate) fn run(args: &Args, terminal: Terminal, out: &mut dyn Write) -> Result<(), Failure> {
    let model = GgufSet::open(&args.file).map_err(|error| Failure::model(&args.file, error))?;
    let summary = Summary::of(&model);
    if args.json {
        json::write(&summary, args.tensors, args.full, out)?;
    } else {
        human::write(&summary, args.tensors, terminal, out)?;
    }
    Ok(())
}
