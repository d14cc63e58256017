//! What two machines say to each other when they meet, in TLS: one question, one answer.

use std::fmt;

use super::frame::{FRAME_BYTES, FrameHead};
use super::limits::MAX_PAIRING_BYTES;

/// Why a machine is not taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotPaired {
    /// No line is open: it has been used, or its time has passed.
    #[error("the join line is no longer valid: it has been used, or its ten minutes are over")]
    Closed,
    /// The proof is wrong.
    #[error("the join line is not from that worker")]
    Proof,
    /// The name cannot be one.
    #[error("the worker does not accept this machine's name; give another with --name")]
    Name,
    /// The other machine cannot remember anyone.
    #[error("the worker cannot remember this machine; its log says why")]
    NotKept,
    /// Something that only the worker's own machine may ask for.
    #[error("only the machine that the worker runs on may ask for a join line")]
    NotYours,
    /// Something that a newer Oxcart says.
    #[error("the worker refuses for a reason that this Oxcart does not know ({0}); update the older machine")]
    Other(u16),
}

impl NotPaired {
    const fn number(self) -> u16 {
        match self {
            NotPaired::Closed => 1,
            NotPaired::Proof => 2,
            NotPaired::Name => 3,
            NotPaired::NotKept => 4,
            NotPaired::NotYours => 5,
            NotPaired::Other(number) => number,
        }
    }

    const fn from_number(number: u16) -> NotPaired {
        match number {
            1 => NotPaired::Closed,
            2 => NotPaired::Proof,
            3 => NotPaired::Name,
            4 => NotPaired::NotKept,
            5 => NotPaired::NotYours,
            number => NotPaired::Other(number),
        }
    }
}

/// A message.
#[derive(Clone, PartialEq, Eq)]
pub enum PairingMessage {
    /// I have seen a join line of yours, and am called this.
    Join {
        /// What it is shown by.
        proof: [u8; 32],
        /// What to call the machine.
        name: String,
    },
    /// You have, and I have shown it; I am called this. We know each other now.
    Welcome {
        /// What it is shown by.
        proof: [u8; 32],
        /// What to call the machine.
        name: String,
    },
    /// We do not.
    Refused(NotPaired),
    /// Show me a new line: I am you.
    Invite,
    /// Here it is.
    Invited {
        /// The join line.
        line: String,
    },
}

impl fmt::Debug for PairingMessage {
    /// Without the secret that a line holds.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PairingMessage::Join { name, .. } => write!(f, "Join({name:?})"),
            PairingMessage::Welcome { name, .. } => write!(f, "Welcome({name:?})"),
            PairingMessage::Refused(why) => write!(f, "Refused({why:?})"),
            PairingMessage::Invite => f.write_str("Invite"),
            PairingMessage::Invited { .. } => f.write_str("Invited"),
        }
    }
}

/// Bytes that are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PairingError {
    /// A kind, or flags, that no message has.
    #[error("there is no message {kind} with flags {flags:#x}")]
    Kind {
        /// The kind.
        kind: u16,
        /// The flags.
        flags: u16,
    },
    /// A length that the message cannot have.
    #[error("message {kind} with {length} bytes")]
    Length {
        /// The kind.
        kind: u16,
        /// Bytes announced.
        length: u32,
    },
    /// Text that is none.
    #[error("message {kind} with text that is none")]
    Text {
        /// The kind.
        kind: u16,
    },
}

const JOIN: u16 = 1;
const WELCOME: u16 = 2;
const REFUSED: u16 = 3;
const INVITE: u16 = 4;
const INVITED: u16 = 5;

impl PairingMessage {
    /// As bytes, with their head.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, body) = match self {
            PairingMessage::Join { proof, name } => (JOIN, [&proof[..], name.as_bytes()].concat()),
            PairingMessage::Welcome { proof, name } => (WELCOME, [&proof[..], name.as_bytes()].concat()),
            PairingMessage::Refused(why) => (REFUSED, why.number().to_le_bytes().to_vec()),
            PairingMessage::Invite => (INVITE, Vec::new()),
            PairingMessage::Invited { line } => (INVITED, line.as_bytes().to_vec()),
        };
        let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
        [&FrameHead { length, kind, flags: 0, ticket: 0 }.encode()[..], &body].concat()
    }

    /// How many bytes follow a head, if it can be one of ours.
    pub fn body_bytes(head: &FrameHead) -> Result<usize, PairingError> {
        let FrameHead { length, kind, flags, .. } = *head;
        let bytes = length as usize;
        let fits = match kind {
            _ if flags != 0 => return Err(PairingError::Kind { kind, flags }),
            JOIN | WELCOME => (33..=32 + MAX_PAIRING_BYTES).contains(&bytes),
            REFUSED => bytes == 2,
            INVITE => bytes == 0,
            INVITED => (1..=MAX_PAIRING_BYTES).contains(&bytes),
            _ => return Err(PairingError::Kind { kind, flags }),
        };
        if fits { Ok(bytes) } else { Err(PairingError::Length { kind, length }) }
    }

    /// From a head and all that follows it.
    pub fn decode(head: &FrameHead, body: &[u8]) -> Result<PairingMessage, PairingError> {
        let (kind, length) = (head.kind, head.length);
        let wrong_length = PairingError::Length { kind, length };
        if PairingMessage::body_bytes(head)? != body.len() {
            return Err(wrong_length);
        }
        let text =
            |bytes: &[u8]| str::from_utf8(bytes).map(str::to_owned).map_err(|_| PairingError::Text { kind });
        let proved = || {
            let (proof, name) = body.split_first_chunk::<32>().ok_or(wrong_length)?;
            Ok((*proof, text(name)?))
        };
        Ok(match kind {
            JOIN => proved().map(|(proof, name)| PairingMessage::Join { proof, name })?,
            WELCOME => proved().map(|(proof, name)| PairingMessage::Welcome { proof, name })?,
            REFUSED => {
                let number = body.try_into().map_err(|_| wrong_length)?;
                PairingMessage::Refused(NotPaired::from_number(u16::from_le_bytes(number)))
            }
            INVITE => PairingMessage::Invite,
            _ => PairingMessage::Invited { line: text(body)? },
        })
    }

    /// The message that some bytes begin with, and how many of them it is; `None` as long as it is not whole.
    pub fn take(bytes: &[u8]) -> Result<Option<(PairingMessage, usize)>, PairingError> {
        let Some((head, rest)) = bytes.split_first_chunk::<FRAME_BYTES>() else { return Ok(None) };
        let head = FrameHead::decode(head);
        let length = PairingMessage::body_bytes(&head)?;
        let Some(body) = rest.get(..length) else { return Ok(None) };
        Ok(Some((PairingMessage::decode(&head, body)?, FRAME_BYTES + length)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages() -> Vec<PairingMessage> {
        let mut all = vec![
            PairingMessage::Join { proof: [1; 32], name: "den".into() },
            PairingMessage::Welcome { proof: [2; 32], name: "attic".into() },
            PairingMessage::Invite,
            PairingMessage::Invited { line: "oxj0".into() },
        ];
        all.extend((1..8).map(|number| PairingMessage::Refused(NotPaired::from_number(number))));
        all
    }

    #[test]
    fn messages_come_back() {
        for message in messages() {
            let bytes = message.encode();
            let more = [&bytes[..], b"more"].concat();
            assert_eq!(PairingMessage::take(&more), Ok(Some((message.clone(), bytes.len()))));
            for len in 0..bytes.len() {
                assert_eq!(PairingMessage::take(&bytes[..len]), Ok(None), "{message:?} {len}");
            }
        }
    }

    #[test]
    fn other_bytes_are_refused_before_they_are_waited_for() {
        for (length, kind, flags) in [
            (0, 0, 0),
            (0, 6, 0),
            (0, 4, 1),
            (1, 4, 0),
            (32, 1, 0),
            (u32::MAX, 1, 0),
            (u32::MAX, 5, 0),
            (0, 5, 0),
            (3, 3, 0),
        ] {
            let head = FrameHead { length, kind, flags, ticket: 7 };
            assert_eq!(FrameHead::decode(&head.encode()), head);
            assert!(PairingMessage::take(&head.encode()).is_err(), "{head:?}");
        }
        let mut broken = PairingMessage::Invited { line: "ab".into() }.encode();
        broken[FRAME_BYTES] = 0xff;
        assert_eq!(PairingMessage::take(&broken), Err(PairingError::Text { kind: INVITED }));
    }
}
