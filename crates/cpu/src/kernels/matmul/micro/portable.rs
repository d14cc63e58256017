//! Signed codes without instructions of any processor: the order in which every micro-kernel adds up.

use super::{CodeShape, Scaling};
use crate::kernels::matmul::format::{Columns, Weights, items};
use crate::simd::fused;

/// Rows of a panel.
pub(super) const ROWS: usize = 16;
/// The most columns of a panel.
const COLS: usize = 4;

/// A group of a row lies together, so that dot products are of neighbours.
pub(super) const fn shape(group: usize) -> CodeShape {
    CodeShape { rows: ROWS, cols: COLS, step: group, bytes: true, offset: 0, reach: 1 }
}

/// Adds the product of two panels to a tile.
#[inline(always)]
pub(super) fn multiply<G: Scaling>(weights: Weights<'_>, columns: Columns<'_>, tile: &mut [f32]) {
    for (j, results) in tile.chunks_exact_mut(ROWS).take(columns.cols).enumerate() {
        for (r, result) in results.iter_mut().enumerate() {
            *result = add::<G>(&weights, r, &columns, j, *result);
        }
    }
}

/// Adds the product of one row with one column.
///
/// Within a group integers are added, which is exact. Groups that share a scale of the activations are added up first; then
/// come their minimums, one by one.
#[inline(always)]
fn add<G: Scaling>(weights: &Weights<'_>, r: usize, columns: &Columns<'_>, j: usize, mut total: f32) -> f32 {
    let cols = columns.cols;
    let (w, y): (&[i8], &[i8]) = (items(weights.codes), items(columns.codes));
    for run in 0..columns.scales.len() / cols {
        let mut part = 0.0;
        for g in run * G::GROUPS..(run + 1) * G::GROUPS {
            let w = &w[(g * ROWS + r) * G::GROUP..][..G::GROUP];
            let y = &y[(g * cols + j) * G::GROUP..][..G::GROUP];
            let dot: i32 = w.iter().zip(y).map(|(w, y)| i32::from(*w) * i32::from(*y)).sum();
            part = fused(dot as f32, weights.scales[g * ROWS + r], part);
        }
        total = fused(part, columns.scales[run * cols + j], total);
        if !weights.mins.is_empty() {
            for g in run * G::GROUPS..(run + 1) * G::GROUPS {
                total = fused(weights.mins[g * ROWS + r], columns.sums[g * cols + j], total);
            }
        }
    }
    total
}
