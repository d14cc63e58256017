//! Micro-kernels: the product of one panel of weights with one panel of columns, all sums in registers.
//!
//! Each takes panels in the order of [`Format`](super::format::Format) and adds to a tile of results, column by column.
//!
//! Invariant: whatever the instruction set and the number of columns, a result is the same `f32` operations in the same
//! order. [`portable`] says which; `docs/numerics.md` says why.
#![allow(
    clippy::needless_range_loop,
    reason = "rows and columns of tiles are what the reader follows, and loops over them are unrolled"
)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(test)]
mod tests;

use super::format::{Columns, Weights};
use crate::simd::{Level, Simd, for_each_level};

/// Adds the product of two panels to a tile of results.
pub(super) type Multiply = fn(Weights<'_>, Columns<'_>, &mut [f32]);

/// The most results of a tile.
pub(super) const MAX_TILE: usize = 32 * 6;

/// The most columns of a tile.
pub(super) const MAX_COLUMNS: usize = 6;

/// The most rows in a panel of weights.
pub(super) const MAX_ROWS: usize = 32;

/// How codes of quantized types are packed on an instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CodeShape {
    /// A multiple of 16.
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// Consecutive elements of one row that lie together; at most a group.
    pub(super) step: usize,
    /// Whether codes are bytes; otherwise they are `i16`.
    pub(super) bytes: bool,
    /// What is added to the codes of weights.
    pub(super) offset: u8,
    /// Steps whose products can be added up in 16 bits.
    pub(super) reach: usize,
}

/// How codes from `least` to `most` in groups of `group` are packed on an instruction set.
pub(super) const fn code_shape(level: Level, least: i8, most: i8, group: usize) -> CodeShape {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512(_) => avx512::shape(least),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2(_) => avx2::shape(least, most),
        _ => {
            let _ = (least, most);
            portable::shape(group)
        }
    }
}

/// How many elements share scales; known at compile time, so that loops over them are unrolled.
pub(super) trait Scaling: 'static {
    /// Elements that share a scale of the weights: 16 or 32.
    const GROUP: usize;
    /// Groups that share a scale of the activations.
    const GROUPS: usize;
}

/// Groups of 32 with one scale each on both sides.
struct EachOf32;
/// Groups of 16, two of which share a scale of the activations.
struct PairsOf16;
/// Groups of 32 in a super-block of 256.
struct SuperOf32;
/// Groups of 16 in a super-block of 256.
struct SuperOf16;

impl Scaling for EachOf32 {
    const GROUP: usize = 32;
    const GROUPS: usize = 1;
}
impl Scaling for PairsOf16 {
    const GROUP: usize = 16;
    const GROUPS: usize = 2;
}
impl Scaling for SuperOf32 {
    const GROUP: usize = 32;
    const GROUPS: usize = 8;
}
impl Scaling for SuperOf16 {
    const GROUP: usize = 16;
    const GROUPS: usize = 16;
}

/// The micro-kernel for codes with this many elements per scale of the weights and of the activations.
pub(super) fn multiply_codes(group: usize, run: usize, is_bytes: bool, level: Level) -> Multiply {
    match (group, run) {
        (32, 32) => codes_at::<EachOf32>(is_bytes, level),
        (16, 32) => codes_at::<PairsOf16>(is_bytes, level),
        (32, 256) => codes_at::<SuperOf32>(is_bytes, level),
        (16, 256) => codes_at::<SuperOf16>(is_bytes, level),
        _ => unreachable!("no type has groups of {group} and runs of {run}"),
    }
}

fn codes_at<G: Scaling>(is_bytes: bool, level: Level) -> Multiply {
    if is_bytes {
        for_each_level!(bytes[G: Scaling]: fn(weights: Weights<'_>, columns: Columns<'_>, tile: &mut [f32]))
            .at(level)
    } else {
        for_each_level!(words[G: Scaling]: fn(weights: Weights<'_>, columns: Columns<'_>, tile: &mut [f32]))
            .at(level)
    }
}

#[inline(always)]
fn bytes<S: Simd, G: Scaling>(_simd: S, weights: Weights<'_>, columns: Columns<'_>, tile: &mut [f32]) {
    match S::LEVEL {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token says that the processor has the instructions.
        Level::Avx512(_) => unsafe { avx512::multiply::<G>(weights, columns, tile) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token says that the processor has the instructions.
        Level::Avx2(_) => unsafe { avx2::multiply_bytes::<G>(weights, columns, tile) },
        #[cfg(target_arch = "aarch64")]
        Level::Neon => neon::multiply::<G>(weights, columns, tile),
        Level::Scalar => portable::multiply::<G>(weights, columns, tile),
    }
}

#[inline(always)]
fn words<S: Simd, G: Scaling>(_simd: S, weights: Weights<'_>, columns: Columns<'_>, tile: &mut [f32]) {
    match S::LEVEL {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token says that the processor has the instructions.
        Level::Avx2(_) => unsafe { avx2::multiply_words::<G>(weights, columns, tile) },
        _ => {
            let _ = (weights, columns, tile);
            unreachable!("only AVX2 wants codes of 16 bits")
        }
    }
}
