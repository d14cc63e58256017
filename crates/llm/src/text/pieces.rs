//! Byte strings with small numbers: an arena and a table to find them by.
//!
//! Invariant: strings in the table are unique and keep the number they were given. Memory is what the strings take plus
//! a few words each; the hash is seeded, so that a file cannot aim at it.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

/// Byte strings by number. The same string may be pushed more than once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arena {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Arena {
    pub(crate) fn with_capacity(strings: usize, bytes: usize) -> Arena {
        Arena { bytes: Vec::with_capacity(bytes), ends: Vec::with_capacity(strings) }
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Appends a string, whose number is the length before. All strings together stay below 4 GiB: they come from a
    /// header, which is below 1 GiB, and none of it is used more than twice.
    pub(crate) fn push(&mut self, string: &[u8]) -> u32 {
        let number = self.ends.len() as u32;
        self.bytes.extend_from_slice(string);
        self.ends.push(self.bytes.len() as u32);
        number
    }

    /// The string with this number; nothing where there is none.
    pub(crate) fn get(&self, number: u32) -> &[u8] {
        let number = number as usize;
        let start = if number == 0 { 0 } else { self.ends.get(number - 1).copied().unwrap_or_default() };
        let end = self.ends.get(number).copied().unwrap_or(start);
        self.bytes.get(start as usize..end as usize).unwrap_or_default()
    }
}

/// Unique byte strings, by number and by content.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pieces {
    arena: Arena,
    table: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Pieces {
    pub(crate) fn with_capacity(strings: usize, bytes: usize) -> Pieces {
        Pieces {
            arena: Arena::with_capacity(strings, bytes),
            table: HashTable::with_capacity(strings),
            hasher: DefaultHashBuilder::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.arena.len()
    }

    pub(crate) fn get(&self, number: u32) -> &[u8] {
        self.arena.get(number)
    }

    pub(crate) fn find(&self, string: &[u8]) -> Option<u32> {
        self.table.find(self.hash(string), |&other| self.arena.get(other) == string).copied()
    }

    /// The number of a string, which is added where it is new. `true` says that it was.
    pub(crate) fn intern(&mut self, string: &[u8]) -> (u32, bool) {
        let hash = self.hash(string);
        if let Some(&number) = self.table.find(hash, |&other| self.arena.get(other) == string) {
            return (number, false);
        }
        let number = self.arena.push(string);
        let Pieces { arena, table, hasher } = self;
        table.insert_unique(hash, number, |&other| hasher.hash_one(arena.get(other)));
        (number, true)
    }

    fn hash(&self, string: &[u8]) -> u64 {
        self.hasher.hash_one(string)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_keep_their_numbers() {
        let mut pieces = Pieces::default();
        let strings: Vec<String> = (0..1000).map(|n| format!("{}", n % 500)).collect();
        for (n, string) in strings.iter().enumerate() {
            assert_eq!(pieces.intern(string.as_bytes()), ((n % 500) as u32, n < 500));
        }
        assert_eq!(pieces.len(), 500);
        assert_eq!(pieces.find(b"499"), Some(499));
        assert_eq!(pieces.find(b""), None);
        assert_eq!(pieces.get(7), b"7");
        assert_eq!(pieces.get(u32::MAX), b"");
    }
}
