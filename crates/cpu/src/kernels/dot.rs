//! What products of rows of weights with rows of activations are made of.
//!
//! A row of activations is first rounded to the weight type's partner ([`DType::dot_partner`]), once, by [`encode`](encode()).
//! A type of weights says how its blocks become codes ([`codes`]) or numbers ([`float`]); an instruction set, how vectors of them are
//! multiplied and added up ([`lanes`]).

mod codes;
mod encode;
pub(crate) mod float;
pub(crate) mod lanes;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;
mod swar;
#[cfg(target_arch = "x86_64")]
mod x86;

use oxcart_tensor::DType;
use oxcart_tensor::quant::{BlockQ8_0, BlockQ8_1, BlockQ8K};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub(crate) use self::codes::{
    Aside, Codes, ROWS, STEP, Steps, every_fourth, quarters, side_by_side, sixteen,
};
#[cfg(target_arch = "x86_64")]
pub(crate) use self::x86::{swap_quarters, swap_words};

use self::encode::{Activation, bf16s, f16s, f32s, rows32, rows256};
use crate::simd::{Level, for_each_level};

/// Rounds a row of numbers to a partner type.
pub(crate) type Encode = fn(&[f32], &mut [u8]);

/// How activations become a partner type; `None` if it is none.
pub(crate) fn encode(partner: DType, level: Level) -> Option<Encode> {
    Some(match partner {
        DType::F32 => for_each_level!(f32s: fn(values: &[f32], out: &mut [u8])).at(level),
        DType::F16 => for_each_level!(f16s: fn(values: &[f32], out: &mut [u8])).at(level),
        DType::BF16 => for_each_level!(bf16s: fn(values: &[f32], out: &mut [u8])).at(level),
        DType::Q8_0 => encode32::<BlockQ8_0>(level),
        DType::Q8_1 => encode32::<BlockQ8_1>(level),
        DType::Q8_K => encode256::<BlockQ8K>(level),
        _ => return None,
    })
}

fn encode32<A: Activation<32>>(level: Level) -> Encode {
    for_each_level!(rows32[A: Activation<32>]: fn(values: &[f32], out: &mut [u8])).at(level)
}

fn encode256<A: Activation<256>>(level: Level) -> Encode {
    for_each_level!(rows256[A: Activation<256>]: fn(values: &[f32], out: &mut [u8])).at(level)
}

/// Bytes that mean something, at any address.
pub(crate) trait Plain: Copy + FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned {}

impl<T: Copy + FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned> Plain for T {}

/// A row as blocks.
#[inline(always)]
fn blocks<B: Plain>(row: &[u8]) -> &[B] {
    <[B]>::ref_from_bytes(row).unwrap_or_else(|_| unreachable!("rows are whole blocks"))
}

/// A part of something longer, whose length is known.
#[inline(always)]
fn chunk_of<T, const N: usize>(from: &[T], start: usize) -> &[T; N] {
    from[start..].first_chunk().unwrap_or_else(|| unreachable!("parts lie inside"))
}

#[cfg(test)]
mod tests;
