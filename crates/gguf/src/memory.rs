//! Memory that may be refused: asking for it is an error and not the end of the process.

use crate::cursor::len_u64;
use crate::error::{Error, Result};

/// An empty vector that need not grow up to `len`.
pub(crate) fn with_room<T>(len: usize) -> Result<Vec<T>> {
    let mut vec = Vec::new();
    vec.try_reserve_exact(len).map_err(|_| out_of_memory::<T>(len))?;
    Ok(vec)
}

/// What to say when there was no room for `len` more of `T`.
pub(crate) fn out_of_memory<T>(len: usize) -> Error {
    Error::OutOfMemory { bytes: len_u64(len.saturating_mul(size_of::<T>())) }
}
