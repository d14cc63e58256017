//! Attacking clients: malformed messages, wrong handles, tensors and graphs, at random.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use oxcart::rpc::wire::{Command, Dialect, OpCode, TensorRecord, encode_graph};
use socket2::{Domain, Socket, Type};

use super::Random;
use super::process::{PATIENCE, Process};

/// A connection that stops at the first error; the worker closes most of them.
pub(crate) struct Attacker {
    stream: TcpStream,
    dialect: &'static Dialect,
}

/// One attack, from connecting to leaving.
pub(crate) fn attack(address: &str, random: &mut Random) {
    let dialect = if random.below(2) == 0 { Dialect::newest() } else { Dialect::classic() };
    let Some(mut attacker) = Attacker::connect(address, [127, 0, 0, 1], dialect) else { return };
    // Whatever the worker does to it, the attacker does not mind.
    let _ = attacker.act(random);
}

/// A client for which the worker computes products of minutes, for as long as it stays. Returns once their message is there.
pub(crate) fn long_product(process: &Process) -> TcpStream {
    let before = process.counters()["bytes_in"].as_u64().unwrap();
    let mut attacker = Attacker::connect(&process.address, [127, 0, 0, 1], Dialect::newest()).unwrap();
    attacker.be_patient(PATIENCE).unwrap();
    attacker.greet().unwrap();
    let sent = attacker.start_long_product().unwrap();
    process.until("the graph is there", |counters| counters["bytes_in"].as_u64().unwrap() >= before + sent);
    attacker.stream
}

impl Attacker {
    /// Connects from an address of this machine, and is not patient for long.
    pub(crate) fn connect(address: &str, host: [u8; 4], dialect: &'static Dialect) -> Option<Attacker> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).ok()?;
        socket.bind(&SocketAddr::from((host, 0)).into()).ok()?;
        socket.connect(&address.parse::<SocketAddr>().ok()?.into()).ok()?;
        let attacker = Attacker { stream: TcpStream::from(socket), dialect };
        attacker.be_patient(Duration::from_secs(5))?;
        Some(attacker)
    }

    /// Sets how long it waits for an answer, and for a message to be taken.
    pub(crate) fn be_patient(&self, time: Duration) -> Option<()> {
        self.stream.set_read_timeout(Some(time)).and_then(|()| self.stream.set_write_timeout(Some(time))).ok()
    }

    /// Another connection from the same address.
    pub(crate) fn again(&self) -> Option<Attacker> {
        let SocketAddr::V4(own) = self.stream.local_addr().ok()? else { return None };
        Attacker::connect(&self.stream.peer_addr().ok()?.to_string(), own.ip().octets(), self.dialect)
    }

    /// Where the worker is.
    pub(crate) fn worker(&self) -> Option<SocketAddr> {
        self.stream.peer_addr().ok()
    }

    /// Sends bytes as they are.
    pub(crate) fn pour(&mut self, bytes: &[u8]) -> Option<()> {
        self.stream.write_all(bytes).ok()
    }

    pub(crate) fn send(&mut self, command: Command, body: &[u8]) -> Option<()> {
        self.begin(command, body.len() as u64, body)
    }

    /// Announces a message and sends some of it.
    pub(crate) fn begin(&mut self, command: Command, size: u64, body: &[u8]) -> Option<()> {
        let bytes = [&[command as u8][..], &size.to_le_bytes(), body].concat();
        self.stream.write_all(&bytes).ok()
    }

    pub(crate) fn ask(&mut self, command: Command, body: &[u8]) -> Option<Vec<u8>> {
        self.send(command, body)?;
        let mut len = [0; 8];
        self.stream.read_exact(&mut len).ok()?;
        let mut reply = vec![0; usize::try_from(u64::from_le_bytes(len)).ok()?.min(1 << 24)];
        self.stream.read_exact(&mut reply).ok()?;
        Some(reply)
    }

    pub(crate) fn greet(&mut self) -> Option<()> {
        self.ask(Command::Hello, &vec![0; Command::Hello.request_bytes(self.dialect)]).map(|_| ())
    }

    fn with_device(&self, rest: &[u8]) -> Vec<u8> {
        if self.dialect.has_devices { [&[0; 4], rest].concat() } else { rest.to_vec() }
    }

    /// Handle and base of a new buffer.
    pub(crate) fn alloc(&mut self, size: u64) -> Option<(u64, u64)> {
        let body = self.with_device(&size.to_le_bytes());
        let handle = u64::from_le_bytes(*self.ask(Command::AllocBuffer, &body)?.first_chunk()?);
        let base = self.ask(Command::BufferGetBase, &handle.to_le_bytes())?;
        Some((handle, u64::from_le_bytes(*base.first_chunk()?)))
    }

    pub(crate) fn record(&self, id: u64, ne: [u32; 4], (handle, data): (u64, u64)) -> TensorRecord {
        let mut record = TensorRecord::absent();
        record.id = id.into();
        record.buffer = handle.into();
        record.data = data.into();
        record.ne = ne.map(Into::into);
        record.nb = [4, 4 * ne[0], 4 * ne[0] * ne[1], 4 * ne[0] * ne[1] * ne[2]].map(Into::into);
        record
    }

    /// A node of f32 at an address.
    pub(crate) fn node(
        &self,
        op: OpCode,
        id: u64,
        ne: [u32; 4],
        place: (u64, u64),
        sources: &[u64],
    ) -> Option<TensorRecord> {
        let mut record = self.record(id, ne, place);
        record.op = self.dialect.op_number(op)?.into();
        record.flags = 16.into();
        for (slot, &source) in record.sources.iter_mut().zip(sources) {
            *slot = source.into();
        }
        Some(record)
    }

    /// A record's bytes.
    pub(crate) fn bytes(&self, record: &TensorRecord) -> Vec<u8> {
        let mut body = Vec::new();
        encode_graph(&mut body, Dialect::classic(), 0, &[], std::slice::from_ref(record));
        body.split_off(8)
    }

    pub(crate) fn graph(&self, nodes: &[u64], tensors: &[TensorRecord]) -> Vec<u8> {
        let nodes: Vec<_> = nodes.iter().map(|&id| id.into()).collect();
        let mut body = Vec::new();
        encode_graph(&mut body, self.dialect, 0, &nodes, tensors);
        body
    }

    /// Has products of minutes computed one after another, whose rows lie all but in the same place: so many that no machine is done
    /// with them soon. Says how long the message is.
    pub(crate) fn start_long_product(&mut self) -> Option<u64> {
        let (handle, base) = self.alloc(257 << 20)?;
        let mut a = self.record(1, [1 << 14, 1 << 15, 1, 1], (handle, base));
        let mut b = self.record(3, [1 << 14, 2048, 1, 1], (handle, base));
        for record in [&mut a, &mut b] {
            record.nb = [4_u32, 4, 4, 4].map(Into::into);
        }
        let ids: Vec<u64> = (4..68).collect();
        let mut tensors = vec![a, b];
        for &id in &ids {
            let place = (handle, base + (1 << 20));
            tensors.push(self.node(OpCode::MulMat, id, [1 << 15, 2048, 1, 1], place, &[1, 3])?);
        }
        let body = self.graph(&ids, &tensors);
        self.send(Command::GraphCompute, &body)?;
        Some(body.len() as u64)
    }

    fn act(&mut self, random: &mut Random) -> Option<()> {
        let noise = |random: &mut Random, len: usize| -> Vec<u8> {
            (0..len).map(|_| random.below(256) as u8).collect()
        };
        let pause = |random: &mut Random| std::thread::sleep(Duration::from_millis(random.below(300) as u64));
        if random.below(10) == 0 {
            // No HELLO at all: silence, noise, or half of one.
            let len = random.below(64);
            self.stream.write_all(&noise(random, len)).ok()?;
            pause(random);
            return None;
        }
        self.greet()?;
        match random.below(12) {
            0 => {
                let len = random.below(4096);
                self.stream.write_all(&noise(random, len)).ok()?;
                let _ = self.stream.shutdown(Shutdown::Write);
                let _ = self.stream.read_to_end(&mut Vec::new());
            }
            1 => {
                // Sizes that never come.
                let command = [Command::SetTensor, Command::GraphCompute][random.below(2)];
                let size = [1_u64 << 62, 60 << 20, 4096][random.below(3)];
                self.stream.write_all(&[&[command as u8][..], &size.to_le_bytes()].concat()).ok()?;
                let len = random.below(2000);
                self.stream.write_all(&noise(random, len)).ok()?;
                pause(random);
            }
            2 => {
                // Handles of another client, or of none.
                for _ in 0..20 {
                    let handle = noise(random, 8);
                    self.ask([Command::BufferGetBase, Command::FreeBuffer][random.below(2)], &handle)?;
                }
            }
            3 => {
                // Much memory, given up without a word.
                for _ in 0..random.below(20) {
                    let (handle, _) = self.alloc(random.below(16 << 20) as u64)?;
                    let body = [&handle.to_le_bytes()[..], &[1]].concat();
                    self.send(Command::BufferClear, &body)?;
                }
            }
            4 => {
                // Answers that are never read.
                let place = self.alloc(8 << 20)?;
                let record = self.bytes(&self.record(1, [2 << 20, 1, 1, 1], place));
                let body = [&record[..], &[0; 8], &(8_u64 << 20).to_le_bytes()].concat();
                for _ in 0..8 {
                    self.send(Command::GetTensor, &body)?;
                }
                pause(random);
            }
            5 => {
                // A product of minutes, left alone.
                self.start_long_product()?;
                pause(random);
            }
            6 => {
                // A graph on memory that was freed.
                let (handle, base) = self.alloc(4096)?;
                let a = self.record(1, [4, 1, 1, 1], (handle, base));
                let c = self.node(OpCode::Add, 2, [4, 1, 1, 1], (handle, base + 64), &[1, 1])?;
                let body = self.graph(&[2], &[a, c]);
                self.send(Command::GraphCompute, &body)?;
                self.send(Command::FreeBuffer, &handle.to_le_bytes())?;
                self.send(Command::GraphCompute, &body)?;
                pause(random);
            }
            7 => {
                // An honest graph with one byte changed.
                let (handle, base) = self.alloc(4096)?;
                let a = self.record(1, [4, 2, 1, 1], (handle, base));
                let c = self.node(OpCode::MulMat, 2, [2, 2, 1, 1], (handle, base + 64), &[1, 1])?;
                for _ in 0..20 {
                    let mut body = self.graph(&[2], &[a, c]);
                    let at = random.below(body.len());
                    body[at] ^= 1 << random.below(8);
                    self.send(Command::GraphCompute, &body)?;
                }
            }
            8 => {
                // Bytes outside of buffers and tensors.
                let (handle, base) = self.alloc(4096)?;
                let offset = [0, 4096, 1 << 20, u64::MAX - 7][random.below(4)];
                let record = self.record(1, [1024, 1, 1, 1], (handle, base.wrapping_add(offset)));
                let body =
                    [&self.bytes(&record)[..], &offset.to_le_bytes(), &4096_u64.to_le_bytes()].concat();
                self.ask(Command::GetTensor, &body)?;
            }
            9 => {
                // A long list of nodes that are nothing.
                let body = self.graph(&vec![7; 1 << random.below(17)], &[]);
                self.send(Command::GraphCompute, &body)?;
                pause(random);
            }
            10 => {
                // A byte now and then.
                for byte in noise(random, 30) {
                    self.stream.write_all(&[byte % 18]).ok()?;
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            _ => {
                // Many questions, no patience.
                let device = self.with_device(&[]);
                for _ in 0..500 {
                    self.send(Command::GetDeviceMemory, &device)?;
                }
            }
        }
        None
    }
}
