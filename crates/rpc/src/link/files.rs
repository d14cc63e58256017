//! Small private files that are whole at every moment, and changed by one process at a time.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use crate::os::private_file::{create, exposed, exposed_folder, make_folder, sync_folder, to_lock};

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

/// Lets no other process change files of a folder until it is dropped. Makes the folder if it does not exist yet.
pub(super) fn lock(folder: &Path) -> io::Result<File> {
    make_folder(folder)?;
    let file = to_lock(&folder.join("lock"))?;
    file.lock()?;
    Ok(file)
}

/// Puts a text in the place of a file, at once and for good. The caller holds the lock of the folder.
pub(super) fn replace(path: &Path, text: &str) -> io::Result<()> {
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
    fs::rename(&beside, path)?;
    path.parent().map_or(Ok(()), sync_folder)
}
