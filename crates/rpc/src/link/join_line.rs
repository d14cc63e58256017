//! What a person carries from one machine to another: where it is, its key, and a secret that is good once.
//!
//! As text it is letters and digits alone, so that a double click takes all of it; case, spaces and line breaks do not matter, and a
//! typing mistake is found by a checksum. In bytes: version, key, secret, number of addresses, and for each its port and its host
//! (an address of version 4 or 6, or a name); then the first four bytes of the BLAKE3 digest of all that.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

use super::base32;
use super::key::Key;
use super::limits::{MAX_LINE_ADDRESSES, MAX_LINE_CHARS};
use crate::client::Endpoint;

/// What is known only to who has seen the line.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; 16]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// A new one; `None` where the system has no random numbers.
    pub fn make() -> Option<Secret> {
        let mut bytes = [0; 16];
        SystemRandom::new().fill(&mut bytes).ok()?;
        Some(Secret(bytes))
    }

    /// One by its bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Secret {
        Secret(bytes)
    }

    /// Its bytes, to be told to machines that are to know it.
    pub(crate) const fn bytes(&self) -> [u8; 16] {
        self.0
    }

    fn mac(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.0)
    }

    /// Proves that it is known, to who knows it too: good for these words alone.
    pub(super) fn prove(&self, words: &[u8]) -> [u8; 32] {
        let mut proof = [0; 32];
        proof.copy_from_slice(hmac::sign(&self.mac(), words).as_ref());
        proof
    }

    /// Whether a proof is right; takes as long for any that is not.
    pub(super) fn is_proved(&self, words: &[u8], proof: &[u8; 32]) -> bool {
        hmac::verify(&self.mac(), words, proof).is_ok()
    }
}

/// A join line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinLine {
    /// The machine that shows it.
    pub worker: Key,
    /// What proves that it was seen.
    pub secret: Secret,
    /// Where that machine may be found, the likeliest first.
    pub endpoints: Vec<Endpoint>,
}

/// A text that is no join line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JoinLineError {
    /// It does not look like one.
    #[error("this is not a join line, which begins with {MARK}, as oxcart worker shows it")]
    Form,
    /// A letter is wrong or missing.
    #[error("this join line is damaged: a letter is wrong or missing; copy all of it again")]
    Damaged,
    /// A newer Oxcart has made it.
    #[error(
        "this join line has a version ({0}) that this Oxcart does not understand; update the older machine"
    )]
    Version(u8),
}

/// What the text begins with.
const MARK: &str = "oxj";
const VERSION: u8 = 1;
/// Lengths that stand for addresses rather than names.
const V4: u8 = 0xfe;
const V6: u8 = 0xff;
const MAX_HOST_BYTES: usize = 253;

/// Takes bytes apart from their start.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }
}

impl JoinLine {
    /// Whether a place can stand in a line; others are left out of it.
    pub(super) fn can_hold(endpoint: &Endpoint) -> bool {
        (1..=MAX_HOST_BYTES).contains(&endpoint.host().len())
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bytes.extend(self.worker.as_bytes());
        bytes.extend(self.secret.0);
        let can_hold = |endpoint: &&Endpoint| JoinLine::can_hold(endpoint);
        let endpoints: Vec<_> = self.endpoints.iter().filter(can_hold).take(MAX_LINE_ADDRESSES).collect();
        bytes.push(endpoints.len() as u8);
        for endpoint in endpoints {
            bytes.extend(endpoint.port().to_le_bytes());
            match endpoint.host().parse() {
                Ok(IpAddr::V4(ip)) => bytes.extend([&[V4][..], &ip.octets()].concat()),
                Ok(IpAddr::V6(ip)) => bytes.extend([&[V6][..], &ip.octets()].concat()),
                Err(_) => bytes.extend([&[endpoint.host().len() as u8], endpoint.host().as_bytes()].concat()),
            }
        }
        let checksum = checksum(&bytes);
        bytes.extend(checksum);
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Result<JoinLine, JoinLineError> {
        let (body, found) = bytes.split_last_chunk().ok_or(JoinLineError::Damaged)?;
        if checksum(body) != *found {
            return Err(JoinLineError::Damaged);
        }
        match body.first() {
            Some(&VERSION) => {
                Self::from_body(body.get(1..).unwrap_or_default()).ok_or(JoinLineError::Damaged)
            }
            Some(&version) => Err(JoinLineError::Version(version)),
            None => Err(JoinLineError::Damaged),
        }
    }

    fn from_body(body: &[u8]) -> Option<JoinLine> {
        let mut rest = Rest(body);
        let (worker, secret) = (Key::from_bytes(rest.array()?), Secret(rest.array()?));
        let [count] = rest.array()?;
        if count == 0 || usize::from(count) > MAX_LINE_ADDRESSES {
            return None;
        }
        let mut endpoints = Vec::new();
        for _ in 0..count {
            let port = u16::from_le_bytes(rest.array()?);
            let [length] = rest.array()?;
            let host = match length {
                V4 => Ipv4Addr::from(rest.array::<4>()?).to_string(),
                V6 => Ipv6Addr::from(rest.array::<16>()?).to_string(),
                length => str::from_utf8(rest.take(length.into())?).ok()?.to_owned(),
            };
            // The same rules as for what people type; so what is shown of it is harmless, too.
            let endpoint: Endpoint = Endpoint::new(&host, port).to_string().parse().ok()?;
            endpoints.push(endpoint);
        }
        rest.0.is_empty().then_some(JoinLine { worker, secret, endpoints })
    }
}

fn checksum(bytes: &[u8]) -> [u8; 4] {
    let [a, b, c, d, ..] = *blake3::hash(bytes).as_bytes();
    [a, b, c, d]
}

impl fmt::Display for JoinLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{MARK}{}", base32::encode(&self.to_bytes()))
    }
}

impl FromStr for JoinLine {
    type Err = JoinLineError;

    fn from_str(text: &str) -> Result<JoinLine, JoinLineError> {
        if text.len() > MAX_LINE_CHARS {
            return Err(JoinLineError::Form);
        }
        // Broken by a terminal or a mail, it is still the same line.
        let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let has_mark = text.get(..MARK.len()).is_some_and(|start| start.eq_ignore_ascii_case(MARK));
        let rest = text.get(MARK.len()..).filter(|_| has_mark).ok_or(JoinLineError::Form)?;
        JoinLine::from_bytes(&base32::decode(rest).ok_or(JoinLineError::Damaged)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(hosts: &[&str]) -> JoinLine {
        JoinLine {
            worker: Key::from_bytes([7; 32]),
            secret: Secret([9; 16]),
            endpoints: hosts.iter().map(|host| host.parse().unwrap()).collect(),
        }
    }

    #[test]
    fn lines_survive_copy_and_paste() {
        let line = line(&["192.168.1.5:50052", "[fe80::1]:1", "den.lan:65535"]);
        let text = line.to_string();
        assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric()) && text.len() < 160, "{text}");
        let wrapped: String = text
            .chars()
            .enumerate()
            .flat_map(|(i, c)| [c].into_iter().chain((i % 40 == 39).then_some('\n')))
            .collect();
        for pasted in [text.clone(), text.to_uppercase(), format!("  {text}\r\n"), wrapped] {
            assert_eq!(pasted.parse(), Ok(line.clone()), "{pasted}");
        }
        assert!(!format!("{line:?}").contains("9, 9"));
        // The longest host there is, and one that is too long.
        let longest = Endpoint::new(&"a".repeat(MAX_HOST_BYTES), 1);
        let long = JoinLine { endpoints: vec![Endpoint::new(&"a".repeat(300), 1), longest.clone()], ..line };
        assert_eq!(long.to_string().parse::<JoinLine>().unwrap().endpoints, [longest]);
    }

    #[test]
    fn mistakes_are_found() {
        let text = line(&["10.0.0.1:50052"]).to_string();
        for at in MARK.len()..text.len() {
            let other = if text.as_bytes()[at] == b'7' { "8" } else { "7" };
            let wrong = format!("{}{other}{}", &text[..at], &text[at + 1..]);
            assert!(matches!(wrong.parse::<JoinLine>(), Err(JoinLineError::Damaged)), "{at}");
            let short = format!("{}{}", &text[..at], &text[at + 1..]);
            assert!(short.parse::<JoinLine>().is_err(), "{at}");
        }
        for text in ["", "oxj", "den", "192.168.1.5", &text[3..], &"oxj".repeat(5000)] {
            assert!(text.parse::<JoinLine>().is_err());
        }
    }

    #[test]
    fn what_is_in_a_line_is_checked() {
        let mut later = line(&["a:1"]).to_bytes();
        later.truncate(later.len() - 4);
        later[0] = 2;
        let sum = checksum(&later);
        later.extend(sum);
        assert_eq!(JoinLine::from_bytes(&later), Err(JoinLineError::Version(2)));
        // No address, port 0, a host that a terminal would act on, one that is cut off.
        let body = |end: &[u8]| [&[VERSION][..], &[7; 48], end].concat();
        for end in [
            &[0][..],
            &[1, 0, 0, 1, b'a'],
            &[1, 1, 0, 2, 0x1b, b'['],
            &[1, 1, 0, 9, b'a'],
            &[1, 1, 0, 1, b'a', 0],
            &[9],
        ] {
            let mut bytes = body(end);
            let sum = checksum(&bytes);
            bytes.extend(sum);
            assert_eq!(JoinLine::from_bytes(&bytes), Err(JoinLineError::Damaged), "{end:?}");
        }
    }
}
