//! Bytes that a worker has in files of its own, for clients that name them by their digest.
//!
//! A client that may use the worker and knows the digest of a whole content may have it: the operator has said so by naming the files. A hash that
//! contents can be made for names nothing here.
//!
//! Invariant: what a client sees of a place is content with the digest that it named, or what it held before, or zeros.

use std::fmt;
use std::io::Read;

use oxcart_backend::Error;

use super::limits::OWN_PIECE_BYTES;
use super::space::BufferRange;

/// Where a worker finds contents. Called from the threads of all clients at a time.
pub trait Copies: Send + Sync + fmt::Debug {
    /// Reads a content from its start, if there is one with this digest and length. Which bytes come is checked where they are read.
    fn open(&self, digest: &[u8; 32], len: u64) -> Option<Box<dyn Read + '_>>;

    /// What was found under a digest was something else: its file has changed.
    fn doubt(&self, digest: &[u8; 32]);
}

/// Writes the content with a digest to a place that it fills exactly, and says whether it did. Before each piece is read, `go_on`
/// is asked with its length, as for what is loaded from a cache; nothing is held in memory before its first answer.
pub(crate) fn take(
    copies: &dyn Copies,
    digest: &[u8; 32],
    into: &BufferRange,
    go_on: &mut dyn FnMut(usize) -> bool,
) -> Result<bool, Error> {
    let Some(mut reader) = copies.open(digest, into.len as u64) else { return Ok(false) };
    let mut found = blake3::Hasher::new();
    let mut piece = Vec::new();
    let mut is_whole = true;
    for start in (0..into.len).step_by(OWN_PIECE_BYTES) {
        let bytes = OWN_PIECE_BYTES.min(into.len - start);
        if !go_on(bytes) {
            // The client is gone, and its buffer with it.
            return Ok(false);
        }
        piece.resize(bytes, 0);
        if reader.read_exact(&mut piece).is_err() {
            is_whole = false;
            break;
        }
        found.update(&piece);
        into.buffer.write(into.offset + start, &piece)?;
    }
    if is_whole && found.finalize() == *digest {
        return Ok(true);
    }
    into.clear(go_on)?;
    copies.doubt(digest);
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Mutex;

    use oxcart_backend::{Device, allocate};
    use oxcart_testdev::{Config, FrailDevice, TestDevice};

    use super::*;
    use crate::worker::limits::CHORE_BYTES;

    /// Zeros without end under every digest, and how many bytes were read at a time.
    #[derive(Debug, Default)]
    struct Zeros(Mutex<Vec<usize>>);

    struct Reading<'a>(&'a Zeros);

    impl Read for Reading<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            self.0.0.lock().unwrap().push(out.len());
            out.fill(0);
            Ok(out.len())
        }
    }

    impl Copies for Zeros {
        fn open(&self, _digest: &[u8; 32], _len: u64) -> Option<Box<dyn Read + '_>> {
            Some(Box::new(Reading(self)))
        }

        fn doubt(&self, _digest: &[u8; 32]) {}
    }

    /// What a content costs is asked for before it is spent, and so is what clearing costs after another one than was named.
    #[test]
    fn nothing_is_read_or_cleared_before_its_turn() {
        const PIECES: usize = CHORE_BYTES / OWN_PIECE_BYTES * 2 + 1;
        let device = FrailDevice::new("frail", TestDevice::new(Config::default()), 1 << 30);
        let len = PIECES * OWN_PIECE_BYTES;
        let buffer = allocate(&device.buffer_type(), len).unwrap();
        let into = BufferRange { handle: 0, buffer, offset: 0, len };
        let zeros = Zeros::default();
        assert!(!take(&zeros, &[7; 32], &into, &mut |_| false).unwrap());
        assert!(zeros.0.lock().unwrap().is_empty());
        for leaves_after in [None, Some(PIECES + 1)] {
            let (mut asked, before) = (Vec::new(), device.calls());
            let mut go_on = |bytes| {
                asked.push(bytes);
                leaves_after.is_none_or(|most| asked.len() <= most)
            };
            assert!(!take(&zeros, &[7; 32], &into, &mut go_on).unwrap());
            let read = std::mem::take(&mut *zeros.0.lock().unwrap());
            assert_eq!(read, vec![OWN_PIECE_BYTES; PIECES]);
            assert_eq!(asked[..PIECES], read);
            let cleared =
                &[CHORE_BYTES, CHORE_BYTES, OWN_PIECE_BYTES][..if leaves_after.is_some() { 2 } else { 3 }];
            assert_eq!(asked[PIECES..], *cleared);
            // The last part is left as it is where the client has gone.
            let fills = cleared.len() - usize::from(leaves_after.is_some());
            assert_eq!(device.calls() - before, PIECES + fills);
        }
    }
}
