//! Systems that place threads by themselves, macOS among them.

/// What keeps threads from being pinned on this system.
pub(crate) const CANNOT: Option<&str> = Some("pinning threads to processors: this system places them itself");

/// Does nothing: a stream with such options is refused before it starts a thread.
pub(crate) fn pin(_cpu: usize) {}
