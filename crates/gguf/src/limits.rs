//! Every bound the reader and the writer keep, named once.
//!
//! Invariant: what the index of a header costs in memory is less than half the bytes it was built from. The assertions
//! at the foot of the file prove it per record and per tensor, for the most compact version of the format. From this
//! follow the two bounds on memory:
//! - parsing bytes at hand ([`Header::parse`](crate::Header::parse)) allocates at most their number plus 1 MiB;
//! - opening a file ([`Gguf::open`](crate::Gguf::open)) also copies its header and allocates at most
//!   [`max_open_bytes`], which depends on the header and not on the file. For a set
//!   ([`GgufSet::open`](crate::GgufSet::open)) the headers add up, and each file takes [`SET_BYTES_PER_FILE`] more.

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
pub const MAX_SET_FILES: u16 = u16::MAX;

/// File mappings alive at the same time in one process.
pub const MAX_MAPPINGS: usize = 1024;

/// Bytes of a file held at a time while the length of its header is found.
pub const WALK_BUFFER_BYTES: usize = 64 << 10;

/// Memory beyond what grows with the header: buffers, paths, error messages.
pub const FIXED_BYTES: u64 = 1 << 20;

/// Memory that each file of a split model takes beside its header; most of it is room for a long path.
pub const SET_BYTES_PER_FILE: u64 = 8 << 10;

/// The most memory that opening a file with a header of this many bytes takes: one and a half times the header, and
/// 1 MiB. The header is copied once, and hostile headers consist of records not much larger than their index.
pub const fn max_open_bytes(header_bytes: u64) -> u64 {
    header_bytes.saturating_add(header_bytes / 2).saturating_add(FIXED_BYTES)
}

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

/// A `u32` for each record and each tensor. Sorting is done in place.
const INDEX_BYTES_EACH: u64 = 4;

const _: () = {
    assert!(2 * INDEX_BYTES_EACH < min_record_bytes(4) && min_record_bytes(4) < min_record_bytes(8));
    assert!(2 * INDEX_BYTES_EACH < min_tensor_bytes(4) && min_tensor_bytes(4) < min_tensor_bytes(8));
    assert!(MAX_HEADER_BYTES < 1 << 32, "offsets into a header are u32");
    assert!(MAX_KEY_BYTES < MAX_HEADER_BYTES);
    assert!(DEFAULT_ALIGNMENT.is_power_of_two() && MAX_ALIGNMENT.is_power_of_two());
    assert!(DEFAULT_ALIGNMENT <= MAX_ALIGNMENT);
    assert!(oxcart_tensor::limits::DIMS == 4 && MAX_DIMS == 4);
    assert!(oxcart_tensor::limits::MAX_NAME_BYTES == 63 && MAX_TENSOR_NAME_BYTES == 63);
};
