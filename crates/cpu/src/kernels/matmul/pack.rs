//! Rows of weights and of activations into panels.
//!
//! Invariant: packing rounds nothing. A panel holds exactly the values, or codes and scales, of its rows.
#![allow(clippy::needless_range_loop, reason = "rows and columns are what the reader follows")]

mod transpose;

use half::{bf16, f16};
use oxcart_tensor::DType;
use oxcart_tensor::quant::{Block, BlockQ8_0, BlockQ8_1, BlockQ8K};
use zerocopy::{FromBytes, IntoBytes};

use self::transpose::{ROWS, WORDS, transpose};
use super::format::{ColumnsMut, Format, Groups, WeightsMut, items, items_mut};
use super::micro::{CodeShape, MAX_CODE_ROWS, code_shape, float_shape};
use super::unpack::{MAX_BLOCK, MAX_GROUPS, Unpack};
use crate::simd::{Level, MAX_LANES, Simd, for_each_level, prefetch};
use crate::view::{Number, Plain};

/// Packs as many rows of weights as a panel has; each slice is the same elements of its row.
pub(super) type PackWeights = fn(&[&[u8]], WeightsMut<'_>);

/// Packs one row of activations, of the partner type, as one column of a panel.
pub(super) type PackColumn = fn(&[u8], usize, ColumnsMut<'_>, Format);

/// The most rows of a panel.
pub(super) const MAX_ROWS: usize = 32;

/// Elements of a row of floats that are read at a time: rows that are a power of two apart share places in the caches, so
/// few of them can be read side by side.
const SPAN: usize = 256;
/// Distance of those rows once widened, so that they do not share places too.
const SPAN_STRIDE: usize = SPAN + WORDS;

/// A float that vectors can be made of.
pub(super) trait Float: Number {
    fn load<S: Simd>(s: S, from: &[Self]) -> S::F32;
    fn value(self) -> f32;
}

impl Float for f32 {
    #[inline(always)]
    fn load<S: Simd>(s: S, from: &[f32]) -> S::F32 {
        s.load(from)
    }
    #[inline(always)]
    fn value(self) -> f32 {
        self
    }
}

impl Float for f16 {
    #[inline(always)]
    fn load<S: Simd>(s: S, from: &[f16]) -> S::F32 {
        s.load_f16(from)
    }
    #[inline(always)]
    fn value(self) -> f32 {
        self.to_f32()
    }
}

impl Float for bf16 {
    #[inline(always)]
    fn load<S: Simd>(s: S, from: &[bf16]) -> S::F32 {
        s.load_bf16(from)
    }
    #[inline(always)]
    fn value(self) -> f32 {
        self.to_f32()
    }
}

/// A row of a tensor as elements again.
#[inline(always)]
fn elements<A: Plain>(row: &[u8]) -> &[A] {
    // SAFETY: any bytes make an `A`.
    let (before, elements, after) = unsafe { row.align_to() };
    assert!(before.is_empty() && after.is_empty(), "rows of tensors are aligned and whole");
    elements
}

/// How rows of a float type become panels.
pub(super) fn pack_floats(dtype: DType, level: Level) -> (PackWeights, PackColumn) {
    match dtype {
        DType::F32 => floats_at::<f32>(level),
        DType::F16 => floats_at::<f16>(level),
        DType::BF16 => floats_at::<bf16>(level),
        _ => unreachable!("{dtype} is not a float type"),
    }
}

fn floats_at<A: Float>(level: Level) -> (PackWeights, PackColumn) {
    (
        for_each_level!(float_rows[A: Float]: fn(rows: &[&[u8]], panel: WeightsMut<'_>)).at(level),
        for_each_level!(
            float_column[A: Float]: fn(row: &[u8], column: usize, panel: ColumnsMut<'_>, format: Format)
        )
        .at(level),
    )
}

#[inline(always)]
fn float_rows<S: Simd, A: Float>(s: S, rows: &[&[u8]], panel: WeightsMut<'_>) {
    let (count, _) = float_shape(S::LEVEL);
    let out: &mut [u32] = items_mut(panel.codes);
    let k = out.len() / count;
    assert!(rows.len() == count);
    let mut wide = [0u32; ROWS * SPAN_STRIDE];
    let mut start = 0;
    while start < k {
        let span = (k - start).min(SPAN);
        let mut first = 0;
        while first < count {
            let used = (count - first).min(ROWS);
            for r in 0..used {
                let bytes = start * size_of::<A>()..(start + span) * size_of::<A>();
                // Rows are too many for processors to see that they are all read in order.
                if let Some(next) = rows.get(first + r + 2) {
                    prefetch(&next[bytes.clone()]);
                }
                widen(s, elements::<A>(&rows[first + r][bytes]), &mut wide[r * SPAN_STRIDE..]);
            }
            let mut word = 0;
            while word < span {
                let words = (span - word).min(WORDS);
                let at = (start + word) * count + first;
                if used == ROWS {
                    transpose(s, &wide[word..], SPAN_STRIDE, words, 0, &mut out[at..], count);
                } else {
                    for i in 0..words {
                        for r in 0..used {
                            out[at + i * count + r] = wide[r * SPAN_STRIDE + word + i];
                        }
                    }
                }
                word += words;
            }
            first += used;
        }
        start += span;
    }
}

/// Numbers as the bits of `f32`.
#[inline(always)]
fn widen<S: Simd, A: Float>(s: S, from: &[A], to: &mut [u32]) {
    let to: &mut [f32] = items_mut(to.as_mut_bytes());
    let whole = from.len() - from.len() % S::LANES;
    let mut i = 0;
    while i < whole {
        s.store(A::load(s, &from[i..]), &mut to[i..]);
        i += S::LANES;
    }
    while i < from.len() {
        to[i] = from[i].value();
        i += 1;
    }
}

#[inline(always)]
fn float_column<S: Simd, A: Float>(s: S, row: &[u8], column: usize, panel: ColumnsMut<'_>, _: Format) {
    let (_, cols) = float_shape(S::LEVEL);
    let out: &mut [f32] = items_mut(panel.codes);
    let row = elements::<A>(row);
    let mut lanes = [0f32; MAX_LANES];
    for (row, out) in row.chunks(S::LANES).zip(out.chunks_mut(cols * S::LANES)) {
        if row.len() == S::LANES {
            s.store(A::load(s, row), &mut lanes);
        } else {
            lanes.iter_mut().zip(row).for_each(|(lane, x)| *lane = x.value());
        }
        for (out, x) in out.chunks_exact_mut(cols).zip(&lanes) {
            out[column] = *x;
        }
    }
}

/// How rows of a block type become panels of weights.
pub(super) fn pack_blocks<B: Unpack>(level: Level) -> PackWeights {
    for_each_level!(block_rows[B: Unpack]: fn(rows: &[&[u8]], panel: WeightsMut<'_>)).at(level)
}

/// Codes and scales of some rows, up to 256 elements of each.
struct Unpacked {
    codes: [[u32; MAX_BLOCK / 4]; MAX_CODE_ROWS],
    scales: [[f32; MAX_GROUPS]; MAX_CODE_ROWS],
    mins: [[f32; MAX_GROUPS]; MAX_CODE_ROWS],
}

#[inline(always)]
fn block_rows<S: Simd, B: Unpack>(s: S, rows: &[&[u8]], panel: WeightsMut<'_>) {
    let len = B::DTYPE.block_len();
    let groups = len / B::GROUP;
    let shape = code_shape(S::LEVEL, B::LEAST, B::MOST);
    let WeightsMut { codes, scales, mins } = panel;
    let code_bytes = if shape.bytes { 1 } else { 2 };
    let mut unpacked = Unpacked {
        codes: [[0; MAX_BLOCK / 4]; MAX_CODE_ROWS],
        scales: [[0.0; MAX_GROUPS]; MAX_CODE_ROWS],
        mins: [[0.0; MAX_GROUPS]; MAX_CODE_ROWS],
    };
    let blocks = rows[0].len() / size_of::<B>();
    let mut first = 0;
    while first < blocks {
        let count = (blocks - first).min(MAX_BLOCK / len);
        for r in 0..shape.rows {
            let codes: &mut [i8] = items_mut(unpacked.codes[r].as_mut_bytes());
            let next = (first + count) * size_of::<B>()..(first + 2 * count).min(blocks) * size_of::<B>();
            prefetch(rows[r].get(next).unwrap_or_default());
            for b in 0..count {
                let bytes = &rows[r][(first + b) * size_of::<B>()..(first + b + 1) * size_of::<B>()];
                let Ok(block) = B::ref_from_bytes(bytes) else { unreachable!("blocks have no alignment") };
                block.unpack(
                    &mut codes[b * len..(b + 1) * len],
                    &mut unpacked.scales[r][b * groups..(b + 1) * groups],
                    &mut unpacked.mins[r][b * groups..(b + 1) * groups],
                );
            }
        }
        let bytes = shape.rows * code_bytes * len;
        interleave(
            s,
            shape,
            &unpacked.codes,
            count * len,
            &mut codes[first * bytes..(first + count) * bytes],
        );
        let at = first * groups * shape.rows..(first + count) * groups * shape.rows;
        side_by_side(s, shape.rows, &unpacked.scales, count * groups, &mut scales[at.clone()]);
        if B::MINS {
            side_by_side(s, shape.rows, &unpacked.mins, count * groups, &mut mins[at]);
        }
        first += count;
    }
}

/// Puts the scales of all rows into the order of a panel.
#[inline(always)]
fn side_by_side<S: Simd>(
    s: S,
    count: usize,
    rows: &[[f32; MAX_GROUPS]; MAX_CODE_ROWS],
    groups: usize,
    out: &mut [f32],
) {
    let (from, out): (&[u32], &mut [u32]) = (items(rows.as_bytes()), items_mut(out.as_mut_bytes()));
    let mut row = 0;
    while row < count {
        transpose(s, &from[row * MAX_GROUPS..], MAX_GROUPS, groups, 0, &mut out[row..], count);
        row += ROWS;
    }
}

/// Puts the codes of all rows into the order of a panel.
#[inline(always)]
fn interleave<S: Simd>(
    s: S,
    shape: CodeShape,
    rows: &[[u32; MAX_BLOCK / 4]; MAX_CODE_ROWS],
    len: usize,
    out: &mut [u8],
) {
    let CodeShape { rows: count, step, bytes, offset, .. } = shape;
    let codes: &[i8] = items(rows.as_bytes());
    if step == 1 {
        let out: &mut [i16] = items_mut(out);
        for i in 0..len {
            for r in 0..count {
                out[i * count + r] = i16::from(codes[r * MAX_BLOCK + i]);
            }
        }
        return;
    }
    // A step of a row is a word: four bytes, or two codes of 16 bits.
    let out: &mut [u32] = items_mut(out);
    let words: &[u32] = items(rows.as_bytes());
    let all = len / step;
    let (mut row, mut square) = (0, [0u32; ROWS * WORDS]);
    while row < count {
        let mut start = 0;
        while start < all {
            let used = (all - start).min(WORDS);
            let out = &mut out[start * count + row..];
            if bytes {
                let from = &words[row * MAX_BLOCK / 4 + start..];
                transpose(s, from, MAX_BLOCK / 4, used, offset, out, count);
            } else {
                let wide: &mut [i16] = items_mut(square.as_mut_bytes());
                for r in 0..ROWS {
                    let from = &codes[(row + r) * MAX_BLOCK + start * step..][..2 * WORDS];
                    let to = &mut wide[r * 2 * WORDS..][..2 * WORDS];
                    for i in 0..2 * WORDS {
                        to[i] = i16::from(from[i]);
                    }
                }
                transpose(s, &square, WORDS, used, 0, out, count);
            }
            start += used;
        }
        row += ROWS;
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
    let Format { cols, code, step, groups: Some(Groups { group, offset, .. }), .. } = format else {
        unreachable!("codes have scales")
    };
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
            (2, 2) => spread::<i16, 2>(block.codes(), items_mut(codes), first, cols, i16::from),
            _ => spread::<i16, 1>(block.codes(), items_mut(codes), first, cols, i16::from),
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
