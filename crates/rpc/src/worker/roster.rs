//! Who is connected.
//!
//! Invariant: never more connections than [`Limits`] allow, and of those that have not said HELLO, the oldest goes first
//! when there are too many: a flood of them cannot keep a real client out.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::client::{Client, Dropped, Phase};
use super::limits::Limits;

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

    /// Takes a connection in, if need be in the place of an older one that has not said HELLO, which is returned.
    pub(crate) fn admit(&self, client: &Arc<Client>, limits: &Limits) -> Result<Option<Arc<Client>>, Full> {
        let mut clients = self.clients();
        let ungreeted = clients.values().filter(|client| client.is(Phase::Greeting)).count();
        let mut shed = None;
        if ungreeted >= limits.ungreeted || clients.len() >= limits.clients {
            shed = take_oldest_ungreeted(&mut clients);
        }
        if clients.len() >= limits.clients {
            return Err(Full);
        }
        clients.insert(client.id, Arc::clone(client));
        self.changed.notify_all();
        Ok(shed)
    }

    /// Takes the oldest connection out that has not said HELLO.
    pub(crate) fn shed(&self) -> Option<Arc<Client>> {
        take_oldest_ungreeted(&mut self.clients())
    }

    /// Takes a connection out that has ended.
    pub(crate) fn remove(&self, client: &Client) {
        self.clients().remove(&client.id);
        self.changed.notify_all();
    }

    pub(crate) fn len(&self) -> usize {
        self.clients().len()
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

/// There are too many connections.
#[derive(Debug)]
pub(crate) struct Full;

fn take_oldest_ungreeted(clients: &mut BTreeMap<u64, Arc<Client>>) -> Option<Arc<Client>> {
    let id = clients.values().find(|client| client.is(Phase::Greeting))?.id;
    let client = clients.remove(&id)?;
    client.drop_for(Dropped::TooMany);
    Some(client)
}
