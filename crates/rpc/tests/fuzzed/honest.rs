//! An honest client, and a model of what a worker must answer it.
//!
//! The model is bytes: a client's buffers hold what it has written, copied, cleared and added up there, and nothing else can change them.
//! A request is made before it is known whether it will arrive; only [`Honest::learn`] says that it did.

use std::collections::BTreeMap;
use std::ops::Range;

use oxcart_backend::Content;
use oxcart_rpc::wire::{
    Command, Dialect, NO_CAPABILITIES, OpCode, Reply, Slot, Take, TensorRecord, answer_capabilities,
    encode_graph, with_kept_graphs,
};
use zerocopy::IntoBytes;

use super::Choices;
use super::rig::Rig;

/// A buffer, and what it must hold.
#[derive(Debug)]
struct Block {
    handle: u64,
    /// 0 as long as it was not asked for.
    base: u64,
    bytes: Vec<u8>,
}

/// Some bytes of a block.
#[derive(Clone, Debug)]
struct Part {
    handle: u64,
    bytes: Range<usize>,
}

/// What a worker must answer.
#[derive(Debug)]
enum Expected {
    /// Nothing, or what is given.
    Answer(Option<Vec<u8>>),
    /// A handle and a size, or two zeros.
    Buffer { size: usize, fits: bool },
    /// An address.
    Base,
    /// Nothing, and the end of the connection.
    Refusal,
}

/// What is otherwise once a request was carried out.
#[derive(Debug)]
enum Effect {
    Nothing,
    Written(Part, Vec<u8>),
    /// A sum, which can be computed again: as the last one, or as the one in a slot.
    Summed(Option<Slot>, [Part; 3], Vec<u8>),
    /// Nothing is in a slot any more.
    Dropped(Slot),
    Freed(u64),
}

/// A message, and what comes of it.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) bytes: Vec<u8>,
    command: Command,
    expected: Expected,
    effect: Effect,
}

/// A client that does nothing wrong unless it says so.
#[derive(Debug)]
pub(super) struct Honest {
    dialect: &'static Dialect,
    greeted: bool,
    blocks: Vec<Block>,
    /// Two terms and their sum: the graphs that the worker has stored, that in no slot being the last one.
    graphs: BTreeMap<Option<Slot>, [Part; 3]>,
}

/// Tensors have at most so many bytes.
const MOST_BYTES: usize = 256;
/// Floats of such bytes are finite and stay so however often they are added up.
const SMALL: u8 = 0x3f;

impl Honest {
    pub(super) const fn new(dialect: &'static Dialect) -> Honest {
        Honest { dialect, greeted: false, blocks: Vec::new(), graphs: BTreeMap::new() }
    }

    /// Bytes that it holds on the device.
    pub(super) fn held(&self) -> usize {
        self.blocks.iter().map(|block| block.bytes.len()).sum()
    }

    /// A handle that is its own.
    pub(super) fn handle(&self) -> Option<u64> {
        self.blocks.first().map(|block| block.handle)
    }

    /// The next thing to say, with so many bytes of the device left.
    pub(super) fn next(&self, choices: &mut Choices<'_>, left: usize) -> Request {
        if !self.greeted {
            return self.hello();
        }
        if let Some(new) = self.blocks.iter().find(|block| block.base == 0) {
            let body = new.handle.to_le_bytes();
            return self.request(Command::BufferGetBase, &body, Expected::Base, Effect::Nothing);
        }
        let some = self.blocks.iter().any(|block| block.bytes.len() >= 4);
        match choices.below(14) {
            choice @ 1.. if some => self.use_memory(choice, choices, left),
            13 => self.ask(choices, left),
            _ => self.allocate(choices, left),
        }
    }

    fn use_memory(&self, choice: usize, choices: &mut Choices<'_>, left: usize) -> Request {
        let part = self.part(choices);
        match choice {
            1 => {
                let body = part.handle.to_le_bytes();
                self.done(Command::FreeBuffer, &body, Effect::Freed(part.handle))
            }
            2 => {
                let (value, len) = (choices.byte() & SMALL, self.block(&part).bytes.len());
                let body = [&part.handle.to_le_bytes()[..], &[value]].concat();
                let whole = Part { bytes: 0..len, ..part };
                self.done(Command::BufferClear, &body, Effect::Written(whole, vec![value; len]))
            }
            3 => self.set(part, choices),
            4 | 5 => self.get(&part),
            6 => {
                let to = self.part_of(part.bytes.len(), choices).unwrap_or_else(|| part.clone());
                let body = [self.record(1, &part), self.record(2, &to)].as_bytes().to_vec();
                let copied = Effect::Written(to, self.bytes(&part).to_vec());
                self.request(Command::CopyTensor, &body, Expected::Answer(Some(vec![1])), copied)
            }
            7 if self.dialect.has_memset => {
                let (value, len) = (choices.byte() & SMALL, part.bytes.len());
                let range = [0, len as u64].map(u64::to_le_bytes).concat();
                let body = [self.record(1, &part).as_bytes(), &range, &[value]].concat();
                self.done(Command::MemsetTensor, &body, Effect::Written(part, vec![value; len]))
            }
            8 | 9 => self.add(part, choices),
            10 | 11 if self.dialect.has_recompute => self.add_again(choices),
            12 => {
                let (record, miss) = (self.record(1, &part), Expected::Answer(Some(vec![0])));
                if self.dialect.has_takes && part.bytes.start.is_multiple_of(8) {
                    let content = Content { hash: 0, digest: [0; 32] };
                    let body = Take { record, content }.encode();
                    return self.request(Command::Take, &body, miss, Effect::Nothing);
                }
                let body = [record.as_bytes(), &[0; 16]].concat();
                self.request(Command::SetTensorHash, &body, miss, Effect::Nothing)
            }
            13 => self.ask(choices, left),
            _ => self.done(Command::InitTensor, self.record(1, &part).as_bytes(), Effect::Nothing),
        }
    }

    /// A request that is refused because it names a buffer that is not the client's; none before HELLO.
    pub(super) fn trespass(&self, choices: &mut Choices<'_>, handle: u64) -> Option<Request> {
        self.greeted.then_some(())?;
        let record = self.record(1, &Part { handle, bytes: 0..4 });
        let (command, body) = match choices.below(4) {
            0 => (Command::FreeBuffer, handle.to_le_bytes().to_vec()),
            1 => (Command::BufferClear, [&handle.to_le_bytes()[..], &[1]].concat()),
            2 => (Command::BufferGetBase, handle.to_le_bytes().to_vec()),
            _ => {
                let range = [0_u64, 4].map(u64::to_le_bytes).concat();
                (Command::GetTensor, [record.as_bytes(), &range].concat())
            }
        };
        Some(self.request(command, &body, Expected::Refusal, Effect::Nothing))
    }

    /// All that it has, to be compared.
    pub(super) fn read_all(&self) -> Vec<Request> {
        let known = self.blocks.iter().filter(|block| block.base != 0);
        known
            .map(|block| {
                let len = (block.bytes.len() & !3).min(1 << 16);
                self.get(&Part { handle: block.handle, bytes: 0..len })
            })
            .collect()
    }

    /// What a request has come to; says whether the connection goes on.
    pub(super) fn learn(&mut self, request: Request, answers: &[u8], is_there: bool) -> bool {
        let name = request.command.name();
        let framed = |answer: &[u8]| [&(answer.len() as u64).to_le_bytes()[..], answer].concat();
        match request.expected {
            Expected::Refusal => {
                assert!(!is_there && answers.is_empty(), "{name}: not refused: {answers:?}");
                return false;
            }
            Expected::Answer(expected) => {
                let expected = expected.map_or_else(Vec::new, |answer| framed(&answer));
                assert_eq!(answers, expected, "{name}: answered wrongly");
            }
            Expected::Base => {
                assert_eq!(answers.len(), 16, "{name}");
                let base = number(&answers[8..]);
                assert_ne!(base, 0, "{name}");
                if let Some(new) = self.blocks.iter_mut().find(|block| block.base == 0) {
                    new.base = base;
                }
            }
            Expected::Buffer { size, fits } => {
                assert_eq!(answers.len(), 24, "{name}");
                let (handle, len) = (number(&answers[8..]), number(&answers[16..]));
                let expected = if fits { size as u64 } else { 0 };
                assert_eq!((handle != 0, len), (fits, expected), "{name}: {size} bytes");
                if fits {
                    self.blocks.push(Block { handle, base: 0, bytes: vec![0; size] });
                }
            }
        }
        assert!(is_there, "{name}: the connection is over");
        self.greeted = true;
        match request.effect {
            Effect::Nothing => {}
            Effect::Written(part, bytes) => self.write(&part, &bytes),
            Effect::Summed(slot, parts, bytes) => {
                self.write(&parts[2], &bytes);
                self.graphs.insert(slot, parts);
            }
            Effect::Dropped(slot) => {
                self.graphs.remove(&Some(slot));
            }
            Effect::Freed(handle) => {
                self.blocks.retain(|block| block.handle != handle);
                self.graphs.retain(|_, parts| parts.iter().all(|part| part.handle != handle));
            }
        }
        true
    }

    fn write(&mut self, part: &Part, bytes: &[u8]) {
        let block = self.blocks.iter_mut().find(|block| block.handle == part.handle).unwrap();
        block.bytes[part.bytes.clone()].copy_from_slice(bytes);
    }

    fn block(&self, part: &Part) -> &Block {
        self.blocks.iter().find(|block| block.handle == part.handle).unwrap()
    }

    fn bytes(&self, part: &Part) -> &[u8] {
        &self.block(part).bytes[part.bytes.clone()]
    }

    /// Some floats in a block that has room for one.
    fn part(&self, choices: &mut Choices<'_>) -> Part {
        let len = 4 * (1 + choices.below(MOST_BYTES / 4));
        self.part_of(len, choices).or_else(|| self.part_of(4, choices)).unwrap()
    }

    /// So many bytes, where there are as many.
    fn part_of(&self, len: usize, choices: &mut Choices<'_>) -> Option<Part> {
        let fitting: Vec<_> = self.blocks.iter().filter(|block| block.bytes.len() >= len).collect();
        let block = fitting.get(choices.below(fitting.len()))?;
        let start = 4 * (usize::from(choices.short()) % ((block.bytes.len() - len) / 4 + 1));
        Some(Part { handle: block.handle, bytes: start..start + len })
    }

    /// A row of floats where a part is; the address of a block that is not known does not matter.
    fn record(&self, id: u64, part: &Part) -> TensorRecord {
        let base = self.blocks.iter().find(|block| block.handle == part.handle).map_or(0, |block| block.base);
        let row = u32::try_from(part.bytes.len()).unwrap();
        let mut record = TensorRecord::absent();
        record.id = id.into();
        record.buffer = part.handle.into();
        record.data = (base + part.bytes.start as u64).into();
        record.ne = [row / 4, 1, 1, 1].map(Into::into);
        record.nb = [4, row, row, row].map(Into::into);
        record
    }

    fn request(&self, command: Command, body: &[u8], expected: Expected, effect: Effect) -> Request {
        let size = (body.len() as u64).to_le_bytes();
        Request { bytes: [&[command as u8][..], &size, body].concat(), command, expected, effect }
    }

    /// A request that is answered with nothing, or not at all.
    fn done(&self, command: Command, body: &[u8], effect: Effect) -> Request {
        let answer = (command.reply(self.dialect) != Reply::None).then(Vec::new);
        self.request(command, body, Expected::Answer(answer), effect)
    }

    fn hello(&self) -> Request {
        let version = self.dialect.version;
        let mut answer = vec![version.major, version.minor, version.patch];
        if self.dialect.has_capabilities {
            answer.push(0);
            let own = answer_capabilities(self.dialect, &NO_CAPABILITIES);
            answer.extend(with_kept_graphs(own, self.dialect, Rig::KEPT_BYTES));
        }
        let body = vec![0; Command::Hello.request_bytes(self.dialect)];
        self.request(Command::Hello, &body, Expected::Answer(Some(answer)), Effect::Nothing)
    }

    /// The device, where requests name one.
    fn device(&self) -> &'static [u8] {
        if self.dialect.has_devices { &[0; 4] } else { &[] }
    }

    fn allocate(&self, choices: &mut Choices<'_>, left: usize) -> Request {
        let size = match choices.byte() {
            240.. => usize::from(choices.short()) << 8,
            _ => usize::from(choices.short() & 0xfff),
        };
        let fits = size <= left && self.blocks.len() < Rig::BUFFERS;
        let body = [self.device(), &(size as u64).to_le_bytes()].concat();
        self.request(Command::AllocBuffer, &body, Expected::Buffer { size, fits }, Effect::Nothing)
    }

    fn ask(&self, choices: &mut Choices<'_>, left: usize) -> Request {
        let (command, answer) = match choices.below(3) {
            0 => (Command::GetAlignment, 64_u64.to_le_bytes().to_vec()),
            1 => (Command::GetMaxSize, u64::MAX.to_le_bytes().to_vec()),
            _ => {
                let memory = [left as u64, Rig::TOTAL_BYTES as u64];
                (Command::GetDeviceMemory, memory.map(u64::to_le_bytes).concat())
            }
        };
        self.request(command, self.device(), Expected::Answer(Some(answer)), Effect::Nothing)
    }

    fn set(&self, part: Part, choices: &mut Choices<'_>) -> Request {
        let (first, skipped) = (choices.byte(), choices.below(part.bytes.len() + 1));
        let flag: &[u8] = if self.dialect.has_cache_flag { &[1] } else { &[] };
        let data: Vec<u8> =
            (skipped..part.bytes.len()).map(|at| first.wrapping_add(at as u8) & SMALL).collect();
        let record = self.record(1, &part);
        let body = [record.as_bytes(), flag, &(skipped as u64).to_le_bytes(), &data].concat();
        let rest = Part { bytes: part.bytes.start + skipped..part.bytes.end, ..part };
        self.done(Command::SetTensor, &body, Effect::Written(rest, data))
    }

    fn get(&self, part: &Part) -> Request {
        let range = [0, part.bytes.len() as u64].map(u64::to_le_bytes).concat();
        let body = [self.record(1, part).as_bytes(), &range].concat();
        let expected = Expected::Answer(Some(self.bytes(part).to_vec()));
        self.request(Command::GetTensor, &body, expected, Effect::Nothing)
    }

    /// A graph of one sum, whose terms and result may overlap.
    fn add(&self, part: Part, choices: &mut Choices<'_>) -> Request {
        let [b, sum] = [(); 2].map(|()| self.part_of(part.bytes.len(), choices).unwrap_or(part.clone()));
        let parts = [part, b, sum];
        let [a, b, mut node] = [1, 2, 3].map(|id| self.record(id, &parts[id as usize - 1]));
        node.op = self.dialect.op_number(OpCode::Add).unwrap().into();
        node.flags = 16.into();
        (node.sources[0], node.sources[1]) = (1.into(), 2.into());
        let slot = self.slot(choices);
        let (command, mut body) = match slot {
            Some(slot) => (Command::GraphKeep, slot.encode().to_vec()),
            None => (Command::GraphCompute, Vec::new()),
        };
        encode_graph(&mut body, self.dialect, 0, &[3.into()], &[a, b, node]);
        let answer = (!self.dialect.has_recompute).then(|| vec![0]);
        let sum = self.sum(&parts);
        self.request(command, &body, Expected::Answer(answer), Effect::Summed(slot, parts, sum))
    }

    /// A slot where there are slots, or none.
    fn slot(&self, choices: &mut Choices<'_>) -> Option<Slot> {
        let number = if self.dialect.has_kept_graphs { choices.below(4) } else { 3 };
        Slot::new(number).filter(|_| number < 3)
    }

    /// A stored graph again, or never again; without one, that is refused.
    fn add_again(&self, choices: &mut Choices<'_>) -> Request {
        let slot = self.slot(choices);
        let (command, body) = match slot {
            Some(slot) if choices.below(8) == 0 => (Command::GraphDrop, slot.encode().to_vec()),
            Some(slot) => (Command::GraphRun, slot.encode().to_vec()),
            None => (Command::GraphRecompute, self.device().to_vec()),
        };
        let Some(parts) = self.graphs.get(&slot).cloned() else {
            return self.request(command, &body, Expected::Refusal, Effect::Nothing);
        };
        match (command, slot) {
            (Command::GraphDrop, Some(slot)) => self.done(command, &body, Effect::Dropped(slot)),
            _ => {
                let sum = self.sum(&parts);
                self.done(command, &body, Effect::Summed(slot, parts, sum))
            }
        }
    }

    fn sum(&self, [a, b, _]: &[Part; 3]) -> Vec<u8> {
        let floats = |part| self.bytes(part).as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        floats(a).zip(floats(b)).flat_map(|(a, b)| (a + b).to_le_bytes()).collect()
    }
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(*bytes.first_chunk().unwrap())
}
