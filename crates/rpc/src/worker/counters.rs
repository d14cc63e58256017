//! What a worker has done so far, in numbers.
//!
//! Concurrency: every number is on its own; a snapshot taken under load may count a message in one and not yet in
//! another.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::cache::CacheCounts;

/// Numbers that grow.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) accepted: AtomicU64,
    pub(crate) clients: AtomicU64,
    pub(crate) bytes_in: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
    pub(crate) commands: AtomicU64,
    pub(crate) graphs: AtomicU64,
    pub(crate) recomputes: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) cache_hits: AtomicU64,
    pub(crate) cache_misses: AtomicU64,
    pub(crate) copied: AtomicU64,
    pub(crate) undelivered: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) degraded: AtomicU64,
    pub(crate) panics: AtomicU64,
    refusals: Mutex<BTreeMap<&'static str, u64>>,
}

pub(crate) fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn refused(&self, code: &'static str) {
        *self.refusals.lock().unwrap_or_else(PoisonError::into_inner).entry(code).or_default() += 1;
    }

    pub(crate) fn snapshot(&self, connected: usize, cache: CacheCounts) -> Snapshot {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Snapshot {
            connected: connected as u64,
            accepted: get(&self.accepted),
            clients: get(&self.clients),
            bytes_in: get(&self.bytes_in),
            bytes_out: get(&self.bytes_out),
            commands: get(&self.commands),
            graphs: get(&self.graphs),
            recomputes: get(&self.recomputes),
            cancelled: get(&self.cancelled),
            cache_hits: get(&self.cache_hits),
            cache_misses: get(&self.cache_misses),
            copied: get(&self.copied),
            cache,
            undelivered: get(&self.undelivered),
            dropped: get(&self.dropped),
            degraded: get(&self.degraded),
            panics: get(&self.panics) + cache.panics,
            refusals: self.refusals.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            ..Snapshot::default()
        }
    }
}

/// What a worker had done at some moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Connections there are.
    pub connected: u64,
    /// Connections there were.
    pub accepted: u64,
    /// Connections that said HELLO.
    pub clients: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Commands carried out.
    pub commands: u64,
    /// Graphs computed for the first time.
    pub graphs: u64,
    /// Graphs computed again.
    pub recomputes: u64,
    /// Graphs stopped because their client had gone.
    pub cancelled: u64,
    /// Hashes whose content was here.
    pub cache_hits: u64,
    /// Hashes whose content was not.
    pub cache_misses: u64,
    /// Contents that came from the worker's own files.
    pub copied: u64,
    /// What else the cache did.
    pub cache: CacheCounts,
    /// Times that a client was told that another worker had not sent what was waited for.
    pub undelivered: u64,
    /// Connections dropped for being too slow, too many or too large, or because their device was lost.
    pub dropped: u64,
    /// Devices that are lost.
    pub degraded: u64,
    /// Panics that were caught: bugs.
    pub panics: u64,
    /// Bytes that are counted for messages now; see [`Limits::message_bytes`](super::Limits::message_bytes).
    pub message_bytes: u64,
    /// Bytes that are counted for graphs and the knowledge of buffers now; see
    /// [`Limits::stored_bytes`](super::Limits::stored_bytes).
    pub stored_bytes: u64,
    /// Refused requests by reason.
    pub refusals: BTreeMap<&'static str, u64>,
}

impl Snapshot {
    /// The numbers and their names.
    pub const fn numbers(&self) -> [(&'static str, u64); 23] {
        [
            ("connected", self.connected),
            ("accepted", self.accepted),
            ("clients", self.clients),
            ("bytes_in", self.bytes_in),
            ("bytes_out", self.bytes_out),
            ("commands", self.commands),
            ("graphs", self.graphs),
            ("recomputes", self.recomputes),
            ("cancelled", self.cancelled),
            ("cache_hits", self.cache_hits),
            ("cache_misses", self.cache_misses),
            ("cache_stored", self.cache.stored),
            ("cache_failed", self.cache.failed),
            ("cache_rejected", self.cache.rejected),
            ("cache_evicted", self.cache.evicted),
            ("cache_collisions", self.cache.collisions),
            ("copied", self.copied),
            ("undelivered", self.undelivered),
            ("dropped", self.dropped),
            ("degraded", self.degraded),
            ("panics", self.panics),
            ("message_bytes", self.message_bytes),
            ("stored_bytes", self.stored_bytes),
        ]
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} connected, {} clients so far, {} commands, {} graphs computed and {} again, {} cancelled, {} bytes \
             in, {} bytes out, {} dropped, {} devices lost, {} panics",
            self.connected,
            self.clients,
            self.commands,
            self.graphs,
            self.recomputes,
            self.cancelled,
            self.bytes_in,
            self.bytes_out,
            self.dropped,
            self.degraded,
            self.panics
        )?;
        if self.cache_hits + self.cache_misses + self.cache.stored + self.cache.failed > 0 {
            let CacheCounts { stored, failed, rejected, evicted, collisions, .. } = self.cache;
            write!(f, ", cache: {} hits, {} misses, ", self.cache_hits, self.cache_misses)?;
            write!(f, "{stored} stored, {failed} not, {rejected} rejected, {evicted} evicted")?;
            write!(f, ", {collisions} collisions")?;
        }
        if self.copied > 0 {
            write!(f, ", {} from own files", self.copied)?;
        }
        if self.undelivered > 0 {
            write!(f, ", {} times nothing from another worker", self.undelivered)?;
        }
        let total: u64 = self.refusals.values().sum();
        write!(f, ", {total} refused")?;
        let reasons: Vec<_> = self.refusals.iter().map(|(code, n)| format!("{code} {n}")).collect();
        if !reasons.is_empty() {
            write!(f, " ({})", reasons.join(", "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readable_by_people_and_programs() {
        let counters = Counters::default();
        add(&counters.graphs, 3);
        add(&counters.copied, 5);
        counters.refused("handle");
        counters.refused("handle");
        counters.refused("size");
        let snapshot = counters.snapshot(2, CacheCounts { rejected: 7, ..CacheCounts::default() });
        assert!(
            snapshot.to_string().ends_with("0 panics, 5 from own files, 3 refused (handle 2, size 1)"),
            "{snapshot}"
        );
        for named in [("connected", 2), ("graphs", 3), ("cache_rejected", 7), ("copied", 5)] {
            assert!(snapshot.numbers().contains(&named), "{named:?}");
        }
        assert_eq!(snapshot.refusals.into_iter().collect::<Vec<_>>(), [("handle", 2), ("size", 1)]);
    }
}
