//! Quantized weights times a column that is alone: dot products of sixteen rows at a time, straight from where they lie.
//!
//! Putting weights side by side takes several times as long as multiplying them with one column. So the codes of a row are
//! multiplied as they come, 64 at a time, and what is put side by side are their sums, which are fewer.
//!
//! Invariant: results are the same operations in the same order as those of [`micro`](super::micro).
#![allow(clippy::needless_range_loop, reason = "rows and groups are what the reader follows")]

use super::format::Columns;
use super::pack::{Scales, Sources, Unpacked, put_scales};
use super::scales::{MAX_BLOCK, MAX_GROUPS, Scaled};
use crate::kernels::dot::lanes::Lanes;
use crate::kernels::dot::{Aside, ROWS, sixteen};
use crate::simd::{Level, for_each_level};

/// Multiplies [`ROWS`] rows with one column.
pub(super) type MultiplySingle = fn(&Sources<'_>, &mut Unpacked, Columns<'_>, &mut [f32; ROWS]);

/// How rows of a block type are multiplied with a column that is alone.
pub(super) fn multiply_single<B: Scaled>(level: Level) -> MultiplySingle {
    for_each_level!(rows[B: Scaled]: fn(
        from: &Sources<'_>,
        unpacked: &mut Unpacked,
        column: Columns<'_>,
        results: &mut [f32; ROWS],
    ))
    .at(level)
}

/// What codes are multiplied too large by, so that the column has to correct for it.
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

/// Sums of the products of 64 codes, too large by [`offset`] times the sum of the activations.
#[inline(always)]
fn dots<S: Lanes, B: Scaled>(s: S, codes: S::Bytes, acts: S::Bytes) -> S::Sums {
    match (B::SIGNED, S::ANY_CODES) {
        (false, _) => s.dot_codes(codes, acts),
        (true, true) => s.dot_codes(s.join(codes, s.all(B::LEAST.unsigned_abs()), 0), acts),
        (true, false) if B::LEAST == i8::MIN => s.dot_signed(codes, acts),
        (true, false) => s.dot_levels(codes, acts),
    }
}

/// What becomes of some elements of all rows before they are added up, by group and row.
struct Groups {
    dots: [[f32; ROWS]; MAX_GROUPS],
    scales: [[f32; ROWS]; MAX_GROUPS],
    mins: [[f32; ROWS]; MAX_GROUPS],
}

#[inline(always)]
fn rows<S: Lanes, B: Scaled>(
    s: S,
    from: &Sources<'_>,
    unpacked: &mut Unpacked,
    column: Columns<'_>,
    results: &mut [f32; ROWS],
) {
    let blocks = from.bytes.len() / size_of::<B>();
    assert!(from.rows.len() == ROWS && from.next.len() == ROWS);
    let zeros = [[0.0; ROWS]; MAX_GROUPS];
    let mut groups = Groups { dots: zeros, scales: zeros, mins: zeros };
    let (mut total, mut first) = (s.no_floats(), 0);
    while first < blocks {
        let count = (blocks - first).min(MAX_BLOCK / B::LEN);
        // A number of blocks that compilers know makes better code.
        if count == MAX_BLOCK / B::LEN {
            multiply::<S, B>(s, from, first, MAX_BLOCK / B::LEN, unpacked, &column, &mut groups);
            total = add_up::<S, B>(s, &groups, first, MAX_BLOCK / B::LEN, &column, total);
        } else {
            multiply::<S, B>(s, from, first, count, unpacked, &column, &mut groups);
            total = add_up::<S, B>(s, &groups, first, count, &column, total);
        }
        first += count;
    }
    s.store_f32s(total, results);
}

/// Multiplies the codes of `count` blocks of each row, from block `first` on, and unpacks their scales.
#[inline(always)]
fn multiply<S: Lanes, B: Scaled>(
    s: S,
    from: &Sources<'_>,
    first: usize,
    count: usize,
    unpacked: &mut Unpacked,
    column: &Columns<'_>,
    to: &mut Groups,
) {
    let (start, bytes) = (from.bytes.start + first * size_of::<B>(), count * size_of::<B>());
    let (at, len) = (first * B::LEN, count * B::LEN);
    let rows = sixteen!(|r| from.blocks::<B>(r, start, count));
    let ahead = sixteen!(|r| from.ahead(r, start, bytes));
    let mut aside = Scales { s, rows, ahead, unpacked };
    let (acts, rest) = column.codes[at..at + len].as_chunks::<64>();
    let corrections = column.corrections.get(at / B::GROUP..).unwrap_or_default();
    for part in 0..len / 64 {
        let mut fours = [s.no_sums(); 4];
        let acts = s.bytes(&acts[part]);
        for f in 0..4 {
            let mut four = [s.no_sums(); 4];
            for i in 0..4 {
                let r = 4 * f + i;
                aside.elements(r, 64 * part, 64);
                four[i] = dots::<S, B>(s, B::codes(s, rows[r], part), acts);
            }
            fours[f] = s.fours(four);
        }
        put_dots::<S, B>(s, fours, corrections, part, &mut to.dots);
    }
    if !rest.is_empty() {
        // Half of it is there: one block of 32.
        let (part, mut padded) = (len / 64, [0; 64]);
        padded[..rest.len()].copy_from_slice(rest);
        let (mut fours, acts) = ([s.no_sums(); 4], s.bytes(&padded));
        for f in 0..4 {
            let mut four = [s.no_sums(); 4];
            for i in 0..4 {
                let r = 4 * f + i;
                aside.elements(r, 64 * part, rest.len());
                let last = [rows[r][count - 1], B::new_zeroed()];
                four[i] = dots::<S, B>(s, B::codes(s, &last, 0), acts);
            }
            fours[f] = s.fours(four);
        }
        put_dots::<S, B>(s, fours, corrections, part, &mut to.dots);
    }
    // What was written in small pieces must not be read in large ones at once, so this comes last.
    let groups = len / B::GROUP;
    put_scales::<S, B>(s, unpacked, 0, groups, to.scales.as_flattened_mut(), ROWS);
    if B::MINS {
        put_scales::<S, B>(s, unpacked, 1, groups, to.mins.as_flattened_mut(), ROWS);
    }
}

/// Puts the sums of the groups among 64 elements side by side, corrected.
#[inline(always)]
fn put_dots<S: Lanes, B: Scaled>(
    s: S,
    fours: [S::Sums; 4],
    corrections: &[i32],
    part: usize,
    to: &mut [[f32; ROWS]; MAX_GROUPS],
) {
    let quarters = s.swap_quarters(fours);
    for i in 0..64 / B::GROUP {
        let g = part * (64 / B::GROUP) + i;
        let mut sums = match B::GROUP {
            16 => quarters[i],
            _ => s.add_sums(quarters[2 * i], quarters[2 * i + 1]),
        };
        if let Some(&correction) = corrections.get(g) {
            sums = s.add_sums(sums, s.splat_sums(correction));
        }
        s.store_f32s(s.to_floats(sums), &mut to[g]);
    }
}

/// Adds `count` blocks of each row, from block `first` on, to results.
#[inline(always)]
fn add_up<S: Lanes, B: Scaled>(
    s: S,
    from: &Groups,
    first: usize,
    count: usize,
    column: &Columns<'_>,
    mut total: S::Floats,
) -> S::Floats {
    let (at, of_run) = (first * B::LEN, B::RUN / B::GROUP);
    let runs = count * B::LEN / B::RUN;
    let scales = &column.scales[at / B::RUN..][..runs];
    for run in 0..runs {
        let mut part = s.no_floats();
        for g in run * of_run..(run + 1) * of_run {
            let (dots, scales) = (lanes(s, &from.dots[g]), lanes(s, &from.scales[g]));
            part = s.fused(dots, scales, part);
        }
        total = s.fused(part, s.splat_floats(scales[run]), total);
        if B::MINS {
            for g in run * of_run..(run + 1) * of_run {
                let sum = s.splat_floats(column.sums[at / B::GROUP + g]);
                total = s.fused(lanes(s, &from.mins[g]), sum, total);
            }
        }
    }
    total
}

#[inline(always)]
fn lanes<S: Lanes>(s: S, from: &[f32; ROWS]) -> S::Floats {
    s.load_f32s(zerocopy::transmute_ref!(from))
}
