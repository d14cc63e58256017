//! The summary for programs: one JSON object, described in `docs/inspect.md`. Fields are only ever added.

use oxcart_gguf::{Array, GgufSet, Text, Value};
use serde_json::{Map, Number, Value as Json, json};

use super::summary::{Integers, SIZES, Share, Summary, Tokenizer, Total};

/// Arrays up to this length are printed with all their elements.
const SHORT_ARRAY: usize = 64;

/// Elements printed of longer arrays.
const FIRST: usize = 8;

pub(crate) fn object(summary: &Summary<'_>, tensors: bool, full: bool) -> Json {
    let mut object = json!({
        "format": {
            "version": summary.format.version.number(),
            "byte_order": summary.format.byte_order.to_string(),
            "alignment": summary.model.first().header().alignment(),
        },
        "files": files(summary),
        "model": model(summary),
        "tokenizer": summary.tokenizer.as_ref().map(tokenizer),
        "totals": totals(summary),
        "types": summary.types.iter().map(share).collect::<Vec<_>>(),
        "metadata": metadata(summary.model, full),
    });
    if tensors {
        object["tensors"] = tensor_list(summary.model);
    }
    object
}

fn files(summary: &Summary<'_>) -> Json {
    let file = |file: &super::summary::File<'_>| {
        json!({
            "path": text(Text::new(file.path.as_os_str().as_encoded_bytes())),
            "bytes": file.bytes,
            "tensors": file.tensors,
        })
    };
    summary.files.iter().map(file).collect()
}

fn model(summary: &Summary<'_>) -> Json {
    let mut model = json!({
        "name": summary.name.map(text),
        "organization": summary.organization.map(text),
        "license": summary.license.map(text),
        "architecture": summary.architecture.map(text),
        "size_label": summary.size_label.map(text),
        "quantization": summary.quantization,
    });
    for size in &SIZES {
        let found = summary.sizes.iter().find(|(found, _)| found.json == size.json);
        model[size.json] = found.map_or(Json::Null, |(_, numbers)| integers(numbers));
    }
    model
}

fn integers(numbers: &Integers) -> Json {
    match numbers {
        Integers::One(number) => integer(*number),
        Integers::PerLayer(numbers) => numbers.iter().map(|&number| integer(number)).collect(),
    }
}

fn tokenizer(tokenizer: &Tokenizer<'_>) -> Json {
    let special = tokenizer.special.iter().map(|special| {
        (special.role.to_owned(), json!({ "id": special.id, "text": special.text.map(text) }))
    });
    json!({
        "model": text(tokenizer.model),
        "pre": tokenizer.pre.map(text),
        "tokens": tokenizer.tokens,
        "merges": tokenizer.merges,
        "special": special.collect::<Map<_, _>>(),
        "chat_template_bytes": tokenizer.chat_template_bytes,
    })
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

fn metadata(model: &GgufSet, full: bool) -> Json {
    let entries = model.metadata().iter().map(|entry| {
        let value = match entry.value() {
            Value::Array(elements) => array(elements, full),
            value => json!({ "type": value.value_type().name(), "value": scalar(value) }),
        };
        (entry.key().to_owned(), value)
    });
    Json::Object(entries.collect())
}

fn array(array: Array<'_>, full: bool) -> Json {
    let whole = full || array.len() <= SHORT_ARRAY;
    let shown = array.values().take(if whole { array.len() } else { FIRST }).map(scalar).collect::<Vec<_>>();
    json!({
        "type": "array",
        "element_type": array.element_type().name(),
        "count": array.len(),
        (if whole { "value" } else { "first" }): shown,
    })
}

fn scalar(value: Value<'_>) -> Json {
    match value {
        Value::String(string) => text(string),
        Value::Bool(yes) => yes.into(),
        // Through text, because the shortest decimal of an f32 is not that of the f64 with the same value.
        Value::F32(x) => float(x.to_string().parse().unwrap_or(f64::NAN)),
        Value::F64(x) => float(x),
        value => value.integer().map_or(Json::Null, integer),
    }
}

/// Every integer of the format fits one of the two.
fn integer(number: i128) -> Json {
    let unsigned = u64::try_from(number).map(Json::from);
    unsigned.or_else(|_| i64::try_from(number).map(Json::from)).unwrap_or(Json::Null)
}

/// JSON has no words for what is not finite.
fn float(x: f64) -> Json {
    match Number::from_f64(x) {
        Some(number) => Json::Number(number),
        None if x.is_nan() => "NaN".into(),
        None if x > 0.0 => "Infinity".into(),
        None => "-Infinity".into(),
    }
}

/// A string, or `{"hex": ..}` for bytes that are none.
fn text(text: Text<'_>) -> Json {
    match text.to_str() {
        Some(text) => text.into(),
        None => {
            let hex: String = text.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
            json!({ "hex": hex })
        }
    }
}

fn tensor_list(model: &GgufSet) -> Json {
    let tensor = |tensor: oxcart_gguf::SetTensor<'_>| {
        let extents = tensor.info.shape().extents();
        json!({
            "name": tensor.info.name(),
            "type": tensor.info.dtype().name(),
            "shape": extents.iter().take(tensor.info.dims() as usize).collect::<Vec<_>>(),
            "bytes": tensor.info.byte_len(),
            "offset": tensor.info.offset(),
            "file": tensor.file_index,
        })
    };
    model.tensors().map(tensor).collect()
}
