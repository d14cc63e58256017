//! Small matrix products in registers, for many rows.
//!
//! Invariant: an element is computed in one order, whatever the others are. [`products`] has the order of
//! [`sixteen`](super::sixteen).

use super::expand::{GROUP, Lanes};
use crate::simd::{MAX_LANES, Simd};
use crate::view::Strip;

/// Rows of keys that are multiplied at a time.
pub(super) const KEYS_AT_ONCE: usize = 4;

/// `out[r][c] = Σ_i a[r][i] * b[i][c]`, in sixteen partial sums: rows of `a` are `depth` long, of `b` and `out` `columns`,
/// which are whole vectors of every instruction set. Rows of `out` are a multiple of [`KEYS_AT_ONCE`].
#[inline(always)]
pub(super) fn products<S: Simd>(s: S, a: &[f32], depth: usize, b: &[f32], columns: usize, out: &mut [f32]) {
    let mut waiting: Waiting<S> = [[[s.splat(0.0); 4]; 4]; 4];
    for row in (0..out.len() / columns).step_by(4) {
        let mut column = 0;
        while column < columns {
            // As many sums as there are registers for.
            let vectors = if S::IS_AVX512 { 4 } else { 2 };
            let (at, left) = ([row, column], (columns - column) / S::LANES);
            if S::IS_AVX512 && left > 2 {
                match left {
                    3 => block::<S, 4, 3>(s, a, depth, b, columns, out, at, &mut waiting),
                    _ => block::<S, 4, 4>(s, a, depth, b, columns, out, at, &mut waiting),
                }
            } else {
                match left {
                    1 => block::<S, 4, 1>(s, a, depth, b, columns, out, at, &mut waiting),
                    _ => block::<S, 4, 2>(s, a, depth, b, columns, out, at, &mut waiting),
                }
            }
            column += vectors * S::LANES;
        }
    }
}

/// The partial sums in an order in which those that are added lie beside each other: 0 and 8, 4 and 12, and so on.
const FOLDED: [usize; MAX_LANES] = [0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15];

#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "an inner loop, apart only to be compiled for each shape")]
fn block<S: Simd, const R: usize, const C: usize>(
    s: S,
    a: &[f32],
    depth: usize,
    b: &[f32],
    columns: usize,
    out: &mut [f32],
    [row, column]: [usize; 2],
    waiting: &mut Waiting<S>,
) {
    let mut rows: [&[f32]; R] = [&[]; R];
    for (r, slice) in rows.iter_mut().enumerate() {
        *slice = &a[(row + r) * depth..][..depth];
    }
    for (leaf, first) in FOLDED.into_iter().enumerate() {
        let mut sums = [[s.splat(0.0); C]; R];
        for i in (first..depth).step_by(MAX_LANES) {
            let b = &b[i * columns + column..][..C * S::LANES];
            let mut right = [s.splat(0.0); C];
            for (right, b) in right.iter_mut().zip(b.chunks_exact(S::LANES)) {
                *right = s.load(b);
            }
            for (sums, row) in sums.iter_mut().zip(&rows) {
                add_products(s, sums, s.splat(row[i]), &right);
            }
        }
        let done = leaf.trailing_ones() as usize;
        for waiting in &waiting[..done] {
            for (sums, waiting) in sums.iter_mut().zip(waiting) {
                for (sum, waiting) in sums.iter_mut().zip(waiting) {
                    *sum = s.add(*waiting, *sum);
                }
            }
        }
        if leaf + 1 < FOLDED.len() {
            for (waiting, sums) in waiting[done].iter_mut().zip(&sums) {
                for (waiting, sum) in waiting.iter_mut().zip(sums) {
                    *waiting = *sum;
                }
            }
            continue;
        }
        for (r, sums) in sums.iter().enumerate() {
            let out = &mut out[(row + r) * columns + column..][..C * S::LANES];
            for (out, &sum) in out.chunks_exact_mut(S::LANES).zip(sums) {
                s.store(sum, out);
            }
        }
    }
}

/// Sums of 1, 2, 4 and 8 partial sums that wait for their other half.
type Waiting<S> = [[[<S as Simd>::F32; 4]; 4]; 4];

/// `sums[i] += left * right[i]`.
#[inline(always)]
fn add_products<S: Simd, const N: usize>(s: S, sums: &mut [S::F32; N], left: S::F32, right: &[S::F32; N]) {
    for (sum, &right) in sums.iter_mut().zip(right) {
        *sum = s.mul_add(left, right, *sum);
    }
}

/// Codes of 8 bits as floats: `out[r][c] = Σ_g (Σ_i a[r][i] * b[i][c]) * (a_scales[g][r] * b_scales[g][c])`, where `i` goes
/// over the 32 channels of group `g`. The inner sums are exact in any order. Scales of `a` are `scale_stride` apart, and its
/// rows are a multiple of [`KEYS_AT_ONCE`].
#[inline(always)]
pub(super) fn group_products<S: Simd>(
    s: S,
    (a, a_scales, scale_stride): (&[f32], &[f32], usize),
    depth: usize,
    (b, b_scales): (&[f32], &[f32]),
    columns: usize,
    out: &mut [f32],
) {
    macro_rules! block {
        ($vectors:literal at $row:expr, $column:expr) => {
            group_block::<S, 4, $vectors>(
                s,
                (a, a_scales, scale_stride),
                depth,
                (b, b_scales),
                columns,
                out,
                [$row, $column],
            )
        };
    }
    for row in (0..out.len() / columns).step_by(4) {
        let mut column = 0;
        while column + 2 * S::LANES <= columns {
            block!(2 at row, column);
            column += 2 * S::LANES;
        }
        if column < columns {
            block!(1 at row, column);
        }
    }
}

#[inline(always)]
fn group_block<S: Simd, const R: usize, const C: usize>(
    s: S,
    (a, a_scales, scale_stride): (&[f32], &[f32], usize),
    depth: usize,
    (b, b_scales): (&[f32], &[f32]),
    columns: usize,
    out: &mut [f32],
    [row, column]: [usize; 2],
) {
    let mut rows: [&[f32]; R] = [&[]; R];
    for (r, slice) in rows.iter_mut().enumerate() {
        *slice = &a[(row + r) * depth..][..depth];
    }
    let mut totals = [[s.splat(0.0); C]; R];
    for group in 0..depth / GROUP {
        let mut sums = [[s.splat(0.0); C]; R];
        for i in group * GROUP..(group + 1) * GROUP {
            let b = &b[i * columns + column..][..C * S::LANES];
            let mut right = [s.splat(0.0); C];
            for (right, b) in right.iter_mut().zip(b.chunks_exact(S::LANES)) {
                *right = s.load(b);
            }
            for (sums, row) in sums.iter_mut().zip(&rows) {
                add_products(s, sums, s.splat(row[i]), &right);
            }
        }
        let b_scales = &b_scales[group * columns + column..][..C * S::LANES];
        for (r, (totals, sums)) in totals.iter_mut().zip(&sums).enumerate() {
            let a_scale = s.splat(a_scales[group * scale_stride + row + r]);
            for (c, (total, sum)) in totals.iter_mut().zip(sums).enumerate() {
                let scale = s.mul(a_scale, s.load(&b_scales[c * S::LANES..][..S::LANES]));
                *total = s.mul_add(*sum, scale, *total);
            }
        }
    }
    for (r, totals) in totals.iter().enumerate() {
        let out = &mut out[(row + r) * columns + column..][..C * S::LANES];
        for (out, &total) in out.chunks_exact_mut(S::LANES).zip(totals) {
            s.store(total, out);
        }
    }
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

/// `sums[r] += Σ_j weights[r][j] * values[j]`, key by key, for rows of sums that are `stride` apart. All rows of values have
/// the length of a row of sums, whole vectors.
#[inline(always)]
pub(super) fn accumulate<S: Simd, T: Lanes>(
    s: S,
    weights: Weights<'_>,
    values: Strip<'_, T>,
    sums: &mut [f32],
    stride: usize,
) {
    let rows = sums.len() / stride;
    let mut row = 0;
    while row + 4 <= rows {
        match S::LANES {
            // Half as many registers.
            8 => accumulate_rows::<S, T, 4, 2>(s, weights, values, sums, stride, row),
            _ => accumulate_rows::<S, T, 4, 4>(s, weights, values, sums, stride, row),
        }
        row += 4;
    }
    match rows - row {
        3 => match S::LANES {
            8 => accumulate_rows::<S, T, 3, 2>(s, weights, values, sums, stride, row),
            _ => accumulate_rows::<S, T, 3, 4>(s, weights, values, sums, stride, row),
        },
        2 => accumulate_rows::<S, T, 2, 4>(s, weights, values, sums, stride, row),
        1 => accumulate_rows::<S, T, 1, 8>(s, weights, values, sums, stride, row),
        _ => {}
    }
}

#[inline(always)]
fn accumulate_rows<S: Simd, T: Lanes, const R: usize, const C: usize>(
    s: S,
    weights: Weights<'_>,
    values: Strip<'_, T>,
    sums: &mut [f32],
    stride: usize,
    row: usize,
) {
    let columns = values.len();
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
    values: Strip<'_, T>,
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
    for key in 0..values.count() {
        let value = &values.get(key)[column..][..C * S::LANES];
        let mut right = [s.splat(0.0); C];
        for (right, value) in right.iter_mut().zip(value.chunks_exact(S::LANES)) {
            *right = T::lanes(s, value);
        }
        for (r, totals) in totals.iter_mut().enumerate() {
            add_products(s, totals, s.splat(weights.get(row + r, key)), &right);
        }
    }
    for (r, totals) in totals.iter().enumerate() {
        let sums = &mut sums[(row + r) * stride + column..][..C * S::LANES];
        for (sums, &total) in sums.chunks_exact_mut(S::LANES).zip(totals) {
            s.store(total, sums);
        }
    }
}

/// [`accumulate`] where a row does not see all keys and some value is not finite: zero times infinity would be NaN, so what a
/// row does not see takes no part. `seen` has a bit for each row's keys.
#[inline(always)]
pub(super) fn accumulate_seen<S: Simd, T: Lanes>(
    s: S,
    weights: Weights<'_>,
    values: Strip<'_, T>,
    sums: &mut [f32],
    stride: usize,
    seen: &[u64],
) {
    for ((row, sums), seen) in sums.chunks_exact_mut(stride).enumerate().zip(seen) {
        for key in (0..values.count()).filter(|key| seen >> key & 1 == 1) {
            let value = values.get(key);
            let weight = s.splat(weights.get(row, key));
            for (sums, value) in sums.chunks_exact_mut(S::LANES).zip(value.chunks_exact(S::LANES)) {
                s.store(s.mul_add(weight, T::lanes(s, value), s.load(sums)), sums);
            }
        }
    }
}

/// Whether all values are finite; rows are whole vectors.
#[inline(always)]
pub(super) fn finite<S: Simd, T: Lanes>(s: S, values: Strip<'_, T>) -> bool {
    // Zero times anything finite is zero, and nothing else is.
    let mut zeros = s.splat(0.0);
    for key in 0..values.count() {
        for lanes in values.get(key).chunks_exact(S::LANES) {
            zeros = s.mul_add(T::lanes(s, lanes), s.splat(0.0), zeros);
        }
    }
    s.sum(zeros) == 0.0
}
