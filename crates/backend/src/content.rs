//! What bytes are known by, to those who may have them already.
//!
//! Invariant: bytes count as those of a [`Content`] only after they were compared with its digest; the hash only says where to look.

/// What tells bytes from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Content {
    /// A 64-bit hash that peers of other makes know bytes by, too. Two contents with one hash are easily made.
    pub hash: u64,
    /// A strong digest.
    pub digest: [u8; 32],
}
