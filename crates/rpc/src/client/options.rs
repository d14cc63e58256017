//! What a client may be told about a worker before it connects.

use std::time::Duration;

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
}

/// How long to wait before a worker counts as lost. Waits add up: a reply behind a graph may take as long as both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For a connection, and for the answer to HELLO.
    pub connect: Duration,
    /// For an answer that takes no work.
    pub control: Duration,
    /// For moving data, whatever its size.
    pub data: Duration,
    /// For moving data, the slowest that counts as moving; bytes per second.
    pub slowest_rate: u64,
    /// For each wait behind a graph.
    pub compute: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            connect: Duration::from_secs(10),
            control: Duration::from_secs(10),
            data: Duration::from_secs(60),
            slowest_rate: 1 << 20,
            compute: Duration::from_secs(600),
        }
    }
}

impl Timeouts {
    /// For an exchange that moves some bytes and may stand behind graphs.
    pub(super) fn limit(&self, bytes: u64, behind_graph: bool) -> Duration {
        let mut limit = self.control;
        if bytes > 0 {
            limit += self.data + Duration::from_secs(bytes / self.slowest_rate.max(1));
        }
        if behind_graph {
            limit = limit.saturating_add(self.compute);
        }
        limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_with_the_work() {
        let timeouts = Timeouts::default();
        assert_eq!(timeouts.limit(0, false).as_secs(), 10);
        assert_eq!(timeouts.limit(1, false).as_secs(), 70);
        assert_eq!(timeouts.limit(100 << 20, false).as_secs(), 170);
        assert_eq!(timeouts.limit(0, true).as_secs(), 610);
        assert!(timeouts.limit(u64::MAX, true) > Duration::from_secs(1 << 40));
    }
}
