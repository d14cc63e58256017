//! What is told besides results: notes, warnings, errors and the log of a worker, as events of `tracing`.
//!
//! Invariants: events have one way out, which is stderr or the file of `--log`. Notes on stderr are written at once, so that they stand
//! between results where they belong; a log goes through a queue and never makes the one who writes to it wait.

mod lines;
mod queue;

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches};
use tracing::level_filters::LevelFilter;

use crate::failure::Failure;
use crate::os::{as_file, others_can_read, private_file};
use crate::terminal::Terminal;
pub(crate) use lines::Style;
use lines::{Lines, To};
use queue::Queue;

// Every command has these; a comment of documentation here would become what a command says about itself.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct LogArgs {
    /// Print more about what is going on; twice for even more
    #[arg(short, long, action = ArgAction::Count, conflicts_with = "quiet")]
    verbose: u8,

    /// Print nothing but results, warnings and errors
    #[arg(short, long)]
    quiet: bool,

    /// Append messages to this file, each with its time, instead of printing them to stderr
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
}

impl LogArgs {
    /// Those of the command, and where it has none, those that stand in front of it; so with commands inside commands.
    pub(crate) fn of(matches: &ArgMatches) -> LogArgs {
        let mut all = vec![matches];
        while let Some((_, command)) = all.last().copied().and_then(ArgMatches::subcommand) {
            all.push(command);
        }
        all.reverse();
        let all = || all.iter();
        let is_typed =
            |name: &str| all().any(|matches| matches.value_source(name) == Some(ValueSource::CommandLine));
        let verbose = all().map(|matches| matches.get_count("verbose")).max().unwrap_or(0);
        let quiet = all().any(|matches| matches.get_flag("quiet"));
        // What was typed wins over what was set.
        let (verbose, quiet) = match (is_typed("verbose"), is_typed("quiet")) {
            (true, _) => (verbose, false),
            (false, true) => (0, true),
            (false, false) => (if quiet { 0 } else { verbose }, quiet),
        };
        let log = all().find_map(|matches| matches.get_one::<PathBuf>("log").cloned());
        LogArgs { verbose, quiet, log }
    }

    fn level(&self) -> LevelFilter {
        match (self.quiet, self.verbose) {
            (true, _) => LevelFilter::WARN,
            (false, 0) => LevelFilter::INFO,
            (false, 1) => LevelFilter::DEBUG,
            (false, _) => LevelFilter::TRACE,
        }
    }
}

/// Who can read what is told, as far as that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readers {
    /// The person at the terminal.
    Terminal,
    /// The user, or a program that takes it.
    User,
    /// Other users of this machine, too.
    Others,
}

/// Where events go from the start of a command to its end.
#[derive(Debug)]
pub(crate) struct Log {
    queue: Option<Queue>,
    is_file: bool,
    readers: Readers,
}

impl Log {
    /// Takes all events from now on. Lines of a log have `style`; without one, what is told on stderr are notes.
    pub(crate) fn start(args: &LogArgs, style: Option<Style>, terminal: Terminal) -> Result<Log, Failure> {
        let file = args.log.as_deref().map(open).transpose()?;
        let is_file = file.is_some();
        let readers = match &file {
            Some(file) if others_can_read(file) => Readers::Others,
            None if io::stderr().is_terminal() => Readers::Terminal,
            None if as_file(&io::stderr()).is_some_and(|file| others_can_read(&file)) => Readers::Others,
            _ => Readers::User,
        };
        let queue = match file {
            Some(file) => Some(Queue::to(file)),
            None => style.is_some().then(|| Queue::to(io::stderr())),
        };
        let notes = Style::Notes(Terminal { colour: terminal.colour && io::stderr().is_terminal() });
        let lines = match &queue {
            Some(queue) => Lines::new(style.unwrap_or(Style::Timed), args.level(), To::Queue(queue.sender())),
            None => Lines::new(notes, args.level(), To::Stderr),
        };
        // There is one call of this in a process; a second would leave things as they are.
        let _ = tracing::subscriber::set_global_default(lines);
        Ok(Log { queue, is_file, readers })
    }

    /// Whether those who look at stderr see nothing of it.
    pub(crate) fn is_file(&self) -> bool {
        self.is_file
    }

    /// Who can read it.
    pub(crate) fn readers(&self) -> Readers {
        self.readers
    }

    /// Waits until all is written, unless it is not read.
    pub(crate) fn finish(self) {
        if let Some(queue) = self.queue {
            queue.finish();
        }
    }
}

/// A worker's log may have its join line, which no other user may see as long as it is good. A file that is there already stays as it
/// is, and says with its mode who may read it.
fn open(path: &Path) -> Result<File, Failure> {
    private_file()
        .append(true)
        .create(true)
        .open(path)
        .map_err(|error| Failure::Usage(format!("cannot write the log to {}: {error}", path.display())))
}

/// Tells a table or another text of several lines.
pub(crate) fn note_lines(write: impl FnOnce(&mut dyn Write) -> Result<(), Failure>) -> Result<(), Failure> {
    let mut text = Vec::new();
    write(&mut text)?;
    String::from_utf8_lossy(&text).lines().for_each(|line| tracing::info!("{line}"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command};

    use super::*;

    fn level(words: &[&str], set: Option<(&'static str, &'static str)>) -> LevelFilter {
        let command = Command::new("run").mut_args(|argument| argument);
        let mut command = LogArgs::augment_args(command);
        if let Some((name, value)) = set {
            command = command.mut_arg(name, |argument| argument.default_value(value));
        }
        let parser = LogArgs::augment_args(Command::new("oxcart")).subcommand(command);
        LogArgs::of(&parser.try_get_matches_from(words).unwrap()).level()
    }

    #[test]
    fn what_is_typed_wins() {
        assert_eq!(level(&["oxcart", "run"], None), LevelFilter::INFO);
        assert_eq!(level(&["oxcart", "run", "-v"], None), LevelFilter::DEBUG);
        assert_eq!(level(&["oxcart", "-v", "run"], None), LevelFilter::DEBUG);
        assert_eq!(level(&["oxcart", "run", "-vv"], Some(("quiet", "true"))), LevelFilter::TRACE);
        assert_eq!(level(&["oxcart", "run", "-q"], Some(("verbose", "2"))), LevelFilter::WARN);
        assert_eq!(level(&["oxcart", "run"], Some(("verbose", "1"))), LevelFilter::DEBUG);
        assert_eq!(level(&["oxcart", "run"], Some(("quiet", "true"))), LevelFilter::WARN);
    }

    #[test]
    fn commands_inside_commands_have_them_too() {
        let inside = LogArgs::augment_args(Command::new("name"));
        let trust = LogArgs::augment_args(Command::new("trust")).subcommand(inside);
        let parser = LogArgs::augment_args(Command::new("oxcart")).subcommand(trust);
        for words in [["oxcart", "trust", "name", "-q"], ["oxcart", "trust", "-q", "name"]] {
            let matches = parser.clone().try_get_matches_from(words).unwrap();
            assert_eq!(LogArgs::of(&matches).level(), LevelFilter::WARN, "{words:?}");
        }
    }
}
