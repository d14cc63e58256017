//! Dot products in sixteen partial sums: what is few rows times keys as they lie in memory.
//!
//! Invariant: partial sum `i` is of the channels `i`, `i + 16` and so on, ascending, each product added in one step; then the
//! upper half of the partial sums is added to the lower half, and so on until one is left. [`product`](super::product) does
//! the very same in another arrangement.
#![allow(clippy::needless_range_loop, reason = "keys and runs are what the reader follows")]

use super::expand::Lanes;
use crate::simd::{MAX_LANES, Simd};

/// Sixteen numbers.
type Run<T> = [T; MAX_LANES];

/// Keys that are multiplied at a time.
pub(super) const AT_ONCE: usize = 4;

/// The dot products of `R` queries, each `stride` floats from the next, with four keys of one length. Queries are padded with
/// zeros to a multiple of sixteen.
#[inline(always)]
pub(super) fn dots<S: Simd, T: Lanes, const R: usize>(
    s: S,
    queries: &[f32],
    stride: usize,
    keys: [&[T]; AT_ONCE],
) -> [[f32; AT_ONCE]; R] {
    match S::LANES {
        16 => dots_by::<S, T, R, 1>(s, queries, stride, keys),
        8 => dots_by::<S, T, R, 2>(s, queries, stride, keys),
        4 => dots_by::<S, T, R, 4>(s, queries, stride, keys),
        _ => dots_by::<S, T, R, 16>(s, queries, stride, keys),
    }
}

/// As [`dots`], for vectors of a `P`th of the partial sums.
#[inline(always)]
fn dots_by<S: Simd, T: Lanes, const R: usize, const P: usize>(
    s: S,
    queries: &[f32],
    stride: usize,
    keys: [&[T]; AT_ONCE],
) -> [[f32; AT_ONCE]; R] {
    let (count, left) = (keys[0].len() / MAX_LANES, keys[0].len() % MAX_LANES);
    let (mut runs, mut rests): ([&[Run<T>]; AT_ONCE], [&[T]; AT_ONCE]) = ([&[]; AT_ONCE], [&[]; AT_ONCE]);
    for k in 0..AT_ONCE {
        let (run, rest) = keys[k].as_chunks();
        (runs[k], rests[k]) = (&run[..count], &rest[..left]);
    }
    let mut rows: [&[Run<f32>]; R] = [&[]; R];
    for (r, row) in rows.iter_mut().enumerate() {
        *row = &queries[r * stride..][..stride].as_chunks().0[..count + usize::from(left > 0)];
    }
    let mut sums = [[[s.splat(0.0); P]; AT_ONCE]; R];
    for i in 0..count {
        let mut block = [&runs[0][i]; AT_ONCE];
        for k in 0..AT_ONCE {
            block[k] = &runs[k][i];
        }
        add::<S, T, R, P>(s, &mut sums, &rows, i, block);
    }
    if left > 0 {
        let mut padded = [[T::default(); MAX_LANES]; AT_ONCE];
        for k in 0..AT_ONCE {
            padded[k][..left].copy_from_slice(rests[k]);
        }
        let [a, b, c, d] = &padded;
        add::<S, T, R, P>(s, &mut sums, &rows, count, [a, b, c, d]);
    }
    let mut results = [[0.0; AT_ONCE]; R];
    for (result, sums) in results.iter_mut().zip(&sums) {
        let mut left = [s.splat(0.0); AT_ONCE];
        for (left, sums) in left.iter_mut().zip(sums) {
            *left = fold(s, *sums);
        }
        *result = s.fold_four(left);
    }
    results
}

/// Adds the products of sixteen channels.
#[inline(always)]
fn add<S: Simd, T: Lanes, const R: usize, const P: usize>(
    s: S,
    sums: &mut [[[S::F32; P]; AT_ONCE]; R],
    rows: &[&[Run<f32>]; R],
    i: usize,
    keys: [&Run<T>; AT_ONCE],
) {
    for part in 0..P {
        let mut right = [s.splat(0.0); AT_ONCE];
        for (right, key) in right.iter_mut().zip(keys) {
            *right = T::lanes(s, &key[part * S::LANES..][..S::LANES]);
        }
        for (sums, row) in sums.iter_mut().zip(rows) {
            let left = s.load(&row[i][part * S::LANES..][..S::LANES]);
            for (sums, right) in sums.iter_mut().zip(right) {
                sums[part] = s.mul_add(left, right, sums[part]);
            }
        }
    }
}

/// Vectors that are parts of one are added until one is left, the upper half to the lower.
#[inline(always)]
pub(super) fn fold<S: Simd, const P: usize>(s: S, mut parts: [S::F32; P]) -> S::F32 {
    let mut half = P / 2;
    while half > 0 {
        for i in 0..half {
            parts[i] = s.add(parts[i], parts[i + half]);
        }
        half /= 2;
    }
    parts[0]
}

/// The sum of sixteen partial sums.
#[inline(always)]
pub(super) fn fold_numbers(sums: &Run<f32>) -> f32 {
    let mut eight = [0.0; 8];
    for i in 0..8 {
        eight[i] = sums[i] + sums[i + 8];
    }
    let mut four = [0.0; 4];
    for i in 0..4 {
        four[i] = eight[i] + eight[i + 4];
    }
    (four[0] + four[2]) + (four[1] + four[3])
}
