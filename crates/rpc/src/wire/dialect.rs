//! What differs between versions of the protocol.
//!
//! A dialect is one constant, in a file of its own under `dialects/`; most of it is a table. Several dialects may answer
//! to one version number: peers that share it may number operations differently and cannot tell each other.

use std::fmt;
use std::str::FromStr;

use super::dialects;
use super::op_code::OpCode;

/// A version number as HELLO carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Peers with different ones do not understand each other.
    pub major: u8,
    /// A client refuses a worker with a higher one.
    pub minor: u8,
    /// Neither side refuses the other because of it.
    pub patch: u8,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// One way to speak the protocol.
#[derive(Clone, Copy, Debug)]
pub struct Dialect {
    /// What people call it, for example `7.0` or `2.0-0.3.9`.
    pub name: &'static str,
    /// What HELLO says.
    pub version: Version,
    /// Operations by number.
    pub ops: &'static [OpCode],
    /// Operations that ggml does not have, by number from [`Dialect::FIRST_OWN_OP`] on. Only spoken with workers that said they
    /// are ours; see [`offers_own_ops`](super::offers_own_ops).
    pub own_ops: &'static [OpCode],
    /// The first type number that does not exist.
    pub type_count: u32,
    /// ggml's names of unary functions by number.
    pub unary: &'static [&'static str],
    /// ggml's names of gated units by number.
    pub glu: &'static [&'static str],
    /// Whether HELLO carries capability bytes, and its reply too.
    pub has_capabilities: bool,
    /// Whether a worker may have several devices; requests then name one.
    pub has_devices: bool,
    /// Whether a worker keeps the last graph of a device to run it again.
    pub has_recompute: bool,
    /// Whether MEMSET_TENSOR exists.
    pub has_memset: bool,
    /// Whether records carry use counts.
    pub has_use_counts: bool,
    /// Whether SET_TENSOR says that its data is worth keeping.
    pub has_cache_flag: bool,
    /// Whether only nodes with the COMPUTE flag are executed.
    pub has_compute_flag: bool,
    /// Whether workers can be introduced to each other: EXPECT, MEET, PUSH and AWAIT exist. Only spoken with workers that said so; see
    /// [`offers_introductions`](super::offers_introductions).
    pub has_introductions: bool,
    /// Whether a session can have a pulse: PULSE exists. Only spoken with workers that said so; see [`offers_pulses`](super::offers_pulses).
    pub has_pulses: bool,
    /// Whether bytes can be named by their content: TAKE exists. Only spoken with workers that said so; see [`offers_takes`](super::offers_takes).
    pub has_takes: bool,
    /// Whether a worker keeps graphs in slots: GRAPH_KEEP, GRAPH_RUN and GRAPH_DROP exist. Only spoken with workers that said so; see
    /// [`offers_kept_graphs`](super::offers_kept_graphs).
    pub has_kept_graphs: bool,
    /// Whether FREE_BUFFER, BUFFER_CLEAR, INIT_TENSOR and MEMSET_TENSOR are answered.
    pub answers_writes: bool,
    /// Whether operations have the meaning they had in version 2: SET_ROWS names its target only as its view source, PAD
    /// has no parameters, and so on.
    pub is_classic: bool,
}

impl PartialEq for Dialect {
    fn eq(&self, other: &Dialect) -> bool {
        self.name == other.name
    }
}

impl Eq for Dialect {}

/// A name that no dialect has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown protocol version '{name}'; known are {all}", all = names())]
pub struct UnknownDialect {
    name: String,
}

fn names() -> String {
    dialects::ALL.iter().map(|dialect| dialect.name).collect::<Vec<_>>().join(", ")
}

impl FromStr for &'static Dialect {
    type Err = UnknownDialect;

    fn from_str(name: &str) -> Result<&'static Dialect, UnknownDialect> {
        dialects::ALL
            .iter()
            .copied()
            .find(|dialect| dialect.name == name)
            .ok_or_else(|| UnknownDialect { name: name.to_owned() })
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

impl Dialect {
    /// The number of the first of [`Dialect::own_ops`]: too large for ggml to get there.
    pub const FIRST_OWN_OP: u32 = 0x1000;

    /// Every dialect, newest first; our own last.
    pub const fn all() -> &'static [&'static Dialect] {
        dialects::ALL
    }

    /// The newest dialect.
    pub const fn newest() -> &'static Dialect {
        &dialects::V7_0
    }

    /// The newest dialect, with the operations that only Oxcart has.
    pub const fn own() -> &'static Dialect {
        &dialects::V7_0_OWN
    }

    /// The oldest dialect that is still carried by a package; what the protocol was first described as.
    pub const fn classic() -> &'static Dialect {
        &dialects::V2_0
    }

    /// The dialect to speak with a worker that answered HELLO with this version; `None` if there is none.
    pub fn for_worker(version: Version) -> Option<&'static Dialect> {
        // Where several share a number, the first listed is the newest carrier.
        let exact = dialects::ALL.iter().find(|dialect| dialect.version == version);
        let near = || {
            dialects::ALL.iter().find(|dialect| {
                (dialect.version.major, dialect.version.minor) == (version.major, version.minor)
            })
        };
        exact.or_else(near).copied()
    }

    /// The operation with this number.
    pub fn op(&self, number: u32) -> Option<OpCode> {
        let (table, number) = match number.checked_sub(Dialect::FIRST_OWN_OP) {
            Some(number) => (self.own_ops, number),
            None => (self.ops, number),
        };
        table.get(usize::try_from(number).ok()?).copied()
    }

    /// The number of an operation.
    pub fn op_number(&self, op: OpCode) -> Option<u32> {
        let number = |found: usize| u32::try_from(found).ok();
        if let Some(found) = self.own_ops.iter().position(|&known| known == op) {
            return number(found)?.checked_add(Dialect::FIRST_OWN_OP);
        }
        // The table is the full list less some entries, so the number is at most the full one.
        let last = (op as usize).min(self.ops.len().checked_sub(1)?);
        number(self.ops[..=last].iter().rposition(|&known| known == op)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op_numbers_are_a_bijection() {
        for dialect in Dialect::all() {
            for (number, &op) in (0..).zip(dialect.ops) {
                assert_eq!(dialect.op(number), Some(op));
                assert_eq!(dialect.op_number(op), Some(number), "{dialect}: {}", op.name());
            }
            for (number, &op) in (Dialect::FIRST_OWN_OP..).zip(dialect.own_ops) {
                assert_eq!(dialect.op(number), Some(op));
                assert_eq!(dialect.op_number(op), Some(number), "{dialect}: {}", op.name());
            }
            assert_eq!(dialect.op(u32::try_from(dialect.ops.len()).unwrap()), None);
            let own = u32::try_from(dialect.own_ops.len()).unwrap();
            assert_eq!(dialect.op(Dialect::FIRST_OWN_OP + own), None);
            assert_eq!(dialect.op(u32::MAX), None);
        }
        assert_eq!(Dialect::classic().op_number(OpCode::TopK), None);
        assert_eq!(Dialect::newest().op_number(OpCode::PagedAttn), None);
        assert_eq!(Dialect::own().op_number(OpCode::PagedAttn), Some(0x1000));
    }

    #[test]
    fn numbers_that_all_peers_rely_on() {
        let number = |name: &str, op| name.parse::<&Dialect>().unwrap().op_number(op);
        let table = [
            ("7.0", 29, 101),
            ("7.0+", 29, 101),
            ("5.1", 29, 101),
            ("4.0.3", 29, 101),
            ("4.0.2", 29, 98),
            ("4.0.1", 29, 97),
            ("4.0.0", 29, 96),
            ("3.6", 29, 96),
            ("2.0", 28, 88),
            ("2.0-0.3.14", 27, 86),
            ("2.0-0.3.9", 27, 82),
        ];
        for (name, mul_mat, count) in table {
            assert_eq!(number(name, OpCode::MulMat), Some(mul_mat), "{name}");
            assert_eq!(name.parse::<&Dialect>().unwrap().ops.len(), count, "{name}");
        }
        assert_eq!(number("7.0", OpCode::Unary), Some(91));
        assert_eq!(number("4.0.2", OpCode::LightningIndexer), Some(87));
        assert_eq!(number("4.0.1", OpCode::Col2im1d), Some(55));
        assert_eq!(number("2.0", OpCode::Glu), Some(87));
        assert_eq!(number("2.0-0.3.14", OpCode::Glu), Some(85));
    }

    #[test]
    fn a_worker_is_spoken_to_in_its_own_dialect() {
        let speak =
            |major, minor, patch| Dialect::for_worker(Version { major, minor, patch }).map(|d| d.name);
        assert_eq!(speak(7, 0, 0), Some("7.0"));
        assert_eq!(speak(7, 0, 9), Some("7.0"));
        assert_eq!(speak(4, 0, 1), Some("4.0.1"));
        assert_eq!(speak(4, 0, 0), Some("4.0.0"));
        assert_eq!(speak(2, 0, 0), Some("2.0"));
        // These look alike and are not.
        assert_eq!(speak(3, 5, 0), None);
        assert_eq!(speak(3, 0, 0), None);
        assert_eq!(speak(6, 0, 0), None);
        assert_eq!(speak(1, 0, 0), None);
    }

    #[test]
    fn unknown_names_are_refused() {
        let refused = "9.9".parse::<&Dialect>().unwrap_err().to_string();
        assert!(refused.starts_with("unknown protocol version '9.9'; known are 7.0, 5.1"), "{refused}");
    }
}
