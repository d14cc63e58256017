//! Content on its way into the cache while it is being uploaded.
//!
//! The connection hands over copies of the pieces as they arrive; a thread of the entry's own hashes and writes them, so
//! that the upload waits only when the disk or the hash cannot keep up, and then not for long.
//!
//! Invariants: at most [`KEPT_PIECES`] pieces wait; an upload that ends early, or that the disk is too slow for, leaves
//! nothing behind.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::worker::limits::{KEEP_PATIENCE, KEPT_PIECE_BYTES, KEPT_PIECES};

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
#[derive(Debug, Default)]
struct Pipe {
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

/// Content on its way into a cache. Dropped before it is [complete](Keeping::complete), it is not kept.
#[derive(Debug)]
pub struct Keeping {
    pipe: Arc<Pipe>,
}

/// The writer's end.
#[derive(Debug)]
pub(super) struct Pieces {
    pipe: Arc<Pipe>,
}

/// The two ends of one upload.
pub(super) fn pipe() -> (Keeping, Pieces) {
    let pipe = Arc::new(Pipe::default());
    (Keeping { pipe: Arc::clone(&pipe) }, Pieces { pipe })
}

impl Keeping {
    /// The next bytes of the content.
    pub fn add(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(KEPT_PIECE_BYTES) {
            self.add_piece(piece);
        }
    }

    fn add_piece(&self, bytes: &[u8]) {
        let until = Instant::now() + KEEP_PATIENCE;
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
    pub fn complete(self) {
        self.pipe.end(Stage::Complete);
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        self.pipe.end(Stage::Broken);
    }
}

/// An upload that ended early.
#[derive(Debug)]
pub(super) struct Broken;

impl Pieces {
    /// Waits for the next piece; `None` when all have come. `done` is the piece before, whose memory is used again.
    pub(super) fn next(&self, done: Option<Vec<u8>>) -> Result<Option<Vec<u8>>, Broken> {
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
            state = self.pipe.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
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

    #[test]
    fn pieces_come_out_as_they_went_in() {
        let (mut keeping, pieces) = pipe();
        let content: Vec<u8> = (0..KEPT_PIECE_BYTES * 9 + 5).map(|i| (i * 7) as u8).collect();
        let expected = content.clone();
        let uploading = std::thread::spawn(move || {
            for part in content.chunks(100_000) {
                keeping.add(part);
            }
            keeping.complete();
        });
        let (mut got, mut last) = (Vec::new(), None);
        while let Some(piece) = pieces.next(last.take()).unwrap() {
            assert!(pieces.pipe.state().waiting.len() <= KEPT_PIECES);
            got.extend_from_slice(&piece);
            last = Some(piece);
        }
        uploading.join().unwrap();
        assert!(got == expected);
    }

    #[test]
    fn an_upload_does_not_wait_for_ever() {
        let (mut keeping, pieces) = pipe();
        let start = Instant::now();
        keeping.add(&vec![0; KEPT_PIECE_BYTES * (KEPT_PIECES + 2)]);
        assert!(start.elapsed() >= KEEP_PATIENCE && start.elapsed() < 3 * KEEP_PATIENCE);
        keeping.complete();
        assert!(pieces.next(None).is_err());
        let (mut keeping, pieces) = pipe();
        drop(pieces);
        let start = Instant::now();
        keeping.add(&vec![0; KEPT_PIECE_BYTES * (KEPT_PIECES + 2)]);
        assert!(start.elapsed() < KEEP_PATIENCE);
    }

    #[test]
    fn an_upload_that_ends_early_is_told() {
        let (mut keeping, pieces) = pipe();
        keeping.add(&[1, 2, 3]);
        drop(keeping);
        assert!(pieces.next(None).is_err());
    }
}
