//! Every bound of the data model, named once.

/// Dimensions of a tensor. Missing trailing ones have extent 1.
pub const DIMS: usize = 4;

/// Sources a node can name.
pub const MAX_SOURCES: usize = 10;

/// Bytes of a tensor name.
pub const MAX_NAME_BYTES: usize = 63;

/// Elements of a tensor: counts stay representable as `i64`, which is what files and peers exchange.
pub const MAX_ELEMENTS: u64 = i64::MAX as u64;

/// Bytes of a tensor, gaps of strided layouts included: what one allocation can hold.
pub const MAX_BYTES: usize = isize::MAX as usize;

/// Tensors of a graph: ids are 32 bits wide, zero is kept free so that an absent id costs nothing, and one bit so that
/// a place in the order takes no more.
pub const MAX_TENSORS: usize = (u32::MAX >> 1) as usize - 1;

/// Where a region written by SET or ACC starts, in bytes; peers keep it in 32 bits with room to spare.
pub const REGION_OFFSET_LIMIT: usize = 1 << 30;

const _: () = assert!(MAX_BYTES as u64 <= MAX_ELEMENTS);
