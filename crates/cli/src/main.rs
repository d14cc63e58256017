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
mod habits;
mod limits;
mod listed;
mod loaded;
mod local;
mod log;
mod models;
mod new_file;
mod os;
mod plan;
mod printable;
mod progress;
mod quantity;
mod recovery;
mod settings;
mod speculation;
mod table;
mod terminal;
mod text_windows;
mod trust;
mod units;
mod workers;
mod wrap;

use std::ffi::OsString;
use std::io::{BufWriter, Write};
use std::process::ExitCode;

use clap::{Args as _, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::failure::Failure;
use crate::log::{Log, LogArgs};
use crate::settings::{Setting, Settings};
use crate::terminal::Terminal;

/// Run one model on the machines you own.
#[derive(Debug, Parser)]
#[command(name = "oxcart", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    #[command(flatten)]
    log: LogArgs,
}

impl Cli {
    /// The parser, every command of which may say what is told, and where. A negative number is the value of an option and no option, so
    /// that the option can say which values it takes.
    fn parser() -> clap::Command {
        let reads_numbers =
            |option: clap::Arg| match option.get_action().takes_values() && !option.is_positional() {
                true => option.allow_negative_numbers(true),
                false => option,
            };
        Cli::command().mut_subcommands(|command| with_log(command).mut_args(reads_numbers))
    }
}

/// A command, and those inside it, which say what is told as well.
fn with_log(command: clap::Command) -> clap::Command {
    LogArgs::augment_args(command).mut_subcommands(with_log)
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<commands::run::Args>),
    Chat(Box<commands::chat::Args>),
    Serve(Box<commands::serve::Args>),
    Top(commands::top::Args),
    Worker(Box<commands::worker::Args>),
    Join(commands::join::Args),
    Trust(commands::trust::Args),
    Devices(commands::devices::Args),
    Doctor(commands::doctor::Args),
    Pull(commands::pull::Args),
    List(commands::list::Args),
    Show(commands::list::ShowArgs),
    Rm(commands::list::RemoveArgs),
    Bench(Box<commands::bench::Args>),
    Inspect(commands::inspect::Args),
    Tokenize(commands::tokenize::Args),
    Score(Box<commands::score::Args>),
    Perplexity(Box<commands::perplexity::Args>),
    Embed(Box<commands::embed::Args>),
    Imatrix(Box<commands::imatrix::Args>),
    Quantize(commands::quantize::Args),
    Graph(Box<commands::graph::Args>),
    Config(commands::config::Args),
    Completions(commands::completions::Args),
    Man(commands::completions::ManArgs),
}

fn main() -> ExitCode {
    let Parsed { cli, changed } = match parsed() {
        Ok(parsed) => parsed,
        Err(failure) => return failed(&failure, None),
    };
    let terminal = Terminal::from_env();
    let style = match &cli.command {
        Command::Worker(args) => Some(args.log_style()),
        _ => None,
    };
    let log = match Log::start(&cli.log, style, terminal) {
        Ok(log) => log,
        Err(failure) => return failed(&failure, None),
    };
    for setting in &changed {
        tracing::debug!("{} is {}, {}", setting.name(), setting.values.join(","), setting.origin);
    }
    let mut out = BufWriter::new(door::stdout());
    let outcome = match cli.command {
        Command::Run(args) => commands::run::run(&args, terminal, &mut out),
        Command::Chat(args) => commands::chat::run(&args, terminal, &mut out),
        Command::Serve(args) => commands::serve::run(&args, terminal, &mut out),
        Command::Top(args) => commands::top::run(&args, &mut out),
        Command::Worker(args) => commands::worker::run(&args, log.readers(), &changed, &mut out),
        Command::Join(args) => commands::join::run(&args, &mut out),
        Command::Trust(args) => commands::trust::run(&args, terminal, &mut out),
        Command::Devices(args) => commands::devices::run(&args, terminal, &mut out),
        Command::Doctor(args) => commands::doctor::run(&args, terminal, &mut out),
        Command::Pull(args) => commands::pull::run(&args, terminal, &mut out),
        Command::List(args) => commands::list::run(&args, terminal, &mut out),
        Command::Show(args) => commands::list::show(&args, terminal, &mut out),
        Command::Rm(args) => commands::list::remove(&args, &mut out),
        Command::Bench(args) => commands::bench::run(&args, terminal, &mut out),
        Command::Inspect(args) => commands::inspect::run(&args, terminal, &mut out),
        Command::Tokenize(args) => commands::tokenize::run(&args, terminal, &mut out),
        Command::Score(args) => commands::score::run(&args, terminal, &mut out),
        Command::Perplexity(args) => commands::perplexity::run(&args, terminal, &mut out),
        Command::Embed(args) => commands::embed::run(&args, terminal, &mut out),
        Command::Imatrix(args) => commands::imatrix::run(&args, terminal, &mut out),
        Command::Quantize(args) => commands::quantize::run(&args, &mut out),
        Command::Graph(args) => commands::graph::run(&args, terminal, &mut out),
        Command::Config(args) => commands::config::run(&args, &Cli::parser(), terminal, &mut out),
        Command::Completions(args) => commands::completions::run(&args, Cli::parser(), &mut out),
        Command::Man(args) => commands::completions::man(&args, Cli::parser(), &mut out),
    };
    let outcome = outcome.and_then(|()| out.flush().map_err(Failure::from));
    let code = match outcome {
        Ok(()) | Err(Failure::ClosedPipe) => ExitCode::SUCCESS,
        Err(failure) => failed(&failure, Some(&log)),
    };
    log.finish();
    code
}

fn failed(failure: &Failure, log: Option<&Log>) -> ExitCode {
    if log.is_some_and(Log::is_file) {
        tracing::error!("{failure}");
    }
    // If stderr is closed too, the exit code has to do.
    let line = wrap::wrapped(&format!("oxcart: {failure}"), Terminal::width_for_notes());
    let _ = writeln!(door::stderr(), "{line}");
    failure.exit_code()
}

/// What was typed, on top of what the user has set.
struct Parsed {
    cli: Cli,
    changed: Vec<Setting>,
}

fn parsed() -> Result<Parsed, Failure> {
    let words = habits::rewritten(std::env::args_os(), &Cli::parser());
    // A worker that a command starts for itself is as that command wants it.
    let is_ours = words.get(1).is_some_and(|word| word == "worker")
        && words.iter().any(|word| word == "--until-stdin-ends");
    let (parser, changed) = match is_ours {
        true => (Cli::parser(), Vec::new()),
        false => match Settings::read().and_then(|settings| settings.applied(Cli::parser(), &words)) {
            // Wrong settings must not keep anyone from looking at them, or from help.
            Err(_) if asks_about_oxcart(&words) => (Cli::parser(), Vec::new()),
            applied => applied?,
        },
    };
    let matches =
        parser.try_get_matches_from(&words).unwrap_or_else(|error| refused(&error, &words, &changed));
    let mut cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    cli.log = LogArgs::of(&matches);
    let command = matches.subcommand_name().unwrap_or_default();
    Ok(Parsed { cli, changed: changed.into_iter().filter(|setting| setting.command == command).collect() })
}

/// Whether a command line is about the program itself.
fn asks_about_oxcart(words: &[OsString]) -> bool {
    let is_one_of = |word: &OsString, all: &[&str]| all.iter().any(|known| word == known);
    words.get(1).is_none_or(|word| is_one_of(word, &["config", "completions", "man", "help"]))
        || words
            .iter()
            .take_while(|word| *word != "--")
            .any(|word| is_one_of(word, &["-h", "--help", "-V", "--version"]))
}

/// Ends the program with what the parser has to say; where a value was set and not typed, with where.
fn refused(error: &clap::Error, words: &[OsString], changed: &[Setting]) -> ! {
    use clap::error::ContextKind;
    let about = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    let (argument, value) = (about(ContextKind::InvalidArg), about(ContextKind::InvalidValue));
    if let Some(unknown) = habits::unknown(words, &argument, &value, &Cli::parser()) {
        let _ = writeln!(door::stderr(), "oxcart: {unknown}");
        std::process::exit(2);
    }
    let is_meant = |setting: &&Setting| {
        words.get(1).is_some_and(|command| *command == *setting.command)
            && argument.split([' ', '=']).next() == Some(&format!("--{}", setting.key))
            && setting.values.contains(&value)
    };
    if let Some(setting) = changed.iter().find(is_meant) {
        let name = setting.name();
        let _ =
            writeln!(door::stderr(), "oxcart: {name} comes from your settings; see: oxcart config {name}");
    }
    error.exit()
}
