//! The `oxcart` command: arguments in, exit code out. Everything it does lives in the libraries; everything it says
//! lives in `commands`, one file per command.
//!
//! Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 the work failed, 2 wrong usage or bad input.
#![forbid(unsafe_code)]

mod cluster;
mod commands;
mod conversation;
mod door;
mod failure;
mod form;
mod generation;
mod limits;
mod loaded;
mod local;
mod models;
mod os;
mod printable;
mod progress;
mod quantity;
mod speculation;
mod table;
mod terminal;
mod units;
mod workers;

use std::io::{BufWriter, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::failure::Failure;
use crate::terminal::Terminal;

/// Run one model on the machines you own.
#[derive(Debug, Parser)]
#[command(name = "oxcart", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<commands::run::Args>),
    Chat(Box<commands::chat::Args>),
    Serve(Box<commands::serve::Args>),
    Top(commands::top::Args),
    Worker(commands::worker::Args),
    Devices(commands::devices::Args),
    Pull(commands::pull::Args),
    Bench(Box<commands::bench::Args>),
    Inspect(commands::inspect::Args),
    Tokenize(commands::tokenize::Args),
    Score(Box<commands::score::Args>),
    Perplexity(Box<commands::perplexity::Args>),
    Embed(Box<commands::embed::Args>),
    Quantize(commands::quantize::Args),
    Graph(Box<commands::graph::Args>),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let terminal = Terminal::from_env();
    let mut out = BufWriter::new(door::stdout());
    let outcome = match cli.command {
        Command::Run(args) => commands::run::run(&args, terminal, &mut out),
        Command::Chat(args) => commands::chat::run(&args, terminal, &mut out),
        Command::Serve(args) => commands::serve::run(&args, terminal, &mut out),
        Command::Top(args) => commands::top::run(&args, &mut out),
        Command::Worker(args) => commands::worker::run(&args),
        Command::Devices(args) => commands::devices::run(&args, terminal, &mut out),
        Command::Pull(args) => commands::pull::run(&args, &mut out),
        Command::Bench(args) => commands::bench::run(&args, terminal, &mut out),
        Command::Inspect(args) => commands::inspect::run(&args, terminal, &mut out),
        Command::Tokenize(args) => commands::tokenize::run(&args, terminal, &mut out),
        Command::Score(args) => commands::score::run(&args, terminal, &mut out),
        Command::Perplexity(args) => commands::perplexity::run(&args, terminal, &mut out),
        Command::Embed(args) => commands::embed::run(&args, terminal, &mut out),
        Command::Quantize(args) => commands::quantize::run(&args, &mut out),
        Command::Graph(args) => commands::graph::run(&args, terminal, &mut out),
    };
    let outcome = outcome.and_then(|()| out.flush().map_err(Failure::from));
    match outcome {
        Ok(()) | Err(Failure::ClosedPipe) => ExitCode::SUCCESS,
        Err(failure) => {
            // If stderr is closed too, the exit code has to do.
            let _ = writeln!(door::stderr(), "oxcart: {failure}");
            failure.exit_code()
        }
    }
}
