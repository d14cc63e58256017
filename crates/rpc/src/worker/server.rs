//! The worker itself: what all connections share, and its beginning and end.
//!
//! Concurrency: one thread per listener, one per connection, one watcher. They share [`WorkerState`], which outlives them.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use oxcart_backend::{Arithmetic, Device, Error, Memory, StreamOptions};

use super::budget::{Budget, Lease};
use super::cache::WeightCache;
use super::client::{Client, Dropped, Phase};
use super::copies::Copies;
use super::counters::{Counters, Snapshot, add};
use super::entry::Plain;
use super::event::{Event, Observer, Reporter};
use super::introductions::Introductions;
use super::lent::Lent;
use super::limits::{
    CHORE_BYTES, CONNECTION_BYTES, COURIERS, INDEXED_DOMAIN_BYTES, INDEXED_ENTRY_BYTES, KEEPERS,
    KEPT_DOMAINS, KEPT_ENTRIES, KEPT_PIECE_BYTES, KEPT_PIECES, LANES, LONGEST_PAYMENT, Limits,
    SMALL_CHORE_BYTES, WATCH_EVERY,
};
use super::listen::{bind, listen, serve_client};
use super::parts::Parts;
use super::pulses::{ExpectedPulse, Pulses};
use super::refusal::Refusal;
use super::roster::Roster;
use super::trust::Trust;
use super::turnstile::Turnstile;
use super::watch::watch;
use crate::link::Key;
use crate::link::limits::SECURED_BYTES;
use crate::wire::{Command, Dialect, NotDelivered};

/// Which dialect a listener speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialectChoice {
    /// The oldest with clients whose HELLO is empty, the newest with others: more cannot be told from a HELLO. The newest comes
    /// with the operations that only Oxcart has, and only clients of ours will use them.
    Auto,
    /// Always this one.
    Fixed(&'static Dialect),
}

impl DialectChoice {
    /// The dialect to answer a HELLO of this size in.
    pub(crate) fn for_hello(self, size: u64) -> Option<&'static Dialect> {
        let has_size = |dialect: &&'static Dialect| Command::Hello.request_bytes(dialect) as u64 == size;
        match self {
            DialectChoice::Auto => [Dialect::classic(), Dialect::own()].into_iter().find(has_size),
            DialectChoice::Fixed(dialect) => Some(dialect).filter(has_size),
        }
    }
}

impl FromStr for DialectChoice {
    type Err = <&'static Dialect as FromStr>::Err;

    fn from_str(name: &str) -> Result<DialectChoice, Self::Err> {
        match name {
            "auto" => Ok(DialectChoice::Auto),
            // The one that a package carries.
            "4.0" => "4.0.0".parse().map(DialectChoice::Fixed),
            name => name.parse().map(DialectChoice::Fixed),
        }
    }
}

impl fmt::Display for DialectChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DialectChoice::Auto => f.pad("auto"),
            DialectChoice::Fixed(dialect) => dialect.fmt(f),
        }
    }
}

/// How a worker is set up.
#[derive(Clone)]
pub struct Config {
    /// Devices to lend.
    pub devices: Vec<Arc<dyn Device>>,
    /// How their streams are opened.
    pub stream: StreamOptions,
    /// Bytes to lend of each device; by default what is free at the start, less what the worker may need for itself.
    pub max_memory: Option<usize>,
    /// What clients may do.
    pub limits: Limits,
    /// Weights by content; by default, none are kept.
    pub cache: Option<Arc<WeightCache>>,
    /// Contents in files of the worker's own, for all clients that name them by their digest; by default, there are none.
    pub copies: Option<Arc<dyn Copies>>,
    /// Who this machine is, and which machines may use it; by default, none is known.
    pub trust: Option<Arc<Trust>>,
    /// Who may come without a key; by default, clients of this machine.
    pub plain: Plain,
    /// Whom to tell what happens.
    pub observer: Observer,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("devices", &self.devices)
            .field("max_memory", &self.max_memory)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// Lends devices with default settings and limits, and without an observer.
    pub fn new(devices: impl IntoIterator<Item = Arc<dyn Device>>) -> Config {
        Config {
            devices: devices.into_iter().collect(),
            stream: StreamOptions::default(),
            max_memory: None,
            limits: Limits::default(),
            cache: None,
            copies: None,
            trust: None,
            plain: Plain::default(),
            observer: Arc::new(|_| {}),
        }
    }
}

/// Bytes of a device to lend where nothing was said: all that is free, but of this machine's own memory not what the worker
/// may need for itself, nor a sixteenth that others may need.
fn lent_by_default(device: &Arc<dyn Device>, config: &Config) -> usize {
    let Ok(Memory { free, .. }) = device.memory() else { return usize::MAX };
    match device.buffer_type().is_host() {
        true => left_to_lend(free, config.limits, config.stream.max_scratch, config.cache.is_some()),
        false => free,
    }
}

fn left_to_lend(free: usize, limits: Limits, max_scratch: Option<usize>, has_cache: bool) -> usize {
    let connections = limits.clients.saturating_mul(CONNECTION_BYTES) + COURIERS * SECURED_BYTES;
    let writing = KEEPERS * (KEPT_PIECES + 2) * KEPT_PIECE_BYTES;
    let remembered = KEPT_ENTRIES * INDEXED_ENTRY_BYTES + KEPT_DOMAINS * INDEXED_DOMAIN_BYTES;
    let kept = if has_cache { writing + remembered } else { 0 };
    // Each lane of a device has scratch memory of its own.
    let scratch = max_scratch.unwrap_or(0).saturating_mul(LANES.len() + 1);
    [limits.message_bytes, limits.stored_bytes, connections, kept, scratch, free / 16]
        .into_iter()
        .fold(free, usize::saturating_sub)
}

/// What all threads of a worker share.
#[derive(Debug)]
pub(crate) struct WorkerState {
    pub(crate) devices: Vec<Lent>,
    pub(crate) limits: Limits,
    pub(crate) cache: Option<Arc<WeightCache>>,
    pub(crate) copies: Option<Arc<dyn Copies>>,
    pub(crate) trust: Option<Arc<Trust>>,
    pub(crate) plain: Plain,
    /// Other workers that clients have introduced.
    pub(crate) introductions: Arc<Introductions>,
    /// Memory of connections to other workers.
    pub(crate) couriers: Arc<Budget>,
    /// Pulses of sessions.
    pub(crate) pulses: Arc<Pulses>,
    /// Memory of messages of all clients, until they are graphs.
    pub(crate) messages: Arc<Budget>,
    /// Memory of graphs that run or are stored, and of the knowledge of buffers.
    stored: Arc<Budget>,
    /// Turns at what the processor does for clients besides computing: clearing, copying, planning.
    pub(crate) chores: Turnstile,
    /// Turns at loading from the cache and from own files. A disk that does not answer must hold up nothing else.
    pub(crate) loads: Turnstile,
    /// Turns at which small commands are paid for, see [`WorkerState::pay`].
    payments: Turnstile,
    /// Turns at handshakes, which cost most before it is known who comes.
    handshakes: Turnstile,
    pub(crate) counters: Counters,
    pub(crate) roster: Roster,
    pub(crate) next_client: AtomicU64,
    /// No more clients, and no more commands.
    pub(crate) stopping: AtomicBool,
    /// All clients are gone, and the watcher may end.
    pub(crate) ended: AtomicBool,
    reporter: Reporter,
}

impl WorkerState {
    pub(crate) fn report(&self, event: &Event) {
        self.reporter.report(event);
    }

    pub(crate) fn refused(&self, client: &Client, command: &'static str, refusal: &Refusal) {
        let code = refusal.code();
        self.counters.refused(code);
        let reason = refusal.to_string();
        self.report(&Event::Refused { client: client.id, peer: client.peer, command, code, reason });
        // Whatever was asked of it, a device that is gone is gone for all.
        if let Refusal::Failed(Error::DeviceLost { device, reason }) = refusal
            && let Some(index) = self.devices.iter().position(|lent| lent.device().name() == device)
        {
            self.lose(index, reason);
        }
    }

    /// Another worker has not sent what a client's session waited for.
    pub(crate) fn undelivered(
        &self,
        client: &Client,
        (caller, key): (Option<&Client>, Option<Key>),
        why: NotDelivered,
    ) {
        add(&self.counters.undelivered, 1);
        let machine = self.trust.as_ref().zip(key).and_then(|(trust, key)| trust.machine(key));
        let machine = machine.map(|machine| machine.name);
        let worker = caller.map(|caller| caller.peer);
        self.report(&Event::Undelivered { client: client.id, peer: client.peer, worker, machine, why });
    }

    /// The order in which all devices add up, if it is the same.
    pub(crate) fn arithmetic(&self) -> Option<Arithmetic> {
        let mut all = self.devices.iter().map(|lent| lent.device().arithmetic());
        let first = all.next()??;
        all.all(|other| other == Some(first)).then_some(first)
    }

    /// A device is broken: clients that use it are disconnected, others go on.
    pub(crate) fn lose(&self, device: usize, reason: &str) {
        let Some(lent) = self.devices.get(device).filter(|lent| lent.lose()) else { return };
        add(&self.counters.degraded, 1);
        let (name, reason) = (lent.device().name().to_owned(), reason.to_owned());
        self.report(&Event::DeviceLost { device: name, reason });
        for client in self.roster.all().iter().filter(|client| client.is_using(device)) {
            client.drop_for(Dropped::DeviceLost);
            self.stop(client);
        }
    }

    /// Makes the one who has most of a pool make way for a client that wants so many bytes of it: with what it can give up, or
    /// else with its connection. Says whether something went.
    fn make_way(
        &self,
        pool: &Budget,
        client: &Client,
        bytes: usize,
        gives_up: impl Fn(&Client) -> bool,
    ) -> bool {
        /// How long a connection has to end, also on a machine that is busy with other things.
        const PATIENCE: Duration = Duration::from_secs(5);
        let Some(heaviest) = pool.heaviest(client.holder(), bytes) else { return false };
        let before = pool.used_by(heaviest);
        if let Some(other) = self.roster.get(heaviest.client).filter(|other| !gives_up(other)) {
            // It may have made way for another one in the meantime.
            if pool.heaviest(client.holder(), bytes) != Some(heaviest) {
                return true;
            }
            add(&self.counters.dropped, 1);
            other.drop_for(Dropped::TooMuch);
            self.stop(&other);
        }
        let since = Instant::now();
        while pool.used_by(heaviest) >= before {
            if since.elapsed() > PATIENCE {
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Bytes for a graph or the knowledge of a buffer, if there are enough or others make way, with their stored graphs first. Plans
    /// of stored graphs make way for anything: no one needs them.
    pub(crate) fn lease_stored_bytes(&self, client: &Client, bytes: usize) -> Option<Lease> {
        loop {
            if let Some(lease) = self.stored.lease(client.holder(), bytes) {
                return Some(lease);
            }
            if !self.give_up_plans()
                && !self.make_way(&self.stored, client, bytes, |other| other.graphs.lose_all())
            {
                return None;
            }
        }
    }

    /// Gives up the plans of the client that has most of them in stored graphs; says whether there were any.
    fn give_up_plans(&self) -> bool {
        let clients = self.roster.all();
        let most = clients.iter().max_by_key(|client| client.graphs.plan_bytes());
        most.is_some_and(|client| client.graphs.give_up_all_plans())
    }

    /// None yet, for the plans of a graph.
    pub(crate) fn lease_for_plans(&self, client: &Client) -> Lease {
        self.stored.nothing(client.holder())
    }

    /// Lets a message count so many bytes, if there are enough or others make way, who have nothing to give up but their own.
    pub(crate) fn charge_message(
        &self,
        client: &Client,
        charge: &mut Lease,
        bytes: usize,
    ) -> Result<(), Refusal> {
        charge.shrink_to(bytes);
        let more = bytes - charge.bytes();
        while !charge.grow(more) {
            if !self.make_way(&self.messages, client, more, |_| false) {
                return Err(self.full_of_messages());
            }
        }
        Ok(())
    }

    /// There is no room for a message.
    pub(crate) const fn full_of_messages(&self) -> Refusal {
        Refusal::Limit { what: "bytes of messages", limit: self.limits.message_bytes as u64 }
    }

    /// Does something for a client to so many bytes that takes the processor's time, a part at a time when it is the client's turn:
    /// `chore` is told where each part begins and how many bytes it has.
    pub(crate) fn do_chore_in_parts(
        &self,
        client: &Client,
        bytes: usize,
        mut chore: impl FnMut(usize, usize) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        if bytes <= SMALL_CHORE_BYTES {
            return chore(0, bytes);
        }
        let mut parts = Parts::new(&self.chores, client, CHORE_BYTES);
        client.in_turn(|| {
            for start in (0..bytes).step_by(CHORE_BYTES) {
                let len = CHORE_BYTES.min(bytes - start);
                if !parts.go_on(len) {
                    return Err(Error::Cancelled.into());
                }
                chore(start, len)?;
            }
            Ok(())
        })
    }

    /// Makes a client wait that used much of the processor for commands without turns: its turn comes when it has used less than
    /// others, and is as long as what it pays for. So those commands of all clients together take no more than half of the processors.
    pub(crate) fn pay(&self, client: &Client, used: Duration) {
        if let Some(turn) = self.payments.enter(client.holder(), WATCH_EVERY, || client.is_gone()) {
            thread::sleep(used.min(LONGEST_PAYMENT));
            drop(turn);
        }
    }

    /// Does a step of a client's handshake when it is its turn; not at all once the client is gone. Says whether it was done.
    pub(crate) fn shake_hands_in_turn(&self, client: &Client, step: &mut dyn FnMut()) -> bool {
        let turn = self.handshakes.enter(client.holder(), WATCH_EVERY, || client.is_gone());
        turn.map(|_turn| client.in_turn(step)).is_some()
    }

    /// Bytes of each device that a client's peer may have: nothing, in the moment between a machine's revocation and its end.
    pub(crate) fn memory_limit(&self, client: &Client) -> usize {
        let (Some(key), Some(trust)) = (client.key(), &self.trust) else { return usize::MAX };
        match trust.machine(key) {
            None if key == trust.key() => usize::MAX,
            None => 0,
            Some(machine) => {
                machine.max_memory.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX))
            }
        }
    }

    /// What the pulse of a client's session may come by.
    pub(crate) fn expect_pulse(&self, client: &Client) -> Option<ExpectedPulse> {
        self.pulses.expect(self.roster.get(client.id)?)
    }

    /// Stops what a client is computing.
    pub(crate) fn stop(&self, client: &Client) {
        for lent in &self.devices {
            lent.stop(client.id);
        }
    }
}

/// A worker that runs until it is shut down or dropped.
#[derive(Debug)]
pub struct Worker {
    shared: Arc<WorkerState>,
    listeners: Vec<JoinHandle<()>>,
    watcher: Option<JoinHandle<()>>,
}

impl Worker {
    /// Opens the devices. Clients cannot connect yet; see [`Worker::listen`].
    pub fn new(config: Config) -> Result<Worker, Error> {
        let lend = |device| {
            let bytes = config.max_memory.unwrap_or_else(|| lent_by_default(device, &config));
            Lent::new(device, &config.stream, bytes)
        };
        // Half of the processors at most are busy with what is not computing.
        let beside = thread::available_parallelism().map_or(1, |cores| cores.get() / 2);
        let shared = Arc::new(WorkerState {
            devices: config.devices.iter().map(lend).collect::<Result<_, _>>()?,
            limits: config.limits,
            cache: config.cache,
            copies: config.copies,
            introductions: match &config.trust {
                Some(trust) => Arc::clone(trust.introductions()),
                None => Arc::default(),
            },
            trust: config.trust,
            plain: config.plain,
            couriers: Budget::new(COURIERS * SECURED_BYTES),
            pulses: Arc::default(),
            messages: Budget::new(config.limits.message_bytes),
            stored: Budget::new(config.limits.stored_bytes),
            chores: Turnstile::new(beside),
            loads: Turnstile::new(beside),
            payments: Turnstile::new(beside),
            handshakes: Turnstile::new(beside),
            counters: Counters::default(),
            roster: Roster::default(),
            next_client: AtomicU64::new(1),
            stopping: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            reporter: Reporter::new(config.observer),
        });
        let watched = Arc::clone(&shared);
        let failed = |error: io::Error| Error::DeviceFailed {
            device: "worker".into(),
            reason: format!("cannot start a thread: {error}"),
        };
        let thread = thread::Builder::new().name("watcher".into());
        let watcher = thread.spawn(move || watch(&watched)).map_err(failed)?;
        Ok(Worker { shared, listeners: Vec::new(), watcher: Some(watcher) })
    }

    /// Lets clients connect to an address. Returns it, with the port that was chosen if it was 0.
    pub fn listen(&mut self, address: impl ToSocketAddrs, choice: DialectChoice) -> io::Result<SocketAddr> {
        let listener = bind(address)?;
        let address = listener.local_addr()?;
        let shared = Arc::clone(&self.shared);
        let thread = thread::Builder::new().name(format!("listener {}", address.port()));
        self.listeners.push(thread.spawn(move || listen(&shared, &listener, choice))?);
        self.shared.report(&Event::Listening { address, choice });
        Ok(address)
    }

    /// Serves one client over any two streams, on this thread, until it leaves or is refused: through a tunnel, or in
    /// memory. The worker cannot interrupt such streams, so their reads and writes must end by themselves.
    ///
    /// No key is asked for, whatever the worker's trust: the program that connects the streams answers for who is behind them.
    pub fn serve_client(&self, input: impl Read, output: impl Write, choice: DialectChoice) {
        serve_client(&self.shared, (input, output), choice);
    }

    /// What it has done so far.
    pub fn counters(&self) -> Snapshot {
        let kept = self.shared.cache.as_ref().map(|cache| cache.counts()).unwrap_or_default();
        Snapshot {
            message_bytes: self.shared.messages.used() as u64,
            stored_bytes: self.shared.stored.used() as u64,
            ..self.shared.counters.snapshot(self.shared.roster.len(), kept)
        }
    }

    /// Bytes of all devices that clients hold now.
    pub fn held_bytes(&self) -> usize {
        self.shared.devices.iter().map(Lent::held_bytes).sum()
    }

    /// Name, description and lent bytes of its devices.
    pub fn devices(&self) -> impl Iterator<Item = (&Arc<dyn Device>, usize)> {
        self.shared.devices.iter().map(|lent| (lent.device(), lent.budget_bytes()))
    }

    /// Stops: no new clients or commands, running graphs have this long to end, then all connections are closed and their
    /// memory is freed.
    pub fn shutdown(mut self, grace: Duration) -> Snapshot {
        self.end(grace);
        self.counters()
    }

    /// Gives clients so long to end, but none for which nothing but the network is waited for and nothing moves there; says whether all have.
    fn wait_for_none(&self, grace: Duration) -> bool {
        /// How long nothing moves then.
        const STALLED: Duration = Duration::from_secs(1);
        let until = Instant::now() + grace;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if self.shared.roster.wait_for_none(left.min(WATCH_EVERY)) {
                return true;
            }
            if left.is_zero() {
                return false;
            }
            for client in self.shared.roster.all() {
                if client.is(Phase::Waiting) && client.last_words().elapsed() > STALLED {
                    client.drop_for(Dropped::Shutdown);
                }
            }
        }
    }

    fn end(&mut self, grace: Duration) {
        /// What threads need to notice that their socket is closed and to clean up.
        const CLEANING_UP: Duration = Duration::from_secs(5);
        let Some(watcher) = self.watcher.take() else { return };
        let start = Instant::now();
        self.shared.stopping.store(true, Ordering::Relaxed);
        for listener in self.listeners.drain(..) {
            // It has no panic to report that a connection would not have caught.
            let _ = listener.join();
        }
        for client in self.shared.roster.all() {
            if ![Phase::Computing, Phase::Working, Phase::Waiting].into_iter().any(|phase| client.is(phase)) {
                client.drop_for(Dropped::Shutdown);
            }
        }
        if !self.wait_for_none(grace) {
            for client in self.shared.roster.all() {
                client.drop_for(Dropped::Shutdown);
                self.shared.stop(&client);
            }
            self.shared.roster.wait_for_none(CLEANING_UP);
        }
        if let Some(cache) = &self.shared.cache {
            cache.finish(grace.saturating_sub(start.elapsed()));
        }
        self.shared.ended.store(true, Ordering::Relaxed);
        let _ = watcher.join();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.end(WATCH_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{ConnectError, LinkTo, Options, RemoteRegistry, Timeouts};
    use crate::link::{Book, Identity, Key, Machines, MachinesFile};
    use crate::worker::peer::{Holder, Peer};

    /// However many handshakes are begun, they have a part of the processor; whose turn has not come waits, and is served then.
    #[test]
    fn handshakes_have_a_part_of_the_processor() {
        let folder = tempfile::tempdir().unwrap();
        let identity = Arc::new(Identity::open(folder.path()).unwrap());
        let book = Book::open(MachinesFile::new(folder.path())).unwrap();
        let trust = Trust::new(&identity, book, "den".parse().unwrap()).unwrap();
        let mut worker = Worker::new(Config { trust: Some(Arc::new(trust)), ..Config::new([]) }).unwrap();
        let address = worker.listen("127.0.0.1:0", DialectChoice::Auto).unwrap();
        let connect = |seconds| {
            let link = Some(LinkTo { identity: Arc::clone(&identity), worker: identity.key() });
            let timeouts = Timeouts { connect: Duration::from_secs(seconds), ..Timeouts::default() };
            RemoteRegistry::connect(&address.to_string(), &Options { link, timeouts, ..Options::default() })
        };
        let stranger = Holder { peer: Peer::of(([192, 0, 2, 1], 1).into()), client: 0 };
        let turnstile = &worker.shared.handshakes;
        let turns: Vec<_> = std::iter::from_fn(|| turnstile.enter(stranger, WATCH_EVERY, || true)).collect();
        assert!((1..=thread::available_parallelism().unwrap().get()).contains(&turns.len()));
        let error = connect(1).unwrap_err();
        assert!(matches!(error, ConnectError::NoHello { .. }), "{error}");
        drop(turns);
        // It has no devices to lend, which is said behind the handshake.
        let error = connect(60).unwrap_err();
        assert!(matches!(error, ConnectError::DeviceCount { .. }), "{error}");
    }

    /// Between the change of the list and the end of its connections, a machine that was revoked has no right to anything.
    #[test]
    fn a_machine_that_is_not_known_any_more_gets_no_memory() {
        let folder = tempfile::tempdir().unwrap();
        let (own, guest) = (Identity::open(folder.path()).unwrap(), Key::from_bytes([7; 32]));
        let file = MachinesFile::new(folder.path());
        let limited = |machines: &mut Machines| {
            let machine = machines.remember("desk".parse().unwrap(), guest)?;
            (machine.may_use_this, machine.max_memory) = (true, Some(1000));
            Ok(())
        };
        file.change(limited).unwrap();
        let trust = Trust::new(&own, Book::open(file.clone()).unwrap(), "den".parse().unwrap()).unwrap();
        let trust = Arc::new(trust);
        let worker = Worker::new(Config { trust: Some(Arc::clone(&trust)), ..Config::new([]) }).unwrap();
        let limit = |key: Option<Key>| {
            let client = Client::new(1, ([127, 0, 0, 1], 1).into(), None, Duration::from_secs(1));
            key.into_iter().for_each(|key| client.identify(key, None));
            worker.shared.memory_limit(&client)
        };
        let others = [limit(None), limit(Some(own.key()))];
        assert_eq!((others, limit(Some(guest))), ([usize::MAX; 2], 1000));
        file.change(|machines| Ok(machines.revoke(guest).is_some())).unwrap();
        trust.book().refresh();
        assert_eq!(limit(Some(guest)), 0);
    }

    /// A worker that was introduced to a session of another machine's ends when it is revoked itself; one that is not known goes on.
    #[test]
    fn a_worker_that_was_introduced_ends_when_it_is_revoked() {
        let folder = tempfile::tempdir().unwrap();
        let (own, den) = (Identity::open(folder.path()).unwrap(), Key::from_bytes([7; 32]));
        let file = MachinesFile::new(folder.path());
        file.change(|machines| machines.remember("den".parse().unwrap(), den).map(|_| ())).unwrap();
        let trust = Trust::new(&own, Book::open(file.clone()).unwrap(), "attic".parse().unwrap()).unwrap();
        let trust = Arc::new(trust);
        let worker = Worker::new(Config { trust: Some(Arc::clone(&trust)), ..Config::new([]) }).unwrap();
        let client = |id| Arc::new(Client::new(id, ([127, 0, 0, 1], 1).into(), None, Duration::from_secs(1)));
        let session = client(1);
        session.identify(own.key(), None);
        let introduced = [den, Key::from_bytes([8; 32])].map(|key| {
            let worker = client(2);
            worker.belong_to(&session, Some(key));
            worker
        });
        let ended = || {
            trust.watch(&worker.shared, &introduced);
            introduced.each_ref().map(|client| client.dropped())
        };
        assert_eq!((ended(), trust.is_revoked(den)), ([None; 2], false));
        file.change(|machines| Ok(machines.revoke(den).is_some())).unwrap();
        trust.book().refresh();
        assert_eq!((ended(), trust.is_revoked(den)), ([Some(Dropped::Revoked), None], true));
    }

    /// All that is lent may be used, and all that the worker needs for itself beside.
    #[test]
    fn what_is_lent_by_default_fits_a_machine_of_any_size() {
        for shift in 26..42 {
            let free = 1_usize << shift;
            let limits = Limits::for_memory(free);
            let pools = limits.message_bytes + limits.stored_bytes;
            let scratch = pools;
            let lent = left_to_lend(free, limits, Some(scratch), true);
            let connections = limits.clients * CONNECTION_BYTES + COURIERS * SECURED_BYTES;
            let kept = KEEPERS * (KEPT_PIECES + 2) * KEPT_PIECE_BYTES;
            // All lanes of a device.
            let all = lent + pools + 3 * scratch + connections + kept;
            assert!(all <= free || lent == 0, "{free}: {all}");
            assert!(free < 2 << 30 || lent > free / 2, "{free}: only {lent}");
        }
    }
}
