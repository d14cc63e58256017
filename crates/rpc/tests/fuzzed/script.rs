//! Bytes as the script of a client: mostly valid messages about buffers that it really has, some of them damaged.
//!
//! The script is both ends of a stream: reading from it gives the next message, what is written to it are the answers,
//! from which it learns handles and addresses.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, Read, Write};

use oxcart_backend::Content;
use oxcart_rpc::wire::{
    Address, Command, Dialect, Expect, Interruption, Meet, OpCode, Reply, Take, TensorRecord, Transfer,
    encode_graph,
};
use oxcart_tensor::{dtype_from_id, dtype_id};
use zerocopy::IntoBytes;

use super::Choices;

/// What a script knows.
#[derive(Debug)]
pub struct Script<'a> {
    dialect: &'static Dialect,
    choices: Choices<'a>,
    /// Bytes of the message that is being read.
    pending: VecDeque<u8>,
    answers: Vec<u8>,
    /// Length of the answers that are to come, and what is asked; while that is known.
    expected: VecDeque<(Command, Option<usize>)>,
    /// Handle and base of its buffers.
    buffers: Vec<(u64, u64)>,
    greeted: bool,
    /// The worker answers nothing until it is told to go on.
    interrupted: bool,
    /// A message was damaged, so nothing is known about answers any more.
    damaged: bool,
    damage_next: bool,
    messages: usize,
    /// Bytes that tensors were answered with.
    pub received: Vec<u8>,
}

/// Messages after which a script ends.
const MAX_MESSAGES: usize = 64;

impl<'a> Script<'a> {
    pub fn new(dialect: &'static Dialect, bytes: &'a [u8]) -> Script<'a> {
        Script {
            dialect,
            choices: Choices(bytes),
            pending: VecDeque::new(),
            answers: Vec::new(),
            expected: VecDeque::new(),
            buffers: Vec::new(),
            greeted: false,
            interrupted: false,
            damaged: false,
            damage_next: false,
            messages: 0,
            received: Vec::new(),
        }
    }

    /// Appends the next message; at the end of the script, nothing.
    fn next(&mut self) {
        if !self.greeted {
            self.greeted = true;
            let body = vec![0; Command::Hello.request_bytes(self.dialect)];
            return self.send(Command::Hello, &body, None);
        }
        if self.interrupted && self.choices.below(4) != 0 {
            self.interrupted = false;
            return self.send(Command::Resume, &[], None);
        }
        if let Some(&(handle, 0)) = self.buffers.last().filter(|_| !self.interrupted) {
            return self.send(Command::BufferGetBase, &handle.to_le_bytes(), None);
        }
        if self.choices.is_over() || self.messages >= MAX_MESSAGES {
            return;
        }
        self.messages += 1;
        self.action();
    }

    fn send(&mut self, command: Command, body: &[u8], data: Option<usize>) {
        let mut bytes = vec![command as u8];
        bytes.extend((body.len() as u64).to_le_bytes());
        bytes.extend_from_slice(body);
        if std::mem::take(&mut self.damage_next) {
            self.damage(&mut bytes);
        }
        self.pending.extend(bytes);
        match command.reply(self.dialect) {
            Reply::None => {}
            Reply::Bytes(len) => self.expected.push_back((command, Some(len))),
            Reply::Data => self.expected.push_back((command, data)),
        }
    }

    /// Some bytes other than they should be, some more, or some less.
    fn damage(&mut self, bytes: &mut Vec<u8>) {
        self.damaged = true;
        for _ in 0..=self.choices.below(3) {
            let at = usize::from(self.choices.short()) % bytes.len();
            match self.choices.below(5) {
                0 => bytes[at] ^= self.choices.byte() | 1,
                1 => bytes[at] = self.choices.byte(),
                2 => bytes.truncate(at + 1),
                3 => bytes.insert(at, self.choices.byte()),
                _ => {
                    let number = self.choices.long().to_le_bytes();
                    let end = (at + 8).min(bytes.len());
                    bytes[at..end].copy_from_slice(&number[..end - at]);
                }
            }
        }
    }

    fn device(&mut self) -> Vec<u8> {
        // Device 0 is the only one; now and then another is asked for.
        let device = u32::from(self.choices.byte() == 255);
        if self.dialect.has_devices { device.to_le_bytes().to_vec() } else { Vec::new() }
    }

    fn handle(&mut self) -> u64 {
        let known = self.choices.below(self.buffers.len() + 1);
        self.buffers.get(known).map_or(0xdead_beef, |&(handle, _)| handle)
    }

    fn action(&mut self) {
        match self.choices.below(18) {
            0 => {
                let size = u64::from(self.choices.short()) << self.choices.below(8);
                let body = [&self.device()[..], &size.to_le_bytes()].concat();
                self.send(Command::AllocBuffer, &body, None);
            }
            1 => {
                let at = self.choices.below(self.buffers.len() + 1);
                let handle = if at < self.buffers.len() { self.buffers.remove(at).0 } else { 1 };
                self.send(Command::FreeBuffer, &handle.to_le_bytes(), None);
            }
            2 => {
                let body = [&self.handle().to_le_bytes()[..], &[self.choices.byte()]].concat();
                self.send(Command::BufferClear, &body, None);
            }
            3 => {
                let record = self.tensor(1);
                let flag: &[u8] = if self.dialect.has_cache_flag { &[1] } else { &[] };
                let (offset, len) = self.part(&record);
                let data = vec![self.choices.byte(); usize::try_from(len).unwrap()];
                let body = [record.as_bytes(), flag, &offset.to_le_bytes(), &data].concat();
                self.send(Command::SetTensor, &body, None);
            }
            4 => {
                let record = self.tensor(1);
                let (offset, len) = self.part(&record);
                let body = [record.as_bytes(), &offset.to_le_bytes(), &len.to_le_bytes()].concat();
                self.send(Command::GetTensor, &body, usize::try_from(len).ok());
            }
            5 => {
                let from = self.tensor(1);
                let to = match self.choices.byte() {
                    200.. => self.tensor(2),
                    _ => from,
                };
                self.send(Command::CopyTensor, &[from.as_bytes(), to.as_bytes()].concat(), None);
            }
            6 if self.dialect.has_memset => {
                let record = self.tensor(1);
                let (offset, len) = (u64::from(self.choices.byte()), u64::from(self.choices.byte()));
                let value = [self.choices.byte()];
                let body = [record.as_bytes(), &offset.to_le_bytes(), &len.to_le_bytes(), &value].concat();
                self.send(Command::MemsetTensor, &body, None);
            }
            7 => {
                let record = self.tensor(1);
                self.send(Command::InitTensor, record.as_bytes(), None);
            }
            8 => {
                let (device, record) = (self.device(), self.tensor(1));
                let rest = if self.dialect.has_devices { 10 * 296 } else { 0 };
                let body = [&device[..], record.as_bytes(), &vec![0; rest]].concat();
                self.send(Command::GetAllocSize, &body, None);
            }
            9 => {
                let record = self.tensor(1);
                let (offset, hash) = (u64::from(self.choices.byte()), self.choices.long());
                if self.dialect.has_takes && hash % 2 == 1 {
                    let content = Content { hash, digest: [offset as u8; 32] };
                    self.send(Command::Take, &Take { record, content }.encode(), None);
                } else {
                    let body = [record.as_bytes(), &offset.to_le_bytes(), &hash.to_le_bytes()].concat();
                    self.send(Command::SetTensorHash, &body, None);
                }
            }
            10..=12 => self.graph(),
            13 if self.dialect.has_kept_graphs && self.choices.below(4) != 0 => {
                let command =
                    [Command::GraphRun, Command::GraphRun, Command::GraphDrop][self.choices.below(3)];
                let slot = self.slot();
                self.send(command, &slot, None);
            }
            13 if self.dialect.has_recompute => {
                let device = self.device();
                self.send(Command::GraphRecompute, &device, None);
            }
            14 => {
                let questions = [Command::GetAlignment, Command::GetMaxSize, Command::GetDeviceMemory];
                let question = questions[self.choices.below(3)];
                let device = self.device();
                self.send(question, &device, None);
            }
            17 if self.dialect.has_introductions => self.introduction(),
            15 => {
                self.damage_next = true;
                self.action_after_damage();
            }
            _ => {
                self.damaged = true;
                let raw: Vec<_> = (0..=self.choices.below(32)).map(|_| self.choices.byte()).collect();
                self.pending.extend(raw);
            }
        }
    }

    /// Other workers, of which none ever comes.
    fn introduction(&mut self) {
        let number = self.choices.below(4) as u32;
        let key = (self.choices.byte() == 255).then_some([1; 32]);
        match self.choices.below(4) {
            0 | 1 => {
                let body = Expect { number, secret: [self.choices.byte(); 16], key }.encode();
                self.send(Command::Expect, &body, None);
            }
            2 => {
                let address = Address::new(([127, 0, 0, 1], self.choices.short()).into()).unwrap();
                let body = Meet { number, address, secret: [0; 16], key }.encode();
                self.send(Command::Meet, &body, None);
            }
            _ if self.choices.byte() == 255 => self.send(Command::Resume, &[], None),
            _ if self.choices.byte() == 255 => self.send(Command::Pulse, &[], None),
            _ => {
                let command = [Command::Push, Command::Await][self.choices.below(2)];
                let record = self.tensor(1);
                let ticket = self.choices.byte().into();
                self.send(command, &Transfer { number, ticket, record }.encode(), None);
            }
        }
    }

    fn action_after_damage(&mut self) {
        match self.choices.below(4) {
            0 => self.graph(),
            1 => {
                let record = self.tensor(1);
                let flag: &[u8] = if self.dialect.has_cache_flag { &[0] } else { &[] };
                let body = [record.as_bytes(), flag, &[0; 8], &[7; 64]].concat();
                self.send(Command::SetTensor, &body, None);
            }
            2 => {
                let record = self.tensor(1);
                let body = [record.as_bytes(), &[0; 8], &64_u64.to_le_bytes()].concat();
                self.send(Command::GetTensor, &body, Some(64));
            }
            _ => {
                let (from, to) = (self.tensor(1), self.tensor(2));
                self.send(Command::CopyTensor, &[from.as_bytes(), to.as_bytes()].concat(), None);
            }
        }
    }

    /// A tensor of some shape in one of the buffers.
    fn tensor(&mut self, id: u64) -> TensorRecord {
        const TYPES: [u32; 8] = [0, 1, 2, 8, 12, 26, 27, 30];
        // Floats, mostly: every operation has those.
        let number = match self.choices.byte() {
            choice @ 160.. => TYPES[usize::from(choice) % TYPES.len()],
            _ => 0,
        };
        let dtype = dtype_from_id(number).unwrap();
        // Nearly always in a buffer that exists.
        let place = match self.choices.byte() {
            255 => usize::MAX,
            place => usize::from(place) % self.buffers.len().max(1),
        };
        let (handle, base) = self.buffers.get(place).copied().unwrap_or((0, 0));
        let mut record = TensorRecord::absent();
        record.id = id.into();
        record.dtype = dtype_id(dtype).into();
        record.buffer = handle.into();
        record.data = (base + 32 * u64::from(self.choices.byte())).into();
        let block = u32::try_from(dtype.block_len()).unwrap();
        let ne = [(); 4].map(|()| self.choices.below(6) as u32);
        let ne = [ne[0].max(1) * 4 / block.min(4) * block, ne[1].max(1), ne[2].max(1), ne[3].max(1)];
        self.shape(&mut record, ne);
        record
    }

    /// Some bytes of a tensor; seldom others.
    fn part(&mut self, record: &TensorRecord) -> (u64, u64) {
        let (offset, len) = (u64::from(self.choices.byte()), u64::from(self.choices.short() & 0xfff));
        let size = u64::from(record.nb[3].get()) * u64::from(record.ne[3].get());
        match self.choices.byte() {
            200.. => (offset, len),
            _ => (offset % size.max(1), len % (size - offset % size.max(1)).max(1)),
        }
    }

    /// Extents, and strides without gaps; now and then with some, or none at all.
    fn shape(&mut self, record: &mut TensorRecord, ne: [u32; 4]) {
        let dtype = dtype_from_id(record.dtype.get()).unwrap();
        let (block, bytes) = (dtype.block_len() as u32, dtype.block_bytes() as u32);
        let row = ne[0] / block * bytes;
        let mut nb = [bytes, row, row * ne[1], row * ne[1] * ne[2]];
        match self.choices.byte() {
            250 => nb[1 + self.choices.below(3)] = 0,
            251 => nb[1] += bytes * u32::from(self.choices.byte()),
            252 => nb[self.choices.below(4)] = u32::MAX,
            253 => record.ne[0] = 0.into(),
            _ => {}
        }
        record.ne = ne.map(Into::into);
        record.nb = nb.map(Into::into);
    }

    /// A graph of a few nodes, most of whose results have the shape they should have.
    fn graph(&mut self) {
        let mut tensors = vec![self.tensor(1)];
        for id in 2..2 + self.choices.below(3) as u64 {
            // Nodes want sources that go together, so most look alike.
            let leaf = match self.choices.byte() {
                200.. => self.tensor(id),
                _ => TensorRecord {
                    id: id.into(),
                    data: (tensors[0].data.get() + 64 * u64::from(self.choices.byte())).into(),
                    ..tensors[0]
                },
            };
            tensors.push(leaf);
        }
        let mut nodes = Vec::new();
        for _ in 0..=self.choices.below(4) {
            let id = tensors.len() as u64 + 1;
            let [a, b] = [(); 2].map(|()| tensors[self.choices.below(tensors.len())]);
            let mut node = self.tensor(id);
            if node.buffer.get() == 0 {
                node.buffer = a.buffer;
                node.data = a.data;
            }
            let code = self.choices.below(self.dialect.ops.len());
            let code = match self.choices.below(3) {
                0 => self.dialect.ops[code],
                _ => {
                    use OpCode::{Add, Concat, Cpy, GetRows, Mul, MulMat, RmsNorm, Scale, SoftMax, SumRows};
                    [Add, Concat, Cpy, GetRows, Mul, MulMat, RmsNorm, Scale, SoftMax, SumRows][code % 10]
                }
            };
            let [an, bn] = [a, b].map(|record| record.ne.map(|n| n.get()));
            let ne = match code {
                OpCode::MulMat => [an[1], bn[1], bn[2], bn[3]],
                OpCode::GetRows => [an[0], bn[0], bn[1], bn[2]],
                OpCode::SumRows => [1, an[1], an[2], an[3]],
                OpCode::Concat => [an[0].saturating_add(bn[0]), an[1], an[2], an[3]],
                OpCode::Cpy => bn,
                _ => an,
            };
            node.dtype = 0.into();
            if ne.iter().all(|&n| n < 1 << 7) {
                self.shape(&mut node, ne);
            }
            node.op = self.dialect.op_number(code).unwrap_or(0).into();
            node.flags = (if self.choices.byte() == 255 { 0 } else { 16 }).into();
            node.sources[0] = a.id;
            let alone = [OpCode::RmsNorm, OpCode::Scale, OpCode::SoftMax, OpCode::SumRows].contains(&code);
            if (self.choices.byte() < 240) != alone {
                node.sources[1] = b.id;
            }
            for _ in 0..self.choices.below(3) {
                let word = self.choices.below(16);
                node.params[word] = i32::from(self.choices.byte().cast_signed()).into();
            }
            nodes.push(id.into());
            tensors.push(node);
        }
        let (mut body, mut command) = (Vec::new(), Command::GraphCompute);
        if self.dialect.has_kept_graphs && self.choices.below(4) != 0 {
            (body, command) = (self.slot(), Command::GraphKeep);
        }
        encode_graph(&mut body, self.dialect, 0, &nodes, &tensors);
        self.send(command, &body, None);
    }

    /// One of a few slots; seldom a number that is none.
    fn slot(&mut self) -> Vec<u8> {
        let number = if self.choices.byte() == 255 { u16::MAX } else { self.choices.below(3) as u16 };
        number.to_le_bytes().to_vec()
    }

    /// Looks at the answers that are complete.
    fn learn(&mut self) {
        while let Some(&(command, len)) = self.expected.front().filter(|_| !self.damaged) {
            let Some(size) = self.answers.first_chunk::<8>() else { return };
            if u64::from_le_bytes(*size) == Interruption::LENGTH {
                if self.answers.len() < 8 + Interruption::BYTES {
                    return;
                }
                let rest = self.answers.split_off(8 + Interruption::BYTES);
                let said = std::mem::replace(&mut self.answers, rest);
                assert!(Interruption::decode(said[8..].try_into().unwrap()).is_some());
                assert!(self.dialect.has_introductions);
                self.expected.pop_front();
                self.interrupted = true;
                continue;
            }
            let size = u64::from_le_bytes(*size) as usize;
            if let Some(len) = len {
                assert_eq!(size, len, "the answer to {} has another length", command.name());
            }
            if self.answers.len() < 8 + size {
                return;
            }
            let rest = self.answers.split_off(8 + size);
            let answer = std::mem::replace(&mut self.answers, rest);
            self.expected.pop_front();
            let number = |at: usize| answer[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            match command {
                Command::AllocBuffer if number(8) != 0 => self.buffers.push((number(8), 0)),
                Command::BufferGetBase => {
                    assert_ne!(number(8), 0, "a base is never zero");
                    if let Some(last) = self.buffers.last_mut() {
                        last.1 = number(8);
                    }
                }
                Command::GetTensor => self.received.extend_from_slice(&answer[8..]),
                _ => {}
            }
        }
        if self.damaged {
            self.received.append(&mut self.answers);
        }
    }
}

/// One end of a script.
#[derive(Debug)]
pub struct End<'s, 'a>(pub &'s RefCell<Script<'a>>);

impl Read for End<'_, '_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut script = self.0.borrow_mut();
        if script.pending.is_empty() {
            script.next();
        }
        script.pending.read(out)
    }
}

impl Write for End<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut script = self.0.borrow_mut();
        script.answers.extend_from_slice(bytes);
        script.learn();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
