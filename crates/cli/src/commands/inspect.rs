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
use crate::models::{self, MirrorArgs};
use crate::terminal::Terminal;
use summary::Summary;

/// Show what is in a model file
///
/// Reads the header only. Of a model that is split over several files, give the first.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The model: a file (the first, if it is split), or a name as for --model
    #[arg(value_name = "MODEL")]
    file: PathBuf,

    #[command(flatten)]
    mirror: MirrorArgs,

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
    let path = models::existing_or_fetched(&args.file, &args.mirror)?;
    let model = GgufSet::open(&path).map_err(|error| Failure::model(&path, error))?;
    let summary = Summary::of(&model);
    if args.json {
        json::write(&summary, args.tensors, args.full, out)?;
    } else {
        human::write(&summary, args.tensors, terminal, out)?;
    }
    Ok(())
}

/// What a person wants to know first about a model.
pub(crate) fn write_short(model: &GgufSet, terminal: Terminal, out: &mut dyn Write) -> Result<(), Failure> {
    Ok(human::write_short(&Summary::of(model), terminal, out)?)
}
