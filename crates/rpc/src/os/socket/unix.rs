//! Sockets as Unix has them: the system itself ends calls that take too long.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;
use socket2::{SockRef, Socket, TcpKeepalive};

/// What says that the other end is gone.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
pub(super) const GONE: PollFlags = PollFlags::RDHUP.union(PollFlags::HUP).union(PollFlags::ERR);
/// What says that the other end is gone; half a connection counts as hung up here.
#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
pub(super) const GONE: PollFlags = PollFlags::HUP.union(PollFlags::ERR);
pub(super) const LOOK_FOR_GONE: PollFlags = GONE;

/// A host that does not ignore SIGPIPE must survive a lost connection too. Systems without this flag of a call have an
/// option of the socket instead, which is set when it is made.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
const SEND: i32 = libc::MSG_NOSIGNAL;
#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
const SEND: i32 = 0;

/// A connection whose calls end.
#[derive(Debug)]
pub(crate) struct TimedSocket {
    stream: TcpStream,
}

impl TimedSocket {
    /// Limits how long a read and a write may wait; `None` is for ever.
    pub(crate) fn new(
        stream: TcpStream,
        read: Option<Duration>,
        write: Option<Duration>,
    ) -> io::Result<TimedSocket> {
        // Some systems let an accepted connection inherit what the listener is.
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(read)?;
        stream.set_write_timeout(write)?;
        Ok(TimedSocket { stream })
    }

    /// Looks at what comes first without taking it; waits for it as a read does.
    pub(crate) fn peek(&self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.peek(bytes)
    }

    /// The socket itself, to look at or to end.
    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }
}

impl Read for &TimedSocket {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        (&self.stream).read(bytes)
    }

    fn read_vectored(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&self.stream).read_vectored(slices)
    }
}

impl Write for &TimedSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        SockRef::from(&self.stream).send_with_flags(bytes, SEND)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        SockRef::from(&self.stream).send_vectored_with_flags(slices, SEND)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Keep-alive gave up. It is told as a time-out too, but waiting on is of no use.
pub(super) fn is_keepalive_expired(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ETIMEDOUT)
}

pub(super) fn limit_tries(options: &SockRef<'_>, keepalive: &TcpKeepalive) -> io::Result<()> {
    options.set_tcp_keepalive(keepalive)
}

#[cfg(target_os = "linux")]
pub(super) fn limit_unacknowledged(options: &SockRef<'_>, limit: Duration) -> io::Result<()> {
    options.set_tcp_user_timeout(Some(limit))
}

#[cfg(not(target_os = "linux"))]
pub(super) fn limit_unacknowledged(_options: &SockRef<'_>, _limit: Duration) -> io::Result<()> {
    Ok(())
}

/// Has a program that was restarted get its port back, as the standard library does.
pub(crate) fn allow_restart(listener: &Socket) -> io::Result<()> {
    listener.set_reuse_address(true)
}

/// Whether the system or this process has no more descriptors.
pub(crate) fn is_exhausted(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// A descriptor kept for the moment when there are no more: with it, a connection that waits can at least be turned
/// away, or it would be found waiting for ever.
#[derive(Debug)]
pub(crate) struct SpareDescriptor(Option<File>);

impl SpareDescriptor {
    pub(crate) fn new() -> SpareDescriptor {
        SpareDescriptor(File::open("/dev/null").ok())
    }

    pub(crate) fn turn_away(&mut self, listener: &TcpListener) {
        self.lend(|| drop(listener.accept()));
    }

    /// Does something that needs a descriptor for a moment.
    pub(crate) fn lend<T>(&mut self, act: impl FnOnce() -> T) -> T {
        drop(self.0.take());
        let done = act();
        *self = SpareDescriptor::new();
        done
    }
}
