//! Unix: SIGINT.

use std::io;
use std::thread;

use signal_hook::consts::SIGINT;
use signal_hook::iterator::Signals;

pub(super) fn watch(interrupt: impl Fn() + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT])?;
    let forward = move || signals.forever().for_each(|_| interrupt());
    thread::Builder::new().name("interrupts".into()).spawn(forward).map(|_detached| ())
}
