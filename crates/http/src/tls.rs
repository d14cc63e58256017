//! Certificates: given ones, or one made for this run.

mod certificate;
mod fingerprint;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

pub use fingerprint::{Fingerprint, NoFingerprint};

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
        let fingerprint = chain.first().map(|first| Fingerprint::of(first).to_string()).unwrap_or_default();
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::time::Duration;

    use super::*;
    use crate::base64;
    use crate::{Config, Listeners, Models, Server};
    use tokio_rustls::rustls::pki_types::ServerName;
    use tokio_rustls::rustls::{ClientConnection, Stream};

    /// How a server with this certificate answers a client that trusts this fingerprint.
    fn asked(tls: Tls, trusted: &str) -> std::io::Result<String> {
        let config = Config::new(Models::new(Vec::new()).unwrap());
        let server = Server::start(Listeners::local().unwrap(), Config { tls: Some(tls), ..config }).unwrap();
        let client = trusted.parse::<Fingerprint>().unwrap().client_config().unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut client = ClientConnection::new(client, name).unwrap();
        let mut stream = TcpStream::connect(server.addresses()[0]).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut stream = Stream::new(&mut client, &mut stream);
        stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut status = [0; 12];
        stream.read_exact(&mut status)?;
        Ok(String::from_utf8_lossy(&status).into_owned())
    }

    fn pem(kind: &str, bytes: &[u8]) -> String {
        format!("-----BEGIN {kind}-----\n{}\n-----END {kind}-----\n", base64::encode(bytes))
    }

    #[test]
    fn requests_are_answered_by_whom_the_fingerprint_says() {
        let names = ["localhost".to_owned()];
        let own = Tls::self_made(&names).unwrap();
        let (printed, other) = (own.fingerprint().to_owned(), Tls::self_made(&names).unwrap());
        assert_eq!(asked(own.clone(), &printed).unwrap(), "HTTP/1.1 200");
        assert_ne!(other.fingerprint(), printed);
        assert!(asked(own, other.fingerprint()).is_err(), "another's");
        // A given one, as files.
        let made = certificate::make(&names, SystemTime::now()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let (certificates, key) = (folder.path().join("certificate.pem"), folder.path().join("key.pem"));
        std::fs::write(&certificates, pem("CERTIFICATE", &made.certificate)).unwrap();
        std::fs::write(&key, pem("PRIVATE KEY", &made.key)).unwrap();
        let given = Tls::from_files(&certificates, &key).unwrap();
        assert_eq!(given.fingerprint(), Fingerprint::of(&made.certificate).to_string());
        assert_eq!(asked(given.clone(), given.fingerprint()).unwrap(), "HTTP/1.1 200");
        let wrong = Tls::from_files(&key, &certificates).unwrap_err();
        assert!(matches!(wrong, TlsError::File { .. }), "{wrong}");
    }
}
