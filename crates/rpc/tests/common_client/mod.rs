//! A small worker for tests of the client: it keeps memory, writes down what it is asked, and misbehaves on request.
#![allow(dead_code, reason = "each test uses some of it")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

pub(crate) mod sha256;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use oxcart_rpc::client::{ConnectError, Options, RemoteRegistry, Timeouts};
use oxcart_rpc::wire::{Command, Dialect, Reply, TensorRecord};
use zerocopy::FromBytes;

pub(crate) const HANDLE: u64 = 0x6000_0000_1000;
pub(crate) const BASE: u64 = 0x7f00_0000_2000;

/// What the worker does instead of answering a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Misbehaviour {
    /// Announces this many bytes and sends the honest ones.
    Size(u64),
    /// Sends the first bytes of its answer and closes.
    Cut(usize),
    /// Closes after reading the request.
    Close,
    /// Resets the connection.
    Reset,
    /// Says nothing more and keeps the connection.
    Silence,
    /// Sends one byte now and then.
    Drip,
    /// Sends the answer and some more.
    Surplus,
    /// Sends this instead, with an honest length.
    Body(Vec<u8>),
    /// Stops reading until the test is over.
    Deaf,
}

/// What the worker is like.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) dialect: &'static Dialect,
    /// What HELLO is answered with, if not the dialect's version.
    pub(crate) version: Option<[u8; 3]>,
    pub(crate) devices: u32,
    pub(crate) alignment: u64,
    pub(crate) max_size: u64,
    pub(crate) memory: [u64; 2],
    pub(crate) hash_answer: u8,
    pub(crate) copy_answer: u8,
    pub(crate) status: u8,
    /// The answer to GET_ALLOC_SIZE.
    pub(crate) alloc_size: u64,
    /// Handle and base of buffers, instead of honest ones.
    pub(crate) handle: Option<u64>,
    pub(crate) base: Option<u64>,
    /// What is added to the size of a buffer.
    pub(crate) size_error: i64,
    /// A command and which time it comes, from zero, and what happens then.
    pub(crate) fault: Option<(Command, usize, Misbehaviour)>,
}

impl Config {
    pub(crate) fn new(dialect: &str) -> Config {
        Config {
            dialect: dialect.parse().unwrap(),
            version: None,
            devices: 1,
            alignment: 32,
            max_size: u64::MAX,
            memory: [1 << 30, 1 << 31],
            hash_answer: 0,
            copy_answer: 1,
            status: 0,
            alloc_size: 0,
            handle: None,
            base: None,
            size_error: 0,
            fault: None,
        }
    }

    pub(crate) fn fault(dialect: &str, command: Command, fault: Misbehaviour) -> Config {
        Config { fault: Some((command, 0, fault)), ..Config::new(dialect) }
    }
}

/// A request as it arrived, prefix included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) command: Command,
    pub(crate) bytes: Vec<u8>,
}

impl Request {
    pub(crate) fn body(&self) -> &[u8] {
        &self.bytes[9..]
    }
}

/// A worker that runs until its client leaves.
#[derive(Debug)]
pub(crate) struct FakeWorker {
    pub(crate) address: SocketAddr,
    notes: Arc<Notes>,
    thread: Option<JoinHandle<()>>,
}

/// What a worker writes down, and is told.
#[derive(Debug, Default)]
struct Notes {
    requests: Mutex<Vec<Request>>,
    /// How often it has misbehaved and gone on.
    misbehaved: AtomicUsize,
    /// The test is over.
    is_over: AtomicBool,
}

impl FakeWorker {
    /// Starts it; it serves connections one after another, as peers do.
    pub(crate) fn start(config: Config) -> FakeWorker {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let notes = Arc::<Notes>::default();
        let written = Arc::clone(&notes);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { break };
                let served = Session::new(stream, &config, &written).serve();
                if served.is_none() {
                    break;
                }
            }
        });
        FakeWorker { address, notes, thread: Some(thread) }
    }

    pub(crate) fn endpoint(&self) -> String {
        self.address.to_string()
    }

    pub(crate) fn connect(&self) -> Result<Arc<RemoteRegistry>, ConnectError> {
        RemoteRegistry::connect(&self.endpoint(), &options())
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.notes.requests.lock().unwrap().clone()
    }

    pub(crate) fn commands(&self) -> Vec<Command> {
        self.requests().iter().map(|request| request.command).collect()
    }

    /// The requests with a command.
    pub(crate) fn of(&self, command: Command) -> Vec<Request> {
        self.requests().into_iter().filter(|request| request.command == command).collect()
    }

    /// Waits until a command has come so often.
    pub(crate) fn wait_for(&self, command: Command, count: usize) -> Vec<Request> {
        until(&format!("{} {count} times", command.name()), || self.of(command).len() >= count);
        self.of(command)
    }

    /// Waits until it has misbehaved.
    pub(crate) fn wait_for_misbehaviour(&self) {
        until("misbehaviour", || self.notes.misbehaved.load(Ordering::SeqCst) > 0);
    }
}

impl Drop for FakeWorker {
    fn drop(&mut self) {
        self.notes.is_over.store(true, Ordering::SeqCst);
        // A connection without a HELLO tells it to end.
        if let Ok(mut stream) = TcpStream::connect(self.address) {
            let _ = stream.write_all(&[255]);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// How long is waited for what should happen at once: whatever the machine does beside, only a test that fails waits so long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

fn until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "no {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Limits that no worker that answers meets, however slowly.
pub(crate) fn options() -> Options {
    within(PATIENCE)
}

/// Short limits, so that tests of silence are quick. A machine that is busy otherwise makes an honest worker meet them.
pub(crate) fn short() -> Options {
    within(Duration::from_millis(1200))
}

fn within(time: Duration) -> Options {
    let timeouts = Timeouts {
        connect: time,
        control: time,
        data: time,
        slowest_rate: 1 << 30,
        slowest_memory: 1 << 30,
        compute: time,
        heartbeat: Some(time),
    };
    Options { timeouts, ..Options::default() }
}

struct Buffer {
    base: u64,
    bytes: Vec<u8>,
}

struct Session<'a> {
    stream: TcpStream,
    config: &'a Config,
    notes: &'a Notes,
    buffers: BTreeMap<u64, Buffer>,
    made: u64,
    seen: BTreeMap<u8, usize>,
}

impl<'a> Session<'a> {
    fn new(stream: TcpStream, config: &'a Config, notes: &'a Notes) -> Session<'a> {
        stream.set_nodelay(true).unwrap();
        Session { stream, config, notes, buffers: BTreeMap::new(), made: 0, seen: BTreeMap::new() }
    }

    /// Serves a client until it leaves; `None` when the worker is to end.
    fn serve(mut self) -> Option<()> {
        let mut is_first = true;
        loop {
            let mut prefix = [0; 9];
            if self.stream.read_exact(&mut prefix[..1]).is_err() {
                return Some(());
            }
            if prefix[0] == 255 {
                return None;
            }
            if self.stream.read_exact(&mut prefix[1..]).is_err() {
                return Some(());
            }
            let size = u64::from_le_bytes(prefix[1..].try_into().unwrap());
            let Some(command) = Command::from_number(prefix[0], self.config.dialect) else {
                panic!("command {} does not exist in {}", prefix[0], self.config.dialect);
            };
            assert_eq!(is_first, command == Command::Hello);
            is_first = false;
            let fixed = command.request_bytes(self.config.dialect) as u64;
            if command == Command::Hello && size != fixed {
                return Some(());
            }
            assert!(size == fixed || (command.is_open_ended() && size > fixed), "{command:?} of {size}");
            let mut bytes = prefix.to_vec();
            let read = (&mut self.stream).take(size).read_to_end(&mut bytes);
            if read.is_err() || bytes.len() as u64 != 9 + size {
                return Some(());
            }
            self.notes.requests.lock().unwrap().push(Request { command, bytes: bytes.clone() });
            let answer = self.answer(command, &bytes[9..]);
            let answers = command.reply(self.config.dialect) != Reply::None;
            let turn = self.seen.entry(command as u8).or_default();
            *turn += 1;
            if let Some((at, nth, fault)) = &self.config.fault
                && (*at, *nth) == (command, *turn - 1)
            {
                match self.misbehave(fault, &answer) {
                    true => continue,
                    false => return Some(()),
                }
            }
            if answers && self.reply(&answer).is_err() {
                return Some(());
            }
        }
    }

    fn reply(&mut self, answer: &[u8]) -> std::io::Result<()> {
        let mut reply = (answer.len() as u64).to_le_bytes().to_vec();
        reply.extend_from_slice(answer);
        self.stream.write_all(&reply)
    }

    /// Whether the session goes on.
    fn misbehave(&mut self, fault: &Misbehaviour, answer: &[u8]) -> bool {
        let mut reply = (answer.len() as u64).to_le_bytes().to_vec();
        reply.extend_from_slice(answer);
        match fault {
            Misbehaviour::Size(size) => {
                reply[..8].copy_from_slice(&size.to_le_bytes());
                let _ = self.stream.write_all(&reply);
            }
            Misbehaviour::Cut(len) => {
                let _ = self.stream.write_all(&reply[..(*len).min(reply.len() - 1)]);
                return false;
            }
            Misbehaviour::Close => return false,
            Misbehaviour::Reset => {
                socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)).unwrap();
                return false;
            }
            Misbehaviour::Silence => {}
            Misbehaviour::Drip => {
                for byte in reply {
                    std::thread::sleep(Duration::from_millis(800));
                    if self.stream.write_all(&[byte]).is_err() {
                        return false;
                    }
                }
                return true;
            }
            Misbehaviour::Surplus => {
                reply.extend([0; 9]);
                let _ = self.stream.write_all(&reply);
            }
            Misbehaviour::Body(body) => {
                let is_sent = self.reply(body).is_ok();
                self.notes.misbehaved.fetch_add(1, Ordering::SeqCst);
                return is_sent;
            }
            Misbehaviour::Deaf => {
                while !self.notes.is_over.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(10));
                }
                return false;
            }
        }
        // Whatever the client does next, it must find out by itself.
        let mut rest = [0; 4096];
        while self.stream.read(&mut rest).is_ok_and(|read| read > 0) {}
        false
    }

    fn answer(&mut self, command: Command, body: &[u8]) -> Vec<u8> {
        let config = self.config;
        let u64_at = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().unwrap());
        match command {
            Command::Hello => {
                let version = config.dialect.version;
                let version = config.version.unwrap_or([version.major, version.minor, version.patch]);
                let mut answer = version.to_vec();
                answer.resize(if config.dialect.has_capabilities { 28 } else { 3 }, 0);
                answer
            }
            Command::DeviceCount => config.devices.to_le_bytes().to_vec(),
            Command::GetAlignment => config.alignment.to_le_bytes().to_vec(),
            Command::GetMaxSize => config.max_size.to_le_bytes().to_vec(),
            Command::GetDeviceMemory => config.memory.map(u64::to_le_bytes).concat(),
            Command::AllocBuffer => {
                let size = u64_at(body.len() - 8);
                let handle = config.handle.unwrap_or(HANDLE + self.made * 8);
                let base = config.base.unwrap_or(BASE + (self.made << 32));
                self.made += 1;
                let bytes = vec![0xee; usize::try_from(size.min(64 << 20)).unwrap()];
                self.buffers.insert(handle, Buffer { base, bytes });
                let said = size.saturating_add_signed(config.size_error);
                [handle, said].map(u64::to_le_bytes).concat()
            }
            Command::BufferGetBase => self.buffers[&u64_at(0)].base.to_le_bytes().to_vec(),
            Command::FreeBuffer => {
                self.buffers.remove(&u64_at(0)).unwrap();
                Vec::new()
            }
            Command::BufferClear => {
                self.buffers.get_mut(&u64_at(0)).unwrap().bytes.fill(body[8]);
                Vec::new()
            }
            Command::SetTensor => {
                let data = &body[command.request_bytes(config.dialect)..];
                let offset = u64_at(command.request_bytes(config.dialect) - 8);
                self.memory(body, offset, data.len()).copy_from_slice(data);
                Vec::new()
            }
            Command::GetTensor => {
                let len = usize::try_from(u64_at(304)).unwrap();
                self.memory(body, u64_at(296), len).to_vec()
            }
            Command::MemsetTensor => {
                let len = usize::try_from(u64_at(304)).unwrap();
                self.memory(body, u64_at(296), len).fill(body[312]);
                Vec::new()
            }
            Command::CopyTensor => {
                if config.copy_answer == 1 {
                    let record = TensorRecord::ref_from_bytes(&body[..296]).unwrap();
                    let len = record.ne[0].get() as usize;
                    let bytes = self.memory(body, 0, len).to_vec();
                    self.memory(&body[296..], 0, len).copy_from_slice(&bytes);
                }
                vec![config.copy_answer]
            }
            Command::SetTensorHash => vec![config.hash_answer],
            Command::GetAllocSize => config.alloc_size.to_le_bytes().to_vec(),
            Command::GraphCompute => vec![config.status],
            Command::InitTensor | Command::GraphRecompute => Vec::new(),
            Command::Expect
            | Command::Meet
            | Command::Push
            | Command::Await
            | Command::Resume
            | Command::Pulse
            | Command::Take
            | Command::GraphKeep
            | Command::GraphRun
            | Command::GraphDrop => {
                panic!("{} to a worker that never offered it", command.name())
            }
        }
    }

    /// The bytes that a record and an offset mean.
    fn memory(&mut self, record: &[u8], offset: u64, len: usize) -> &mut [u8] {
        let record = TensorRecord::ref_from_bytes(&record[..296]).unwrap();
        let buffer = self.buffers.get_mut(&record.buffer.get()).unwrap();
        let from = usize::try_from(record.data.get() - buffer.base + offset).unwrap();
        assert!(offset + len as u64 <= u64::from(record.ne[0].get()));
        &mut buffer.bytes[from..from + len]
    }
}
