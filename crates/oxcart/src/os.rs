//! What systems do differently, as far as this crate is concerned.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

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

/// Makes a file that must not exist yet, for this user alone.
pub(crate) fn make_private_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Makes a folder, and those that it is in, for this user alone, where they do not exist yet.
pub(crate) fn make_private_folder(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Whether a file or folder is this user's, and no other user can change it.
#[cfg(unix)]
pub(crate) fn is_private(found: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o022 == 0
}

/// Whether a file or folder is this user's, and no other user can change it. Folders of a user are private here.
#[cfg(not(unix))]
pub(crate) fn is_private(_found: &Metadata) -> bool {
    true
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
