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
    AddProducts, MAX_TILE, SUMS, Totals, Widen, add_products, tile_columns, tile_rows, totals, widen,
};
use super::cut::{Matching, Unit, panel_part};
use crate::job::as_floats;
use crate::simd::Level;
use crate::view::Out;

/// Up to this many columns, weights are used as they come from memory.
const FEW: usize = 32;
/// Rows of weights in a unit for many columns; a multiple of all [`tile_rows`] for so many.
const ROWS: usize = 32;
/// Columns in a unit for many columns; a multiple of all [`tile_columns`].
const COLUMNS: usize = 96;
/// Elements of each row that are multiplied at a time with many columns, at most.
const PIECE: usize = 512;
/// Floats between pieces of rows besides the pieces, so that not all begin at the same place of a cache.
const GAP: usize = 16;
/// Bytes of weights that a thread reads at a time, for few columns.
const BYTES: usize = 256 * 1024;
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

/// Where a column is: as many numbers as a row has elements.
pub(super) trait Columns {
    fn column(&self, column: usize) -> &[f32];
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
                let mut tile = [0.0; MAX_TILE];
                let tile = &mut tile[..rows * part.len()];
                self.tile(&from[..rows], columns, part.clone(), tile);
                for (tile, out) in tile.chunks_exact(rows).zip(&mut outs[part]) {
                    let Some(out) = out else { unreachable!("columns of this matrix") };
                    for (n, total) in tile.iter().enumerate() {
                        out.set(row(n), *total);
                    }
                }
            }
        }
    }

    /// Multiplies some rows with some columns, whole.
    #[inline(always)]
    fn tile(&self, rows: &[&[u8]], columns: &impl Columns, part: Range<usize>, tile: &mut [f32]) {
        let mut from: [&[f32]; MAX_TILE] = [&[]; MAX_TILE];
        for (from, column) in from.iter_mut().zip(part.clone()) {
            *from = columns.column(column);
        }
        let mut sums = [0.0; MAX_TILE * SUMS];
        (self.add)(rows, &from[..part.len()], &mut sums);
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
        let tile_sums = rows * self.panel_columns() * SUMS;
        let sums = &mut sums[..panels.len() * groups * tile_sums];
        sums.fill(0.0);
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
            for (panel, sums) in panels.clone().zip(sums.chunks_exact_mut(groups * tile_sums)) {
                let mut ys: [&[f32]; MAX_TILE] = [&[]; MAX_TILE];
                let panel = panel_part(count, self.panel_columns(), panel);
                for (y, column) in ys.iter_mut().zip(panel.clone()) {
                    *y = &columns.column(column)[part.clone()];
                }
                for (rows, sums) in from.chunks_exact(rows).zip(sums.chunks_exact_mut(tile_sums)) {
                    (self.add_wide)(rows, &ys[..panel.len()], sums);
                }
                if part.end == k {
                    self.finish(work, panel, rows, sums);
                }
            }
            start = part.end;
            if start == k {
                break;
            }
        }
    }

    /// Writes the results of a panel.
    #[inline(always)]
    fn finish<M: Matching>(&self, work: &Unit<'_, '_, M>, panel: Range<usize>, rows: usize, sums: &[f32]) {
        let tile_sums = rows * self.panel_columns() * SUMS;
        for (group, sums) in sums.chunks_exact(tile_sums).enumerate() {
            let mut tile = [0.0; MAX_TILE];
            let tile = &mut tile[..rows * panel.len()];
            (self.totals)(sums, tile);
            let first = work.rows.start + group * rows;
            let part = first..(first + rows).min(work.rows.end);
            for (tile, column) in tile.chunks_exact(rows).zip(panel.clone()) {
                let (_, to) = work.matching.column(work.matrix, column);
                work.out(to, part.clone()).write(0, &tile[..part.len()]);
            }
        }
    }
}
