//! Weights that are quantized: rows are packed, then multiplied with panels of columns, tile by tile.
//!
//! Very few columns are multiplied with rows where they lie ([`few`](super::few)).
//! Few are multiplied with a strip of weights that is packed a few elements at a time and stays in the first cache.
//! For many, as much as stays in the second cache is packed and then multiplied with all of them.
//!
//! Invariant: a result is added up over `k` in ascending order, block by block, on top of what is there. So blocks may have any
//! length, and results do not depend on it.

use std::ops::Range;

use zerocopy::{FromBytes, IntoBytes, KnownLayout};

use super::cut::{Matching, Unit, panel_part};
use super::few::{FewScratch, MAX_FEW};
use super::format::Columns;
use super::method::Method;
use super::micro::{MAX_COLUMNS, MAX_ROWS, MAX_TILE};
use super::pack::{Sources, Unpacked};
use super::scales::MAX_BLOCK;
use crate::job::as_floats;
use crate::kernels::dot::ROWS;
use crate::simd::prefetch;
use crate::view::{Out, RowAt, Rows};

/// Up to this many columns, weights are packed in strips.
const FEW: usize = 48;
/// Elements of each row that are packed at a time in a strip, at most; a multiple of every block length. With the columns of a panel
/// they fit the first cache.
const STRIP: usize = 3 * MAX_BLOCK;
/// Bytes of the results of a strip, at most.
const RESULTS: usize = FEW * MAX_ROWS * 4;
/// Elements of each row that are packed at a time for many columns; a multiple of every block length.
const BLOCK: usize = 4096;
/// Panels of weights that are packed together, at most.
const PANELS: usize = 8;
/// Bytes that are packed together, at most: as much as stays in the second cache.
const PACKED: usize = 640 * 1024;
/// Bytes of weights that a thread reads at a time in strips.
const BYTES: usize = 256 * 1024;
/// Units that a product should be cut into, so that threads finish together.
const UNITS: usize = 16;
/// Panels of columns that a unit should have at least, or packing weights costs too much.
const COLUMN_PANELS: usize = 8;
/// Multiplications beyond which a unit is cut further, so that a product can be stopped.
const UNIT_WORK: usize = 1 << 30;
/// Elements of rows that are multiplied between two looks at whether to stop, where they are multiplied where they lie.
const LONG: usize = 1 << 16;

/// A product of quantized weights.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tiles {
    pub(super) method: Method,
    /// Elements of a row.
    pub(super) k: usize,
    /// Rows of a matrix.
    pub(super) m: usize,
    /// Bytes of a row of weights.
    pub(super) weight_row: usize,
}

impl Tiles {
    /// Whether so many columns are multiplied with weights where they lie.
    pub(super) const fn is_straight(&self, columns: usize) -> bool {
        columns <= self.method.few
    }

    const fn is_few(&self, columns: usize) -> bool {
        columns <= FEW
    }

    /// Columns of a panel.
    pub(super) const fn panel_columns(&self) -> usize {
        self.method.format.cols
    }

    /// Bytes of a panel of columns.
    pub(super) fn panel_bytes(&self) -> usize {
        let Method { format, few_format, .. } = &self.method;
        format.column_bytes(self.k).max(format.cols * few_format.column_bytes(self.k))
    }

    /// Packs a row of activations as column `j` of a panel of `columns`, if the matrix has so many in all.
    #[inline(always)]
    pub(super) fn pack_column(&self, row: &[u8], j: usize, columns: usize, all: usize, panel: &mut [u8]) {
        let Method { format, few_format, pack_column, .. } = self.method;
        if self.is_straight(all) {
            let bytes = few_format.column_bytes(self.k);
            let panel = &mut panel[j * bytes..][..bytes];
            pack_column(row, 0, few_format.columns_mut(panel, self.k), few_format);
        } else {
            let format = format.narrowed(columns);
            pack_column(row, j, format.columns_mut(panel, self.k), format);
        }
    }

    /// Elements of a row that are packed at a time for many columns.
    fn block(&self) -> usize {
        BLOCK.min(self.k)
    }

    /// Bytes that a thread needs for itself.
    pub(super) fn own_bytes(&self) -> usize {
        let format = self.method.format;
        let strip = RESULTS + format.weight_bytes(STRIP.min(self.k));
        let packed = strip.max(self.row_panels() * format.weight_bytes(self.block()));
        (size_of::<Unpacked>() + packed).max(size_of::<FewScratch>())
    }

    /// Panels of weights that are packed together for many columns.
    fn row_panels(&self) -> usize {
        let fit = PACKED / self.method.format.weight_bytes(self.block()).max(1);
        (self.m.div_ceil(self.method.format.rows) / UNITS).min(fit).clamp(1, PANELS)
    }

    /// Rows of weights in a unit, for so many columns.
    pub(super) fn unit_rows(&self, columns: usize) -> usize {
        if self.is_few(columns) {
            let rows = if self.is_straight(columns) { ROWS } else { self.method.format.rows };
            (BYTES / self.weight_row.max(1)).min(self.m / UNITS).max(rows) / rows * rows
        } else {
            self.row_panels() * self.method.format.rows
        }
    }

    /// Into how many parts the columns of a matrix are cut.
    pub(super) fn column_cuts(&self, columns: usize, matrices: usize) -> usize {
        if self.is_few(columns) {
            return 1;
        }
        let panels = columns.div_ceil(self.panel_columns());
        let units = self.m.div_ceil(self.unit_rows(columns)) * matrices;
        let long = self.unit_rows(columns).saturating_mul(self.k).saturating_mul(columns) / UNIT_WORK;
        UNITS.div_ceil(units).max(long).clamp(1, (panels / COLUMN_PANELS).max(1))
    }

    /// Multiplies the rows of a unit with some panels of the columns of its matrix.
    #[inline(always)]
    pub(super) fn multiply<M: Matching>(&self, work: &Unit<'_, '_, M>, panels: Range<usize>, own: &mut [u8]) {
        let columns = work.matching.columns(work.matrix);
        if self.k == 0 {
            for column in panels.flat_map(|panel| panel_part(columns, self.panel_columns(), panel)) {
                let (_, to) = work.matching.column(work.matrix, column);
                work.out(to, work.rows.clone()).slice().fill(0.0);
            }
        } else if self.is_straight(columns) {
            self.straight(work, own);
        } else if self.is_few(columns) {
            let (rows, (unpacked, own)) = (self.method.format.rows, scratch::<Unpacked>(own));
            for first in work.rows.clone().step_by(rows) {
                self.strip(&work.narrowed(first, rows), own, unpacked);
            }
        } else {
            let (unpacked, own) = scratch(own);
            self.blocks(work, panels, own, unpacked);
        }
    }

    /// Where a block of `k` is in a row of weights.
    const fn bytes(&self, block: &Range<usize>) -> Range<usize> {
        block.start * self.weight_row / self.k..block.end * self.weight_row / self.k
    }

    /// Multiplies the rows of a unit, where they lie, with all columns.
    #[inline(always)]
    fn straight<M: Matching>(&self, work: &Unit<'_, '_, M>, own: &mut [u8]) {
        let Method { format, few_format, multiply_few, .. } = self.method;
        let (count, bytes) = (work.matching.columns(work.matrix), few_format.column_bytes(self.k));
        let mut columns: [Columns<'_>; MAX_FEW] = [Columns::default(); MAX_FEW];
        for panel in 0..count.div_ceil(format.cols) {
            let part = panel_part(count, format.cols, panel);
            for (to, column) in columns[part].iter_mut().zip(work.panel(panel).chunks_exact(bytes)) {
                *to = few_format.columns(column, self.k, 0..self.k);
            }
        }
        let (weights, (scratch, _)) = (work.weights(), scratch::<FewScratch>(own));
        for first in work.rows.clone().step_by(ROWS) {
            let Unit { rows, next, is_asked_for, .. } = work.narrowed(first, ROWS);
            let gathered = Gathered::new(&weights, first, next, self.m, ROWS);
            if !is_asked_for {
                gathered.sources(ROWS, 0..self.weight_row).ask_first();
            }
            let mut results = [[0.0; ROWS]; MAX_FEW];
            if self.k <= LONG {
                if work.stop.after(self.k * rows.len() * count) {
                    return;
                }
                let from = gathered.sources(ROWS, 0..self.weight_row);
                multiply_few(&from, scratch, &columns[..count], &mut results[..count]);
            } else {
                for start in (0..self.k).step_by(LONG) {
                    let block = start..(start + LONG).min(self.k);
                    if work.stop.after(block.len() * rows.len() * count) {
                        return;
                    }
                    for panel in 0..count.div_ceil(format.cols) {
                        let part = panel_part(count, format.cols, panel);
                        for (to, column) in
                            columns[part].iter_mut().zip(work.panel(panel).chunks_exact(bytes))
                        {
                            *to = few_format.columns(column, self.k, block.clone());
                        }
                    }
                    let from = gathered.sources(ROWS, self.bytes(&block));
                    multiply_few(&from, scratch, &columns[..count], &mut results[..count]);
                }
            }
            for (column, results) in results[..count].iter().enumerate() {
                let (_, to) = work.matching.column(work.matrix, column);
                put(work.out(to, rows.clone()), results);
            }
        }
    }

    /// Multiplies a panel of weights with all columns, which are few: results stay in registers and in the first cache.
    #[inline(always)]
    fn strip<M: Matching>(&self, work: &Unit<'_, '_, M>, own: &mut [u8], unpacked: &mut Unpacked) {
        let Method { format, pack_weights, multiply, .. } = self.method;
        let columns = work.matching.columns(work.matrix);
        let part = |panel| panel_part(columns, format.cols, panel);
        let gathered = Gathered::new(&work.weights(), work.rows.start, work.next, self.m, format.rows);
        let (results, own) = own.split_at_mut(RESULTS);
        let results = &mut as_floats(results)[..columns * format.rows];
        results.fill(0.0);
        let mut start = 0;
        while start < self.k {
            let block = start..(start + STRIP).min(self.k);
            if work.stop.after(block.len() * work.rows.len() * columns) {
                return;
            }
            let pack = &mut own[..format.weight_bytes(block.len())];
            let from = gathered.sources(format.rows, self.bytes(&block));
            pack_weights(&from, unpacked, format.weights_mut(pack, block.len()));
            let weights = format.weights(pack, block.len());
            for panel in 0..columns.div_ceil(format.cols) {
                let part = part(panel);
                let tile = &mut results[part.start * format.rows..part.end * format.rows];
                let format = format.narrowed(part.len());
                multiply(weights, format.columns(work.panel(panel), self.k, block.clone()), tile);
            }
            start = block.end;
        }
        for (column, results) in results.chunks_exact(format.rows).enumerate() {
            let (_, to) = work.matching.column(work.matrix, column);
            put(work.out(to, work.rows.clone()), results);
        }
    }

    /// One block of `k` after another: packs the rows of the unit, then multiplies them with all panels.
    #[inline(always)]
    fn blocks<M: Matching>(
        &self,
        work: &Unit<'_, '_, M>,
        panels: Range<usize>,
        own: &mut [u8],
        unpacked: &mut Unpacked,
    ) {
        let Method { format, pack_weights, .. } = self.method;
        let weights = work.weights();
        let mut start = 0;
        while start < self.k {
            let block = start..(start + self.block()).min(self.k);
            let panel_bytes = format.weight_bytes(block.len());
            let packs = work.rows.clone().step_by(format.rows).zip(own.chunks_exact_mut(panel_bytes));
            for (first, pack) in packs {
                let Unit { next, .. } = work.narrowed(first, format.rows);
                let gathered = Gathered::new(&weights, first, next, self.m, format.rows);
                let from = gathered.sources(format.rows, self.bytes(&block));
                pack_weights(&from, unpacked, format.weights_mut(pack, block.len()));
            }
            for panel in panels.clone() {
                let columns = panel_part(work.matching.columns(work.matrix), format.cols, panel).len();
                if work.stop.after(block.len() * work.rows.len() * columns) {
                    return;
                }
                self.panel(work, panel, block.clone(), own);
            }
            start = block.end;
        }
    }

    /// Multiplies packed rows with one panel, and adds to results in memory.
    #[inline(always)]
    fn panel<M: Matching>(&self, work: &Unit<'_, '_, M>, panel: usize, block: Range<usize>, own: &[u8]) {
        let Method { format, multiply, .. } = self.method;
        let columns = panel_part(work.matching.columns(work.matrix), format.cols, panel);
        let packed = format.narrowed(columns.len()).columns(work.panel(panel), self.k, block.clone());
        let mut outs: [RowAt; MAX_COLUMNS] = [[0; 3]; MAX_COLUMNS];
        let outs = &mut outs[..columns.len()];
        for (to, column) in outs.iter_mut().zip(columns) {
            (_, *to) = work.matching.column(work.matrix, column);
        }
        let mut tile = [0f32; MAX_TILE];
        let tile = &mut tile[..format.rows * outs.len()];
        let packs = work.rows.clone().step_by(format.rows);
        for (first, pack) in packs.zip(own.chunks_exact(format.weight_bytes(block.len()))) {
            let rows = first..(first + format.rows).min(work.rows.end);
            let out = |to: &RowAt| -> Out<'_, f32> { work.out(*to, rows.clone()) };
            if block.start == 0 {
                tile.fill(0.0);
                // Columns of results are far apart: they come while the tile is computed.
                outs.iter().for_each(|to| prefetch(out(to).slice().as_bytes()));
            } else {
                for (to, tile) in outs.iter().zip(tile.chunks_exact_mut(format.rows)) {
                    tile[..rows.len()].copy_from_slice(out(to).slice());
                }
            }
            multiply(format.weights(pack, block.len()), packed, tile);
            for (to, tile) in outs.iter().zip(tile.chunks_exact(format.rows)) {
                put(out(to), tile);
            }
        }
    }
}

/// Writes as many results of a column as are wanted.
#[inline(always)]
fn put(mut to: Out<'_, f32>, results: &[f32]) {
    // Nearly always all of them: compilers know how many that is.
    match results.first_chunk::<ROWS>() {
        Some(all) if to.len() == ROWS => to.write(0, all),
        _ => {
            let wanted = to.len();
            to.write(0, &results[..wanted]);
        }
    }
}

/// The first bytes of a thread's memory as what a kernel needs there, and the rest.
fn scratch<T: FromBytes + IntoBytes + KnownLayout>(own: &mut [u8]) -> (&mut T, &mut [u8]) {
    T::mut_from_prefix(own).unwrap_or_else(|_| unreachable!("there is enough of it, and it is aligned"))
}

/// The rows of a panel, and how far behind them those of the next one lie.
struct Gathered<'t> {
    rows: [&'t [u8]; MAX_ROWS],
    next: usize,
}

impl<'t> Gathered<'t> {
    /// Some rows from `first` on, of `m`, and after them those at `next`. Past the end any row will do: its results are
    /// not used.
    #[inline(always)]
    fn new(weights: &Rows<'t, u8>, first: usize, next: *const u8, m: usize, count: usize) -> Gathered<'t> {
        let mut gathered = Gathered { rows: [&[]; MAX_ROWS], next: 0 };
        for r in 0..count {
            gathered.rows[r] = weights.get((first + r).min(m - 1));
        }
        gathered.next = next.addr().wrapping_sub(gathered.rows[0].as_ptr().addr());
        gathered
    }

    fn sources(&self, count: usize, bytes: Range<usize>) -> Sources<'_> {
        Sources { rows: &self.rows[..count], next: self.next, bytes }
    }
}
