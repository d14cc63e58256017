//! The 64-bit FNV-1a hash that names weights on the wire. It is not a strong one: a store of contents by this hash must
//! keep a strong digest as well.

const START: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

/// The hash so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fnv1a(u64);

impl Default for Fnv1a {
    fn default() -> Fnv1a {
        Fnv1a(START)
    }
}

impl Fnv1a {
    /// Takes more bytes in.
    pub fn update(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(PRIME);
        }
    }

    /// The hash of all bytes so far.
    pub const fn finish(self) -> u64 {
        self.0
    }
}

/// The hash of some bytes.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    let mut hash = Fnv1a::default();
    hash.update(bytes);
    hash.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
        assert_eq!(fnv1a(&vec![0; 10_485_764]), 0x117f_bb90_a24e_13f5);
    }

    #[test]
    fn pieces_are_as_good_as_the_whole() {
        let mut hash = Fnv1a::default();
        hash.update(b"foo");
        hash.update(b"bar");
        assert_eq!(hash.finish(), fnv1a(b"foobar"));
    }
}
