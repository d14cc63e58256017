//! Weights that are plain numbers: inner products of rows with columns, straight from where both lie.
//!
//! Few columns are multiplied with whole rows of weights as they come from memory. Many are multiplied with a piece of some
//! rows at a time, which stays in the second cache, widened once; partial sums wait in scratch memory meanwhile.
//!
//! Invariant: rows are cut at multiples of sixteen elements alone, so that [`sums`] gives the same results either way.

mod sums;

use std::ops::Range;

use oxcart_tensor::DType;

use self::sums::{
    AddProducts, MAX_TILE, MAX_TILE_COLUMNS, SUMS, Totals, Widen, add_products, tile_columns, tile_rows,
    totals, widen,
};
use super::cut::{Matching, Unit, panel_part};
use crate::job::{Stop, as_floats};
use crate::simd::Level;
use crate::view::Out;

/// Up to this many columns, weights are used as they come from memory.
const FEW: usize = 32;
/// Rows of weights in a unit for many columns; a multiple of all [`tile_rows`] for so many.
const ROWS: usize = 32;
/// Columns in a unit for many columns; a multiple of all [`tile_columns`].
const COLUMNS: usize = 192;
/// Elements of each row that are multiplied at a time with many columns, at most.
const PIECE: usize = 1024;
/// Floats between pieces of rows besides the pieces, so that not all begin at the same place of a cache.
const GAP: usize = 16;
/// Bytes of weights that a thread reads at a time, for few columns.
const BYTES: usize = 256 * 1024;
/// Elements of rows that are multiplied between two looks at whether to stop.
const LONG: usize = 1 << 16;
/// Units that a product should be cut into, so that threads finish together.
const UNITS: usize = 16;

/// How numbers of a type are multiplied on an instruction set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Floats {
    level: Level,
    add: AddProducts,
    add_wide: AddProducts,
    totals: Totals,
    widen: Widen,
    is_wide: bool,
}

/// Where columns are.
pub(super) trait Columns {
    /// The columns of a panel, which are these of the matrix, in order: as many numbers each as a row has elements.
    fn panel(&self, panel: usize, columns: Range<usize>) -> impl Iterator<Item = &[f32]>;
}

impl Floats {
    /// The method for weights of a type; `None` if they are not plain numbers.
    pub(super) fn of(dtype: DType, level: Level) -> Option<Floats> {
        Some(Floats {
            level,
            add: add_products(dtype, level)?,
            add_wide: add_products(DType::F32, level)?,
            totals: totals(level),
            widen: widen(dtype, level)?,
            is_wide: dtype == DType::F32,
        })
    }

    /// Columns of a panel.
    pub(super) const fn panel_columns(&self) -> usize {
        tile_columns(self.level)
    }

    /// Floats from one column of a panel to the next.
    pub(super) const fn column_stride(&self, k: usize) -> usize {
        k.next_multiple_of(SUMS) + GAP
    }

    /// A row of the partner type, which is the type of the weights, as numbers.
    #[inline(always)]
    pub(super) fn widen(&self, row: &[u8], to: &mut [f32]) {
        (self.widen)(row, to);
    }

    /// Whether so many columns are multiplied with weights as they come from memory.
    pub(super) const fn is_few(&self, columns: usize) -> bool {
        columns <= FEW
    }

    /// Elements of a row that are multiplied at a time with many columns.
    fn piece(&self, k: usize) -> usize {
        k.div_ceil(k.div_ceil(PIECE).max(1)).next_multiple_of(SUMS)
    }

    /// Bytes that a thread needs for itself.
    pub(super) fn own_bytes(&self, k: usize) -> usize {
        (ROWS * (self.piece(k) + GAP) + ROWS * COLUMNS * SUMS) * 4
    }

    /// Rows of weights in a unit, for so many columns.
    pub(super) fn unit_rows(&self, m: usize, weight_row: usize, columns: usize) -> usize {
        match self.is_few(columns) {
            true => (BYTES / weight_row.max(1)).clamp(1, m.div_ceil(UNITS)),
            false => ROWS,
        }
    }

    /// Into how many parts the columns of a matrix are cut.
    pub(super) fn column_cuts(&self, columns: usize) -> usize {
        if self.is_few(columns) { 1 } else { columns.div_ceil(COLUMNS) }
    }

    /// Multiplies the rows of a unit with all columns of its matrix, which are few.
    #[inline(always)]
    pub(super) fn few<M: Matching>(&self, work: &Unit<'_, '_, M>, columns: &impl Columns) {
        let count = work.matching.columns(work.matrix);
        let mut outs: [Option<Out<'_, f32>>; FEW] = [const { None }; FEW];
        for (column, out) in outs.iter_mut().enumerate().take(count) {
            let (_, to) = work.matching.column(work.matrix, column);
            *out = Some(work.out(to, work.rows.clone()));
        }
        // As many streams as rows of a tile: the memory system follows several better than one.
        let rows = tile_rows(self.level, count);
        let streams = work.rows.len().div_ceil(rows);
        let weights = work.weights();
        let panels = count.div_ceil(self.panel_columns());
        for i in 0..streams {
            // The last stream may be shorter; there, any row will do.
            let row = |n: usize| (n * streams + i).min(work.rows.len() - 1);
            let mut from: [&[u8]; MAX_TILE] = [&[]; MAX_TILE];
            for (n, from) in from.iter_mut().enumerate().take(rows) {
                *from = weights.get(work.rows.start + row(n));
            }
            for panel in 0..panels {
                let part = panel_part(count, self.panel_columns(), panel);
                if work.stop.after(0) {
                    return;
                }
                let mut tile = [0.0; MAX_TILE];
                let tile = &mut tile[..rows * part.len()];
                // Rows that stand in for those past the end are not counted.
                let count = (work.rows.len() - i).div_ceil(streams);
                self.tile((work.stop, count), &from[..rows], columns.panel(panel, part.clone()), tile);
                for (tile, out) in tile.chunks_exact(rows).zip(&mut outs[part]) {
                    let Some(out) = out else { unreachable!("columns of this matrix") };
                    for (n, total) in tile.iter().enumerate() {
                        out.set(row(n), *total);
                    }
                }
            }
        }
    }

    /// Multiplies some rows with some columns, whole; so many of the rows are counted.
    #[inline(always)]
    fn tile<'c>(
        &self,
        (stop, count): (Stop<'_>, usize),
        rows: &[&[u8]],
        columns: impl Iterator<Item = &'c [f32]>,
        tile: &mut [f32],
    ) {
        let mut from: [&[f32]; MAX_TILE_COLUMNS] = [&[]; MAX_TILE_COLUMNS];
        from.iter_mut().zip(columns).for_each(|(from, column)| *from = column);
        let mut sums = [0.0; MAX_TILE * SUMS];
        let from = &mut from[..tile.len() / rows.len()];
        let (k, bytes) = (from.first().map_or(0, |column| column.len()), rows[0].len());
        if k <= LONG {
            stop.after(k * count * from.len());
            (self.add)(rows, from, &mut sums, true);
        } else {
            for start in (0..k).step_by(LONG) {
                let part = start..(start + LONG).min(k);
                if stop.after(part.len() * count * from.len()) {
                    return;
                }
                let mut pieces: [&[u8]; MAX_TILE] = [&[]; MAX_TILE];
                for (piece, row) in pieces.iter_mut().zip(rows) {
                    *piece = &row[part.start * (bytes / k)..part.end * (bytes / k)];
                }
                let mut columns: [&[f32]; MAX_TILE_COLUMNS] = [&[]; MAX_TILE_COLUMNS];
                for (piece, column) in columns.iter_mut().zip(&*from) {
                    *piece = &column[part.clone()];
                }
                (self.add)(&pieces[..rows.len()], &columns[..from.len()], &mut sums, start == 0);
            }
        }
        (self.totals)(&sums, tile);
    }

    /// Multiplies the rows of a unit with a part of the columns of its matrix: some panels.
    #[inline(always)]
    pub(super) fn many<M: Matching>(
        &self,
        work: &Unit<'_, '_, M>,
        k: usize,
        panels: Range<usize>,
        columns: &impl Columns,
        own: &mut [u8],
    ) {
        let count = work.matching.columns(work.matrix);
        let rows = tile_rows(self.level, count);
        let (piece, groups) = (self.piece(k), work.rows.len().div_ceil(rows));
        let (wide, sums) = as_floats(own).split_at_mut(ROWS * (piece + GAP));
        let panel_sums = groups * rows * self.panel_columns() * SUMS;
        // Sums wait for the next piece, if there is one; otherwise, all panels use the same, which stay in the first cache.
        let sums = &mut sums[..if piece < k { panels.len() } else { 1 } * panel_sums];
        let weights = work.weights();
        let mut start = 0;
        loop {
            let part = start..(start + piece).min(k);
            let row_bytes = weights.get(work.rows.start).len();
            let bytes = part.start * row_bytes / k.max(1)..part.end * row_bytes / k.max(1);
            let row = |r: usize| {
                let row = work.rows.start + r.min(work.rows.len() - 1);
                &weights.get(row)[bytes.clone()]
            };
            let mut from: [&[u8]; ROWS] = [&[]; ROWS];
            if self.is_wide {
                from.iter_mut().enumerate().take(groups * rows).for_each(|(r, from)| *from = row(r));
            } else {
                let pieces = wide.chunks_exact_mut(piece + GAP).zip(&mut from);
                for (r, (wide, from)) in pieces.enumerate().take(groups * rows) {
                    let wide = &mut wide[..part.len()];
                    (self.widen)(row(r), wide);
                    *from = zerocopy::IntoBytes::as_bytes(&*wide);
                }
            }
            for (i, panel) in panels.clone().enumerate() {
                let sums = &mut sums[if piece < k { i } else { 0 } * panel_sums..][..panel_sums];
                let mut ys: [&[f32]; MAX_TILE_COLUMNS] = [&[]; MAX_TILE_COLUMNS];
                let of_panel = panel_part(count, self.panel_columns(), panel);
                if work.stop.after(work.rows.len() * of_panel.len() * part.len()) {
                    return;
                }
                for (y, column) in ys.iter_mut().zip(columns.panel(panel, of_panel.clone())) {
                    *y = &column[part.clone()];
                }
                let tiles = sums.chunks_exact_mut(rows * of_panel.len() * SUMS);
                for (rows, sums) in from.chunks_exact(rows).take(groups).zip(tiles) {
                    (self.add_wide)(rows, &ys[..of_panel.len()], sums, start == 0);
                }
                if part.end == k {
                    self.finish(work, of_panel, rows, groups, sums);
                }
            }
            start = part.end;
            if start == k {
                break;
            }
        }
    }

    /// Writes the results of a panel, whose sums lie by group of rows, then by column.
    #[inline(always)]
    fn finish<M: Matching>(
        &self,
        work: &Unit<'_, '_, M>,
        panel: Range<usize>,
        rows: usize,
        groups: usize,
        sums: &[f32],
    ) {
        let mut totals = [0.0; ROWS * MAX_TILE_COLUMNS];
        let totals = &mut totals[..groups * rows * panel.len()];
        (self.totals)(sums, totals);
        // All rows of a column are written at once: columns of results are far apart.
        let mut results = [[0.0; ROWS]; MAX_TILE_COLUMNS];
        match rows {
            4 => gather::<4>(totals, panel.len(), &mut results),
            2 => gather::<2>(totals, panel.len(), &mut results),
            1 => gather::<1>(totals, panel.len(), &mut results),
            _ => unreachable!("no tiles of {rows} rows for many columns"),
        }
        for (results, column) in results.iter().zip(panel) {
            let (_, to) = work.matching.column(work.matrix, column);
            work.out(to, work.rows.clone()).write(0, &results[..work.rows.len()]);
        }
    }
}

/// Puts together the rows of each of some columns, which are in tiles of `R` rows.
#[inline(always)]
fn gather<const R: usize>(tiles: &[f32], columns: usize, to: &mut [[f32; ROWS]; MAX_TILE_COLUMNS]) {
    for (group, tile) in tiles.as_chunks::<R>().0.chunks_exact(columns).enumerate() {
        for (to, rows) in to.iter_mut().zip(tile) {
            to.as_chunks_mut::<R>().0[group] = *rows;
        }
    }
}
