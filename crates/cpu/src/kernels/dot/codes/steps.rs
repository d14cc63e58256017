//! Where codes of sixteen rows go, side by side.
//!
//! Invariant: a step is four neighbouring elements; those of row `r` go to word `r` of the step's line. All lines lie in the
//! slice that [`Steps::new`] was given.

use std::marker::PhantomData;

use crate::kernels::dot::lanes::Lanes;

/// Rows that are put side by side.
pub(crate) const ROWS: usize = 16;
/// Elements of a row that lie together.
pub(crate) const STEP: usize = 4;

/// Lines of codes, one per step.
#[derive(Debug)]
pub(crate) struct Steps<'o> {
    out: *mut u8,
    /// Lines.
    count: usize,
    /// Bytes from one line to the next.
    stride: usize,
    /// What is added to each code.
    plus: u8,
    life: PhantomData<&'o mut [u8]>,
}

impl<'o> Steps<'o> {
    /// `count` lines, `stride` words apart.
    #[inline(always)]
    pub(crate) fn new(out: &'o mut [u8], count: usize, stride: usize, plus: u8) -> Steps<'o> {
        let stride = 4 * stride;
        assert!(count == 0 || stride >= 4 * ROWS && out.len() >= (count - 1) * stride + 4 * ROWS);
        Steps { out: out.as_mut_ptr(), count, stride, plus, life: PhantomData }
    }

    /// Writes a line.
    #[inline(always)]
    pub(crate) fn put<S: Lanes>(&mut self, s: S, step: usize, codes: S::Bytes) {
        assert!(step < self.count);
        let codes = if self.plus == 0 { codes } else { s.join(codes, s.all(self.plus), 0) };
        // SAFETY: `new` saw that there are so many lines of 64 bytes, and this is the only way to them.
        s.store_bytes(codes, unsafe { &mut *self.out.add(step * self.stride).cast() });
    }
}
