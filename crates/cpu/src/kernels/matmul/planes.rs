//! MUL_MAT: every matrix of the weights goes with all columns of the activations that broadcasting gives it.

use oxcart_tensor::{Layout, TensorRef};

use super::cut::Matching;
use super::product::Product;
use crate::job::{Fault, Job, Kernel};
use crate::simd::{Level, Simd, for_each_level};
use crate::view::RowAt;

/// The kernel for a plain product.
pub(super) fn choose(node: TensorRef<'_>, level: Level) -> Option<Kernel> {
    let (a, b) = (node.source(0)?, node.source(1)?);
    let product = Product::new(a.dtype(), a.layout().ne().extents(), b.dtype(), level)?;
    let planes = Planes::new(a.layout(), b.layout(), &product);
    let run = for_each_level!(run: fn(job: Job<'_>) -> Result<(), Fault>).at(level);
    let kernel = Kernel::new(run)
        .width(product.width(planes.columns * planes.matrices()))
        .own(product.own_bytes())
        .reads([product.reading(a.layout(), planes.columns, 0), None, None]);
    Some(match product.is_direct(planes.columns) {
        true => kernel,
        false => planes.prepared(kernel, &product),
    })
}

#[inline(always)]
fn run<S: Simd>(_simd: S, job: Job<'_>) -> Result<(), Fault> {
    let product = Product::of(&job, S::LEVEL);
    let planes = Planes::new(job.src(0).layout(), job.src(1).layout(), &product);
    match job.phase {
        0 if !product.is_direct(planes.columns) => product.prepare(job, &planes, 0),
        _ => product.multiply(job, &planes, 0),
    }
    Ok(())
}

/// Which columns go with which plane of the weights: all those of the planes that share it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planes {
    /// Extents 2 and 3 of the weights.
    planes: [usize; 2],
    /// Columns of one plane of the activations.
    plane_columns: usize,
    /// Planes of the activations per plane of the weights, in dimensions 2 and 3.
    repeats: [usize; 2],
    /// Columns of each matrix.
    columns: usize,
    /// Panels of each matrix.
    panels: usize,
}

impl Planes {
    pub(super) fn new(a: &Layout, b: &Layout, product: &Product) -> Planes {
        let (a, b) = (a.ne().extents(), b.ne().extents());
        let repeats = [b[2] / a[2].max(1), b[3] / a[3].max(1)];
        let columns = b[1] * repeats[0] * repeats[1];
        Planes {
            planes: [a[2], a[3]],
            plane_columns: b[1],
            repeats,
            columns,
            panels: columns.div_ceil(product.panel_columns()),
        }
    }
}

impl Planes {
    /// Columns of each matrix.
    pub(super) const fn columns(&self) -> usize {
        self.columns
    }

    /// A kernel that prepares columns before it multiplies them.
    pub(super) fn prepared(&self, kernel: Kernel, product: &Product) -> Kernel {
        let kernel = kernel.phases(2).first_alone(self.panels() <= 1);
        kernel.shared(self.panels() * product.panel_bytes())
    }
}

impl Matching for Planes {
    fn matrices(&self) -> usize {
        self.planes[0] * self.planes[1]
    }

    fn plane(&self, matrix: usize) -> [usize; 2] {
        split(matrix, self.planes[0])
    }

    fn columns(&self, _: usize) -> usize {
        self.columns
    }

    fn first_panel(&self, matrix: usize) -> usize {
        matrix * self.panels
    }

    fn matrix_of(&self, panel: usize) -> usize {
        panel / self.panels
    }

    fn column(&self, matrix: usize, column: usize) -> (RowAt, RowAt) {
        let [plane2, plane3] = self.plane(matrix);
        let [row, plane] = split(column, self.plane_columns);
        let [of2, of3] = split(plane, self.repeats[0]);
        let at = [row, plane2 * self.repeats[0] + of2, plane3 * self.repeats[1] + of3];
        (at, at)
    }
}

/// What is left of a number when as many times `of` as possible are taken off, and how many that were.
#[inline(always)]
const fn split(number: usize, of: usize) -> [usize; 2] {
    // Nearly always there is one plane, and divisions for each column of each unit would take a tenth of the time.
    if number < of { [number, 0] } else { [number % of, number / of] }
}
