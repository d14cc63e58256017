//! Folders of a user are private here.

use std::fs::{DirBuilder, Metadata, OpenOptions};
use std::io;
use std::os::windows::fs::MetadataExt;
use std::path::Path;

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
