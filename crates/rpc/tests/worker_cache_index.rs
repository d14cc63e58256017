//! Caches of very many entries: what an upload costs there, and which entries make way. `docs/threats.md` says which threat each
//! test answers.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;
mod common_cache;

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use common_cache::{Disk, LARGE, collision, content, user};
use oxcart_rpc::worker::{CacheSettings, Call, Gate};

/// More entries than are looked at for every upload.
const MANY: usize = 1500;
/// Bytes of each.
const SMALL: usize = 1000;

/// Counts looks at files, and lists of folders, which take a while here: what is read again goes by how long it took.
#[derive(Debug, Default)]
struct Counts {
    looks: AtomicUsize,
    lists: AtomicUsize,
}

/// How long it takes to list a folder.
const LISTING: Duration = Duration::from_millis(200);

impl Counts {
    /// Both so far.
    fn now(&self) -> (usize, usize) {
        (self.looks.load(Ordering::SeqCst), self.lists.load(Ordering::SeqCst))
    }
}

impl Gate for Counts {
    fn before(&self, call: Call) -> io::Result<()> {
        if call == Call::List {
            std::thread::sleep(LISTING);
        }
        self.looks.fetch_add(usize::from(call == Call::Look), Ordering::SeqCst);
        self.lists.fetch_add(usize::from(call == Call::List), Ordering::SeqCst);
        Ok(())
    }
}

fn small_entry(disk: &Disk, number: usize) -> PathBuf {
    disk.folder(&user()).join(format!("{number:016x}.weights"))
}

/// A folder of many entries, the first of which is the oldest.
fn disk_with_many() -> Disk {
    let disk = Disk::new();
    let first = SystemTime::now() - Duration::from_secs(100_000);
    fs::create_dir(disk.folder(&user())).unwrap();
    for number in 0..MANY {
        fs::write(small_entry(&disk, number), [0; SMALL]).unwrap();
        set_used(&disk, number, first + Duration::from_secs(number as u64));
    }
    fs::set_permissions(disk.folder(&user()), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    disk
}

fn set_used(disk: &Disk, number: usize, when: SystemTime) {
    let file = fs::File::options().append(true).open(small_entry(disk, number)).unwrap();
    file.set_modified(when).unwrap();
}

/// Room for these entries, and for one large content but for the last byte of so many of them.
fn short_of(settings: &mut CacheSettings, entries: usize) {
    settings.max_bytes = ((MANY - entries) * SMALL + LARGE + 64) as u64;
}

#[test]
fn a_large_cache_is_not_read_for_each_upload() {
    let disk = disk_with_many();
    let counts = Arc::new(Counts::default());
    let cache = disk.open_behind(&counts);
    let (before, _) = counts.now();
    assert!(before >= MANY, "it is read once");
    // Each upload asks several times for room; it is time to read all of it again when a hundred times as long has gone by as that
    // took, the root's list and the domain's: forty seconds.
    let mut asked = 0;
    for number in 1..=5 {
        assert!(cache.stores(&user(), &content(number)));
        asked += LARGE.ilog2() - (256_u32 << 10).ilog2();
    }
    let looked = counts.now().0 - before;
    assert!(looked < asked as usize * MANY / 4, "{looked} looks for {asked} requests");
}

#[test]
fn what_was_used_meanwhile_stays_and_what_is_gone_is_not_counted() {
    let disk = disk_with_many();
    let cache = disk.open_with(|settings| short_of(settings, 3));
    // Another worker's clients have used the oldest, and an operator has removed the next.
    set_used(&disk, 0, SystemTime::now());
    fs::remove_file(small_entry(&disk, 1)).unwrap();
    assert!(cache.stores(&user(), &content(1)));
    assert_eq!(cache.cache.counts().evicted, 2);
    let there = |number| small_entry(&disk, number).exists();
    assert!(there(0) && !there(2) && !there(3) && there(4));
    assert!(cache.serves(&user(), &content(1)));
}

#[test]
fn entries_of_other_workers_are_found_in_time() {
    let disk = disk_with_many();
    let limit = |settings: &mut CacheSettings| settings.max_bytes = (MANY * SMALL + 2 * LARGE + 128) as u64;
    let open = |_| {
        let start = Instant::now();
        (disk.open_with(limit), start.elapsed())
    };
    // A machine that is busy otherwise may let one of them wait, but not all.
    let (one, took) = (0..8).map(open).min_by_key(|(_, took)| *took).unwrap();
    let two = disk.open_with(limit);
    assert!(one.stores(&user(), &content(1)) && two.stores(&user(), &content(2)));
    // By then a hundred times as long has gone by as it took to read all.
    std::thread::sleep(took * 101);
    assert!(one.stores(&user(), &content(3)));
    assert!(two.serves(&user(), &content(3)));
    let kept: u64 = disk.entries().iter().map(|entry| entry.metadata().unwrap().len()).sum();
    assert!(kept <= (MANY * SMALL + 2 * LARGE + 128) as u64, "{kept}");
}

#[test]
fn collisions_are_counted_without_reading_the_folder() {
    let (x, y) = collision();
    let disk = disk_with_many();
    let counts = Arc::new(Counts::default());
    let cache = disk.open_behind(&counts);
    assert!(cache.stores(&user(), &x));
    let (_, before) = counts.now();
    assert!(!cache.stores(&user(), &y));
    assert_eq!(cache.cache.counts().collisions, 1);
    // Should all have been read meanwhile to find room, that is two lists each time: of the root, and of the one domain.
    let (_, now) = counts.now();
    assert!((now - before).is_multiple_of(2), "{} lists", now - before);
}
