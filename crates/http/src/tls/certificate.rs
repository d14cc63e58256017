//! A certificate that vouches for itself (RFC 5280), in DER.
//!
//! Nothing is read here, so there is nothing to distrust: a certificate is a fixed form with names, times and a key in it. It is for
//! servers, with a P-256 key, and valid from an hour ago for a year.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use ring::error::Unspecified;
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair};

const HOUR: Duration = Duration::from_secs(3600);
const VALID: Duration = Duration::from_secs(365 * 24 * 3600);

const ECDSA_WITH_SHA256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
const EC_PUBLIC_KEY: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const ALTERNATIVE_NAMES: &[u8] = &[0x55, 0x1d, 0x11];
const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x25];
const SERVER_AUTHENTICATION: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x01];

const INTEGER: u8 = 0x02;
const BITS: u8 = 0x03;
const OCTETS: u8 = 0x04;
const OBJECT: u8 = 0x06;
const TEXT: u8 = 0x0c;
const SHORT_TIME: u8 = 0x17;
const LONG_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;

/// A certificate and the key that belongs to it (PKCS #8).
pub(super) struct Made {
    pub(super) certificate: Vec<u8>,
    pub(super) key: Vec<u8>,
}

/// Makes one for these names and addresses.
pub(super) fn make(names: &[String], now: SystemTime) -> Result<Made, Unspecified> {
    let random = SystemRandom::new();
    let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random)?;
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, key.as_ref(), &random)
        .map_err(|_| Unspecified)?;
    let mut serial = [0; 16];
    random.fill(&mut serial)?;
    // Positive, and without a zero in front.
    serial[0] = serial[0] & 0x7f | 0x40;

    let algorithm = value(SEQUENCE, &[&value(OBJECT, &[ECDSA_WITH_SHA256])]);
    let own = name("Oxcart");
    let body = value(
        SEQUENCE,
        &[
            &value(0xa0, &[&value(INTEGER, &[&[2]])]),
            &value(INTEGER, &[&serial]),
            &algorithm,
            &own,
            &value(SEQUENCE, &[&time(now - HOUR), &time(now + VALID)]),
            &own,
            &public_key(pair.public_key().as_ref()),
            &value(0xa3, &[&value(SEQUENCE, &[&alternative_names(names), &server_usage()])]),
        ],
    );
    let signature = pair.sign(&random, &body)?;
    let certificate = value(SEQUENCE, &[&body, &algorithm, &value(BITS, &[&[0], signature.as_ref()])]);
    Ok(Made { certificate, key: key.as_ref().to_vec() })
}

/// A tag, a length and what it is the length of.
fn value(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut bytes = vec![tag];
    if length < 0x80 {
        bytes.push(length as u8);
    } else {
        let length = length.to_be_bytes();
        let significant = length.iter().position(|byte| *byte != 0).map_or(&[][..], |at| &length[at..]);
        bytes.push(0x80 | significant.len() as u8);
        bytes.extend_from_slice(significant);
    }
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes
}

fn name(text: &str) -> Vec<u8> {
    let pair = value(SEQUENCE, &[&value(OBJECT, &[COMMON_NAME]), &value(TEXT, &[text.as_bytes()])]);
    value(SEQUENCE, &[&value(SET, &[&pair])])
}

/// In two digits of the year until 2049, as the standard wants it.
fn time(at: SystemTime) -> Vec<u8> {
    let at = Timestamp::try_from(at).unwrap_or(Timestamp::UNIX_EPOCH).to_zoned(jiff::tz::TimeZone::UTC);
    let (date, clock) = (at.date(), at.time());
    let rest = format!(
        "{:02}{:02}{:02}{:02}{:02}Z",
        date.month(),
        date.day(),
        clock.hour(),
        clock.minute(),
        clock.second()
    );
    match date.year() {
        year @ 1950..2050 => value(SHORT_TIME, &[format!("{:02}", year % 100).as_bytes(), rest.as_bytes()]),
        year => value(LONG_TIME, &[format!("{year:04}").as_bytes(), rest.as_bytes()]),
    }
}

fn public_key(point: &[u8]) -> Vec<u8> {
    let algorithm = value(SEQUENCE, &[&value(OBJECT, &[EC_PUBLIC_KEY]), &value(OBJECT, &[P256])]);
    value(SEQUENCE, &[&algorithm, &value(BITS, &[&[0], point])])
}

fn alternative_names(names: &[String]) -> Vec<u8> {
    let one = |name: &String| match name.parse() {
        Ok(IpAddr::V4(address)) => value(0x87, &[&address.octets()]),
        Ok(IpAddr::V6(address)) => value(0x87, &[&address.octets()]),
        Err(_) => value(0x82, &[name.as_bytes()]),
    };
    let names: Vec<u8> = names.iter().flat_map(one).collect();
    extension(ALTERNATIVE_NAMES, &value(SEQUENCE, &[&names]))
}

fn server_usage() -> Vec<u8> {
    extension(EXTENDED_KEY_USAGE, &value(SEQUENCE, &[&value(OBJECT, &[SERVER_AUTHENTICATION])]))
}

fn extension(kind: &[u8], content: &[u8]) -> Vec<u8> {
    value(SEQUENCE, &[&value(OBJECT, &[kind]), &value(OCTETS, &[content])])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tokio_rustls::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
    use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConnection};

    /// Whether a client that trusts the certificate takes it for this name.
    fn is_taken(made: &Made, called: &str) -> bool {
        let certificate = CertificateDer::from(made.certificate.clone());
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from(called.to_owned()).unwrap();
        let mut client = ClientConnection::new(Arc::new(client), name).unwrap();
        let key = PrivatePkcs8KeyDer::from(made.key.clone());
        let tls = super::super::Tls::new(vec![certificate], key.into()).unwrap();
        let mut server = ServerConnection::new(tls.config).unwrap();
        while client.is_handshaking() || server.is_handshaking() {
            let mut bytes = Vec::new();
            client.write_tls(&mut bytes).unwrap();
            server.read_tls(&mut bytes.as_slice()).unwrap();
            if server.process_new_packets().is_err() {
                return false;
            }
            bytes.clear();
            server.write_tls(&mut bytes).unwrap();
            client.read_tls(&mut bytes.as_slice()).unwrap();
            if client.process_new_packets().is_err() {
                return false;
            }
        }
        true
    }

    #[test]
    fn clients_take_it_for_its_names_and_no_others() {
        let names = ["localhost", "127.0.0.1", "::1", "box.lan"].map(str::to_owned);
        let made = make(&names, SystemTime::now()).unwrap();
        for name in ["localhost", "127.0.0.1", "::1", "box.lan"] {
            assert!(is_taken(&made, name), "{name}");
        }
        for other in ["evil.example", "127.0.0.2", "sub.box.lan"] {
            assert!(!is_taken(&made, other), "{other}");
        }
    }

    #[test]
    fn it_is_valid_for_a_year() {
        let names = ["localhost".to_owned()];
        let at = |days: u64, past: bool| {
            let span = Duration::from_secs(days * 24 * 3600);
            let time = if past { SystemTime::now() - span } else { SystemTime::now() + span };
            is_taken(&make(&names, time).unwrap(), "localhost")
        };
        assert!(at(0, true) && at(364, true));
        assert!(!at(366, true) && !at(1, false));
    }

    #[test]
    fn lengths_are_as_short_as_can_be() {
        assert_eq!(value(4, &[&[7]]), [4, 1, 7]);
        assert_eq!(value(4, &[&[0; 127]])[..2], [4, 127]);
        assert_eq!(value(4, &[&[0; 128]])[..3], [4, 0x81, 128]);
        assert_eq!(value(4, &[&[0; 300]])[..4], [4, 0x82, 1, 44]);
    }
}
