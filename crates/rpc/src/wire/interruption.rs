//! What a worker says in the place of answers once it has not got what it was to compute with, until its client has it go on: it has waited in
//! vain for what another worker was to send, or a graph that it kept had to make way.
//! ggml's protocol knows no such word; this one has a length that no answer has.

use super::frame::{FRAME_BYTES, FrameHead};

/// Why something to compute with is not there: bytes of another worker, or a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotDelivered {
    /// The connection between the two broke, or there has been none.
    #[error("the connection between the two broke")]
    Lost,
    /// They did not come in time.
    #[error("it did not come in time")]
    Late,
    /// There was no room for them.
    #[error("there was no room for it")]
    Full,
    /// Others came.
    #[error("something else came")]
    Other,
    /// It is a graph, which was not kept although it should have been, because others needed the room.
    #[error("the graph was not kept")]
    NotKept,
    /// Something that a newer Oxcart says.
    #[error("for a reason that this Oxcart does not know ({0})")]
    Unknown(u16),
}

impl NotDelivered {
    const fn number(self) -> u16 {
        match self {
            NotDelivered::Lost => 1,
            NotDelivered::Late => 2,
            NotDelivered::Full => 3,
            NotDelivered::Other => 4,
            NotDelivered::NotKept => 5,
            NotDelivered::Unknown(number) => number,
        }
    }

    const fn from_number(number: u16) -> NotDelivered {
        match number {
            1 => NotDelivered::Lost,
            2 => NotDelivered::Late,
            3 => NotDelivered::Full,
            4 => NotDelivered::Other,
            5 => NotDelivered::NotKept,
            number => NotDelivered::Unknown(number),
        }
    }
}

/// Why a worker does not answer for now: what it was to compute with has not come. All that it holds is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interruption {
    /// The introduction by which it waited; 0 for a graph.
    pub number: u32,
    /// Why.
    pub why: NotDelivered,
}

impl Interruption {
    /// The length that stands for it in the place of an answer's.
    pub const LENGTH: u64 = u64::MAX;

    /// Bytes after that length.
    pub const BYTES: usize = FRAME_BYTES;

    /// As bytes, with the length.
    pub fn encode(&self) -> Vec<u8> {
        let ticket = self.number.into();
        let head = FrameHead { length: 0, kind: self.why.number(), flags: 0, ticket };
        [&Interruption::LENGTH.to_le_bytes()[..], &head.encode()].concat()
    }

    /// From what follows the length, if it is one.
    pub fn decode(bytes: &[u8; Interruption::BYTES]) -> Option<Interruption> {
        let FrameHead { length, kind, flags, ticket } = FrameHead::decode(bytes);
        let number = u32::try_from(ticket).ok().filter(|_| length == 0 && flags == 0)?;
        Some(Interruption { number, why: NotDelivered::from_number(kind) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interruption_comes_back() {
        for kind in 0..10 {
            let interruption = Interruption { number: 70_000, why: NotDelivered::from_number(kind) };
            let bytes = interruption.encode();
            let (length, rest) = bytes.split_first_chunk().unwrap();
            assert_eq!(u64::from_le_bytes(*length), Interruption::LENGTH);
            assert_eq!(Interruption::decode(rest.try_into().unwrap()), Some(interruption));
        }
        assert_eq!(Interruption::decode(&[0xff; Interruption::BYTES]), None);
    }
}
