//! What a JSON schema may ask for.
//!
//! The compiler recurses over a schema, compares every pattern with every other, computes bounds as `i64` and multiples as
//! `u32`, and looks for references anywhere. So sizes, depth and patterns are limited, numbers are kept where these types are
//! exact, and a reference leads to a schema that was checked, or nowhere.
//!
//! Invariant: no recursion, and nothing is copied. A number is changed only so that less matches than before.

use serde_json::{Map, Value, json};

use super::{ConstrainError, GrammarKind};
use crate::text::limits::{
    MAX_GRAMMAR_DEPTH, MAX_PATTERN_PROPERTIES, MAX_SCHEMA_BYTES, MAX_SCHEMA_COUNT, MAX_SCHEMA_MULTIPLE,
    MAX_SCHEMA_NUMBER, MAX_SCHEMA_PROPERTIES, MAX_SCHEMA_VALUES,
};

/// Whether numbers may be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repair {
    Allowed,
    /// What would have to be changed is an error.
    Refused,
}

/// What stands at a place of a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Schema,
    /// A schema or an array of them.
    Schemas,
    /// An object whose members are schemas.
    Named,
    /// Anything else, such as a value that is compared with.
    Data,
}

impl Place {
    /// What a keyword of a schema holds.
    fn of(keyword: &str) -> Place {
        match keyword {
            "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas"
            | "dependencies" => Place::Named,
            "items" | "prefixItems" | "additionalItems" | "anyOf" | "allOf" | "oneOf" => Place::Schemas,
            "additionalProperties"
            | "propertyNames"
            | "contains"
            | "not"
            | "if"
            | "then"
            | "else"
            | "unevaluatedItems"
            | "unevaluatedProperties" => Place::Schema,
            _ => Place::Data,
        }
    }

    /// What the parts of what stands here are.
    fn part(self, key: &str) -> Place {
        match self {
            Place::Schema | Place::Schemas => Place::of(key),
            Place::Named => Place::Schema,
            Place::Data => Place::Data,
        }
    }

    fn element(self) -> Place {
        match self {
            Place::Schemas => Place::Schema,
            _ => Place::Data,
        }
    }

    fn is_schema(self) -> bool {
        matches!(self, Place::Schema | Place::Schemas)
    }
}

fn too_large(what: &'static str, size: usize, limit: usize) -> Result<(), ConstrainError> {
    let kind = GrammarKind::JsonSchema;
    if size > limit { Err(ConstrainError::TooLarge { kind, what, size, limit }) } else { Ok(()) }
}

/// Checks how large a schema is, and how deeply nested.
pub(super) fn measure(schema: &Value) -> Result<(), ConstrainError> {
    let (mut values, mut bytes) = (0, 0);
    let mut todo = vec![(schema, 0)];
    while let Some((value, depth)) = todo.pop() {
        values += 1;
        too_large("levels", depth, MAX_GRAMMAR_DEPTH)?;
        match value {
            Value::String(text) => bytes += text.len(),
            Value::Array(elements) => todo.extend(elements.iter().map(|element| (element, depth + 1))),
            Value::Object(members) => {
                bytes += members.keys().map(String::len).sum::<usize>();
                todo.extend(members.values().map(|member| (member, depth + 1)));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
        too_large("bytes of text", bytes, MAX_SCHEMA_BYTES)?;
        too_large("values", values + todo.len(), MAX_SCHEMA_VALUES)?;
    }
    Ok(())
}

/// Checks the numbers, patterns and references of a schema that is not too large.
pub(super) fn check(schema: &mut Value, repair: Repair) -> Result<(), ConstrainError> {
    let mut references = Vec::new();
    let mut multiples = Multiples::default();
    let mut patterns = 0;
    let mut todo = vec![(&mut *schema, Place::Schema)];
    while let Some((value, place)) = todo.pop() {
        match value {
            Value::Object(members) => {
                if place.is_schema() {
                    check_numbers(members, repair)?;
                    if let Some(multiple) = members.get("multipleOf") {
                        multiples.add(multiple)?;
                    }
                    if let Some(Value::String(reference)) = members.get("$ref") {
                        references.push(reference.clone());
                    }
                    let named = members.get("properties").and_then(Value::as_object).map_or(0, Map::len);
                    let required = members.get("required").and_then(Value::as_array).map_or(0, Vec::len);
                    too_large("properties", named.max(required), MAX_SCHEMA_PROPERTIES)?;
                    patterns +=
                        members.get("patternProperties").and_then(Value::as_object).map_or(0, Map::len);
                    too_large("pattern properties", patterns, MAX_PATTERN_PROPERTIES)?;
                }
                todo.extend(members.iter_mut().map(|(key, member)| (member, place.part(key))));
            }
            Value::Array(elements) => {
                todo.extend(elements.iter_mut().map(|element| (element, place.element())));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    match references.into_iter().find(|reference| !leads_to_a_schema(schema, reference)) {
        Some(reference) => Err(ConstrainError::Grammar {
            kind: GrammarKind::JsonSchema,
            reason: format!("{reference:?} leads to no schema in it"),
        }),
        None => Ok(()),
    }
}

/// Whether a reference such as `#/$defs/name` leads to something that was checked as a schema.
fn leads_to_a_schema(schema: &Value, reference: &str) -> bool {
    let Some(path) = reference.strip_prefix('#') else { return false };
    let (mut value, mut place) = (schema, Place::Schema);
    for key in path.strip_prefix('/').unwrap_or(path).split('/').filter(|_| path.len() > 1) {
        let (next, found) = match value {
            Value::Object(members) => (members.get(key), place.part(key)),
            Value::Array(elements) => {
                (key.parse().ok().and_then(|index: usize| elements.get(index)), place.element())
            }
            _ => return false,
        };
        let Some(next) = next else { return false };
        (value, place) = (next, found);
    }
    place.is_schema()
}

/// Brings bounds to where they can be computed with.
fn check_numbers(members: &mut Map<String, Value>, repair: Repair) -> Result<(), ConstrainError> {
    let number = MAX_SCHEMA_NUMBER as f64;
    let count = MAX_SCHEMA_COUNT as f64;
    for (keyword, lowest, highest, is_upper) in [
        ("minimum", -number, number, false),
        ("exclusiveMinimum", -number, number, false),
        ("maximum", -number, number, true),
        ("exclusiveMaximum", -number, number, true),
        ("minLength", 0.0, count, false),
        ("minItems", 0.0, count, false),
        ("minProperties", 0.0, count, false),
        ("maxLength", 0.0, count, true),
        ("maxItems", 0.0, count, true),
        ("maxProperties", 0.0, count, true),
    ] {
        let Some(slot) = members.get_mut(keyword) else { continue };
        let Some(value) = slot.as_f64() else { continue };
        let harmless = match is_upper {
            true if value > highest => Some(highest),
            false if value < lowest => Some(lowest),
            _ => None,
        };
        match harmless {
            Some(bound) if repair == Repair::Allowed => *slot = json!(bound as i64),
            None if (lowest..=highest).contains(&value) => {}
            _ => {
                let wanted = match highest == number {
                    true => "within 2^53 of zero",
                    false => "a count of at most a million",
                };
                return Err(ConstrainError::Number { keyword, value: slot.to_string(), wanted });
            }
        }
    }
    Ok(())
}

/// The multiples that a schema asks for: any of them may have to hold at once.
struct Multiples {
    /// The least common multiple, in units of a power of ten.
    common: u64,
    /// Digits behind the point.
    scale: u32,
}

impl Default for Multiples {
    fn default() -> Multiples {
        Multiples { common: 1, scale: 0 }
    }
}

impl Multiples {
    fn add(&mut self, multiple: &Value) -> Result<(), ConstrainError> {
        let refuse = || ConstrainError::Number {
            keyword: "multipleOf",
            value: multiple.to_string(),
            wanted: "above 0 and, with the others of the schema, divide some number below 50,000",
        };
        let Some(value) = multiple.as_f64() else { return Ok(()) };
        if !(1e-6..=1e6).contains(&value) {
            return Err(refuse());
        }
        let written = format!("{value}");
        let (whole, fraction) = written.split_once('.').unwrap_or((&written, ""));
        let digits: u64 = format!("{whole}{fraction}").parse().map_err(|_| refuse())?;
        let scale = u32::try_from(fraction.len()).map_err(|_| refuse())?;
        let widen = |number: u64, by: u32| 10_u64.checked_pow(by).and_then(|power| number.checked_mul(power));
        let common = widen(self.common, scale.saturating_sub(self.scale)).ok_or_else(refuse)?;
        let digits = widen(digits, self.scale.saturating_sub(scale)).ok_or_else(refuse)?;
        let common = (common / divisor(common, digits)).checked_mul(digits).ok_or_else(refuse)?;
        if common > MAX_SCHEMA_MULTIPLE {
            return Err(refuse());
        }
        *self = Multiples { common, scale: self.scale.max(scale) };
        Ok(())
    }
}

/// The greatest common divisor.
fn divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a.max(1) } else { divisor(b, a % b) }
}

/// Checks the schemas that stand in a grammar as `%json {…}`. What is in a comment or a string is checked, too, because
/// telling them apart would take a second parser; what is no JSON is left to the compiler.
pub(super) fn check_inline_schemas(lark: &str) -> Result<(), ConstrainError> {
    for (at, keyword) in lark.match_indices("%json") {
        let rest = lark.get(at + keyword.len()..).unwrap_or_default();
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        if let Some(Ok(mut schema)) = values.next() {
            measure(&schema)?;
            check(&mut schema, Repair::Refused)?;
        }
    }
    Ok(())
}

/// A message that is fit for a line: the compiler's own ones show the grammar, and what a panic said.
pub(super) fn one_line(message: &str) -> String {
    const MOST: usize = 300;
    let told = message.split("\n<").next().unwrap_or(message);
    let line: String = told
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join("; ")
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(MOST)
        .collect();
    if line.is_empty() { "for no known reason".to_owned() } else { line }
}
