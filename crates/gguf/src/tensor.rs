//! What a file says about a tensor.
//!
//! Invariant: a [`TensorInfo`] that leaves the crate was checked against the length of its file: its layout is
//! packed, its bytes begin at a multiple of the alignment, lie inside the file and belong to no other tensor.

use std::fmt;
use std::ops::Range;

use oxcart_tensor::{DType, Layout, Shape};

use crate::cursor::{Cursor, Field, Stop, len_u64};
use crate::error::{Error, Result};
use crate::header::Header;
use crate::index::Index;
use crate::limits::{MAX_DIMS, MAX_TENSOR_NAME_BYTES};
use crate::text::Name;

/// Name, layout and place of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorInfo<'a> {
    name: &'a str,
    layout: Layout,
    /// Extents that the file spells out; the others are 1.
    dims: u32,
    /// From the start of the data section while a header is being parsed, of the file afterwards.
    offset: u64,
}

impl<'a> TensorInfo<'a> {
    /// The name, unique within the model.
    pub const fn name(&self) -> &'a str {
        self.name
    }

    /// Type, extents and (packed) strides.
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// Element type.
    pub const fn dtype(&self) -> DType {
        self.layout.dtype()
    }

    /// Extents, fastest first.
    pub const fn shape(&self) -> Shape {
        self.layout.ne()
    }

    /// Number of extents that the file spells out, trailing ones of 1 included.
    pub const fn dims(&self) -> u32 {
        self.dims
    }

    /// First byte in the file.
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Number of bytes.
    pub fn byte_len(&self) -> u64 {
        len_u64(self.layout.byte_len())
    }

    /// The bytes in the file.
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.byte_len())
    }

    /// The tensor's bytes, out of all bytes of its file. They are as in the file; numbers have the byte order of
    /// [`Header::format`].
    pub fn bytes_in<'b>(&self, file: &'b [u8]) -> Result<&'b [u8]> {
        let Range { start, end } = self.range();
        usize::try_from(start)
            .and_then(|start| usize::try_from(end).map(|end| start..end))
            .ok()
            .and_then(|range| file.get(range))
            .ok_or_else(|| Error::OutsideFile {
                tensor: Name::from(self.name),
                offset: start,
                len: self.byte_len(),
                file_len: len_u64(file.len()),
            })
    }

    /// Reads one tensor info. The offset is not yet based.
    pub(crate) fn read(cursor: &mut Cursor<'a>, index: u64, alignment: u32) -> Result<TensorInfo<'a>, Stop> {
        cursor.enter(Field::TensorName(index));
        let name = cursor.name(MAX_TENSOR_NAME_BYTES)?;
        cursor.enter(Field::Tensor(name.as_bytes()));
        let tensor = || Name::from(name);

        let dims: u32 = cursor.number()?;
        if !(1..=MAX_DIMS).contains(&dims) {
            return Err(Error::Dims { tensor: tensor(), dims }.into());
        }
        let mut ne = [1_usize; 4];
        for ((dim, slot), _) in ne.iter_mut().enumerate().zip(0..dims) {
            let extent = cursor.length()?;
            *slot = usize::try_from(extent)
                .ok()
                .filter(|&extent| extent > 0)
                .ok_or_else(|| Error::Extent { tensor: tensor(), dim, extent })?;
        }
        let id: u32 = cursor.number()?;
        let dtype =
            oxcart_tensor::dtype_from_id(id).ok_or_else(|| Error::TensorType { tensor: tensor(), id })?;
        let layout = Layout::packed(dtype, Shape::from(ne))
            .map_err(|source| Error::Layout { tensor: tensor(), source })?;
        let offset: u64 = cursor.number()?;
        if !offset.is_multiple_of(alignment.into()) {
            return Err(Error::Unaligned { tensor: tensor(), offset, alignment }.into());
        }
        Ok(TensorInfo { name, layout, dims, offset })
    }

    /// The same tensor with its offset counted from the start of the file. Saturates, which no file has room for.
    pub(crate) fn based_at(self, data_start: u64) -> TensorInfo<'a> {
        TensorInfo { offset: self.offset.saturating_add(data_start), ..self }
    }
}

/// The tensors of a file.
#[derive(Clone, Copy)]
pub struct Tensors<'a> {
    bytes: &'a [u8],
    index: &'a Index,
}

impl<'a> Tensors<'a> {
    pub(crate) fn new(header: &'a Header<'_>) -> Tensors<'a> {
        Tensors { bytes: header.bytes(), index: header.index() }
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.index.tensors.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.index.tensors.is_empty()
    }

    /// The tensor of this name.
    pub fn get(&self, name: &str) -> Option<TensorInfo<'a>> {
        let offset = self.index.find(self.bytes, &self.index.tensors, name)?;
        self.index.tensor_at(self.bytes, offset)
    }

    /// All tensors in the order of their descriptions.
    pub fn iter(&self) -> impl Iterator<Item = TensorInfo<'a>> + Clone + use<'a> {
        let Tensors { bytes, index } = *self;
        let mut cursor = Cursor::reopen(bytes, index.first_tensor, index.format);
        (0..index.tensors.len()).map_while(move |_| {
            let info = TensorInfo::read(&mut cursor, 0, index.alignment).ok()?;
            Some(info.based_at(index.data_start))
        })
    }

    /// The names of all tensors, sorted.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let Tensors { bytes, index } = *self;
        index.tensors.iter().filter_map(move |&offset| Some(index.tensor_at(bytes, offset)?.name()))
    }
}

impl fmt::Debug for Tensors<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
