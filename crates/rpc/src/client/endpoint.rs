//! Where a worker listens: `host:port`, a name or an address; IPv6 addresses stand in brackets. Both sides read it here.

use std::fmt;
use std::io;
use std::net::{Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use super::limits::MAX_ADDRESSES;

/// Where a worker listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    host: String,
    port: u16,
}

/// A text that names no endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// No port, or no number that is one.
    #[error("'{text}' has no valid port; write host:port, for example 127.0.0.1:50052")]
    Port {
        /// The text.
        text: String,
    },
    /// No host.
    #[error("'{text}' has no host; write host:port, for example 127.0.0.1:50052")]
    Host {
        /// The text.
        text: String,
    },
    /// Something else than an IPv6 address in brackets, or one without them.
    #[error("'{text}' is not an IPv6 address with a port; write it like [::1]:50052")]
    Brackets {
        /// The text.
        text: String,
    },
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Endpoint, EndpointError> {
        Endpoint::to_listen_on(text).and_then(|endpoint| match endpoint.port {
            0 => Err(EndpointError::Port { text: text.to_owned() }),
            _ => Ok(endpoint),
        })
    }
}

impl Endpoint {
    /// An endpoint by its parts. An IPv6 address may stand in brackets or not.
    pub fn new(host: &str, port: u16) -> Endpoint {
        let inner = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        Endpoint { host: inner.unwrap_or(host).to_owned(), port }
    }

    /// Reads an endpoint to listen on: as for a worker to connect to, but port 0 stands for any that is free.
    pub fn to_listen_on(text: &str) -> Result<Endpoint, EndpointError> {
        let given = || text.to_owned();
        let (host, port) = text.rsplit_once(':').ok_or_else(|| EndpointError::Port { text: given() })?;
        let host = match host.strip_prefix('[').map(|rest| rest.strip_suffix(']')) {
            Some(Some(inner)) if is_v6(inner) => inner,
            None if !host.contains([':', ']']) => host,
            _ => return Err(EndpointError::Brackets { text: given() }),
        };
        let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|_| is_number);
        let port = port.ok_or_else(|| EndpointError::Port { text: given() })?;
        if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(EndpointError::Host { text: given() });
        }
        Ok(Endpoint { host: host.to_owned(), port })
    }

    /// The name or address.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Whether another is written the same, but for what does not matter in a name: capitals, and a point at the end.
    pub fn is_same(&self, other: &Endpoint) -> bool {
        let host = |endpoint: &Endpoint| endpoint.host.trim_end_matches('.').to_ascii_lowercase();
        self.port == other.port && host(self) == host(other)
    }

    /// The addresses it stands for, in the order the system prefers them.
    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        Ok((self.host.as_str(), self.port).to_socket_addrs()?.take(MAX_ADDRESSES).collect())
    }
}

/// Whether a text is an IPv6 address, possibly with a scope.
fn is_v6(text: &str) -> bool {
    text.split('%').next().unwrap_or(text).parse::<Ipv6Addr>().is_ok()
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses() {
        for text in ["127.0.0.1:50052", "localhost:1", "gpu-3.lan:65535", "[::1]:50052", "[fe80::1%eth0]:7"] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn port_0_is_only_to_listen_on() {
        let any = Endpoint::to_listen_on("[::1]:0").unwrap();
        assert_eq!((any.to_string().as_str(), &any), ("[::1]:0", &Endpoint::new("::1", 0)));
        assert_eq!(any, Endpoint::new("[::1]", 0));
        assert!(Endpoint::to_listen_on("[::1]:x").is_err());
    }

    #[test]
    fn anything_else_is_refused() {
        let error = |text: &str| text.parse::<Endpoint>().unwrap_err().to_string();
        for text in ["", "host", "host:", "host:0", "host:65536", "host:-1", "host:+1", "host:x", "[::1]"] {
            assert!(error(text).contains("port"), "{text}");
        }
        for text in [":1", " :1", "a b:1", "a\n:1"] {
            assert!(error(text).contains("no host"), "{text}");
        }
        for text in ["::1:50052", "[::1:50052", "[localhost]:1", "[]:1", "[::1]x:1"] {
            assert!(error(text).contains("like [::1]:50052"), "{text}");
        }
    }
}
