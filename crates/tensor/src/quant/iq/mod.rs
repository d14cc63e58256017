//! Codebook formats: groups of four or eight elements are points of fixed grids.
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
pub use iq2::{BlockIq2S, BlockIq2Xs, BlockIq2Xxs};
pub use iq3::{BlockIq3S, BlockIq3Xxs};
pub use lattice::{G1, G2_S, G2_XS, G2_XXS, G3_S, G3_XXS, Grid};

/// Elements per block, in every format here.
const BLOCK_LEN: usize = 256;

/// Eight sign bits from the seven stored ones: their number is even.
const fn even_signs(field: u8) -> u8 {
    field | (field.count_ones() as u8 & 1) << 7
}

#[cfg(test)]
mod tests;
