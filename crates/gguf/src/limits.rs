//! Every bound the reader and the writer keep, named once.
//!
//! Invariant: what the index of a header costs in memory is less than the bytes it was built from. The assertions at
//! the foot of the file prove it per record and per tensor, for the most compact version of the format.

/// Bytes of everything before the tensor data. The largest vocabularies in use need some tens of MiB. Offsets into a
/// header are kept as `u32`.
pub const MAX_HEADER_BYTES: u64 = 1 << 30;

/// Bytes of a metadata key.
pub const MAX_KEY_BYTES: u64 = 65_535;

/// Bytes of a tensor name.
pub const MAX_TENSOR_NAME_BYTES: u64 = 63;

/// Dimensions of a tensor in a file.
pub const MAX_DIMS: u32 = 4;

/// Alignment of tensor data when the file does not give one.
pub const DEFAULT_ALIGNMENT: u32 = 32;

/// Largest alignment accepted: well above every page size that a mapping could profit from.
pub const MAX_ALIGNMENT: u32 = 1 << 24;

/// Files of one split model: the file format numbers them with 16 bits.
pub const MAX_SHARDS: u16 = u16::MAX;

/// File mappings alive at the same time in one process.
pub const MAX_MAPPINGS: usize = 1024;

/// Bytes of a file read at first; doubled until the header is complete.
pub const FIRST_READ_BYTES: u64 = 256 << 10;

/// Characters of a name quoted in an error; the rest is cut.
pub const MAX_QUOTED_CHARS: usize = 80;

/// Bytes of the smallest metadata record, by the width of lengths: length, type, one byte of value. An empty key is
/// let through here so that it is refused by its own name.
pub(crate) const fn min_record_bytes(length_bytes: u64) -> u64 {
    length_bytes.saturating_add(4 + 1)
}

/// Bytes of the smallest tensor info, by the width of lengths: length, dimension count, type, offset. No name
/// and no dimensions are let through here so that they are refused by their own names.
pub(crate) const fn min_tensor_bytes(length_bytes: u64) -> u64 {
    length_bytes.saturating_add(4 + 4 + 8)
}

/// Two `u32` for each record: one in file order, one sorted by key.
const INDEX_BYTES_PER_RECORD: u64 = 2 * 4;

/// Two `u32` for each tensor, and an offset with its `u32` while overlap is being looked for.
const INDEX_BYTES_PER_TENSOR: u64 = 2 * 4 + 16;

/// What a tensor that is not refused has beyond the smallest: one byte of name and one extent of a version 1 file.
const VALID_TENSOR_EXTRA: u64 = 1 + 4;

const _: () = {
    assert!(INDEX_BYTES_PER_RECORD < min_record_bytes(4) && min_record_bytes(4) < min_record_bytes(8));
    assert!(4 < min_tensor_bytes(4) && min_tensor_bytes(4) < min_tensor_bytes(8));
    assert!(INDEX_BYTES_PER_TENSOR < min_tensor_bytes(4) + VALID_TENSOR_EXTRA);
    assert!(MAX_HEADER_BYTES < 1 << 32, "offsets into a header are u32");
    assert!(MAX_KEY_BYTES < MAX_HEADER_BYTES && FIRST_READ_BYTES < MAX_HEADER_BYTES);
    assert!(DEFAULT_ALIGNMENT.is_power_of_two() && MAX_ALIGNMENT.is_power_of_two());
    assert!(DEFAULT_ALIGNMENT <= MAX_ALIGNMENT);
    assert!(oxcart_tensor::limits::DIMS == 4 && MAX_DIMS == 4);
    assert!(oxcart_tensor::limits::MAX_NAME_BYTES == 63 && MAX_TENSOR_NAME_BYTES == 63);
};
