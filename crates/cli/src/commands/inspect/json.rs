//! The summary for programs: one JSON object, described in `docs/inspect.md`. Fields are only ever added.
//!
//! Invariant: written as a stream. Records, elements, tensors and long strings are gone from memory once they are
//! written; only objects of a fixed number of numbers are built first.

use std::fmt;
use std::io::{self, Write};

use oxcart::gguf::{Entry, SetTensor, Text, Value};
use serde_core::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Value as Json, json};

use super::summary::{File, Integers, SIZES, Share, Special, Summary, Tokenizer, Total};
use crate::limits::{FIRST_ELEMENTS, SHORT_ARRAY};
use crate::printable::Printable;

pub(crate) fn write(summary: &Summary<'_>, tensors: bool, full: bool, out: &mut dyn Write) -> io::Result<()> {
    let mut serializer = serde_json::Serializer::with_formatter(&mut *out, Printable);
    Object { summary, tensors, full }.serialize(&mut serializer)?;
    writeln!(out)
}

struct Object<'a> {
    summary: &'a Summary<'a>,
    tensors: bool,
    full: bool,
}

impl Serialize for Object<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Object { summary, tensors, full } = *self;
        let format = json!({
            "version": summary.format.version.number(),
            "byte_order": summary.format.byte_order.to_string(),
            "alignment": summary.model.first().header().alignment(),
        });
        let mut object = serializer.serialize_map(None)?;
        object.serialize_entry("format", &format)?;
        object.serialize_entry("files", &Each(|| summary.files.iter().map(Shown)))?;
        object.serialize_entry("model", &Shown(summary))?;
        object.serialize_entry("tokenizer", &summary.tokenizer.as_ref().map(Shown))?;
        object.serialize_entry("totals", &totals(summary))?;
        object.serialize_entry("types", &Each(|| summary.types.iter().map(share)))?;
        let records = || summary.model.metadata().iter().map(|entry| (entry.key(), Record { entry, full }));
        object.serialize_entry("metadata", &Pairs(records))?;
        if tensors {
            object.serialize_entry("tensors", &Each(|| summary.model.tensors().map(tensor)))?;
        }
        object.end()
    }
}

/// An array whose elements are made one after the other.
struct Each<F>(F);

impl<F: Fn() -> I, I: Iterator<Item: Serialize>> Serialize for Each<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0())
    }
}

/// An object whose fields are made one after the other.
struct Pairs<F>(F);

impl<F: Fn() -> I, I: Iterator<Item = (K, V)>, K: Serialize, V: Serialize> Serialize for Pairs<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0())
    }
}

/// What is described in `docs/inspect.md` for its type.
struct Shown<T>(T);

/// A string, or `{"hex": ..}` for bytes that are none.
impl Serialize for Shown<Text<'_>> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.to_str() {
            Some(text) => serializer.serialize_str(text),
            None => serializer.collect_map([("hex", Hex(self.0.as_bytes()))]),
        }
    }
}

/// Two digits for each byte.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Serialize for Hex<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Shown<&File<'_>> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut file = serializer.serialize_map(None)?;
        file.serialize_entry("path", &Shown(Text::new(self.0.path.as_os_str().as_encoded_bytes())))?;
        file.serialize_entry("bytes", &self.0.bytes)?;
        file.serialize_entry("tensors", &self.0.tensors)?;
        file.end()
    }
}

/// The field `model`.
impl Serialize for Shown<&Summary<'_>> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let summary = self.0;
        let mut model = serializer.serialize_map(None)?;
        for (field, text) in [
            ("name", summary.name),
            ("organization", summary.organization),
            ("license", summary.license),
            ("architecture", summary.architecture),
            ("size_label", summary.size_label),
        ] {
            model.serialize_entry(field, &text.map(Shown))?;
        }
        model.serialize_entry("quantization", &summary.quantization)?;
        for size in &SIZES {
            let found = summary.sizes.iter().find(|(found, _)| found.json == size.json);
            model.serialize_entry(size.json, &found.map(|(_, numbers)| integers(numbers)))?;
        }
        model.end()
    }
}

fn integers(numbers: &Integers) -> Json {
    match numbers {
        Integers::One(number) => integer(*number),
        Integers::PerLayer(numbers) => numbers.iter().map(|&number| integer(number)).collect(),
        Integers::TooMany(count) => json!({ "count": count }),
    }
}

impl Serialize for Shown<&Tokenizer<'_>> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let tokenizer = self.0;
        let special = || tokenizer.special.iter().map(|special| (special.role, Shown(special)));
        let mut object = serializer.serialize_map(None)?;
        object.serialize_entry("model", &Shown(tokenizer.model))?;
        object.serialize_entry("pre", &tokenizer.pre.map(Shown))?;
        object.serialize_entry("tokens", &tokenizer.tokens)?;
        object.serialize_entry("merges", &tokenizer.merges)?;
        object.serialize_entry("special", &Pairs(special))?;
        object.serialize_entry("chat_template_bytes", &tokenizer.chat_template_bytes)?;
        object.end()
    }
}

impl Serialize for Shown<&Special<'_>> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut special = serializer.serialize_map(None)?;
        special.serialize_entry("id", &self.0.id)?;
        special.serialize_entry("text", &self.0.text.map(Shown))?;
        special.end()
    }
}

fn totals(summary: &Summary<'_>) -> Json {
    let Total { tensors, parameters, bytes } = summary.total;
    json!({
        "file_bytes": summary.file_bytes(),
        "tensors": tensors,
        "parameters": parameters,
        "tensor_bytes": bytes,
        "bits_per_weight": summary.total.bits_per_weight(),
    })
}

fn share(share: &Share) -> Json {
    let Total { tensors, parameters, bytes } = share.total;
    json!({ "type": share.dtype.name(), "tensors": tensors, "parameters": parameters, "bytes": bytes })
}

/// The value of a metadata record.
struct Record<'a> {
    entry: Entry<'a>,
    full: bool,
}

impl Serialize for Record<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let value = self.entry.value();
        let mut record = serializer.serialize_map(None)?;
        record.serialize_entry("type", value.value_type().name())?;
        match value {
            Value::Array(array) => {
                record.serialize_entry("element_type", array.element_type().name())?;
                record.serialize_entry("count", &array.len())?;
                let whole = self.full || array.len() <= SHORT_ARRAY;
                let shown = if whole { array.len() } else { FIRST_ELEMENTS };
                let elements = Each(|| array.values().take(shown).map(Shown));
                record.serialize_entry(if whole { "value" } else { "first" }, &elements)?;
            }
            value => record.serialize_entry("value", &Shown(value))?,
        }
        record.end()
    }
}

/// Values other than arrays.
impl Serialize for Shown<Value<'_>> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::String(text) => Shown(text).serialize(serializer),
            Value::Bool(yes) => serializer.serialize_bool(yes),
            Value::F32(x) if x.is_finite() => serializer.serialize_f32(x),
            Value::F32(x) => serializer.serialize_str(not_finite(x.into())),
            Value::F64(x) if x.is_finite() => serializer.serialize_f64(x),
            Value::F64(x) => serializer.serialize_str(not_finite(x)),
            value => value.integer().map(integer).serialize(serializer),
        }
    }
}

/// Every integer of the format fits one of the two.
fn integer(number: i128) -> Json {
    let unsigned = u64::try_from(number).map(Json::from);
    unsigned.or_else(|_| i64::try_from(number).map(Json::from)).unwrap_or(Json::Null)
}

/// JSON has no words for what is not finite.
fn not_finite(x: f64) -> &'static str {
    if x.is_nan() {
        "NaN"
    } else if x > 0.0 {
        "Infinity"
    } else {
        "-Infinity"
    }
}

fn tensor(tensor: SetTensor<'_>) -> Json {
    let extents = tensor.info.shape().extents();
    json!({
        "name": tensor.info.name(),
        "type": tensor.info.dtype().name(),
        "shape": extents.iter().take(tensor.info.dims() as usize).collect::<Vec<_>>(),
        "bytes": tensor.info.byte_len(),
        "offset": tensor.info.offset(),
        "file": tensor.file_index,
    })
}
