//! Certificates: given ones, or one made for this run.

mod certificate;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use sha2::{Digest, Sha256};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

/// Why TLS cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file that cannot be read, or is no PEM.
    #[error("{}: {reason}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The certificate and the key cannot be used.
    #[error("the certificate and its key cannot be used: {0}")]
    Pair(#[from] rustls::Error),
    /// No certificate could be made: the system gave no random numbers.
    #[error("no certificate could be made: the system has no random numbers")]
    Made,
}

/// What a server proves with who it is.
#[derive(Clone)]
pub struct Tls {
    pub(crate) config: Arc<ServerConfig>,
    fingerprint: String,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tls({})", self.fingerprint)
    }
}

impl Tls {
    /// A certificate with those that vouch for it, and its key, from PEM files.
    pub fn from_files(certificates: &Path, key: &Path) -> Result<Tls, TlsError> {
        let wrong = |path: &Path, error: &dyn fmt::Display| TlsError::File {
            path: path.to_owned(),
            reason: error.to_string(),
        };
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(certificates)
            .and_then(Iterator::collect)
            .map_err(|error| wrong(certificates, &error))?;
        if chain.is_empty() {
            return Err(wrong(certificates, &"there is no certificate in it"));
        }
        let private = PrivateKeyDer::from_pem_file(key).map_err(|error| wrong(key, &error))?;
        Tls::new(chain, private)
    }

    /// A certificate made now for these names and addresses. Clients have to be told to trust it, by its fingerprint.
    pub fn self_made(names: &[String]) -> Result<Tls, TlsError> {
        let made = certificate::make(names, SystemTime::now()).map_err(|_| TlsError::Made)?;
        let key = PrivatePkcs8KeyDer::from(made.key);
        Tls::new(vec![CertificateDer::from(made.certificate)], key.into())
    }

    fn new(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Result<Tls, TlsError> {
        let fingerprint = chain.first().map(|first| fingerprint(first)).unwrap_or_default();
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Tls { config: Arc::new(config), fingerprint })
    }

    /// SHA-256 of the certificate, as browsers and `openssl x509 -fingerprint -sha256` show it.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }
}

fn fingerprint(certificate: &[u8]) -> String {
    let digest = Sha256::digest(certificate);
    let bytes: Vec<String> = digest.iter().map(|byte| format!("{byte:02X}")).collect();
    bytes.join(":")
}
