//! Folders by descriptor: what is checked and what is used are the same file, whatever happens to its name.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::{Call, Gate, Listed, PlainFile};

/// An open folder.
#[derive(Debug)]
pub(crate) struct Folder {
    fd: OwnedFd,
    gate: Arc<dyn Gate>,
}

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Permission to write for others than the owner.
const OTHERS_WRITE: Mode = Mode::WGRP.union(Mode::WOTH);

/// Whether something belongs to this user, or to root, whom nothing keeps out, and no other user may change it.
fn is_ours(stat: &Stat) -> bool {
    let owner = stat.st_uid;
    (owner == rustix::process::geteuid().as_raw() || owner == 0)
        && Mode::from_raw_mode(stat.st_mode).intersection(OTHERS_WRITE).is_empty()
}

fn not_ours(what: &str) -> io::Error {
    let why = format!("{what} belongs to another user, or others may write to it");
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// Whether an error says that a file is none to be opened: a link, a socket, another user's.
pub(crate) fn is_about_the_file(error: &io::Error) -> bool {
    let number = Errno::from_io_error(error);
    error.kind() == io::ErrorKind::PermissionDenied
        || matches!(number, Some(Errno::LOOP | Errno::NXIO | Errno::MLINK))
}

impl Folder {
    /// Opens a folder, or makes it, for us alone.
    pub(crate) fn open(path: &Path, gate: Arc<dyn Gate>) -> io::Result<Folder> {
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
    pub(crate) fn inner(&self, name: &str) -> io::Result<Option<Folder>> {
        self.gate.before(Call::Folder)?;
        match rustix::fs::openat(&self.fd, name, FOLDER, Mode::empty()) {
            Ok(fd) => Folder::checked(fd, Arc::clone(&self.gate)).map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// A folder inside, made if there is none.
    pub(crate) fn make_inner(&self, name: &str) -> io::Result<Folder> {
        self.gate.before(Call::Folder)?;
        match rustix::fs::mkdirat(&self.fd, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        self.inner(name)?.ok_or_else(|| Errno::NOENT.into())
    }

    /// Names in it, one by one. Those that are not text are none of ours.
    pub(crate) fn each_name(&self, mut each: impl FnMut(&str)) -> io::Result<()> {
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
    pub(crate) fn has(&self, name: &str) -> io::Result<bool> {
        Ok(self.stat(name)?.is_some())
    }

    /// A plain file of this name, as a listing shows it.
    pub(crate) fn listed(&self, name: &str) -> io::Result<Option<Listed>> {
        let stat = self.stat(name)?.filter(|stat| FileType::from_raw_mode(stat.st_mode).is_file());
        #[allow(clippy::useless_conversion, reason = "not of the same width on every system")]
        let listed = stat.map(|stat| Listed {
            bytes: u64::try_from(stat.st_size).unwrap_or(0),
            used: (stat.st_mtime.into(), i64::try_from(stat.st_mtime_nsec).unwrap_or(0)),
        });
        Ok(listed)
    }

    /// Makes a file for us alone. There must be none of this name.
    pub(crate) fn create(&self, name: &str) -> io::Result<PlainFile> {
        self.gate.before(Call::Create)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR)?;
        Ok(PlainFile::new(fd.into(), &self.gate))
    }

    /// Opens a plain file of ours; `None` if there is no such name.
    pub(crate) fn read(&self, name: &str) -> io::Result<Option<PlainFile>> {
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
        Ok(Some(PlainFile::new(fd.into(), &self.gate)))
    }

    /// Gives a file its name, unless that is taken; says whether it did.
    pub(crate) fn rename_new(&self, from: &str, to: &str) -> io::Result<bool> {
        self.gate.before(Call::Rename)?;
        match rename_unless_taken(&self.fd, from, to) {
            Ok(()) => return Ok(true),
            Err(Errno::EXIST) => return Ok(false),
            // Some file systems, and some systems, do not know how.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {}
            Err(error) => return Err(error.into()),
        }
        if self.has(to)? {
            return Ok(false);
        }
        rustix::fs::renameat(&self.fd, from, &self.fd, to)?;
        Ok(true)
    }

    /// Removes whatever has this name: a file, a link, a pipe, or an empty folder.
    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        self.gate.before(Call::Remove)?;
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Err(Errno::ISDIR | Errno::PERM) => Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR)?),
            done => Ok(done?),
        }
    }

    /// Makes the names in it last.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.gate.before(Call::Sync)?;
        Ok(rustix::fs::fsync(&self.fd)?)
    }

    /// Bytes that may still be written to its file system.
    pub(crate) fn free_bytes(&self) -> io::Result<u64> {
        self.gate.before(Call::Space)?;
        let space = rustix::fs::fstatvfs(&self.fd)?;
        Ok(self.gate.free_bytes(space.f_bavail.saturating_mul(space.f_frsize)))
    }
}

#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
fn rename_unless_taken(folder: &OwnedFd, from: &str, to: &str) -> rustix::io::Result<()> {
    rustix::fs::renameat_with(folder, from, folder, to, rustix::fs::RenameFlags::NOREPLACE)
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
fn rename_unless_taken(_folder: &OwnedFd, _from: &str, _to: &str) -> rustix::io::Result<()> {
    Err(Errno::NOSYS)
}

/// Sets room aside for a file, where its file system can.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn set_aside(file: &File, bytes: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// A disk that fills up shows while the file is written, and then it is not kept.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn set_aside(_file: &File, _bytes: u64) -> io::Result<()> {
    Ok(())
}
