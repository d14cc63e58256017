//! Bytes that clients name by their content: from the cache, and from files of the worker's own. `docs/threats.md` says which threat each
//! test answers. There is no cache where its folder cannot be trusted.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;
mod common_cache;

use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common_cache::{Cache, Disk, collision, content, host_range, other, place, user, with_cache};
use oxcart_backend::{Content, Error, Registry, Usage, allocate};
use oxcart_rpc::client::{Options, RemoteRegistry};
use oxcart_rpc::wire::{Command, Dialect, Take, TensorRecord, content_of, fnv1a};
use oxcart_rpc::worker::{Copies, Domain};
use oxcart_testdev::Config as DeviceConfig;

use common::{Fixture, Peer, dial_from, dialects, get_body};

impl Cache {
    /// What a place of this length holds once a content was asked for, and whether it is that.
    fn takes(&self, domain: &Domain, content: &Content, len: usize) -> (bool, Vec<u8>) {
        let mut into = host_range(len + 128);
        into.buffer.fill(0, len + 128, 0xaa).unwrap();
        (into.offset, into.len) = (64, len);
        let hit = self.cache.take(domain, content, &into, &mut |_| true).unwrap();
        let bytes = common_cache::bytes_of(&into);
        let around = bytes[..64].iter().chain(&bytes[64 + len..]);
        assert!(around.into_iter().all(|&byte| byte == 0xaa), "only the place itself is written to");
        (hit, bytes[64..64 + len].to_vec())
    }
}

fn take(peer: &mut Peer, record: &TensorRecord, content: Content) -> bool {
    let answer = peer.ask(Command::Take, &Take { record: *record, content }.encode());
    assert!(answer == [0] || answer == [1], "{answer:?}");
    answer == [1]
}

fn own(fixture: &Fixture) -> Peer {
    Peer::connect(fixture.auto, Dialect::own())
}

/// Contents in memory.
#[derive(Debug, Default)]
struct InMemory {
    /// By digest, what is there, whatever it is.
    found: HashMap<[u8; 32], Vec<u8>>,
    doubted: AtomicUsize,
}

impl Copies for InMemory {
    fn open(&self, digest: &[u8; 32], _len: u64) -> Option<Box<dyn Read + '_>> {
        Some(Box::new(self.found.get(digest)?.as_slice()))
    }

    fn doubt(&self, _digest: &[u8; 32]) {
        self.doubted.fetch_add(1, Ordering::Relaxed);
    }
}

fn with_copies(found: &[(&[u8], &[u8])]) -> (Fixture, Arc<InMemory>) {
    let found = found.iter().map(|(named, there)| (content_of(named).digest, there.to_vec())).collect();
    let copies = Arc::new(InMemory { found, ..InMemory::default() });
    let given = Arc::clone(&copies);
    (Fixture::with(DeviceConfig::default(), |config| config.copies = Some(given)), copies)
}

#[test]
fn what_is_kept_is_taken_by_its_digest() {
    let disk = Disk::new();
    let fixture = with_cache(disk.open());
    let weights = content(1);
    let mut first = own(&fixture);
    let record = place(&mut first, weights.len());
    assert!(!take(&mut first, &record, content_of(&weights)));
    first.upload(&record, &weights, true);
    fixture.until("it is kept", |fixture| fixture.counters().cache.stored == 1);
    drop(first);

    let mut second = own(&fixture);
    let record = place(&mut second, weights.len());
    let before = fixture.counters().bytes_in;
    assert!(take(&mut second, &record, content_of(&weights)));
    assert!(fixture.counters().bytes_in - before < 1000);
    assert!(second.get(&record, 0, weights.len() as u64) == weights);
    let counters = fixture.counters();
    assert_eq!((counters.cache_hits, counters.cache_misses, counters.copied), (1, 1, 0));
    // Stock clients know nothing of it, and find the same by its hash.
    let mut stock = fixture.newest();
    let record = place(&mut stock, weights.len());
    assert!(stock.has(&record, &weights));
    stock.assert_refused(Command::Take, &Take { record, content: content_of(&weights) }.encode());
}

/// K12: a digest, with the hash of something else or of nothing.
#[test]
fn a_digest_gives_access_to_nothing_but_its_own_content() {
    let disk = Disk::new();
    let cache = disk.open();
    let (x, y) = collision();
    assert!(cache.stores(&user(), &x));
    let (of_x, of_y) = (content_of(&x), content_of(&y));
    assert_eq!(of_x.hash, of_y.hash);
    let (hit, bytes) = cache.takes(&user(), &of_y, x.len());
    assert!(!hit && bytes.iter().all(|&byte| byte == 0), "nothing is left of what it is not");
    assert_eq!(cache.cache.counts().rejected, 0, "the entry is good");
    let wrong_hash = Content { hash: of_x.hash ^ 1, ..of_x };
    let (hit, bytes) = cache.takes(&user(), &wrong_hash, x.len());
    assert!(!hit && bytes.iter().all(|&byte| byte == 0xaa));
    for len in [x.len() - 4, x.len() + 4] {
        assert!(!cache.takes(&user(), &of_x, len).0, "{len}");
    }
    assert_eq!(cache.takes(&user(), &of_x, x.len()), (true, x));
}

/// K12: what others have sent, by a client that knows all about it.
#[test]
fn a_digest_does_not_give_access_to_what_others_have_sent() {
    let disk = Disk::new();
    let cache = disk.by_address();
    let fixture = with_cache(cache);
    let weights = content(2);
    let mut first = own(&fixture);
    let record = place(&mut first, weights.len());
    first.upload(&record, &weights, true);
    fixture.until("it is kept", |fixture| fixture.counters().cache.stored == 1);
    let mut thief = Peer::greet(dial_from(2, fixture.auto), Dialect::own());
    let record = place(&mut thief, weights.len());
    thief.set(&record, 0, &vec![5; weights.len()]);
    assert!(!take(&mut thief, &record, content_of(&weights)));
    assert!(thief.get(&record, 0, weights.len() as u64).iter().all(|&byte| byte == 5), "nothing was written");
    // What the operator lends to all is there for all.
    fs::create_dir(disk.path().join("shared")).unwrap();
    let entry = disk.entries().pop().unwrap();
    fs::rename(&entry, disk.path().join("shared").join(entry.file_name().unwrap())).unwrap();
    assert!(take(&mut thief, &record, content_of(&weights)));
    assert!(thief.get(&record, 0, weights.len() as u64) == weights);
}

/// Nothing of a damaged entry, or of one that was swapped with another, is left in the client's tensor.
#[test]
fn damaged_entries_are_not_taken() {
    let disk = Disk::new();
    let cache = disk.open();
    let weights = content(3);
    let of_weights = content_of(&weights);
    let damages: [fn(&mut Vec<u8>); 4] = [
        |entry| entry[64] ^= 1,
        |entry| *entry.last_mut().unwrap() ^= 0x80,
        |entry| entry[40] ^= 1,
        |entry| entry.truncate(1000),
    ];
    for (at, damage) in damages.into_iter().enumerate() {
        assert!(cache.stores(&user(), &weights));
        let path = disk.entry(&user(), &weights);
        let mut entry = fs::read(&path).unwrap();
        damage(&mut entry);
        fs::write(&path, entry).unwrap();
        let (hit, bytes) = cache.takes(&user(), &of_weights, weights.len());
        let is_nothing = bytes.iter().all(|&byte| byte == 0) || bytes.iter().all(|&byte| byte == 0xaa);
        assert!(!hit && is_nothing, "{at}");
        assert!(!path.exists(), "{at}: it is removed");
        assert_eq!(cache.cache.counts().rejected, at as u64 + 1);
    }
    assert!(!cache.takes(&other(), &of_weights, weights.len()).0);
}

/// A client that leaves in the middle is not waited for, and the entry stays.
#[test]
fn taking_ends_when_nothing_is_wanted_any_more() {
    let disk = Disk::new();
    let cache = disk.open();
    let weights = content(4);
    assert!(cache.stores(&user(), &weights));
    let into = host_range(weights.len());
    let mut asked = 0;
    let mut go_on = |_| {
        asked += 1;
        asked < 3
    };
    assert!(!cache.cache.take(&user(), &content_of(&weights), &into, &mut go_on).unwrap());
    assert_eq!((asked, cache.cache.counts().rejected), (3, 0));
    assert!(cache.takes(&user(), &content_of(&weights), weights.len()).0);
}

/// K13: own files serve clients that name a whole digest, and no others.
#[test]
fn own_files_are_found_by_the_digest_alone() {
    let (weights, small) = (content(5), vec![7; 64]);
    let (fixture, copies) = with_copies(&[(&weights, &weights), (&small, &small)]);
    for bytes in [&weights, &small] {
        let mut peer = own(&fixture);
        let record = place(&mut peer, bytes.len());
        let before = fixture.counters().bytes_in;
        let named = Content { hash: 0, ..content_of(bytes) };
        assert!(take(&mut peer, &record, named), "the hash does not matter");
        assert!(fixture.counters().bytes_in - before < 1000);
        assert!(peer.get(&record, 0, bytes.len() as u64) == *bytes);
        let mut digest = content_of(bytes).digest;
        digest[31] ^= 1;
        assert!(!take(&mut peer, &record, Content { digest, ..named }));
    }
    assert_eq!(fixture.counters().copied, 2);
    for dialect in dialects() {
        let mut peer = fixture.connect(dialect);
        let record = place(&mut peer, weights.len());
        let asked = peer.ask(Command::SetTensorHash, &get_body(&record, 0, fnv1a(&weights)));
        assert_eq!(asked, [0], "{dialect}: a hash is not enough");
    }
    assert_eq!(copies.doubted.load(Ordering::Relaxed), 0);
}

/// K13: a file that changed after its digests were computed.
#[test]
fn own_files_that_have_changed_are_not_taken() {
    let (weights, mut changed) = (content(6), content(6));
    changed[1_000_000] ^= 1;
    let short = &weights[..weights.len() - 1];
    for there in [&changed, short] {
        let (fixture, copies) = with_copies(&[(&weights, there)]);
        let mut peer = own(&fixture);
        let record = place(&mut peer, weights.len());
        assert!(!take(&mut peer, &record, content_of(&weights)));
        let left = peer.get(&record, 0, weights.len() as u64);
        assert!(left.iter().all(|&byte| byte == 0), "nothing is left of what it is not");
        assert_eq!((copies.doubted.load(Ordering::Relaxed), fixture.counters().copied), (1, 0));
    }
}

/// Bodies of other lengths, and tensors that are not the client's.
#[test]
fn what_is_taken_goes_where_the_client_may_write() {
    let weights = content(7);
    let (fixture, _) = with_copies(&[(&weights, &weights)]);
    let mut victim = own(&fixture);
    let record = place(&mut victim, weights.len());
    let body = Take { record, content: content_of(&weights) }.encode();
    own(&fixture).assert_refused(Command::Take, &body);
    for size in [0, 8, body.len() - 1, body.len() + 1] {
        let mut wrong = body.clone();
        wrong.resize(size, 0);
        own(&fixture).assert_refused(Command::Take, &wrong);
    }
    let mut outside = record;
    outside.data = (record.data.get() + 4).into();
    own(&fixture)
        .assert_refused(Command::Take, &Take { record: outside, ..Take::decode(&body).unwrap() }.encode());
    assert!(victim.get(&record, 0, weights.len() as u64).iter().all(|&byte| byte == 0));
}

/// Our own client over a worker with a cache: bytes that the worker has are neither sent nor looked at.
#[test]
fn the_client_looks_at_nothing_that_the_worker_has() {
    let disk = Disk::new();
    let fixture = with_cache(disk.open());
    let weights = content(8);
    let options = Options { worker_cache: true, ..Options::default() };
    let connect = || {
        let registry = RemoteRegistry::connect(&fixture.auto.to_string(), &options).unwrap();
        let buffer = allocate(&registry.devices()[0].buffer_type(), weights.len()).unwrap();
        buffer.set_usage(Usage::Weights);
        (registry, buffer)
    };
    let read = |buffer: &dyn oxcart_backend::Buffer| {
        let mut bytes = vec![1; weights.len()];
        buffer.read(0, &mut bytes).unwrap();
        bytes
    };
    let (registry, buffer) = connect();
    let known = buffer.content_of(&weights).unwrap();
    assert_eq!(known, content_of(&weights));
    assert_eq!(buffer.content_of(&weights[..128 << 10]), None, "small ones are sent");
    buffer.write_known(0, &weights, &known).unwrap();
    assert!(read(&*buffer) == weights);
    fixture.until("it is kept", |fixture| fixture.counters().cache.stored == 1);
    let sent = |registry: &RemoteRegistry| registry.traffic().of(Command::SetTensor).messages;
    assert_eq!(sent(&registry), 1);

    // Had it looked at these, it would have sent them, or at least hashed them.
    let none = vec![0; weights.len()];
    let (registry, buffer) = connect();
    buffer.write_known(0, &none, &known).unwrap();
    assert!(read(&*buffer) == weights);
    assert_eq!(sent(&registry), 0);
    assert_eq!(registry.traffic().of(Command::SetTensorHash).messages, 0);
    assert!(registry.traffic().total().bytes_sent < 2000);

    // What the cache has lost is sent again.
    fs::remove_file(disk.entry(&user(), &weights)).unwrap();
    let (registry, buffer) = connect();
    buffer.write_known(0, &weights, &known).unwrap();
    assert!(read(&*buffer) == weights);
    assert_eq!(sent(&registry), 1);
    assert!(matches!(buffer.write_known(4, &weights, &known), Err(Error::OutOfBounds { .. })));
}

/// A worker of the version before, and a stock one, are asked by the hash that is known, so nothing is read for them either.
#[test]
fn workers_that_know_no_digests_are_asked_by_hash() {
    let disk = Disk::new();
    let fixture = with_cache(disk.open());
    let weights = content(9);
    let known = content_of(&weights);
    let options = Options { worker_cache: true, ..Options::default() };
    let connect = |address| {
        let registry = RemoteRegistry::connect(&format!("{address}"), &options).unwrap();
        let buffer = allocate(&registry.devices()[0].buffer_type(), weights.len()).unwrap();
        buffer.set_usage(Usage::Weights);
        (registry, buffer)
    };
    let stock = fixture.address(Dialect::newest());
    let (_registry, buffer) = connect(stock);
    buffer.write_known(0, &weights, &known).unwrap();
    buffer.read(0, &mut [0]).unwrap();
    fixture.until("it is kept", |fixture| fixture.counters().cache.stored == 1);
    let (registry, buffer) = connect(stock);
    buffer.write_known(0, &vec![0; weights.len()], &known).unwrap();
    let mut bytes = vec![1; weights.len()];
    buffer.read(0, &mut bytes).unwrap();
    assert!(bytes == weights);
    let messages = |command| registry.traffic().of(command).messages;
    assert_eq!(
        [Command::Take, Command::SetTensorHash, Command::SetTensor].map(messages),
        [0, 1, 0],
        "{}",
        registry.dialect()
    );
}

/// With files of its own a worker is asked for small tensors, too; without, that would cost a round trip each.
#[test]
fn small_tensors_are_asked_for_where_there_are_own_files() {
    let small = vec![3; 64];
    let (with, _) = with_copies(&[(&small, &small)]);
    let without = Fixture::new();
    let options = Options { worker_cache: true, ..Options::default() };
    let mut log = Vec::new();
    for fixture in [&with, &without] {
        let registry = RemoteRegistry::connect(&fixture.auto.to_string(), &options).unwrap();
        let buffer = allocate(&registry.devices()[0].buffer_type(), 64).unwrap();
        buffer.set_usage(Usage::Weights);
        match buffer.content_of(&small) {
            Some(known) => buffer.write_known(0, &[0; 64], &known).unwrap(),
            None => buffer.write(0, &small).unwrap(),
        }
        let mut bytes = [1; 64];
        buffer.read(0, &mut bytes).unwrap();
        assert_eq!(bytes.to_vec(), small);
        let messages = |command| registry.traffic().of(command).messages;
        log.push([Command::Take, Command::SetTensor].map(messages));
    }
    assert_eq!(log, [[1, 0], [0, 1]]);
}
