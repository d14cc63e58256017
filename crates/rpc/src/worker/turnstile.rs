//! A fair lock: the thread that has waited longest goes next, so clients of a device take turns.
//!
//! Concurrency: any number of threads wait; each is woken alone, when it is its turn. One that gives up while it waits
//! leaves the queue. Invariant: at most one [`Turn`] exists at a time, and none is lost when its holder panics.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

#[derive(Debug)]
struct Waiter {
    thread: Thread,
    has_turn: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    taken: bool,
    queue: VecDeque<Arc<Waiter>>,
}

/// The lock.
#[derive(Debug, Default)]
pub(crate) struct Turnstile {
    state: Mutex<State>,
}

/// The right to go on; passed to the next in line when it is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    turnstile: &'a Turnstile,
}

impl Turnstile {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a turn; `None` if `gives_up`, which is asked every `patience`, says so first.
    pub(crate) fn enter(&self, patience: Duration, gives_up: impl Fn() -> bool) -> Option<Turn<'_>> {
        let waiter = {
            let mut state = self.state();
            if !state.taken {
                state.taken = true;
                return Some(Turn { turnstile: self });
            }
            let waiter = Arc::new(Waiter { thread: thread::current(), has_turn: AtomicBool::new(false) });
            state.queue.push_back(Arc::clone(&waiter));
            waiter
        };
        loop {
            if waiter.has_turn.load(Ordering::Acquire) {
                return Some(Turn { turnstile: self });
            }
            if gives_up() {
                let mut state = self.state();
                if !waiter.has_turn.load(Ordering::Acquire) {
                    state.queue.retain(|other| !Arc::ptr_eq(other, &waiter));
                    return None;
                }
                drop(state);
                // The turn came in the same moment; dropping it passes it on.
                drop(Turn { turnstile: self });
                return None;
            }
            thread::park_timeout(patience);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.turnstile.state();
        match state.queue.pop_front() {
            Some(next) => {
                next.has_turn.store(true, Ordering::Release);
                next.thread.unpark();
            }
            None => state.taken = false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(5);

    #[test]
    fn the_longest_waiting_client_goes_next() {
        let (turnstile, order) = (Turnstile::default(), Mutex::new(Vec::new()));
        let first = turnstile.enter(SOON, || false).unwrap();
        thread::scope(|scope| {
            for number in 0..8 {
                let (turnstile, order) = (&turnstile, &order);
                scope.spawn(move || {
                    let _turn = turnstile.enter(SOON, || false).unwrap();
                    order.lock().unwrap().push(number);
                });
                while turnstile.state().queue.len() <= number {
                    thread::yield_now();
                }
            }
            drop(first);
        });
        assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert!(!turnstile.state().taken);
    }

    #[test]
    fn a_client_that_gives_up_leaves_the_queue() {
        let turnstile = Turnstile::default();
        let turn = turnstile.enter(SOON, || false).unwrap();
        assert!(turnstile.enter(SOON, || true).is_none());
        assert!(turnstile.state().queue.is_empty());
        drop(turn);
        assert!(turnstile.enter(SOON, || true).is_some());
    }

    #[test]
    fn turns_are_exclusive_and_never_lost() {
        let (turnstile, inside) = (Turnstile::default(), AtomicBool::new(false));
        thread::scope(|scope| {
            for number in 0..6_u32 {
                let (turnstile, inside) = (&turnstile, &inside);
                scope.spawn(move || {
                    for round in 0..500 {
                        let impatient = (round + number) % 7 == 0;
                        let Some(turn) = turnstile.enter(SOON, || impatient) else { continue };
                        assert!(!inside.swap(true, Ordering::SeqCst));
                        inside.store(false, Ordering::SeqCst);
                        drop(turn);
                    }
                });
            }
        });
        assert!(!turnstile.state().taken);
    }

    #[test]
    fn a_panic_passes_the_turn_on() {
        let turnstile = Turnstile::default();
        let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _turn = turnstile.enter(SOON, || false);
            panic!("inside");
        }));
        assert!(died.is_err());
        assert!(turnstile.enter(SOON, || true).is_some());
    }
}
