//! Devices that other machines lend, and workers that are started here for the time of a command.

use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv6Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::sync::Arc;

use oxcart::backend::{Device, Registry};
use oxcart::rpc::client::{Endpoint, EndpointError, Options, RemoteRegistry};

use crate::door;
use crate::failure::Failure;
use crate::os;

/// The port of a worker whose address has none; rpc-server's, too.
pub(crate) const DEFAULT_PORT: u16 = 50052;

/// The most workers that `local:N` starts.
const MAX_LOCAL: usize = 64;

/// What `--workers` names.
#[derive(Clone, Debug)]
pub(crate) enum WorkerAt {
    /// One that runs already.
    At(Endpoint),
    /// Some that are started for the time of the command.
    Local(usize),
}

impl FromStr for WorkerAt {
    type Err = String;

    fn from_str(text: &str) -> Result<WorkerAt, String> {
        match text.strip_prefix("local:") {
            Some(count) => match count.parse() {
                Ok(count) if (1..=MAX_LOCAL).contains(&count) => Ok(WorkerAt::Local(count)),
                _ => Err(format!("local:N starts 1 to {MAX_LOCAL} workers on this machine")),
            },
            None => endpoint(text).map(WorkerAt::At),
        }
    }
}

/// Where a worker is, as people write it: the port may be left out.
pub(crate) fn endpoint(text: &str) -> Result<Endpoint, String> {
    let inner = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let text = match inner.parse::<Ipv6Addr>() {
        Ok(_) => format!("[{inner}]:{DEFAULT_PORT}"),
        Err(_) if !text.contains(':') => format!("{text}:{DEFAULT_PORT}"),
        Err(_) => text.to_owned(),
    };
    text.parse().map_err(|error: EndpointError| error.to_string())
}

/// A worker that runs already, and where that is; nowhere if it cannot be found, which connecting to it will say.
struct Listed {
    name: String,
    addresses: Vec<SocketAddr>,
}

impl Listed {
    fn new(endpoint: &Endpoint) -> Listed {
        Listed { name: endpoint.to_string(), addresses: endpoint.addresses().unwrap_or_default() }
    }

    fn is_same(&self, other: &Listed) -> bool {
        self.name == other.name || self.addresses.iter().any(|address| other.addresses.contains(address))
    }
}

impl fmt::Display for WorkerAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WorkerAt::At(endpoint) => endpoint.fmt(f),
            WorkerAt::Local(count) => write!(f, "local:{count}"),
        }
    }
}

/// A worker process of our own; it ends with us, even if we are killed: then its stdin, which we hold, is closed.
#[derive(Debug)]
struct Started {
    child: Child,
    endpoint: String,
}

impl Started {
    fn new(threads: Option<usize>) -> Result<Started, String> {
        let program =
            std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
        let mut command = Command::new(program);
        command.args(["worker", "--port", "0", "--until-stdin-ends"]);
        if let Some(threads) = threads {
            command.args(["--threads", &threads.to_string()]);
        }
        os::apart_from_terminal(&mut command);
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|error| format!("cannot start a worker: {error}"))?;
        let Some(stderr) = child.stderr.take() else { return Err("a worker has no log".into()) };
        let mut log = BufReader::new(stderr);
        let mut line = String::new();
        let endpoint = loop {
            line.clear();
            match log.read_line(&mut line) {
                Ok(1..) => {}
                _ => return Err("a worker ended before it listened".into()),
            }
            if let Some((_, rest)) = line.split_once("listening on ") {
                break rest.split(',').next().unwrap_or_default().trim().to_owned();
            }
        };
        // It goes on logging, and must never wait for its log to be read.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Ok(Started { child, endpoint })
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // It holds nothing that would have to be put away.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Workers that are connected.
#[derive(Debug, Default)]
pub(crate) struct Workers {
    registries: Vec<Arc<RemoteRegistry>>,
    /// Dropped after the connections.
    _started: Vec<Started>,
}

impl Workers {
    /// Starts and connects all of them, side by side.
    pub(crate) fn connect(wanted: &[WorkerAt], threads: Option<usize>) -> Result<Workers, Failure> {
        let (mut started, mut endpoints) = (Vec::new(), Vec::new());
        let mut listed = Vec::<Listed>::new();
        for worker in wanted {
            match worker {
                // Whether it keeps weights is not known. Asking costs a hash, which is faster than most networks.
                WorkerAt::At(endpoint) => {
                    let worker = Listed::new(endpoint);
                    match listed.iter().any(|known| known.is_same(&worker)) {
                        // A worker that was listed twice would lend its memory twice.
                        true => {
                            let name = worker.name;
                            let _ = writeln!(door::stderr(), "oxcart: {name} is listed twice, and used once");
                        }
                        false => {
                            endpoints.push((worker.name.clone(), true));
                            listed.push(worker);
                        }
                    }
                }
                WorkerAt::Local(count) => {
                    for _ in 0..*count {
                        let worker = Started::new(threads).map_err(Failure::Machine)?;
                        endpoints.push((worker.endpoint.clone(), false));
                        started.push(worker);
                    }
                }
            }
        }
        let (mut registries, mut errors) = (Vec::new(), Vec::new());
        std::thread::scope(|scope| {
            let asked: Vec<_> = endpoints
                .iter()
                .map(|(endpoint, worker_cache)| {
                    let options = Options { worker_cache: *worker_cache, ..Options::default() };
                    scope.spawn(move || RemoteRegistry::connect(endpoint, &options))
                })
                .collect();
            for (thread, (endpoint, _)) in asked.into_iter().zip(&endpoints) {
                match thread.join() {
                    Ok(Ok(registry)) => registries.push(registry),
                    Ok(Err(error)) => errors.push(error.to_string()),
                    Err(_) => errors.push(format!("{endpoint}: connecting panicked")),
                }
            }
        });
        match errors.is_empty() {
            true => Ok(Workers { registries, _started: started }),
            false => Err(Failure::Workers { errors }),
        }
    }

    /// Their devices, worker by worker.
    pub(crate) fn devices(&self) -> Vec<Arc<dyn Device>> {
        self.registries.iter().flat_map(|registry| registry.devices()).collect()
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.registries.is_empty()
    }

    /// The connections, in the order of the workers.
    pub(crate) fn registries(&self) -> &[Arc<RemoteRegistry>] {
        &self.registries
    }

    /// What has been sent and received so far, on all connections.
    pub(crate) fn traffic(&self) -> Traffic {
        self.registries.iter().fold(Traffic::default(), |sum, registry| {
            let usage = Traffic::of(registry);
            Traffic {
                sent: sum.sent + usage.sent,
                received: sum.received + usage.received,
                waits: sum.waits + usage.waits,
            }
        })
    }
}

/// What went over the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// Answers that were waited for.
    pub(crate) waits: u64,
}

impl Traffic {
    pub(crate) fn of(registry: &RemoteRegistry) -> Traffic {
        let usage = registry.traffic().total();
        Traffic { sent: usage.bytes_sent, received: usage.bytes_received, waits: usage.waits }
    }

    /// What came since.
    pub(crate) fn since(self, before: Traffic) -> Traffic {
        Traffic {
            sent: self.sent - before.sent,
            received: self.received - before.received,
            waits: self.waits - before.waits,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_told_apart() {
        assert!(matches!("local:3".parse(), Ok(WorkerAt::Local(3))));
        assert_eq!("192.168.1.5:50052".parse::<WorkerAt>().unwrap().to_string(), "192.168.1.5:50052");
        for (text, want) in [
            ("box", "box:50052"),
            ("10.0.0.7", "10.0.0.7:50052"),
            ("::1", "[::1]:50052"),
            ("[::1]", "[::1]:50052"),
        ] {
            assert_eq!(text.parse::<WorkerAt>().unwrap().to_string(), want);
        }
        let listed = |text: &str| Listed::new(&text.parse().unwrap());
        assert!(listed("localhost:1").is_same(&listed("localhost:1")));
        assert!(!listed("127.0.0.1:1").is_same(&listed("127.0.0.1:2")));
        for bad in ["local:0", "local:x", "local:65", "box:x", "a b", ""] {
            assert!(bad.parse::<WorkerAt>().is_err(), "{bad}");
        }
    }
}
