//! Codebook formats: four or eight elements at a time are a point of a fixed grid.
//!
//! `grids` holds the points, `lattice` finds the best one for given values, `codec` knows what signs and shifts add
//! to them, and `fit` searches the scales; what is left for a format is where its bits go. Encoders do not repeat the
//! reference's choices, they minimize the same kind of weighted error with an exact search over the grid; the result
//! is closer to the values.
//!
//! Invariant: every byte pattern decodes. Each index field is exactly as wide as its grid is long.

mod codec;
mod fit;
mod grids;
mod iq1;
mod iq2;
mod iq3;
mod lattice;

pub use iq1::{BlockIq1M, BlockIq1S};
pub use iq2::{BlockIq2S, BlockIq2Xs, BlockIq2Xxs, GroupIq2Xxs};
pub use iq3::{BlockIq3S, BlockIq3Xxs};
pub use lattice::{G1, G2_S, G2_XS, G2_XXS, G3_S, G3_XXS, Grid};

use codec::SignedCode;

/// Elements per block, in every format here.
const BLOCK_LEN: usize = 256;

/// Eight sign bits from seven: the number of negative elements is even. Bit `j` set means element `j` is negative.
pub const fn even_signs(field: u8) -> u8 {
    let field = field & 0x7F;
    field | (field.count_ones() as u8 & 1) << 7
}

/// The word of a group of 32 in the XXS formats: four times seven sign bits below four bits of scale.
fn pack_signs(scale: u8, octets: &[SignedCode; 4]) -> u32 {
    octets.iter().rev().fold(u32::from(scale), |word, code| word << 7 | u32::from(code.signs & 0x7F))
}

/// Four bits of scale, two groups per byte, the first in the lower half.
fn scale_code(scales: &[u8], group: usize) -> u8 {
    scales[group / 2] >> (4 * (group % 2)) & 15
}

fn pack_scales<const N: usize>(scales: &[u8]) -> [u8; N] {
    std::array::from_fn(|i| scales[2 * i] | scales[2 * i + 1] << 4)
}

/// Writes levels times scale with the signs given.
fn decode_signed<'a>(scale: f32, levels: impl IntoIterator<Item = &'a i8>, signs: u8, out: &mut [f32]) {
    for (j, (out, &level)) in out.iter_mut().zip(levels).enumerate() {
        let sign = if signs >> j & 1 == 1 { -1.0 } else { 1.0 };
        *out = scale * f32::from(level) * sign;
    }
}

#[cfg(test)]
mod tests;
