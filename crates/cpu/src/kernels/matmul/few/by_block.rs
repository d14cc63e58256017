//! Types whose blocks are 32 elements with one scale, for instruction sets that have registers for all of it.
//!
//! A block of each of sixteen rows is multiplied with all columns and added to their results before the next block is looked at.
//! With one or two columns codes are multiplied along their rows, and sums are put side by side; with more, codes are put side by
//! side once for all columns. Nothing is written to memory but results.
//!
//! Invariant: results are the same operations in the same order as those of [`micro`](crate::kernels::matmul::micro).

use super::{add_dots, lanes, offset_on, plus};
use crate::kernels::dot::lanes::Lanes;
use crate::kernels::dot::{ROWS, sixteen};
use crate::kernels::matmul::format::Columns;
use crate::kernels::matmul::pack::{Sources, for_pieces};
use crate::kernels::matmul::scales::{MAX_BLOCK, Scaled, Stored};

/// Elements of a block.
const LEN: usize = 32;

/// Whether rows of a type are multiplied this way.
#[inline(always)]
pub(super) const fn is_for<S: Lanes, B: Scaled>() -> bool {
    S::IS_AVX512 && B::LEN == LEN && matches!(B::STORED, Stored::Halves)
}

/// Multiplies sixteen rows with some columns, and adds to results.
#[inline(always)]
pub(super) fn rows<S: Lanes, B: Scaled>(
    s: S,
    from: &Sources<'_>,
    columns: &[Columns<'_>],
    results: &mut [[f32; ROWS]],
) {
    assert!(columns.len() == results.len());
    match (columns, results) {
        ([a], [to]) => along_rows::<S, B, 1>(s, from, [a], [to]),
        ([a, b], [to_a, to_b]) => along_rows::<S, B, 2>(s, from, [a, b], [to_a, to_b]),
        (columns, results) => side_by_side::<S, B>(s, from, columns, results),
    }
}

/// What goes with the codes of a block of each row.
struct Weights<S: Lanes> {
    scales: S::Floats,
    mins: S::Floats,
}

#[inline(always)]
fn along_rows<S: Lanes, B: Scaled, const N: usize>(
    s: S,
    from: &Sources<'_>,
    columns: [&Columns<'_>; N],
    results: [&mut [f32; ROWS]; N],
) {
    let rows = from.blocks::<B>(0);
    let blocks = rows[0].len();
    let mut totals = [s.no_floats(); N];
    for n in 0..N {
        totals[n] = lanes(s, results[n]);
    }
    for_pieces!(B, blocks, |first, count| {
        let piece = sixteen!(|r| &rows[r][first..first + count]);
        let ahead = from.ahead_in_order::<B>(0..ROWS, first, count);
        for b in 0..count {
            ahead.ask_for_block::<B>(ROWS, b);
            let at = first + b;
            let mut acts = [[s.all(0); 2]; N];
            for n in 0..N {
                let (codes, _) = columns[n].codes.as_chunks::<16>();
                acts[n] = [s.all_quarters(&codes[2 * at]), s.all_quarters(&codes[2 * at + 1])];
            }
            // Written out: in a loop, codes would not stay in registers.
            let of_0 = sums_of_four::<S, B, N>(s, codes_of::<S, B>(s, &piece, 0, b), &acts);
            let of_1 = sums_of_four::<S, B, N>(s, codes_of::<S, B>(s, &piece, 1, b), &acts);
            let of_2 = sums_of_four::<S, B, N>(s, codes_of::<S, B>(s, &piece, 2, b), &acts);
            let of_3 = sums_of_four::<S, B, N>(s, codes_of::<S, B>(s, &piece, 3, b), &acts);
            let weights = weights_of::<S, B>(s, &piece, b);
            for n in 0..N {
                let dots = s.fold_words([of_0[n], of_1[n], of_2[n], of_3[n]]);
                let dots = s.add_sums(dots, correction::<S, B>(s, columns[n], at));
                totals[n] = add_up::<S, B>(s, dots, &weights, columns[n], at, totals[n]);
            }
        }
    });
    for n in 0..N {
        s.store_f32s(totals[n], results[n]);
    }
}

#[inline(always)]
fn side_by_side<S: Lanes, B: Scaled>(
    s: S,
    from: &Sources<'_>,
    columns: &[Columns<'_>],
    results: &mut [[f32; ROWS]],
) {
    let rows = from.blocks::<B>(0);
    let blocks = rows[0].len();
    for_pieces!(B, blocks, |first, count| {
        let piece = sixteen!(|r| &rows[r][first..first + count]);
        let ahead = from.ahead_in_order::<B>(0..ROWS, first, count);
        for b in 0..count {
            ahead.ask_for_block::<B>(ROWS, b);
            let at = first + b;
            let of_0 = codes_of::<S, B>(s, &piece, 0, b);
            let of_1 = codes_of::<S, B>(s, &piece, 1, b);
            let of_2 = codes_of::<S, B>(s, &piece, 2, b);
            let of_3 = codes_of::<S, B>(s, &piece, 3, b);
            let first = s.swap_words([of_0[0], of_1[0], of_2[0], of_3[0]]);
            let other = s.swap_words([of_0[1], of_1[1], of_2[1], of_3[1]]);
            let weights = weights_of::<S, B>(s, &piece, b);
            for (column, to) in columns.iter().zip(results.iter_mut()) {
                let (acts, _) = column.codes.as_chunks::<4>();
                let acts: &[[u8; 4]; 8] = acts[8 * at..]
                    .first_chunk()
                    .unwrap_or_else(|| unreachable!("columns are as long as rows"));
                // Two sums at a time: each waits for its product before.
                let (mut even, mut odd) = (correction::<S, B>(s, column, at), s.splat_sums(0));
                for i in 0..4 {
                    even = add_dots::<S, B>(s, even, first[i], s.all_words(acts[i]));
                    odd = add_dots::<S, B>(s, odd, other[i], s.all_words(acts[4 + i]));
                }
                let total = add_up::<S, B>(s, s.add_sums(even, odd), &weights, column, at, lanes(s, to));
                s.store_f32s(total, to);
            }
        }
    });
}

/// The codes of block `b` of rows `f`, `f + 4`, `f + 8` and `f + 12`, as they are multiplied.
#[inline(always)]
fn codes_of<S: Lanes, B: Scaled>(s: S, rows: &[&[B]; ROWS], f: usize, b: usize) -> [S::Bytes; 2] {
    let [first, other] = B::block_quarters(s, [rows[f], rows[f + 4], rows[f + 8], rows[f + 12]], b);
    match plus::<S, B>(s) {
        0 => [first, other],
        plus => [s.join(first, s.all(plus), 0), s.join(other, s.all(plus), 0)],
    }
}

/// Four sums of the products of each of four rows with each column.
#[inline(always)]
fn sums_of_four<S: Lanes, B: Scaled, const N: usize>(
    s: S,
    codes: [S::Bytes; 2],
    acts: &[[S::Bytes; 2]; N],
) -> [S::Sums; N] {
    let mut sums = [s.splat_sums(0); N];
    for n in 0..N {
        let first = add_dots::<S, B>(s, sums[n], codes[0], acts[n][0]);
        sums[n] = add_dots::<S, B>(s, first, codes[1], acts[n][1]);
    }
    sums
}

/// The scales and minimums of block `b` of all rows.
#[inline(always)]
fn weights_of<S: Lanes, B: Scaled>(s: S, rows: &[&[B]; ROWS], b: usize) -> Weights<S> {
    let scales = s.side_by_side_f16s(sixteen!(|r| rows[r][b].halves()[0]));
    let mins = match B::MINS {
        true => s.side_by_side_f16s(sixteen!(|r| rows[r][b].halves()[1])),
        false => s.no_floats(),
    };
    Weights { scales, mins }
}

/// What products with block `b` of a column are too small by.
#[inline(always)]
fn correction<S: Lanes, B: Scaled>(s: S, column: &Columns<'_>, b: usize) -> S::Sums {
    s.splat_sums(if offset_on::<S, B>(s) == 0 { 0 } else { column.corrections[b] })
}

/// Adds the dot products of block `b` to the results of a column.
#[inline(always)]
fn add_up<S: Lanes, B: Scaled>(
    s: S,
    dots: S::Sums,
    weights: &Weights<S>,
    column: &Columns<'_>,
    b: usize,
    total: S::Floats,
) -> S::Floats {
    let part = s.fused(s.to_floats(dots), weights.scales, s.no_floats());
    let total = s.fused(part, s.splat_floats(column.scales[b]), total);
    if B::MINS { s.fused(weights.mins, s.splat_floats(column.sums[b]), total) } else { total }
}
