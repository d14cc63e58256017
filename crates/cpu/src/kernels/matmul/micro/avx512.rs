//! Codes of 8 bits with `vpdpbusd`: four products of an unsigned and a signed byte are added to each lane of 32 bits.
//!
//! Weights are the unsigned side: those with a sign have something added, and their sums start at what corrects for it.
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
    CodeShape { rows: ROWS, cols: COLS, step: 4, bytes: true, offset: least.unsigned_abs(), reach: 1 }
}

/// Bytes of weights in a step: four elements of each row.
const STEP: usize = 4 * ROWS;

/// Adds the product of two panels to a tile.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn multiply<G: Scaling>(weights: Weights<'_>, columns: Columns<'_>, tile: &mut [f32]) {
    match columns.cols {
        1 => with::<G, 1>(weights, columns, tile),
        2 => with::<G, 2>(weights, columns, tile),
        3 => with::<G, 3>(weights, columns, tile),
        4 => with::<G, 4>(weights, columns, tile),
        5 => with::<G, 5>(weights, columns, tile),
        COLS => with::<G, COLS>(weights, columns, tile),
        cols => unreachable!("{cols} columns in a panel"),
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn with<G: Scaling, const N: usize>(weights: Weights<'_>, columns: Columns<'_>, tile: &mut [f32]) {
    let runs = columns.scales.len() / N;
    let groups = runs * G::GROUPS;
    let steps = G::GROUP / 4;
    let (corrected, mins) = (!columns.corrections.is_empty(), !weights.mins.is_empty());
    assert!(
        weights.codes.len() >= groups * steps * STEP
            && weights.scales.len() >= groups * ROWS
            && columns.codes.len() >= groups * steps * 4 * N
            && (!corrected || columns.corrections.len() >= groups * N)
            && (!mins || weights.mins.len() >= groups * ROWS && columns.sums.len() >= groups * N)
            && tile.len() >= N * ROWS
    );
    let mut total = [[_mm512_setzero_ps(); VECS]; N];
    for j in 0..N {
        for v in 0..VECS {
            // SAFETY: the length was checked above.
            total[j][v] = unsafe { _mm512_loadu_ps(tile.as_ptr().add(j * ROWS + v * LANES)) };
        }
    }
    for run in 0..runs {
        let mut part = [[_mm512_setzero_ps(); VECS]; N];
        for g in run * G::GROUPS..(run + 1) * G::GROUPS {
            // SAFETY: the lengths were checked above, and `g` is below `groups`.
            unsafe {
                let w = weights.codes.as_ptr().add(g * steps * STEP);
                let y = columns.codes.as_ptr().add(g * steps * 4 * N).cast::<i32>();
                let mut dots = [[_mm512_setzero_si512(); VECS]; N];
                if corrected {
                    let corrections = columns.corrections.as_ptr().add(g * N);
                    for j in 0..N {
                        dots[j] = [_mm512_set1_epi32(*corrections.add(j)); VECS];
                    }
                }
                for step in 0..steps {
                    let w0 = _mm512_loadu_si512(w.add(step * STEP).cast());
                    let w1 = _mm512_loadu_si512(w.add(step * STEP + STEP / 2).cast());
                    for j in 0..N {
                        let y = _mm512_set1_epi32(y.add(step * N + j).read_unaligned());
                        dots[j][0] = _mm512_dpbusd_epi32(dots[j][0], w0, y);
                        dots[j][1] = _mm512_dpbusd_epi32(dots[j][1], w1, y);
                    }
                }
                for v in 0..VECS {
                    let scale = _mm512_loadu_ps(weights.scales.as_ptr().add(g * ROWS + v * LANES));
                    for j in 0..N {
                        part[j][v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[j][v]), scale, part[j][v]);
                    }
                }
            }
        }
        let scales = &columns.scales[run * N..(run + 1) * N];
        for j in 0..N {
            let scale = _mm512_set1_ps(scales[j]);
            for v in 0..VECS {
                total[j][v] = _mm512_fmadd_ps(part[j][v], scale, total[j][v]);
            }
        }
        if mins {
            for g in run * G::GROUPS..(run + 1) * G::GROUPS {
                for v in 0..VECS {
                    // SAFETY: the lengths were checked above, and `g` is below `groups`.
                    let mins = unsafe { _mm512_loadu_ps(weights.mins.as_ptr().add(g * ROWS + v * LANES)) };
                    for j in 0..N {
                        // SAFETY: as above.
                        let sum = unsafe { _mm512_set1_ps(*columns.sums.as_ptr().add(g * N + j)) };
                        total[j][v] = _mm512_fmadd_ps(mins, sum, total[j][v]);
                    }
                }
            }
        }
    }
    for j in 0..N {
        for v in 0..VECS {
            // SAFETY: the length was checked above.
            unsafe { _mm512_storeu_ps(tile.as_mut_ptr().add(j * ROWS + v * LANES), total[j][v]) };
        }
    }
}
