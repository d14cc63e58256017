//! TLS as two machines use it: version 1.3 alone, raw keys (RFC 7250) on both sides, no resumption and no early data.
//!
//! What a connection is for is agreed in its handshake (ALPN): [`LINK`] is for machines that know each other, [`JOIN`] for those that
//! meet, [`INTRODUCED`] for workers that a client introduces to each other, [`PULSE`] for the small second connection of a client. So a key that is not known is refused while the handshake
//! lasts, before it can say anything.
//!
//! Keys are agreed by X25519 alone: both sides are Oxcart, and neither can choose what costs the other side more.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{Acceptor, AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::version::TLS13;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct,
    DistinguishedName, Error, PeerIncompatible, ServerConfig, SignatureScheme,
};

use super::identity::Identity;
use super::key::Key;
use super::secured::{InTurn, Secured};

/// The first byte of every TLS connection: a record of the handshake. No command of ggml's that may come first has this number.
pub(crate) const FIRST_BYTE: u8 = 22;

/// For machines that know each other.
const LINK: &[u8] = b"oxcart/1";
/// For machines that meet.
const JOIN: &[u8] = b"oxcart-join/1";
/// For workers that were introduced to each other.
const INTRODUCED: &[u8] = b"oxcart-introduced/1";
/// For clients that watch whether a worker is alive.
const PULSE: &[u8] = b"oxcart-pulse/1";

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To use devices.
    Link,
    /// To be paired.
    Join,
    /// To send a client's data from one worker to another.
    Introduced,
    /// To watch whether the other side of a connection to use devices is alive.
    Pulse,
}

impl Purpose {
    pub(crate) const fn protocol(self) -> &'static [u8] {
        match self {
            Purpose::Link => LINK,
            Purpose::Join => JOIN,
            Purpose::Introduced => INTRODUCED,
            Purpose::Pulse => PULSE,
        }
    }
}

/// Whether a key may come in.
pub(crate) type IsKnown = Arc<dyn Fn(Key) -> bool + Send + Sync>;

fn provider() -> Arc<CryptoProvider> {
    use ring::cipher_suite::{
        TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
    };
    let cipher_suites =
        vec![TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256];
    let kx_groups = vec![ring::kx_group::X25519];
    Arc::new(CryptoProvider { cipher_suites, kx_groups, ..ring::default_provider() })
}

/// What both who checks workers and who checks clients say of signatures: version 1.3, by raw keys of our kind.
macro_rules! signatures_of_raw_keys {
    () => {
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _key: &CertificateDer<'_>,
            _signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            // It is not offered; this is what would be said to it.
            Err(PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig.into())
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            key: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let key = SubjectPublicKeyInfoDer::from(key.as_ref());
            verify_tls13_signature_with_raw_key(message, &key, signed, &self.signatures)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

/// The one key in a place for certificates.
fn only_key(first: &CertificateDer<'_>, others: &[CertificateDer<'_>]) -> Result<Key, Error> {
    Key::from_spki(first)
        .filter(|_| others.is_empty())
        .ok_or(Error::InvalidCertificate(CertificateError::BadEncoding))
}

/// Believes one worker alone.
#[derive(Debug)]
struct OneWorker {
    key: Key,
    signatures: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for OneWorker {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match only_key(end_entity, intermediates)? == self.key {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)),
        }
    }

    signatures_of_raw_keys!();
}

/// Believes those clients that may come.
struct SomeClients {
    may_come: IsKnown,
    signatures: WebPkiSupportedAlgorithms,
}

impl fmt::Debug for SomeClients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SomeClients")
    }
}

impl ClientCertVerifier for SomeClients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match (self.may_come)(only_key(end_entity, intermediates)?) {
            true => Ok(ClientCertVerified::assertion()),
            false => Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)),
        }
    }

    signatures_of_raw_keys!();
}

/// A connection to one worker, before its handshake.
pub(crate) fn to_worker(identity: &Identity, worker: Key, purpose: Purpose) -> Result<Secured, Error> {
    let provider = provider();
    let signatures = provider.signature_verification_algorithms;
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(OneWorker { key: worker, signatures }))
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(identity.certified())));
    config.alpn_protocols = vec![purpose.protocol().to_vec()];
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    // No name is asked for: the key is all that counts.
    let no_name = ServerName::from(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    Ok(Secured::new(ClientConnection::new(Arc::new(config), no_name)?.into()))
}

/// A client that shows this key or none, offers these purposes, and agrees on keys in one way alone.
#[cfg(test)]
pub(crate) fn another_client(
    identity: Option<&Identity>,
    worker: Key,
    offers: &[Purpose],
    agreement: &'static dyn rustls::crypto::SupportedKxGroup,
    key_log: Arc<dyn rustls::KeyLog>,
) -> Secured {
    let provider = CryptoProvider { kx_groups: vec![agreement], ..provider().as_ref().clone() };
    let signatures = provider.signature_verification_algorithms;
    let config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(OneWorker { key: worker, signatures }));
    let mut config = match identity {
        Some(identity) => config.with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(
            identity.certified(),
        ))),
        None => config.with_no_client_auth(),
    };
    config.key_log = key_log;
    config.alpn_protocols = offers.iter().map(|purpose| purpose.protocol().to_vec()).collect();
    let no_name = ServerName::from(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    Secured::new(ClientConnection::new(Arc::new(config), no_name).unwrap().into())
}

/// A worker that takes any client's key and speaks these protocols, or none.
#[cfg(test)]
pub(crate) fn another_worker(identity: &Identity, protocols: &[&[u8]]) -> Secured {
    let provider = provider();
    let signatures = provider.signature_verification_algorithms;
    let own = AlwaysResolvesServerRawPublicKeys::new(identity.certified());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_client_cert_verifier(Arc::new(SomeClients { may_come: Arc::new(|_| true), signatures }))
        .with_cert_resolver(Arc::new(own));
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    Secured::new(rustls::ServerConnection::new(Arc::new(config)).unwrap().into())
}

/// What a worker takes connections in with.
#[derive(Debug)]
pub(crate) struct Entrance {
    link: Arc<ServerConfig>,
    join: Arc<ServerConfig>,
    introduced: Arc<ServerConfig>,
    pulse: Arc<ServerConfig>,
}

/// Why a connection was not taken in.
#[derive(Debug)]
pub(crate) enum Turned {
    /// It went, or the system lost it.
    Left,
    /// Its key is not known.
    Unknown,
    /// It is no TLS of ours.
    Wrong(Error),
}

impl Entrance {
    /// Takes those in that are known, those that may join, and workers that are expected.
    pub(crate) fn new(
        identity: &Identity,
        is_known: IsKnown,
        may_join: IsKnown,
        is_expected: IsKnown,
    ) -> Result<Entrance, Error> {
        let config = |purpose: Purpose, may_come: IsKnown| {
            let provider = provider();
            let signatures = provider.signature_verification_algorithms;
            let own = AlwaysResolvesServerRawPublicKeys::new(identity.certified());
            let mut config = ServerConfig::builder_with_provider(provider)
                .with_protocol_versions(&[&TLS13])?
                .with_client_cert_verifier(Arc::new(SomeClients { may_come, signatures }))
                .with_cert_resolver(Arc::new(own));
            config.alpn_protocols = vec![purpose.protocol().to_vec()];
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
            config.max_early_data_size = 0;
            Ok::<_, Error>(Arc::new(config))
        };
        Ok(Entrance {
            link: config(Purpose::Link, Arc::clone(&is_known))?,
            join: config(Purpose::Join, may_join)?,
            introduced: config(Purpose::Introduced, is_expected)?,
            pulse: config(Purpose::Pulse, is_known)?,
        })
    }

    /// Takes a connection in: the handshake, from its first byte. How long it may take, and when the processor has time for it, is for
    /// the caller to see to.
    pub(crate) fn take(
        &self,
        input: &mut dyn Read,
        output: &mut dyn Write,
        in_turn: InTurn<'_>,
    ) -> Result<(Purpose, Secured), Turned> {
        let mut acceptor = Acceptor::default();
        let accepted = loop {
            if acceptor.read_tls(input).map_err(|_| Turned::Left)? == 0 {
                return Err(Turned::Left);
            }
            match acceptor.accept() {
                Ok(Some(accepted)) => break accepted,
                Ok(None) => {}
                Err((error, mut alert)) => {
                    // The other side may know why, whichever machine it is.
                    let _ = alert.write_all(output);
                    return Err(Turned::Wrong(error));
                }
            }
        };
        let offers = |wanted: &[u8]| {
            accepted.client_hello().alpn().is_some_and(|mut offered| offered.any(|name| name == wanted))
        };
        let purpose = match [LINK, JOIN, INTRODUCED, PULSE].map(offers) {
            [true, false, false, false] => Purpose::Link,
            [false, true, false, false] => Purpose::Join,
            [false, false, true, false] => Purpose::Introduced,
            [false, false, false, true] => Purpose::Pulse,
            // A browser, perhaps: whatever it wants, it is not this.
            _ => return Err(Turned::Wrong(Error::NoApplicationProtocol)),
        };
        let config = match purpose {
            Purpose::Link => &self.link,
            Purpose::Join => &self.join,
            Purpose::Introduced => &self.introduced,
            Purpose::Pulse => &self.pulse,
        };
        let (mut accepted, mut connection) = (Some(accepted), None);
        in_turn(&mut || {
            // Keys are agreed and a signature is made in here.
            connection = accepted.take().map(|accepted| accepted.into_connection(Arc::clone(config)));
        });
        let connection = connection.ok_or(Turned::Left)?.map_err(|(error, mut alert)| {
            let _ = alert.write_all(output);
            Turned::Wrong(error)
        })?;
        let mut secured = Secured::new(connection.into());
        secured.shake_hands(input, output, in_turn).map_err(|error| match tls_error(&error) {
            Some(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)) => {
                Turned::Unknown
            }
            Some(error) => Turned::Wrong(error.clone()),
            None => Turned::Left,
        })?;
        Ok((purpose, secured))
    }
}

/// What TLS has to say of an error, if it is one of its own.
pub(crate) fn tls_error(error: &io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref()
}

/// Whether an error says that the other side does not know this machine's key.
pub(crate) fn is_not_known(error: &io::Error) -> bool {
    matches!(tls_error(error), Some(Error::AlertReceived(AlertDescription::AccessDenied)))
}

/// Whether an error says that the other side is another machine than it should be.
pub(crate) fn is_another(error: &io::Error) -> bool {
    let another = Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure);
    tls_error(error) == Some(&another)
}
