//! Heartbeats: whether a worker is alive is known within a moment, whatever it is busy with. Processes that are really stopped are in
//! `crates/cli/tests/heartbeats.rs`. `docs/threats.md` says which test answers which threat.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::stage::{NUMBERS, Stage};
use common::{Fixture, PATIENCE, Peer, closes, dial, dial_from, patient};
use oxcart_backend::{Device, Error, Registry, allocate};
use oxcart_rpc::client::{ConnectError, LinkTo, Options, RemoteRegistry, Timeouts, WorkerFault};
use oxcart_rpc::link::{Book, Identity, Key, MachinesFile};
use oxcart_rpc::wire::{
    Command, Dialect, FRAME_BYTES, FrameHead, NO_CAPABILITIES, PULSE_MARK, PulseMessage, answer_capabilities,
};
use oxcart_rpc::worker::{Limits, Plain, Trust};
use oxcart_testdev::Config as DeviceConfig;
use tempfile::TempDir;

/// Longer than any thread has to wait for a processor, on a machine that is busy with other tests and worse. How exactly it is kept is
/// tested on a virtual clock, in `src/link/pulse/tests.rs`.
const LIMIT: Duration = Duration::from_secs(10);
/// What is longer.
const LONGER: Duration = Duration::from_secs(12);

/// Whatever has an end in time but a heartbeat does not end within a test, so nothing else makes a worker lost.
fn options() -> Options {
    let long = 10 * PATIENCE;
    let timeouts =
        Timeouts { heartbeat: Some(LIMIT), connect: PATIENCE, control: long, ..Timeouts::default() };
    Options { timeouts, ..Options::default() }
}

fn connect(address: SocketAddr) -> Arc<RemoteRegistry> {
    let registry = RemoteRegistry::connect(&address.to_string(), &options()).unwrap();
    assert!(registry.has_heartbeats());
    registry
}

/// Asks a worker for something, which must come to nothing because it is lost.
fn assert_lifeless(registry: &RemoteRegistry) {
    let error = registry.devices()[0].memory().unwrap_err();
    assert!(matches!(error, Error::DeviceLost { .. }), "{error}");
    assert!(error.to_string().contains("has not answered for 10 s"), "{error}");
    let failure = registry.failure().unwrap();
    assert!(matches!(failure.fault(), WorkerFault::Lifeless { limit: LIMIT }), "{failure}");
}

/// Waits until something is so.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < PATIENCE, "{what} did not happen");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A way to a worker, for any number of connections, that can be held up: nothing goes through, and nothing closes.
struct Bridge {
    address: SocketAddr,
    is_held: Arc<AtomicBool>,
}

impl Bridge {
    fn to(worker: SocketAddr) -> Bridge {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let is_held = Arc::<AtomicBool>::default();
        let held = Arc::clone(&is_held);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let server = TcpStream::connect(worker).unwrap();
                for (from, to) in [(&client, &server), (&server, &client)] {
                    to.set_nodelay(true).unwrap();
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let held = Arc::clone(&held);
                    thread::spawn(move || forward(from, to, &held));
                }
            }
        });
        Bridge { address, is_held }
    }

    fn hold(&self) {
        self.is_held.store(true, Ordering::SeqCst);
    }

    fn let_go(&self) {
        self.is_held.store(false, Ordering::SeqCst);
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, held: &AtomicBool) {
    let mut piece = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut piece) {
        while held.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(5));
        }
        if to.write_all(&piece[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

/// Whatever waits on the connection ends with it.
#[test]
fn a_connection_that_is_cut_off_is_lost_soon() {
    let fixture = Fixture::new();
    let bridge = Bridge::to(fixture.auto);
    let registry = connect(bridge.address);
    bridge.hold();
    assert_lifeless(&registry);
    // The worker learns of it once something gets through again.
    bridge.let_go();
    fixture.until_empty();
}

/// A switch that fails for longer than the limit costs no worker that nothing waits for: a server may be idle for days.
#[test]
fn an_idle_connection_outlives_a_network_that_is_away() {
    let fixture = Fixture::new();
    let bridge = Bridge::to(fixture.auto);
    let registry = connect(bridge.address);
    bridge.hold();
    thread::sleep(LONGER);
    bridge.let_go();
    registry.devices()[0].memory().unwrap();
    assert!(registry.failure().is_none());
}

/// A graph of any length, and a device that answers no client meanwhile.
#[test]
fn a_worker_that_computes_for_long_is_alive() {
    let (fixture, den) = (Fixture::new(), Den::new());
    let stages = [(&fixture, connect(fixture.auto)), (&den.fixture, den.connect(den.fixture.auto).unwrap())];
    thread::scope(|scope| {
        let computing = stages.map(|(fixture, registry)| {
            scope.spawn(move || {
                assert!(registry.has_heartbeats());
                compute_for(LONGER, fixture, registry);
            })
        });
        computing.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// Has a worker compute for some time, and something wait for it.
fn compute_for(time: Duration, fixture: &Fixture, registry: Arc<RemoteRegistry>) {
    let stage = Stage::new(registry);
    thread::scope(|scope| {
        let held = fixture.device.hold();
        let read = scope.spawn(|| {
            stage.compute().unwrap();
            let mut out = vec![0; stage.output.len];
            stage.stream.read(&stage.output, &mut out).map(|()| out)
        });
        thread::sleep(time);
        assert!(!read.is_finished() && stage.registry.failure().is_none());
        drop(held);
        assert_eq!(read.join().unwrap().unwrap().len(), NUMBERS * 4);
    });
}

/// Beats wait behind no data, neither on the way nor in the worker.
#[test]
fn beats_pass_while_the_connection_is_full() {
    let fixture = Fixture::new();
    let registry = connect(fixture.auto);
    let device: Arc<dyn Device> = registry.devices().remove(0);
    let len = 64 << 20;
    let buffer = allocate(&device.buffer_type(), len).unwrap();
    let (data, since) = (vec![7; len], Instant::now());
    let mut count = 0;
    while since.elapsed() < LONGER || count < 2 {
        buffer.write(0, &data).unwrap();
        count += 1;
    }
    assert!(registry.failure().is_none());
    let mut back = [0; 8];
    buffer.read(len - 8, &mut back).unwrap();
    assert_eq!(back, [7; 8]);
}

#[test]
fn only_workers_of_ours_have_heartbeats() {
    let fixture = Fixture::new();
    for dialect in common::dialects() {
        let registry = RemoteRegistry::connect(&fixture.address(dialect).to_string(), &options());
        // Some dialects cannot be told from each other by a client.
        if let Ok(registry) = registry {
            assert!(!registry.has_heartbeats(), "{dialect}");
            assert_eq!(registry.traffic().of(Command::Pulse).messages, 0, "{dialect}");
        }
    }
    fixture.until("the others have left", |fixture| fixture.counters().connected == 0);
    let off = Timeouts { heartbeat: None, ..options().timeouts };
    let off = Options { timeouts: off, ..Options::default() };
    let registry = RemoteRegistry::connect(&fixture.auto.to_string(), &off).unwrap();
    assert!(!registry.has_heartbeats());
    assert_eq!(fixture.counters().connected, 1);
}

/// A worker with an identity, and a client that it knows and that may have so many connections.
struct Den {
    fixture: Fixture,
    client: Arc<Identity>,
    key: Key,
    _folder: TempDir,
}

impl Den {
    const MOST: u32 = 2;

    fn new() -> Den {
        let folder = tempfile::tempdir().unwrap();
        let (worker, client) = (Identity::open(folder.path()).unwrap(), Arc::new(Identity::make().unwrap()));
        let file = MachinesFile::new(folder.path());
        file.change(|machines| {
            let machine = machines.remember("desk".parse().unwrap(), client.key())?;
            (machine.may_use_this, machine.max_connections) = (true, Some(Den::MOST));
            Ok(())
        })
        .unwrap();
        let book = Book::open(file).unwrap();
        let trust = Arc::new(Trust::new(&worker, book, "den".parse().unwrap()).unwrap());
        let fixture = Fixture::with(DeviceConfig::default(), |config| {
            config.trust = Some(trust);
            config.plain = Plain { on_loopback: false, networks: Vec::new() };
        });
        Den { fixture, client, key: worker.key(), _folder: folder }
    }

    fn connect(&self, address: SocketAddr) -> Result<Arc<RemoteRegistry>, ConnectError> {
        let link = Some(LinkTo { identity: Arc::clone(&self.client), worker: self.key });
        RemoteRegistry::connect(&address.to_string(), &Options { link, ..options() })
    }
}

/// With keys, the pulse is in TLS with the same keys; it does not count among the connections that a machine may have, and ends with its own.
#[test]
fn pulses_of_known_machines_are_in_tls() {
    let den = Den::new();
    let bridge = Bridge::to(den.fixture.auto);
    let registries = [(); Den::MOST as usize].map(|()| den.connect(bridge.address).unwrap());
    assert!(registries.iter().all(|registry| registry.has_heartbeats()));
    assert_eq!(den.fixture.counters().connected, 4);
    assert!(den.connect(bridge.address).is_err(), "two are allowed");
    bridge.hold();
    thread::scope(|scope| {
        let lost = registries.each_ref().map(|registry| scope.spawn(|| assert_lifeless(registry)));
        lost.into_iter().for_each(|thread| thread.join().unwrap());
    });
    bridge.let_go();
    den.fixture.until_empty();
}

/// Has one number, a thousand times, go through all stages.
fn step(stages: &[Stage], number: f32) -> Result<Vec<f32>, Error> {
    common::stage::step(stages, |_| number)
}

/// One of three workers, whichever it is, is cut off. Those that wait for it are told so, keep what they hold, and go on.
#[test]
fn others_go_on_when_one_worker_is_cut_off() {
    thread::scope(|scope| {
        let all = [0, 1, 2].map(|cut| scope.spawn(move || others_go_on_without(cut)));
        all.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

fn others_go_on_without(cut: usize) {
    let fixtures = [(); 3].map(|()| Fixture::new());
    let bridge = Bridge::to(fixtures[cut].auto);
    let mut places = fixtures.each_ref().map(|fixture| fixture.auto);
    places[cut] = bridge.address;
    let mut stages: Vec<Stage> = places.iter().map(|place| Stage::new(connect(*place))).collect();
    assert_eq!(step(&stages, 1.0).unwrap(), vec![8.0; NUMBERS]);
    bridge.hold();
    let error = step(&stages, 2.0).unwrap_err();
    let culprit = format!("worker at {} has not answered for 10 s", bridge.address);
    assert!(error.to_string().contains(&culprit), "{cut}: {error}");
    assert_lifeless(&stages[cut].registry);
    drop(stages.remove(cut));
    for stage in &mut stages {
        // An interrupted worker says so once.
        let memory = || stage.registry.devices()[0].memory();
        memory().or_else(|_| memory()).unwrap();
        assert!(stage.registry.failure().is_none());
        stage.reopen();
    }
    assert_eq!(step(&stages, 3.0).unwrap(), vec![12.0; NUMBERS], "{cut}");
    bridge.let_go();
    fixtures[cut].until_empty();
}

/// A pulse written by hand.
struct RawPulse(TcpStream);

impl RawPulse {
    fn say(&mut self, message: PulseMessage) {
        // It may be refused while it is said.
        let _ = self.0.write_all(&message.encode());
    }

    fn begin(address: SocketAddr, token: [u8; 16]) -> RawPulse {
        RawPulse::begin_on(dial(address), token)
    }

    fn begin_on(mut stream: TcpStream, token: [u8; 16]) -> RawPulse {
        stream.write_all(&PULSE_MARK).unwrap();
        let mut pulse = RawPulse(stream);
        pulse.say(PulseMessage::Begin { token });
        pulse
    }

    /// Whether a beat is answered; if not, the worker has closed.
    fn is_answered(&mut self, number: u64) -> bool {
        self.say(PulseMessage::Beat { number });
        self.hear() == Some(PulseMessage::Echo { number })
    }

    fn hear(&mut self) -> Option<PulseMessage> {
        let mut head = [0; FRAME_BYTES];
        match self.0.read_exact(&mut head) {
            Ok(()) => Some(PulseMessage::decode(&FrameHead::decode(&head), &[]).unwrap()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("no answer"),
            Err(_) => None,
        }
    }
}

/// A client of ours written by hand, and what its pulse comes by.
fn own(fixture: &Fixture) -> (Peer, [u8; 16]) {
    let mut peer = Peer::connect(fixture.auto, Dialect::own());
    let token = peer.ask(Command::Pulse, &[]).try_into().unwrap();
    (peer, token)
}

#[test]
fn a_pulse_is_let_in_by_its_number_alone_and_once() {
    let fixture = Fixture::new();
    let (mut peer, token) = own(&fixture);
    assert_eq!(peer.ask(Command::Pulse, &[]), token, "a session has one");
    let (_other, others) = own(&fixture);
    assert!(others != token && token != [0; 16]);
    let refused = |mut pulse: RawPulse| assert!(!pulse.is_answered(0) && closes(&mut pulse.0));
    refused(RawPulse::begin(fixture.auto, [0; 16]));
    refused(RawPulse::begin(fixture.auto, token.map(|byte| byte ^ 1)));
    refused(RawPulse::begin_on(dial_from(2, fixture.auto), token));
    // No beats before it has begun.
    let mut stream = dial(fixture.auto);
    stream.write_all(&[&PULSE_MARK[..], &PulseMessage::Beat { number: 0 }.encode()].concat()).unwrap();
    assert!(closes(&mut stream));
    let mut stream = dial(fixture.auto);
    stream.write_all(b"pulse of mine, or a mark like it").unwrap();
    assert!(closes(&mut stream));
    let mut pulse = RawPulse::begin(fixture.auto, token);
    assert!(pulse.is_answered(0) && pulse.is_answered(u64::MAX) && pulse.is_answered(7));
    refused(RawPulse::begin(fixture.auto, token));
    assert!(pulse.is_answered(8), "it is none of its affair");
    // What is said on no pulse ends it, and the session goes on.
    pulse.say(PulseMessage::Echo { number: 8 });
    assert!(closes(&mut pulse.0) && peer.is_alive());
    fixture.until("all are counted", |fixture| fixture.counters().refusals.get("pulse") == Some(&7));
    fixture.assert_serves();
}

#[test]
fn a_pulse_ends_with_its_session_and_not_the_other_way_round() {
    let hello = Duration::from_secs(5);
    let fixture = Fixture::limited(Limits { hello, ..patient() });
    let (mut peer, token) = own(&fixture);
    let mut pulse = RawPulse::begin(fixture.auto, token);
    assert!(pulse.is_answered(0));
    // A client that says nothing for a while, because it sleeps perhaps, loses nothing.
    thread::sleep(hello + Duration::from_secs(1));
    assert!(pulse.is_answered(1) && peer.is_alive());
    assert_eq!(fixture.counters().connected, 2);
    drop(peer);
    assert!(closes(&mut pulse.0));
    fixture.until_empty();
    assert!(!RawPulse::begin(fixture.auto, token).is_answered(0), "nothing comes after the session");
    let (mut peer, token) = own(&fixture);
    drop(RawPulse::begin(fixture.auto, token));
    assert!(peer.is_alive());
    // One that does not say whose it is has as long as a HELLO.
    let mut late = dial(fixture.auto);
    late.write_all(&PULSE_MARK).unwrap();
    assert!(closes(&mut late) && peer.is_alive());
}

/// A flood is answered at a pace of the worker's, and fills the connection it comes on.
#[test]
fn beats_in_floods_are_answered_at_a_pace() {
    let fixture = Fixture::new();
    let pulses = [(); 8].map(|()| {
        let (peer, token) = own(&fixture);
        (peer, RawPulse::begin(fixture.auto, token))
    });
    let flood = PulseMessage::Beat { number: 1 }.encode().repeat(1 << 16);
    let mut pulses = pulses.map(|(peer, pulse)| {
        let mut other = pulse.0.try_clone().unwrap();
        let flood = flood.clone();
        thread::spawn(move || other.write_all(&flood));
        (peer, pulse)
    });
    let since = Instant::now();
    for _ in 0..100 {
        for (_, pulse) in &mut pulses {
            assert_eq!(pulse.hear(), Some(PulseMessage::Echo { number: 1 }));
        }
    }
    assert!(since.elapsed() > Duration::from_millis(1500), "{:?}", since.elapsed());
    fixture.assert_serves();
    assert!(pulses.iter_mut().all(|(peer, _)| peer.is_alive()));
    drop(pulses);
    fixture.until_empty();
}

/// A worker that gets to its beats late answers the last of them and so all, or those of a busy machine would queue up until it is lost.
#[test]
fn beats_that_have_arrived_are_answered_together() {
    let fixture = Fixture::new();
    let (_peer, token) = own(&fixture);
    let mut pulse = RawPulse::begin(fixture.auto, token);
    assert!(pulse.is_answered(0));
    let beats: Vec<u8> = (1..=200).flat_map(|number| PulseMessage::Beat { number }.encode()).collect();
    pulse.0.write_all(&beats).unwrap();
    let mut echoes = vec![0];
    while *echoes.last().unwrap() < 200 {
        let Some(PulseMessage::Echo { number }) = pulse.hear() else { panic!("no echo after {echoes:?}") };
        echoes.push(number);
    }
    assert!(echoes.len() < 20 && echoes.is_sorted(), "{echoes:?}");
}

/// A worker that offers pulses, and does this with each.
fn worker_with(answer: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answer = Arc::new(answer);
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut prefix = [0; 9];
        while stream.read_exact(&mut prefix).is_ok() {
            let mut body = vec![0; usize::try_from(common::long(&prefix[1..])).unwrap()];
            stream.read_exact(&mut body).unwrap();
            let said = match Command::from_number(prefix[0], Dialect::own()).unwrap() {
                Command::Hello => {
                    [&[7, 0, 0, 0][..], &answer_capabilities(Dialect::own(), &NO_CAPABILITIES)].concat()
                }
                Command::Pulse => vec![1; 16],
                Command::DeviceCount => 1_u32.to_le_bytes().to_vec(),
                Command::GetDeviceMemory => vec![1; 16],
                _ => 64_u64.to_le_bytes().to_vec(),
            };
            stream.write_all(&[&(said.len() as u64).to_le_bytes()[..], &said].concat()).unwrap();
            if prefix[0] == Command::Pulse as u8 {
                let (pulse, _) = listener.accept().unwrap();
                let answer = Arc::clone(&answer);
                thread::spawn(move || answer(pulse));
            }
        }
    });
    address
}

/// A pulse that cannot be had is no reason not to use a worker.
#[test]
fn a_worker_without_the_pulse_that_it_offers_is_used_without() {
    let silent = |stream: TcpStream| {
        thread::sleep(PATIENCE);
        drop(stream);
    };
    let timeouts = Timeouts { connect: Duration::from_secs(5), ..options().timeouts };
    let options = Options { timeouts, ..Options::default() };
    for address in [worker_with(drop), worker_with(silent)] {
        let registry = RemoteRegistry::connect(&address.to_string(), &options).unwrap();
        assert!(!registry.has_heartbeats() && registry.heartbeat_error().is_some());
        registry.devices()[0].memory().unwrap();
        assert!(registry.failure().is_none());
    }
}

/// The first echo stands for a connection, a handshake and the worker's turns, so it has as long as a connection.
#[test]
fn a_pulse_may_take_longer_to_begin_than_to_answer() {
    let slow = |mut stream: TcpStream| {
        stream.read_exact(&mut [0; PULSE_MARK.len() + FRAME_BYTES + PulseMessage::MAX_BODY]).unwrap();
        thread::sleep(LONGER);
        let mut pulse = RawPulse(stream);
        while let Some(PulseMessage::Beat { number }) = pulse.hear() {
            pulse.say(PulseMessage::Echo { number });
        }
    };
    let registry = connect(worker_with(slow));
    assert!(registry.heartbeat_error().is_none());
}

/// Says back what it hears, some beats; then something else.
fn echo_and_then(then: impl Fn(&mut RawPulse, u64) + Send + Sync + 'static) -> Arc<RemoteRegistry> {
    let address = worker_with(move |mut stream| {
        stream.read_exact(&mut [0; PULSE_MARK.len() + FRAME_BYTES + PulseMessage::MAX_BODY]).unwrap();
        let mut pulse = RawPulse(stream);
        for _ in 0..3 {
            let Some(PulseMessage::Beat { number }) = pulse.hear() else { return };
            pulse.say(PulseMessage::Echo { number });
        }
        then(&mut pulse, 2);
        // It stays.
        while pulse.hear().is_some() {}
    });
    RemoteRegistry::connect(&address.to_string(), &options()).unwrap()
}

/// A worker that says what it cannot have heard is not believed that it is alive, nor anything else.
#[test]
fn a_worker_that_says_back_what_was_not_said_is_lost() {
    let lies: [fn(&mut RawPulse, u64); 4] = [
        |pulse, last| pulse.say(PulseMessage::Echo { number: last }),
        |pulse, last| pulse.say(PulseMessage::Echo { number: last + 1000 }),
        |pulse, _| pulse.say(PulseMessage::Lost { introduction: 1 }),
        |pulse, last| {
            let flood = PulseMessage::Echo { number: last }.encode().repeat(1 << 14);
            let _ = pulse.0.write_all(&flood);
        },
    ];
    let registries = lies.map(echo_and_then);
    for registry in registries {
        until("it is lost", || registry.failure().is_some());
        let failure = registry.failure().unwrap();
        assert!(matches!(failure.fault(), WorkerFault::Unsolicited), "{failure}");
    }
}

/// A pulse that breaks says nothing of its worker: what has no heartbeats has time-outs.
#[test]
fn a_pulse_that_ends_costs_nothing_else() {
    let end = |pulse: &mut RawPulse, _| drop(pulse.0.shutdown(std::net::Shutdown::Both));
    let noise = |pulse: &mut RawPulse, _| drop(pulse.0.write_all(&[0xff; 64]));
    for registry in [echo_and_then(end), echo_and_then(noise)] {
        until("it has ended", || !registry.has_heartbeats());
        registry.devices()[0].memory().unwrap();
        assert!(registry.failure().is_none());
    }
}
