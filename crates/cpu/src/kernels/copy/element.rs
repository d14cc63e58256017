//! Elements of any type to and from `f32`, some hundred at a time.
//!
//! Invariant: a conversion is one rounding of the exact value, the same wherever a run of elements is cut, as long as
//! it is cut between blocks; every block length divides [`RUN`].

use half::{bf16, f16};
use oxcart_tensor::DType;
use oxcart_tensor::quant::{QuantError, dequantize_row, encode_row_at_run_time};

use crate::job::Fault;
use crate::view::{Number, elements, elements_mut, raw_bytes};

/// Elements converted at a time.
pub(in super::super) const RUN: usize = 256;

/// The most bytes that many elements take.
const RUN_BYTES: usize = RUN * 8;

/// Stored elements on the stack.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(in super::super) struct Raw([u8; RUN_BYTES]);

/// Values on the stack.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(in super::super) struct Values(pub(in super::super) [f32; RUN]);

impl Raw {
    #[inline(always)]
    pub(in super::super) const fn new() -> Raw {
        Raw([0; RUN_BYTES])
    }

    /// The first bytes.
    #[inline(always)]
    pub(in super::super) fn bytes(&mut self, len: usize) -> &mut [u8] {
        &mut self.0[..len]
    }
}

impl Values {
    #[inline(always)]
    pub(in super::super) const fn new() -> Values {
        Values([0.0; RUN])
    }
}

/// Bytes of some elements, which are whole blocks.
#[inline(always)]
pub(in super::super) fn stored_bytes(dtype: DType, len: usize) -> usize {
    len / dtype.block_len() * dtype.block_bytes()
}

/// What can be read as `f32`.
pub(in super::super) trait Decode {
    /// Values of elements: as they lie there if they are `f32`, else in `out`, which is as long.
    fn decode<'a>(dtype: DType, bytes: &'a [u8], out: &'a mut [f32]) -> &'a [f32];
}

/// What can be made from `f32`.
pub(in super::super) trait Encode {
    /// At most [`RUN`] values as stored elements: as they lie there if they are `f32`, else in `out`.
    fn encode<'a>(dtype: DType, values: &'a [f32], out: &'a mut Raw) -> Result<&'a [u8], Fault>;
}

/// The same fault, counted from `before` elements earlier on.
pub(in super::super) fn after(before: usize, fault: Fault) -> Fault {
    match fault {
        Fault::Quant(QuantError::NotFinite { index }) => {
            QuantError::NotFinite { index: before + index }.into()
        }
        fault => fault,
    }
}

/// A quantized type, whichever it is.
#[derive(Debug)]
pub(in super::super) enum Blocks {}

impl Decode for Blocks {
    #[inline(always)]
    fn decode<'a>(dtype: DType, bytes: &'a [u8], out: &'a mut [f32]) -> &'a [f32] {
        dequantize_row(dtype, bytes, out)
            .unwrap_or_else(|error| unreachable!("checked at the door: {error}"));
        out
    }
}

impl Encode for Blocks {
    #[inline(always)]
    fn encode<'a>(dtype: DType, values: &'a [f32], out: &'a mut Raw) -> Result<&'a [u8], Fault> {
        let out = out.bytes(stored_bytes(dtype, values.len()));
        encode_row_at_run_time(dtype, values, out)?;
        Ok(out)
    }
}

impl Decode for f32 {
    #[inline(always)]
    fn decode<'a>(_dtype: DType, bytes: &'a [u8], _out: &'a mut [f32]) -> &'a [f32] {
        elements(bytes)
    }
}

impl Encode for f32 {
    #[inline(always)]
    fn encode<'a>(_dtype: DType, values: &'a [f32], _out: &'a mut Raw) -> Result<&'a [u8], Fault> {
        Ok(raw_bytes(values))
    }
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Decode for $number {
            #[inline(always)]
            fn decode<'a>(_dtype: DType, bytes: &'a [u8], out: &'a mut [f32]) -> &'a [f32] {
                <$number>::widen(elements(bytes), out);
                out
            }
        }

        impl Encode for $number {
            #[inline(always)]
            fn encode<'a>(_dtype: DType, values: &'a [f32], out: &'a mut Raw) -> Result<&'a [u8], Fault> {
                let out = out.bytes(size_of::<$number>() * values.len());
                <$number>::narrow(values, elements_mut(out));
                Ok(out)
            }
        }
    )*};
}

numbers!(f16, bf16, i32);
