//! Bytes that a worker has in files of its own, for clients that name them by their digest.
//!
//! Whoever may use the worker and knows the digest of a whole content may have it: the operator has said so by naming the files. A hash that
//! contents can be made for names nothing here.
//!
//! Invariant: what a client sees of a place is content with the digest that it named, or what it held before, or zeros.

use std::fmt;
use std::io::Read;

use oxcart_backend::Error;

use super::limits::KEPT_PIECE_BYTES;
use super::space::BufferRange;

/// Where a worker finds contents. Called from the threads of all clients at a time.
pub trait Copies: Send + Sync + fmt::Debug {
    /// Reads a content from its start, if there is one with this digest and length. Which bytes come is checked by whoever reads them.
    fn open(&self, digest: &[u8; 32], len: u64) -> Option<Box<dyn Read + '_>>;

    /// What was found under a digest was something else: its file has changed.
    fn doubt(&self, digest: &[u8; 32]);
}

/// Writes the content with a digest to a place that it fills exactly, and says whether it did. For each piece, `go_on` is asked with its
/// length, as for what is loaded from a cache.
pub(crate) fn take(
    copies: &dyn Copies,
    digest: &[u8; 32],
    into: &BufferRange,
    go_on: &mut dyn FnMut(usize) -> bool,
) -> Result<bool, Error> {
    let Some(mut reader) = copies.open(digest, into.len as u64) else { return Ok(false) };
    let mut found = blake3::Hasher::new();
    let mut piece = vec![0; into.len.min(KEPT_PIECE_BYTES)];
    let mut is_whole = true;
    for start in (0..into.len).step_by(KEPT_PIECE_BYTES) {
        piece.truncate(into.len - start);
        if reader.read_exact(&mut piece).is_err() {
            is_whole = false;
            break;
        }
        found.update(&piece);
        if !go_on(piece.len()) {
            // The client is gone, and its buffer with it.
            return Ok(false);
        }
        into.buffer.write(into.offset + start, &piece)?;
    }
    if is_whole && found.finalize() == *digest {
        return Ok(true);
    }
    into.buffer.fill(into.offset, into.len, 0)?;
    copies.doubt(digest);
    Ok(false)
}
