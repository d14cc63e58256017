//! Numbers that tensors are made of, and how kernels that compute in `f32` read and write them.
//!
//! Invariant: narrowing rounds to nearest, ties to even, in every kernel alike; widening is exact, but for large
//! integers.

use half::{bf16, f16};
use oxcart_tensor::DType;
use oxcart_tensor::quant::{BlockIq4Nl, BlockQ4_0, BlockQ5_0, BlockQ8_0, to_bf16};

use super::{In, Out};
use crate::float16::{narrow_f16, widen_f16};

/// A plain number, or a block of codes, that tensors hold; every bit pattern is one.
///
/// # Safety
///
/// Implementors are plain data of [`size_of::<Self>()`] bytes without padding, and any bytes make a value.
pub(crate) unsafe trait Plain: Copy + Send + Sync + 'static {}

// SAFETY: integers and floats without padding, any bytes are one.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for u16 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}
// SAFETY: as above.
unsafe impl Plain for i32 {}
// SAFETY: as above.
unsafe impl Plain for i64 {}
// SAFETY: as above.
unsafe impl Plain for f32 {}
// SAFETY: a transparent u16.
unsafe impl Plain for f16 {}
// SAFETY: a transparent u16.
unsafe impl Plain for bf16 {}

// SAFETY: blocks are made of bytes without padding, and any bytes are one.
unsafe impl Plain for BlockQ8_0 {}
// SAFETY: as above.
unsafe impl Plain for BlockQ4_0 {}
// SAFETY: as above.
unsafe impl Plain for BlockQ5_0 {}
// SAFETY: as above.
unsafe impl Plain for BlockIq4Nl {}

/// A number that kernels compute with, as `f32`.
pub(crate) trait Number: Plain {
    /// The type of tensors made of it.
    const DTYPE: DType;

    /// Widens exactly.
    fn widen(from: &[Self], to: &mut [f32]);
    /// Rounds to nearest, ties to even; integers truncate.
    fn narrow(from: &[f32], to: &mut [Self]);

    /// Widens elements of a row from `start` on, whatever they alias.
    #[inline(always)]
    fn read_row(row: &In<'_, Self>, start: usize, to: &mut [f32]) {
        // SAFETY: any bytes make a `Self`; see `Plain`.
        let mut raw: [Self; BLOCK] = unsafe { std::mem::zeroed() };
        for (i, to) in to.chunks_mut(BLOCK).enumerate() {
            let raw = &mut raw[..to.len()];
            row.read(start + i * BLOCK, raw);
            Self::widen(raw, to);
        }
    }

    /// Narrows into a row from `start` on, whatever it aliases.
    #[inline(always)]
    fn write_row(from: &[f32], row: &mut Out<'_, Self>, start: usize) {
        // SAFETY: any bytes make a `Self`; see `Plain`.
        let mut raw: [Self; BLOCK] = unsafe { std::mem::zeroed() };
        for (i, from) in from.chunks(BLOCK).enumerate() {
            let raw = &mut raw[..from.len()];
            Self::narrow(from, raw);
            row.write(start + i * BLOCK, raw);
        }
    }
}

/// Elements converted at a time.
const BLOCK: usize = 128;

impl Number for f32 {
    const DTYPE: DType = DType::F32;

    #[inline(always)]
    fn widen(from: &[f32], to: &mut [f32]) {
        to.copy_from_slice(from);
    }
    #[inline(always)]
    fn narrow(from: &[f32], to: &mut [f32]) {
        to.copy_from_slice(from);
    }
    #[inline(always)]
    fn read_row(row: &In<'_, f32>, start: usize, to: &mut [f32]) {
        row.read(start, to);
    }
    #[inline(always)]
    fn write_row(from: &[f32], row: &mut Out<'_, f32>, start: usize) {
        row.write(start, from);
    }
}

impl Number for f16 {
    const DTYPE: DType = DType::F16;

    #[inline(always)]
    fn widen(from: &[f16], to: &mut [f32]) {
        widen_f16(from, to);
    }
    #[inline(always)]
    fn narrow(from: &[f32], to: &mut [f16]) {
        narrow_f16(from, to);
    }
}

impl Number for bf16 {
    const DTYPE: DType = DType::BF16;

    #[inline(always)]
    fn widen(from: &[bf16], to: &mut [f32]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = f32::from_bits(u32::from(from.to_bits()) << 16);
        }
    }
    #[inline(always)]
    fn narrow(from: &[f32], to: &mut [bf16]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = to_bf16(*from);
        }
    }
}

impl Number for i32 {
    const DTYPE: DType = DType::I32;

    #[inline(always)]
    fn widen(from: &[i32], to: &mut [f32]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = *from as f32;
        }
    }
    #[inline(always)]
    fn narrow(from: &[f32], to: &mut [i32]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = *from as i32;
        }
    }
}
