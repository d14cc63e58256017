//! One connection, used by the holder of the turn: whole requests out, whole replies in, every wait bounded.
//!
//! Invariants: a request leaves with one call where the system takes it; a reply is read only after its length was found
//! to be the expected one; every wait has an end that does not move when single bytes trickle in, and an earlier one when
//! nothing comes at all.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use oxcart_backend::Arithmetic;

use super::channel::Channel;
use super::failure::{Sums, Unconfirmed, WorkerFailure, WorkerFault};
use super::limits::MAX_MARKS;
use super::message::Message;
use super::options::{Ahead, Timeouts};
use super::traffic::Traffic;
use crate::os::socket::is_tick;
use crate::wire::{Command, Dialect, Interruption, NotDelivered, Reply};

/// How long to wait, for all of an exchange and for its next byte.
#[derive(Clone, Copy, Debug)]
struct Patience {
    whole: Duration,
    stall: Duration,
}

/// Looks at the clock while bytes move.
#[derive(Debug)]
struct Watch {
    patience: Patience,
    started: Instant,
    moved: Instant,
}

impl Watch {
    fn new(patience: Patience, started: Instant) -> Watch {
        Watch { patience, started, moved: started }
    }

    /// Some bytes have moved.
    fn moved(&mut self) {
        self.moved = Instant::now();
    }

    /// The limit that has passed, if one has.
    fn passed(&self) -> Option<Duration> {
        if self.moved.elapsed() > self.patience.stall {
            return Some(self.patience.stall);
        }
        (self.started.elapsed() > self.patience.whole).then_some(self.patience.whole)
    }
}

/// What a worker says of contents that it may have already.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WorkerHas {
    /// Bytes can be named by their content.
    pub(super) takes: bool,
    /// It has files of its own, so that small ones are worth asking for.
    pub(super) copies: bool,
}

/// A connection and what is known of its state.
#[derive(Debug)]
pub(super) struct Line {
    channel: Channel,
    /// Where the worker is, as messages say it.
    place: Arc<str>,
    pub(super) dialect: &'static Dialect,
    /// Whether the worker can be introduced to others.
    pub(super) can_be_introduced: bool,
    /// Whether the worker gives a connection a pulse.
    pub(super) has_pulse: bool,
    /// What the worker may have already.
    pub(super) has: WorkerHas,
    /// What graphs may count that the worker keeps in slots, if it does.
    pub(super) kept_graph_bytes: Option<usize>,
    /// The order in which all devices of the worker add up, if it is the same.
    pub(super) arithmetic: Option<Arithmetic>,
    traffic: Arc<Traffic>,
    timeouts: Timeouts,
    unconfirmed: Unconfirmed,
    /// Commands that may become known to be done by what another worker says: their tickets, and what was sent up to them.
    marks: VecDeque<(u64, Sums)>,
    /// Cleared while a message is half way through.
    between_messages: bool,
}

impl Line {
    /// A line over a channel whose calls end after a [tick](Timeouts::tick).
    pub(super) fn new(
        channel: Channel,
        place: Arc<str>,
        dialect: &'static Dialect,
        traffic: Arc<Traffic>,
        timeouts: Timeouts,
    ) -> Line {
        Line {
            channel,
            place,
            dialect,
            can_be_introduced: false,
            has_pulse: false,
            has: WorkerHas::default(),
            kept_graph_bytes: None,
            arithmetic: None,
            traffic,
            timeouts,
            unconfirmed: Unconfirmed::default(),
            marks: VecDeque::new(),
            between_messages: true,
        }
    }

    /// Another handle of the socket, to end waits from outside.
    pub(super) fn handle(&self) -> io::Result<TcpStream> {
        self.channel.stream().try_clone()
    }

    /// Whether every command sent so far is known to be done.
    pub(super) fn is_confirmed(&self) -> bool {
        self.unconfirmed.is_empty()
    }

    /// Notes the ticket of the command that was sent last, so that it can be [confirmed](Line::confirm).
    pub(super) fn mark(&mut self, ticket: u64) {
        if self.marks.len() >= MAX_MARKS {
            // A later one says as much, only later.
            self.marks.pop_front();
        }
        self.marks.push_back((ticket, self.unconfirmed.sums()));
    }

    /// Every command before a ticket is known to be done, by what another worker said.
    pub(super) fn confirm(&mut self, before: u64) {
        let known = self.marks.partition_point(|(ticket, _)| *ticket < before);
        if let Some((_, sums)) = self.marks.drain(..known).next_back() {
            self.unconfirmed.confirm(sums);
        }
    }

    /// Whether the next byte either way starts a message.
    pub(super) fn is_between_messages(&self) -> bool {
        self.between_messages
    }

    /// A failure, with what it may have cost.
    pub(super) fn failure(&self, fault: WorkerFault, during: Option<Command>) -> WorkerFailure {
        WorkerFailure::new(&self.place, fault, during, self.unconfirmed.clone())
    }

    /// A failure that says that an answer cannot be true.
    pub(super) fn implausible(&self, command: Command, what: String) -> WorkerFailure {
        self.failure(WorkerFault::Implausible { what }, Some(command))
    }

    /// Ends the connection both ways.
    pub(super) fn hang_up(&self) {
        // A connection that is gone already needs no end.
        let _ = self.channel.stream().shutdown(Shutdown::Both);
    }

    /// Sends a request that has no answer.
    pub(super) fn send(&mut self, message: &Message<'_>) -> Result<(), WorkerFailure> {
        self.write(message).map_err(|fault| self.failure(fault, Some(message.command)))?;
        self.unconfirmed.add(message.command, message.about, message.work);
        self.between_messages = true;
        Ok(())
    }

    /// Sends a request and reads its answer, which must be as long as `out`.
    pub(super) fn exchange(&mut self, message: &Message<'_>, out: &mut [u8]) -> Result<(), WorkerFailure> {
        let command = message.command;
        self.write(message).map_err(|fault| self.failure(fault, Some(command)))?;
        let started = Instant::now();
        let ahead = Ahead {
            wire: out.len() as u64,
            memory: self.unconfirmed.bytes().saturating_add(message.work),
            graphs: self.unconfirmed.graphs() + usize::from(command == Command::GraphCompute),
        };
        let mut patience = self.patience(ahead);
        if command == Command::Hello {
            patience = Patience { whole: self.timeouts.connect, stall: self.timeouts.connect };
        }
        if let Err(fault) = self.read(out, started, patience) {
            let failure = self.failure(fault, Some(command));
            if failure.is_interruption() {
                // It was all the worker had to say; nothing of what was sent before will be done any more.
                self.unconfirmed.clear();
                self.marks.clear();
                self.between_messages = true;
            }
            return Err(failure);
        }
        self.traffic.received(command, 8 + out.len() as u64, started.elapsed());
        self.unconfirmed.clear();
        self.marks.clear();
        self.between_messages = true;
        Ok(())
    }

    fn patience(&self, ahead: Ahead) -> Patience {
        Patience { whole: self.timeouts.limit(ahead), stall: self.timeouts.stall(ahead) }
    }

    /// Sends a request whose answer, if it has one in this dialect, is empty.
    pub(super) fn tell(&mut self, message: &Message<'_>) -> Result<(), WorkerFailure> {
        match message.command.reply(self.dialect) {
            Reply::None => self.send(message),
            _ => self.exchange(message, &mut []),
        }
    }

    fn write(&mut self, message: &Message<'_>) -> Result<(), WorkerFault> {
        self.check_quiet()?;
        self.between_messages = false;
        let len = message.head.len() + message.payload.len();
        // A worker that computes, or works off what was sent before, does not read.
        let ahead =
            Ahead { wire: len as u64, memory: self.unconfirmed.bytes(), graphs: self.unconfirmed.graphs() };
        let mut watch = Watch::new(self.patience(ahead), Instant::now());
        let mut slices = [IoSlice::new(message.head), IoSlice::new(message.payload)];
        let mut rest: &mut [IoSlice<'_>] = &mut slices;
        let mut left = len;
        while left > 0 || self.channel.has_unsent() {
            let wrote = match left {
                0 => self.channel.flush().map(|()| 0),
                _ => self.channel.write_vectored(rest),
            };
            match wrote {
                Ok(0) if left > 0 => return Err(WorkerFault::Closed),
                Ok(written) => {
                    left -= written;
                    IoSlice::advance_slices(&mut rest, written);
                    watch.moved();
                }
                Err(error) if is_tick(&error) => {}
                Err(error) => return Err(WorkerFault::from_io(error)),
            }
            if let Some(limit) = watch.passed().filter(|_| left > 0 || self.channel.has_unsent()) {
                return Err(WorkerFault::Stuck { limit });
            }
        }
        self.traffic.sent(message.command, len as u64);
        Ok(())
    }

    fn read(&mut self, out: &mut [u8], started: Instant, patience: Patience) -> Result<(), WorkerFault> {
        let mut watch = Watch::new(patience, started);
        let expected = out.len() as u64;
        let (mut size, mut surplus) = ([0; 8], [0]);
        let whole = size.len() + out.len();
        let mut have = 0;
        while have < whole {
            // Length and body with one call; the length is looked at before anything else is waited for.
            let (size_left, out_left) = (
                size.get_mut(have..).unwrap_or_default(),
                out.get_mut(have.saturating_sub(8)..).unwrap_or_default(),
            );
            let mut slices =
                [IoSliceMut::new(size_left), IoSliceMut::new(out_left), IoSliceMut::new(&mut surplus)];
            match self.channel.read_vectored(&mut slices) {
                Ok(0) => return Err(WorkerFault::Closed),
                Ok(read) => {
                    have += read;
                    watch.moved();
                }
                Err(error) if is_tick(&error) => {}
                Err(error) => return Err(WorkerFault::from_io(error)),
            }
            let found = u64::from_le_bytes(size);
            if have >= 8 && found == Interruption::LENGTH && self.can_be_interrupted() {
                let said = out.iter().chain(&surplus).take(have - 8).copied().collect();
                return Err(self.interruption(said, &mut watch));
            }
            if have >= 8 && found != expected {
                return Err(WorkerFault::ReplyLength { found, expected });
            }
            if have > whole {
                return Err(WorkerFault::Unsolicited);
            }
            if let Some(limit) = watch.passed().filter(|_| have < whole) {
                return Err(WorkerFault::Silent { limit });
            }
        }
        Ok(())
    }

    /// Why the connection is of no use any more, if that shows without a word.
    pub(super) fn quiet_failure(&mut self) -> Option<WorkerFailure> {
        self.check_quiet().err().map(|fault| self.failure(fault, None))
    }

    /// Between messages a worker has nothing to say. If it has closed, that shows here, before more is sent for nothing.
    fn check_quiet(&mut self) -> Result<(), WorkerFault> {
        match self.channel.arrived() {
            Ok(None) => Ok(()),
            Ok(Some(0)) => Err(WorkerFault::Closed),
            Ok(Some(_)) => Err(WorkerFault::Unsolicited),
            Err(error) if is_tick(&error) => Ok(()),
            Err(error) => Err(WorkerFault::from_io(error)),
        }
    }

    /// Whether the worker waits for others or keeps graphs: nothing else interrupts one.
    fn can_be_interrupted(&self) -> bool {
        self.can_be_introduced || self.kept_graph_bytes.is_some()
    }

    /// What a worker says in the place of an answer because it is interrupted: these bytes, and what follows.
    fn interruption(&mut self, mut said: Vec<u8>, watch: &mut Watch) -> WorkerFault {
        let mut rest = [0; Interruption::BYTES + 1];
        while said.len() < Interruption::BYTES {
            match self.channel.read(rest.get_mut(said.len()..).unwrap_or_default()) {
                Ok(0) => return WorkerFault::Closed,
                Ok(read) => {
                    said.extend(rest.get(said.len()..).unwrap_or_default().iter().take(read));
                    watch.moved();
                }
                Err(error) if is_tick(&error) => {}
                Err(error) => return WorkerFault::from_io(error),
            }
            if let Some(limit) = watch.passed().filter(|_| said.len() < Interruption::BYTES) {
                return WorkerFault::Silent { limit };
            }
        }
        match said.first_chunk().and_then(Interruption::decode) {
            _ if said.len() > Interruption::BYTES => WorkerFault::Unsolicited,
            Some(Interruption { why: NotDelivered::NotKept, .. }) => WorkerFault::NotKept,
            Some(Interruption { number, why }) => {
                WorkerFault::NotDelivered { introduction: number, sender: None, failure: None, why }
            }
            None => WorkerFault::ReplyLength { found: Interruption::LENGTH, expected: 0 },
        }
    }
}
