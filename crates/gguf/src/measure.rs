//! How much of a file has to be read for the parser to come to an end.
//!
//! Invariant: the answer is a number and nothing else. The walk steps over what it meets, keeps none of it and never
//! says whether a file is good: it ends where the header does, or where the parser will refuse. The bytes read
//! afterwards go through [`Index::scan`](crate::index::Index::scan) as if they were new. So a header costs the
//! memory of one copy, however large it is, and no buffer has to grow until it fits.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};

use crate::format::{Format, Version};
use crate::header::MAGIC;
use crate::limits::{
    MAX_DIMS, MAX_HEADER_BYTES, MAX_KEY_BYTES, MAX_TENSOR_NAME_BYTES, WALK_BUFFER_BYTES, min_record_bytes,
    min_tensor_bytes,
};
use crate::value::{Number, ValueType};

/// Bytes from the start of the file, which `file` is at, that the parser needs.
pub(crate) fn bytes_to_parse(file: &File, file_len: u64) -> io::Result<u64> {
    let input = BufReader::with_capacity(WALK_BUFFER_BYTES, file);
    let mut walk = Walk { input, file_len, pos: 0, format: Format::default() };
    match walk.header() {
        Ok(()) | Err(End::Refused) => Ok(walk.pos),
        Err(End::Io(error)) => Err(error),
    }
}

/// Why a walk ended early.
enum End {
    /// The parser will say why.
    Refused,
    Io(io::Error),
}

struct Walk<'f> {
    input: BufReader<&'f File>,
    file_len: u64,
    pos: u64,
    format: Format,
}

impl Walk<'_> {
    fn header(&mut self) -> Result<(), End> {
        if self.number::<u32>()? != u32::from_le_bytes(MAGIC) {
            return Err(End::Refused);
        }
        let version = self.number()?;
        self.format = Format::from_version_field(version).map_err(|_| End::Refused)?;
        let (tensors, records) = (self.length()?, self.length()?);
        let width = self.format.version.length_bytes();
        self.check_room(records, min_record_bytes(width))?;
        for _ in 0..records {
            self.name(MAX_KEY_BYTES)?;
            self.value()?;
        }
        self.check_room(tensors, min_tensor_bytes(width))?;
        for _ in 0..tensors {
            self.tensor()?;
        }
        Ok(())
    }

    fn value(&mut self) -> Result<(), End> {
        match self.value_type()? {
            ValueType::Array => self.array(),
            value_type => self.element(value_type),
        }
    }

    fn array(&mut self) -> Result<(), End> {
        let element = self.value_type()?;
        let count = self.length()?;
        match (element, element.fixed_size()) {
            (ValueType::Array, _) => Err(End::Refused),
            (_, Some(size)) => self.skip(count.saturating_mul(size)),
            (_, None) => {
                self.check_room(count, self.format.version.length_bytes())?;
                (0..count).try_for_each(|_| self.element(element))
            }
        }
    }

    /// A number or a string.
    fn element(&mut self, value_type: ValueType) -> Result<(), End> {
        let len = match value_type.fixed_size() {
            Some(size) => size,
            None => self.length()?,
        };
        self.skip(len)
    }

    fn tensor(&mut self) -> Result<(), End> {
        self.name(MAX_TENSOR_NAME_BYTES)?;
        let dims: u32 = self.number()?;
        if !(1..=MAX_DIMS).contains(&dims) {
            return Err(End::Refused);
        }
        // One by one, as the parser: it may refuse what comes before the end of the file.
        for _ in 0..dims {
            self.length()?;
        }
        self.skip(4)?; // Type.
        self.skip(8) // Offset.
    }

    fn value_type(&mut self) -> Result<ValueType, End> {
        ValueType::from_id(self.number()?).ok_or(End::Refused)
    }

    fn name(&mut self, most: u64) -> Result<(), End> {
        match self.length()? {
            len if (1..=most).contains(&len) => self.skip(len),
            _ => Err(End::Refused),
        }
    }

    fn length(&mut self) -> Result<u64, End> {
        match self.format.version {
            Version::V1 => Ok(self.number::<u32>()?.into()),
            Version::V2 | Version::V3 => self.number(),
        }
    }

    fn number<T: Number>(&mut self) -> Result<T, End> {
        let end = self.end_of(T::SIZE)?;
        let mut buffer = [0; 8];
        let size = usize::try_from(T::SIZE).map_err(|_| End::Refused)?;
        let bytes = buffer.get_mut(..size).ok_or(End::Refused)?;
        self.input.read_exact(bytes).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => End::Refused,
            _ => End::Io(error),
        })?;
        self.pos = end;
        T::read(bytes, self.format.byte_order).ok_or(End::Refused)
    }

    fn skip(&mut self, len: u64) -> Result<(), End> {
        let end = self.end_of(len)?;
        let distance = i64::try_from(len).map_err(|_| End::Refused)?;
        self.input.seek_relative(distance).map_err(End::Io)?;
        self.pos = end;
        Ok(())
    }

    /// Where `len` more bytes end, if the file and the limit have room for them.
    fn end_of(&self, len: u64) -> Result<u64, End> {
        let most = self.file_len.min(MAX_HEADER_BYTES);
        self.pos.checked_add(len).filter(|&end| end <= most).ok_or(End::Refused)
    }

    fn check_room(&self, count: u64, least: u64) -> Result<(), End> {
        self.end_of(count.saturating_mul(least)).map(drop)
    }
}
