//! A system that does not say whose a connection is. Then clients on this machine cannot be told apart, and are not.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use super::Owner;

/// What that means for a cache.
pub(crate) const UNTOLD: Option<&str> = Some(
    "this system does not say which user a connection belongs to: nothing is kept for clients on this machine itself",
);

/// Whose the other end is: another machine's, or a user's whom the system does not name.
pub(crate) fn owner(peer: SocketAddr, _local: SocketAddr) -> Owner {
    // An address of this machine's own can be bound to.
    let mut end = match peer.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::from((ip, 0)),
        IpAddr::V6(_) => peer,
    };
    end.set_port(0);
    match UdpSocket::bind(end) {
        Err(error) if error.kind() == ErrorKind::AddrNotAvailable => Owner::Elsewhere,
        _ => Owner::Uncertain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_addresses_are_told_from_others() {
        let end = |text: &str| text.parse::<SocketAddr>().unwrap();
        for ours in ["127.0.0.1:1", "[::ffff:127.0.0.1]:1"] {
            assert_eq!(owner(end(ours), end("127.0.0.1:2")), Owner::Uncertain, "{ours}");
        }
        // Addresses for documentation, which no machine has. Wine, where tests for Windows run, lets them be bound to.
        #[cfg(not(windows))]
        for theirs in ["192.0.2.7:1", "[::ffff:192.0.2.7]:1"] {
            assert_eq!(owner(end(theirs), end("192.0.2.1:2")), Owner::Elsewhere, "{theirs}");
        }
        assert!(UNTOLD.is_some_and(|why| why.contains("nothing is kept for clients on this machine")));
    }
}
