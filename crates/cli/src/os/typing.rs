//! What a person types while there is no prompt to type at: it waits for the next prompt, whole and unseen.
//!
//! Invariant: the terminal is as it was when the program ends by itself, also by a signal that it can catch; whatever ends it with
//! `process::exit` calls [`restore`] first.

#[cfg(not(windows))]
#[path = "typing/unix.rs"]
mod system;
#[cfg(windows)]
#[path = "typing/windows.rs"]
mod system;

pub(crate) use system::{mark_pastes, restore};

/// Typed text waits; until this is dropped.
#[derive(Debug)]
pub(crate) struct Waiting(());

impl Waiting {
    /// From now on.
    pub(crate) fn begin() -> Waiting {
        system::begin();
        Waiting(())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        restore();
    }
}
