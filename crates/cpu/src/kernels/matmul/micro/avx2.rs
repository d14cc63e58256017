//! Codes of 8 bits with `vpmaddubsw`, or of 16 bits with `vpmaddwd`.
//!
//! The first adds two products of an unsigned and a signed byte in 16 bits. Codes of a few bits leave room there for several
//! such sums, which makes them twice as fast. Weights are the unsigned side: those with a sign have something added, and
//! their sums start at what corrects for it. Codes that need all of 8 bits would overflow, so they are widened.

use std::arch::x86_64::*;

use super::{CodeShape, Scaling};
use crate::kernels::matmul::format::{Columns, Weights};

const LANES: usize = 8;
/// Vectors of rows.
const VECS: usize = 2;
const ROWS: usize = VECS * LANES;
const COLS: usize = 4;

/// Bytes of weights in a step: four bytes, or two codes of 16 bits, of each row.
const STEP: usize = 4 * ROWS;

pub(super) const fn shape(least: i8, most: i8) -> CodeShape {
    let range = most as i32 - least as i32;
    // A step adds two products with activations of up to 128 to each sum of 16 bits.
    let reach = match range {
        0..=15 => 8,
        16..=31 => 4,
        32..=63 => 2,
        64..=127 => 1,
        _ => return CodeShape { rows: ROWS, cols: COLS, step: 2, bytes: false, offset: 0, reach: 1 },
    };
    assert!(reach * 2 * 128 * range <= i16::MAX as i32);
    CodeShape {
        rows: ROWS,
        cols: COLS,
        step: 4,
        bytes: true,
        offset: (-(least as i32)) as u8,
        reach: reach as usize,
    }
}

type Sums<const N: usize> = [[__m256; VECS]; N];
type Dots<const N: usize> = [[__m256i; VECS]; N];

/// The skeleton of both: `dots` gives the sums of a group.
#[target_feature(enable = "avx,avx2,fma")]
#[inline]
fn multiply<G: Scaling, const N: usize>(
    weights: Weights<'_>,
    columns: Columns<'_>,
    tile: &mut [f32],
    dots: impl Fn(usize) -> Dots<N>,
) {
    let runs = columns.scales.len() / N;
    let (groups, mins) = (runs * G::GROUPS, !weights.mins.is_empty());
    assert!(
        weights.scales.len() >= groups * ROWS
            && (!mins || weights.mins.len() >= groups * ROWS && columns.sums.len() >= groups * N)
            && tile.len() >= N * ROWS
    );
    let mut total: Sums<N> = [[_mm256_setzero_ps(); VECS]; N];
    for j in 0..N {
        for v in 0..VECS {
            // SAFETY: the length was checked above.
            total[j][v] = unsafe { _mm256_loadu_ps(tile.as_ptr().add(j * ROWS + v * LANES)) };
        }
    }
    for run in 0..runs {
        let mut part: Sums<N> = [[_mm256_setzero_ps(); VECS]; N];
        for g in run * G::GROUPS..(run + 1) * G::GROUPS {
            let dots = dots(g);
            for v in 0..VECS {
                // SAFETY: the length was checked above, and `g` is below the number of groups.
                let scale = unsafe { _mm256_loadu_ps(weights.scales.as_ptr().add(g * ROWS + v * LANES)) };
                for j in 0..N {
                    part[j][v] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[j][v]), scale, part[j][v]);
                }
            }
        }
        let scales = &columns.scales[run * N..(run + 1) * N];
        for j in 0..N {
            for v in 0..VECS {
                total[j][v] = _mm256_fmadd_ps(part[j][v], _mm256_set1_ps(scales[j]), total[j][v]);
            }
        }
        if mins {
            for g in run * G::GROUPS..(run + 1) * G::GROUPS {
                for v in 0..VECS {
                    // SAFETY: the lengths were checked above, and `g` is below the number of groups.
                    let mins = unsafe { _mm256_loadu_ps(weights.mins.as_ptr().add(g * ROWS + v * LANES)) };
                    for j in 0..N {
                        // SAFETY: as above.
                        let sum = unsafe { _mm256_set1_ps(*columns.sums.as_ptr().add(g * N + j)) };
                        total[j][v] = _mm256_fmadd_ps(mins, sum, total[j][v]);
                    }
                }
            }
        }
    }
    for j in 0..N {
        for v in 0..VECS {
            // SAFETY: the length was checked above.
            unsafe { _mm256_storeu_ps(tile.as_mut_ptr().add(j * ROWS + v * LANES), total[j][v]) };
        }
    }
}

/// Codes of 16 bits.
#[target_feature(enable = "avx,avx2,fma")]
pub(super) fn multiply_words<G: Scaling>(weights: Weights<'_>, columns: Columns<'_>, tile: &mut [f32]) {
    match columns.cols {
        1 => words::<G, 1>(weights, columns, tile),
        2 => words::<G, 2>(weights, columns, tile),
        3 => words::<G, 3>(weights, columns, tile),
        COLS => words::<G, COLS>(weights, columns, tile),
        cols => unreachable!("{cols} columns in a panel"),
    }
}

#[target_feature(enable = "avx,avx2,fma")]
fn words<G: Scaling, const N: usize>(weights: Weights<'_>, columns: Columns<'_>, tile: &mut [f32]) {
    let groups = columns.scales.len() / N * G::GROUPS;
    // Half a group, but compilers must not know: they reorder unrolled sums of integers until they run out of registers.
    let steps = columns.codes.len() / (4 * N) / groups.max(1);
    assert!(weights.codes.len() >= groups * steps * STEP && columns.codes.len() >= groups * steps * 4 * N);
    multiply::<G, N>(weights, columns, tile, |g| {
        let mut dots: Dots<N> = [[_mm256_setzero_si256(); VECS]; N];
        // SAFETY: the lengths were checked above, and `g` is below `groups`.
        unsafe {
            let w = weights.codes.as_ptr().add(g * steps * STEP);
            let y = columns.codes.as_ptr().add(g * steps * 4 * N).cast::<i32>();
            for step in 0..steps {
                let w0 = _mm256_loadu_si256(w.add(step * STEP).cast());
                let w1 = _mm256_loadu_si256(w.add(step * STEP + STEP / 2).cast());
                for j in 0..N {
                    let y = _mm256_set1_epi32(y.add(step * N + j).read_unaligned());
                    dots[j][0] = _mm256_add_epi32(dots[j][0], _mm256_madd_epi16(w0, y));
                    dots[j][1] = _mm256_add_epi32(dots[j][1], _mm256_madd_epi16(w1, y));
                }
            }
        }
        dots
    });
}

/// Codes of 8 bits.
#[target_feature(enable = "avx,avx2,fma")]
pub(super) fn multiply_bytes<G: Scaling>(weights: Weights<'_>, columns: Columns<'_>, tile: &mut [f32]) {
    match columns.cols {
        1 => bytes_at::<G, 1>(weights, columns, tile),
        2 => bytes_at::<G, 2>(weights, columns, tile),
        3 => bytes_at::<G, 3>(weights, columns, tile),
        COLS => bytes_at::<G, COLS>(weights, columns, tile),
        cols => unreachable!("{cols} columns in a panel"),
    }
}

#[target_feature(enable = "avx,avx2,fma")]
fn bytes_at<G: Scaling, const N: usize>(weights: Weights<'_>, columns: Columns<'_>, tile: &mut [f32]) {
    match weights.reach {
        1 => bytes::<G, N, 1>(weights, columns, tile),
        2 => bytes::<G, N, 2>(weights, columns, tile),
        _ => bytes::<G, N, 0>(weights, columns, tile),
    }
}

/// Zero for `REACH` means that it is not known at compile time. That is better for long ones: compilers reorder unrolled sums
/// of integers until they run out of registers.
#[target_feature(enable = "avx,avx2,fma")]
fn bytes<G: Scaling, const N: usize, const REACH: usize>(
    weights: Weights<'_>,
    columns: Columns<'_>,
    tile: &mut [f32],
) {
    let steps = G::GROUP / 4;
    let reach = if REACH == 0 { weights.reach.clamp(1, steps) } else { REACH };
    let groups = columns.scales.len() / N * G::GROUPS;
    // Codes that are never negative need no correction.
    let corrected = !columns.corrections.is_empty();
    assert!(
        weights.codes.len() >= groups * steps * STEP
            && columns.codes.len() >= groups * steps * 4 * N
            && (!corrected || columns.corrections.len() >= groups * N)
    );
    let ones = _mm256_set1_epi16(1);
    multiply::<G, N>(weights, columns, tile, |g| {
        let mut dots: Dots<N> = [[_mm256_setzero_si256(); VECS]; N];
        // SAFETY: the lengths were checked above, and `g` is below `groups`.
        unsafe {
            let w = weights.codes.as_ptr().add(g * steps * STEP);
            let y = columns.codes.as_ptr().add(g * steps * 4 * N).cast::<i32>();
            if corrected {
                let corrections = columns.corrections.as_ptr().add(g * N);
                for j in 0..N {
                    dots[j] = [_mm256_set1_epi32(*corrections.add(j)); VECS];
                }
            }
            for first in 0..steps / reach {
                let mut sums: Dots<N> = [[_mm256_setzero_si256(); VECS]; N];
                for step in first * reach..(first + 1) * reach {
                    let w0 = _mm256_loadu_si256(w.add(step * STEP).cast());
                    let w1 = _mm256_loadu_si256(w.add(step * STEP + STEP / 2).cast());
                    for j in 0..N {
                        let y = _mm256_set1_epi32(y.add(step * N + j).read_unaligned());
                        sums[j][0] = _mm256_add_epi16(sums[j][0], _mm256_maddubs_epi16(w0, y));
                        sums[j][1] = _mm256_add_epi16(sums[j][1], _mm256_maddubs_epi16(w1, y));
                    }
                }
                for j in 0..N {
                    for v in 0..VECS {
                        dots[j][v] = _mm256_add_epi32(dots[j][v], _mm256_madd_epi16(sums[j][v], ones));
                    }
                }
            }
        }
        dots
    });
}
