//! Signed codes with NEON: products of 16 bits are added in pairs, and the sums of four rows are brought together by pairwise
//! additions, so that each lane is a row.

use std::arch::aarch64::*;

use super::Scaling;
use super::portable::ROWS;
use crate::kernels::matmul::format::{Columns, Weights, items};

const LANES: usize = 4;
/// Vectors of rows.
const VECS: usize = ROWS / LANES;

/// Adds the product of two panels to a tile.
#[inline(always)]
pub(super) fn multiply<G: Scaling>(weights: Weights<'_>, columns: Columns<'_>, tile: &mut [f32]) {
    for (j, results) in tile.chunks_exact_mut(ROWS).take(columns.cols).enumerate() {
        column::<G>(&weights, &columns, j, results);
    }
}

/// Adds the product of all rows with one column.
#[inline(always)]
fn column<G: Scaling>(weights: &Weights<'_>, columns: &Columns<'_>, j: usize, results: &mut [f32]) {
    let cols = columns.cols;
    let (w, y): (&[i8], &[i8]) = (items(weights.codes), items(columns.codes));
    let mut total = [zero(); VECS];
    for v in 0..VECS {
        total[v] = load(results, v * LANES);
    }
    for run in 0..columns.scales.len() / cols {
        let mut part = [zero(); VECS];
        for g in run * G::GROUPS..(run + 1) * G::GROUPS {
            let y = &y[(g * cols + j) * G::GROUP..][..G::GROUP];
            for v in 0..VECS {
                let w = &w[(g * ROWS + v * LANES) * G::GROUP..][..LANES * G::GROUP];
                let scale = load(weights.scales, g * ROWS + v * LANES);
                // SAFETY: NEON is there.
                part[v] = unsafe { vfmaq_f32(part[v], vcvtq_f32_s32(dots::<G>(w, y)), scale) };
            }
        }
        for v in 0..VECS {
            // SAFETY: NEON is there.
            total[v] = unsafe { vfmaq_n_f32(total[v], part[v], columns.scales[run * cols + j]) };
        }
        if !weights.mins.is_empty() {
            for g in run * G::GROUPS..(run + 1) * G::GROUPS {
                for v in 0..VECS {
                    let mins = load(weights.mins, g * ROWS + v * LANES);
                    // SAFETY: NEON is there.
                    total[v] = unsafe { vfmaq_n_f32(total[v], mins, columns.sums[g * cols + j]) };
                }
            }
        }
    }
    for v in 0..VECS {
        let to = &mut results[v * LANES..(v + 1) * LANES];
        // SAFETY: NEON is there, and the slice has four numbers.
        unsafe { vst1q_f32(to.as_mut_ptr(), total[v]) };
    }
}

#[inline(always)]
fn zero() -> float32x4_t {
    // SAFETY: NEON is there.
    unsafe { vdupq_n_f32(0.0) }
}

#[inline(always)]
fn load(from: &[f32], start: usize) -> float32x4_t {
    let from = &from[start..start + LANES];
    // SAFETY: NEON is there, and the slice has four numbers.
    unsafe { vld1q_f32(from.as_ptr()) }
}

/// The dot products of four rows of a group with one more.
#[inline(always)]
fn dots<G: Scaling>(w: &[i8], y: &[i8]) -> int32x4_t {
    assert!(w.len() == LANES * G::GROUP && y.len() == G::GROUP && G::GROUP.is_multiple_of(16));
    // SAFETY: NEON is there, and the lengths were just checked.
    unsafe {
        let mut sums = [vdupq_n_s32(0); LANES];
        for r in 0..LANES {
            for i in (0..G::GROUP).step_by(16) {
                let (w, y) = (vld1q_s8(w.as_ptr().add(r * G::GROUP + i)), vld1q_s8(y.as_ptr().add(i)));
                sums[r] = vpadalq_s16(sums[r], vmull_s8(vget_low_s8(w), vget_low_s8(y)));
                sums[r] = vpadalq_s16(sums[r], vmull_high_s8(w, y));
            }
        }
        let [a, b, c, d] = sums;
        vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d))
    }
}
