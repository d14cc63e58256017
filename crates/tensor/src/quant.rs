//! Quantized formats: block structs, and rows of `f32` to and from blocks.
//!
//! Each format is one `#[repr(C)]`, byte-aligned struct that implements [`Block`] (decoding is bit-exact and total:
//! every byte pattern decodes) and, depending on what the format allows, [`Encode`] or [`EncodeWeighted`]. The row
//! functions below are the only code that maps a [`DType`] to a struct.
//!
//! Invariant: a row function touches exactly the blocks it was given; lengths are checked before the first byte is
//! read or written. Arithmetic is separate `f32` operations in the order written, never fused or reassociated, so
//! results are the same on every machine.

mod float;
mod fp4;
pub mod iq;
mod iq4;
mod k;
mod pack;
mod q1_q2;
mod q4_q5;
mod q8;
mod row;
mod scan;
mod search;
mod storage;
mod ternary;

pub use float::{
    StoredF16, from_bf16, from_bf16_slice, from_f16, from_f16_slice, to_bf16, to_bf16_slice, to_f16,
    to_f16_slice,
};
pub use fp4::{BlockMxfp4, BlockNvfp4, FP4_DOUBLED, half_e8m0, half_ue4m3};
pub use iq4::{BlockIq4Nl, BlockIq4Xs, LEVELS as IQ4_LEVELS};
pub use k::{BlockQ2K, BlockQ3K, BlockQ4K, BlockQ5K, BlockQ6K, GroupScales};
pub use q1_q2::{BlockQ1_0, BlockQ2_0};
pub use q4_q5::{BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1};
pub use q8::{BlockQ8_0, BlockQ8_1, BlockQ8K};
pub use row::{dequantize_row, encode_row_at_run_time, quantize_row};
pub use storage::{swap_byte_order, validate_row};
pub use ternary::{BlockTq1_0, BlockTq2_0};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::dtype::DType;

/// One block of a quantized format. Little-endian, no alignment, any byte pattern is a block.
pub trait Block: Copy + FromBytes + IntoBytes + Unaligned + Immutable + KnownLayout {
    /// The type of tensors made of this block.
    const DTYPE: DType;

    /// Writes the block's elements to `out`, which has exactly `DTYPE.block_len()` places.
    fn decode(&self, out: &mut [f32]);
}

/// A format that can be made from values alone.
pub trait Encode: Block {
    /// Packs exactly `DTYPE.block_len()` finite values with the best search the format has. This is what makes
    /// model files.
    fn encode(values: &[f32]) -> Self;

    /// The conversion a running graph uses where it is a cheaper one.
    fn encode_at_run_time(values: &[f32]) -> Self {
        Self::encode(values)
    }
}

/// What is known about how much each value of a block matters.
#[derive(Clone, Copy, Debug)]
pub struct Importance<'a> {
    /// One non-negative weight per value of the block.
    pub weights: &'a [f32],
    /// Mean of the squared values of the whole row the block is cut from.
    pub row_mean_square: f32,
}

/// A format whose encoder can use importance data.
pub trait EncodeWeighted: Block {
    /// Packs exactly `DTYPE.block_len()` finite values so that the weighted error is small.
    fn encode_weighted(values: &[f32], importance: Importance<'_>) -> Self;
}

/// Why a row could not be converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantError {
    /// The row is not a whole number of blocks.
    #[error("row of {len} elements is not a whole number of {dtype} blocks of {}", dtype.block_len())]
    PartialBlock {
        /// The block type.
        dtype: DType,
        /// The row length.
        len: usize,
    },
    /// The byte slice does not have the size of the row.
    #[error("row of {len} {dtype} elements takes {expected} bytes, but {found} were given")]
    ByteLength {
        /// The block type.
        dtype: DType,
        /// The row length.
        len: usize,
        /// Bytes the row takes.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// The byte slice is not a whole number of blocks.
    #[error("{found} bytes are not a whole number of {dtype} blocks of {} bytes", dtype.block_bytes())]
    PartialBytes {
        /// The block type.
        dtype: DType,
        /// Bytes given.
        found: usize,
    },
    /// Importance data with another length than the row.
    #[error("{found} importance weights for a row of {len} elements")]
    ImportanceLength {
        /// The row length.
        len: usize,
        /// Weights given.
        found: usize,
    },
    /// There is no conversion from `f32` to this type.
    #[error("{dtype} cannot be made from f32")]
    NotEncodable {
        /// The type asked for.
        dtype: DType,
    },
    /// There is no conversion from this type to `f32`.
    #[error("{dtype} cannot be expanded to f32")]
    NotDecodable {
        /// The type given.
        dtype: DType,
    },
    /// The format needs importance data.
    #[error("{dtype} can only be made with importance data")]
    NeedsImportance {
        /// The type asked for.
        dtype: DType,
    },
    /// A value is NaN or infinite; block formats have no way to say so.
    #[error("value {index} of the row is not finite")]
    NotFinite {
        /// Where it stands in the row.
        index: usize,
    },
    /// An importance weight is negative, NaN or infinite.
    #[error("importance weight {index} is negative or not finite")]
    BadImportance {
        /// Where it stands in the row.
        index: usize,
    },
    /// Stored data holds a NaN or an infinity where only a number makes sense.
    #[error("block {block} of the {dtype} data holds a number that is not finite")]
    InvalidBlock {
        /// The type of the data.
        dtype: DType,
        /// Which block; for plain types, which element.
        block: usize,
    },
}
