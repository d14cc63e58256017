//! Quantized weights times few columns: sixteen rows at a time, straight from where they lie.
//!
//! With very few columns codes are multiplied along their rows, and sums are put side by side ([`sums_of_four`]). With more, codes
//! are put side by side in registers and multiplied with all columns there ([`side_by_side_dots`]). The instruction set decides
//! which it is. Nothing is packed: what is written to memory are dot products of groups, which wait there until the scales of their
//! rows are side by side too. With AVX-512, types that store one scale for 32 elements go without that ([`by_block`]); Q8_0 has a
//! way of its own with AVX2 (`eight`).
//!
//! Invariant: results are the same operations in the same order as those of [`micro`](super::micro).
#![allow(clippy::needless_range_loop, reason = "rows and groups are what the reader follows")]

mod by_block;
#[cfg(target_arch = "x86_64")]
mod eight;

use oxcart_tensor::DType;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::format::Columns;
use super::pack::{Ahead, Nothing, Scales, Sources, Unpacked, for_parts, for_pieces, put_scales};
use super::scales::{MAX_BLOCK, MAX_GROUPS, Scaled};
use crate::kernels::dot::lanes::Lanes;
use crate::kernels::dot::{Aside, ROWS, every_fourth, quarters, side_by_side, sixteen};
use crate::simd::{Level, for_each_level};

/// The most columns.
pub(super) const MAX_FEW: usize = 8;

/// Multiplies [`ROWS`] rows with some columns, and adds to results: [`ROWS`] of each column.
pub(super) type MultiplyFew = fn(&Sources<'_>, &mut FewScratch, &[Columns<'_>], &mut [[f32; ROWS]]);

/// How rows of a block type are multiplied with few columns.
pub(super) fn multiply_few<B: Scaled>(level: Level) -> MultiplyFew {
    #[cfg(target_arch = "x86_64")]
    if let Some(multiply) = eight::multiply(B::DTYPE, level) {
        return multiply;
    }
    for_each_level!(rows[B: Scaled]: fn(
        from: &Sources<'_>,
        scratch: &mut FewScratch,
        columns: &[Columns<'_>],
        results: &mut [[f32; ROWS]],
    ))
    .at(level)
}

/// Whether rows of a type are multiplied eight at a time.
pub(super) const fn is_by_eight(dtype: DType, level: Level) -> bool {
    #[cfg(target_arch = "x86_64")]
    let is_by_eight = eight::is_for(dtype, level);
    #[cfg(not(target_arch = "x86_64"))]
    let is_by_eight = {
        let _ = (dtype, level);
        false
    };
    is_by_eight
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

/// Dot products by column, group and row.
type Dots = [[[f32; ROWS]; MAX_GROUPS]; MAX_FEW];

/// Four sums of each row, by column and by group among 64 elements: those of rows `f`, `f + 4`, `f + 8` and `f + 12` for each `f`.
type Fours = [[[[i32; ROWS]; 4]; 4]; MAX_FEW];

/// What becomes of some elements of all rows before they are added up.
#[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C, align(64))]
pub(super) struct FewScratch {
    dots: Dots,
    fours: Fours,
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
    if S::IS_SCALAR || is_by_eight(B::DTYPE, S::LEVEL) {
        unreachable!("other ways are faster there, for one column too");
    }
    if by_block::is_for::<S, B>() {
        by_block::rows::<S, B>(s, from, columns, results);
        return;
    }
    let blocks = from.bytes.len() / size_of::<B>();
    assert!(from.rows.len() == ROWS);
    let rows = from.blocks::<B>(0);
    assert!(columns.len() <= MAX_FEW && columns.len() == results.len());
    for_pieces!(B, blocks, |first, count| {
        let piece = sixteen!(|r| &rows[r][first..first + count]);
        let ahead = from.ahead_in_order::<B>(0..ROWS, first, count);
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
    ahead: Ahead,
    first: usize,
    columns: &[Columns<'_>],
    to: &mut FewScratch,
) {
    let (count, at) = (rows[0].len(), first * B::LEN);
    let len = count * B::LEN;
    let mut aside = Scales { s, rows: &rows, ahead, unpacked: &mut to.unpacked };
    for_parts!(S, B, len, |part| {
        let place = Place { at: at + 64 * part, count: 64, part };
        dots::<S, B>(s, &rows, part, &mut aside, columns, place, (&mut to.dots, &mut to.fours));
    });
    if B::SHORT && !len.is_multiple_of(64) {
        let padded = aside.last(count - 1);
        let place = Place { at: at + len - len % 64, count: len % 64, part: len / 64 };
        let rows = sixteen!(|r| &padded[r][..]);
        dots::<S, B>(s, &rows, 0, &mut Nothing, columns, place, (&mut to.dots, &mut to.fours));
    }
    // What was written in small pieces must not be read in large ones at once, so this comes last.
    let groups = len / B::GROUP;
    put_scales::<S, B, 0>(s, &to.unpacked, groups, to.scales.as_flattened_mut(), ROWS);
    if B::MINS {
        put_scales::<S, B, 1>(s, &to.unpacked, groups, to.mins.as_flattened_mut(), ROWS);
    }
}

/// Where some elements are.
#[derive(Clone, Copy)]
struct Place {
    /// The first of them in a column.
    at: usize,
    /// How many: 64, or fewer at the end.
    count: usize,
    /// Which 64 of a piece they are.
    part: usize,
}

/// Dot products of the groups among part `part` of all rows with all columns.
#[inline(always)]
fn dots<S: Lanes, B: Scaled>(
    s: S,
    rows: &[&[B]; ROWS],
    part: usize,
    aside: &mut impl Aside,
    columns: &[Columns<'_>],
    place: Place,
    (to, fours): (&mut Dots, &mut Fours),
) {
    if columns.len() > along_rows::<S, B>() {
        side_by_side_dots::<S, B>(s, quarters(s, rows, part, aside), columns, place, to);
        return;
    }
    // Written out: in a loop, codes would not stay in registers.
    sums_of_four::<S, B>(s, every_fourth(s, rows, 0, part, aside), 0, columns, place, fours);
    sums_of_four::<S, B>(s, every_fourth(s, rows, 1, part, aside), 1, columns, place, fours);
    sums_of_four::<S, B>(s, every_fourth(s, rows, 2, part, aside), 2, columns, place, fours);
    sums_of_four::<S, B>(s, every_fourth(s, rows, 3, part, aside), 3, columns, place, fours);
    let first = place.part * (64 / B::GROUP);
    for n in 0..columns.len() {
        for i in 0..place.count / B::GROUP {
            let [a, b, c, d] = &fours[n][i];
            let sums = s.fold_words([s.load_sums(a), s.load_sums(b), s.load_sums(c), s.load_sums(d)]);
            let sums = match offset_on::<S, B>(s) {
                0 => sums,
                _ => s.add_sums(sums, s.splat_sums(columns[n].corrections[place.at / B::GROUP + i])),
            };
            s.store_f32s(s.to_floats(sums), &mut to[n][first + i]);
        }
    }
}

/// Up to how many columns codes are multiplied along rows.
#[inline(always)]
fn along_rows<S: Lanes, B: Scaled>() -> usize {
    // What makes codes of 8 bits unsigned is done for each column, so that being side by side spares little.
    if B::LEAST == i8::MIN && !S::ANY_CODES { MAX_FEW } else { S::ALONG_ROWS }
}

/// Multiplies rows `f`, `f + 4`, `f + 8` and `f + 12` with all columns: four sums of each row, group and column.
#[inline(always)]
fn sums_of_four<S: Lanes, B: Scaled>(
    s: S,
    mut codes: [S::Bytes; 4],
    f: usize,
    columns: &[Columns<'_>],
    place: Place,
    to: &mut Fours,
) {
    let plus = plus::<S, B>(s);
    if plus != 0 {
        for i in 0..4 {
            codes[i] = s.join(codes[i], s.all(plus), 0);
        }
    }
    // Both vectors of a group are added up before products are made longer.
    let small = !B::SIGNED && B::MOST as i32 + i32::from(B::MIDDLE) < 64;
    for n in 0..columns.len() {
        let (acts, _) = columns[n].codes[place.at..place.at + place.count].as_chunks::<16>();
        for i in 0..place.count / B::GROUP {
            let sums = match B::GROUP {
                32 => {
                    let [a, b] = [s.all_quarters(&acts[2 * i]), s.all_quarters(&acts[2 * i + 1])];
                    match small {
                        true => s.dot_small([codes[2 * i], codes[2 * i + 1]], [a, b]),
                        false => {
                            let sums = add_dots::<S, B>(s, s.splat_sums(0), codes[2 * i], a);
                            add_dots::<S, B>(s, sums, codes[2 * i + 1], b)
                        }
                    }
                }
                _ => add_dots::<S, B>(s, s.splat_sums(0), codes[i], s.all_quarters(&acts[i])),
            };
            s.store_sums(sums, &mut to[n][i][f]);
        }
    }
}

/// What is added to signed codes so that they are multiplied as unsigned ones.
#[inline(always)]
fn plus<S: Lanes, B: Scaled>(s: S) -> u8 {
    if B::SIGNED { offset_on::<S, B>(s) as u8 } else { 0 }
}

/// The same dot products, of codes that are put side by side first.
#[inline(always)]
fn side_by_side_dots<S: Lanes, B: Scaled>(
    s: S,
    quarters: [[S::Bytes; 4]; 4],
    columns: &[Columns<'_>],
    Place { at, count, part }: Place,
    to: &mut Dots,
) {
    let plus = plus::<S, B>(s);
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
