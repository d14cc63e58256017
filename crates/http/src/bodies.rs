//! Room for the bodies of requests, while they are read and answered: for their text, and for what they are as JSON. Responses that are large
//! and whole have the same room, until they are sent.
//!
//! Invariant: what all bodies hold is bounded, and who sends large ones leaves room to others: small bodies have room of their own, and
//! where clients have keys, none has more than a quarter of what large ones have.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::error::{ApiError, Kind};
use crate::limits::{MAX_LARGE_BODIES_BYTES, MAX_SMALL_BODIES_BYTES, SMALL_BODY_BYTES};
use crate::service::Client;

/// What all bodies hold.
pub(crate) struct Bodies {
    held: Mutex<Held>,
    /// What the large bodies of one client may hold.
    share: usize,
}

#[derive(Default)]
struct Held {
    small: usize,
    large: usize,
    /// Large ones, by client.
    by_client: BTreeMap<Client, usize>,
}

/// What one body holds, until this is dropped.
pub(crate) struct Room {
    bodies: Arc<Bodies>,
    client: Client,
    is_small: bool,
    /// Of the room for small bodies, and of that for large ones; changed under the lock of both.
    small: AtomicUsize,
    large: AtomicUsize,
}

impl Bodies {
    /// Clients that cannot be told apart share all of it.
    pub(crate) fn new(has_keys: bool) -> Arc<Bodies> {
        let share = if has_keys { MAX_LARGE_BODIES_BYTES / 4 } else { MAX_LARGE_BODIES_BYTES };
        Arc::new(Bodies { held: Mutex::default(), share })
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        // Nothing is left half done by code that could panic.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of a response, which count until the last copy of them is gone. Small ones do not count, because a connection has one at a time;
    /// and one that is larger than all that a client may have counts as that, or it could never be sent.
    pub(crate) fn counted(self: &Arc<Bodies>, client: Client, bytes: Vec<u8>) -> Result<Bytes, ApiError> {
        if bytes.len() <= SMALL_BODY_BYTES {
            return Ok(bytes.into());
        }
        let room = self.room(client, false);
        room.grow(bytes.len().min(self.share))?;
        Ok(Bytes::from_owner(Counted { bytes, _room: room }))
    }

    /// Room for a body of which nothing has come yet; a small one is known to stay small.
    pub(crate) fn room(self: &Arc<Bodies>, client: Client, is_small: bool) -> Room {
        let (small, large) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Room { bodies: Arc::clone(self), client, is_small, small, large }
    }
}

/// Bytes that are sent, and their room.
struct Counted {
    bytes: Vec<u8>,
    _room: Room,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Room {
    /// So many bytes of text more.
    pub(crate) fn grow(&self, bytes: usize) -> Result<(), ApiError> {
        self.take(bytes, self.is_small)
    }

    /// So many bytes for what the text is as JSON. A small text may be much, and counts as large then.
    pub(crate) fn grow_by_values(&self, bytes: usize) -> Result<(), ApiError> {
        self.take(bytes, self.is_small && bytes <= SMALL_BODY_BYTES)
    }

    fn take(&self, bytes: usize, is_small: bool) -> Result<(), ApiError> {
        let busy = |message| Err(ApiError { retry_after: Some(1), ..ApiError::new(Kind::Busy, message) });
        let mut held = self.bodies.lock();
        if is_small {
            if held.small + bytes > MAX_SMALL_BODIES_BYTES {
                return busy("too many requests at once; try again soon");
            }
            held.small += bytes;
            self.small.fetch_add(bytes, Ordering::Relaxed);
            return Ok(());
        }
        if held.large + bytes > MAX_LARGE_BODIES_BYTES {
            return busy("too many large requests at once; try again soon");
        }
        let own = held.by_client.get(&self.client).copied().unwrap_or_default();
        if own + bytes > self.bodies.share {
            return busy("too many large requests of one key at once; try again soon");
        }
        held.by_client.insert(self.client, own + bytes);
        held.large += bytes;
        self.large.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut held = self.bodies.lock();
        held.small -= *self.small.get_mut();
        let large = *self.large.get_mut();
        held.large -= large;
        if let Some(own) = held.by_client.get_mut(&self.client) {
            *own -= large;
            if *own == 0 {
                held.by_client.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::MAX_BODY_BYTES;

    /// Rooms of large bodies, until there is no more.
    fn all(bodies: &Arc<Bodies>, client: u64) -> Vec<Room> {
        let room = || {
            let room = bodies.room(Client(client), false);
            room.grow(MAX_BODY_BYTES).is_ok().then_some(room)
        };
        std::iter::from_fn(room).collect()
    }

    #[test]
    fn one_client_leaves_room_to_others() {
        let bodies = Bodies::new(true);
        let most = MAX_LARGE_BODIES_BYTES / MAX_BODY_BYTES;
        let held: Vec<Vec<Room>> = (0..6).map(|client| all(&bodies, client)).collect();
        let counts: Vec<usize> = held.iter().map(Vec::len).collect();
        assert_eq!(counts, [most / 4, most / 4, most / 4, most / 4, 0, 0]);
        // What is small never waits for what is large.
        assert!(bodies.room(Client(0), true).grow(1).is_ok());
        drop(held);
        assert_eq!(all(&bodies, 5).len(), most / 4);
        let held = bodies.lock();
        assert!(held.large == 0 && held.small == 0 && held.by_client.is_empty());
    }

    /// What is small as text and large as JSON is the client's own concern: it takes none of the room for small bodies.
    #[test]
    fn small_bodies_of_many_values_count_as_large() {
        let bodies = Bodies::new(true);
        let values = 32 * SMALL_BODY_BYTES;
        let room = |client: u64| {
            let room = bodies.room(Client(client), true);
            room.grow(SMALL_BODY_BYTES).and_then(|()| room.grow_by_values(values)).is_ok().then_some(room)
        };
        let held: Vec<Room> = std::iter::from_fn(|| room(0)).collect();
        assert_eq!(held.len(), MAX_LARGE_BODIES_BYTES / 4 / values);
        assert_eq!(bodies.lock().small, held.len() * SMALL_BODY_BYTES);
        assert!(room(1).is_some(), "another client has its own");
        // What is small in both ways fits once for each connection.
        drop(held);
        let all: Vec<Room> = (0..crate::limits::MAX_CONNECTIONS)
            .map(|_| {
                let room = bodies.room(Client(0), true);
                room.grow(SMALL_BODY_BYTES).and_then(|()| room.grow_by_values(SMALL_BODY_BYTES)).unwrap();
                room
            })
            .collect();
        drop(all);
        let held = bodies.lock();
        assert!(held.large == 0 && held.small == 0 && held.by_client.is_empty());
    }

    /// A client that does not read what it has asked for gets no more.
    #[test]
    fn responses_count_until_they_are_sent() {
        let bodies = Bodies::new(true);
        let one = MAX_LARGE_BODIES_BYTES / 8;
        let make = |client, len| bodies.counted(Client(client), vec![7; len]);
        let (first, second) = (make(0, one).unwrap(), make(0, one).unwrap());
        assert_eq!(make(0, one).unwrap_err().kind, Kind::Busy);
        assert!(make(0, SMALL_BODY_BYTES).is_ok() && make(1, one).is_ok());
        // What is left of it to be sent is as much as all of it.
        let rest = first.slice(one - 1..);
        drop(first);
        assert_eq!(make(0, one).unwrap_err().kind, Kind::Busy);
        drop((rest, second));
        assert!(make(0, 4 * one).is_ok(), "alone, whatever its length");
        assert_eq!(bodies.lock().large, 0);
    }

    #[test]
    fn without_keys_all_share_it() {
        assert_eq!(all(&Bodies::new(false), 0).len(), MAX_LARGE_BODIES_BYTES / MAX_BODY_BYTES);
    }
}
