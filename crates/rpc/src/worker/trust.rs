//! Whom a worker trusts: machines that it knows by their keys, and those that it meets.
//!
//! Invariant: what the file of machines says holds at once for new connections, and within a moment for those that exist.

use std::io;
use std::sync::Arc;

use super::client::{Client, Dropped};
use super::counters::add;
use super::event::{Event, PairingNews};
use super::introductions::Introductions;
use super::server::WorkerState;
use crate::link::pairing::{HostAction, HostEvent};
use crate::link::tls::Entrance;
use crate::link::{Book, Identity, Invitations, Key, Machine, MachineName, Machines};

/// Whether a machine may use this one.
fn may_use(known: &Machines, key: Key) -> bool {
    known.by_key(key).is_some_and(|machine| machine.may_use_this)
}

/// Who a worker is, and whom it knows.
#[derive(Debug)]
pub struct Trust {
    identity: Identity,
    book: Arc<Book>,
    invitations: Arc<Invitations>,
    /// Other workers, which may come though they are not known.
    introductions: Arc<Introductions>,
    entrance: Entrance,
}

impl Trust {
    /// A machine that is called this and knows those in a book.
    pub fn new(identity: &Identity, book: Book, name: MachineName) -> io::Result<Trust> {
        let (own, book) = (identity.key(), Arc::new(book));
        let invitations = Arc::new(Invitations::new(own, name));
        let introductions = Arc::<Introductions>::default();
        let (known, shown) = (Arc::clone(&book), Arc::clone(&invitations));
        let expecting = Arc::clone(&introductions);
        // Who has this machine's own key should be this machine, which is for the caller to see to.
        let is_known = move |key| key == own || known.look_now().is_some_and(|known| may_use(&known, key));
        // Strangers may talk only while a line is open.
        let may_join = move |key| key == own || shown.is_open();
        let is_expected = move |key| expecting.expects(key);
        let entrance = Entrance::new(identity, Arc::new(is_known), Arc::new(may_join), Arc::new(is_expected));
        let entrance = entrance.map_err(io::Error::other)?;
        Ok(Trust { identity: identity.clone(), book, invitations, introductions, entrance })
    }

    /// Whether another machine may use this one.
    pub fn has_guests(&self) -> bool {
        self.book.look().iter().any(|machine| machine.may_use_this)
    }

    /// Join lines.
    pub fn invitations(&self) -> &Invitations {
        &self.invitations
    }

    pub(crate) fn key(&self) -> Key {
        self.identity.key()
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(crate) fn introductions(&self) -> &Arc<Introductions> {
        &self.introductions
    }

    pub(crate) fn book(&self) -> &Book {
        &self.book
    }

    pub(crate) fn entrance(&self) -> &Entrance {
        &self.entrance
    }

    /// What is known of a machine that may use this one.
    pub(crate) fn machine(&self, key: Key) -> Option<Machine> {
        self.book.look().by_key(key).filter(|machine| machine.may_use_this).cloned()
    }

    /// Whether a machine may use this one, or is this one.
    pub(crate) fn is_let_in(&self, key: Key) -> bool {
        key == self.key() || may_use(&self.book.look(), key)
    }

    /// Whether a machine was revoked.
    pub(crate) fn is_revoked(&self, key: Key) -> bool {
        self.book.look().by_key(key).is_some_and(|machine| machine.revoked)
    }

    /// Ends the connections of machines that are not known any more, and says what is to be said.
    pub(crate) fn watch(&self, shared: &WorkerState, clients: &[Arc<Client>]) {
        let known = self.book.look();
        let is_known = |key| key == self.key() || may_use(&known, key);
        if let Some(error) = self.book.take_error() {
            shared.report(&Event::Pairing { news: PairingNews::Machines { reason: error.to_string() } });
        }
        // A worker that was introduced need not be known, but it may be known as one that is not trusted any more.
        let is_revoked = |key| known.by_key(key).is_some_and(|machine: &Machine| machine.revoked);
        let has_to_go = |client: &&Arc<Client>| {
            client.key().is_some_and(|key| !is_known(key)) || client.introduced_key().is_some_and(is_revoked)
        };
        for client in clients.iter().filter(has_to_go) {
            if client.dropped().is_none() {
                add(&shared.counters.dropped, 1);
            }
            client.drop_for(Dropped::Revoked);
        }
        for action in self.invitations.handle(HostEvent::Tick) {
            if let HostAction::Expired(lines) = action {
                shared.report(&Event::Pairing { news: PairingNews::Expired { lines } });
            }
        }
    }
}
