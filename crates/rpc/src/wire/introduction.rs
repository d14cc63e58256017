//! What a client says to two workers that it introduces to each other, so that bytes go from one to the other without coming by the
//! client: the bodies of EXPECT, MEET, PUSH and AWAIT.
//!
//! The receiving worker is told to EXPECT a worker that knows a secret, the sending one to MEET it. From then on PUSH on the one
//! connection and AWAIT on the other belong together by the number of the introduction and a ticket. Invariant: every body has one
//! length, and is read the way it was written.

use std::fmt;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};

use zerocopy::{FromBytes, IntoBytes};

use super::record::{RECORD_BYTES, TensorRecord};

/// Takes a body apart from its start.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(|bytes| u32::from_le_bytes(*bytes))
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(|bytes| u64::from_le_bytes(*bytes))
    }

    /// A key, or none.
    fn key(&mut self) -> Option<Option<[u8; 32]>> {
        let ([is_there], key) = (self.take::<1>()?, self.take::<32>()?);
        match is_there {
            0 if *key == [0; 32] => Some(None),
            1 => Some(Some(*key)),
            _ => None,
        }
    }

    /// All of it, if nothing is left.
    fn end<T>(self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
}

fn put_key(body: &mut Vec<u8>, key: Option<&[u8; 32]>) {
    body.push(u8::from(key.is_some()));
    body.extend(key.unwrap_or(&[0; 32]));
}

/// EXPECT: another worker will come, and prove that it knows a secret. Answered with 1, or with 0 if that cannot be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Expect {
    /// What the client calls the introduction on this connection.
    pub number: u32,
    /// What the other worker will prove to know.
    pub secret: [u8; 16],
    /// The other worker's key, if workers and client know each other by keys.
    pub key: Option<[u8; 32]>,
}

impl fmt::Debug for Expect {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Expect({}, key: {})", self.number, self.key.is_some())
    }
}

impl Expect {
    /// Bytes of the body.
    pub const BYTES: usize = 4 + 16 + 33;

    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(Expect::BYTES);
        body.extend(self.number.to_le_bytes());
        body.extend(self.secret);
        put_key(&mut body, self.key.as_ref());
        body
    }

    /// From bytes, if they are one.
    pub fn decode(body: &[u8]) -> Option<Expect> {
        let mut rest = Rest(body);
        let value = Expect { number: rest.u32()?, secret: *rest.take()?, key: rest.key()? };
        rest.end(value)
    }
}

/// Where a worker is. Addresses that mean something else on each machine (with a scope) cannot be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(SocketAddrV6);

impl Address {
    /// An address, if it can be said.
    pub fn new(address: SocketAddr) -> Option<Address> {
        match address {
            SocketAddr::V4(v4) => Some(Address(SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0))),
            SocketAddr::V6(v6) if v6.scope_id() == 0 => {
                Some(Address(SocketAddrV6::new(*v6.ip(), v6.port(), 0, 0)))
            }
            SocketAddr::V6(_) => None,
        }
    }

    /// As the system wants it.
    pub fn socket_address(self) -> SocketAddr {
        SocketAddr::new(self.0.ip().to_canonical(), self.0.port())
    }
}

/// MEET: go to another worker, and prove to know a secret. Answered with 1 once that worker has believed it, or with 0.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Meet {
    /// What the client calls the introduction on this connection.
    pub number: u32,
    /// Where the other worker is.
    pub address: Address,
    /// What the other worker expects to be proved.
    pub secret: [u8; 16],
    /// The other worker's key, if workers and client know each other by keys.
    pub key: Option<[u8; 32]>,
}

impl fmt::Debug for Meet {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Meet({}, {:?}, key: {})", self.number, self.address, self.key.is_some())
    }
}

impl Meet {
    /// Bytes of the body.
    pub const BYTES: usize = 4 + 18 + 16 + 33;

    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(Meet::BYTES);
        body.extend(self.number.to_le_bytes());
        body.extend(self.address.0.ip().octets());
        body.extend(self.address.0.port().to_le_bytes());
        body.extend(self.secret);
        put_key(&mut body, self.key.as_ref());
        body
    }

    /// From bytes, if they are one.
    pub fn decode(body: &[u8]) -> Option<Meet> {
        let mut rest = Rest(body);
        let number = rest.u32()?;
        let ip = Ipv6Addr::from(*rest.take::<16>()?);
        let port = u16::from_le_bytes(*rest.take()?);
        let address = Address(SocketAddrV6::new(ip, port, 0, 0));
        let value = Meet { number, address, secret: *rest.take()?, key: rest.key()? };
        rest.end(value)
    }
}

/// PUSH and AWAIT: bytes of a tensor, which go to the other worker or come from it.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// The introduction.
    pub number: u32,
    /// The first is 0; each further one is one more. Those of PUSH and AWAIT are the same.
    pub ticket: u64,
    /// Which bytes: all of this tensor.
    pub record: TensorRecord,
}

impl Transfer {
    /// Bytes of the body.
    pub const BYTES: usize = 4 + 8 + RECORD_BYTES;

    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(Transfer::BYTES);
        body.extend(self.number.to_le_bytes());
        body.extend(self.ticket.to_le_bytes());
        body.extend_from_slice(self.record.as_bytes());
        body
    }

    /// From bytes, if they are one.
    pub fn decode(body: &[u8]) -> Option<Transfer> {
        let mut rest = Rest(body);
        let (number, ticket) = (rest.u32()?, rest.u64()?);
        let record = TensorRecord::read_from_bytes(rest.0).ok()?;
        Some(Transfer { number, ticket, record })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_come_back_and_have_one_length() {
        for key in [None, Some([7; 32]), Some([0; 32])] {
            let expect = Expect { number: 3, secret: [9; 16], key };
            let body = expect.encode();
            assert_eq!((body.len(), Expect::decode(&body)), (Expect::BYTES, Some(expect)));
            assert_eq!(Expect::decode(&body[1..]), None);
            assert_eq!(Expect::decode(&[&body[..], &[0]].concat()), None);
            for address in ["192.168.1.5:50052", "[2001:db8::1]:1", "127.0.0.1:65535"] {
                let address = Address::new(address.parse().unwrap()).unwrap();
                let meet = Meet { number: u32::MAX, address, secret: [1; 16], key };
                let body = meet.encode();
                assert_eq!((body.len(), Meet::decode(&body)), (Meet::BYTES, Some(meet)));
                assert_eq!(Meet::decode(&body[1..]), None);
            }
            assert!(!format!("{expect:?}").contains('9'), "a secret is shown");
        }
        let transfer = Transfer { number: 1, ticket: 1 << 40, record: TensorRecord::absent() };
        let body = transfer.encode();
        assert_eq!(body.len(), Transfer::BYTES);
        assert_eq!(Transfer::decode(&body).unwrap().encode(), body);
        assert!(
            Transfer::decode(&body[1..]).is_none() && Transfer::decode(&[body, vec![0]].concat()).is_none()
        );
    }

    #[test]
    fn addresses_are_those_that_mean_the_same_everywhere() {
        let said = |text: &str| Address::new(text.parse().unwrap()).map(|it| it.socket_address().to_string());
        assert_eq!(said("10.0.0.1:5").as_deref(), Some("10.0.0.1:5"));
        assert_eq!(said("[::ffff:10.0.0.1]:5").as_deref(), Some("10.0.0.1:5"));
        assert_eq!(said("[fe80::1%3]:5"), None);
    }

    /// A key that is not there is all zeros, so that there is one way to write everything.
    #[test]
    fn what_is_written_otherwise_is_refused() {
        let mut body = Expect { number: 0, secret: [0; 16], key: None }.encode();
        body[21] = 1;
        assert_eq!(Expect::decode(&body), None);
        body[21] = 0;
        body[20] = 2;
        assert_eq!(Expect::decode(&body), None);
    }
}
