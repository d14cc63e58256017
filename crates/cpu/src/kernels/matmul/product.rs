//! Matrices of weights times columns of activations: how the work is cut, and what it needs.
//!
//! A [`Matching`] says which columns go with which matrix. First all columns are [prepared](Product::prepare), then
//! [multiplied](Product::multiply): few columns one dot product at a time, straight from the weights; many by packing
//! some rows of weights, tile by tile.
//!
//! Invariant: shapes and the number of columns of a matrix alone decide how a result is computed. Threads take units
//! first come, first served, and no unit writes what another does.

use std::ops::Range;

use oxcart_tensor::DType;
use zerocopy::IntoBytes;

use super::method::Method;
use super::micro::{MAX_COLUMNS, MAX_TILE};
use super::pack::MAX_ROWS;
use crate::job::{Job, SharedScratch};
use crate::kernels::dot::{Dot, DotFour, Encode, FOUR, dot, dot_four, encode};
use crate::simd::{Level, prefetch};
use crate::view::{Dst, Number, Out, RowAt, Rows, Src};

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

/// The most columns that are not worth packing weights for, for any type; see [`Method::few`].
const MAX_FEW: usize = 11;

/// Panels of weights that are packed together, at most.
const PANELS: usize = 8;
/// Bytes that are packed together, at most: as much as stays in the second cache.
const PACKED: usize = 640 * 1024;
/// Units that a product should be cut into, so that threads finish together.
const UNITS: usize = 16;
/// Panels of columns that a unit should have at least, or packing weights costs too much.
const COLUMN_PANELS: usize = 8;
/// Multiplications beyond which a unit is cut further, so that a product can be stopped.
const UNIT_WORK: usize = 1 << 30;
/// Bytes of weights that a thread reads at a time where nothing is packed.
const BYTES: usize = 256 * 1024;
/// Bytes of a row of weights that packing starts with.
const START: usize = 256;
/// Multiply-adds that one thread should do at least.
const WORK_PER_THREAD: usize = 32 * 1024;

/// A product of certain types and shapes on a certain instruction set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    method: Method,
    dot: Dot,
    dot_four: DotFour,
    /// How a row of activations becomes the partner type.
    convert: Convert,
    /// Elements of a row.
    k: usize,
    /// Rows of a matrix.
    m: usize,
    /// Bytes of a row of weights.
    weight_row: usize,
    /// Bytes of a row of the partner type.
    row: usize,
}

/// How a row of activations becomes the partner type.
#[derive(Clone, Copy, Debug)]
enum Convert {
    /// It is that already.
    Not,
    /// Numbers are rounded.
    Round(Encode),
    /// `bf16` becomes `f32`.
    Widen,
}

impl Product {
    /// A product, if there are kernels for it.
    pub(super) fn new(a: DType, ne: [usize; 4], b: DType, level: Level) -> Option<Product> {
        let partner = a.dot_partner()?;
        let convert = match b {
            b if b == partner => Convert::Not,
            DType::F32 => Convert::Round(encode(partner, level)?),
            DType::BF16 if partner == DType::F32 => Convert::Widen,
            _ => return None,
        };
        Some(Product {
            method: Method::of(a, level)?,
            dot: dot(a, level)?,
            dot_four: dot_four(a, level)?,
            convert,
            k: ne[0],
            m: ne[1],
            weight_row: a.row_bytes(ne[0])?,
            row: partner.row_bytes(ne[0])?,
        })
    }

    /// The product of a job.
    pub(super) fn of(job: &Job<'_>, level: Level) -> Product {
        let (a, b) = (job.src(0), job.src(1));
        Product::new(a.dtype(), a.ne(), b.dtype(), level)
            .unwrap_or_else(|| unreachable!("this kernel was chosen for another product"))
    }

    /// Columns of a panel.
    pub(super) const fn panel_columns(&self) -> usize {
        self.method.format.cols
    }

    /// Distance of rows of the partner type in a panel that holds them as they are.
    const fn row_stride(&self) -> usize {
        self.row.next_multiple_of(64)
    }

    /// Bytes of a panel of columns, packed or not.
    pub(super) fn panel_bytes(&self) -> usize {
        let rows = self.panel_columns() * self.row_stride();
        self.method.format.column_bytes(self.k).max(rows).next_multiple_of(64)
    }

    /// Whether so many columns are multiplied one by one.
    const fn is_few(&self, columns: usize) -> bool {
        columns <= self.method.few && columns <= MAX_FEW
    }

    /// Whether so many columns are left as they are.
    pub(super) const fn is_direct(&self, columns: usize) -> bool {
        self.is_few(columns) && matches!(self.convert, Convert::Not)
    }

    /// Bytes that a thread needs for itself.
    pub(super) fn own_bytes(&self) -> usize {
        self.packed_bytes().max(self.row_stride())
    }

    /// Elements of a row that are packed at a time.
    fn k_block(&self) -> usize {
        self.method.k_block.min(self.k)
    }

    /// Bytes of packed weights.
    fn packed_bytes(&self) -> usize {
        self.row_panels() * self.method.format.weight_bytes(self.k_block())
    }

    /// Panels of weights that are packed together.
    fn row_panels(&self) -> usize {
        let fit = PACKED / self.method.format.weight_bytes(self.k_block()).max(1);
        (self.m.div_ceil(self.method.format.rows) / UNITS).min(fit).clamp(1, PANELS)
    }

    /// Rows of weights in a unit, for so many columns.
    fn unit_rows(&self, columns: usize) -> usize {
        if self.is_few(columns) {
            (BYTES / self.weight_row.max(1)).clamp(1, self.m.div_ceil(UNITS))
        } else {
            self.row_panels() * self.method.format.rows
        }
    }

    /// Into how many parts the columns of a matrix are cut.
    fn column_cuts(&self, columns: usize, matrices: usize) -> usize {
        let panels = columns.div_ceil(self.panel_columns());
        let units = self.m.div_ceil(self.unit_rows(columns)) * matrices;
        if self.is_few(columns) {
            return 1;
        }
        let long = self.unit_rows(columns).saturating_mul(self.k).saturating_mul(columns) / UNIT_WORK;
        UNITS.div_ceil(units).max(long).clamp(1, (panels / COLUMN_PANELS).max(1))
    }

    /// Units of a matrix.
    fn units(&self, columns: usize, matrices: usize) -> usize {
        match columns {
            0 => 0,
            _ => self.m.div_ceil(self.unit_rows(columns)) * self.column_cuts(columns, matrices),
        }
    }

    /// Threads that are worth waking for so many columns in all.
    pub(super) fn width(&self, columns: usize) -> usize {
        self.m.saturating_mul(self.k).saturating_mul(columns) / WORK_PER_THREAD
    }

    /// Brings columns into the form in which they are multiplied; they are in `shared` from `base` on.
    #[inline(always)]
    pub(super) fn prepare(&self, job: Job<'_>, matching: &impl Matching, base: usize) {
        let (b, format, panel_bytes) = (job.src(1), self.method.format, self.panel_bytes());
        let claims = job.claims(matching.panels());
        for panel in claims {
            let matrix = matching.matrix_of(panel);
            let columns = matching.columns(matrix);
            let first = (panel - matching.first_panel(matrix)) * format.cols;
            let last = (first + format.cols).min(columns);
            // SAFETY: panels do not meet, and each is claimed by one thread.
            let bytes = unsafe { job.shared.bytes_mut(base + panel * panel_bytes, panel_bytes) };
            if !self.is_few(columns) && last - first < format.cols {
                bytes.fill(0);
            }
            for (j, column) in (first..last).enumerate() {
                let (at, _) = matching.column(matrix, column);
                if self.is_few(columns) {
                    self.convert(&b, at, &mut bytes[j * self.row_stride()..][..self.row]);
                    continue;
                }
                let row = match self.convert {
                    Convert::Not => b.row::<u8>(at).slice(),
                    _ => {
                        let row = &mut job.own[..self.row];
                        self.convert(&b, at, row);
                        row
                    }
                };
                (self.method.pack_column)(row, j, format.columns_mut(bytes, self.k), format);
            }
        }
    }

    fn convert(&self, b: &Src<'_>, at: RowAt, to: &mut [u8]) {
        match self.convert {
            Convert::Not => to.copy_from_slice(b.row::<u8>(at).slice()),
            Convert::Round(encode) => encode(b.row::<f32>(at).slice(), to),
            Convert::Widen => half::bf16::widen(b.row(at).slice(), crate::job::as_floats(to)),
        }
    }

    /// Multiplies everything.
    #[inline(always)]
    pub(super) fn multiply(&self, job: Job<'_>, matching: &impl Matching, base: usize) {
        let matrices = matching.matrices();
        let units = |matrix: usize| self.units(matching.columns(matrix), matrices);
        let all = (0..matrices).map(units).sum();
        // Claims ascend, so the matrix of a unit is at or after the one before.
        let (mut matrix, mut before) = (0, 0);
        let (claims, a, b, shared) = (job.claims(all), job.src(0), job.src(1), job.shared);
        let (dst, own) = (&job.dst, job.own);
        for unit in claims {
            while unit >= before + units(matrix) {
                before += units(matrix);
                matrix += 1;
            }
            let (unit, columns) = (unit - before, matching.columns(matrix));
            let cuts = self.column_cuts(columns, matrices);
            let unit_rows = self.unit_rows(columns);
            let first_row = unit / cuts * unit_rows;
            let rows = first_row..(first_row + unit_rows).min(self.m);
            let work = Unit { a, dst, shared, base, matching, matrix, rows };
            if self.is_few(columns) {
                self.dots(&work, columns, &b);
            } else {
                let panels = columns.div_ceil(self.panel_columns());
                let cut = unit % cuts;
                self.tiles(&work, panels * cut / cuts..panels * (cut + 1) / cuts, own);
            }
        }
    }

    /// Dot products straight from the weights.
    #[inline(always)]
    fn dots<M: Matching>(&self, work: &Unit<'_, '_, M>, columns: usize, b: &Src<'_>) {
        let mut all: [Option<(&[u8], Out<'_, f32>)>; MAX_FEW] = [const { None }; MAX_FEW];
        for (column, one) in all.iter_mut().enumerate().take(columns) {
            let (from, to) = work.matching.column(work.matrix, column);
            let row = match self.is_direct(columns) {
                true => b.row::<u8>(from).slice(),
                false => &work.panel(self, column / self.panel_columns())
                    [column % self.panel_columns() * self.row_stride()..][..self.row],
            };
            *one = Some((row, work.out(to, work.rows.clone())));
        }
        let weights = work.weights();
        let first = work.rows.start;
        // One row of each quarter: the memory system follows four streams better than one.
        let quarter = work.rows.len() / FOUR;
        for i in 0..quarter {
            let mut rows: [&[u8]; FOUR] = [&[]; FOUR];
            for (n, row) in rows.iter_mut().enumerate() {
                *row = weights.get(first + n * quarter + i);
            }
            for (column, out) in all.iter_mut().flatten() {
                let sums = (self.dot_four)(rows, column);
                for (n, sum) in sums.into_iter().enumerate() {
                    out.set(n * quarter + i, sum);
                }
            }
        }
        let done = FOUR * quarter;
        for i in done..work.rows.len() {
            for (column, out) in all.iter_mut().flatten() {
                out.set(i, (self.dot)(weights.get(first + i), column));
            }
        }
    }

    /// One block of `k` after another: packs the rows of the unit, then multiplies them with all panels.
    #[inline(always)]
    fn tiles<M: Matching>(&self, work: &Unit<'_, '_, M>, panels: Range<usize>, own: &mut [u8]) {
        let Method { format, pack_weights, multiply, .. } = self.method;
        let (weights, columns) = (work.weights(), work.matching.columns(work.matrix));
        if self.k == 0 {
            for column in panels.start * format.cols..(panels.end * format.cols).min(columns) {
                let (_, to) = work.matching.column(work.matrix, column);
                work.out(to, work.rows.clone()).slice().fill(0.0);
            }
            return;
        }
        let mut tile = [0f32; MAX_TILE];
        let tile = &mut tile[..format.rows * format.cols];
        let mut start = 0;
        loop {
            let block = start..(start + self.k_block()).min(self.k);
            let panel_bytes = format.weight_bytes(block.len());
            let bytes = block.start * self.weight_row / self.k..block.end * self.weight_row / self.k;
            let packs = work.rows.clone().step_by(format.rows).zip(own.chunks_exact_mut(panel_bytes));
            for (first, pack) in packs {
                // Past the end any row will do: its results are not used.
                let row = |r: usize| &weights.get((first + r).min(self.m - 1))[bytes.clone()];
                let mut rows: [&[u8]; MAX_ROWS] = [&[]; MAX_ROWS];
                for (r, to) in rows.iter_mut().enumerate().take(format.rows) {
                    *to = row(r);
                    // Packing asks for what follows in these rows, but not for where the next ones start.
                    let next = row(format.rows + r);
                    prefetch(&next[..next.len().min(START)]);
                }
                pack_weights(&rows[..format.rows], format.weights_mut(pack, block.len()));
            }
            for panel in panels.clone() {
                let packed = format.columns(work.panel(self, panel), self.k, block.clone());
                let first_column = panel * format.cols;
                let mut outs = [[0; 3]; MAX_COLUMNS];
                let outs = &mut outs[..format.cols.min(columns - first_column)];
                for (j, to) in outs.iter_mut().enumerate() {
                    (_, *to) = work.matching.column(work.matrix, first_column + j);
                }
                let packs = work.rows.clone().step_by(format.rows).zip(own.chunks_exact(panel_bytes));
                for (first, pack) in packs {
                    let rows = first..(first + format.rows).min(work.rows.end);
                    // Columns of results are far apart: they come while the tile is computed.
                    for to in outs.iter() {
                        prefetch(work.out(*to, rows.clone()).slice().as_bytes());
                    }
                    multiply(format.weights(pack, block.len()), packed, tile);
                    for (to, tile) in outs.iter().zip(tile.chunks_exact(format.rows)) {
                        let mut out = work.out(*to, rows.clone());
                        if start == 0 {
                            out.write(0, &tile[..rows.len()]);
                        } else {
                            out.slice().iter_mut().zip(tile).for_each(|(out, sum)| *out += sum);
                        }
                    }
                }
            }
            start = block.end;
            if start == self.k {
                break;
            }
        }
    }
}

/// Some rows of a matrix, and what they are multiplied with.
struct Unit<'u, 't, M> {
    a: Src<'t>,
    dst: &'u Dst<'t>,
    shared: SharedScratch<'t>,
    base: usize,
    matching: &'u M,
    matrix: usize,
    rows: Range<usize>,
}

impl<'t, M: Matching> Unit<'_, 't, M> {
    /// The rows of the matrix.
    fn weights(&self) -> Rows<'t, u8> {
        self.a.rows(self.matching.plane(self.matrix))
    }

    /// A panel of the matrix's columns.
    fn panel(&self, product: &Product, panel: usize) -> &'t [u8] {
        let panel = self.matching.first_panel(self.matrix) + panel;
        // SAFETY: panels were written in the phase before; no thread writes to shared memory in this one.
        unsafe { self.shared.bytes(self.base + panel * product.panel_bytes(), product.panel_bytes()) }
    }

    /// A part of a row of results.
    fn out(&self, at: RowAt, rows: Range<usize>) -> Out<'t, f32> {
        // SAFETY: of this row only the part is used, which belongs to this unit alone: units cut rows and columns without
        // overlap, and no two columns are the same row of results. Handles do not outlive the use of the tile.
        unsafe { self.dst.row(at) }.part(rows)
    }
}
