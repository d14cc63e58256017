//! What a graph keeps of each tensor, and the small types it is made of.

use std::fmt;
use std::num::NonZeroU32;
use std::ops::{BitOr, BitOrAssign};

use crate::layout::Layout;
use crate::ops::Op;

/// A tensor of one graph; meaningless to any other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId(
    /// Index plus one, so that an absent id takes no extra room.
    NonZeroU32,
);

impl TensorId {
    /// Position in the graph's arena, for dense side tables.
    pub const fn index(self) -> usize {
        self.0.get() as usize - 1
    }

    /// The id at a position. Graphs refuse to grow past `u32`, so a position of an existing tensor always fits.
    pub(super) fn from_index(index: usize) -> TensorId {
        let number = u32::try_from(index + 1).ok().and_then(NonZeroU32::new);
        TensorId(number.unwrap_or_else(|| unreachable!("graphs hold at most MAX_TENSORS tensors")))
    }
}

impl fmt::Display for TensorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.index())
    }
}

impl fmt::Debug for TensorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A buffer, by its number in a table of the owner of the memory; this crate only compares them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(
    /// Position in the owner's table.
    pub u32,
);

impl fmt::Display for BufferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "buffer {}", self.0)
    }
}

/// Where a tensor's first byte is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Storage {
    /// The buffer.
    pub buffer: BufferId,
    /// Bytes from the buffer's first byte.
    pub offset: usize,
}

/// What a view looks into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewOf {
    /// The tensor that owns the memory; never a view itself.
    pub root: TensorId,
    /// Bytes from the root's first byte.
    pub offset: usize,
}

/// Roles of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(u8);

impl Flags {
    /// Given before each run.
    pub const INPUT: Flags = Flags(1);
    /// Read after the run; never freed or overwritten.
    pub const OUTPUT: Flags = Flags(2);
    /// Trainable.
    pub const PARAM: Flags = Flags(4);
    /// What training makes small.
    pub const LOSS: Flags = Flags(8);
    /// Executed; nodes in order without it are skipped.
    pub const COMPUTE: Flags = Flags(16);

    const NAMES: [(Flags, &'static str); 5] = [
        (Flags::INPUT, "input"),
        (Flags::OUTPUT, "output"),
        (Flags::PARAM, "param"),
        (Flags::LOSS, "loss"),
        (Flags::COMPUTE, "compute"),
    ];

    pub(super) const fn without(self, other: Flags) -> Flags {
        Flags(self.0 & !other.0)
    }

    /// Whether all of `other`'s roles are here.
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Flags {
    type Output = Flags;

    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

impl BitOrAssign for Flags {
    fn bitor_assign(&mut self, other: Flags) {
        self.0 |= other.0;
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> =
            Flags::NAMES.iter().filter(|(flag, _)| self.contains(*flag)).map(|&(_, name)| name).collect();
        write!(f, "{}", names.join("|"))
    }
}

/// What passes over a graph look at again and again. Small, so that those of a whole graph stay in the cache.
#[derive(Clone, Debug)]
pub(super) struct Links {
    pub(super) root: Option<TensorId>,
    /// A buffer's id, or [`NO_BUFFER`].
    buffer: u32,
    pub(super) first_source: u32,
    pub(super) source_count: u8,
    pub(super) flags: Flags,
    pub(super) is_leaf: bool,
    /// Whether running the graph does anything for it.
    pub(super) computes: bool,
    /// Whether it may take over the memory of a source.
    pub(super) reuses_source: bool,
    /// If so, a bit for each of those sources that has its very layout.
    pub(super) alike: u16,
    /// What its first byte must be a multiple of, as a power of two.
    align_log2: u8,
    /// Bytes from its first to its last.
    pub(super) byte_len: usize,
    pub(super) view_offset: usize,
    offset: usize,
}

const NO_BUFFER: u32 = u32::MAX;

/// The rest: what ops and people look at.
#[derive(Clone, Debug)]
pub(super) struct Details {
    pub(super) op: Op,
    pub(super) name: Option<Box<str>>,
}

impl Links {
    pub(super) fn new(layout: &Layout, op: &Op, view: Option<ViewOf>, sources: (u32, u8)) -> Links {
        let info = op.info();
        let (first_source, source_count) = sources;
        // Blocks are made of bytes and need nothing; plain elements have the size of a power of two.
        let align = if layout.dtype().is_quantized() { 1 } else { layout.dtype().block_bytes() };
        Links {
            align_log2: align.ilog2() as u8,
            byte_len: layout.byte_len(),
            root: view.map(|view| view.root),
            buffer: NO_BUFFER,
            first_source,
            source_count,
            flags: Flags::default(),
            is_leaf: *op == Op::None,
            computes: info.computes,
            reuses_source: !info.reuses.is_empty(),
            alike: 0,
            view_offset: view.map_or(0, |view| view.offset),
            offset: 0,
        }
    }

    pub(super) fn align(&self) -> usize {
        1 << self.align_log2
    }

    pub(super) fn view(&self) -> Option<ViewOf> {
        self.root.map(|root| ViewOf { root, offset: self.view_offset })
    }

    pub(super) fn buffer(&self) -> Option<BufferId> {
        (self.buffer != NO_BUFFER).then_some(BufferId(self.buffer))
    }

    pub(super) fn storage(&self) -> Option<Storage> {
        self.buffer().map(|buffer| Storage { buffer, offset: self.offset })
    }

    pub(super) fn set_storage(&mut self, storage: Option<Storage>) {
        let Storage { buffer, offset } =
            storage.unwrap_or(Storage { buffer: BufferId(NO_BUFFER), offset: 0 });
        (self.buffer, self.offset) = (buffer.0, offset);
    }

    pub(super) fn sources(&self) -> std::ops::Range<usize> {
        let first = self.first_source as usize;
        first..first + usize::from(self.source_count)
    }
}
