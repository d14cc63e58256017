//! Why a worker cannot be connected to, and what a person can do about it. No socket is in here.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::time::Duration;

use oxcart::rpc::client::{ConnectError, Endpoint, WorkerFault};

use super::finding::Finding;
use crate::workers::DEFAULT_PORT;

/// What a finding about a connection is about.
const ABOUT: &str = "connection";

/// An answer that no machine is there takes longer than this where it is found out by asking for the machine; a firewall gives it at once.
const AT_ONCE: Duration = Duration::from_secs(1);

/// What was to be connected to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target<'t> {
    /// What it is called.
    pub(super) name: &'t str,
    pub(super) endpoint: &'t Endpoint,
    /// Whether this machine knows who it must be.
    pub(super) is_paired: bool,
}

impl Target<'_> {
    /// Where something is to be typed.
    fn there(&self) -> String {
        let host = self.endpoint.host();
        let is_loopback = host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
        match is_loopback || host.eq_ignore_ascii_case("localhost") {
            true if !self.is_paired => "here".into(),
            _ if self.is_paired => format!("on {}", self.name),
            _ => format!("on {host}"),
        }
    }

    /// What starts a worker there that other machines can reach.
    fn start(&self) -> String {
        let port = match self.endpoint.port() {
            DEFAULT_PORT => String::new(),
            port => format!(" --port {port}"),
        };
        let host = if self.there() == "here" { "" } else { " --host 0.0.0.0" };
        format!("{}: oxcart worker{host}{port}", self.there())
    }

    /// What lets a port through the usual firewalls.
    fn open(&self) -> String {
        let port = self.endpoint.port();
        format!("{}: sudo ufw allow {port}/tcp, or sudo firewall-cmd --add-port={port}/tcp", self.there())
    }

    /// How it is paired anew.
    fn pair(&self) -> String {
        format!("{}: oxcart trust invite; then here: oxcart join LINE", self.there())
    }
}

/// What it means that there was no connection, which took some time to find out.
pub(super) fn diagnosis(error: &ConnectError, took: Duration, target: Target<'_>) -> Finding {
    let Target { name, endpoint, is_paired } = target;
    let problem = |text: String, remedy: String| Finding::problem(ABOUT, text, remedy);
    let listens = || {
        let port = endpoint.port();
        format!("{}, see which program listens at the port: ss -ltnp 'sport = :{port}'", target.there())
    };
    match error {
        ConnectError::Name { error, .. } => problem(
            format!("the name {} cannot be found ({error})", endpoint.host()),
            format!("use its IP address, which hostname -I shows there; or pair it again: {}", target.pair()),
        ),
        ConnectError::Unreachable { error, .. } => {
            unreachable(error.kind(), &error.to_string(), took, target)
        }
        ConnectError::NoHello { .. } => problem(
            format!("{endpoint} takes connections, but does not answer as a worker does"),
            format!(
                "end other clients if it is a worker of llama.cpp, which serves one at a time; otherwise, {}",
                listens()
            ),
        ),
        ConnectError::Rejected { .. } if !is_paired => problem(
            format!(
                "{endpoint} closes the connection at once: it serves only machines that are paired with it, or is no worker"
            ),
            target.pair(),
        ),
        ConnectError::Rejected { .. } => problem(
            format!("{endpoint} closes the connection at once: it is no worker, or a very old one"),
            listens(),
        ),
        ConnectError::Another { .. } => problem(
            format!("another machine than {name} answers at {endpoint}, and nothing was sent to it"),
            format!(
                "if {name} was set up anew or has another address now, here: oxcart trust forget {name}; then {}",
                target.pair()
            ),
        ),
        ConnectError::NotKnown { .. } => {
            problem(format!("{name} does not know this machine, or has revoked it"), target.pair())
        }
        ConnectError::Tls { reason, .. } => problem(
            format!(
                "{endpoint} makes no secure connection ({reason}): it is no worker, or one of an old Oxcart"
            ),
            format!("update Oxcart there, or {}", listens()),
        ),
        ConnectError::Version { found, .. } => problem(
            format!("{endpoint} speaks version {found} of the protocol, which this Oxcart does not"),
            format!("use the same version of Oxcart here and on {name}: oxcart --version"),
        ),
        ConnectError::Failed(failure) => match failure.fault() {
            WorkerFault::ReplyLength { .. } | WorkerFault::Unsolicited | WorkerFault::Implausible { .. } => {
                problem(format!("something other than a worker answers at {endpoint}"), listens())
            }
            fault => problem(format!("{name} {fault}"), target.start()),
        },
        error => problem(error.to_string(), target.start()),
    }
}

/// What the system says of a connection that could not be made.
fn unreachable(kind: ErrorKind, said: &str, took: Duration, target: Target<'_>) -> Finding {
    let (name, endpoint, port) = (target.name, target.endpoint, target.endpoint.port());
    let problem = |text: String, remedy: String| Finding::problem(ABOUT, text, remedy);
    match kind {
        ErrorKind::ConnectionRefused => problem(
            format!(
                "{endpoint} refuses connections: the machine is on, but no worker listens at port {port} for others"
            ),
            target.start(),
        ),
        ErrorKind::HostUnreachable if took < AT_ONCE => {
            problem(format!("a firewall refuses connections to {endpoint}"), target.open())
        }
        ErrorKind::HostUnreachable => problem(
            format!(
                "there is no machine at {endpoint}: it is off, asleep or in another network, or has another address now"
            ),
            format!("switch {name} on, and compare its address: hostname -I shows it there"),
        ),
        ErrorKind::NetworkUnreachable => problem(
            format!("this machine is in no network from which {endpoint} can be reached"),
            "connect this machine to the network of the other one".into(),
        ),
        ErrorKind::TimedOut => problem(
            format!(
                "nothing answers at {endpoint}: the machine is off or asleep, or a firewall drops what is sent to port {port}"
            ),
            format!("switch {name} on; if it is on, {}", target.open()),
        ),
        ErrorKind::PermissionDenied => problem(
            format!("this machine's own firewall does not let connections to {endpoint} out"),
            format!("here: sudo ufw allow out {port}/tcp"),
        ),
        ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted => {
            problem(format!("{endpoint} ends connections at once ({said})"), target.start())
        }
        _ => problem(format!("{endpoint} cannot be reached ({said})"), target.start()),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::commands::doctor::finding::State;

    fn found(error: &ConnectError, took: u64, is_paired: bool) -> (String, String) {
        let endpoint = "10.0.0.7:50052".parse().unwrap();
        let target = Target { name: "den", endpoint: &endpoint, is_paired };
        let finding = diagnosis(error, Duration::from_millis(took), target);
        assert_eq!(finding.state, State::Problem);
        (finding.text, finding.remedy.unwrap())
    }

    fn system(kind: ErrorKind) -> ConnectError {
        ConnectError::Unreachable { endpoint: "10.0.0.7:50052".into(), error: io::Error::from(kind) }
    }

    /// Each cause is told from the others, and each has something to type.
    #[test]
    fn causes_have_remedies() {
        let at = || "10.0.0.7:50052".to_owned();
        for (error, took, is_paired, text, remedy) in [
            (
                system(ErrorKind::ConnectionRefused),
                1,
                true,
                "no worker listens",
                "oxcart worker --host 0.0.0.0",
            ),
            (system(ErrorKind::TimedOut), 5000, true, "off or asleep, or a firewall", "ufw allow 50052/tcp"),
            (system(ErrorKind::HostUnreachable), 1, true, "a firewall refuses", "--add-port=50052/tcp"),
            (system(ErrorKind::HostUnreachable), 3000, true, "there is no machine", "switch den on"),
            (system(ErrorKind::NetworkUnreachable), 1, true, "in no network", "connect this machine"),
            (system(ErrorKind::PermissionDenied), 1, true, "this machine's own firewall", "ufw allow out"),
            (system(ErrorKind::Other), 1, true, "cannot be reached", "oxcart worker"),
            (ConnectError::Rejected { endpoint: at() }, 1, false, "serves only machines", "oxcart join LINE"),
            (ConnectError::Rejected { endpoint: at() }, 1, true, "is no worker", "ss -ltnp"),
            (
                ConnectError::Another { endpoint: at() },
                1,
                true,
                "another machine than den",
                "oxcart trust forget den",
            ),
            (
                ConnectError::NotKnown { endpoint: at() },
                1,
                true,
                "does not know this machine",
                "oxcart trust invite",
            ),
            (
                ConnectError::NoHello { endpoint: at(), limit: Duration::from_secs(5) },
                5000,
                false,
                "does not answer as a worker",
                "serves one at a time",
            ),
            (
                ConnectError::Tls { endpoint: at(), reason: "no".into() },
                1,
                true,
                "no secure connection",
                "update Oxcart there",
            ),
            (
                ConnectError::Name { endpoint: at(), error: io::Error::other("unknown") },
                1,
                false,
                "cannot be found (unknown)",
                "hostname -I",
            ),
        ] {
            let (said, tried) = found(&error, took, is_paired);
            assert!(said.contains(text), "{error:?}: {said}");
            assert!(tried.contains(remedy), "{error:?}: {tried}");
        }
    }

    #[test]
    fn a_port_is_named_where_it_is_not_the_usual_one() {
        let endpoint = "10.0.0.7:7000".parse().unwrap();
        let target = Target { name: "den", endpoint: &endpoint, is_paired: true };
        let finding = diagnosis(&system(ErrorKind::ConnectionRefused), Duration::ZERO, target);
        assert_eq!(finding.remedy.as_deref(), Some("on den: oxcart worker --host 0.0.0.0 --port 7000"));
    }
}
