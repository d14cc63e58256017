//! Small matrix products in registers.

use super::expand::Lanes;
use crate::simd::Simd;

/// `out[r][c] = Σ_i a[r][i] * b[i][c]`: rows of `a` are `depth` long, of `b` and `out` `columns`, which are whole
/// vectors of every instruction set.
#[inline(always)]
pub(super) fn products<S: Simd>(s: S, a: &[f32], depth: usize, b: &[f32], columns: usize, out: &mut [f32]) {
    // As many sums as there are registers for.
    match S::LANES {
        16 => products_by::<S, 8, 2>(s, a, depth, b, columns, out),
        4 => products_by::<S, 4, 4>(s, a, depth, b, columns, out),
        _ => products_by::<S, 4, 2>(s, a, depth, b, columns, out),
    }
}

#[inline(always)]
fn products_by<S: Simd, const R: usize, const C: usize>(
    s: S,
    a: &[f32],
    depth: usize,
    b: &[f32],
    columns: usize,
    out: &mut [f32],
) {
    let rows = out.len() / columns;
    let whole = rows - rows % R;
    for row in (0..whole).step_by(R) {
        products_of_rows::<S, R, C>(s, a, depth, b, columns, out, row);
    }
    for row in whole..rows {
        products_of_rows::<S, 1, C>(s, a, depth, b, columns, out, row);
    }
}

#[inline(always)]
fn products_of_rows<S: Simd, const R: usize, const C: usize>(
    s: S,
    a: &[f32],
    depth: usize,
    b: &[f32],
    columns: usize,
    out: &mut [f32],
    row: usize,
) {
    let mut column = 0;
    while column + C * S::LANES <= columns {
        block::<S, R, C>(s, a, depth, b, columns, out, [row, column]);
        column += C * S::LANES;
    }
    while column < columns {
        block::<S, R, 1>(s, a, depth, b, columns, out, [row, column]);
        column += S::LANES;
    }
}

#[inline(always)]
fn block<S: Simd, const R: usize, const C: usize>(
    s: S,
    a: &[f32],
    depth: usize,
    b: &[f32],
    columns: usize,
    out: &mut [f32],
    [row, column]: [usize; 2],
) {
    let mut rows: [&[f32]; R] = [&[]; R];
    for (r, slice) in rows.iter_mut().enumerate() {
        *slice = &a[(row + r) * depth..][..depth];
    }
    let mut sums = [[s.splat(0.0); C]; R];
    for i in 0..depth {
        let b = &b[i * columns + column..][..C * S::LANES];
        let mut right = [s.splat(0.0); C];
        for (right, b) in right.iter_mut().zip(b.chunks_exact(S::LANES)) {
            *right = s.load(b);
        }
        for (sums, row) in sums.iter_mut().zip(&rows) {
            let left = s.splat(row[i]);
            for (sum, &right) in sums.iter_mut().zip(&right) {
                *sum = s.mul_add(left, right, *sum);
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        let out = &mut out[(row + r) * columns + column..][..C * S::LANES];
        for (out, &sum) in out.chunks_exact_mut(S::LANES).zip(sums) {
            s.store(sum, out);
        }
    }
}

/// Dot products of `R` queries, each `stride` floats from the next, with `K` rows of keys.
#[inline(always)]
pub(super) fn dots<S: Simd, T: Lanes, const R: usize, const K: usize>(
    s: S,
    queries: &[f32],
    stride: usize,
    keys: [&[T]; K],
) -> [[f32; K]; R] {
    let len = keys[0].len();
    let whole = len - len % S::LANES;
    let mut rows: [&[f32]; R] = [&[]; R];
    for (r, slice) in rows.iter_mut().enumerate() {
        *slice = &queries[r * stride..][..len];
    }
    let mut sums = [[s.splat(0.0); K]; R];
    for i in (0..whole).step_by(S::LANES) {
        let mut right = [s.splat(0.0); K];
        for (right, key) in right.iter_mut().zip(&keys) {
            *right = T::lanes(s, &key[i..]);
        }
        for (sums, row) in sums.iter_mut().zip(&rows) {
            let left = s.load(&row[i..]);
            for (sum, &right) in sums.iter_mut().zip(&right) {
                *sum = s.mul_add(left, right, *sum);
            }
        }
    }
    let mut results = [[0.0; K]; R];
    for r in 0..R {
        for k in 0..K {
            results[r][k] = s.sum(sums[r][k]);
            for i in whole..len {
                results[r][k] += rows[r][i] * T::lanes(crate::simd::Scalar, &keys[k][i..]);
            }
        }
    }
    results
}

/// Where the weight of a row and a key is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weights<'w> {
    pub(super) values: &'w [f32],
    pub(super) row_stride: usize,
    pub(super) key_stride: usize,
}

impl Weights<'_> {
    #[inline(always)]
    pub(super) fn get(&self, row: usize, key: usize) -> f32 {
        self.values[row * self.row_stride + key * self.key_stride]
    }
}

/// `sums[r] += Σ_j weights[r][j] * values[j]` for rows of sums that are `stride` apart. All rows of values have the
/// length of a row of sums, whole vectors.
#[inline(always)]
pub(super) fn accumulate<S: Simd, T: Lanes>(
    s: S,
    weights: Weights<'_>,
    values: &[&[T]],
    sums: &mut [f32],
    stride: usize,
) {
    let rows = sums.len() / stride;
    let whole = rows - rows % 4;
    for row in (0..whole).step_by(4) {
        match S::LANES {
            // Half as many registers.
            8 => accumulate_rows::<S, T, 4, 2>(s, weights, values, sums, stride, row),
            _ => accumulate_rows::<S, T, 4, 4>(s, weights, values, sums, stride, row),
        }
    }
    for row in whole..rows {
        accumulate_rows::<S, T, 1, 8>(s, weights, values, sums, stride, row);
    }
}

#[inline(always)]
fn accumulate_rows<S: Simd, T: Lanes, const R: usize, const C: usize>(
    s: S,
    weights: Weights<'_>,
    values: &[&[T]],
    sums: &mut [f32],
    stride: usize,
    row: usize,
) {
    let columns = values.first().map_or(0, |values| values.len());
    let mut column = 0;
    while column + C * S::LANES <= columns {
        accumulate_block::<S, T, R, C>(s, weights, values, sums, stride, [row, column]);
        column += C * S::LANES;
    }
    while column + 2 * S::LANES <= columns {
        accumulate_block::<S, T, R, 2>(s, weights, values, sums, stride, [row, column]);
        column += 2 * S::LANES;
    }
    while column + S::LANES <= columns {
        accumulate_block::<S, T, R, 1>(s, weights, values, sums, stride, [row, column]);
        column += S::LANES;
    }
}

#[inline(always)]
fn accumulate_block<S: Simd, T: Lanes, const R: usize, const C: usize>(
    s: S,
    weights: Weights<'_>,
    values: &[&[T]],
    sums: &mut [f32],
    stride: usize,
    [row, column]: [usize; 2],
) {
    let mut totals = [[s.splat(0.0); C]; R];
    for (r, totals) in totals.iter_mut().enumerate() {
        let sums = &sums[(row + r) * stride + column..][..C * S::LANES];
        for (total, sums) in totals.iter_mut().zip(sums.chunks_exact(S::LANES)) {
            *total = s.load(sums);
        }
    }
    for (key, value) in values.iter().enumerate() {
        let value = &value[column..][..C * S::LANES];
        let mut right = [s.splat(0.0); C];
        for (right, value) in right.iter_mut().zip(value.chunks_exact(S::LANES)) {
            *right = T::lanes(s, value);
        }
        for (r, totals) in totals.iter_mut().enumerate() {
            let left = s.splat(weights.get(row + r, key));
            for (total, &right) in totals.iter_mut().zip(&right) {
                *total = s.mul_add(left, right, *total);
            }
        }
    }
    for (r, totals) in totals.iter().enumerate() {
        let sums = &mut sums[(row + r) * stride + column..][..C * S::LANES];
        for (sums, &total) in sums.chunks_exact_mut(S::LANES).zip(totals) {
            s.store(total, sums);
        }
    }
}

/// [`accumulate`] for values some of which are not finite: a key whose weight is zero takes no part, where zero times
/// infinity would be NaN.
#[inline(always)]
pub(super) fn accumulate_guarded<S: Simd, T: Lanes>(
    s: S,
    weights: Weights<'_>,
    values: &[&[T]],
    sums: &mut [f32],
    stride: usize,
) {
    for (row, sums) in sums.chunks_exact_mut(stride).enumerate() {
        for (key, value) in values.iter().enumerate() {
            let weight = weights.get(row, key);
            if weight != 0.0 {
                let weight = s.splat(weight);
                for (sums, value) in sums.chunks_exact_mut(S::LANES).zip(value.chunks_exact(S::LANES)) {
                    s.store(s.mul_add(weight, T::lanes(s, value), s.load(sums)), sums);
                }
            }
        }
    }
}

/// Whether all values are finite; rows are whole vectors.
#[inline(always)]
pub(super) fn finite<S: Simd, T: Lanes>(s: S, values: &[&[T]]) -> bool {
    // Zero times anything finite is zero, and nothing else is.
    let mut zeros = s.splat(0.0);
    for value in values {
        for lanes in value.chunks_exact(S::LANES) {
            zeros = s.mul_add(T::lanes(s, lanes), s.splat(0.0), zeros);
        }
    }
    s.sum(zeros) == 0.0
}
