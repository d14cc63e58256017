//! What systems do differently, as far as a command is concerned. The rest of it asks nothing about the system it runs on.

pub(crate) mod requests;

/// Whether a terminal here understands escape sequences.
#[cfg(not(windows))]
pub(crate) fn has_escape_sequences() -> bool {
    true
}

/// Whether a terminal here understands escape sequences: it may have to be asked to, and old ones never do.
#[cfg(windows)]
pub(crate) fn has_escape_sequences() -> bool {
    anstyle_query::windows::enable_ansi_colors().unwrap_or(false)
}
