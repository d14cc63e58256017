//! What a line's bytes go through: a socket, as they are or in TLS.
//!
//! Invariant: a call that gets nowhere for a tick fails with an error that [`is_tick`] knows, and then no byte was taken or handed out.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;

use crate::link::secured::Secured;
use crate::link::tls::is_not_known;
use crate::os::socket::{TimedSocket, arrived, is_tick};

/// A connection, before anything is known of what is said on it.
#[derive(Debug)]
pub(crate) struct Channel {
    socket: TimedSocket,
    secured: Option<Box<Secured>>,
}

impl Channel {
    /// Bytes as they are.
    pub(crate) fn plain(socket: TimedSocket) -> Channel {
        Channel { socket, secured: None }
    }

    /// Bytes in TLS, whose handshake is still to be done; see [`shake_hands`](Channel::shake_hands).
    pub(crate) fn secured(socket: TimedSocket, secured: Secured) -> Channel {
        Channel { socket, secured: Some(Box::new(secured)) }
    }

    /// The socket itself, to look at or to end.
    pub(crate) fn stream(&self) -> &TcpStream {
        self.socket.stream()
    }

    /// What TLS knows of the connection.
    pub(crate) fn tls(&self) -> Option<&Secured> {
        self.secured.as_deref()
    }

    /// Goes one step on with the handshake of TLS, if there is one, and says whether it is done.
    pub(crate) fn shake_hands(&mut self) -> io::Result<bool> {
        let socket = &self.socket;
        let step = |tls: &mut Box<Secured>| tls.shake_hands_step(&mut &*socket, &mut &*socket);
        self.secured.as_mut().map_or(Ok(true), step)
    }

    /// Reads into the first places that have room; waits only for the first byte. Bytes that nothing can be made of yet are no progress.
    pub(crate) fn read_vectored(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut socket = &self.socket;
        let Some(tls) = &mut self.secured else { return socket.read_vectored(slices) };
        let mut slices = slices.iter_mut().filter(|slice| !slice.is_empty());
        let Some(first) = slices.next() else { return Ok(0) };
        let mut read = tls.read_step(&mut socket, first)?;
        let mut is_full = read == first.len();
        for slice in slices {
            // What is wrong behind these bytes is said when more are asked for.
            let held = if is_full { tls.read_held(slice).ok().flatten() } else { None };
            let Some(more) = held else { break };
            read += more;
            is_full = more == slice.len();
        }
        Ok(read)
    }

    /// Takes some bytes to send, and sends what goes at once.
    pub(crate) fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut socket = &self.socket;
        match &mut self.secured {
            Some(tls) => {
                send(tls, socket)?;
                let taken = tls.take(slices)?;
                match send(tls, socket) {
                    Err(error) if is_tick(&error) => Ok(taken),
                    sent => sent.map(|()| taken),
                }
            }
            None => socket.write_vectored(slices),
        }
    }

    /// Whether something was taken and is not sent yet.
    pub(crate) fn has_unsent(&self) -> bool {
        self.secured.as_ref().is_some_and(|tls| tls.has_unsent())
    }

    /// Sends some of what was taken; as long as something is left, that is a tick.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.secured.as_mut().map_or(Ok(()), |tls| send(tls, &self.socket))
    }

    /// What was said and not read yet, or that the other end has closed: `Some(0)` is the end, `None` nothing so far.
    pub(crate) fn arrived(&mut self) -> io::Result<Option<usize>> {
        let Some(tls) = &mut self.secured else { return arrived(self.socket.stream()) };
        if let Some(held) = tls.read_held(&mut [0])? {
            return Ok(Some(held));
        }
        match arrived(self.socket.stream())? {
            // TLS has words of its own.
            Some(1..) => match tls.arrived(&mut &self.socket) {
                Err(error) if is_tick(&error) => Ok(None),
                arrived => arrived,
            },
            nothing => Ok(nothing),
        }
    }
}

/// Sends some of what was taken; as long as something is left, that is a tick. Where it fails because the other side has gone, why it
/// went is worth more: it may have said so.
fn send(tls: &mut Secured, mut socket: &TimedSocket) -> io::Result<()> {
    tls.flush_step(&mut socket).map_err(|error| match is_tick(&error) {
        true => error,
        false => tls.arrived(&mut socket).err().filter(is_not_known).unwrap_or(error),
    })
}

impl Read for Channel {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(out)])
    }
}
