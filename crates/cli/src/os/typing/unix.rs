//! Unix: terminals that gather lines by themselves drop what is beyond 4,095 bytes of one (1,024 on macOS), and show what is typed in the
//! midst of an answer. So they neither gather nor show; Ctrl-C stays a signal.

use std::env;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};

use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};

/// How the terminal was before.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// Terminals on which the editor does not edit, but reads the lines that they gather.
const WITHOUT_EDITOR: [&str; 3] = ["dumb", "cons25", "emacs"];

fn has_editor() -> bool {
    !env::var("TERM").is_ok_and(|term| WITHOUT_EDITOR.iter().any(|other| other.eq_ignore_ascii_case(&term)))
}

pub(super) fn begin() {
    let Some(before) = tcgetattr(io::stdin()).ok().filter(|_| has_editor()) else { return };
    let mut during = before.clone();
    during.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
    // A read waits for one byte, however long that takes.
    during.special_codes[SpecialCodeIndex::VMIN] = 1;
    during.special_codes[SpecialCodeIndex::VTIME] = 0;
    // Where that cannot be done, typed text comes as it used to.
    if tcsetattr(io::stdin(), OptionalActions::Now, &during).is_ok() {
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        mark_pastes();
    }
}

/// Pasted text is marked as such, between prompts too: the editor takes the marks away with its prompt.
pub(crate) fn mark_pastes() {
    if BEFORE.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
        switch(b"\x1b[?2004h");
    }
}

/// Switches something of the terminal, past the lock of stdout: the thread that restores it must not wait for the one that writes answers.
fn switch(sequence: &[u8]) {
    // Without marks of pastes, lines are messages.
    let _ = io::stdout()
        .as_fd()
        .try_clone_to_owned()
        .and_then(|terminal| File::from(terminal).write_all(sequence));
}

/// As it was.
pub(crate) fn restore() {
    if let Some(before) = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take() {
        switch(b"\x1b[?2004l");
        // The program ends; there is no one left to tell.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &before);
    }
}
