//! Metadata values and the numbers they are made of.

use std::fmt;

use crate::array::Array;
use crate::cursor::{Cursor, Stop};
use crate::error::Error;
use crate::format::ByteOrder;
use crate::text::Text;

/// Type of a metadata value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each variant is the type it is named after")]
pub enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

/// Position is the number in the file.
const TYPES: [ValueType; 13] = {
    use ValueType::*;
    [U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64]
};

impl ValueType {
    /// The type that a file means by `id`.
    pub fn from_id(id: u32) -> Option<ValueType> {
        TYPES.get(usize::try_from(id).ok()?).copied()
    }

    /// The number that files use for this type.
    pub fn id(self) -> u32 {
        (0..).zip(TYPES).find_map(|(id, entry)| (entry == self).then_some(id)).unwrap_or(u32::MAX)
    }

    /// Lower-case name: `u8`, `string`.
    pub const fn name(self) -> &'static str {
        match self {
            ValueType::U8 => "u8",
            ValueType::I8 => "i8",
            ValueType::U16 => "u16",
            ValueType::I16 => "i16",
            ValueType::U32 => "u32",
            ValueType::I32 => "i32",
            ValueType::F32 => "f32",
            ValueType::Bool => "bool",
            ValueType::String => "string",
            ValueType::Array => "array",
            ValueType::U64 => "u64",
            ValueType::I64 => "i64",
            ValueType::F64 => "f64",
        }
    }

    /// Bytes of a value, where all values of the type have the same number of them.
    pub const fn fixed_size(self) -> Option<u64> {
        match self {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => Some(1),
            ValueType::U16 | ValueType::I16 => Some(2),
            ValueType::U32 | ValueType::I32 | ValueType::F32 => Some(4),
            ValueType::U64 | ValueType::I64 | ValueType::F64 => Some(8),
            ValueType::String | ValueType::Array => None,
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A decoded value. Strings and arrays borrow the header.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "each variant is the type it is named after")]
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(Text<'a>),
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl<'a> Value<'a> {
    /// Type of the value.
    pub const fn value_type(&self) -> ValueType {
        match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::F32(_) => ValueType::F32,
            Value::Bool(_) => ValueType::Bool,
            Value::String(_) => ValueType::String,
            Value::Array(_) => ValueType::Array,
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F64(_) => ValueType::F64,
        }
    }

    /// The value of any integer type.
    pub fn integer(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(n) => n.into(),
            Value::I8(n) => n.into(),
            Value::U16(n) => n.into(),
            Value::I16(n) => n.into(),
            Value::U32(n) => n.into(),
            Value::I32(n) => n.into(),
            Value::U64(n) => n.into(),
            Value::I64(n) => n.into(),
            _ => return None,
        })
    }

    /// Decodes a value. Elements of an array are left where they are.
    pub(crate) fn read(cursor: &mut Cursor<'a>, value_type: ValueType) -> Result<Value<'a>, Stop> {
        Ok(match value_type {
            ValueType::U8 => Value::U8(cursor.number()?),
            ValueType::I8 => Value::I8(cursor.number()?),
            ValueType::U16 => Value::U16(cursor.number()?),
            ValueType::I16 => Value::I16(cursor.number()?),
            ValueType::U32 => Value::U32(cursor.number()?),
            ValueType::I32 => Value::I32(cursor.number()?),
            ValueType::F32 => Value::F32(cursor.number()?),
            ValueType::Bool => Value::Bool(cursor.number()?),
            ValueType::String => Value::String(Text::new(cursor.string()?)),
            ValueType::Array => Value::Array(Array::read(cursor)?),
            ValueType::U64 => Value::U64(cursor.number()?),
            ValueType::I64 => Value::I64(cursor.number()?),
            ValueType::F64 => Value::F64(cursor.number()?),
        })
    }

    /// Steps over a value, checking all of it.
    pub(crate) fn skip(cursor: &mut Cursor<'a>, value_type: ValueType) -> Result<(), Stop> {
        match Value::read(cursor, value_type)? {
            Value::Array(array) => array.skip(cursor),
            _ => Ok(()),
        }
    }

    /// The type of a value, from its number in the file.
    pub(crate) fn read_type(cursor: &mut Cursor<'a>) -> Result<ValueType, Stop> {
        let id: u32 = cursor.number()?;
        ValueType::from_id(id).ok_or_else(|| Error::ValueType { place: cursor.place(), id }.into())
    }
}

/// A number of fixed size: the integers, the floats and `bool`. Sealed; the format has no others.
pub trait Number: Copy + PartialEq + fmt::Debug + sealed::Sealed {
    /// Its type in a file.
    const TYPE: ValueType;

    #[doc(hidden)]
    const SIZE: u64;

    #[doc(hidden)]
    fn read(bytes: &[u8], order: ByteOrder) -> Option<Self>;

    #[doc(hidden)]
    fn write(self, order: ByteOrder, out: &mut Vec<u8>);
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! numbers {
    ($($number:ident $value_type:ident $size:literal),* $(,)?) => {$(
        impl sealed::Sealed for $number {}

        impl Number for $number {
            const TYPE: ValueType = ValueType::$value_type;
            const SIZE: u64 = $size;

            fn read(bytes: &[u8], order: ByteOrder) -> Option<$number> {
                let bytes = bytes.try_into().ok()?;
                Some(match order {
                    ByteOrder::Little => $number::from_le_bytes(bytes),
                    ByteOrder::Big => $number::from_be_bytes(bytes),
                })
            }

            fn write(self, order: ByteOrder, out: &mut Vec<u8>) {
                match order {
                    ByteOrder::Little => out.extend_from_slice(&self.to_le_bytes()),
                    ByteOrder::Big => out.extend_from_slice(&self.to_be_bytes()),
                }
            }
        }
    )*};
}
numbers!(
    u8 U8 1, i8 I8 1, u16 U16 2, i16 I16 2, u32 U32 4, i32 I32 4, f32 F32 4, u64 U64 8, i64 I64 8, f64 F64 8,
);

impl sealed::Sealed for bool {}

/// Writers emit 0 or 1; as in ggml, any other byte reads as true.
impl Number for bool {
    const TYPE: ValueType = ValueType::Bool;
    const SIZE: u64 = 1;

    fn read(bytes: &[u8], _: ByteOrder) -> Option<bool> {
        bytes.first().map(|&byte| byte != 0)
    }

    fn write(self, _: ByteOrder, out: &mut Vec<u8>) {
        out.push(self.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_numbers_translate_both_ways() {
        for id in 0..13 {
            let value_type = ValueType::from_id(id).unwrap();
            assert_eq!(value_type.id(), id);
        }
        assert_eq!(ValueType::from_id(13), None);
        assert_eq!(ValueType::String.id(), 8);
        assert_eq!(ValueType::F64.id(), 12);
    }

    #[test]
    fn numbers_in_both_orders() {
        for order in [ByteOrder::Little, ByteOrder::Big] {
            let mut bytes = Vec::new();
            (-2.5_f32).write(order, &mut bytes);
            assert_eq!(f32::read(&bytes, order), Some(-2.5));
        }
        assert_eq!(u16::read(&[1, 2], ByteOrder::Little), Some(0x0201));
        assert_eq!(u16::read(&[1, 2], ByteOrder::Big), Some(0x0102));
        assert_eq!(u16::read(&[1], ByteOrder::Big), None);
        assert_eq!(bool::read(&[7], ByteOrder::Little), Some(true));
    }
}
