//! The connection of another worker that was introduced: it proves that it knows the secret, and then what it sends is put where its
//! session waits for it. It can do nothing else.
//!
//! It is a part of what the session's client has here: it counts for that peer, within what the operator allows that, and ends with it.
//!
//! Invariants: whatever it sends goes into one mailbox, which counts against the session that reads it; nothing is allocated for what is
//! merely announced. Where this connection ends, the session learns of it as soon as it has taken all that came before.

use std::io::{Read, Write};
use std::sync::Arc;

use super::client::{Client, Phase};
use super::counters::add;
use super::introductions::Expected;
use super::limits::{PIECE_BYTES, READ_AHEAD_BYTES};
use super::mailbox::Delivery;
use super::refusal::Refusal;
use super::server::WorkerState;
use super::short_message;
use crate::link::Key;
use crate::link::introduction::{Porter, PorterAction, nonce};
use crate::link::pairing::Exported;
use crate::wire::{DeliveryHead, FRAME_BYTES, NotDelivered, WORKER_MARK, WorkerMessage};

/// Serves another worker until it leaves or is not wanted any more. What TLS makes of the connection and the key that was proved are there
/// where it is in TLS.
pub(crate) fn serve(
    shared: &WorkerState,
    client: &Client,
    proved: Option<(Exported, Key)>,
    (mut input, mut output): (impl Read, impl Write),
) {
    let refused = |refusal: &Refusal| {
        if client.dropped().is_none() {
            shared.refused(client, "introduction", refusal);
        }
    };
    let expected = match admit(shared, client, proved, &mut input, &mut output) {
        Ok(Some(expected)) => expected,
        Ok(None) => return,
        Err(refusal) => return refused(&refusal),
    };
    let why = match receive(shared, client, &expected, &mut input) {
        Ok(()) => NotDelivered::Lost,
        Err((why, refusal)) => {
            refused(&refusal);
            why
        }
    };
    expected.mailbox().close(why);
}

/// Finds out who comes; none if it goes before that is known.
fn admit(
    shared: &WorkerState,
    client: &Client,
    proved: Option<(Exported, Key)>,
    input: &mut impl Read,
    output: &mut impl Write,
) -> Result<Option<Arc<Expected>>, Refusal> {
    let mut mark = [0; WORKER_MARK.len()];
    if input.read_exact(&mut mark).is_err() {
        return Ok(None);
    }
    if mark != WORKER_MARK {
        return Err(Refusal::NotIntroduced);
    }
    let Some(nonce) = nonce() else { return Ok(None) };
    let mut porter = Porter::new(proved.map(|(exported, _)| exported), nonce);
    loop {
        let Some(said) = hear(input)? else { return Ok(None) };
        match porter.handle(said) {
            PorterAction::Say(message) => {
                if output.write_all(&message.encode()).is_err() {
                    return Ok(None);
                }
            }
            PorterAction::Judge(id, proof) => {
                let key = proved.map(|(_, key)| key);
                let expected = shared.introductions.find(&id).filter(|expected| expected.is(key));
                let admitted = expected.and_then(|expected| {
                    let answer = porter.admit(expected.secret(), &proof)?;
                    let (own, session) =
                        (shared.roster.get(client.id)?, shared.roster.get(expected.session())?);
                    let may = may_join(shared, client, &session, key)
                        && shared.introductions.let_in(&id, &expected, own);
                    may.then_some((expected, session, answer))
                });
                let Some((expected, session, answer)) = admitted else {
                    // One that goes without listening learns as little.
                    let _ = output.write_all(&WorkerMessage::Refused.encode());
                    return Err(Refusal::NotIntroduced);
                };
                client.enter(Phase::Idle, None);
                // Where places are short, it counts as much as the session that it is part of.
                client.hold(session.device_bytes());
                if output.write_all(&answer.encode()).is_err() {
                    expected.mailbox().close(NotDelivered::Lost);
                    return Ok(None);
                }
                return Ok(Some(expected));
            }
            PorterAction::Refuse => return Err(Refusal::NotIntroduced),
        }
    }
}

/// Whether another worker's connection may be one more of those that a session's client has; from then on, it is. It may not where its key is
/// one of a machine that was revoked: such a machine sends nothing here for others either.
fn may_join(shared: &WorkerState, client: &Client, session: &Client, key: Option<Key>) -> bool {
    let trust = shared.trust.as_ref();
    let machine = trust.zip(session.key()).and_then(|(trust, key)| trust.machine(key));
    let most = machine.and_then(|machine| machine.max_connections);
    // Once it belongs there, the watcher sees to it; the key may have been revoked before.
    shared.roster.add_to(client, session, key, most)
        && !trust.zip(key).is_some_and(|(trust, key)| trust.is_revoked(key))
}

/// The next message; none if it goes.
fn hear(input: &mut impl Read) -> Result<Option<WorkerMessage>, Refusal> {
    short_message::hear(input, WorkerMessage::body_bytes, WorkerMessage::decode)
        .map_err(Refusal::WorkerMessage)
}

/// Puts what comes into the mailbox until the other worker leaves, or the session does.
fn receive(
    shared: &WorkerState,
    client: &Client,
    expected: &Expected,
    input: &mut impl Read,
) -> Result<(), (NotDelivered, Refusal)> {
    loop {
        client.enter(Phase::Idle, None);
        let mut head = [0; FRAME_BYTES];
        if input.read_exact(&mut head).is_err() {
            return Ok(());
        }
        let head = DeliveryHead::decode(&head)
            .map_err(|error| (NotDelivered::Other, Refusal::WorkerMessage(error)))?;
        if !expected.mailbox().wait_for_room(head.bytes, || client.dropped().is_some()) {
            return Ok(());
        }
        client.enter(Phase::Reading, Some(shared.limits.message_time(head.bytes as u64)));
        // The session may be ending at this moment.
        let Some(session) = shared.roster.get(expected.session()) else { return Ok(()) };
        let full = |refusal| (NotDelivered::Full, refusal);
        let no_room = || full(shared.full_of_messages());
        let mut charge = shared.messages.lease(session.holder(), 0).ok_or_else(no_room)?;
        let mut bytes: Vec<u8> = Vec::new();
        while bytes.len() < head.bytes {
            let start = bytes.len();
            // No more at a time than has come already, as with graphs.
            let piece = (head.bytes - start).min(start.clamp(READ_AHEAD_BYTES, PIECE_BYTES));
            shared.charge_message(&session, &mut charge, start + piece).map_err(full)?;
            if bytes.try_reserve(piece).is_err() {
                return Err(no_room());
            }
            bytes.resize(start + piece, 0);
            if input.read_exact(bytes.get_mut(start..).unwrap_or_default()).is_err() {
                return Ok(());
            }
        }
        add(&shared.counters.bytes_in, (FRAME_BYTES + bytes.len()) as u64);
        expected.mailbox().put(Delivery { ticket: head.ticket, bytes, _charge: Some(charge) });
    }
}
