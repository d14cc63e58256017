//! Whose connections are: what is shared is shared among peers first, and among the connections of one peer then.
//!
//! Invariant: a machine that has proved its key is one peer, wherever it is. Of others, one address of version 4, or one network of
//! 64 bits of version 6, is one peer. More addresses of that network come for free, so they must not count for more.

use std::net::{IpAddr, SocketAddr};

use crate::link::Key;

/// All connections of one machine, or from one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Peer {
    /// A place.
    At(IpAddr),
    /// A machine that has proved who it is.
    Machine(Key),
}

impl Peer {
    pub(crate) fn of(address: SocketAddr) -> Peer {
        Peer::of_ip(address.ip())
    }

    pub(crate) fn of_ip(ip: IpAddr) -> Peer {
        Peer::At(match ip.to_canonical() {
            IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() >> 64 << 64).into()),
            ip @ IpAddr::V4(_) => ip,
        })
    }
}

/// One connection of a peer: who holds what is shared, and who asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Holder {
    pub(crate) peer: Peer,
    /// Number of the connection.
    pub(crate) client: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network_are_one_peer() {
        let peer = |text: &str| Peer::of(text.parse().unwrap());
        assert_eq!(peer("192.0.2.1:1"), peer("[::ffff:192.0.2.1]:2"));
        assert_ne!(peer("192.0.2.1:1"), peer("192.0.2.2:1"));
        assert_eq!(peer("[2001:db8::1]:1"), peer("[2001:db8::ffff:0:0:1]:1"));
        assert_ne!(peer("[2001:db8::1]:1"), peer("[2001:db8:0:1::1]:1"));
    }
}
