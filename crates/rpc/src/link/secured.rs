//! Bytes through TLS: what is said goes in, what is sent comes out. Holds no socket; the owner of one lends it for each call.
//!
//! Invariants: bytes that were taken are sent before others are taken, in order; a call that gets nowhere in time (a tick) has lost
//! nothing and can be made again; the end of the stream is an error unless the other side said that it is the end, and so are records
//! without end in which nothing is said.

use std::io::{self, IoSlice, Read, Write};

use rustls::Connection;

use super::key::Key;
use super::limits::{MAX_SILENT_BYTES, MAX_UNSENT_BYTES};
use super::pairing::Exported;

/// How work is done that takes the processor's time: perhaps once it is its turn. Says whether it was done, which it is not where no peer
/// waits for it any more.
pub(crate) type InTurn<'a> = &'a dyn Fn(&mut dyn FnMut()) -> bool;

/// One side of a TLS connection.
#[derive(Debug)]
pub(crate) struct Secured {
    connection: Connection,
    /// Bytes that have come since something was last said, once hands were shaken.
    silent: usize,
}

impl Secured {
    pub(super) fn new(mut connection: Connection) -> Secured {
        connection.set_buffer_limit(Some(MAX_UNSENT_BYTES));
        Secured { connection, silent: 0 }
    }

    /// Goes on with the handshake until it is done. May be called again after a tick. What comes is waited for outside of turns.
    pub(crate) fn shake_hands(
        &mut self,
        input: &mut dyn Read,
        output: &mut dyn Write,
        in_turn: InTurn<'_>,
    ) -> io::Result<()> {
        loop {
            self.flush(output)?;
            if !self.connection.is_handshaking() {
                return Ok(());
            }
            self.fetch(input)?;
            let mut processed = Err(io::ErrorKind::ConnectionAborted.into());
            in_turn(&mut || processed = self.process());
            if let Err(error) = processed {
                // The other side may be told why.
                let _ = self.flush(output);
                return Err(error);
            }
        }
    }

    /// Goes one step on with the handshake, and says whether it is done: for those who look at the clock themselves, however little comes
    /// at a time.
    pub(crate) fn shake_hands_step(
        &mut self,
        input: &mut dyn Read,
        output: &mut dyn Write,
    ) -> io::Result<bool> {
        self.flush_step(output)?;
        if self.connection.is_handshaking()
            && let Err(error) = self.receive(input)
        {
            let _ = self.flush(output);
            return Err(error);
        }
        Ok(!self.connection.is_handshaking() && !self.connection.wants_write())
    }

    /// Takes in what has come; at least something must.
    fn receive(&mut self, input: &mut dyn Read) -> io::Result<()> {
        self.fetch(input)?;
        self.process()
    }

    fn fetch(&mut self, mut input: &mut dyn Read) -> io::Result<()> {
        let is_handshaking = self.connection.is_handshaking();
        let bytes = self.connection.read_tls(&mut input)?;
        if is_handshaking && bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if !is_handshaking {
            self.silent += bytes;
        }
        match self.silent > MAX_SILENT_BYTES {
            true => Err(io::Error::new(io::ErrorKind::InvalidData, "records without end that say nothing")),
            false => Ok(()),
        }
    }

    fn process(&mut self) -> io::Result<()> {
        let processed = self.connection.process_new_packets();
        processed.map(|_| ()).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// Sends what waits to be sent.
    pub(crate) fn flush(&mut self, mut output: &mut dyn Write) -> io::Result<()> {
        while self.connection.wants_write() {
            if self.connection.write_tls(&mut output)? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    /// Sends some of what waits to be sent. Where more is left, that is an error like a call that gets nowhere.
    pub(crate) fn flush_step(&mut self, mut output: &mut dyn Write) -> io::Result<()> {
        if self.connection.wants_write() && self.connection.write_tls(&mut output)? == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        match self.connection.wants_write() {
            true => Err(io::ErrorKind::WouldBlock.into()),
            false => Ok(()),
        }
    }

    /// Whether something waits to be sent.
    pub(crate) fn has_unsent(&self) -> bool {
        self.connection.wants_write()
    }

    /// What has been said and not read yet.
    fn read_plain(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.connection.reader().read(out)?;
        if read > 0 {
            self.silent = 0;
        }
        Ok(read)
    }

    /// Reads what has been said; waits for more only if there is nothing yet.
    pub(crate) fn read(&mut self, input: &mut dyn Read, out: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.read_plain(out) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.receive(input)?,
                done => return done,
            }
        }
    }

    /// Reads what has been said; waits once for more if there is nothing yet. A part of a record that nothing can be read from is an error
    /// like a call that gets nowhere, so that who waits can look at the clock.
    pub(crate) fn read_step(&mut self, input: &mut dyn Read, out: &mut [u8]) -> io::Result<usize> {
        match self.read_plain(out) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.receive(input)?;
                self.read_plain(out)
            }
            done => done,
        }
    }

    /// What is there already, without waiting.
    pub(crate) fn read_held(&mut self, out: &mut [u8]) -> io::Result<Option<usize>> {
        match self.read_plain(out) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            done => done.map(Some),
        }
    }

    /// What has arrived, told from bytes that are there to be read: `Some(0)` is the end, `None` nothing that was said.
    pub(crate) fn arrived(&mut self, input: &mut dyn Read) -> io::Result<Option<usize>> {
        self.receive(input)?;
        self.read_held(&mut [0])
    }

    /// Takes some of the bytes that are to be said, which are sent with the next [`flush`](Secured::flush). Nothing else may wait to be
    /// sent.
    pub(crate) fn take(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.connection.writer().write_vectored(slices)
    }

    /// What both sides have agreed to speak.
    pub(crate) fn protocol(&self) -> Option<&[u8]> {
        self.connection.alpn_protocol()
    }

    /// The key that the other side has proved.
    pub(crate) fn peer_key(&self) -> Option<Key> {
        Key::from_spki(self.connection.peer_certificates()?.first()?)
    }

    /// What TLS makes of this connection, and of no other, for what a label says.
    pub(crate) fn exported(&self, label: &[u8]) -> io::Result<Exported> {
        self.connection.export_keying_material([0; 32], label, None).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests;
