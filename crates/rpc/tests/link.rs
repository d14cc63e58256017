//! Machines that know each other, and those that do not: pairing, TLS, limits and revocation, over real sockets.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{Fixture, PATIENCE, closes, dial, dial_from, patient};
use oxcart_backend::{Buffer, Registry, allocate};
use oxcart_rpc::client::{
    self, ConnectError, JoinError, Joined, LinkTo, Options, RemoteRegistry, Timeouts, WorkerFault,
};
use oxcart_rpc::link::pairing::GuestFailure;
use oxcart_rpc::link::{Book, Identity, JoinLine, Key, MachineName, MachinesFile, Secret};
use oxcart_rpc::wire::NotPaired;
use oxcart_rpc::worker::{Limits, Plain, Trust};
use oxcart_testdev::Config as DeviceConfig;
use tempfile::TempDir;

/// A worker that has an identity, and its folder.
struct Den {
    fixture: Fixture,
    trust: Arc<Trust>,
    identity: Arc<Identity>,
    file: MachinesFile,
    _folder: TempDir,
}

fn name(text: &str) -> MachineName {
    text.parse().unwrap()
}

fn identity() -> Arc<Identity> {
    Arc::new(Identity::make().unwrap())
}

impl Den {
    fn new() -> Den {
        Den::limited(patient())
    }

    fn limited(limits: Limits) -> Den {
        Den::with(limits, Plain::default())
    }

    fn with(limits: Limits, plain: Plain) -> Den {
        let folder = tempfile::tempdir().unwrap();
        let identity = Arc::new(Identity::open(folder.path()).unwrap());
        let file = MachinesFile::new(folder.path());
        let trust = Trust::new(&identity, Book::open(file.clone()).unwrap(), name("den")).unwrap();
        let trust = Arc::new(trust);
        let fixture = Fixture::with(DeviceConfig::default(), |config| {
            config.limits = limits;
            config.trust = Some(Arc::clone(&trust));
            config.plain = plain;
        });
        trust.invitations().set_endpoints(vec![fixture.auto.to_string().parse().unwrap()]);
        Den { fixture, trust, identity, file, _folder: folder }
    }

    fn line(&self) -> JoinLine {
        self.trust.invitations().open().unwrap().line
    }

    fn join(&self, line: &JoinLine, guest: &Arc<Identity>) -> Result<Joined, JoinError> {
        client::join(line, guest, &name("desk"), &Timeouts::default())
    }

    /// Pairs a new machine.
    fn pair(&self) -> Arc<Identity> {
        let guest = identity();
        self.join(&self.line(), &guest).unwrap();
        guest
    }

    fn connect(&self, guest: &Arc<Identity>) -> Result<Arc<RemoteRegistry>, ConnectError> {
        connect(self.fixture.auto, guest, self.identity.key())
    }

    fn refusals(&self, code: &str) -> bool {
        self.fixture.counters().refusals.iter().any(|(known, count)| *known == code && *count > 0)
    }
}

fn connect(
    address: SocketAddr,
    guest: &Arc<Identity>,
    worker: Key,
) -> Result<Arc<RemoteRegistry>, ConnectError> {
    let link = Some(LinkTo { identity: Arc::clone(guest), worker });
    RemoteRegistry::connect(&address.to_string(), &Options { link, ..Options::default() })
}

fn buffer(registry: &RemoteRegistry, bytes: usize) -> Option<Arc<dyn Buffer>> {
    allocate(&registry.devices().remove(0).buffer_type(), bytes).ok()
}

/// Data of several records there and back.
fn assert_works(registry: &RemoteRegistry) {
    let data: Vec<u8> = (0..3_000_001).map(|i| (i * 31 % 253) as u8).collect();
    let buffer = buffer(registry, data.len()).unwrap();
    buffer.write(0, &data).unwrap();
    let mut back = vec![0; data.len()];
    buffer.read(0, &mut back).unwrap();
    assert!(back == data);
}

#[test]
fn paired_machines_work_together() {
    let den = Den::new();
    let (guest, line) = (identity(), den.line());
    let joined = den.join(&line.to_string().parse().unwrap(), &guest).unwrap();
    assert_eq!((joined.name.as_str(), joined.key), ("den", den.identity.key()));
    let machine = den.file.read().unwrap().by_key(guest.key()).cloned().unwrap();
    assert!(machine.may_use_this && machine.name.as_str() == "desk" && machine.endpoints.is_empty());
    let registry = den.connect(&guest).unwrap();
    assert_works(&registry);
    assert!(registry.failure().is_none());
    assert!(den.fixture.events().iter().any(|event| event.contains("(desk at 127.0.0.1")));
    // Plain clients of this machine are served beside it, in every dialect.
    den.fixture.assert_serves();
    drop(registry);
    den.fixture.until_empty();
}

#[test]
fn a_key_that_was_never_paired_is_refused() {
    let den = Den::new();
    // Even while a line is open.
    let _open = den.line();
    let error = den.connect(&identity()).unwrap_err();
    assert!(matches!(error, ConnectError::NotKnown { .. }), "{error}");
    den.fixture.until("it is counted", |_| den.refusals("unknown"));
    assert_eq!(den.fixture.counters().clients, 0);
}

#[test]
fn a_revoked_key_ends_at_once() {
    let den = Den::new();
    let (guest, other) = (den.pair(), den.pair());
    let (registry, stays) = (den.connect(&guest).unwrap(), den.connect(&other).unwrap());
    let held = buffer(&registry, 1000).unwrap();
    den.file.change(|machines| Ok(machines.revoke(guest.key()).is_some())).unwrap();
    den.fixture.until("the connection ends", |_| registry.failure().is_some());
    assert!(held.read(0, &mut [0; 10]).is_err());
    assert!(matches!(den.connect(&guest), Err(ConnectError::NotKnown { .. })));
    den.fixture.until("it is said", |fixture| {
        fixture.events().iter().any(|event| event.contains("no longer known"))
    });
    assert_works(&stays);
}

/// A machine that is known for another reason, because it lends its devices here, may not use this one for that.
#[test]
fn being_known_is_not_being_allowed() {
    let den = Den::new();
    let guest = identity();
    den.file
        .change(|machines| {
            machines.remember(name("attic"), guest.key())?.endpoints = vec!["127.0.0.1:1".parse().unwrap()];
            Ok(())
        })
        .unwrap();
    assert!(matches!(den.connect(&guest), Err(ConnectError::NotKnown { .. })));
}

#[test]
fn a_join_line_pairs_one_machine() {
    let den = Den::new();
    let line = den.line();
    den.join(&line, &identity()).unwrap();
    let closed = |error: &JoinError| {
        matches!(error, JoinError::Failed { failure: GuestFailure::Refused(NotPaired::Closed), .. })
    };
    let thief = identity();
    let error = den.join(&line, &thief).unwrap_err();
    assert!(closed(&error), "{error}");
    assert!(den.file.read().unwrap().by_key(thief.key()).is_none());
    // Nor is there a way in without any line.
    let never = JoinLine { secret: Secret::from_bytes([0; 16]), ..line };
    assert!(closed(&den.join(&never, &thief).unwrap_err()));
}

/// However close together they come.
#[test]
fn of_two_guests_with_one_line_one_is_paired() {
    let den = Den::new();
    for _ in 0..5 {
        let (line, before) = (den.line(), den.file.read().unwrap().iter().count());
        // Another one is open all the time, so that neither is turned away in its handshake.
        let _other = den.line();
        let paired = std::thread::scope(|scope| {
            let join = || den.join(&line, &identity());
            let both = [scope.spawn(join), scope.spawn(join)];
            both.into_iter().map(|thread| usize::from(thread.join().unwrap().is_ok())).sum::<usize>()
        });
        assert_eq!((paired, den.file.read().unwrap().iter().count()), (1, before + 1));
    }
}

/// A list on a file system that does not answer any more: machines that are connected stay so, others are refused, and a late one is noticed.
#[cfg(unix)]
#[test]
fn a_list_that_is_never_read_stops_nothing_else() {
    let den = Den::limited(Limits { hello: Duration::from_secs(5), ..patient() });
    let (guest, late) = (den.pair(), den.pair());
    let registry = den.connect(&guest).unwrap();
    let pipe = den.file.path().with_extension("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::fs::rename(&pipe, den.file.path()).unwrap();
    let refused = |_: &Fixture| matches!(den.connect(&late), Err(ConnectError::NotKnown { .. }));
    den.fixture.until("no new machine comes in", refused);
    // The watcher goes on, and so do allocations.
    let mut silent = dial(den.fixture.auto);
    silent.write_all(&[14]).unwrap();
    assert!(closes(&mut silent));
    assert_works(&registry);
    assert!(registry.failure().is_none());
    drop(registry);
    den.fixture.until_empty();
    let Den { fixture, file, .. } = den;
    fixture.shutdown(Duration::from_secs(1));
    // Lets the thread go that has been waiting for it.
    drop(std::fs::OpenOptions::new().write(true).open(file.path()).unwrap());
}

#[test]
fn a_wrong_secret_pairs_no_machine() {
    let den = Den::new();
    let line = den.line();
    let guessed = JoinLine { secret: Secret::from_bytes([1; 16]), ..line.clone() };
    let error = den.join(&guessed, &identity()).unwrap_err();
    assert!(
        matches!(error, JoinError::Failed { failure: GuestFailure::Refused(NotPaired::Proof), .. }),
        "{error}"
    );
    assert_eq!(den.file.read().unwrap().iter().count(), 0);
    den.fixture.until("it is counted", |_| den.refusals("join"));
    // The right one still works.
    den.join(&line, &identity()).unwrap();
}

/// Another machine where the worker should be: it is told nothing, whether in pairing or later.
#[test]
fn another_machine_in_the_place_of_a_worker_gets_nothing() {
    let (den, other) = (Den::new(), Den::new());
    let guest = den.pair();
    let error = connect(other.fixture.auto, &guest, den.identity.key()).unwrap_err();
    assert!(matches!(error, ConnectError::Another { .. }), "{error}");
    let line = JoinLine { endpoints: vec![other.fixture.auto.to_string().parse().unwrap()], ..den.line() };
    let JoinError::Unreachable { errors } = other.join(&line, &guest).unwrap_err() else { panic!() };
    assert!(matches!(errors[..], [ConnectError::Another { .. }]), "{errors:?}");
    assert_eq!(other.file.read().unwrap().iter().count(), 0);
    // The line is still good where it is from: no other machine has learned its secret.
    let both = JoinLine { endpoints: [line.endpoints, den.line().endpoints].concat(), ..line };
    let joined = den.join(&both, &identity()).unwrap();
    assert_eq!(joined.endpoints[0].to_string(), den.fixture.auto.to_string());
}

/// A client that knows who should be there does not fall back to the clear: neither with a worker that has no keys nor with one that
/// merely answers.
#[test]
fn a_known_worker_is_never_talked_to_in_the_clear() {
    let plain = Fixture::new();
    let error = connect(plain.auto, &identity(), identity().key()).unwrap_err();
    assert!(matches!(error, ConnectError::Tls { .. } | ConnectError::Rejected { .. }), "{error}");
    assert_eq!(plain.counters().clients, 0);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let seen = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut first = [0; 64];
        let read = stream.read(&mut first).unwrap();
        // As a plain worker would: a version.
        stream.write_all(&[3, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0]).unwrap();
        first[..read].to_vec()
    });
    assert!(connect(address, &identity(), identity().key()).is_err());
    assert_eq!(seen.join().unwrap()[0], 22, "a handshake, and nothing in the clear");
}

/// Handshakes that stop at some byte, or go on too slowly, end with the time that HELLO has.
#[test]
fn handshakes_that_stop_are_ended() {
    let hello = Duration::from_millis(300);
    let den = Den::limited(Limits { hello, ..patient() });
    for start in [&[22][..], &[22, 3, 1], &[22, 3, 1, 2, 0, 1, 0, 1, 252]] {
        let mut stream = dial(den.fixture.auto);
        // It may be late already.
        let _ = stream.write_all(start);
        assert!(closes(&mut stream));
    }
    let mut slow = dial(den.fixture.auto);
    let since = Instant::now();
    let mut hello = [22, 3, 1, 2, 0, 1, 0, 1, 252].into_iter().chain(std::iter::repeat(0));
    while slow.write_all(&[hello.next().unwrap()]).is_ok() {
        assert!(since.elapsed() < PATIENCE, "a byte at a time goes on for ever");
        std::thread::sleep(Duration::from_millis(20));
    }
    den.fixture.until_empty();
    assert!(den.fixture.events().iter().any(|event| event.contains("HELLO did not come in time")));
}

/// The flood goes on while a known machine comes, again and again, and comes from many addresses.
#[test]
fn a_flood_of_handshakes_keeps_no_client_out() {
    let den = Den::limited(Limits { ungreeted: 8, clients: 32, ..patient() });
    let (guest, address, is_over) = (den.pair(), den.fixture.auto, AtomicBool::new(false));
    let works = std::thread::scope(|scope| {
        let is_over = &is_over;
        let flood = scope.spawn(move || {
            let mut held = std::collections::VecDeque::new();
            for host in (2..60).cycle() {
                let mut stream = dial_from(host, address);
                // The worker may have dropped it by then.
                let _ = stream.write_all(&[22, 3, 1, 2, 0]);
                held.push_back(stream);
                if held.len() > 40 {
                    held.pop_front();
                }
                std::thread::sleep(Duration::from_micros(500));
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        // A handshake that has proved nothing yet may be pushed out, and is tried again: often, where the machine is busy otherwise.
        let connect = || {
            let since = Instant::now();
            std::iter::repeat_with(|| den.connect(&guest).ok())
                .find(|registry| registry.is_some() || since.elapsed() > PATIENCE)
                .flatten()
        };
        let works = (0..10).all(|_| connect().inspect(|registry| assert_works(registry)).is_some());
        is_over.store(true, Ordering::Relaxed);
        flood.join().unwrap();
        works
    });
    assert!(works);
    assert!(den.fixture.counters().connected <= 32, "{}", den.fixture.counters());
    den.fixture.until_empty();
}

/// Passes a connection on until so many bytes have gone one way, then cuts it.
fn cutting(worker: SocketAddr, after: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server) = (client.unwrap(), TcpStream::connect(worker).unwrap());
            let (mut from, mut to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Both);
            });
            let (mut from, mut to) = (client, server);
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut (&mut from).take(after as u64), &mut to);
                let _ = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
            });
        }
    });
    address
}

/// Passes a connection on, and what comes back a byte at a time once it is told to.
fn trickling(worker: SocketAddr, slow: &Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, slow) = (listener.local_addr().unwrap(), Arc::clone(slow));
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server) = (client.unwrap(), TcpStream::connect(worker).unwrap());
            client.set_nodelay(true).unwrap();
            let (mut from, mut to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            let slow = Arc::clone(&slow);
            std::thread::spawn(move || {
                let mut piece = [0; 4096];
                while let Ok(read @ 1..) = from.read(&mut piece) {
                    let size = if slow.load(Ordering::Relaxed) { 1 } else { read };
                    for some in piece[..read].chunks(size) {
                        if to.write_all(some).is_err() {
                            return;
                        }
                        if size == 1 {
                            std::thread::sleep(Duration::from_secs(1));
                        }
                    }
                }
                let _ = to.shutdown(Shutdown::Both);
            });
            let (mut from, mut to) = (client, server);
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Both);
            });
        }
    });
    address
}

/// No wait of a client is stretched by single bytes: neither the handshake, whichever machine answers, nor a reply.
#[test]
fn single_bytes_stretch_no_wait() {
    let den = Den::new();
    let guest = den.pair();
    let short = Timeouts { connect: Duration::from_millis(500), ..Timeouts::default() };
    let options = |timeouts| Options {
        link: Some(LinkTo { identity: Arc::clone(&guest), worker: den.identity.key() }),
        timeouts,
        ..Options::default()
    };
    // A handshake that would take many minutes, in pairing too.
    let slow = Arc::new(AtomicBool::new(true));
    let address = trickling(den.fixture.auto, &slow);
    let since = Instant::now();
    let error = RemoteRegistry::connect(&address.to_string(), &options(short)).unwrap_err();
    // Or, on a machine that is busy otherwise, before it has begun.
    let is_late = matches!(error, ConnectError::NoHello { .. } | ConnectError::Unreachable { .. });
    assert!(is_late, "{error}");
    let line = JoinLine { endpoints: vec![address.to_string().parse().unwrap()], ..den.line() };
    let JoinError::Unreachable { errors } =
        client::join(&line, &identity(), &name("desk"), &short).unwrap_err()
    else {
        panic!("it was talked to")
    };
    let is_late = |error: &ConnectError| {
        matches!(error, ConnectError::NoHello { .. } | ConnectError::Unreachable { .. })
    };
    assert!(errors.iter().all(is_late), "{errors:?}");
    assert!(since.elapsed() < PATIENCE, "{:?}", since.elapsed());
    // A reply that would take most of a minute, and may take four seconds.
    slow.store(false, Ordering::Relaxed);
    let half = Duration::from_secs(2);
    // Heartbeats would come a byte at a time, too, and end it sooner.
    let heartbeat = None;
    let long = Timeouts { connect: PATIENCE, control: half, data: half, heartbeat, ..Timeouts::default() };
    let registry = RemoteRegistry::connect(&address.to_string(), &options(long)).unwrap();
    registry.devices()[0].memory().unwrap();
    slow.store(true, Ordering::Relaxed);
    let since = Instant::now();
    assert!(registry.devices()[0].memory().is_err());
    let failure = registry.failure().unwrap();
    assert!(matches!(failure.fault(), WorkerFault::Silent { .. }), "{failure}");
    assert!(since.elapsed() < Duration::from_secs(20), "{:?}", since.elapsed());
}

/// A connection that is cut at any byte of its handshake, or later, is an error on one side and nothing on the other.
#[test]
fn connections_in_tls_may_be_cut_anywhere() {
    let den = Den::new();
    let guest = den.pair();
    for after in [1, 5, 100, 250, 300, 400, 500, 700, 1000, 5000, 100_000] {
        let address = cutting(den.fixture.auto, after);
        if let Ok(registry) = connect(address, &guest, den.identity.key()) {
            // What is sent may be on its way for a while before it is known to be lost.
            let _ = buffer(&registry, 1 << 20).map(|buffer| buffer.write(0, &vec![7; 1 << 20]));
            den.fixture.until("the cut is noticed", |_| registry.failure().is_some());
        }
    }
    den.fixture.until_empty();
    assert_works(&den.connect(&guest).unwrap());
}

/// A page in a browser, whatever address it was given, speaks HTTP, perhaps in a TLS of its own.
#[test]
fn browsers_get_no_answer() {
    let den = Den::new();
    let _open = den.line();
    let mut http = dial(den.fixture.auto);
    http.write_all(b"POST /join HTTP/1.1\r\nHost: den\r\n\r\n").unwrap();
    assert!(closes(&mut http));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    for protocols in [vec![b"h2".to_vec(), b"http/1.1".to_vec()], vec![b"http/1.1".to_vec()], vec![]] {
        let mut config = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        config.alpn_protocols = protocols;
        let mut tls = rustls::ClientConnection::new(Arc::new(config), "den".try_into().unwrap()).unwrap();
        let mut stream = dial(den.fixture.auto);
        tls.write_tls(&mut stream).unwrap();
        assert!(closes(&mut stream), "not even an alert");
    }
    den.fixture.until("it is counted", |_| den.refusals("tls"));
    assert_eq!(den.fixture.counters().clients, 0);
}

#[test]
fn a_machine_has_its_limits() {
    let den = Den::new();
    let guest = den.pair();
    let limit = |memory, connections| {
        den.file
            .change(|machines| {
                let machine = machines.get_mut(guest.key()).unwrap();
                (machine.max_memory, machine.max_connections) = (memory, connections);
                Ok(())
            })
            .unwrap();
    };
    limit(Some(1 << 20), Some(2));
    let (first, second) = (den.connect(&guest).unwrap(), den.connect(&guest).unwrap());
    assert_eq!(first.devices()[0].memory().unwrap().total, 1 << 20);
    let most = buffer(&first, 700 << 10).unwrap();
    // What one connection has, the other has not.
    assert!(buffer(&second, 700 << 10).is_none() && buffer(&second, 200 << 10).is_some());
    assert!(second.devices()[0].memory().unwrap().free <= 324 << 10);
    assert!(den.connect(&guest).is_err(), "a third connection");
    // Another machine is another matter, and changes hold soon.
    assert!(buffer(&den.connect(&den.pair()).unwrap(), 4 << 20).is_some());
    limit(None, None);
    den.fixture.until("the limit is gone", |_| buffer(&second, 4 << 20).is_some());
    assert!(den.connect(&guest).is_ok());
    drop(most);
}

/// Where tunnels and proxies end, those who come through them seem to be on this machine; they can be kept out.
#[test]
fn loopback_may_need_a_key_too() {
    let den = Den::with(patient(), Plain { on_loopback: false, networks: Vec::new() });
    let mut stream = dial(den.fixture.auto);
    stream.write_all(&common::request(14, &[0; 24])).unwrap();
    assert!(closes(&mut stream));
    den.fixture.until("it is counted", |_| den.refusals("plain"));
    assert_works(&den.connect(&den.pair()).unwrap());
}

/// Only who has this machine's own identity, which is in a private file, may have it show a line.
#[test]
fn new_lines_are_for_the_machine_itself() {
    let den = Den::new();
    let endpoint = den.fixture.auto.to_string().parse().unwrap();
    let line = client::invite(&endpoint, &den.identity, &Timeouts::default()).unwrap();
    let guest = identity();
    den.join(&line, &guest).unwrap();
    // Another machine looks for itself there, and finds someone else; it could not ask.
    let refused = client::invite(&endpoint, &guest, &Timeouts::default()).unwrap_err();
    assert!(matches!(refused, JoinError::Unreachable { .. }), "{refused}");
    // It may use itself, too.
    assert_works(&den.connect(&den.identity).unwrap());
}

/// A machine that cannot be remembered is not told that it was.
#[cfg(unix)]
#[test]
fn what_cannot_be_kept_is_refused() {
    let den = Den::new();
    let line = den.line();
    std::fs::write(den.file.path(), "broken").unwrap();
    let guest = identity();
    let error = den.join(&line, &guest).unwrap_err();
    assert!(
        matches!(error, JoinError::Failed { failure: GuestFailure::Refused(NotPaired::NotKept), .. }),
        "{error}"
    );
    assert!(matches!(den.connect(&guest), Err(ConnectError::NotKnown { .. })));
    den.fixture.until("it is said", |fixture| {
        fixture.events().iter().any(|event| event.contains("the list of known machines"))
    });
}
