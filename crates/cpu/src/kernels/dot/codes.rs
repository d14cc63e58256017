//! Codes of quantized weights in registers, 64 elements of several rows at a time: how each type's blocks come apart.
//!
//! Rows come apart four at a time, each in a quarter of a vector. So what a block holds together (nibbles, crumbs, bits) is loaded
//! once and taken apart for four rows by the same instructions, and only words within quarters are left to be put side by side.
//!
//! Invariant: a code, less [`Codes::MIDDLE`], times the scale of its group, plus its minimum, is the value of its element.
//! All instruction sets give the same bytes.

mod grid;
mod simple;
mod steps;
mod super_blocks;

pub(crate) use self::steps::{ROWS, STEP, Steps};

use super::lanes::Lanes;
use super::{Plain, chunk_of};

/// Sixteen of something, written out: in a loop, they would not stay in registers.
macro_rules! sixteen {
    (|$r:ident| $one:expr) => {
        sixteen!(@ $r, $one, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (@ $r:ident, $one:expr, $($number:literal)*) => {
        [$({
            let $r = $number;
            $one
        }),*]
    };
}
pub(crate) use sixteen;

/// What is done besides.
pub(crate) trait Aside {
    /// For 64 elements of a row, from element `64 * part` on.
    fn elements(&mut self, row: usize, part: usize);
}

/// A block of weights.
pub(crate) trait Codes: Plain {
    /// Elements of a block.
    const LEN: usize;
    /// Whether codes are signed bytes, of which only those of Q8_0 may be -128; otherwise they are below 128.
    const SIGNED: bool = false;
    /// What codes are too large by, so that none is negative.
    const MIDDLE: u8 = 0;
    /// Whether the same bytes hold several parts of 64 elements, which then come apart by different shifts.
    const INTERLEAVED: bool = false;

    /// The codes of 64 elements of four rows, from element `64 * part` of each on. Vector `i` has elements `16 * i` to
    /// `16 * i + 15`, those of row `q` in quarter `q`.
    fn quarters<S: Lanes>(s: S, rows: [&[Self]; 4], part: usize) -> [S::Bytes; 4];

    /// The codes of block `block` of four rows in the same form: elements 0 to 15, then the others. Only for blocks of 32 elements.
    #[inline(always)]
    fn block_quarters<S: Lanes>(_s: S, _rows: [&[Self]; 4], _block: usize) -> [S::Bytes; 2] {
        unreachable!("blocks of {} elements", Self::LEN)
    }
}

/// 64 elements of sixteen rows in quarters: vectors `f` have rows `f`, `f + 4`, `f + 8` and `f + 12`, so that rows are in order once
/// words of the four are put side by side.
///
/// Whatever else is to be done for the elements of a row is done by `aside` meanwhile: other parts of a processor are busy with it.
#[inline(always)]
pub(crate) fn quarters<S: Lanes, B: Codes>(
    s: S,
    rows: &[&[B]; ROWS],
    part: usize,
    aside: &mut impl Aside,
) -> [[S::Bytes; 4]; 4] {
    // Written out: in a loop, they would not stay in registers.
    [
        every_fourth(s, rows, 0, part, aside),
        every_fourth(s, rows, 1, part, aside),
        every_fourth(s, rows, 2, part, aside),
        every_fourth(s, rows, 3, part, aside),
    ]
}

/// Rows `f`, `f + 4`, `f + 8` and `f + 12`.
#[inline(always)]
pub(crate) fn every_fourth<S: Lanes, B: Codes>(
    s: S,
    rows: &[&[B]; ROWS],
    f: usize,
    part: usize,
    aside: &mut impl Aside,
) -> [S::Bytes; 4] {
    aside.elements(f, part);
    aside.elements(f + 4, part);
    aside.elements(f + 8, part);
    aside.elements(f + 12, part);
    B::quarters(s, [rows[f], rows[f + 4], rows[f + 8], rows[f + 12]], part)
}

/// The same side by side: vector `i` has elements `4 * i` to `4 * i + 3` of all rows, those of row `r` in word `r`.
#[inline(always)]
pub(crate) fn side_by_side<S: Lanes>(s: S, [a, b, c, d]: [[S::Bytes; 4]; 4]) -> [S::Bytes; 16] {
    let [s0, s1, s2, s3] = s.swap_words([a[0], b[0], c[0], d[0]]);
    let [s4, s5, s6, s7] = s.swap_words([a[1], b[1], c[1], d[1]]);
    let [s8, s9, s10, s11] = s.swap_words([a[2], b[2], c[2], d[2]]);
    let [s12, s13, s14, s15] = s.swap_words([a[3], b[3], c[3], d[3]]);
    [s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15]
}

/// A type whose rows come apart one by one: 64 elements of a row, from block and part.
macro_rules! row_by_row {
    ($type:ty, $len:literal, $which:ident = $value:expr, |$s:ident, $block:ident, $part:ident| $codes:block) => {
        impl Codes for $type {
            const LEN: usize = $len;
            row_by_row!(@ $which = $value);

            #[inline(always)]
            fn quarters<S: Lanes>($s: S, rows: [&[Self]; 4], part: usize) -> [S::Bytes; 4] {
                let mut codes = [$s.all(0); 4];
                for (codes, row) in codes.iter_mut().zip(rows) {
                    let b = 64 * part / $len;
                    let ($block, $part) = (&row[b], part - b * ($len / 64));
                    *codes = $codes;
                }
                $s.swap_quarters(codes)
            }
        }
    };
    (@ signed = $value:expr) => {
        const SIGNED: bool = $value;
    };
    (@ middle = $value:expr) => {
        const MIDDLE: u8 = $value;
    };
}
use row_by_row;

/// Sixteen bytes of one field of a block of each of four rows, from byte `at` on.
macro_rules! bytes_of {
    ($s:ident, $rows:ident[$block:expr].$field:ident, $at:expr) => {
        $s.quarters_of([
            chunk_of($rows[0][$block].$field.as_bytes(), $at),
            chunk_of($rows[1][$block].$field.as_bytes(), $at),
            chunk_of($rows[2][$block].$field.as_bytes(), $at),
            chunk_of($rows[3][$block].$field.as_bytes(), $at),
        ])
    };
}
use bytes_of;

/// The same of 32 bytes: the first sixteen, then the others.
macro_rules! byte_pairs_of {
    ($s:ident, $rows:ident[$block:expr].$field:ident, $at:expr) => {
        $s.quarter_pairs_of([
            chunk_of($rows[0][$block].$field.as_bytes(), $at),
            chunk_of($rows[1][$block].$field.as_bytes(), $at),
            chunk_of($rows[2][$block].$field.as_bytes(), $at),
            chunk_of($rows[3][$block].$field.as_bytes(), $at),
        ])
    };
}
use byte_pairs_of;
