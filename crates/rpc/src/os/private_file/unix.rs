//! Owners and modes.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

pub(super) fn make_private(options: &mut OpenOptions) {
    options.mode(0o600);
}

pub(super) fn make_folder_private(builder: &mut DirBuilder) {
    builder.mode(0o700);
}

/// Why others may have a hand in a file, or have seen what is in it.
pub(crate) fn exposed(file: &Metadata) -> Option<&'static str> {
    if file.uid() != rustix::process::geteuid().as_raw() {
        return Some("it belongs to another user");
    }
    (file.mode() & 0o077 != 0).then_some("other users may read or change it; see to it, then chmod 600")
}

/// Why others may have a hand in what is in a folder.
pub(crate) fn exposed_folder(folder: &Metadata) -> Option<&'static str> {
    let owner = folder.uid();
    // The system's own folders are the business of who may do everything anyway.
    if owner != rustix::process::geteuid().as_raw() && owner != 0 {
        return Some("the folder that it is in belongs to another user");
    }
    let is_open = folder.mode() & 0o022 != 0;
    is_open.then_some("other users may change the folder that it is in; see to it, then chmod 700")
}

/// A folder whose names are to survive a power cut.
#[derive(Debug)]
pub(crate) struct Folder(File);

impl Folder {
    pub(crate) fn open(path: &Path) -> io::Result<Folder> {
        File::open(path).map(Folder)
    }

    /// Has the names that are in it now survive.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.0.sync_all()
    }
}

/// What changes when a file is replaced or written to.
pub(crate) fn stamp(file: &Metadata) -> [i64; 4] {
    let number = file.ino().cast_signed();
    [number, file.size().cast_signed(), file.ctime(), file.ctime_nsec()]
}

/// Puts a file in the place of another, at once, whether that is being read or not.
pub(crate) fn put_in_place(new: &Path, path: &Path) -> io::Result<()> {
    fs::rename(new, path)
}
