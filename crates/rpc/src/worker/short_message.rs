//! Short messages between machines, read as they arrive: a head, and a body that is checked before anything of it is waited for.

use std::io::Read;

use crate::wire::{FRAME_BYTES, FrameHead, PulseMessage, WorkerMessage};

/// The longest body that such a message has.
const MAX_BODY: usize = if WorkerMessage::MAX_BODY > PulseMessage::MAX_BODY {
    WorkerMessage::MAX_BODY
} else {
    PulseMessage::MAX_BODY
};

/// The next message, by what says how long its body is and what makes a message of both; none if the other side goes.
pub(crate) fn hear<M, E>(
    input: &mut impl Read,
    body_bytes: fn(&FrameHead) -> Result<usize, E>,
    decode: fn(&FrameHead, &[u8]) -> Result<M, E>,
) -> Result<Option<M>, E> {
    let mut head = [0; FRAME_BYTES];
    if input.read_exact(&mut head).is_err() {
        return Ok(None);
    }
    let head = FrameHead::decode(&head);
    let bytes = body_bytes(&head)?;
    let mut body = [0; MAX_BODY];
    let Some(body) = body.get_mut(..bytes) else { return Ok(None) };
    if input.read_exact(body).is_err() {
        return Ok(None);
    }
    decode(&head, body).map(Some)
}
