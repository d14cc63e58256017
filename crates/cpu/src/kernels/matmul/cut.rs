//! Which columns go with which matrix, and the units that a product is cut into.

use std::ops::Range;

use crate::job::{SharedScratch, Stop};
use crate::view::{Dst, Out, RowAt, Rows, Src};

/// Which columns are multiplied with which matrix.
pub(super) trait Matching {
    /// Matrices.
    fn matrices(&self) -> usize;
    /// Where a matrix is: dimensions 2 and 3 of the weights.
    fn plane(&self, matrix: usize) -> [usize; 2];
    /// How many columns it is multiplied with.
    fn columns(&self, matrix: usize) -> usize;
    /// Panels of columns that come before its own.
    fn first_panel(&self, matrix: usize) -> usize;
    /// Panels of columns in all.
    fn panels(&self) -> usize {
        self.first_panel(self.matrices())
    }
    /// The matrix of a panel.
    fn matrix_of(&self, panel: usize) -> usize;
    /// The row of activations and the row of results that a column is.
    fn column(&self, matrix: usize, column: usize) -> (RowAt, RowAt);
}

/// The columns of a panel: all panels of a matrix have as many, give or take one, and `most` at most.
pub(super) const fn panel_part(columns: usize, most: usize, panel: usize) -> Range<usize> {
    let panels = columns.div_ceil(most);
    columns * panel / panels..columns * (panel + 1) / panels
}

/// Some rows of a matrix, and what they are multiplied with.
pub(super) struct Unit<'u, 't, M> {
    pub(super) a: Src<'t>,
    pub(super) dst: &'u Dst<'t>,
    pub(super) matching: &'u M,
    pub(super) matrix: usize,
    pub(super) rows: Range<usize>,
    /// Whether memory was asked for the first of them while the unit before was multiplied.
    pub(super) is_asked_for: bool,
    /// Where the rows are that this thread will probably go on with.
    pub(super) next: *const u8,
    pub(super) panels: Panels<'t>,
    pub(super) stop: Stop<'t>,
}

/// Panels of columns in shared memory.
#[derive(Clone, Copy)]
pub(super) struct Panels<'t> {
    pub(super) shared: SharedScratch<'t>,
    /// Where the first one starts.
    pub(super) base: usize,
    /// Bytes of one.
    pub(super) bytes: usize,
}

impl<'t> Panels<'t> {
    /// A panel, once all are written.
    fn get(&self, panel: usize) -> &'t [u8] {
        // SAFETY: panels were written in the phase before; no thread writes to shared memory in this one.
        unsafe { self.shared.bytes(self.base + panel * self.bytes, self.bytes) }
    }

    /// A panel to be written.
    ///
    /// # Safety
    ///
    /// This thread alone uses this panel in this phase, through one handle at a time.
    pub(super) unsafe fn get_mut(&self, panel: usize) -> &'t mut [u8] {
        // SAFETY: panels do not meet, and this one is the caller's.
        unsafe { self.shared.bytes_mut(self.base + panel * self.bytes, self.bytes) }
    }
}

impl<'t, M: Matching> Unit<'_, 't, M> {
    /// The rows of the matrix.
    pub(super) fn weights(&self) -> Rows<'t, u8> {
        self.a.rows(self.matching.plane(self.matrix))
    }

    /// A panel of the matrix's columns.
    #[inline(always)]
    pub(super) fn panel(&self, panel: usize) -> &'t [u8] {
        self.panels.get(self.matching.first_panel(self.matrix) + panel)
    }

    /// A part of a row of results.
    #[inline(always)]
    pub(super) fn out(&self, at: RowAt, rows: Range<usize>) -> Out<'t, f32> {
        // SAFETY: of this row only the part is used, which belongs to this unit alone: units cut rows and columns without
        // overlap, and no two columns are the same row of results. Handles do not outlive the use of the tile.
        unsafe { self.dst.row(at) }.part(rows)
    }

    /// Some rows of these, as many as `count` from `first` on.
    pub(super) fn narrowed(&self, first: usize, count: usize) -> Unit<'_, 't, M> {
        let end = first + count;
        let next = if end < self.rows.end { self.weights().get(end).as_ptr() } else { self.next };
        let is_asked_for = self.is_asked_for || first > self.rows.start;
        Unit { rows: first..end.min(self.rows.end), is_asked_for, next, ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_are_of_like_width_and_meet() {
        for most in 1..8 {
            for columns in 1usize..60 {
                let panels = columns.div_ceil(most);
                let mut at = 0;
                for panel in 0..panels {
                    let part = panel_part(columns, most, panel);
                    assert!(part.start == at && part.len() <= most && part.len() + 1 >= columns / panels);
                    at = part.end;
                }
                assert_eq!(at, columns);
            }
        }
    }
}
