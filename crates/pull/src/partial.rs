//! A file on its way: it grows beside where it will be, and is renamed when it is whole and right.
//!
//! Invariants: one process at a time writes to it, which a lock of the file system sees to. Beside it lies a note of what it is
//! a part of; where the note differs from what is fetched, it starts anew.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::{During, Error};

/// What a fetched file has to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) bytes: Option<u64>,
    /// In hexadecimal digits.
    pub(crate) sha256: Option<String>,
    pub(crate) kind: Kind,
}

/// What a file is, which shows in its first bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    #[default]
    Model,
    Wheel,
}

impl Kind {
    fn magic(self) -> &'static [u8; 4] {
        match self {
            Kind::Model => b"GGUF",
            Kind::Wheel => b"PK\x03\x04",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Model => "GGUF file",
            Kind::Wheel => "wheel",
        }
    }
}

/// A file on its way.
#[derive(Debug)]
pub(crate) struct Partial {
    file: File,
    path: PathBuf,
    note: PathBuf,
    target: PathBuf,
    len: u64,
}

impl Partial {
    /// Opens what there is of a file already, or starts it.
    pub(crate) fn open(target: &Path) -> Result<Partial, Error> {
        let folder = target.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder).during("create", folder)?;
        let name = |end: &str| {
            let mut name = target.file_name().unwrap_or_default().to_owned();
            name.push(end);
            target.with_file_name(name)
        };
        let (path, note) = (name(".part"), name(".part.of"));
        let mut options = OpenOptions::new();
        let file =
            options.read(true).write(true).create(true).truncate(false).open(&path).during("open", &path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::Busy { path }),
            Err(TryLockError::Error(source)) => return Err(Error::File { action: "lock", path, source }),
        }
        let len = file.metadata().during("look at", &path)?.len();
        Ok(Partial { file, path, note, target: target.to_owned(), len })
    }

    /// What it is a part of, as noted when it was begun.
    pub(crate) fn of(&self) -> Option<String> {
        fs::read_to_string(&self.note).ok().filter(|_| self.len > 0)
    }

    /// Where it grows.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// How much of it there is.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Starts anew, as a part of something else.
    pub(crate) fn restart(&mut self, of: &str) -> Result<(), Error> {
        self.file.set_len(0).during("empty", &self.path)?;
        self.len = 0;
        fs::write(&self.note, of).during("write", &self.note)
    }

    /// Adds what a reader has up to a length, telling how much there is after each piece. The inner error is the reader's.
    pub(crate) fn append(
        &mut self,
        from: &mut dyn Read,
        limit: u64,
        mut progress: impl FnMut(u64),
    ) -> Result<io::Result<()>, Error> {
        self.file.seek(SeekFrom::End(0)).during("write", &self.path)?;
        let mut piece = vec![0; 256 << 10];
        loop {
            let read = match from.read(&mut piece) {
                Ok(0) => return Ok(Ok(())),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Ok(Err(error)),
            };
            if read as u64 > limit.saturating_sub(self.len) {
                return Err(self.wrong(format!(
                    "it is longer than the {limit} bytes that were announced or that there is room for"
                )));
            }
            self.len += read as u64;
            self.file.write_all(&piece[..read]).during("write", &self.path)?;
            progress(self.len);
        }
    }

    /// Checks the whole file and gives it its name.
    pub(crate) fn finish(mut self, expected: &Expected) -> Result<PathBuf, Error> {
        if let Some(bytes) = expected.bytes.filter(|bytes| *bytes != self.len) {
            return Err(self.wrong(format!("it has {} bytes instead of {bytes}", self.len)));
        }
        self.file.seek(SeekFrom::Start(0)).during("read", &self.path)?;
        let mut magic = [0; 4];
        if self.file.read_exact(&mut magic).is_err() || magic != *expected.kind.magic() {
            return Err(self.wrong(format!("it is not a {}", expected.kind.name())));
        }
        if let Some(sha256) = &expected.sha256 {
            self.file.seek(SeekFrom::Start(0)).during("read", &self.path)?;
            let found = sha256_of(&mut self.file).during("read", &self.path)?;
            if !found.eq_ignore_ascii_case(sha256) {
                return Err(self.wrong(format!("its SHA-256 is {found} instead of {sha256}")));
            }
        }
        self.file.sync_all().during("write", &self.path)?;
        fs::rename(&self.path, &self.target).during("rename", &self.path)?;
        // Only the note of a file that is here is left; it does no harm.
        let _ = fs::remove_file(&self.note);
        Ok(self.target)
    }

    /// What came is of no use: the next one who asks starts anew.
    fn wrong(&self, reason: String) -> Error {
        let _ = self.file.set_len(0);
        let what = self.target.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Error::Wrong { what, reason }
    }
}

/// How much there is of a file that is on its way.
pub(crate) fn begun(target: &Path) -> u64 {
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    fs::metadata(target.with_file_name(name)).map_or(0, |about| about.len())
}

/// The SHA-256 of a file, in hexadecimal digits.
pub(crate) fn sha256_of(file: &mut File) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut piece = vec![0; 1 << 20];
    loop {
        match file.read(&mut piece) {
            Ok(0) => break,
            Ok(read) => hash.update(&piece[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(hex(&hash.finalize()))
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .filter_map(|digit| char::from_digit(digit.into(), 16))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected(bytes: u64) -> Expected {
        Expected { bytes: Some(bytes), ..Expected::default() }
    }

    #[test]
    fn what_is_whole_gets_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("deep/model.gguf");
        let mut partial = Partial::open(&target).unwrap();
        assert!(matches!(Partial::open(&target), Err(Error::Busy { .. })));
        partial.restart("a").unwrap();
        let mut seen = Vec::new();
        partial.append(&mut &b"GGUF1234"[..], 8, |len| seen.push(len)).unwrap().unwrap();
        assert_eq!((partial.of().as_deref(), seen), (Some("a"), vec![8]));
        let sha256 = hex(&Sha256::digest(b"GGUF1234"));
        let whole = Expected { bytes: Some(8), sha256: Some(sha256), kind: Kind::Model };
        assert_eq!(partial.finish(&whole).unwrap(), target);
        assert_eq!(fs::read(&target).unwrap(), b"GGUF1234");
        assert_eq!(fs::read_dir(target.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_wrong_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("model.gguf");
        for (contents, expected) in [
            (&b"GGUF123"[..], expected(8)),
            (b"<html>..", expected(8)),
            (b"GGUF1234", Expected { sha256: Some("00".repeat(32)), ..Expected::default() }),
            (b"", Expected::default()),
        ] {
            let mut partial = Partial::open(&target).unwrap();
            partial.restart("x").unwrap();
            partial.append(&mut &*contents, u64::MAX, |_| {}).unwrap().unwrap();
            assert!(matches!(partial.finish(&expected), Err(Error::Wrong { .. })));
            assert!(!target.exists());
            assert_eq!(Partial::open(&target).unwrap().len(), 0, "it starts anew");
        }
    }

    #[test]
    fn longer_than_announced_is_wrong_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut partial = Partial::open(&folder.path().join("m")).unwrap();
        assert!(partial.append(&mut io::repeat(1), 1000, |_| {}).is_err());
    }
}
