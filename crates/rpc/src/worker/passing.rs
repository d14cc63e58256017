//! Host memory that bytes pass through between a socket and a device that is not the host: pieces of the kind of memory that the
//! device transfers from faster, where it has one.
//!
//! Concurrency: a piece belongs to one connection at a time, for one tensor. Pieces are kept for the next one, whichever that is; when
//! all are in use, others go through memory of their own, so a slow client holds up no other.
//!
//! Invariant: of a piece, only bytes that were written for the same tensor are read, so no client sees what another sent.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oxcart_backend::{Buffer, Device, allocate};

use super::limits::{OWN_PIECE_BYTES, PASSING_PIECES, PIECE_BYTES};

/// The pieces of a device.
#[derive(Debug, Default)]
pub(crate) struct Pieces(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    free: Vec<Arc<dyn Buffer>>,
    /// Free and in use.
    count: usize,
}

/// One of them; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Passing<'a> {
    pieces: &'a Pieces,
    kept: Option<Arc<dyn Buffer>>,
}

impl Pieces {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A piece for so many bytes. Few bytes are not worth one.
    pub(crate) fn take(&self, device: &dyn Device, bytes: usize) -> Passing<'_> {
        /// Fewer go as they are: a device has room for them on their way.
        const LEAST: usize = 16 << 10;
        let none = Passing { pieces: self, kept: None };
        let Some(memory) = device.host_buffer_type().filter(|_| bytes >= LEAST) else { return none };
        {
            let mut kept = self.kept();
            if let Some(piece) = kept.free.pop() {
                return Passing { pieces: self, kept: Some(piece) };
            }
            if kept.count == PASSING_PIECES {
                return none;
            }
            kept.count += 1;
        }
        // Where it cannot be had, bytes go another way.
        let piece = allocate(&memory, PIECE_BYTES).ok().filter(|piece| piece.host().is_some());
        if piece.is_none() {
            self.kept().count -= 1;
        }
        Passing { pieces: self, kept: piece }
    }
}

impl Passing<'_> {
    /// How many bytes at a time go through it: fewer where each connection would need memory of its own for them.
    pub(crate) const fn piece_bytes(&self) -> usize {
        if self.kept.is_some() { PIECE_BYTES } else { OWN_PIECE_BYTES }
    }

    /// Does something with so many bytes, at most [`Passing::piece_bytes`], that hold anything.
    pub(crate) fn with<T>(&self, bytes: usize, work: impl FnOnce(&mut [u8]) -> T) -> T {
        let memory = self.kept.as_ref().and_then(|piece| piece.host());
        if let Some(mut memory) = memory.and_then(|memory| memory.write())
            && let Some(piece) = memory.get_mut(..bytes)
        {
            return work(piece);
        }
        work(&mut vec![0; bytes])
    }
}

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        if let Some(piece) = self.kept.take() {
            self.pieces.kept().free.push(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use oxcart_testdev::{Config, TestDevice};

    use super::*;
    use crate::worker::limits::CONNECTION_BYTES;

    #[test]
    fn pieces_are_few_and_come_back() {
        let (pieces, device) = (Pieces::default(), TestDevice::new(Config::accelerator("GPU")));
        let mut taken: Vec<_> = (0..PASSING_PIECES + 2).map(|_| pieces.take(&*device, PIECE_BYTES)).collect();
        assert_eq!(taken.iter().filter(|one| one.kept.is_some()).count(), PASSING_PIECES);
        for (at, one) in taken.iter().enumerate() {
            one.with(100, |bytes| bytes.fill(at as u8));
        }
        // Those without a piece of their own do their work, too, but with little memory.
        assert_eq!(taken.last().unwrap().with(7, |bytes| bytes.len()), 7);
        assert!(taken.last().unwrap().piece_bytes() * 2 <= CONNECTION_BYTES);
        assert_eq!(taken.first().unwrap().piece_bytes(), PIECE_BYTES);
        taken.clear();
        assert_eq!(pieces.kept().free.len(), PASSING_PIECES);
        let again = pieces.take(&*device, PIECE_BYTES);
        assert!(again.kept.is_some() && pieces.kept().count == PASSING_PIECES);
        assert!(pieces.take(&*device, 100).kept.is_none(), "not for so few bytes");
    }
}
