//! The header of a file: everything but the tensor data.
//!
//! Invariant: a [`Header`] exists only for bytes that were checked as a whole; asking it cannot fail for any reason
//! but the question. Strings and arrays stay where they are; the index beside them has less than half their size.

use std::borrow::Cow;
use std::fmt;

use crate::cursor::{Stop, len_u64};
use crate::error::{Error, Place, Result};
use crate::format::Format;
use crate::index::Index;
use crate::metadata::Metadata;
use crate::tensor::{TensorInfo, Tensors};

/// The first four bytes of every file, in either byte order.
pub const MAGIC: [u8; 4] = *b"GGUF";

/// A checked header.
///
/// ```
/// use oxcart_gguf::{Builder, Header};
/// use oxcart_tensor::{DType, Layout};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut file = Vec::new();
/// let mut builder = Builder::new();
/// builder.set("general.architecture", "llama").set("llama.block_count", 2_u32);
/// builder.tensor("w", Layout::packed(DType::F32, [2])?, &[0, 0, 128, 63, 0, 0, 0, 64]);
/// builder.write(&mut file)?;
///
/// let header = Header::parse(&file)?;
/// assert_eq!(header.metadata().require("general.architecture")?.str()?, "llama");
/// assert_eq!(header.metadata().require("llama.block_count")?.u64()?, 2);
/// let w = header.tensor("w").unwrap();
/// assert_eq!(w.layout().to_string(), "f32[2]");
/// assert_eq!(w.bytes_in(&file)?, [0, 0, 128, 63, 0, 0, 0, 64]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Header<'a> {
    bytes: Cow<'a, [u8]>,
    index: Index,
}

impl<'a> Header<'a> {
    /// Parses and checks the header of a file that is in memory as a whole.
    pub fn parse(file: &'a [u8]) -> Result<Header<'a>> {
        match Index::scan(file, len_u64(file.len())) {
            Ok(index) => Ok(Header { bytes: Cow::Borrowed(file), index }),
            Err(Stop::Bad(error)) => Err(error),
            Err(Stop::NeedMore) => Err(Error::HeaderTooLarge { place: Place::Preamble }),
        }
    }

    /// A header in memory of its own. `bytes` are those that `index` was made from; unless the file was changed while
    /// being read, there are none too many.
    pub(crate) fn owned(mut bytes: Vec<u8>, index: Index) -> Header<'static> {
        bytes.truncate(usize::try_from(index.header_len).unwrap_or(usize::MAX));
        bytes.shrink_to_fit();
        Header { bytes: Cow::Owned(bytes), index }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn index(&self) -> &Index {
        &self.index
    }

    /// Version and byte order of the file.
    pub fn format(&self) -> Format {
        self.index.format
    }

    /// What tensors begin at a multiple of.
    pub fn alignment(&self) -> u32 {
        self.index.alignment
    }

    /// Bytes of the header, without the padding that may follow.
    pub fn header_len(&self) -> u64 {
        self.index.header_len.into()
    }

    /// Bytes of the file.
    pub fn file_len(&self) -> u64 {
        self.index.file_len
    }

    /// Keys and values.
    pub fn metadata(&self) -> Metadata<'_> {
        Metadata::new(self)
    }

    /// Names, layouts and places of the tensors.
    pub fn tensors(&self) -> Tensors<'_> {
        Tensors::new(self)
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<TensorInfo<'_>> {
        self.tensors().get(name)
    }
}

impl fmt::Debug for Header<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Index { format, alignment, header_len, file_len, .. } = &self.index;
        f.debug_struct("Header")
            .field("format", format)
            .field("alignment", alignment)
            .field("header_len", header_len)
            .field("file_len", file_len)
            .field("records", &self.index.records.len())
            .field("tensors", &self.index.tensors.len())
            .finish()
    }
}
