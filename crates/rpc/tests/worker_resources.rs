//! Memory, descriptors and threads of the whole process, one test at a time. `docs/threats.md` says which threat each
//! test answers.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![cfg(target_os = "linux")]

mod common;
mod common_cache;

use std::io::{Read, Seek, SeekFrom, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::{Fixture, PATIENCE, Peer, announcement, dial, get_body, patient, request};
use common_cache::{Disk, LARGE, Stuck, user};
use oxcart_rpc::client::{LinkTo, Options, RemoteRegistry};
use oxcart_rpc::link::{Book, Identity, Machines, MachinesFile};
use oxcart_rpc::wire::{Command, Dialect, MAX_NODES, OpCode};
use oxcart_rpc::worker::{Call, Domain, Trust};
use oxcart_tally::{live_bytes, peak_bytes};
use oxcart_testdev::Config as DeviceConfig;

/// These tests look at the process as a whole, so only one runs at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    let alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    // Connections of the test before are over, but their threads may have a descriptor or a stack to give back.
    until_at_most("threads of connections", 0, || names_of_threads(|name| name.starts_with("client ")));
    alone
}

fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

fn count(folder: &str) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

fn descriptors() -> usize {
    count("/proc/self/fd")
}

/// Threads of the worker. Those of tests, which wait for their turn or have just had it, come and go; they are named after
/// the test, whose name has an underscore, and no other thread's has.
fn threads() -> usize {
    names_of_threads(|name| !name.contains('_'))
}

/// How many threads have such a name.
fn names_of_threads(is_such: impl Fn(&str) -> bool) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    // One that has ended since has no name any more.
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| is_such(name)).count()
}

#[track_caller]
fn until_at_most(what: &str, limit: usize, now: impl Fn() -> usize) {
    let start = Instant::now();
    while now() > limit {
        assert!(start.elapsed() < PATIENCE, "{} {what}, should be at most {limit}", now());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Every listener has begun, and has the descriptors it wants.
fn wait_for_listeners(fixture: &Fixture) {
    fixture.assert_serves();
    drop(dial(fixture.auto));
    for dialect in common::dialects() {
        drop(fixture.connect(dialect));
    }
    fixture.until("all have come", |fixture| fixture.counters().accepted >= 8);
    fixture.until_empty();
}

const MIB: usize = 1 << 20;

#[test]
fn announced_bytes_are_not_allocated() {
    let _alone = alone();
    let fixture = Fixture::new();
    fixture.assert_serves();
    let before = resident_bytes();
    let mut held = Vec::new();
    for number in 0..16 {
        let mut peer = fixture.newest();
        let handle = peer.alloc(1 << 30);
        let base = peer.base(handle);
        let record = peer.tensor(1, [1 << 28, 1, 1, 1], (handle, base));
        if number % 2 == 0 {
            peer.stream.write_all(&announcement(Command::SetTensor as u8, 305 + (512 << 20))).unwrap();
            let start = peer.set_body(&record, 0, &[]);
            peer.stream.write_all(&start).unwrap();
        } else {
            peer.stream.write_all(&announcement(Command::GraphCompute as u8, 64 << 20)).unwrap();
        }
        held.push(peer);
    }
    std::thread::sleep(Duration::from_millis(300));
    let grown = resident_bytes().saturating_sub(before);
    // Stacks, what is read ahead, and what the allocator keeps for threads; none of the 4 GiB.
    assert!(grown < 128 * MIB, "{} KiB", grown >> 10);
    fixture.assert_serves();
}

#[test]
fn unread_replies_are_not_kept() {
    let _alone = alone();
    let fixture = Fixture::new();
    let mut peer = fixture.newest();
    let handle = peer.alloc(32 << 20);
    let base = peer.base(handle);
    let record = peer.tensor(1, [8 << 20, 1, 1, 1], (handle, base));
    peer.set(&record, 0, &vec![1; 32 << 20]);
    assert!(peer.is_alive());
    let peak = peak_bytes(|| {
        for _ in 0..64 {
            peer.send(Command::GetTensor, &get_body(&record, 0, 32 << 20));
        }
        std::thread::sleep(Duration::from_millis(300));
        fixture.assert_serves();
    });
    // Not one of the replies, which go straight out of the buffer.
    assert!(peak < 8 * MIB, "{} KiB", peak >> 10);
}

#[test]
fn clients_are_turned_away_when_descriptors_run_out() {
    let _alone = alone();
    let fixture = Fixture::new();
    let mut old = fixture.newest();
    // The clients of this process have theirs already, so it is the worker that finds none.
    let sockets: Vec<_> = (0..40)
        .map(|_| socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap())
        .collect();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let low = rustix::process::Rlimit { current: Some(descriptors() as u64 + 9), maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, low).unwrap();
    let held: Vec<TcpStream> = sockets
        .into_iter()
        .map(|socket| {
            socket.connect(&fixture.auto.into()).unwrap();
            let mut stream = TcpStream::from(socket);
            let _ = stream.write_all(&request(14, &[0; 24]));
            stream
        })
        .collect();
    let failures = |fixture: &Fixture| {
        fixture.events().iter().filter(|line| line.starts_with("cannot serve a new connection")).count()
    };
    fixture.until("the worker has too few descriptors", |fixture| failures(fixture) >= 3);
    assert!(old.is_alive(), "connected clients are served");
    // Clients for which there is no descriptor are turned away and not left waiting.
    held.iter().for_each(|stream| stream.set_nonblocking(true).unwrap());
    let is_over = |mut stream: &TcpStream| matches!(stream.read(&mut [0; 64]), Ok(0));
    let start = Instant::now();
    while held.iter().filter(|stream| is_over(stream)).count() < 3 {
        assert!(start.elapsed() < PATIENCE, "no client is turned away");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(held);
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    assert!(old.is_alive());
    drop(old);
    fixture.assert_serves();
    fixture.until_empty();
}

/// Where no descriptor is left, a peer with many connections gives up one that has nothing.
#[test]
fn connections_with_nothing_make_way_when_descriptors_run_out() {
    let _alone = alone();
    let fixture = Fixture::new();
    let idle: Vec<_> = (0..20).map(|_| fixture.newest()).collect();
    let mut with_something = fixture.newest();
    with_something.alloc(64);
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let low = rustix::process::Rlimit { current: Some(descriptors() as u64 + 9), maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, low).unwrap();
    let filling: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    socket.connect(&fixture.auto.into()).unwrap();
    let mut newcomer = TcpStream::from(socket);
    newcomer.set_read_timeout(Some(PATIENCE)).unwrap();
    newcomer.write_all(&request(14, &[0; 24])).unwrap();
    let greeted = newcomer.read_exact(&mut [0; 8]);
    drop(filling);
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    greeted.unwrap();
    assert!(with_something.is_alive());
    let left = idle.into_iter().filter_map(|mut peer| peer.is_alive().then_some(())).count();
    assert!((1..20).contains(&left), "{left} of 20 are left");
}

/// A machine cannot keep itself from being revoked by using up the worker's descriptors: neither while it does, nor for good.
#[test]
fn a_revocation_is_not_lost_when_descriptors_run_out() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let identity = Arc::new(Identity::open(folder.path()).unwrap());
    let file = MachinesFile::new(folder.path());
    let guests: [Arc<Identity>; 2] = std::array::from_fn(|_| Arc::new(Identity::make().unwrap()));
    let text_without = |revoked: usize| {
        let remember = |machines: &mut Machines| {
            for guest in &guests {
                machines.remember("desk".parse().unwrap(), guest.key())?.may_use_this = true;
            }
            for guest in &guests[..revoked] {
                machines.revoke(guest.key());
            }
            Ok(())
        };
        file.change(remember).unwrap();
        std::fs::read_to_string(file.path()).unwrap()
    };
    let texts = [1, 2, 0].map(text_without);
    let trust = Trust::new(&identity, Book::open(file.clone()).unwrap(), "den".parse().unwrap()).unwrap();
    let fixture = Fixture::with(DeviceConfig::default(), |config| config.trust = Some(Arc::new(trust)));
    let connect = |guest: &Arc<Identity>| {
        let link = Some(LinkTo { identity: Arc::clone(guest), worker: identity.key() });
        RemoteRegistry::connect(&fixture.auto.to_string(), &Options { link, ..Options::default() }).unwrap()
    };
    wait_for_listeners(&fixture);
    let [first, second] = [connect(&guests[0]), connect(&guests[1])];
    // A descriptor of ours to write with, which is left when there is none to open.
    let mut writing = std::fs::OpenOptions::new().write(true).open(file.path()).unwrap();
    let mut write = |text: &str| {
        writing.seek(SeekFrom::Start(0)).unwrap();
        writing.write_all(text.as_bytes()).unwrap();
        writing.set_len(text.len() as u64).unwrap();
    };
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let low = rustix::process::Rlimit { current: Some(descriptors() as u64 + 9), maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, low).unwrap();
    let filling: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    write(&texts[0]);
    let start = Instant::now();
    while first.failure().is_none() && start.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(10));
    }
    let (is_revoked, is_other_well) = (first.failure().is_some(), second.failure().is_none());
    write(&texts[1]);
    drop(filling);
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    assert!(is_revoked, "the descriptor that is kept aside is for this");
    assert!(is_other_well);
    fixture.until("the other is revoked, too", |_| second.failure().is_some());
}

#[test]
fn floods_of_connections_leave_nothing_behind() {
    let _alone = alone();
    let fixture = Fixture::new();
    wait_for_listeners(&fixture);
    let (descriptors_before, threads_before) = (descriptors(), threads());
    let mut greeted: Vec<_> = (0..200).map(|_| fixture.newest()).collect();
    // Beyond 256 that have not said HELLO, the oldest goes; those that have said it stay.
    let silent: Vec<_> = (0..1500).map(|_| dial(fixture.auto)).collect();
    fixture.until("the flood is seen", |fixture| fixture.counters().accepted >= 1700);
    assert_eq!(fixture.counters().connected, 456);
    let mut oldest = silent[0].try_clone().unwrap();
    assert!(common::closes(&mut oldest));
    fixture.assert_serves();
    assert!(greeted.iter_mut().all(Peer::is_alive));
    drop((silent, greeted, oldest));
    for number in 0..400 {
        let mut stream = dial(fixture.auto);
        stream.write_all(&request(14, &[0; 24])).unwrap();
        if number % 2 == 0 {
            stream.write_all(&announcement(Command::GraphCompute as u8, 1000)).unwrap();
        }
    }
    fixture.assert_serves();
    fixture.until_empty();
    until_at_most("descriptors", descriptors_before, descriptors);
    until_at_most("threads", threads_before, threads);
}

#[test]
fn no_more_clients_than_allowed() {
    let _alone = alone();
    let limits = oxcart_rpc::worker::Limits { clients: 10, ungreeted: 4, ..patient() };
    let fixture = Fixture::limited(limits);
    let mut greeted: Vec<_> = (0..9).map(|_| fixture.newest()).collect();
    let _silent = dial(fixture.auto);
    fixture.until("all are here", |fixture| fixture.counters().connected == 10);
    // A silent client makes room for a new one.
    greeted.push(fixture.newest());
    assert_eq!(fixture.counters().connected, 10);
    // One that has said HELLO and has more than a little does not.
    for peer in &mut greeted {
        peer.alloc(2 << 20);
    }
    let mut eleventh = dial(fixture.auto);
    assert!(common::closes(&mut eleventh));
    assert!(greeted.iter_mut().all(Peer::is_alive));
    greeted.pop();
    fixture.until("there is room", |fixture| fixture.counters().connected == 9);
    fixture.newest();
}

#[test]
fn clients_leave_nothing_behind() {
    let _alone = alone();
    let fixture = Fixture::new();
    wait_for_listeners(&fixture);
    let (memory, held, files, tasks) = (resident_bytes(), live_bytes(), descriptors(), threads());
    let mut peer = fixture.newest();
    for _ in 0..8 {
        let handle = peer.alloc(64 << 20);
        peer.ask(Command::BufferClear, &[&handle.to_le_bytes()[..], &[1]].concat());
        // Clearing is not answered; what is asked after it is, once it is done.
        peer.base(handle);
    }
    assert!(resident_bytes() > memory + 384 * MIB);
    drop(peer);
    for _ in 0..20 {
        let mut peer = fixture.newest();
        let handle = peer.alloc(1 << 16);
        let base = peer.base(handle);
        let leaf = peer.tensor(1, [1, 1, 1, 1], (handle, base));
        let mut tensors = vec![leaf];
        for id in 2..3000 {
            tensors.push(peer.node(OpCode::Add, id, [1, 1, 1, 1], (handle, base + 64), &[1, 1]));
        }
        assert!(peer.compute(&(2..3000).collect::<Vec<_>>(), &tensors));
    }
    fixture.until_empty();
    // What the device notes for tests is no part of it.
    fixture.device.take_log();
    until_at_most("bytes held", held + MIB, live_bytes);
    // What the allocator keeps is its own; all of the device's memory goes back.
    until_at_most("bytes resident", memory + 192 * MIB, resident_bytes);
    until_at_most("descriptors", files, descriptors);
    until_at_most("threads", tasks, threads);
}

#[test]
fn node_ids_cost_no_memory_beyond_their_message() {
    let _alone = alone();
    let fixture = Fixture::new();
    for dialect in [Dialect::classic(), Dialect::newest()] {
        let mut peer = fixture.connect(dialect);
        let handle = peer.alloc(4096);
        let base = peer.base(handle);
        let leaf = peer.tensor(1, [1, 1, 1, 1], (handle, base));
        let body = request(Command::GraphCompute as u8, &peer.graph_body(&vec![1; 4_000_000], &[leaf]));
        let grown = peak_bytes(|| {
            // Its connection may end while it is being sent.
            let _ = peer.stream.write_all(&body);
            assert!(peer.reply().is_none_or(|status| status == [255]));
        });
        // The message itself, which may be copied as it grows, and nothing made of it.
        assert!(grown < 2 * body.len(), "{} MiB for {} MiB", grown / MIB, body.len() / MIB);
    }
    // As many as there may be, all of which do something.
    let mut peer = fixture.newest();
    let body = largest_graph(&mut peer);
    let grown = peak_bytes(|| {
        peer.stream.write_all(&body).unwrap();
        assert!(peer.is_alive());
    });
    // The message, twice while it is copied as it grows, and its nodes, which take about as much as the message.
    assert!(grown < 4 * body.len(), "{} MiB for {} MiB", grown / MIB, body.len() / MIB);
}

/// The message of a graph of as many nodes as there may be, all of which do something.
fn largest_graph(peer: &mut Peer) -> Vec<u8> {
    let handle = peer.alloc(4096);
    let base = peer.base(handle);
    let mut tensors = vec![peer.tensor(1, [1, 1, 1, 1], (handle, base))];
    let ids: Vec<u64> = (2..2 + MAX_NODES as u64).collect();
    for &id in &ids {
        tensors.push(peer.node(OpCode::Add, id, [1, 1, 1, 1], (handle, base + 64), &[1, 1]));
    }
    request(Command::GraphCompute as u8, &peer.graph_body(&ids, &tensors))
}

/// Measured: a client with as many buffers as there may be and a graph of as many nodes holds no more than it is said to, and
/// no more than 64 MiB.
#[test]
fn what_a_client_really_holds() {
    let _alone = alone();
    let fixture = Fixture::new();
    fixture.assert_serves();
    let limit = 64 * MIB;
    let buffers = 65_536;
    let mut peer = fixture.newest();
    let graph = largest_graph(&mut peer);
    let alloc = request(Command::AllocBuffer as u8, &peer.with_device(&0_u64.to_le_bytes()));
    let before = live_bytes();
    for _ in 1..buffers {
        peer.stream.write_all(&alloc).unwrap();
        assert_ne!(common::long(&peer.reply().unwrap()), 0);
    }
    let of_buffers = live_bytes().saturating_sub(before);
    assert!(of_buffers < buffers * 512, "{} bytes for a buffer", of_buffers / buffers);
    peer.stream.write_all(&graph).unwrap();
    assert!(peer.is_alive(), "{:?}", fixture.events());
    // What the device notes for tests is no part of it.
    fixture.device.take_log();
    let held = live_bytes().saturating_sub(before);
    let counted = usize::try_from(fixture.counters().stored_bytes).unwrap();
    assert!(held < counted && counted <= limit, "{held} bytes, counted {counted}");
    // One more buffer is too much.
    assert_eq!(peer.try_alloc(0), (0, 0));
}

/// A process may have only so many pieces of memory; holes between buffers make many out of few, and must not use them up.
#[test]
fn holes_between_buffers_are_few() {
    let _alone = alone();
    let fixture = Fixture::new();
    let mut peer = fixture.newest();
    let handles: Vec<_> = (0..20_000).map(|_| peer.alloc(64 << 10)).collect();
    for pair in handles.chunks(2) {
        peer.free(pair[0]);
    }
    let pieces = std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    assert!(pieces < 6_000, "{pieces} pieces of memory");
    fixture.assert_serves();
    drop(peer);
    fixture.until_empty();
}

#[test]
fn contents_waiting_for_a_slow_disk_are_bounded() {
    let _alone = alone();
    let disk = Disk::new();
    let gate = Stuck::at(Call::Write);
    // Longer than a machine stands still, but not so long that this takes long.
    let patience = Duration::from_secs(5);
    let cache = disk.open_behind_with(&gate, |settings| settings.patience = patience).cache;
    let threads_before = threads();
    let piece = vec![1; 4 * MIB];
    let mut held = Vec::new();
    for number in 0..16 {
        let domain = Domain::of_user(1_000_000 + number);
        held.extend((0..4).map(|_| cache.keep(&domain, LARGE as u64).unwrap()));
    }
    // A place is taken with the first byte.
    for keeping in &mut held {
        keeping.add(&piece[..1]);
    }
    // Beyond that, nothing is kept, and no client waits.
    let start = Instant::now();
    cache.keep(&user(), LARGE as u64).unwrap().add(&piece);
    assert!(start.elapsed() < patience);
    assert_eq!(cache.counts().failed, 1);
    let peak = peak_bytes(|| {
        std::thread::scope(|scope| {
            for keeping in &mut held {
                scope.spawn(|| keeping.add(&piece));
            }
        });
    });
    // 64 of them, each of four pieces and two more.
    assert!(peak < 112 * MIB, "{} MiB", peak / MIB);
    drop(held);
    gate.release();
    cache.finish(PATIENCE);
    until_at_most("threads", threads_before, threads);
    assert!(disk.names().is_empty());
}
