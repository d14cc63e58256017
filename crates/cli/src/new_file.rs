//! Files that are written while work goes on, and get their names once they are complete.
//!
//! Invariant: a file of that name is as it was before until the new one is complete, and work that fails leaves nothing unfinished behind.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// A file without its name yet.
#[derive(Debug)]
pub(crate) struct NewFile {
    file: File,
    path: PathBuf,
    /// What it is called until then.
    part: PathBuf,
}

impl NewFile {
    /// Begins one.
    pub(crate) fn create(path: &Path) -> Result<NewFile, Failure> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".part");
        let part = path.with_file_name(name);
        let file = File::create(&part).map_err(|error| unwritable(&part, &error))?;
        Ok(NewFile { file, path: path.to_owned(), part })
    }

    /// What to write to.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Gives it its name.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        let named = self.file.sync_all().and_then(|()| fs::rename(&self.part, &self.path));
        named.map_err(|error| unwritable(&self.part, &error))
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        // Once it has its name, there is nothing to remove.
        let _ = fs::remove_file(&self.part);
    }
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::Machine(format!("cannot write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn what_is_not_finished_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new");
        fs::write(&path, "before").unwrap();
        let new = NewFile::create(&path).unwrap();
        new.file().write_all(b"after").unwrap();
        drop(new);
        assert_eq!(fs::read(&path).unwrap(), b"before");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let new = NewFile::create(&path).unwrap();
        new.file().write_all(b"after").unwrap();
        new.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"after");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
