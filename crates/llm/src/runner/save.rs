//! A sequence in a file: its tokens and what devices hold of them.
//!
//! | bytes | |
//! |---|---|
//! | 8 | `OXSEQ`, two zeros, the version 3 |
//! | 32 | digest of the model |
//! | 4, 4 | type of keys, type of values, by their numbers in model files |
//! | 8, then 4 each | number of tokens; the tokens |
//! | for each kind of page: 4, then 1 each | number of pages; whether each is held |
//! | | the pages that are held, block by block: keys, then values |
//! | | recurrent state, block by block |
//! | 8, then so many | what the caller adds |
//! | 32 | BLAKE3 of everything before |
//!
//! All numbers are little-endian. Invariant: nothing of a file is used before its digest was found to be right and its model
//! and settings to be those of the runner; nothing is allocated by a number that was not compared with what the runner has.

use std::io::{self, Read, Seek, SeekFrom, Write};

use oxcart_tensor::dtype_id;

use super::pages::PAGE;
use super::sequence::SequenceId;
use super::{Runner, State};
use crate::model::Error;

const MAGIC: [u8; 8] = *b"OXSEQ\0\0\x03";

/// Bytes that the caller may add.
pub const MAX_EXTRA: usize = 1 << 24;

/// A digest of all that passes.
struct Digesting<T> {
    inner: T,
    hasher: blake3::Hasher,
}

impl<W: Write> Write for Digesting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.hasher.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

fn damaged(what: &'static str) -> Error {
    Error::SavedState(what)
}

impl Runner {
    /// Writes a sequence to a file, and what the caller adds; at most [`MAX_EXTRA`] bytes of it.
    pub fn save(&self, id: SequenceId, extra: &[u8], out: impl Write) -> Result<(), Error> {
        if extra.len() > MAX_EXTRA {
            return Err(Error::setting("what is saved with a sequence", extra.len(), "is too long"));
        }
        let (sequence, state) = (self.sequence(id)?, self.held()?);
        let mut out = Digesting { inner: out, hasher: blake3::Hasher::new() };
        out.write_all(&MAGIC)?;
        out.write_all(&self.model().fingerprint()?)?;
        let types = self.options.cache_types();
        for dtype in [types.keys, types.values] {
            out.write_all(&dtype_id(dtype).to_le_bytes())?;
        }
        out.write_all(&(sequence.len() as u64).to_le_bytes())?;
        for token in &sequence.tokens {
            out.write_all(&token.to_le_bytes())?;
        }
        let mut bytes = Vec::new();
        for (kind, table) in sequence.tables.iter().enumerate() {
            let table = &table[..table.len().min(sequence.len().div_ceil(PAGE))];
            out.write_all(&(table.len() as u32).to_le_bytes())?;
            for page in table {
                out.write_all(&[u8::from(page.is_some())])?;
            }
            for &page in table.iter().flatten() {
                bytes.clear();
                state.read_page(kind, page, &mut bytes)?;
                out.write_all(&bytes)?;
            }
        }
        bytes.clear();
        state.read_row(sequence.row, &mut bytes)?;
        out.write_all(&bytes)?;
        out.write_all(&(extra.len() as u64).to_le_bytes())?;
        out.write_all(extra)?;
        let Digesting { mut inner, hasher } = out;
        inner.write_all(hasher.finalize().as_bytes())?;
        Ok(inner.flush()?)
    }

    /// Opens a sequence as it was saved, and returns what the caller had added.
    pub fn restore(&mut self, file: impl Read + Seek) -> Result<(SequenceId, Vec<u8>), Error> {
        self.restore_in(0, file)
    }

    /// The same, in a [scope](Runner::open_in).
    pub fn restore_in(
        &mut self,
        scope: u64,
        mut file: impl Read + Seek,
    ) -> Result<(SequenceId, Vec<u8>), Error> {
        check_digest(&mut file)?;
        let mut header = [0; 8];
        read_bytes(&mut file, &mut header)?;
        if header != MAGIC {
            return Err(damaged("it was not saved by this version"));
        }
        let mut model = [0; 32];
        read_bytes(&mut file, &mut model)?;
        if model != self.model().fingerprint()? {
            return Err(damaged("it was saved with another model"));
        }
        let types = self.options.cache_types();
        for dtype in [types.keys, types.values] {
            if read_number(&mut file)? != dtype_id(dtype) {
                return Err(damaged("it was saved with another type of cache"));
            }
        }
        let count = usize::try_from(read_number_u64(&mut file)?).unwrap_or(usize::MAX);
        if count > self.options.context {
            return Err(damaged("it has more tokens than fit into a context"));
        }
        let mut tokens = Vec::with_capacity(count);
        let vocabulary = self.model().hyper().vocabulary;
        for _ in 0..count {
            tokens.push(read_number(&mut file)?);
        }
        if tokens.iter().any(|&token| token as usize >= vocabulary) {
            return Err(damaged("it has a token that the model does not have"));
        }
        let id = self.open_in(scope)?;
        match self.fill(id, &tokens, &mut file) {
            Ok(extra) => Ok((id, extra)),
            Err(error) => {
                self.close(id)?;
                Err(error)
            }
        }
    }

    /// Gives an empty sequence its tokens and what a file holds of them.
    fn fill(&mut self, id: SequenceId, tokens: &[u32], file: &mut impl Read) -> Result<Vec<u8>, Error> {
        let full = Error::StateFull { asked: tokens.len(), used: 0 };
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return Err(Error::NoSuchSequence { sequence: id });
        };
        let window = self.graphs.model().hyper().kept_window();
        if sequence.take_in(tokens, &mut self.pools, window).is_none() {
            return Err(Error::InSequence { sequence: id, error: Box::new(full) });
        }
        // From here on, closing the sequence gives everything back.
        let (row, tables) = (sequence.row, sequence.tables.clone());
        let state = self.held()?;
        let mut bytes = Vec::new();
        for (kind, table) in tables.iter().enumerate() {
            let count = read_number(file)? as usize;
            if count != table.len() {
                return Err(damaged("it has another number of pages than its tokens need"));
            }
            let mut held = vec![0; count];
            read_bytes(file, &mut held)?;
            bytes.resize(state.page_bytes(kind), 0);
            for (page, held) in table.iter().zip(held) {
                if held != 0 {
                    read_bytes(file, &mut bytes)?;
                }
                match page {
                    Some(page) if held != 0 => _ = state.write_page(kind, *page, &bytes)?,
                    Some(_) => return Err(damaged("pages are missing")),
                    None => {}
                }
            }
        }
        bytes.resize(state.row_bytes(), 0);
        read_bytes(file, &mut bytes)?;
        state.write_row(row, &bytes)?;
        let len = usize::try_from(read_number_u64(file)?).unwrap_or(usize::MAX);
        if len > MAX_EXTRA {
            return Err(damaged("what was added to it is too long"));
        }
        let mut extra = vec![0; len];
        read_bytes(file, &mut extra)?;
        Ok(extra)
    }

    fn held(&self) -> Result<&State, Error> {
        self.graphs.state().ok_or(Error::SavedState("there is no state"))
    }
}

/// Reads all of a file and compares its digest; afterwards it is at its beginning.
fn check_digest(file: &mut (impl Read + Seek)) -> Result<(), Error> {
    let len = file.seek(SeekFrom::End(0))?;
    let body = len.checked_sub(32).ok_or(damaged("it is too short"))?;
    file.seek(SeekFrom::Start(0))?;
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader((&mut *file).take(body))?;
    let mut digest = [0; 32];
    read_bytes(file, &mut digest)?;
    if hasher.finalize() != digest {
        return Err(damaged("it is damaged"));
    }
    file.seek(SeekFrom::Start(0))?;
    Ok(())
}

pub(crate) fn read_bytes(file: &mut impl Read, out: &mut [u8]) -> Result<(), Error> {
    file.read_exact(out).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => damaged("it ends too early"),
        _ => Error::Io(error),
    })
}

pub(crate) fn read_number(file: &mut impl Read) -> Result<u32, Error> {
    let mut bytes = [0; 4];
    read_bytes(file, &mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

pub(crate) fn read_number_u64(file: &mut impl Read) -> Result<u64, Error> {
    let mut bytes = [0; 8];
    read_bytes(file, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
