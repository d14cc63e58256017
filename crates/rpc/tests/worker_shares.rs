//! What is shared is shared by peers first and by connections then: attackers on other addresses of this machine, and on the
//! honest client's own, take from it no more than their part. And what a client left behind is not done.
// Elsewhere, loopback has one address.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;
mod common_cache;

use std::io::Write;
use std::time::Duration;

use common::{Example, Fixture, PATIENCE, Peer, closes, dial_from, patient, request};
use common_cache::Disk;
use oxcart_rpc::wire::{Command, OpCode};
use oxcart_rpc::worker::{Domain, Limits};
use zerocopy::IntoBytes;

const SCALAR: [u32; 4] = [1, 1, 1, 1];

/// Fills a client's share with a graph of so many adds, which is stored.
fn store_graph(peer: &mut Peer, nodes: u64) -> bool {
    let handle = peer.alloc(4096);
    let base = peer.base(handle);
    let mut tensors = vec![peer.tensor(1, SCALAR, (handle, base))];
    let ids: Vec<u64> = (2..2 + nodes).collect();
    tensors.extend(ids.iter().map(|&id| peer.node(OpCode::Add, id, SCALAR, (handle, base + 64), &[1, 1])));
    peer.compute(&ids, &tensors)
}

/// Whether the stored graph is still there; if not, the connection ends.
fn computes_again(peer: &mut Peer) -> bool {
    let device = peer.device();
    peer.send(Command::GraphRecompute, &device);
    peer.is_alive()
}

#[test]
fn a_client_that_left_ends_what_it_asked_for() {
    let fixture = Fixture::new();
    let mut peer = fixture.newest();
    let handle = peer.alloc(256 << 20);
    let clear = request(Command::BufferClear as u8, &[&handle.to_le_bytes()[..], &[1]].concat());
    // Work for a minute, or for many seconds where memory is ten times as fast; as much as a connection takes at once, so that the
    // end is seen behind it.
    peer.stream.write_all(&clear.repeat(3500)).unwrap();
    fixture.until("it is at work", |fixture| fixture.counters().commands > 2);
    drop(peer);
    fixture.until_empty();
    assert!(fixture.counters().commands < 3000, "{}", fixture.counters());
}

/// What a graph of so many adds counts, with its buffer.
fn counted(nodes: u64) -> usize {
    let fixture = Fixture::new();
    let mut peer = fixture.newest();
    assert!(store_graph(&mut peer, nodes));
    usize::try_from(fixture.counters().stored_bytes).unwrap()
}

/// The peer that has most of what is kept for stored graphs makes way, be it one connection or many.
#[test]
fn stored_graphs_make_way_for_those_who_have_less() {
    // Not for one of 600 nodes more.
    let stored_bytes = 3 * counted(2000) + counted(300);
    let limits = Limits { stored_bytes, ..patient() };
    for attacker in [2, 1] {
        let fixture = Fixture::limited(limits);
        let mut greedy: Vec<Peer> = (0..3).map(|_| fixture.newest_from(attacker)).collect();
        assert!(greedy.iter_mut().all(|peer| store_graph(peer, 2000)));
        let mut honest = fixture.newest_from(1);
        Example::new(&mut honest).check();
        assert!(store_graph(&mut honest, 600), "from host {attacker}: {}", fixture.counters());
        assert!(computes_again(&mut honest));
        assert!(!greedy.iter_mut().all(computes_again), "nothing made way");
        assert!(computes_again(&mut honest));
    }
}

/// A message that arrives slowly holds what came of it; it makes way too.
#[test]
fn messages_that_arrive_make_way_for_those_who_have_less() {
    let limits = Limits { message_bytes: 4 << 20, ..patient() };
    let fixture = Fixture::limited(limits);
    let mut slow: Vec<Peer> = (0..3).map(|_| fixture.newest_from(2)).collect();
    for peer in &mut slow {
        send_part(peer, 900 << 10);
    }
    std::thread::sleep(Duration::from_millis(300));
    let mut honest = fixture.newest_from(1);
    assert!(store_graph(&mut honest, 800), "{}", fixture.counters());
}

/// Says that a graph of 8 MiB follows, and sends a part of it.
fn send_part(peer: &mut Peer, bytes: usize) {
    let head = [&[Command::GraphCompute as u8][..], &(8_u64 << 20).to_le_bytes()].concat();
    // Its connection may end while it is being sent.
    let _ = peer.stream.write_all(&head).and_then(|()| peer.stream.write_all(&vec![0; bytes]));
}

/// Messages make way for each other, and a graph that is stored stays, though no message is as large.
#[test]
fn messages_that_arrive_push_out_no_stored_graph() {
    let fixture = Fixture::limited(Limits { message_bytes: 4 << 20, ..patient() });
    let mut honest = fixture.newest_from(1);
    assert!(store_graph(&mut honest, 4000));
    let mut others: Vec<Peer> = (2..32).map(|host| fixture.newest_from(host)).collect();
    for peer in &mut others {
        send_part(peer, 200 << 10);
    }
    std::thread::sleep(Duration::from_millis(300));
    assert!(computes_again(&mut honest), "{}", fixture.counters());
    Example::new(&mut fixture.newest_from(40)).check();
    assert!(computes_again(&mut honest));
}

/// Where no one has so much more that it makes way, a graph is computed all the same. Only that it is stored cannot be had.
#[test]
fn stored_graphs_keep_no_message_out() {
    let stored_bytes = 3 * counted(2000) + counted(500);
    let fixture = Fixture::limited(Limits { stored_bytes, ..patient() });
    let mut others: Vec<Peer> = (2..5).map(|host| fixture.newest_from(host)).collect();
    assert!(others.iter_mut().all(|peer| store_graph(peer, 2000)));
    let mut honest = fixture.newest_from(1);
    assert!(store_graph(&mut honest, 100) && computes_again(&mut honest));
    for _ in 0..3 {
        assert!(store_graph(&mut honest, 1500), "{}", fixture.counters());
    }
    assert!(others.iter_mut().all(computes_again));
    // The one before must not be taken for it.
    assert!(!computes_again(&mut honest));
    drop((others, honest));
    fixture.until("all is given back", |fixture| {
        let counters = fixture.counters();
        counters.stored_bytes == 0 && counters.message_bytes == 0
    });
}

#[test]
fn idle_connections_keep_no_other_peer_out() {
    let fixture = Fixture::limited(Limits { clients: 16, ungreeted: 4, ..patient() });
    // They have more than a little, so that they do not make way for each other.
    let mut idle: Vec<Peer> = (0..16).map(|_| fixture.newest_from(2)).collect();
    for peer in &mut idle {
        peer.alloc(2 << 20);
    }
    let mut more = dial_from(2, fixture.auto);
    assert!(closes(&mut more));
    let mut honest: Vec<Peer> = (0..6).map(|_| fixture.newest_from(1)).collect();
    for peer in &mut honest {
        Example::new(peer).check();
    }
    let left = idle.into_iter().filter_map(|mut peer| peer.is_alive().then_some(())).count();
    assert_eq!(left, 10);
}

/// Nor connections of its own address that have nothing.
#[test]
fn idle_connections_with_nothing_keep_no_one_out() {
    let fixture = Fixture::limited(Limits { clients: 8, ungreeted: 4, ..patient() });
    let _idle: Vec<Peer> = (0..8).map(|_| fixture.newest()).collect();
    let mut honest = fixture.newest();
    Example::new(&mut honest).check();
}

/// Whatever they are doing: a message that has begun, a command whose answer is not read.
#[test]
fn busy_connections_with_nothing_keep_no_one_out() {
    for host in [2, 1] {
        let fixture = Fixture::limited(Limits { clients: 16, ungreeted: 4, ..patient() });
        let mut busy: Vec<Peer> = (0..16).map(|_| fixture.newest_from(host)).collect();
        for peer in &mut busy {
            peer.stream.write_all(&[Command::GetAlignment as u8]).unwrap();
        }
        std::thread::sleep(Duration::from_millis(100));
        for _ in 0..4 {
            Example::new(&mut fixture.newest_from(1)).check();
        }
    }
}

/// Nor connections of its own address that have next to nothing.
#[test]
fn connections_with_little_make_way_for_others_of_their_peer() {
    let fixture = Fixture::limited(Limits { clients: 8, ungreeted: 4, ..patient() });
    let mut with_much = fixture.newest();
    with_much.alloc(4 << 20);
    let mut with_little: Vec<Peer> = (0..7).map(|_| fixture.newest()).collect();
    for peer in &mut with_little {
        peer.alloc(1);
    }
    Example::new(&mut fixture.newest()).check();
    assert!(with_much.is_alive());
}

/// Where every peer has one connection, one that has something is not given up for a newcomer.
#[test]
fn a_newcomer_takes_the_place_of_one_that_has_nothing() {
    let fixture = Fixture::limited(Limits { clients: 8, ungreeted: 4, ..patient() });
    let mut honest = fixture.newest_from(200);
    honest.alloc(64);
    let _idle: Vec<Peer> = (2..9).map(|host| fixture.newest_from(host)).collect();
    let _more: Vec<Peer> = (20..24).map(|host| fixture.newest_from(host)).collect();
    assert!(honest.is_alive());
}

/// Clearing and copying go by turns of peers, so that many connections of one get no more done than another's single one.
#[test]
fn chores_of_many_connections_do_not_crowd_out_another_peer() {
    let fixture = Fixture::new();
    let mut honest = fixture.newest_from(1);
    let handle = honest.alloc(256 << 20);
    let clear = |handle: u64| [&handle.to_le_bytes()[..], &[1]].concat();
    honest.ask(Command::BufferClear, &clear(handle));
    let mut greedy: Vec<Peer> = (0..16).map(|_| fixture.newest_from(2)).collect();
    for peer in &mut greedy {
        let handle = peer.alloc(64 << 20);
        let base = peer.base(handle);
        let half = [(32_u32 << 20) / 4, 1, 1, 1];
        let from = peer.tensor(1, half, (handle, base));
        let to = peer.tensor(2, half, (handle, base + (32 << 20)));
        let clear = request(Command::BufferClear as u8, &clear(handle));
        let copy = request(Command::CopyTensor as u8, &[from.as_bytes(), to.as_bytes()].concat());
        // What a socket takes at once; the answers are not read.
        peer.stream.write_all(&[clear, copy].concat().repeat(60)).unwrap();
    }
    let before = fixture.counters().commands;
    fixture.until("all are at work", |fixture| fixture.counters().commands > before + 4);
    // It takes 16 turns. So many commands are at most begun at each, and a few were under way; without turns by peers it would be
    // about 85. A machine that is busy with other things may let others go on before this is counted, but not always.
    let turns = std::thread::available_parallelism().unwrap().get() as u64 / 2;
    let most = 32 + 8 * turns.max(1);
    let mut tries = Vec::new();
    while tries.last().is_none_or(|done| *done >= most) {
        assert!(tries.len() < 8, "commands of others: {tries:?}");
        let before = fixture.counters().commands;
        honest.ask(Command::BufferClear, &clear(handle));
        tries.push(fixture.counters().commands - before);
    }
    Example::new(&mut honest).check();
    drop(greedy);
    drop(honest);
    fixture.until_empty();
}

/// Content that the cache keeps.
fn content(number: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(number)).collect()
}

fn host(number: u8) -> Domain {
    Domain::of_address(([192, 0, 2, number], 1).into())
}

const MB: usize = 1 << 20;

#[test]
fn an_announcement_evicts_nothing() {
    let disk = Disk::new();
    let cache = disk.open_with(|settings| settings.max_bytes = 8 << 20);
    assert!(cache.stores(&host(1), &content(1, 2 * MB)) && cache.stores(&host(1), &content(3, 2 * MB)));
    let mut keeping = cache.cache.keep(&host(2), 7 << 20).unwrap();
    keeping.add(&content(5, 300_000));
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(cache.cache.counts().evicted, 0);
    drop(keeping);
    cache.cache.finish(PATIENCE);
    assert!(cache.serves(&host(1), &content(1, 2 * MB)) && cache.serves(&host(1), &content(3, 2 * MB)));
}

#[test]
fn a_domain_that_has_most_evicts_its_own() {
    let disk = Disk::new();
    let cache = disk.open_with(|settings| settings.max_bytes = 8 << 20);
    // The oldest is of the one that has little.
    assert!(cache.stores(&host(1), &content(1, 2 * MB)));
    for number in 0..20 {
        assert!(cache.stores(&host(2), &content(3 + 2 * number, MB)), "{number}");
    }
    assert!(cache.serves(&host(1), &content(1, 2 * MB)), "it went for one that had more");
    // What is left is shared, up to equal parts.
    for number in 0..2 {
        assert!(cache.stores(&host(3), &content(101 + 2 * number, MB)));
    }
    assert!(cache.serves(&host(1), &content(1, 2 * MB)) && cache.serves(&host(3), &content(101, MB)));
}

/// A machine in a network of version 6.
fn machine(network: u16, number: u16) -> Domain {
    Domain::of_address(([0x2001, 0xdb8, 0, network, 0, 0, 0, number], 1).into())
}

#[test]
fn addresses_of_one_network_have_one_share_of_the_cache() {
    let disk = Disk::new();
    let cache = disk.open_with(|settings| settings.max_bytes = 8 << 20);
    let kept: Vec<_> = (0..3).map(|number| content(1 + 2 * number, MB)).collect();
    assert!(kept.iter().all(|content| cache.stores(&host(1), content)));
    // Each upload comes from an address of its own.
    for number in 0..20 {
        assert!(cache.stores(&machine(1, number), &content(11 + 2 * number as u8, MB)), "{number}");
    }
    assert!(
        kept.iter().all(|content| cache.serves(&host(1), content)),
        "many addresses count for more than one"
    );
    // What one of them has sent is still served to no other.
    let last = content(11 + 2 * 19, MB);
    assert!(cache.serves(&machine(1, 19), &last) && !cache.serves(&machine(1, 18), &last));
    // Another network has a share of its own.
    assert!(
        cache.stores(&machine(2, 1), &content(101, MB)) && cache.stores(&machine(2, 2), &content(103, MB))
    );
    assert!(cache.serves(&machine(2, 1), &content(101, MB)) && cache.serves(&host(1), &kept[0]));
}

#[test]
fn a_share_of_the_cache_is_shared_by_its_addresses() {
    let disk = Disk::new();
    let cache = disk.open_with(|settings| settings.max_bytes = 8 << 20);
    assert!(cache.stores(&host(1), &content(1, MB)));
    let kept: Vec<_> = (0..2).map(|number| content(3 + 2 * number, MB)).collect();
    assert!(kept.iter().all(|content| cache.stores(&machine(1, 1), content)));
    for number in 0..20 {
        assert!(cache.stores(&machine(1, 2), &content(11 + 2 * number, MB)), "{number}");
    }
    assert!(
        kept.iter().all(|content| cache.serves(&machine(1, 1), content)),
        "they went for one that had more"
    );
    assert!(cache.serves(&host(1), &content(1, MB)));
}
