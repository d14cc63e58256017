//! The system's table of connections, which names the user of each.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::Owner;

/// Every user is told.
pub(crate) const UNTOLD: Option<&str> = None;

/// Whose the other end is.
pub(crate) fn owner(peer: SocketAddr, local: SocketAddr) -> Owner {
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
fn find(table: impl BufRead, there: &str, here: &str) -> Owner {
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
}
