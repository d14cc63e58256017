//! The way out to a client, which may be slow to read but must read.
//!
//! Invariant: a write ends with an error once a whole limit has passed without a byte taken, and not before. The system's
//! own limit on a call cannot do that: a call that got rid of a few bytes at its start counts as a success at its end.

use std::io::{self, IoSlice, Write};
use std::time::{Duration, Instant};

use crate::os::socket::{TimedSocket, is_tick};

/// A socket to write to.
#[derive(Debug)]
pub(crate) struct Outlet<'a> {
    socket: &'a TimedSocket,
    limit: Duration,
}

impl<'a> Outlet<'a> {
    /// Writes to a socket whose calls end after a [`tick`] of the limit.
    pub(crate) fn new(socket: &'a TimedSocket, limit: Duration) -> Outlet<'a> {
        Outlet { socket, limit }
    }

    /// Tries until some bytes are taken, or for as long as the limit allows.
    fn retry_within_limit(
        &mut self,
        mut write: impl FnMut(&mut &TimedSocket) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let start = Instant::now();
        loop {
            match write(&mut self.socket) {
                Err(error) if is_tick(&error) && start.elapsed() < self.limit => {}
                written => return written,
            }
        }
    }
}

/// How long one call may wait, where none may wait longer than the limit without progress.
pub(crate) fn tick(limit: Duration) -> Duration {
    (limit / 8).max(Duration::from_millis(1))
}

impl Write for Outlet<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.retry_within_limit(|socket| socket.write(bytes))
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.retry_within_limit(|socket| socket.write_vectored(slices))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}
