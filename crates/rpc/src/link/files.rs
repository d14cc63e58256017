//! Small private files that are whole at every moment, and changed by one process at a time.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use crate::os::private_file::{Folder, create, exposed, exposed_folder, make_folder, put_in_place, to_lock};

/// Why a file was not read.
#[derive(Debug)]
pub(super) enum Unread {
    /// There is none.
    Missing,
    /// Others may have a hand in it.
    Exposed(&'static str),
    /// It is longer than such a file can be.
    TooLong,
    /// It is not text.
    NoText,
    /// The system says why.
    Io(io::Error),
}

/// What a private file says.
pub(super) fn read(path: &Path, max_bytes: u64) -> Result<String, Unread> {
    let file = File::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Unread::Missing,
        _ => Unread::Io(error),
    })?;
    let found = file.metadata().map_err(Unread::Io)?;
    if !found.is_file() {
        return Err(Unread::Exposed("it is no file"));
    }
    let folder = path.parent().and_then(|folder| fs::metadata(folder).ok());
    if let Some(why) = exposed(&found).or_else(|| exposed_folder(&folder?)) {
        return Err(Unread::Exposed(why));
    }
    let mut text = String::new();
    file.take(max_bytes + 1).read_to_string(&mut text).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => Unread::NoText,
        _ => Unread::Io(error),
    })?;
    match text.len() as u64 > max_bytes {
        true => Err(Unread::TooLong),
        false => Ok(text),
    }
}

/// Lets no other process change files of a folder until it is dropped. Makes the folder if it does not exist yet; in one that others may
/// change nothing is made.
pub(super) fn lock(folder: &Path) -> Result<File, Unread> {
    let lock = || {
        make_folder(folder)?;
        if let Some(why) = exposed_folder(&fs::metadata(folder)?) {
            return Ok(Err(Unread::Exposed(why)));
        }
        let file = to_lock(&folder.join("lock"))?;
        file.lock()?;
        Ok(Ok(file))
    };
    lock().unwrap_or_else(|error| Err(Unread::Io(error)))
}

/// Puts a text in the place of a file, at once and for good. The caller holds the lock of the folder. An error means that nothing has
/// changed.
pub(super) fn replace(path: &Path, text: &str) -> io::Result<()> {
    replace_and(path, text, Folder::sync)
}

fn replace_and(path: &Path, text: &str, sync: impl FnOnce(&Folder) -> io::Result<()>) -> io::Result<()> {
    // Before anything is changed, because opening it may fail.
    let folder = path.parent().map(Folder::open).transpose()?;
    let beside = path.with_extension("new");
    // What a process left behind that was killed here.
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = create(&beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    drop(file);
    put_in_place(&beside, path)?;
    // From here on it has changed for everyone who looks. If this fails, a power cut may bring back what was before.
    let _ = folder.map(|folder| sync(&folder));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who is told that nothing was changed believes it: that a machine was not paired, for example.
    #[test]
    fn an_error_means_that_nothing_has_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let replaced = replace_and(&path, "new", |_| Err(io::ErrorKind::StorageFull.into()));
        assert_eq!((replaced.is_ok(), fs::read_to_string(&path).unwrap().as_str()), (true, "new"));
        // What fails earlier fails with nothing done.
        fs::create_dir(path.with_extension("new")).unwrap();
        assert!(replace(&path, "newer").is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    }
}
