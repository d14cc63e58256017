//! Micro-kernels: the product of one panel of weights with one panel of columns, all sums in registers.
//!
//! Each takes panels in the order of [`Format`](super::format::Format) and writes a tile of results, column by column.
//!
//! Invariant: a result is the sum over `k` in ascending order, group by group; integer sums within a group are exact.
//! [`portable`] says what the others compute.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod float;
mod portable;
#[cfg(test)]
mod tests;

pub(super) use float::{float_shape, multiply_floats};

use super::format::{Columns, Weights};
use crate::simd::{Level, Simd, for_each_level};

/// Multiplies two panels.
pub(super) type Multiply = fn(Weights<'_>, Columns<'_>, &mut [f32]);

/// The most results of a tile.
pub(super) const MAX_TILE: usize = 32 * 12;

/// Rows in a panel of codes, on every instruction set.
pub(super) const CODE_ROWS: usize = 16;

/// How codes of quantized types are packed on an instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CodeShape {
    pub(super) cols: usize,
    /// Consecutive elements of one row that lie together.
    pub(super) step: usize,
    /// Whether codes are bytes, those of the weights with 128 added; otherwise they are `i16`.
    pub(super) bytes: bool,
}

/// How codes are packed on an instruction set.
pub(super) const fn code_shape(level: Level) -> CodeShape {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512(_) => CodeShape { cols: avx512::COLS, step: 4, bytes: true },
        #[cfg(target_arch = "x86_64")]
        Level::Avx2(_) => CodeShape { cols: avx2::COLS, step: 2, bytes: false },
        _ => CodeShape { cols: portable::COLS, step: 1, bytes: false },
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
pub(super) fn multiply_codes(group: usize, run: usize, level: Level) -> Multiply {
    match (group, run) {
        (32, 32) => codes_at::<EachOf32>(level),
        (16, 32) => codes_at::<PairsOf16>(level),
        (32, 256) => codes_at::<SuperOf32>(level),
        (16, 256) => codes_at::<SuperOf16>(level),
        _ => unreachable!("no type has groups of {group} and runs of {run}"),
    }
}

fn codes_at<G: Scaling>(level: Level) -> Multiply {
    for_each_level!(codes[G: Scaling]: fn(weights: Weights<'_>, columns: Columns<'_>, tile: &mut [f32]))
        .at(level)
}

#[inline(always)]
fn codes<S: Simd, G: Scaling>(_simd: S, weights: Weights<'_>, columns: Columns<'_>, tile: &mut [f32]) {
    match S::LEVEL {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token says that the processor has the instructions.
        Level::Avx512(_) => unsafe { avx512::multiply::<G>(weights, columns, tile) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token says that the processor has the instructions.
        Level::Avx2(_) => unsafe { avx2::multiply::<G>(weights, columns, tile) },
        _ => portable::multiply::<G>(weights, columns, tile),
    }
}
