//! One tensor of a graph, and the small types it is made of.

use std::fmt;
use std::num::NonZeroU32;
use std::ops::{BitOr, BitOrAssign, Range};

use crate::dtype::DType;
use crate::layout::Layout;
use crate::ops::Op;
use crate::shape::Shape;

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

/// A buffer in the tables of whoever owns the memory; this crate only compares them.
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

/// A tensor: what it looks like, how it is made, where it is.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub(super) layout: Layout,
    pub(super) op: Op,
    pub(super) view: Option<ViewOf>,
    pub(super) sources: Range<u32>,
    pub(super) flags: Flags,
    pub(super) name: Option<Box<str>>,
    pub(super) storage: Option<Storage>,
}

impl Tensor {
    pub(super) fn new(layout: Layout, op: Op, view: Option<ViewOf>) -> Tensor {
        Tensor { layout, op, view, sources: 0..0, flags: Flags::default(), name: None, storage: None }
    }

    /// Type, extents and strides.
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Element type.
    pub const fn dtype(&self) -> DType {
        self.layout.dtype()
    }

    /// Extents.
    pub const fn ne(&self) -> Shape {
        self.layout.ne()
    }

    /// What makes it; [`Op::None`] for a leaf.
    pub const fn op(&self) -> &Op {
        &self.op
    }

    /// Whether its contents come from outside the graph.
    pub const fn is_leaf(&self) -> bool {
        matches!(self.op, Op::None)
    }

    /// The memory it shows, when that is not its own.
    pub const fn view(&self) -> Option<ViewOf> {
        self.view
    }

    /// Its roles.
    pub const fn flags(&self) -> Flags {
        self.flags
    }

    /// Whether it has a role.
    pub const fn has(&self, flag: Flags) -> bool {
        self.flags.contains(flag)
    }

    /// Its name, if it was given one.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// What its first byte must be a multiple of. Blocks are made of bytes and need nothing.
    pub fn element_align(&self) -> usize {
        if self.dtype().is_quantized() { 1 } else { self.dtype().block_bytes() }
    }
}
