//! Caches in folders of their own, contents to keep in them, and file systems that fail.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(dead_code, unreachable_pub, reason = "each test program uses some of it")]

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use oxcart_backend::{BufferType, HostBufferType, allocate};
use oxcart_rpc::wire::{Command, Dialect, TensorRecord, fnv1a};
use oxcart_rpc::worker::{BufferRange, CacheSettings, Call, Domain, Gate, WeightCache};
use oxcart_testdev::Config as DeviceConfig;
use tempfile::TempDir;
use zerocopy::IntoBytes;

use crate::common::{Fixture, PATIENCE, Peer, dial_from, get_body};

/// The shortest content that is kept and fills whole numbers.
pub const LARGE: usize = 10_485_764;

/// Some content.
pub fn content(seed: u8) -> Vec<u8> {
    let mut state = u32::from(seed) + 1;
    let mut bytes = Vec::with_capacity(LARGE);
    while bytes.len() < LARGE {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        bytes.extend(state.to_le_bytes());
    }
    bytes
}

/// Two contents with one hash. Their beginnings were found by lattice reduction, in seconds.
pub fn collision() -> (Vec<u8>, Vec<u8>) {
    const X: [u8; 14] = *b"\x12\xef\xfd\x16\xc6\x36\x96\xd3\xed\x37\xda\xd2\x0d\x86";
    const Y: [u8; 14] = *b"\x1a\x31\x62\x18\x58\x12\xb7\x5b\xf2\x29\x38\xac\x02\x98";
    let pair = [X, Y].map(|start| {
        let mut bytes = content(77);
        bytes[..14].copy_from_slice(&start);
        bytes
    });
    let [x, y] = pair;
    assert!(x != y && fnv1a(&x) == fnv1a(&y));
    (x, y)
}

pub fn user() -> Domain {
    Domain::of_user(rustix::process::geteuid().as_raw())
}

pub fn other() -> Domain {
    Domain::of_user(4_000_000_000)
}

/// A folder for caches.
pub struct Disk(TempDir);

/// A cache, with ways to ask it at once what takes a client several messages.
pub struct Cache {
    pub cache: Arc<WeightCache>,
}

impl Disk {
    pub fn new() -> Disk {
        // In memory, where there is room: these tests write gigabytes, and what a busy disk does not take in time is given up.
        let memory = Path::new("/dev/shm");
        let is_roomy = rustix::fs::statvfs(memory).is_ok_and(|free| free.f_bavail * free.f_frsize >= 4 << 30);
        let folder = if is_roomy { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        Disk(folder.unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn settings(&self) -> CacheSettings {
        // However slowly it goes, nothing is given up for that.
        let long = Duration::from_secs(600);
        CacheSettings { keep_free_bytes: 0, patience: long, stall: long, ..CacheSettings::new(self.path()) }
    }

    pub fn open(&self) -> Cache {
        self.open_with(|_| {})
    }

    pub fn open_with(&self, change: impl FnOnce(&mut CacheSettings)) -> Cache {
        let mut settings = self.settings();
        change(&mut settings);
        Cache { cache: WeightCache::open(&settings).unwrap() }
    }

    pub fn open_behind<G: Gate + 'static>(&self, gate: &Arc<G>) -> Cache {
        self.open_behind_with(gate, |_| {})
    }

    pub fn open_behind_with<G: Gate + 'static>(
        &self,
        gate: &Arc<G>,
        change: impl FnOnce(&mut CacheSettings),
    ) -> Cache {
        let mut settings = self.settings();
        change(&mut settings);
        let gate = Arc::clone(gate) as Arc<dyn Gate>;
        Cache { cache: WeightCache::open_behind(&settings, gate).unwrap() }
    }

    /// A cache that tells clients apart by their address, so that one machine can be several.
    pub fn by_address(&self) -> Cache {
        self.open_with(|settings| settings.domain_of = |peer, _| Some(Domain::of_address(peer)))
    }

    pub fn folder(&self, domain: &Domain) -> PathBuf {
        self.path().join(domain.to_string())
    }

    pub fn entry(&self, domain: &Domain, content: &[u8]) -> PathBuf {
        self.folder(domain).join(format!("{:016x}.weights", fnv1a(content)))
    }

    fn files(&self) -> Vec<PathBuf> {
        let inner =
            |folder: &PathBuf| fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
        let folders: Vec<_> = inner(&self.path().to_owned()).collect();
        folders.iter().flat_map(inner).collect()
    }

    /// Names of all files in folders of domains.
    pub fn names(&self) -> Vec<String> {
        self.files().iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
    }

    pub fn entries(&self) -> Vec<PathBuf> {
        self.files().into_iter().filter(|path| path.extension().is_some_and(|end| end == "weights")).collect()
    }
}

impl Cache {
    /// Stores content as an upload does, and says whether it is kept.
    pub fn stores(&self, domain: &Domain, content: &[u8]) -> bool {
        let before = self.cache.counts().stored;
        if let Some(mut keeping) = self.cache.keep(domain, content.len() as u64) {
            keeping.add(content);
            keeping.complete();
        }
        self.cache.finish(PATIENCE);
        self.cache.counts().stored > before
    }

    /// What a place of this length holds once a hash was asked for; `None` for a miss.
    pub fn loads(&self, domain: &Domain, hash: u64, len: usize) -> Option<Vec<u8>> {
        let mut into = host_range(len + 128);
        into.buffer.fill(0, len + 128, 0xaa).unwrap();
        (into.offset, into.len) = (64, len);
        let hit = self.cache.load(domain, hash, &into, &mut |_| true);
        let mut bytes = bytes_of(&into);
        let around = bytes[..64].iter().chain(&bytes[64 + len..]);
        assert!(around.into_iter().all(|&byte| byte == 0xaa), "only the place itself is written to");
        if !hit {
            // An entry that fails at its second reading has been overwritten by then, with nothing.
            let is_all = |value: u8| bytes[64..64 + len].iter().all(|&byte| byte == value);
            assert!(is_all(0xaa) || is_all(0), "a miss discloses nothing");
        }
        bytes.truncate(64 + len);
        hit.then(|| bytes.split_off(64))
    }

    /// Whether this content is served under its hash.
    #[track_caller]
    pub fn serves(&self, domain: &Domain, content: &[u8]) -> bool {
        let served = self.loads(domain, fnv1a(content), content.len());
        assert!(served.as_ref().is_none_or(|bytes| bytes == content), "something else was served");
        served.is_some()
    }
}

/// A buffer of so many bytes, all of it.
pub fn host_range(len: usize) -> BufferRange {
    let host: Arc<dyn BufferType> = HostBufferType::new("test");
    BufferRange { handle: 1, buffer: allocate(&host, len).unwrap(), offset: 0, len }
}

/// All bytes of the buffer of a range.
pub fn bytes_of(range: &BufferRange) -> Vec<u8> {
    let mut bytes = vec![0; range.buffer.len()];
    range.buffer.read(0, &mut bytes).unwrap();
    bytes
}

impl From<Cache> for Arc<WeightCache> {
    fn from(cache: Cache) -> Arc<WeightCache> {
        cache.cache
    }
}

/// A worker with a cache.
pub fn with_cache(cache: impl Into<Arc<WeightCache>>) -> Fixture {
    let cache = cache.into();
    Fixture::with(DeviceConfig::default(), |config| config.cache = Some(cache))
}

/// A client from another address of this machine.
pub fn attacker(fixture: &Fixture, dialect: &'static Dialect) -> Peer {
    let address = fixture.address(dialect);
    Peer::greet(dial_from(2, address), dialect)
}

/// A tensor of so many bytes, in a buffer of its own.
pub fn place(peer: &mut Peer, bytes: usize) -> TensorRecord {
    let handle = peer.alloc(bytes as u64);
    let base = peer.base(handle);
    // Bytes that do not make whole numbers are of no use here.
    peer.tensor(1, [u32::try_from(bytes / 4).unwrap(), 1, 1, 1], (handle, base))
}

impl Peer {
    /// Asks for content by its hash.
    pub fn has(&mut self, record: &TensorRecord, content: &[u8]) -> bool {
        let reply = self.ask(Command::SetTensorHash, &get_body(record, 0, fnv1a(content)));
        assert!(reply == [0] || reply == [1], "{reply:?}");
        reply == [1]
    }

    pub fn upload_body(&self, record: &TensorRecord, data: &[u8], keep: bool) -> Vec<u8> {
        let flag = [u8::from(keep)];
        let flag: &[u8] = if self.dialect.has_cache_flag { &flag } else { &[] };
        [record.as_bytes(), flag, &0_u64.to_le_bytes(), data].concat()
    }

    /// Sends content, which is to be kept if the dialect can say so.
    pub fn upload(&mut self, record: &TensorRecord, data: &[u8], keep: bool) {
        let body = self.upload_body(record, data, keep);
        self.send(Command::SetTensor, &body);
        assert!(self.is_alive());
    }
}

/// Fails chosen calls.
#[derive(Debug)]
pub struct FailingGate {
    kind: ErrorKind,
    failing: Mutex<Failing>,
    failed: AtomicUsize,
}

/// Which calls fail.
#[derive(Clone, Copy, Debug)]
enum Failing {
    Nothing,
    /// Of this kind, or of any, after so many that succeed.
    One(Option<Call>, usize),
    Always(Call),
}

impl FailingGate {
    pub fn new(kind: ErrorKind) -> Arc<FailingGate> {
        Arc::new(FailingGate { kind, failing: Mutex::new(Failing::Nothing), failed: AtomicUsize::new(0) })
    }

    /// Fails one call of this kind, after so many that succeed.
    pub fn fail(&self, call: Call, after: usize) {
        *self.failing.lock().unwrap() = Failing::One(Some(call), after);
    }

    /// Fails one call of any kind, after so many that succeed.
    pub fn fail_any(&self, after: usize) {
        *self.failing.lock().unwrap() = Failing::One(None, after);
    }

    pub fn fail_always(&self, call: Call) {
        *self.failing.lock().unwrap() = Failing::Always(call);
    }

    pub fn open(&self) {
        *self.failing.lock().unwrap() = Failing::Nothing;
    }

    pub fn failed(&self) -> usize {
        self.failed.load(Ordering::SeqCst)
    }
}

impl Gate for FailingGate {
    fn before(&self, call: Call) -> io::Result<()> {
        let mut failing = self.failing.lock().unwrap();
        let fails = match &mut *failing {
            Failing::Nothing => false,
            Failing::Always(which) => *which == call,
            Failing::One(which, _) if which.is_some_and(|which| which != call) => false,
            Failing::One(_, 0) => {
                *failing = Failing::Nothing;
                true
            }
            Failing::One(_, after) => {
                *after -= 1;
                false
            }
        };
        if fails {
            self.failed.fetch_add(1, Ordering::SeqCst);
            return Err(self.kind.into());
        }
        Ok(())
    }
}

/// Does not come back from one kind of call until it is released.
#[derive(Debug)]
pub struct Stuck {
    call: Call,
    released: Mutex<bool>,
    changed: Condvar,
}

impl Stuck {
    pub fn at(call: Call) -> Arc<Stuck> {
        Arc::new(Stuck { call, released: Mutex::new(false), changed: Condvar::new() })
    }

    pub fn release(&self) {
        *self.released.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

impl Gate for Stuck {
    fn before(&self, call: Call) -> io::Result<()> {
        if call == self.call {
            let released = self.released.lock().unwrap();
            drop(self.changed.wait_while(released, |released| !*released).unwrap());
        }
        Ok(())
    }
}
