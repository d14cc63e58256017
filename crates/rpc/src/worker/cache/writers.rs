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
    by_domain: Mutex<HashMap<Domain, Places>>,
    changed: Condvar,
}

/// Places of one domain.
#[derive(Clone, Copy, Debug, Default)]
struct Places {
    held: usize,
    /// Uploads that wait for one of them.
    wanted: usize,
}

/// The right to write one entry.
#[derive(Debug)]
pub(super) struct Permit {
    writers: Arc<Writers>,
    domain: Domain,
}

impl Writers {
    fn by_domain(&self) -> MutexGuard<'_, HashMap<Domain, Places>> {
        self.by_domain.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the places of a domain; those that no one holds or wants are forgotten.
    fn change(places: &mut HashMap<Domain, Places>, domain: &Domain, change: impl FnOnce(&mut Places)) {
        let of_domain = places.entry(domain.clone()).or_default();
        change(of_domain);
        if of_domain.held + of_domain.wanted == 0 {
            places.remove(domain);
        }
    }

    /// Waits while `goes_on` holds, but not longer than that.
    fn wait_while<'a>(
        &self,
        mut places: MutexGuard<'a, HashMap<Domain, Places>>,
        patience: Duration,
        goes_on: impl Fn(&HashMap<Domain, Places>) -> bool,
    ) -> MutexGuard<'a, HashMap<Domain, Places>> {
        let until = Instant::now() + patience;
        while goes_on(&places) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            places = self.changed.wait_timeout(places, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        places
    }

    /// A permit, if there is one or its own domain gives one back soon.
    pub(super) fn permit(self: &Arc<Self>, domain: &Domain) -> Option<Permit> {
        let is_full = |places: &HashMap<Domain, Places>| {
            places.get(domain).is_some_and(|places| places.held >= KEEPERS_PER_DOMAIN)
        };
        let mut places = self.by_domain();
        Writers::change(&mut places, domain, |own| own.wanted += 1);
        places = self.wait_while(places, KEEP_PATIENCE, is_full);
        let is_free = !is_full(&places) && places.values().map(|of| of.held).sum::<usize>() < KEEPERS;
        Writers::change(&mut places, domain, |own| {
            own.wanted -= 1;
            own.held += usize::from(is_free);
        });
        is_free.then(|| Permit { writers: Arc::clone(self), domain: domain.clone() })
    }

    /// Waits until no entry is being written, but no longer than that.
    pub(super) fn wait_for_none(&self, patience: Duration) {
        drop(self.wait_while(self.by_domain(), patience, |places| places.values().any(|of| of.held > 0)));
    }
}

impl Permit {
    /// Whether another upload of the domain waits for a place.
    pub(super) fn is_wanted(&self) -> bool {
        self.writers.by_domain().get(&self.domain).is_some_and(|places| places.wanted > 0)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        Writers::change(&mut self.writers.by_domain(), &self.domain, |own| own.held -= 1);
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
