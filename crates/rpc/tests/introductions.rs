//! Workers that a client introduces to each other: what one computes goes to the other without coming by the client, which waits once.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::stage::{NUMBERS, Stage};
use common::{Fixture, PATIENCE, Peer, closes, dial, dial_from, get_body, patient};
use oxcart_backend::{Device, Place, Registry, StreamOptions, copy_async};
use oxcart_rpc::client::{LinkTo, Options, RemoteRegistry, Timeouts, WorkerFault};
use oxcart_rpc::link::introduction::{Caller, CallerAction, Porter, PorterAction};
use oxcart_rpc::link::{Book, Identity, MachinesFile, Secret};
use oxcart_rpc::wire::{
    Address, Command, DeliveryHead, Dialect, Expect, FRAME_BYTES, FrameHead, Interruption,
    MAX_DELIVERY_BYTES, Meet, NotDelivered, OpCode, PULSE_MARK, PulseMessage, Reply, TensorRecord, Transfer,
    WORKER_MARK, WorkerMessage, answer_capabilities,
};
use oxcart_rpc::worker::{Limits, Plain, Trust};
use oxcart_testdev::{Config as DeviceConfig, FrailDevice, TestDevice};
use tempfile::TempDir;

/// No worker is lost for being slow.
fn options() -> Options {
    let timeouts = Timeouts { control: PATIENCE, heartbeat: Some(PATIENCE), ..Timeouts::default() };
    Options { timeouts, ..Options::default() }
}

/// Waits until a command has been sent once more than before.
fn until_sent(command: Command, before: u64, stage: &Stage) {
    let since = Instant::now();
    while stage.messages(command) == before {
        assert!(since.elapsed() < PATIENCE, "{} is not sent", command.name());
        thread::sleep(Duration::from_millis(5));
    }
}

/// Has numbers of its own for each seed go through all stages.
fn step(stages: &[Stage], seed: u32) -> Result<Vec<f32>, String> {
    common::stage::step(stages, |i| (i as u32 * seed) as f32).map_err(|error| error.to_string())
}

fn expected(stages: usize, seed: u32) -> Vec<f32> {
    (0..NUMBERS).map(|i| (i as u32 * seed) as f32 * 2_f32.powi(stages as i32)).collect()
}

/// Computes a few times, and gives what each stage is waited for in one step.
fn waits_per_step(stages: &[Stage]) -> Vec<u64> {
    assert_eq!(step(stages, 1).unwrap(), expected(stages.len(), 1));
    let count = || stages.iter().map(Stage::waits).collect::<Vec<_>>();
    let before = count();
    for seed in 2..12 {
        assert_eq!(step(stages, seed).unwrap(), expected(stages.len(), seed), "{seed}");
    }
    before.iter().zip(count()).map(|(before, after)| (after - before) / 10).collect()
}

/// The client waits for the last worker alone; workers of another make are waited for one by one, and give the same.
#[test]
fn a_computation_over_workers_is_waited_for_once() {
    for count in [1, 2, 3] {
        let fixtures: Vec<Fixture> = (0..count).map(|_| Fixture::new()).collect();
        let own: Vec<Stage> = fixtures.iter().map(|fixture| Stage::at(fixture.auto, &options())).collect();
        let mut once = vec![0; count];
        once[count - 1] = 1;
        assert_eq!(waits_per_step(&own), once, "{count} workers");
        for (at, stage) in own.iter().enumerate() {
            // Introduced once, whatever the number of steps.
            assert_eq!(stage.messages(Command::Expect), u64::from(at > 0));
            assert_eq!(stage.messages(Command::Meet), u64::from(at + 1 < count));
            assert_eq!(stage.messages(Command::Push), if at + 1 < count { 11 } else { 0 });
        }
        let stock = fixtures.iter().map(|fixture| Stage::at(fixture.address(Dialect::newest()), &options()));
        assert_eq!(waits_per_step(&stock.collect::<Vec<_>>()), vec![1; count], "{count} stock workers");
    }
}

/// What the last worker's answer says of all others is known to be so of them, too: nothing is asked to be sure of it.
#[test]
fn what_was_pushed_on_is_known_to_be_done() {
    let fixtures = [(); 3].map(|()| Fixture::new());
    let stages: Vec<Stage> = fixtures.iter().map(|fixture| Stage::at(fixture.auto, &options())).collect();
    step(&stages, 1).unwrap();
    let before: Vec<u64> = stages.iter().map(Stage::waits).collect();
    for stage in &stages {
        stage.stream.synchronize().unwrap();
    }
    assert_eq!(stages.iter().map(Stage::waits).collect::<Vec<_>>(), before);
    // What came after it is not known.
    stages[0].stream.set_async(&stages[0].input, vec![0; 4]).unwrap();
    stages[0].stream.synchronize().unwrap();
    assert_eq!(stages[0].waits(), before[0] + 1);
}

/// There and back, so that both push to each other.
#[test]
fn workers_push_to_each_other() {
    let fixtures = [(); 2].map(|()| Fixture::new());
    let registries = fixtures
        .each_ref()
        .map(|fixture| RemoteRegistry::connect(&fixture.auto.to_string(), &options()).unwrap());
    let stages: Vec<Stage> = (0..4).map(|at| Stage::new(Arc::clone(&registries[at % 2]))).collect();
    assert_eq!(step(&stages, 1).unwrap(), expected(4, 1));
    let count = || registries.each_ref().map(|registry| registry.traffic().total().waits);
    let before = count();
    assert_eq!(step(&stages, 2).unwrap(), expected(4, 2));
    assert_eq!(count(), [before[0], before[1] + 1]);
}

/// Large tensors go in pieces, which a mailbox need not hold all at once.
#[test]
fn more_than_fits_a_mailbox_is_pushed_in_pieces() {
    let fixtures = [(); 2].map(|()| Fixture::new());
    let len = 2 * MAX_DELIVERY_BYTES + 12_345;
    let ends = fixtures.each_ref().map(|fixture| {
        let registry = RemoteRegistry::connect(&fixture.auto.to_string(), &options()).unwrap();
        let device: Arc<dyn Device> = registry.devices().remove(0);
        let buffer = oxcart_backend::allocate(&device.buffer_type(), len).unwrap();
        (device.open(&StreamOptions::default()).unwrap(), Place { buffer, offset: 0, len })
    });
    let [(from, source), (to, target)] = &ends;
    let data: Vec<u8> = (0..len).map(|i| (i * 31 % 251) as u8).collect();
    source.write(&data).unwrap();
    assert!(copy_async(&**from, source, &**to, target).unwrap().is_none(), "by the workers themselves");
    let mut back = vec![0; len];
    to.read(target, &mut back).unwrap();
    assert!(back == data);
    fixtures.iter().for_each(|fixture| assert_eq!(fixture.counters().message_bytes, 0));
}

/// A worker with an identity that knows one client.
struct Den {
    fixture: Fixture,
    key: oxcart_rpc::link::Key,
    _folder: TempDir,
}

impl Den {
    fn new(client: &Identity) -> Den {
        let folder = tempfile::tempdir().unwrap();
        let identity = Identity::open(folder.path()).unwrap();
        let file = MachinesFile::new(folder.path());
        file.change(|machines| {
            machines.remember("desk".parse().unwrap(), client.key())?.may_use_this = true;
            Ok(())
        })
        .unwrap();
        let trust =
            Trust::new(&identity, Book::open(file).unwrap(), "den".parse().unwrap()).map(Arc::new).unwrap();
        let fixture = Fixture::with(DeviceConfig::default(), |config| {
            config.trust = Some(trust);
            // Nothing goes in the clear.
            config.plain = Plain { on_loopback: false, networks: Vec::new() };
        });
        Den { fixture, key: identity.key(), _folder: folder }
    }

    fn stage(&self, client: &Arc<Identity>) -> Stage {
        let link = Some(LinkTo { identity: Arc::clone(client), worker: self.key });
        Stage::at(self.fixture.auto, &Options { link, ..options() })
    }
}

/// Where the client is known by a key, workers that do not know each other meet in TLS, with the keys that the client has named.
#[test]
fn workers_that_are_known_by_keys_meet_in_tls() {
    let client = Arc::new(Identity::make().unwrap());
    let dens = [(); 3].map(|()| Den::new(&client));
    let stages: Vec<Stage> = dens.iter().map(|den| den.stage(&client)).collect();
    assert_eq!(waits_per_step(&stages), [0, 0, 1]);
    drop(stages);
    dens.iter().for_each(|den| den.fixture.until_empty());
}

/// One worker known by its key and one in the clear have no way to each other that is as safe.
#[test]
fn a_worker_with_a_key_and_one_without_do_not_meet() {
    let client = Arc::new(Identity::make().unwrap());
    let (den, plain) = (Den::new(&client), Fixture::new());
    let stages = [den.stage(&client), Stage::at(plain.auto, &options())];
    assert_eq!(waits_per_step(&stages), [1, 1]);
    assert_eq!(stages[1].messages(Command::Expect), 0);
}

/// A way to a worker that can be held up and cut, for one client.
struct Bridge {
    address: SocketAddr,
    held: Arc<AtomicBool>,
    ends: Arc<Mutex<Vec<TcpStream>>>,
}

impl Bridge {
    /// One client only: later ones find nothing there.
    fn to(worker: SocketAddr) -> Bridge {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (held, ends) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<TcpStream>>>::default());
        let (stop, kept) = (Arc::clone(&held), Arc::clone(&ends));
        thread::spawn(move || {
            let (client, _) = listener.accept().unwrap();
            drop(listener);
            let server = TcpStream::connect(worker).unwrap();
            for (from, to) in [(&client, &server), (&server, &client)] {
                to.set_nodelay(true).unwrap();
                let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                let stop = Arc::clone(&stop);
                thread::spawn(move || {
                    let mut piece = [0; 4096];
                    while let Ok(read @ 1..) = from.read(&mut piece) {
                        while stop.load(Ordering::SeqCst) {
                            thread::sleep(Duration::from_millis(5));
                        }
                        if to.write_all(&piece[..read]).is_err() {
                            break;
                        }
                    }
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
            kept.lock().unwrap().extend([client, server]);
        });
        Bridge { address, held, ends }
    }

    fn hold(&self) {
        self.held.store(true, Ordering::SeqCst);
    }

    fn cut(&self) {
        for end in self.ends.lock().unwrap().iter() {
            let _ = end.shutdown(Shutdown::Both);
        }
        self.held.store(false, Ordering::SeqCst);
    }
}

/// One worker cannot reach the other: bytes go by the client, and that is found out once.
#[test]
fn a_worker_that_cannot_be_reached_is_gone_around() {
    let fixtures = [(); 2].map(|()| Fixture::new());
    let bridge = Bridge::to(fixtures[1].auto);
    let stages = [fixtures[0].auto, bridge.address].map(|address| Stage::at(address, &options()));
    assert_eq!(waits_per_step(&stages), [1, 1]);
    assert_eq!((stages[0].messages(Command::Meet), stages[0].messages(Command::Push)), (1, 0));
}

/// A worker that waits for one that is lost says so at once, and the client's error begins with the one to blame. Others see nothing of it.
#[test]
fn a_worker_lost_while_others_wait_for_it_is_the_one_that_is_named() {
    let fixtures = [(); 3].map(|()| Fixture::new());
    let bridge = Bridge::to(fixtures[0].auto);
    let mut stages: Vec<Stage> = [bridge.address, fixtures[1].auto, fixtures[2].auto]
        .map(|address| Stage::at(address, &options()))
        .into();
    assert_eq!(step(&stages, 1).unwrap(), expected(3, 1));
    bridge.hold();
    let started = Instant::now();
    let told = [1, 2].map(|at| stages[at].messages(Command::Await));
    let error = thread::scope(|scope| {
        let waiting = scope.spawn(|| step(&stages, 2).unwrap_err());
        // The others have been told to wait, and the first one nothing.
        (1..3).for_each(|at| until_sent(Command::Await, told[at - 1], &stages[at]));
        bridge.cut();
        waiting.join().unwrap()
    });
    assert!(started.elapsed() < PATIENCE);
    let first = format!("worker at {}", bridge.address);
    let (culprit, waited) = error.split_once("; the worker at").unwrap_or_else(|| panic!("{error}"));
    assert!(culprit.contains(&first), "{error}");
    assert!(waited.contains(&fixtures[2].auto.to_string()), "{error}");
    // The first one is lost; the others are not, but for their streams.
    assert!(matches!(stages[0].registry.failure().unwrap().fault(), WorkerFault::Closed));
    for stage in &stages[1..] {
        stage.registry.devices()[0].memory().or_else(|_| stage.registry.devices()[0].memory()).unwrap();
        assert!(stage.registry.failure().is_none());
        let error = stage.stream.synchronize().unwrap_err();
        assert!(matches!(error, oxcart_backend::Error::Interrupted { .. }), "{error}");
    }
    for fixture in &fixtures[1..] {
        fixture.until("it is counted", |fixture| fixture.counters().undelivered > 0);
        // It was no fault of the client, and the log says whose.
        let told = fixture.events();
        let is_told = |event: &String| {
            event.contains("did not arrive from the worker that connected from 127.0.0.1:")
                && event.contains("the connection between the two broke; that worker is lost or waits")
        };
        assert!(told.iter().any(is_told), "{told:?}");
        assert!(!told.iter().any(|event| event.contains("refused")), "{told:?}");
        fixture.assert_serves();
    }
    // What they hold is there, and new streams go on with it, introduced anew.
    let before = stages[2].messages(Command::Expect);
    stages[1].reopen();
    // A stream of before gets nothing, and spoils nothing for those that are new.
    let [_, from, to] = &stages[..] else { unreachable!("there are three") };
    let error = copy_async(&*from.stream, &from.output, &*to.stream, &to.input).unwrap_err();
    assert!(matches!(error, oxcart_backend::Error::Interrupted { .. }), "{error}");
    stages[2].reopen();
    let mut held = vec![0; NUMBERS * 4];
    stages[1].stream.read(&stages[1].output, &mut held).unwrap();
    assert_eq!(held[4..8], 4_f32.to_le_bytes(), "of the step before");
    for seed in 3..6 {
        assert_eq!(step(&stages[1..], seed).unwrap(), expected(2, seed));
    }
    assert_eq!(stages[2].messages(Command::Expect), before + 1);
    drop(stages);
    fixtures.iter().for_each(Fixture::until_empty);
}

/// Until a worker is told to go on it computes nothing, sends nothing and waits for nothing, but keeps what it holds and what is written to it.
#[test]
fn an_interrupted_session_keeps_what_it_holds_and_does_nothing_else() {
    let fixture = Fixture::new();
    let mut waiting = Waiting::new(&fixture);
    let mut other = call(&fixture, waiting.secret).unwrap();
    let Waiting { record, .. } = waiting;
    // A second introduction, whose worker is there and has sent something.
    let expect = |number, secret| Expect { number, secret: [secret; 16], key: None }.encode();
    assert_eq!(waiting.peer.ask(Command::Expect, &expect(NUMBER + 1, 4)), [1]);
    let mut spare = call(&fixture, [4; 16]).unwrap();
    deliver(&mut spare, 0, &[6; LEN]);
    waiting.peer.set(&record, 0, &[3; LEN]);
    other.shutdown(Shutdown::Both).unwrap();
    waiting.await_ticket(0);
    // All that is sent before it is known.
    let started = Instant::now();
    let transfer = |number| Transfer { number, ticket: 0, record }.encode();
    for (command, number) in [(Command::Await, NUMBER + 1), (Command::Push, 99), (Command::Await, 99)] {
        waiting.peer.send(command, &transfer(number));
    }
    waiting.peer.send(Command::GraphRecompute, &[0; 4]);
    waiting.peer.send(Command::GraphCompute, b"no graph at all");
    waiting.peer.send(Command::GraphKeep, b"none either");
    waiting.peer.send(Command::GraphRun, &[0, 0]);
    waiting.peer.send(Command::GraphDrop, &[0, 0]);
    waiting.peer.set(&record, 8, &[9; 8]);
    assert_eq!(waiting.interruption(), Interruption { number: NUMBER, why: NotDelivered::Lost });
    assert!(started.elapsed() < PATIENCE);
    for (command, body) in [
        (Command::Expect, expect(NUMBER + 2, 1)),
        (Command::AllocBuffer, [&[0; 4][..], &64_u64.to_le_bytes()].concat()),
        (Command::GetDeviceMemory, vec![0; 4]),
    ] {
        assert_eq!(waiting.said_to(command, &body).number, NUMBER, "{}", command.name());
    }
    // Neither is kept waiting.
    assert!(closes(&mut spare) && closes(&mut other));
    waiting.peer.send(Command::Resume, &[]);
    let held = waiting.peer.get(&record, 0, LEN as u64);
    assert_eq!((&held[..8], &held[8..16], &held[16..]), (&[3; 8][..], &[9; 8][..], &[3; LEN - 16][..]));
    // Introductions are over, and can be made again.
    assert!(call(&fixture, [4; 16]).is_none());
    assert_eq!(waiting.peer.ask(Command::Expect, &expect(NUMBER, 5)), [1]);
    let mut again = call(&fixture, [5; 16]).unwrap();
    deliver(&mut again, 3, &[7; LEN]);
    waiting.await_ticket(3);
    assert_eq!(waiting.peer.get(&record, 0, LEN as u64), [7; LEN]);
    // There is nothing to go on after; and what is over is not known any more.
    waiting.peer.assert_refused(Command::Resume, &[]);
    let mut waiting = Waiting::new(&fixture);
    waiting.await_ticket(0);
    assert_eq!(waiting.interruption().why, NotDelivered::Lost);
    waiting.peer.send(Command::Resume, &[]);
    waiting.peer.assert_refused(Command::Await, &transfer(NUMBER));
    // Graphs in slots are forgotten, for nothing has come of what was said about them meanwhile.
    let mut waiting = Waiting::new(&fixture);
    let Waiting { record, .. } = waiting;
    let place = (record.buffer.get(), record.data.get());
    let sum = waiting.peer.node(OpCode::Add, 2, record.ne.map(|n| n.get()), place, &[1, 1]);
    let graph = waiting.peer.graph_body(&[2], &[record, sum]);
    waiting.peer.send(Command::GraphKeep, &[&[1, 0][..], &graph].concat());
    waiting.peer.send(Command::GraphRun, &[1, 0]);
    assert!(waiting.peer.is_alive());
    waiting.await_ticket(0);
    assert_eq!(waiting.interruption().why, NotDelivered::Lost);
    waiting.peer.send(Command::Resume, &[]);
    waiting.peer.assert_refused(Command::GraphRun, &[1, 0]);
    fixture.until_empty();
}

/// Where bytes do not come from one worker to another though both are there, they go by the client after the second time.
#[test]
fn workers_that_fail_to_meet_twice_are_gone_around() {
    let limits = || Limits { delivery: Duration::from_secs(5), ..patient() };
    let fixtures = [(); 2].map(|()| Fixture::limited(limits()));
    let bridge = Bridge::to(fixtures[0].auto);
    let mut stages = [bridge.address, fixtures[1].auto].map(|address| Stage::at(address, &options()));
    assert_eq!(step(&stages, 1).unwrap(), expected(2, 1));
    for failures in 1..=3 {
        let pushed = stages[0].messages(Command::Push);
        // The first one gets nothing in time.
        bridge.hold();
        thread::scope(|scope| {
            let stepping = scope.spawn(|| step(&stages, 2));
            if failures < 3 {
                fixtures[1]
                    .until("it has waited in vain", |fixture| fixture.counters().undelivered == failures);
            }
            bridge.held.store(false, Ordering::SeqCst);
            let stepped = stepping.join().unwrap();
            assert_eq!(stepped.is_err(), failures < 3, "{stepped:?}");
        });
        assert!(stages.iter().all(|stage| stage.registry.failure().is_none()));
        assert_eq!(stages[0].messages(Command::Push) > pushed, failures < 3, "{failures}");
        stages[1].reopen();
        assert_eq!(step(&stages, 3).unwrap(), expected(2, 3));
    }
}

/// A worker that says of all that it computes that it was interrupted, by an introduction of some number, and is introduced to none.
fn liar(number: u32) -> (SocketAddr, thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let liar = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (own, mut header) = (Dialect::own(), [0; 9]);
        while stream.read_exact(&mut header).is_ok() {
            let size = u64::from_le_bytes(header[1..].try_into().unwrap());
            let mut body = vec![0; usize::try_from(size).unwrap()];
            stream.read_exact(&mut body).unwrap();
            let command = Command::from_number(header[0], own).unwrap();
            let answer = match command {
                Command::Hello => {
                    let version = [own.version.major, own.version.minor, own.version.patch, 0];
                    [&version[..], &answer_capabilities(own, &body)].concat()
                }
                Command::Pulse => vec![0; 16],
                Command::DeviceCount => 1_u32.to_le_bytes().to_vec(),
                Command::GetAlignment => 64_u64.to_le_bytes().to_vec(),
                Command::GetMaxSize => u64::MAX.to_le_bytes().to_vec(),
                Command::AllocBuffer => [&7_u64.to_le_bytes()[..], &body[4..12]].concat(),
                Command::BufferGetBase => 4096_u64.to_le_bytes().to_vec(),
                Command::Expect => vec![0],
                _ if command.reply(own) == Reply::None => continue,
                _ => {
                    // Once its client has hung up, there is no one to lie to.
                    let lie = Interruption { number, why: NotDelivered::Lost }.encode();
                    let _ = stream.write_all(&lie);
                    continue;
                }
            };
            let len = (answer.len() as u64).to_le_bytes();
            let _ = stream.write_all(&[&len[..], &answer].concat());
        }
    });
    (address, liar)
}

/// A worker that was never told to wait for another one cannot have waited in vain.
#[test]
fn interruptions_without_introductions_are_lies() {
    let (address, liar) = liar(0);
    let registry = RemoteRegistry::connect(&address.to_string(), &options()).unwrap();
    let error = registry.devices()[0].memory().unwrap_err();
    assert!(matches!(error, oxcart_backend::Error::DeviceLost { .. }), "{error}");
    let failure = registry.failure().unwrap();
    assert!(matches!(failure.fault(), WorkerFault::Implausible { .. }), "{failure}");
    liar.join().unwrap();
}

/// Nor can one that was asked to expect others and would not, however often it is asked.
#[test]
fn introductions_that_come_to_nothing_make_no_lie_true() {
    let fixture = Fixture::new();
    for number in [0, 12_345] {
        let (address, liar) = liar(number);
        let mut stages = [fixture.auto, address].map(|address| Stage::at(address, &options()));
        let steps = (0..4).take_while(|_| {
            step(&stages, 1).unwrap_err();
            stages.iter_mut().for_each(Stage::reopen_if_there);
            stages[1].registry.failure().is_none()
        });
        assert_eq!(steps.count(), 0, "it was believed");
        let failure = stages[1].registry.failure().unwrap();
        assert!(matches!(failure.fault(), WorkerFault::Implausible { .. }), "{failure}");
        assert_eq!(stages[1].messages(Command::Expect), 1);
        drop(stages);
        liar.join().unwrap();
    }
}

/// A worker that only sends is not lost with the one that it sends to, and meets the next one.
#[test]
fn a_worker_that_pushes_outlives_the_one_it_pushes_to() {
    let (first, second) = (Fixture::new(), Fixture::new());
    let mut stages: Vec<Stage> =
        [first.auto, second.auto].map(|address| Stage::at(address, &options())).into();
    step(&stages, 1).unwrap();
    let lost = second.auto.to_string();
    second.shutdown(Duration::ZERO);
    for _ in 0..3 {
        let error = step(&stages, 2).unwrap_err();
        assert!(error.contains(&lost), "{error}");
    }
    assert_eq!(step(&stages[..1], 3).unwrap(), expected(1, 3));
    drop(stages.pop());
    let third = Fixture::new();
    stages.push(Stage::at(third.auto, &options()));
    assert_eq!(waits_per_step(&stages), [0, 1]);
}

/// A session by hand: a buffer, and who is expected.
struct Waiting {
    peer: Peer,
    record: TensorRecord,
    secret: [u8; 16],
}

const LEN: usize = 4096;
const NUMBER: u32 = 7;

impl Waiting {
    fn new(fixture: &Fixture) -> Waiting {
        let mut peer = Peer::connect(fixture.auto, Dialect::own());
        let handle = peer.alloc(LEN as u64);
        let base = peer.base(handle);
        let record = peer.tensor(1, [LEN as u32 / 4, 1, 1, 1], (handle, base));
        let secret = [9; 16];
        let body = Expect { number: NUMBER, secret, key: None }.encode();
        assert_eq!(peer.ask(Command::Expect, &body), [1]);
        Waiting { peer, record, secret }
    }

    fn await_ticket(&mut self, ticket: u64) {
        let body = Transfer { number: NUMBER, ticket, record: self.record }.encode();
        self.peer.send(Command::Await, &body);
    }

    /// What the worker says instead of answers, until it is told to go on.
    #[track_caller]
    fn interruption(&mut self) -> Interruption {
        let said = self.said_to(Command::GetAlignment, &[0; 4]);
        assert_eq!(self.said_to(Command::GetTensor, &get_body(&self.record, 0, 1)), said);
        said
    }

    #[track_caller]
    fn said_to(&mut self, command: Command, body: &[u8]) -> Interruption {
        self.peer.send(command, body);
        let mut bytes = [0; 8 + Interruption::BYTES];
        self.peer.stream.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes[..8], Interruption::LENGTH.to_le_bytes(), "{}", command.name());
        Interruption::decode(bytes[8..].try_into().unwrap()).unwrap()
    }
}

fn hear(stream: &mut TcpStream) -> Option<WorkerMessage> {
    let mut head = [0; FRAME_BYTES];
    stream.read_exact(&mut head).ok()?;
    let head = FrameHead::decode(&head);
    let mut body = vec![0; WorkerMessage::body_bytes(&head).unwrap()];
    stream.read_exact(&mut body).ok()?;
    Some(WorkerMessage::decode(&head, &body).unwrap())
}

/// Comes as another worker would; the connection, if it is let in.
fn call(fixture: &Fixture, secret: [u8; 16]) -> Option<TcpStream> {
    let mut stream = dial(fixture.auto);
    let mut caller = Caller::new(Secret::from_bytes(secret), None, [1; 32]);
    stream.write_all(&[&WORKER_MARK[..], &caller.knock().encode()].concat()).unwrap();
    loop {
        match caller.handle(hear(&mut stream)?) {
            CallerAction::Say(message) => stream.write_all(&message.encode()).unwrap(),
            CallerAction::GoOn => return Some(stream),
            CallerAction::Fail => {
                assert!(closes(&mut stream));
                return None;
            }
        }
    }
}

fn deliver(stream: &mut TcpStream, ticket: u64, bytes: &[u8]) {
    let head = DeliveryHead { ticket, bytes: bytes.len() }.encode();
    // It may be refused while it is sent.
    let _ = stream.write_all(&[&head[..], bytes].concat());
}

/// Who knows no secret, or one that is not expected, learns nothing, spoils nothing, and is a line in the log.
#[test]
fn strangers_are_refused_and_spoil_nothing() {
    let fixture = Fixture::new();
    let mut waiting = Waiting::new(&fixture);
    for secret in [[0; 16], [8; 16]] {
        assert!(call(&fixture, secret).is_none());
    }
    // Who has seen the knock of the right one, but not the secret.
    let mut stream = dial(fixture.auto);
    let right = Caller::new(Secret::from_bytes(waiting.secret), None, [1; 32]);
    stream.write_all(&[&WORKER_MARK[..], &right.knock().encode()].concat()).unwrap();
    assert!(matches!(hear(&mut stream), Some(WorkerMessage::Challenge { .. })));
    stream.write_all(&WorkerMessage::Proof { proof: [0; 32] }.encode()).unwrap();
    assert_eq!(hear(&mut stream), Some(WorkerMessage::Refused));
    assert!(closes(&mut stream));
    // Others say what no worker says.
    for noise in [&b"oxcart\0x................"[..], &[&WORKER_MARK[..], &[0xff; 16]].concat()] {
        let mut stream = dial(fixture.auto);
        stream.write_all(noise).unwrap();
        assert!(closes(&mut stream));
    }
    fixture.until("all are counted", |fixture| fixture.counters().refusals.get("introduction") == Some(&5));
    // The right one comes, once.
    let mut caller = call(&fixture, waiting.secret).unwrap();
    assert!(call(&fixture, waiting.secret).is_none());
    deliver(&mut caller, 3, &[5; LEN]);
    waiting.await_ticket(3);
    assert_eq!(waiting.peer.get(&waiting.record, 0, LEN as u64), [5; LEN]);
    drop(waiting);
    // It ends with the session.
    assert!(closes(&mut caller));
    assert!(call(&fixture, [9; 16]).is_none());
    fixture.until_empty();
}

/// Only the range that the session waits with is written, and only what fits it exactly.
#[test]
fn what_is_sent_goes_where_the_session_says_or_nowhere() {
    let why = |send: &dyn Fn(&mut TcpStream)| {
        let fixture = Fixture::new();
        let mut waiting = Waiting::new(&fixture);
        let mut caller = call(&fixture, waiting.secret).unwrap();
        send(&mut caller);
        waiting.await_ticket(0);
        let interruption = waiting.interruption();
        assert_eq!(interruption.number, NUMBER);
        fixture.assert_serves();
        interruption.why
    };
    assert_eq!(why(&|caller| deliver(caller, 0, &[1; LEN - 1])), NotDelivered::Other);
    assert_eq!(why(&|caller| deliver(caller, 0, &[1; LEN + 1])), NotDelivered::Other);
    assert_eq!(why(&|caller| deliver(caller, 1, &[1; LEN])), NotDelivered::Other);
    let announced = |bytes: usize| move |caller: &mut TcpStream| deliver_head(caller, bytes);
    assert_eq!(why(&announced(0)), NotDelivered::Other);
    assert_eq!(why(&announced(MAX_DELIVERY_BYTES + 1)), NotDelivered::Other);
    assert_eq!(why(&|caller| caller.shutdown(Shutdown::Both).unwrap()), NotDelivered::Lost);
    // Some of it, and then nothing more.
    let cut = |caller: &mut TcpStream| {
        deliver_head(caller, LEN);
        caller.write_all(&[0; LEN / 2]).unwrap();
        caller.shutdown(Shutdown::Both).unwrap();
    };
    assert_eq!(why(&cut), NotDelivered::Lost);
}

fn deliver_head(caller: &mut TcpStream, bytes: usize) {
    let _ = caller.write_all(&DeliveryHead { ticket: 0, bytes }.encode());
}

/// Nothing is waited for that cannot come, and what may come not for ever.
#[test]
fn waiting_for_another_worker_has_an_end() {
    let delivery = Duration::from_millis(200);
    let fixture = Fixture::limited(Limits { delivery, ..patient() });
    let mut waiting = Waiting::new(&fixture);
    waiting.await_ticket(0);
    assert_eq!(waiting.interruption().why, NotDelivered::Lost, "no worker has come");
    drop(waiting);
    fixture.until("it has left", |fixture| fixture.counters().connected == 0);
    let mut waiting = Waiting::new(&fixture);
    let _caller = call(&fixture, waiting.secret).unwrap();
    waiting.await_ticket(0);
    assert_eq!(waiting.interruption().why, NotDelivered::Late);
    // Others, meanwhile, are as they were.
    fixture.assert_serves();
    // A client that leaves while it waits is gone at once.
    let fixture = Fixture::new();
    let mut waiting = Waiting::new(&fixture);
    let _caller = call(&fixture, waiting.secret).unwrap();
    waiting.await_ticket(0);
    thread::sleep(Duration::from_millis(50));
    drop(waiting);
    fixture.until_empty();
    assert!(fixture.counters().refusals.is_empty(), "{}", fixture.counters());
}

/// What waits for a session counts against the memory of messages, and not for what is merely announced.
#[test]
fn what_waits_is_counted_and_bounded() {
    let fixture = Fixture::limited(Limits { message_bytes: 1 << 20, ..patient() });
    let mut waiting = Waiting::new(&fixture);
    let mut caller = call(&fixture, waiting.secret).unwrap();
    deliver(&mut caller, 0, &[1; LEN]);
    fixture.until("it is counted", |fixture| fixture.counters().message_bytes == LEN as u64);
    deliver_head(&mut caller, 16 << 20);
    fixture.until("little more is counted", |fixture| fixture.counters().message_bytes > LEN as u64);
    assert!(fixture.counters().message_bytes <= (LEN + (16 << 10)) as u64);
    // It does not fit, so the session hears of it once it has taken what came before.
    let _ = caller.write_all(&vec![0; 2 << 20]);
    waiting.await_ticket(0);
    assert_eq!(waiting.peer.get(&waiting.record, 0, LEN as u64), [1; LEN]);
    waiting.await_ticket(1);
    assert_eq!(waiting.interruption().why, NotDelivered::Full);
    fixture.until("nothing is counted", |fixture| fixture.counters().message_bytes == 0);
}

#[test]
fn introductions_are_few_and_each_has_a_number_of_its_own() {
    let fixture = Fixture::new();
    let mut peer = Peer::connect(fixture.auto, Dialect::own());
    let mut expect = |number: u32, secret: u8| {
        let body = Expect { number, secret: [secret; 16], key: None }.encode();
        peer.ask(Command::Expect, &body)[0]
    };
    assert_eq!((expect(0, 0), expect(0, 1), expect(1, 0), expect(1, 1)), (1, 0, 0, 1));
    let more = (4..100).map(|number| expect(number, number as u8)).collect::<Vec<_>>();
    assert_eq!(more.iter().position(|answer| *answer == 0), Some(60));
    assert!(more[60..].iter().all(|answer| *answer == 0));
    let record = TensorRecord::absent();
    for command in [Command::Push, Command::Await] {
        let body = Transfer { number: 12_345, ticket: 0, record }.encode();
        Peer::connect(fixture.auto, Dialect::own()).assert_refused(command, &body);
    }
}

/// A worker goes only to where its client may have it go; and wherever that is, it sends nothing there that the client has chosen.
#[test]
fn a_worker_is_no_way_into_its_network() {
    let fixture = Fixture::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = listener.local_addr().unwrap();
    let meet = |address: SocketAddr, key: Option<[u8; 32]>, secret: u8| {
        let mut peer = Peer::connect(fixture.auto, Dialect::own());
        let address = Address::new(address).unwrap();
        let body = Meet { number: 0, address, secret: [secret; 16], key }.encode();
        let started = Instant::now();
        let answer = peer.ask(Command::Meet, &body);
        // However it failed, it takes as long.
        assert!(started.elapsed() >= Duration::from_secs(3), "{address:?}");
        answer[0]
    };
    thread::scope(|scope| {
        // Not let in without a key there; a key without one; no places.
        let elsewhere = ["192.0.2.1:80", "10.0.0.1:50052", "0.0.0.0:1", "224.0.0.1:5", "[2001:db8::1]:80"];
        let asked: Vec<_> = elsewhere
            .iter()
            .map(|address| (address.parse().unwrap(), None))
            .chain([(here, Some([7; 32]))])
            .map(|(address, key)| scope.spawn(move || meet(address, key, 1)))
            .collect();
        for asked in asked {
            assert_eq!(asked.join().unwrap(), 0);
        }
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err(), "it has come with a key that its client has no right to");
        listener.set_nonblocking(false).unwrap();
        // To where it may go, it brings a mark and numbers that follow from the secret.
        let came = scope.spawn(|| meet(here, None, 0xee));
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = [0; WORKER_MARK.len() + FRAME_BYTES + 48];
        stream.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes[..8], WORKER_MARK);
        assert!(!bytes.windows(4).any(|four| four == [0xee; 4]), "the secret is sent");
        drop(stream);
        assert_eq!(came.join().unwrap(), 0);
    });
}

/// A worker that is met and then takes nothing.
struct Deaf {
    peer: Peer,
    record: TensorRecord,
    stays: TcpStream,
}

/// Lets in a worker that comes with the secret.
fn admit(mut stream: TcpStream) -> TcpStream {
    let secret = Secret::from_bytes([5; 16]);
    let mut porter = Porter::new(None, [6; 32]);
    stream.read_exact(&mut [0; WORKER_MARK.len()]).unwrap();
    loop {
        match porter.handle(hear(&mut stream).unwrap()) {
            PorterAction::Say(message) => stream.write_all(&message.encode()).unwrap(),
            PorterAction::Judge(_, proof) => {
                let admitted = porter.admit(&secret, &proof).unwrap();
                stream.write_all(&admitted.encode()).unwrap();
                return stream;
            }
            PorterAction::Refuse => panic!("it is our worker"),
        }
    }
}

/// A worker has few connections to others at a time, however many sessions want them: for one peer, and so for all.
#[test]
fn a_peer_has_a_worker_go_to_few_others_at_a_time() {
    const MOST: usize = 64;
    let fixture = Fixture::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::new(listener.local_addr().unwrap()).unwrap();
    thread::spawn(move || {
        let mut kept = Vec::new();
        listener.incoming().flatten().for_each(|stream| kept.push(admit(stream)));
    });
    let meet = |peer: &mut Peer, number: u32| {
        let body = Meet { number, address, secret: [5; 16], key: None }.encode();
        peer.ask(Command::Meet, &body)[0]
    };
    let [mut first, mut second] = [(); 2].map(|()| Peer::connect(fixture.auto, Dialect::own()));
    for number in 0..MOST as u32 / 2 {
        assert_eq!((meet(&mut first, number), meet(&mut second, number)), (1, 1));
    }
    assert_eq!(meet(&mut second, 100), 0);
    // Others have places of their own.
    let mut other = Peer::greet(dial_from(2, fixture.auto), Dialect::own());
    assert_eq!(meet(&mut other, 0), 1);
    // They are given back.
    drop(first);
    fixture.until("it has left", |fixture| fixture.counters().connected == 2);
    assert_eq!(meet(&mut second, 101), 1);
}

impl Deaf {
    fn met_by(fixture: &Fixture) -> Deaf {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::new(listener.local_addr().unwrap()).unwrap();
        let mut peer = Peer::connect(fixture.auto, Dialect::own());
        let handle = peer.alloc(MAX_DELIVERY_BYTES as u64);
        let base = peer.base(handle);
        let record = peer.tensor(1, [MAX_DELIVERY_BYTES as u32 / 4, 1, 1, 1], (handle, base));
        let deaf = thread::spawn(move || admit(listener.accept().unwrap().0));
        let body = Meet { number: NUMBER, address, secret: [5; 16], key: None }.encode();
        assert_eq!(peer.ask(Command::Meet, &body), [1]);
        Deaf { peer, record, stays: deaf.join().unwrap() }
    }

    fn push(&mut self, ticket: u64) {
        let body = Transfer { number: NUMBER, ticket, record: self.record }.encode();
        self.peer.send(Command::Push, &body);
    }
}

/// What a push holds in memory is no more than what each connection has for itself: it may wait for the other worker for a minute.
#[test]
fn a_push_goes_in_small_pieces() {
    const BYTES: usize = 1 << 20;
    let device = FrailDevice::new("GPU", TestDevice::new(DeviceConfig::default()), 1 << 30);
    let lent = Arc::clone(&device);
    let fixture = Fixture::with(DeviceConfig::default(), move |config| config.devices = vec![lent]);
    let mut deaf = Deaf::met_by(&fixture);
    let place = (deaf.record.buffer.get(), deaf.record.data.get());
    deaf.record = deaf.peer.tensor(2, [BYTES as u32 / 4, 1, 1, 1], place);
    let before = device.calls();
    deaf.push(0);
    let mut pushed = vec![0; FRAME_BYTES + BYTES];
    deaf.stays.read_exact(&mut pushed).unwrap();
    assert!(deaf.peer.is_alive());
    assert!(device.calls() - before >= BYTES / (64 << 10), "{} pieces", device.calls() - before);
}

/// A push that is not taken is given up, and whatever the client asks for next is done.
#[test]
fn a_push_that_is_not_taken_is_given_up() {
    let fixture = Fixture::limited(Limits { write_stall: Duration::from_millis(300), ..patient() });
    let mut deaf = Deaf::met_by(&fixture);
    for ticket in 0..3 {
        deaf.push(ticket);
        assert!(deaf.peer.is_alive());
    }
}

/// The pulse of a client's session.
fn pulse_of(fixture: &Fixture, peer: &mut Peer) -> TcpStream {
    let token = peer.ask(Command::Pulse, &[]).try_into().unwrap();
    let mut pulse = dial(fixture.auto);
    pulse.write_all(&[&PULSE_MARK[..], &PulseMessage::Begin { token }.encode()].concat()).unwrap();
    pulse
}

/// A session that waits for another worker, or sends to it, does so no longer once its client says that that one is lost: and not before.
#[test]
fn a_worker_is_told_which_other_is_lost() {
    let fixture = Fixture::new();
    let lost = |introduction: u32| PulseMessage::Lost { introduction }.encode();
    let still_waits = |peer: &mut Peer| {
        peer.stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let error = peer.stream.peek(&mut [0]).unwrap_err();
        peer.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    };
    let mut waiting = Waiting::new(&fixture);
    let _caller = call(&fixture, waiting.secret).unwrap();
    let mut pulse = pulse_of(&fixture, &mut waiting.peer);
    waiting.await_ticket(0);
    // Others than the one that it waits for.
    pulse.write_all(&[lost(NUMBER + 1), lost(u32::MAX), lost(0)].concat()).unwrap();
    waiting.peer.send(Command::GetAlignment, &[0; 4]);
    still_waits(&mut waiting.peer);
    pulse.write_all(&lost(NUMBER)).unwrap();
    let mut said = [0; 8 + Interruption::BYTES];
    waiting.peer.stream.read_exact(&mut said).unwrap();
    let interruption = Interruption::decode(said[8..].try_into().unwrap()).unwrap();
    assert_eq!(interruption, Interruption { number: NUMBER, why: NotDelivered::Lost });
    waiting.peer.send(Command::Resume, &[]);
    assert!(waiting.peer.is_alive());
    // One that sends goes on as if nothing were.
    let mut deaf = Deaf::met_by(&fixture);
    let mut pulse = pulse_of(&fixture, &mut deaf.peer);
    deaf.push(0);
    deaf.peer.send(Command::GetAlignment, &[0; 4]);
    still_waits(&mut deaf.peer);
    pulse.write_all(&lost(NUMBER)).unwrap();
    assert_eq!(deaf.peer.reply().unwrap().len(), 8);
    deaf.push(1);
    assert!(deaf.peer.is_alive());
    // There are no more introductions than so many, and what is said of others is not kept.
    for introduction in 1000..1200 {
        pulse.write_all(&lost(introduction)).unwrap();
    }
    assert!(deaf.peer.is_alive());
    fixture.assert_serves();
}

/// The devices of a worker are free while one of its sessions waits for another worker.
#[test]
fn waiting_for_another_worker_keeps_no_device() {
    let fixture = Fixture::new();
    let mut waiting = Waiting::new(&fixture);
    let mut caller = call(&fixture, waiting.secret).unwrap();
    waiting.await_ticket(0);
    fixture.assert_serves();
    deliver(&mut caller, 0, &[3; LEN]);
    assert_eq!(waiting.peer.get(&waiting.record, 0, LEN as u64), [3; LEN]);
}

/// Clients of ggml's protocol see nothing of all this.
#[test]
fn stock_clients_have_no_such_commands() {
    let fixture = Fixture::new();
    for number in [128_u8, 129, 130, 131, 132, 133] {
        let mut peer = fixture.newest();
        peer.stream.write_all(&common::announcement(number, 0)).unwrap();
        peer.assert_closed("a command of ours");
    }
}
