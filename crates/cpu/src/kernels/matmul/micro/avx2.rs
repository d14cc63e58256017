//! Codes of 16 bits with `vpmaddwd`: two products are added to each lane of 32 bits, and nothing can overflow.

use std::arch::x86_64::*;

use super::{CODE_ROWS, Scaling};
use crate::kernels::matmul::format::{Columns, Weights};

pub(super) const COLS: usize = 4;

/// Bytes of weights in a step: two elements of each row.
const STEP: usize = 4 * CODE_ROWS;
/// Vectors of rows.
const VECS: usize = 2;
const LANES: usize = 8;

#[target_feature(enable = "avx,avx2,fma")]
pub(super) fn multiply<G: Scaling>(weights: Weights<'_>, columns: Columns<'_>, tile: &mut [f32]) {
    let runs = columns.scales.len() / COLS;
    let groups = runs * G::GROUPS;
    let steps = G::GROUP / 2;
    assert!(
        weights.codes.len() >= groups * steps * STEP
            && weights.scales.len() >= groups * CODE_ROWS
            && columns.codes.len() >= groups * steps * 4 * COLS
            && tile.len() >= COLS * CODE_ROWS
    );
    let mut total = [[_mm256_setzero_ps(); VECS]; COLS];
    for run in 0..runs {
        let mut part = [[_mm256_setzero_ps(); VECS]; COLS];
        for g in run * G::GROUPS..(run + 1) * G::GROUPS {
            let mut dots = [[_mm256_setzero_si256(); VECS]; COLS];
            // SAFETY: the lengths were checked above, and `g` is below `groups`.
            unsafe {
                let w = weights.codes.as_ptr().add(g * steps * STEP);
                let y = columns.codes.as_ptr().add(g * steps * 4 * COLS).cast::<i32>();
                for step in 0..steps {
                    let w0 = _mm256_loadu_si256(w.add(step * STEP).cast());
                    let w1 = _mm256_loadu_si256(w.add(step * STEP + STEP / 2).cast());
                    for (j, dots) in dots.iter_mut().enumerate() {
                        let y = _mm256_set1_epi32(y.add(step * COLS + j).read_unaligned());
                        dots[0] = _mm256_add_epi32(dots[0], _mm256_madd_epi16(w0, y));
                        dots[1] = _mm256_add_epi32(dots[1], _mm256_madd_epi16(w1, y));
                    }
                }
                for v in 0..VECS {
                    let scale = _mm256_loadu_ps(weights.scales.as_ptr().add(g * CODE_ROWS + v * LANES));
                    for j in 0..COLS {
                        part[j][v] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[j][v]), scale, part[j][v]);
                    }
                }
            }
        }
        let scales = &columns.scales[run * COLS..][..COLS];
        for j in 0..COLS {
            for v in 0..VECS {
                total[j][v] = _mm256_fmadd_ps(part[j][v], _mm256_set1_ps(scales[j]), total[j][v]);
            }
        }
    }
    for (mins, sums) in weights.mins.chunks_exact(CODE_ROWS).zip(columns.sums.chunks_exact(COLS)) {
        for v in 0..VECS {
            // SAFETY: the chunk has as many numbers as both vectors have lanes.
            let mins = unsafe { _mm256_loadu_ps(mins.as_ptr().add(v * LANES)) };
            for j in 0..COLS {
                total[j][v] = _mm256_fmadd_ps(mins, _mm256_set1_ps(sums[j]), total[j][v]);
            }
        }
    }
    for (tile, total) in tile.chunks_exact_mut(CODE_ROWS).zip(total) {
        for (tile, total) in tile.chunks_exact_mut(LANES).zip(total) {
            // SAFETY: the chunk has as many numbers as the vector has lanes.
            unsafe { _mm256_storeu_ps(tile.as_mut_ptr(), total) };
        }
    }
}
