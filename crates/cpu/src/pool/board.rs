//! What is left to take of the stage under way, and who may open the next: a count of pieces that no thread has taken, and one
//! of those that are under way.
//!
//! Invariant: a stage is over when none of its pieces is left and none is under way. The thread that ends it is told so
//! ([`Board::done`]) and has the board for itself until it opens the next stage or closes the board: no other can take a
//! piece meanwhile. What a thread wrote before it was done with a piece is seen by all that take one of a later stage.
//!
//! Progress never needs a thread that has not taken a piece: the one that opens a stage can take all of it. So waking others
//! is only a help, except when the board is closed, which its owner may be asleep for.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Ahead;

/// The most pieces of a stage.
pub(crate) const MAX_PIECES: usize = 1 << 20;

/// Pieces that are left are counted from here on, those under way below.
const LEFT: u32 = 32;

/// No stage is open.
const CLOSED: u64 = 1 << 31;

/// How long a thread spins before it sleeps, which is how it lets others have its processor: one that only offers it while it
/// waits loses as much of its share on recent systems, and comes back later.
const SPIN: Duration = Duration::from_micros(30);

/// Looks at the board between two looks at the clock.
const LOOKS: usize = 64;

/// What a thread that waits finds in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A piece may be left.
    Pieces,
    /// No stage is open.
    Closed,
    /// The board is of no more use.
    Stopped,
}

/// A thread is told to go.
const STOPPED: u64 = CLOSED | 1 << 30;

#[derive(Debug)]
pub(super) struct Board {
    /// Pieces left, pieces under way, and whether it is closed.
    word: AtomicU64,
    asleep: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
}

impl Board {
    /// A board that is closed.
    pub(super) const fn new() -> Board {
        Board {
            word: AtomicU64::new(CLOSED),
            asleep: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    /// Opens a stage. Only for the thread that has the board for itself.
    pub(super) fn open(&self, pieces: usize) {
        assert!((1..=MAX_PIECES).contains(&pieces), "a stage of {pieces} pieces");
        // In one order with what `wait` does: either this sees who is asleep, or they see the stage.
        self.word.store((pieces as u64) << LEFT, Ordering::SeqCst);
        // This thread takes a piece itself.
        self.wake(pieces - 1);
    }

    /// Closes the board. Only for the thread that has it for itself.
    pub(super) fn close(&self) {
        self.word.store(CLOSED, Ordering::SeqCst);
        self.wake(usize::MAX);
    }

    /// Sends all threads home, for good. Only while it is closed.
    pub(super) fn stop(&self) {
        self.word.store(STOPPED, Ordering::SeqCst);
        self.wake(usize::MAX);
    }

    /// Wakes at most so many threads.
    fn wake(&self, most: usize) {
        let asleep = self.asleep.load(Ordering::SeqCst);
        if asleep == 0 || most == 0 {
            return;
        }
        // Between its last look at the board and its sleep a thread holds the lock.
        drop(self.sleep.lock().unwrap_or_else(PoisonError::into_inner));
        match asleep <= most {
            true => self.wake.notify_all(),
            false => (0..most).for_each(|_| self.wake.notify_one()),
        }
    }

    /// Takes a piece, and says how many were left.
    pub(super) fn take(&self) -> Option<usize> {
        let take = |word: u64| (word >> LEFT > 0).then(|| word - (1 << LEFT) + 1);
        let before = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, take);
        before.ok().map(|word| (word >> LEFT) as usize)
    }

    /// Counts a piece as done. If that was the last, the stage is over, and the board this thread's.
    pub(super) fn done(&self) -> bool {
        self.word.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Puts a piece back that is not done.
    pub(super) fn give_back(&self) {
        self.word.fetch_add((1 << LEFT) - 1, Ordering::AcqRel);
    }

    /// Waits until there may be a piece to take or the board is closed; if `closed`, until there may be a piece. Meanwhile it asks for
    /// what lies ahead.
    pub(super) fn wait(&self, closed: bool, ahead: &mut Ahead) -> Found {
        let found = || {
            let word = self.word.load(Ordering::SeqCst);
            match word {
                STOPPED => Some(Found::Stopped),
                CLOSED if !closed => Some(Found::Closed),
                _ => (word >> LEFT > 0).then_some(Found::Pieces),
            }
        };
        let start = Instant::now();
        while start.elapsed() < SPIN {
            for _ in 0..LOOKS {
                if let Some(found) = found() {
                    return found;
                }
                if !ahead.ask() {
                    std::hint::spin_loop();
                }
            }
        }
        let mut guard = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        self.asleep.fetch_add(1, Ordering::SeqCst);
        let found = loop {
            if let Some(found) = found() {
                break found;
            }
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        };
        self.asleep.fetch_sub(1, Ordering::SeqCst);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_piece_ends_a_stage() {
        let board = Board::new();
        assert_eq!(board.take(), None);
        board.open(3);
        assert_eq!([board.take(), board.take()], [Some(3), Some(2)]);
        assert!(!board.done() && !board.done());
        assert_eq!(board.take(), Some(1));
        assert_eq!(board.take(), None);
        assert!(board.done());
        board.close();
        assert_eq!(board.take(), None);
    }

    #[test]
    fn a_piece_that_is_given_back_is_taken_again() {
        let board = Board::new();
        board.open(2);
        assert_eq!([board.take(), board.take(), board.take()], [Some(2), Some(1), None]);
        board.give_back();
        assert!(!board.done());
        assert_eq!(board.take(), Some(1));
        assert!(board.done());
    }

    /// One thread opens a stage and does all of it; another that never takes a piece is not waited for.
    #[test]
    fn a_thread_without_a_piece_is_not_needed() {
        let board = Board::new();
        for pieces in [1, 2, 5] {
            board.open(pieces);
            for left in (1..=pieces).rev() {
                assert_eq!(board.take(), Some(left));
                assert_eq!(board.done(), left == 1);
            }
        }
    }

    /// Stages open at random moments while others fall asleep; each must be over in the end. Run often: a wake-up that is lost
    /// hangs it.
    #[test]
    fn no_close_is_slept_through() {
        let board = Board::new();
        let rounds = if cfg!(miri) { 20 } else { 300 };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while board.wait(true, &mut Ahead::default()) != Found::Stopped {
                        while board.take().is_some() {
                            if board.done() {
                                board.close();
                            }
                        }
                    }
                });
            }
            for round in 0..rounds {
                board.open(1 + round % 3);
                // Sometimes the others do all of it, and this thread sleeps until they have.
                std::thread::sleep(Duration::from_micros(round as u64 % 7 * 40));
                while board.take().is_some() {
                    if board.done() {
                        board.close();
                    }
                }
                while board.wait(false, &mut Ahead::default()) != Found::Closed {}
            }
            board.stop();
        });
    }
}
