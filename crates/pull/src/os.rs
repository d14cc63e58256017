//! What systems do differently, as far as this crate is concerned.

use std::path::Path;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn disks_tell_what_is_free() {
        assert!(free_bytes(&std::env::temp_dir()).is_some());
        assert_eq!(free_bytes(Path::new("/nowhere/at/all")), None);
    }
}
