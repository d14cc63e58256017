//! Who this machine is and whom it knows, as far as commands are concerned.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;

use oxcart::rpc::client::{Endpoint, LinkTo};
use oxcart::rpc::link::{Identity, Machine, MachineName, Machines, MachinesFile};

use crate::failure::Failure;
use crate::os;

/// The folder of this machine's identity and of whom it knows.
pub(crate) fn folder() -> Result<PathBuf, Failure> {
    let nowhere = || {
        Failure::Usage(
            "there is no home folder to keep this machine's identity in; set XDG_DATA_HOME to a folder"
                .into(),
        )
    };
    oxcart::folders::data().ok_or_else(nowhere)
}

/// Who this machine is; made now, if it is not yet anyone.
pub(crate) fn identity() -> Result<Arc<Identity>, Failure> {
    Identity::open(&folder()?).map(Arc::new).map_err(|error| Failure::Machine(error.to_string()))
}

/// Where it is kept whom this machine knows.
pub(crate) fn file() -> Result<MachinesFile, Failure> {
    Ok(MachinesFile::new(&folder()?))
}

/// Whom this machine knows.
pub(crate) fn machines() -> Result<Machines, Failure> {
    file()?.read().map_err(|error| Failure::Machine(error.to_string()))
}

/// How to connect to a machine.
pub(crate) fn link_to(machine: &Machine) -> Result<LinkTo, Failure> {
    Ok(LinkTo { identity: identity()?, worker: machine.key })
}

/// What this machine is called, unless someone says otherwise.
pub(crate) fn own_name(said: Option<&MachineName>) -> MachineName {
    said.cloned().unwrap_or_else(|| MachineName::of_host(&os::host_name()))
}

/// Reads a name that someone gives.
pub(crate) fn name(text: &str) -> Result<MachineName, String> {
    text.parse().map_err(|error| format!("{error}"))
}

/// Where others find what listens on an address: there, or wherever this machine would send from.
pub(crate) fn reachable(address: SocketAddr) -> Vec<Endpoint> {
    let endpoint = |ip: IpAddr| Endpoint::new(&ip.to_string(), address.port());
    if !address.ip().is_unspecified() {
        return vec![endpoint(address.ip())];
    }
    // Nothing is sent: these are addresses of no one, and the system only says which way it would go.
    let ways: &[(&str, &str)] = match address {
        SocketAddr::V4(_) => &[("0.0.0.0:0", "192.0.2.1:9")],
        SocketAddr::V6(_) => &[("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")],
    };
    let way = |(from, to): &(&str, &str)| {
        let socket = UdpSocket::bind(from).ok()?;
        socket.connect(to).ok()?;
        Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_unspecified())
    };
    let found: Vec<_> = ways.iter().filter_map(way).map(endpoint).collect();
    if !found.is_empty() {
        return found;
    }
    let loopback: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    vec![endpoint(loopback)]
}
