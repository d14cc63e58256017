//! Codes of 16 bits, without instructions of any processor; compilers make vector code of it.

use super::{CODE_ROWS, Scaling};
use crate::kernels::matmul::format::{Columns, Weights, items};

pub(super) const COLS: usize = 4;

#[inline(always)]
pub(super) fn multiply<G: Scaling>(weights: Weights<'_>, columns: Columns<'_>, tile: &mut [f32]) {
    let w: &[i16] = items(weights.codes);
    let y: &[i16] = items(columns.codes);
    let mut total = [[0f32; CODE_ROWS]; COLS];
    for (run, run_scales) in columns.scales.chunks_exact(COLS).enumerate() {
        let mut part = [[0f32; CODE_ROWS]; COLS];
        for g in run * G::GROUPS..(run + 1) * G::GROUPS {
            let scales = &weights.scales[g * CODE_ROWS..][..CODE_ROWS];
            let w = &w[g * G::GROUP * CODE_ROWS..][..G::GROUP * CODE_ROWS];
            let y = &y[g * G::GROUP * COLS..][..G::GROUP * COLS];
            for (j, part) in part.iter_mut().enumerate() {
                let mut dots = [0i32; CODE_ROWS];
                for (w, y) in w.chunks_exact(CODE_ROWS).zip(y.chunks_exact(COLS)) {
                    let y = i32::from(y[j]);
                    for (dot, w) in dots.iter_mut().zip(w) {
                        *dot += i32::from(*w) * y;
                    }
                }
                for ((part, dot), scale) in part.iter_mut().zip(dots).zip(scales) {
                    *part += dot as f32 * scale;
                }
            }
        }
        for ((total, part), scale) in total.iter_mut().zip(&part).zip(run_scales) {
            for (total, part) in total.iter_mut().zip(part) {
                *total += part * scale;
            }
        }
    }
    for (mins, sums) in weights.mins.chunks_exact(CODE_ROWS).zip(columns.sums.chunks_exact(COLS)) {
        for (total, sum) in total.iter_mut().zip(sums) {
            for (total, min) in total.iter_mut().zip(mins) {
                *total += min * sum;
            }
        }
    }
    for (tile, total) in tile.chunks_exact_mut(CODE_ROWS).zip(&total) {
        tile.copy_from_slice(total);
    }
}
