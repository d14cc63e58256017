//! From Rust values to bytes of a header.

use crate::array::Array;
use crate::cursor::len_u64;
use crate::error::{Error, Place, Result};
use crate::format::{Format, Version};
use crate::text::Text;
use crate::value::{Number, Value, ValueType};

/// Bytes of a header in the making.
#[derive(Clone, Debug)]
pub struct Encoder {
    bytes: Vec<u8>,
    format: Format,
    /// The first length that the version could not hold.
    too_long: Option<u64>,
}

impl Encoder {
    pub(crate) fn new(format: Format) -> Encoder {
        Encoder { bytes: Vec::new(), format, too_long: None }
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.bytes
    }

    /// Fails when something written so far was too long for the version.
    pub(crate) fn check(&self, place: impl FnOnce() -> Place) -> Result<()> {
        match self.too_long {
            Some(len) => Err(Error::TooLargeForV1 { place: place(), len }),
            None => Ok(()),
        }
    }

    /// Appends what was encoded to `out`.
    pub(crate) fn append_to(&self, out: &mut Encoder, place: impl FnOnce() -> Place) -> Result<()> {
        self.check(place)?;
        out.raw(&self.bytes);
        Ok(())
    }

    /// The encoded value, if it is a `u32`.
    pub(crate) fn as_u32(&self) -> Option<u32> {
        let (id, value) = self.bytes.split_at_checked(4)?;
        let id = u32::read(id, self.format.byte_order)?;
        (id == ValueType::U32.id()).then(|| u32::read(value, self.format.byte_order)).flatten()
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn number<T: Number>(&mut self, number: T) {
        number.write(self.format.byte_order, &mut self.bytes);
    }

    /// A length, count or extent, whose width depends on the version.
    pub(crate) fn length(&mut self, len: u64) {
        match (self.format.version, u32::try_from(len)) {
            (Version::V1, Ok(short)) => self.number(short),
            (Version::V1, Err(_)) => self.too_long = self.too_long.or(Some(len)),
            (Version::V2 | Version::V3, _) => self.number(len),
        }
    }

    pub(crate) fn string(&mut self, bytes: &[u8]) {
        self.length(len_u64(bytes.len()));
        self.raw(bytes);
    }

    fn array<T>(
        &mut self,
        element: ValueType,
        items: impl ExactSizeIterator<Item = T>,
        each: fn(&mut Self, T),
    ) {
        self.number(ValueType::Array.id());
        self.number(element.id());
        self.length(len_u64(items.len()));
        for item in items {
            each(self, item);
        }
    }

    fn value(&mut self, value: Value<'_>) {
        match value {
            Value::U8(n) => self.number(n),
            Value::I8(n) => self.number(n),
            Value::U16(n) => self.number(n),
            Value::I16(n) => self.number(n),
            Value::U32(n) => self.number(n),
            Value::I32(n) => self.number(n),
            Value::F32(x) => self.number(x),
            Value::Bool(yes) => self.number(yes),
            Value::String(text) => self.string(text.as_bytes()),
            // The only arrays that reach this arm would be elements of arrays, which the format does not have.
            Value::Array(_) => {}
            Value::U64(n) => self.number(n),
            Value::I64(n) => self.number(n),
            Value::F64(x) => self.number(x),
        }
    }
}

/// What can be written as a metadata value: numbers, `bool`, strings, slices and arrays of those, and values read
/// from another file. Bytes that are no UTF-8 are written with [`Text`].
pub trait Encode {
    #[doc(hidden)]
    fn encode(&self, out: &mut Encoder);
}

/// What can be an element of a written array.
pub trait Element {
    #[doc(hidden)]
    const TYPE: ValueType;

    #[doc(hidden)]
    fn encode_element(&self, out: &mut Encoder);
}

impl<T: Number> Element for T {
    const TYPE: ValueType = <T as Number>::TYPE;

    fn encode_element(&self, out: &mut Encoder) {
        out.number(*self);
    }
}

macro_rules! strings {
    ($($string:ty),*) => {$(
        impl Element for $string {
            const TYPE: ValueType = ValueType::String;

            fn encode_element(&self, out: &mut Encoder) {
                out.string(self.as_bytes());
            }
        }
    )*};
}
strings!(&str, String, Text<'_>);

impl<T: Element> Encode for T {
    fn encode(&self, out: &mut Encoder) {
        out.number(T::TYPE.id());
        self.encode_element(out);
    }
}

impl<T: Element> Encode for [T] {
    fn encode(&self, out: &mut Encoder) {
        out.array(T::TYPE, self.iter(), |out, item| item.encode_element(out));
    }
}

impl<T: Element, const N: usize> Encode for [T; N] {
    fn encode(&self, out: &mut Encoder) {
        self.as_slice().encode(out);
    }
}

impl<T: Element, const N: usize> Encode for &[T; N] {
    fn encode(&self, out: &mut Encoder) {
        self.as_slice().encode(out);
    }
}

impl<T: Element> Encode for &[T] {
    fn encode(&self, out: &mut Encoder) {
        (**self).encode(out);
    }
}

impl<T: Element> Encode for Vec<T> {
    fn encode(&self, out: &mut Encoder) {
        self.as_slice().encode(out);
    }
}

impl Encode for Array<'_> {
    fn encode(&self, out: &mut Encoder) {
        out.array(self.element_type(), self.values(), Encoder::value);
    }
}

impl Encode for Value<'_> {
    fn encode(&self, out: &mut Encoder) {
        match self {
            Value::Array(array) => array.encode(out),
            value => {
                out.number(value.value_type().id());
                out.value(*value);
            }
        }
    }
}
