//! Where spans of one item that are computed apart leave what they have found, and how that becomes a result.
//!
//! Concurrency: a span of an item is computed by one thread, and no thread looks at slots before all of them are done.

use std::ops::Range;

use zerocopy::FromBytes;

use super::lens::{Attention, Item, Sizes};
use super::soften::State;
use super::walk::{merge_into, write};
use crate::job::{SharedScratch, as_floats};
use crate::simd::Simd;
use crate::view::Dst;

/// The slots of an item: one for each of its spans and rows.
pub(super) struct Slots<'t> {
    shared: SharedScratch<'t>,
    /// First float of the first slot.
    first: usize,
    /// Spans of all pieces of the item.
    spans: Range<usize>,
}

impl<'t> Slots<'t> {
    /// Slots in shared memory.
    ///
    /// # Safety
    ///
    /// Slots of different items do not meet, only one thread works on a span of an item, and [`merge`](Slots::merge) is called
    /// in a later phase than [`leave`](Slots::leave).
    pub(super) unsafe fn new(shared: SharedScratch<'t>, first: usize, spans: Range<usize>) -> Slots<'t> {
        Slots { shared, first, spans }
    }

    /// Bytes of a row of a span.
    fn place(&self, sizes: &Sizes, rows: usize, [span, row]: [usize; 2]) -> (usize, usize) {
        assert!(self.spans.contains(&span) && row < rows);
        let slot = (span - self.spans.start) * rows + row;
        let float = size_of::<f32>();
        ((self.first + slot * sizes.partial()) * float, sizes.partial() * float)
    }

    /// Leaves what a span has found about a row.
    pub(super) fn leave(&self, sizes: &Sizes, rows: usize, at: [usize; 2], state: State, values: &[f32]) {
        let (start, len) = self.place(sizes, rows, at);
        // SAFETY: slots of different items, spans and rows do not meet, and this thread has no other handle of this one.
        let slot = as_floats(unsafe { self.shared.bytes_mut(start, len) });
        slot[0] = state.largest;
        slot[1] = state.sum;
        slot[2..].copy_from_slice(values);
    }

    /// Puts the spans of a row together, in ascending order, and writes the result. `totals` is room for a row.
    ///
    /// # Safety
    ///
    /// No other thread reads or writes the result of this row in this phase, and this thread has no handle of it.
    #[inline(always)]
    pub(super) unsafe fn merge<S: Simd>(
        &self,
        s: S,
        attention: &Attention<'_>,
        item: &Item,
        row: usize,
        totals: &mut [f32],
        dst: &Dst<'_>,
    ) {
        let sizes = &attention.sizes;
        let totals = &mut totals[..sizes.padded_dv()];
        totals.fill(0.0);
        let mut state = State::EMPTY;
        for span in self.spans.clone() {
            let (start, len) = self.place(sizes, item.rows, [span, row]);
            // SAFETY: in this phase no thread writes to slots.
            let slot = <[f32]>::ref_from_bytes(unsafe { self.shared.bytes(start, len) })
                .unwrap_or_else(|_| unreachable!("scratch is aligned and sized in whole floats"));
            let found = State { largest: slot[0], sum: slot[1] };
            state = merge_into(s, state, totals, found, &slot[2..]);
        }
        // SAFETY: as the caller says.
        unsafe { write(s, attention, item.query(sizes, row), state, totals, dst) };
    }
}
