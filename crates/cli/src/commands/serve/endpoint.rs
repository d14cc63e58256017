//! Where to listen, as people write it: `[DIALECT@]HOST:PORT`.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use oxcart::rpc::worker::Speak;

use crate::failure::Failure;

/// Where to listen, and what to speak there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// What to speak, if it was said.
    pub(crate) speak: Option<Speak>,
    address: String,
}

impl Endpoint {
    pub(crate) fn new(host: &str, port: u16) -> Endpoint {
        let is_bare_v6 = host.contains(':') && !host.starts_with('[');
        let address = if is_bare_v6 { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        Endpoint { speak: None, address }
    }
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Endpoint, String> {
        let (speak, address) = match text.split_once('@') {
            Some((dialect, rest)) => (Some(dialect.parse().map_err(|error| format!("{error}"))?), rest),
            None => (None, text),
        };
        let port = address.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
        match port {
            Some(Ok(_)) => Ok(Endpoint { speak, address: address.to_owned() }),
            _ => Err("it should be HOST:PORT, for example 127.0.0.1:50052".to_owned()),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.address.escape_debug(), f)
    }
}

/// The addresses behind names. Only this machine's own are allowed unless the operator knows better.
pub(crate) fn resolve(endpoints: &[Endpoint], insecure: bool) -> Result<Vec<Vec<SocketAddr>>, Failure> {
    let mut all = Vec::with_capacity(endpoints.len());
    for endpoint in endpoints {
        let unknown = |error: &dyn fmt::Display| {
            Failure::Usage(format!("{endpoint} is no address to listen on: {error}"))
        };
        let found: Vec<_> = endpoint.address.to_socket_addrs().map_err(|error| unknown(&error))?.collect();
        if found.is_empty() {
            return Err(unknown(&"the name has no address"));
        }
        if !insecure && found.iter().any(|address| !address.ip().is_loopback()) {
            return Err(Failure::Usage(format!(
                "{endpoint} can be reached from other machines, and the protocol has neither keys nor encryption: \
                 whoever connects can use the devices and read along; give --insecure if that network is yours alone, \
                 or listen on 127.0.0.1 and let clients in through a tunnel"
            )));
        }
        all.push(found);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_as_people_write_them() {
        let parsed: Endpoint = "2.0@127.0.0.1:50053".parse().unwrap();
        assert_eq!((parsed.to_string().as_str(), parsed.speak), ("127.0.0.1:50053", "2.0".parse().ok()));
        assert_eq!("[::1]:1".parse::<Endpoint>().unwrap(), Endpoint::new("::1", 1));
        for wrong in ["", "127.0.0.1", "1.2.3.4:x", "9.9@127.0.0.1:1", "127.0.0.1:70000"] {
            assert!(wrong.parse::<Endpoint>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_loopback_unless_told_otherwise() {
        let (near, far) = (Endpoint::new("127.0.0.1", 0), Endpoint::new("0.0.0.0", 0));
        assert!(resolve(&[near.clone(), Endpoint::new("::1", 0)], false).is_ok());
        let refused = resolve(&[near, far.clone()], false).unwrap_err();
        assert!(refused.to_string().contains("--insecure"), "{refused}");
        assert!(resolve(&[far], true).is_ok());
    }
}
