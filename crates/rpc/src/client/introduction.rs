//! Two workers that are introduced to each other, so that what one computes goes to the other without coming by here.
//!
//! That takes two exchanges, once for each pair and direction until one of them is interrupted, and what came of it is remembered: where one
//! cannot reach the other, or has not twice, bytes go by here as they always did. Afterwards nothing is waited for: a PUSH on the one connection
//! and an AWAIT on the other, each in its turn.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::connection::Connection;
use super::failure::{About, WorkerFailure};
use super::job::{Job, Range};
use super::limits::MAX_FAILED_DELIVERIES;
use super::line::Line;
use super::message::{Head, Message, Waiting};
use super::options::Options;
use super::record::bytes_record;
use crate::link::{Key, Secret};
use crate::wire::{Address, Command, Expect, MAX_DELIVERY_BYTES, Meet, Transfer};

/// Two workers that have met, one of which pushes to the other.
#[derive(Debug)]
struct Introduction {
    /// What it is called on both connections.
    number: u32,
    /// Held while a push and what waits for it are left to their turns, so that they come in the same order on both connections. None once
    /// one was left to its turn without the other: what comes by this introduction is not what is waited for any more.
    next_ticket: Mutex<Option<u64>>,
}

impl Introduction {
    fn next_ticket(&self) -> MutexGuard<'_, Option<u64>> {
        self.next_ticket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is of no use any more, as far as that is known while it is used.
    fn is_spoiled(&self) -> bool {
        self.next_ticket.try_lock().is_ok_and(|next| next.is_none())
    }
}

/// What is known of a pair of workers.
#[derive(Debug, Default)]
struct Pair {
    /// The last introduction, if it was not in vain, and in which eras of the sender and the receiver it was made.
    introduction: Option<(u64, u64, Option<Arc<Introduction>>)>,
    /// How often bytes have not come though the sender was not interrupted itself.
    failures: usize,
}

/// How other workers can get to a worker, and which could or could not.
#[derive(Debug)]
pub(super) struct Reach {
    /// Unique among all connections of this program.
    id: u64,
    can_be_introduced: bool,
    address: Option<SocketAddr>,
    key: Option<Key>,
    /// By the sender's connection.
    from: Mutex<HashMap<u64, Pair>>,
}

impl Reach {
    /// Of the worker at the other end of a line.
    pub(super) fn new(line: &Line, socket: &TcpStream, options: &Options) -> Reach {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Reach {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            can_be_introduced: line.can_be_introduced,
            address: socket.peer_addr().ok(),
            key: options.link.as_ref().map(|link| link.worker),
            from: Mutex::default(),
        }
    }

    /// Where to send another worker to get to this one. Loopback is another place for every machine; so it means something only to workers
    /// that are reached by it, too.
    fn as_seen_by(&self, sender: &Reach) -> Option<Address> {
        let is_loopback = |address: SocketAddr| address.ip().to_canonical().is_loopback();
        let address = self.address?;
        let is_there = !is_loopback(address) || sender.address.is_some_and(is_loopback);
        Address::new(address).filter(|_| is_there)
    }
}

/// What failed: the worker that sends, or the one that receives.
pub(super) enum Failed {
    Sender(Arc<WorkerFailure>),
    Receiver(Arc<WorkerFailure>),
}

/// One end of a transfer: a connection, the era of the stream that is used there, and the bytes.
pub(super) type End<'a> = (&'a Connection, u64, Range);

/// Has bytes of one worker put into the memory of another, in the turn of both; says whether they will be.
pub(super) fn push(
    (sender, sender_era, source): End<'_>,
    (receiver, receiver_era, target): End<'_>,
) -> Result<bool, Failed> {
    // A stream that was interrupted does not even begin.
    sender.check(sender_era).map_err(Failed::Sender)?;
    receiver.check(receiver_era).map_err(Failed::Receiver)?;
    let Some(introduction) = introduced(sender, receiver) else { return Ok(false) };
    let mut next = introduction.next_ticket();
    let pieces = source.pieces_of(MAX_DELIVERY_BYTES).zip(target.pieces_of(MAX_DELIVERY_BYTES));
    for ((_, from), (_, to)) in pieces {
        // Another thread has seen it fail since it was found.
        let (number, Some(ticket)) = (introduction.number, next.take()) else { return Ok(false) };
        let job = |command, range: Range, about| {
            let transfer = Transfer { number, ticket, record: bytes_record(range) };
            let head = Head::new(command).raw(&transfer.encode());
            Job::Tell(Waiting { about, work: range.len as u64, ..Waiting::new(command, head) })
        };
        let about = About::Bytes { len: from.len, name: None };
        let pushed = sender.submit_in(sender_era, job(Command::Push, from, about)).map_err(Failed::Sender)?;
        let about = About::Delivery { len: to.len, sender: Arc::clone(sender.place()) };
        let awaited =
            receiver.submit_in(receiver_era, job(Command::Await, to, about)).map_err(Failed::Receiver)?;
        receiver.awaits(awaited, sender, pushed);
        *next = Some(ticket + 1);
    }
    Ok(true)
}

/// The introduction of two workers, which is made if there was none; none if it cannot be.
fn introduced(sender: &Connection, receiver: &Connection) -> Option<Arc<Introduction>> {
    if !sender.reach.can_be_introduced || !receiver.reach.can_be_introduced {
        return None;
    }
    // Others that want the same wait here.
    let mut from = receiver.reach.from.lock().unwrap_or_else(PoisonError::into_inner);
    let pair = from.entry(sender.reach.id).or_default();
    let eras = (sender.era(), receiver.era());
    if let Some((of_sender, of_receiver, introduction)) = &pair.introduction {
        let is_spoiled = introduction.as_ref().is_some_and(|made| made.is_spoiled());
        if (*of_sender, *of_receiver) == eras && !is_spoiled {
            return introduction.clone();
        }
        let was_broken = introduction.as_ref().is_some_and(|made| receiver.was_broken(made.number));
        pair.failures += usize::from(was_broken && *of_sender == eras.0);
    }
    let may = pair.failures < MAX_FAILED_DELIVERIES;
    let introduction = may.then(|| introduce(sender, receiver, eras.1).map(Arc::new)).flatten();
    pair.introduction = Some((eras.0, eras.1, introduction.clone()));
    introduction
}

/// Introduces two workers, in some era of the receiver.
fn introduce(sender: &Connection, receiver: &Connection, era: u64) -> Option<Introduction> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let address = receiver.reach.as_seen_by(&sender.reach)?;
    // Known by keys, or in the clear: both of them, or there is no way from one to the other that is as safe as those to here.
    let (sender_key, receiver_key) = match (sender.reach.key, receiver.reach.key) {
        (None, None) => (None, None),
        (Some(sender), Some(receiver)) => (Some(*sender.as_bytes()), Some(*receiver.as_bytes())),
        _ => return None,
    };
    let (secret, number) = (Secret::make()?.bytes(), NEXT.fetch_add(1, Ordering::Relaxed));
    let ask = |connection: &Connection, command, body: Vec<u8>| {
        let head = Head::new(command).raw(&body).whole();
        let message = Message { command, head: &head, payload: &[], about: &About::Nothing, work: 0 };
        // A failure of the connection shows with the next command.
        connection.ask(&message).is_ok_and(|[answer]: [u8; 1]| answer == 1)
    };
    receiver.add_sender(number, sender);
    let is_expected = ask(receiver, Command::Expect, Expect { number, secret, key: sender_key }.encode());
    let meet = Meet { number, address, secret, key: receiver_key };
    if !is_expected || !ask(sender, Command::Meet, meet.encode()) {
        receiver.remove_sender(number, sender);
        return None;
    }
    receiver.has_met(number, era);
    Some(Introduction { number, next_ticket: Mutex::new(Some(0)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_means_something_only_on_one_machine() {
        let reach = |address: &str| Reach {
            id: 0,
            can_be_introduced: true,
            address: Some(address.parse().unwrap()),
            key: None,
            from: Mutex::default(),
        };
        let sees = |sender: &str, receiver: &str| reach(receiver).as_seen_by(&reach(sender)).is_some();
        assert!(sees("127.0.0.1:1", "127.0.0.1:2") && sees("[::1]:1", "127.0.0.1:2"));
        assert!(!sees("192.168.1.5:1", "127.0.0.1:2") && !sees("192.168.1.5:1", "[::ffff:127.0.0.1]:2"));
        assert!(sees("127.0.0.1:1", "192.168.1.5:2") && sees("192.168.1.6:1", "192.168.1.5:2"));
        assert!(!sees("192.168.1.5:1", "[fe80::1%2]:2"));
    }
}
