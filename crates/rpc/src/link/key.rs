//! The public half of a machine's identity: an Ed25519 key. Two machines are the same if their keys are.

use std::fmt;
use std::str::FromStr;

use super::base32;

/// A machine's public key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key([u8; 32]);

/// A text that is no key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{}' is not a key, which has 52 letters and digits, as oxcart trust shows it", text.escape_debug())]
pub struct KeyError {
    /// The text.
    pub text: String,
}

/// How TLS writes such a key (RFC 8410): this, and its bytes.
const SPKI_START: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

impl Key {
    /// A key by its bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Key {
        Key(bytes)
    }

    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The key that TLS has written like this, if it is of this kind.
    pub(crate) fn from_spki(spki: &[u8]) -> Option<Key> {
        spki.strip_prefix(&SPKI_START)?.try_into().ok().map(Key)
    }

    /// As TLS writes it.
    pub(crate) fn to_spki(self) -> Vec<u8> {
        [&SPKI_START[..], &self.0].concat()
    }

    /// Its first letters, which are enough to tell machines apart that one knows. Nothing is decided by them.
    pub fn short(&self) -> String {
        base32::encode(&self.0).chars().take(8).collect()
    }

    /// Bytes in hexadecimal, which can name a folder.
    pub(crate) fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The key of such a text.
    pub(crate) fn from_hex(text: &str) -> Option<Key> {
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() != 64 || !text.bytes().all(is_hex) {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
            *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
        }
        Some(Key(bytes))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&base32::encode(&self.0))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.short())
    }
}

impl FromStr for Key {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Key, KeyError> {
        let bytes = base32::decode(text).and_then(|bytes| bytes.try_into().ok());
        bytes.map(Key).ok_or_else(|| KeyError { text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_written_in_four_ways() {
        let key = Key::from_bytes(std::array::from_fn(|i| (i * 7) as u8));
        assert_eq!(key.to_string().parse(), Ok(key));
        assert_eq!(Key::from_hex(&key.hex()), Some(key));
        assert_eq!(Key::from_spki(&key.to_spki()), Some(key));
        assert!(key.to_string().starts_with(&key.short()));
        for text in ["", "x", &key.to_string()[1..], &format!("{key}0")] {
            assert!(text.parse::<Key>().is_err(), "{text}");
        }
        for text in ["", &key.hex()[2..], &key.hex().to_uppercase()] {
            assert_eq!(Key::from_hex(text), None);
        }
        let mut other = key.to_spki();
        other[8] ^= 1;
        assert_eq!(Key::from_spki(&other), None);
        assert_eq!(Key::from_spki(&key.to_spki()[..43]), None);
    }
}
