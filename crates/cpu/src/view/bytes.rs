//! Tensors as the bytes they lie in, for kernels that move elements without computing with them.
//!
//! Every access is checked against the tensor's own memory, gaps between its rows included. Who writes which of those
//! bytes is for the one unsafe step to say that gets hold of them, [`Dst::bytes`].

use std::marker::PhantomData;

use super::{Dst, In, Plain, Src};

/// The bytes of a result, from the first to the last, of which this thread writes some.
#[derive(Debug)]
pub(crate) struct OutBytes<'t> {
    at: *mut u8,
    len: usize,
    life: PhantomData<&'t mut u8>,
}

impl<'t> Src<'t> {
    /// All bytes from the first to the last, gaps included.
    pub(crate) fn bytes(&self) -> In<'t, u8> {
        In { at: self.base, len: self.layout.byte_len(), aliased: self.aliased, life: PhantomData }
    }
}

impl In<'_, u8> {
    /// `N` bytes from `start` on.
    #[inline(always)]
    pub(crate) fn load<const N: usize>(&self, start: usize) -> [u8; N] {
        assert!(start <= self.len && N <= self.len - start);
        // SAFETY: inside the tensor; bytes need no alignment; if they are written meanwhile, then by this thread.
        unsafe { self.at.add(start).cast::<[u8; N]>().read() }
    }
}

impl<'t> Dst<'t> {
    /// All bytes from the first to the last, gaps included.
    ///
    /// # Safety
    ///
    /// The caller writes only bytes of elements that no other thread reads or writes in this phase.
    pub(crate) unsafe fn bytes(&self) -> OutBytes<'t> {
        OutBytes { at: self.base, len: self.layout.byte_len(), life: PhantomData }
    }
}

impl OutBytes<'_> {
    /// Writes `N` bytes from `start` on.
    #[inline(always)]
    pub(crate) fn store<const N: usize>(&mut self, start: usize, bytes: [u8; N]) {
        assert!(start <= self.len && N <= self.len - start);
        // SAFETY: inside the tensor; bytes need no alignment, and the maker of `self` said that they are this thread's.
        unsafe { self.at.add(start).cast::<[u8; N]>().write(bytes) }
    }

    /// Copies bytes in.
    #[inline(always)]
    pub(crate) fn write(&mut self, start: usize, from: &[u8]) {
        assert!(start <= self.len && from.len() <= self.len - start);
        // SAFETY: inside the tensor, and this thread's, as the maker of `self` said; `from` borrows other memory, because
        // no borrow of bytes that alias a result exists.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.at.add(start), from.len()) }
    }
}

/// Bytes as the elements they are.
///
/// # Panics
///
/// When they are not aligned for elements or not a whole number of them.
#[inline(always)]
pub(crate) fn elements<T: Plain>(bytes: &[u8]) -> &[T] {
    assert!(bytes.as_ptr().cast::<T>().is_aligned() && bytes.len().is_multiple_of(size_of::<T>()));
    // SAFETY: aligned and whole, as just checked; any bytes make a `T`.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<T>()) }
}

/// Bytes as the elements they are to become; see [`elements`].
#[inline(always)]
pub(crate) fn elements_mut<T: Plain>(bytes: &mut [u8]) -> &mut [T] {
    assert!(bytes.as_ptr().cast::<T>().is_aligned() && bytes.len().is_multiple_of(size_of::<T>()));
    // SAFETY: aligned and whole, as just checked; any bytes make a `T`, and a `T` has no padding.
    unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len() / size_of::<T>()) }
}

/// Elements as their bytes.
#[inline(always)]
pub(crate) fn raw_bytes<T: Plain>(elements: &[T]) -> &[u8] {
    // SAFETY: a `T` has no padding, so all its bytes are initialised.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}
