//! Folders of the cache and the files in them: every call to the file system that the cache makes.
//!
//! Invariants: names are relative to an open folder and have no path in them; no link is followed; what is opened is a
//! plain file of ours that no other user may write to. A system that cannot promise all of that has no [`Folder`] and says so.
//! A [`Gate`] stands before every call, so that tests can make each of them fail.

use std::fmt;
use std::fs;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

#[cfg(unix)]
#[path = "folder/unix.rs"]
mod system;
#[cfg(not(unix))]
#[path = "folder/refused.rs"]
mod system;

pub(super) use system::{Folder, is_about_the_file};

/// What is asked of the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Open a folder, or make one.
    Folder,
    /// List a folder.
    List,
    /// See what a name stands for.
    Look,
    /// Ask how much room there is.
    Space,
    /// Make a file.
    Create,
    /// Open a file that is there.
    Open,
    /// Lock a file.
    Lock,
    /// Set room aside for a file.
    Reserve,
    /// Read from a file.
    Read,
    /// Write to a file.
    Write,
    /// Have a file or a folder reach the disk.
    Sync,
    /// Give a file its name.
    Rename,
    /// Remove a file or a folder.
    Remove,
    /// Note that a file was used.
    Touch,
}

/// What is asked before every call, and may make it fail.
pub trait Gate: Send + Sync + fmt::Debug {
    /// An error makes the call fail with it, without effect.
    fn before(&self, call: Call) -> io::Result<()>;

    /// What is free, where so many bytes are: for disks of another size than the one there is.
    fn free_bytes(&self, there: u64) -> u64 {
        there
    }
}

/// Lets every call through.
#[derive(Debug)]
pub(super) struct OpenGate;

impl Gate for OpenGate {
    fn before(&self, _call: Call) -> io::Result<()> {
        Ok(())
    }
}

/// What a listing says about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) bytes: u64,
    /// Seconds and nanoseconds of its last use.
    pub(super) used: (i64, i64),
}

impl Listed {
    /// Whether its writer may be about to lock it.
    pub(super) fn is_young_and_empty(&self) -> bool {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let born = Duration::from_secs(u64::try_from(self.used.0).unwrap_or_default());
        self.bytes == 0 && now < born.saturating_add(NEWBORN) && born < now.saturating_add(NEWBORN)
    }
}

/// How long a file may take to be locked once it was made.
const NEWBORN: Duration = Duration::from_secs(60);

/// An open plain file.
#[derive(Debug)]
pub(super) struct PlainFile {
    file: fs::File,
    gate: Arc<dyn Gate>,
}

impl PlainFile {
    fn new(file: fs::File, gate: &Arc<dyn Gate>) -> PlainFile {
        PlainFile { file, gate: Arc::clone(gate) }
    }

    pub(super) fn bytes(&self) -> io::Result<u64> {
        self.gate.before(Call::Look)?;
        Ok(self.file.metadata()?.len())
    }

    /// Another handle of the same open file.
    pub(super) fn again(&self) -> io::Result<PlainFile> {
        Ok(PlainFile::new(self.file.try_clone()?, &self.gate))
    }

    /// Locks it for as long as it is open; `false` if another process or thread holds the lock.
    pub(super) fn lock(&self) -> io::Result<bool> {
        self.gate.before(Call::Lock)?;
        match self.file.try_lock() {
            Ok(()) => Ok(true),
            Err(fs::TryLockError::WouldBlock) => Ok(false),
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }

    /// Gives it a length and, where the file system can, the room for it.
    pub(super) fn reserve(&self, bytes: u64) -> io::Result<()> {
        self.gate.before(Call::Reserve)?;
        self.file.set_len(bytes)?;
        system::set_aside(&self.file, bytes)
    }

    pub(super) fn seek(&mut self, offset: u64) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(offset)).map(|_| ())
    }

    pub(super) fn read_exact(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.gate.before(Call::Read)?;
        self.file.read_exact(bytes)
    }

    pub(super) fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.gate.before(Call::Write)?;
        self.file.write_all(bytes)
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        self.gate.before(Call::Sync)?;
        self.file.sync_data()
    }

    /// Notes that it was used now.
    pub(super) fn touch(&self) -> io::Result<()> {
        self.gate.before(Call::Touch)?;
        self.file.set_modified(SystemTime::now())
    }
}
