//! `oxcart graph`: what a model computes, and where, as a picture.

use std::io::Write;
use std::path::PathBuf;

use oxcart::llm::model::{AtLimit, Wanted};

use crate::engine::{Engine, EngineArgs, Opened};
use crate::failure::Failure;
use crate::terminal::Terminal;

/// Draw what a model computes and where
///
/// The graph of one step, as it is split over the devices.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    engine: EngineArgs,

    /// Write the picture here
    #[arg(long, value_name = "OUT")]
    svg: PathBuf,

    /// Tokens of the step
    #[arg(long, value_name = "N", default_value_t = 1)]
    tokens: usize,
}

pub(crate) fn run(args: &Args, terminal: Terminal, out: &mut dyn Write) -> Result<(), Failure> {
    let Opened::Ready(engine) = Engine::open(&args.engine, terminal, out, false)? else { return Ok(()) };
    let mut context = engine.context(AtLimit::Refuse)?;
    let tokens = vec![0; args.tokens.max(1)];
    context.evaluate(&tokens, Wanted::Last).map_err(|error| engine.failure(error))?;
    let Some(prepared) = context.prepared() else {
        return Err(Failure::Machine("no graph was computed".into()));
    };
    std::fs::write(&args.svg, prepared.svg())
        .map_err(|error| Failure::Machine(format!("cannot write {}: {error}", args.svg.display())))?;
    let (nodes, splits) = (prepared.graph().nodes().len(), prepared.splits().len());
    Ok(writeln!(out, "{}: {nodes} nodes in {splits} parts", args.svg.display())?)
}
