//! What is said on a pulse: the second, small connection of a client to a worker, which never waits behind data or computing.
//!
//! The client begins, with a mark whose first byte tells it from a HELLO, from TLS and from a worker that comes by an introduction, and with
//! the number that the worker has given the session. Then it sends beats, which the worker echoes. Invariant: every message has one
//! length, which is looked at before anything of it is waited for.

use super::frame::{FRAME_BYTES, FrameHead};

/// What a pulse begins with. No command that may come first has the number of its first byte, nor has TLS, nor another worker's mark.
pub const PULSE_MARK: [u8; 8] = *b"pulse\0ox";

/// A message of a pulse.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum PulseMessage {
    /// This is the pulse of the session that was given this.
    Begin {
        /// What the worker has given it, which no other can guess.
        token: [u8; 16],
    },
    /// Say this number back.
    Beat {
        /// One more than that of the beat before.
        number: u64,
    },
    /// What beats are answered with.
    Echo {
        /// That of the last one that has arrived.
        number: u64,
    },
    /// The other worker of an introduction is lost: nothing comes from it, and what is sent to it does not arrive.
    Lost {
        /// The introduction's number in the session.
        introduction: u32,
    },
}

impl std::fmt::Debug for PulseMessage {
    /// Without the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PulseMessage::Begin { .. } => f.write_str("Begin"),
            PulseMessage::Beat { number } => write!(f, "Beat({number})"),
            PulseMessage::Echo { number } => write!(f, "Echo({number})"),
            PulseMessage::Lost { introduction } => write!(f, "Lost({introduction})"),
        }
    }
}

/// Bytes that are no message of a pulse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no message of a pulse: {kind} with {length} bytes and flags {flags:#x}")]
pub struct PulseMessageError {
    /// The kind.
    pub kind: u16,
    /// Bytes announced.
    pub length: u32,
    /// The flags.
    pub flags: u16,
}

const BEGIN: u16 = 32;
const BEAT: u16 = 33;
const ECHO: u16 = 34;
const LOST: u16 = 35;

impl PulseMessage {
    /// The longest body.
    pub const MAX_BODY: usize = 16;

    /// As bytes, with their head.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, ticket, body): (u16, u64, &[u8]) = match self {
            PulseMessage::Begin { token } => (BEGIN, 0, token),
            PulseMessage::Beat { number } => (BEAT, *number, &[]),
            PulseMessage::Echo { number } => (ECHO, *number, &[]),
            PulseMessage::Lost { introduction } => (LOST, (*introduction).into(), &[]),
        };
        // No body is longer than a few bytes.
        let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
        [&FrameHead { length, kind, flags: 0, ticket }.encode()[..], body].concat()
    }

    /// How many bytes follow a head, if it can be one of these.
    pub fn body_bytes(head: &FrameHead) -> Result<usize, PulseMessageError> {
        let fits = match head.kind {
            BEGIN => head.length as usize == PulseMessage::MAX_BODY && head.ticket == 0,
            BEAT | ECHO => head.length == 0,
            LOST => head.length == 0 && u32::try_from(head.ticket).is_ok(),
            _ => false,
        };
        match fits && head.flags == 0 {
            true => Ok(head.length as usize),
            false => Err(PulseMessageError { kind: head.kind, length: head.length, flags: head.flags }),
        }
    }

    /// From a head and all that follows it.
    pub fn decode(head: &FrameHead, body: &[u8]) -> Result<PulseMessage, PulseMessageError> {
        let wrong = PulseMessageError { kind: head.kind, length: head.length, flags: head.flags };
        if PulseMessage::body_bytes(head)? != body.len() {
            return Err(wrong);
        }
        Ok(match head.kind {
            BEGIN => PulseMessage::Begin { token: body.try_into().map_err(|_| wrong)? },
            BEAT => PulseMessage::Beat { number: head.ticket },
            ECHO => PulseMessage::Echo { number: head.ticket },
            _ => PulseMessage::Lost { introduction: u32::try_from(head.ticket).map_err(|_| wrong)? },
        })
    }

    /// Takes the first message from bytes that have arrived, if all of it has.
    pub fn take(bytes: &mut Vec<u8>) -> Result<Option<PulseMessage>, PulseMessageError> {
        let Some((head, rest)) = bytes.split_first_chunk::<FRAME_BYTES>() else { return Ok(None) };
        let head = FrameHead::decode(head);
        let length = PulseMessage::body_bytes(&head)?;
        let Some(body) = rest.get(..length) else { return Ok(None) };
        let message = PulseMessage::decode(&head, body)?;
        bytes.drain(..FRAME_BYTES + length);
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Command, WORKER_MARK};

    const MESSAGES: [PulseMessage; 4] = [
        PulseMessage::Begin { token: [9; 16] },
        PulseMessage::Beat { number: 7 },
        PulseMessage::Echo { number: u64::MAX },
        PulseMessage::Lost { introduction: u32::MAX },
    ];

    #[test]
    fn messages_of_a_pulse_come_back() {
        for message in MESSAGES {
            let bytes = message.encode();
            let (head, body) = bytes.split_first_chunk().unwrap();
            let head = FrameHead::decode(head);
            assert_eq!(PulseMessage::body_bytes(&head), Ok(body.len()));
            assert_eq!(PulseMessage::decode(&head, body), Ok(message));
            assert!(PulseMessage::decode(&head, &[body, &[0]].concat()).is_err());
            assert!(PulseMessage::body_bytes(&FrameHead { flags: 1, ..head }).is_err());
            assert!(PulseMessage::body_bytes(&FrameHead { length: head.length + 1, ..head }).is_err());
        }
        assert_eq!(format!("{:?}", MESSAGES[0]), "Begin", "without the token");
        assert!(
            PulseMessage::body_bytes(&FrameHead { length: 0, kind: LOST, flags: 0, ticket: 1 << 32 })
                .is_err()
        );
    }

    #[test]
    fn messages_are_taken_as_they_arrive() {
        let all = MESSAGES.iter().flat_map(PulseMessage::encode).collect::<Vec<_>>();
        for piece in [1, 5, 16, 33, 1000] {
            let (mut arrived, mut taken) = (Vec::new(), Vec::new());
            for bytes in all.chunks(piece) {
                arrived.extend_from_slice(bytes);
                while let Some(message) = PulseMessage::take(&mut arrived).unwrap() {
                    taken.push(message);
                }
            }
            assert!(arrived.is_empty() && taken == MESSAGES, "{piece}: {taken:?}");
        }
    }

    #[test]
    fn a_pulse_begins_like_nothing_else() {
        let first = PULSE_MARK[0];
        assert!(first != 22 && first != WORKER_MARK[0] && first != Command::Hello as u8);
        assert!(Command::ALL.iter().all(|command| *command as u8 != first));
    }
}
