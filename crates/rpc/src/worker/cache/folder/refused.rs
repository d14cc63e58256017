//! A system without folders that a cache could trust: nothing is opened, so nothing below can be reached.
//!
//! On Windows, who may write to a file is a list that is inherited from folders above and can change at any time; names are
//! looked up anew with every call; and a name may lead elsewhere through more than links. A check of all that which is as
//! strict as the other systems' is yet to be written.

use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::{Gate, Listed, PlainFile};

/// A folder that there is none of.
#[derive(Debug)]
pub(crate) struct Folder {
    none: Infallible,
}

/// Whether an error says that a file is none to be opened.
pub(crate) fn is_about_the_file(_error: &io::Error) -> bool {
    false
}

/// Sets room aside for a file.
pub(super) fn set_aside(_file: &File, _bytes: u64) -> io::Result<()> {
    Ok(())
}

impl Folder {
    /// Refuses.
    pub(crate) fn open(_path: &Path, _gate: Arc<dyn Gate>) -> io::Result<Folder> {
        let why = format!(
            "on {} Oxcart cannot make sure that only you can change what is kept, so it keeps nothing",
            std::env::consts::OS
        );
        Err(io::Error::new(io::ErrorKind::Unsupported, why))
    }

    pub(crate) fn inner(&self, _name: &str) -> io::Result<Option<Folder>> {
        match self.none {}
    }

    pub(crate) fn make_inner(&self, _name: &str) -> io::Result<Folder> {
        match self.none {}
    }

    pub(crate) fn each_name(&self, _each: impl FnMut(&str)) -> io::Result<()> {
        match self.none {}
    }

    pub(crate) fn has(&self, _name: &str) -> io::Result<bool> {
        match self.none {}
    }

    pub(crate) fn listed(&self, _name: &str) -> io::Result<Option<Listed>> {
        match self.none {}
    }

    pub(crate) fn create(&self, _name: &str) -> io::Result<PlainFile> {
        match self.none {}
    }

    pub(crate) fn read(&self, _name: &str) -> io::Result<Option<PlainFile>> {
        match self.none {}
    }

    pub(crate) fn rename_new(&self, _from: &str, _to: &str) -> io::Result<bool> {
        match self.none {}
    }

    pub(crate) fn remove(&self, _name: &str) -> io::Result<()> {
        match self.none {}
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        match self.none {}
    }

    pub(crate) fn free_bytes(&self) -> io::Result<u64> {
        match self.none {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::OpenGate;
    use super::*;

    #[test]
    fn a_cache_is_refused_with_a_sentence() {
        let error = Folder::open(&std::env::temp_dir(), Arc::new(OpenGate)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        assert!(error.to_string().contains("only you can change what is kept"), "{error}");
    }
}
