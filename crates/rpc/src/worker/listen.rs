//! Listeners: one thread per address, and the way in for every client. An error from accept never ends a listener.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use super::client::Client;
use super::connection;
use super::counters::add;
use super::entry;
use super::event::Event;
use super::limits::{ACCEPT_PAUSE, ACCEPT_POLL, BACKLOG, KEEPALIVE, STACK_BYTES};
use super::outlet::tick;
use super::server::{DialectChoice, WorkerState};
use crate::os::socket::{
    SpareDescriptor, TimedSocket, allow_restart, is_exhausted, keep_alive, wait_for_connection,
};

/// Opens the first of some addresses that can be listened on. Accepting from it never blocks: waiting is done elsewhere,
/// where it can be interrupted.
pub(crate) fn bind(addresses: impl ToSocketAddrs) -> io::Result<TcpListener> {
    let mut last = io::Error::new(io::ErrorKind::InvalidInput, "no address to listen on");
    for address in addresses.to_socket_addrs()? {
        let open = || {
            let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
            allow_restart(&socket)?;
            socket.bind(&address.into())?;
            socket.listen(BACKLOG)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        match open() {
            Ok(socket) => return Ok(socket.into()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Accepts connections until the worker stops.
pub(crate) fn listen(shared: &Arc<WorkerState>, listener: &TcpListener, choice: DialectChoice) {
    let mut spare = SpareDescriptor::new();
    while !shared.stopping.load(Ordering::Relaxed) {
        if !wait_for_connection(listener, ACCEPT_POLL) {
            continue;
        }
        match listener.accept() {
            Ok((socket, peer)) => {
                if let Err(error) = start(shared, socket, peer, choice) {
                    failed(shared, &error);
                }
            }
            // The client left again, or another thread was faster.
            Err(error) if is_harmless(&error) => {}
            Err(error) => {
                failed(shared, &error);
                if is_exhausted(&error) {
                    match shared.roster.shed() {
                        Some(other) => shared.stop(&other),
                        None => spare.turn_away(listener),
                    }
                }
                thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
}

fn failed(shared: &WorkerState, error: &io::Error) {
    add(&shared.counters.dropped, 1);
    shared.report(&Event::AcceptFailed { reason: error.to_string() });
}

fn is_harmless(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, WouldBlock};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted | WouldBlock)
}

/// Sets options of a connection that has just been accepted.
fn prepare(socket: TcpStream, write_stall: Duration) -> io::Result<TimedSocket> {
    socket.set_nodelay(true)?;
    keep_alive(&socket, &KEEPALIVE)?;
    TimedSocket::new(socket, None, Some(tick(write_stall)))
}

/// Takes a connection in, if there is room.
fn admit(shared: &Arc<WorkerState>, socket: Option<TimedSocket>, peer: SocketAddr) -> Option<Arc<Client>> {
    let id = shared.next_client.fetch_add(1, Ordering::Relaxed);
    let client = Arc::new(Client::new(id, peer, socket, shared.limits.hello));
    add(&shared.counters.accepted, 1);
    let admitted = shared.roster.admit(&client, &shared.limits);
    if !matches!(admitted, Ok(None)) {
        // A client was turned away: an older one, or this one, whose socket closes when it is dropped.
        add(&shared.counters.dropped, 1);
    }
    if let Ok(Some(other)) = &admitted {
        shared.stop(other);
    }
    admitted.is_ok().then_some(client)
}

/// Sets a connection up and gives it a thread.
fn start(
    shared: &Arc<WorkerState>,
    socket: TcpStream,
    peer: SocketAddr,
    choice: DialectChoice,
) -> io::Result<()> {
    let socket = prepare(socket, shared.limits.write_stall)?;
    let Some(client) = admit(shared, Some(socket), peer) else { return Ok(()) };
    let (shared_there, client_there) = (Arc::clone(shared), Arc::clone(&client));
    let thread = thread::Builder::new().name(format!("client {}", client.id)).stack_size(STACK_BYTES);
    let started = thread.spawn(move || {
        if let Some(socket) = &client_there.socket {
            run(&shared_there, &client_there, || entry::serve(&shared_there, &client_there, choice, socket));
        }
    });
    if started.is_err() {
        shared.roster.remove(&client);
    }
    started.map(|_detached| ())
}

/// Serves a client over other streams than a socket, on this thread.
pub(crate) fn serve_client(
    shared: &Arc<WorkerState>,
    streams: (impl Read, impl Write),
    choice: DialectChoice,
) {
    if let Some(client) = admit(shared, None, SocketAddr::from(([0, 0, 0, 0], 0))) {
        run(shared, &client, || connection::serve(shared, &client, choice, streams));
    }
}

/// A connection from its first byte to its last, behind a boundary that no panic crosses.
fn run(shared: &WorkerState, client: &Client, serve: impl FnOnce()) {
    let served = catch_unwind(AssertUnwindSafe(serve));
    if served.is_err() {
        add(&shared.counters.panics, 1);
        shared.report(&Event::Panicked { client: client.id, peer: client.peer });
    }
    // Others may hold it for a moment longer; the peer need not wait for them.
    client.hang_up();
    shared.roster.remove(client);
}

// Elsewhere, what was set cannot be asked for.
#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;

    #[test]
    fn peers_that_vanish_are_noticed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        let socket = prepare(socket, Duration::from_secs(8)).unwrap();
        let options = socket2::SockRef::from(socket.stream());
        assert!(options.keepalive().unwrap());
        assert_eq!(options.tcp_keepalive_time().unwrap(), Duration::from_secs(30));
        assert_eq!(options.tcp_keepalive_interval().unwrap(), Duration::from_secs(10));
        assert_eq!(options.tcp_keepalive_retries().unwrap(), 3);
    }
}
