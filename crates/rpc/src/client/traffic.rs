//! How much was said, by command. Counting is a few additions without a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::wire::Command;

/// What one command cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// How often it was sent.
    pub messages: u64,
    /// Bytes sent, framing included.
    pub bytes_sent: u64,
    /// Bytes received, framing included.
    pub bytes_received: u64,
    /// How often its answer was waited for: round trips.
    pub waits: u64,
    /// How long those waits took together.
    pub waited: Duration,
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Usage) {
        self.messages += other.messages;
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
        self.waits += other.waits;
        self.waited += other.waited;
    }
}

#[derive(Debug, Default)]
struct Counter {
    messages: AtomicU64,
    bytes_sent: AtomicU64,
    bytes_received: AtomicU64,
    waits: AtomicU64,
    waited_ns: AtomicU64,
}

/// Counters of one connection.
#[derive(Debug, Default)]
pub struct Traffic {
    commands: [Counter; Command::ALL.len()],
}

impl Traffic {
    fn counter(&self, command: Command) -> &Counter {
        &self.commands[command.index()]
    }

    pub(super) fn sent(&self, command: Command, bytes: u64) {
        let counter = self.counter(command);
        counter.messages.fetch_add(1, Ordering::Relaxed);
        counter.bytes_sent.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn received(&self, command: Command, bytes: u64, waited: Duration) {
        let counter = self.counter(command);
        counter.waits.fetch_add(1, Ordering::Relaxed);
        counter.bytes_received.fetch_add(bytes, Ordering::Relaxed);
        let waited = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        counter.waited_ns.fetch_add(waited, Ordering::Relaxed);
    }

    /// What one command cost so far.
    pub fn of(&self, command: Command) -> Usage {
        let counter = self.counter(command);
        let load = |value: &AtomicU64| value.load(Ordering::Relaxed);
        Usage {
            messages: load(&counter.messages),
            bytes_sent: load(&counter.bytes_sent),
            bytes_received: load(&counter.bytes_received),
            waits: load(&counter.waits),
            waited: Duration::from_nanos(load(&counter.waited_ns)),
        }
    }

    /// Every command that was sent, and what it cost.
    pub fn by_command(&self) -> impl Iterator<Item = (Command, Usage)> {
        Command::ALL
            .iter()
            .map(|&command| (command, self.of(command)))
            .filter(|(_, usage)| usage.messages > 0)
    }

    /// All commands together.
    pub fn total(&self) -> Usage {
        let mut total = Usage::default();
        self.by_command().for_each(|(_, usage)| total += usage);
        total
    }
}
