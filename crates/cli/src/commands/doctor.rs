//! `oxcart doctor`: what is wrong on this machine, with its workers and on the way to them, and what to do about it.
//!
//! Invariants: machines are looked at side by side, and none delays the end beyond [`LIMIT`]; what was found out by then is shown. Nothing is
//! changed on any machine.

mod diagnosis;
mod finding;
mod measure;
mod this_machine;
mod worker;

use std::io::Write;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use oxcart::rpc::client::Endpoint;
use oxcart::rpc::link::Machines;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::local::PluginArgs;
use crate::printable;
use crate::quantity::counted;
use crate::table::{Align, Cell, Table};
use crate::terminal::{Terminal, Tone};
use crate::workers::{self, Listed, WorkerAt};
use finding::{Finding, Findings, State};

/// How long all of it may take.
const LIMIT: Duration = Duration::from_secs(30);

/// Find out what keeps a model from running on this machine and its workers, and what to do about it
///
/// Exit code 1 means that there is a problem. Nothing is changed. To measure the way to a worker, up to 64 MiB are sent there and back.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Workers to look at: names of machines that this one is paired with, addresses, or all for every paired machine
    #[arg(
        long,
        visible_alias = "rpc",
        value_name = "HOST[:PORT],…",
        value_delimiter = ',',
        default_value = "all"
    )]
    workers: Vec<WorkerAt>,

    #[command(flatten)]
    plugins: PluginArgs,

    /// Print one JSON object instead of text (described in docs/doctor.md)
    #[arg(long)]
    json: bool,
}

/// Something that is looked at, by a thread of its own.
struct Examined {
    /// What it is called.
    name: String,
    findings: Receiver<Finding>,
    thread: Option<JoinHandle<()>>,
}

impl Examined {
    fn start(name: &str, examine: impl FnOnce(&Findings) + Send + 'static) -> Result<Examined, Failure> {
        let (sender, findings) = channel();
        let told = Findings::to(sender);
        let thread = thread::Builder::new()
            .name("doctor".into())
            .spawn(move || examine(&told))
            .map_err(|error| Failure::Machine(format!("cannot start a thread: {error}")))?;
        Ok(Examined { name: name.to_owned(), findings, thread: Some(thread) })
    }

    /// What was found out by then.
    fn finish(mut self, deadline: Instant) -> Report {
        let mut found = Vec::new();
        let late = loop {
            match self.findings.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(finding) => found.push(finding),
                Err(RecvTimeoutError::Timeout) => break true,
                Err(RecvTimeoutError::Disconnected) => break false,
            }
        };
        if late {
            let after = found.last().map_or_else(String::new, |last| format!(", after the {}", last.about));
            found.push(Finding::problem(
                "time",
                format!("no more was found out within {} s{after}", LIMIT.as_secs()),
                format!(
                    "look at it alone and see what takes so long: oxcart doctor -v --workers {}",
                    self.name
                ),
            ));
        } else if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            found.push(Finding::problem(
                "doctor",
                "internal error (a bug) while looking at it",
                "report it, with the output of oxcart doctor -v",
            ));
        }
        Report { name: self.name, found }
    }
}

/// What was found about a machine.
struct Report {
    name: String,
    found: Vec<Finding>,
}

/// What this machine is called among the reports.
const HERE: &str = "this machine";

pub(crate) fn run(args: &Args, terminal: Terminal, out: &mut dyn Write) -> Result<(), Failure> {
    let deadline = Instant::now() + LIMIT;
    let plugins = args.plugins.clone();
    let mut examined =
        vec![Examined::start(HERE, move |findings| this_machine::examine(&plugins, findings))?];
    // Without the list of machines, an address may be that of one that must not be talked to in the clear.
    match workers::machines_for(&args.workers) {
        Ok(machines) => {
            for wanted in wanted(&args.workers, &machines) {
                examined.push(start(wanted, &machines)?);
            }
        }
        Err(failure) => tracing::warn!("no worker is looked at: {failure}"),
    }
    let reports: Vec<Report> = examined.into_iter().map(|examined| examined.finish(deadline)).collect();
    if args.json {
        let reports = reports.iter().map(|Report { name, found }| {
            json!({ "machine": name, "findings": found.iter().map(Finding::report).collect::<Vec<_>>() })
        });
        printable::write_json(&json!({ "machines": reports.collect::<Vec<Value>>() }), out)?;
    } else {
        reports.iter().try_for_each(|report| show(report, terminal, out))?;
    }
    out.flush()?;
    let problems =
        reports.iter().flat_map(|report| &report.found).filter(|found| found.state == State::Problem);
    match problems.count() {
        0 => Ok(()),
        count => Err(Failure::Machine(format!("{} found", counted(count, "problem")))),
    }
}

/// A worker to look at.
#[derive(Clone, Debug, PartialEq)]
enum Wanted {
    /// A machine that this one knows, by its name.
    Machine(String),
    /// What was typed.
    At(Endpoint),
}

/// What is meant, each once.
fn wanted(given: &[WorkerAt], machines: &Machines) -> Vec<Wanted> {
    let mut all = Vec::new();
    for worker in given {
        let meant: Vec<Wanted> = match worker {
            WorkerAt::At(endpoint) => vec![match machines.called(endpoint.host())[..] {
                [machine] if endpoint.port() == workers::DEFAULT_PORT => {
                    Wanted::Machine(machine.name.to_string())
                }
                _ => Wanted::At(endpoint.clone()),
            }],
            WorkerAt::All => machines
                .iter()
                .filter(|machine| !machine.endpoints.is_empty())
                .map(|machine| Wanted::Machine(machine.name.to_string()))
                .collect(),
            // They are there only while a command uses them, and are this machine.
            WorkerAt::Local(_) => Vec::new(),
        };
        for one in meant {
            if !all.contains(&one) {
                all.push(one);
            }
        }
    }
    all
}

/// Begins to look at a worker. What the name of a machine stands for is looked up by the thread, because that may take long.
fn start(wanted: Wanted, machines: &Machines) -> Result<Examined, Failure> {
    let machines = machines.clone();
    let name = match &wanted {
        Wanted::Machine(name) => name.clone(),
        Wanted::At(endpoint) => endpoint.to_string(),
    };
    Examined::start(&name.clone(), move |findings| {
        let listed = match &wanted {
            Wanted::At(endpoint) => Listed::found(endpoint, &machines),
            Wanted::Machine(_) => match machines.called(&name).first() {
                Some(machine) if !machine.is_trusted() => return findings.add(revoked(&name)),
                Some(machine) if machine.endpoints.is_empty() => return findings.add(lends_nothing(&name)),
                Some(machine) => Listed::of_machine(machine),
                None => return,
            },
        };
        match (listed, &wanted) {
            (Ok(listed), _) => worker::examine(&listed, findings),
            (Err(_), Wanted::At(endpoint)) if endpoint.addresses().is_err() => {
                findings.add(unknown_name(endpoint));
            }
            (Err(failure), _) => findings.add(Finding::problem(
                "pairing",
                failure.to_string(),
                "oxcart trust shows the machines that this one knows",
            )),
        }
    })
}

fn revoked(name: &str) -> Finding {
    Finding::new("pairing", State::Note, format!("{name} was revoked here, so nothing is sent to it"))
        .and_try(format!("to use it again, on {name}: oxcart trust invite; then here: oxcart join LINE"))
}

fn unknown_name(endpoint: &Endpoint) -> Finding {
    Finding::problem(
        "connection",
        format!("the name {} cannot be found", endpoint.host()),
        "use the machine's IP address, which hostname -I shows there, or the name that oxcart trust shows",
    )
}

fn lends_nothing(name: &str) -> Finding {
    Finding::problem(
        "pairing",
        format!("{name} may use this machine, but lends nothing to it"),
        format!(
            "on {name}: oxcart worker --host 0.0.0.0; then here: oxcart join LINE, with the line that it shows"
        ),
    )
}

fn show(report: &Report, terminal: Terminal, out: &mut dyn Write) -> Result<(), Failure> {
    writeln!(out, "{}", terminal.paint(&report.name, Tone::Bold))?;
    let rows = report.found.iter().flat_map(|found| {
        let tone = match found.state {
            State::Good | State::Note => Tone::Dim,
            State::Warning | State::Problem => Tone::Bold,
        };
        let first =
            [Cell::new(found.state.name(), tone), Cell::plain(found.about), Cell::plain(found.text.clone())];
        let remedy = found
            .remedy
            .as_ref()
            .map(|remedy| [Cell::plain(""), Cell::plain(""), Cell::plain(format!("try: {remedy}"))]);
        std::iter::once(first).chain(remedy)
    });
    Ok(Table { columns: [Align::Left; 3], titles: None, rows }.write(out, terminal)?)
}

#[cfg(test)]
mod tests {
    use oxcart::rpc::link::Key;

    use super::*;

    fn at(text: &str) -> WorkerAt {
        text.parse().unwrap()
    }

    #[test]
    fn each_worker_is_looked_at_once() {
        let mut machines = Machines::default();
        for (name, key) in [("den", 1), ("desk", 2)] {
            machines.remember(name.parse().unwrap(), Key::from_bytes([key; 32])).unwrap();
        }
        machines.found_at(Key::from_bytes([1; 32]), &["127.0.0.1:7".parse().unwrap()]);
        let den = Wanted::Machine("den".into());
        assert_eq!(wanted(&[at("all")], &machines), std::slice::from_ref(&den), "desk lends nothing");
        assert_eq!(
            wanted(&[at("den"), at("all"), at("DEN"), at("local:2")], &machines),
            std::slice::from_ref(&den)
        );
        let other = Wanted::At("10.0.0.7:50052".parse().unwrap());
        let elsewhere = Wanted::At("den:8".parse().unwrap());
        assert_eq!(wanted(&[at("10.0.0.7"), at("den:8"), at("den")], &machines), [other, elsewhere, den]);
        assert!(wanted(&[at("all")], &Machines::default()).is_empty());
    }

    /// What hangs is reported with what was found before, and does not hold up the others.
    #[test]
    fn what_takes_too_long_is_cut_off() {
        let (hold, held) = channel::<()>();
        let hangs = Examined::start("slow", move |findings| {
            findings.add(Finding::good("connection", "there"));
            let _ = held.recv();
        });
        let report = hangs.unwrap().finish(Instant::now() + Duration::from_millis(200));
        let states: Vec<_> = report.found.iter().map(|found| (found.about, found.state)).collect();
        assert!(matches!(states[..], [.., ("time", State::Problem)]), "{states:?}");
        drop(hold);
        let breaks = Examined::start("broken", |_| panic!("on purpose"));
        let report = breaks.unwrap().finish(Instant::now() + Duration::from_secs(60));
        assert!(matches!(&report.found[..], [found] if found.text.contains("a bug")));
    }

    #[test]
    fn remedies_stand_below_what_they_are_for() {
        let found = vec![
            Finding::good("version", "1"),
            Finding::problem("connection", "refused", "oxcart worker").with(json!({ "port": 1 })),
        ];
        let mut out = Vec::new();
        show(&Report { name: "den".into(), found: found.clone() }, Terminal { colour: false }, &mut out)
            .unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "den\n  good     version     1\n  problem  connection  refused\n                       try: oxcart worker\n"
        );
        let report = found[1].report();
        assert_eq!((&report["state"], &report["values"]["port"]), (&json!("problem"), &json!(1)));
    }
}
