//! Codes of 8 bits with `vpdpbusd`: four products of an unsigned and a signed byte are added to each lane of 32 bits.
//!
//! Weights are the unsigned side, so they have 128 added; each sum starts at -128 times the sum of its activations.

use std::arch::x86_64::*;

use super::{CODE_ROWS, Scaling};
use crate::kernels::matmul::format::{Columns, Weights};

pub(super) const COLS: usize = 8;

/// Bytes of weights in a step: four elements of each row.
const STEP: usize = 4 * CODE_ROWS;

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn multiply<G: Scaling>(weights: Weights<'_>, columns: Columns<'_>, tile: &mut [f32]) {
    let runs = columns.scales.len() / COLS;
    let groups = runs * G::GROUPS;
    let steps = G::GROUP / 4;
    assert!(
        steps <= 8
            && weights.codes.len() >= groups * steps * STEP
            && weights.scales.len() >= groups * CODE_ROWS
            && columns.codes.len() >= groups * steps * 4 * COLS
            && columns.corrections.len() >= groups * COLS
            && tile.len() >= COLS * CODE_ROWS
    );
    let mut total = [_mm512_setzero_ps(); COLS];
    for run in 0..runs {
        let mut part = [_mm512_setzero_ps(); COLS];
        for g in run * G::GROUPS..(run + 1) * G::GROUPS {
            // SAFETY: the lengths were checked above, and `g` is below `groups`.
            unsafe {
                let scale = _mm512_loadu_ps(weights.scales.as_ptr().add(g * CODE_ROWS));
                let w = weights.codes.as_ptr().add(g * steps * STEP);
                let y = columns.codes.as_ptr().add(g * steps * 4 * COLS).cast::<i32>();
                let corrections = columns.corrections.as_ptr().add(g * COLS);
                let mut lanes = [_mm512_setzero_si512(); 8];
                for (step, lanes) in lanes.iter_mut().enumerate().take(steps) {
                    *lanes = _mm512_loadu_si512(w.add(step * STEP).cast());
                }
                for j in 0..COLS {
                    let mut dot = _mm512_set1_epi32(*corrections.add(j));
                    for (step, lanes) in lanes.iter().enumerate().take(steps) {
                        let y = _mm512_set1_epi32(y.add(step * COLS + j).read_unaligned());
                        dot = _mm512_dpbusd_epi32(dot, *lanes, y);
                    }
                    part[j] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), scale, part[j]);
                }
            }
        }
        let scales = &columns.scales[run * COLS..][..COLS];
        for j in 0..COLS {
            total[j] = _mm512_fmadd_ps(part[j], _mm512_set1_ps(scales[j]), total[j]);
        }
    }
    for (mins, sums) in weights.mins.chunks_exact(CODE_ROWS).zip(columns.sums.chunks_exact(COLS)) {
        // SAFETY: the chunk has as many numbers as the vector has lanes.
        let mins = unsafe { _mm512_loadu_ps(mins.as_ptr()) };
        for j in 0..COLS {
            total[j] = _mm512_fmadd_ps(mins, _mm512_set1_ps(sums[j]), total[j]);
        }
    }
    for (tile, total) in tile.chunks_exact_mut(CODE_ROWS).zip(total) {
        // SAFETY: the chunk has as many numbers as the vector has lanes.
        unsafe { _mm512_storeu_ps(tile.as_mut_ptr(), total) };
    }
}
