//! When a thread lets others have its processor.
//!
//! A system takes a thread off its processor some milliseconds after it got it, if others want it. If that is in the middle of
//! a piece of work, all threads of a run wait for this one, for as long as others have its processor. A thread that offers its
//! processor a little earlier, and between two pieces, holds up nothing. Where no other thread wants it, an offer costs less than
//! a microsecond.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// How long a thread computes before it offers its processor. Systems take it away after three or four milliseconds; some of them
/// count what is left until then as used when it is offered, so not much earlier.
const SLICE: Duration = Duration::from_millis(2);

/// A thread that has not looked at the clock for so long did not have its processor in between, and has just got it back.
const ABSENCE: Duration = Duration::from_micros(1500);

/// Since when a thread has had its processor.
#[derive(Debug)]
pub(crate) struct Pace {
    since: Cell<Instant>,
    last_look: Cell<Instant>,
}

impl Pace {
    /// From now on.
    pub(crate) fn new() -> Pace {
        let now = Instant::now();
        Pace { since: Cell::new(now), last_look: Cell::new(now) }
    }

    /// Whether it is time to give way.
    pub(crate) fn is_due(&self) -> bool {
        let now = Instant::now();
        if now - self.last_look.replace(now) > ABSENCE {
            self.since.set(now);
        }
        now - self.since.get() >= SLICE
    }

    /// Gives way if it is time to.
    pub(super) fn give_way(&self) {
        if self.is_due() {
            std::thread::yield_now();
            let now = Instant::now();
            self.since.set(now);
            self.last_look.set(now);
        }
    }
}
