//! What systems do differently, as far as this crate is concerned.

use std::path::{Path, PathBuf};

/// Bytes that a user may still write to the disk of a folder, where the system tells.
#[cfg(unix)]
pub(crate) fn free_bytes(folder: &Path) -> Option<u64> {
    let space = rustix::fs::statvfs(folder).ok()?;
    space.f_bavail.checked_mul(space.f_frsize)
}

/// Bytes that a user may still write to the disk of a folder, where the system tells.
#[cfg(not(unix))]
pub(crate) fn free_bytes(_folder: &Path) -> Option<u64> {
    None
}

/// The name of pip's configuration files.
#[cfg(not(windows))]
const PIP_FILE: &str = "pip.conf";
/// The name of pip's configuration files.
#[cfg(windows)]
const PIP_FILE: &str = "pip.ini";

/// Where pip looks for its configuration, later files over earlier ones; `named` gives the folder that a variable of the
/// environment names.
pub(crate) fn pip_files(named: impl Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    let mut folders = pip_folders(&named);
    // The files of a virtual environment are in its own folder.
    folders.extend(named("VIRTUAL_ENV"));
    folders.into_iter().map(|folder| folder.join(PIP_FILE)).collect()
}

#[cfg(all(unix, not(target_os = "macos")))]
fn pip_folders(named: &impl Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    let mut folders = vec![PathBuf::from("/etc/xdg/pip"), PathBuf::from("/etc")];
    folders.extend(named("HOME").map(|home| home.join(".pip")));
    folders.extend(
        named("XDG_CONFIG_HOME")
            .or_else(|| Some(named("HOME")?.join(".config")))
            .map(|home| home.join("pip")),
    );
    folders
}

#[cfg(target_os = "macos")]
fn pip_folders(named: &impl Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    let mut folders = vec![PathBuf::from("/Library/Application Support/pip")];
    if let Some(home) = named("HOME") {
        folders.push(home.join(".pip"));
        folders.push(home.join(".config/pip"));
        folders.push(home.join("Library/Application Support/pip"));
    }
    folders
}

#[cfg(windows)]
fn pip_folders(named: &impl Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = named("ProgramData").map(|data| data.join("pip")).into_iter().collect();
    folders.extend(named("USERPROFILE").map(|home| home.join("pip")));
    folders.extend(named("APPDATA").map(|data| data.join("pip")));
    folders
}

#[cfg(not(any(unix, windows)))]
fn pip_folders(_named: &impl Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_comes_after_the_machine() {
        let home = std::env::temp_dir();
        let files = pip_files(|_| Some(home.clone()));
        assert!(files.last().is_some_and(|last| last.starts_with(&home)), "{files:?}");
        assert!(pip_files(|_| None).iter().all(|file| !file.starts_with(&home)));
    }

    #[cfg(unix)]
    #[test]
    fn disks_tell_what_is_free() {
        assert!(free_bytes(&std::env::temp_dir()).is_some());
        assert_eq!(free_bytes(Path::new("/nowhere/at/all")), None);
    }
}
