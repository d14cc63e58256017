//! What one worker says to another that it was introduced to: it shows that it knows the secret, and then sends what it was told to push.
//!
//! The sender begins, with a mark whose first byte tells it from a HELLO and from TLS. Invariant: a length is looked at before anything
//! of it is waited for, and only deliveries may be long.

use super::frame::{FRAME_BYTES, FrameHead};
use super::limits::MAX_DELIVERY_BYTES;

/// What a connection between two workers begins with. No command that may come first has the number of its first byte, nor has TLS.
pub const WORKER_MARK: [u8; 8] = *b"oxcart\0w";

/// A message of two workers that prove to each other that they know a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerMessage {
    /// I come by this introduction.
    Knock {
        /// What the introduction's secret is known by.
        introduction: [u8; 16],
        /// Something new.
        nonce: [u8; 32],
    },
    /// Show it.
    Challenge {
        /// Something new.
        nonce: [u8; 32],
    },
    /// I know the secret.
    Proof {
        /// What it is shown by.
        proof: [u8; 32],
    },
    /// So do I; go on.
    Admitted {
        /// What it is shown by.
        proof: [u8; 32],
    },
    /// You do not.
    Refused,
}

/// Bytes that are no message of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no message of a worker: {kind} with {length} bytes and flags {flags:#x}")]
pub struct WorkerMessageError {
    /// The kind.
    pub kind: u16,
    /// Bytes announced.
    pub length: u32,
    /// The flags.
    pub flags: u16,
}

const KNOCK: u16 = 16;
const CHALLENGE: u16 = 17;
const PROOF: u16 = 18;
const ADMITTED: u16 = 19;
const REFUSED: u16 = 20;
const DELIVERY: u16 = 21;

impl WorkerMessageError {
    const fn of(head: &FrameHead) -> WorkerMessageError {
        WorkerMessageError { kind: head.kind, length: head.length, flags: head.flags }
    }
}

impl WorkerMessage {
    /// The longest body.
    pub const MAX_BODY: usize = 48;

    /// As bytes, with their head.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, body): (u16, Vec<u8>) = match self {
            WorkerMessage::Knock { introduction, nonce } => (KNOCK, [&introduction[..], nonce].concat()),
            WorkerMessage::Challenge { nonce } => (CHALLENGE, nonce.to_vec()),
            WorkerMessage::Proof { proof } => (PROOF, proof.to_vec()),
            WorkerMessage::Admitted { proof } => (ADMITTED, proof.to_vec()),
            WorkerMessage::Refused => (REFUSED, Vec::new()),
        };
        // No body is longer than a few bytes.
        let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
        [&FrameHead { length, kind, flags: 0, ticket: 0 }.encode()[..], &body].concat()
    }

    /// How many bytes follow a head, if it can be one of these.
    pub fn body_bytes(head: &FrameHead) -> Result<usize, WorkerMessageError> {
        let wanted = match head.kind {
            KNOCK => 48,
            CHALLENGE | PROOF | ADMITTED => 32,
            REFUSED => 0,
            _ => return Err(WorkerMessageError::of(head)),
        };
        let fits = head.length == wanted && head.flags == 0 && head.ticket == 0;
        if fits { Ok(wanted as usize) } else { Err(WorkerMessageError::of(head)) }
    }

    /// From a head and all that follows it.
    pub fn decode(head: &FrameHead, body: &[u8]) -> Result<WorkerMessage, WorkerMessageError> {
        let wrong = WorkerMessageError::of(head);
        if WorkerMessage::body_bytes(head)? != body.len() {
            return Err(wrong);
        }
        let whole = || body.try_into().map_err(|_| wrong);
        Ok(match head.kind {
            KNOCK => {
                let (introduction, nonce) = body.split_first_chunk().ok_or(wrong)?;
                let nonce = nonce.try_into().map_err(|_| wrong)?;
                WorkerMessage::Knock { introduction: *introduction, nonce }
            }
            CHALLENGE => WorkerMessage::Challenge { nonce: whole()? },
            PROOF => WorkerMessage::Proof { proof: whole()? },
            ADMITTED => WorkerMessage::Admitted { proof: whole()? },
            _ => WorkerMessage::Refused,
        })
    }
}

/// What comes before bytes that one worker pushes to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveryHead {
    /// The ticket of the PUSH.
    pub ticket: u64,
    /// How many bytes.
    pub bytes: usize,
}

impl DeliveryHead {
    /// As bytes. No more than [`MAX_DELIVERY_BYTES`] are pushed at a time.
    pub fn encode(&self) -> [u8; FRAME_BYTES] {
        let length = u32::try_from(self.bytes).unwrap_or(u32::MAX);
        FrameHead { length, kind: DELIVERY, flags: 0, ticket: self.ticket }.encode()
    }

    /// From bytes, if they can be one.
    pub fn decode(bytes: &[u8; FRAME_BYTES]) -> Result<DeliveryHead, WorkerMessageError> {
        let head = FrameHead::decode(bytes);
        let bytes = head.length as usize;
        let fits = head.kind == DELIVERY && head.flags == 0 && (1..=MAX_DELIVERY_BYTES).contains(&bytes);
        if fits {
            Ok(DeliveryHead { ticket: head.ticket, bytes })
        } else {
            Err(WorkerMessageError::of(&head))
        }
    }
}

const _: () = assert!(MAX_DELIVERY_BYTES <= u32::MAX as usize);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Command;

    #[test]
    fn messages_come_back() {
        let messages = [
            WorkerMessage::Knock { introduction: [1; 16], nonce: [2; 32] },
            WorkerMessage::Challenge { nonce: [3; 32] },
            WorkerMessage::Proof { proof: [4; 32] },
            WorkerMessage::Admitted { proof: [5; 32] },
            WorkerMessage::Refused,
        ];
        for message in messages {
            let bytes = message.encode();
            let (head, body) = bytes.split_first_chunk().unwrap();
            let head = FrameHead::decode(head);
            assert_eq!(WorkerMessage::body_bytes(&head), Ok(body.len()));
            assert!(body.len() <= WorkerMessage::MAX_BODY);
            assert_eq!(WorkerMessage::decode(&head, body), Ok(message));
            assert!(WorkerMessage::decode(&head, &[body, &[0]].concat()).is_err());
            assert!(WorkerMessage::body_bytes(&FrameHead { flags: 1, ..head }).is_err());
            assert!(WorkerMessage::body_bytes(&FrameHead { length: head.length + 1, ..head }).is_err());
        }
        assert_eq!((Command::Hello as u8 == WORKER_MARK[0], WORKER_MARK[0] == 22), (false, false));
    }

    #[test]
    fn deliveries_have_a_bounded_length() {
        for bytes in [1, MAX_DELIVERY_BYTES] {
            let head = DeliveryHead { ticket: 7, bytes };
            assert_eq!(DeliveryHead::decode(&head.encode()), Ok(head));
        }
        for bytes in [0, MAX_DELIVERY_BYTES + 1, u32::MAX as usize] {
            assert!(DeliveryHead::decode(&DeliveryHead { ticket: 7, bytes }.encode()).is_err(), "{bytes}");
        }
        assert!(DeliveryHead::decode(&[0; FRAME_BYTES]).is_err());
    }
}
