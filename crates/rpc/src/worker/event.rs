//! What a worker tells its operator.
//!
//! Nothing a client says is in an event unescaped: reasons are made of numbers and our own words, and what may hold more
//! is escaped when it is shown.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use oxcart_backend::ByteSize;

use super::client::Dropped;
use super::limits::{LOG_BURST, LOG_PER_SECOND, PEER_LOG_BURST, PEER_LOG_PER_SECOND};
use super::peer::Peer;
use super::server::DialectChoice;
use crate::counted::counted;
use crate::link::{Key, MachineName};
use crate::wire::{Dialect, NotDelivered};

/// What one client did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Commands after HELLO.
    pub commands: u64,
    /// Graphs, those computed again included.
    pub graphs: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes sent.
    pub bytes_out: u64,
}

/// Something an operator may want to know.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// Clients can come.
    Listening {
        /// Where.
        address: SocketAddr,
        /// In which dialect.
        choice: DialectChoice,
    },
    /// A client said HELLO.
    Connected {
        /// Its number.
        client: u64,
        /// Its address.
        peer: SocketAddr,
        /// What is spoken with it.
        dialect: &'static Dialect,
        /// What its machine is called, if it has proved which it is.
        machine: Option<MachineName>,
    },
    /// Another machine may use this one from now on.
    Paired {
        /// Its address.
        peer: SocketAddr,
        /// What it is called here.
        machine: MachineName,
        /// Its key.
        key: Key,
    },
    /// Something is to be known of pairing.
    Pairing {
        /// What.
        news: PairingNews,
    },
    /// A client that had said HELLO is gone, and all it had is freed.
    Left {
        /// Its number.
        client: u64,
        /// Its address.
        peer: SocketAddr,
        /// What was spoken with it.
        dialect: &'static Dialect,
        /// What it did.
        totals: Totals,
        /// How long it was here.
        lasted: Duration,
    },
    /// A request was refused and, unless the dialect can say so, its connection closed.
    Refused {
        /// Number of the client.
        client: u64,
        /// Its address.
        peer: SocketAddr,
        /// The command, if it got so far.
        command: &'static str,
        /// A short word for the reason.
        code: &'static str,
        /// The reason.
        reason: String,
    },
    /// A client asked for more memory than there is. It is told so, and may go on.
    Full {
        /// Number of the client.
        client: u64,
        /// Its address.
        peer: SocketAddr,
        /// The device.
        device: String,
        /// What it asked for.
        bytes: u64,
        /// What is free.
        free: u64,
        /// How many other clients hold some of it.
        others: usize,
        /// How much that is.
        held: u64,
    },
    /// Another worker has not sent what a client's session waited for, most often because it is lost. The client is told, and may go on.
    Undelivered {
        /// Number of the client.
        client: u64,
        /// Its address.
        peer: SocketAddr,
        /// Where the other worker's connection came from, if there was one.
        worker: Option<SocketAddr>,
        /// What its machine is called here, if it is known.
        machine: Option<MachineName>,
        /// Why nothing came.
        why: NotDelivered,
    },
    /// The worker ended a connection.
    Dropped {
        /// Number of the client.
        client: u64,
        /// Its address.
        peer: SocketAddr,
        /// Why.
        why: Dropped,
    },
    /// A bug: a panic was caught and its connection closed.
    Panicked {
        /// Number of the client.
        client: u64,
        /// Its address.
        peer: SocketAddr,
    },
    /// A device broke down; the others go on.
    DeviceLost {
        /// Its name.
        device: String,
        /// What it says.
        reason: String,
    },
    /// A connection could not be accepted or served.
    AcceptFailed {
        /// What the system says.
        reason: String,
    },
    /// Lines that were left out because there were too many.
    Suppressed {
        /// How many.
        lines: u64,
    },
}

/// What an operator may want to know of pairing.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum PairingNews {
    /// Join lines are not good any more: they were not used in time.
    Expired {
        /// How many.
        lines: usize,
    },
    /// Someone guesses secrets of join lines.
    Guessed,
    /// Who is known cannot be read or kept.
    Machines {
        /// Why.
        reason: String,
    },
}

impl fmt::Display for PairingNews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PairingNews::Expired { lines: 1 } => {
                write!(f, "a join line was not used in time; oxcart trust invite shows a new one")
            }
            PairingNews::Expired { lines } => {
                write!(f, "{lines} join lines were not used in time; oxcart trust invite shows a new one")
            }
            PairingNews::Guessed => {
                write!(f, "someone is trying join lines that this machine has not shown; none was accepted")
            }
            PairingNews::Machines { reason } => {
                write!(f, "the list of known machines: {}", reason.escape_debug())
            }
        }
    }
}

impl Event {
    /// Where the client is that it is about, if it is about one.
    pub const fn peer(&self) -> Option<SocketAddr> {
        match self {
            Event::Connected { peer, .. }
            | Event::Left { peer, .. }
            | Event::Refused { peer, .. }
            | Event::Full { peer, .. }
            | Event::Undelivered { peer, .. }
            | Event::Dropped { peer, .. }
            | Event::Paired { peer, .. }
            | Event::Panicked { peer, .. } => Some(*peer),
            Event::Listening { .. }
            | Event::Pairing { .. }
            | Event::DeviceLost { .. }
            | Event::AcceptFailed { .. }
            | Event::Suppressed { .. } => None,
        }
    }

    /// A short word for the kind of event.
    pub const fn kind(&self) -> &'static str {
        match self {
            Event::Listening { .. } => "listening",
            Event::Connected { .. } => "connected",
            Event::Paired { .. } => "paired",
            Event::Pairing { .. } => "pairing",
            Event::Left { .. } => "left",
            Event::Refused { .. } => "refused",
            Event::Full { .. } => "full",
            Event::Undelivered { .. } => "undelivered",
            Event::Dropped { .. } => "dropped",
            Event::Panicked { .. } => "panicked",
            Event::DeviceLost { .. } => "device_lost",
            Event::AcceptFailed { .. } => "accept_failed",
            Event::Suppressed { .. } => "suppressed",
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Listening { address, choice } => write!(f, "listening on {address}, protocol {choice}"),
            Event::Connected { client, peer, dialect, machine: None } => {
                write!(f, "client {client} ({peer}) connected, protocol {dialect}")
            }
            Event::Connected { client, peer, dialect, machine: Some(machine) } => {
                write!(f, "client {client} ({machine} at {peer}) connected, protocol {dialect}")
            }
            Event::Paired { peer, machine, key } => {
                write!(
                    f,
                    "paired with {machine} (key {}, at {peer}), which may now use this machine",
                    key.short()
                )
            }
            Event::Pairing { news } => write!(f, "{news}"),
            Event::Left { client, peer, totals, lasted, dialect } => {
                let Totals { commands, graphs, bytes_in, bytes_out } = totals;
                let seconds = lasted.as_secs_f64();
                let (bytes_in, bytes_out) = (ByteSize(*bytes_in), ByteSize(*bytes_out));
                let (done, computed) = (counted(*commands, "command"), counted(*graphs, "graph"));
                write!(f, "client {client} ({peer}) left after {seconds:.1} s: {done}, ")?;
                write!(f, "{computed}, {bytes_in} in, {bytes_out} out")?;
                if *commands == 0 {
                    write!(f, "; perhaps it does not speak {dialect}")?;
                }
                Ok(())
            }
            Event::Refused { client, peer, command, code, reason } => {
                let reason = reason.escape_debug();
                write!(f, "client {client} ({peer}) refused: {command}: {reason} [{code}]")
            }
            Event::Full { client, peer, device, bytes, free, others, held } => {
                let (bytes, free, held) = (ByteSize(*bytes), ByteSize(*free), ByteSize(*held));
                write!(
                    f,
                    "client {client} ({peer}) cannot have {bytes} of {device}, which is full: {free} free"
                )?;
                match others {
                    0 => Ok(()),
                    1 => write!(f, ", another client holds {held}"),
                    others => write!(f, ", {others} other clients hold {held}"),
                }
            }
            Event::Undelivered { client, peer, worker, machine, why } => {
                write!(f, "client {client} ({peer}) waited for what did not arrive from ")?;
                match (machine, worker) {
                    (Some(machine), Some(worker)) => write!(f, "the worker {machine} ({worker})")?,
                    (Some(machine), None) => write!(f, "the worker {machine}")?,
                    (None, Some(worker)) => write!(f, "the worker that connected from {worker}")?,
                    (None, None) => write!(f, "another worker, which never connected")?,
                }
                write!(f, ": {why}; that worker is lost or waits for another one, and the client knows")
            }
            Event::Dropped { client, peer, why } => {
                write!(f, "client {client} ({peer}) dropped: {}", why.reason())
            }
            Event::Panicked { client, peer } => {
                write!(f, "client {client} ({peer}) closed after a panic: this is a bug, please report it")
            }
            Event::DeviceLost { device, reason } => {
                let reason = reason.escape_debug();
                write!(f, "device {device} is lost; the others continue: {reason}")
            }
            Event::AcceptFailed { reason } => {
                write!(f, "cannot serve a new connection: {}", reason.escape_debug())
            }
            Event::Suppressed { lines } => {
                let verb = if *lines == 1 { "was" } else { "were" };
                write!(f, "{} {verb} left out", counted(*lines, "more such line"))
            }
        }
    }
}

/// Whom to tell. Called from all threads of a worker; it must not block.
pub type Observer = Arc<dyn Fn(&Event) + Send + Sync>;

/// Whether no number of other lines keeps a line from being written: who gets a right must not be able to hide it. There are no more of
/// these than join lines that were shown.
fn is_always_told(event: &Event) -> bool {
    matches!(event, Event::Paired { .. } | Event::Pairing { news: PairingNews::Guessed })
}

/// Whose part of the lines a line is.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// That of a peer.
    Peer(Peer),
    /// That of connections of which not even the peer is known.
    Unknown,
    /// That of the worker itself, which says so little that it may use all.
    Worker,
}

impl Part {
    fn of(event: &Event) -> Part {
        match (event.peer(), event) {
            (Some(peer), _) => Part::Peer(Peer::of(peer)),
            (None, Event::AcceptFailed { .. }) => Part::Unknown,
            (None, _) => Part::Worker,
        }
    }
}

/// Tells an observer, but not too often: a flood of refusals must not become a flood of lines, and that of one peer must not
/// hide what is to be said of others.
pub(crate) struct Reporter {
    observer: Observer,
    throttle: Mutex<Throttle>,
}

impl fmt::Debug for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reporter").field("throttle", &self.throttle).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Throttle {
    all: Credit,
    peers: HashMap<Peer, PeerLines>,
    suppressed: u64,
}

/// What may be said of a peer.
#[derive(Clone, Copy, Debug)]
struct PeerLines {
    credit: Credit,
    /// When a line was left out last.
    silenced: Option<Instant>,
}

/// Lines that may be written now.
#[derive(Clone, Copy, Debug)]
struct Credit {
    lines: f64,
    last: Instant,
}

impl Credit {
    fn new(burst: u32, now: Instant) -> Credit {
        Credit { lines: burst.into(), last: now }
    }

    fn earn(&mut self, burst: u32, per_second: u32, now: Instant) {
        let earned = now.duration_since(self.last).as_secs_f64() * f64::from(per_second);
        self.lines = (self.lines + earned).min(burst.into());
        self.last = now;
    }

    /// Takes a line, if that leaves so many.
    fn spend(&mut self, kept: f64) -> bool {
        let allowed = self.lines >= kept + 1.0;
        self.lines -= f64::from(u8::from(allowed));
        allowed
    }
}

/// How long a peer counts as loud after a line was left out.
const LOUD: Duration = Duration::from_secs(10);
/// Peers that are remembered at the same time, as far as there is something to remember of them.
const PEERS: usize = 256;

impl Throttle {
    fn new(now: Instant) -> Throttle {
        Throttle { all: Credit::new(LOG_BURST, now), peers: HashMap::new(), suppressed: 0 }
    }

    /// Whether a line may be written. Half of all lines are kept for peers of which little was said lately.
    fn allows(&mut self, part: Part, now: Instant) -> bool {
        /// What is kept for quiet peers.
        const KEPT: f64 = LOG_BURST as f64 / 2.0;
        self.all.earn(LOG_BURST, LOG_PER_SECOND, now);
        let peer = match part {
            Part::Peer(peer) => peer,
            Part::Unknown => return self.all.spend(KEPT),
            Part::Worker => return self.all.spend(0.0),
        };
        if self.peers.len() >= PEERS {
            self.peers.retain(|_, lines| {
                lines.credit.earn(PEER_LOG_BURST, PEER_LOG_PER_SECOND, now);
                lines.credit.lines < PEER_LOG_BURST.into()
            });
        }
        let new = || PeerLines { credit: Credit::new(PEER_LOG_BURST, now), silenced: None };
        let PeerLines { credit, silenced } = self.peers.entry(peer).or_insert_with(new);
        credit.earn(PEER_LOG_BURST, PEER_LOG_PER_SECOND, now);
        let is_loud = silenced.is_some_and(|then| now.duration_since(then) < LOUD);
        let is_quiet = !is_loud && credit.lines >= f64::from(PEER_LOG_BURST) / 2.0;
        let kept = if is_quiet { 0.0 } else { KEPT };
        let allowed = credit.lines >= 1.0 && self.all.spend(kept);
        if allowed {
            credit.lines -= 1.0;
        } else {
            *silenced = Some(now);
        }
        allowed
    }
}

impl Reporter {
    pub(crate) fn new(observer: Observer) -> Reporter {
        Reporter { observer, throttle: Mutex::new(Throttle::new(Instant::now())) }
    }

    pub(crate) fn report(&self, event: &Event) {
        let suppressed = {
            let mut throttle = self.throttle.lock().unwrap_or_else(PoisonError::into_inner);
            if !is_always_told(event) && !throttle.allows(Part::of(event), Instant::now()) {
                throttle.suppressed += 1;
                return;
            }
            std::mem::take(&mut throttle.suppressed)
        };
        if suppressed > 0 {
            (self.observer)(&Event::Suppressed { lines: suppressed });
        }
        (self.observer)(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_not_several() {
        let peer = ([127, 0, 0, 1], 1).into();
        let left = |commands, graphs| {
            let totals = Totals { commands, graphs, ..Totals::default() };
            let (lasted, dialect) = (Duration::from_secs(1), Dialect::all()[0]);
            Event::Left { client: 1, peer, totals, lasted, dialect }.to_string()
        };
        assert!(left(1, 1).contains(": 1 command, 1 graph, "), "{}", left(1, 1));
        assert!(left(2, 0).contains(": 2 commands, 0 graphs, "), "{}", left(2, 0));
        assert_eq!(Event::Suppressed { lines: 1 }.to_string(), "1 more such line was left out");
        assert_eq!(Event::Suppressed { lines: 2 }.to_string(), "2 more such lines were left out");
    }

    #[test]
    fn a_flood_of_events_is_not_a_flood_of_lines() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&seen);
        let reporter = Reporter::new(Arc::new(move |event| kept.lock().unwrap().push(event.to_string())));
        for _ in 0..100_000 {
            reporter.report(&Event::AcceptFailed { reason: "\u{1b}[31m".into() });
        }
        let lines = seen.lock().unwrap();
        assert!((50..300).contains(&lines.len()), "{}", lines.len());
        assert_eq!(lines[0], "cannot serve a new connection: \\u{1b}[31m");
    }

    /// One peer, or many, may not use up the lines of another that says little.
    #[test]
    fn a_flood_of_one_peer_does_not_hide_another() {
        let start = Instant::now();
        let mut throttle = Throttle::new(start);
        let peer = |number: u8| Part::Peer(Peer::of(([127, 0, 0, number], 1).into()));
        let loud = (0..10_000).filter(|_| throttle.allows(peer(1), start)).count();
        assert_eq!(loud, PEER_LOG_BURST as usize);
        let mut now = start;
        for _ in 0..1000 {
            now += Duration::from_millis(10);
            for number in 1..65 {
                throttle.allows(peer(number), now);
            }
        }
        assert!(throttle.allows(peer(100), now), "{throttle:?}");
        assert!(!throttle.allows(peer(1), now));
    }

    /// Nor may connections that cannot be accepted, of which no peer is known. What the worker says of itself is not left out.
    #[test]
    fn failures_to_accept_hide_no_quiet_peer() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&seen);
        let reporter = Reporter::new(Arc::new(move |event| kept.lock().unwrap().push(event.kind())));
        for _ in 0..1000 {
            reporter.report(&Event::AcceptFailed { reason: String::new() });
        }
        reporter.report(&Event::Panicked { client: 1, peer: ([127, 0, 0, 1], 1).into() });
        reporter.report(&Event::DeviceLost { device: String::new(), reason: String::new() });
        let seen = seen.lock().unwrap();
        assert!(seen.contains(&"panicked") && seen.contains(&"device_lost"), "{seen:?}");
    }

    /// A thief of a join line cannot hide that it was used.
    #[test]
    fn no_flood_hides_that_a_machine_was_paired() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&seen);
        let reporter = Reporter::new(Arc::new(move |event| kept.lock().unwrap().push(event.kind())));
        let peer = ([192, 0, 2, 1], 1).into();
        for _ in 0..10_000 {
            reporter.report(&Event::Dropped { client: 1, peer, why: Dropped::LateHello });
            reporter.report(&Event::AcceptFailed { reason: String::new() });
        }
        assert!(seen.lock().unwrap().len() < 300);
        let machine = "desk".parse().unwrap();
        reporter.report(&Event::Paired { peer, machine, key: Key::from_bytes([1; 32]) });
        assert_eq!(seen.lock().unwrap().last(), Some(&"paired"));
    }
}
