//! The connection of a pulse: says beats back, and hears which other workers are lost. It can do nothing else.
//!
//! It runs on a thread of its own, which waits for no session, no turn and no device, so it answers whatever the worker computes. Invariants:
//! nothing is said but echoes; after each look at what has arrived comes a pause, so that a flood costs the worker next to nothing and fills
//! the sender's own connection. All that has arrived by then is answered with one echo, that of the last beat, so beats never queue up,
//! however late this thread gets a processor. A pulse that falls silent or ends has no consequence here: the session ends by its own
//! connection alone.

use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::thread;

use super::client::{Client, Phase};
use super::limits::{BEATS_BYTES, BETWEEN_BEATS};
use super::refusal::Refusal;
use super::server::WorkerState;
use super::short_message;
use crate::link::Key;
use crate::wire::{PULSE_MARK, PulseMessage};

/// Serves a pulse until it or its session ends. The key that was proved is there where it is in TLS.
pub(crate) fn serve(
    shared: &WorkerState,
    client: &Client,
    key: Option<Key>,
    (mut input, mut output): (impl Read, impl Write),
) {
    let done = admit(shared, client, key, &mut input).and_then(|session| match session {
        Some(session) => answer(client, &session, &mut input, &mut output),
        None => Ok(()),
    });
    if let (Err(refusal), None) = (done, client.dropped()) {
        shared.refused(client, "pulse", &refusal);
    }
}

/// Finds out whose pulse it is; none if it goes before that is known.
fn admit(
    shared: &WorkerState,
    client: &Client,
    key: Option<Key>,
    input: &mut impl Read,
) -> Result<Option<Arc<Client>>, Refusal> {
    let mut mark = [0; PULSE_MARK.len()];
    if input.read_exact(&mut mark).is_err() {
        return Ok(None);
    }
    if mark != PULSE_MARK {
        return Err(Refusal::NoSession);
    }
    let Some(message) = hear(input)? else { return Ok(None) };
    let PulseMessage::Begin { token } = message else { return Err(Refusal::NoSession) };
    let own = shared.roster.get(client.id).ok_or(Refusal::NoSession)?;
    let session = shared.pulses.let_in(&token, key, own).ok_or(Refusal::NoSession)?;
    // From here on it is no stranger; and it counts for its machine, though not among those that a limit allows.
    client.enter(Phase::Beating, None);
    if let Some(key) = key {
        client.identify(key, session.machine_name());
    }
    Ok(Some(session))
}

/// The next message; none if it goes.
fn hear(input: &mut impl Read) -> Result<Option<PulseMessage>, Refusal> {
    short_message::hear(input, PulseMessage::body_bytes, PulseMessage::decode).map_err(Refusal::PulseMessage)
}

/// Answers what arrives until it ends.
fn answer(
    client: &Client,
    session: &Client,
    input: &mut impl Read,
    output: &mut impl Write,
) -> Result<(), Refusal> {
    let (mut arrived, mut piece) = (Vec::new(), [0; BEATS_BYTES]);
    while !client.is_gone() {
        // What has arrived, as far as it fits.
        let read = match input.read(&mut piece) {
            // A worker that was stopped for a while goes on here.
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Ok(0) | Err(_) => break,
            Ok(read) => read,
        };
        arrived.extend_from_slice(piece.get(..read).unwrap_or_default());
        let mut last = None;
        while let Some(message) = PulseMessage::take(&mut arrived).map_err(Refusal::PulseMessage)? {
            match message {
                PulseMessage::Beat { number } => last = Some(number),
                PulseMessage::Lost { introduction } => session.lose_neighbour(introduction),
                PulseMessage::Begin { .. } | PulseMessage::Echo { .. } => return Err(Refusal::NoSession),
            }
        }
        // An echo speaks for earlier beats, too.
        let echo = last.map(|number| PulseMessage::Echo { number }.encode());
        if echo.is_some_and(|echo| output.write_all(&echo).is_err()) {
            break;
        }
        thread::sleep(BETWEEN_BEATS);
    }
    Ok(())
}
