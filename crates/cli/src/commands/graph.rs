//! `oxcart graph`: what a model computes, and where, as a picture.

use std::io::Write;
use std::path::PathBuf;

use oxcart::llm::runner::Wanted;

use crate::failure::Failure;
use crate::loaded::{EngineArgs, Loaded, Opened};
use crate::quantity::counted;
use crate::terminal::Terminal;
use crate::units;

/// Draw what a model computes, and where
///
/// Draws the graph of one step, as it is split over the devices.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    engine: EngineArgs,

    /// Write the picture here; '-' is stdout
    #[arg(long, value_name = "OUT")]
    svg: PathBuf,

    /// Tokens in the step
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = units::whole(1_usize..))]
    tokens: usize,
}

pub(crate) fn run(args: &Args, terminal: Terminal, out: &mut dyn Write) -> Result<(), Failure> {
    let Opened::Ready(loaded) = Loaded::open(&args.engine, terminal, out, false)? else { return Ok(()) };
    let mut sequence = loaded.sequence()?;
    let tokens = vec![0; args.tokens];
    sequence.compute(&tokens, Wanted::Last)?;
    let Some(prepared) = sequence.runner().prepared() else {
        return Err(Failure::Machine("no graph was computed".into()));
    };
    if args.svg.as_os_str() == "-" {
        return Ok(out.write_all(prepared.svg().as_bytes())?);
    }
    std::fs::write(&args.svg, prepared.svg())
        .map_err(|error| Failure::Machine(format!("cannot write {}: {error}", args.svg.display())))?;
    let nodes = counted(prepared.graph().nodes().len(), "node");
    let parts = counted(prepared.splits().len(), "part");
    Ok(writeln!(out, "{}: {nodes} in {parts}", args.svg.display())?)
}
