//! Networks as people write them: `192.168.1.0/24`, `fd00::/8`, one address alone.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    start: IpAddr,
    bits: u32,
}

/// A text that is no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{}' is not a network; write 192.168.1.0/24, fd00::/8 or a single address, for example", text.escape_debug())]
pub struct NetworkError {
    /// The text.
    pub text: String,
}

/// An address as a number, left-aligned in 128 bits, and how many bits it has.
fn number(ip: IpAddr) -> (u128, u32) {
    match ip {
        IpAddr::V4(ip) => (u128::from(ip.to_bits()) << 96, 32),
        IpAddr::V6(ip) => (ip.to_bits(), 128),
    }
}

impl Network {
    /// Whether an address is in it. One of version 4 stays one however it is written.
    pub fn contains(&self, ip: IpAddr) -> bool {
        let ((start, length), (ip, other)) = (number(self.start), number(ip.to_canonical()));
        let differ = (start ^ ip).checked_shr(128 - self.bits).unwrap_or(0);
        length == other && differ == 0
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Network, NetworkError> {
        let wrong = || NetworkError { text: text.to_owned() };
        let (ip, bits) = text.split_once('/').map_or((text, None), |(ip, bits)| (ip, Some(bits)));
        let written = ip.parse::<IpAddr>().map_err(|_| wrong())?;
        let start = written.to_canonical();
        // Of which bits there are so many is not clear where one version is written as the other.
        if start != written && bits.is_some() {
            return Err(wrong());
        }
        let (whole, length) = number(start);
        let is_number = |bits: &str| !bits.is_empty() && bits.bytes().all(|byte| byte.is_ascii_digit());
        let bits = match bits {
            None => length,
            Some(bits) if is_number(bits) => bits.parse().map_err(|_| wrong())?,
            Some(_) => return Err(wrong()),
        };
        // Bits beyond the network are a mistake: 192.168.1.5/16 may be meant for that one machine.
        let beyond = whole.checked_shl(bits).unwrap_or(0);
        match bits <= length && beyond == 0 {
            true => Ok(Network { start, bits }),
            false => Err(wrong()),
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.start, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_in_their_networks() {
        for (network, inside, outside) in [
            ("192.168.1.0/24", "192.168.1.255", "192.168.2.0"),
            ("10.0.0.7", "10.0.0.7", "10.0.0.6"),
            ("0.0.0.0/0", "8.8.8.8", "::1"),
            ("fd00::/8", "fdff::1", "fe00::1"),
            ("::/0", "2001:db8::1", "1.2.3.4"),
            ("192.168.0.0/16", "::ffff:192.168.7.7", "::192.168.7.7"),
        ] {
            let network: Network = network.parse().unwrap();
            assert!(network.contains(inside.parse().unwrap()), "{network} {inside}");
            assert!(!network.contains(outside.parse().unwrap()), "{network} {outside}");
            assert_eq!(network.to_string().parse(), Ok(network));
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "/",
            "1.2.3.4/",
            "1.2.3.4/33",
            "1.2.3.4/+8",
            "192.168.1.5/16",
            "::/129",
            "den",
            "::1/64",
            "::ffff:10.0.0.0/8",
            "::ffff:10.0.0.0/104",
            "1.2.3/8",
        ] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }
}
