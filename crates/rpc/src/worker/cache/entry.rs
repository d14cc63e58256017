//! One entry: a file with a header, and the content behind it.
//!
//! ```text
//! 0   8  "OXWEIGHT"
//! 8   4  version, 1
//! 12  4  zero
//! 16  8  FNV-1a hash of the content, which the file is named by
//! 24  8  length of the content
//! 32 32  BLAKE3 digest of the content followed by bytes 0 to 31
//! 64     content
//! ```
//!
//! Numbers are little-endian. Invariant: who uses the bytes that [`Entry::read`] gives out has had [`Entry::verify`] verify the whole
//! file before, or takes all of them back if the reading does not end with the digest that was asked for.

use std::io;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::folder::PlainFile;
use crate::wire::Fnv1a;
use crate::worker::limits::OWN_PIECE_BYTES;

const MAGIC: [u8; 8] = *b"OXWEIGHT";
const VERSION: u32 = 1;

/// Bytes before the content.
pub(super) const HEADER_BYTES: u64 = 64;
/// Bytes of the header that the digest covers.
const COVERED_BYTES: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Header {
    magic: [u8; 8],
    version: U32,
    zero: U32,
    hash: U64,
    len: U64,
    digest: [u8; 32],
}

const _: () = assert!(size_of::<Header>() as u64 == HEADER_BYTES);

impl Header {
    pub(super) const fn hash(&self) -> u64 {
        self.hash.get()
    }

    /// Length of the content.
    pub(super) const fn len(&self) -> u64 {
        self.len.get()
    }

    fn covered(&self) -> &[u8] {
        self.as_bytes().get(..COVERED_BYTES).unwrap_or_default()
    }
}

/// What is known about content that goes by.
#[derive(Debug, Default)]
pub(super) struct Summary {
    hash: Fnv1a,
    digest: blake3::Hasher,
    len: u64,
}

impl Summary {
    pub(super) fn add(&mut self, piece: &[u8]) {
        self.hash.update(piece);
        self.digest.update(piece);
        self.len += piece.len() as u64;
    }

    pub(super) const fn len(&self) -> u64 {
        self.len
    }

    /// The header for what went by.
    pub(super) fn header(mut self) -> Header {
        let mut header = Header {
            magic: MAGIC,
            version: VERSION.into(),
            zero: 0.into(),
            hash: self.hash.finish().into(),
            len: self.len.into(),
            digest: [0; 32],
        };
        self.digest.update(header.covered());
        header.digest = *self.digest.finalize().as_bytes();
        header
    }
}

/// Why an entry is no good.
#[derive(Debug)]
pub(super) struct Damaged;

impl From<io::Error> for Damaged {
    fn from(_: io::Error) -> Damaged {
        // What cannot be read is of no use, whatever the reason.
        Damaged
    }
}

/// An open entry whose header makes sense.
#[derive(Debug)]
pub(super) struct Entry {
    file: PlainFile,
    header: Header,
}

impl Entry {
    /// Reads the header of the entry for a hash.
    pub(super) fn open(mut file: PlainFile, hash: u64) -> Result<Entry, Damaged> {
        let mut bytes = [0; HEADER_BYTES as usize];
        file.seek(0)?;
        file.read_exact(&mut bytes)?;
        let header: Header = zerocopy::transmute!(bytes);
        let is_known = header.magic == MAGIC && header.version.get() == VERSION && header.zero.get() == 0;
        let is_whole = header.len().checked_add(HEADER_BYTES) == Some(file.bytes()?);
        if is_known && is_whole && header.hash() == hash { Ok(Entry { file, header }) } else { Err(Damaged) }
    }

    /// Reads what was just written and compares it with what should be there.
    pub(super) fn read_back(file: &PlainFile, header: &Header) -> Result<(), Damaged> {
        let mut entry = Entry::open(file.again()?, header.hash())?;
        if entry.header != *header {
            return Err(Damaged);
        }
        entry.verify()
    }

    pub(super) const fn header(&self) -> &Header {
        &self.header
    }

    /// Reads all of it and compares it with its digest.
    pub(super) fn verify(&mut self) -> Result<(), Damaged> {
        self.read(&mut |_| true, |_, _| true).map(|_| ())
    }

    /// Reads all of it, piece by piece with the place each has in the content. Before each piece is read, `go_on` is asked with its length;
    /// nothing is held in memory before its first answer. Whether the pieces were right shows at the end, with the digest of the content
    /// alone. There is none if `go_on` or `each` ended it.
    pub(super) fn read(
        &mut self,
        go_on: &mut dyn FnMut(usize) -> bool,
        mut each: impl FnMut(usize, &[u8]) -> bool,
    ) -> Result<Option<[u8; 32]>, Damaged> {
        let len = usize::try_from(self.header.len()).map_err(|_| Damaged)?;
        let (mut piece, mut digest) = (Vec::new(), blake3::Hasher::new());
        self.file.seek(HEADER_BYTES)?;
        for start in (0..len).step_by(OWN_PIECE_BYTES) {
            let bytes = OWN_PIECE_BYTES.min(len - start);
            if !go_on(bytes) {
                return Ok(None);
            }
            piece.resize(bytes, 0);
            self.file.read_exact(&mut piece)?;
            digest.update(&piece);
            if !each(start, &piece) {
                return Ok(None);
            }
        }
        let content = *digest.finalize().as_bytes();
        digest.update(self.header.covered());
        if digest.finalize() == self.header.digest { Ok(Some(content)) } else { Err(Damaged) }
    }

    /// Notes that it was used now; if that fails it is only forgotten sooner.
    pub(super) fn touch(&self) {
        let _ = self.file.touch();
    }
}

/// The name of an entry.
pub(super) fn name(hash: u64) -> String {
    format!("{hash:016x}.weights")
}

/// The hash in the name of an entry, if it is one.
pub(super) fn hash_in(name_there: &str) -> Option<u64> {
    let hash = u64::from_str_radix(name_there.strip_suffix(".weights")?, 16).ok()?;
    (name(hash) == name_there).then_some(hash)
}

#[cfg(test)]
mod tests {
    #[cfg(unix)]
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Before its turn, an entry costs neither memory nor the processor nor the disk; and then a small piece at a time.
    #[cfg(unix)]
    #[test]
    fn nothing_is_read_before_its_turn() {
        use std::sync::Arc;

        use super::super::folder::{Call, Folder, Gate};

        #[derive(Debug, Default)]
        struct Reads(AtomicUsize);

        impl Gate for Reads {
            fn before(&self, call: Call) -> io::Result<()> {
                self.0.fetch_add(usize::from(call == Call::Read), Ordering::SeqCst);
                Ok(())
            }
        }

        let (folder, reads) = (tempfile::tempdir().unwrap(), Arc::new(Reads::default()));
        let content = vec![3; 2 * OWN_PIECE_BYTES + 5];
        let mut summary = Summary::default();
        summary.add(&content);
        let header = summary.header();
        let name = name(header.hash());
        std::fs::write(folder.path().join(&name), [header.as_bytes(), &content].concat()).unwrap();
        let opened = Folder::open(folder.path(), Arc::clone(&reads) as _).unwrap();
        let mut entry = Entry::open(opened.read(&name).unwrap().unwrap(), header.hash()).unwrap();
        let before = reads.0.load(Ordering::SeqCst);
        assert_eq!(entry.read(&mut |_| false, |_, _| panic!("it was not its turn")).unwrap(), None);
        assert_eq!(reads.0.load(Ordering::SeqCst), before);
        let (mut asked, mut given) = (Vec::new(), Vec::new());
        let mut go_on = |bytes| {
            asked.push(bytes);
            true
        };
        let each = |_, piece: &[u8]| {
            given.push(piece.len());
            true
        };
        assert!(entry.read(&mut go_on, each).unwrap().is_some());
        assert_eq!(asked, [OWN_PIECE_BYTES, OWN_PIECE_BYTES, 5]);
        assert_eq!(asked, given);
    }

    #[test]
    fn names_are_of_one_form() {
        assert_eq!(name(0x1f), "000000000000001f.weights");
        assert_eq!(hash_in("000000000000001f.weights"), Some(0x1f));
        for wrong in [
            "1f.weights",
            "000000000000001F.weights",
            "+00000000000001f.weights",
            "000000000000001f",
            ".weights",
        ] {
            assert_eq!(hash_in(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_header_is_what_the_format_says() {
        let mut summary = Summary::default();
        summary.add(b"foo");
        summary.add(b"bar");
        let header = summary.header();
        let bytes = header.as_bytes();
        assert_eq!(bytes[..16], *b"OXWEIGHT\x01\0\0\0\0\0\0\0");
        assert_eq!(bytes[16..24], 0x8594_4171_f739_67e8_u64.to_le_bytes());
        assert_eq!(bytes[24..32], 6_u64.to_le_bytes());
        let digest = blake3::hash(&[b"foobar", &bytes[..32]].concat());
        assert_eq!(bytes[32..], *digest.as_bytes());
    }
}
