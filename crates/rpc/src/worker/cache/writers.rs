//! How many entries are being written, in all and for each share.
//!
//! Invariant: never more than the limits say. Clients of one share wait for each other, but not for others.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::share::Share;
use crate::worker::limits::{KEEPERS, KEEPERS_PER_SHARE};

#[derive(Debug)]
pub(super) struct Writers {
    /// How long an upload waits for a place.
    patience: Duration,
    by_share: Mutex<HashMap<Share, Places>>,
    changed: Condvar,
}

/// Places of one share.
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
    share: Share,
}

impl Writers {
    pub(super) fn new(patience: Duration) -> Arc<Writers> {
        Arc::new(Writers { patience, by_share: Mutex::default(), changed: Condvar::new() })
    }

    fn by_share(&self) -> MutexGuard<'_, HashMap<Share, Places>> {
        self.by_share.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the places of a share; those that no one holds or wants are forgotten.
    fn change(places: &mut HashMap<Share, Places>, share: &Share, change: impl FnOnce(&mut Places)) {
        let of_share = places.entry(share.clone()).or_default();
        change(of_share);
        if of_share.held + of_share.wanted == 0 {
            places.remove(share);
        }
    }

    /// Waits while `goes_on` holds, but not longer than that.
    fn wait_while<'a>(
        &self,
        mut places: MutexGuard<'a, HashMap<Share, Places>>,
        patience: Duration,
        goes_on: impl Fn(&HashMap<Share, Places>) -> bool,
    ) -> MutexGuard<'a, HashMap<Share, Places>> {
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

    /// A permit, if there is one or its own share gives one back soon.
    pub(super) fn permit(self: &Arc<Self>, share: &Share) -> Option<Permit> {
        let is_full = |places: &HashMap<Share, Places>| {
            places.get(share).is_some_and(|places| places.held >= KEEPERS_PER_SHARE)
        };
        let mut places = self.by_share();
        Writers::change(&mut places, share, |own| own.wanted += 1);
        places = self.wait_while(places, self.patience, is_full);
        let is_free = !is_full(&places) && places.values().map(|of| of.held).sum::<usize>() < KEEPERS;
        Writers::change(&mut places, share, |own| {
            own.wanted -= 1;
            own.held += usize::from(is_free);
        });
        is_free.then(|| Permit { writers: Arc::clone(self), share: share.clone() })
    }

    /// Waits until no entry is being written, but no longer than that.
    pub(super) fn wait_for_none(&self, patience: Duration) {
        drop(self.wait_while(self.by_share(), patience, |places| places.values().any(|of| of.held > 0)));
    }
}

impl Permit {
    /// Whether another upload of the share waits for a place.
    pub(super) fn is_wanted(&self) -> bool {
        self.writers.by_share().get(&self.share).is_some_and(|places| places.wanted > 0)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        Writers::change(&mut self.writers.by_share(), &self.share, |own| own.held -= 1);
        self.writers.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::cache::Domain;

    /// Longer than any machine stands still.
    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(100);

    fn take(writers: &Arc<Writers>, user: u32) -> Option<Permit> {
        writers.permit(&Domain::of_user(user).share())
    }

    /// Takes all places there are.
    fn take_all(writers: &Arc<Writers>) -> Vec<Permit> {
        let users = 0..(KEEPERS / KEEPERS_PER_SHARE) as u32;
        let all = users.flat_map(|user| (0..KEEPERS_PER_SHARE).map(move |_| user));
        all.map(|user| take(writers, user).unwrap()).collect()
    }

    #[test]
    fn no_share_waits_for_another() {
        let writers = Writers::new(LONG);
        let mut held = take_all(&writers);
        let start = Instant::now();
        assert!(take(&writers, 1000).is_none());
        assert!(start.elapsed() < LONG / 2);
        held.pop();
        assert!(take(&writers, 1000).is_some());
        held.clear();
        assert!(writers.by_share().is_empty());
        writers.wait_for_none(LONG);
    }

    #[test]
    fn a_share_waits_for_its_own() {
        let writers = Writers::new(SHORT);
        let held = take_all(&writers);
        let start = Instant::now();
        assert!(take(&writers, 0).is_none());
        assert!(start.elapsed() >= SHORT);
        drop(held);
        assert!(take(&writers, 0).is_some());
    }

    #[test]
    fn addresses_of_one_network_wait_for_each_other() {
        let writers = Writers::new(SHORT);
        let take = |network: u16, machine: usize| {
            let address = [0x2001, 0xdb8, 0, network, 0, 0, 0, machine as u16];
            writers.permit(&Domain::of_address((address, 1).into()).share())
        };
        let held: Vec<_> = (0..KEEPERS_PER_SHARE).map(|machine| take(1, machine)).collect();
        assert!(held.iter().all(Option::is_some));
        assert!(take(1, KEEPERS_PER_SHARE).is_none() && take(2, 0).is_some());
    }
}
