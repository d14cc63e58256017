//! From an endpoint to a line on which HELLO has been said.
//!
//! A client never says which version it speaks; the form of HELLO is all a worker learns. The newer form is tried first, and
//! the older one if the worker hangs up on it. The worker's version decides the dialect.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use oxcart_backend::Arithmetic;

use super::channel::Channel;
use super::endpoint::Endpoint;
use super::failure::{About, ConnectError, WorkerFailure, WorkerFault};
use super::line::{Line, WorkerHas};
use super::message::{Head, Message};
use super::options::{LinkTo, Options};
use super::traffic::Traffic;
use crate::link::secured::Secured;
use crate::link::tls::{Purpose, is_another, is_not_known, to_worker};
use crate::os::socket::{KeepAlive, TimedSocket, is_tick, keep_alive};
use crate::wire::{
    CAPABILITY_BYTES, Command, Dialect, NO_CAPABILITIES, Version, offers_arithmetic, offers_copies,
    offers_introductions, offers_kept_graphs, offers_own_ops, offers_pulses, offers_takes,
};

/// When a silent worker is taken for lost.
const KEEPALIVE: KeepAlive = KeepAlive {
    after: Duration::from_secs(30),
    every: Duration::from_secs(10),
    tries: 3,
    unacknowledged: Duration::from_secs(60),
};

/// Connects and says HELLO.
pub(super) fn greet(
    endpoint: &Endpoint,
    options: &Options,
    traffic: &Arc<Traffic>,
) -> Result<Line, ConnectError> {
    let forms: &[bool] = match options.dialect {
        Some(dialect) if dialect.has_capabilities => &[true],
        Some(_) => &[false],
        None => &[true, false],
    };
    for &with_capabilities in forms {
        let channel = open_channel(endpoint, options)?;
        let provisional = if with_capabilities { Dialect::newest() } else { Dialect::classic() };
        let place = options.place_of(endpoint);
        let mut line = Line::new(channel, place, provisional, Arc::clone(traffic), options.timeouts);
        let failure = match hello(&mut line, with_capabilities) {
            Ok(answer) => {
                let (can_be_introduced, has_pulse) = (answer.can_be_introduced, answer.has_pulse);
                let (has, kept_graph_bytes) = (answer.has, answer.kept_graph_bytes);
                line.arithmetic = answer.arithmetic;
                line.dialect = choose(endpoint, answer, options.dialect, with_capabilities)?;
                line.can_be_introduced = can_be_introduced && line.dialect.has_introductions;
                line.has_pulse = has_pulse && line.dialect.has_pulses;
                if line.dialect.has_takes {
                    line.has = has;
                }
                line.kept_graph_bytes = kept_graph_bytes.filter(|_| line.dialect.has_kept_graphs);
                return Ok(line);
            }
            Err(failure) => failure,
        };
        match failure.fault() {
            WorkerFault::Closed => {}
            WorkerFault::Io(error) if is_not_known(error) => {
                return Err(ConnectError::NotKnown { endpoint: endpoint.to_string() });
            }
            WorkerFault::Silent { limit } => {
                return Err(ConnectError::NoHello { endpoint: endpoint.to_string(), limit: *limit });
            }
            _ => return Err(Arc::new(failure).into()),
        }
    }
    Err(ConnectError::Rejected { endpoint: endpoint.to_string() })
}

/// Connects, and proves who both are if that is known.
fn open_channel(endpoint: &Endpoint, options: &Options) -> Result<Channel, ConnectError> {
    let (timeouts, tick) = (&options.timeouts, options.timeouts.tick());
    let stream = connect(endpoint, &options.addresses, timeouts.connect)?;
    let lost = |error| unreachable_endpoint(endpoint, error);
    let socket = TimedSocket::new(stream, Some(tick), Some(tick)).map_err(lost)?;
    match &options.link {
        None => Ok(Channel::plain(socket)),
        Some(link) => secure(endpoint, socket, link, Purpose::Link, timeouts.connect),
    }
}

/// Makes a connection to one machine of a socket, or none.
pub(super) fn secure(
    endpoint: &Endpoint,
    socket: TimedSocket,
    link: &LinkTo,
    purpose: Purpose,
    limit: Duration,
) -> Result<Channel, ConnectError> {
    let failed = |error: io::Error| match is_another(&error) {
        true => ConnectError::Another { endpoint: endpoint.to_string() },
        false => ConnectError::Tls { endpoint: endpoint.to_string(), reason: error.to_string() },
    };
    let secured =
        to_worker(&link.identity, link.worker, purpose).map_err(io::Error::other).map_err(failed)?;
    let mut channel = Channel::secured(socket, secured);
    let started = Instant::now();
    loop {
        match channel.shake_hands() {
            Ok(true) => break,
            Ok(false) => {}
            Err(error) if is_tick(&error) => {}
            Err(error) => return Err(failed(error)),
        }
        // However little comes at a time, it does not go on for ever.
        if started.elapsed() >= limit {
            return Err(ConnectError::NoHello { endpoint: endpoint.to_string(), limit });
        }
    }
    match channel.tls().and_then(Secured::protocol) == Some(purpose.protocol()) {
        true => Ok(channel),
        false => Err(failed(io::Error::other("the worker has not agreed on what to speak"))),
    }
}

/// What a worker answers to HELLO.
struct Answer {
    version: Version,
    /// Whether it is a worker of ours, with all the operations that only we have.
    is_own: bool,
    /// Whether it can be introduced to other workers.
    can_be_introduced: bool,
    /// Whether it gives a connection a pulse.
    has_pulse: bool,
    /// What it may have already.
    has: WorkerHas,
    /// What graphs may count that it keeps in slots, if it does.
    kept_graph_bytes: Option<usize>,
    /// The order in which all of its devices add up, if it is the same.
    arithmetic: Option<Arithmetic>,
}

fn hello(line: &mut Line, with_capabilities: bool) -> Result<Answer, WorkerFailure> {
    let head = Head::new(Command::Hello);
    let head = if with_capabilities { head.raw(&NO_CAPABILITIES) } else { head }.whole();
    let message =
        Message { command: Command::Hello, head: &head, payload: &[], about: &About::Nothing, work: 0 };
    // Version, padding, and what the worker offers: transports are declined by not taking them up.
    let (mut start, mut offer) = ([0; 4], NO_CAPABILITIES);
    if with_capabilities {
        let mut answer = [0; 4 + CAPABILITY_BYTES];
        line.exchange(&message, &mut answer)?;
        start.copy_from_slice(&answer[..4]);
        offer.copy_from_slice(&answer[4..]);
    } else {
        line.exchange(&message, &mut start[..3])?;
    }
    let [major, minor, patch, _] = start;
    let version = Version { major, minor, patch };
    let (is_own, can_be_introduced) = (offers_own_ops(&offer), offers_introductions(&offer));
    let has = WorkerHas { takes: offers_takes(&offer), copies: offers_copies(&offer) };
    let (has_pulse, kept_graph_bytes) = (offers_pulses(&offer), offers_kept_graphs(&offer));
    let arithmetic = offers_arithmetic(&offer);
    Ok(Answer { version, is_own, can_be_introduced, has_pulse, has, kept_graph_bytes, arithmetic })
}

/// The dialect to speak with a worker of a version.
fn choose(
    endpoint: &Endpoint,
    answer: Answer,
    wanted: Option<&'static Dialect>,
    with_capabilities: bool,
) -> Result<&'static Dialect, ConnectError> {
    let endpoint = || endpoint.to_string();
    let Answer { version: found, is_own, .. } = answer;
    if let Some(wanted) = wanted {
        let matches = wanted.version.major == found.major && (is_own || wanted.own_ops.is_empty());
        return matches.then_some(wanted).ok_or(ConnectError::OtherDialect {
            endpoint: endpoint(),
            found,
            wanted,
        });
    }
    if is_own && found == Dialect::own().version {
        return Ok(Dialect::own());
    }
    Dialect::for_worker(found)
        .filter(|dialect| dialect.has_capabilities == with_capabilities)
        .ok_or_else(|| ConnectError::Version { endpoint: endpoint(), found })
}

/// Connects to the first address that answers: of those that are known, if they are.
pub(super) fn connect(
    endpoint: &Endpoint,
    known: &[SocketAddr],
    limit: Duration,
) -> Result<TcpStream, ConnectError> {
    let name_error = |error| ConnectError::Name { endpoint: endpoint.to_string(), error };
    let addresses = match known {
        [] => endpoint.addresses().map_err(name_error)?,
        known => known.to_vec(),
    };
    let started = Instant::now();
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in &addresses {
        let left = limit.saturating_sub(started.elapsed());
        if left.is_zero() {
            last = io::ErrorKind::TimedOut.into();
            break;
        }
        match open(address, left) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(unreachable_endpoint(endpoint, last))
}

fn unreachable_endpoint(endpoint: &Endpoint, error: io::Error) -> ConnectError {
    ConnectError::Unreachable { endpoint: endpoint.to_string(), error }
}

pub(super) fn open(address: &SocketAddr, limit: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(address, limit)?;
    stream.set_nodelay(true)?;
    keep_alive(&stream, &KEEPALIVE)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::link::Identity;
    use crate::link::tls::another_worker;

    /// A worker that proves its key, but has not agreed on what the connection is for.
    #[test]
    fn a_worker_has_to_agree_on_what_to_speak() {
        let [client, worker] = [(); 2].map(|()| Arc::new(Identity::make().unwrap()));
        let talk = |protocols: &[&[u8]], purpose| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut accepted, _) = listener.accept().unwrap();
            let mut secured = another_worker(&worker, protocols);
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    let mut output = accepted.try_clone().unwrap();
                    // The client says what becomes of it.
                    let _ = secured.shake_hands(&mut accepted, &mut output, &|work| {
                        work();
                        true
                    });
                });
                let tick = Some(Duration::from_secs(1));
                let socket = TimedSocket::new(stream, tick, tick).unwrap();
                let link = LinkTo { identity: Arc::clone(&client), worker: worker.key() };
                let endpoint = "127.0.0.1:1".parse().unwrap();
                secure(&endpoint, socket, &link, purpose, Duration::from_secs(60)).map(|_| ())
            })
        };
        for (purpose, other) in [(Purpose::Link, Purpose::Join), (Purpose::Join, Purpose::Link)] {
            talk(&[purpose.protocol()], purpose).unwrap();
            for protocols in [&[][..], &[other.protocol()]] {
                let error = talk(protocols, purpose).unwrap_err();
                assert!(matches!(error, ConnectError::Tls { .. }), "{error}");
            }
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn workers_that_vanish_are_noticed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = open(&listener.local_addr().unwrap(), Duration::from_secs(5)).unwrap();
        let socket = socket2::SockRef::from(&stream);
        assert!(socket.keepalive().unwrap() && stream.nodelay().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), KEEPALIVE.after);
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), KEEPALIVE.every);
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), KEEPALIVE.tries);
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(KEEPALIVE.unacknowledged));
    }
}
