//! JSON schemas of all kinds, with bounded strings and arrays, the same ones for the same seed; and a validator.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use serde_json::{Map, Value, json};

/// SplitMix64.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// From zero to one.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 24) as f32
    }

    fn coin(&mut self) -> bool {
        self.below(2) == 0
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// The schema of this number. All answers to it are short.
pub(crate) fn schema(number: u64) -> Value {
    let mut dice = Dice::new(number);
    let mut schema = match dice.below(8) {
        0 => array(&mut dice, 3),
        _ => object(&mut dice, 3),
    };
    let definitions = json!({
        "word": { "type": "string", "minLength": 1, "maxLength": 8 },
        "pair": { "type": "array", "items": { "$ref": "#/$defs/word" }, "minItems": 2, "maxItems": 2 },
        "list": {
            "type": "object",
            "properties": { "head": { "type": "integer", "minimum": 0, "maximum": 9 }, "tail": { "$ref": "#/$defs/end" } },
            "required": ["head"],
            "additionalProperties": false,
        },
        "end": { "anyOf": [{ "type": "null" }, { "$ref": "#/$defs/list" }] },
    });
    schema["$defs"] = definitions;
    schema
}

/// The schema of this number, without what a model may go on with for ever: lists in lists, properties of any name, fractions of
/// a second.
pub(crate) fn bounded_schema(number: u64) -> Value {
    let mut schema = schema(number);
    bound(&mut schema);
    schema
}

fn bound(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            for (name, member) in members {
                match (name.as_str(), member.as_str()) {
                    ("additionalProperties", _) => *member = json!(false),
                    ("$ref", Some("#/$defs/list")) => *member = json!("#/$defs/pair"),
                    ("format", Some("time")) => *member = json!("date"),
                    _ => bound(member),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(bound),
        _ => {}
    }
}

fn any(dice: &mut Dice, depth: usize) -> Value {
    let kinds = if depth == 0 { 7 } else { 12 };
    match dice.below(kinds) {
        0 | 1 => string(dice),
        2 => integer(dice),
        3 => number(dice),
        4 => json!({ "type": dice.one(&["boolean", "null"]) }),
        5 => json!({ "enum": ["red", "grün", "blue \"quoted\"", 7, -1.5, null, true, ["a", {}]] }),
        6 => json!({ "$ref": dice.one(&["#/$defs/word", "#/$defs/pair", "#/$defs/list"]) }),
        7 => array(dice, depth - 1),
        8 | 9 => object(dice, depth - 1),
        10 => alternatives(dice, depth - 1),
        _ => json!({
            "allOf": [
                { "type": "object", "properties": { "a": any(dice, 0) }, "required": ["a"] },
                { "properties": { "b": string(dice) }, "required": ["b"] },
            ],
            "maxProperties": 2,
        }),
    }
}

fn string(dice: &mut Dice) -> Value {
    match dice.below(6) {
        0 => {
            json!({ "type": "string", "pattern": dice.one(&["^[a-z]{2,5}$", "^(ab|c)+d?$", "^\\d{3}-\\d{4}$", "^[A-ZÄÖÜ]"]), "maxLength": 20 })
        }
        1 => json!({ "type": "string", "format": dice.one(&["date", "ipv4", "uuid", "time"]) }),
        2 => json!({ "const": dice.one(&["fixed", "a\nb", "é\u{1f600}", ""]) }),
        _ => {
            let least = dice.below(4);
            json!({ "type": "string", "minLength": least, "maxLength": least + dice.below(12) })
        }
    }
}

fn integer(dice: &mut Dice) -> Value {
    let low = dice.below(2000) as i64 - 1000;
    match dice.below(4) {
        0 => json!({ "type": "integer" }),
        1 => json!({ "type": "integer", "minimum": low, "maximum": low + 100, "multipleOf": 5 }),
        2 => json!({ "type": "integer", "exclusiveMinimum": low }),
        _ => json!({ "type": "integer", "minimum": low, "maximum": low + dice.below(5000) as i64 }),
    }
}

fn number(dice: &mut Dice) -> Value {
    match dice.below(3) {
        0 => json!({ "type": "number" }),
        1 => json!({ "type": "number", "minimum": -0.25, "maximum": 12.5 }),
        _ => json!({ "type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1 }),
    }
}

fn array(dice: &mut Dice, depth: usize) -> Value {
    let least = dice.below(3);
    let mut schema = json!({ "type": "array", "items": any(dice, depth), "minItems": least, "maxItems": least + dice.below(3) + 1 });
    if dice.below(4) == 0 {
        schema["prefixItems"] = json!([any(dice, 0)]);
    }
    schema
}

fn object(dice: &mut Dice, depth: usize) -> Value {
    let names = ["id", "name", "größe", "list of things", "a\"b", "value", "ok"];
    let mut properties = Map::new();
    for _ in 0..1 + dice.below(4) {
        properties.insert(dice.one(&names).to_owned(), any(dice, depth));
    }
    let required: Vec<String> = properties.keys().filter(|_| dice.coin()).cloned().collect();
    let mut schema = json!({ "type": "object", "properties": properties, "required": required });
    match dice.below(4) {
        0 => schema["additionalProperties"] = any(dice, 0),
        _ => schema["additionalProperties"] = json!(false),
    }
    schema
}

fn alternatives(dice: &mut Dice, depth: usize) -> Value {
    match dice.coin() {
        true => json!({ "anyOf": [any(dice, depth), any(dice, depth)] }),
        false => json!({
            "oneOf": (0..3)
                .map(|kind| {
                    let properties = json!({ "kind": { "const": format!("k{kind}") }, "value": any(dice, depth) });
                    json!({ "type": "object", "properties": properties, "required": ["kind", "value"], "additionalProperties": false })
                })
                .collect::<Value>(),
        }),
    }
}

/// Why an answer does not follow a schema, if it does not.
pub(crate) fn fault(schema: &Value, answer: &str) -> Option<String> {
    let value: Value = match serde_json::from_str(answer) {
        Ok(value) => value,
        Err(error) => return Some(format!("no JSON: {error}")),
    };
    let mut compiler = boon::Compiler::new();
    compiler.set_default_draft(boon::Draft::V2020_12);
    compiler.enable_format_assertions();
    compiler.add_resource("schema.json", schema.clone()).unwrap();
    let mut schemas = boon::Schemas::new();
    let index = compiler.compile("schema.json", &mut schemas).unwrap();
    schemas.validate(&value, index).err().map(|error| format!("{error:#}"))
}
