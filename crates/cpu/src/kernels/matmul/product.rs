//! Matrices of weights times columns of activations: how the work is shared, and what it needs.
//!
//! A [`Matching`] says which columns go with which matrix. First all columns are [prepared](Product::prepare), then
//! [multiplied](Product::multiply): [`Tiles`] for quantized weights, [`Floats`] for plain numbers.
//!
//! Invariant: a result depends on its row of weights and its column alone, not on the columns beside it, on how many there
//! are, or on threads. Threads take units first come, first served, and no unit writes what another does.

use std::ops::Range;

use oxcart_tensor::{DType, Layout};

use super::cut::{Matching, Panels, Unit, panel_part};
use super::floats::{Columns, Floats};
use super::method::Method;
use super::tiles::Tiles;
use crate::claims::{Claim, Claims};
use crate::job::{Job, LONGEST_WHOLE, Reading, Stop, as_floats};
use crate::kernels::dot::{Encode, encode};
use crate::simd::Level;
use crate::view::{Dst, Number, RowAt, Src};

/// Multiply-adds that one thread should do at least.
const WORK_PER_THREAD: usize = 32 * 1024;

/// A product of certain types and shapes on a certain instruction set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    way: Way,
    /// How a row of activations becomes the partner type.
    convert: Convert,
    /// The partner type.
    partner: DType,
    /// Elements of a row.
    k: usize,
    /// Rows of a matrix.
    m: usize,
    /// Bytes of a row of weights.
    weight_row: usize,
    /// Bytes of a row of the partner type.
    row: usize,
}

/// How weights are multiplied.
#[derive(Clone, Copy, Debug)]
enum Way {
    Tiles(Tiles),
    Floats(Floats),
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
        let (k, m, weight_row) = (ne[0], ne[1], a.row_bytes(ne[0])?);
        // Rows of activations are rounded and packed whole.
        if k > LONGEST_WHOLE {
            return None;
        }
        let way = match Method::of(a, level) {
            Some(method) if matches!(convert, Convert::Not) => {
                Way::Tiles(Tiles { method: method.for_any_codes(), k, m, weight_row })
            }
            Some(method) => Way::Tiles(Tiles { method, k, m, weight_row }),
            None => Way::Floats(Floats::of(a, level)?),
        };
        Some(Product { way, convert, partner, k, m, weight_row, row: partner.row_bytes(k)? })
    }

    /// The product of a job.
    pub(super) fn of(job: &Job<'_>, level: Level) -> Product {
        let (a, b) = (job.src(0), job.src(1));
        Product::new(a.dtype(), a.ne(), b.dtype(), level)
            .unwrap_or_else(|| unreachable!("this kernel was chosen for another product"))
    }

    /// Columns of a panel, at most.
    pub(super) const fn panel_columns(&self) -> usize {
        match &self.way {
            Way::Tiles(tiles) => tiles.panel_columns(),
            Way::Floats(floats) => floats.panel_columns(),
        }
    }

    /// Bytes of a panel of columns.
    pub(super) fn panel_bytes(&self) -> usize {
        match &self.way {
            Way::Tiles(tiles) => tiles.panel_bytes(),
            Way::Floats(floats) => floats.panel_columns() * floats.column_stride(self.k) * 4,
        }
        .next_multiple_of(64)
    }

    /// Whether so many columns are left as they are.
    pub(super) const fn is_direct(&self, columns: usize) -> bool {
        match &self.way {
            Way::Tiles(_) => false,
            Way::Floats(floats) => {
                floats.is_few(columns)
                    && matches!(self.convert, Convert::Not)
                    && matches!(self.partner, DType::F32)
            }
        }
    }

    /// Bytes that a thread needs for itself.
    pub(super) fn own_bytes(&self) -> usize {
        let row = self.row.next_multiple_of(64);
        match &self.way {
            Way::Tiles(tiles) => tiles.own_bytes().max(row),
            Way::Floats(floats) => floats.own_bytes(self.k).max(row),
        }
    }

    /// Rows of weights in a unit, for so many columns.
    fn unit_rows(&self, columns: usize) -> usize {
        match &self.way {
            Way::Tiles(tiles) => tiles.unit_rows(columns),
            Way::Floats(floats) => floats.unit_rows(self.m, self.weight_row, columns),
        }
    }

    /// Into how many parts the columns of a matrix are cut.
    fn column_cuts(&self, columns: usize, matrices: usize) -> usize {
        match &self.way {
            Way::Tiles(tiles) => tiles.column_cuts(columns, matrices),
            Way::Floats(floats) => floats.column_cuts(columns),
        }
    }

    /// Units of a matrix.
    fn units(&self, columns: usize, matrices: usize) -> usize {
        match columns {
            0 => 0,
            _ => self.m.div_ceil(self.unit_rows(columns)) * self.column_cuts(columns, matrices),
        }
    }

    /// How units of a matrix read the weights, source `slot`, if there is one matrix, its rows lie one after another, and so many
    /// columns are multiplied with rows as they come from memory.
    pub(super) fn reading(&self, a: &Layout, columns: usize, slot: usize) -> Option<Reading> {
        let is_few = match &self.way {
            Way::Tiles(tiles) => tiles.is_straight(columns),
            Way::Floats(floats) => floats.is_few(columns),
        };
        let [_, _, planes @ ..] = a.ne().extents();
        let is_in_order = planes == [1, 1] && a.nb()[1] == self.weight_row;
        (is_few && is_in_order).then(|| Reading {
            slot,
            units: self.units(columns, 1),
            unit_bytes: self.unit_rows(columns) * self.weight_row,
        })
    }

    /// Threads that are worth waking for so many columns in all.
    pub(super) fn width(&self, columns: usize) -> usize {
        self.m.saturating_mul(self.k).saturating_mul(columns) / WORK_PER_THREAD
    }

    /// Columns in shared memory, from `base` on.
    pub(super) fn panels<'t>(&self, job: &Job<'t>, base: usize) -> Panels<'t> {
        Panels { shared: job.shared, base, bytes: self.panel_bytes() }
    }

    /// Brings columns into the form in which they are multiplied; they are in shared memory from `base` on.
    #[inline(always)]
    pub(super) fn prepare(&self, job: Job<'_>, matching: &impl Matching, base: usize) {
        let (b, panels) = (job.src(1), self.panels(&job, base));
        for panel in job.claims(matching.panels()) {
            let matrix = matching.matrix_of(panel);
            let of_matrix = panel - matching.first_panel(matrix);
            let part = panel_part(matching.columns(matrix), self.panel_columns(), of_matrix);
            // SAFETY: each panel is claimed by one thread.
            let bytes = unsafe { panels.get_mut(panel) };
            for (j, column) in part.clone().enumerate() {
                if job.stop.after(self.k) {
                    return;
                }
                let (at, _) = matching.column(matrix, column);
                let row = match self.convert {
                    Convert::Not => b.row::<u8>(at).slice(),
                    _ => {
                        let row = &mut job.own[..self.row];
                        self.convert(&b, at, row);
                        row
                    }
                };
                match &self.way {
                    Way::Tiles(tiles) => {
                        tiles.pack_column(row, j, part.len(), matching.columns(matrix), bytes);
                    }
                    Way::Floats(floats) => {
                        let stride = floats.column_stride(self.k);
                        floats.widen(row, &mut as_floats(bytes)[j * stride..][..self.k]);
                    }
                }
            }
        }
    }

    fn convert(&self, b: &Src<'_>, at: RowAt, to: &mut [u8]) {
        match self.convert {
            Convert::Not => to.copy_from_slice(b.row::<u8>(at).slice()),
            Convert::Round(encode) => encode(b.row::<f32>(at).slice(), to),
            Convert::Widen => half::bf16::widen(b.row(at).slice(), as_floats(to)),
        }
    }

    /// Multiplies everything.
    #[inline(always)]
    pub(super) fn multiply(&self, job: Job<'_>, matching: &impl Matching, base: usize) {
        let (a, panels) = (job.src(0), self.panels(&job, base));
        let (dst, hand) = Hand::of(job, panels);
        hand.multiply(&[Factor { product: self, a, dst: &dst, matching }]);
    }

    /// Multiplies a unit of a matrix.
    #[inline(always)]
    fn multiply_unit<M: Matching>(
        &self,
        work: &Unit<'_, '_, M>,
        b: &Src<'_>,
        panels: Range<usize>,
        own: &mut [u8],
    ) {
        match &self.way {
            Way::Tiles(tiles) => tiles.multiply(work, panels, own),
            Way::Floats(floats) if self.is_direct(work.matching.columns(work.matrix)) => {
                floats.few(work, &InPlace { b, work });
            }
            Way::Floats(floats) => {
                let stride = floats.column_stride(self.k);
                let columns = &InPanels { work, stride, k: self.k };
                match floats.is_few(work.matching.columns(work.matrix)) {
                    true => floats.few(work, columns),
                    false => floats.many(work, self.k, panels, columns, own),
                }
            }
        }
    }
}

/// Matrices, the columns that go with them, and where results go.
pub(super) struct Factor<'f, 't, M> {
    pub(super) product: &'f Product,
    pub(super) a: Src<'t>,
    pub(super) dst: &'f Dst<'t>,
    pub(super) matching: &'f M,
}

/// What a thread multiplies with.
pub(super) struct Hand<'t> {
    b: Src<'t>,
    panels: Panels<'t>,
    claims: Claims<'t>,
    own: &'t mut [u8],
    stop: Stop<'t>,
}

impl<'t> Hand<'t> {
    /// What a job gives to multiply with, and its result.
    pub(super) fn of(job: Job<'t>, panels: Panels<'t>) -> (Dst<'t>, Hand<'t>) {
        let (b, claims) = (job.src(1), job.to_claim());
        let Job { dst, own, stop, .. } = job;
        (dst, Hand { b, panels, claims, own, stop })
    }

    /// Multiplies all factors with the same columns.
    #[inline(always)]
    pub(super) fn multiply<M: Matching>(self, factors: &[Factor<'_, 't, M>]) {
        let Hand { b, panels, claims, own, stop } = self;
        let (mut place, mut asked_for) = (None, None);
        for Claim { unit, next } in claims.near(factors.iter().map(Factor::units).sum()) {
            let place = place.get_or_insert_with(|| Place::first(factors));
            place.go_to(unit, factors);
            let Factor { product, a, dst, matching } = &factors[place.factor];
            let (matrix, columns) = (place.matrix, matching.columns(place.matrix));
            let cuts = product.column_cuts(columns, matching.matrices());
            let rows = place.rows_of(unit, factors);
            let is_asked_for = asked_for.replace(next) == Some(unit);
            let next = place.first_byte_of(next, factors);
            let work =
                Unit { a: *a, dst, matching: *matching, matrix, rows, is_asked_for, next, panels, stop };
            let unit = unit - place.units.start;
            let of_matrix = columns.div_ceil(product.panel_columns());
            let cut = unit % cuts;
            let part = of_matrix * cut / cuts..of_matrix * (cut + 1) / cuts;
            product.multiply_unit(&work, &b, part, own);
        }
    }
}

impl<M: Matching> Factor<'_, '_, M> {
    /// Units of a matrix.
    fn units_of(&self, matrix: usize) -> usize {
        self.product.units(self.matching.columns(matrix), self.matching.matrices())
    }

    /// Units of all matrices.
    fn units(&self) -> usize {
        (0..self.matching.matrices()).map(|matrix| self.units_of(matrix)).sum()
    }
}

/// A matrix among those of all factors.
#[derive(Clone)]
struct Place {
    factor: usize,
    matrix: usize,
    /// Its units.
    units: Range<usize>,
}

impl Place {
    fn first<M: Matching>(factors: &[Factor<'_, '_, M>]) -> Place {
        Place { factor: 0, matrix: 0, units: 0..factors[0].units_of(0) }
    }

    /// Goes to the matrix that a unit is of, which is usually this one or the next.
    fn go_to<M: Matching>(&mut self, unit: usize, factors: &[Factor<'_, '_, M>]) {
        while unit < self.units.start {
            while self.matrix == 0 {
                self.factor -= 1;
                self.matrix = factors[self.factor].matching.matrices();
            }
            self.matrix -= 1;
            let units = factors[self.factor].units_of(self.matrix);
            self.units = self.units.start - units..self.units.start;
        }
        while unit >= self.units.end {
            self.matrix += 1;
            while self.matrix == factors[self.factor].matching.matrices() {
                (self.factor, self.matrix) = (self.factor + 1, 0);
            }
            let units = factors[self.factor].units_of(self.matrix);
            self.units = self.units.end..self.units.end + units;
        }
    }

    /// The rows of a unit of this matrix.
    fn rows_of<M: Matching>(&self, unit: usize, factors: &[Factor<'_, '_, M>]) -> Range<usize> {
        let Factor { product, matching, .. } = &factors[self.factor];
        let columns = matching.columns(self.matrix);
        let (cuts, rows) = (product.column_cuts(columns, matching.matrices()), product.unit_rows(columns));
        let first = (unit - self.units.start) / cuts * rows;
        first..(first + rows).min(product.m)
    }

    /// Where the weights of a unit, of whichever matrix, begin.
    fn first_byte_of<M: Matching>(&self, unit: usize, factors: &[Factor<'_, '_, M>]) -> *const u8 {
        let mut place = self.clone();
        place.go_to(unit, factors);
        let Factor { a, matching, .. } = &factors[place.factor];
        let row = place.rows_of(unit, factors).start;
        a.rows::<u8>(matching.plane(place.matrix)).get(row).as_ptr()
    }
}

/// Columns where the activations are.
struct InPlace<'u, 'v, 't, M> {
    b: &'u Src<'t>,
    work: &'u Unit<'v, 't, M>,
}

impl<M: Matching> Columns for InPlace<'_, '_, '_, M> {
    #[inline(always)]
    fn panel(&self, _: usize, columns: Range<usize>) -> impl Iterator<Item = &[f32]> {
        columns.map(|column| {
            let (at, _) = self.work.matching.column(self.work.matrix, column);
            self.b.row::<f32>(at).slice()
        })
    }
}

/// Columns that were widened.
struct InPanels<'u, 'v, 't, M> {
    work: &'u Unit<'v, 't, M>,
    stride: usize,
    k: usize,
}

impl<M: Matching> Columns for InPanels<'_, '_, '_, M> {
    #[inline(always)]
    fn panel(&self, panel: usize, columns: Range<usize>) -> impl Iterator<Item = &[f32]> {
        let numbers: &[f32] = super::format::items(self.work.panel(panel));
        numbers.chunks(self.stride).take(columns.len()).map(|column| &column[..self.k])
    }
}
