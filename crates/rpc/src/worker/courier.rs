//! The connection to another worker that a client has introduced this one to: made once, then it takes what is pushed.
//!
//! A worker goes only where it may: to a machine whose key the client has named, which is then proved, or, for clients without a key, to
//! where those clients come in without one too; to itself only for clients on this machine. Until the other side has
//! proved that it was told the same secret, the client does not choose what is sent. Invariants: every wait ends, soon after the client
//! has gone; there are no more connections at a time than a limit allows, of one peer and of all.

use std::io::{self, IoSlice, Read};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::budget::Lease;
use super::client::{Client, Phase};
use super::counters::add;
use super::entry::is_here;
use super::limits::{COURIERS_PER_PEER, KEEPALIVE, MEET, OWN_PIECE_BYTES, WATCH_EVERY};
use super::server::WorkerState;
use super::space::BufferRange;
use crate::client::Channel;
use crate::link::introduction::{Caller, CallerAction, EXPORTER_LABEL, nonce};
use crate::link::limits::SECURED_BYTES;
use crate::link::tls::{Purpose, to_worker};
use crate::link::{Key, Secret};
use crate::os::socket::{TimedSocket, is_tick, keep_alive};
use crate::wire::{DeliveryHead, FRAME_BYTES, FrameHead, Meet, WORKER_MARK, WorkerMessage};

/// What the connections for one peer may take of the memory that there is for all.
const MOST_OF_PEER: usize = COURIERS_PER_PEER * SECURED_BYTES;

/// A connection to another worker that has let this one in.
#[derive(Debug)]
pub(crate) struct Courier {
    channel: Channel,
    _place: Lease,
}

/// Meets another worker, or does not. That it failed is told no sooner than a limit, so that it cannot be learned how.
pub(crate) fn meet(shared: &WorkerState, client: &Client, meet: &Meet) -> Option<Courier> {
    let since = Instant::now();
    let place = || shared.couriers.lease_within(client.holder(), SECURED_BYTES, MOST_OF_PEER);
    let place = may_meet(shared, client, meet).then(place).flatten();
    match place.map(|place| try_to_meet(shared, client, meet, since, place)) {
        Some(Ok(courier)) => Some(courier),
        _ => {
            // Who comes over other streams than a socket has this worker go nowhere, which is no secret.
            while client.socket.is_some() && since.elapsed() < MEET && !client.is_gone() {
                thread::sleep(WATCH_EVERY.min(MEET.saturating_sub(since.elapsed())));
            }
            None
        }
    }
}

/// Whether a client may have this worker go there.
fn may_meet(shared: &WorkerState, client: &Client, meet: &Meet) -> bool {
    let address = meet.address.socket_address();
    let local = client.socket.as_ref().and_then(|socket| socket.stream().local_addr().ok());
    let on_this_machine = is_here(client.peer.ip(), local.map(|local| local.ip()));
    let is_place = is_place(address) && (on_this_machine || !is_this_machine(address.ip(), local));
    is_place
        && match (&meet.key, client.key()) {
            // The other has to prove a key there, or hears nothing but the start of a handshake.
            (Some(_), Some(_)) => shared.trust.is_some(),
            (None, None) => shared.plain.lets_in(address.ip()),
            _ => false,
        }
}

/// Whether an address is one machine's.
fn is_place(address: SocketAddr) -> bool {
    let is_one = match address.ip().to_canonical() {
        IpAddr::V4(ip) => !ip.is_unspecified() && !ip.is_multicast() && !ip.is_broadcast(),
        // Link-local ones mean nothing without the name of a link.
        IpAddr::V6(ip) => !ip.is_unspecified() && !ip.is_multicast() && !ip.is_unicast_link_local(),
    };
    is_one && address.port() != 0
}

/// Whether an address is this machine's: loopback, or the one that the client has come to.
fn is_this_machine(ip: IpAddr, local: Option<SocketAddr>) -> bool {
    ip.to_canonical().is_loopback()
        || local.is_some_and(|local| local.ip().to_canonical() == ip.to_canonical())
}

fn try_to_meet(
    shared: &WorkerState,
    client: &Client,
    meet: &Meet,
    since: Instant,
    place: Lease,
) -> io::Result<Courier> {
    let stream = TcpStream::connect_timeout(&meet.address.socket_address(), MEET)?;
    stream.set_nodelay(true)?;
    keep_alive(&stream, &KEEPALIVE)?;
    let socket = TimedSocket::new(stream, Some(WATCH_EVERY), Some(WATCH_EVERY))?;
    let channel = match (&meet.key, &shared.trust) {
        (Some(key), Some(trust)) => {
            let secured = to_worker(trust.identity(), Key::from_bytes(*key), Purpose::Introduced);
            Channel::secured(socket, secured.map_err(io::Error::other)?)
        }
        _ => Channel::plain(socket),
    };
    let mut courier = Courier { channel, _place: place };
    let go_on = || since.elapsed() < MEET && !client.is_gone();
    while !ticked(courier.channel.shake_hands(), false, go_on)? {}
    let exported = match courier.channel.tls() {
        Some(tls) if tls.protocol() != Some(Purpose::Introduced.protocol()) => {
            return Err(io::ErrorKind::InvalidData.into());
        }
        tls => tls.map(|tls| tls.exported(EXPORTER_LABEL)).transpose()?,
    };
    let nonce = nonce().ok_or(io::ErrorKind::Unsupported)?;
    let mut caller = Caller::new(Secret::from_bytes(meet.secret), exported, nonce);
    courier.say(&[&WORKER_MARK[..], &caller.knock().encode()].concat(), go_on)?;
    loop {
        match caller.handle(courier.hear(go_on)?) {
            CallerAction::Say(message) => courier.say(&message.encode(), go_on)?,
            CallerAction::GoOn => return Ok(courier),
            CallerAction::Fail => return Err(io::ErrorKind::PermissionDenied.into()),
        }
    }
}

/// What a step came to: what it says if it was a tick, unless it is time to give up.
fn ticked<T>(step: io::Result<T>, tick: T, go_on: impl Fn() -> bool + Copy) -> io::Result<T> {
    match step {
        Err(error) if !is_tick(&error) => Err(error),
        step if go_on() => Ok(step.unwrap_or(tick)),
        _ => Err(io::ErrorKind::TimedOut.into()),
    }
}

impl Courier {
    /// Sends all of some bytes, as long as there is time.
    fn say(&mut self, mut bytes: &[u8], go_on: impl Fn() -> bool + Copy) -> io::Result<()> {
        while !bytes.is_empty() || self.channel.has_unsent() {
            let step = match bytes {
                [] => self.channel.flush().map(|()| 0),
                bytes => self.channel.write_vectored(&[IoSlice::new(bytes)]),
            };
            let sent = ticked(step, 0, go_on)?;
            bytes = bytes.get(sent..).unwrap_or_default();
        }
        Ok(())
    }

    fn hear(&mut self, go_on: impl Fn() -> bool + Copy) -> io::Result<WorkerMessage> {
        let wrong = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        let (mut head, mut body) = ([0; FRAME_BYTES], [0; WorkerMessage::MAX_BODY]);
        self.fill(&mut head, go_on)?;
        let head = FrameHead::decode(&head);
        let bytes = WorkerMessage::body_bytes(&head).map_err(wrong)?;
        let body = body.get_mut(..bytes).ok_or(io::ErrorKind::InvalidData)?;
        self.fill(body, go_on)?;
        WorkerMessage::decode(&head, body).map_err(wrong)
    }

    fn fill(&mut self, mut out: &mut [u8], go_on: impl Fn() -> bool + Copy) -> io::Result<()> {
        while !out.is_empty() {
            let step = match self.channel.read(out) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                step => step,
            };
            let read = ticked(step, 0, go_on)?;
            out = out.get_mut(read..).unwrap_or_default();
        }
        Ok(())
    }

    /// Sends bytes of a buffer. Fails where the other worker is gone, or takes nothing for as long as a client may leave an answer unread, or
    /// where that is of no use any more.
    pub(crate) fn deliver(
        &mut self,
        shared: &WorkerState,
        client: &Client,
        ticket: u64,
        range: &BufferRange,
        go_on: impl Fn() -> bool,
    ) -> io::Result<()> {
        // It has nothing to say: whatever arrives is the end.
        if self.channel.arrived()?.is_some() {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        // The session's thread has nothing else in hand meanwhile, so this is the piece that counts for each connection.
        let mut bytes = Vec::with_capacity(OWN_PIECE_BYTES);
        bytes.extend(DeliveryHead { ticket, bytes: range.len }.encode());
        let mut start = 0;
        while start < range.len {
            let (from, len) = (bytes.len(), (range.len - start).min(OWN_PIECE_BYTES - bytes.len()));
            bytes.resize(from + len, 0);
            let piece = bytes.get_mut(from..).unwrap_or_default();
            range.buffer.read(range.offset + start, piece).map_err(io::Error::other)?;
            client.enter(Phase::Waiting, None);
            let since = Instant::now();
            let said = self.say(&bytes, || since.elapsed() < shared.limits.write_stall && go_on());
            client.enter(Phase::Working, None);
            said?;
            add(&shared.counters.bytes_out, bytes.len() as u64);
            bytes.clear();
            start += len;
        }
        Ok(())
    }
}

const _: () = assert!(MEET.as_millis() > WATCH_EVERY.as_millis());
const _: () = assert!(MEET.as_millis() <= Duration::from_secs(5).as_millis());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_addresses_are_no_place_to_go_to() {
        let is = |text: &str| is_place(text.parse().unwrap());
        assert!(is("127.0.0.1:1") && is("10.0.0.1:50052") && is("[2001:db8::1]:1") && is("[::1]:5"));
        for text in ["0.0.0.0:1", "[::]:1", "224.0.0.1:1", "[ff02::1]:1", "255.255.255.255:1", "10.0.0.1:0"] {
            assert!(!is(text), "{text}");
        }
        assert!(!is("[fe80::1]:1") && !is("[::ffff:224.0.0.1]:1"));
    }

    #[test]
    fn a_machine_knows_itself() {
        let local = Some("[::ffff:192.168.1.5]:50052".parse().unwrap());
        let is = |text: &str| is_this_machine(text.parse().unwrap(), local);
        assert!(is("127.0.0.2") && is("::1") && is("192.168.1.5") && is("::ffff:127.0.0.1"));
        assert!(!is("192.168.1.6") && !is("2001:db8::1"));
    }
}
