//! Devices that other machines lend, and workers that are started here for the time of a command.

mod absence;
mod slot;

use std::fmt;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use oxcart::backend::{Device, Registry};
use oxcart::rpc::client::{Endpoint, EndpointError, LinkTo, Options, RemoteRegistry, Timeouts};
use oxcart::rpc::link::{Machine, Machines};

use crate::failure::Failure;
use crate::os;
use crate::trust;
use crate::units;
use slot::Slot;

/// The port of a worker whose address has none; rpc-server's, too.
pub(crate) const DEFAULT_PORT: u16 = 50052;

/// The most workers that `local:N` starts.
const MAX_LOCAL: usize = 64;

/// How often workers are looked after.
const LOOK: Duration = Duration::from_millis(250);

/// What `--workers` names.
#[derive(Clone, Debug)]
pub(crate) enum WorkerAt {
    /// One that runs already: a place, or the name of a machine that this one is paired with.
    At(Endpoint),
    /// All machines that this one is paired with and that lend their devices to it.
    All,
    /// Some that are started for the time of the command.
    Local(usize),
}

impl FromStr for WorkerAt {
    type Err = String;

    fn from_str(text: &str) -> Result<WorkerAt, String> {
        match text.strip_prefix("local:") {
            Some(count) => match count.parse() {
                Ok(count) if (1..=MAX_LOCAL).contains(&count) => Ok(WorkerAt::Local(count)),
                _ => Err(format!("local:N starts N workers on this machine, from 1 to {MAX_LOCAL}")),
            },
            None if text == "all" => Ok(WorkerAt::All),
            None => endpoint(text).map(WorkerAt::At),
        }
    }
}

/// How long a worker may leave a heartbeat unanswered; none is sent if there is no such time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heartbeat(pub(crate) Option<Duration>);

impl Default for Heartbeat {
    fn default() -> Heartbeat {
        Heartbeat(Timeouts::default().heartbeat)
    }
}

impl FromStr for Heartbeat {
    type Err = String;

    fn from_str(text: &str) -> Result<Heartbeat, String> {
        match text {
            "off" | "0" => Ok(Heartbeat(None)),
            text => units::time(text)
                .map(|time| Heartbeat(Some(time)))
                .map_err(|wrong| format!("{wrong}, or off")),
        }
    }
}

/// Where a worker is, as people write it: the port may be left out.
pub(crate) fn endpoint(text: &str) -> Result<Endpoint, String> {
    if text.is_empty() {
        return Err("an address is empty; write HOST or HOST:PORT, for example 192.168.1.5".into());
    }
    with_port(text).parse().map_err(|error: EndpointError| error.to_string())
}

/// A place with the usual port, unless it has one.
pub(crate) fn with_port(text: &str) -> String {
    let inner = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    match inner.parse::<Ipv6Addr>() {
        Ok(_) => format!("[{inner}]:{DEFAULT_PORT}"),
        Err(_) if !text.contains(':') => format!("{text}:{DEFAULT_PORT}"),
        Err(_) => text.to_owned(),
    }
}

/// A worker that runs already: how it is reached, and where that is; nowhere if it cannot be found, which connecting to it will say.
#[derive(Debug)]
pub(crate) struct Listed {
    name: String,
    /// Where it is, in the order to try.
    endpoints: Vec<Endpoint>,
    /// Who it must be, if this machine knows it.
    link: Option<LinkTo>,
    /// Addresses to use rather than to look for, because they were found to be those of no known machine.
    checked: Vec<SocketAddr>,
    addresses: Vec<SocketAddr>,
}

impl Listed {
    fn new(name: String, endpoints: Vec<Endpoint>, link: Option<LinkTo>) -> Listed {
        let addresses =
            endpoints.iter().flat_map(|endpoint| endpoint.addresses().unwrap_or_default()).collect();
        Listed { name, endpoints, link, checked: Vec::new(), addresses }
    }

    /// A machine that this one is paired with.
    pub(crate) fn of_machine(machine: &Machine) -> Result<Listed, Failure> {
        Ok(Listed::new(machine.name.to_string(), machine.endpoints.clone(), Some(link_to(machine)?)))
    }

    /// All machines that this one is paired with and that lend their devices to it; an error if there are none.
    pub(crate) fn all(machines: &Machines) -> Result<Vec<Listed>, Failure> {
        let lending = machines.iter().filter(|machine| machine.lends());
        let all = lending.map(Listed::of_machine).collect::<Result<Vec<_>, _>>()?;
        match all.is_empty() {
            true => Err(Failure::Usage(
                "this machine is not paired with any worker yet; oxcart worker on another machine shows the line to give to oxcart join"
                    .into(),
            )),
            false => Ok(all),
        }
    }

    /// What it is called.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The name of the machine, if this one is paired with it and it was called by its name.
    pub(crate) fn machine(&self) -> Option<&str> {
        let is_address = || self.endpoints.iter().any(|endpoint| endpoint.to_string() == self.name);
        self.link.as_ref().filter(|_| !is_address()).map(|_| &*self.name)
    }

    /// A machine at a port of which its join line said nothing.
    fn of_machine_at(machine: &Machine, port: u16) -> Result<Listed, Failure> {
        let mut endpoints: Vec<Endpoint> = Vec::new();
        for endpoint in machine.endpoints.iter().map(|known| Endpoint::new(known.host(), port)) {
            if !endpoints.contains(&endpoint) {
                endpoints.push(endpoint);
            }
        }
        Ok(Listed::new(format!("{}:{port}", machine.name), endpoints, Some(link_to(machine)?)))
    }

    /// What is meant by a place or a name. Where a known machine should be, nothing else will do: a worker that this machine was once
    /// paired with is never talked to in the clear, however it is written and whatever names stand for at the moment.
    pub(crate) fn meant_by(endpoint: &Endpoint, machines: &Machines) -> Result<Listed, Failure> {
        let listed = Listed::found(endpoint, machines)?;
        if listed.is_unexpectedly_plain(machines) {
            tracing::warn!(
                "{} is not a machine that this one is paired with: what is sent there and back is not encrypted",
                listed.name
            );
        }
        Ok(listed)
    }

    /// The same worker, as it is to be reached now: the same machine, if it was one that this one is paired with, and nothing if that
    /// was revoked since. Otherwise what is meant by its place by now.
    fn again(&self) -> Result<Listed, Failure> {
        let gone = || Failure::Machine(format!("this machine no longer knows {}", self.name));
        let Some(link) = &self.link else {
            let endpoint = self.endpoints.first().ok_or_else(gone)?;
            return Listed::found(endpoint, &machines_for(&[WorkerAt::At(endpoint.clone())])?);
        };
        let machines = trust::machines()?;
        let machine = machines.iter().find(|machine| machine.key == link.worker).ok_or_else(gone)?;
        Ok(Listed::new(self.name.clone(), self.endpoints.clone(), Some(link_to(machine)?)))
    }

    /// What is meant, without a word about what it means for what is sent.
    pub(crate) fn found(endpoint: &Endpoint, machines: &Machines) -> Result<Listed, Failure> {
        let host = endpoint.host();
        let called = machines.called(host.trim_end_matches('.'));
        if let [one, other, ..] = called[..] {
            let (one, other) = (&one.name, &other.name);
            return Err(Failure::Usage(format!(
                "{host} may be {one} or {other}, which share that name; use the one that oxcart trust shows"
            )));
        }
        if let Some(machine) = called.first() {
            if machine.is_trusted() && machine.endpoints.is_empty() {
                let name = &machine.name;
                return Err(Failure::Usage(format!(
                    "{name} is paired with this machine but lends nothing to it; give its worker's line to oxcart join, or \
                     the address of another machine"
                )));
            }
            return match endpoint.port() {
                DEFAULT_PORT => Listed::of_machine(machine),
                port => Listed::of_machine_at(machine, port),
            };
        }
        let place = machines.at(endpoint).map_err(|error| Failure::Machine(error.to_string()))?;
        if let (None, Some(machine)) = (place.machine, namesake(host, machines)) {
            let name = &machine.name;
            return Err(Failure::Usage(format!(
                "{host} may be {name}, a machine paired with this one, but {name} was last found at another address; write {name}, or \
                 the IP address if you mean another machine"
            )));
        }
        let link = place.machine.map(link_to).transpose()?;
        let listed = Listed::new(endpoint.to_string(), vec![endpoint.clone()], link);
        Ok(match place.machine {
            None => Listed { checked: place.addresses, ..listed },
            Some(_) => listed,
        })
    }

    /// Whether it is talked to in the clear, beyond this machine, by one that could do better: it is paired with others, so that a name
    /// may have been mistyped, or an address may be one that a paired machine had.
    fn is_unexpectedly_plain(&self, machines: &Machines) -> bool {
        let is_beyond = |address: &SocketAddr| !address.ip().to_canonical().is_loopback();
        self.link.is_none()
            && self.addresses.iter().chain(&self.checked).any(is_beyond)
            && machines.iter().next().is_some()
    }

    /// Whether it is one worker: one machine may have several, at several ports.
    pub(crate) fn is_same(&self, other: &Listed) -> bool {
        let key = |listed: &Listed| listed.link.as_ref().map(|link| link.worker);
        if let (Some(one), Some(other)) = (key(self), key(other))
            && one != other
        {
            return false;
        }
        self.name == other.name || self.addresses.iter().any(|address| other.addresses.contains(address))
    }

    /// Where it is, in the order to try.
    pub(crate) fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// Whether this machine knows who it must be.
    pub(crate) fn is_paired(&self) -> bool {
        self.link.is_some()
    }

    /// How to connect to it, at any of its places.
    pub(crate) fn options(&self, timeouts: Timeouts) -> Options {
        let (link, addresses) = (self.link.clone(), self.checked.clone());
        Options { link, addresses, timeouts, ..Options::default() }
    }

    /// Connects, at the first of its places that can be reached.
    pub(crate) fn connect(
        &self,
        worker_cache: bool,
        heartbeat: Heartbeat,
    ) -> Result<Arc<RemoteRegistry>, String> {
        let timeouts = Timeouts { heartbeat: heartbeat.0, ..Timeouts::default() };
        let called = self.machine().map(str::to_owned);
        let options = Options { worker_cache, called, ..self.options(timeouts) };
        let mut errors = Vec::new();
        for endpoint in &self.endpoints {
            match RemoteRegistry::connect(&endpoint.to_string(), &options) {
                Ok(registry) => {
                    if let Some(error) = registry.heartbeat_error() {
                        let name = &self.name;
                        tracing::warn!(
                            "{name} is used without heartbeats, so it may take long to notice that it hangs: {error}"
                        );
                    }
                    return Ok(registry);
                }
                Err(error) => errors.push(error.to_string()),
            }
        }
        Err(errors.join("; "))
    }

    /// An error of connecting, which says where the worker was looked for, with its name in front if it has one.
    pub(crate) fn named(&self, error: String) -> String {
        match self.machine() {
            Some(name) => format!("{name}: {error}"),
            None => error,
        }
    }
}

/// The known worker that a host name with a domain seems to mean, such as `den.local`: the server of such names could make it mean
/// another machine.
fn namesake<'m>(host: &str, machines: &'m Machines) -> Option<&'m Machine> {
    let (label, _) = host.split_once('.').filter(|_| host.parse::<IpAddr>().is_err())?;
    let is_worker = |machine: &&Machine| !machine.is_trusted() || !machine.endpoints.is_empty();
    machines.called(label).into_iter().find(is_worker)
}

/// Whom this machine knows, as far as these workers may be among them. A user without a home knows none; but then nothing tells what a
/// name means, which must not be whatever answers to it.
pub(crate) fn machines_for(wanted: &[WorkerAt]) -> Result<Machines, Failure> {
    let is_address = |endpoint: &Endpoint| {
        endpoint.host().parse::<IpAddr>().is_ok() || endpoint.host().eq_ignore_ascii_case("localhost")
    };
    let mut named = wanted.iter().filter(|worker| match worker {
        WorkerAt::At(endpoint) => !is_address(endpoint),
        WorkerAt::All => true,
        WorkerAt::Local(_) => false,
    });
    match (named.next(), oxcart::folders::data()) {
        (Some(name), None) => Err(Failure::Usage(format!(
            "this user has no home folder, so the list of paired machines cannot be found, nor what {name} means; give the worker's \
             address, or set XDG_DATA_HOME to a folder"
        ))),
        (None, None) => Ok(Machines::default()),
        (None, _) if wanted.iter().all(|worker| matches!(worker, WorkerAt::Local(_))) => {
            Ok(Machines::default())
        }
        (_, Some(_)) => trust::machines(),
    }
}

/// How to connect to a machine, unless it was revoked.
fn link_to(machine: &Machine) -> Result<LinkTo, Failure> {
    let name = &machine.name;
    match machine.revoked {
        _ if machine.is_trusted() => trust::link_to(machine),
        false => Err(Failure::Usage(format!(
            "{name} was revoked, and has been given back only the right to use this machine, so nothing is sent to it; oxcart join, \
             with the line of its worker, pairs this machine with it"
        ))),
        true => Err(Failure::Usage(format!(
            "{name} was revoked, and nothing is sent to it; oxcart join pairs with it again, and after oxcart trust forget {name} \
             its address is like any other"
        ))),
    }
}

impl fmt::Display for WorkerAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WorkerAt::At(endpoint) => endpoint.fmt(f),
            WorkerAt::All => f.write_str("all"),
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
                _ => return Err("a worker started by --workers local:N ended before it was ready".into()),
            }
            if let Some((_, rest)) = line.split_once("listening on ") {
                break rest.split(',').next().unwrap_or_default().trim().to_owned();
            }
        };
        // It goes on logging, and must never wait for its log to be read.
        thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
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

/// A worker to connect to.
#[derive(Debug)]
struct Wanted {
    worker: Listed,
    /// Not started for the time of the command.
    runs_already: bool,
    /// Whether it was not asked for by itself, but as one of all.
    may_be_absent: bool,
}

/// Adds a worker that runs already, unless it is there: one that was listed twice would lend its memory twice.
fn list(worker: Listed, may_be_absent: bool, wanted: &mut Vec<Wanted>) {
    match wanted.iter_mut().find(|known| known.worker.is_same(&worker)) {
        Some(known) => {
            known.may_be_absent &= may_be_absent;
            let name = worker.name;
            tracing::warn!("{name} is listed twice; it is used once");
        }
        None => wanted.push(Wanted { worker, runs_already: true, may_be_absent }),
    }
}

/// A device of a worker: which worker, and its number there. Both stay the same when the worker comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemotePlace {
    worker: usize,
    device: usize,
}

/// A device of a worker over the connection that is used now.
#[derive(Clone, Debug)]
pub(crate) struct RemoteMember {
    pub(crate) place: RemotePlace,
    pub(crate) device: Arc<dyn Device>,
    /// Whether the worker is known to be lost.
    pub(crate) is_lost: bool,
}

/// Workers that are connected, or are tried again because they were, or were to be.
#[derive(Debug)]
pub(crate) struct Workers {
    slots: Vec<Slot>,
    begun: Instant,
    /// How often one of them came, or came back.
    returns: AtomicU64,
    is_watched: AtomicBool,
    /// Dropped after the connections.
    _started: Vec<Started>,
}

impl Workers {
    /// Starts and connects all of them, side by side. Of `all`, those that cannot be reached are left out until they can be, unless devices are
    /// meant by their numbers, which would then be others.
    pub(crate) fn connect(
        wanted: &[WorkerAt],
        threads: Option<usize>,
        heartbeat: Heartbeat,
        are_numbered: bool,
    ) -> Result<Workers, Failure> {
        let mut started = Vec::new();
        // Whether it keeps weights is not known of one that runs already. Asking costs a hash, which is faster than most networks.
        let mut listed = Vec::<Wanted>::new();
        let machines = machines_for(wanted)?;
        for worker in wanted {
            match worker {
                WorkerAt::At(endpoint) => list(Listed::meant_by(endpoint, &machines)?, false, &mut listed),
                WorkerAt::All => {
                    for worker in Listed::all(&machines)? {
                        list(worker, !are_numbered, &mut listed);
                    }
                }
                WorkerAt::Local(count) => {
                    for _ in 0..*count {
                        let worker = Started::new(threads).map_err(Failure::Machine)?;
                        let endpoint = endpoint(&worker.endpoint).map_err(Failure::Machine)?;
                        listed.push(Wanted {
                            worker: Listed::new(worker.endpoint.clone(), vec![endpoint], None),
                            runs_already: false,
                            may_be_absent: false,
                        });
                        started.push(worker);
                    }
                }
            }
        }
        let begun = Instant::now();
        let tries: Vec<_> = thread::scope(|scope| {
            let asked: Vec<_> = listed
                .iter()
                .map(|wanted| scope.spawn(|| wanted.worker.connect(wanted.runs_already, heartbeat)))
                .collect();
            asked.into_iter().map(thread::ScopedJoinHandle::join).collect()
        });
        let (mut slots, mut absent, mut errors) = (Vec::new(), Vec::new(), Vec::new());
        for (tried, Wanted { worker, runs_already, may_be_absent }) in tries.into_iter().zip(listed) {
            let name = worker.name.clone();
            match tried.unwrap_or_else(|_| Err(format!("{name}: internal error (a bug) while connecting"))) {
                Ok(registry) => {
                    let again = runs_already.then_some(worker);
                    slots.push(Slot::new(registry, again, heartbeat, begun.elapsed()));
                }
                Err(error) if may_be_absent => {
                    absent.push((worker.named(error.clone()), error, name));
                    slots.push(Slot::absent(worker, heartbeat, begun.elapsed()));
                }
                Err(error) => errors.push(worker.named(error)),
            }
        }
        if absent.len() == slots.len() {
            errors.extend(absent.drain(..).map(|(named, ..)| named));
        }
        if !errors.is_empty() {
            return Err(Failure::Workers { errors });
        }
        for (_, error, name) in absent {
            tracing::warn!("{name} cannot be reached ({error}); continuing without it");
        }
        Ok(Workers {
            slots,
            begun,
            returns: AtomicU64::new(0),
            is_watched: AtomicBool::new(false),
            _started: started,
        })
    }

    /// From now on, those that are lost or absent are tried again, for as long as any thread has these workers.
    pub(crate) fn watch(self: &Arc<Workers>) {
        if self.slots.is_empty() || self.is_watched.swap(true, Ordering::Relaxed) {
            return;
        }
        let watched = Arc::downgrade(self);
        let look_after = move || {
            loop {
                thread::sleep(LOOK);
                let Some(workers) = watched.upgrade() else { return };
                let time = workers.begun.elapsed();
                let back = workers.slots.iter().filter(|slot| slot.look_after(time)).count();
                // After what came back can be seen.
                workers.returns.fetch_add(back as u64, Ordering::Release);
            }
        };
        if let Err(error) = thread::Builder::new().name("returns".into()).spawn(look_after) {
            tracing::warn!("workers that are lost or absent will not be tried again: {error}");
        }
    }

    /// Where the worker is whose device has this name; none of a device of this machine.
    pub(crate) fn address_of(&self, device: &str) -> Option<String> {
        let has = |used: &Arc<RemoteRegistry>| used.devices().iter().any(|own| own.name() == device);
        let found = self.slots.iter().filter_map(Slot::used).find(has)?;
        Some(found.endpoint().to_owned())
    }

    /// How often one of them came, or came back.
    pub(crate) fn returns(&self) -> u64 {
        self.returns.load(Ordering::Acquire)
    }

    /// Their devices, worker by worker.
    pub(crate) fn members(&self) -> Vec<RemoteMember> {
        let mut members = Vec::new();
        for (worker, slot) in self.slots.iter().enumerate() {
            let Some(used) = slot.used() else { continue };
            let is_lost = used.failure().is_some();
            for (device, found) in used.devices().into_iter().enumerate() {
                members.push(RemoteMember { place: RemotePlace { worker, device }, device: found, is_lost });
            }
        }
        members
    }

    /// What is in a place now; nothing while its worker is lost, or if the worker came back without it.
    pub(crate) fn device(&self, place: RemotePlace) -> Option<Arc<dyn Device>> {
        let used = self.slots.get(place.worker)?.used()?;
        used.devices().into_iter().nth(place.device).filter(|_| used.failure().is_none())
    }

    /// Their devices, worker by worker.
    pub(crate) fn devices(&self) -> Vec<Arc<dyn Device>> {
        self.members().into_iter().map(|member| member.device).collect()
    }

    /// Puts into the log, for `-v`, what is known about failures of connections.
    pub(crate) fn explain(&self) {
        self.slots.iter().for_each(Slot::explain);
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Whether some of them serve one client at a time, as llama.cpp's do.
    pub(crate) fn serve_one_client(&self) -> bool {
        let is_such =
            |used: Arc<RemoteRegistry>| used.dialect().own_ops.is_empty() && used.failure().is_none();
        self.slots.iter().filter_map(Slot::used).any(is_such)
    }

    /// The connections that are used, in the order of the workers.
    pub(crate) fn registries(&self) -> Vec<Arc<RemoteRegistry>> {
        self.slots.iter().filter_map(Slot::used).collect()
    }

    /// What has been sent to each of them and received from it, and the connection that is used.
    pub(crate) fn links(&self) -> Vec<(Arc<RemoteRegistry>, Traffic)> {
        self.slots.iter().filter_map(|slot| Some((slot.used()?, slot.traffic()))).collect()
    }

    /// What has been sent and received so far, on all connections.
    pub(crate) fn traffic(&self) -> Traffic {
        self.slots.iter().fold(Traffic::default(), |sum, slot| sum.and(slot.traffic()))
    }
}

impl Drop for Workers {
    /// Commands that do not go on without a lost worker end here.
    fn drop(&mut self) {
        self.explain();
    }
}

/// A device as people call it: that of a worker by the worker's name or where it is, `RPC0[host:50052]` as `host:50052`.
pub(crate) fn device_name(name: &str) -> String {
    let remote = name.strip_prefix("RPC").and_then(|rest| rest.strip_suffix(']')?.split_once('['));
    match remote {
        Some(("0", worker)) => worker.to_owned(),
        Some((number, worker)) => format!("{worker}, device {number}"),
        None => name.to_owned(),
    }
}

/// The same among the devices of its worker: `RPC0[host:50052]` as `device 0`.
pub(crate) fn device_of_worker(name: &str) -> String {
    let remote = name.strip_prefix("RPC").and_then(|rest| rest.strip_suffix(']')?.split_once('['));
    remote.map_or_else(|| name.to_owned(), |(number, _)| format!("device {number}"))
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

    /// Both together.
    fn and(self, other: Traffic) -> Traffic {
        Traffic {
            sent: self.sent + other.sent,
            received: self.received + other.received,
            waits: self.waits + other.waits,
        }
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
    use oxcart::rpc::link::{Identity, Key};

    use super::*;

    #[test]
    fn devices_are_called_by_where_they_are() {
        for (name, want) in [
            ("CPU", "CPU"),
            ("RPC0[den]", "den"),
            ("RPC0[box:1]", "box:1"),
            ("RPC1[[::1]:2]", "[::1]:2, device 1"),
        ] {
            assert_eq!(device_name(name), want);
        }
        for (name, want) in [("CUDA0", "CUDA0"), ("RPC0[box:1]", "device 0"), ("RPC1[[::1]:2]", "device 1")] {
            assert_eq!(device_of_worker(name), want);
        }
    }

    #[test]
    fn heartbeats_can_be_turned_off() {
        let parse = |text: &str| text.parse::<Heartbeat>();
        assert_eq!(parse("5s"), Ok(Heartbeat(Some(Duration::from_secs(5)))));
        assert_eq!(parse("2s"), Ok(Heartbeat::default()));
        assert!([parse("off"), parse("0")].iter().all(|parsed| *parsed == Ok(Heartbeat(None))));
        assert!(parse("soon").unwrap_err().ends_with("or off"));
    }

    #[test]
    fn workers_are_told_apart() {
        assert!(matches!("local:3".parse(), Ok(WorkerAt::Local(3))));
        assert!(matches!("all".parse(), Ok(WorkerAt::All)));
        assert_eq!("192.168.1.5:50052".parse::<WorkerAt>().unwrap().to_string(), "192.168.1.5:50052");
        for (text, want) in [
            ("box", "box:50052"),
            ("10.0.0.7", "10.0.0.7:50052"),
            ("::1", "[::1]:50052"),
            ("[::1]", "[::1]:50052"),
        ] {
            assert_eq!(text.parse::<WorkerAt>().unwrap().to_string(), want);
        }
        let mut machines = Machines::default();
        let listed = |text: &str| Listed::meant_by(&text.parse().unwrap(), &machines).unwrap();
        assert!(listed("localhost:1").is_same(&listed("localhost:1")));
        assert!(!listed("127.0.0.1:1").is_same(&listed("127.0.0.1:2")));
        // A machine that is known, under its name and at its place, whatever the port; here it was revoked, so nothing will do.
        let den = Key::from_bytes([1; 32]);
        machines.remember("den".parse().unwrap(), den).unwrap();
        let at = |text: &str, machines: &Machines| Listed::meant_by(&endpoint(text).unwrap(), machines);
        let said = |text: &str, machines: &Machines| at(text, machines).unwrap_err().to_string();
        assert!(said("den", &machines).contains("lends nothing"));
        machines.found_at(den, &[endpoint("127.0.0.1:7").unwrap()]);
        machines.revoke(den);
        for text in ["den", "DEN.", "den:7", "den:8", "127.0.0.1:7", "[::ffff:127.0.0.1]:7"] {
            assert!(said(text, &machines).contains("was revoked"), "{text}");
        }
        // Elsewhere, what was looked at is what is used.
        let other = at("127.0.0.1:8", &machines).unwrap();
        assert_eq!((other.checked.len(), other.link.is_none()), (1, true));
        for bad in ["local:0", "local:x", "local:65", "box:x", "a b", ""] {
            assert!(bad.parse::<WorkerAt>().is_err(), "{bad}");
        }
    }

    fn linked(name: &str, key: u8, place: &str) -> Listed {
        let link =
            LinkTo { identity: Arc::new(Identity::make().unwrap()), worker: Key::from_bytes([key; 32]) };
        Listed::new(name.into(), vec![endpoint(place).unwrap()], Some(link))
    }

    /// One machine may have several workers, at several ports; under two names, one is one.
    #[test]
    fn workers_of_one_machine_are_told_apart() {
        let den = linked("den", 1, "127.0.0.1:7");
        assert!(den.is_same(&linked("127.0.0.1:7", 1, "127.0.0.1:7")));
        assert!(den.is_same(&linked("den", 1, "no.such.invalid:7")), "it cannot be found now");
        assert!(!den.is_same(&linked("den:8", 1, "127.0.0.1:8")));
        assert!(!den.is_same(&linked("attic", 2, "127.0.0.1:7")), "another machine, whatever its address");
    }

    /// A machine that is paired with others is told where it sends something in the clear, unless that stays on it.
    #[test]
    fn plain_connections_beyond_this_machine_are_told() {
        let mut machines = Machines::default();
        let is_told = |place: &str, machines: &Machines| {
            Listed::meant_by(&endpoint(place).unwrap(), machines).unwrap().is_unexpectedly_plain(machines)
        };
        assert!(!is_told("192.0.2.1", &machines), "it knows no machine");
        machines.remember("desk".parse().unwrap(), Key::from_bytes([1; 32])).unwrap();
        for placed in [false, true] {
            assert!(is_told("192.0.2.1", &machines) && is_told("[2001:db8::1]:7", &machines), "{placed}");
            assert!(!is_told("127.0.0.1:8", &machines) && !is_told("[::ffff:127.0.0.1]:8", &machines));
            machines.found_at(Key::from_bytes([1; 32]), &[endpoint("127.0.0.1:7").unwrap()]);
        }
        assert!(!linked("desk", 1, "192.0.2.1:7").is_unexpectedly_plain(&machines));
    }

    /// A machine is also known by what it calls itself, and is not used where only its right to use this one was given back.
    #[test]
    fn other_names_of_known_machines_mean_them() {
        let (mut machines, den) = (Machines::default(), Key::from_bytes([1; 32]));
        let machine = machines.remember("den".parse().unwrap(), den).unwrap();
        machine.calls_itself = Some("den".parse().unwrap());
        machines.rename(den, "study".parse().unwrap()).unwrap();
        machines.found_at(den, &[endpoint("127.0.0.1:7").unwrap()]);
        machines.revoke(den);
        let said = |text: &str, machines: &Machines| {
            Listed::meant_by(&endpoint(text).unwrap(), machines).unwrap_err().to_string()
        };
        for text in ["den", "study", "DEN.:8"] {
            assert!(said(text, &machines).contains("study was revoked, and nothing"), "{text}");
        }
        assert!(namesake("den.local", &machines).is_some());
        machines.remember("den".parse().unwrap(), den).unwrap().may_use_this = true;
        for text in ["den", "study", "127.0.0.1:7"] {
            assert!(said(text, &machines).contains("only the right"), "{text}");
        }
        assert!(Listed::all(&machines).is_err());
        // Another one that calls itself so makes it unclear.
        let other = Key::from_bytes([2; 32]);
        machines.remember("attic".parse().unwrap(), other).unwrap().calls_itself =
            Some("den".parse().unwrap());
        assert!(said("den", &machines).contains("attic or study"), "{}", said("den", &machines));
    }

    #[test]
    fn names_like_those_of_known_machines_are_found() {
        let mut machines = Machines::default();
        let den = Key::from_bytes([1; 32]);
        machines.remember("den".parse().unwrap(), den).unwrap();
        assert!(namesake("den.local", &machines).is_none(), "it lends nothing");
        machines.found_at(den, &[endpoint("127.0.0.1:7").unwrap()]);
        for (host, is_den) in [
            ("den.local", true),
            ("DEN.lan.", true),
            ("attic.local", false),
            ("10.0.0.7", false),
            ("box", false),
        ] {
            assert_eq!(namesake(host, &machines).is_some(), is_den, "{host}");
        }
        // It is looked up at another place than it was found at.
        let said =
            Listed::meant_by(&endpoint("den.localhost:8").unwrap(), &machines).unwrap_err().to_string();
        assert!(said.contains("may be den") || said.contains("den.localhost"), "{said}");
    }
}
