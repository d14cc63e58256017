//! Codes of 8 bits with `vpdpbusd`: four products of an unsigned and a signed byte are added to each lane of 32 bits.
//!
//! Weights are the unsigned side, so those with a sign have 128 added; their sums start at -128 times the sum of the
//! activations.
//!
//! Two vectors of rows share what is loaded of the columns: with one, loads would take longer than products.

use std::arch::x86_64::*;

use super::{CodeShape, Scaling};
use crate::kernels::matmul::format::{Columns, Weights};

const LANES: usize = 16;
/// Vectors of rows.
const VECS: usize = 2;
const ROWS: usize = VECS * LANES;
const COLS: usize = 6;

pub(super) const fn shape(least: i8) -> CodeShape {
    let offset = if least < 0 { 128 } else { 0 };
    CodeShape { rows: ROWS, cols: COLS, step: 4, bytes: true, offset, reach: 1 }
}

/// Bytes of weights in a step: four elements of each row.
const STEP: usize = 4 * ROWS;

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn multiply<G: Scaling>(weights: Weights<'_>, columns: Columns<'_>, tile: &mut [f32]) {
    let runs = columns.scales.len() / COLS;
    let groups = runs * G::GROUPS;
    let steps = G::GROUP / 4;
    assert!(
        weights.codes.len() >= groups * steps * STEP
            && weights.scales.len() >= groups * ROWS
            && columns.codes.len() >= groups * steps * 4 * COLS
            && (columns.corrections.is_empty() || columns.corrections.len() >= groups * COLS)
            && tile.len() >= COLS * ROWS
    );
    let mut total = [[_mm512_setzero_ps(); VECS]; COLS];
    for run in 0..runs {
        let mut part = [[_mm512_setzero_ps(); VECS]; COLS];
        for g in run * G::GROUPS..(run + 1) * G::GROUPS {
            // SAFETY: the lengths were checked above, and `g` is below `groups`.
            unsafe {
                let w = weights.codes.as_ptr().add(g * steps * STEP);
                let y = columns.codes.as_ptr().add(g * steps * 4 * COLS).cast::<i32>();
                let mut dots = [[_mm512_setzero_si512(); VECS]; COLS];
                if !columns.corrections.is_empty() {
                    let corrections = columns.corrections.as_ptr().add(g * COLS);
                    for j in 0..COLS {
                        dots[j] = [_mm512_set1_epi32(*corrections.add(j)); VECS];
                    }
                }
                for step in 0..steps {
                    let w0 = _mm512_loadu_si512(w.add(step * STEP).cast());
                    let w1 = _mm512_loadu_si512(w.add(step * STEP + STEP / 2).cast());
                    for j in 0..COLS {
                        let y = _mm512_set1_epi32(y.add(step * COLS + j).read_unaligned());
                        dots[j][0] = _mm512_dpbusd_epi32(dots[j][0], w0, y);
                        dots[j][1] = _mm512_dpbusd_epi32(dots[j][1], w1, y);
                    }
                }
                for v in 0..VECS {
                    let scale = _mm512_loadu_ps(weights.scales.as_ptr().add(g * ROWS + v * LANES));
                    for j in 0..COLS {
                        part[j][v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[j][v]), scale, part[j][v]);
                    }
                }
            }
        }
        let scales = &columns.scales[run * COLS..(run + 1) * COLS];
        for j in 0..COLS {
            let scale = _mm512_set1_ps(scales[j]);
            for v in 0..VECS {
                total[j][v] = _mm512_fmadd_ps(part[j][v], scale, total[j][v]);
            }
        }
    }
    let min_groups = weights.mins.len() / ROWS;
    assert!(columns.sums.len() >= min_groups * COLS);
    for g in 0..min_groups {
        for v in 0..VECS {
            // SAFETY: `g` is below the number of groups that have minimums.
            let mins = unsafe { _mm512_loadu_ps(weights.mins.as_ptr().add(g * ROWS + v * LANES)) };
            for j in 0..COLS {
                total[j][v] = _mm512_fmadd_ps(mins, _mm512_set1_ps(columns.sums[g * COLS + j]), total[j][v]);
            }
        }
    }
    for j in 0..COLS {
        for v in 0..VECS {
            // SAFETY: the length was checked above.
            unsafe { _mm512_storeu_ps(tile.as_mut_ptr().add(j * ROWS + v * LANES), total[j][v]) };
        }
    }
}
