//! The commands, their sizes and whether they are answered.

use super::dialect::Dialect;
use super::introduction::{Expect, Meet, Transfer};
use super::kept_graph::Slot;
use super::offer::CAPABILITY_BYTES;
use super::record::RECORD_BYTES;
use super::take::Take;

/// What a client can ask for. The numbers are the same in every dialect; those from 128 on are Oxcart's alone, far from where ggml's end.
#[expect(missing_docs, reason = "each is a command by its name")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Command {
    AllocBuffer = 0,
    GetAlignment = 1,
    GetMaxSize = 2,
    BufferGetBase = 3,
    FreeBuffer = 4,
    BufferClear = 5,
    SetTensor = 6,
    SetTensorHash = 7,
    GetTensor = 8,
    CopyTensor = 9,
    GraphCompute = 10,
    GetDeviceMemory = 11,
    InitTensor = 12,
    GetAllocSize = 13,
    Hello = 14,
    DeviceCount = 15,
    GraphRecompute = 16,
    MemsetTensor = 17,
    /// Be ready for another worker that will come with a secret.
    Expect = 128,
    /// Go to another worker with a secret.
    Meet = 129,
    /// Send bytes to a worker that was met.
    Push = 130,
    /// Wait for bytes from a worker that was expected.
    Await = 131,
    /// Go on after an interruption, without what did not come.
    Resume = 132,
    /// Give the session a pulse.
    Pulse = 133,
    /// Put bytes in place that the worker has, by what they are known by.
    Take = 134,
    /// Compute a graph and keep it in a slot.
    GraphKeep = 135,
    /// Compute the graph in a slot again.
    GraphRun = 136,
    /// Forget the graph in a slot.
    GraphDrop = 137,
}

/// How many of them are ggml's.
const GGML_COMMANDS: usize = 18;

/// What a command is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Nothing, not even a length.
    None,
    /// A length and that many bytes; none is a length of zero.
    Bytes(usize),
    /// A length and as many bytes as were asked for.
    Data,
}

impl Command {
    /// Every command.
    pub const ALL: [Command; 28] = [
        Command::AllocBuffer,
        Command::GetAlignment,
        Command::GetMaxSize,
        Command::BufferGetBase,
        Command::FreeBuffer,
        Command::BufferClear,
        Command::SetTensor,
        Command::SetTensorHash,
        Command::GetTensor,
        Command::CopyTensor,
        Command::GraphCompute,
        Command::GetDeviceMemory,
        Command::InitTensor,
        Command::GetAllocSize,
        Command::Hello,
        Command::DeviceCount,
        Command::GraphRecompute,
        Command::MemsetTensor,
        Command::Expect,
        Command::Meet,
        Command::Push,
        Command::Await,
        Command::Resume,
        Command::Pulse,
        Command::Take,
        Command::GraphKeep,
        Command::GraphRun,
        Command::GraphDrop,
    ];

    /// The command with a number, if the dialect has it.
    pub fn from_number(number: u8, dialect: &Dialect) -> Option<Command> {
        let command = Command::ALL.into_iter().find(|command| *command as u8 == number)?;
        let exists = match command {
            Command::DeviceCount => dialect.has_devices,
            Command::GraphRecompute => dialect.has_recompute,
            Command::MemsetTensor => dialect.has_memset,
            Command::Expect | Command::Meet | Command::Push | Command::Await | Command::Resume => {
                dialect.has_introductions
            }
            Command::Pulse => dialect.has_pulses,
            Command::Take => dialect.has_takes,
            Command::GraphKeep | Command::GraphRun | Command::GraphDrop => dialect.has_kept_graphs,
            _ => true,
        };
        exists.then_some(command)
    }

    /// Its place in [`Command::ALL`].
    pub(crate) const fn index(self) -> usize {
        match self as u8 {
            number @ ..128 => number as usize,
            number => number as usize - 128 + GGML_COMMANDS,
        }
    }

    /// Its name as ggml writes names, for example `SET_TENSOR`.
    pub const fn name(self) -> &'static str {
        match self {
            Command::AllocBuffer => "ALLOC_BUFFER",
            Command::GetAlignment => "GET_ALIGNMENT",
            Command::GetMaxSize => "GET_MAX_SIZE",
            Command::BufferGetBase => "BUFFER_GET_BASE",
            Command::FreeBuffer => "FREE_BUFFER",
            Command::BufferClear => "BUFFER_CLEAR",
            Command::SetTensor => "SET_TENSOR",
            Command::SetTensorHash => "SET_TENSOR_HASH",
            Command::GetTensor => "GET_TENSOR",
            Command::CopyTensor => "COPY_TENSOR",
            Command::GraphCompute => "GRAPH_COMPUTE",
            Command::GetDeviceMemory => "GET_DEVICE_MEMORY",
            Command::InitTensor => "INIT_TENSOR",
            Command::GetAllocSize => "GET_ALLOC_SIZE",
            Command::Hello => "HELLO",
            Command::DeviceCount => "DEVICE_COUNT",
            Command::GraphRecompute => "GRAPH_RECOMPUTE",
            Command::MemsetTensor => "MEMSET_TENSOR",
            Command::Expect => "EXPECT",
            Command::Meet => "MEET",
            Command::Push => "PUSH",
            Command::Await => "AWAIT",
            Command::Resume => "RESUME",
            Command::Pulse => "PULSE",
            Command::Take => "TAKE",
            Command::GraphKeep => "GRAPH_KEEP",
            Command::GraphRun => "GRAPH_RUN",
            Command::GraphDrop => "GRAPH_DROP",
        }
    }

    /// Bytes of the request's body, or of its fixed start where more follows ([`Command::is_open_ended`]).
    pub const fn request_bytes(self, dialect: &Dialect) -> usize {
        let device = if dialect.has_devices { 4 } else { 0 };
        match self {
            Command::AllocBuffer => device + 8,
            Command::GetAlignment | Command::GetMaxSize | Command::GetDeviceMemory => device,
            Command::BufferGetBase | Command::FreeBuffer => 8,
            Command::BufferClear => 9,
            Command::SetTensor => RECORD_BYTES + 8 + if dialect.has_cache_flag { 1 } else { 0 },
            Command::SetTensorHash | Command::GetTensor => RECORD_BYTES + 16,
            Command::CopyTensor => 2 * RECORD_BYTES,
            Command::GraphCompute => device + 8,
            Command::InitTensor => RECORD_BYTES,
            Command::GetAllocSize if dialect.has_devices => device + 11 * RECORD_BYTES,
            Command::GetAllocSize => RECORD_BYTES,
            Command::Hello => {
                if dialect.has_capabilities {
                    CAPABILITY_BYTES
                } else {
                    0
                }
            }
            Command::DeviceCount | Command::Resume | Command::Pulse => 0,
            Command::GraphRecompute => device,
            Command::MemsetTensor => RECORD_BYTES + 17,
            Command::Expect => Expect::BYTES,
            Command::Meet => Meet::BYTES,
            Command::Push | Command::Await => Transfer::BYTES,
            Command::Take => Take::BYTES,
            Command::GraphKeep => Slot::BYTES + device + 8,
            Command::GraphRun | Command::GraphDrop => Slot::BYTES,
        }
    }

    /// Whether the body may be longer than its fixed start.
    pub const fn is_open_ended(self) -> bool {
        matches!(self, Command::SetTensor | Command::GraphCompute | Command::GraphKeep)
    }

    /// What the command is answered with.
    pub const fn reply(self, dialect: &Dialect) -> Reply {
        match self {
            Command::AllocBuffer | Command::GetDeviceMemory => Reply::Bytes(16),
            Command::GetAlignment | Command::GetMaxSize | Command::BufferGetBase | Command::GetAllocSize => {
                Reply::Bytes(8)
            }
            Command::FreeBuffer | Command::BufferClear | Command::InitTensor | Command::MemsetTensor => {
                if dialect.answers_writes {
                    Reply::Bytes(0)
                } else {
                    Reply::None
                }
            }
            Command::SetTensor
            | Command::GraphRecompute
            | Command::GraphKeep
            | Command::GraphRun
            | Command::GraphDrop
            | Command::Push
            | Command::Await
            | Command::Resume => Reply::None,
            Command::SetTensorHash
            | Command::CopyTensor
            | Command::Expect
            | Command::Meet
            | Command::Take => Reply::Bytes(1),
            Command::GetTensor => Reply::Data,
            Command::GraphCompute => {
                if dialect.has_recompute {
                    Reply::None
                } else {
                    Reply::Bytes(1)
                }
            }
            Command::Hello => Reply::Bytes(if dialect.has_capabilities { 4 + CAPABILITY_BYTES } else { 3 }),
            Command::DeviceCount => Reply::Bytes(4),
            Command::Pulse => Reply::Bytes(16),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The command table of the protocol: request bytes and reply bytes, -1 for no reply, by dialect.
    #[rustfmt::skip]
    const TABLE: [(u8, [(usize, i64); 5]); 18] = [
        ( 0, [(8, 16),   (12, 16),   (12, 16),   (12, 16),   (12, 16)]),
        ( 1, [(0, 8),    (4, 8),     (4, 8),     (4, 8),     (4, 8)]),
        ( 2, [(0, 8),    (4, 8),     (4, 8),     (4, 8),     (4, 8)]),
        ( 3, [(8, 8),    (8, 8),     (8, 8),     (8, 8),     (8, 8)]),
        ( 4, [(8, 0),    (8, 0),     (8, 0),     (8, 0),     (8, -1)]),
        ( 5, [(9, 0),    (9, 0),     (9, 0),     (9, 0),     (9, -1)]),
        ( 6, [(304, -1), (304, -1),  (304, -1),  (304, -1),  (305, -1)]),
        ( 7, [(312, 1),  (312, 1),   (312, 1),   (312, 1),   (312, 1)]),
        ( 8, [(312, -2), (312, -2),  (312, -2),  (312, -2),  (312, -2)]),
        ( 9, [(592, 1),  (592, 1),   (592, 1),   (592, 1),   (592, 1)]),
        (10, [(8, 1),    (12, -1),   (12, -1),   (12, -1),   (12, -1)]),
        (11, [(0, 16),   (4, 16),    (4, 16),    (4, 16),    (4, 16)]),
        (12, [(296, 0),  (296, 0),   (296, 0),   (296, 0),   (296, -1)]),
        (13, [(296, 8),  (3260, 8),  (3260, 8),  (3260, 8),  (3260, 8)]),
        (14, [(0, 3),    (0, 3),     (24, 28),   (24, 28),   (24, 28)]),
        (15, [(0, -9),   (0, 4),     (0, 4),     (0, 4),     (0, 4)]),
        (16, [(0, -9),   (4, -1),    (4, -1),    (4, -1),    (4, -1)]),
        (17, [(0, -9),   (0, -9),    (0, -9),    (313, 0),   (313, -1)]),
    ];

    #[test]
    fn sizes_and_replies_are_those_of_the_protocol() {
        let dialects = ["2.0", "3.6", "4.0.0", "5.1", "7.0"].map(|name| name.parse::<&Dialect>().unwrap());
        for (number, row) in TABLE {
            for (dialect, (request, reply)) in dialects.iter().zip(row) {
                let command = Command::from_number(number, dialect);
                if reply == -9 {
                    assert_eq!(command, None, "{number} in {dialect}");
                    continue;
                }
                let command = command.unwrap();
                assert_eq!(command as u8, number);
                assert_eq!(command.request_bytes(dialect), request, "{} in {dialect}", command.name());
                let expected = match reply {
                    -1 => Reply::None,
                    -2 => Reply::Data,
                    bytes => Reply::Bytes(usize::try_from(bytes).unwrap()),
                };
                assert_eq!(command.reply(dialect), expected, "{} in {dialect}", command.name());
            }
        }
        for number in 18..=255 {
            assert_eq!(Command::from_number(number, Dialect::newest()), None);
        }
    }

    /// Our own commands exist between Oxcarts alone, and nowhere near ggml's.
    #[test]
    fn own_commands_are_those_of_the_own_dialect() {
        let numbers: Vec<u8> =
            (18..=255).filter(|&number| Command::from_number(number, Dialect::own()).is_some()).collect();
        assert_eq!(numbers, [128, 129, 130, 131, 132, 133, 134, 135, 136, 137]);
        for dialect in Dialect::all().iter().filter(|dialect| **dialect != Dialect::own()) {
            assert!(!dialect.has_introductions && !dialect.has_pulses && !dialect.has_takes, "{dialect}");
            assert!(!dialect.has_kept_graphs, "{dialect}");
        }
        for (index, command) in Command::ALL.into_iter().enumerate() {
            assert_eq!(command.index(), index, "{}", command.name());
        }
    }
}
