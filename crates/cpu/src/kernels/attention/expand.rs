//! Rows of any type as `f32`, and numbers as they lie in memory.

use half::{bf16, f16};
use oxcart_tensor::DType;
use oxcart_tensor::quant::{BlockQ4_0, BlockQ8_0, dequantize_row};
use zerocopy::FromBytes;

use crate::simd::{Scalar, Simd};
use crate::view::{Number, Src};

/// A number that vectors can be loaded from.
pub(super) trait Lanes: Number {
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

/// Whether rows of a type are expanded with this processor's vectors.
pub(super) fn is_fast(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::Q8_0 | DType::Q4_0)
}

/// Expands the rows `keys` of a plane into rows of `to` that are `stride` apart; zeros fill the rest of each row.
#[inline(always)]
pub(super) fn rows<S: Simd>(
    s: S,
    src: &Src<'_>,
    plane: [usize; 2],
    keys: std::ops::Range<usize>,
    to: &mut [f32],
    stride: usize,
) {
    let len = src.ne()[0];
    for (key, to) in keys.zip(to.chunks_exact_mut(stride)) {
        let (to, rest) = to.split_at_mut(len);
        row(s, src, [key, plane[0], plane[1]], to);
        rest.fill(0.0);
    }
}

/// Expands a row.
#[inline(always)]
pub(super) fn row<S: Simd>(s: S, src: &Src<'_>, at: [usize; 3], to: &mut [f32]) {
    part(s, src, at, 0, to);
}

/// Expands a part of a row, from an element that begins a block on. The types that caches of keys and values mostly have are
/// done here, with this processor's vectors.
#[inline(always)]
pub(super) fn part<S: Simd>(s: S, src: &Src<'_>, at: [usize; 3], first: usize, to: &mut [f32]) {
    let len = to.len();
    match src.dtype() {
        DType::F32 => to.copy_from_slice(&src.row::<f32>(at).slice()[first..][..len]),
        DType::F16 => widen(s, &src.row::<f16>(at).slice()[first..][..len], to),
        DType::BF16 => widen(s, &src.row::<bf16>(at).slice()[first..][..len], to),
        dtype => {
            let [start, len] = [first, len].map(|n| n / dtype.block_len() * dtype.block_bytes());
            let bytes = &src.row::<u8>(at).slice()[start..][..len];
            match dtype {
                DType::Q8_0 => blocks(bytes, to, q8_0),
                DType::Q4_0 => blocks(bytes, to, q4_0),
                // The door has checked that the type decodes and that rows are whole blocks.
                _ => dequantize_row(dtype, bytes, to).unwrap_or_else(|error| unreachable!("{error}")),
            }
        }
    }
}

#[inline(always)]
fn blocks<B: FromBytes + zerocopy::Unaligned + zerocopy::Immutable + zerocopy::KnownLayout>(
    bytes: &[u8],
    to: &mut [f32],
    decode: impl Fn(&B, &mut [f32; 32]),
) {
    let blocks = <[B]>::ref_from_bytes(bytes).unwrap_or_else(|_| unreachable!("rows are whole blocks"));
    for (block, to) in blocks.iter().zip(to.as_chunks_mut::<32>().0) {
        decode(block, to);
    }
}

// Both copy a block's codes before they write a number: the compiler then knows that writing changes none of them, and
// uses vectors.

#[inline(always)]
fn q8_0(block: &BlockQ8_0, to: &mut [f32; 32]) {
    let (scale, codes) = (block.scale.get(), block.codes);
    *to = std::array::from_fn(|i| scale * f32::from(codes[i]));
}

#[inline(always)]
fn q4_0(block: &BlockQ4_0, to: &mut [f32; 32]) {
    let (scale, nibbles) = (block.scale.get(), block.nibbles);
    let low: [f32; 16] = std::array::from_fn(|i| scale * (f32::from(nibbles[i] & 15) - 8.0));
    let high: [f32; 16] = std::array::from_fn(|i| scale * (f32::from(nibbles[i] >> 4) - 8.0));
    to[..16].copy_from_slice(&low);
    to[16..].copy_from_slice(&high);
}
