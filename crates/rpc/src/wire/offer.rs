//! How a worker of ours says so to a client of ours: in the capability bytes of its answer to HELLO.
//!
//! The bytes are there for transports that neither has. A client that offers none sends zeros and does not look at the
//! answer, so a worker may use it; a client that does offer one would take any answer but zeros for an agreement. Invariant: the
//! mark is the answer to zeros alone, and a client never sends anything else.

use oxcart_backend::Arithmetic;

use super::dialect::Dialect;
use super::op_code::OpCode;

/// Capability bytes of a HELLO and of its answer.
pub const CAPABILITY_BYTES: usize = 24;

/// What a peer says that wants neither another transport nor our own operations.
pub const NO_CAPABILITIES: [u8; CAPABILITY_BYTES] = [0; CAPABILITY_BYTES];

const MARK: [u8; 8] = *b"oxcart\0\0";

/// Which of [`OpCode::OWN`] there are, a bit each.
const OWN_OPS: u32 = (1 << OpCode::OWN.len()) - 1;

/// The bit that says that a worker can be introduced to others. A worker of ours from before it sends zeros there.
const INTRODUCTIONS: u32 = 1;

/// The bit that says that a worker has pulses, likewise.
const PULSES: u32 = 2;

/// The bit that says that a worker takes bytes by their content, likewise.
const TAKES: u32 = 4;

/// The bit that says that it has files of its own to take them from, so that small ones are worth asking for, too.
const COPIES: u32 = 8;

/// The bit that says that a worker keeps graphs in slots. How many KiB a client's may count follows the bits.
const KEPT_GRAPHS: u32 = 16;

/// What a worker that speaks `dialect` answers to a client's capabilities.
pub fn answer_capabilities(dialect: &Dialect, asked: &[u8]) -> [u8; CAPABILITY_BYTES] {
    let mut answer = NO_CAPABILITIES;
    if !dialect.own_ops.is_empty() && asked == NO_CAPABILITIES {
        answer[..8].copy_from_slice(&MARK);
        answer[8..12].copy_from_slice(&OWN_OPS.to_le_bytes());
        let introductions = if dialect.has_introductions { INTRODUCTIONS } else { 0 };
        let pulses = if dialect.has_pulses { PULSES } else { 0 };
        let takes = if dialect.has_takes { TAKES } else { 0 };
        answer[12..16].copy_from_slice(&(introductions | pulses | takes).to_le_bytes());
    }
    answer
}

/// The answer of a worker that has files of its own, if it is one that takes bytes by their content.
pub fn with_copies(mut answer: [u8; CAPABILITY_BYTES]) -> [u8; CAPABILITY_BYTES] {
    if offers_takes(&answer) {
        let more = abilities(&answer) | COPIES;
        answer[12..16].copy_from_slice(&more.to_le_bytes());
    }
    answer
}

/// The answer of a worker that keeps graphs in slots, which may count so many bytes, if it is one of ours.
pub fn with_kept_graphs(
    mut answer: [u8; CAPABILITY_BYTES],
    dialect: &Dialect,
    bytes: usize,
) -> [u8; CAPABILITY_BYTES] {
    if dialect.has_kept_graphs && answer[..8] == MARK {
        let more = abilities(&answer) | KEPT_GRAPHS;
        answer[12..16].copy_from_slice(&more.to_le_bytes());
        let kib = u32::try_from(bytes >> 10).unwrap_or(u32::MAX);
        answer[16..20].copy_from_slice(&kib.to_le_bytes());
    }
    answer
}

/// The answer of a worker all of whose devices add up in the same order, if it is one of ours.
pub fn with_arithmetic(
    mut answer: [u8; CAPABILITY_BYTES],
    arithmetic: Option<Arithmetic>,
) -> [u8; CAPABILITY_BYTES] {
    if answer[..8] == MARK {
        answer[20..24].copy_from_slice(&arithmetic.map_or(0, Arithmetic::number).to_le_bytes());
    }
    answer
}

/// Whether a worker that answered this has all the operations that only Oxcart has.
pub fn offers_own_ops(answer: &[u8; CAPABILITY_BYTES]) -> bool {
    let [a, b, c, d] = [answer[8], answer[9], answer[10], answer[11]];
    answer[..8] == MARK && u32::from_le_bytes([a, b, c, d]) & OWN_OPS == OWN_OPS
}

/// Whether a worker that answered this can be introduced to other workers.
pub fn offers_introductions(answer: &[u8; CAPABILITY_BYTES]) -> bool {
    has_ability(answer, INTRODUCTIONS)
}

/// Whether a worker that answered this gives a session a pulse.
pub fn offers_pulses(answer: &[u8; CAPABILITY_BYTES]) -> bool {
    has_ability(answer, PULSES)
}

/// Whether a worker that answered this takes bytes by their content.
pub fn offers_takes(answer: &[u8; CAPABILITY_BYTES]) -> bool {
    has_ability(answer, TAKES)
}

/// Whether a worker that answered this has files of its own to take them from.
pub fn offers_copies(answer: &[u8; CAPABILITY_BYTES]) -> bool {
    offers_takes(answer) && has_ability(answer, COPIES)
}

/// How many bytes the graphs that a worker which answered this keeps in slots may count, if it keeps some.
pub fn offers_kept_graphs(answer: &[u8; CAPABILITY_BYTES]) -> Option<usize> {
    let [a, b, c, d] = [answer[16], answer[17], answer[18], answer[19]];
    let bytes = u64::from(u32::from_le_bytes([a, b, c, d])) << 10;
    has_ability(answer, KEPT_GRAPHS).then(|| usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// The order in which all devices of a worker that answered this add up, if it is the same. A worker of ours from before it sends zeros there.
pub fn offers_arithmetic(answer: &[u8; CAPABILITY_BYTES]) -> Option<Arithmetic> {
    let [a, b, c, d] = [answer[20], answer[21], answer[22], answer[23]];
    Arithmetic::new(u32::from_le_bytes([a, b, c, d])).filter(|_| answer[..8] == MARK)
}

fn has_ability(answer: &[u8; CAPABILITY_BYTES], ability: u32) -> bool {
    answer[..8] == MARK && abilities(answer) & ability != 0
}

fn abilities(answer: &[u8; CAPABILITY_BYTES]) -> u32 {
    let [a, b, c, d] = [answer[12], answer[13], answer[14], answer[15]];
    u32::from_le_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker of ours from before introductions said zeros where they are offered.
    #[test]
    fn introductions_are_offered_apart_from_operations() {
        let own = answer_capabilities(Dialect::own(), &NO_CAPABILITIES);
        assert!(offers_introductions(&own));
        let mut before = own;
        before[12..16].fill(0);
        assert!(offers_own_ops(&before) && !offers_introductions(&before));
        assert!(!offers_introductions(&NO_CAPABILITIES) && !offers_introductions(&[0xff; CAPABILITY_BYTES]));
        let mut more = own;
        more[12..16].fill(0xff);
        assert!(offers_introductions(&more));
    }

    /// A worker of ours from before pulses has introductions alone.
    #[test]
    fn pulses_are_offered_apart_from_introductions() {
        let own = answer_capabilities(Dialect::own(), &NO_CAPABILITIES);
        assert!(offers_pulses(&own));
        let mut before = own;
        before[12] = 1;
        assert!(offers_introductions(&before) && !offers_pulses(&before));
        assert!(!offers_pulses(&NO_CAPABILITIES) && !offers_pulses(&[0xff; CAPABILITY_BYTES]));
        assert!(!offers_pulses(&answer_capabilities(Dialect::newest(), &NO_CAPABILITIES)));
    }

    /// A worker of ours from before has introductions and pulses alone; one without files of its own does not say that it has some.
    #[test]
    fn taking_by_content_is_offered_apart_from_the_rest() {
        let own = answer_capabilities(Dialect::own(), &NO_CAPABILITIES);
        assert!(offers_takes(&own) && !offers_copies(&own));
        let copies = with_copies(own);
        assert!(offers_takes(&copies) && offers_copies(&copies) && offers_pulses(&copies));
        let mut before = own;
        before[12] = 3;
        assert!(offers_pulses(&before) && !offers_takes(&before));
        assert_eq!(with_copies(before), before);
        let newest = answer_capabilities(Dialect::newest(), &NO_CAPABILITIES);
        assert_eq!(with_copies(newest), NO_CAPABILITIES, "no mark, nothing is said");
        for nothing in [NO_CAPABILITIES, [0xff; CAPABILITY_BYTES]] {
            assert!(!offers_takes(&nothing) && !offers_copies(&nothing));
        }
    }

    /// A worker of ours from before has none of it, and another's answer is not ours to change.
    #[test]
    fn kept_graphs_are_offered_with_what_they_may_count() {
        let own = answer_capabilities(Dialect::own(), &NO_CAPABILITIES);
        assert_eq!(offers_kept_graphs(&own), None);
        for (bytes, said) in [(0, 0), (1023, 0), (32 << 20, 32 << 20), (usize::MAX, 0xffff_ffff << 10)] {
            let offer = with_kept_graphs(own, Dialect::own(), bytes);
            assert_eq!(offers_kept_graphs(&offer), Some(said));
            assert!(offers_takes(&offer) && !offers_copies(&offer));
            assert_eq!(offers_kept_graphs(&with_copies(offer)), Some(said));
        }
        assert_eq!(with_kept_graphs(NO_CAPABILITIES, Dialect::own(), 1 << 20), NO_CAPABILITIES);
        assert_eq!(with_kept_graphs(own, Dialect::newest(), 1 << 20), own);
        assert_eq!(offers_kept_graphs(&[0xff; CAPABILITY_BYTES]), None);
    }

    /// Others' answers say nothing of it, whatever is there.
    #[test]
    fn arithmetic_is_offered_by_workers_of_ours() {
        let own = answer_capabilities(Dialect::own(), &NO_CAPABILITIES);
        assert_eq!(offers_arithmetic(&own), None);
        for arithmetic in [Arithmetic::new(1), Arithmetic::new(u32::MAX)] {
            let offer = with_arithmetic(own, arithmetic);
            assert!(arithmetic.is_some() && offers_arithmetic(&offer) == arithmetic);
            assert!(offers_own_ops(&offer) && offers_pulses(&offer));
            assert_eq!(with_arithmetic(offer, None), own);
            assert_eq!(with_arithmetic(NO_CAPABILITIES, arithmetic), NO_CAPABILITIES);
        }
        assert_eq!(offers_arithmetic(&[0xff; CAPABILITY_BYTES]), None);
    }

    #[test]
    fn only_clients_without_a_transport_of_their_own_are_told() {
        let own = answer_capabilities(Dialect::own(), &NO_CAPABILITIES);
        assert!(offers_own_ops(&own));
        for place in 0..CAPABILITY_BYTES {
            let mut asked = NO_CAPABILITIES;
            asked[place] = 1;
            assert_eq!(answer_capabilities(Dialect::own(), &asked), NO_CAPABILITIES);
        }
        assert_eq!(answer_capabilities(Dialect::newest(), &NO_CAPABILITIES), NO_CAPABILITIES);
    }

    #[test]
    fn other_answers_offer_nothing() {
        assert!(!offers_own_ops(&NO_CAPABILITIES));
        assert!(!offers_own_ops(&[0xff; CAPABILITY_BYTES]));
        let mut fewer = answer_capabilities(Dialect::own(), &NO_CAPABILITIES);
        fewer[8] &= !1;
        assert!(!offers_own_ops(&fewer));
        // A worker of a later version may have more of them.
        let mut more = answer_capabilities(Dialect::own(), &NO_CAPABILITIES);
        more[11] = 0xff;
        assert!(offers_own_ops(&more));
    }
}
