//! What can go wrong with a worker, and which calls it may have cost.
//!
//! A worker has one way to say no: it closes. Where a command has no answer, that shows only later, so a failure names
//! the commands that were sent since the last answer. They are for those who look into it: what is said to people ends with what the worker
//! did.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use oxcart_backend::Error;

use super::endpoint::EndpointError;
use super::limits::MAX_NOTES;
use crate::counted::counted;
use crate::wire::{Command, Dialect, NotDelivered, Version};

/// What a worker did.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerFault {
    /// It closed the connection, or the system lost it.
    #[error("closed the connection")]
    Closed,
    /// It was silent, or too slow.
    #[error("did not answer within {} s", .limit.as_secs_f32())]
    Silent {
        /// How long was waited.
        limit: Duration,
    },
    /// It has left a heartbeat without an answer: it is gone, cut off or frozen.
    #[error("has not answered for {} s", .limit.as_secs_f32())]
    Lifeless {
        /// How long was waited.
        limit: Duration,
    },
    /// It took no more bytes.
    #[error("took no data for {} s", .limit.as_secs_f32())]
    Stuck {
        /// How long was waited.
        limit: Duration,
    },
    /// The system failed.
    #[error("can no longer be reached: {0}")]
    Io(io::Error),
    /// An answer of another length than its command has.
    #[error("answered with {found} bytes instead of {expected}")]
    ReplyLength {
        /// Bytes announced.
        found: u64,
        /// Bytes there should be.
        expected: u64,
    },
    /// Bytes outside of an answer.
    #[error("sent bytes that were not asked for")]
    Unsolicited,
    /// An answer that cannot be true.
    #[error("answered with {what}")]
    Implausible {
        /// What it said.
        what: String,
    },
    /// It waited for bytes of another worker, which did not come.
    #[error("got nothing from the worker {}: {why}", sender.as_deref().unwrap_or("at an unknown place"))]
    NotDelivered {
        /// The introduction by which it waited.
        introduction: u32,
        /// Where the other worker is: `at HOST:PORT`, or `NAME (HOST:PORT)`.
        sender: Option<Arc<str>>,
        /// Why the other worker cannot be used any more, if that is known.
        failure: Option<Arc<WorkerFailure>>,
        /// Why, by the one that waited.
        why: NotDelivered,
    },
    /// It had no room to keep a graph that it was to compute again.
    #[error("could not keep a graph, because other clients needed the room")]
    NotKept,
    /// A message was left half sent by a bug on this side.
    #[error("was left in the middle of a message")]
    Broken,
    /// This side hung up.
    #[error("was disconnected")]
    HungUp,
}

impl WorkerFault {
    /// A fault of the system, which for most people is the peer's.
    pub(super) fn from_io(error: io::Error) -> WorkerFault {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof};
        match error.kind() {
            BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | UnexpectedEof => {
                WorkerFault::Closed
            }
            _ => WorkerFault::Io(error),
        }
    }
}

/// Why a worker cannot be used any more, or has not done what it was told. Every call after it fails with the same cause; after an
/// [interruption](WorkerFailure::is_interruption), those of the streams that there were.
#[derive(Debug)]
pub struct WorkerFailure {
    place: Arc<str>,
    fault: WorkerFault,
    during: Option<Command>,
    unconfirmed: Box<Unconfirmed>,
}

impl WorkerFailure {
    pub(super) fn new(
        place: &Arc<str>,
        fault: WorkerFault,
        during: Option<Command>,
        unconfirmed: Unconfirmed,
    ) -> WorkerFailure {
        WorkerFailure { place: Arc::clone(place), fault, during, unconfirmed: Box::new(unconfirmed) }
    }

    /// What the worker did.
    pub fn fault(&self) -> &WorkerFault {
        &self.fault
    }

    /// Names the worker that was waited for, if it was that, and gives the introduction: `find` gives the place of the one by it, and the
    /// failure behind.
    pub(super) fn name_sender(
        &mut self,
        find: impl FnOnce(u32) -> Option<(Arc<str>, Option<Arc<WorkerFailure>>)>,
    ) -> Option<u32> {
        let WorkerFault::NotDelivered { introduction, sender, failure, .. } = &mut self.fault else {
            return None;
        };
        if let Some((place, found)) = find(*introduction) {
            (*sender, *failure) = (Some(place), found);
        }
        Some(*introduction)
    }

    /// Whether only what was under way is lost: the worker has all that it held and can go on.
    pub fn is_interruption(&self) -> bool {
        matches!(self.fault, WorkerFault::NotDelivered { .. } | WorkerFault::NotKept)
    }

    /// As devices report it.
    pub(super) fn of_device(&self, device: &str) -> Error {
        let (device, reason) = (device.to_owned(), self.to_string());
        match self.is_interruption() {
            true => Error::Interrupted { device, reason },
            false => Error::DeviceLost { device, reason },
        }
    }

    /// The same in the words of the protocol, with the commands that it may have failed at.
    pub fn detail(&self) -> String {
        let mut detail = self.to_string();
        if let Some(command) = self.during {
            detail += &format!(" during {}", command.name());
        }
        if !self.unconfirmed.is_empty() {
            detail += &format!("; not confirmed: {}", self.unconfirmed);
        }
        detail
    }

    /// The command under way, if there was one.
    pub fn during(&self) -> Option<Command> {
        self.during
    }

    /// The commands that it may have failed at besides, oldest first.
    pub fn unconfirmed(&self) -> &Unconfirmed {
        &self.unconfirmed
    }
}

impl std::error::Error for WorkerFailure {}

impl fmt::Display for WorkerFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The one to blame comes first.
        if let WorkerFault::NotDelivered { failure: Some(failure), .. } = &self.fault {
            return write!(f, "{failure}; the worker {} waited for it", self.place);
        }
        write!(f, "worker {} {}", self.place, self.fault)
    }
}

/// What a command was about, for errors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum About {
    /// Nothing to add.
    #[default]
    Nothing,
    /// A graph of so many nodes.
    Graph {
        /// Nodes.
        nodes: usize,
    },
    /// Some bytes, of a tensor if its name is known.
    Bytes {
        /// How many.
        len: usize,
        /// Whose.
        name: Option<Arc<str>>,
    },
    /// Bytes that come from another worker.
    Delivery {
        /// How many.
        len: usize,
        /// Where the other worker is: `at HOST:PORT`, or `NAME (HOST:PORT)`.
        sender: Arc<str>,
    },
}

/// A command without an answer, or whose answer has not come.
#[derive(Clone, Debug)]
pub struct Note {
    command: Command,
    about: About,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.command.name())?;
        match &self.about {
            About::Nothing => Ok(()),
            About::Graph { nodes } => write!(f, " ({})", counted(*nodes as u64, "node")),
            About::Bytes { len, name: Some(name) } => {
                write!(f, " {} ({})", name.escape_debug(), counted(*len as u64, "byte"))
            }
            About::Bytes { len, name: None } => write!(f, " ({})", counted(*len as u64, "byte")),
            About::Delivery { len, sender } => {
                write!(f, " ({} from the worker {sender})", counted(*len as u64, "byte"))
            }
        }
    }
}

/// Commands since the last answer. A worker works in order, so an answer confirms all that came before.
#[derive(Clone, Debug, Default)]
pub struct Unconfirmed {
    /// The first ones; one of them is the culprit.
    notes: Vec<Note>,
    /// Of all that were sent.
    sent: Sums,
    /// Of those that are known to be done.
    done: Sums,
}

/// What some commands amount to, from the first on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    count: usize,
    graphs: usize,
    /// Those that wait for another worker.
    deliveries: usize,
    /// Bytes that the worker has to handle for them, in its own memory.
    bytes: u64,
}

impl Unconfirmed {
    /// Whether all is confirmed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.sent.count - self.done.count
    }

    /// The first ones.
    pub fn first(&self) -> &[Note] {
        &self.notes
    }

    pub(super) fn add(&mut self, command: Command, about: &About, work: u64) {
        if self.notes.len() < MAX_NOTES {
            self.notes.push(Note { command, about: about.clone() });
        }
        self.sent.count += 1;
        self.sent.graphs += usize::from(matches!(about, About::Graph { .. }));
        self.sent.deliveries += usize::from(matches!(about, About::Delivery { .. }));
        self.sent.bytes = self.sent.bytes.saturating_add(work);
    }

    pub(super) fn clear(&mut self) {
        self.notes.clear();
        (self.sent, self.done) = (Sums::default(), Sums::default());
    }

    /// What there is so far, to be [confirmed](Unconfirmed::confirm) later; good until all is cleared.
    pub(super) fn sums(&self) -> Sums {
        self.sent
    }

    /// So much is done.
    pub(super) fn confirm(&mut self, done: Sums) {
        let more = done.count.saturating_sub(self.done.count).min(self.notes.len());
        self.notes.drain(..more);
        if done.count > self.done.count {
            self.done = done;
        }
    }

    /// Graphs that have to be computed first, here or, where bytes of another worker are waited for, there.
    pub(super) fn graphs(&self) -> usize {
        let deliveries = self.sent.deliveries - self.done.deliveries;
        (self.sent.graphs - self.done.graphs).max(deliveries)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.sent.bytes.saturating_sub(self.done.bytes)
    }
}

impl fmt::Display for Unconfirmed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, note) in self.notes.iter().enumerate() {
            write!(f, "{}{note}", if i == 0 { "" } else { ", " })?;
        }
        match self.len() - self.notes.len() {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// Why there is no connection to a worker.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The text names no endpoint.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The name has no address.
    #[error(
        "{endpoint}: this name cannot be found ({error}); write the worker's IP address, or the name that oxcart trust lists"
    )]
    Name {
        /// Where it should have been.
        endpoint: String,
        /// What the system says.
        error: io::Error,
    },
    /// Nothing listens there.
    #[error("{endpoint}: cannot connect: {error}; is a worker running there?")]
    Unreachable {
        /// Where it should have been.
        endpoint: String,
        /// What the system says.
        error: io::Error,
    },
    /// Something listens there but does not answer HELLO.
    #[error(
        "{endpoint}: did not answer the greeting within {} s; a llama.cpp worker serves one client at a time",
        .limit.as_secs_f32()
    )]
    NoHello {
        /// Where it is.
        endpoint: String,
        /// How long was waited.
        limit: Duration,
    },
    /// It hung up on every HELLO there is.
    #[error(
        "{endpoint}: closed the connection at once; it is not a worker, or it serves only machines that are paired with it (oxcart \
         join), or it has as many connections of this machine as it allows, or it speaks a protocol older than version 2"
    )]
    Rejected {
        /// Where it is.
        endpoint: String,
    },
    /// Another machine answers where a known one should be.
    #[error(
        "{endpoint}: the machine that answers is not the one that was paired; nothing was sent to it. \
         If the machine was set up anew, pair with it again: oxcart join"
    )]
    Another {
        /// Where it is.
        endpoint: String,
    },
    /// The worker does not know this machine, or not any more.
    #[error(
        "{endpoint}: the worker does not know this machine, or no longer; pair with it again: oxcart join"
    )]
    NotKnown {
        /// Where it is.
        endpoint: String,
    },
    /// TLS failed.
    #[error("{endpoint}: no secure connection: {reason}; is it a worker of a current Oxcart?")]
    Tls {
        /// Where it is.
        endpoint: String,
        /// Why.
        reason: String,
    },
    /// A version that no dialect has.
    #[error("{endpoint}: the worker speaks version {found}; this client speaks {}", spoken())]
    Version {
        /// Where it is.
        endpoint: String,
        /// What it said.
        found: Version,
    },
    /// Another version than the dialect that was asked for.
    #[error("{endpoint}: the worker speaks version {found}; version {wanted} was asked for ({})", wanted.version)]
    OtherDialect {
        /// Where it is.
        endpoint: String,
        /// What it said.
        found: Version,
        /// What was asked for.
        wanted: &'static Dialect,
    },
    /// A number of devices that cannot be.
    #[error("{endpoint}: the worker says it has {count} devices, which cannot be right")]
    DeviceCount {
        /// Where it is.
        endpoint: String,
        /// What it said.
        count: u32,
    },
    /// It failed while it was asked about itself.
    #[error(transparent)]
    Failed(#[from] Arc<WorkerFailure>),
    /// The system has no thread for the connection.
    #[error("{endpoint}: cannot start a thread for the connection: {error}")]
    Thread {
        /// Where it is.
        endpoint: String,
        /// What the system says.
        error: io::Error,
    },
}

/// The versions of all dialects.
fn spoken() -> String {
    let mut versions: Vec<_> = Dialect::all().iter().map(|dialect| dialect.version.to_string()).collect();
    versions.dedup();
    versions.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_commands_are_confirmed_while_others_are_not() {
        let mut commands = Unconfirmed::default();
        let about = |name: &str| About::Bytes { len: 1, name: Some(name.into()) };
        commands.add(Command::SetTensor, &about("a"), 10);
        commands.add(Command::GraphCompute, &About::Graph { nodes: 1 }, 20);
        let middle = commands.sums();
        commands.add(Command::SetTensor, &about("b"), 40);
        assert!(commands.graphs() == 1 && commands.len() == 3 && commands.bytes() == 70);
        commands.confirm(middle);
        assert!(commands.graphs() == 0 && commands.len() == 1 && commands.bytes() == 40);
        assert_eq!(commands.to_string(), "SET_TENSOR b (1 byte)");
        // Once more changes nothing.
        commands.confirm(middle);
        assert_eq!(commands.len(), 1);
        commands.confirm(commands.sums());
        assert!(commands.is_empty() && commands.first().is_empty());
    }

    /// What people read has no words of the protocol; `-v` has them.
    #[test]
    fn the_protocol_is_only_in_the_detail() {
        let mut commands = Unconfirmed::default();
        commands.add(Command::GraphCompute, &About::Graph { nodes: 3 }, 0);
        let failure =
            WorkerFailure::new(&"at a:1".into(), WorkerFault::Closed, Some(Command::GetTensor), commands);
        assert_eq!(failure.to_string(), "worker at a:1 closed the connection");
        let detail = failure.detail();
        let want = "closed the connection during GET_TENSOR; not confirmed: GRAPH_COMPUTE (3 nodes)";
        assert!(detail.ends_with(want), "{detail}");
    }

    /// The error of the last worker in a row names the first that failed, and then those that waited.
    #[test]
    fn who_waited_in_vain_names_the_culprit() {
        let failure = |at: &str, fault| WorkerFailure::new(&at.into(), fault, None, Unconfirmed::default());
        let waited = |at: &str, sender: &str, failure_there: Option<WorkerFailure>| {
            let why = NotDelivered::Lost;
            let fault = WorkerFault::NotDelivered { introduction: 5, sender: None, failure: None, why };
            let mut failed = failure(at, fault);
            failed.name_sender(|number| {
                assert_eq!(number, 5);
                Some((sender.into(), failure_there.map(Arc::new)))
            });
            failed
        };
        let second = waited("at b:2", "den (a:1)", Some(failure("den (a:1)", WorkerFault::Closed)));
        assert_eq!(
            second.to_string(),
            "worker den (a:1) closed the connection; the worker at b:2 waited for it"
        );
        let third = waited("at c:3", "at b:2", Some(second)).to_string();
        assert!(
            third.starts_with("worker den (a:1) closed the connection; the worker at b:2 waited"),
            "{third}"
        );
        let unknown = waited("at b:2", "den (a:1)", None).to_string();
        assert!(unknown.contains("worker at b:2 got nothing from the worker den (a:1)"), "{unknown}");
    }
}
