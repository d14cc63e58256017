//! What a client may be told about a worker before it connects.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::endpoint::Endpoint;
use super::limits::{FURTHER_GRAPH, LONGEST_COMPUTING, TICK};
use crate::link::{Identity, Key};
use crate::wire::Dialect;

/// How to talk to a worker. The default suits any worker.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The dialect to speak, where the worker's version number does not say enough; its major version must be that of
    /// the worker.
    pub dialect: Option<&'static Dialect>,
    /// Whether the worker keeps large weights by content, so that asking before sending is worth a round trip.
    pub worker_cache: bool,
    /// How long to wait for what.
    pub timeouts: Timeouts,
    /// Who the worker is, where that is known: the connection is in TLS then, and to that machine or none.
    pub link: Option<LinkTo>,
    /// Where the worker is, where that has been looked up already; else it is looked up when it is connected to.
    pub addresses: Vec<SocketAddr>,
    /// What the worker is called, in names of devices and in messages, if not by where it is. No two workers should be called the same.
    pub called: Option<String>,
}

impl Options {
    /// What a worker is called in names of devices: its name, or where it is.
    pub(super) fn name_of(&self, endpoint: &Endpoint) -> String {
        self.called.clone().unwrap_or_else(|| endpoint.to_string())
    }

    /// What stands behind `worker` in messages: `at HOST:PORT`, or `NAME (HOST:PORT)`.
    pub(super) fn place_of(&self, endpoint: &Endpoint) -> Arc<str> {
        match &self.called {
            Some(name) => format!("{name} ({endpoint})").into(),
            None => format!("at {endpoint}").into(),
        }
    }
}

/// A worker that knows this machine, and that this machine knows.
#[derive(Clone, Debug)]
pub struct LinkTo {
    /// Who this machine is.
    pub identity: Arc<Identity>,
    /// Who the worker is.
    pub worker: Key,
}

/// How long to wait before a worker counts as lost. Waits add up: a reply behind a graph may take as long as both.
///
/// Bytes on the wire and bytes in a worker's memory are counted apart: what has been sent need not be sent again, so an
/// allocation of many gigabytes, or weights that have left, are no reason to wait for hours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For a connection, and for the answer to HELLO.
    pub connect: Duration,
    /// For an answer that takes no work.
    pub control: Duration,
    /// For moving data, whatever its size.
    pub data: Duration,
    /// For moving data over the wire, the slowest that counts as moving; bytes per second.
    pub slowest_rate: u64,
    /// For allocating, filling and copying in the worker's own memory, the slowest that counts as working; bytes per second.
    pub slowest_memory: u64,
    /// For a graph that is waited for. Several that are waited for together have a minute more each, and an hour at most, unless this is
    /// longer.
    pub compute: Duration,
    /// For an answer to a heartbeat, of workers that have them: whatever such a worker is busy with, it is lost if one takes longer. Less
    /// than [`SHORTEST_PATIENCE`](crate::link::limits::SHORTEST_PATIENCE) counts as that; `None` sends no heartbeats.
    pub heartbeat: Option<Duration>,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            connect: Duration::from_secs(10),
            control: Duration::from_secs(10),
            data: Duration::from_secs(60),
            slowest_rate: 1 << 20,
            slowest_memory: 128 << 20,
            compute: Duration::from_secs(600),
            heartbeat: Some(Duration::from_secs(2)),
        }
    }
}

/// What an answer has to wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ahead {
    /// Bytes that have to go over the wire.
    pub(super) wire: u64,
    /// Bytes that the worker has to handle in its own memory.
    pub(super) memory: u64,
    /// Graphs to compute.
    pub(super) graphs: usize,
}

impl Timeouts {
    /// For all of an exchange.
    pub(super) fn limit(&self, ahead: Ahead) -> Duration {
        let wire = Duration::from_secs(ahead.wire / self.slowest_rate.max(1));
        self.stall(ahead).saturating_add(wire)
    }

    /// How long one call may wait before the clock is looked at; the shorter the limits, the more often.
    pub(super) fn tick(&self) -> Duration {
        let shortest = self.connect.min(self.control).min(self.data).min(self.compute);
        TICK.min(shortest / 4).max(Duration::from_millis(5))
    }

    /// For the next byte: before it the worker may have to work, but nothing else has to move.
    pub(super) fn stall(&self, ahead: Ahead) -> Duration {
        let mut limit = self.control;
        if ahead.wire > 0 || ahead.memory > 0 {
            limit = limit.saturating_add(self.data);
        }
        limit = limit.saturating_add(Duration::from_secs(ahead.memory / self.slowest_memory.max(1)));
        limit.saturating_add(self.computing(ahead.graphs))
    }

    /// For so many graphs that are waited for together, such as all pieces of a long prompt.
    ///
    /// `compute` is far more than a graph takes, because it covers the first one, for which a worker may have to compile or page in. Taken
    /// once for each of many, it is hours in which a worker that hangs, but answers heartbeats, is not found out. So those that follow have a
    /// minute, or as long as the first where that is less; a minute is 8 tokens per second in pieces of 512.
    fn computing(&self, graphs: usize) -> Duration {
        let Some(more) = graphs.checked_sub(1) else { return Duration::ZERO };
        let more = FURTHER_GRAPH.min(self.compute).saturating_mul(u32::try_from(more).unwrap_or(u32::MAX));
        self.compute.saturating_add(more).min(LONGEST_COMPUTING.max(self.compute))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(wire: u64, memory: u64, graphs: usize) -> (u64, u64) {
        let (timeouts, ahead) = (Timeouts::default(), Ahead { wire, memory, graphs });
        (timeouts.limit(ahead).as_secs(), timeouts.stall(ahead).as_secs())
    }

    #[test]
    fn waits_grow_with_the_work() {
        assert_eq!(seconds(0, 0, 0), (10, 10));
        assert_eq!(seconds(1, 0, 0), (70, 70));
        assert_eq!(seconds(100 << 20, 0, 0), (170, 70));
        assert_eq!(seconds(0, 0, 1), (610, 610));
        // All pieces of a long prompt, which are waited for together.
        assert_eq!(seconds(0, 0, 2), (670, 670));
        assert_eq!(seconds(0, 0, 40), (2950, 2950));
        assert!(seconds(u64::MAX, u64::MAX, usize::MAX).0 > 1 << 40);
    }

    /// A worker that hangs is found out within hours, however much it was told to compute.
    #[test]
    fn many_graphs_are_no_reason_to_wait_for_hours() {
        for graphs in [64, 1024, usize::MAX] {
            assert_eq!(seconds(0, 0, graphs), (3610, 3610));
        }
        let short = Timeouts { compute: Duration::from_millis(100), ..Timeouts::default() };
        assert_eq!(
            short.computing(3),
            Duration::from_millis(300),
            "and none of them has longer than the first"
        );
        let compute = Duration::from_secs(7200);
        let timeouts = Timeouts { compute, ..Timeouts::default() };
        assert_eq!([1, 100].map(|graphs| timeouts.computing(graphs)), [compute; 2], "what a user says holds");
    }

    #[test]
    fn memory_is_no_reason_to_wait_for_hours() {
        assert_eq!(seconds(0, 16 << 30, 0), (198, 198));
        assert!(seconds(1 << 30, 80 << 30, 0).0 < 30 * 60);
        assert!(seconds(1 << 30, 80 << 30, 0).1 < 12 * 60);
    }
}
