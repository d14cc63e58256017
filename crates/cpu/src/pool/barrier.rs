//! Where the threads of a run wait for each other.
//!
//! Invariant: no thread passes the barrier before all have arrived, and the last to arrive does the chore before any
//! passes. What a thread wrote before is seen by all others after.

use std::sync::atomic::{AtomicUsize, Ordering};

/// How often to look before letting another thread have the processor.
const SPINS: usize = 4_000;

/// Spins until something holds; gives way to others when that takes long.
pub(super) fn wait_until(holds: impl Fn() -> bool) {
    let mut spins = 0;
    while !holds() {
        if spins < SPINS {
            spins += 1;
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}

/// A barrier for a fixed number of threads, usable again and again.
#[derive(Debug)]
pub(crate) struct Barrier {
    threads: usize,
    arrived: AtomicUsize,
    passed: AtomicUsize,
}

impl Barrier {
    /// A barrier for `threads` threads.
    pub(crate) const fn new(threads: usize) -> Barrier {
        Barrier { threads, arrived: AtomicUsize::new(0), passed: AtomicUsize::new(0) }
    }

    /// Waits for all threads; the last to arrive does `chore`.
    pub(crate) fn wait(&self, chore: impl FnOnce()) {
        let round = self.passed.load(Ordering::Relaxed);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            chore();
            self.arrived.store(0, Ordering::Relaxed);
            self.passed.store(round.wrapping_add(1), Ordering::Release);
        } else {
            wait_until(|| self.passed.load(Ordering::Acquire) != round);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_thread_passes_early() {
        const THREADS: usize = 3;
        let (barrier, done) = (Barrier::new(THREADS), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for round in 1..=500 {
                        done.fetch_add(1, Ordering::Relaxed);
                        barrier.wait(|| assert_eq!(done.load(Ordering::Relaxed), round * THREADS));
                        assert!(done.load(Ordering::Relaxed) >= round * THREADS);
                    }
                });
            }
        });
    }
}
