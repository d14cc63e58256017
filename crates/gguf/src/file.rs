//! Opening a file: its header is read and checked, its tensors are left on disk.
//!
//! Invariant: the header lives in memory of our own, so nothing that happens to the file later can change a string or
//! a size that was checked. Opening reads the header and no more, whatever the size of the file, into memory of exactly
//! its size; with the index, that is at most [`limits::max_open_bytes`](crate::limits::max_open_bytes).

use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};

use oxcart_tensor::quant::swap_byte_order;

use crate::builder::Builder;
use crate::cursor::{Stop, len_u64};
use crate::data::Data;
use crate::error::{Error, Result};
use crate::format::{ByteOrder, Format};
use crate::header::Header;
use crate::index::Index;
use crate::map::Mapping;
use crate::measure::bytes_to_parse;
use crate::memory::with_room;
use crate::metadata::Metadata;
use crate::state::FileState;
use crate::tensor::{TensorInfo, Tensors};
use crate::text::Name;

/// An open GGUF file.
///
/// ```no_run
/// # fn main() -> Result<(), oxcart_gguf::Error> {
/// let file = oxcart_gguf::Gguf::open("model.gguf")?;
/// println!("{}", file.metadata().require("general.architecture")?.text()?);
/// for tensor in file.tensors().iter() {
///     println!("{} {}", tensor.name(), tensor.layout());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Gguf {
    path: PathBuf,
    file: File,
    header: Header<'static>,
}

impl Gguf {
    /// Opens a file and checks its header. Errors name the file.
    pub fn open(path: impl AsRef<Path>) -> Result<Gguf> {
        let path = path.as_ref();
        let open = || {
            // Opening a pipe would wait for its other end.
            if !fs::metadata(path).map_err(Error::io("open"))?.is_file() {
                return Err(Error::NotAFile);
            }
            let file = File::open(path).map_err(Error::io("open"))?;
            let header = read_header(&file)?;
            Ok(Gguf { path: path.to_owned(), file, header })
        };
        open().map_err(|error: Error| error.in_file(path))
    }

    /// The path it was opened with.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The state that the open file is in now, whatever has become of its path; `None` where the system says too little about it.
    pub fn state(&self) -> Option<FileState> {
        FileState::of(&self.file)
    }

    /// The checked header.
    pub fn header(&self) -> &Header<'static> {
        &self.header
    }

    /// Version and byte order.
    pub fn format(&self) -> Format {
        self.header.format()
    }

    /// Keys and values.
    pub fn metadata(&self) -> Metadata<'_> {
        self.header.metadata()
    }

    /// Names, layouts and places of the tensors.
    pub fn tensors(&self) -> Tensors<'_> {
        self.header.tensors()
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<TensorInfo<'_>> {
        self.header.tensor(name)
    }

    /// Reads all bytes of a tensor. `out` must have their number. May be called by many threads at a time.
    pub fn read_tensor(&self, info: &TensorInfo<'_>, out: &mut [u8]) -> Result<()> {
        if len_u64(out.len()) != info.byte_len() {
            return Err(buffer_size(info, 0, out.len()).in_file(&self.path));
        }
        self.read_tensor_part(info, 0, out)
    }

    /// As [`read_tensor`](Gguf::read_tensor), in the little-endian layout that blocks are defined in, whatever the byte
    /// order of the file.
    pub fn read_tensor_little_endian(&self, info: &TensorInfo<'_>, out: &mut [u8]) -> Result<()> {
        self.read_tensor(info, out)?;
        match self.format().byte_order {
            ByteOrder::Little => Ok(()),
            ByteOrder::Big => swap_byte_order(info.dtype(), out)
                .map_err(|_| buffer_size(info, 0, out.len()).in_file(&self.path)),
        }
    }

    /// Reads bytes of a tensor from its byte `start` on, as many as `out` has.
    pub fn read_tensor_part(&self, info: &TensorInfo<'_>, start: u64, out: &mut [u8]) -> Result<()> {
        let end = start.checked_add(len_u64(out.len()));
        if end.is_none_or(|end| end > info.byte_len()) {
            return Err(buffer_size(info, start, out.len()).in_file(&self.path));
        }
        read_exact_at(&self.file, out, info.offset().saturating_add(start))
            .map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => Error::Shrunk,
                _ => Error::Io { action: "read", source: error },
            })
            .map_err(|error| error.in_file(&self.path))
    }

    /// The bytes of a tensor as a stream.
    pub fn tensor_reader<'a>(&'a self, info: &TensorInfo<'a>) -> TensorReader<'a> {
        TensorReader { file: self, info: *info, pos: 0 }
    }

    /// Maps the whole file. Use [`TensorInfo::bytes_in`] on [`Mapping::bytes`], and [`Mapping::check`] after use.
    pub fn map(&self) -> Result<Mapping> {
        Mapping::new(&self.file, self.header.file_len()).map_err(|error| error.in_file(&self.path))
    }

    /// A builder that writes this file again, tensor data streamed from it. For every file that was written in the
    /// usual way (tensors in order, padded with zeros) the result is the same to the byte.
    pub fn to_builder(&self) -> Builder<'_> {
        let mut builder = Builder::like(&self.header);
        for info in self.tensors().iter() {
            builder.tensor_like(&info, Data::reader(self.tensor_reader(&info)));
        }
        builder
    }
}

fn buffer_size(info: &TensorInfo<'_>, start: u64, asked: usize) -> Error {
    Error::BufferSize { tensor: Name::from(info.name()), len: info.byte_len(), start, asked: len_u64(asked) }
}

/// Reads the header and checks it.
fn read_header(file: &File) -> Result<Header<'static>> {
    let file_len = file.metadata().map_err(Error::io("read"))?.len();
    let need = bytes_to_parse(file, file_len).map_err(Error::io("read"))?;
    let bytes = read_start(file, need)?;
    match Index::scan(&bytes, file_len) {
        Ok(index) => Ok(Header::owned(bytes, index)),
        Err(Stop::Bad(error)) => Err(error),
        // These bytes are not those that were measured.
        Err(Stop::NeedMore) => Err(Error::Changed),
    }
}

/// The first `len` bytes of the file.
fn read_start(mut file: &File, len: u64) -> Result<Vec<u8>> {
    let mut bytes = with_room(usize::try_from(len).map_err(|_| Error::OutOfMemory { bytes: len })?)?;
    file.rewind().map_err(Error::io("read"))?;
    file.take(len).read_to_end(&mut bytes).map_err(Error::io("read"))?;
    if len_u64(bytes.len()) == len { Ok(bytes) } else { Err(Error::Shrunk) }
}

/// The bytes of one tensor, read from its file in the pieces that are asked for.
#[derive(Clone, Debug)]
pub struct TensorReader<'a> {
    file: &'a Gguf,
    info: TensorInfo<'a>,
    pos: u64,
}

impl Read for TensorReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let left = self.info.byte_len().saturating_sub(self.pos);
        let len = usize::try_from(left).map_or(out.len(), |left| left.min(out.len()));
        let out = out.get_mut(..len).unwrap_or_default();
        self.file.read_tensor_part(&self.info, self.pos, out).map_err(io::Error::other)?;
        self.pos = self.pos.saturating_add(len_u64(len));
        Ok(len)
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, out: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut out: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !out.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, out, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                out = out.get_mut(n..).unwrap_or_default();
                offset = offset.saturating_add(len_u64(n));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
