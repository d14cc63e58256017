//! What a machine proves that it is: an Ed25519 key pair, made once and kept in a private file.
//!
//! Invariant: the private half leaves this module only as a signer; it is never shown, and never read from a file that others could
//! have read.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair};
use rustls::crypto::ring::sign::any_eddsa_type;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;

use super::base32;
use super::files::{Unread, lock, read, replace};
use super::key::Key;
use super::limits::MAX_IDENTITY_BYTES;
use super::machines::MachinesFile;

/// A machine's identity.
#[derive(Clone)]
pub struct Identity {
    key: Key,
    certified: Arc<CertifiedKey>,
}

/// Why there is no identity.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// Others may have read it, so it proves nothing.
    #[error("{}: this machine's identity is not safe: {why}; move it and machines.toml away to get a new one, and pair again", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// It is damaged.
    #[error("{}: this file holds no identity; move it and machines.toml away to get a new one, and pair again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// It is not there, though this machine has been paired with others as someone.
    #[error(
        "{}: this machine's identity is missing, but machines.toml beside it lists machines that know it; put it back, or move \
         machines.toml away to get a new one, and pair again", path.display()
    )]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The system did not let it be read or kept.
    #[error("{}: cannot keep this machine's identity: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The system has no random numbers.
    #[error("the system has no random numbers to make an identity from")]
    Random,
}

/// What the file begins with.
const MARK: &str = "oxcart-identity-1 ";

impl Identity {
    /// A new one, which is not kept.
    pub fn make() -> Result<Identity, IdentityError> {
        made().and_then(|pkcs8| Identity::from_pkcs8(&pkcs8).ok_or(IdentityError::Random))
    }

    /// The identity that a folder holds; made now, if there is none.
    pub fn open(folder: &Path) -> Result<Identity, IdentityError> {
        let path = folder.join("identity");
        if let Some(identity) = Identity::read(&path)? {
            return Ok(identity);
        }
        let failed = |error| IdentityError::File { path: path.clone(), error };
        let _locked = lock(folder).map_err(|unread| unreadable(&path, unread))?;
        // Another process may have made it in the meantime.
        if let Some(identity) = Identity::read(&path)? {
            return Ok(identity);
        }
        if is_known_to_others(folder) {
            return Err(IdentityError::Missing { path });
        }
        let pkcs8 = made()?;
        let identity = Identity::from_pkcs8(&pkcs8).ok_or(IdentityError::Random)?;
        replace(&path, &format!("{MARK}{}\n", base32::encode(&pkcs8))).map_err(failed)?;
        Ok(identity)
    }

    /// The identity that a folder holds, if there is one. Nothing is made.
    pub fn existing(folder: &Path) -> Result<Option<Identity>, IdentityError> {
        let path = folder.join("identity");
        match Identity::read(&path)? {
            None if is_known_to_others(folder) => Err(IdentityError::Missing { path }),
            found => Ok(found),
        }
    }

    fn read(path: &Path) -> Result<Option<Identity>, IdentityError> {
        let damaged = || IdentityError::Damaged { path: path.to_owned() };
        let text = match read(path, MAX_IDENTITY_BYTES) {
            Ok(text) => text,
            Err(Unread::Missing) => return Ok(None),
            Err(unread) => return Err(unreadable(path, unread)),
        };
        let pkcs8 = text.strip_prefix(MARK).and_then(base32::decode).ok_or_else(damaged)?;
        Identity::from_pkcs8(&pkcs8).map(Some).ok_or_else(damaged)
    }

    fn from_pkcs8(pkcs8: &[u8]) -> Option<Identity> {
        let pair = Ed25519KeyPair::from_pkcs8(pkcs8).ok()?;
        let key = Key::from_bytes(pair.public_key().as_ref().try_into().ok()?);
        let signer = any_eddsa_type(&PrivatePkcs8KeyDer::from(pkcs8)).ok()?;
        // TLS with raw keys has the key where others have a certificate.
        let certified = CertifiedKey::new(vec![CertificateDer::from(key.to_spki())], signer);
        Some(Identity { key, certified: Arc::new(certified) })
    }

    /// Its public half.
    pub fn key(&self) -> Key {
        self.key
    }

    /// One that shows a key and signs with another's.
    #[cfg(test)]
    pub(crate) fn forged(shown: Key, signer: &Identity) -> Identity {
        let shown_as = vec![CertificateDer::from(shown.to_spki())];
        let certified = CertifiedKey::new(shown_as, Arc::clone(&signer.certified.key));
        Identity { key: shown, certified: Arc::new(certified) }
    }

    pub(crate) fn certified(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.certified)
    }
}

/// Whether this machine was paired with others, to which a new identity would look like another machine in its place.
fn is_known_to_others(folder: &Path) -> bool {
    MachinesFile::new(folder).read().map_or(true, |machines| machines.iter().next().is_some())
}

fn unreadable(path: &Path, unread: Unread) -> IdentityError {
    let path = path.to_owned();
    match unread {
        Unread::Exposed(why) => IdentityError::Exposed { path, why },
        Unread::TooLong | Unread::NoText => IdentityError::Damaged { path },
        Unread::Missing => IdentityError::Missing { path },
        Unread::Io(error) => IdentityError::File { path, error },
    }
}

fn made() -> Result<Vec<u8>, IdentityError> {
    let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| IdentityError::Random)?;
    Ok(pkcs8.as_ref().to_vec())
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.key.short())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn an_identity_is_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("a/b");
        let keys: Vec<Key> = std::thread::scope(|scope| {
            let open = || Identity::open(&inner).unwrap().key();
            let all: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
            all.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(keys.iter().all(|key| *key == keys[0]));
        assert_ne!(Identity::make().unwrap().key(), keys[0]);
        assert!(!format!("{:?}", Identity::open(&inner).unwrap()).contains(&keys[0].to_string()));
    }

    #[test]
    fn looking_for_an_identity_makes_none() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("data");
        assert!(Identity::existing(&inner).unwrap().is_none() && !inner.exists());
        let key = Identity::open(&inner).unwrap().key();
        assert_eq!(Identity::existing(&inner).unwrap().unwrap().key(), key);
        let known = MachinesFile::new(&inner);
        known.change(|machines| machines.remember("den".parse().unwrap(), key).map(|_| ())).unwrap();
        fs::remove_file(inner.join("identity")).unwrap();
        assert!(matches!(Identity::existing(&inner), Err(IdentityError::Missing { .. })));
    }

    #[test]
    fn a_damaged_identity_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        Identity::open(folder.path()).unwrap();
        let path = folder.path().join("identity");
        let whole = fs::read_to_string(&path).unwrap();
        for damaged in ["", "oxcart-identity-1 ", &whole[1..], &whole[..40], &whole.repeat(100)] {
            fs::write(&path, damaged).unwrap();
            assert!(matches!(Identity::open(folder.path()), Err(IdentityError::Damaged { .. })));
            assert_eq!(fs::read_to_string(&path).unwrap(), damaged);
        }
    }

    /// Someone else in this machine's place is what those would see that know it.
    #[test]
    fn a_lost_identity_is_not_replaced_where_others_know_it() {
        let folder = tempfile::tempdir().unwrap();
        let (path, file) = (folder.path().join("identity"), MachinesFile::new(folder.path()));
        Identity::open(folder.path()).unwrap();
        // A list without machines is no reason.
        file.change(|_| Ok(())).unwrap();
        fs::remove_file(&path).unwrap();
        let key = Identity::open(folder.path()).unwrap().key();
        file.change(|machines| machines.remember("den".parse().unwrap(), key).map(|_| ())).unwrap();
        fs::remove_file(&path).unwrap();
        for list in [fs::read_to_string(file.path()).unwrap().as_str(), "broken"] {
            fs::write(file.path(), list).unwrap();
            let error = Identity::open(folder.path()).unwrap_err();
            assert!(matches!(error, IdentityError::Missing { .. }) && !path.exists(), "{error}");
        }
    }

    /// Nothing is kept where others may put something else in its place.
    #[cfg(unix)]
    #[test]
    fn nothing_is_made_in_a_folder_of_others() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let file = MachinesFile::new(folder.path());
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let error = Identity::open(folder.path()).unwrap_err();
        assert!(matches!(error, IdentityError::Exposed { .. }), "{error}");
        assert!(file.change(|_| Ok(())).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    /// Who could read the file is this machine for all others; so it is not used, and said so.
    #[cfg(unix)]
    #[test]
    fn an_identity_that_others_could_read_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("data");
        Identity::open(&inner).unwrap();
        let path = inner.join("identity");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&inner)), (0o600, 0o700));
        for mode in [0o640, 0o604, 0o620, 0o777] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = Identity::open(&inner).unwrap_err();
            assert!(matches!(error, IdentityError::Exposed { .. }), "{mode:o}: {error}");
        }
        // Who may change the folder may put another file there.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(Identity::open(&inner).is_ok());
        for mode in [0o720, 0o702, 0o777] {
            fs::set_permissions(&inner, fs::Permissions::from_mode(mode)).unwrap();
            let error = Identity::open(&inner).unwrap_err();
            assert!(matches!(error, IdentityError::Exposed { .. }), "{mode:o}: {error}");
        }
    }
}
