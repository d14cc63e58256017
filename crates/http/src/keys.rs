//! API keys: who may use a server, and who is who.
//!
//! Invariant: a key is compared by its digest and with all others, so that how long it takes says nothing about any of them;
//! keys themselves are not kept.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use blake3::Hash;
use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;

use crate::error::{ApiError, Kind};
use crate::limits::{MAX_KEY_BYTES, MAX_KEYS, MIN_KEY_BYTES};
use crate::service::Client;

/// Why keys cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// One could be guessed.
    #[error(
        "key {number} has {bytes} bytes, but should have at least {MIN_KEY_BYTES}: openssl rand -hex 16 makes one"
    )]
    TooShort {
        /// Which.
        number: usize,
        /// How long it is.
        bytes: usize,
    },
    /// One cannot be sent in a header.
    #[error("key {number} has characters other than visible ASCII, or more than {MAX_KEY_BYTES} of them")]
    Unsendable {
        /// Which.
        number: usize,
    },
    /// All are taken away, which would let everyone in.
    #[error("no keys are given, and a server that was started with keys cannot go on without")]
    NoneLeft,
    /// There are too many.
    #[error("{count} keys are too many; at most {MAX_KEYS} are allowed")]
    TooMany {
        /// How many.
        count: usize,
    },
}

/// The keys that a server takes. Clones are the same keys, and [`replace`](Keys::replace) replaces them in all.
#[derive(Clone, Default)]
pub struct Keys(Arc<RwLock<Vec<Hash>>>);

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({})", self.len())
    }
}

impl Keys {
    /// No key is needed.
    pub fn none() -> Keys {
        Keys::default()
    }

    /// These keys.
    pub fn new<K: AsRef<str>>(keys: impl IntoIterator<Item = K>) -> Result<Keys, KeyError> {
        Ok(Keys(Arc::new(RwLock::new(digests(keys)?))))
    }

    /// Other keys from now on. Requests that run go on.
    pub fn replace<K: AsRef<str>>(&self, keys: impl IntoIterator<Item = K>) -> Result<(), KeyError> {
        let digests = digests(keys)?;
        if digests.is_empty() && !self.is_empty() {
            return Err(KeyError::NoneLeft);
        }
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = digests;
        Ok(())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether no key is needed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whose request it is, by its headers: `Authorization: Bearer KEY`, or `x-api-key: KEY`.
    pub(crate) fn client(&self, headers: &HeaderMap) -> Result<Client, ApiError> {
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if keys.is_empty() {
            return Ok(Client::default());
        }
        let bearer = headers.get(AUTHORIZATION).and_then(|value| {
            let (scheme, key) = value.as_bytes().split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then_some(key)
        });
        let given = bearer.or(headers.get("x-api-key").map(|value| value.as_bytes()));
        let Some(given) = given.filter(|given| given.len() <= MAX_KEY_BYTES) else {
            let message = "an API key is required: Authorization: Bearer KEY, or x-api-key: KEY";
            return Err(ApiError::new(Kind::Unauthorized, message));
        };
        let given = blake3::hash(given.trim_ascii());
        // Digests compare in constant time, and all of them are compared.
        let found = keys.iter().fold(None, |found, key| match *key == given {
            true => Some(*key),
            false => found,
        });
        match found {
            // By the key itself, so that a client stays the same when others come and go.
            Some(key) => Ok(Client(first_eight(&key))),
            None => Err(ApiError::new(Kind::Unauthorized, "this API key is not valid")),
        }
    }
}

fn first_eight(hash: &Hash) -> u64 {
    let bytes = hash.as_bytes();
    bytes.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn digests<K: AsRef<str>>(keys: impl IntoIterator<Item = K>) -> Result<Vec<Hash>, KeyError> {
    let mut digests = Vec::new();
    for (at, key) in keys.into_iter().enumerate() {
        let (number, key) = (at + 1, key.as_ref());
        if key.len() > MAX_KEY_BYTES || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(KeyError::Unsendable { number });
        }
        if key.len() < MIN_KEY_BYTES {
            return Err(KeyError::TooShort { number, bytes: key.len() });
        }
        digests.push(blake3::hash(key.as_bytes()));
    }
    match digests.len() {
        count if count > MAX_KEYS => Err(KeyError::TooMany { count }),
        _ => Ok(digests),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "0123456789abcdef";

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        headers
    }

    #[test]
    fn keys_are_found_wherever_clients_put_them() {
        let keys = Keys::new([KEY, "another-key-of-mine"]).unwrap();
        let one = keys.client(&headers("authorization", &format!("Bearer {KEY}"))).unwrap();
        assert_eq!(keys.client(&headers("authorization", &format!("bearer  {KEY} "))), Ok(one));
        assert_eq!(keys.client(&headers("x-api-key", KEY)), Ok(one));
        let other = keys.client(&headers("x-api-key", "another-key-of-mine")).unwrap();
        assert_ne!(one, other);
        for wrong in ["", "Bearer", "Bearer ", "Basic 0123456789abcdef", "Bearer 0123456789abcdeF", KEY] {
            let refused = keys.client(&headers("authorization", wrong)).unwrap_err();
            assert_eq!(refused.kind, Kind::Unauthorized, "{wrong}");
        }
        assert!(keys.client(&HeaderMap::new()).is_err());
        assert_eq!(Keys::none().client(&HeaderMap::new()), Ok(Client::default()));
    }

    #[test]
    fn keys_can_be_replaced_while_they_are_used() {
        let keys = Keys::new([KEY]).unwrap();
        let clone = keys.clone();
        clone.replace(["another-key-of-mine"]).unwrap();
        assert!(keys.client(&headers("x-api-key", KEY)).is_err());
        assert!(keys.client(&headers("x-api-key", "another-key-of-mine")).is_ok());
        assert_eq!(clone.replace(["short"]), Err(KeyError::TooShort { number: 1, bytes: 5 }));
        assert_eq!(clone.replace([] as [&str; 0]), Err(KeyError::NoneLeft));
        assert!(keys.client(&headers("x-api-key", "another-key-of-mine")).is_ok(), "they stay as they were");
        assert_eq!(Keys::new(["sixteen bytes  x"]).unwrap_err(), KeyError::Unsendable { number: 1 });
    }
}
