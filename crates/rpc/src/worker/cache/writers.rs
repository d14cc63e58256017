//! How many entries are being written, in all and for each domain.
//!
//! Invariant: never more than the limits say. Clients of a domain wait for each other, but not for other domains.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::domain::Domain;
use crate::worker::limits::{KEEP_PATIENCE, KEEPERS, KEEPERS_PER_DOMAIN};

#[derive(Debug, Default)]
pub(super) struct Writers {
    by_domain: Mutex<HashMap<Domain, usize>>,
    changed: Condvar,
}

/// The right to write one entry.
#[derive(Debug)]
pub(super) struct Permit {
    writers: Arc<Writers>,
    domain: Domain,
}

impl Writers {
    fn by_domain(&self) -> MutexGuard<'_, HashMap<Domain, usize>> {
        self.by_domain.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while `goes_on` holds, but not longer than that.
    fn wait_while(
        &self,
        patience: Duration,
        goes_on: impl Fn(&HashMap<Domain, usize>) -> bool,
    ) -> MutexGuard<'_, HashMap<Domain, usize>> {
        let until = Instant::now() + patience;
        let mut writing = self.by_domain();
        while goes_on(&writing) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            writing = self.changed.wait_timeout(writing, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        writing
    }

    /// A permit, if there is one or its own domain gives one back soon.
    pub(super) fn permit(self: &Arc<Self>, domain: &Domain) -> Option<Permit> {
        let of_domain = |writing: &HashMap<Domain, usize>| writing.get(domain).copied().unwrap_or_default();
        let mut writing = self.wait_while(KEEP_PATIENCE, |writing| of_domain(writing) >= KEEPERS_PER_DOMAIN);
        let is_free = of_domain(&writing) < KEEPERS_PER_DOMAIN && writing.values().sum::<usize>() < KEEPERS;
        is_free.then(|| {
            *writing.entry(domain.clone()).or_default() += 1;
            Permit { writers: Arc::clone(self), domain: domain.clone() }
        })
    }

    /// Waits until no entry is being written, but no longer than that.
    pub(super) fn wait_for_none(&self, patience: Duration) {
        drop(self.wait_while(patience, |writing| !writing.is_empty()));
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut writing = self.writers.by_domain();
        if let Some(count) = writing.get_mut(&self.domain) {
            *count -= 1;
            if *count == 0 {
                writing.remove(&self.domain);
            }
        }
        drop(writing);
        self.writers.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_domain_waits_for_another() {
        let writers = Arc::<Writers>::default();
        let take = |user| writers.permit(&Domain::of_user(user));
        let mut held = Vec::new();
        for user in 0..(KEEPERS / KEEPERS_PER_DOMAIN) as u32 {
            held.extend((0..KEEPERS_PER_DOMAIN).map(|_| take(user).unwrap()));
        }
        let start = Instant::now();
        assert!(take(1000).is_none());
        assert!(start.elapsed() < KEEP_PATIENCE);
        // But for their own.
        let start = Instant::now();
        assert!(take(0).is_none());
        assert!(start.elapsed() >= KEEP_PATIENCE);
        held.pop();
        assert!(take(1000).is_some());
        held.clear();
        assert!(writers.by_domain().is_empty());
        writers.wait_for_none(Duration::from_secs(60));
    }
}
