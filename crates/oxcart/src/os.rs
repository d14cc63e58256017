//! What systems do differently, as far as this crate is concerned.

use std::path::PathBuf;

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

/// Where programs keep what a user cannot have again, likewise.
#[cfg(not(windows))]
pub(crate) fn data_folder(named: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    Some(named("HOME")?.join(".local/share"))
}

/// Where programs keep what a user cannot have again, likewise; not where it would follow the user to other machines.
#[cfg(windows)]
pub(crate) fn data_folder(named: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    named("LOCALAPPDATA")
}

/// Where programs keep what a user would miss a little, likewise.
#[cfg(not(windows))]
pub(crate) fn state_folder(named: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    Some(named("HOME")?.join(".local/state"))
}

/// Where programs keep what a user would miss a little, likewise.
#[cfg(windows)]
pub(crate) fn state_folder(named: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    named("LOCALAPPDATA")
}

/// Where a user's settings are, likewise.
#[cfg(not(windows))]
pub(crate) fn settings_folder(named: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    Some(named("HOME")?.join(".config"))
}

/// Where a user's settings are, likewise.
#[cfg(windows)]
pub(crate) fn settings_folder(named: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    named("APPDATA")
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
