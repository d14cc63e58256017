//! What others may know about a connection: what it is doing, until when it must have done it, and how to end it.
//!
//! Concurrency: the connection's own thread says what it is doing; the watcher and the listeners read it and may end the
//! connection from outside, by shutting its socket down. Then its thread wakes up and cleans up after itself.

use std::collections::BTreeSet;
use std::net::{Shutdown, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::limits::{MAX_INTRODUCTIONS, WATCH_EVERY};
use super::peer::{Holder, Peer};
use super::stored_graphs::StoredGraphs;
use crate::link::{Key, MachineName};
use crate::os::socket::TimedSocket;
use crate::os::thread_time::thread_time;

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    /// HELLO has not come yet.
    Greeting,
    /// Waiting for the next message.
    Idle,
    /// A message is arriving.
    Reading,
    /// A command is being carried out, or answered.
    Working,
    /// A graph is being computed.
    Computing,
    /// Another worker's bytes are waited for.
    Awaiting,
    /// The network is waited for: the client takes its answer, or another worker is met or takes what is pushed to it.
    Waiting,
    /// It is the pulse of another one, and answers beats.
    Beating,
}

/// Why a connection was ended from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// HELLO took too long.
    LateHello,
    /// A message took too long.
    LateMessage,
    /// Nothing was asked for too long.
    Idle,
    /// Others needed the place.
    TooMany,
    /// Others needed the memory that the worker kept for it.
    TooMuch,
    /// The machine is not known any more.
    Revoked,
    /// A device that it used is lost.
    DeviceLost,
    /// The worker is shutting down.
    Shutdown,
}

impl Dropped {
    /// Why, for people.
    pub const fn reason(self) -> &'static str {
        match self {
            Dropped::LateHello => "HELLO did not come in time",
            Dropped::LateMessage => "a message did not come in time",
            Dropped::Idle => "it was idle for too long",
            Dropped::TooMany => "there are too many connections",
            Dropped::TooMuch => "its memory was needed for other clients",
            Dropped::Revoked => "its machine is no longer known",
            Dropped::DeviceLost => "a device that it used is lost",
            Dropped::Shutdown => "the worker is shutting down",
        }
    }
}

const NEVER: u64 = u64::MAX;

/// A connection, as others see it.
#[derive(Debug)]
pub(crate) struct Client {
    /// Its number; larger is younger.
    pub(crate) id: u64,
    pub(crate) peer: SocketAddr,
    /// The machine that it has proved to be, and what that is called here.
    machine: OnceLock<(Key, Option<MachineName>)>,
    /// If it is another worker's: the peer whose session that was introduced to, and the key that it has proved.
    introduced: OnceLock<(Peer, Option<Key>)>,
    /// What to watch and to shut down; a conversation over other streams has none and ends by itself.
    pub(crate) socket: Option<TimedSocket>,
    since: Instant,
    phase: AtomicU8,
    /// Milliseconds after `since`.
    deadline: AtomicU64,
    /// When it last began to do something else, in milliseconds after `since`.
    last_words: AtomicU64,
    /// When its thread last used the processor outside of turns, in milliseconds after `since`.
    last_used: AtomicU64,
    /// Devices on which it has something, a bit each; the last one stands for all beyond.
    devices: AtomicU64,
    /// Bytes that it has on devices.
    device_bytes: AtomicUsize,
    /// Nanoseconds of its thread that were used in turns.
    in_turns: AtomicU64,
    pub(crate) graphs: StoredGraphs,
    /// Introductions whose other worker is lost, as its client says.
    lost_neighbours: Mutex<BTreeSet<u32>>,
    gone: AtomicBool,
    dropped: OnceLock<Dropped>,
}

impl Client {
    pub(crate) fn new(id: u64, peer: SocketAddr, socket: Option<TimedSocket>, hello: Duration) -> Client {
        let client = Client {
            id,
            peer,
            machine: OnceLock::new(),
            introduced: OnceLock::new(),
            socket,
            since: Instant::now(),
            phase: AtomicU8::new(Phase::Greeting as u8),
            deadline: AtomicU64::new(NEVER),
            last_words: AtomicU64::new(0),
            last_used: AtomicU64::new(NEVER),
            devices: AtomicU64::new(0),
            device_bytes: AtomicUsize::new(0),
            in_turns: AtomicU64::new(0),
            graphs: StoredGraphs::default(),
            lost_neighbours: Mutex::default(),
            gone: AtomicBool::new(false),
            dropped: OnceLock::new(),
        };
        client.due_in(Some(hello));
        client
    }

    /// Notes which machine it has proved to be. It has nothing yet that would be another's share.
    pub(crate) fn identify(&self, key: Key, name: Option<MachineName>) {
        // It is proved once.
        let _ = self.machine.set((key, name));
    }

    /// Notes that it is another worker's, which has proved a key or none, and a part of what the peer of a session has here.
    pub(crate) fn belong_to(&self, session: &Client, key: Option<Key>) {
        // It comes by one introduction.
        let _ = self.introduced.set((session.holder().peer, key));
    }

    /// The key that another worker has proved which this is the connection of.
    pub(crate) fn introduced_key(&self) -> Option<Key> {
        self.introduced.get().and_then(|(_, key)| *key)
    }

    /// The key that it has proved.
    pub(crate) fn key(&self) -> Option<Key> {
        self.machine.get().map(|(key, _)| *key)
    }

    /// What its machine is called.
    pub(crate) fn machine_name(&self) -> Option<MachineName> {
        self.machine.get().and_then(|(_, name)| name.clone())
    }

    /// Whose share it uses.
    pub(crate) fn holder(&self) -> Holder {
        let own = || self.key().map_or_else(|| Peer::of(self.peer), Peer::Machine);
        let peer = self.introduced.get().map_or_else(own, |(peer, _)| *peer);
        Holder { peer, client: self.id }
    }

    /// Time since it connected.
    pub(crate) fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// The same in milliseconds.
    fn now(&self) -> u64 {
        u64::try_from(self.age().as_millis()).unwrap_or(NEVER)
    }

    /// Says what it is doing, and for how long it may.
    pub(crate) fn enter(&self, phase: Phase, limit: Option<Duration>) {
        // The old deadline must not be held against the new phase.
        self.deadline.store(NEVER, Ordering::Relaxed);
        self.last_words.store(self.now(), Ordering::Relaxed);
        self.phase.store(phase as u8, Ordering::Release);
        self.due_in(limit);
    }

    /// Sets a new deadline for what it is doing, from now.
    pub(crate) fn due_in(&self, limit: Option<Duration>) {
        let due = limit.map(|limit| self.age().saturating_add(limit).as_millis());
        self.deadline.store(due.map_or(NEVER, |due| u64::try_from(due).unwrap_or(NEVER)), Ordering::Release);
    }

    pub(crate) fn is(&self, phase: Phase) -> bool {
        self.phase.load(Ordering::Acquire) == phase as u8
    }

    /// Why it should be dropped for being late, if it is.
    pub(crate) fn overdue(&self) -> Option<Dropped> {
        let late = u128::from(self.deadline.load(Ordering::Acquire)) < self.age().as_millis();
        late.then(|| {
            if self.is(Phase::Greeting) {
                Dropped::LateHello
            } else if self.is(Phase::Idle) {
                Dropped::Idle
            } else {
                Dropped::LateMessage
            }
        })
    }

    /// Notes that it has something on a device.
    pub(crate) fn uses(&self, device: usize) {
        self.devices.fetch_or(1 << device.min(63), Ordering::SeqCst);
    }

    /// When it last began to do something else.
    pub(crate) fn last_words(&self) -> Instant {
        self.since + Duration::from_millis(self.last_words.load(Ordering::Relaxed))
    }

    /// Notes that its thread has used the processor outside of turns, more than a little.
    pub(crate) fn use_processor(&self) {
        self.last_used.store(self.now(), Ordering::Relaxed);
    }

    /// Whether something is done for it now, or was a moment ago. A message that merely began is nothing.
    pub(crate) fn is_busy(&self) -> bool {
        self.was_busy(self.now()) || self.is(Phase::Working) || self.is(Phase::Computing)
    }

    /// Whether its thread has used the processor a moment before some time, in milliseconds after `since`.
    fn was_busy(&self, now: u64) -> bool {
        let moment = u64::try_from(WATCH_EVERY.as_millis()).unwrap_or(NEVER);
        let last = self.last_used.load(Ordering::Relaxed);
        last != NEVER && now.saturating_sub(last) < moment
    }

    /// Notes that it has so many bytes more on a device.
    pub(crate) fn hold(&self, bytes: usize) {
        self.device_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Notes that it has so many bytes less.
    pub(crate) fn let_go(&self, bytes: usize) {
        self.device_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes that it has on devices.
    pub(crate) fn device_bytes(&self) -> usize {
        self.device_bytes.load(Ordering::Relaxed)
    }

    /// Does something in a turn, which counts what it takes.
    pub(crate) fn in_turn<T>(&self, work: impl FnOnce() -> T) -> T {
        let before = thread_time();
        let done = work();
        let used = thread_time().saturating_sub(before).as_nanos();
        self.in_turns.fetch_add(u64::try_from(used).unwrap_or(u64::MAX), Ordering::Relaxed);
        done
    }

    /// What its thread, which is the calling one, has used of the processor outside of turns.
    pub(crate) fn used_outside_of_turns(&self) -> Duration {
        thread_time().saturating_sub(Duration::from_nanos(self.in_turns.load(Ordering::Relaxed)))
    }

    /// Whether it has had something on a device.
    pub(crate) fn is_using(&self, device: usize) -> bool {
        self.devices.load(Ordering::SeqCst) & 1 << device.min(63) != 0
    }

    /// Ends it from outside. The caller must stop its graph, if one runs.
    pub(crate) fn drop_for(&self, why: Dropped) {
        // The first reason is the one that counts.
        let _ = self.dropped.set(why);
        self.leave();
        self.hang_up();
    }

    /// Ends its connection, both ways.
    pub(crate) fn hang_up(&self) {
        if let Some(socket) = &self.socket {
            // It may be closed already.
            let _ = socket.stream().shutdown(Shutdown::Both);
        }
    }

    /// Why it was ended from outside, if it was.
    pub(crate) fn dropped(&self) -> Option<Dropped> {
        self.dropped.get().copied()
    }

    fn lost_neighbours(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.lost_neighbours.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the other worker of an introduction is lost. There are no more introductions than that.
    pub(crate) fn lose_neighbour(&self, introduction: u32) {
        let mut lost = self.lost_neighbours();
        if lost.len() < MAX_INTRODUCTIONS {
            lost.insert(introduction);
        }
    }

    /// Whether the other worker of an introduction is lost.
    pub(crate) fn has_lost(&self, introduction: u32) -> bool {
        self.lost_neighbours().contains(&introduction)
    }

    /// Notes that the other end is gone.
    pub(crate) fn leave(&self) {
        self.gone.store(true, Ordering::SeqCst);
    }

    /// Whether the other end is gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_merely_began_a_message_is_not_busy() {
        let client = Client::new(1, ([127, 0, 0, 1], 1).into(), None, Duration::from_secs(10));
        assert!(!client.is_busy());
        for (phase, is_busy) in [
            (Phase::Reading, false),
            (Phase::Working, true),
            (Phase::Computing, true),
            (Phase::Idle, false),
            (Phase::Reading, false),
            (Phase::Awaiting, false),
            (Phase::Working, true),
            (Phase::Waiting, false),
        ] {
            client.enter(phase, None);
            assert_eq!(client.is_busy(), is_busy, "{phase:?}");
        }
        // One that receives much is, for a moment.
        assert!(!client.was_busy(client.now()));
        client.use_processor();
        let (last, moment) =
            (client.last_used.load(Ordering::Relaxed), u64::try_from(WATCH_EVERY.as_millis()).unwrap());
        assert!(client.was_busy(last) && client.was_busy(last + moment - 1));
        assert!(!client.was_busy(last + moment));
        std::thread::sleep(2 * WATCH_EVERY);
        assert!(!client.is_busy());
    }
}
