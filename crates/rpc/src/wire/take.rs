//! TAKE: bytes that the worker may have, which the client names by what they are known by instead of sending them.
//!
//! Invariant: the body has one length, and is read the way it was written.

use oxcart_backend::Content;
use zerocopy::{FromBytes, IntoBytes};

use super::hash::Fnv1a;
use super::record::{RECORD_BYTES, TensorRecord};

/// Bytes that are hashed and digested before the next ones are looked at: they stay in the processor's cache.
const PIECE: usize = 64 << 10;

/// TAKE: put the bytes with this content into all of a tensor. Answered with 1 if that is done; with 0 if the worker does not have them,
/// and then what the tensor holds means nothing until it is written.
#[derive(Clone, Copy, Debug)]
pub struct Take {
    /// Where they go: all of this tensor.
    pub record: TensorRecord,
    /// What they are known by.
    pub content: Content,
}

impl Take {
    /// Bytes of the body.
    pub const BYTES: usize = RECORD_BYTES + 8 + 32;

    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(Take::BYTES);
        body.extend_from_slice(self.record.as_bytes());
        body.extend(self.content.hash.to_le_bytes());
        body.extend(self.content.digest);
        body
    }

    /// From bytes, if they are one.
    pub fn decode(body: &[u8]) -> Option<Take> {
        let (record, rest) = TensorRecord::read_from_prefix(body).ok()?;
        let (hash, digest) = rest.split_first_chunk()?;
        let content = Content { hash: u64::from_le_bytes(*hash), digest: digest.try_into().ok()? };
        Some(Take { record, content })
    }
}

/// What bytes that go by are known by: their FNV-1a hash, which is ggml's, and their BLAKE3 digest.
#[derive(Clone, Debug, Default)]
pub struct ContentSum {
    hash: Fnv1a,
    digest: blake3::Hasher,
}

impl ContentSum {
    /// Takes more bytes in.
    pub fn update(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(PIECE) {
            self.hash.update(piece);
            self.digest.update(piece);
        }
    }

    /// What all bytes so far are known by.
    pub fn finish(&self) -> Content {
        Content { hash: self.hash.finish(), digest: *self.digest.finalize().as_bytes() }
    }
}

/// What some bytes are known by.
pub fn content_of(bytes: &[u8]) -> Content {
    let mut sum = ContentSum::default();
    sum.update(bytes);
    sum.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::fnv1a;

    #[test]
    fn bodies_of_take_come_back_and_have_one_length() {
        let content = Content { hash: 0x0102_0304_0506_0708, digest: [9; 32] };
        let body = Take { record: TensorRecord::absent(), content }.encode();
        assert_eq!(body.len(), Take::BYTES);
        assert_eq!(body[RECORD_BYTES..RECORD_BYTES + 8], [8, 7, 6, 5, 4, 3, 2, 1]);
        let taken = Take::decode(&body).unwrap();
        assert_eq!((taken.content, taken.encode()), (content, body.clone()));
        assert!(Take::decode(&body[1..]).is_none() && Take::decode(&[body, vec![0]].concat()).is_none());
    }

    #[test]
    fn contents_are_known_by_both_hashes() {
        for len in [0, 1, PIECE - 1, PIECE, 3 * PIECE + 5] {
            let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            let content = content_of(&bytes);
            assert_eq!((content.hash, content.digest), (fnv1a(&bytes), *blake3::hash(&bytes).as_bytes()));
        }
    }
}
