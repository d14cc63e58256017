//! Rows of any type as `f32`, as codes of 8 bits, and as the numbers they are in memory.

use std::ops::Range;

use half::{bf16, f16};
use oxcart_tensor::DType;
use oxcart_tensor::quant::{BlockIq4Nl, BlockQ4_0, BlockQ5_0, BlockQ8_0, IQ4_LEVELS, dequantize_row};
use zerocopy::{Immutable, IntoBytes};

use super::lens::{HeadAt, KEYS};
use crate::simd::{Scalar, Simd};
use crate::view::{Number, Plain, Rows, Src, Strip};

/// Elements that share a scale where keys are codes.
pub(super) const GROUP: usize = 32;

/// A number that vectors can be loaded from.
pub(super) trait Lanes: Number + Default {
    /// The first lanes of a slice, widened exactly.
    fn lanes<S: Simd>(s: S, from: &[Self]) -> S::F32;
}

impl Lanes for f32 {
    #[inline(always)]
    fn lanes<S: Simd>(s: S, from: &[f32]) -> S::F32 {
        s.load(from)
    }
}

impl Lanes for f16 {
    #[inline(always)]
    fn lanes<S: Simd>(s: S, from: &[f16]) -> S::F32 {
        s.load_f16(from)
    }
}

impl Lanes for bf16 {
    #[inline(always)]
    fn lanes<S: Simd>(s: S, from: &[bf16]) -> S::F32 {
        s.load_bf16(from)
    }
}

/// Widens a row.
#[inline(always)]
fn widen<S: Simd, T: Lanes>(s: S, from: &[T], to: &mut [f32]) {
    let mut to = to[..from.len()].chunks_exact_mut(S::LANES);
    let mut lanes = from.chunks_exact(S::LANES);
    for (to, lanes) in (&mut to).zip(&mut lanes) {
        s.store(T::lanes(s, lanes), to);
    }
    for (to, x) in to.into_remainder().iter_mut().zip(lanes.remainder()) {
        *to = T::lanes(Scalar, std::slice::from_ref(x));
    }
}

/// One head of keys or of values: the same channels of every row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head<'t> {
    pub(super) dtype: DType,
    /// Channels.
    pub(super) len: usize,
    rows: Rows<'t, u8>,
    /// Bytes of a row in front of the head, and of the head.
    first: usize,
    bytes: usize,
}

impl<'t> Head<'t> {
    /// `len` channels of a tensor's rows.
    pub(super) fn new(src: &Src<'t>, at: HeadAt, len: usize) -> Head<'t> {
        let dtype = src.dtype();
        let [first, bytes] = [at.channel, len].map(|n| n / dtype.block_len() * dtype.block_bytes());
        Head { dtype, len, rows: src.rows(at.plane), first, bytes }
    }

    /// The head of some rows, as numbers, as blocks or (`T = u8`) as bytes.
    #[inline(always)]
    pub(super) fn strip<T: Plain>(&self, cells: Range<usize>) -> Strip<'t, T> {
        self.rows.strip(cells, self.first..self.first + self.bytes)
    }
}

/// Expands the head of some rows into rows of `to` that are `stride` apart; zeros fill the rest of each.
#[inline(always)]
pub(super) fn rows<S: Simd>(s: S, head: &Head<'_>, cells: Range<usize>, to: &mut [f32], stride: usize) {
    match head.dtype {
        DType::F32 => each_row(s, head.strip::<f32>(cells), head.len, to, stride),
        DType::F16 => each_row(s, head.strip::<f16>(cells), head.len, to, stride),
        DType::BF16 => each_row(s, head.strip::<bf16>(cells), head.len, to, stride),
        DType::Q8_0 => each_row(s, head.strip::<BlockQ8_0>(cells), head.len, to, stride),
        DType::Q4_0 => each_row(s, head.strip::<BlockQ4_0>(cells), head.len, to, stride),
        dtype => {
            let rows = head.strip::<u8>(cells);
            for (row, to) in to.chunks_exact_mut(stride.max(1)).enumerate().take(rows.count()) {
                let (to, rest) = to.split_at_mut(head.len);
                // The door has checked that the type decodes and that heads are whole blocks.
                dequantize_row(dtype, rows.get(row), to).unwrap_or_else(|error| unreachable!("{error}"));
                rest.fill(0.0);
            }
        }
    }
}

#[inline(always)]
fn each_row<S: Simd, T: Expand>(s: S, rows: Strip<'_, T>, len: usize, to: &mut [f32], stride: usize) {
    for (row, to) in to.chunks_exact_mut(stride.max(1)).enumerate().take(rows.count()) {
        let (to, rest) = to.split_at_mut(len);
        T::expand(s, rows.get(row), to);
        if !rest.is_empty() {
            rest.fill(0.0);
        }
    }
}

/// What is expanded with this processor's vectors.
trait Expand: Plain {
    fn expand<S: Simd>(s: S, from: &[Self], to: &mut [f32]);
}

impl Expand for f32 {
    #[inline(always)]
    fn expand<S: Simd>(_s: S, from: &[f32], to: &mut [f32]) {
        to.copy_from_slice(from);
    }
}

impl Expand for f16 {
    #[inline(always)]
    fn expand<S: Simd>(s: S, from: &[f16], to: &mut [f32]) {
        widen(s, from, to);
    }
}

impl Expand for bf16 {
    #[inline(always)]
    fn expand<S: Simd>(s: S, from: &[bf16], to: &mut [f32]) {
        widen(s, from, to);
    }
}

impl Expand for BlockQ8_0 {
    #[inline(always)]
    fn expand<S: Simd>(s: S, from: &[BlockQ8_0], to: &mut [f32]) {
        scaled(s, from, to);
    }
}

impl Expand for BlockQ4_0 {
    #[inline(always)]
    fn expand<S: Simd>(s: S, from: &[BlockQ4_0], to: &mut [f32]) {
        scaled(s, from, to);
    }
}

/// A block of 32 codes with one scale.
trait Coded: Plain + IntoBytes + Immutable {
    fn codes(&self) -> [i8; GROUP];

    /// All of them begin with their scale.
    #[inline(always)]
    fn scale(&self) -> f16 {
        match self.as_bytes() {
            &[low, high, ..] => f16::from_bits(u16::from_le_bytes([low, high])),
            _ => unreachable!("a block is longer"),
        }
    }
}

impl Coded for BlockQ8_0 {
    #[inline(always)]
    fn codes(&self) -> [i8; GROUP] {
        self.codes
    }
}

impl Coded for BlockQ4_0 {
    #[inline(always)]
    fn codes(&self) -> [i8; GROUP] {
        let nibbles = self.nibbles;
        let mut codes = [0; GROUP];
        for i in 0..16 {
            codes[i] = (nibbles[i] & 15) as i8 - 8;
            codes[16 + i] = (nibbles[i] >> 4) as i8 - 8;
        }
        codes
    }
}

impl Coded for BlockQ5_0 {
    #[inline(always)]
    fn codes(&self) -> [i8; GROUP] {
        let (nibbles, high) = (self.nibbles, self.high.get());
        let mut codes = [0; GROUP];
        for i in 0..16 {
            codes[i] = ((nibbles[i] & 15) | (((high >> i) as u8 & 1) << 4)) as i8 - 16;
            codes[16 + i] = ((nibbles[i] >> 4) | (((high >> (16 + i)) as u8 & 1) << 4)) as i8 - 16;
        }
        codes
    }
}

impl Coded for BlockIq4Nl {
    #[inline(always)]
    fn codes(&self) -> [i8; GROUP] {
        let nibbles = self.nibbles;
        let mut codes = [0; GROUP];
        for i in 0..16 {
            codes[i] = IQ4_LEVELS[usize::from(nibbles[i] & 15)];
            codes[16 + i] = IQ4_LEVELS[usize::from(nibbles[i] >> 4)];
        }
        codes
    }
}

/// Codes times scales.
#[inline(always)]
fn scaled<S: Simd, B: Coded>(s: S, blocks: &[B], to: &mut [f32]) {
    for (block, to) in blocks.iter().zip(to.as_chunks_mut::<GROUP>().0) {
        let (scale, codes) = (s.splat_f16(block.scale()), block.codes());
        for i in (0..GROUP).step_by(S::LANES) {
            s.store(s.mul(scale, s.load_i8(&codes[i..][..S::LANES])), &mut to[i..][..S::LANES]);
        }
    }
}

/// The head of some rows as codes, row after row, and their scales, `scales[group][key]`, the first key being at `first`.
#[inline(always)]
pub(super) fn codes(
    head: &Head<'_>,
    cells: Range<usize>,
    to: &mut [i8],
    scales: &mut [[f16; KEYS]],
    first: usize,
) {
    match head.dtype {
        DType::Q8_0 => coded(head.strip::<BlockQ8_0>(cells), to, scales, first),
        DType::Q4_0 => coded(head.strip::<BlockQ4_0>(cells), to, scales, first),
        DType::Q5_0 => coded(head.strip::<BlockQ5_0>(cells), to, scales, first),
        DType::IQ4_NL => coded(head.strip::<BlockIq4Nl>(cells), to, scales, first),
        _ => unreachable!("only these are codes; see `KeyForm`"),
    }
}

#[inline(always)]
fn coded<B: Coded>(rows: Strip<'_, B>, to: &mut [i8], scales: &mut [[f16; KEYS]], first: usize) {
    let (groups, count) = (rows.len(), rows.count());
    assert!(scales.len() >= groups && first + count <= KEYS);
    for (key, to) in to.chunks_exact_mut((groups * GROUP).max(1)).enumerate().take(count) {
        for (group, (block, to)) in rows.get(key).iter().zip(to.as_chunks_mut::<GROUP>().0).enumerate() {
            *to = block.codes();
            scales[group][first + key] = block.scale();
        }
    }
}

/// Scales as numbers.
#[inline(always)]
pub(super) fn widen_scales<S: Simd>(s: S, from: &[[f16; KEYS]], to: &mut [f32]) {
    for (from, to) in from.iter().zip(to.as_chunks_mut::<KEYS>().0) {
        widen(s, from, to);
    }
}
