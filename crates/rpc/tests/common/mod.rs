//! A worker on loopback with the slow test device, and a small client written by hand, byte by byte where that matters.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(dead_code, unreachable_pub, reason = "each test program uses some of it")]

pub mod stage;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use oxcart_rpc::wire::{
    Command, Dialect, NO_CAPABILITIES, OpCode, Reply, TensorRecord, encode_graph, offers_own_ops,
};
use oxcart_rpc::worker::{Config, DialectChoice, Limits, Snapshot, Worker};
use oxcart_testdev::{Config as DeviceConfig, TestDevice};
use socket2::{Socket, Type};
use zerocopy::IntoBytes;

/// How long a test waits for what should happen at once: whatever the machine does beside, only a test that fails waits so long.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Limits whose times no test meets, however slowly it goes, unless it sets them itself.
pub fn patient() -> Limits {
    let long = Duration::from_secs(3600);
    Limits { hello: long, message: long, write_stall: long, ..Limits::default() }
}

/// The dialects that packages carry.
pub fn dialects() -> [&'static Dialect; 5] {
    ["2.0", "3.6", "4.0.0", "5.1", "7.0"].map(|name| name.parse().unwrap())
}

/// A worker, and what is needed to look at it.
pub struct Fixture {
    worker: Option<Worker>,
    pub device: Arc<TestDevice>,
    /// Where each dialect is spoken.
    addresses: Vec<(&'static Dialect, SocketAddr)>,
    /// Where any is.
    pub auto: SocketAddr,
    events: Arc<Mutex<Vec<String>>>,
}

impl Fixture {
    pub fn new() -> Fixture {
        Fixture::with(DeviceConfig::default(), |_| {})
    }

    pub fn with(device: DeviceConfig, change: impl FnOnce(&mut Config)) -> Fixture {
        let device = TestDevice::new(DeviceConfig { capacity: device.capacity.min(1 << 40), ..device });
        let events = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&events);
        let mut config = Config::new([Arc::clone(&device) as _]);
        config.limits = patient();
        config.observer = Arc::new(move |event| kept.lock().unwrap().push(event.to_string()));
        change(&mut config);
        let mut worker = Worker::new(config).unwrap();
        let listen = |choice| worker.listen("127.0.0.1:0", choice).unwrap();
        let mut listen = listen;
        let auto = listen(DialectChoice::Auto);
        let addresses = dialects().map(|dialect| (dialect, listen(DialectChoice::Fixed(dialect)))).to_vec();
        Fixture { worker: Some(worker), device, addresses, auto, events }
    }

    pub fn limited(limits: Limits) -> Fixture {
        Fixture::with(DeviceConfig::default(), |config| config.limits = limits)
    }

    pub fn address(&self, dialect: &Dialect) -> SocketAddr {
        self.addresses.iter().find(|(known, _)| *known == dialect).unwrap().1
    }

    pub fn connect(&self, dialect: &'static Dialect) -> Peer {
        Peer::connect(self.address(dialect), dialect)
    }

    /// A client from another address of this machine, which is another peer.
    pub fn newest_from(&self, host: u8) -> Peer {
        Peer::greet(dial_from(host, self.address(Dialect::newest())), Dialect::newest())
    }

    pub fn newest(&self) -> Peer {
        self.connect(Dialect::newest())
    }

    pub fn classic(&self) -> Peer {
        self.connect(Dialect::classic())
    }

    pub fn counters(&self) -> Snapshot {
        self.worker.as_ref().unwrap().counters()
    }

    pub fn worker(&self) -> &Worker {
        self.worker.as_ref().unwrap()
    }

    pub fn events(&self) -> Vec<String> {
        self.events.lock().unwrap().clone()
    }

    /// Waits until something is so.
    #[track_caller]
    pub fn until(&self, what: &str, is_so: impl Fn(&Fixture) -> bool) {
        let start = Instant::now();
        while !is_so(self) {
            assert!(start.elapsed() < PATIENCE, "{what} did not happen: {}", self.counters());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until all clients have left and nothing is kept.
    #[track_caller]
    pub fn until_empty(&self) {
        self.until("all clients have left", |fixture| {
            fixture.counters().connected == 0 && fixture.device.allocated_bytes() == 0
        });
    }

    /// A fresh client can do everything that matters.
    #[track_caller]
    pub fn assert_serves(&self) {
        for dialect in [Dialect::classic(), Dialect::newest()] {
            Example::new(&mut self.connect(dialect)).check();
        }
    }

    pub fn shutdown(mut self, grace: Duration) -> Snapshot {
        self.worker.take().unwrap().shutdown(grace)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if let (Some(worker), false) = (self.worker.take(), std::thread::panicking()) {
            assert_eq!(worker.shutdown(Duration::from_secs(1)).panics, 0, "a panic was caught");
        }
    }
}

/// A client.
pub struct Peer {
    pub stream: TcpStream,
    pub dialect: &'static Dialect,
}

/// Opens a connection without a word.
pub fn dial(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// The same from another address of this machine, which is another peer.
pub fn dial_from(host: u8, address: SocketAddr) -> TcpStream {
    let socket = Socket::new(socket2::Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, host], 0)).into()).unwrap();
    socket.connect(&address.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// A request as it is on the wire.
pub fn request(command: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![command];
    bytes.extend((body.len() as u64).to_le_bytes());
    bytes.extend_from_slice(body);
    bytes
}

/// A request that announces a size and sends nothing of it.
pub fn announcement(command: u8, size: u64) -> Vec<u8> {
    [&[command][..], &size.to_le_bytes()].concat()
}

/// Whether the other end has closed, or does so soon: before any deadline of a [patient](patient) worker would make it. Bytes that
/// arrive before are a mistake.
#[track_caller]
pub fn closes(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    loop {
        return match stream.read(&mut [0]) {
            Ok(0) => true,
            Ok(_) => panic!("the worker said something instead of closing"),
            // A process that was stopped for a while goes on here.
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
        };
    }
}

impl Peer {
    pub fn connect(address: SocketAddr, dialect: &'static Dialect) -> Peer {
        Peer::greet(dial(address), dialect)
    }

    /// Says HELLO.
    pub fn greet(stream: TcpStream, dialect: &'static Dialect) -> Peer {
        let mut peer = Peer { stream, dialect };
        peer.send(Command::Hello, &vec![0; Command::Hello.request_bytes(dialect)]);
        let reply = peer.reply().expect("HELLO is answered");
        let version = dialect.version;
        assert_eq!(reply[..3], [version.major, version.minor, version.patch]);
        assert_eq!(reply.len(), if dialect.has_capabilities { 28 } else { 3 });
        if let Some(offer) = reply.get(4..) {
            let is_own = offers_own_ops(offer.try_into().unwrap());
            assert!(is_own || offer == NO_CAPABILITIES, "transports are declined");
        }
        peer
    }

    pub fn send(&mut self, command: Command, body: &[u8]) {
        // The worker may have closed already, which the next reply shows.
        let _ = self.stream.write_all(&request(command as u8, body));
    }

    /// The next reply; `None` if there is none because the worker has closed.
    pub fn reply(&mut self) -> Option<Vec<u8>> {
        let mut len = [0; 8];
        self.fill(&mut len)?;
        let mut body = vec![0; usize::try_from(u64::from_le_bytes(len)).unwrap()];
        self.fill(&mut body)?;
        Some(body)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Option<()> {
        match self.stream.read_exact(bytes) {
            Ok(()) => Some(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("no answer"),
            Err(_) => None,
        }
    }

    /// Sends a command and takes its reply, if it has one in this dialect. `None` if the worker closed instead.
    pub fn try_ask(&mut self, command: Command, body: &[u8]) -> Option<Vec<u8>> {
        self.send(command, body);
        match command.reply(self.dialect) {
            Reply::None => self.is_alive().then(Vec::new),
            _ => self.reply(),
        }
    }

    #[track_caller]
    pub fn ask(&mut self, command: Command, body: &[u8]) -> Vec<u8> {
        self.try_ask(command, body).unwrap_or_else(|| panic!("{} was refused", command.name()))
    }

    /// Sends a command that must be refused by closing.
    #[track_caller]
    pub fn assert_refused(mut self, command: Command, body: &[u8]) {
        self.send(command, body);
        self.assert_closed(command.name());
    }

    #[track_caller]
    pub fn assert_closed(mut self, what: &str) {
        assert!(closes(&mut self.stream), "{what} was not refused");
    }

    /// Whether a harmless question is still answered.
    pub fn is_alive(&mut self) -> bool {
        let device = self.device();
        self.send(Command::GetAlignment, &device);
        self.reply().is_some()
    }

    /// The device field, where there is one.
    pub fn device(&self) -> Vec<u8> {
        if self.dialect.has_devices { vec![0; 4] } else { Vec::new() }
    }

    pub fn with_device(&self, rest: &[u8]) -> Vec<u8> {
        [&self.device(), rest].concat()
    }

    /// Handle and size.
    pub fn try_alloc(&mut self, size: u64) -> (u64, u64) {
        let body = self.with_device(&size.to_le_bytes());
        let reply = self.ask(Command::AllocBuffer, &body);
        (long(&reply), long(&reply[8..]))
    }

    #[track_caller]
    pub fn alloc(&mut self, size: u64) -> u64 {
        let (handle, len) = self.try_alloc(size);
        assert!(handle != 0 && len >= size, "{handle:#x}, {len} bytes");
        handle
    }

    pub fn base(&mut self, handle: u64) -> u64 {
        long(&self.ask(Command::BufferGetBase, &handle.to_le_bytes()))
    }

    pub fn free(&mut self, handle: u64) {
        self.ask(Command::FreeBuffer, &handle.to_le_bytes());
    }

    /// Free and total bytes.
    pub fn memory(&mut self) -> (u64, u64) {
        let device = self.device();
        let reply = self.ask(Command::GetDeviceMemory, &device);
        (long(&reply), long(&reply[8..]))
    }

    pub fn set_body(&self, record: &TensorRecord, offset: u64, data: &[u8]) -> Vec<u8> {
        let flag: &[u8] = if self.dialect.has_cache_flag { &[0] } else { &[] };
        [record.as_bytes(), flag, &offset.to_le_bytes(), data].concat()
    }

    pub fn set(&mut self, record: &TensorRecord, offset: u64, data: &[u8]) {
        let body = self.set_body(record, offset, data);
        self.send(Command::SetTensor, &body);
    }

    pub fn get(&mut self, record: &TensorRecord, offset: u64, len: u64) -> Vec<u8> {
        let data = self.ask(Command::GetTensor, &get_body(record, offset, len));
        assert_eq!(data.len() as u64, len);
        data
    }

    pub fn set_floats(&mut self, record: &TensorRecord, floats: &[f32]) {
        let data: Vec<u8> = floats.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.set(record, 0, &data);
    }

    pub fn floats(&mut self, record: &TensorRecord) -> Vec<f32> {
        let len = record.ne.iter().map(|n| u64::from(n.get())).product::<u64>() * 4;
        let data = self.get(record, 0, len);
        data.chunks(4).map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect()
    }

    pub fn graph_body(&self, nodes: &[u64], tensors: &[TensorRecord]) -> Vec<u8> {
        let nodes: Vec<_> = nodes.iter().map(|&id| id.into()).collect();
        let mut body = Vec::new();
        encode_graph(&mut body, self.dialect, 0, &nodes, tensors);
        body
    }

    /// Computes a graph and says whether that worked: by its status, or by whether the connection lives.
    pub fn compute(&mut self, nodes: &[u64], tensors: &[TensorRecord]) -> bool {
        let body = self.graph_body(nodes, tensors);
        match self.try_ask(Command::GraphCompute, &body) {
            Some(reply) => reply.first().is_none_or(|&status| status == 0),
            None => false,
        }
    }

    /// A tensor of f32 at an address.
    pub fn tensor(&self, id: u64, ne: [u32; 4], (handle, data): (u64, u64)) -> TensorRecord {
        let mut record = TensorRecord::absent();
        let nb = [4, 4 * ne[0], 4 * ne[0] * ne[1], 4 * ne[0] * ne[1] * ne[2]];
        record.id = id.into();
        record.buffer = handle.into();
        record.data = data.into();
        record.ne = ne.map(Into::into);
        record.nb = nb.map(Into::into);
        record.set_name(&format!("t{id}"));
        record
    }

    /// A node of f32 at an address.
    pub fn node(
        &self,
        op: OpCode,
        id: u64,
        ne: [u32; 4],
        place: (u64, u64),
        sources: &[u64],
    ) -> TensorRecord {
        let mut record = self.tensor(id, ne, place);
        record.op = self.dialect.op_number(op).unwrap().into();
        record.flags = (if self.dialect.has_compute_flag { 16 } else { 0 }).into();
        for (slot, &source) in record.sources.iter_mut().zip(sources) {
            *slot = source.into();
        }
        record
    }
}

pub fn get_body(record: &TensorRecord, offset: u64, len: u64) -> Vec<u8> {
    [record.as_bytes(), &offset.to_le_bytes(), &len.to_le_bytes()].concat()
}

pub fn long(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

/// The worked example of the protocol's description: c = MUL_MAT(a, b).
pub struct Example<'a> {
    pub peer: &'a mut Peer,
    pub handle: u64,
    pub base: u64,
    pub a: TensorRecord,
    pub b: TensorRecord,
    pub c: TensorRecord,
}

impl<'a> Example<'a> {
    pub fn new(peer: &'a mut Peer) -> Example<'a> {
        let handle = peer.alloc(0x1000);
        let base = peer.base(handle);
        let a = peer.tensor(0x1111, [4, 2, 1, 1], (handle, base));
        let b = peer.tensor(0x2222, [4, 1, 1, 1], (handle, base + 0x20));
        let mut c = peer.node(OpCode::MulMat, 0x3333, [2, 1, 1, 1], (handle, base + 0x40), &[0x1111, 0x2222]);
        c.params[0] = 10.into();
        peer.set_floats(&a, &[1., 2., 3., 4., 5., 6., 7., 8.]);
        peer.set_floats(&b, &[1.; 4]);
        Example { peer, handle, base, a, b, c }
    }

    pub fn compute(&mut self) -> bool {
        self.peer.compute(&[0x3333], &[self.a, self.b, self.c])
    }

    pub fn result(&mut self) -> Vec<f32> {
        self.peer.floats(&self.c)
    }

    /// Computes, computes again, and frees.
    #[track_caller]
    pub fn check(mut self) {
        assert!(self.compute());
        assert_eq!(self.result(), [10., 26.]);
        self.peer.set_floats(&self.b, &[2.; 4]);
        if self.peer.dialect.has_recompute {
            let device = self.peer.device();
            self.peer.send(Command::GraphRecompute, &device);
        } else {
            assert!(self.compute());
        }
        assert_eq!(self.result(), [20., 52.]);
        self.peer.free(self.handle);
    }
}
