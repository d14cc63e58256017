//! Pieces of content between the connection that receives them and the thread that writes them.
//!
//! The connection hands over copies of the pieces as they arrive; a thread of the entry's own hashes and writes them, so
//! that the upload waits only when the disk or the hash cannot keep up, and then not for long.
//!
//! Invariants: at most [`KEPT_PIECES`] pieces wait; an upload that ends early, that the disk is too slow for, or that stops
//! while its place is wanted, is broken for both ends.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::worker::limits::{KEPT_PIECE_BYTES, KEPT_PIECES};

/// How long the two ends wait for each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waits {
    /// An upload for the disk.
    pub(super) patience: Duration,
    /// The disk for an upload whose place another wants.
    pub(super) stall: Duration,
}

/// How far an upload is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Coming,
    /// All of it is here.
    Complete,
    /// No more of it will come, or the writer has given up.
    Broken,
}

#[derive(Debug, Default)]
struct State {
    stage: Stage,
    waiting: VecDeque<Vec<u8>>,
    /// Memory of pieces that have been written, to be used again.
    spare: Vec<Vec<u8>>,
}

/// Pieces between the connection and the thread that writes them.
#[derive(Debug)]
struct Pipe {
    waits: Waits,
    state: Mutex<State>,
    changed: Condvar,
}

impl Pipe {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, stage: Stage) {
        let mut state = self.state();
        if state.stage == Stage::Coming {
            state.stage = stage;
        }
        drop(state);
        self.changed.notify_all();
    }
}

/// The connection's end. Dropped before it is [complete](Feed::complete), the upload is broken.
#[derive(Debug)]
pub(super) struct Feed {
    pipe: Arc<Pipe>,
}

/// The writer's end.
#[derive(Debug)]
pub(super) struct Pieces {
    pipe: Arc<Pipe>,
}

/// The two ends of one upload.
pub(super) fn pipe(waits: Waits) -> (Feed, Pieces) {
    let pipe = Arc::new(Pipe { waits, state: Mutex::default(), changed: Condvar::new() });
    (Feed { pipe: Arc::clone(&pipe) }, Pieces { pipe })
}

impl Feed {
    /// The next bytes of the content.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(KEPT_PIECE_BYTES) {
            self.add_piece(piece);
        }
    }

    fn add_piece(&self, bytes: &[u8]) {
        let until = Instant::now() + self.pipe.waits.patience;
        let mut state = self.pipe.state();
        while state.stage == Stage::Coming && state.waiting.len() >= KEPT_PIECES {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // The client's time is worth more than the entry.
                drop(state);
                return self.pipe.end(Stage::Broken);
            }
            let waited = self.pipe.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.stage != Stage::Coming {
            return;
        }
        let mut piece = state.spare.pop().unwrap_or_default();
        drop(state);
        piece.clear();
        if piece.try_reserve_exact(bytes.len()).is_err() {
            return self.pipe.end(Stage::Broken);
        }
        piece.extend_from_slice(bytes);
        // Only this thread adds, so there is still a place.
        self.pipe.state().waiting.push_back(piece);
        self.pipe.changed.notify_all();
    }

    /// That was all of it.
    pub(super) fn complete(self) {
        self.pipe.end(Stage::Complete);
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.pipe.end(Stage::Broken);
    }
}

/// An upload that ended early.
#[derive(Debug)]
pub(super) struct Broken;

impl Pieces {
    /// Waits for the next piece; `None` when all have come. `done` is the piece before, whose memory is used again. When none
    /// has come for [`Waits::stall`], the upload is broken as soon as its place `is_wanted`.
    pub(super) fn next(
        &self,
        done: Option<Vec<u8>>,
        is_wanted: impl Fn() -> bool,
    ) -> Result<Option<Vec<u8>>, Broken> {
        let (start, stall) = (Instant::now(), self.pipe.waits.stall);
        let mut state = self.pipe.state();
        state.spare.extend(done);
        loop {
            if state.stage == Stage::Broken {
                return Err(Broken);
            }
            if let Some(piece) = state.waiting.pop_front() {
                drop(state);
                self.pipe.changed.notify_all();
                return Ok(Some(piece));
            }
            if state.stage == Stage::Complete {
                return Ok(None);
            }
            if start.elapsed() >= stall && is_wanted() {
                return Err(Broken);
            }
            // Whether it is wanted is no news of this pipe.
            let waited = self.pipe.changed.wait_timeout(state, stall / 4);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        let mut state = self.pipe.state();
        // An upload that goes on must not wait for a writer that has given up.
        if state.stage == Stage::Coming {
            state.stage = Stage::Broken;
        }
        state.waiting.clear();
        drop(state);
        self.pipe.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than any machine stands still.
    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(200);
    const PATIENT: Waits = Waits { patience: LONG, stall: LONG };

    #[test]
    fn pieces_come_out_as_they_went_in() {
        let (mut feed, pieces) = pipe(PATIENT);
        let content: Vec<u8> = (0..KEPT_PIECE_BYTES * 9 + 5).map(|i| (i * 7) as u8).collect();
        let expected = content.clone();
        let uploading = std::thread::spawn(move || {
            for part in content.chunks(100_000) {
                feed.add(part);
            }
            feed.complete();
        });
        let (mut got, mut last) = (Vec::new(), None);
        while let Some(piece) = pieces.next(last.take(), || false).unwrap() {
            assert!(pieces.pipe.state().waiting.len() <= KEPT_PIECES);
            got.extend_from_slice(&piece);
            last = Some(piece);
        }
        uploading.join().unwrap();
        assert!(got == expected);
    }

    #[test]
    fn an_upload_does_not_wait_for_ever() {
        let (mut feed, pieces) = pipe(Waits { patience: SHORT, ..PATIENT });
        let start = Instant::now();
        feed.add(&vec![0; KEPT_PIECE_BYTES * (KEPT_PIECES + 2)]);
        assert!(start.elapsed() >= SHORT);
        feed.complete();
        assert!(pieces.next(None, || false).is_err());
        // Not at all where no one reads.
        let (mut feed, pieces) = pipe(PATIENT);
        drop(pieces);
        let start = Instant::now();
        feed.add(&vec![0; KEPT_PIECE_BYTES * (KEPT_PIECES + 2)]);
        assert!(start.elapsed() < LONG / 2);
    }

    #[test]
    fn an_upload_that_ends_early_is_told() {
        let (mut feed, pieces) = pipe(PATIENT);
        feed.add(&[1, 2, 3]);
        drop(feed);
        assert!(pieces.next(None, || false).is_err());
    }

    #[test]
    fn an_upload_that_stops_makes_way_for_others_alone() {
        let (mut feed, pieces) = pipe(Waits { stall: SHORT, ..PATIENT });
        feed.add(&[1, 2, 3]);
        assert!(pieces.next(None, || true).unwrap().is_some());
        let slow = std::thread::spawn(move || {
            std::thread::sleep(2 * SHORT);
            feed.add(&[4]);
            feed
        });
        assert!(pieces.next(None, || false).unwrap().is_some());
        let _feed = slow.join().unwrap();
        assert!(pieces.next(None, || true).is_err());
    }
}
