//! Connections: calls that end, and what can be learned about the other end without a word to it.
//!
//! Invariant: a read or write of a [`TimedSocket`] that gets nowhere for as long as its limit says fails with an error that
//! [`is_tick`] knows, and then no byte was moved.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{SockRef, TcpKeepalive};

#[cfg(unix)]
#[path = "socket/unix.rs"]
mod system;
#[cfg(windows)]
#[path = "socket/windows.rs"]
mod system;

pub(crate) use system::{SpareDescriptor, TimedSocket, allow_restart, is_exhausted};

/// Whether a call ended only so that the deadline can be checked.
pub(crate) fn is_tick(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted) && !system::is_keepalive_expired(error)
}

/// Waits until a connection can be accepted, but not longer than that.
pub(crate) fn wait_for_connection(listener: &TcpListener, limit: Duration) -> bool {
    let mut listener = [PollFd::new(listener, PollFlags::IN)];
    matches!(poll(&mut listener, Some(&timespec(limit))), Ok(1..))
}

/// What has arrived and was not read yet, or that the other end has closed: `Some(0)` is the end, `None` nothing so far.
pub(crate) fn arrived(stream: &TcpStream) -> io::Result<Option<usize>> {
    let mut polled = [PollFd::new(stream, PollFlags::IN)];
    match poll(&mut polled, Some(&timespec(Duration::ZERO)))? {
        0 => Ok(None),
        _ => stream.peek(&mut [0]).map(Some),
    }
}

/// For each of some connections, whether its other end has gone. Half a connection counts as none. Where the system cannot
/// say for the moment, none has.
pub(crate) fn gone(streams: &[&TcpStream]) -> Vec<bool> {
    let mut polled: Vec<_> =
        streams.iter().map(|stream| PollFd::new(*stream, system::LOOK_FOR_GONE)).collect();
    // Some systems have no patience with nothing to look at.
    if polled.is_empty() || poll(&mut polled, Some(&timespec(Duration::ZERO))).is_err() {
        return vec![false; streams.len()];
    }
    polled.iter().map(|polled| polled.revents().intersects(system::GONE)).collect()
}

/// When a silent connection is taken for lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeepAlive {
    /// Silence after which the other end is asked whether it is still there.
    pub(crate) after: Duration,
    /// Time between two such questions.
    pub(crate) every: Duration,
    /// Unanswered questions after which it is gone. Windows before version 1703 takes its own number, which is ten.
    pub(crate) tries: u32,
    /// Time that sent bytes may stay unacknowledged. Linux alone takes it from us; elsewhere the system's own limit holds,
    /// which is minutes. No wait of ours rests on it.
    pub(crate) unacknowledged: Duration,
}

/// Has the system find out whether the other end is still there.
pub(crate) fn keep_alive(stream: &TcpStream, limits: &KeepAlive) -> io::Result<()> {
    let options = SockRef::from(stream);
    let keepalive = TcpKeepalive::new().with_time(limits.after).with_interval(limits.every);
    options.set_tcp_keepalive(&keepalive)?;
    system::limit_tries(&options, &keepalive.with_retries(limits.tries))?;
    system::limit_unacknowledged(&options, limits.unacknowledged)
}

fn timespec(time: Duration) -> Timespec {
    // No wait of ours is too long for it.
    time.try_into().unwrap_or(Timespec { tv_sec: 0, tv_nsec: 0 })
}

#[cfg(test)]
mod tests;
