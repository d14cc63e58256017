//! Who is connected.
//!
//! Invariant: never more connections than [`Limits`] allow. When there are too many, first one goes that has neither said HELLO nor
//! proved a key, the oldest of the peers with most of those; then, of the peer with most connections, the one that has least on devices, whatever it is doing. Where no
//! peer has more than the newcomer's would have, only one that has nothing goes, or has little and is of the same peer. So a flood of
//! them, silent or busy, keeps out only clients from where it comes. A pulse, which has nothing and never comes back, goes with its session
//! alone.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::client::{Client, Dropped, Phase};
use super::limits::{LITTLE_MEMORY, Limits};
use super::peer::Peer;
use crate::link::{Key, MachineName};

/// The connections there are, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    clients: Mutex<BTreeMap<u64, Arc<Client>>>,
    changed: Condvar,
}

impl Roster {
    fn clients(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Client>>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a connection in, if need be in the place of another, which is returned.
    pub(crate) fn admit(&self, client: &Arc<Client>, limits: &Limits) -> Result<Option<Arc<Client>>, Full> {
        let mut clients = self.clients();
        let ungreeted = clients.values().filter(|client| is_unknown(client)).count();
        let mut shed = None;
        if ungreeted >= limits.ungreeted || clients.len() >= limits.clients {
            shed = take_ungreeted(&mut clients);
        }
        if clients.len() >= limits.clients {
            shed = take_least(&mut clients, client.holder().peer);
        }
        if clients.len() >= limits.clients {
            return Err(Full);
        }
        clients.insert(client.id, Arc::clone(client));
        self.changed.notify_all();
        Ok(shed)
    }

    /// A connection, if it is still there.
    pub(crate) fn get(&self, id: u64) -> Option<Arc<Client>> {
        self.clients().get(&id).cloned()
    }

    /// Takes a connection out for a newcomer of whom nothing is known yet.
    pub(crate) fn shed(&self) -> Option<Arc<Client>> {
        let mut clients = self.clients();
        take_ungreeted(&mut clients).or_else(|| take_for_unknown(&mut clients))
    }

    /// Takes a connection out that has ended.
    pub(crate) fn remove(&self, client: &Client) {
        self.clients().remove(&client.id);
        self.changed.notify_all();
    }

    pub(crate) fn len(&self) -> usize {
        self.clients().len()
    }

    /// Notes which machine a client has proved to be, unless that has so many connections already. Those that are ending do not count,
    /// and neither do pulses, of which each has one at most.
    pub(crate) fn identify(
        &self,
        client: &Client,
        key: Key,
        name: Option<MachineName>,
        most: Option<u32>,
    ) -> bool {
        let clients = self.clients();
        let others = clients.values().filter(|other| other.key() == Some(key) && counts_for_limit(other));
        let is_one_too_many = most.is_some_and(|most| others.count() >= most as usize);
        if !is_one_too_many {
            client.identify(key, name);
        }
        !is_one_too_many
    }

    /// Notes that a connection is another worker's, which was introduced to a session, unless that one's peer has so many connections already:
    /// sessions, and workers that were introduced to them. These keep no session out.
    pub(crate) fn add_to(
        &self,
        client: &Client,
        session: &Client,
        key: Option<Key>,
        most: Option<u32>,
    ) -> bool {
        let clients = self.clients();
        let peer = session.holder().peer;
        let others = clients.values().filter(|other| other.holder().peer == peer && counts_for_limit(other));
        // The one itself may be where the session is.
        let others = others.filter(|other| other.id != client.id).count();
        let is_one_too_many = most.is_some_and(|most| others >= most as usize);
        if !is_one_too_many {
            client.belong_to(session, key);
        }
        !is_one_too_many
    }

    /// How many connections something is done for now.
    pub(crate) fn busy(&self) -> usize {
        self.clients().values().filter(|client| client.is_busy()).count()
    }

    /// All connections.
    pub(crate) fn all(&self) -> Vec<Arc<Client>> {
        self.clients().values().cloned().collect()
    }

    /// Waits until there is a connection, or for some time.
    pub(crate) fn wait_for_some(&self, limit: Duration) {
        let clients = self.clients();
        drop(self.changed.wait_timeout_while(clients, limit, |clients| clients.is_empty()));
    }

    /// Waits until there is no connection, or for some time, and says whether there is none.
    pub(crate) fn wait_for_none(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut clients = self.clients();
        while !clients.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.changed.wait_timeout(clients, left);
            clients = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

/// Whether a connection is one of those that a machine may have so many of.
fn counts_for_limit(client: &Client) -> bool {
    !client.is_gone() && !client.is(Phase::Beating)
}

/// There are too many connections.
#[derive(Debug)]
pub(crate) struct Full;

/// How many connections each peer has, of some.
fn counts<'a>(clients: impl Iterator<Item = &'a Arc<Client>>) -> BTreeMap<Peer, usize> {
    let mut counts = BTreeMap::new();
    for client in clients {
        *counts.entry(client.holder().peer).or_default() += 1;
    }
    counts
}

/// Takes a connection out for a newcomer: of the peer with most connections, if those are more than the newcomer's peer would have;
/// else one that has nothing, or little and is of the same peer. The one goes that has least, and of those the one that said something
/// longest ago.
fn take_least(clients: &mut BTreeMap<u64, Arc<Client>>, newcomer: Peer) -> Option<Arc<Client>> {
    let counts = counts(clients.values());
    let own = counts.get(&newcomer).copied().unwrap_or(0);
    let rank = |client: &Arc<Client>| {
        let (peer, bytes) = (client.holder().peer, client.device_bytes());
        let count = counts.get(&peer).copied().unwrap_or(0);
        let has_more = count > own + 1;
        let may_go = has_more || bytes == 0 || (peer == newcomer && bytes <= LITTLE_MEMORY);
        may_go.then_some((!has_more, Reverse(count), bytes, client.last_words()))
    };
    let ranked = sessions(clients).filter_map(|client| Some((rank(client)?, client.id)));
    let (_, id) = ranked.min()?;
    drop_from(clients, id)
}

/// Takes a connection out for a newcomer of whom nothing is known yet, because there was no descriptor for it: one that has nothing, of
/// a peer with many.
fn take_for_unknown(clients: &mut BTreeMap<u64, Arc<Client>>) -> Option<Arc<Client>> {
    /// Descriptors may be short for other reasons.
    const MANY: usize = 16;
    let counts = counts(clients.values());
    let (&most, _) = counts.iter().max_by_key(|(_, count)| **count).filter(|(_, count)| **count > MANY)?;
    let nothing =
        sessions(clients).filter(|client| client.holder().peer == most && client.device_bytes() == 0);
    let id = nothing.min_by_key(|client| client.last_words())?.id;
    drop_from(clients, id)
}

/// All connections but pulses.
fn sessions(clients: &BTreeMap<u64, Arc<Client>>) -> impl Iterator<Item = &Arc<Client>> {
    clients.values().filter(|client| !client.is(Phase::Beating))
}

/// Whether a connection has neither said HELLO nor proved a key. One with a key that is known has come through all that strangers can
/// flood.
fn is_unknown(client: &Client) -> bool {
    client.is(Phase::Greeting) && client.key().is_none()
}

/// Takes a connection out that has neither said HELLO nor proved a key: the oldest of the peers with most of them.
fn take_ungreeted(clients: &mut BTreeMap<u64, Arc<Client>>) -> Option<Arc<Client>> {
    let ungreeted = || clients.values().filter(|client| is_unknown(client));
    let counts = counts(ungreeted());
    let count = |client: &Client| counts.get(&client.holder().peer).copied().unwrap_or(0);
    let id = ungreeted().max_by_key(|client| (count(client), Reverse(client.id)))?.id;
    drop_from(clients, id)
}

fn drop_from(clients: &mut BTreeMap<u64, Arc<Client>>, id: u64) -> Option<Arc<Client>> {
    let client = clients.remove(&id)?;
    client.drop_for(Dropped::TooMany);
    Some(client)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of several that come at once, as many are taken as there is room for, and those that are ending take none.
    #[test]
    fn a_machine_gets_all_its_connections_and_no_more() {
        let (roster, key) = (Roster::default(), Key::from_bytes([7; 32]));
        let clients: Vec<_> = (1..20)
            .map(|id| Arc::new(Client::new(id, ([10, 0, 0, 1], 1).into(), None, Duration::from_secs(10))))
            .collect();
        for client in &clients {
            roster.admit(client, &Limits::default()).unwrap();
        }
        let identify = |client: &Arc<Client>| usize::from(roster.identify(client, key, None, Some(3)));
        let identify = &identify;
        let taken = std::thread::scope(|scope| {
            let threads: Vec<_> =
                clients[..18].iter().map(|client| scope.spawn(move || identify(client))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
        });
        assert_eq!(taken, 3);
        clients.iter().find(|client| client.key().is_some()).unwrap().leave();
        assert!(roster.identify(&clients[18], key, None, Some(3)));
    }

    /// Whichever connection makes room for a newcomer, it is no pulse: its session would be without, and would never know.
    #[test]
    fn a_pulse_goes_with_its_session_alone() {
        let (roster, limits) = (Roster::default(), Limits { clients: 20, ..Limits::default() });
        let admit = |id: u64, host, phase, bytes| {
            let client = Client::new(id, ([10, 0, 0, host], 1).into(), None, Duration::from_secs(10));
            client.enter(phase, None);
            client.hold(bytes);
            let shed = roster.admit(&Arc::new(client), &limits);
            shed.map(|shed| shed.map(|client| client.id))
        };
        for id in (0..20).step_by(2) {
            admit(id, 1, Phase::Beating, 0).unwrap();
            admit(id + 1, 1, Phase::Idle, 2 * LITTLE_MEMORY + id as usize).unwrap();
        }
        assert!(admit(20, 1, Phase::Greeting, 0).is_err(), "its own sessions have much");
        assert_eq!(admit(21, 2, Phase::Idle, 0).unwrap(), Some(1));
        assert!(roster.get(0).is_some_and(|pulse| pulse.dropped().is_none()));
        assert!(roster.shed().is_none(), "for want of a descriptor");
    }

    /// What a worker brings that was introduced to a session belongs to the session's peer, wherever it comes from: within what that may have,
    /// and where places are short.
    #[test]
    fn workers_that_were_introduced_count_for_the_peer_of_their_session() {
        let (roster, limits) = (Roster::default(), Limits { clients: 20, ..Limits::default() });
        let admit = |id: u64, host| {
            let client =
                Arc::new(Client::new(id, ([10, 0, 0, host], 1).into(), None, Duration::from_secs(10)));
            roster.admit(&client, &limits).unwrap();
            client.enter(Phase::Idle, None);
            client
        };
        let (desk, den) = (Key::from_bytes([1; 32]), Key::from_bytes([2; 32]));
        let session = admit(1, 1);
        assert!(roster.identify(&session, desk, None, Some(3)));
        let workers: Vec<_> = (2..6).map(|id| admit(id, 2)).collect();
        let added = |worker: &Client| roster.add_to(worker, &session, Some(den), Some(3));
        assert_eq!(
            workers.iter().map(|worker| added(worker)).collect::<Vec<_>>(),
            [true, true, false, false]
        );
        assert_eq!(workers[0].holder().peer, session.holder().peer);
        assert_eq!((workers[0].key(), workers[0].introduced_key()), (None, Some(den)));
        // They keep no session out, but are among those that make way.
        assert!(roster.identify(&admit(6, 1), desk, None, Some(3)));
        let others: Vec<_> = (7..21).map(|id| admit(id, id as u8)).collect();
        let shed = roster.admit(&admit_one(21, 99), &limits).unwrap().unwrap();
        assert_eq!(shed.holder().peer, session.holder().peer);
        drop(others);
    }

    fn admit_one(id: u64, host: u8) -> Arc<Client> {
        Arc::new(Client::new(id, ([10, 0, 0, host], 1).into(), None, Duration::from_secs(10)))
    }

    /// As long as there are fewer places with strangers than places for them, a flood pushes out itself alone.
    #[test]
    fn a_flood_from_few_places_pushes_out_itself() {
        let (roster, limits) = (Roster::default(), Limits { ungreeted: 8, clients: 16, ..Limits::default() });
        let stranger = |id: u64, host| {
            Arc::new(Client::new(id, ([10, 0, 0, host], 1).into(), None, Duration::from_secs(10)))
        };
        let newcomer = stranger(100, 200);
        for id in 0..500_u64 {
            let client = if id == 100 { Arc::clone(&newcomer) } else { stranger(id, (id % 3) as u8) };
            roster.admit(&client, &limits).unwrap();
        }
        assert!(newcomer.dropped().is_none() && roster.get(100).is_some());
    }

    /// However many places strangers come from, they push out each other, and no machine that has proved its key.
    #[test]
    fn strangers_push_out_strangers() {
        let (roster, limits) = (Roster::default(), Limits { ungreeted: 4, clients: 8, ..Limits::default() });
        let stranger = |id: u8| {
            let peer = ([10, 0, 0, id], 1).into();
            Arc::new(Client::new(id.into(), peer, None, Duration::from_secs(10)))
        };
        let known = stranger(100);
        roster.admit(&known, &limits).unwrap();
        known.identify(Key::from_bytes([7; 32]), None);
        for id in 101..150 {
            let shed = roster.admit(&stranger(id), &limits).unwrap();
            // The oldest of many who have one each.
            let oldest = (id >= 105).then_some(u64::from(id) - 4);
            assert_eq!(shed.map(|client| client.id), oldest, "{id}");
        }
        assert!(known.dropped().is_none() && roster.get(known.id).is_some());
    }
}
