//! Listeners: one thread per address. An error from accept never ends one.

use std::fs::File;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket2::{SockRef, TcpKeepalive};

use super::client::Client;
use super::connection;
use super::counters::add;
use super::event::Event;
use super::limits::{
    ACCEPT_PAUSE, ACCEPT_POLL, KEEPALIVE_AFTER, KEEPALIVE_EVERY, KEEPALIVE_TRIES, STACK_BYTES, UNACKNOWLEDGED,
};
use super::server::{Shared, Speak};

/// Accepts connections until the worker stops.
pub(crate) fn listen(shared: &Arc<Shared>, listener: &TcpListener, speak: Speak) {
    let mut spare = Spare::new();
    while !shared.stopping.load(Ordering::Relaxed) {
        let mut waiting = [PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)];
        let limit = Timespec { tv_sec: 0, tv_nsec: ACCEPT_POLL.subsec_nanos().into() };
        if !matches!(poll(&mut waiting, Some(&limit)), Ok(1..)) {
            continue;
        }
        match listener.accept() {
            Ok((socket, peer)) => {
                if let Err(error) = start(shared, socket, peer, speak) {
                    failed(shared, &error);
                }
            }
            // Somebody changed their mind, or another thread was faster.
            Err(error) if is_harmless(&error) => {}
            Err(error) => {
                failed(shared, &error);
                if is_exhausted(&error) && shared.roster.shed().is_none() {
                    spare.turn_away(listener);
                }
                thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
}

fn failed(shared: &Shared, error: &io::Error) {
    add(&shared.counters.dropped, 1);
    shared.report(&Event::AcceptFailed { reason: error.to_string() });
}

fn is_harmless(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, WouldBlock};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted | WouldBlock)
}

fn is_exhausted(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// A descriptor kept for the moment when there are no more: with it, a connection that waits can at least be turned
/// away, or it would be found waiting for ever.
struct Spare(Option<File>);

impl Spare {
    fn new() -> Spare {
        Spare(File::open("/dev/null").ok())
    }

    fn turn_away(&mut self, listener: &TcpListener) {
        drop(self.0.take());
        drop(listener.accept());
        *self = Spare::new();
    }
}

/// Sets a connection up and gives it a thread.
fn start(shared: &Arc<Shared>, socket: TcpStream, peer: SocketAddr, speak: Speak) -> io::Result<()> {
    // Some systems let it inherit what the listener is.
    socket.set_nonblocking(false)?;
    socket.set_nodelay(true)?;
    socket.set_write_timeout(Some(shared.limits.write_stall))?;
    let options = SockRef::from(&socket);
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(KEEPALIVE_EVERY);
    options.set_tcp_keepalive(&keepalive.with_retries(KEEPALIVE_TRIES))?;
    #[cfg(target_os = "linux")]
    options.set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;

    let id = shared.next_client.fetch_add(1, Ordering::Relaxed);
    let client = Arc::new(Client::new(id, peer, socket, shared.limits.hello));
    add(&shared.counters.accepted, 1);
    match shared.roster.admit(&client, &shared.limits) {
        Ok(None) => {}
        Ok(Some(_shed)) => add(&shared.counters.dropped, 1),
        // Dropping the client closes its socket.
        Err(_full) => {
            add(&shared.counters.dropped, 1);
            return Ok(());
        }
    }
    let (shared_there, client_there) = (Arc::clone(shared), Arc::clone(&client));
    let thread = thread::Builder::new().name(format!("client {id}")).stack_size(STACK_BYTES);
    let started = thread.spawn(move || run(&shared_there, &client_there, speak));
    if started.is_err() {
        shared.roster.remove(&client);
    }
    started.map(|_detached| ())
}

/// A connection from its first byte to its last, behind a boundary that no panic crosses.
fn run(shared: &Arc<Shared>, client: &Client, speak: Speak) {
    let served = catch_unwind(AssertUnwindSafe(|| connection::serve(shared, client, speak)));
    if served.is_err() {
        add(&shared.counters.panics, 1);
        shared.report(&Event::Panicked { client: client.id, peer: client.peer });
    }
    // Others may hold it for a moment longer; the peer need not wait for them. It may be closed already.
    let _ = client.socket.shutdown(Shutdown::Both);
    shared.roster.remove(client);
}
