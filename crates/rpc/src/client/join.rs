//! Meeting a worker, from the side that was given its join line: the pairing's state machine on a connection.

use std::io::{self, IoSlice, Read};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::channel::Channel;
use super::endpoint::Endpoint;
use super::failure::ConnectError;
use super::handshake::{connect, secure};
use super::options::{LinkTo, Timeouts};
use crate::link::pairing::{EXPORTER_LABEL, Guest, GuestAction, GuestEvent, GuestFailure, Meeting};
use crate::link::tls::{Purpose, is_not_known};
use crate::link::{Identity, JoinLine, JoinLineError, Key, MachineName};
use crate::os::socket::{TimedSocket, is_tick};
use crate::wire::{NotPaired, PairingError, PairingMessage};

/// A worker that has taken this machine in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// What it calls itself.
    pub name: MachineName,
    /// Who it is.
    pub key: Key,
    /// Where it has proved to be: what the line calls that place, and its address.
    pub endpoints: Vec<Endpoint>,
}

/// Why two machines have not met.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// None of the addresses could be reached; one line each.
    #[error("the worker cannot be reached: {}", errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Unreachable {
        /// One for each address.
        errors: Vec<ConnectError>,
    },
    /// The worker did not take this machine in.
    #[error("{endpoint}: {failure}")]
    Failed {
        /// Where it is.
        endpoint: Endpoint,
        /// Why.
        failure: GuestFailure,
    },
    /// The conversation broke off.
    #[error("{endpoint}: the worker broke the connection: {error}")]
    BrokeOff {
        /// Where it is.
        endpoint: Endpoint,
        /// How.
        error: io::Error,
    },
    /// What the worker says is no join line.
    #[error("{endpoint}: {error}")]
    Line {
        /// Where it is.
        endpoint: Endpoint,
        /// Why.
        error: JoinLineError,
    },
}

/// Meets the worker of a join line. Both sides have to remember it; the worker has done so when this returns.
pub fn join(
    line: &JoinLine,
    identity: &Arc<Identity>,
    name: &MachineName,
    timeouts: &Timeouts,
) -> Result<Joined, JoinError> {
    let link = LinkTo { identity: Arc::clone(identity), worker: line.worker };
    let mut errors = Vec::new();
    for endpoint in &line.endpoints {
        let mut talk = match Talk::open(endpoint, &link, timeouts) {
            Ok(talk) => talk,
            Err(error) => {
                errors.push(error);
                continue;
            }
        };
        let mut guest = Guest::new(name.clone(), line.secret.clone());
        let meeting = talk.meeting(&link)?;
        let mut action = guest.handle(GuestEvent::Connected(meeting));
        loop {
            action = match action {
                GuestAction::Say(message) => {
                    guest.handle(GuestEvent::Said(talk.ask(&message, NotPaired::Closed)?))
                }
                GuestAction::Remember(key, name) => {
                    return Ok(Joined { name, key, endpoints: talk.endpoints() });
                }
                GuestAction::Fail(failure) => {
                    return Err(JoinError::Failed { endpoint: endpoint.clone(), failure });
                }
            };
        }
    }
    Err(JoinError::Unreachable { errors })
}

/// Has a worker of this very machine show a new join line.
pub fn invite(
    endpoint: &Endpoint,
    identity: &Arc<Identity>,
    timeouts: &Timeouts,
) -> Result<JoinLine, JoinError> {
    let link = LinkTo { identity: Arc::clone(identity), worker: identity.key() };
    let mut talk = Talk::open(endpoint, &link, timeouts)
        .map_err(|error| JoinError::Unreachable { errors: vec![error] })?;
    let failed = |failure| JoinError::Failed { endpoint: endpoint.clone(), failure };
    match talk.ask(&PairingMessage::Invite, NotPaired::NotYours)? {
        PairingMessage::Invited { line } => {
            line.parse().map_err(|error| JoinError::Line { endpoint: endpoint.clone(), error })
        }
        PairingMessage::Refused(why) => Err(failed(why.into())),
        _ => Err(failed(GuestFailure::Senseless)),
    }
}

/// A connection on which one question is answered.
struct Talk<'a> {
    channel: Channel,
    endpoint: &'a Endpoint,
    limit: Duration,
}

impl<'a> Talk<'a> {
    fn open(endpoint: &'a Endpoint, link: &LinkTo, timeouts: &Timeouts) -> Result<Talk<'a>, ConnectError> {
        let (limit, tick) = (timeouts.connect, Some(timeouts.tick()));
        let stream = connect(endpoint, &[], limit)?;
        let socket = TimedSocket::new(stream, tick, tick)
            .map_err(|error| ConnectError::Unreachable { endpoint: endpoint.to_string(), error })?;
        let channel = secure(endpoint, socket, link, Purpose::Join, limit)?;
        Ok(Talk { channel, endpoint, limit })
    }

    fn broke_off(&self, error: io::Error) -> JoinError {
        JoinError::BrokeOff { endpoint: self.endpoint.clone(), error }
    }

    fn meeting(&self, link: &LinkTo) -> Result<Meeting, JoinError> {
        let exported = match self.channel.tls() {
            Some(tls) => tls.exported(EXPORTER_LABEL).map_err(|error| self.broke_off(error))?,
            None => return Err(self.broke_off(io::ErrorKind::NotConnected.into())),
        };
        Ok(Meeting { host: link.worker, guest: link.identity.key(), exported })
    }

    /// Where this is: as it was written, and by its address, so that the place is known when its name cannot be looked up.
    fn endpoints(&self) -> Vec<Endpoint> {
        let address = self.channel.stream().peer_addr().ok();
        let address = address.and_then(|address| address.to_string().parse().ok());
        let address = address.filter(|address: &Endpoint| !address.is_same(self.endpoint));
        std::iter::once(self.endpoint.clone()).chain(address).collect()
    }

    /// Says something, and waits for what is said to it. A worker that refuses this machine's key already says no more; `denied` is what
    /// it means by that.
    fn ask(&mut self, message: &PairingMessage, denied: NotPaired) -> Result<PairingMessage, JoinError> {
        self.try_ask(message).map_err(|error| match is_not_known(&error) {
            true => JoinError::Failed { endpoint: self.endpoint.clone(), failure: denied.into() },
            false => self.broke_off(error),
        })
    }

    fn try_ask(&mut self, message: &PairingMessage) -> io::Result<PairingMessage> {
        let started = Instant::now();
        // Looks at the clock after each step, however much it moved.
        let check = |step: io::Result<usize>| match step {
            _ if started.elapsed() >= self.limit => Err(io::ErrorKind::TimedOut.into()),
            Err(error) if is_tick(&error) => Ok(0),
            step => step,
        };
        let question = message.encode();
        let mut sent = 0;
        while sent < question.len() || self.channel.has_unsent() {
            let rest = question.get(sent..).unwrap_or_default();
            sent += check(match rest.is_empty() {
                true => self.channel.flush().map(|()| 0),
                false => self.channel.write_vectored(&[IoSlice::new(rest)]),
            })?;
        }
        let mut answer = Vec::new();
        loop {
            let taken = PairingMessage::take(&answer);
            let wrong = |error: PairingError| io::Error::new(io::ErrorKind::InvalidData, error);
            if let Some((message, _)) = taken.map_err(wrong)? {
                return Ok(message);
            }
            // A message is never longer than what was found to be its length.
            let mut piece = [0; 1024];
            let read = match self.channel.read(&mut piece) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => check(read)?,
            };
            answer.extend_from_slice(piece.get(..read).unwrap_or_default());
        }
    }
}
