//! A bounds-checked reader over the header bytes read so far.
//!
//! Invariant: no length is believed before it was compared with what the file still holds, and nothing is read
//! beyond the window. When the window ends but the file does not, the answer is [`Stop::NeedMore`]: that is the whole
//! protocol between the parser, which does no I/O, and those who own the bytes.

use crate::error::{Error, Place, Result};
use crate::format::{Format, Version};
use crate::header::MAGIC;
use crate::limits::MAX_HEADER_BYTES;
use crate::text::Name;
use crate::value::Number;

/// Why reading stopped.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The window ends inside the header; try again with a larger one.
    NeedMore,
    /// No larger window will help.
    Bad(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Bad(error)
    }
}

/// What is being read, borrowed until an error needs it.
#[derive(Clone, Copy)]
pub(crate) enum Field<'a> {
    Preamble,
    TensorCount,
    RecordCount,
    Key(u64),
    Value(&'a [u8]),
    Elements(&'a [u8]),
    TensorName(u64),
    Tensor(&'a [u8]),
}

impl From<Field<'_>> for Place {
    fn from(field: Field<'_>) -> Place {
        match field {
            Field::Preamble => Place::Preamble,
            Field::TensorCount => Place::TensorCount,
            Field::RecordCount => Place::RecordCount,
            Field::Key(index) => Place::Key { index },
            Field::Value(key) => Place::Value { key: Name::from(key) },
            Field::Elements(key) => Place::Elements { key: Name::from(key) },
            Field::TensorName(index) => Place::TensorName { index },
            Field::Tensor(name) => Place::Tensor { name: Name::from(name) },
        }
    }
}

/// A position in a window of the file that begins at the file's first byte.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<'a> {
    window: &'a [u8],
    pos: usize,
    file_len: u64,
    format: Format,
    field: Field<'a>,
}

/// Lengths of things in memory always fit 64 bits.
pub(crate) fn len_u64(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

impl<'a> Cursor<'a> {
    /// At the first byte. `window` is what is known of a file of `file_len` bytes.
    pub(crate) fn new(window: &'a [u8], file_len: u64) -> Cursor<'a> {
        Cursor { window, pos: 0, file_len, format: Format::default(), field: Field::Preamble }
    }

    /// At a position inside bytes that were parsed before.
    pub(crate) fn reopen(window: &'a [u8], pos: u32, format: Format) -> Cursor<'a> {
        let pos = usize::try_from(pos).unwrap_or(usize::MAX);
        Cursor { window, pos, file_len: len_u64(window.len()), format, field: Field::Preamble }
    }

    pub(crate) fn format(&self) -> Format {
        self.format
    }

    /// Says what is read next, for errors.
    pub(crate) fn enter(&mut self, field: Field<'a>) {
        self.field = field;
    }

    /// The same position, about to count elements of the value that is read.
    pub(crate) fn counting(self) -> Cursor<'a> {
        match self.field {
            Field::Value(key) => Cursor { field: Field::Elements(key), ..self },
            _ => self,
        }
    }

    pub(crate) fn place(&self) -> Place {
        self.field.into()
    }

    /// Distance from the first byte of the file. Windows end below [`MAX_HEADER_BYTES`], so it fits.
    pub(crate) fn offset(&self) -> Result<u32, Stop> {
        u32::try_from(self.pos).map_err(|_| Error::HeaderTooLarge { place: self.place() }.into())
    }

    /// What is left of the window.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.window.get(self.pos..).unwrap_or_default()
    }

    fn left_in_file(&self) -> u64 {
        self.file_len.saturating_sub(len_u64(self.pos))
    }

    /// Checks that `need` bytes follow: in the file, within the limit for headers, and in the window.
    fn check_follows(&self, need: u64) -> Result<(), Stop> {
        let have = self.left_in_file();
        if need > have {
            let (place, offset) = (self.place(), len_u64(self.pos));
            return Err(Error::Truncated { place, offset, need, have }.into());
        }
        if self.end_of(need)? > len_u64(self.window.len()) {
            return Err(Stop::NeedMore);
        }
        Ok(())
    }

    /// Where `need` more bytes end, if that is within the limit for headers.
    fn end_of(&self, need: u64) -> Result<u64, Stop> {
        let end = len_u64(self.pos).saturating_add(need);
        if end > MAX_HEADER_BYTES {
            return Err(Error::HeaderTooLarge { place: self.place() }.into());
        }
        Ok(end)
    }

    /// Checks that `count` things of at least `least` bytes each can follow: in the file and within the limit for
    /// headers. Whether the window has them shows when they are read.
    pub(crate) fn check_count(&self, count: u64, least: u64) -> Result<usize, Stop> {
        let most = self.left_in_file().checked_div(least).unwrap_or(0);
        if count > most {
            return Err(Error::Count { place: self.place(), count, most }.into());
        }
        self.end_of(count.saturating_mul(least))?;
        usize::try_from(count).map_err(|_| Error::HeaderTooLarge { place: self.place() }.into())
    }

    /// The next `len` bytes.
    pub(crate) fn bytes(&mut self, len: u64) -> Result<&'a [u8], Stop> {
        self.check_follows(len)?;
        let len = usize::try_from(len).map_err(|_| Stop::NeedMore)?;
        let bytes = self.rest().get(..len).ok_or(Stop::NeedMore)?;
        self.pos = self.pos.saturating_add(len);
        Ok(bytes)
    }

    /// The next number, in the file's byte order.
    pub(crate) fn number<T: Number>(&mut self) -> Result<T, Stop> {
        let order = self.format.byte_order;
        T::read(self.bytes(T::SIZE)?, order).ok_or(Stop::NeedMore)
    }

    /// The next length, count or extent, whose width depends on the version.
    pub(crate) fn length(&mut self) -> Result<u64, Stop> {
        match self.format.version {
            Version::V1 => Ok(self.number::<u32>()?.into()),
            Version::V2 | Version::V3 => self.number(),
        }
    }

    /// The next string.
    pub(crate) fn string(&mut self) -> Result<&'a [u8], Stop> {
        let len = self.length()?;
        self.bytes(len)
    }

    /// The next string, which is a key or a name: not empty, not longer than `most`, UTF-8.
    pub(crate) fn name(&mut self, most: u64) -> Result<&'a str, Stop> {
        let len = self.length()?;
        if len == 0 {
            return Err(Error::Empty { place: self.place() }.into());
        }
        if len > most {
            return Err(Error::TooLong { place: self.place(), len, most }.into());
        }
        let bytes = self.bytes(len)?;
        std::str::from_utf8(bytes)
            .map_err(|_| Error::NameNotUtf8 { place: self.place(), name: Name::from(bytes) }.into())
    }

    /// Magic and version. Sets the format of everything that follows.
    pub(crate) fn preamble(&mut self) -> Result<Format, Stop> {
        self.enter(Field::Preamble);
        if self.file_len < len_u64(MAGIC.len()) {
            return Err(Error::TooShort { len: self.file_len }.into());
        }
        let found = self.rest().get(..4).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
        if let Some(found) = found.filter(|found| *found != MAGIC) {
            return Err(Error::Magic { found }.into());
        }
        self.bytes(4)?;
        let number: u32 = self.number()?;
        self.format = Format::from_version_field(number).map_err(|version| Error::Version { version })?;
        Ok(self.format)
    }
}
