//! Where to listen, as people write it: `[DIALECT@]HOST[:PORT]`.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use oxcart::rpc::client::Endpoint;
use oxcart::rpc::worker::DialectChoice;

use crate::failure::Failure;
use crate::workers::with_port;

/// Where to listen, and which dialect to speak there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListenOn {
    /// Which dialect to speak, if it was said.
    pub(crate) choice: Option<DialectChoice>,
    endpoint: Endpoint,
}

impl ListenOn {
    pub(crate) fn new(host: &str, port: u16) -> ListenOn {
        ListenOn { choice: None, endpoint: Endpoint::new(host, port) }
    }
}

impl FromStr for ListenOn {
    type Err = String;

    fn from_str(text: &str) -> Result<ListenOn, String> {
        let (choice, address) = match text.split_once('@') {
            Some((dialect, rest)) => (Some(dialect.parse().map_err(|error| format!("{error}"))?), rest),
            None => (None, text),
        };
        let endpoint = Endpoint::to_listen_on(&with_port(address)).map_err(|error| error.to_string())?;
        Ok(ListenOn { choice, endpoint })
    }
}

impl fmt::Display for ListenOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.endpoint.to_string().escape_debug(), f)
    }
}

/// The addresses behind names.
pub(crate) fn resolve(places: &[ListenOn]) -> Result<Vec<Vec<SocketAddr>>, Failure> {
    let mut all = Vec::with_capacity(places.len());
    for place in places {
        let unknown = |error: &dyn fmt::Display| Failure::Usage(format!("cannot listen on {place}: {error}"));
        let found = place.endpoint.addresses().map_err(|error| {
            unknown(&format_args!("this name cannot be found ({error}); give an address of this machine"))
        })?;
        if found.is_empty() {
            return Err(unknown(&"the name has no address"));
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
        let parsed: ListenOn = "2.0@127.0.0.1:50053".parse().unwrap();
        assert_eq!((parsed.to_string().as_str(), parsed.choice), ("127.0.0.1:50053", "2.0".parse().ok()));
        assert_eq!("[::1]:1".parse::<ListenOn>().unwrap(), ListenOn::new("::1", 1));
        for (text, host) in [("127.0.0.1", "127.0.0.1"), ("2.0@den", "den"), ("::1", "::1"), ("[::1]", "::1")]
        {
            assert_eq!(text.parse::<ListenOn>().unwrap().endpoint, Endpoint::new(host, 50052), "{text}");
        }
        assert_eq!("den:0".parse::<ListenOn>().unwrap(), ListenOn::new("den", 0));
        for wrong in ["", ":7", "1.2.3.4:x", "9.9@127.0.0.1:1", "127.0.0.1:70000"] {
            assert!(wrong.parse::<ListenOn>().is_err(), "{wrong}");
        }
    }
}
