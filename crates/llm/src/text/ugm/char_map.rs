//! How SentencePiece normalizes characters: a table that files carry (`tokenizer.ggml.precompiled_charsmap`).
//!
//! The table is a length, a tree of byte strings as a double array of 32-bit words, and replacements that end with zero bytes. In
//! a word, bits 10 to 30 are the offset to its children (times 256 if bit 9 is set), bits 0 to 7 the byte that leads to it, and
//! bit 8 says that a string ends here; the child of byte zero then holds where the replacement is.
//!
//! Invariant: every look-up stays within the table, whatever is in it, and takes and gives a bounded number of bytes, even if the tree
//! is none.

use crate::text::limits::MAX_REPLACEMENT_BYTES;

/// A table of replacements.
#[derive(Debug)]
pub(crate) struct CharMap {
    words: Vec<u32>,
    replacements: Vec<u8>,
}

/// Bytes that are no such table.
#[derive(Debug)]
pub(crate) struct BadCharMap;

impl CharMap {
    pub(crate) fn new(bytes: &[u8]) -> Result<CharMap, BadCharMap> {
        let (len, rest) = bytes.split_first_chunk::<4>().ok_or(BadCharMap)?;
        let len = usize::try_from(u32::from_le_bytes(*len)).map_err(|_| BadCharMap)?;
        let (words, replacements) = rest.split_at_checked(len).ok_or(BadCharMap)?;
        // A table whose last replacement has no end is cut off.
        if replacements.is_empty() || !len.is_multiple_of(4) || !replacements.ends_with(&[0]) {
            return Err(BadCharMap);
        }
        if replacements.split(|&byte| byte == 0).any(|one| one.len() > MAX_REPLACEMENT_BYTES) {
            return Err(BadCharMap);
        }
        let words = words
            .chunks_exact(4)
            .map(|word| word.iter().rev().fold(0, |all, &byte| all << 8 | u32::from(byte)));
        Ok(CharMap { words: words.collect(), replacements: replacements.to_vec() })
    }

    /// What stands for the longest string of the table that a text begins with, and how long that is.
    pub(crate) fn longest(&self, text: &[u8]) -> Option<(&[u8], usize)> {
        let word = |at: u32| self.words.get(usize::try_from(at).ok()?).copied();
        let base = |word: u32| (word >> 10) << ((word & (1 << 9)) >> 6);
        let mut at = base(word(0)?);
        let mut found = None;
        for (index, &byte) in text.iter().take(MAX_REPLACEMENT_BYTES).enumerate() {
            at ^= u32::from(byte);
            let Some(here) = word(at).filter(|here| byte != 0 && here & (1 << 31 | 0xff) == u32::from(byte))
            else {
                break;
            };
            at ^= base(here);
            if here & (1 << 8) != 0 {
                found = word(at).map(|value| (value & !(1 << 31), index + 1));
            }
        }
        let (start, read) = found?;
        let replacement = self.replacements.get(usize::try_from(start).ok()?..)?;
        let end = memchr::memchr(0, replacement)?;
        Some((replacement.get(..end)?, read))
    }
}
