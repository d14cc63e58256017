//! Instead of a mapping: a private copy, which cannot be lost, at the price of reading all of the file at once.
//!
//! Invariant: it starts at a multiple of [`ALIGN`], as a mapping would, so that devices can compute on it where it is.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use crate::cursor::len_u64;
use crate::error::{Error, Result};
use crate::memory::with_room;

/// What tensors in host memory start at.
const ALIGN: usize = 64;

/// The bytes of a file.
#[derive(Debug)]
pub(super) struct Mapping {
    /// Some bytes to get to where it may start, then the file.
    bytes: Vec<u8>,
    start: usize,
}

impl Mapping {
    pub(super) fn new(file: &File, len: usize) -> Result<Mapping> {
        let mut bytes = with_room::<u8>(len.saturating_add(ALIGN))?;
        let address = bytes.as_ptr().addr();
        let start = address.next_multiple_of(ALIGN).saturating_sub(address);
        // There is room for all of it, so it stays where it is.
        bytes.resize(start, 0);
        let mut file = file.try_clone().map_err(Error::io("read"))?;
        file.seek(SeekFrom::Start(0)).map_err(Error::io("read"))?;
        let read = file.take(len_u64(len)).read_to_end(&mut bytes).map_err(Error::io("read"))?;
        if read == len { Ok(Mapping { bytes, start }) } else { Err(Error::Shrunk) }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or_default()
    }

    pub(super) fn is_lost(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_copy_is_the_file_and_starts_where_tensors_may() {
        for len in [0, 1, 63, 64, 65, 4096, 100_001] {
            let content: Vec<u8> = (0..len).map(|i: usize| i as u8).collect();
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&content).unwrap();
            let copy = Mapping::new(&file, len).unwrap();
            assert_eq!(copy.bytes(), content);
            assert_eq!(copy.bytes().as_ptr().addr() % ALIGN, 0, "{len}");
            assert!(!copy.is_lost());
            assert!(matches!(Mapping::new(&file, len + 1), Err(Error::Shrunk)));
        }
    }

    #[test]
    fn too_much_is_refused() {
        let file = tempfile::tempfile().unwrap();
        assert!(matches!(Mapping::new(&file, usize::MAX), Err(Error::OutOfMemory { .. })));
    }
}
