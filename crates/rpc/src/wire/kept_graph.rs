//! Graphs that a worker keeps for a client, each in a slot that the client chooses: the bodies of GRAPH_KEEP, GRAPH_RUN and GRAPH_DROP.
//!
//! None of the three is answered, because the client nearly always knows what is kept: the worker forgets a graph when its client says so,
//! when a buffer that the graph uses is freed and when the worker is interrupted. The client sees to it that there is room among its own, by
//! counting for each graph what the worker needs for it at most. What it cannot know is what other clients have: where they leave no room, a
//! graph is computed and not kept, or makes way later. GRAPH_RUN of such a graph interrupts the worker
//! ([`NotDelivered::NotKept`](super::NotDelivered)), and its client sends graphs again; GRAPH_DROP has nothing to do.
//!
//! Invariant: a slot is one of [`MAX_KEPT_GRAPHS`], and every body is read the way it was written.

use super::limits::MAX_KEPT_GRAPHS;

/// Where a worker keeps a graph. GRAPH_RUN computes it again, GRAPH_DROP forgets it: both bodies are the slot alone. In GRAPH_KEEP the slot
/// is followed by the body of GRAPH_COMPUTE: a graph to be computed and then kept, in the place of the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot(u16);

impl Slot {
    /// Bytes of it.
    pub const BYTES: usize = 2;

    /// A slot by its number, if it is one.
    pub fn new(number: usize) -> Option<Slot> {
        u16::try_from(number).ok().filter(|_| number < MAX_KEPT_GRAPHS).map(Slot)
    }

    /// Its number.
    pub const fn number(self) -> usize {
        self.0 as usize
    }

    /// As bytes.
    pub const fn encode(self) -> [u8; Slot::BYTES] {
        self.0.to_le_bytes()
    }

    /// From the start of a body, with what follows it.
    pub fn split(body: &[u8]) -> Option<(Slot, &[u8])> {
        let (number, rest) = body.split_first_chunk()?;
        Some((Slot::new(u16::from_le_bytes(*number).into())?, rest))
    }

    /// From a body that is nothing else.
    pub fn decode(body: &[u8]) -> Option<Slot> {
        Slot::split(body).filter(|(_, rest)| rest.is_empty()).map(|(slot, _)| slot)
    }
}

/// What a client counts for a graph whose GRAPH_COMPUTE would have a body of so many bytes: no less than the worker needs for it, plans aside.
pub const fn kept_graph_bytes(body: usize) -> usize {
    body.saturating_mul(BYTES_PER_BYTE).saturating_add(BYTES_BESIDE)
}

/// A graph without plans takes less than so many times its message, see `what_counts_for_a_stored_graph_is_what_it_takes`.
const BYTES_PER_BYTE: usize = 2;
/// And so much beside, however small it is.
const BYTES_BESIDE: usize = 2 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_come_back_and_are_bounded() {
        for number in [0, 1, 255] {
            let slot = Slot::new(number).unwrap();
            assert_eq!((slot.number(), Slot::decode(&slot.encode())), (number, Some(slot)));
            assert_eq!(Slot::split(&[&slot.encode()[..], &[7, 8]].concat()), Some((slot, &[7, 8][..])));
        }
        assert_eq!(Slot::new(1).unwrap().encode(), [1, 0]);
        for body in [&[][..], &[0], &[0, 0, 0], &[0, 1], &[0xff, 0xff]] {
            assert_eq!(Slot::decode(body), None, "{body:?}");
        }
        for number in [MAX_KEPT_GRAPHS, 1 << 16, usize::MAX] {
            assert_eq!(Slot::new(number), None);
        }
    }

    #[test]
    fn what_is_counted_does_not_wrap_around() {
        assert!(kept_graph_bytes(0) > 0 && kept_graph_bytes(usize::MAX) == usize::MAX);
    }
}
