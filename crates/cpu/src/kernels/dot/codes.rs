//! Codes of quantized weights in registers, 64 elements at a time: how each type's blocks come apart.
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

/// Something for both halves, written out.
macro_rules! twice {
    (|$half:ident| $one:block) => {{
        {
            let $half = 0;
            $one
        }
        let $half = 1;
        $one
    }};
}
use twice;

/// What is done besides.
pub(crate) trait Aside {
    /// For so many elements of a row, from `first` on.
    fn elements(&mut self, row: usize, first: usize, count: usize);
}

/// A block of weights.
pub(crate) trait Codes: Plain {
    /// Elements of a block.
    const LEN: usize;
    /// Whether codes are signed bytes, of which only those of Q8_0 may be -128; otherwise they are below 128.
    const SIGNED: bool = false;
    /// What codes are too large by, so that none is negative.
    const MIDDLE: u8 = 0;

    /// The codes of 64 elements of some blocks, from element `64 * part` on.
    fn codes<S: Lanes>(s: S, blocks: &[Self], part: usize) -> S::Bytes;

    /// The codes of 256 elements of sixteen rows, side by side. Where several codes share a byte it is faster to put bytes side
    /// by side, and to take them apart then.
    ///
    /// Whatever else is to be done for some elements of a row is done by `aside` meanwhile: putting side by side keeps other
    /// parts of a processor busy than reading and writing.
    #[inline(always)]
    fn side_by_side<S: Lanes>(s: S, rows: [&[Self]; ROWS], to: &mut Steps<'_>, aside: &mut impl Aside) {
        for part in 0..4 {
            let mut codes = [s.all(0); ROWS];
            for r in 0..ROWS {
                aside.elements(r, 64 * part, 64);
                codes[r] = Self::codes(s, rows[r], part);
            }
            to.put_all(s, 16 * part, s.transpose(codes));
        }
    }
}

/// The block that a part of some long blocks is in, and which part of it that is.
#[inline(always)]
fn block_of<B: Codes>(blocks: &[B], part: usize) -> (&B, usize) {
    let parts = B::LEN / 64;
    (&blocks[part / parts], part % parts)
}
