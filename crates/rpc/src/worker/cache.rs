//! Weights kept on disk by content, so that a model crosses the network once.
//!
//! Clients name content by a 64-bit FNV-1a hash, which is weak: two contents with one hash are made in seconds. So:
//!
//! - **Trust** ([`Domain`]). Each domain has a folder of its own. What a client sends is kept for its own domain and served
//!   to no other; what an operator puts into the folder `shared` is served to all. Nothing is ever written there.
//! - **Content** (`entry`). An entry carries its length and a strong digest, and is verified whole before its first byte is
//!   used. A bad one is a miss and removed. A client that names the digest itself gets the bytes as they are verified, and zeros in their
//!   place should they turn out to be others: it sees neither before that.
//! - **Collisions**. A second content with the hash of an intact entry makes that hash useless for the domain, for good:
//!   a file says so, and neither content is served to it again.
//! - **Shares** (`share`). Room, and places for writing, are shared by peers and users first, and by the domains of a peer then.
//! - **Writing** (`keeping`, `pipe`, `room`, `index`). Under a name of its own, synced, read back, and only then named; whatever goes wrong
//!   means that there is no entry, and the upload goes on.
//!
//! Layout: `DOMAIN/HASH.weights` are entries, `DOMAIN/RANDOM.partial` entries in the making, `DOMAIN/HASH.collision` hashes
//! that stand for two contents, `DOMAIN/closed` a domain with too many of those. Other names are left alone.
//!
//! Concurrency: called from the threads of all clients at a time; any number of workers may share a folder. No lock is
//! needed for that: a file gets its name at once and whole, a collision is noted before its entry goes, and a thread that
//! names or reads an entry looks for that note afterwards.

mod domain;
mod entry;
mod folder;
mod index;
mod keeping;
mod owner;
mod pipe;
mod room;
mod share;
mod store;
mod writers;

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oxcart_backend::{Content, Error};

use super::counters::add;
use super::limits::{KEEP_PATIENCE, KEEP_STALL};
use super::space::BufferRange;
pub use domain::{Domain, DomainOf};
use entry::{Damaged, Entry};
pub use folder::{Call, Gate};
use folder::{Folder, OpenGate};
pub use keeping::Keeping;
use pipe::Waits;
use room::Room;
use writers::Writers;

/// How a cache is set up.
#[derive(Clone, Debug)]
pub struct CacheSettings {
    /// Where it is. Made if it is not there.
    pub folder: PathBuf,
    /// Bytes of all files together, `shared` aside.
    pub max_bytes: u64,
    /// Bytes that must stay free on its disk.
    pub keep_free_bytes: u64,
    /// How clients are told apart.
    pub domain_of: DomainOf,
    /// How long an upload waits for the disk, or for a place among those who write, before its entry is given up.
    pub patience: Duration,
    /// How long nothing may come of an upload while another waits for its place; less than the patience of that one.
    pub stall: Duration,
}

impl CacheSettings {
    /// A cache in a folder: at most 32 GiB, with 1 GiB left free; see [`Domain::of_client`] for who shares what.
    pub fn new(folder: impl Into<PathBuf>) -> CacheSettings {
        CacheSettings {
            folder: folder.into(),
            max_bytes: 32 << 30,
            keep_free_bytes: 1 << 30,
            domain_of: Domain::of_client,
            patience: KEEP_PATIENCE,
            stall: KEEP_STALL,
        }
    }
}

/// What a cache has done so far, hits and misses aside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Contents kept, those included that were there already.
    pub stored: u64,
    /// Contents that should have been kept and were not.
    pub failed: u64,
    /// Entries that were damaged or no entries at all.
    pub rejected: u64,
    /// Entries removed to make room.
    pub evicted: u64,
    /// Hashes found to stand for two contents.
    pub collisions: u64,
    /// Panics that were caught: bugs.
    pub panics: u64,
}

#[derive(Debug, Default)]
struct Counters {
    stored: AtomicU64,
    failed: AtomicU64,
    rejected: AtomicU64,
    evicted: AtomicU64,
    collisions: AtomicU64,
    panics: AtomicU64,
}

/// Weights by content.
#[derive(Debug)]
pub struct WeightCache {
    root: Folder,
    room: Arc<Room>,
    domain_of: DomainOf,
    writers: Arc<Writers>,
    waits: Waits,
    /// Collisions that could not be noted in their folder.
    barred: Mutex<HashSet<(Domain, u64)>>,
    counters: Counters,
}

/// The folder of what an operator lends to all.
const SHARED: &str = "shared";

/// An open folder with entries.
#[derive(Debug)]
struct EntryFolder {
    folder: Folder,
    /// Whose it is; `None` for what an operator lends.
    domain: Option<Domain>,
}

impl WeightCache {
    /// Opens a cache, makes its folder if there is none, and cleans up what a worker left behind that was killed.
    pub fn open(settings: &CacheSettings) -> io::Result<Arc<WeightCache>> {
        WeightCache::open_behind(settings, Arc::new(OpenGate))
    }

    /// The same, with a gate before every call to the file system.
    pub fn open_behind(settings: &CacheSettings, gate: Arc<dyn Gate>) -> io::Result<Arc<WeightCache>> {
        let cache = WeightCache {
            root: Folder::open(&settings.folder, gate)?,
            room: Room::new(settings.max_bytes, settings.keep_free_bytes),
            domain_of: settings.domain_of,
            writers: Writers::new(settings.patience),
            waits: Waits { patience: settings.patience, stall: settings.stall },
            barred: Mutex::default(),
            counters: Counters::default(),
        };
        // What cannot be tidied now may be later.
        let evicted = cache.room.tidy(&cache.root).unwrap_or(0);
        add(&cache.counters.evicted, evicted);
        Ok(Arc::new(cache))
    }

    /// What it has done so far.
    pub fn counts(&self) -> CacheCounts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CacheCounts {
            stored: get(&self.counters.stored),
            failed: get(&self.counters.failed),
            rejected: get(&self.counters.rejected),
            evicted: get(&self.counters.evicted),
            collisions: get(&self.counters.collisions),
            panics: get(&self.counters.panics),
        }
    }

    /// The domain of a client.
    pub(crate) fn domain(&self, peer: SocketAddr, local: SocketAddr) -> Option<Domain> {
        (self.domain_of)(peer, local)
    }

    /// Waits until all that is being written is, but not longer than that.
    pub fn finish(&self, patience: Duration) {
        self.writers.wait_for_none(patience);
    }

    /// Writes the content of a hash to a place that it fills exactly, if a domain may have it, and says whether it did. For
    /// each piece, `go_on` is asked with its length; it may wait, or say that nothing is wanted any more.
    pub fn load(
        &self,
        domain: &Domain,
        hash: u64,
        into: &BufferRange,
        go_on: &mut dyn FnMut(usize) -> bool,
    ) -> bool {
        !self.is_barred(domain, hash)
            && [Some(domain), None].into_iter().any(|of| {
                let entries = self.entry_folder(of);
                entries.is_some_and(|entries| self.load_from(&entries, domain, hash, into, go_on))
            })
    }

    /// The same by a digest, which the content has or nothing is left of it: then the place holds zeros, or what it held. Read once, so
    /// verified while it is written; nothing else may look at the place meanwhile.
    pub fn take(
        &self,
        domain: &Domain,
        content: &Content,
        into: &BufferRange,
        go_on: &mut dyn FnMut(usize) -> bool,
    ) -> Result<bool, Error> {
        if self.is_barred(domain, content.hash) {
            return Ok(false);
        }
        for of in [Some(domain), None] {
            if let Some(entries) = self.entry_folder(of)
                && self.take_from(&entries, content, into, go_on)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn take_from(
        &self,
        entries: &EntryFolder,
        content: &Content,
        into: &BufferRange,
        go_on: &mut dyn FnMut(usize) -> bool,
    ) -> Result<bool, Error> {
        let Some(mut entry) = self.entry(entries, content.hash) else { return Ok(false) };
        if entry.header().len() != into.len as u64 {
            return Ok(false);
        }
        let read = read_into(&mut entry, into, go_on)?;
        match read {
            Ok(Some(digest)) if digest == content.digest => {
                entry.touch();
                return Ok(true);
            }
            // The client is gone, and its buffer with it.
            Ok(None) => return Ok(false),
            Ok(Some(_)) | Err(_) => into.clear(go_on)?,
        }
        if read.is_err() {
            self.reject(entries, content.hash);
        }
        Ok(false)
    }

    fn load_from(
        &self,
        entries: &EntryFolder,
        domain: &Domain,
        hash: u64,
        into: &BufferRange,
        go_on: &mut dyn FnMut(usize) -> bool,
    ) -> bool {
        let Some(mut entry) = self.entry(entries, hash) else { return false };
        if entry.header().len() != into.len as u64 {
            return false;
        }
        match entry.read(go_on, |_, _| true) {
            Ok(Some(_)) => {}
            Ok(None) => return false,
            Err(_) => {
                self.reject(entries, hash);
                return false;
            }
        }
        // A collision is noted before its entry is removed, so without a note the entry was good when it was read.
        if self.is_barred(domain, hash) {
            return false;
        }
        match read_into(&mut entry, into, go_on) {
            Ok(Ok(Some(_))) => {
                entry.touch();
                return true;
            }
            // The client is gone, and its buffer with it.
            Ok(Ok(None)) => return false,
            // It changed between the two readings.
            Ok(Err(_)) => self.reject(entries, hash),
            // The device failed, which tells nothing about the entry.
            Err(_) => {}
        }
        let _ = into.clear(go_on);
        false
    }

    /// The folder of a domain, or of what an operator lends.
    fn entry_folder(&self, domain: Option<&Domain>) -> Option<EntryFolder> {
        let folder = self.root.inner(domain.map_or(SHARED, Domain::folder)).ok().flatten()?;
        Some(EntryFolder { folder, domain: domain.cloned() })
    }

    /// The entry of a hash, if there is one that looks like one.
    fn entry(&self, entries: &EntryFolder, hash: u64) -> Option<Entry> {
        match entries.folder.read(&entry::name(hash)) {
            Ok(None) => None,
            Ok(Some(file)) => {
                let entry = Entry::open(file, hash).ok();
                if entry.is_none() {
                    self.reject(entries, hash);
                }
                entry
            }
            Err(error) => {
                // Being out of descriptors, say, tells nothing about the file.
                if folder::is_about_the_file(&error) {
                    self.reject(entries, hash);
                }
                None
            }
        }
    }

    /// Counts what is no good and removes it, unless it is an operator's own.
    fn reject(&self, entries: &EntryFolder, hash: u64) {
        add(&self.counters.rejected, 1);
        if let Some(domain) = &entries.domain {
            // If it cannot be removed, it is rejected again.
            self.remove(domain, &entries.folder, hash);
        }
    }

    /// Removes an entry, if it can be.
    fn remove(&self, domain: &Domain, folder: &Folder, hash: u64) {
        if folder.remove(&entry::name(hash)).is_ok() {
            self.room.forget(domain, hash);
        }
    }
}

/// Reads an entry straight into a buffer. The outer error is the device's, the inner result what [`Entry::read`] says of the entry.
fn read_into(
    entry: &mut Entry,
    into: &BufferRange,
    go_on: &mut dyn FnMut(usize) -> bool,
) -> Result<Result<Option<[u8; 32]>, Damaged>, Error> {
    let mut written = Ok(());
    let read = entry.read(go_on, |start, piece| {
        written = into.buffer.write(into.offset + start, piece);
        written.is_ok()
    });
    written.map(|()| read)
}
