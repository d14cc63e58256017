//! Writing files.
//!
//! Invariant: what is written, the reader accepts. There is no second set of checks: the header is encoded in memory
//! and goes through [`Index::scan`] before its first byte leaves.

use std::io::{self, Read, Write};

use oxcart_tensor::{Layout, LayoutError};

use crate::cursor::{Stop, len_u64};
use crate::data::Data;
use crate::encode::{Encode, Encoder};
use crate::error::{Error, Place, Result};
use crate::format::Format;
use crate::header::{Header, MAGIC};
use crate::index::Index;
use crate::limits::{DEFAULT_ALIGNMENT, MAX_ALIGNMENT};
use crate::metadata::ALIGNMENT_KEY;
use crate::tensor::TensorInfo;
use crate::text::Name;

/// Collects metadata and tensors, then writes a file. Records and tensors keep the order in which they were added;
/// mistakes (an empty key, two tensors of one name) are reported by [`write`](Builder::write).
///
/// ```
/// use oxcart_gguf::{Builder, Data, Header};
/// use oxcart_tensor::{DType, Layout};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut builder = Builder::new();
/// builder.set("general.name", "tiny").set("tiny.scales", [0.5_f32, 2.0]);
/// // A tensor that is never in memory as a whole.
/// let zeros = Data::reader(std::io::Read::take(std::io::repeat(0), 4096));
/// builder.tensor("blk.0.w", Layout::packed(DType::F32, [32, 32])?, zeros);
/// let mut file = Vec::new();
/// builder.write(&mut file)?;
///
/// let header = Header::parse(&file)?;
/// let scales: Vec<f32> = header.metadata().require("tiny.scales")?.array()?.collect();
/// assert_eq!(scales, [0.5, 2.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Builder<'a> {
    format: Format,
    records: Vec<Record>,
    tensors: Vec<Tensor<'a>>,
    pad_end: bool,
}

#[derive(Debug)]
struct Record {
    key: String,
    /// Type and value.
    encoded: Encoder,
}

#[derive(Debug)]
struct Tensor<'a> {
    name: String,
    layout: Layout,
    dims: u32,
    data: Data<'a>,
}

impl Default for Builder<'_> {
    fn default() -> Self {
        Builder::new()
    }
}

impl<'a> Builder<'a> {
    /// An empty file of the current format.
    pub fn new() -> Builder<'a> {
        Builder::with_format(Format::default())
    }

    /// An empty file of any format.
    pub fn with_format(format: Format) -> Builder<'a> {
        Builder { format, records: Vec::new(), tensors: Vec::new(), pad_end: true }
    }

    /// A file with the format and the metadata of another, without its tensors.
    pub fn like(header: &Header<'_>) -> Builder<'a> {
        let mut builder = Builder::with_format(header.format());
        for entry in header.metadata().iter() {
            builder.push(entry.key(), &entry.value());
        }
        let end = header.tensors().iter().map(|info| info.range().end).max();
        builder.pad_end = header.file_len() > end.unwrap_or(header.header_len());
        builder
    }

    /// Sets a metadata value: in place of the old one if the key is there, else at the end.
    pub fn set(&mut self, key: &str, value: impl Encode) -> &mut Self {
        match self.records.iter().position(|record| record.key == key) {
            Some(at) => {
                let encoded = self.encoded(&value);
                if let Some(record) = self.records.get_mut(at) {
                    record.encoded = encoded;
                }
            }
            None => self.push(key, &value),
        }
        self
    }

    fn push(&mut self, key: &str, value: &impl Encode) {
        let encoded = self.encoded(value);
        self.records.push(Record { key: key.to_owned(), encoded });
    }

    fn encoded(&self, value: &impl Encode) -> Encoder {
        let mut encoded = Encoder::new(self.format);
        value.encode(&mut encoded);
        encoded
    }

    /// Sets what tensors begin at a multiple of; a power of two.
    pub fn alignment(&mut self, alignment: u32) -> &mut Self {
        self.set(ALIGNMENT_KEY, alignment)
    }

    /// Whether the file ends with padding, as most do. It is on unless [`like`](Builder::like) found a file without.
    pub fn pad_end(&mut self, pad_end: bool) -> &mut Self {
        self.pad_end = pad_end;
        self
    }

    /// Adds a tensor. The numbers in its data have the byte order of the file.
    pub fn tensor(&mut self, name: &str, layout: Layout, data: impl Into<Data<'a>>) -> &mut Self {
        let dims = u32::try_from(layout.ne().dims()).unwrap_or(u32::MAX);
        self.tensors.push(Tensor { name: name.to_owned(), layout, dims, data: data.into() });
        self
    }

    /// Adds a tensor with the name and layout of another.
    pub fn tensor_like(&mut self, info: &TensorInfo<'_>, data: impl Into<Data<'a>>) -> &mut Self {
        let (layout, dims) = (info.layout(), info.dims());
        self.tensors.push(Tensor { name: info.name().to_owned(), layout, dims, data: data.into() });
        self
    }

    /// Writes the file and returns its length. Nothing is written when the reader would refuse the header; a stream
    /// of tensor data that fails or has the wrong length leaves a partial file behind.
    pub fn write(self, mut out: impl Write) -> Result<u64> {
        let pad_end = self.pad_end;
        let alignment = u64::from(self.alignment_in_use());
        let (header, data_len) = self.encode_header(alignment)?;
        let header_len = len_u64(header.len());
        let data_start = header_len.next_multiple_of(alignment);
        let file_len =
            data_start.checked_add(data_len).ok_or(Error::HeaderTooLarge { place: Place::TensorCount })?;
        match Index::scan(&header, file_len) {
            Ok(_) => {}
            Err(Stop::Bad(error)) => return Err(error),
            Err(Stop::NeedMore) => return Err(Error::HeaderTooLarge { place: Place::Preamble }),
        }

        out.write_all(&header).map_err(Error::io("write"))?;
        let mut written = header_len;
        for tensor in self.tensors {
            written = pad(&mut out, written, alignment)?;
            let len = len_u64(tensor.layout.byte_len());
            tensor.data.write(&tensor.name, len, &mut out)?;
            written = written.saturating_add(len);
        }
        if pad_end {
            written = pad(&mut out, written, alignment)?;
        }
        out.flush().map_err(Error::io("write"))?;
        Ok(written)
    }

    /// The alignment that was set. Anything the scan will refuse counts as the default here.
    fn alignment_in_use(&self) -> u32 {
        let usable = |n: &u32| n.is_power_of_two() && *n <= MAX_ALIGNMENT;
        let record = self.records.iter().find(|record| record.key == ALIGNMENT_KEY);
        record.and_then(|record| record.encoded.as_u32()).filter(usable).unwrap_or(DEFAULT_ALIGNMENT)
    }

    /// The header, and the length of the data section up to the last byte of the last tensor.
    fn encode_header(&self, alignment: u64) -> Result<(Vec<u8>, u64)> {
        let mut out = Encoder::new(self.format);
        out.raw(&MAGIC);
        out.number(self.format.version.number());
        out.length(len_u64(self.tensors.len()));
        out.length(len_u64(self.records.len()));
        for record in &self.records {
            out.string(record.key.as_bytes());
            record.encoded.append_to(&mut out, || Place::Value { key: Name::from(record.key.as_str()) })?;
        }
        let mut end = 0_u64;
        for tensor in &self.tensors {
            let offset = end.checked_next_multiple_of(alignment).and_then(|offset| {
                end = offset.checked_add(len_u64(tensor.layout.byte_len()))?;
                Some(offset)
            });
            let place = || Place::Tensor { name: Name::from(tensor.name.as_str()) };
            let offset = offset.ok_or_else(|| Error::HeaderTooLarge { place: place() })?;
            tensor.encode(offset, &mut out)?;
            out.check(place)?;
        }
        Ok((out.finish(), end))
    }
}

impl Tensor<'_> {
    fn encode(&self, offset: u64, out: &mut Encoder) -> Result<()> {
        if !self.layout.is_contiguous() {
            let (tensor, source) = (Name::from(self.name.as_str()), LayoutError::NotContiguous);
            return Err(Error::Layout { tensor, source });
        }
        out.string(self.name.as_bytes());
        out.number(self.dims);
        for (extent, _) in self.layout.ne().extents().into_iter().zip(0..self.dims) {
            out.length(len_u64(extent));
        }
        out.number(oxcart_tensor::dtype_id(self.layout.dtype()));
        out.number(offset);
        Ok(())
    }
}

/// Writes zeros up to the next multiple of `alignment` and returns it.
fn pad(out: &mut impl Write, written: u64, alignment: u64) -> Result<u64> {
    let end = written.checked_next_multiple_of(alignment).unwrap_or(written);
    io::copy(&mut io::repeat(0).take(end.saturating_sub(written)), out).map_err(Error::io("write"))?;
    Ok(end)
}

#[cfg(test)]
mod tests;
