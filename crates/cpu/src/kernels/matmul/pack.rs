//! Rows of blocks and of activations into panels.
//!
//! Rows of weights come apart in registers and are put side by side, sixteen rows by 64 elements at a time.
//! Meanwhile memory is asked for what comes next ([`Ahead`]): rows are too many for processors to see that all are read in order.
//!
//! Invariant: packing rounds nothing. A panel holds exactly the codes and scales of its rows.
#![allow(clippy::needless_range_loop, reason = "rows and columns are what the reader follows")]

use std::ops::Range;

use oxcart_tensor::DType;
use oxcart_tensor::quant::{Block, BlockQ8_0, BlockQ8_1, BlockQ8K};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::format::{ColumnsMut, Format, WeightsMut, items, items_mut};
use super::micro::{CodeShape, code_shape};
use super::scales::{MAX_BLOCK, MAX_GROUPS, MAX_WORDS, Scaled};
use crate::kernels::dot::lanes::Lanes;
use crate::kernels::dot::{Aside, ROWS, STEP, Steps, quarters, side_by_side, sixteen};
use crate::simd::{Level, Simd, for_each_level, prefetch, prefetch_line};

/// Packs the same bytes of as many rows of weights as a panel has.
pub(super) type PackWeights = fn(&Sources<'_>, &mut Unpacked, WeightsMut<'_>);

/// Packs one row of activations, of the partner type, as one column of a panel.
pub(super) type PackColumn = fn(&[u8], usize, ColumnsMut<'_>, Format);

/// Rows to be packed.
#[derive(Debug)]
pub(super) struct Sources<'w> {
    /// Whole rows.
    pub(super) rows: &'w [&'w [u8]],
    /// How far behind them the rows lie that will be packed next.
    pub(super) next: usize,
    /// Which bytes of them to pack.
    pub(super) bytes: Range<usize>,
}

/// How many bytes of a row memory is asked for before they are needed, where it is not asked for whole rows in their order.
const AHEAD: usize = 448;

/// The most bytes of rows that are worked on together and asked for together: they stay in the second cache.
const MOST_IN_ORDER: usize = 96 << 10;

/// Bytes that come from memory together.
const LINE: usize = 64;

/// What memory is asked for while blocks of some rows are worked on, so that it is there when it is needed: something with each
/// 64 elements of each row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ahead {
    from: *const u8,
    /// Bytes from what is asked for with a row to what is asked for with the next one.
    row: usize,
    /// The same of 64 elements and the next 64.
    part: usize,
    /// Whether what is asked for lies in one piece.
    is_in_order: bool,
}

impl Ahead {
    /// Asks for what is to be asked for with block `b` of so many rows. In order that is every line of it, which asking once for
    /// each row and 64 elements is not where those are longer than a line.
    #[inline(always)]
    pub(super) fn ask_for_block<B: Scaled>(self, rows: usize, b: usize) {
        if self.is_in_order {
            let bytes = rows * size_of::<B>();
            for line in 0..bytes.div_ceil(LINE) {
                prefetch_line(self.from.wrapping_add(b * bytes + line * LINE));
            }
        } else if (b * B::LEN).is_multiple_of(64) {
            for r in 0..rows {
                self.ask(r, b * B::LEN / 64);
            }
        }
    }

    /// Asks for what is to be asked for with the 64 elements from `64 * part` on of row `r`.
    #[inline(always)]
    pub(super) fn ask(self, r: usize, part: usize) {
        prefetch_line(self.from.wrapping_add(r.wrapping_mul(self.row)).wrapping_add(part * self.part));
    }
}

impl<'w> Sources<'w> {
    /// The blocks of [`ROWS`] rows, from row `first` on.
    #[inline(always)]
    pub(super) fn blocks<B: Scaled>(&self, first: usize) -> [&'w [B]; ROWS] {
        let count = self.bytes.len() / size_of::<B>();
        let rows = &self.rows[first..first + ROWS];
        sixteen!(|r| {
            let Ok(blocks) = <[B]>::ref_from_bytes(&rows[r][self.bytes.clone()]) else {
                unreachable!("rows are whole blocks")
            };
            // Compilers see that all are of the same length.
            &blocks[..count]
        })
    }

    /// What memory is asked for while `count` blocks from block `first` on of the rows `together` are worked on, which end
    /// before those behind them begin: the rows behind them, in the order in which they lie there.
    ///
    /// Memory that is asked for in order comes at twice the speed of memory that is asked for in a dozen places. Where rows are
    /// parts of longer ones, or too long, it is asked [in each row](Sources::ahead_in_rows).
    #[inline(always)]
    pub(super) fn ahead_in_order<B: Scaled>(
        &self,
        together: Range<usize>,
        first: usize,
        count: usize,
    ) -> Ahead {
        let (start, len) = (self.rows[0].as_ptr(), self.rows[0].len());
        if !self.is_in_order(together.len()) {
            return self.ahead_in_rows::<B>(together.start, first, count);
        }
        let behind = if together.end < self.rows.len() { together.end * len } else { self.next };
        let done = first * together.len() * size_of::<B>();
        let row = 64 * size_of::<B>() / B::LEN;
        let from = start.wrapping_add(behind).wrapping_add(done);
        Ahead { from, row, part: together.len() * row, is_in_order: true }
    }

    /// What memory is asked for while `count` blocks from block `first` on of the rows from row `row` on are worked on: what comes
    /// a little later in each row, in the rows that come next if need be.
    #[inline(always)]
    pub(super) fn ahead_in_rows<B: Scaled>(&self, row: usize, first: usize, count: usize) -> Ahead {
        let (len, stride) = (self.rows[0].len(), self.stride());
        let at = self.bytes.start + first * size_of::<B>();
        let distance = match at + count * size_of::<B>() + AHEAD <= len {
            true => AHEAD,
            false => AHEAD.wrapping_add(self.next).wrapping_sub(len),
        };
        let from = self.rows[0]
            .as_ptr()
            .wrapping_add(row.wrapping_mul(stride))
            .wrapping_add(at)
            .wrapping_add(distance);
        Ahead { from, row: stride, part: 64 * size_of::<B>() / B::LEN, is_in_order: false }
    }

    /// Whether memory is asked for whole rows in their order, if so many are worked on together.
    #[inline(always)]
    fn is_in_order(&self, together: usize) -> bool {
        let len = self.rows[0].len();
        self.bytes.len() == len && self.stride() == len && together * len <= MOST_IN_ORDER
    }

    /// Asks for what comes first, if it was not asked for while something else was worked on: rows of which memory is asked for the
    /// next ones only.
    #[inline(always)]
    pub(super) fn ask_first(&self) {
        if self.is_in_order(self.rows.len()) {
            self.rows.iter().for_each(|row| prefetch(row));
        }
    }

    /// Bytes from a row to the next one.
    #[inline(always)]
    fn stride(&self) -> usize {
        self.rows[1].as_ptr().addr().wrapping_sub(self.rows[0].as_ptr().addr())
    }
}

/// Does something with pieces of `blocks` blocks, one after another: where one begins, and of how many it is. A piece has
/// [`MAX_BLOCK`] elements as long as there are so many; the last one has what is left.
macro_rules! for_pieces {
    ($block:ident, $blocks:expr, |$first:ident, $count:ident| $do:expr) => {{
        let (blocks, mut $first) = ($blocks, 0);
        while $first < blocks {
            // Of the longest blocks, compilers see that a piece is one.
            let $count = match MAX_BLOCK / $block::LEN {
                1 => 1,
                most => (blocks - $first).min(most),
            };
            $do;
            $first += $count;
        }
    }};
}
pub(super) use for_pieces;

/// Does something with each whole 64 of so many elements, at most [`MAX_BLOCK`]. For blocks that hold several of them in the same
/// bytes it is written out, so that compilers know which it is; more of that would take them too long.
macro_rules! for_parts {
    ($set:ident, $block:ident, $len:expr, |$part:ident| $do:expr) => {
        for_parts!(@ $set, $block, $len, $part, $do, 0 1 2 3)
    };
    (@ $set:ident, $block:ident, $len:expr, $part:ident, $do:expr, $($number:literal)*) => {
        if $set::WRITTEN_OUT && $block::INTERLEAVED {
            $(
                let $part = $number;
                $do;
            )*
        } else {
            for $part in 0..$len / 64 {
                $do;
            }
        }
    };
}
pub(super) use for_parts;

/// How rows of a block type become panels of weights.
pub(super) fn pack_blocks<B: Scaled>(level: Level) -> PackWeights {
    for_each_level!(
        block_rows[B: Scaled]: fn(from: &Sources<'_>, unpacked: &mut Unpacked, panel: WeightsMut<'_>)
    )
    .at(level)
}

/// What the scales of [`ROWS`] rows come apart into before they are put side by side, [`MAX_BLOCK`] elements of each.
#[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C, align(64))]
pub(super) struct Unpacked {
    /// Scales and minimums by group and row.
    numbers: [[[f32; ROWS]; MAX_GROUPS]; 2],
    /// Those that are stored as `f16`, by block and row.
    halves: [[[u16; ROWS]; MAX_BLOCK / 32]; 2],
    /// What scales of groups are stored in.
    words: [[u32; ROWS]; MAX_WORDS],
}

#[inline(always)]
fn block_rows<S: Lanes, B: Scaled>(s: S, from: &Sources<'_>, unpacked: &mut Unpacked, panel: WeightsMut<'_>) {
    let shape = Shape::<S, B>::SHAPE;
    let WeightsMut { codes, scales, mins } = panel;
    let code_bytes = if shape.bytes { 1 } else { 2 };
    let blocks = from.bytes.len() / size_of::<B>();
    assert!(from.rows.len() == shape.rows);
    for_pieces!(B, blocks, |first, count| {
        let (at, len) = (first * B::LEN, count * B::LEN);
        let bytes = at * shape.rows * code_bytes..(at + len) * shape.rows * code_bytes;
        let groups = at / B::GROUP * shape.rows..(at + len) / B::GROUP * shape.rows;
        for row in (0..shape.rows).step_by(ROWS) {
            let to = WeightsMut {
                codes: &mut codes[bytes.clone()],
                scales: &mut scales[groups.clone()],
                mins: if B::MINS { &mut mins[groups.clone()] } else { &mut [] },
            };
            pack_piece::<S, B>(s, from, first, count, unpacked, to, row);
        }
    });
}

/// Packs `count` blocks of each of [`ROWS`] rows, from block `first` of row `row` on.
#[inline(always)]
fn pack_piece<S: Lanes, B: Scaled>(
    s: S,
    from: &Sources<'_>,
    first: usize,
    count: usize,
    unpacked: &mut Unpacked,
    to: WeightsMut<'_>,
    row: usize,
) {
    let shape = Shape::<S, B>::SHAPE;
    let rows = from.blocks::<B>(row);
    let rows = sixteen!(|r| &rows[r][first..first + count]);
    let ahead = from.ahead_in_rows::<B>(row, first, count);
    let mut scales = Scales { s, rows: &rows, ahead, unpacked };
    let len = count * B::LEN;
    for_parts!(S, B, len, |part| {
        let quarters = quarters(s, &rows, part, &mut scales);
        put_codes::<S, B>(s, quarters, 64 * part, 64, to.codes, row);
    });
    if B::SHORT && !len.is_multiple_of(64) {
        let padded = scales.last(count - 1);
        let quarters = quarters(s, &sixteen!(|r| &padded[r][..]), 0, &mut Nothing);
        put_codes::<S, B>(s, quarters, len - len % 64, len % 64, to.codes, row);
    }
    // What was written in small pieces must not be read in large ones at once, so this comes last.
    put_scales::<S, B, 0>(s, unpacked, len / B::GROUP, &mut to.scales[row..], shape.rows);
    if B::MINS {
        put_scales::<S, B, 1>(s, unpacked, len / B::GROUP, &mut to.mins[row..], shape.rows);
    }
}

/// Writes `count` elements of [`ROWS`] rows, which are 64 or the first of them, from element `first` of row `row` of a panel on.
#[inline(always)]
fn put_codes<S: Lanes, B: Scaled>(
    s: S,
    quarters: [[S::Bytes; 4]; 4],
    first: usize,
    count: usize,
    out: &mut [u8],
    row: usize,
) {
    let CodeShape { rows: stride, step, offset, .. } = Shape::<S, B>::SHAPE;
    let plus = offset.wrapping_sub(B::MIDDLE);
    if Shape::<S, B>::WORDS {
        // Two codes of 16 bits are as long as four bytes.
        let out = &mut out[(first / 2 * stride + row) * STEP..];
        let mut lines = Steps::new(out, count / 2, stride, 0);
        let steps = side_by_side(s, quarters);
        sixteen!(|i| if i < count / STEP {
            let [first_two, other_two] = s.widen(steps[i]);
            lines.put(s, 2 * i, first_two);
            lines.put(s, 2 * i + 1, other_two);
        });
    } else if Shape::<S, B>::FOURS {
        let out = &mut out[(first / STEP * stride + row) * STEP..];
        let mut lines = Steps::new(out, count / STEP, stride, plus);
        let steps = side_by_side(s, quarters);
        sixteen!(|i| if i < count / STEP {
            lines.put(s, i, steps[i]);
        });
    } else {
        for f in 0..4 {
            for i in 0..count / 16 {
                let mut codes = [0; 64];
                s.store_bytes(s.join(quarters[f][i], s.all(plus), 0), &mut codes);
                for q in 0..4 {
                    let (e, r) = (first + 16 * i, row + f + 4 * q);
                    out[(e / step * stride + r) * step + e % step..][..16]
                        .copy_from_slice(&codes[16 * q..][..16]);
                }
            }
        }
    }
}

/// The [`CodeShape`] of a type on an instruction set, and what to decide by, which compilers leave branches out for early.
struct Shape<S, B>(std::marker::PhantomData<(S, B)>);

impl<S: Lanes, B: Scaled> Shape<S, B> {
    const SHAPE: CodeShape = code_shape(S::LEVEL, B::LEAST, B::MOST, B::GROUP);
    /// Whether codes have 16 bits.
    const WORDS: bool = !Self::SHAPE.bytes;
    /// Whether four neighbours lie together.
    const FOURS: bool = Self::SHAPE.step == STEP;
}

/// Nothing is done besides.
pub(super) struct Nothing;

impl Aside for Nothing {
    #[inline(always)]
    fn elements(&mut self, _: usize, _: usize) {}
}

/// What else there is to do while codes are packed: asking memory for what comes next, and unpacking what scales are stored in.
pub(super) struct Scales<'p, S, B> {
    pub(super) s: S,
    pub(super) rows: &'p [&'p [B]; ROWS],
    pub(super) ahead: Ahead,
    pub(super) unpacked: &'p mut Unpacked,
}

impl<S: Lanes, B: Scaled> Scales<'_, S, B> {
    /// Does the same for block `b`, which is the last one and shorter than 64 elements, and gives it with one of zeros behind it.
    #[inline(always)]
    pub(super) fn last(&mut self, b: usize) -> [[B; 2]; ROWS] {
        sixteen!(|r| {
            unpack_scales(self.s, &self.rows[r][b], b, self.unpacked, r);
            [self.rows[r][b], B::new_zeroed()]
        })
    }
}

impl<S: Lanes, B: Scaled> Aside for Scales<'_, S, B> {
    #[inline(always)]
    fn elements(&mut self, r: usize, part: usize) {
        self.ahead.ask(r, part);
        if B::LEN == 32 {
            unpack_scales(self.s, &self.rows[r][2 * part], 2 * part, self.unpacked, r);
            unpack_scales(self.s, &self.rows[r][2 * part + 1], 2 * part + 1, self.unpacked, r);
        } else if (64 * part).is_multiple_of(B::LEN) {
            let b = 64 * part / B::LEN;
            unpack_scales(self.s, &self.rows[r][b], b, self.unpacked, r);
        }
    }
}

/// Unpacks what the scales and minimums of block `b` of row `r` are stored in.
#[inline(always)]
fn unpack_scales<S: Lanes, B: Scaled>(s: S, block: &B, b: usize, to: &mut Unpacked, r: usize) {
    let groups = B::LEN / B::GROUP;
    if B::OTHERWISE {
        let (mut scales, mut mins) = ([0.0; MAX_GROUPS], [0.0; MAX_GROUPS]);
        block.scales(s, &mut scales[..groups], &mut mins[..groups]);
        for g in 0..groups {
            to.numbers[0][b * groups + g][r] = scales[g];
            to.numbers[1][b * groups + g][r] = mins[g];
        }
        return;
    }
    let [scale, min] = block.halves();
    to.halves[0][b][r] = scale;
    if B::MINS {
        to.halves[1][b][r] = min;
    }
    if B::BY_CODES {
        let words = block.words();
        for i in 0..B::WORDS {
            to.words[i][r] = words[i];
        }
    }
}

/// Writes the scales (`WHICH` is 0) or the minimums (1) of [`ROWS`] rows side by side, groups `stride` numbers apart.
#[inline(always)]
pub(super) fn put_scales<S: Lanes, B: Scaled, const WHICH: usize>(
    s: S,
    from: &Unpacked,
    groups: usize,
    out: &mut [f32],
    stride: usize,
) {
    let of_block = B::LEN / B::GROUP;
    for b in 0..groups / of_block {
        let mut stored = [0.0; ROWS];
        let halves: &[half::f16] = items(from.halves[WHICH][b].as_bytes());
        for i in (0..ROWS).step_by(S::LANES) {
            s.store(s.load_f16(&halves[i..]), &mut stored[i..]);
        }
        let out = &mut out[b * of_block * stride..];
        if B::BY_CODES {
            // Written out, so that compilers know where each code is.
            sixteen!(|g| if g < of_block {
                multiples::<B, WHICH>(&stored, &from.words, g, sixteen_at(out, g * stride));
            });
        } else {
            for g in 0..of_block {
                let numbers = if B::OTHERWISE { from.numbers[WHICH][b * of_block + g] } else { stored };
                *sixteen_at(out, g * stride) = numbers;
            }
        }
    }
}

/// The numbers of [`ROWS`] rows.
#[inline(always)]
fn sixteen_at(out: &mut [f32], at: usize) -> &mut [f32; ROWS] {
    out[at..].first_chunk_mut().unwrap_or_else(|| unreachable!("there is a number for each row"))
}

/// The scales or the minimums of one group of all rows.
#[inline(always)]
fn multiples<B: Scaled, const WHICH: usize>(
    stored: &[f32; ROWS],
    words: &[[u32; ROWS]; MAX_WORDS],
    g: usize,
    out: &mut [f32; ROWS],
) {
    // All are computed before any is written, so that compilers compute them together.
    let mut numbers = [0.0; ROWS];
    for r in 0..ROWS {
        let mut of_row = [0; MAX_WORDS];
        for i in 0..B::WORDS {
            of_row[i] = words[i][r];
        }
        numbers[r] = match WHICH {
            0 => B::scale(stored[r], &of_row, g),
            _ => B::min(stored[r], &of_row, g),
        };
    }
    *out = numbers;
}

/// A block of activations.
trait Activations: Block {
    fn codes(&self) -> &[i8];
    fn scale(&self) -> f32;
    /// The sum of the values of a group, given the sum of its codes.
    #[inline(always)]
    fn sum(&self, codes: i32) -> f32 {
        codes as f32 * self.scale()
    }
}

/// [`Activations`] for types that keep codes and scale as everybody does; what is a type's own stands behind it in braces.
macro_rules! activations {
    ($($block:ty { $($own:tt)* })+) => {$(
        impl Activations for $block {
            #[inline(always)]
            fn codes(&self) -> &[i8] {
                &self.codes
            }
            #[inline(always)]
            fn scale(&self) -> f32 {
                self.scale.get()
            }
            $($own)*
        }
    )+};
}

activations! {
    BlockQ8_0 {}
    BlockQ8_1 {
        /// As stored: it was made with the scale before that was rounded.
        #[inline(always)]
        fn sum(&self, _: i32) -> f32 {
            self.sum.get()
        }
    }
    BlockQ8K {}
}

/// How rows of a partner type become columns.
pub(super) fn pack_codes(partner: DType, level: Level) -> PackColumn {
    match partner {
        DType::Q8_0 => codes_at::<BlockQ8_0>(level),
        DType::Q8_1 => codes_at::<BlockQ8_1>(level),
        DType::Q8_K => codes_at::<BlockQ8K>(level),
        _ => unreachable!("{partner} is no partner of a quantized type"),
    }
}

fn codes_at<A: Activations>(level: Level) -> PackColumn {
    for_each_level!(
        code_column[A: Activations]: fn(row: &[u8], column: usize, panel: ColumnsMut<'_>, format: Format)
    )
    .at(level)
}

#[inline(always)]
fn code_column<S: Simd, A: Activations>(
    _s: S,
    row: &[u8],
    column: usize,
    panel: ColumnsMut<'_>,
    format: Format,
) {
    let Format { cols, code, step, group, offset, .. } = format;
    let ColumnsMut { codes, scales, sums, corrections } = panel;
    let len = A::DTYPE.block_len();
    let Ok(blocks) = <[A]>::ref_from_bytes(row) else { unreachable!("rows are whole blocks") };
    for (b, block) in blocks.iter().enumerate() {
        scales[b * cols + column] = block.scale();
        for (g, group_codes) in block.codes().chunks_exact(group).enumerate() {
            let at = (b * len / group + g) * cols + column;
            let sum: i32 = group_codes.iter().map(|&code| i32::from(code)).sum();
            if let Some(to) = sums.get_mut(at) {
                *to = block.sum(sum);
            }
            if let Some(to) = corrections.get_mut(at) {
                *to = -offset * sum;
            }
        }
        let first = b * len / step * cols + column;
        match (code, step) {
            (1, 4) => spread::<i8, 4>(block.codes(), items_mut(codes), first, cols, |code| code),
            (1, 16) => spread::<i8, 16>(block.codes(), items_mut(codes), first, cols, |code| code),
            (1, 32) => spread::<i8, 32>(block.codes(), items_mut(codes), first, cols, |code| code),
            _ => spread::<i16, 2>(block.codes(), items_mut(codes), first, cols, i16::from),
        }
    }
}

/// Writes steps of codes, `cols` steps apart.
#[inline(always)]
fn spread<T: Copy, const STEP: usize>(
    from: &[i8],
    to: &mut [T],
    first: usize,
    cols: usize,
    code: impl Fn(i8) -> T,
) {
    for i in 0..from.len() / STEP {
        let to = &mut to[(first + i * cols) * STEP..][..STEP];
        for j in 0..STEP {
            to[j] = code(from[STEP * i + j]);
        }
    }
}
