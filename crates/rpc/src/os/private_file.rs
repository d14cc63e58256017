//! Files and folders that no other user may look into.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;

#[cfg(unix)]
#[path = "private_file/unix.rs"]
mod system;
#[cfg(windows)]
#[path = "private_file/windows.rs"]
mod system;

pub(crate) use system::{Folder, exposed, exposed_folder, put_in_place, stamp};

/// Makes a file that must not exist yet, to write to.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    system::make_private(&mut options);
    options.open(path)
}

/// A file to lock, made if it does not exist yet.
pub(crate) fn to_lock(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    system::make_private(&mut options);
    options.open(path)
}

/// Makes a folder, and those that it is in, if they do not exist yet.
pub(crate) fn make_folder(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    system::make_folder_private(&mut builder);
    builder.create(path)
}
