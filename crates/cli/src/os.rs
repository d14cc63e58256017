//! What systems do differently, as far as a command is concerned. The rest of it asks nothing about the system it runs on.

pub(crate) mod interrupts;
pub(crate) mod requests;
pub(crate) mod service;
pub(crate) mod typing;

use std::fs::{File, OpenOptions};
use std::io::Stderr;
use std::path::Path;
use std::process::Command;

/// Whether a terminal here understands escape sequences.
#[cfg(not(windows))]
pub(crate) fn has_escape_sequences() -> bool {
    true
}

/// Whether a terminal here understands escape sequences: it may have to be asked to, and old ones never do.
#[cfg(windows)]
pub(crate) fn has_escape_sequences() -> bool {
    anstyle_query::windows::enable_ansi_colors().unwrap_or(false)
}

/// What opens a file that no other user may read, if it has to be made first.
#[cfg(not(windows))]
pub(crate) fn private_file() -> OpenOptions {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

/// What opens a file that no other user may read, if it has to be made first: folders of a user are private here.
#[cfg(windows)]
pub(crate) fn private_file() -> OpenOptions {
    OpenOptions::new()
}

/// Whether other users may read what is written to a file.
#[cfg(not(windows))]
pub(crate) fn others_can_read(file: &File) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o044 != 0)
}

/// Whether other users may read what is written to a file, which is not known here.
#[cfg(windows)]
pub(crate) fn others_can_read(_file: &File) -> bool {
    false
}

/// Whether this user may make files in a folder.
#[cfg(not(windows))]
pub(crate) fn may_write(folder: &Path) -> bool {
    use rustix::fs::{Access, access};
    access(folder, Access::WRITE_OK | Access::EXEC_OK).is_ok()
}

/// Whether this user may make files in a folder, as far as its attributes tell.
#[cfg(windows)]
pub(crate) fn may_write(folder: &Path) -> bool {
    std::fs::metadata(folder).is_ok_and(|found| !found.permissions().readonly())
}

/// What a stream of this process is, if that can be asked.
#[cfg(not(windows))]
pub(crate) fn as_file(stream: &Stderr) -> Option<File> {
    use std::os::fd::AsFd;
    stream.as_fd().try_clone_to_owned().ok().map(File::from)
}

/// What a stream of this process is, if that can be asked.
#[cfg(windows)]
pub(crate) fn as_file(_stream: &Stderr) -> Option<File> {
    None
}

/// Lets a program that is started ignore Ctrl-C on our terminal, which is for us.
#[cfg(not(windows))]
pub(crate) fn apart_from_terminal(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    command.process_group(0);
}

/// Lets a program that is started ignore Ctrl-C on our terminal, which is for us.
#[cfg(windows)]
pub(crate) fn apart_from_terminal(command: &mut Command) {
    use std::os::windows::process::CommandExt;
    const CREATE_NEW_PROCESS_GROUP: u32 = 0x200;
    command.creation_flags(CREATE_NEW_PROCESS_GROUP);
}

/// What this machine is called; nothing where the system does not say.
#[cfg(target_os = "linux")]
pub(crate) fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

/// What this machine is called; nothing where the system does not say.
#[cfg(all(unix, not(target_os = "linux")))]
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// What this machine is called; nothing where the system does not say.
#[cfg(windows)]
pub(crate) fn host_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_default()
}
