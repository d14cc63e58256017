//! The way in: the first byte of a connection says whether it is TLS, ggml's protocol as it is, another worker that was introduced, or
//! the pulse of another connection.
//!
//! Invariant: a client beyond this machine gets past here only if it has proved a key that is known, or if the operator lets its network
//! in as it is. A worker that a client has introduced gets as far as to prove it, and a pulse
//! as far as to name its session. This machine's own key is good on this machine
//! alone. The time that a client has for HELLO covers all of this, and the roster counts it as one that has not said HELLO. What a
//! handshake costs the processor waits for its turn, so that strangers have no more than a part of it, however many connections
//! they begin.

use std::cell::RefCell;
use std::io::{self, IoSlice, Read, Write};
use std::net::IpAddr;
use std::sync::Arc;

use super::beats;
use super::client::Client;
use super::connection;
use super::event::Event;
use super::join;
use super::outlet::Outlet;
use super::reception;
use super::refusal::Refusal;
use super::server::{DialectChoice, WorkerState};
use super::trust::Trust;
use crate::link::Network;
use crate::link::introduction::EXPORTER_LABEL;
use crate::link::secured::Secured;
use crate::link::tls::{FIRST_BYTE, Purpose, Turned};
use crate::os::socket::TimedSocket;
use crate::wire::{PULSE_MARK, WORKER_MARK};

/// Serves a client of a socket from its first byte to its last.
pub(crate) fn serve(shared: &Arc<WorkerState>, client: &Client, choice: DialectChoice, socket: &TimedSocket) {
    let outlet = || Outlet::new(socket, shared.limits.write_stall);
    let mut first = [0];
    // A client that goes without a word is no news, unless it was told to go.
    let said = socket.peek(&mut first).is_ok_and(|bytes| bytes > 0);
    let way = match (&shared.trust, first) {
        _ if !said => Ok(None),
        (Some(trust), [FIRST_BYTE]) => secure(shared, client, trust, socket).map(Some),
        (_, [first])
            if first == WORKER_MARK[0]
                && !shared.introductions.is_empty()
                && shared.plain.lets_in(client.peer.ip()) =>
        {
            reception::serve(shared, client, None, (socket, outlet()));
            Ok(None)
        }
        (_, [first])
            if first == PULSE_MARK[0]
                && !shared.pulses.is_empty()
                && shared.plain.lets_in(client.peer.ip()) =>
        {
            beats::serve(shared, client, None, (socket, outlet()));
            Ok(None)
        }
        _ if shared.plain.lets_in(client.peer.ip()) => {
            return connection::serve(shared, client, choice, (socket, outlet()));
        }
        _ => Err(Some(Refusal::Plain)),
    };
    match way {
        Ok(Some((Purpose::Link, secured))) => {
            let secured = RefCell::new(secured);
            let input = SecuredInput { secured: &secured, socket };
            let output = SecuredOutput { secured: &secured, outlet: outlet() };
            return connection::serve(shared, client, choice, (input, output));
        }
        Ok(Some((Purpose::Introduced, secured))) => {
            let proved = secured.exported(EXPORTER_LABEL).ok().zip(secured.peer_key());
            if let Some(proved) = proved {
                let secured = RefCell::new(secured);
                let input = SecuredInput { secured: &secured, socket };
                let output = SecuredOutput { secured: &secured, outlet: outlet() };
                reception::serve(shared, client, Some(proved), (input, output));
            }
        }
        Ok(Some((Purpose::Pulse, secured))) => {
            if let Some(key) = secured.peer_key() {
                let secured = RefCell::new(secured);
                let input = SecuredInput { secured: &secured, socket };
                let output = SecuredOutput { secured: &secured, outlet: outlet() };
                beats::serve(shared, client, Some(key), (input, output));
            }
        }
        Ok(Some((Purpose::Join, mut secured))) => {
            if let Some(trust) = &shared.trust {
                join::serve(shared, client, trust, &mut secured, (socket, outlet()));
            }
        }
        Err(Some(refusal)) if client.dropped().is_none() => shared.refused(client, "connection", &refusal),
        Ok(None) | Err(_) => {}
    }
    if let Some(why) = client.dropped() {
        shared.report(&Event::Dropped { client: client.id, peer: client.peer, why });
    }
}

/// Who may come without a key, and speak ggml's protocol as it is.
#[derive(Clone, Debug)]
pub struct Plain {
    /// Clients of this machine, and with them all that come through a proxy or a tunnel which ends here.
    pub on_loopback: bool,
    /// Clients of these networks.
    pub networks: Vec<Network>,
}

impl Default for Plain {
    /// Clients of this machine.
    fn default() -> Plain {
        Plain { on_loopback: true, networks: Vec::new() }
    }
}

impl Plain {
    pub(crate) fn lets_in(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.on_loopback && ip.is_loopback() || self.networks.iter().any(|network| network.contains(ip))
    }
}

/// Whether a client is on this machine.
pub(crate) fn is_here(peer: IpAddr, local: Option<IpAddr>) -> bool {
    let (peer, local) = (peer.to_canonical(), local.map(|local| local.to_canonical()));
    peer.is_loopback() || local == Some(peer)
}

/// Whether a client that has proved this machine's own key may come. It cannot be limited or revoked, so it has to be on this machine; and
/// where clients that come through a proxy seem to be on it, that key is good for new join lines alone.
fn may_own_key_come(purpose: Purpose, peer: IpAddr, local: Option<IpAddr>, plain: &Plain) -> bool {
    is_here(peer, local) && (purpose == Purpose::Join || plain.on_loopback)
}

/// The handshake. An error without a refusal means that the client went.
fn secure(
    shared: &WorkerState,
    client: &Client,
    trust: &Trust,
    socket: &TimedSocket,
) -> Result<(Purpose, Secured), Option<Refusal>> {
    let mut output = Outlet::new(socket, shared.limits.write_stall);
    // What was changed before this connection began holds for it.
    trust.book().refresh();
    let in_turn = |work: &mut dyn FnMut()| shared.shake_hands_in_turn(client, work);
    let (purpose, secured) =
        trust.entrance().take(&mut &*socket, &mut output, &in_turn).map_err(|turned| match turned {
            Turned::Left => None,
            Turned::Unknown => Some(Refusal::Unknown),
            Turned::Wrong(error) => Some(Refusal::Tls { reason: error.to_string() }),
        })?;
    let key = secured.peer_key().ok_or(Some(Refusal::Unknown))?;
    let local = socket.stream().local_addr().ok().map(|local| local.ip());
    if key == trust.key() && !may_own_key_come(purpose, client.peer.ip(), local, &shared.plain) {
        return Err(Some(Refusal::OwnKey));
    }
    if purpose == Purpose::Link {
        let machine = trust.machine(key);
        let most = machine.as_ref().and_then(|machine| machine.max_connections);
        if !shared.roster.identify(client, key, machine.map(|machine| machine.name), most) {
            let limit = most.unwrap_or_default().into();
            return Err(Some(Refusal::Limit { what: "connections of one machine", limit }));
        }
        // From here on the watcher sees to it; it may have been revoked before.
        if !trust.is_let_in(key) {
            return Err(Some(Refusal::Unknown));
        }
    }
    Ok((purpose, secured))
}

/// What a client says in TLS.
struct SecuredInput<'a> {
    secured: &'a RefCell<Secured>,
    socket: &'a TimedSocket,
}

impl Read for SecuredInput<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.secured.borrow_mut().read(&mut self.socket, out)
    }
}

/// What it is told.
struct SecuredOutput<'a> {
    secured: &'a RefCell<Secured>,
    outlet: Outlet<'a>,
}

impl Write for SecuredOutput<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut secured = self.secured.borrow_mut();
        let taken = secured.take(slices)?;
        secured.flush(&mut self.outlet)?;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.secured.borrow_mut().flush(&mut self.outlet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without a key, only this machine's own clients come in, and those of networks that the operator has named.
    #[test]
    fn plain_clients_come_from_this_machine_or_a_network_that_was_named() {
        let may = |on_loopback: bool, allowed: &[&str], ip: &str| {
            let networks = allowed.iter().map(|network| network.parse().unwrap()).collect();
            Plain { on_loopback, networks }.lets_in(ip.parse().unwrap())
        };
        assert!(Plain::default().on_loopback && Plain::default().networks.is_empty());
        for ip in ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"] {
            assert!(may(true, &[], ip) && !may(false, &[], ip), "{ip}");
        }
        for ip in ["192.168.1.5", "::ffff:192.168.1.5", "10.0.0.1", "fe80::1", "2001:db8::1", "0.0.0.0", "::"]
        {
            assert!(!may(true, &[], ip), "{ip}");
        }
        assert!(may(true, &["10.0.0.0/8", "192.168.1.0/24"], "::ffff:192.168.1.5"));
        assert!(!may(true, &["10.0.0.0/8", "192.168.1.0/24"], "192.168.2.5"));
        assert!(may(true, &["fe80::/10"], "fe80::1") && !may(true, &["0.0.0.0/0"], "2001:db8::1"));
        // Where proxies end, loopback is a network like any other.
        assert!(may(false, &["127.0.0.0/8"], "127.0.0.1") && !may(false, &["127.0.0.0/8"], "::1"));
    }

    /// Machines that share a home have one key, and are not each other for that.
    #[test]
    fn the_own_key_is_good_on_this_machine_alone() {
        let here = |peer: &str, local: Option<&str>| {
            is_here(peer.parse().unwrap(), local.map(|local| local.parse().unwrap()))
        };
        assert!(here("127.0.0.1", None) && here("::1", Some("::1")));
        assert!(here("192.168.1.5", Some("::ffff:192.168.1.5")));
        assert!(!here("192.168.1.6", Some("192.168.1.5")) && !here("192.168.1.6", None));
    }

    /// Behind a proxy everyone seems to be on this machine, another one with the same home too.
    #[test]
    fn the_own_key_is_good_for_lines_alone_where_proxies_end() {
        let here = "127.0.0.1".parse().unwrap();
        let may = |purpose, on_loopback| {
            may_own_key_come(purpose, here, Some(here), &Plain { on_loopback, networks: Vec::new() })
        };
        assert!(may(Purpose::Link, true) && may(Purpose::Join, true));
        assert!(!may(Purpose::Link, false) && may(Purpose::Join, false));
    }
}
