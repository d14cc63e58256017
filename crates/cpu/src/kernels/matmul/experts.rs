//! MUL_MAT_ID: every row of activations goes with the matrices that ids choose for it.
//!
//! First rows are sorted by matrix, then each matrix is multiplied with its rows like any other. A row that several
//! matrices want is prepared once for each of them.

use oxcart_tensor::TensorRef;

use super::cut::Matching;
use super::format::{items, items_mut};
use super::product::Product;
use crate::job::{Fault, Job, Kernel, LONGEST_WHOLE, Stop};
use crate::simd::{Level, Simd, for_each_level};
use crate::view::RowAt;

/// The kernel for a product with chosen matrices.
pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    let (a, b, ids) = (node.source(0)?, node.source(1)?, node.source(2)?);
    let product = Product::new(a.dtype(), a.layout().ne().extents(), b.dtype(), level)?;
    let (experts, slots) = (a.layout().ne()[2], ids.layout().elements());
    let table = Table { experts, slots };
    // Every matrix that has columns may have a panel that is not full.
    let panels = slots.min(slots / product.panel_columns() + experts);
    let run = for_each_level!(run: fn(job: Job<'_>) -> Result<(), Fault>).at(level);
    let kernel =
        Kernel::new(run).phases(3).first_alone(true).width(product.width(slots)).own(product.own_bytes());
    // Every thread goes through the list of matrices.
    (experts <= LONGEST_WHOLE).then(|| kernel.shared(table.bytes() + panels * product.panel_bytes()))
}

#[inline(always)]
fn run<S: Simd>(_simd: S, job: Job<'_>) -> Result<(), Fault> {
    let product = Product::of(&job, S::LEVEL);
    let ids = job.src(2);
    let table = Table { experts: job.src(0).ne()[2], slots: ids.layout().elements() };
    if job.phase == 0 {
        return table.sort(&job, product.panel_columns());
    }
    // SAFETY: the table was written in phase 0, and no thread writes to it in the others.
    let words = items(unsafe { job.shared.bytes(0, 4 * table.words()) });
    let (starts, rest) = words.split_at(table.experts + 1);
    let (panels, order) = rest.split_at(table.experts + 1);
    let chosen = Chosen { starts, panels, order, used: ids.ne()[0], rows: job.src(1).ne()[1] };
    match job.phase {
        1 => product.prepare(job, &chosen, table.bytes()),
        _ => product.multiply(job, &chosen, table.bytes()),
    }
    Ok(())
}

/// Sizes of the table that says which slots a matrix has.
#[derive(Clone, Copy, Debug)]
struct Table {
    experts: usize,
    /// Ids.
    slots: usize,
}

impl Table {
    const fn words(&self) -> usize {
        2 * (self.experts + 1) + self.slots
    }

    const fn bytes(&self) -> usize {
        (4 * self.words()).next_multiple_of(64)
    }

    /// Checks all ids and sorts their slots by matrix; one thread does it.
    fn sort(&self, job: &Job<'_>, panel_columns: usize) -> Result<(), Fault> {
        let ids = job.src(2);
        let mut order = Ok(());
        for _ in job.claims(1) {
            // SAFETY: one thread claims the only unit, and no other touches shared memory in this phase.
            let words = items_mut(unsafe { job.shared.bytes_mut(0, 4 * self.words()) });
            let (starts, rest) = words.split_at_mut(self.experts + 1);
            let (panels, slots) = rest.split_at_mut(self.experts + 1);
            let used = ids.ne()[0];
            let id = |slot: usize| {
                let id = ids.get::<i32>([slot % used, slot / used, 0, 0]);
                Fault::check("matrix", i64::from(id), self.experts)
            };
            order = sort(job.stop, self.slots, id, panel_columns, starts, (panels, slots));
        }
        order
    }
}

/// Slots in the order of their ids, and where each id's slots and panels start.
fn sort(
    stop: Stop<'_>,
    count: usize,
    id: impl Fn(usize) -> Result<usize, Fault>,
    panel_columns: usize,
    starts: &mut [u32],
    (panels, slots): (&mut [u32], &mut [u32]),
) -> Result<(), Fault> {
    if stop.after(2 * starts.len()) {
        return Ok(());
    }
    starts.fill(0);
    for slot in stop.stretches(count).flatten() {
        starts[id(slot)?] += 1;
    }
    let (mut start, mut panel) = (0, 0);
    for (to, to_panel) in starts.iter_mut().zip(panels) {
        let columns = *to;
        (*to, *to_panel) = (start, panel);
        start += columns;
        panel += columns.div_ceil(panel_columns as u32);
    }
    for slot in stop.stretches(count).flatten() {
        let start = &mut starts[id(slot)?];
        slots[*start as usize] = slot as u32;
        *start += 1;
    }
    // Each start has moved to where the next one was.
    starts.rotate_right(1);
    starts[0] = 0;
    Ok(())
}

/// Which slots go with which matrix.
struct Chosen<'t> {
    /// Where the slots of each matrix start in `order`.
    starts: &'t [u32],
    panels: &'t [u32],
    order: &'t [u32],
    /// Matrices per token.
    used: usize,
    /// Rows of activations per token.
    rows: usize,
}

impl Matching for Chosen<'_> {
    fn matrices(&self) -> usize {
        self.starts.len() - 1
    }

    fn plane(&self, matrix: usize) -> [usize; 2] {
        [matrix, 0]
    }

    fn columns(&self, matrix: usize) -> usize {
        (self.starts[matrix + 1] - self.starts[matrix]) as usize
    }

    fn first_panel(&self, matrix: usize) -> usize {
        self.panels[matrix] as usize
    }

    fn matrix_of(&self, panel: usize) -> usize {
        self.panels.partition_point(|&first| first as usize <= panel) - 1
    }

    fn column(&self, matrix: usize, column: usize) -> (RowAt, RowAt) {
        let slot = self.order[self.starts[matrix] as usize + column] as usize;
        let (place, token) = (slot % self.used, slot / self.used);
        ([place % self.rows, token, 0], [place, token, 0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::unstopped;

    #[test]
    fn slots_are_sorted_by_id() {
        let ids = [2usize, 0, 2, 2, 0];
        let (mut starts, mut panels, mut slots) = ([9; 5], [9; 5], [9; 5]);
        let id = |slot: usize| Ok(ids[slot]);
        unstopped(|stop| sort(stop, 5, id, 2, &mut starts, (&mut panels, &mut slots))).unwrap();
        assert_eq!(starts, [0, 2, 2, 5, 5]);
        assert_eq!(panels, [0, 1, 1, 3, 3]);
        assert_eq!(slots, [1, 4, 0, 2, 3]);
    }

    #[test]
    fn panels_find_their_matrix() {
        let chosen =
            Chosen { starts: &[0, 2, 2, 5, 5], panels: &[0, 1, 1, 3, 3], order: &[], used: 1, rows: 1 };
        assert_eq!([0, 1, 2].map(|panel| chosen.matrix_of(panel)), [0, 2, 2]);
        assert_eq!(chosen.panels(), 3);
    }
}
