//! Rows of blocks and of activations into panels.
//!
//! Rows of weights come apart in registers, 64 elements at a time, and are put side by side 16 rows by 64 bytes at a time.
//! Meanwhile memory is asked for what comes [`AHEAD`]: rows are too many for processors to see that all are read in order.
//!
//! Invariant: packing rounds nothing. A panel holds exactly the codes and scales of its rows.
#![allow(clippy::needless_range_loop, reason = "rows and columns are what the reader follows")]

use oxcart_tensor::DType;
use oxcart_tensor::quant::{Block, BlockQ8_0, BlockQ8_1, BlockQ8K};
use zerocopy::{FromBytes, IntoBytes};

use super::format::{ColumnsMut, Format, WeightsMut, items, items_mut};
use super::micro::{CodeShape, code_shape};
use super::scales::{MAX_BLOCK, MAX_GROUPS, MAX_WORDS, Scaled, Stored};
use crate::kernels::dot::lanes::Lanes;
use crate::kernels::dot::{Aside, ROWS, STEP, Steps, sixteen};
use crate::simd::{Level, Simd, for_each_level, prefetch_at};

/// Packs the same bytes of as many rows of weights as a panel has.
pub(super) type PackWeights = fn(&Sources<'_>, &mut Unpacked, WeightsMut<'_>);

/// Packs one row of activations, of the partner type, as one column of a panel.
pub(super) type PackColumn = fn(&[u8], usize, ColumnsMut<'_>, Format);

/// Rows to be packed.
#[derive(Debug)]
pub(super) struct Sources<'w> {
    /// Whole rows.
    pub(super) rows: &'w [&'w [u8]],
    /// The rows that will be packed after them.
    pub(super) next: &'w [&'w [u8]],
    /// Which bytes of them to pack.
    pub(super) bytes: std::ops::Range<usize>,
}

/// How many bytes of a row memory is asked for before they are needed.
const AHEAD: usize = 448;

impl<'w> Sources<'w> {
    /// Blocks of a row from byte `start` on.
    #[inline(always)]
    pub(super) fn blocks<B: Scaled>(&self, row: usize, start: usize, count: usize) -> &'w [B] {
        let bytes = &self.rows[row][start..start + count * size_of::<B>()];
        let Ok(blocks) = <[B]>::ref_from_bytes(bytes) else { unreachable!("rows are whole blocks") };
        &blocks[..count]
    }

    /// What lies some way behind so many bytes of a row, in the row that comes after this one if need be.
    #[inline(always)]
    pub(super) fn ahead(&self, row: usize, start: usize, bytes: usize) -> *const u8 {
        let this = self.rows[row];
        let from = match start + AHEAD + bytes <= this.len() {
            true => this.as_ptr(),
            false => self.next[row].as_ptr().wrapping_sub(this.len()),
        };
        from.wrapping_add(start + AHEAD)
    }
}

/// How rows of a block type become panels of weights.
pub(super) fn pack_blocks<B: Scaled>(level: Level) -> PackWeights {
    for_each_level!(
        block_rows[B: Scaled]: fn(from: &Sources<'_>, unpacked: &mut Unpacked, panel: WeightsMut<'_>)
    )
    .at(level)
}

/// What [`ROWS`] rows come apart into before they are put side by side, [`MAX_BLOCK`] elements of each.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Unpacked {
    codes: [[u8; MAX_BLOCK]; ROWS],
    /// Scales and minimums by group and row.
    numbers: [[[f32; ROWS]; MAX_GROUPS]; 2],
    /// Those that are stored as `f16`, by block and row.
    halves: [[[u16; ROWS]; MAX_BLOCK / 32]; 2],
    /// What scales of groups are stored in.
    words: [[u32; ROWS]; MAX_WORDS],
}

impl Unpacked {
    pub(super) const fn new() -> Unpacked {
        Unpacked {
            codes: [[0; MAX_BLOCK]; ROWS],
            numbers: [[[0.0; ROWS]; MAX_GROUPS]; 2],
            halves: [[[0; ROWS]; MAX_BLOCK / 32]; 2],
            words: [[0; ROWS]; MAX_WORDS],
        }
    }
}

#[inline(always)]
fn block_rows<S: Lanes, B: Scaled>(s: S, from: &Sources<'_>, unpacked: &mut Unpacked, panel: WeightsMut<'_>) {
    let shape = code_shape(S::LEVEL, B::LEAST, B::MOST, B::GROUP);
    let WeightsMut { codes, scales, mins } = panel;
    let code_bytes = if shape.bytes { 1 } else { 2 };
    let blocks = from.bytes.len() / size_of::<B>();
    assert!(from.rows.len() == shape.rows && from.next.len() == shape.rows);
    let mut first = 0;
    while first < blocks {
        let count = (blocks - first).min(MAX_BLOCK / B::LEN);
        let start = from.bytes.start + first * size_of::<B>();
        let (at, len) = (first * B::LEN, count * B::LEN);
        let bytes = at * shape.rows * code_bytes..(at + len) * shape.rows * code_bytes;
        let groups = at / B::GROUP * shape.rows..(at + len) / B::GROUP * shape.rows;
        for row in (0..shape.rows).step_by(ROWS) {
            let to = WeightsMut {
                codes: &mut codes[bytes.clone()],
                scales: &mut scales[groups.clone()],
                mins: if B::MINS { &mut mins[groups.clone()] } else { &mut [] },
            };
            // A number of blocks that compilers know makes better code.
            if count == MAX_BLOCK / B::LEN {
                pack_part::<S, B>(s, from, start, MAX_BLOCK / B::LEN, unpacked, to, row);
            } else {
                pack_part::<S, B>(s, from, start, count, unpacked, to, row);
            }
        }
        first += count;
    }
}

/// Packs `count` blocks of each of [`ROWS`] rows, from byte `start` of row `row` on.
#[inline(always)]
fn pack_part<S: Lanes, B: Scaled>(
    s: S,
    from: &Sources<'_>,
    start: usize,
    count: usize,
    unpacked: &mut Unpacked,
    to: WeightsMut<'_>,
    row: usize,
) {
    let shape = code_shape(S::LEVEL, B::LEAST, B::MOST, B::GROUP);
    let bytes = count * size_of::<B>();
    let rows = sixteen!(|r| from.blocks::<B>(row + r, start, count));
    if shape.bytes && shape.step == STEP && count * B::LEN == MAX_BLOCK {
        let (lines, plus) = (MAX_BLOCK / STEP, shape.offset.wrapping_sub(B::MIDDLE));
        let mut steps = Steps::new(&mut to.codes[row * STEP..], lines, shape.rows, plus);
        let ahead = sixteen!(|r| from.ahead(row + r, start, bytes));
        B::side_by_side(s, rows, &mut steps, &mut Scales { s, rows, ahead, unpacked });
    } else {
        codes_by_memory::<S, B>(s, rows, count, unpacked, to.codes, row);
        let ahead = sixteen!(|r| from.ahead(row + r, start, bytes));
        let mut scales = Scales { s, rows, ahead, unpacked };
        (0..ROWS).for_each(|r| scales.elements(r, 0, count * B::LEN));
    }
    // What was written in small pieces must not be read in large ones at once, so this comes last.
    let groups = count * B::LEN / B::GROUP;
    put_scales::<S, B>(s, unpacked, 0, groups, &mut to.scales[row..], shape.rows);
    if B::MINS {
        put_scales::<S, B>(s, unpacked, 1, groups, &mut to.mins[row..], shape.rows);
    }
}

/// What else there is to do while codes are packed: asking memory for what comes next, and unpacking what scales are stored in.
pub(super) struct Scales<'p, S, B> {
    pub(super) s: S,
    pub(super) rows: [&'p [B]; ROWS],
    /// What will be needed when these blocks are done.
    pub(super) ahead: [*const u8; ROWS],
    pub(super) unpacked: &'p mut Unpacked,
}

impl<S: Lanes, B: Scaled> Aside for Scales<'_, S, B> {
    #[inline(always)]
    fn elements(&mut self, r: usize, first: usize, count: usize) {
        let lines = |elements: usize| (elements * size_of::<B>() / B::LEN).div_ceil(64);
        for line in lines(first)..lines(first + count) {
            prefetch_at(self.ahead[r], 64 * line);
        }
        // A block that only begins here is unpacked whole.
        for b in first.div_ceil(B::LEN)..(first + count).div_ceil(B::LEN) {
            unpack_scales(self.s, &self.rows[r][b], b, self.unpacked, r);
        }
    }
}

/// Unpacks what the scales and minimums of block `b` of row `r` are stored in.
#[inline(always)]
fn unpack_scales<S: Lanes, B: Scaled>(s: S, block: &B, b: usize, to: &mut Unpacked, r: usize) {
    let groups = B::LEN / B::GROUP;
    if B::STORED == Stored::Otherwise {
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
    if B::STORED == Stored::Codes {
        let words = block.words();
        for i in 0..MAX_WORDS {
            to.words[i][r] = words[i];
        }
    }
}

/// Writes the scales (`which` is 0) or the minimums (1) of [`ROWS`] rows side by side, groups `stride` numbers apart.
#[inline(always)]
pub(super) fn put_scales<S: Lanes, B: Scaled>(
    s: S,
    from: &Unpacked,
    which: usize,
    groups: usize,
    out: &mut [f32],
    stride: usize,
) {
    let of_block = B::LEN / B::GROUP;
    for b in 0..groups / of_block {
        let mut stored = [0.0; ROWS];
        let halves: &[half::f16] = items(from.halves[which][b].as_bytes());
        for i in (0..ROWS).step_by(S::LANES) {
            s.store(s.load_f16(&halves[i..]), &mut stored[i..]);
        }
        let out = &mut out[b * of_block * stride..];
        match B::STORED {
            Stored::Halves => {
                for g in 0..of_block {
                    out[g * stride..][..ROWS].copy_from_slice(&stored);
                }
            }
            Stored::Otherwise => {
                for g in 0..of_block {
                    out[g * stride..][..ROWS].copy_from_slice(&from.numbers[which][b * of_block + g]);
                }
            }
            // Written out, so that compilers know where each code is.
            Stored::Codes => {
                sixteen!(|g| if g < of_block {
                    multiples::<B>(&stored, &from.words, which, g, &mut out[g * stride..]);
                });
            }
        }
    }
}

/// The scales or the minimums of one group of all rows.
#[inline(always)]
fn multiples<B: Scaled>(
    stored: &[f32; ROWS],
    words: &[[u32; ROWS]; MAX_WORDS],
    which: usize,
    g: usize,
    out: &mut [f32],
) {
    let out = &mut out[..ROWS];
    for r in 0..ROWS {
        let mut of_row = [0; MAX_WORDS];
        for i in 0..MAX_WORDS {
            of_row[i] = words[i][r];
        }
        out[r] = match which {
            0 => B::scale(stored[r], &of_row, g),
            _ => B::min(stored[r], &of_row, g),
        };
    }
}

/// Packs the codes of [`ROWS`] rows, `count` blocks of each, which become those from `first_row` on: first they come apart,
/// then they are put where they belong.
#[inline(always)]
fn codes_by_memory<S: Lanes, B: Scaled>(
    s: S,
    rows: [&[B]; ROWS],
    count: usize,
    unpacked: &mut Unpacked,
    out: &mut [u8],
    first_row: usize,
) {
    let CodeShape { rows: stride, step, bytes, offset, .. } =
        code_shape(S::LEVEL, B::LEAST, B::MOST, B::GROUP);
    let (plus, whole) = (offset.wrapping_sub(B::MIDDLE), count * B::LEN / 64);
    for r in 0..ROWS {
        let (parts, _) = unpacked.codes[r].as_chunks_mut::<64>();
        for i in 0..whole {
            s.store_bytes(B::codes(s, rows[r], i), &mut parts[i]);
        }
        if whole * 64 != count * B::LEN {
            let last = [rows[r][count - 1], B::new_zeroed()];
            s.store_bytes(B::codes(s, &last, 0), &mut parts[whole]);
        }
    }
    match (bytes, step) {
        (true, STEP) => {
            lay_out::<u8, STEP>(&unpacked.codes, count * B::LEN, out, stride, first_row, |code| {
                code.wrapping_add(plus)
            })
        }
        (true, 16) => lay_out::<u8, 16>(&unpacked.codes, count * B::LEN, out, stride, first_row, |code| {
            code.wrapping_add(plus)
        }),
        (true, _) => lay_out::<u8, 32>(&unpacked.codes, count * B::LEN, out, stride, first_row, |code| {
            code.wrapping_add(plus)
        }),
        (false, _) => words_side_by_side(s, &unpacked.codes, count * B::LEN, plus, out, stride, first_row),
    }
}

/// Writes steps of codes of [`ROWS`] rows, lines of `stride` rows, from row `first_row` on.
#[inline(always)]
fn lay_out<T: Copy, const N: usize>(
    rows: &[[u8; MAX_BLOCK]; ROWS],
    len: usize,
    out: &mut [T],
    stride: usize,
    first_row: usize,
    code: impl Fn(u8) -> T,
) {
    for step in 0..len / N {
        for r in 0..ROWS {
            let to = &mut out[(step * stride + first_row + r) * N..][..N];
            let from = &rows[r][step * N..][..N];
            for i in 0..N {
                to[i] = code(from[i]);
            }
        }
    }
}

/// Writes codes of [`ROWS`] rows as 16 bits each, two of a row side by side, lines of `stride` rows.
#[inline(always)]
fn words_side_by_side<S: Lanes>(
    s: S,
    rows: &[[u8; MAX_BLOCK]; ROWS],
    len: usize,
    plus: u8,
    out: &mut [u8],
    stride: usize,
    first_row: usize,
) {
    for start in (0..len).step_by(32) {
        let words = s.transpose(sixteen!(|r| {
            let mut wide = [0i16; 32];
            for i in 0..32 {
                wide[i] = i16::from(rows[r][start + i].wrapping_add(plus) as i8);
            }
            s.bytes(zerocopy::transmute_ref!(&wide))
        }));
        let first = (start / 2 * stride + first_row) * STEP;
        Steps::new(&mut out[first..], 16, stride, 0).put_all(s, 0, words);
    }
}

/// A block of activations.
trait Activations: Block {
    fn codes(&self) -> &[i8];
    fn scale(&self) -> f32;
    /// The sum of the values of a group, given the sum of its codes.
    fn sum(&self, codes: i32) -> f32;
}

impl Activations for BlockQ8_0 {
    #[inline(always)]
    fn codes(&self) -> &[i8] {
        &self.codes
    }
    #[inline(always)]
    fn scale(&self) -> f32 {
        self.scale.get()
    }
    #[inline(always)]
    fn sum(&self, codes: i32) -> f32 {
        codes as f32 * self.scale.get()
    }
}

impl Activations for BlockQ8_1 {
    #[inline(always)]
    fn codes(&self) -> &[i8] {
        &self.codes
    }
    #[inline(always)]
    fn scale(&self) -> f32 {
        self.scale.get()
    }
    /// As stored: it was made with the scale before that was rounded.
    #[inline(always)]
    fn sum(&self, _: i32) -> f32 {
        self.sum.get()
    }
}

impl Activations for BlockQ8K {
    #[inline(always)]
    fn codes(&self) -> &[i8] {
        &self.codes
    }
    #[inline(always)]
    fn scale(&self) -> f32 {
        self.scale.get()
    }
    #[inline(always)]
    fn sum(&self, codes: i32) -> f32 {
        codes as f32 * self.scale.get()
    }
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
