//! Other workers that sessions of this one expect, by what they have to prove.
//!
//! An introduction belongs to the session that announced it and ends with it: its [`Announcement`] is dropped, the one who came by it is
//! disconnected, and what it has sent is thrown away. Invariants: one comes by an introduction, once; none is let in by one that has ended.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::client::Client;
use super::mailbox::Mailbox;
use crate::link::introduction::IntroductionId;
use crate::link::{Key, Secret};
use crate::wire::NotDelivered;

/// Everyone who is expected.
#[derive(Debug, Default)]
pub(crate) struct Introductions {
    expected: Mutex<HashMap<IntroductionId, Arc<Expected>>>,
}

/// A worker that is expected, or has come.
#[derive(Debug)]
pub(crate) struct Expected {
    secret: Secret,
    /// Who it must be; none where keys are not known.
    key: Option<Key>,
    /// Number of the connection whose session has announced it.
    session: u64,
    mailbox: Mailbox,
    /// Its connection, once it has come.
    caller: OnceLock<Arc<Client>>,
}

impl Introductions {
    fn expected(&self) -> MutexGuard<'_, HashMap<IntroductionId, Arc<Expected>>> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no one is expected.
    pub(crate) fn is_empty(&self) -> bool {
        self.expected().is_empty()
    }

    /// Whether a machine with a key may come at all.
    pub(crate) fn expects(&self, key: Key) -> bool {
        self.expected().values().any(|expected| expected.key == Some(key))
    }

    /// Who is expected by an introduction.
    pub(crate) fn find(&self, id: &IntroductionId) -> Option<Arc<Expected>> {
        self.expected().get(id).cloned()
    }

    /// Lets in the one who has come by an introduction; `false` if another has, or if the introduction has ended meanwhile.
    pub(crate) fn let_in(&self, id: &IntroductionId, by: &Arc<Expected>, caller: Arc<Client>) -> bool {
        let all = self.expected();
        // Under the lock under which it ends, so that its end finds the one who has come.
        all.get(id).is_some_and(|expected| Arc::ptr_eq(expected, by)) && by.caller.set(caller).is_ok()
    }

    /// Expects another worker for the session of a connection; `None` if there is such an introduction already.
    pub(crate) fn announce(
        self: &Arc<Self>,
        secret: Secret,
        key: Option<Key>,
        session: u64,
    ) -> Option<Announcement> {
        use std::collections::hash_map::Entry;
        let id = IntroductionId::of(&secret);
        let (mailbox, caller) = (Mailbox::default(), OnceLock::new());
        let expected = Arc::new(Expected { secret, key, session, mailbox, caller });
        match self.expected().entry(id) {
            Entry::Occupied(_) => return None,
            Entry::Vacant(place) => place.insert(Arc::clone(&expected)),
        };
        Some(Announcement { introductions: Arc::clone(self), id, expected })
    }
}

impl Expected {
    /// What a caller has to know.
    pub(crate) fn secret(&self) -> &Secret {
        &self.secret
    }

    /// Whether a caller with this key, or without, may be the one.
    pub(crate) fn is(&self, key: Option<Key>) -> bool {
        self.key == key
    }

    /// Number of the connection that waits for what comes.
    pub(crate) fn session(&self) -> u64 {
        self.session
    }

    /// Where to put what comes.
    pub(crate) fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }
}

/// A worker that is expected for as long as this exists.
#[derive(Debug)]
pub(crate) struct Announcement {
    introductions: Arc<Introductions>,
    id: IntroductionId,
    expected: Arc<Expected>,
}

impl Announcement {
    /// The connection of the one who came, if one did, and the key that it has to have proved.
    pub(crate) fn caller(&self) -> (Option<&Client>, Option<Key>) {
        (self.expected.caller.get().map(Arc::as_ref), self.expected.key)
    }

    /// What the one who came has sent; an error if none has come.
    pub(crate) fn mailbox(&self) -> Result<&Mailbox, NotDelivered> {
        self.expected.caller.get().map(|_| &self.expected.mailbox).ok_or(NotDelivered::Lost)
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        let caller = {
            let mut all = self.introductions.expected();
            all.remove(&self.id);
            self.expected.caller.get().cloned()
        };
        self.expected.mailbox.abandon();
        if let Some(caller) = caller {
            caller.hang_up();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_introduction_is_good_for_one_and_ends_with_its_session() {
        let introductions = Arc::<Introductions>::default();
        let (secret, key) = (Secret::from_bytes([1; 16]), Key::from_bytes([2; 32]));
        assert!(introductions.is_empty());
        let announced = introductions.announce(secret.clone(), Some(key), 7).unwrap();
        assert!(introductions.announce(secret.clone(), None, 8).is_none());
        assert!(introductions.expects(key) && !introductions.expects(Key::from_bytes([3; 32])));
        let id = IntroductionId::of(&secret);
        let expected = introductions.find(&id).unwrap();
        assert!(expected.is(Some(key)) && !expected.is(None));
        assert_eq!(announced.mailbox().unwrap_err(), NotDelivered::Lost);
        let caller = |id| Arc::new(Client::new(id, ([127, 0, 0, 1], 1).into(), None, Duration::from_secs(1)));
        let comes = |number| introductions.let_in(&id, &expected, caller(number));
        assert!(comes(1) && !comes(2));
        assert!(announced.mailbox().is_ok());
        drop(announced);
        assert!(!introductions.expects(key) && introductions.is_empty());
        assert!(introductions.find(&IntroductionId::of(&secret)).is_none());
        assert!(!expected.mailbox().wait_for_room(1, || false));
        // One that was found just before, or that has ended and was announced again.
        let ended = introductions.announce(secret.clone(), None, 7).unwrap();
        let found = introductions.find(&id).unwrap();
        drop(ended);
        assert!(!introductions.let_in(&id, &found, caller(3)));
        let _again = introductions.announce(secret.clone(), None, 7).unwrap();
        assert!(!introductions.let_in(&id, &found, caller(3)));
    }
}
