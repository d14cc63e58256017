//! Tensor data on its way into a file: bytes at hand, a reader, or a closure that writes.
//!
//! Invariant: exactly as many bytes reach the file as the tensor's layout asks for, or writing fails.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Read, Write};

use crate::cursor::len_u64;
use crate::error::{Error, Result};
use crate::text::Name;

type WriteData<'a> = Box<dyn FnOnce(&mut dyn Write) -> io::Result<()> + 'a>;

/// Where the bytes of a tensor come from. Large tensors need not be in memory.
pub struct Data<'a>(Source<'a>);

enum Source<'a> {
    Bytes(Cow<'a, [u8]>),
    Stream(WriteData<'a>),
}

impl<'a> Data<'a> {
    /// Bytes that `reader` yields until its end.
    pub fn reader(mut reader: impl Read + 'a) -> Data<'a> {
        Data::stream(move |out| io::copy(&mut reader, out).map(drop))
    }

    /// Bytes that `write` writes when their turn comes.
    pub fn stream(write: impl FnOnce(&mut dyn Write) -> io::Result<()> + 'a) -> Data<'a> {
        Data(Source::Stream(Box::new(write)))
    }

    /// Writes exactly `need` bytes.
    pub(crate) fn write(self, tensor: &str, need: u64, out: &mut dyn Write) -> Result<()> {
        let mut exact = Exact { out, left: need, refused: false };
        let outcome = match self.0 {
            Source::Bytes(bytes) => exact.write_all(&bytes),
            Source::Stream(write) => write(&mut exact),
        };
        let length_error = |given| Error::DataLength { tensor: Name::from(tensor), need, given };
        if exact.refused {
            return Err(length_error(need.saturating_add(1)));
        }
        outcome.map_err(Error::io("write tensor data"))?;
        match exact.left {
            0 => Ok(()),
            left => Err(length_error(need.saturating_sub(left))),
        }
    }
}

impl fmt::Debug for Data<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::Bytes(bytes) => write!(f, "Data({} bytes)", bytes.len()),
            Source::Stream(_) => f.write_str("Data(stream)"),
        }
    }
}

impl<'a> From<&'a [u8]> for Data<'a> {
    fn from(bytes: &'a [u8]) -> Data<'a> {
        Data(Source::Bytes(Cow::Borrowed(bytes)))
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Data<'a> {
    fn from(bytes: &'a [u8; N]) -> Data<'a> {
        Data::from(bytes.as_slice())
    }
}

impl From<Vec<u8>> for Data<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        Data(Source::Bytes(Cow::Owned(bytes)))
    }
}

/// Lets `left` bytes through and refuses the rest.
struct Exact<'w> {
    out: &'w mut dyn Write,
    left: u64,
    refused: bool,
}

impl Write for Exact<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if len_u64(bytes.len()) > self.left {
            self.refused = true;
            return Err(io::Error::other("more data than the tensor has room for"));
        }
        let written = self.out.write(bytes)?;
        self.left = self.left.saturating_sub(len_u64(written));
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(data: Data<'_>, need: u64) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        data.write("w", need, &mut out).map(|()| out)
    }

    #[test]
    fn the_right_length_passes() {
        assert_eq!(check(Data::from(b"abcd"), 4).unwrap(), b"abcd");
        assert_eq!(check(Data::from(b"abcd".to_vec()), 4).unwrap(), b"abcd");
        assert_eq!(check(Data::reader(&b"abcd"[..]), 4).unwrap(), b"abcd");
        let twice = Data::stream(|out| out.write_all(b"ab").and_then(|()| out.write_all(b"cd")));
        assert_eq!(check(twice, 4).unwrap(), b"abcd");
    }

    #[test]
    fn a_wrong_length_is_an_error() {
        for (need, given) in [(3, 4), (5, 4), (0, 1)] {
            let error = check(Data::reader(&b"abcd"[..]), need).unwrap_err();
            assert!(matches!(error, Error::DataLength { given: g, .. } if g == given), "{error}");
        }
    }

    #[test]
    fn a_stream_cannot_hide_that_it_wrote_too_much() {
        let sly = Data::stream(|out| {
            let _ = out.write_all(b"abcde");
            out.write_all(b"abcd")
        });
        assert!(matches!(check(sly, 4), Err(Error::DataLength { given: 5, .. })));
    }

    #[test]
    fn a_failing_source_is_an_error() {
        let error = check(Data::stream(|_| Err(io::Error::other("gone"))), 4).unwrap_err();
        assert_eq!(error.to_string(), "cannot write tensor data: gone");
    }
}
