//! Metadata: keys and typed values, decoded when asked for.
//!
//! Invariant: a record that an [`Index`] points at decodes; a value of the wrong type is an error that names the key,
//! what was found and what was wanted.

use std::fmt;

use crate::array::{Array, Numbers, Strings};
use crate::cursor::{Cursor, Field, Stop};
use crate::error::{Error, Result};
use crate::header::Header;
use crate::index::Index;
use crate::limits::MAX_KEY_BYTES;
use crate::text::{Name, Text};
use crate::value::{Number, Value, ValueType};

/// The key that sets the alignment of tensor data.
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";

/// Key and type of a record; the value follows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    pub(crate) key: &'a str,
    pub(crate) value_type: ValueType,
}

impl<'a> Record<'a> {
    pub(crate) fn read(cursor: &mut Cursor<'a>, index: u64) -> Result<Record<'a>, Stop> {
        cursor.enter(Field::Key(index));
        let key = cursor.name(MAX_KEY_BYTES)?;
        cursor.enter(Field::Value(key.as_bytes()));
        let value_type = Value::read_type(cursor)?;
        Ok(Record { key, value_type })
    }
}

/// The metadata of a file.
#[derive(Clone, Copy)]
pub struct Metadata<'a> {
    bytes: &'a [u8],
    index: &'a Index,
}

impl<'a> Metadata<'a> {
    pub(crate) fn new(header: &'a Header<'_>) -> Metadata<'a> {
        Metadata { bytes: header.bytes(), index: header.index() }
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.index.records.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.index.records.is_empty()
    }

    /// The record with this key, if there is one.
    pub fn get(&self, key: &str) -> Option<Entry<'a>> {
        let offset = self.index.find(self.bytes, &self.index.records, key)?;
        Entry::read(&mut Cursor::reopen(self.bytes, offset, self.index.format)).ok()
    }

    /// The record with this key, which must be there.
    pub fn require(&self, key: &str) -> Result<Entry<'a>> {
        self.get(key).ok_or_else(|| Error::MissingKey { key: Name::from(key) })
    }

    /// All records in file order.
    pub fn iter(&self) -> impl Iterator<Item = Entry<'a>> + Clone + use<'a> {
        let Metadata { bytes, index } = *self;
        let mut cursor = Cursor::reopen(bytes, index.first_record, index.format);
        (0..index.records.len()).map_while(move |_| {
            let entry = Entry::read(&mut cursor).ok()?;
            if let Value::Array(array) = entry.value {
                array.skip(&mut cursor).ok()?;
            }
            Some(entry)
        })
    }
}

impl fmt::Debug for Metadata<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter().map(|entry| (entry.key(), entry.value()))).finish()
    }
}

/// A record: its key and its value. The accessors are strict about kinds (a float is not an integer) and lenient
/// about width (any integer type is read as any other that can hold the value).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Entry<'a> {
    key: &'a str,
    value: Value<'a>,
}

impl<'a> Entry<'a> {
    /// Reads a record. Elements of an array are left where they are.
    fn read(cursor: &mut Cursor<'a>) -> Result<Entry<'a>, Stop> {
        let Record { key, value_type } = Record::read(cursor, 0)?;
        Ok(Entry { key, value: Value::read(cursor, value_type)? })
    }

    /// The key.
    pub const fn key(&self) -> &'a str {
        self.key
    }

    /// The value.
    pub const fn value(&self) -> Value<'a> {
        self.value
    }

    /// Type of the value.
    pub const fn value_type(&self) -> ValueType {
        self.value.value_type()
    }

    /// The value of any integer type, if it fits.
    pub fn u32(&self) -> Result<u32> {
        self.int("u32")
    }

    /// The value of any integer type, if it fits.
    pub fn u64(&self) -> Result<u64> {
        self.int("u64")
    }

    /// The value of any integer type, if it fits.
    pub fn i64(&self) -> Result<i64> {
        self.int("i64")
    }

    /// The value of any integer type, if it fits.
    pub fn usize(&self) -> Result<usize> {
        self.int("usize")
    }

    /// The value of a float, rounded to the nearest if it has 64 bits.
    pub fn f32(&self) -> Result<f32> {
        match self.value {
            Value::F32(x) => Ok(x),
            #[expect(
                clippy::as_conversions,
                clippy::cast_possible_truncation,
                reason = "rounds, as documented"
            )]
            Value::F64(x) => Ok(x as f32),
            _ => Err(self.wrong_type("f32")),
        }
    }

    /// The value of a float.
    pub fn f64(&self) -> Result<f64> {
        match self.value {
            Value::F32(x) => Ok(x.into()),
            Value::F64(x) => Ok(x),
            _ => Err(self.wrong_type("f64")),
        }
    }

    /// The value of a `bool`.
    pub fn bool(&self) -> Result<bool> {
        match self.value {
            Value::Bool(yes) => Ok(yes),
            _ => Err(self.wrong_type("bool")),
        }
    }

    /// The value of a string, which may hold any bytes.
    pub fn text(&self) -> Result<Text<'a>> {
        match self.value {
            Value::String(text) => Ok(text),
            _ => Err(self.wrong_type("string")),
        }
    }

    /// The bytes of a string.
    pub fn bytes(&self) -> Result<&'a [u8]> {
        self.text().map(Text::as_bytes)
    }

    /// The value of a string that must be UTF-8.
    pub fn str(&self) -> Result<&'a str> {
        self.text()?.to_str().ok_or_else(|| Error::TextNotUtf8 { key: Name::from(self.key) })
    }

    /// The elements of an array of exactly this type.
    pub fn array<T: Number>(&self) -> Result<Numbers<'a, T>> {
        self.elements(|array| array.numbers(), T::TYPE.name())
    }

    /// The elements of an array of strings.
    pub fn strings(&self) -> Result<Strings<'a>> {
        self.elements(Array::strings, "string")
    }

    /// The elements of an array of any integer type.
    pub fn integers(&self) -> Result<impl ExactSizeIterator<Item = i128> + use<'a>> {
        let is_integer = |array: &Array<'_>| {
            use ValueType::{I8, I16, I32, I64, U8, U16, U32, U64};
            matches!(array.element_type(), U8 | I8 | U16 | I16 | U32 | I32 | U64 | I64)
        };
        let values = self.elements(|array| is_integer(array).then(|| array.values()), "integer")?;
        Ok(values.map(|value| value.integer().unwrap_or_default()))
    }

    fn elements<T>(&self, typed: impl FnOnce(&Array<'a>) -> Option<T>, wanted: &'static str) -> Result<T> {
        let (array, found, elements) = match self.value {
            Value::Array(array) => (true, array.element_type(), typed(&array)),
            _ => (false, self.value_type(), None),
        };
        elements.ok_or_else(|| Error::WrongElements { key: Name::from(self.key), array, found, wanted })
    }

    fn int<T: TryFrom<i128>>(&self, wanted: &'static str) -> Result<T> {
        let value = self.value.integer().ok_or_else(|| self.wrong_type(wanted))?;
        T::try_from(value).map_err(|_| Error::OutOfRange { key: Name::from(self.key), value, wanted })
    }

    fn wrong_type(&self, wanted: &'static str) -> Error {
        Error::WrongType { key: Name::from(self.key), found: self.value_type(), wanted }
    }
}
