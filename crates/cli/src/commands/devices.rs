//! `oxcart devices`: what can compute, here and on workers.
//!
//! Workers are asked in parallel, so that one that does not answer delays the end of the list only once.

use std::io::Write;
use std::sync::Arc;

use oxcart::backend::{Device, Memory, Registry};
use oxcart::gguf::Text;
use oxcart::rpc::wire::Dialect;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::local::PluginArgs;
use crate::printable;
use crate::quantity;
use crate::table::{Align, Cell, Table};
use crate::terminal::Terminal;
use crate::workers::{self, Heartbeat, Listed, WorkerAt, device_name};

/// List the devices of this machine and of workers
///
/// Workers are machines that lend their devices: `oxcart worker`, or llama.cpp's rpc-server.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Workers to ask, for example `192.168.1.5:50052,[fe80::1]:50052`, names of machines that this one is paired with, or `all`
    /// of those
    #[arg(long, visible_alias = "rpc", value_name = "HOST[:PORT],…", value_delimiter = ',')]
    workers: Vec<WorkerAt>,

    #[command(flatten)]
    plugins: PluginArgs,

    /// Print one JSON object instead of text (described in docs/devices.md)
    #[arg(long)]
    json: bool,
}

/// One device, as it answered.
struct Row {
    device: Arc<dyn Device>,
    memory: Option<Memory>,
    /// Where it is lent, and in which dialect.
    worker: Option<(String, &'static Dialect)>,
    /// The name of that machine, if this one is paired with it.
    machine: Option<String>,
}

/// A worker that has no devices for us.
struct Lost {
    worker: String,
    error: String,
}

pub(crate) fn run(args: &Args, terminal: Terminal, out: &mut dyn Write) -> Result<(), Failure> {
    let (mut rows, mut lost) = (local_rows(&args.plugins)?, Vec::new());
    let machines = workers::machines_for(&args.workers)?;
    let mut workers = Vec::<(String, Result<Listed, String>)>::new();
    // One that is listed twice would seem to be two.
    let mut list = |name: String, worker: Result<Listed, String>| {
        let is_known = |new: &Listed| {
            workers.iter().any(|(_, known)| known.as_ref().is_ok_and(|known| known.is_same(new)))
        };
        match worker.as_ref().is_ok_and(is_known) {
            true => tracing::warn!("{name} is listed twice; it is shown once"),
            false => workers.push((name, worker)),
        }
    };
    for worker in &args.workers {
        match worker {
            WorkerAt::At(endpoint) => {
                let listed = Listed::meant_by(endpoint, &machines).map_err(|failure| failure.to_string());
                list(endpoint.to_string(), listed);
            }
            WorkerAt::All => {
                Listed::all(&machines)?
                    .into_iter()
                    .for_each(|worker| list(worker.name().to_owned(), Ok(worker)));
            }
            WorkerAt::Local(_) => {
                return Err(Failure::Usage(
                    "local:N starts workers for the time of a command; oxcart devices lists those that are running".into(),
                ));
            }
        }
    }
    std::thread::scope(|scope| {
        let ask = |(worker, listed): (String, Result<Listed, String>)| {
            (worker, scope.spawn(move || remote_rows(&listed?)))
        };
        let asked: Vec<_> = workers.into_iter().map(ask).collect();
        for (worker, thread) in asked {
            match thread.join() {
                Ok(Ok(found)) => rows.extend(found),
                Ok(Err(error)) => lost.push(Lost { worker, error }),
                Err(_) => lost.push(Lost {
                    error: format!("{worker}: internal error (a bug) while asking it"),
                    worker,
                }),
            }
        }
    });
    // Cards that are there and cannot be used, for example because their driver is too old.
    let unusable = oxcart::devices::unavailable();
    if args.json {
        write_json(&rows, &lost, &unusable, out)?;
    } else {
        write_table(&rows, terminal, out)?;
        for reason in &unusable {
            writeln!(out, "not listed: {reason}")?;
        }
    }
    out.flush()?;
    match lost.is_empty() {
        true => Ok(()),
        false => Err(Failure::Workers { errors: lost.into_iter().map(|lost| lost.error).collect() }),
    }
}

fn local_rows(plugins: &PluginArgs) -> Result<Vec<Row>, Failure> {
    Ok(plugins.find()?.devices().into_iter().map(local_row).collect())
}

fn local_row(device: Arc<dyn Device>) -> Row {
    Row { memory: device.memory().ok(), device, worker: None, machine: None }
}

fn remote_rows(listed: &Listed) -> Result<Vec<Row>, String> {
    // It is asked once.
    let registry = listed.connect(false, Heartbeat(None)).map_err(|error| listed.named(error))?;
    let row = |device: Arc<dyn Device>| {
        let memory = device.memory().map_err(|error| error.to_string())?;
        let worker = Some((registry.endpoint().to_owned(), registry.dialect()));
        let machine = listed.machine().map(str::to_owned);
        Ok(Row { memory: Some(memory), device, worker, machine })
    };
    registry.devices().into_iter().map(row).collect()
}

fn write_table(rows: &[Row], terminal: Terminal, out: &mut dyn Write) -> Result<(), Failure> {
    let bytes = |bytes: Option<usize>| {
        Cell::quantity(bytes.map_or_else(|| "?".into(), |bytes| quantity::bytes(bytes as u64)))
    };
    let rows = rows.iter().map(|row| {
        [
            Cell::plain(device_name(row.device.name())),
            bytes(row.memory.map(|memory| memory.free)),
            bytes(row.memory.map(|memory| memory.total)),
            Cell::dim(row.worker.as_ref().map_or("-", |(_, dialect)| dialect.name)),
            Cell::dim(Text::new(row.device.description().as_bytes()).to_string()),
        ]
    });
    let columns = [Align::Left, Align::Right, Align::Right, Align::Left, Align::Left];
    let titles = Some(["device", "free", "memory", "protocol", "what it is"]);
    Ok(Table { columns, titles, rows }.write(out, terminal)?)
}

fn write_json(rows: &[Row], lost: &[Lost], unusable: &[String], out: &mut dyn Write) -> Result<(), Failure> {
    let devices: Vec<Value> = rows
        .iter()
        .map(|row| {
            json!({
                "name": row.device.name(),
                "description": row.device.description(),
                "kind": row.worker.is_none().then(|| row.device.kind().to_string()),
                "memory": row.memory.map(|memory| json!({ "free": memory.free, "total": memory.total })),
                "worker": row.worker.as_ref().map(|(endpoint, _)| endpoint),
                "machine": row.machine,
                "dialect": row.worker.as_ref().map(|(_, dialect)| dialect.name),
            })
        })
        .collect();
    let lost: Vec<Value> =
        lost.iter().map(|lost| json!({ "worker": lost.worker, "error": lost.error })).collect();
    printable::write_json(&json!({ "devices": devices, "unreachable": lost, "unusable": unusable }), out)
}
