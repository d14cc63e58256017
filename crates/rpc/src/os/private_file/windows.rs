//! Folders of a user are private here.

use std::fs::{self, DirBuilder, Metadata, OpenOptions};
use std::io;
use std::os::windows::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// How long readers of a file have to finish before it is replaced.
const READERS_PATIENCE: Duration = Duration::from_secs(2);

/// How long to wait between two attempts to replace a file.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(5);

pub(super) fn make_private(_options: &mut OpenOptions) {}

pub(super) fn make_folder_private(_builder: &mut DirBuilder) {}

/// Why others may have a hand in a file, or have seen what is in it.
pub(crate) fn exposed(_file: &Metadata) -> Option<&'static str> {
    None
}

/// Why others may have a hand in what is in a folder.
pub(crate) fn exposed_folder(_folder: &Metadata) -> Option<&'static str> {
    None
}

/// A folder whose names are to survive a power cut, which is the system's own business here.
#[derive(Debug)]
pub(crate) struct Folder;

impl Folder {
    pub(crate) fn open(_path: &Path) -> io::Result<Folder> {
        Ok(Folder)
    }

    /// Has the names that are in it now survive.
    pub(crate) fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// What changes when a file is replaced or written to.
pub(crate) fn stamp(file: &Metadata) -> [i64; 4] {
    [file.creation_time(), file.file_size(), file.last_write_time(), 0].map(u64::cast_signed)
}

/// Puts a file in the place of another, at once. Some versions of the system do not allow that while the other is being read, which takes
/// a moment.
pub(crate) fn put_in_place(new: &Path, path: &Path) -> io::Result<()> {
    let start = Instant::now();
    loop {
        match fs::rename(new, path) {
            Err(error)
                if error.kind() == io::ErrorKind::PermissionDenied && start.elapsed() < READERS_PATIENCE =>
            {
                thread::sleep(BETWEEN_ATTEMPTS);
            }
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Workers look at the list of machines at any time, also while a command changes it.
    #[test]
    fn a_file_is_replaced_while_it_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let (new, path) = (folder.path().join("new"), folder.path().join("file"));
        fs::write(&path, "old").unwrap();
        fs::write(&new, "new").unwrap();
        let read = fs::File::open(&path).unwrap();
        thread::scope(|scope| {
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(200));
                drop(read);
            });
            put_in_place(&new, &path).unwrap();
        });
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert!(!new.exists());
    }
}
