//! Bytes that may be given out, and who has how many.
//!
//! Shares are not fixed: who asks first gets, until nothing is left. Then those who have most make way for those who have
//! much less ([`Budget::heaviest`]), peers first and connections of one peer then, so that each can have as much as the others.
//! Where nothing can be taken back, as with the memory of buffers, a little is kept aside for those who have next to nothing.
//!
//! Invariant: the leases that exist never add up to more than the budget.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::peer::{Holder, Peer};

/// A number of bytes to share.
#[derive(Debug)]
pub(crate) struct Budget {
    total: usize,
    /// What only those get who have no more than [`Budget::little`] with it.
    aside: usize,
    little: usize,
    given: Mutex<Given>,
}

/// What was given out. Those who have nothing are not listed.
#[derive(Debug, Default)]
struct Given {
    used: usize,
    peers: BTreeMap<Peer, PeerGiven>,
}

#[derive(Debug, Default)]
struct PeerGiven {
    used: usize,
    clients: BTreeMap<u64, usize>,
}

impl Given {
    fn add(&mut self, holder: Holder, bytes: usize) {
        self.used += bytes;
        let peer = self.peers.entry(holder.peer).or_default();
        peer.used += bytes;
        *peer.clients.entry(holder.client).or_default() += bytes;
    }

    fn remove(&mut self, holder: Holder, bytes: usize) {
        self.used -= bytes;
        let Some(peer) = self.peers.get_mut(&holder.peer) else { return };
        peer.used -= bytes;
        if let Some(client) = peer.clients.get_mut(&holder.client) {
            *client -= bytes;
            if *client == 0 {
                peer.clients.remove(&holder.client);
            }
        }
        if peer.clients.is_empty() {
            self.peers.remove(&holder.peer);
        }
    }

    fn of_peer(&self, peer: Peer) -> usize {
        self.peers.get(&peer).map_or(0, |peer| peer.used)
    }
}

/// Some bytes of a budget; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    budget: Arc<Budget>,
    holder: Holder,
    bytes: usize,
}

impl Budget {
    pub(crate) fn new(total: usize) -> Arc<Budget> {
        Budget::with_aside(total, 0, 0)
    }

    /// As [`new`](Budget::new), with bytes that are kept for peers which have only a little.
    pub(crate) fn with_aside(total: usize, aside: usize, little: usize) -> Arc<Budget> {
        Arc::new(Budget { total, aside, little, given: Mutex::default() })
    }

    pub(crate) const fn total(&self) -> usize {
        self.total
    }

    fn given(&self) -> MutexGuard<'_, Given> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that are not given out, and not kept aside.
    pub(crate) fn left(&self) -> usize {
        self.total.saturating_sub(self.aside).saturating_sub(self.given().used)
    }

    /// A lease of no bytes, which may grow.
    pub(crate) fn nothing(self: &Arc<Self>, holder: Holder) -> Lease {
        Lease { budget: Arc::clone(self), holder, bytes: 0 }
    }

    /// Takes bytes, if so many are left.
    pub(crate) fn lease(self: &Arc<Self>, holder: Holder, bytes: usize) -> Option<Lease> {
        self.lease_within(holder, bytes, usize::MAX)
    }

    /// The same, if that does not make more than so many of one peer.
    pub(crate) fn lease_within(self: &Arc<Self>, holder: Holder, bytes: usize, most: usize) -> Option<Lease> {
        self.take(holder, bytes, most).then(|| Lease { budget: Arc::clone(self), holder, bytes })
    }

    fn take(&self, holder: Holder, bytes: usize, peer_most: usize) -> bool {
        let mut given = self.given();
        let of_peer = given.of_peer(holder.peer).saturating_add(bytes);
        if of_peer > peer_most && bytes > 0 {
            return false;
        }
        let has_little = of_peer <= self.little;
        let most = if has_little { self.total } else { self.total.saturating_sub(self.aside) };
        let fits = given.used.checked_add(bytes).is_some_and(|sum| sum <= most);
        if fits && bytes > 0 {
            given.add(holder, bytes);
        }
        fits
    }

    /// Bytes that are given out.
    pub(crate) fn used(&self) -> usize {
        self.given().used
    }

    /// How many others have something, and how many bytes.
    pub(crate) fn others_of(&self, holder: Holder) -> (usize, usize) {
        let given = self.given();
        let others = given.peers.values().flat_map(|peer| &peer.clients);
        let others = others.filter(|(client, used)| **client != holder.client && **used > 0);
        others.fold((0, 0), |(count, sum), (_, used)| (count + 1, sum + used))
    }

    /// Bytes that all connections of a peer have.
    pub(crate) fn used_by_peer(&self, peer: Peer) -> usize {
        self.given().of_peer(peer)
    }

    /// Bytes that one has.
    pub(crate) fn used_by(&self, holder: Holder) -> usize {
        let given = self.given();
        given.peers.get(&holder.peer).and_then(|peer| peer.clients.get(&holder.client)).copied().unwrap_or(0)
    }

    /// Who has so much that it should make way for one that wants so many bytes: of the peer that has most, the connection that
    /// has most, if that is at least twice what the other one would have: among equals, nothing goes back and forth.
    pub(crate) fn heaviest(&self, wants: Holder, bytes: usize) -> Option<Holder> {
        let given = self.given();
        let (&peer, most) = given.peers.iter().max_by_key(|(_, peer)| peer.used)?;
        let (&client, &used) = most.clients.iter().max_by_key(|(_, used)| **used)?;
        let would_have = if peer == wants.peer {
            most.clients.get(&wants.client).copied().unwrap_or_default().saturating_add(bytes)
        } else {
            given.of_peer(wants.peer).saturating_add(bytes)
        };
        let has = if peer == wants.peer { used } else { most.used };
        (would_have.saturating_mul(2) <= has).then_some(Holder { peer, client })
    }
}

impl Lease {
    /// Makes it larger, if so many bytes are left.
    #[must_use]
    pub(crate) fn grow(&mut self, more: usize) -> bool {
        let grown = self.budget.take(self.holder, more, usize::MAX);
        self.bytes += if grown { more } else { 0 };
        grown
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Makes it smaller, if it is larger.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        let less = self.bytes.saturating_sub(bytes);
        if less > 0 {
            self.bytes -= less;
            self.budget.given().remove(self.holder, less);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(peer: u8, client: u64) -> Holder {
        Holder { peer: Peer::of(([127, 0, 0, peer], 1).into()), client }
    }

    #[test]
    fn never_more_than_there_is() {
        let (budget, one) = (Budget::new(100), holder(1, 1));
        let mut most = budget.lease(one, 60).unwrap();
        assert!(budget.lease(one, 41).is_none());
        assert!(budget.lease(one, usize::MAX).is_none());
        let rest = budget.lease(one, 39).unwrap();
        assert!(most.grow(1) && !most.grow(1));
        assert_eq!(budget.left(), 0);
        drop(rest);
        assert_eq!(budget.left(), 39);
        most.shrink_to(70);
        assert_eq!(budget.left(), 39);
        most.shrink_to(10);
        assert_eq!(budget.left(), 90);
        drop((budget.lease(one, 0), most));
        assert_eq!(budget.left(), 100);
        assert!(budget.given().peers.is_empty());
    }

    #[test]
    fn who_has_most_makes_way() {
        let budget = Budget::new(100);
        let leases = [(1, 1, 10), (1, 2, 40), (2, 3, 40), (3, 4, 10)]
            .map(|(peer, client, bytes)| budget.lease(holder(peer, client), bytes).unwrap());
        assert_eq!((budget.others_of(holder(4, 5)), budget.others_of(holder(2, 3))), ((4, 100), (3, 60)));
        assert_eq!(budget.heaviest(holder(4, 5), 25), Some(holder(1, 2)));
        // Only for one that would have much less.
        assert_eq!(budget.heaviest(holder(4, 5), 26), None);
        assert_eq!(budget.heaviest(holder(3, 4), 15), Some(holder(1, 2)));
        assert_eq!(budget.heaviest(holder(3, 4), 16), None);
        // Within a peer, connections are compared.
        assert_eq!(budget.heaviest(holder(1, 1), 10), Some(holder(1, 2)));
        assert_eq!(budget.heaviest(holder(1, 1), 11), None);
        drop(leases);
        assert_eq!(budget.heaviest(holder(4, 5), 10), None);
    }

    #[test]
    fn a_peer_may_have_a_limit() {
        let budget = Budget::new(100);
        let first = budget.lease_within(holder(1, 1), 30, 50).unwrap();
        assert!(budget.lease_within(holder(1, 2), 21, 50).is_none());
        let second = budget.lease_within(holder(1, 2), 20, 50).unwrap();
        assert_eq!((budget.used_by_peer(holder(1, 0).peer), budget.left()), (50, 50));
        assert!(
            budget.lease_within(holder(1, 3), 0, 10).is_some() && budget.lease(holder(2, 4), 50).is_some()
        );
        drop((first, second));
        assert_eq!(budget.left(), 100);
    }

    #[test]
    fn a_little_is_kept_aside() {
        let budget = Budget::with_aside(1000, 100, 10);
        let most = budget.lease(holder(1, 1), 900).unwrap();
        assert_eq!(budget.left(), 0);
        assert!(budget.lease(holder(1, 2), 1).is_none());
        assert!(budget.lease(holder(2, 3), 11).is_none());
        let little = budget.lease(holder(2, 3), 10).unwrap();
        assert!(budget.lease(holder(2, 4), 1).is_none());
        drop((most, little));
        assert_eq!(budget.left(), 900);
    }
}
