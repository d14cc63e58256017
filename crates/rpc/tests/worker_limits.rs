//! Every limit of a worker: one below, at, and one above it. Where the default is large, the test sets a
//! small one; that the defaults are those of the table is a test of its own.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use common::{Example, Fixture, PATIENCE, Peer, announcement, closes, dial, get_body, patient, request};
use oxcart_rpc::wire::{Command, Dialect, MAX_GRAPH_BYTES, MAX_NODES, MAX_TENSORS, OpCode};
use oxcart_rpc::worker::Limits;
use oxcart_testdev::Config as DeviceConfig;

const SCALAR: [u32; 4] = [1, 1, 1, 1];

#[test]
fn the_defaults_are_those_of_the_table() {
    let limits = Limits::default();
    assert_eq!(limits.hello, Duration::from_secs(10));
    assert_eq!((limits.clients, limits.ungreeted), (1024, 256));
    assert_eq!((limits.message, limits.message_rate), (Duration::from_secs(60), 1 << 20));
    assert_eq!((limits.write_stall, limits.idle), (Duration::from_secs(60), None));
    assert_eq!((limits.graph_bytes, limits.graph_nodes, limits.graph_tensors), (64 << 20, 131_072, 200_000));
    assert_eq!((MAX_GRAPH_BYTES, MAX_NODES, MAX_TENSORS), (64 << 20, 131_072, 200_000));
    assert_eq!(limits.buffers, 65_536);
    assert_eq!(limits.client_bytes, 64 << 20);
    assert_eq!((limits.stored_bytes, limits.message_bytes), (256 << 20, 256 << 20));
}

/// How long a worker goes on with a client that says nothing more.
fn lasts(stream: &mut TcpStream, since: Instant) -> Duration {
    assert!(closes(stream));
    since.elapsed()
}

/// Where a limit is long, what comes late is answered; where it is short, nothing is waited for, but not for less than that.
#[test]
fn hello_must_be_complete_in_time() {
    let bytes = request(14, &[0; 24]);
    let (last, first) = bytes.split_last().unwrap();
    let begin = |fixture: &Fixture| {
        let mut stream = dial(fixture.auto);
        stream.write_all(first).unwrap();
        stream
    };
    let short = Duration::from_secs(1);
    let fixture = Fixture::limited(Limits { hello: short, ..patient() });
    let since = Instant::now();
    assert!(lasts(&mut begin(&fixture), since) >= short);
    let fixture = Fixture::limited(Limits { hello: PATIENCE, ..patient() });
    let mut stream = begin(&fixture);
    std::thread::sleep(2 * short);
    stream.write_all(&[*last]).unwrap();
    stream.read_exact(&mut [0; 36]).unwrap();
}

#[test]
fn a_message_must_end_in_time_by_its_size() {
    /// Longer than a thread is off its processor, so that only what the client does counts.
    const MESSAGE: Duration = Duration::from_secs(3);
    // All of a graph but its last byte, which no other message comes before.
    let begin = |fixture: &Fixture, size: usize| {
        let mut peer = fixture.classic();
        let message = request(Command::GraphCompute as u8, &vec![0; size]);
        peer.stream.write_all(&message[..message.len() - 1]).unwrap();
        peer
    };
    let begin = &begin;
    std::thread::scope(|scope| {
        // 1000 bytes are a second more; parts of a second do not count.
        for (size, seconds) in [(40, 0), (1999, 1), (2000, 2)] {
            scope.spawn(move || {
                let fixture = Fixture::limited(Limits { message: MESSAGE, message_rate: 1000, ..patient() });
                let since = Instant::now();
                let lasted = lasts(&mut begin(&fixture, size).stream, since);
                assert!(lasted >= MESSAGE + Duration::from_secs(seconds), "{size} bytes: {lasted:?}");
            });
        }
        // Where a byte is a second more, the same message has time.
        let fixture = Fixture::limited(Limits { message: MESSAGE, message_rate: 1, ..patient() });
        let mut peer = begin(&fixture, 2000);
        std::thread::sleep(2 * MESSAGE);
        peer.stream.write_all(&[0]).unwrap();
        // It is no graph, which version 2 says, and goes on.
        assert_eq!(peer.reply().unwrap(), [255]);
    });
}

#[test]
fn a_reader_may_be_slow_but_must_read() {
    let ask = |fixture: &Fixture| {
        let mut peer = fixture.newest();
        let handle = peer.alloc(32 << 20);
        let base = peer.base(handle);
        let record = peer.tensor(1, [8 << 20, 1, 1, 1], (handle, base));
        socket2::SockRef::from(&peer.stream).set_recv_buffer_size(1 << 16).unwrap();
        peer.send(Command::GetTensor, &get_body(&record, 0, 32 << 20));
        peer
    };
    // Much less than the limit without progress each time, more than that together.
    let write_stall = Duration::from_secs(4);
    let fixture = Fixture::limited(Limits { write_stall, ..patient() });
    let mut peer = ask(&fixture);
    let (since, mut part) = (Instant::now(), vec![0; 4 << 20]);
    peer.stream.read_exact(&mut part[..8]).unwrap();
    for _ in 0..8 {
        std::thread::sleep(write_stall / 7);
        peer.stream.read_exact(&mut part).unwrap();
    }
    assert!(since.elapsed() > write_stall && peer.is_alive());
    // Nothing is read before the worker has given up.
    let fixture = Fixture::limited(Limits { write_stall: Duration::from_secs(1), ..patient() });
    let since = Instant::now();
    let mut peer = ask(&fixture);
    fixture.until_empty();
    assert!(since.elapsed() >= Duration::from_secs(1));
    let mut all = Vec::new();
    // It may end in a reset; what counts is that the rest never came.
    let _ = peer.stream.read_to_end(&mut all);
    assert!(all.len() < 8 + (32 << 20), "a second without progress");
}

#[test]
fn connections_in_all_and_without_a_greeting() {
    let fixture = Fixture::limited(Limits { clients: 8, ungreeted: 4, ..patient() });
    let connected = |count: u64| {
        fixture.until("the connections are seen", |fixture| fixture.counters().connected == count);
    };
    let mut silent: Vec<_> = (0..3).map(|_| dial(fixture.auto)).collect();
    connected(3);
    silent.push(dial(fixture.auto));
    connected(4);
    // One too many: the oldest goes.
    silent.push(dial(fixture.auto));
    assert!(closes(&mut silent[0]));
    connected(4);
    let mut greeted: Vec<_> = (0..4).map(|_| fixture.newest()).collect();
    connected(7);
    greeted.push(fixture.newest());
    connected(8);
    // In all there are as many as there may be; a silent one makes room, while there is one.
    for _ in 0..3 {
        greeted.push(fixture.newest());
        connected(8);
    }
    // And one that has nothing; those that have more than a little stay.
    for peer in &mut greeted[1..] {
        peer.alloc(2 << 20);
    }
    let mut ninth = fixture.newest();
    ninth.alloc(2 << 20);
    greeted.remove(0).assert_closed("a connection with nothing");
    let mut tenth = dial(fixture.auto);
    assert!(closes(&mut tenth));
    assert!(greeted.iter_mut().all(Peer::is_alive) && ninth.is_alive());
}

/// Whether a graph of so many adds, all but the last without effect, is accepted.
fn computes_adds(fixture: &Fixture, nodes: u64, spare_tensors: u64) -> bool {
    adds(&mut fixture.newest(), nodes, spare_tensors)
}

/// The same for a client that stays.
fn adds(peer: &mut Peer, nodes: u64, spare_tensors: u64) -> bool {
    let handle = peer.alloc(4096);
    let base = peer.base(handle);
    let mut tensors = vec![peer.tensor(1, SCALAR, (handle, base))];
    let ids: Vec<_> = (2..2 + nodes).collect();
    for &id in &ids {
        tensors.push(peer.node(OpCode::Add, id, SCALAR, (handle, base + 64), &[1, 1]));
    }
    tensors.extend((0..spare_tensors).map(|spare| peer.tensor(1_000_000 + spare, SCALAR, (0, 0))));
    peer.compute(&ids, &tensors)
}

#[test]
fn bytes_nodes_and_tensors_of_a_graph() {
    let nodes = Fixture::limited(Limits { graph_nodes: 50, ..patient() });
    assert!(computes_adds(&nodes, 49, 0) && computes_adds(&nodes, 50, 0) && !computes_adds(&nodes, 51, 0));
    let tensors = Fixture::limited(Limits { graph_tensors: 50, ..patient() });
    assert!(
        computes_adds(&tensors, 40, 8) && computes_adds(&tensors, 40, 9) && !computes_adds(&tensors, 40, 10)
    );
    let size = 12 + 8 * 10 + 296 * 11;
    for (graph_bytes, fits) in [(size + 1, true), (size, true), (size - 1, false)] {
        let bytes = Fixture::limited(Limits { graph_bytes, ..patient() });
        assert_eq!(computes_adds(&bytes, 10, 0), fits, "{graph_bytes}");
    }
}

#[test]
fn nodes_and_tensors_at_the_real_limits() {
    let fixture = Fixture::new();
    let nodes = MAX_NODES as u64;
    assert!(computes_adds(&fixture, nodes - 1, 0) && computes_adds(&fixture, nodes, 0));
    assert!(!computes_adds(&fixture, nodes + 1, 0));
    let tensors = MAX_TENSORS as u64;
    assert!(computes_adds(&fixture, 1, tensors - 3) && computes_adds(&fixture, 1, tensors - 2));
    assert!(!computes_adds(&fixture, 1, tensors - 1));
    fixture.until_empty();
    // No graph is longer than the limit, but an announcement can be.
    for (size, waits) in [(MAX_GRAPH_BYTES - 1, true), (MAX_GRAPH_BYTES, true), (MAX_GRAPH_BYTES + 1, false)]
    {
        let mut peer = fixture.newest();
        peer.stream.write_all(&announcement(Command::GraphCompute as u8, size as u64)).unwrap();
        match waits {
            true => fixture.until("it is waited for", |fixture| fixture.counters().message_bytes > 0),
            false => assert!(closes(&mut peer.stream), "{size}"),
        }
        drop(peer);
        fixture.until_empty();
    }
}

/// An announcement takes next to nothing of what all clients share, so many of them keep no client from computing.
#[test]
fn announcements_take_nothing_from_others() {
    let fixture = Fixture::limited(Limits { message_bytes: 4 << 20, ..patient() });
    let announced: Vec<_> = (0..64)
        .map(|_| {
            let mut peer = fixture.newest();
            peer.stream.write_all(&announcement(Command::GraphCompute as u8, 64 << 20)).unwrap();
            peer
        })
        .collect();
    // What is read at first counts twice: for itself, and for what it becomes.
    let few = 64 * 2 * (16 << 10);
    fixture.until("all are waited for", |fixture| fixture.counters().message_bytes == few);
    assert_eq!(fixture.counters().connected, 64, "{}", fixture.counters());
    assert!(computes_adds(&fixture, 1000, 0));
    drop(announced);
}

#[test]
fn stored_graphs_of_a_client() {
    // What it counts, and the buffer it lies in.
    let fixture = Fixture::new();
    let mut peer = fixture.newest();
    assert!(adds(&mut peer, 10, 0));
    let one = usize::try_from(fixture.counters().stored_bytes).unwrap();
    for (client_bytes, fits) in [(one + 1, true), (one, true), (one - 1, false)] {
        let fixture = Fixture::limited(Limits { client_bytes, ..patient() });
        assert_eq!(computes_adds(&fixture, 10, 0), fits, "{client_bytes}");
    }
}

#[test]
fn messages_of_all_clients_together() {
    let body = 12 + 8 * 10 + 296 * 11;
    // The message and what it becomes.
    let one = 2 * body;
    for (message_bytes, fits) in [(one + 1, true), (one, true), (one - 1, false)] {
        let fixture = Fixture::limited(Limits { message_bytes, ..patient() });
        assert_eq!(computes_adds(&fixture, 10, 0), fits, "{message_bytes}");
        if fits {
            // What one holds another cannot have, until it is given back.
            let mut holder = fixture.newest();
            holder.stream.write_all(&announcement(Command::GraphCompute as u8, 100)).unwrap();
            fixture.until("it is waited for", |fixture| fixture.counters().message_bytes == 200);
            assert!(!computes_adds(&fixture, 10, 0));
            drop(holder);
            fixture.until_empty();
            assert!(computes_adds(&fixture, 10, 0));
        }
    }
}

/// Knowing about buffers takes memory too, even where they have no bytes.
#[test]
fn buffers_of_no_bytes_count_too() {
    let count_of = |peer: &mut Peer| (0..20).filter(|_| peer.try_alloc(0).0 != 0).count();
    let one_client = Fixture::limited(Limits { client_bytes: 10 * 512, ..patient() });
    assert_eq!(count_of(&mut one_client.newest()), 10);
    let all_clients = Fixture::limited(Limits { stored_bytes: 30 * 512, ..patient() });
    let (mut first, mut second) = (all_clients.newest(), all_clients.classic());
    assert_eq!((count_of(&mut first), count_of(&mut second)), (20, 10));
    assert!(second.is_alive());
    drop(first);
    all_clients.until("the first's are gone", |fixture| fixture.counters().connected == 1);
    assert_eq!(count_of(&mut second), 20);
}

#[test]
fn work_of_one_node() {
    let fixture = Fixture::limited(Limits { node_work: 1 << 10, ..patient() });
    for (elements, fits) in [(1023, true), (1024, true), (1025, false)] {
        let mut peer = fixture.newest();
        let handle = peer.alloc(1 << 16);
        let base = peer.base(handle);
        let leaf = peer.tensor(1, [elements, 1, 1, 1], (handle, base));
        let node = peer.node(OpCode::Add, 2, [elements, 1, 1, 1], (handle, base + 0x8000), &[1, 1]);
        assert_eq!(peer.compute(&[2], &[leaf, node]), fits, "{elements}");
    }
    // A product may do 256 times as much: 64 * 64 * 64, of which the columns, laid out first, take their part.
    for (side, fits) in [(62, true), (63, true), (64, false)] {
        let mut peer = fixture.newest();
        let handle = peer.alloc(1 << 16);
        let base = peer.base(handle);
        let leaf = peer.tensor(1, [side, side, 1, 1], (handle, base));
        let node = peer.node(OpCode::MulMat, 2, [side, side, 1, 1], (handle, base + 0x8000), &[1, 1]);
        assert_eq!(peer.compute(&[2], &[leaf, node]), fits, "{side}");
    }
}

#[test]
fn tensors_around_the_size_of_a_piece() {
    for device in [DeviceConfig::default(), DeviceConfig::accelerator("GPU0")] {
        let fixture = Fixture::with(device, |_| {});
        let mut peer = fixture.newest();
        let handle = peer.alloc(4 << 20);
        let base = peer.base(handle);
        let record = peer.tensor(1, [1 << 20, 1, 1, 1], (handle, base));
        for middle in [16_u64 << 10, 1 << 20, 2 << 20] {
            for len in [middle - 1, middle, middle + 1] {
                let data: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
                peer.set(&record, 3, &data);
                assert!(peer.get(&record, 3, len) == data, "{len} bytes");
            }
        }
    }
}

#[test]
fn buffers_at_the_real_limit() {
    let fixture = Fixture::new();
    let mut peer = fixture.newest();
    let body = peer.with_device(&16_u64.to_le_bytes());
    let one = request(Command::AllocBuffer as u8, &body);
    let mut writer = peer.stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || writer.write_all(&one.repeat(65_537)).unwrap());
    for number in 1..=65_537 {
        let reply = peer.reply().unwrap();
        assert_eq!(common::long(&reply) != 0, number <= 65_536, "buffer {number}");
    }
    sender.join().unwrap();
    assert!(peer.is_alive());
    drop(peer);
    fixture.until_empty();
    fixture.assert_serves();
}

/// Others are answered while some misbehave, and most of them soon; those who misbehave go on for longer than is waited for.
#[test]
fn others_are_answered_while_some_misbehave() {
    let fixture = Fixture::new();
    let mut held: Vec<Peer> = Vec::new();
    for kind in 0..40 {
        let mut peer = fixture.newest();
        let handle = peer.alloc(8 << 20);
        let base = peer.base(handle);
        let record = peer.tensor(1, [2 << 20, 1, 1, 1], (handle, base));
        match kind % 4 {
            0 => peer.stream.write_all(&[Command::GetTensor as u8]).unwrap(),
            1 => peer.send(Command::GetTensor, &get_body(&record, 0, 8 << 20)),
            2 => peer.stream.write_all(&announcement(Command::GraphCompute as u8, 1 << 20)).unwrap(),
            _ => {
                let start = peer.set_body(&record, 0, &[1; 100]);
                peer.stream.write_all(&announcement(Command::SetTensor as u8, 305 + (8 << 20))).unwrap();
                peer.stream.write_all(&start).unwrap();
            }
        }
        held.push(peer);
    }
    let mut times = Vec::new();
    for round in 0..100 {
        let start = Instant::now();
        let dialect = if round % 2 == 0 { Dialect::classic() } else { Dialect::newest() };
        Example::new(&mut fixture.connect(dialect)).check();
        times.push(start.elapsed());
    }
    times.sort();
    // A machine that is busy otherwise may let some wait, but not most.
    assert!(times[50] < Duration::from_secs(5), "{:?}", times[50]);
}
