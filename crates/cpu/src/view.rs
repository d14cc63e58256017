//! Tensors as kernels see them: memory and layout in one, handed out row by row.
//!
//! Safety invariants, made true by [`plan`](crate::plan) when it binds a step to memory:
//! - `base` points at `layout.byte_len()` bytes, aligned for the element type, that stay locked while the step runs;
//! - no thread writes to the bytes of a [`Src`] during a step, except the step itself where [`Src::is_aliased`]: then they are
//!   exactly the bytes of the result, element for element;
//! - a [`Dst`] overlaps nothing else that the step writes, and its layout maps no two elements to one byte.
//!
//! Rows of a result are handed out in shares that do not meet ([`Dst::rows`], [`Dst::pieces`]), each [`Dst`] being consumed,
//! so safe code cannot write a row from two threads. Rows that may alias the result are only ever read through raw
//! copies ([`In::read`]); asking for a slice of one panics.

mod bytes;
mod number;
mod share;

pub(crate) use bytes::{OutBytes, elements, elements_mut, raw_bytes};
pub(crate) use number::{Number, Plain};
pub(crate) use share::Share;

use std::marker::PhantomData;
use std::ops::Range;

use oxcart_tensor::{DType, Layout};

/// Row coordinates: dimensions 1, 2 and 3.
pub(crate) type RowAt = [usize; 3];

/// Row coordinates from a row number.
#[inline(always)]
pub(crate) fn row_at(row: usize, ne: [usize; 4]) -> RowAt {
    // Divisions are slow, and most tensors are matrices.
    if row < ne[1] {
        return [row, 0, 0];
    }
    [row % ne[1], row / ne[1] % ne[2], row / (ne[1] * ne[2])]
}

/// A tensor that a step reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Src<'t> {
    base: *const u8,
    layout: &'t Layout,
    aliased: bool,
}

/// Elements of one row, one after another, for reading.
#[derive(Clone, Copy, Debug)]
pub(crate) struct In<'t, T> {
    at: *const T,
    len: usize,
    aliased: bool,
    life: PhantomData<&'t T>,
}

/// Elements of one row at any distance, for reading.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strided<'t, T> {
    at: *const u8,
    stride: usize,
    len: usize,
    life: PhantomData<&'t T>,
}

/// Rows of one plane whose elements are adjacent, for those who ask for many: what they have in common is checked once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows<'t, T> {
    at: *const u8,
    stride: usize,
    count: usize,
    len: usize,
    life: PhantomData<&'t T>,
}

/// The same elements of some neighbouring rows of a plane, for inner loops.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strip<'t, T> {
    at: *const T,
    /// Bytes from one row to the next.
    stride: usize,
    count: usize,
    len: usize,
    life: PhantomData<&'t T>,
}

/// A tensor that a step writes.
#[derive(Debug)]
pub(crate) struct Dst<'t> {
    base: *mut u8,
    layout: &'t Layout,
    aliased: bool,
}

/// Elements of one row, one after another, that this thread alone writes.
#[derive(Debug)]
pub(crate) struct Out<'t, T> {
    at: *mut T,
    len: usize,
    aliased: bool,
    life: PhantomData<&'t mut T>,
}

/// Where a row starts, in bytes; checks the coordinates.
#[inline(always)]
fn row_offset(layout: &Layout, at: RowAt) -> usize {
    let (ne, nb) = (layout.ne(), layout.nb());
    assert!(at[0] < ne[1] && at[1] < ne[2] && at[2] < ne[3], "row outside its tensor");
    at[0] * nb[1] + at[1] * nb[2] + at[2] * nb[3]
}

/// Checks that `T` is the element of a tensor, or its bytes.
#[inline(always)]
fn check_element<T: Plain>(layout: &Layout) {
    assert!(layout.dtype().block_bytes() == size_of::<T>() || size_of::<T>() == 1, "element of another size");
}

/// Elements of type `T` in a contiguous row; `T` is the element, or its bytes.
#[inline(always)]
fn row_len<T: Plain>(layout: &Layout) -> usize {
    assert!(layout.has_contiguous_rows(), "row is not contiguous");
    check_element::<T>(layout);
    match layout.dtype() {
        // Rows are asked for often, and a division by what a block holds takes longer than all the rest.
        dtype if dtype.block_len() == 1 => layout.ne()[0] * (dtype.block_bytes() / size_of::<T>()),
        _ => layout.row_bytes() / size_of::<T>(),
    }
}

/// Elements of type `T` in a packed tensor; `T` is the element, or its bytes.
fn packed_len<T: Plain>(layout: &Layout) -> usize {
    assert!(layout.is_contiguous(), "tensor is not packed");
    check_element::<T>(layout);
    layout.byte_len() / size_of::<T>()
}

/// Checks that `permuted` is `layout` with dimension `i` moved to `axes[i]`.
fn check_permutation(layout: &Layout, axes: [usize; 4], permuted: &Layout) {
    assert!(layout.permuted(axes).as_ref() == Ok(permuted), "not a permutation of the tensor's layout");
}

impl<'t> Src<'t> {
    /// A tensor in memory.
    ///
    /// # Safety
    ///
    /// The invariants at the head of this file hold for `'t`.
    pub(crate) const unsafe fn new(base: *const u8, layout: &'t Layout, aliased: bool) -> Src<'t> {
        Src { base, layout, aliased }
    }

    pub(crate) const fn layout(&self) -> &'t Layout {
        self.layout
    }

    pub(crate) const fn dtype(&self) -> DType {
        self.layout.dtype()
    }

    pub(crate) const fn ne(&self) -> [usize; 4] {
        self.layout.ne().extents()
    }

    /// Whether it is the memory of the result.
    pub(crate) const fn is_aliased(&self) -> bool {
        self.aliased
    }

    /// A row whose elements are adjacent, as elements or (`T = u8`) as bytes.
    #[inline(always)]
    pub(crate) fn row<T: Plain>(&self, at: RowAt) -> In<'t, T> {
        let (offset, len) = (row_offset(self.layout, at), row_len::<T>(self.layout));
        // SAFETY: the row lies inside the tensor, as just checked, and the tensor inside its memory.
        let at = unsafe { self.base.add(offset) }.cast();
        In { at, len, aliased: self.aliased, life: PhantomData }
    }

    /// The rows of one plane: dimensions 2 and 3.
    ///
    /// # Panics
    ///
    /// When it is the memory of the result.
    pub(crate) fn rows<T: Plain>(&self, [plane2, plane3]: [usize; 2]) -> Rows<'t, T> {
        assert!(!self.aliased, "rows of memory that is being written");
        let count = self.layout.ne()[1];
        // Without rows there is nowhere to begin.
        let offset = if count == 0 { 0 } else { row_offset(self.layout, [0, plane2, plane3]) };
        // SAFETY: the first row, if there is one, lies inside the tensor, as just checked, and the tensor inside its memory.
        let at = unsafe { self.base.add(offset) };
        let (stride, len) = (self.layout.nb()[1], row_len::<T>(self.layout));
        Rows { at, stride, count, len, life: PhantomData }
    }

    /// A row at any stride.
    #[inline(always)]
    pub(crate) fn line<T: Plain>(&self, at: RowAt) -> Strided<'t, T> {
        assert!(self.layout.dtype().block_bytes() == size_of::<T>(), "element of another size");
        let offset = row_offset(self.layout, at);
        // SAFETY: the row lies inside the tensor, as just checked, and the tensor inside its memory.
        let at = unsafe { self.base.add(offset) };
        Strided { at, stride: self.layout.nb()[0], len: self.layout.ne()[0], life: PhantomData }
    }

    /// One element.
    #[inline(always)]
    pub(crate) fn get<T: Plain>(&self, at: [usize; 4]) -> T {
        self.line([at[1], at[2], at[3]]).get(at[0])
    }

    /// The same memory under `layout`, which is this tensor's with dimension `i` moved to `axes[i]`.
    pub(crate) fn permuted<'s>(&self, axes: [usize; 4], layout: &'s Layout) -> Src<'s>
    where
        't: 's,
    {
        check_permutation(self.layout, axes, layout);
        Src { base: self.base, layout, aliased: self.aliased }
    }

    /// All elements of a tensor that is packed, as elements or as bytes.
    pub(crate) fn packed<T: Plain>(&self) -> In<'t, T> {
        let len = packed_len::<T>(self.layout);
        In { at: self.base.cast(), len, aliased: self.aliased, life: PhantomData }
    }
}

impl<'t, T: Plain> In<'t, T> {
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// One element.
    #[inline(always)]
    pub(crate) fn get(&self, i: usize) -> T {
        assert!(i < self.len);
        // SAFETY: inside the row; if it is written meanwhile, then by this thread.
        unsafe { self.at.add(i).read() }
    }

    /// Copies elements out, whatever they alias.
    #[inline(always)]
    pub(crate) fn read(&self, start: usize, to: &mut [T]) {
        assert!(start <= self.len && to.len() <= self.len - start);
        // SAFETY: inside the row; `to` is a borrow of other memory, because no borrow of a tensor's bytes that alias
        // a result exists.
        unsafe { std::ptr::copy_nonoverlapping(self.at.add(start), to.as_mut_ptr(), to.len()) }
    }

    /// Part of it.
    #[inline(always)]
    pub(crate) fn part(&self, range: Range<usize>) -> In<'t, T> {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: inside the row.
        In { at: unsafe { self.at.add(range.start) }, len: range.len(), ..*self }
    }

    /// The row as a slice.
    ///
    /// # Panics
    ///
    /// When it is the memory of the result; kernels of ops that may run in place use [`In::read`].
    #[inline(always)]
    pub(crate) fn slice(&self) -> &'t [T] {
        assert!(!self.aliased, "a slice of memory that is being written");
        // SAFETY: inside the tensor, aligned, and not written while the step runs.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }
}

impl<'t, T: Plain> Rows<'t, T> {
    /// One row.
    #[inline(always)]
    pub(crate) fn get(&self, row: usize) -> &'t [T] {
        assert!(row < self.count, "row outside its plane");
        // SAFETY: the row lies inside the tensor, as just checked, aligned, and is not written while the step runs.
        unsafe { std::slice::from_raw_parts(self.at.add(row * self.stride).cast(), self.len) }
    }
}

impl<'t> Rows<'t, u8> {
    /// Some rows, and of each the elements that lie in these bytes.
    ///
    /// # Panics
    ///
    /// When rows or bytes are outside, or elements are not aligned.
    #[inline(always)]
    pub(crate) fn strip<T: Plain>(&self, rows: Range<usize>, bytes: Range<usize>) -> Strip<'t, T> {
        assert!(rows.start <= rows.end && rows.end <= self.count, "rows outside their plane");
        assert!(bytes.start <= bytes.end && bytes.end <= self.len, "bytes outside a row");
        // SAFETY: without rows nothing is added; else the first row lies inside the tensor, and the bytes inside the row.
        let at =
            unsafe { self.at.add(if rows.is_empty() { 0 } else { rows.start * self.stride + bytes.start }) };
        let at = at.cast::<T>();
        let (size, align) = (size_of::<T>(), align_of::<T>());
        assert!(
            at.is_aligned() && (rows.len() <= 1 || self.stride.is_multiple_of(align)),
            "elements are not aligned"
        );
        assert!(bytes.len().is_multiple_of(size), "part of an element");
        Strip { at, stride: self.stride, count: rows.len(), len: bytes.len() / size, life: PhantomData }
    }
}

impl<'t, T: Plain> Strip<'t, T> {
    /// Rows of a slice that are `stride` elements apart, `len` of each.
    #[inline(always)]
    pub(crate) fn of(from: &'t [T], stride: usize, len: usize) -> Strip<'t, T> {
        assert!(len <= stride);
        let count = from.len().checked_div(stride).unwrap_or(0);
        Strip { at: from.as_ptr(), stride: stride * size_of::<T>(), count, len, life: PhantomData }
    }

    /// Rows.
    pub(crate) const fn count(&self) -> usize {
        self.count
    }

    /// Elements of a row.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// The elements of one row.
    #[inline(always)]
    pub(crate) fn get(&self, row: usize) -> &'t [T] {
        assert!(row < self.count, "row outside its strip");
        // SAFETY: the row lies inside the tensor and its elements are aligned, as was checked when the strip was made; they are
        // not written while the step runs.
        unsafe { std::slice::from_raw_parts(self.at.byte_add(row * self.stride), self.len) }
    }

    /// Asks memory for the elements of a row; one that is not there does no harm.
    #[inline(always)]
    pub(crate) fn prefetch(&self, row: usize) {
        let row = self.at.wrapping_byte_add(row * self.stride);
        for at in (0..self.len * size_of::<T>()).step_by(64) {
            crate::simd::prefetch_line(row.wrapping_byte_add(at).cast());
        }
    }
}

impl<T: Plain> Strided<'_, T> {
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// One element.
    #[inline(always)]
    pub(crate) fn get(&self, i: usize) -> T {
        assert!(i < self.len);
        // SAFETY: inside the row; if it is written meanwhile, then by this thread.
        unsafe { self.at.add(i * self.stride).cast::<T>().read() }
    }

    /// Copies elements out, whatever they alias.
    #[inline(always)]
    pub(crate) fn read(&self, start: usize, to: &mut [T]) {
        for (i, to) in to.iter_mut().enumerate() {
            *to = self.get(start + i);
        }
    }
}

impl<'t> Dst<'t> {
    /// A tensor in memory.
    ///
    /// # Safety
    ///
    /// The invariants at the head of this file hold for `'t`.
    pub(crate) const unsafe fn new(base: *mut u8, layout: &'t Layout, aliased: bool) -> Dst<'t> {
        Dst { base, layout, aliased }
    }

    pub(crate) const fn layout(&self) -> &'t Layout {
        self.layout
    }

    pub(crate) const fn dtype(&self) -> DType {
        self.layout.dtype()
    }

    pub(crate) const fn ne(&self) -> [usize; 4] {
        self.layout.ne().extents()
    }

    pub(crate) const fn nb(&self) -> [usize; 4] {
        self.layout.nb()
    }

    /// Rows of dimensions 1 to 3.
    pub(crate) fn row_count(&self) -> usize {
        let ne = self.ne();
        ne[1] * ne[2] * ne[3]
    }

    /// The same memory under `layout`, which is this tensor's with dimension `i` moved to `axes[i]`.
    pub(crate) fn permuted<'s>(self, axes: [usize; 4], layout: &'s Layout) -> Dst<'s>
    where
        't: 's,
    {
        check_permutation(self.layout, axes, layout);
        Dst { base: self.base, layout, aliased: self.aliased }
    }

    /// This thread's share of the rows, in order.
    pub(crate) fn rows<T: Plain>(self, share: Share) -> impl Iterator<Item = (RowAt, Out<'t, T>)> {
        let ne = self.ne();
        share.of(self.row_count()).map(move |row| {
            let at = row_at(row, ne);
            // SAFETY: shares of different threads do not meet, this one visits each row once, and `self` is gone.
            (at, unsafe { self.row(at) })
        })
    }

    /// This thread's share of the elements, as pieces of rows of at most `len` elements that start at multiples of
    /// `len`: `(row, first element, piece)`.
    pub(crate) fn pieces<T: Plain>(
        self,
        share: Share,
        len: usize,
    ) -> impl Iterator<Item = (RowAt, usize, Out<'t, T>)> {
        let ne = self.ne();
        let per_row = ne[0].div_ceil(len);
        share.of(self.row_count() * per_row).map(move |piece| {
            let (at, start) = (row_at(piece / per_row, ne), piece % per_row * len);
            // SAFETY: shares of different threads do not meet, this one visits each piece once, and `self` is gone.
            let row = unsafe { self.row::<T>(at) };
            let end = (start + len).min(row.len);
            (at, start, row.part(start..end))
        })
    }

    /// This thread's share of the elements of a packed tensor as one run, and where it starts: at a multiple of `unit`.
    pub(crate) fn run<T: Plain>(self, share: Share, unit: usize) -> (usize, Out<'t, T>) {
        // SAFETY: only this share of it is kept; shares of different threads do not meet, and `self` is gone.
        let all = unsafe { self.packed::<T>() };
        let units = share.of(all.len.div_ceil(unit));
        let [start, end] = [units.start, units.end].map(|at| (at * unit).min(all.len));
        (start, all.part(start..end))
    }

    /// A row whose elements are adjacent, as elements or (`T = u8`) as bytes.
    ///
    /// # Safety
    ///
    /// No other thread reads or writes the row in this phase, and this thread has no other handle of it.
    #[inline(always)]
    pub(crate) unsafe fn row<T: Plain>(&self, at: RowAt) -> Out<'t, T> {
        let (offset, len) = (row_offset(self.layout, at), row_len::<T>(self.layout));
        // SAFETY: the row lies inside the tensor, as just checked, and the tensor inside its memory.
        let at = unsafe { self.base.add(offset) }.cast();
        Out { at, len, aliased: self.aliased, life: PhantomData }
    }

    /// All elements of a tensor that is packed, as elements or as bytes.
    ///
    /// # Safety
    ///
    /// No other thread reads or writes the tensor in this phase, and this thread has no other handle of it.
    pub(crate) unsafe fn packed<T: Plain>(&self) -> Out<'t, T> {
        let len = packed_len::<T>(self.layout);
        Out { at: self.base.cast(), len, aliased: self.aliased, life: PhantomData }
    }

    /// Writes one element.
    ///
    /// # Safety
    ///
    /// No other thread reads or writes the element in this phase.
    #[inline(always)]
    pub(crate) unsafe fn set<T: Plain>(&self, at: [usize; 4], value: T) {
        assert!(self.layout.dtype().block_bytes() == size_of::<T>() && at[0] < self.layout.ne()[0]);
        let offset = row_offset(self.layout, [at[1], at[2], at[3]]) + at[0] * self.layout.nb()[0];
        // SAFETY: the element lies inside the tensor, as just checked, and the tensor inside its memory.
        unsafe { self.base.add(offset).cast::<T>().write(value) }
    }
}

impl<'t, T: Plain> Out<'t, T> {
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Writes one element.
    #[inline(always)]
    pub(crate) fn set(&mut self, i: usize, value: T) {
        assert!(i < self.len);
        // SAFETY: inside the row, which is this thread's.
        unsafe { self.at.add(i).write(value) }
    }

    /// Copies elements in, whatever they alias.
    #[inline(always)]
    pub(crate) fn write(&mut self, start: usize, from: &[T]) {
        assert!(start <= self.len && from.len() <= self.len - start);
        // SAFETY: inside the row, which is this thread's; `from` borrows other memory, because no borrow of bytes that
        // alias a result exists.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.at.add(start), from.len()) }
    }

    /// Part of it.
    #[inline(always)]
    pub(crate) fn part(self, range: Range<usize>) -> Out<'t, T> {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: inside the row.
        Out { at: unsafe { self.at.add(range.start) }, len: range.len(), ..self }
    }

    /// The row as a slice.
    ///
    /// # Panics
    ///
    /// When a source is the same memory; kernels of ops that may run in place use [`Out::write`].
    #[inline(always)]
    pub(crate) fn slice(&mut self) -> &mut [T] {
        assert!(!self.aliased, "a slice of memory that is being read");
        // SAFETY: inside the tensor, aligned, this thread's alone, and no source is the same memory.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_rows_at_multiples() {
        let layout = Layout::packed(DType::F32, [10, 3, 1, 1]).unwrap();
        let mut memory = vec![0f32; 30];
        for thread in 0..2 {
            // SAFETY: the memory is as large as the layout, aligned, and ours.
            let dst = unsafe { Dst::new(memory.as_mut_ptr().cast(), &layout, false) };
            for (at, start, mut piece) in dst.pieces::<f32>(Share::new(thread, 2), 4) {
                assert_eq!(start % 4, 0);
                for (i, x) in piece.slice().iter_mut().enumerate() {
                    *x += (100 * at[0] + start + i) as f32;
                }
            }
        }
        let expected: Vec<_> = (0..30).map(|i| (100 * (i / 10) + i % 10) as f32).collect();
        assert_eq!(memory, expected);
    }

    #[test]
    fn runs_cover_a_packed_tensor_once() {
        let layout = Layout::packed(DType::F32, [5, 3, 2, 1]).unwrap();
        let mut memory = vec![0f32; 30];
        for thread in 0..4 {
            // SAFETY: the memory is as large as the layout, aligned, and ours.
            let dst = unsafe { Dst::new(memory.as_mut_ptr().cast(), &layout, false) };
            let (start, mut run) = dst.run::<f32>(Share::new(thread, 4), 4);
            assert_eq!(start % 4, 0);
            for (i, x) in run.slice().iter_mut().enumerate() {
                *x += (start + i) as f32;
            }
        }
        let expected: Vec<_> = (0..30u8).map(f32::from).collect();
        assert_eq!(memory, expected);
    }

    #[test]
    #[should_panic(expected = "memory that is being written")]
    fn aliased_rows_have_no_slices() {
        let layout = Layout::packed(DType::F32, [4, 1, 1, 1]).unwrap();
        let memory = [0f32; 4];
        // SAFETY: the memory is as large as the layout and aligned; it is not written.
        let src = unsafe { Src::new(memory.as_ptr().cast(), &layout, true) };
        src.row::<f32>([0, 0, 0]).slice();
    }

    #[test]
    fn permuted_tensors_have_other_rows() {
        let layout = Layout::packed(DType::F32, [2, 3, 1, 1]).unwrap();
        let turned = layout.permuted([1, 0, 2, 3]).unwrap();
        let memory = [0f32, 1.0, 2.0, 3.0, 4.0, 5.0];
        // SAFETY: the memory is as large as the layout and aligned; it is not written.
        let src = unsafe { Src::new(memory.as_ptr().cast(), &turned, false) };
        assert_eq!(src.permuted([1, 0, 2, 3], &layout).row::<f32>([2, 0, 0]).slice(), [4.0, 5.0]);
    }

    #[test]
    #[should_panic(expected = "not a permutation of the tensor's layout")]
    fn other_layouts_are_no_permutations() {
        let layout = Layout::packed(DType::F32, [2, 3, 1, 1]).unwrap();
        let longer = Layout::packed(DType::F32, [3, 3, 1, 1]).unwrap();
        let memory = [0f32; 6];
        // SAFETY: the memory is as large as the layout and aligned; it is not written.
        let src = unsafe { Src::new(memory.as_ptr().cast(), &layout, false) };
        src.permuted([1, 0, 2, 3], &longer);
    }

    #[test]
    #[should_panic(expected = "row outside its tensor")]
    fn rows_outside_are_refused() {
        let layout = Layout::packed(DType::F32, [4, 1, 1, 1]).unwrap();
        let memory = [0f32; 4];
        // SAFETY: the memory is as large as the layout and aligned; it is not written.
        let src = unsafe { Src::new(memory.as_ptr().cast(), &layout, false) };
        src.row::<f32>([1, 0, 0]);
    }
}
