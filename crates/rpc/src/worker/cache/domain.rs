//! Trust domains: clients of one domain share what the cache keeps for them, and no other client sees it.
//!
//! A machine that has proved its key is a domain, wherever it is. Of other clients, a worker knows without being told by them:
//!
//! - If the client's end of the connection is on this machine, the system says which user it belongs to. That is the
//!   domain, whatever address was used. (Where the system does not say, there is none: see [`Domain::users_untold`].)
//! - If it is elsewhere, its address is the domain: an answer reached it there, so it is as good as the network is.
//!
//! Invariant: where neither is certain (an end that is closing already, a user without a number here, loopback without an
//! owner) there is no domain, and such a client is served nothing and nothing of it is kept.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use super::owner::{self, Owner, owner};
use super::share::Share;
use crate::link::Key;
use crate::worker::peer::Peer;

/// Clients that trust each other. Made of letters, digits, points and hyphens, so that it can name a folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Domain(String);

/// How a worker tells the domain of a client from the two ends of its connection: the client's, and its own.
pub type DomainOf = fn(peer: SocketAddr, local: SocketAddr) -> Option<Domain>;

const USER: &str = "user-";
const ADDRESS: &str = "addr-";
const MACHINE: &str = "key-";

impl Domain {
    /// The domain of a user of this machine.
    pub fn of_user(number: u32) -> Domain {
        Domain(format!("{USER}{number}"))
    }

    /// The domain of a machine that has proved its key.
    pub fn of_machine(key: Key) -> Domain {
        Domain(format!("{MACHINE}{}", key.hex()))
    }

    /// The domain of an address.
    pub fn of_address(peer: SocketAddr) -> Domain {
        Domain(match (peer.ip().to_canonical(), peer) {
            (IpAddr::V4(ip), _) => format!("{ADDRESS}{ip}"),
            // The same link-local address exists on every link.
            (IpAddr::V6(ip), SocketAddr::V6(whole)) if whole.scope_id() != 0 => {
                format!("{ADDRESS}{:032x}-{}", ip.to_bits(), whole.scope_id())
            }
            (IpAddr::V6(ip), _) => format!("{ADDRESS}{:032x}", ip.to_bits()),
        })
    }

    /// The domain of a client, if it is certain.
    pub fn of_client(peer: SocketAddr, local: SocketAddr) -> Option<Domain> {
        match owner(peer, local) {
            Owner::User(number) => Some(Domain::of_user(number)),
            Owner::Elsewhere if !peer.ip().to_canonical().is_loopback() => Some(Domain::of_address(peer)),
            Owner::Elsewhere | Owner::Uncertain => None,
        }
    }

    /// What is not kept on this system because it does not say which user a connection belongs to; `None` where it does.
    pub fn users_untold() -> Option<&'static str> {
        owner::UNTOLD
    }

    /// The domain whose folder has this name, if it is one.
    pub(super) fn from_folder(name: &str) -> Option<Domain> {
        if let Some(key) = name.strip_prefix(MACHINE) {
            return Key::from_hex(key).map(Domain::of_machine);
        }
        let rest = name.strip_prefix(USER).or_else(|| name.strip_prefix(ADDRESS))?;
        let is_plain = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c) || c == '.' || c == '-';
        (!rest.is_empty() && rest.len() <= 48 && rest.chars().all(is_plain)).then(|| Domain(name.to_owned()))
    }

    pub(super) fn folder(&self) -> &str {
        &self.0
    }

    /// What it has a part of: the share of its peer, if it is a machine or an address.
    pub(super) fn share(&self) -> Share {
        let machine = self.0.strip_prefix(MACHINE).and_then(Key::from_hex).map(Peer::Machine);
        let peer = machine.or_else(|| self.0.strip_prefix(ADDRESS).and_then(ip_in).map(Peer::of_ip));
        peer.map_or_else(|| Share::Domain(self.clone()), Share::Peer)
    }
}

/// The address that a domain is named by.
fn ip_in(name: &str) -> Option<IpAddr> {
    if let Ok(ip) = name.parse() {
        return Some(IpAddr::V4(ip));
    }
    let (bits, _scope) = name.split_once('-').unwrap_or((name, ""));
    let bits = u128::from_str_radix(bits, 16).ok().filter(|_| bits.len() == 32)?;
    Some(IpAddr::V6(bits.into()))
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domain(address: &str) -> String {
        Domain::of_address(address.parse().unwrap()).to_string()
    }

    #[test]
    fn addresses_have_one_name_each() {
        assert_eq!(domain("192.0.2.7:1"), "addr-192.0.2.7");
        assert_eq!(domain("[::ffff:192.0.2.7]:2"), "addr-192.0.2.7");
        assert_eq!(domain("[2001:db8::1]:3"), "addr-20010db8000000000000000000000001");
        assert_eq!(domain("[fe80::1%3]:4"), "addr-fe800000000000000000000000000001-3");
        let machine = Domain::of_machine(Key::from_bytes([0xab; 32]));
        assert_eq!(machine.share(), Share::Peer(Peer::Machine(Key::from_bytes([0xab; 32]))));
        for name in [
            domain("[fe80::1%3]:4"),
            domain("192.0.2.7:1"),
            Domain::of_user(u32::MAX).to_string(),
            machine.to_string(),
        ] {
            assert_eq!(Domain::from_folder(&name).unwrap().to_string(), name);
        }
        for name in
            ["", "user-", "addr-../..", "shared", "addr-x", "user-1/2", "..", "key-", "key-ab", "key-../.."]
        {
            assert_eq!(Domain::from_folder(name), None, "{name}");
        }
    }

    #[test]
    fn a_peer_has_one_share_and_so_has_a_user() {
        let share = |address: &str| Domain::of_address(address.parse().unwrap()).share();
        assert_eq!(share("192.0.2.7:1"), share("[::ffff:192.0.2.7]:2"));
        assert_ne!(share("192.0.2.7:1"), share("192.0.2.8:1"));
        assert_eq!(share("[2001:db8::1]:1"), share("[2001:db8::ffff:0:0:1]:2"));
        assert_ne!(share("[2001:db8::1]:1"), share("[2001:db8:0:1::1]:1"));
        assert_eq!(share("[fe80::1%3]:4"), share("[fe80::2%4]:4"));
        assert_eq!(Domain::of_user(7).share(), Share::Domain(Domain::of_user(7)));
        // Folders with names that only look like ours are on their own.
        for name in ["addr-1.2.3", "addr-20010db8", "addr-2001-3", "user-1.2"] {
            let domain = Domain::from_folder(name).unwrap();
            assert_eq!(domain.share(), Share::Domain(domain.clone()), "{name}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_system_knows_the_user_at_the_other_end() {
        use std::net::{TcpListener, TcpStream};
        let me = Domain::of_user(rustix::process::geteuid().as_raw());
        for here in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            // Not every machine has version 6.
            let Ok(listener) = TcpListener::bind(here) else { continue };
            let port = listener.local_addr().unwrap().port();
            for there in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
                let ip: IpAddr = there.parse().unwrap();
                let Ok(client) = TcpStream::connect((ip, port)) else { continue };
                let (server, peer) = listener.accept().unwrap();
                let local = server.local_addr().unwrap();
                assert_eq!(Domain::of_client(peer, local), Some(me.clone()), "{here} from {there}");
                drop(client);
                assert_eq!(Domain::of_client(peer, local), None, "{here} from {there}, closing");
            }
        }
    }

    #[test]
    fn loopback_without_an_owner_has_no_domain() {
        let end = |text: &str| text.parse::<SocketAddr>().unwrap();
        let domain = Domain::of_client(end("127.0.0.1:1"), end("127.0.0.1:2"));
        assert_eq!(domain, None);
        // Wine, where tests for Windows run, takes every address for its own.
        if cfg!(not(windows)) {
            let far = Domain::of_client(end("192.0.2.7:1"), end("192.0.2.1:2"));
            assert_eq!(far, Some(Domain::of_address(end("192.0.2.7:9"))));
        }
    }
}
