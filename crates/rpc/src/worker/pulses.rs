//! Which sessions expect a pulse, by a number that only their clients know.
//!
//! A pulse belongs to one session and ends with it: its [`ExpectedPulse`] is dropped, and the connection that came is ended. Invariants: a
//! session has one pulse at most, ever; a pulse comes from where its session's client is, with the same key or without one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::client::Client;
use super::peer::Peer;
use crate::link::{Key, Secret};

/// All that are expected or have come.
#[derive(Debug, Default)]
pub(crate) struct Pulses {
    expected: Mutex<HashMap<[u8; 16], Expected>>,
}

#[derive(Debug)]
struct Expected {
    session: Arc<Client>,
    /// The pulse's own connection, once it has come.
    caller: Option<Arc<Client>>,
}

impl Pulses {
    fn expected(&self) -> MutexGuard<'_, HashMap<[u8; 16], Expected>> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether none is expected.
    pub(crate) fn is_empty(&self) -> bool {
        self.expected().is_empty()
    }

    /// Expects the pulse of a session; `None` where the system has no random numbers.
    pub(crate) fn expect(self: &Arc<Self>, session: Arc<Client>) -> Option<ExpectedPulse> {
        let token = Secret::make()?.bytes();
        self.expected().insert(token, Expected { session, caller: None });
        Some(ExpectedPulse { pulses: Arc::clone(self), token })
    }

    /// Lets a connection be the pulse that a token is for, and gives the session's; `None` if it may not be.
    pub(crate) fn let_in(
        &self,
        token: &[u8; 16],
        key: Option<Key>,
        caller: Arc<Client>,
    ) -> Option<Arc<Client>> {
        let mut all = self.expected();
        let expected = all.get_mut(token).filter(|expected| expected.caller.is_none())?;
        let session = &expected.session;
        let is_same =
            key == session.key() && (key.is_some() || Peer::of(caller.peer) == Peer::of(session.peer));
        if !is_same {
            return None;
        }
        expected.caller = Some(caller);
        Some(Arc::clone(session))
    }
}

/// A pulse that may come, or has come, for as long as this exists.
#[derive(Debug)]
pub(crate) struct ExpectedPulse {
    pulses: Arc<Pulses>,
    token: [u8; 16],
}

impl ExpectedPulse {
    /// What it comes by.
    pub(crate) fn token(&self) -> [u8; 16] {
        self.token
    }
}

impl Drop for ExpectedPulse {
    fn drop(&mut self) {
        let expected = self.pulses.expected().remove(&self.token);
        if let Some(caller) = expected.and_then(|expected| expected.caller) {
            caller.hang_up();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn client(id: u64, host: u8, key: Option<Key>) -> Arc<Client> {
        let client = Client::new(id, ([10, 0, 0, host], 1).into(), None, Duration::from_secs(1));
        key.into_iter().for_each(|key| client.identify(key, None));
        Arc::new(client)
    }

    /// The one who comes must be where the session's client is, or have its key; and none comes a second time, or after the session.
    #[test]
    fn a_pulse_is_its_sessions_and_comes_once() {
        let (pulses, key) = (Arc::<Pulses>::default(), Key::from_bytes([7; 32]));
        for own in [None, Some(key)] {
            assert!(pulses.is_empty());
            let expected = pulses.expect(client(1, 1, own)).unwrap();
            let other = pulses.expect(client(2, 1, own)).unwrap();
            assert_ne!(expected.token(), other.token());
            let come = |token: [u8; 16], host: u8, key: Option<Key>| {
                pulses.let_in(&token, key, client(3, host, None)).map(|session| session.id)
            };
            assert_eq!(come([0; 16], 1, own), None);
            assert_eq!(come(expected.token(), 1, Some(Key::from_bytes([8; 32]))), None);
            assert_eq!(come(expected.token(), 1, if own.is_some() { None } else { Some(key) }), None);
            // A machine that has proved its key may be anywhere.
            assert_eq!(come(expected.token(), 2, own), own.map(|_| 1));
            assert_eq!(come(expected.token(), 1, own), if own.is_some() { None } else { Some(1) });
            assert_eq!(come(expected.token(), 1, own), None);
            let token = other.token();
            drop(other);
            assert_eq!(come(token, 1, own), None);
        }
    }
}
