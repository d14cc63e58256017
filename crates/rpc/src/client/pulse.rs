//! The second connection to a worker: it tells within a moment whether the worker is alive, whatever the first one is busy with.
//!
//! A thread of its own sends beats and waits for their echoes, and what is decided is decided by [`Pulse`]; this is its socket and its clock.
//! Invariants: a pulse that cannot be had, or that ends, costs nothing but what it tells, and time-outs apply as if there were none; one that
//! is left without echoes ends the first connection for all callers. Nothing that is read or written here is waited for longer than a tick.

use std::io::{self, IoSlice, Read};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::channel::Channel;
use super::connection::Core;
use super::endpoint::Endpoint;
use super::failure::{About, WorkerFailure, WorkerFault};
use super::handshake::{open, secure};
use super::limits::PULSE_PIECE;
use super::line::Line;
use super::message::{Head, Message};
use super::options::Options;
use crate::link::limits::SHORTEST_PATIENCE;
use crate::link::pulse::{Pulse, PulseAction, PulseEvent};
use crate::link::tls::Purpose;
use crate::os::clock;
use crate::os::socket::{TimedSocket, arrived, is_tick};
use crate::wire::{Command, PULSE_MARK, PulseMessage};

/// A pulse whose first beat was answered.
#[derive(Debug)]
pub(super) struct Beating {
    pulse: Pulse,
    wire: Wire,
}

/// Messages through a channel.
#[derive(Debug)]
struct Wire {
    channel: Channel,
    unsent: Vec<u8>,
    arrived: Vec<u8>,
}

/// Has the worker at the other end of a line give this connection a pulse, and begins it: none if it offers none, and an error if it cannot
/// be begun, perhaps because the worker cannot be reached a second time.
pub(super) fn begin(
    line: &mut Line,
    endpoint: &Endpoint,
    options: &Options,
) -> Result<io::Result<Option<Beating>>, WorkerFailure> {
    let Some(limit) = options.timeouts.heartbeat.filter(|limit| line.has_pulse && !limit.is_zero()) else {
        return Ok(Ok(None));
    };
    let limit = limit.max(SHORTEST_PATIENCE);
    let command = Command::Pulse;
    let (head, mut token) = (Head::new(command).whole(), [0; 16]);
    line.exchange(
        &Message { command, head: &head, payload: &[], about: &About::Nothing, work: 0 },
        &mut token,
    )?;
    if token == [0; 16] {
        return Ok(Ok(None));
    }
    // A worker that cannot be reached a second time, perhaps through a proxy, can be used like any other.
    Ok(Beating::begin(line, endpoint, options, limit, token).map(Some))
}

impl Beating {
    fn begin(
        line: &Line,
        endpoint: &Endpoint,
        options: &Options,
        limit: Duration,
        token: [u8; 16],
    ) -> io::Result<Beating> {
        // How soon it begins says nothing of how soon it answers: TLS takes a turn at the worker.
        let (started, patience) = (Instant::now(), options.timeouts.connect);
        // The very machine that the line goes to, whatever its name stands for by now.
        let stream = open(&line.handle()?.peer_addr()?, patience)?;
        let tick = Some(Pulse::tick(limit));
        let socket = TimedSocket::new(stream, tick, tick)?;
        let channel = match &options.link {
            None => Channel::plain(socket),
            Some(link) => {
                secure(endpoint, socket, link, Purpose::Pulse, patience).map_err(io::Error::other)?
            }
        };
        let mut wire = Wire { channel, unsent: PULSE_MARK.to_vec(), arrived: Vec::new() };
        wire.put(PulseMessage::Begin { token });
        let mut pulse = Pulse::new(limit, clock::now());
        let tick = PulseEvent::Tick { is_waited_for: true };
        if let Some(PulseAction::Beat(number)) = pulse.handle(tick, clock::now()) {
            wire.put(PulseMessage::Beat { number });
        }
        while started.elapsed() < patience {
            wire.send()?;
            wire.wait()?;
            if let Some(message) = wire.take()? {
                let PulseMessage::Echo { number } = message else { break };
                let lied = pulse.handle(PulseEvent::Echo(number), clock::now());
                return if lied.is_none() { Ok(Beating { pulse, wire }) } else { break };
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// Another handle of the socket, to end it from outside.
    pub(super) fn handle(&self) -> io::Result<TcpStream> {
        self.wire.channel.stream().try_clone()
    }

    /// Beats on a thread of its own for as long as a connection is used.
    pub(super) fn start(self, core: Arc<Core>) -> io::Result<()> {
        let beat = move || {
            let Beating { mut pulse, mut wire } = self;
            // Where the pulse itself breaks, time-outs apply; the connection shows by itself if it has broken, too.
            if let Ok(Some(fault)) = beat(&mut pulse, &mut wire, &core) {
                core.end(fault);
            }
            core.has_pulse.store(false, Ordering::SeqCst);
            let _ = wire.channel.stream().shutdown(Shutdown::Both);
        };
        thread::Builder::new().name("oxcart-rpc-pulse".into()).spawn(beat).map(|_| ())
    }
}

/// Beats until a connection is over or its worker is lost, and says why it is.
fn beat(pulse: &mut Pulse, wire: &mut Wire, core: &Arc<Core>) -> io::Result<Option<WorkerFault>> {
    loop {
        wire.send()?;
        wire.wait()?;
        let Some(lost) = core.lost_neighbours() else { return Ok(None) };
        lost.into_iter().for_each(|introduction| wire.put(PulseMessage::Lost { introduction }));
        // All that arrives up to now is looked at before it is judged, however long this thread was stopped.
        let now = clock::now();
        wire.look()?;
        while let Some(message) = wire.take()? {
            let PulseMessage::Echo { number } = message else { return Ok(Some(WorkerFault::Unsolicited)) };
            if pulse.handle(PulseEvent::Echo(number), now).is_some() {
                return Ok(Some(WorkerFault::Unsolicited));
            }
        }
        match pulse.handle(PulseEvent::Tick { is_waited_for: core.is_waited_for() }, now) {
            Some(PulseAction::Beat(number)) => {
                wire.put(PulseMessage::Beat { number });
                wire.send()?;
                pulse.handle(PulseEvent::Sent, clock::now());
            }
            Some(PulseAction::Lost(limit)) => return Ok(Some(WorkerFault::Lifeless { limit })),
            Some(PulseAction::Lied) => return Ok(Some(WorkerFault::Unsolicited)),
            None => {}
        }
    }
}

impl Wire {
    fn put(&mut self, message: PulseMessage) {
        self.unsent.extend(message.encode());
    }

    /// Sends what goes within a tick.
    fn send(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() || self.channel.has_unsent() {
            let sent = match self.unsent.is_empty() {
                true => self.channel.flush().map(|()| 0),
                false => self.channel.write_vectored(&[IoSlice::new(&self.unsent)]),
            };
            match sent {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) if is_tick(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads what arrives within a tick.
    fn wait(&mut self) -> io::Result<()> {
        let mut piece = [0; PULSE_PIECE];
        match self.channel.read(&mut piece) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => self.arrived.extend_from_slice(piece.get(..read).unwrap_or_default()),
            Err(error) if is_tick(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Reads what is there, but no more than could be said honestly. Whatever TLS held was read by the call before.
    fn look(&mut self) -> io::Result<()> {
        while self.arrived.len() < PULSE_PIECE && arrived(self.channel.stream())?.is_some() {
            self.wait()?;
        }
        Ok(())
    }

    fn take(&mut self) -> io::Result<Option<PulseMessage>> {
        let wrong = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        PulseMessage::take(&mut self.arrived).map_err(wrong)
    }
}
