//! Folders of the cache and the files in them: every call to the file system that the cache makes.
//!
//! Invariants: names are relative to an open folder and have no path in them; no link is followed; what is opened is a
//! plain file of ours that no other user may write to. A [`Gate`] stands before every call, so that tests can make each of
//! them fail.

use std::fmt;
use std::fs::{self, DirBuilder};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;

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
}

/// Lets every call through.
#[derive(Debug)]
pub(super) struct OpenGate;

impl Gate for OpenGate {
    fn before(&self, _call: Call) -> io::Result<()> {
        Ok(())
    }
}

/// An open folder.
#[derive(Debug)]
pub(super) struct Folder {
    fd: OwnedFd,
    gate: Arc<dyn Gate>,
}

/// What a listing says about a file.
#[derive(Clone, Copy, Debug)]
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

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Permission to write for others than the owner.
const OTHERS_WRITE: u32 = 0o022;

/// Whether something belongs to this user, or to root, whom nothing keeps out, and no other user may change it.
fn is_ours(stat: &Stat) -> bool {
    let owner = stat.st_uid;
    (owner == rustix::process::geteuid().as_raw() || owner == 0) && stat.st_mode & OTHERS_WRITE == 0
}

fn not_ours(what: &str) -> io::Error {
    let why = format!("{what} belongs to another user, or others may write to it");
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// Whether an error says that a file is none to be opened: a link, a socket, another user's.
pub(super) fn is_about_the_file(error: &io::Error) -> bool {
    let number = Errno::from_io_error(error);
    error.kind() == io::ErrorKind::PermissionDenied
        || matches!(number, Some(Errno::LOOP | Errno::NXIO | Errno::MLINK))
}

impl Folder {
    /// Opens a folder, or makes it, for us alone.
    pub(super) fn open(path: &Path, gate: Arc<dyn Gate>) -> io::Result<Folder> {
        gate.before(Call::Folder)?;
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        // The operator's own path may lead through links.
        let fd = rustix::fs::open(path, FOLDER.difference(OFlags::NOFOLLOW), Mode::empty())?;
        Folder::checked(fd, gate)
    }

    fn checked(fd: OwnedFd, gate: Arc<dyn Gate>) -> io::Result<Folder> {
        if !is_ours(&rustix::fs::fstat(&fd)?) {
            return Err(not_ours("the folder"));
        }
        Ok(Folder { fd, gate })
    }

    /// A folder inside; `None` if there is none.
    pub(super) fn inner(&self, name: &str) -> io::Result<Option<Folder>> {
        self.gate.before(Call::Folder)?;
        match rustix::fs::openat(&self.fd, name, FOLDER, Mode::empty()) {
            Ok(fd) => Folder::checked(fd, Arc::clone(&self.gate)).map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// A folder inside, made if there is none.
    pub(super) fn make_inner(&self, name: &str) -> io::Result<Folder> {
        self.gate.before(Call::Folder)?;
        match rustix::fs::mkdirat(&self.fd, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        self.inner(name)?.ok_or_else(|| Errno::NOENT.into())
    }

    /// Names in it, one by one. Those that are not text are none of ours.
    pub(super) fn each_name(&self, mut each: impl FnMut(&str)) -> io::Result<()> {
        self.gate.before(Call::List)?;
        for entry in Dir::read_from(&self.fd)? {
            if let Ok(name) = entry?.file_name().to_str() {
                each(name);
            }
        }
        Ok(())
    }

    /// What a name stands for; `None` if there is no such name.
    fn stat(&self, name: &str) -> io::Result<Option<Stat>> {
        self.gate.before(Call::Look)?;
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether there is anything with this name.
    pub(super) fn has(&self, name: &str) -> io::Result<bool> {
        Ok(self.stat(name)?.is_some())
    }

    /// A plain file of this name, as a listing shows it.
    pub(super) fn listed(&self, name: &str) -> io::Result<Option<Listed>> {
        let stat = self.stat(name)?.filter(|stat| FileType::from_raw_mode(stat.st_mode).is_file());
        #[allow(clippy::useless_conversion, reason = "not of the same width on every system")]
        let listed = stat.map(|stat| Listed {
            bytes: u64::try_from(stat.st_size).unwrap_or(0),
            used: (stat.st_mtime.into(), i64::try_from(stat.st_mtime_nsec).unwrap_or(0)),
        });
        Ok(listed)
    }

    /// Makes a file for us alone. There must be none of this name.
    pub(super) fn create(&self, name: &str) -> io::Result<PlainFile> {
        self.gate.before(Call::Create)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR)?;
        Ok(PlainFile { file: fd.into(), gate: Arc::clone(&self.gate) })
    }

    /// Opens a plain file of ours; `None` if there is no such name.
    pub(super) fn read(&self, name: &str) -> io::Result<Option<PlainFile>> {
        self.gate.before(Call::Open)?;
        // A pipe without a writer must not hold us up.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let stat = rustix::fs::fstat(&fd)?;
        // A second name would be a way for others to keep a hand on it.
        if !FileType::from_raw_mode(stat.st_mode).is_file() || !is_ours(&stat) || stat.st_nlink != 1 {
            return Err(not_ours("the file"));
        }
        Ok(Some(PlainFile { file: fd.into(), gate: Arc::clone(&self.gate) }))
    }

    /// Gives a file its name, unless that is taken; says whether it did.
    pub(super) fn rename_new(&self, from: &str, to: &str) -> io::Result<bool> {
        self.gate.before(Call::Rename)?;
        #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
        {
            let flags = rustix::fs::RenameFlags::NOREPLACE;
            match rustix::fs::renameat_with(&self.fd, from, &self.fd, to, flags) {
                Ok(()) => return Ok(true),
                Err(Errno::EXIST) => return Ok(false),
                // Some file systems do not know how.
                Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if self.has(to)? {
            return Ok(false);
        }
        rustix::fs::renameat(&self.fd, from, &self.fd, to)?;
        Ok(true)
    }

    /// Removes whatever has this name: a file, a link, a pipe, or an empty folder.
    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        self.gate.before(Call::Remove)?;
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Err(Errno::ISDIR | Errno::PERM) => Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR)?),
            done => Ok(done?),
        }
    }

    /// Makes the names in it last.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.gate.before(Call::Sync)?;
        Ok(rustix::fs::fsync(&self.fd)?)
    }

    /// Bytes that may still be written to its file system.
    pub(super) fn free_bytes(&self) -> io::Result<u64> {
        self.gate.before(Call::Space)?;
        let space = rustix::fs::fstatvfs(&self.fd)?;
        Ok(space.f_bavail.saturating_mul(space.f_frsize))
    }
}

/// An open plain file.
#[derive(Debug)]
pub(super) struct PlainFile {
    file: fs::File,
    gate: Arc<dyn Gate>,
}

impl PlainFile {
    pub(super) fn bytes(&self) -> io::Result<u64> {
        self.gate.before(Call::Look)?;
        Ok(self.file.metadata()?.len())
    }

    /// Another handle of the same open file.
    pub(super) fn again(&self) -> io::Result<PlainFile> {
        Ok(PlainFile { file: self.file.try_clone()?, gate: Arc::clone(&self.gate) })
    }

    /// Locks it for as long as it is open; `false` if another process or thread holds the lock.
    pub(super) fn lock(&self) -> io::Result<bool> {
        self.gate.before(Call::Lock)?;
        match rustix::fs::flock(self.file.as_fd(), FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Gives it a length and, where the file system can, the room for it.
    pub(super) fn reserve(&self, bytes: u64) -> io::Result<()> {
        self.gate.before(Call::Reserve)?;
        self.file.set_len(bytes)?;
        #[cfg(any(target_os = "linux", target_os = "android"))]
        match rustix::fs::fallocate(&self.file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
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
