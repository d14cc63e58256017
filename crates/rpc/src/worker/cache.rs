//! Weights kept by content, so that a model crosses the network once. Only the interface: a worker without a cache
//! answers every hash with "not here".

use std::fmt;

use super::space::Window;

/// Contents by the hash that clients name them by. The hash is weak: whoever implements this must keep a digest of its
/// own and verify it before the first byte is used (threats K1 to K7).
///
/// Concurrency: called from the threads of all clients at a time.
pub trait WeightCache: Send + Sync + fmt::Debug {
    /// Writes the content of this hash to the start of `into`, if it is here, whole, undamaged and not longer than
    /// that, and says whether it did. Whatever goes wrong is a miss.
    fn load(&self, hash: u64, into: &Window) -> bool;

    /// Keeps what these bytes are now, if there is room. Whatever goes wrong means that they are not kept.
    fn store(&self, from: &Window);
}

/// Bytes above which clients before 7.0 ask for the hash, and what they send is kept. Newer clients say what to keep.
pub(crate) const KEPT_ABOVE_BYTES: u64 = 10_485_760;
