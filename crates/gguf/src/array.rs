//! Array values, decoded element by element while being iterated.
//!
//! Invariant: the elements were checked when the header was parsed, so iteration yields exactly [`Array::len`] of
//! them. Nothing is copied.

use std::fmt;
use std::iter::FusedIterator;
use std::marker::PhantomData;
use std::slice::ChunksExact;

use crate::cursor::{Cursor, Stop};
use crate::error::Error;
use crate::format::{ByteOrder, Format};
use crate::text::Text;
use crate::value::{Number, Value, ValueType};

/// An array value.
#[derive(Clone, Copy)]
pub struct Array<'a> {
    element: ValueType,
    len: usize,
    /// The elements; for strings, whatever else the header holds follows.
    bytes: &'a [u8],
    format: Format,
}

impl<'a> Array<'a> {
    /// Type of the elements; never `Array`.
    pub const fn element_type(&self) -> ValueType {
        self.element
    }

    /// Number of elements.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements, if they are of type `T`.
    pub fn numbers<T: Number>(&self) -> Option<Numbers<'a, T>> {
        let size = usize::try_from(T::SIZE).ok()?;
        (T::TYPE == self.element).then(|| Numbers {
            chunks: self.bytes.chunks_exact(size),
            order: self.format.byte_order,
            number: PhantomData,
        })
    }

    /// The elements, if they are strings.
    pub fn strings(&self) -> Option<Strings<'a>> {
        (self.element == ValueType::String).then(|| Strings { elements: self.values() })
    }

    /// The elements, whatever their type.
    pub fn values(&self) -> Values<'a> {
        Values { cursor: Cursor::reopen(self.bytes, 0, self.format), element: self.element, left: self.len }
    }

    /// Decodes element type and count, and checks that many elements can follow. Leaves the cursor at the first.
    pub(crate) fn read(cursor: &mut Cursor<'a>) -> Result<Array<'a>, Stop> {
        let element = Value::read_type(cursor)?;
        if element == ValueType::Array {
            return Err(Error::NestedArray { place: cursor.place() }.into());
        }
        let count = cursor.length()?;
        let format = cursor.format();
        let size = element.fixed_size();
        let len = cursor.counting().check_count(count, size.unwrap_or(format.version.length_bytes()))?;
        let bytes = match size {
            Some(size) => {
                let mut elements = *cursor;
                elements.bytes(count.saturating_mul(size))?
            }
            None => cursor.rest(),
        };
        Ok(Array { element, len, bytes, format })
    }

    /// Steps over the elements, checking all of them.
    pub(crate) fn skip(&self, cursor: &mut Cursor<'a>) -> Result<(), Stop> {
        if self.element.fixed_size().is_some() {
            return cursor.bytes(crate::cursor::len_u64(self.bytes.len())).map(drop);
        }
        for _ in 0..self.len {
            cursor.string()?;
        }
        Ok(())
    }
}

/// Equal when the elements are, no matter how the files spell them.
impl PartialEq for Array<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.element == other.element && self.len == other.len && self.values().eq(other.values())
    }
}

/// Type and length; arrays are long.
impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}; {}]", self.element, self.len)
    }
}

/// Elements of an array of numbers.
#[derive(Clone, Debug)]
pub struct Numbers<'a, T> {
    chunks: ChunksExact<'a, u8>,
    order: ByteOrder,
    number: PhantomData<T>,
}

impl<T: Number> Iterator for Numbers<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        T::read(self.chunks.next()?, self.order)
    }

    fn nth(&mut self, n: usize) -> Option<T> {
        T::read(self.chunks.nth(n)?, self.order)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.chunks.size_hint()
    }
}

impl<T: Number> ExactSizeIterator for Numbers<'_, T> {}
impl<T: Number> FusedIterator for Numbers<'_, T> {}

/// Elements of an array of strings.
#[derive(Clone)]
pub struct Strings<'a> {
    elements: Values<'a>,
}

impl<'a> Iterator for Strings<'a> {
    type Item = Text<'a>;

    fn next(&mut self) -> Option<Text<'a>> {
        match self.elements.next()? {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.elements.size_hint()
    }
}

impl ExactSizeIterator for Strings<'_> {}
impl FusedIterator for Strings<'_> {}

/// Elements of any array.
#[derive(Clone)]
pub struct Values<'a> {
    cursor: Cursor<'a>,
    element: ValueType,
    left: usize,
}

impl<'a> Iterator for Values<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.left = self.left.checked_sub(1)?;
        Value::read(&mut self.cursor, self.element).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Values<'_> {}
impl FusedIterator for Values<'_> {}
