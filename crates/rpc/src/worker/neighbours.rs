//! The other workers that one session has to do with: those it expects bytes from, and those it pushes bytes to.
//!
//! Owned by the session, and ended by its end. A push that cannot be delivered is no refusal: who waits for it learns that it does not
//! come, so that the loss of one worker does not cost the client another that only sends.

use std::collections::HashMap;

use super::client::{Client, Phase};
use super::courier::{Courier, meet};
use super::introductions::Announcement;
use super::limits::MAX_INTRODUCTIONS;
use super::mailbox::Delivery;
use super::refusal::Refusal;
use super::server::WorkerState;
use super::space::BufferRange;
use crate::link::{Key, Secret};
use crate::wire::{Expect, MAX_DELIVERY_BYTES, Meet, NotDelivered};

/// The other workers of a session, by the number that its client has given each introduction.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    expected: HashMap<u32, Announcement>,
    /// None once it is lost.
    met: HashMap<u32, Option<Courier>>,
    /// How many introductions there were, those that failed included.
    count: usize,
}

impl Neighbours {
    fn is_one_more(&mut self) -> bool {
        self.count += 1;
        self.count <= MAX_INTRODUCTIONS
    }

    /// EXPECT: says whether the other worker will be let in.
    pub(crate) fn expect(&mut self, shared: &WorkerState, client: &Client, expect: &Expect) -> bool {
        // Where the client is known by a key, so are its workers; where it is not, none is.
        let has_keys = expect.key.is_some();
        let may = has_keys == client.key().is_some() && (!has_keys || shared.trust.is_some());
        if !self.is_one_more() || !may || self.expected.contains_key(&expect.number) {
            return false;
        }
        let (secret, key) = (Secret::from_bytes(expect.secret), expect.key.map(Key::from_bytes));
        let announced = shared.introductions.announce(secret, key, client.id);
        announced.is_some_and(|announced| self.expected.insert(expect.number, announced).is_none())
    }

    /// MEET: says whether the other worker has let this one in.
    pub(crate) fn meet(&mut self, shared: &WorkerState, client: &Client, wanted: &Meet) -> bool {
        if !self.is_one_more() || self.met.contains_key(&wanted.number) {
            return false;
        }
        client.enter(Phase::Waiting, None);
        let courier = meet(shared, client, wanted);
        courier.is_some_and(|courier| self.met.insert(wanted.number, Some(courier)).is_none())
    }

    /// PUSH.
    pub(crate) fn push(
        &mut self,
        shared: &WorkerState,
        client: &Client,
        (number, ticket): (u32, u64),
        range: &BufferRange,
    ) -> Result<(), Refusal> {
        check_length(range.len)?;
        let met = self.met.get_mut(&number).ok_or(Refusal::Introduction { number })?;
        let go_on = || !client.is_gone() && !client.has_lost(number);
        let sent = met.as_mut().map(|courier| courier.deliver(shared, client, ticket, range, go_on));
        if let Some(Err(_)) = sent {
            // Its end tells the other worker that nothing more comes.
            *met = None;
        }
        Ok(())
    }

    /// Ends every introduction, so that others neither wait for what does not come nor send what is not wanted. They still count.
    pub(crate) fn part(&mut self) {
        self.expected.clear();
        self.met.clear();
    }

    /// The worker of an introduction: its connection here, if it has come, and its key, if it has one.
    pub(crate) fn expected(&self, number: u32) -> (Option<&Client>, Option<Key>) {
        self.expected.get(&number).map_or((None, None), Announcement::caller)
    }

    /// AWAIT: what has come. Waits for it, but not longer than a client may make a worker wait.
    pub(crate) fn take(
        &self,
        shared: &WorkerState,
        client: &Client,
        (number, ticket): (u32, u64),
        bytes: usize,
    ) -> Result<Delivery, Refusal> {
        check_length(bytes)?;
        let expected = self.expected.get(&number).ok_or(Refusal::Introduction { number })?;
        let gives_up = || client.is_gone() || client.has_lost(number);
        let taken = expected
            .mailbox()
            .and_then(|mailbox| mailbox.take(ticket, bytes, shared.limits.delivery, gives_up));
        taken.map_err(|why| {
            let is_lost = why == NotDelivered::Late && client.has_lost(number);
            Refusal::NotDelivered { number, why: if is_lost { NotDelivered::Lost } else { why } }
        })
    }
}

fn check_length(bytes: usize) -> Result<(), Refusal> {
    match bytes {
        1..=MAX_DELIVERY_BYTES => Ok(()),
        _ => {
            Err(Refusal::Limit { what: "bytes pushed at a time, or none", limit: MAX_DELIVERY_BYTES as u64 })
        }
    }
}
