//! The skeleton of elementwise kernels: a chunk of every source is widened to `f32` on the stack, computed, and
//! narrowed into the result.
//!
//! Because whole chunks are read before they are written, a result may be the memory of any source. Because chunks
//! start at multiples of [`CHUNK`] in their row and are always computed whole, results do not depend on how rows are
//! shared among threads, and vector code needs no special end of a row.

use std::ops::Range;

use crate::view::{In, Number, Out, RowAt, Src, Strided};

/// Elements computed at a time: long enough to hide the copies, short enough to stay in the first cache.
pub(crate) const CHUNK: usize = 128;

/// Chunks of a row: where they start and how long they are.
#[inline(always)]
pub(crate) fn chunks(len: usize) -> impl Iterator<Item = (usize, usize)> {
    chunks_of(0..len)
}

/// Chunks of a part of a row that starts at a multiple of [`CHUNK`].
#[inline(always)]
pub(crate) fn chunks_of(part: Range<usize>) -> impl Iterator<Item = (usize, usize)> {
    let end = part.end;
    part.step_by(CHUNK).map(move |start| (start, CHUNK.min(end - start)))
}

/// Numbers on the stack, aligned for vectors. Lanes past the end of a row hold what was there before.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Chunk(pub(crate) [f32; CHUNK]);

impl Chunk {
    /// Zeros.
    #[inline(always)]
    pub(crate) const fn new() -> Chunk {
        Chunk([0.0; CHUNK])
    }

    /// Widens `len` elements of a row from `start` on.
    #[inline(always)]
    pub(crate) fn load<T: Number>(&mut self, row: &In<'_, T>, start: usize, len: usize) {
        // Copies of a length known to the compiler are much cheaper.
        if len == CHUNK {
            T::read_row(row, start, &mut self.0);
        } else {
            T::read_row(row, start, &mut self.0[..len]);
        }
    }

    /// Widens `len` elements of a row at any stride from `start` on.
    #[inline(always)]
    pub(crate) fn load_strided<T: Number>(&mut self, row: &Strided<'_, T>, start: usize, len: usize) {
        // SAFETY: any bytes make a `T`; see `Plain`.
        let mut raw: [T; CHUNK] = unsafe { std::mem::zeroed() };
        row.read(start, &mut raw[..len]);
        T::widen(&raw[..len], &mut self.0[..len]);
    }

    /// Widens `len` elements of a tensor's row from `start` on, whatever its stride.
    #[inline(always)]
    pub(crate) fn load_from<T: Number>(&mut self, src: &Src<'_>, at: RowAt, start: usize, len: usize) {
        if src.layout().has_contiguous_rows() {
            self.load(&src.row::<T>(at), start, len);
        } else {
            self.load_strided(&src.line::<T>(at), start, len);
        }
    }

    /// Narrows the first elements into a piece of a row.
    #[inline(always)]
    pub(crate) fn store<T: Number>(&self, piece: &mut Out<'_, T>) {
        self.store_at(piece, 0, piece.len());
    }

    /// Narrows the first `len` elements into a row from `start` on.
    #[inline(always)]
    pub(crate) fn store_at<T: Number>(&self, row: &mut Out<'_, T>, start: usize, len: usize) {
        if len == CHUNK {
            T::write_row(&self.0, row, start);
        } else {
            T::write_row(&self.0[..len], row, start);
        }
    }
}
