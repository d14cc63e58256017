//! Sockets as Windows has them. A call that the system itself ends there may have moved bytes without a word about how
//! many, so sockets never block and waiting is done beside them.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use socket2::{SockRef, Socket, TcpKeepalive};

/// What says that the other end is gone.
pub(super) const GONE: PollFlags = PollFlags::HUP.union(PollFlags::ERR);
/// What has to be asked to be told that: the flags themselves are refused as questions.
pub(super) const LOOK_FOR_GONE: PollFlags = PollFlags::IN;

/// How long one wait takes at most. A connection that another thread has shut down need not wake the threads that wait for it.
const GLANCE: Duration = Duration::from_millis(100);

/// A connection whose calls end.
#[derive(Debug)]
pub(crate) struct TimedSocket {
    stream: TcpStream,
    read: Option<Duration>,
    write: Option<Duration>,
}

impl TimedSocket {
    /// Limits how long a read and a write may wait; `None` is for ever.
    pub(crate) fn new(
        stream: TcpStream,
        read: Option<Duration>,
        write: Option<Duration>,
    ) -> io::Result<TimedSocket> {
        stream.set_nonblocking(true)?;
        Ok(TimedSocket { stream, read, write })
    }

    /// Looks at what comes first without taking it; waits for it as a read does.
    pub(crate) fn peek(&self, bytes: &mut [u8]) -> io::Result<usize> {
        self.retry_within_limit(PollFlags::IN, self.read, |stream| stream.peek(bytes))
    }

    /// The socket itself, to look at or to end.
    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Tries until a call gets somewhere, or for as long as the limit allows.
    fn retry_within_limit(
        &self,
        ready: PollFlags,
        limit: Option<Duration>,
        mut call: impl FnMut(&TcpStream) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let start = Instant::now();
        loop {
            match call(&self.stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
            let left = limit.map_or(GLANCE, |limit| limit.saturating_sub(start.elapsed()));
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            // Whatever it says, the next call knows better.
            let mut polled = [PollFd::new(&self.stream, ready)];
            poll(&mut polled, Some(&super::timespec(left.min(GLANCE))))?;
        }
    }
}

impl Read for &TimedSocket {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.retry_within_limit(PollFlags::IN, self.read, |mut stream| stream.read(bytes))
    }

    fn read_vectored(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.retry_within_limit(PollFlags::IN, self.read, |mut stream| stream.read_vectored(slices))
    }
}

impl Write for &TimedSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.retry_within_limit(PollFlags::OUT, self.write, |mut stream| stream.write(bytes))
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.retry_within_limit(PollFlags::OUT, self.write, |mut stream| stream.write_vectored(slices))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Ticks are our own here and carry no number of the system's, so a time-out that has one is the connection's end.
pub(super) fn is_keepalive_expired(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::TimedOut && error.raw_os_error().is_some()
}

/// Old versions know no such limit.
pub(super) fn limit_tries(options: &SockRef<'_>, keepalive: &TcpKeepalive) -> io::Result<()> {
    let _ = options.set_tcp_keepalive(keepalive);
    Ok(())
}

pub(super) fn limit_unacknowledged(_options: &SockRef<'_>, _limit: Duration) -> io::Result<()> {
    Ok(())
}

/// A program that was restarted gets its port back in any case; the option of that name would let others take it.
pub(crate) fn allow_restart(_listener: &Socket) -> io::Result<()> {
    Ok(())
}

/// Whether the system has no more sockets.
pub(crate) fn is_exhausted(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NOBUFS))
}

/// Sockets are not entries of a small table here: there is nothing to be kept for the moment when it is full, and what
/// waits is turned away as far as the system still can.
#[derive(Debug)]
pub(crate) struct SpareDescriptor(());

impl SpareDescriptor {
    pub(crate) fn new() -> SpareDescriptor {
        SpareDescriptor(())
    }

    pub(crate) fn turn_away(&mut self, listener: &TcpListener) {
        drop(listener.accept());
    }

    /// Does something that needs a descriptor for a moment.
    pub(crate) fn lend<T>(&mut self, act: impl FnOnce() -> T) -> T {
        act()
    }
}
