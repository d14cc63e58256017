//! Rows of weights and of activations into panels.
//!
//! Invariant: packing rounds nothing. A panel holds exactly the values, or codes and scales, of its rows.

use half::{bf16, f16};
use oxcart_tensor::DType;
use oxcart_tensor::quant::{Block, BlockQ8_0, BlockQ8_1, BlockQ8K};
use zerocopy::FromBytes;

use super::format::{ColumnsMut, WeightsMut, items_mut};
use super::micro::{CODE_ROWS, CodeShape, code_shape, float_shape};
use super::unpack::{MAX_BLOCK, MAX_GROUPS, Unpack};
use crate::simd::{Level, MAX_LANES, Simd, for_each_level};
use crate::view::{Number, Plain};

/// Packs as many rows of weights as a panel has; each slice is the same elements of its row.
pub(super) type PackWeights = fn(&[&[u8]], WeightsMut<'_>);

/// Packs one row of activations, of the partner type, as one column of a panel. The last number is how many elements
/// share a scale of the weights.
pub(super) type PackColumn = fn(&[u8], usize, ColumnsMut<'_>, usize);

/// The most rows of a panel.
pub(super) const MAX_ROWS: usize = 32;

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
            float_column[A: Float]: fn(row: &[u8], column: usize, panel: ColumnsMut<'_>, group: usize)
        )
        .at(level),
    )
}

#[inline(always)]
fn float_rows<S: Simd, A: Float>(s: S, rows: &[&[u8]], panel: WeightsMut<'_>) {
    let (count, _) = float_shape(S::LEVEL);
    let out: &mut [f32] = items_mut(panel.codes);
    let k = out.len() / count;
    assert!(rows.len() == count && count <= MAX_ROWS);
    let whole = k - k % S::LANES;
    let mut square = [[0f32; MAX_LANES]; MAX_ROWS];
    for (start, out) in (0..whole).step_by(S::LANES).zip(out.chunks_exact_mut(count * S::LANES)) {
        for (row, lanes) in rows.iter().zip(&mut square) {
            s.store(A::load(s, &elements::<A>(row)[start..]), lanes);
        }
        for (i, out) in out.chunks_exact_mut(count).enumerate() {
            for (out, lanes) in out.iter_mut().zip(&square) {
                *out = lanes[i];
            }
        }
    }
    for (i, out) in (whole..k).zip(out[whole * count..].chunks_exact_mut(count)) {
        for (out, row) in out.iter_mut().zip(rows) {
            *out = elements::<A>(row)[i].value();
        }
    }
}

#[inline(always)]
fn float_column<S: Simd, A: Float>(s: S, row: &[u8], column: usize, panel: ColumnsMut<'_>, _group: usize) {
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

#[inline(always)]
fn block_rows<S: Simd, B: Unpack>(s: S, rows: &[&[u8]], panel: WeightsMut<'_>) {
    let len = B::DTYPE.block_len();
    let groups = len / B::GROUP;
    let WeightsMut { codes, scales, mins } = panel;
    let code_bytes = if code_shape(S::LEVEL).bytes { 1 } else { 2 };
    let mut raw = [[0i8; MAX_BLOCK]; CODE_ROWS];
    let mut row_scales = [[0f32; MAX_GROUPS]; CODE_ROWS];
    let mut row_mins = [[0f32; MAX_GROUPS]; CODE_ROWS];
    let blocks = rows[0].len() / size_of::<B>();
    for block in 0..blocks {
        for (r, row) in rows.iter().enumerate().take(CODE_ROWS) {
            let bytes = &row[block * size_of::<B>()..][..size_of::<B>()];
            let Ok(block) = B::ref_from_bytes(bytes) else { unreachable!("blocks have no alignment") };
            block.unpack(&mut raw[r][..len], &mut row_scales[r][..groups], &mut row_mins[r][..groups]);
        }
        let bytes = len * CODE_ROWS * code_bytes;
        interleave(s, &raw, len, &mut codes[block * bytes..][..bytes]);
        let at = block * groups * CODE_ROWS;
        for g in 0..groups {
            for r in 0..CODE_ROWS {
                scales[at + g * CODE_ROWS + r] = row_scales[r][g];
                if B::MINS {
                    mins[at + g * CODE_ROWS + r] = row_mins[r][g];
                }
            }
        }
    }
}

/// Puts the codes of all rows into the order of a panel.
#[inline(always)]
fn interleave<S: Simd>(_s: S, rows: &[[i8; MAX_BLOCK]; CODE_ROWS], len: usize, out: &mut [u8]) {
    let CodeShape { step, bytes, .. } = code_shape(S::LEVEL);
    if bytes {
        // Unsigned: 128 more, which flips the highest bit.
        for (at, out) in out.chunks_exact_mut(4 * CODE_ROWS).enumerate().take(len / 4) {
            for (row, out) in rows.iter().zip(out.chunks_exact_mut(4)) {
                for i in 0..4 {
                    out[i] = row[4 * at + i] as u8 ^ 0x80;
                }
            }
        }
        return;
    }
    let out: &mut [i16] = items_mut(out);
    for (at, out) in out.chunks_exact_mut(step * CODE_ROWS).enumerate().take(len / step) {
        for (row, out) in rows.iter().zip(out.chunks_exact_mut(step)) {
            for (i, out) in out.iter_mut().enumerate() {
                *out = i16::from(row[step * at + i]);
            }
        }
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
        code_column[A: Activations]: fn(row: &[u8], column: usize, panel: ColumnsMut<'_>, group: usize)
    )
    .at(level)
}

#[inline(always)]
fn code_column<S: Simd, A: Activations>(
    _s: S,
    row: &[u8],
    column: usize,
    panel: ColumnsMut<'_>,
    group: usize,
) {
    let CodeShape { cols, step, bytes } = code_shape(S::LEVEL);
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
                *to = -128 * sum;
            }
        }
        let first = b * len / step;
        if bytes {
            for (at, codes4) in block.codes().chunks_exact(step).enumerate() {
                let to = ((first + at) * cols + column) * step;
                codes[to..to + step].iter_mut().zip(codes4).for_each(|(to, code)| *to = *code as u8);
            }
        } else {
            let codes: &mut [i16] = items_mut(codes);
            for (at, pair) in block.codes().chunks_exact(step).enumerate() {
                let to = ((first + at) * cols + column) * step;
                codes[to..to + step].iter_mut().zip(pair).for_each(|(to, code)| *to = i16::from(*code));
            }
        }
    }
}
