//! A terminal, for what commands do differently on one.

#![allow(dead_code, reason = "not every test looks at both")]

use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// What a command prints to a terminal, whose own change of line ends is taken back. It must succeed.
pub(crate) fn shown(command: Command) -> String {
    on_terminal(command, |command, terminal| command.stdout(terminal).stderr(Stdio::null()))
}

/// What it tells on a terminal besides its results.
pub(crate) fn told(command: Command) -> String {
    on_terminal(command, |command, terminal| command.stdout(Stdio::null()).stderr(terminal))
}

fn on_terminal(mut command: Command, connect: impl FnOnce(&mut Command, File) -> &mut Command) -> String {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
    let theirs = File::options().read(true).write(true).open(name).unwrap();
    let mut child = connect(&mut command, theirs).spawn().unwrap();
    // It has the other end, too.
    drop(command);
    let (mut terminal, mut shown) = (File::from(ours), Vec::new());
    // A terminal whose other end is gone is an error, not an end.
    let _ = terminal.read_to_end(&mut shown);
    assert!(child.wait().unwrap().success());
    String::from_utf8_lossy(&shown).replace("\r\n", "\n")
}
