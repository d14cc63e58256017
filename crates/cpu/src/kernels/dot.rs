//! Dot products of a row of weights with a row of activations, for every type that can be a weight.
//!
//! A row of activations is first rounded to the weight type's partner ([`DType::dot_partner`]), once, by [`encode`](encode());
//! then [`dot`] multiplies it with as many rows of weights as there are.
//!
//! There are three kernels: for plain numbers ([`float`]), for blocks with their own scales ([`small`]), and for
//! blocks of 256 with scales inside ([`large`], [`grid`]). A type says how its blocks become codes; an instruction set, how
//! vectors of codes are multiplied ([`lanes`]). Each kernel is compiled for each pair of them.

mod encode;
mod float;
mod grid;
mod lanes;
mod large;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;
mod small;
mod swar;
#[cfg(target_arch = "x86_64")]
mod x86;

use half::{bf16, f16};
use oxcart_tensor::DType;
use oxcart_tensor::quant::iq::{
    BlockIq1M, BlockIq1S, BlockIq2S, BlockIq2Xs, BlockIq2Xxs, BlockIq3S, BlockIq3Xxs,
};
use oxcart_tensor::quant::{
    BlockIq4Nl, BlockIq4Xs, BlockMxfp4, BlockNvfp4, BlockQ1_0, BlockQ2_0, BlockQ2K, BlockQ3K, BlockQ4_0,
    BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1, BlockQ5K, BlockQ6K, BlockQ8_0, BlockQ8_1, BlockQ8K,
    BlockTq1_0, BlockTq2_0,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use self::encode::{Activation, bf16s, f16s, f32s, rows32, rows256};
use self::float::{Floats, float};
use self::lanes::Lanes;
use self::large::{Large, large};
use self::small::{Long, Small, long, small};
use crate::simd::{Level, for_each_level};

/// The dot product of a row of weights with a row of its partner type of the same length, both as bytes.
pub(crate) type Dot = fn(&[u8], &[u8]) -> f32;

/// Rounds a row of numbers to a partner type.
pub(crate) type Encode = fn(&[f32], &mut [u8]);

/// Rows that [`DotFour`] multiplies at a time.
pub(crate) const FOUR: usize = 4;

/// The dot products of four rows of weights with the same row of their partner type, with exactly the results of [`Dot`].
///
/// Weights that come from memory come faster in four streams than in one. The rows must be far apart, in regions that are
/// each read from beginning to end; the memory system recognizes those, and not rows that are read in turns.
pub(crate) type DotFour = fn([&[u8]; FOUR], &[u8]) -> [f32; FOUR];

/// The dot product for weights of a type; `None` if it cannot be a weight.
pub(crate) fn dot(weights: DType, level: Level) -> Option<Dot> {
    Some(dots(weights, level)?.one)
}

/// The dot products for four rows of weights of a type; `None` if it cannot be a weight.
pub(crate) fn dot_four(weights: DType, level: Level) -> Option<DotFour> {
    Some(dots(weights, level)?.four)
}

struct Dots {
    one: Dot,
    four: DotFour,
}

fn dots(weights: DType, level: Level) -> Option<Dots> {
    Some(match weights {
        DType::F32 => floats::<f32>(level),
        DType::F16 => floats::<f16>(level),
        DType::BF16 => floats::<bf16>(level),
        DType::Q4_0 => smalls::<BlockQ4_0>(level),
        DType::Q4_1 => smalls::<BlockQ4_1>(level),
        DType::Q5_0 => smalls::<BlockQ5_0>(level),
        DType::Q5_1 => smalls::<BlockQ5_1>(level),
        DType::Q8_0 => smalls::<BlockQ8_0>(level),
        DType::IQ4_NL => smalls::<BlockIq4Nl>(level),
        DType::MXFP4 => smalls::<BlockMxfp4>(level),
        DType::Q1_0 => longs::<BlockQ1_0>(level),
        DType::Q2_0 => longs::<BlockQ2_0>(level),
        DType::NVFP4 => longs::<BlockNvfp4>(level),
        DType::Q2_K => larges::<BlockQ2K>(level),
        DType::Q3_K => larges::<BlockQ3K>(level),
        DType::Q4_K => larges::<BlockQ4K>(level),
        DType::Q5_K => larges::<BlockQ5K>(level),
        DType::Q6_K => larges::<BlockQ6K>(level),
        DType::IQ4_XS => larges::<BlockIq4Xs>(level),
        DType::IQ1_S => larges::<BlockIq1S>(level),
        DType::IQ1_M => larges::<BlockIq1M>(level),
        DType::IQ2_XXS => larges::<BlockIq2Xxs>(level),
        DType::IQ2_XS => larges::<BlockIq2Xs>(level),
        DType::IQ2_S => larges::<BlockIq2S>(level),
        DType::IQ3_XXS => larges::<BlockIq3Xxs>(level),
        DType::IQ3_S => larges::<BlockIq3S>(level),
        DType::TQ1_0 => larges::<BlockTq1_0>(level),
        DType::TQ2_0 => larges::<BlockTq2_0>(level),
        DType::F64 | DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::Q8_1 | DType::Q8_K => {
            return None;
        }
    })
}

/// Compiles a kernel over rows for one row and for four, for a kind of weights.
macro_rules! for_one_and_four {
    ($kernel:ident, $weights:ident : $kind:path, $level:expr) => {{
        #[inline(always)]
        fn one<S: Lanes, $weights: $kind>(s: S, row: &[u8], acts: &[u8]) -> f32 {
            let [sum] = $kernel::<S, $weights, 1>(s, [row], acts);
            sum
        }
        #[inline(always)]
        fn four<S: Lanes, $weights: $kind>(s: S, rows: [&[u8]; FOUR], acts: &[u8]) -> [f32; FOUR] {
            $kernel::<S, $weights, FOUR>(s, rows, acts)
        }
        Dots {
            one: for_each_level!(one[$weights: $kind]: fn(row: &[u8], acts: &[u8]) -> f32).at($level),
            four: for_each_level!(
                four[$weights: $kind]: fn(rows: [&[u8]; FOUR], acts: &[u8]) -> [f32; FOUR]
            )
            .at($level),
        }
    }};
}

fn floats<F: Floats>(level: Level) -> Dots {
    for_one_and_four!(float, F: Floats, level)
}

fn smalls<W: Small>(level: Level) -> Dots {
    for_one_and_four!(small, W: Small, level)
}

fn longs<W: Long>(level: Level) -> Dots {
    for_one_and_four!(long, W: Long, level)
}

fn larges<W: Large>(level: Level) -> Dots {
    for_one_and_four!(large, W: Large, level)
}

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
trait Plain: Copy + FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned {}

impl<T: Copy + FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned> Plain for T {}

/// What some vectors of sums add up to.
#[inline(always)]
fn totals<S: Lanes, const N: usize>(s: S, sums: [S::Floats; N]) -> [f32; N] {
    let mut totals = [0.0; N];
    for n in 0..N {
        totals[n] = s.total(sums[n]);
    }
    totals
}

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
