//! Every bound a worker has, by name. What an operator may want to change is a field of [`Limits`]; the rest is constant.

use std::time::Duration;

use crate::link::limits::{SECURED_BYTES, SHORTEST_INTERVAL};
use crate::os::socket::KeepAlive;
use crate::wire::{
    FRAME_BYTES, MAX_GRAPH_BYTES, MAX_KEPT_GRAPHS, MAX_NODES, MAX_TENSORS, RECORD_BYTES, kept_graph_bytes,
};

/// What one worker allows its clients.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time.
    pub clients: usize,
    /// Connections at a time that have not said HELLO yet; beyond, the oldest of them is dropped.
    pub ungreeted: usize,
    /// Time for HELLO to be complete.
    pub hello: Duration,
    /// Time for a message to arrive once it has begun, beyond what its size needs.
    pub message: Duration,
    /// Bytes per second that a long message must at least keep up.
    pub message_rate: u64,
    /// Time that a client may leave a reply unread.
    pub write_stall: Duration,
    /// Time between two messages; `None` for any.
    pub idle: Option<Duration>,
    /// Time that a client may have a worker wait for what another worker sends.
    pub delivery: Duration,
    /// Buffers per client; beyond, allocations fail.
    pub buffers: usize,
    /// Bytes of a graph as it arrives; at most [`MAX_GRAPH_BYTES`].
    pub graph_bytes: usize,
    /// Nodes of a graph; at most [`MAX_NODES`].
    pub graph_nodes: usize,
    /// Tensors of a graph; at most [`MAX_TENSORS`].
    pub graph_tensors: usize,
    /// Elements that a node may touch; products and convolutions may make 256 times as many multiplications. Rows that lie
    /// in the same place make many out of few bytes.
    pub node_work: u64,
    /// Bytes that a client's stored graphs and the knowledge of its buffers may take. A graph that arrives may take more
    /// for a moment, which counts against [`Limits::message_bytes`].
    pub client_bytes: usize,
    /// Bytes of graphs that run or are stored and of the knowledge of buffers, of all clients together.
    pub stored_bytes: usize,
    /// Bytes of messages that arrive and are made graphs of, of all clients together. They are apart from what is stored, so
    /// that neither can push out the other.
    pub message_bytes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            clients: 1024,
            ungreeted: 256,
            hello: Duration::from_secs(10),
            message: Duration::from_secs(60),
            message_rate: 1 << 20,
            write_stall: Duration::from_secs(60),
            idle: None,
            delivery: Duration::from_secs(600),
            buffers: 65_536,
            graph_bytes: MAX_GRAPH_BYTES,
            graph_nodes: MAX_NODES,
            graph_tensors: MAX_TENSORS,
            node_work: 1 << 36,
            client_bytes: 64 << 20,
            stored_bytes: 256 << 20,
            message_bytes: 256 << 20,
        }
    }
}

impl Limits {
    /// The defaults on a machine with so many bytes free: where there are few, messages and graphs get less.
    pub fn for_memory(free: usize) -> Limits {
        let limits = Limits::default();
        let stored_bytes = limits.stored_bytes.min(free / 32);
        let message_bytes = limits.message_bytes.min(free / 32);
        Limits {
            stored_bytes,
            message_bytes,
            client_bytes: limits.client_bytes.min(stored_bytes / 4),
            graph_bytes: limits.graph_bytes.min(message_bytes / 4),
            ..limits
        }
    }

    /// What graphs in slots of a client may count, as the client counts them: the rest is for its buffers, and for plans.
    pub(crate) const fn kept_bytes(&self) -> usize {
        self.client_bytes / 2
    }

    /// Time for a message of this size to arrive once it has begun.
    pub(crate) fn message_time(&self, size: u64) -> Duration {
        self.message.saturating_add(Duration::from_secs(size / self.message_rate.max(1)))
    }
}

/// Bytes moved at a time where they cannot go straight to their place.
pub(crate) const PIECE_BYTES: usize = 1 << 20;
/// The same where a connection needs memory of its own for them.
pub(crate) const OWN_PIECE_BYTES: usize = 64 << 10;
/// Pieces of a device's own kind of host memory that such bytes pass through; more connections at a time use memory of their own.
pub(crate) const PASSING_PIECES: usize = 8;
/// Bytes read ahead from a socket: several small commands, or the header of a large one.
pub(crate) const READ_AHEAD_BYTES: usize = 16 << 10;
/// Replies up to this size are sent with their length in one piece.
pub(crate) const SMALL_REPLY_BYTES: usize = 16 << 10;
/// Stack of a connection's thread. Kernels run on it too, so it is what threads have by default.
pub(crate) const STACK_BYTES: usize = 2 << 20;

/// Bytes above which clients before 7.0 ask for the hash of what they would send, and mean it to be kept in the cache.
pub(crate) const KEPT_ABOVE_BYTES: u64 = 10_485_760;
/// Bytes above which data is kept that a newer client calls worth keeping; a file for less would cost more than it saves.
pub(crate) const KEPT_ON_REQUEST_ABOVE_BYTES: u64 = 128 << 10;
/// Bytes handed to the cache, or read from it, at a time.
pub(crate) const KEPT_PIECE_BYTES: usize = 256 << 10;
/// Such pieces that may wait to be written, for each entry.
pub(crate) const KEPT_PIECES: usize = 4;
/// Entries being written at a time. Beyond, what is sent is not kept: no share waits for another.
pub(crate) const KEEPERS: usize = 64;
/// Entries being written at a time for one peer, or one user. Beyond, its own clients wait a moment.
pub(crate) const KEEPERS_PER_SHARE: usize = 4;
/// How long an upload waits for the disk before its entry is given up.
pub(crate) const KEEP_PATIENCE: Duration = Duration::from_secs(2);
/// How long nothing may come of an upload that is being kept while another waits for its place.
pub(crate) const KEEP_STALL: Duration = Duration::from_secs(1);
/// Hashes of one trust domain that may stand for two contents; beyond, the domain is served nothing any more.
pub(crate) const COLLISIONS: usize = 1024;
/// Files and folders of the cache up to which all of them are read again for each request for room.
pub(crate) const NAMES_READ_ALWAYS: usize = 1024;
/// Beyond, they are read again once so many times as long has gone by as that takes.
pub(crate) const READING_PART: u32 = 100;
/// Entries in the cache: as many as there are in 32 GiB if all are as small as they may be.
pub(crate) const KEPT_ENTRIES: usize = 1 << 18;
/// Trust domains with entries in the cache. Beyond, those that no one has used for longest make way for others.
pub(crate) const KEPT_DOMAINS: usize = 1 << 14;
/// Bytes of memory in which the cache remembers an entry, at most.
pub(crate) const INDEXED_ENTRY_BYTES: usize = 192;
/// The same for a domain.
pub(crate) const INDEXED_DOMAIN_BYTES: usize = 1 << 10;

/// What a turn counts: after it a graph lets others have theirs. One for a multiplication on a small processor, less on a device
/// that makes more of them in the same ten milliseconds ([`Pace`](oxcart_backend::Pace)).
pub(crate) const SLICE_WORK: u64 = 1 << 28;
/// What work counts at most for each but the last lane of a device, where it has several: a turn, and the longest nodes of
/// ordinary models. So a node waits for others of its kind alone.
pub(crate) const LANES: [u64; 2] = [SLICE_WORK, SLICE_WORK << 6];
/// What a node counts at least, for being a node.
pub(crate) const NODE_WORK: u64 = 1 << 16;
/// How many times as much as other nodes a product or a convolution may do: honest ones give it more work than memory,
/// and devices stop in the middle of it.
pub(crate) const PRODUCT_FACTOR: u64 = 1 << 8;

/// Bytes that one turn of clearing, copying or loading moves: some milliseconds.
pub(crate) const CHORE_BYTES: usize = 16 << 20;
/// Bytes up to which such a thing is done without waiting for a turn: it takes less than that.
pub(crate) const SMALL_CHORE_BYTES: usize = 64 << 10;

/// Nodes of a graph that are rebuilt and planned in a turn: some milliseconds.
pub(crate) const PLANNED_NODES: usize = 2048;

/// What a connection may use of the processor without a turn before it is asked whether that is more than its part.
pub(crate) const SMALL_CHANGE: Duration = Duration::from_millis(1);
/// The longest it is made to wait for that, once it is its turn.
pub(crate) const LONGEST_PAYMENT: Duration = Duration::from_millis(20);

/// Bytes of this machine's memory that a connection takes at most beyond what is counted: stacks, what is read ahead, what TLS holds, and one
/// piece, be it on its way to or from a device, out of the cache or a file, or to another worker.
pub(crate) const CONNECTION_BYTES: usize = 192 << 10;
/// Bytes of a device that only peers get which have little of it.
pub(crate) const MEMORY_ASIDE: usize = 64 << 20;
/// Bytes of which something is kept aside.
pub(crate) const KEEPS_ASIDE_FROM: usize = 1 << 30;
/// What is little.
pub(crate) const LITTLE_MEMORY: usize = 1 << 20;

/// What a stored graph counts beyond what it lists: itself, what the allocator adds to each list, and a place for tensors
/// without elements.
pub(crate) const STORED_GRAPH_BYTES: usize = 1 << 10;
/// What a plan counts beyond what it says it holds: what the allocator adds to each of its lists.
pub(crate) const PLAN_BYTES: usize = 256;
/// What a buffer counts beyond its own bytes, of which it may have none.
pub(crate) const KNOWN_BUFFER_BYTES: usize = 512;

/// Other workers that one session may be introduced to, those that could not be met included.
pub(crate) const MAX_INTRODUCTIONS: usize = 64;
/// Time to meet one; failing takes as long.
pub(crate) const MEET: Duration = Duration::from_secs(3);
/// Connections to other workers at a time, of all clients together. What TLS holds for each is counted beside that of clients' own.
pub(crate) const COURIERS: usize = 256;
/// The same for one peer.
pub(crate) const COURIERS_PER_PEER: usize = 64;
/// Bytes that may wait for a session to take them, of one other worker. One delivery may be longer, when it is alone.
pub(crate) const MAILBOX_BYTES: usize = 32 << 20;
/// Deliveries that may.
pub(crate) const MAILBOX_DELIVERIES: usize = 256;

/// How long a pulse is not read after each look at it: it is read more often than an honest client sends something, and no burden.
pub(crate) const BETWEEN_BEATS: Duration = Duration::from_millis(20);
/// Bytes of a pulse that are read at a time: several times as many as an honest client sends within a second.
pub(crate) const BEATS_BYTES: usize = 4 << 10;

/// How often deadlines and departures are looked for.
pub(crate) const WATCH_EVERY: Duration = Duration::from_millis(100);
/// Connections that may wait to be accepted. Beyond, the system lets clients try again after a second, real ones too, so a
/// flood should not get there.
pub(crate) const BACKLOG: i32 = 4096;
/// How often a listener looks whether it should stop.
pub(crate) const ACCEPT_POLL: Duration = Duration::from_millis(200);
/// Pause after a failed accept.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// When a silent peer is taken for lost.
pub(crate) const KEEPALIVE: KeepAlive = KeepAlive {
    after: Duration::from_secs(30),
    every: Duration::from_secs(10),
    tries: 3,
    unacknowledged: Duration::from_secs(60),
};

/// Log lines at once, and per second in the long run.
pub(crate) const LOG_BURST: u32 = 100;
/// See [`LOG_BURST`].
pub(crate) const LOG_PER_SECOND: u32 = 10;
/// The same for what is about one peer.
pub(crate) const PEER_LOG_BURST: u32 = 20;
/// See [`PEER_LOG_BURST`].
pub(crate) const PEER_LOG_PER_SECOND: u32 = 2;

/// The longest body of a command of fixed size.
pub(crate) const MAX_FIXED_BYTES: usize = 4 + 11 * RECORD_BYTES;

// Beats of several seconds are read at once by a thread that gets a processor so late.
const _: () = assert!(BEATS_BYTES as u128 / FRAME_BYTES as u128 * SHORTEST_INTERVAL.as_millis() >= 4000);
const _: () = assert!(SLICE_WORK.is_multiple_of(NODE_WORK));
const _: () = assert!(READ_AHEAD_BYTES > MAX_FIXED_BYTES && PIECE_BYTES >= READ_AHEAD_BYTES);
const _: () = assert!(CONNECTION_BYTES >= OWN_PIECE_BYTES + 4 * READ_AHEAD_BYTES + SECURED_BYTES);
// Several of the largest graphs must fit, or one client could keep others from sending theirs.
const _: () = assert!(MAX_GRAPH_BYTES * 4 <= 256 << 20);
// What slots themselves take is little, and what lists them is counted with the graphs.
const _: () = assert!(MAX_KEPT_GRAPHS * STORED_GRAPH_BYTES <= 1 << 20);
const _: () = assert!(kept_graph_bytes(0) >= STORED_GRAPH_BYTES);
// A client may have as many buffers as there may be.
const _: () = assert!(65_536 * KNOWN_BUFFER_BYTES <= 64 << 20);
// What all entries being written hold in memory, one piece each in hand and one on its way.
const _: () = assert!(KEEPERS * (KEPT_PIECES + 2) * KEPT_PIECE_BYTES <= 96 << 20);
const _: () = assert!(KEEPERS_PER_SHARE * 4 <= KEEPERS);
// What it remembers of entries.
const _: () = assert!(KEPT_ENTRIES * INDEXED_ENTRY_BYTES + KEPT_DOMAINS * INDEXED_DOMAIN_BYTES <= 64 << 20);
// A sender that waits for a place outlasts those that hold one without using it.
const _: () = assert!(KEEP_STALL.as_millis() * 2 <= KEEP_PATIENCE.as_millis());
