//! When a thread lets others have its processor.
//!
//! A system takes a thread off its processor some milliseconds after it got it, if others want it. If that is in the middle of
//! a piece of work, all threads of a run wait for this one, for as long as others have its processor. A thread that offers its
//! processor a little earlier, and between two pieces, holds up nothing. Where no other thread wants it, an offer costs less than
//! a microsecond.

use std::time::{Duration, Instant};

/// How long a thread computes before it offers its processor: less than the shortest slice of common systems.
const SLICE: Duration = Duration::from_micros(1000);

/// Since when a thread computes.
#[derive(Debug)]
pub(crate) struct Pace {
    since: Instant,
}

impl Pace {
    /// From now on.
    pub(crate) fn new() -> Pace {
        Pace { since: Instant::now() }
    }

    /// Whether it is time to give way.
    pub(crate) fn is_due(&self) -> bool {
        self.since.elapsed() >= SLICE
    }

    /// Gives way if it is time to.
    pub(super) fn give_way(&mut self) {
        if self.is_due() {
            std::thread::yield_now();
            *self = Pace::new();
        }
    }
}
