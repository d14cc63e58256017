//! Ctrl-C of a person who talks with a model: it stops what is under way, and ends the program only where it was pressed before: what
//! cannot be stopped says so the first time.
//!
//! Invariant: from [`Interrupts::watch`] on, Ctrl-C between two pieces of work does nothing; a prompt reads it as a key.

use std::io::{self, Write};
use std::process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oxcart::llm::engine::Cancel;

use crate::door;
use crate::os::typing;

#[cfg(not(windows))]
#[path = "interrupts/unix.rs"]
mod system;
#[cfg(windows)]
#[path = "interrupts/windows.rs"]
mod system;

/// The exit code of programs that Ctrl-C has ended.
const INTERRUPTED: i32 = 130;

/// What Ctrl-C would interrupt.
#[derive(Debug)]
enum Work {
    None,
    /// Something that cannot be stopped halfway.
    Whole,
    Answer(Cancel),
    /// An answer that is about to stop, something whole after a warning, or a beginning, with which nothing is lost.
    Stopping,
}

/// Ctrl-C, and what it is for at the moment.
#[derive(Clone, Debug)]
pub(crate) struct Interrupts {
    work: Arc<Mutex<Work>>,
}

/// Work that Ctrl-C is for; until it is dropped.
#[derive(Debug)]
pub(crate) struct UnderWay<'i> {
    interrupts: &'i Interrupts,
}

impl Interrupts {
    /// Ctrl-C does from now on what is said here.
    pub(crate) fn watch() -> io::Result<Interrupts> {
        let interrupts = Interrupts { work: Arc::new(Mutex::new(Work::None)) };
        let told = interrupts.clone();
        system::watch(move || told.interrupt())?;
        Ok(interrupts)
    }

    /// An answer, which Ctrl-C stops; a second one ends the program.
    pub(crate) fn answering(&self, cancel: &Cancel) -> UnderWay<'_> {
        self.begin(Work::Answer(cancel.clone()))
    }

    /// Something that can only be ended with the program, by a second Ctrl-C.
    pub(crate) fn whole(&self) -> UnderWay<'_> {
        self.begin(Work::Whole)
    }

    /// What comes before anything that could be lost: Ctrl-C ends the program.
    pub(crate) fn beginning(&self) -> UnderWay<'_> {
        self.begin(Work::Stopping)
    }

    fn begin(&self, work: Work) -> UnderWay<'_> {
        self.set(work);
        UnderWay { interrupts: self }
    }

    fn set(&self, work: Work) {
        *self.work() = work;
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn interrupt(&self) {
        // Held throughout, so that nothing begins or ends between.
        let mut work = self.work();
        match std::mem::replace(&mut *work, Work::Stopping) {
            Work::None => *work = Work::None,
            Work::Answer(cancel) => cancel.cancel(),
            Work::Whole => {
                let _ = writeln!(
                    door::stderr(),
                    "\nthis cannot be stopped halfway; press Ctrl-C again to quit and lose the conversation"
                );
            }
            Work::Stopping => {
                typing::restore();
                process::exit(INTERRUPTED)
            }
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.interrupts.set(Work::None);
    }
}
