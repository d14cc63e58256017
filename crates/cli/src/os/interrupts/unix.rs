//! Unix: SIGINT. SIGTERM ends the program as it always does, but leaves the terminal as it was.

use std::io;
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::os::typing;

pub(super) fn watch(interrupt: impl Fn() + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let forward = move || {
        for signal in signals.forever() {
            match signal {
                SIGINT => interrupt(),
                other => {
                    typing::restore();
                    // If even that fails, the signal does nothing, and another can be sent.
                    let _ = emulate_default_handler(other);
                }
            }
        }
    };
    thread::Builder::new().name("interrupts".into()).spawn(forward).map(|_detached| ())
}
