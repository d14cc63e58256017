//! Quantized weights times few columns: sixteen rows at a time, straight from where they lie.
//!
//! Codes are put side by side in registers and multiplied with all columns there. Nothing is packed: what is written to memory are
//! dot products of groups, which wait there until the scales of their rows are side by side too.
//!
//! Invariant: results are the same operations in the same order as those of [`micro`](super::micro).
#![allow(clippy::needless_range_loop, reason = "rows and groups are what the reader follows")]

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::format::Columns;
use super::pack::{Nothing, Scales, Sources, Unpacked, for_parts, for_pieces, put_scales};
use super::scales::{MAX_BLOCK, MAX_GROUPS, Scaled};
use crate::kernels::dot::lanes::Lanes;
use crate::kernels::dot::{ROWS, quarters, side_by_side, sixteen};
use crate::simd::{Level, for_each_level};

/// The most columns.
pub(super) const MAX_FEW: usize = 8;

/// Multiplies [`ROWS`] rows with some columns, and adds to results: [`ROWS`] of each column.
pub(super) type MultiplyFew = fn(&Sources<'_>, &mut FewScratch, &[Columns<'_>], &mut [[f32; ROWS]]);

/// How rows of a block type are multiplied with few columns.
pub(super) fn multiply_few<B: Scaled>(level: Level) -> MultiplyFew {
    for_each_level!(rows[B: Scaled]: fn(
        from: &Sources<'_>,
        scratch: &mut FewScratch,
        columns: &[Columns<'_>],
        results: &mut [[f32; ROWS]],
    ))
    .at(level)
}

/// What codes are multiplied too large by, so that columns have to correct for it.
pub(super) fn offset<B: Scaled>(level: Level) -> i32 {
    for_each_level!(offset_on[B: Scaled]: fn() -> i32).at(level)()
}

#[inline(always)]
fn offset_on<S: Lanes, B: Scaled>(_s: S) -> i32 {
    match (B::SIGNED, S::ANY_CODES) {
        (false, _) => i32::from(B::MIDDLE),
        (true, true) => i32::from(B::LEAST.unsigned_abs()),
        (true, false) => 0,
    }
}

/// What becomes of some elements of all rows before they are added up.
#[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C, align(64))]
pub(super) struct FewScratch {
    /// By column, group and row.
    dots: [[[f32; ROWS]; MAX_GROUPS]; MAX_FEW],
    /// By group and row.
    scales: [[f32; ROWS]; MAX_GROUPS],
    /// By group and row.
    mins: [[f32; ROWS]; MAX_GROUPS],
    unpacked: Unpacked,
}

#[inline(always)]
fn rows<S: Lanes, B: Scaled>(
    s: S,
    from: &Sources<'_>,
    scratch: &mut FewScratch,
    columns: &[Columns<'_>],
    results: &mut [[f32; ROWS]],
) {
    if S::LEVEL == Level::Scalar {
        unreachable!("packing is faster there, for one column too");
    }
    let blocks = from.bytes.len() / size_of::<B>();
    assert!(from.rows.len() == ROWS);
    let rows = from.blocks::<B>(0);
    assert!(columns.len() <= MAX_FEW && columns.len() == results.len());
    for_pieces!(B, blocks, |first, count| {
        let piece = sixteen!(|r| &rows[r][first..first + count]);
        let ahead = from.ahead::<B>(first, count);
        multiply::<S, B>(s, piece, ahead, first, columns, scratch);
        for n in 0..columns.len() {
            add_up::<S, B>(s, scratch, n, first, count, &columns[n], &mut results[n]);
        }
    });
}

/// Multiplies the codes of some blocks of each row, which are those from block `first` on, and puts their scales side by side.
#[inline(always)]
fn multiply<S: Lanes, B: Scaled>(
    s: S,
    rows: [&[B]; ROWS],
    ahead: usize,
    first: usize,
    columns: &[Columns<'_>],
    to: &mut FewScratch,
) {
    let (count, at) = (rows[0].len(), first * B::LEN);
    let len = count * B::LEN;
    let mut aside = Scales { s, rows: &rows, ahead, unpacked: &mut to.unpacked };
    for_parts!(S, B, len, |part| {
        let quarters = quarters(s, &rows, part, &mut aside);
        dots::<S, B>(s, quarters, columns, at + 64 * part, 64, part, &mut to.dots);
    });
    if !len.is_multiple_of(64) {
        let padded = aside.last(count - 1);
        let quarters = quarters(s, &sixteen!(|r| &padded[r][..]), 0, &mut Nothing);
        dots::<S, B>(s, quarters, columns, at + len - len % 64, len % 64, len / 64, &mut to.dots);
    }
    // What was written in small pieces must not be read in large ones at once, so this comes last.
    let groups = len / B::GROUP;
    put_scales::<S, B>(s, &to.unpacked, 0, groups, to.scales.as_flattened_mut(), ROWS);
    if B::MINS {
        put_scales::<S, B>(s, &to.unpacked, 1, groups, to.mins.as_flattened_mut(), ROWS);
    }
}

/// Dot products of the groups among `count` elements of all rows with all columns, from element `at` of those on; `count` is 64
/// or less, the groups are those of part `part` of a piece.
#[inline(always)]
fn dots<S: Lanes, B: Scaled>(
    s: S,
    quarters: [[S::Bytes; 4]; 4],
    columns: &[Columns<'_>],
    at: usize,
    count: usize,
    part: usize,
    to: &mut [[[f32; ROWS]; MAX_GROUPS]; MAX_FEW],
) {
    let plus = if B::SIGNED { offset_on::<S, B>(s) as u8 } else { 0 };
    let mut steps = side_by_side(s, quarters);
    if plus != 0 {
        steps = sixteen!(|i| s.join(steps[i], s.all(plus), 0));
    }
    let first = part * (64 / B::GROUP);
    for n in 0..columns.len() {
        let (column, to) = (&columns[n], &mut to[n]);
        let (acts, _) = column.codes[at..at + count].as_chunks::<4>();
        for i in 0..count / B::GROUP {
            let correction = match offset_on::<S, B>(s) {
                0 => 0,
                _ => column.corrections[at / B::GROUP + i],
            };
            // Two sums at a time: each waits for its product before.
            let (mut even, mut odd) = (s.splat_sums(correction), s.splat_sums(0));
            for pair in i * (B::GROUP / 8)..(i + 1) * (B::GROUP / 8) {
                let step = 2 * pair;
                even = add_dots::<S, B>(s, even, steps[step], s.all_words(acts[step]));
                odd = add_dots::<S, B>(s, odd, steps[step + 1], s.all_words(acts[step + 1]));
            }
            let sums = s.add_sums(even, odd);
            s.store_f32s(s.to_floats(sums), &mut to[first + i]);
        }
    }
}

/// Adds products of codes, which may be too large by [`offset`], to sums.
#[inline(always)]
fn add_dots<S: Lanes, B: Scaled>(s: S, sums: S::Sums, codes: S::Bytes, acts: S::Bytes) -> S::Sums {
    match (B::SIGNED, S::ANY_CODES) {
        (false, _) | (true, true) => s.dot_codes(sums, codes, acts),
        (true, false) if B::LEAST == i8::MIN => s.dot_signed(sums, codes, acts),
        (true, false) => s.dot_levels(sums, codes, acts),
    }
}

/// Adds `count` blocks of each row, from block `first` on, to the results of column `n`.
#[inline(always)]
fn add_up<S: Lanes, B: Scaled>(
    s: S,
    from: &FewScratch,
    n: usize,
    first: usize,
    count: usize,
    column: &Columns<'_>,
    results: &mut [f32; ROWS],
) {
    let (at, of_run) = (first * B::LEN, B::RUN / B::GROUP);
    let runs = count * B::LEN / B::RUN;
    let scales = &column.scales[at / B::RUN..][..runs];
    let (dots, mut total) = (&from.dots[n], lanes(s, results));
    for run in 0..runs {
        let mut part = s.no_floats();
        for g in run * of_run..(run + 1) * of_run {
            part = s.fused(lanes(s, &dots[g]), lanes(s, &from.scales[g]), part);
        }
        total = s.fused(part, s.splat_floats(scales[run]), total);
        if B::MINS {
            for g in run * of_run..(run + 1) * of_run {
                let sum = s.splat_floats(column.sums[at / B::GROUP + g]);
                total = s.fused(lanes(s, &from.mins[g]), sum, total);
            }
        }
    }
    s.store_f32s(total, results);
}

#[inline(always)]
fn lanes<S: Lanes>(s: S, from: &[f32; ROWS]) -> S::Floats {
    s.load_f32s(zerocopy::transmute_ref!(from))
}
