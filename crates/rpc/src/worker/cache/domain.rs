//! Trust domains: clients of one domain share what the cache keeps for them, and no other client sees it.
//!
//! The protocol knows no names and no keys. What a worker does know without being told by the client:
//!
//! - If the client's end of the connection is on this machine, the system says which user it belongs to. That is the
//!   domain, whatever address was used.
//! - If it is elsewhere, its address is the domain: an answer reached it there, so it is as good as the network is.
//!
//! Invariant: where neither is certain (an end that is closing already, a user without a number here, loopback without an
//! owner) there is no domain, and such a client is served nothing and nothing of it is kept.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Clients that trust each other. Made of letters, digits, points and hyphens, so that it can name a folder.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Domain(String);

/// How a worker tells the domain of a client from the two ends of its connection: the client's, and its own.
pub type DomainOf = fn(peer: SocketAddr, local: SocketAddr) -> Option<Domain>;

const USER: &str = "user-";
const ADDRESS: &str = "addr-";

impl Domain {
    /// The domain of a user of this machine.
    pub fn of_user(number: u32) -> Domain {
        Domain(format!("{USER}{number}"))
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
            #[cfg(not(target_os = "linux"))]
            Owner::Untold => Some(Domain::of_address(peer)),
        }
    }

    /// The domain whose folder has this name, if it is one.
    pub(super) fn from_folder(name: &str) -> Option<Domain> {
        let rest = name.strip_prefix(USER).or_else(|| name.strip_prefix(ADDRESS))?;
        let is_plain = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c) || c == '.' || c == '-';
        (!rest.is_empty() && rest.len() <= 48 && rest.chars().all(is_plain)).then(|| Domain(name.to_owned()))
    }

    pub(super) fn folder(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Whose the other end of a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    User(u32),
    Elsewhere,
    Uncertain,
    /// The system has no way to say.
    #[cfg(not(target_os = "linux"))]
    Untold,
}

#[cfg(not(target_os = "linux"))]
fn owner(_peer: SocketAddr, _local: SocketAddr) -> Owner {
    Owner::Untold
}

#[cfg(target_os = "linux")]
fn owner(peer: SocketAddr, local: SocketAddr) -> Owner {
    use std::fs::File;
    use std::io::{BufReader, ErrorKind};
    let (here, there) = (local.ip().to_canonical(), peer.ip().to_canonical());
    let is_v4 = here.is_ipv4() && there.is_ipv4();
    // An address of version 4 can be written as one of version 6, so such a client may stand in either table.
    let mut found = match File::open("/proc/net/tcp6") {
        Ok(file) => find(BufReader::new(file), &cell(mapped(there), peer), &cell(mapped(here), local)),
        // Not every system has version 6.
        Err(error) if is_v4 && error.kind() == ErrorKind::NotFound => Owner::Elsewhere,
        Err(_) => Owner::Uncertain,
    };
    if is_v4 && found == Owner::Elsewhere {
        found = match File::open("/proc/net/tcp") {
            Ok(file) => find(BufReader::new(file), &cell(there, peer), &cell(here, local)),
            Err(_) => Owner::Uncertain,
        };
    }
    found
}

fn mapped(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => IpAddr::V6(ip.to_ipv6_mapped()),
        IpAddr::V6(_) => ip,
    }
}

/// An address as the system's tables have it: words as the machine reads them, in hexadecimal.
#[expect(clippy::host_endian_bytes, reason = "the tables are in the order of the host")]
fn cell(ip: IpAddr, end: SocketAddr) -> String {
    let words = match ip {
        IpAddr::V4(ip) => format!("{:08X}", u32::from_ne_bytes(ip.octets())),
        IpAddr::V6(ip) => words(ip).map(|word| format!("{:08X}", u32::from_ne_bytes(word))).concat(),
    };
    format!("{words}:{:04X}", end.port())
}

fn words(ip: Ipv6Addr) -> [[u8; 4]; 4] {
    let octets = ip.octets();
    std::array::from_fn(|word| std::array::from_fn(|byte| octets[4 * word + byte]))
}

/// What stands for users that have no number in this namespace.
const OVERFLOW_USER: u32 = 65_534;

/// Looks for the client's end in a table of connections.
fn find(table: impl std::io::BufRead, there: &str, here: &str) -> Owner {
    for line in table.lines() {
        let Ok(line) = line else { return Owner::Uncertain };
        let mut columns = line.split_ascii_whitespace().skip(1);
        if columns.next() != Some(there) || columns.next() != Some(here) {
            continue;
        }
        // A connection that is closing has no owner, and then the table says user 0.
        let is_open = columns.next() == Some("01");
        let user = columns.nth(3).and_then(|user| user.parse().ok());
        return match user {
            Some(user) if is_open && user != OVERFLOW_USER => Owner::User(user),
            _ => Owner::Uncertain,
        };
    }
    Owner::Elsewhere
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
        for name in [domain("[fe80::1%3]:4"), domain("192.0.2.7:1"), Domain::of_user(u32::MAX).to_string()] {
            assert_eq!(Domain::from_folder(&name).unwrap().to_string(), name);
        }
        for name in ["", "user-", "addr-../..", "shared", "addr-x", "user-1/2", ".."] {
            assert_eq!(Domain::from_folder(name), None, "{name}");
        }
    }

    /// Rows of a table as a small little-endian machine has it.
    fn row(state: &str, user: &str) -> String {
        format!(
            "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
             0: 00000000:C384 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0\n   \
             1: 0100007F:A001 0100007F:C384 {state} 00000000:00000000 00:00000000 00000000  {user}        0 7 1 0 20\n"
        )
    }

    #[test]
    fn users_are_told_by_open_connections_alone() {
        let (there, here) = ("0100007F:A001", "0100007F:C384");
        let look = |state, user| find(row(state, user).as_bytes(), there, here);
        assert_eq!(look("01", "1000"), Owner::User(1000));
        assert_eq!(look("01", "0"), Owner::User(0));
        // FIN_WAIT1, FIN_WAIT2 and TIME_WAIT have no owner.
        for state in ["04", "05", "06", "0A"] {
            assert_eq!(look(state, "0"), Owner::Uncertain, "{state}");
        }
        assert_eq!(look("01", "65534"), Owner::Uncertain);
        assert_eq!(look("01", "x"), Owner::Uncertain);
        assert_eq!(find(row("01", "0").as_bytes(), here, there), Owner::Elsewhere);
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
        assert_eq!(domain.is_none(), cfg!(target_os = "linux"));
        let far = Domain::of_client(end("192.0.2.7:1"), end("192.0.2.1:2"));
        assert_eq!(far, Some(Domain::of_address(end("192.0.2.7:9"))));
    }
}
