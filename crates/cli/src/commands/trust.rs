//! `oxcart trust`: whom this machine knows, and what they may.

use std::io::Write;

use clap::Subcommand;
use oxcart::backend::ByteSize;
use oxcart::rpc::client::{self, Endpoint, JoinError, Timeouts};
use oxcart::rpc::link::{Machine, MachineName, Machines, MachinesError};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::printable;
use crate::quantity::counted;
use crate::table::{Align, Cell, Table};
use crate::terminal::Terminal;
use crate::trust;
use crate::units;
use crate::workers::{self, DEFAULT_PORT};

/// List the machines that this one is paired with; name, limit and revoke them
///
/// Changes take effect at once, also for a running worker: connections of a revoked machine end.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,

    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Give a machine another name
    Name {
        /// The machine: its name, or its key
        machine: String,
        /// What to call it
        #[arg(value_parser = trust::name)]
        name: MachineName,
    },
    /// Limit how much of this machine another may use; without a limit, show those that there are
    Limit {
        /// The machine: its name, or its key
        machine: String,
        /// Memory of each device, for example 8G; none removes the limit
        #[arg(long, value_name = "SIZE", value_parser = limit(units::size))]
        memory: Option<Limit<u64>>,
        /// Connections at the same time; none removes the limit
        #[arg(long, value_name = "N", value_parser = limit(count))]
        connections: Option<Limit<u32>>,
    },
    /// Revoke a machine: it may no longer use this one, and this one no longer uses it
    ///
    /// Its connections to a worker on this machine end. Nothing more is sent to its own workers, with or without a key, but
    /// commands that already use them continue until they end. Networks of --allow-plain need no key.
    Revoke {
        /// The machine: its name, or its key
        machine: String,
    },
    /// Remove a machine from the list, as if it had never been paired: its addresses are then like any others
    Forget {
        /// The machine: its name, or its key
        machine: String,
    },
    /// Have the worker of this machine show a new join line
    Invite {
        /// Where the worker listens, if not at 127.0.0.1:50052
        #[arg(value_name = "HOST[:PORT]", value_parser = workers::endpoint)]
        worker: Option<Endpoint>,
    },
}

/// A limit, or that there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit<T>(Option<T>);

/// Reads one.
fn limit<T>(read: fn(&str) -> Result<T, String>) -> impl Fn(&str) -> Result<Limit<T>, String> + Clone {
    move |text| match text {
        "none" => Ok(Limit(None)),
        text => read(text).map(|value| Limit(Some(value))),
    }
}

fn count(text: &str) -> Result<u32, String> {
    text.parse()
        .ok()
        .filter(|count| *count > 0)
        .ok_or_else(|| "must be a whole number, 1 or more, or none".to_owned())
}

pub(crate) fn run(args: &Args, terminal: Terminal, out: &mut dyn Write) -> Result<(), Failure> {
    match &args.action {
        None => list(args.json, terminal, out),
        Some(Action::Name { machine, name }) => {
            let before = change(machine, |machines, machine| {
                machines.rename(machine.key, name.clone())?;
                Ok(machine.name)
            })?;
            Ok(writeln!(out, "{before} is now called {name}")?)
        }
        Some(Action::Limit { machine, memory: None, connections: None }) => {
            let machines = trust::machines()?;
            let machine = machines.meant_by(machine).ok_or_else(|| unknown(machine))?;
            Ok(writeln!(out, "{} {}", machine.name, limited(machine))?)
        }
        Some(Action::Limit { machine, memory, connections }) => {
            let machine = change(machine, |machines, machine| {
                let Some(machine) = machines.get_mut(machine.key) else { return Ok(machine) };
                machine.max_memory = memory.map_or(machine.max_memory, |limit| limit.0);
                machine.max_connections = connections.map_or(machine.max_connections, |limit| limit.0);
                Ok(machine.clone())
            })?;
            Ok(writeln!(out, "{} {}", machine.name, limited(&machine))?)
        }
        Some(Action::Revoke { machine }) => {
            let machine = change(machine, |machines, machine| {
                machines.revoke(machine.key);
                Ok(machine)
            })?;
            let name = &machine.name;
            if machine.may_use_this {
                writeln!(
                    out,
                    "{name} is revoked: it may no longer use this machine, and its connections end now (but networks of --allow-plain \
                     need no key)"
                )?;
            }
            if !machine.endpoints.is_empty() || !machine.may_use_this {
                writeln!(
                    out,
                    "{name} is revoked: nothing more is sent to it; commands that already use it continue until they end"
                )?;
            }
            Ok(())
        }
        Some(Action::Forget { machine }) => {
            let name = change(machine, |machines, machine| {
                machines.forget(machine.key);
                Ok(machine.name)
            })?;
            Ok(writeln!(
                out,
                "{name} is forgotten: its key is no longer accepted, and its addresses are like any others"
            )?)
        }
        Some(Action::Invite { worker }) => {
            let place = worker.clone().unwrap_or_else(|| Endpoint::new("127.0.0.1", DEFAULT_PORT));
            let line = client::invite(&place, &trust::identity()?, &Timeouts::default()).map_err(|error| {
                let elsewhere = match (&error, worker) {
                    (JoinError::Unreachable { .. }, None) => {
                        " If it listens elsewhere, as its log says, name the place: oxcart trust invite HOST:PORT"
                    }
                    _ => "",
                };
                Failure::Machine(format!("{error}{elsewhere}"))
            })?;
            Ok(writeln!(out, "oxcart join {line}")?)
        }
    }
}

/// Changes something about the machine that a person means.
fn change<T>(
    meant: &str,
    change: impl FnOnce(&mut Machines, Machine) -> Result<T, MachinesError>,
) -> Result<T, Failure> {
    let mut change = Some(change);
    let done = trust::file()?.change(|machines| {
        let found = machines.meant_by(meant).cloned();
        match (found, change.take()) {
            (Some(machine), Some(change)) => change(machines, machine).map(Some),
            _ => Ok(None),
        }
    });
    done.map_err(|error| Failure::Machine(error.to_string()))?.ok_or_else(|| unknown(meant))
}

fn unknown(meant: &str) -> Failure {
    Failure::Usage(format!("no machine is called '{}'; oxcart trust lists them", meant.escape_debug()))
}

/// What a machine may, in words.
fn rights(machine: &Machine) -> String {
    if machine.revoked {
        return "revoked".into();
    }
    if !machine.may_use_this {
        return "may not use this machine".into();
    }
    match limits(machine) {
        None => "may use this machine".into(),
        Some(limits) => format!("may use this machine: {limits}"),
    }
}

/// The limits of a machine; none if it has none.
fn limits(machine: &Machine) -> Option<String> {
    let memory = machine.max_memory.map(|bytes| format!("{} of each device", ByteSize(bytes)));
    let connections = machine.max_connections.map(|count| counted(count as usize, "connection"));
    let limits: Vec<String> = memory.into_iter().chain(connections).collect();
    (!limits.is_empty()).then(|| limits.join(", "))
}

/// How much of this machine another may use, or might if it had the right.
fn limited(machine: &Machine) -> String {
    let limits = limits(machine);
    if machine.may_use_this {
        let limits = limits.map_or_else(|| ", without limits".into(), |limits| format!(": {limits}"));
        return format!("may use this machine{limits}");
    }
    let limits = limits.unwrap_or_else(|| "none".into());
    let state =
        if machine.revoked { "is revoked and may not use this machine" } else { "may not use this machine" };
    format!("{state}; its limits, once they are paired again: {limits}")
}

fn list(as_json: bool, terminal: Terminal, out: &mut dyn Write) -> Result<(), Failure> {
    let (identity, machines) = (trust::identity()?, trust::machines()?);
    let places = |machine: &Machine| machine.endpoints.iter().map(ToString::to_string).collect::<Vec<_>>();
    if as_json {
        let listed: Vec<Value> = machines
            .iter()
            .map(|machine| {
                json!({
                    "name": machine.name.as_str(),
                    "key": machine.key.to_string(),
                    "addresses": places(machine),
                    "may_use_this_machine": machine.may_use_this,
                    "max_memory": machine.max_memory,
                    "max_connections": machine.max_connections,
                    "calls_itself": machine.calls_itself.as_ref().map(MachineName::as_str),
                    "revoked": machine.revoked,
                    "avoided": machine.avoided,
                })
            })
            .collect();
        return printable::write_json(&json!({ "key": identity.key().to_string(), "machines": listed }), out);
    }
    writeln!(out, "this machine's key is {}", identity.key())?;
    if machines.iter().next().is_none() {
        return Ok(writeln!(
            out,
            "it is not paired with any other yet; oxcart worker shows the line for oxcart join"
        )?);
    }
    let rows = machines.iter().map(|machine| {
        let places = places(machine);
        let lends = match (places.is_empty(), machine.avoided) {
            (true, _) => "lends nothing to this one".into(),
            (false, false) => places.join(", "),
            (false, true) => format!("not used since it was revoked ({})", places.join(", ")),
        };
        [
            Cell::plain(machine.name.as_str()),
            Cell::dim(machine.key.short()),
            Cell::plain(lends),
            Cell::plain(rights(machine)),
        ]
    });
    let titles = Some(["machine", "key", "lends at", "rights"]);
    Ok(Table { columns: [Align::Left; 4], titles, rows }.write(out, terminal)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_told_whatever_a_machine_may() {
        let key = oxcart::rpc::link::Key::from_bytes([1; 32]);
        let mut machine = Machine::new("den".parse().unwrap(), key);
        machine.may_use_this = true;
        assert_eq!(limited(&machine), "may use this machine, without limits");
        machine.max_memory = Some(8 << 30);
        machine.max_connections = Some(1);
        assert_eq!(limited(&machine), "may use this machine: 8.0 GiB of each device, 1 connection");
        (machine.may_use_this, machine.revoked) = (false, true);
        assert_eq!(
            limited(&machine),
            "is revoked and may not use this machine; its limits, once they are paired again: 8.0 GiB of each device, 1 connection"
        );
        machine.revoked = false;
        machine.max_memory = None;
        assert!(
            limited(&machine)
                .ends_with("may not use this machine; its limits, once they are paired again: 1 connection")
        );
        assert_eq!(rights(&machine), "may not use this machine");
    }

    #[test]
    fn limits_are_numbers_or_none() {
        let memory = limit(units::size);
        assert_eq!((memory("8G"), memory("none")), (Ok(Limit(Some(8 << 30))), Ok(Limit(None))));
        assert!(memory("lots").is_err() && limit(count)("0").is_err());
        assert_eq!(limit(count)("3"), Ok(Limit(Some(3))));
    }
}
