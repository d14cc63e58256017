//! Two sides of TLS in memory: who is let in, and what becomes of bytes on the way.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;

use super::*;
use rustls::Error;
use rustls::crypto::ring::kx_group::{SECP256R1, SECP384R1, X25519};

use crate::link::Identity;
use crate::link::pairing::EXPORTER_LABEL;
use crate::link::tls::{
    Entrance, Purpose, Turned, another_client, is_another, is_not_known, tls_error, to_worker,
};

/// One direction of a connection. When it is empty, nothing comes for the moment.
#[derive(Debug, Default)]
struct Way(VecDeque<u8>);

impl Read for Way {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self.0.is_empty() {
            true => Err(io::ErrorKind::WouldBlock.into()),
            false => self.0.read(out),
        }
    }
}

impl Write for Way {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Pair {
    client: Secured,
    worker: Secured,
    to_worker: Way,
    to_client: Way,
}

/// When there is nothing to wait for.
fn at_once(work: &mut dyn FnMut()) -> bool {
    work();
    true
}

/// A client and a worker, which has a thread of its own until both have shaken hands.
fn meet(
    client: &Identity,
    wanted: Key,
    worker: &Identity,
    purpose: Purpose,
    known: Option<Key>,
) -> Result<Pair, (io::Error, Option<Turned>)> {
    let pair = meet_as(to_worker(client, wanted, purpose).unwrap(), worker, known);
    pair.map(|(agreed, pair)| {
        assert_eq!(agreed, purpose);
        pair
    })
}

fn meet_as(
    mut secured: Secured,
    worker: &Identity,
    known: Option<Key>,
) -> Result<(Purpose, Pair), (io::Error, Option<Turned>)> {
    let entrance = Entrance::new(
        worker,
        Arc::new(move |key| Some(key) == known),
        Arc::new(|_| true),
        Arc::new(|_| false),
    )
    .unwrap();
    let (mut to, mut back) = (Way::default(), Way::default());
    // The first flight, until an answer would be waited for.
    let first = secured.shake_hands(&mut back, &mut to, &at_once).unwrap_err();
    assert_eq!(first.kind(), io::ErrorKind::WouldBlock);
    let taken = std::thread::scope(|scope| {
        let (send, receive) = std::sync::mpsc::channel::<Vec<u8>>();
        let (answer, answered) = std::sync::mpsc::channel::<Vec<u8>>();
        let entrance = &entrance;
        let thread = scope.spawn(move || {
            let mut input = Incoming { from: receive, held: VecDeque::new() };
            let turns = Cell::new(0);
            let in_turn = |work: &mut dyn FnMut()| {
                turns.set(turns.get() + 1);
                at_once(work)
            };
            let taken = entrance.take(&mut input, &mut Outgoing(answer), &in_turn);
            assert!(taken.is_err() || turns.get() >= 2, "what each side shows has a turn");
            taken
        });
        let mut input = Incoming { from: answered, held: VecDeque::new() };
        send.send(to.0.drain(..).collect()).unwrap();
        let mut output = Outgoing(send);
        let shaken = secured.shake_hands(&mut input, &mut output, &at_once);
        drop(output);
        let taken = thread.join().unwrap();
        // No ticket follows by which the handshake could be left out the next time.
        assert!(taken.is_err() || input.held.is_empty() && input.from.try_recv().is_err());
        // What the worker said last, a refusal perhaps.
        let shaken = shaken.and_then(|()| match &taken {
            Ok(_) => Ok(()),
            Err(_) => secured.read(&mut input, &mut [0]).map(|_| ()),
        });
        (shaken, taken)
    });
    match taken {
        (Ok(()), Ok((agreed, worker))) => {
            Ok((agreed, Pair { client: secured, worker, to_worker: to, to_client: back }))
        }
        (shaken, taken) => Err((shaken.unwrap_err(), taken.err())),
    }
}

struct Incoming {
    from: std::sync::mpsc::Receiver<Vec<u8>>,
    held: VecDeque<u8>,
}

impl Read for Incoming {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.held.is_empty()
            && let Ok(more) = self.from.recv()
        {
            self.held.extend(more);
        }
        self.held.read(out)
    }
}

struct Outgoing(std::sync::mpsc::Sender<Vec<u8>>);

impl Write for Outgoing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The other side may have gone.
        let _ = self.0.send(bytes.to_vec());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn say(side: &mut Secured, way: &mut Way, slices: &[IoSlice<'_>]) -> usize {
    let taken = side.take(slices).unwrap();
    side.flush(way).unwrap();
    taken
}

fn identities() -> [Identity; 3] {
    [(); 3].map(|()| Identity::make().unwrap())
}

#[test]
fn known_machines_talk() {
    let [client, worker, _] = identities();
    for purpose in [Purpose::Link, Purpose::Join] {
        let known = (purpose == Purpose::Link).then_some(client.key());
        let mut pair = meet(&client, worker.key(), &worker, purpose, known).unwrap();
        assert_eq!(
            (pair.client.peer_key(), pair.worker.peer_key()),
            (Some(worker.key()), Some(client.key()))
        );
        let exported = pair.client.exported(EXPORTER_LABEL).unwrap();
        assert_eq!(exported, pair.worker.exported(EXPORTER_LABEL).unwrap());
        let other = meet(&client, worker.key(), &worker, purpose, known).unwrap();
        assert_ne!(exported, other.client.exported(EXPORTER_LABEL).unwrap());
        // More than is held back at a time, in pieces of several sizes.
        let said: Vec<u8> = (0..300_000).map(|i| (i * 7 % 251) as u8).collect();
        let (mut sent, mut heard) = (0, Vec::<u8>::new());
        while heard.len() < said.len() {
            if sent < said.len() {
                let (short, long) = said[sent..].split_at(9.min(said.len() - sent));
                let slices = [IoSlice::new(short), IoSlice::new(long)];
                sent += say(&mut pair.client, &mut pair.to_worker, &slices);
                assert!(!pair.client.has_unsent());
            }
            let mut piece = vec![0; 5000];
            let read = pair.worker.read(&mut pair.to_worker, &mut piece).unwrap();
            heard.extend(&piece[..read]);
        }
        assert!(heard == said);
        assert_eq!(
            pair.worker.read(&mut pair.to_worker, &mut [0]).unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        assert_eq!(pair.client.read_held(&mut [0]).unwrap(), None);
        say(&mut pair.worker, &mut pair.to_client, &[IoSlice::new(b"x")]);
        assert_eq!(pair.client.arrived(&mut pair.to_client).unwrap(), Some(1));
    }
}

/// A key that is not known is told so while the handshake lasts, and the worker's protocol never sees it.
#[test]
fn a_key_that_is_not_known_is_refused_in_the_handshake() {
    let [client, worker, other] = identities();
    for known in [None, Some(other.key())] {
        let (error, turned) = meet(&client, worker.key(), &worker, Purpose::Link, known).err().unwrap();
        assert!(is_not_known(&error), "{error}");
        assert!(matches!(turned, Some(Turned::Unknown)), "{turned:?}");
    }
}

/// Someone in between has a key, but not the right one: the client says nothing to it, not even who it is.
#[test]
fn another_machine_in_its_place_is_found_out() {
    let [client, worker, between] = identities();
    for purpose in [Purpose::Link, Purpose::Join] {
        let (error, turned) =
            meet(&client, worker.key(), &between, purpose, Some(client.key())).err().unwrap();
        assert!(is_another(&error), "{error}");
        assert!(matches!(turned, Some(Turned::Wrong(_) | Turned::Left)), "{turned:?}");
    }
}

/// What a client encrypts with first.
#[derive(Debug, Default)]
struct FirstSecret(std::sync::Mutex<Vec<u8>>);

impl rustls::KeyLog for FirstSecret {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        if label == "CLIENT_TRAFFIC_SECRET_0" {
            *self.0.lock().unwrap() = secret.to_vec();
        }
    }
}

/// Records as no honest side makes them, of AES-128-GCM with SHA-256.
struct Forge {
    secret: Vec<u8>,
    sent: u64,
}

impl Forge {
    fn derive(&self, label: &str, bytes: usize) -> Vec<u8> {
        struct Length(usize);
        impl ring::hkdf::KeyType for Length {
            fn len(&self) -> usize {
                self.0
            }
        }
        let label = format!("tls13 {label}");
        let head = [0, bytes as u8, label.len() as u8];
        let (info, mut out) = ([&head[..], label.as_bytes(), &[0]], vec![0; bytes]);
        let secret = ring::hkdf::Prk::new_less_safe(ring::hkdf::HKDF_SHA256, &self.secret);
        secret.expand(&info, Length(bytes)).unwrap().fill(&mut out).unwrap();
        out
    }

    fn record(&mut self, kind: u8, said: &[u8]) -> Vec<u8> {
        use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
        let mut nonce: [u8; 12] = self.derive("iv", 12).try_into().unwrap();
        nonce[4..].iter_mut().zip(self.sent.to_be_bytes()).for_each(|(byte, number)| *byte ^= number);
        let mut body = [said, &[kind]].concat();
        let head = [23, 3, 3, 0, body.len() as u8 + 16];
        let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &self.derive("key", 16)).unwrap());
        let nonce = Nonce::assume_unique_for_key(nonce);
        key.seal_in_place_append_tag(nonce, Aad::from(head), &mut body).unwrap();
        self.sent += 1;
        [&head[..], &body].concat()
    }

    /// Application data of no bytes, and other keys from then on.
    fn nothing(&mut self) -> Vec<u8> {
        let nothing = self.record(23, &[]);
        let other_keys = self.record(22, &[24, 0, 0, 1, 0]);
        (self.secret, self.sent) = (self.derive("traffic upd", 32), 0);
        [nothing, other_keys].concat()
    }
}

/// TLS allows records in which nothing is said. The library bounds those without bytes in a row, and changes of keys in a row, but not both in
/// turn. Who sends them without end is taken for broken, before a reader that waits for something to be said has spent long on them; a few
/// between what is said are nothing.
#[test]
fn records_that_say_nothing_have_an_end() {
    let [client, worker, _] = identities();
    let talk = || {
        let log = Arc::<FirstSecret>::default();
        let secured =
            another_client(Some(&client), worker.key(), &[Purpose::Link], X25519, Arc::clone(&log) as _);
        let (_, pair) = meet_as(secured, &worker, Some(client.key())).unwrap();
        let secret = log.0.lock().unwrap().clone();
        (pair.worker, Forge { secret, sent: 0 })
    };
    let mut out = [0; 32];
    let (mut hearer, mut forge) = talk();
    for _ in 0..4 {
        let mut few: Vec<u8> = (0..500).flat_map(|_| forge.nothing()).collect();
        few.extend(forge.record(23, b"something"));
        let heard = hearer.read(&mut Way(few.into()), &mut out).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(&out[..heard], b"something");
    }
    let mut flood = Way((0..5000).flat_map(|_| forge.nothing()).collect());
    let error = hearer.read(&mut flood, &mut out).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
    assert!(flood.0.len() > 100_000, "it was read to its end");
}

/// Bytes that were changed, cut off, repeated or left out on the way are errors, and none of them is handed out.
#[test]
fn what_is_changed_on_the_way_is_found_out() {
    let [client, worker, _] = identities();
    let talk = || {
        let mut pair = meet(&client, worker.key(), &worker, Purpose::Link, Some(client.key())).unwrap();
        say(&mut pair.client, &mut pair.to_worker, &[IoSlice::new(b"first")]);
        let first: Vec<u8> = pair.to_worker.0.drain(..).collect();
        say(&mut pair.client, &mut pair.to_worker, &[IoSlice::new(b"second")]);
        let second: Vec<u8> = pair.to_worker.0.drain(..).collect();
        (pair.worker, first, second)
    };
    let mut out = [0; 32];
    let (mut worker, first, second) = talk();
    assert_eq!(worker.read(&mut &first[..], &mut out).unwrap(), 5);
    assert_eq!(worker.read(&mut &second[..], &mut out).unwrap(), 6);
    // Again, or in another order.
    assert_eq!(worker.read(&mut &second[..], &mut out).unwrap_err().kind(), io::ErrorKind::InvalidData);
    let (mut worker, _, second) = talk();
    assert_eq!(worker.read(&mut &second[..], &mut out).unwrap_err().kind(), io::ErrorKind::InvalidData);
    for at in 0..6 {
        let (mut worker, mut first, _) = talk();
        let last = first.len() - 1;
        first[at * last / 5] ^= 1;
        // What kind of record it is stands inside of it; the first byte says nothing that is believed.
        match worker.read(&mut &first[..], &mut out) {
            Ok(read) => assert_eq!((at, &out[..read]), (0, &b"first"[..])),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{at}"),
        }
    }
    // Cut off: the end comes, and the other side has not said that it is one.
    let (mut worker, first, _) = talk();
    assert_eq!(
        worker.read(&mut &first[..first.len() - 1], &mut out).unwrap_err().kind(),
        io::ErrorKind::UnexpectedEof
    );
}

/// Keys are no secret. A machine that shows one has to sign with it, in both roles, and one that shows none is unknown.
#[test]
fn a_key_has_to_be_proved() {
    let [client, worker, thief] = identities();
    let known = Some(client.key());
    let as_client = Identity::forged(client.key(), &thief);
    let (_, turned) = meet(&as_client, worker.key(), &worker, Purpose::Link, known).err().unwrap();
    assert!(matches!(turned, Some(Turned::Wrong(_))), "{turned:?}");
    let as_worker = Identity::forged(worker.key(), &thief);
    let (error, _) = meet(&client, worker.key(), &as_worker, Purpose::Link, known).err().unwrap();
    assert!(tls_error(&error).is_some() && !is_another(&error), "{error}");
    let nameless = another_client(None, worker.key(), &[Purpose::Link], X25519, Arc::new(rustls::NoKeyLog));
    let (_, turned) = meet_as(nameless, &worker, known).err().unwrap();
    assert!(matches!(turned, Some(Turned::Wrong(_))), "{turned:?}");
    // All that was wrong above was the signature.
    assert!(meet(&client, worker.key(), &worker, Purpose::Link, known).is_ok());
}

/// What keys are agreed by is not for the other side to choose: others cost a worker many times as much.
#[test]
fn keys_are_agreed_in_one_way_alone() {
    let [client, worker, _] = identities();
    let known = Some(client.key());
    let with = |agreement| {
        meet_as(
            another_client(
                Some(&client),
                worker.key(),
                &[Purpose::Link],
                agreement,
                Arc::new(rustls::NoKeyLog),
            ),
            &worker,
            known,
        )
    };
    assert!(with(X25519).is_ok());
    for other in [SECP256R1, SECP384R1] {
        let (_, turned) = with(other).err().unwrap();
        assert!(matches!(turned, Some(Turned::Wrong(_))), "{turned:?}");
    }
}

/// A connection is for one thing, or for none.
#[test]
fn a_connection_has_one_purpose() {
    let [client, worker, _] = identities();
    let known = Some(client.key());
    for offers in [&[][..], &[Purpose::Link, Purpose::Join], &[Purpose::Join, Purpose::Link]] {
        let both = another_client(Some(&client), worker.key(), offers, X25519, Arc::new(rustls::NoKeyLog));
        let (_, turned) = meet_as(both, &worker, known).err().unwrap();
        assert!(matches!(turned, Some(Turned::Wrong(Error::NoApplicationProtocol))), "{turned:?}");
    }
}

/// Nothing is computed for a client whose turn has not come.
#[test]
fn handshakes_wait_for_their_turn() {
    let [client, worker, _] = identities();
    let known = client.key();
    let (is_known, never) = (Arc::new(move |key| key == known), Arc::new(|_| false));
    let entrance = Entrance::new(&worker, is_known, never.clone(), never).unwrap();
    let mut secured = to_worker(&client, worker.key(), Purpose::Link).unwrap();
    let (mut to, mut back) = (Way::default(), Way::default());
    let _ = secured.shake_hands(&mut back, &mut to, &at_once);
    let turned = entrance.take(&mut to, &mut back, &|_| false).unwrap_err();
    assert!(matches!(turned, Turned::Left) && back.0.is_empty(), "{turned:?}");
}

/// Who looks at the clock gets to do so after every few bytes, also where nothing can be made of them yet.
#[test]
fn steps_end_however_little_comes() {
    let [client, worker, _] = identities();
    let mut fresh = to_worker(&client, worker.key(), Purpose::Link).unwrap();
    let (mut answer, mut sent) = (Way::default(), Way::default());
    answer.0.extend([22, 3, 3, 0x40, 0]);
    assert!(!fresh.shake_hands_step(&mut Bytewise(&mut answer), &mut sent).unwrap());
    assert_eq!(answer.0.len(), 4, "one read in a step");
    let mut pair = meet(&client, worker.key(), &worker, Purpose::Link, Some(client.key())).unwrap();
    say(&mut pair.worker, &mut pair.to_client, &[IoSlice::new(b"ab")]);
    let mut out = [0; 8];
    for left in (1..pair.to_client.0.len()).rev() {
        let step = pair.client.read_step(&mut Bytewise(&mut pair.to_client), &mut out);
        assert_eq!(step.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(pair.to_client.0.len(), left);
    }
    assert_eq!(pair.client.read_step(&mut Bytewise(&mut pair.to_client), &mut out).unwrap(), 2);
}

/// A byte at a time.
struct Bytewise<'a>(&'a mut Way);

impl Read for Bytewise<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let few = out.len().min(1);
        self.0.read(&mut out[..few])
    }
}
