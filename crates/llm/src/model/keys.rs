//! Metadata under the prefix of the architecture, read as the types a model needs.
//!
//! Invariant: every error names the whole key, and a number was compared with its bounds before it is given out. Every key that was
//! asked for is remembered, so that those that were not can be named.

use std::cell::RefCell;
use std::collections::HashSet;

use oxcart_gguf::{Entry, Metadata, Value};

use super::error::Error;

/// The keys of one architecture.
#[derive(Clone, Debug)]
pub(crate) struct Keys<'a> {
    metadata: Metadata<'a>,
    prefix: String,
    asked: RefCell<HashSet<String>>,
}

impl<'a> Keys<'a> {
    pub(crate) fn new(metadata: Metadata<'a>, architecture: &str) -> Keys<'a> {
        Keys { metadata, prefix: format!("{architecture}."), asked: RefCell::default() }
    }

    /// The whole key.
    pub(crate) fn name(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    pub(crate) fn metadata(&self) -> &Metadata<'a> {
        &self.metadata
    }

    fn get(&self, key: &str) -> Option<Entry<'a>> {
        let name = self.name(key);
        let found = self.metadata.get(&name);
        self.asked.borrow_mut().insert(name);
        found
    }

    /// Keys that were not asked for and that say something: not zero, not false, not empty.
    pub(crate) fn unread(&self) -> Vec<String> {
        let asked = self.asked.borrow();
        let is_unread = |name: &str| {
            name.strip_prefix(&self.prefix).is_some_and(|key| !says_nothing_here(key))
                && !asked.contains(name)
        };
        let unread =
            self.metadata.iter().filter(|entry| is_unread(entry.key()) && says_something(entry.value()));
        unread.map(|entry| entry.key().to_owned()).collect()
    }

    /// An error about a key.
    pub(crate) fn refuse(&self, key: &str, value: impl ToString, rule: impl Into<String>) -> Error {
        Error::parameter(self.name(key), value, rule)
    }

    /// A count from 1 to `most`; zero is none.
    pub(crate) fn count(&self, key: &str, most: usize) -> Result<Option<usize>, Error> {
        let Some(entry) = self.get(key) else { return Ok(None) };
        let value = self.in_range(key, entry.usize()?, 0, most)?;
        Ok(Some(value).filter(|&value| value > 0))
    }

    /// A count from 1 to `most` that must be there.
    pub(crate) fn need_count(&self, key: &str, most: usize) -> Result<usize, Error> {
        self.metadata.require(&self.name(key))?;
        self.count(key, most)?.ok_or_else(|| self.refuse(key, 0, format!("must be from 1 to {most}")))
    }

    /// A token by its number; that of a text's beginning unless it is there.
    pub(crate) fn start_token(&self, key: &str, vocabulary: usize) -> Result<u32, Error> {
        const BEGINNING: &str = "tokenizer.ggml.bos_token_id";
        let stated = self.get(key).map(|entry| entry.usize()).transpose()?;
        let token = match stated {
            Some(token) => token,
            None => match self.metadata.get(BEGINNING) {
                Some(entry) => entry.usize()?,
                None => self.metadata.require(&self.name(key))?.usize()?,
            },
        };
        Ok(self.in_range(key, token, 0, vocabulary - 1)? as u32)
    }

    /// One count for all blocks, or one for each.
    pub(crate) fn counts(&self, key: &str, blocks: usize, most: usize) -> Result<Option<Vec<usize>>, Error> {
        let Some(entry) = self.get(key) else { return Ok(None) };
        if !matches!(entry.value(), Value::Array(_)) {
            return Ok(Some(vec![self.in_range(key, entry.usize()?, 0, most)?; blocks]));
        }
        let values = entry.integers()?;
        if values.len() != blocks {
            return Err(self.refuse(
                key,
                format!("{} numbers", values.len()),
                format!("must be one for each of {blocks} blocks"),
            ));
        }
        let checked = values.map(|value| match usize::try_from(value) {
            Ok(value) => self.in_range(key, value, 0, most),
            Err(_) => Err(self.refuse(key, value, "must not be negative")),
        });
        checked.collect::<Result<_, _>>().map(Some)
    }

    /// Counts, however many.
    pub(crate) fn list(&self, key: &str, most: usize) -> Result<Option<Vec<usize>>, Error> {
        let Some(entry) = self.get(key) else { return Ok(None) };
        let checked = entry.integers()?.map(|value| match usize::try_from(value) {
            Ok(value) => self.in_range(key, value, 0, most),
            Err(_) => Err(self.refuse(key, value, "must not be negative")),
        });
        checked.collect::<Result<_, _>>().map(Some)
    }

    /// One number for all blocks, or one for each; finite.
    pub(crate) fn numbers(&self, key: &str, blocks: usize) -> Result<Option<Vec<f32>>, Error> {
        let Some(entry) = self.get(key) else { return Ok(None) };
        if !matches!(entry.value(), Value::Array(_)) {
            return Ok(self.number(key)?.map(|number| vec![number; blocks]));
        }
        let numbers: Vec<f32> = entry.array::<f32>()?.collect();
        if numbers.len() != blocks || numbers.iter().any(|number| !number.is_finite()) {
            let found = format!("{} numbers", numbers.len());
            return Err(self.refuse(key, found, format!("must be a finite one for each of {blocks} blocks")));
        }
        Ok(Some(numbers))
    }

    fn in_range(&self, key: &str, value: usize, least: usize, most: usize) -> Result<usize, Error> {
        if (least..=most).contains(&value) {
            return Ok(value);
        }
        Err(self.refuse(key, value, format!("must be from {least} to {most}")))
    }

    /// A finite number.
    pub(crate) fn number(&self, key: &str) -> Result<Option<f32>, Error> {
        let Some(entry) = self.get(key) else { return Ok(None) };
        let value = entry.f32()?;
        if value.is_finite() { Ok(Some(value)) } else { Err(self.refuse(key, value, "must be finite")) }
    }

    /// A finite number that is not zero, which is none.
    pub(crate) fn factor(&self, key: &str) -> Result<Option<f32>, Error> {
        Ok(self.number(key)?.filter(|&value| value != 0.0))
    }

    /// A finite number above zero, which is none.
    pub(crate) fn positive(&self, key: &str) -> Result<Option<f32>, Error> {
        match self.factor(key)? {
            Some(value) if value < 0.0 => Err(self.refuse(key, value, "must not be negative")),
            value => Ok(value),
        }
    }

    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>, Error> {
        Ok(self.get(key).map(|entry| entry.bool()).transpose()?)
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&'a str>, Error> {
        Ok(self.get(key).map(|entry| entry.str()).transpose()?)
    }

    /// How many texts an array has.
    pub(crate) fn strings(&self, key: &str) -> Result<Option<usize>, Error> {
        Ok(self.get(key).map(|entry| entry.strings()).transpose()?.map(|texts| texts.len()))
    }

    /// Flags for each block: an array of booleans or integers, if it is one.
    pub(crate) fn flags(&self, key: &str, blocks: usize) -> Result<Option<Vec<bool>>, Error> {
        let Some(entry) = self.get(key) else { return Ok(None) };
        if !matches!(entry.value(), Value::Array(_)) {
            return Ok(None);
        }
        let flags: Vec<bool> = match entry.array::<bool>() {
            Ok(flags) => flags.collect(),
            Err(_) => entry.integers()?.map(|flag| flag != 0).collect(),
        };
        if flags.len() != blocks {
            let found = format!("{} flags", flags.len());
            return Err(self.refuse(key, found, format!("must be one for each of {blocks} blocks")));
        }
        Ok(Some(flags))
    }
}

/// Keys that have nothing to do with what a model computes of tokens: of other parts of it, or of how it came about.
fn says_nothing_here(key: &str) -> bool {
    let prefixes = ["vision.", "audio.", "tokenizer.", "dense_", "classifier."];
    let names = ["vocab_size", "tensor_data_layout", "rope.scaling.finetuned", "embedding_length_out"];
    prefixes.iter().any(|prefix| key.starts_with(prefix)) || names.contains(&key)
}

/// Whether a value is more than a word for "none".
fn says_something(value: Value<'_>) -> bool {
    let is_none = |number: f64| number == 0.0 || number == -1.0 || number == f64::from(u32::MAX);
    match value {
        Value::Array(array) => array.values().any(says_something),
        Value::String(text) => !text.as_bytes().is_empty(),
        Value::Bool(flag) => flag,
        Value::F32(number) => !is_none(f64::from(number)),
        Value::F64(number) => !is_none(number),
        // Numbers below zero are none, too.
        _ => value.integer().is_some_and(|number| number >= 0 && !is_none(number as f64)),
    }
}
