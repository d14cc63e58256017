//! Metadata under the prefix of the architecture, read as the types a model needs.
//!
//! Invariant: every error names the whole key, and a number was compared with its bounds before it is given out.

use oxcart_gguf::{Entry, Metadata, Value};

use super::error::Error;

/// The keys of one architecture.
#[derive(Clone, Debug)]
pub(crate) struct Keys<'a> {
    metadata: Metadata<'a>,
    prefix: String,
}

impl<'a> Keys<'a> {
    pub(crate) fn new(metadata: Metadata<'a>, architecture: &str) -> Keys<'a> {
        Keys { metadata, prefix: format!("{architecture}.") }
    }

    /// The whole key.
    pub(crate) fn name(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    pub(crate) fn metadata(&self) -> &Metadata<'a> {
        &self.metadata
    }

    fn get(&self, key: &str) -> Option<Entry<'a>> {
        self.metadata.get(&self.name(key))
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
