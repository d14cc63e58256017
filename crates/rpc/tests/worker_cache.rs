//! The cache of weights under attack and on failing disks. `docs/threats.md` says which threat each test answers. There
//! is no cache where its folder cannot be trusted.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;
mod common_cache;

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, Command as Process, Stdio};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use common_cache::{
    Disk, FailingGate, LARGE, Stuck, attacker, bytes_of, collision, content, host_range, other, place, user,
    with_cache,
};
use oxcart_rpc::wire::{Command, Dialect, fnv1a};
use oxcart_rpc::worker::{CacheSettings, Call, Gate, WeightCache};

use common::{Fixture, PATIENCE, dialects, get_body};

/// Between its beginning and its program, a process that is started holds all locks of files that this one holds. A test that needs
/// locks to be gone reads this.
static STARTING: RwLock<()> = RwLock::new(());

// The protocol.

#[test]
fn a_client_that_comes_back_need_not_send_again() {
    for dialect in dialects() {
        let disk = Disk::new();
        let fixture = with_cache(disk.open());
        let weights = content(1);
        let mut first = fixture.connect(dialect);
        let record = place(&mut first, weights.len());
        assert!(!first.has(&record, &weights), "{dialect}");
        first.upload(&record, &weights, true);
        fixture.until("it is kept", |fixture| fixture.counters().cache.stored == 1);
        drop(first);

        let mut second = fixture.connect(dialect);
        let record = place(&mut second, weights.len());
        let sent = fixture.counters().bytes_in;
        assert!(second.has(&record, &weights), "{dialect}");
        assert!(fixture.counters().bytes_in - sent < 1000);
        assert!(second.get(&record, 0, weights.len() as u64) == weights, "{dialect}");
        let counters = fixture.counters();
        assert_eq!((counters.cache_hits, counters.cache_misses, counters.cache.failed), (1, 1, 0));
    }
}

#[test]
fn only_what_is_worth_it_is_kept() {
    let disk = Disk::new();
    let fixture = with_cache(disk.open());
    let content_1 = content(1);
    // Version 7 says what to keep, and may ask for less.
    for (dialect, most) in [(Dialect::classic(), LARGE - 4), (Dialect::newest(), 128 << 10)] {
        let small = &content_1[..most];
        let mut peer = fixture.connect(dialect);
        let record = place(&mut peer, small.len());
        peer.upload(&record, small, true);
        assert!(!peer.has(&record, small));
    }
    let mut peer = fixture.newest();
    let record = place(&mut peer, LARGE);
    peer.upload(&record, &content(2), false);
    assert!(!peer.has(&record, &content(2)));
    assert!(disk.entries().is_empty());
    let asked = &content_1[..(128 << 10) + 4];
    let record = place(&mut peer, asked.len());
    peer.upload(&record, asked, true);
    fixture.until("it is kept", |fixture| fixture.counters().cache.stored == 1);
    assert!(peer.has(&record, asked));
    assert_eq!(fixture.shutdown(PATIENCE).cache.stored, 1);
}

#[test]
fn without_a_cache_nothing_is_kept() {
    let fixture = Fixture::new();
    let mut peer = fixture.newest();
    let record = place(&mut peer, LARGE);
    peer.upload(&record, &content(1), true);
    assert!(!peer.has(&record, &content(1)));
}

#[test]
fn an_upload_that_ends_early_leaves_nothing_behind() {
    let disk = Disk::new();
    let fixture = with_cache(disk.open());
    let mut peer = fixture.newest();
    let record = place(&mut peer, LARGE);
    let body = peer.upload_body(&record, &content(1), true);
    let whole = common::request(Command::SetTensor as u8, &body);
    std::io::Write::write_all(&mut peer.stream, &whole[..LARGE / 2]).unwrap();
    drop(peer);
    fixture.until("it is given up", |fixture| fixture.counters().cache.failed == 1);
    assert!(disk.names().is_empty(), "{:?}", disk.names());
}

#[test]
fn announcements_take_no_place_of_those_who_write() {
    let disk = Disk::new();
    let fixture = with_cache(disk.open());
    let announce = || {
        let mut peer = fixture.newest();
        let record = place(&mut peer, LARGE);
        let whole = common::request(Command::SetTensor as u8, &peer.upload_body(&record, &content(1), true));
        std::io::Write::write_all(&mut peer.stream, &whole[..whole.len() - LARGE]).unwrap();
        peer
    };
    let mut peer = fixture.newest();
    let record = place(&mut peer, LARGE);
    let _announced: Vec<_> = (0..8).map(|_| announce()).collect();
    std::thread::sleep(Duration::from_millis(200));
    assert!(disk.names().is_empty(), "{:?}", disk.names());
    peer.upload(&record, &content(2), true);
    fixture.until("it is kept", |fixture| fixture.counters().cache.stored == 1);
    assert_eq!(fixture.counters().cache.failed, 0);
}

#[test]
fn uploads_that_stop_make_way_for_others_of_their_domain() {
    let disk = Disk::new();
    let stall = Duration::from_millis(500);
    let cache = disk.open_with(|settings| settings.stall = stall).cache;
    let mut stopped: Vec<_> = (0..4).map(|_| cache.keep(&user(), LARGE as u64).unwrap()).collect();
    stopped.iter_mut().for_each(|keeping| keeping.add(&[1; 300_000]));
    std::thread::sleep(3 * stall);
    assert_eq!(cache.counts().failed, 0, "no one else wanted a place");
    let mut keeping = cache.keep(&user(), LARGE as u64).unwrap();
    keeping.add(&content(1));
    keeping.complete();
    let start = Instant::now();
    while cache.counts().stored == 0 {
        assert!(start.elapsed() < PATIENCE, "{:?}", cache.counts());
        std::thread::sleep(Duration::from_millis(10));
    }
}

// Colliding hashes, and contents of other clients.

#[test]
fn of_two_contents_with_one_hash_neither_is_served() {
    let (x, y) = collision();
    let disk = Disk::new();
    let cache = disk.open();
    assert!(cache.stores(&user(), &x));
    assert!(cache.serves(&user(), &x));
    // A client that offers the hash of the other gets what was there: the collision is not known yet.
    assert!(!cache.stores(&user(), &y));
    assert_eq!(cache.cache.counts().collisions, 1);
    for cache in [cache, disk.open()] {
        for content in [&x, &y] {
            assert!(cache.loads(&user(), fnv1a(&x), LARGE).is_none());
            assert!(!cache.stores(&user(), content));
            assert!(cache.loads(&user(), fnv1a(&x), LARGE).is_none());
        }
        assert!(cache.stores(&user(), &content(1)) && cache.serves(&user(), &content(1)));
    }
}

#[test]
fn collisions_are_not_forgotten_when_they_cannot_be_noted() {
    let (x, y) = collision();
    let disk = Disk::new();
    let gate = FailingGate::new(ErrorKind::StorageFull);
    let cache = disk.open_behind(&gate);
    assert!(cache.stores(&user(), &x));
    // The first file that is made is the content, the second would be the note.
    gate.fail(Call::Create, 1);
    assert!(!cache.stores(&user(), &y));
    assert_eq!((cache.cache.counts().collisions, gate.failed()), (1, 1));
    assert!(!cache.stores(&user(), &y));
    assert!(cache.loads(&user(), fnv1a(&x), LARGE).is_none());
}

#[test]
fn a_domain_with_too_many_collisions_is_closed() {
    let (x, y) = collision();
    let disk = Disk::new();
    let cache = disk.open();
    assert!(cache.stores(&user(), &content(1)) && cache.stores(&user(), &x));
    for number in 0..1024 {
        fs::write(disk.folder(&user()).join(format!("{number:016x}.collision")), []).unwrap();
    }
    assert!(cache.serves(&user(), &content(1)));
    assert!(!cache.stores(&user(), &y));
    assert!(!cache.serves(&user(), &content(1)) && !cache.serves(&user(), &x));
    assert!(!cache.stores(&user(), &content(2)));
    assert!(cache.stores(&other(), &content(2)) && cache.serves(&other(), &content(2)));
}

#[test]
fn what_one_tenant_stores_never_reaches_another() {
    let (x, y) = collision();
    for dialect in [Dialect::classic(), Dialect::newest()] {
        let disk = Disk::new();
        let fixture = with_cache(disk.by_address());
        // The attacker comes from another address and stores content with the hash of the victim's.
        let mut bad = attacker(&fixture, dialect);
        let record = place(&mut bad, LARGE);
        bad.upload(&record, &x, true);
        fixture.until("it is kept", |fixture| fixture.counters().cache.stored == 1);

        let mut victim = fixture.connect(dialect);
        let record = place(&mut victim, LARGE);
        assert!(!victim.has(&record, &y), "{dialect}");
        victim.upload(&record, &y, true);
        fixture.until("it is kept", |fixture| fixture.counters().cache.stored == 2);
        let mut again = fixture.connect(dialect);
        let record = place(&mut again, LARGE);
        assert!(again.has(&record, &y));
        assert!(again.get(&record, 0, LARGE as u64) == y);
    }
}

#[test]
fn a_hash_alone_does_not_give_access_to_the_content_of_others() {
    for dialect in [Dialect::classic(), Dialect::newest()] {
        let disk = Disk::new();
        let fixture = with_cache(disk.by_address());
        let secret = content(1);
        let mut owner = fixture.connect(dialect);
        let record = place(&mut owner, LARGE);
        owner.upload(&record, &secret, true);
        fixture.until("it is kept", |fixture| fixture.counters().cache.stored == 1);
        assert!(owner.has(&record, &secret));

        let mut thief = attacker(&fixture, dialect);
        let record = place(&mut thief, LARGE);
        assert!(!thief.has(&record, &secret), "{dialect}");
        assert!(thief.get(&record, 0, LARGE as u64).iter().all(|&byte| byte == 0));
    }
}

#[test]
fn clients_without_a_domain_get_nothing() {
    let disk = Disk::new();
    let mut settings = disk.settings();
    settings.domain_of = |_, _| None;
    let fixture = with_cache(WeightCache::open(&settings).unwrap());
    let mut peer = fixture.newest();
    let record = place(&mut peer, LARGE);
    peer.upload(&record, &content(1), true);
    assert!(!peer.has(&record, &content(1)));
    assert_eq!(fixture.shutdown(PATIENCE).cache.stored, 0);
}

#[test]
fn what_an_operator_lends_is_served_to_all_and_never_touched() {
    let (x, y) = collision();
    let disk = Disk::new();
    let cache = disk.open();
    assert!(cache.stores(&user(), &x));
    let shared = disk.path().join("shared");
    fs::create_dir(&shared).unwrap();
    let lent = shared.join(format!("{:016x}.weights", fnv1a(&x)));
    fs::rename(disk.entry(&user(), &x), &lent).unwrap();
    for domain in [user(), other()] {
        assert!(cache.serves(&domain, &x));
        // It is not kept a second time.
        assert!(cache.stores(&domain, &x));
        assert!(!disk.entry(&domain, &x).exists());
    }
    // A collision is that domain's alone.
    assert!(!cache.stores(&other(), &y));
    assert!(cache.loads(&other(), fnv1a(&x), LARGE).is_none());
    assert!(cache.serves(&user(), &x));
    // Damage is a miss, but the file is the operator's.
    let mut bytes = fs::read(&lent).unwrap();
    bytes[5000] ^= 1;
    fs::write(&lent, bytes).unwrap();
    assert!(cache.loads(&user(), fnv1a(&x), LARGE).is_none());
    assert_eq!(cache.cache.counts().rejected, 1);
    assert!(lent.exists());
}

// Damage.

/// A damaged entry is a miss, removed and counted; the place is not touched; sending the content repairs it.
#[track_caller]
fn assert_repaired(what: &str, damage: impl Fn(&Disk, PathBuf)) {
    let disk = Disk::new();
    let cache = disk.open();
    let weights = content(1);
    assert!(cache.stores(&user(), &weights) && cache.serves(&user(), &weights));
    let entry = disk.entry(&user(), &weights);
    damage(&disk, entry.clone());
    assert!(cache.loads(&user(), fnv1a(&weights), LARGE).is_none(), "{what}");
    assert_eq!(cache.cache.counts().rejected, 1, "{what}");
    assert!(fs::symlink_metadata(&entry).is_err(), "{what}: it is still there");
    assert!(cache.stores(&user(), &weights) && cache.serves(&user(), &weights), "{what}");
    // Nor does it matter whether the entry was asked for before.
    damage(&disk, entry);
    assert!(cache.stores(&user(), &weights) && cache.serves(&user(), &weights), "{what}");
    assert_eq!(cache.cache.counts().collisions, 0, "{what}");
}

fn rewrite(entry: PathBuf, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(&entry).unwrap();
    change(&mut bytes);
    fs::write(&entry, bytes).unwrap();
}

#[test]
fn damaged_entries_are_replaced() {
    let len = LARGE + 64;
    for keep in [0, 1, 63, 64, 65, len / 2, len - 1] {
        assert_repaired(&format!("cut to {keep}"), |_, entry| rewrite(entry, |bytes| bytes.truncate(keep)));
    }
    assert_repaired("extended", |_, entry| rewrite(entry, |bytes| bytes.push(0)));
    assert_repaired("zeroed", |_, entry| rewrite(entry, |bytes| bytes[64..].fill(0)));
    assert_repaired("swapped with another", |disk, entry| {
        let other = content(2);
        disk.open().stores(&user(), &other);
        fs::rename(disk.entry(&user(), &other), entry).unwrap();
    });
    // A longer one that says so is none that was asked for, so it is found out when it is in the way.
    let disk = Disk::new();
    let cache = disk.open();
    let weights = content(1);
    assert!(cache.stores(&user(), &weights));
    rewrite(disk.entry(&user(), &weights), |bytes| {
        bytes[24..32].copy_from_slice(&(LARGE as u64 + 1).to_le_bytes());
        bytes.push(0);
    });
    assert!(cache.loads(&user(), fnv1a(&weights), LARGE).is_none());
    assert!(cache.stores(&user(), &weights) && cache.serves(&user(), &weights));
    assert_eq!((cache.cache.counts().rejected, cache.cache.counts().collisions), (1, 0));
}

#[test]
fn one_flipped_bit_anywhere_is_found() {
    let disk = Disk::new();
    // What is rejected cannot be removed, so that it can be damaged elsewhere next.
    let gate = FailingGate::new(ErrorKind::PermissionDenied);
    let cache = disk.open_behind(&gate);
    let weights = content(1);
    assert!(cache.stores(&user(), &weights));
    gate.fail_always(Call::Remove);
    let entry = fs::File::options().write(true).read(true).open(disk.entry(&user(), &weights)).unwrap();
    let flip = |place: u64| {
        let mut byte = [0];
        entry.read_exact_at(&mut byte, place).unwrap();
        entry.write_all_at(&[byte[0] ^ 1 << (place % 8)], place).unwrap();
    };
    // Every byte of the header, and a thousand places behind it.
    let places = (0..64).chain((0..1000).map(|n| 64 + n * (LARGE as u64 / 1000)));
    let (hash, into) = (fnv1a(&weights), host_range(LARGE));
    for (place, rejected) in places.chain([LARGE as u64 + 63]).zip(1..) {
        flip(place);
        assert!(!cache.cache.load(&user(), hash, &into, &mut |_| true), "byte {place}");
        assert_eq!(cache.cache.counts().rejected, rejected, "byte {place}");
        flip(place);
    }
    assert!(bytes_of(&into).iter().all(|&byte| byte == 0), "nothing of it was ever written");
    assert!(cache.serves(&user(), &weights));
}

// Files and folders that are not the worker's.

#[test]
fn entries_that_are_not_our_files_are_replaced() {
    let replace = |entry: &PathBuf| fs::remove_file(entry).unwrap();
    assert_repaired("a folder", |_, entry| {
        replace(&entry);
        fs::create_dir(entry).unwrap();
    });
    // The link leads to a file that would do.
    assert_repaired("a link", |disk, entry| {
        let elsewhere = disk.path().join("elsewhere");
        fs::rename(&entry, &elsewhere).unwrap();
        symlink(&elsewhere, entry).unwrap();
    });
    assert_repaired("a link to nowhere", |_, entry| {
        replace(&entry);
        symlink("nowhere", entry).unwrap();
    });
    assert_repaired("a second name of a file", |disk, entry| {
        let _ = fs::remove_file(disk.path().join("second"));
        fs::hard_link(&entry, disk.path().join("second")).unwrap();
    });
    assert_repaired("a pipe", |_, entry| {
        replace(&entry);
        rustix::fs::mkfifoat(rustix::fs::CWD, entry, rustix::fs::Mode::RWXU).unwrap();
    });
    assert_repaired("a socket", |_, entry| {
        replace(&entry);
        drop(UnixListener::bind(entry).unwrap());
    });
    assert_repaired("a file that others may write to", |_, entry| {
        fs::set_permissions(entry, fs::Permissions::from_mode(0o622)).unwrap();
    });
    // What cannot be removed stays a miss.
    let disk = Disk::new();
    let cache = disk.open();
    let entry = disk.entry(&user(), &content(1));
    fs::create_dir_all(entry.join("not empty")).unwrap();
    fs::set_permissions(disk.folder(&user()), fs::Permissions::from_mode(0o700)).unwrap();
    assert!(cache.loads(&user(), fnv1a(&content(1)), LARGE).is_none());
    assert!(!cache.stores(&user(), &content(1)));
    assert!(entry.join("not empty").exists());
}

#[test]
fn entries_that_cannot_be_opened_are_misses() {
    let disk = Disk::new();
    let gate = FailingGate::new(ErrorKind::PermissionDenied);
    let cache = disk.open_behind(&gate);
    assert!(cache.stores(&user(), &content(1)));
    gate.fail(Call::Open, 0);
    assert!(cache.loads(&user(), fnv1a(&content(1)), LARGE).is_none());
    assert_eq!(cache.cache.counts().rejected, 1);
    assert!(cache.stores(&user(), &content(1)) && cache.serves(&user(), &content(1)));
    // That there are no descriptors left says nothing about the file.
    let gate = FailingGate::new(ErrorKind::Other);
    let cache = disk.open_behind(&gate);
    gate.fail(Call::Open, 0);
    assert!(cache.loads(&user(), fnv1a(&content(1)), LARGE).is_none());
    assert_eq!(cache.cache.counts().rejected, 0);
    assert!(cache.serves(&user(), &content(1)));
}

#[test]
fn folders_that_are_not_ours_are_not_used() {
    let disk = Disk::new();
    let cache = disk.open();
    assert!(cache.stores(&user(), &content(1)));
    let (folder, elsewhere) = (disk.folder(&user()), disk.path().join("elsewhere"));
    fs::rename(&folder, &elsewhere).unwrap();
    symlink(&elsewhere, &folder).unwrap();
    assert!(!cache.serves(&user(), &content(1)) && !cache.stores(&user(), &content(1)));
    fs::remove_file(&folder).unwrap();
    fs::rename(&elsewhere, &folder).unwrap();
    assert!(cache.serves(&user(), &content(1)));
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    assert!(!cache.serves(&user(), &content(1)) && !cache.stores(&user(), &content(1)));
    fs::set_permissions(disk.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let refused = WeightCache::open(&disk.settings()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
}

#[test]
fn files_and_folders_are_for_their_owner_alone() {
    let disk = Disk::new();
    assert!(disk.open().stores(&user(), &content(1)));
    let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(disk.entry(&user(), &content(1))), 0o600);
    assert_eq!(mode(disk.folder(&user())), 0o700);
    let fresh = disk.path().join("a/b");
    WeightCache::open(&CacheSettings::new(&fresh)).unwrap();
    assert_eq!(mode(fresh), 0o700);
}

// Lengths.

#[test]
fn entries_longer_or_shorter_than_the_tensor_are_misses() {
    for dialect in [Dialect::classic(), Dialect::newest()] {
        let disk = Disk::new();
        let fixture = with_cache(disk.open());
        let weights = content(1);
        let mut peer = fixture.connect(dialect);
        let record = place(&mut peer, LARGE);
        peer.upload(&record, &weights, true);
        fixture.until("it is kept", |fixture| fixture.counters().cache.stored == 1);
        for len in [16, LARGE - 4, LARGE + 4] {
            let record = place(&mut peer, len);
            assert!(!peer.has(&record, &weights), "{len} in {dialect}");
            assert!(peer.get(&record, 0, len as u64).iter().all(|&byte| byte == 0));
        }
        // An offset makes the place shorter, or is refused.
        let hash = fnv1a(&weights);
        assert_eq!(peer.ask(Command::SetTensorHash, &get_body(&record, 4, hash)), [0]);
        assert_eq!(peer.ask(Command::SetTensorHash, &get_body(&record, LARGE as u64, hash)), [0]);
        assert_eq!(peer.ask(Command::SetTensorHash, &get_body(&record, 0, hash)), [1]);
        peer.assert_refused(Command::SetTensorHash, &get_body(&record, LARGE as u64 + 1, hash));
        assert_eq!(fixture.counters().cache.rejected, 0);
    }
}

// Disks that fail, are full or hang.

#[test]
fn an_error_at_any_call_leaves_nothing_wrong_behind() {
    let _no_one_is_started = STARTING.read().unwrap_or_else(PoisonError::into_inner);
    let (weights, hash) = (content(1), fnv1a(&content(1)));
    let mut tried = 0;
    loop {
        let disk = Disk::new();
        let gate = FailingGate::new(ErrorKind::StorageFull);
        let cache = disk.open_behind(&gate);
        gate.fail_any(tried);
        let stored = cache.stores(&user(), &weights);
        let served = cache.loads(&user(), hash, LARGE);
        assert!(served.is_none_or(|bytes| bytes == weights), "call {tried}");
        if gate.failed() == 0 {
            assert!(stored);
            break;
        }
        // Whatever failed, the next worker finds nothing left behind, and the cache works again.
        let cache = disk.open();
        assert_eq!(disk.names().len(), disk.entries().len(), "call {tried}: {:?}", disk.names());
        if tried % 8 == 0 {
            assert!(cache.stores(&user(), &weights) && cache.serves(&user(), &weights), "call {tried}");
        }
        tried += 1;
    }
    assert!(tried > 150, "only {tried} calls");
}

#[test]
fn a_full_disk_affects_no_client() {
    for call in [Call::Create, Call::Reserve, Call::Write, Call::Sync, Call::Rename, Call::Folder] {
        let disk = Disk::new();
        let gate = FailingGate::new(ErrorKind::StorageFull);
        let fixture = with_cache(disk.open_behind(&gate).cache);
        gate.fail_always(call);
        let mut peer = fixture.newest();
        let record = place(&mut peer, LARGE);
        peer.upload(&record, &content(1), true);
        assert!(peer.get(&record, 0, LARGE as u64) == content(1), "{call:?}");
        fixture.until("it is given up", |fixture| fixture.counters().cache.failed == 1);
        assert!(disk.entries().is_empty(), "{call:?}");
        assert!(!peer.has(&record, &content(1)), "{call:?}");
        fixture.assert_serves();
        gate.open();
        peer.upload(&record, &content(1), true);
        fixture.until("it is kept", |fixture| fixture.counters().cache.stored == 1);
    }
}

#[test]
fn a_disk_that_hangs_blocks_no_client() {
    let disk = Disk::new();
    let gate = Stuck::at(Call::Write);
    let patience = Duration::from_secs(1);
    let cache = disk.open_behind_with(&gate, |settings| settings.patience = patience);
    let fixture = with_cache(cache.cache);
    let mut peer = fixture.newest();
    let record = place(&mut peer, LARGE);
    let start = Instant::now();
    peer.upload(&record, &content(1), true);
    assert!(peer.get(&record, 0, LARGE as u64) == content(1));
    // As long as its patience, and not once more for each of the forty pieces that it comes in.
    assert!(start.elapsed() >= patience && start.elapsed() < 20 * patience, "{:?}", start.elapsed());
    // While the disk hangs.
    assert!(fixture.newest().is_alive());
    gate.release();
    fixture.until("it is given up", |fixture| fixture.counters().cache.failed == 1);
    assert!(disk.names().is_empty());
}

/// What `what_a_killed_worker_was_writing_is_cleaned_up` runs and kills.
#[test]
#[ignore = "never ends; another test starts and kills it"]
fn killed_while_writing() {
    let folder = std::env::var_os("OXCART_TEST_CACHE").expect("another test starts this one");
    let settings = CacheSettings { keep_free_bytes: 0, ..CacheSettings::new(folder) };
    let cache = WeightCache::open_behind(&settings, Stuck::at(Call::Sync)).unwrap();
    let mut keeping = cache.keep(&user(), LARGE as u64).unwrap();
    keeping.add(&content(1));
    keeping.complete();
    std::thread::sleep(Duration::from_secs(600));
}

/// A process that ends with the test that has started it.
struct Killed(Child);

impl Killed {
    fn end(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        self.end();
    }
}

#[test]
fn what_a_killed_worker_was_writing_is_cleaned_up() {
    let disk = Disk::new();
    let mut child = {
        let _starting = STARTING.write().unwrap_or_else(PoisonError::into_inner);
        let child = Process::new(std::env::current_exe().unwrap())
            .args(["killed_while_writing", "--exact", "--ignored"])
            .env("OXCART_TEST_CACHE", disk.path())
            .stdout(Stdio::null())
            .spawn();
        Killed(child.unwrap())
    };
    let start = Instant::now();
    while disk.names().is_empty() {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(10));
    }
    // While it lives, what it writes is its own.
    let cache = disk.open();
    assert!(cache.stores(&user(), &content(2)));
    assert_eq!(disk.names().len(), 2);
    child.end();
    assert!(cache.loads(&user(), fnv1a(&content(1)), LARGE).is_none());
    // The next one that looks cleans up.
    let cache = disk.open();
    assert_eq!(disk.names(), [format!("{:016x}.weights", fnv1a(&content(2)))]);
    assert!(cache.stores(&user(), &content(1)) && cache.serves(&user(), &content(1)));
}

const ENTRY: u64 = LARGE as u64 + 64;

#[test]
fn the_least_recently_used_goes_first() {
    let disk = Disk::new();
    let cache = disk.open_with(|settings| settings.max_bytes = 3 * ENTRY);
    let used = |number: u8| cache.serves(&user(), &content(number));
    for number in 1..=3 {
        assert!(cache.stores(&user(), &content(number)));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(used(1));
    std::thread::sleep(Duration::from_millis(20));
    // Another domain's is as good as one's own.
    assert!(cache.stores(&other(), &content(4)));
    assert_eq!(disk.entries().len(), 3);
    assert!(used(1) && !used(2) && used(3) && cache.serves(&other(), &content(4)));
    assert_eq!(cache.cache.counts().evicted, 1);
    // Content larger than the whole cache evicts nothing.
    let small = disk.open_with(|settings| settings.max_bytes = ENTRY - 1);
    assert!(disk.entries().is_empty(), "a smaller limit holds from the start");
    assert!(!small.stores(&user(), &content(1)));
    let exact = disk.open_with(|settings| settings.max_bytes = ENTRY);
    assert!(exact.stores(&user(), &content(1)) && exact.stores(&other(), &content(2)));
    assert_eq!(disk.entries(), [disk.entry(&other(), &content(2))]);
    assert!(!disk.folder(&user()).exists(), "empty folders go too");
}

#[test]
fn what_must_stay_free_stays_free() {
    let disk = Disk::new();
    let cache = disk.open();
    assert!(cache.stores(&user(), &content(1)));
    let floor = disk.open_with(|settings| settings.keep_free_bytes = u64::MAX / 2);
    assert!(!floor.stores(&user(), &content(2)));
    // Nothing is evicted where it would have been in vain.
    assert!(cache.serves(&user(), &content(1)) && !cache.serves(&user(), &content(2)));
    assert_eq!(floor.cache.counts().evicted, 0);
    // Where entries can make room, they do.
    let small = Arc::new(SmallDisk { folder: disk.path().to_owned(), bytes: 3 * ENTRY });
    let floor = disk.open_behind_with(&small, |settings| settings.keep_free_bytes = ENTRY + ENTRY / 2);
    assert!(floor.stores(&user(), &content(2)));
    assert!(cache.serves(&user(), &content(2)) && !cache.serves(&user(), &content(1)));
    assert_eq!((floor.cache.counts().evicted, disk.entries().len()), (1, 1));
}

/// A disk of so many bytes, on which there is nothing but a cache.
#[derive(Debug)]
struct SmallDisk {
    folder: PathBuf,
    bytes: u64,
}

impl Gate for SmallDisk {
    fn before(&self, _call: Call) -> std::io::Result<()> {
        Ok(())
    }

    fn free_bytes(&self, _there: u64) -> u64 {
        let inside = |folder: &PathBuf| fs::read_dir(folder).into_iter().flatten().flatten();
        let files = inside(&self.folder).flat_map(|domain| inside(&domain.path()).collect::<Vec<_>>());
        let used: u64 = files.filter_map(|file| Some(file.metadata().ok()?.len())).sum();
        self.bytes.saturating_sub(used)
    }
}

// Several writers.

#[test]
fn eight_clients_may_store_the_same() {
    let disk = Disk::new();
    let fixture = with_cache(disk.open());
    let weights = content(1);
    std::thread::scope(|scope| {
        for number in 0..8 {
            let (fixture, weights) = (&fixture, &weights);
            scope.spawn(move || {
                let mut peer = fixture.connect([Dialect::classic(), Dialect::newest()][number % 2]);
                let record = place(&mut peer, LARGE);
                for _ in 0..3 {
                    if !peer.has(&record, weights) {
                        peer.upload(&record, weights, true);
                    }
                    assert!(peer.get(&record, 0, LARGE as u64) == *weights);
                }
            });
        }
    });
    fixture.until("all is written", |fixture| {
        let counters = fixture.counters();
        counters.cache.stored + counters.cache_hits >= 24
    });
    let counters = fixture.counters();
    assert_eq!((counters.cache.failed, counters.cache.rejected, counters.cache.collisions), (0, 0, 0));
    assert_eq!(disk.names().len(), 1);
    assert!(disk.open().serves(&user(), &weights));
}

#[test]
fn two_workers_may_share_one_folder() {
    let disk = Disk::new();
    let limit = |settings: &mut CacheSettings| settings.max_bytes = 4 * ENTRY;
    let (one, two) = (disk.open_with(limit), disk.open_with(limit));
    assert!(one.stores(&user(), &content(1)) && two.serves(&user(), &content(1)));
    std::thread::scope(|scope| {
        for cache in [&one, &two] {
            for thread in 0..2 {
                scope.spawn(move || {
                    for round in 0..6 {
                        let weights = content(round % 3 + thread);
                        cache.stores(&user(), &weights);
                        let served = cache.loads(&user(), fnv1a(&weights), LARGE);
                        assert!(served.is_none_or(|bytes| bytes == weights));
                    }
                });
            }
        }
    });
    for cache in [&one, &two] {
        assert_eq!((cache.cache.counts().rejected, cache.cache.counts().collisions), (0, 0));
    }
    assert!(disk.entries().len() <= 4 && disk.names().len() == disk.entries().len(), "{:?}", disk.names());
    // Either worker finds collisions with what the other has stored.
    let (x, y) = collision();
    assert!(one.stores(&other(), &x) && !two.stores(&other(), &y));
    assert!(!one.serves(&other(), &x) && !two.serves(&other(), &x));
}

#[test]
fn colliding_contents_stored_at_the_same_time_are_not_served() {
    let (x, y) = collision();
    for _ in 0..5 {
        let disk = Disk::new();
        let (one, two) = (disk.open(), disk.open());
        std::thread::scope(|scope| {
            scope.spawn(|| one.stores(&user(), &x));
            scope.spawn(|| two.stores(&user(), &y));
        });
        assert_eq!(one.cache.counts().failed + two.cache.counts().failed, 0);
        // Whichever was first, neither of them is served.
        assert!(one.loads(&user(), fnv1a(&x), LARGE).is_none());
        assert!(two.loads(&user(), fnv1a(&x), LARGE).is_none());
        assert!(disk.entries().is_empty());
    }
}
