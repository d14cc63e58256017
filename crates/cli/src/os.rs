//! What systems do differently, as far as a command is concerned. The rest of it asks nothing about the system it runs on.

use std::path::PathBuf;

pub(crate) mod requests;

/// Where a user's cache is by the conventions of the system; `named` gives the folder that a variable of the environment
/// names.
#[cfg(not(windows))]
pub(crate) fn cache_folder(named: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    Some(named("HOME")?.join(".cache"))
}

/// Where a user's cache is by the conventions of the system; `named` gives the folder that a variable of the environment
/// names.
#[cfg(windows)]
pub(crate) fn cache_folder(named: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    named("LOCALAPPDATA")
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_without_a_home_has_no_cache() {
        assert_eq!(cache_folder(|_| None), None);
        let home = std::env::temp_dir();
        assert!(cache_folder(|_| Some(home.clone())).unwrap().starts_with(&home));
    }
}
