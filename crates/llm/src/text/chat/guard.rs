//! Keeps messages from spelling control tokens.
//!
//! Before rendering, a marker is put in front of every control token that the conversation spells; after it, the markers
//! are taken out again, and where they were is remembered. So templates may trim, split and join messages as they like.
//!
//! Invariant: a prompt's text holds no marker, and every control token that a message has spelled begins at a guard.

use serde_json::Value;

use super::{Prompt, TemplateError};
use crate::text::vocab::Vocab;

/// Marks the strings of these values, and says with what: a character that is nowhere in them nor in the template.
pub(super) fn mark(source: &str, values: &mut [&mut Value], vocab: &Vocab) -> Result<char, TemplateError> {
    let mut used = [false; NONCHARACTERS];
    note(source, &mut used);
    each_string(values, |text| note(text, &mut used));
    let free = used.iter().position(|used| !used).ok_or(TemplateError::NoMarker)?;
    let marker = char::from_u32(FIRST_NONCHARACTER + free as u32).ok_or(TemplateError::NoMarker)?;
    each_string(values, |text| {
        let starts = vocab.specials.control_tokens(text.as_bytes());
        let mut marked = String::with_capacity(text.len() + starts.len() * marker.len_utf8());
        let mut rest = text.as_str();
        for start in starts {
            // A token may begin within a character, but then it does not end before the next one does.
            let Some((before, after)) = rest.split_at_checked(start - (text.len() - rest.len())) else {
                continue;
            };
            marked.push_str(before);
            marked.push(marker);
            rest = after;
        }
        marked.push_str(rest);
        *text = marked;
    });
    Ok(marker)
}

/// Takes the markers out of a rendered text.
pub(super) fn unmark(text: String, marker: char) -> Prompt {
    let mut guards = Vec::new();
    let mut plain = String::with_capacity(text.len());
    for part in text.split(marker) {
        guards.push(plain.len());
        plain.push_str(part);
    }
    // The first part begins at no marker.
    guards.remove(0);
    Prompt { text: plain, guards }
}

/// Code points that stand for no character and never will.
const FIRST_NONCHARACTER: u32 = 0xfdd0;
const NONCHARACTERS: usize = 32;

fn note(text: &str, used: &mut [bool; NONCHARACTERS]) {
    for c in text.chars() {
        let place = (c as u32).checked_sub(FIRST_NONCHARACTER).map(|place| place as usize);
        if let Some(used) = place.and_then(|place| used.get_mut(place)) {
            *used = true;
        }
    }
}

/// Every string in these values. Names of fields are left alone: templates ask for them by name.
fn each_string(values: &mut [&mut Value], mut each: impl FnMut(&mut String)) {
    let mut left: Vec<&mut Value> = values.iter_mut().map(|value| &mut **value).collect();
    while let Some(value) = left.pop() {
        match value {
            Value::String(text) => each(text),
            Value::Array(items) => left.extend(items),
            Value::Object(fields) => left.extend(fields.values_mut()),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}
