//! Values of index files; a file that is not what it should be panics with what was found.

use serde_json::Value;

pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("not a list: {value}"))
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("not a string: {value}"))
}

pub(crate) fn number(value: &Value) -> usize {
    value.as_u64().and_then(|n| n.try_into().ok()).unwrap_or_else(|| panic!("not a size: {value}"))
}

pub(crate) fn numbers(value: &Value) -> [usize; 4] {
    std::array::from_fn(|i| number(&value[i]))
}

pub(crate) fn float(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("not a number: {value}"))
}
