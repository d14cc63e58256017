//! `oxcart join`: pairs this machine with a worker whose join line it is given.

use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};

use oxcart::rpc::client::{self, JoinError, Joined, Timeouts};
use oxcart::rpc::link::limits::MAX_LINE_CHARS;
use oxcart::rpc::link::{Found, JoinLine, JoinLineError, MachineName, Machines, MachinesError};

use crate::failure::Failure;
use crate::trust;

/// What workers show before their lines.
const COMMAND: &str = "oxcart join ";

/// Pair this machine with a worker, so that it can be used by name
///
/// The worker shows a join line when it starts, good for ten minutes and one use; `oxcart trust invite` shows another. From then on
/// the two machines know each other by their keys, and everything between them is encrypted.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The join line that the worker shows; spaces and line breaks do not matter. Without it, or with -, it is read from stdin
    ///
    /// Other users of this machine can see a command's arguments while it runs, but not its stdin.
    #[arg(value_name = "LINE")]
    line: Vec<String>,

    /// Name of this machine for the worker. By default, its host name
    #[arg(long, value_name = "NAME", value_parser = trust::name)]
    name: Option<MachineName>,

    /// Name to give the worker here. By default, the name it gives itself
    #[arg(long, value_name = "NAME", value_parser = trust::name)]
    call_it: Option<MachineName>,
}

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    let line = match args.line.as_slice() {
        [] => from_stdin()?,
        [dash] if dash == "-" => from_stdin()?,
        parts => parts.concat(),
    };
    let line = read_line(&line).map_err(|error| Failure::Usage(format!("{error}")))?;
    let identity = trust::identity()?;
    if line.worker == identity.key() {
        return Err(Failure::Usage(
            "this is this machine's own join line; use it on another machine. (Machines that share a home folder count as one: \
             give each its own XDG_DATA_HOME.)"
                .into(),
        ));
    }
    let file = trust::file()?;
    // What cannot be kept must not use up the line. What the worker calls itself is not known yet.
    let call_it = args.call_it.as_ref();
    let untold = call_it.cloned().unwrap_or_else(|| MachineName::of_host("worker"));
    let like_it = Joined { name: untold, key: line.worker, endpoints: line.endpoints.clone() };
    let kept = |error: MachinesError| Failure::Machine(error.to_string());
    file.rehearse(|machines| remember(machines, &like_it, call_it)).map_err(kept)?;
    let own = trust::own_name(args.name.as_ref());
    let joined = client::join(&line, &identity, &own, &Timeouts::default()).map_err(failure)?;
    let (name, found) = file.change(|machines| remember(machines, &joined, call_it)).map_err(kept)?;
    let place = joined.endpoints.first().map(ToString::to_string).unwrap_or_default();
    for other in found.displaced {
        writeln!(out, "{other} was at that address before, and is no longer looked for there")?;
    }
    for place in found.forgotten {
        writeln!(
            out,
            "{name} has been at so many addresses that {place} is forgotten: it is now an address like any other"
        )?;
    }
    Ok(writeln!(out, "paired with {name} at {place}; use it with --workers {name}")?)
}

/// Remembers a worker that has taken this machine in, as it is called here and by itself.
fn remember(
    machines: &mut Machines,
    joined: &Joined,
    call_it: Option<&MachineName>,
) -> Result<(MachineName, Found), MachinesError> {
    let machine = machines.remember(call_it.unwrap_or(&joined.name).clone(), joined.key)?;
    machine.calls_itself = Some(joined.name.clone());
    let mut name = machine.name.clone();
    if let Some(call_it) = call_it {
        machines.rename(joined.key, call_it.clone())?;
        name = call_it.clone();
    }
    Ok((name, machines.found_at(joined.key, &joined.endpoints)))
}

/// The line, as a worker shows it: perhaps with the command before it.
fn read_line(text: &str) -> Result<JoinLine, JoinLineError> {
    let text = text.trim_start();
    text.strip_prefix(COMMAND).unwrap_or(text).parse()
}

/// What stands there, as far as a line is long. What is typed or pasted may be broken into several lines, and ends when it is whole.
fn from_stdin() -> Result<String, Failure> {
    let (mut text, stdin) = (String::new(), io::stdin());
    let unread = |error| Failure::Usage(format!("cannot read the join line: {error}"));
    let mut input = BufReader::new(stdin.lock().take((COMMAND.len() + MAX_LINE_CHARS) as u64 + 1));
    if !stdin.is_terminal() {
        input.read_to_string(&mut text).map_err(unread)?;
        return Ok(text);
    }
    tracing::info!("paste the join line that the worker shows, then an empty line:");
    loop {
        let before = text.len();
        input.read_line(&mut text).map_err(unread)?;
        if text[before..].trim().is_empty() || read_line(&text).is_ok() {
            return Ok(text);
        }
    }
}

/// Whether it is the line that is wrong, or a machine.
fn failure(error: JoinError) -> Failure {
    Failure::Machine(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_workers_show_them() {
        let damaged = |text: &str| matches!(read_line(text), Err(JoinLineError::Damaged));
        // Without and with the command, in pieces; what is no join line is not said to be a damaged one.
        for text in ["oxj00", "oxcart join oxj00", "  oxcart join oxj\n00 "] {
            assert!(damaged(text), "{text:?}: {:?}", read_line(text));
        }
        assert!(!damaged("oxcart trust"), "{:?}", read_line("oxcart trust"));
    }
}
