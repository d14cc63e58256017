//! The record that describes a tensor: 296 bytes, packed, little-endian, the same in every dialect.

use std::borrow::Cow;

use zerocopy::little_endian::{I32, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a record.
pub const RECORD_BYTES: usize = 296;

/// The id that stands for no tensor.
pub const NO_TENSOR: u64 = 0;

/// A tensor as peers describe it. Every bit pattern is one; what it means is checked where it is used.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct TensorRecord {
    /// Its name inside the message; 0 is no tensor.
    pub id: U64,
    /// Element type, see [`dtype_from_id`](oxcart_tensor::dtype_from_id).
    pub dtype: U32,
    /// Handle of the buffer it lies in; 0 is none.
    pub buffer: U64,
    /// Extents.
    pub ne: [U32; 4],
    /// Byte strides. Only 32 bits: where the extent is 1 the stride may have been cut and means nothing.
    pub nb: [U32; 4],
    /// Operation, see [`Dialect::op`](super::Dialect::op).
    pub op: U32,
    /// Parameters of the operation.
    pub params: [I32; 16],
    /// Roles, a bit set.
    pub flags: I32,
    /// Ids of its sources; 0 is none.
    pub sources: [U64; 10],
    /// Id of the tensor it is a view of; 0 is none.
    pub view_source: U64,
    /// Bytes from the start of that tensor.
    pub view_offset: U64,
    /// Address of its first byte, in the address space that the worker made up.
    pub data: U64,
    /// Name, up to the first zero byte.
    pub name: [u8; 64],
    /// How often the client's graph uses it, where the dialect says so; else padding.
    pub use_count: I32,
}

const _: () = assert!(size_of::<TensorRecord>() == RECORD_BYTES);

impl TensorRecord {
    /// No tensor.
    pub fn absent() -> TensorRecord {
        TensorRecord::new_zeroed()
    }

    /// Extents, strides.
    pub fn shape(&self) -> ([u32; 4], [u32; 4]) {
        (self.ne.map(U32::get), self.nb.map(U32::get))
    }

    /// Its name, with what is not text replaced. For people only.
    pub fn label(&self) -> Cow<'_, str> {
        let end = self.name.iter().position(|&byte| byte == 0).unwrap_or(self.name.len());
        String::from_utf8_lossy(&self.name[..end])
    }

    /// Sets the name: at most 63 bytes, cut between characters.
    pub fn set_name(&mut self, name: &str) {
        let mut end = name.len().min(self.name.len() - 1);
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        self.name = [0; 64];
        self.name[..end].copy_from_slice(&name.as_bytes()[..end]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_where_the_protocol_says() {
        let offsets = [
            (std::mem::offset_of!(TensorRecord, id), 0),
            (std::mem::offset_of!(TensorRecord, dtype), 8),
            (std::mem::offset_of!(TensorRecord, buffer), 12),
            (std::mem::offset_of!(TensorRecord, ne), 20),
            (std::mem::offset_of!(TensorRecord, nb), 36),
            (std::mem::offset_of!(TensorRecord, op), 52),
            (std::mem::offset_of!(TensorRecord, params), 56),
            (std::mem::offset_of!(TensorRecord, flags), 120),
            (std::mem::offset_of!(TensorRecord, sources), 124),
            (std::mem::offset_of!(TensorRecord, view_source), 204),
            (std::mem::offset_of!(TensorRecord, view_offset), 212),
            (std::mem::offset_of!(TensorRecord, data), 220),
            (std::mem::offset_of!(TensorRecord, name), 228),
            (std::mem::offset_of!(TensorRecord, use_count), 292),
        ];
        for (found, expected) in offsets {
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn names_are_cut_between_characters() {
        let mut record = TensorRecord::absent();
        record.set_name("weights");
        assert_eq!(record.label(), "weights");
        record.set_name(&"é".repeat(40));
        assert_eq!(record.label(), "é".repeat(31));
        record.name = [0xff; 64];
        assert_eq!(record.label().chars().count(), 64);
    }
}
