//! Nodes to steps: kernels chosen, tensors found in memory, overlaps resolved.

use std::sync::Arc;

use oxcart_backend::{Buffer, Error, HostMemory, Work};
use oxcart_tensor::graph::{BufferId, Flags};
use oxcart_tensor::{Layout, Op, TensorId, TensorRef};

use crate::device::NAME;
use crate::job::Kernel;
use crate::kernels::choose;
use crate::simd::Level;

/// Scratch areas start at multiples of this: a cache line, and the widest vector.
pub(super) const SCRATCH_ALIGN: usize = 64;

/// Where a tensor is: which of the plan's buffers, how far in, and its layout.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operand {
    pub(super) buffer: usize,
    pub(super) offset: usize,
    pub(super) layout: Layout,
}

impl Operand {
    fn overlaps(&self, other: &Operand) -> bool {
        let end = |operand: &Operand| operand.offset + operand.layout.byte_len();
        self.buffer == other.buffer && self.offset < end(other) && other.offset < end(self)
    }

    fn is(&self, other: &Operand) -> bool {
        self.buffer == other.buffer && self.offset == other.offset && self.layout == other.layout
    }
}

/// What a source is to its step.
#[derive(Clone, Copy, Debug)]
pub(super) enum Role {
    /// Only read, and nobody writes it.
    Read,
    /// The memory of the result, element for element.
    Result,
    /// Also written.
    Written,
    /// Overlaps the result in some other way: read from a copy, this far into the step's scratch.
    Copied(usize),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct SourceBinding {
    pub(super) operand: Operand,
    pub(super) role: Role,
}

/// One node, ready to run.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) node: TensorId,
    pub(super) op: Op,
    pub(super) kernel: Kernel,
    pub(super) threads: usize,
    pub(super) dst: Operand,
    /// Its sources: a range of [`Binding::sources`].
    pub(super) sources: std::ops::Range<usize>,
    /// Scratch of the kernel that all threads share starts here; copies of sources are before it.
    pub(super) shared_at: usize,
    /// Scratch of the threads, one area each, starts here.
    pub(super) own_at: usize,
    /// Distance of those areas.
    pub(super) own_stride: usize,
    pub(super) has_copies: bool,
}

impl Step {
    /// Barriers it needs: one per phase, one more if sources are copied first.
    pub(super) fn phases(&self) -> usize {
        self.kernel.phases + usize::from(self.has_copies)
    }
}

/// A buffer that the plan uses.
#[derive(Debug)]
pub(super) struct BufferBinding {
    pub(super) buffer: Arc<dyn Buffer>,
    pub(super) id: BufferId,
    pub(super) writes: bool,
}

impl BufferBinding {
    /// Its memory; that it has some was checked when it was bound.
    pub(super) fn memory(&self) -> &HostMemory {
        self.buffer.host().unwrap_or_else(|| unreachable!("only host buffers are bound"))
    }
}

/// Steps and the memory they work on.
#[derive(Debug, Default)]
pub(crate) struct Binding {
    pub(super) steps: Vec<Step>,
    pub(super) sources: Vec<Option<SourceBinding>>,
    /// Each buffer once.
    pub(super) buffers: Vec<BufferBinding>,
    /// Indices of `buffers` in the order in which they are locked.
    pub(super) lock_order: Vec<usize>,
    scratch: usize,
    /// The most threads any step wants.
    pub(super) threads: usize,
}

impl Binding {
    /// Chooses kernels and finds memory for every node that computes something.
    pub(crate) fn new(work: Work<'_>, level: Level, threads: usize) -> Result<Binding, Error> {
        let mut binding = Binding { threads: 1, ..Binding::default() };
        let graph = work.nodes.graph();
        for &id in work.nodes.nodes() {
            let node = graph.tensor(id)?;
            let skipped = !node.computes() || !node.has(Flags::COMPUTE) || node.layout().is_empty();
            if !skipped {
                binding.add(work, node, level, threads)?;
            }
        }
        let mut order: Vec<_> = (0..binding.buffers.len()).collect();
        order.sort_by_key(|&index| std::ptr::from_ref(binding.buffers[index].memory()).addr());
        binding.lock_order = order;
        Ok(binding)
    }

    /// Bytes of scratch that the hungriest step needs.
    pub(crate) const fn scratch_bytes(&self) -> usize {
        self.scratch
    }

    fn add(
        &mut self,
        work: Work<'_>,
        node: TensorRef<'_>,
        level: Level,
        threads: usize,
    ) -> Result<(), Error> {
        let unsupported = |what: String| Error::Unsupported { device: NAME.to_owned(), what };
        let kernel = choose(node, level)
            .ok_or_else(|| unsupported(format!("{} ({})", node.op().label(), node.label())))?;
        let info = node.op().info();
        let dst = self.operand(work, node, true)?;
        let first = self.sources.len();
        let mut scratch = 0;
        for (slot, source) in node.sources().enumerate() {
            let Some(source) = source else {
                self.sources.push(None);
                continue;
            };
            let written = info.also_writes.contains(&slot);
            let operand = self.operand(work, source, written)?;
            let overlaps = operand.overlaps(&dst);
            let shares = info.reuses_source || node.root().id() == source.root().id();
            let role = match () {
                () if written && !overlaps => Role::Written,
                () if written => {
                    return Err(unsupported(format!("{} into memory it writes twice", node.label())));
                }
                () if !overlaps => Role::Read,
                () if shares && operand.is(&dst) => Role::Result,
                () => {
                    let at = scratch;
                    scratch += operand.layout.byte_len().next_multiple_of(SCRATCH_ALIGN);
                    Role::Copied(at)
                }
            };
            self.sources.push(Some(SourceBinding { operand, role }));
        }
        self.check_written(first, node)?;
        let threads = kernel.width.clamp(1, threads);
        let own_at = scratch + kernel.shared.next_multiple_of(SCRATCH_ALIGN);
        let own_stride = kernel.own.next_multiple_of(SCRATCH_ALIGN);
        self.scratch = self.scratch.max(own_at + own_stride * threads);
        self.threads = self.threads.max(threads);
        self.steps.push(Step {
            node: node.id(),
            op: *node.op(),
            kernel,
            threads,
            dst,
            sources: first..self.sources.len(),
            shared_at: scratch,
            own_at,
            own_stride,
            has_copies: scratch > 0,
        });
        Ok(())
    }

    /// Refuses a source that is written while another one overlaps it.
    fn check_written(&self, first: usize, node: TensorRef<'_>) -> Result<(), Error> {
        let sources = &self.sources[first..];
        for (slot, source) in sources.iter().enumerate() {
            let Some(source) = source.filter(|source| matches!(source.role, Role::Written)) else { continue };
            let others = sources.iter().enumerate().filter(|&(other, _)| other != slot);
            if others.filter_map(|(_, other)| *other).any(|other| other.operand.overlaps(&source.operand)) {
                let what = format!("{} with overlapping sources that it writes", node.label());
                return Err(Error::Unsupported { device: NAME.to_owned(), what });
            }
        }
        Ok(())
    }

    /// Finds a tensor in memory and checks that kernels may use it there.
    fn operand(&mut self, work: Work<'_>, tensor: TensorRef<'_>, writes: bool) -> Result<Operand, Error> {
        let missing = || Error::NotPlaced { id: tensor.id(), name: tensor.label() };
        let storage = tensor.storage().ok_or_else(missing)?;
        let buffer = self.buffer(work, storage.buffer, tensor, writes)?;
        let memory = self.buffers[buffer].memory();
        let (offset, len) = (storage.offset, tensor.byte_len());
        if offset.checked_add(len).is_none_or(|end| end > memory.len()) {
            return Err(Error::OutOfBounds { what: tensor.label(), offset, len, size: memory.len() });
        }
        let alignment = tensor.element_align();
        if !(memory.read().as_ptr().addr() + offset).is_multiple_of(alignment) {
            return Err(Error::Misaligned { buffer_type: tensor.label(), alignment });
        }
        Ok(Operand { buffer, offset, layout: *tensor.layout() })
    }

    /// The plan's number of a buffer.
    fn buffer(
        &mut self,
        work: Work<'_>,
        id: BufferId,
        tensor: TensorRef<'_>,
        writes: bool,
    ) -> Result<usize, Error> {
        let index = match self.buffers.iter().position(|known| known.id == id) {
            Some(index) => index,
            None => {
                let buffer = Arc::clone(work.buffers.get(id)?);
                if buffer.host().is_none() {
                    let what = format!("{} in {} memory", tensor.label(), buffer.buffer_type().name());
                    return Err(Error::Unsupported { device: NAME.to_owned(), what });
                }
                // Two ids of one buffer are one buffer, or it would be locked twice.
                let same = |known: &BufferBinding| {
                    buffer.host().is_some_and(|memory| std::ptr::eq(known.memory(), memory))
                };
                match self.buffers.iter().position(same) {
                    Some(index) => index,
                    None => {
                        self.buffers.push(BufferBinding { buffer, id, writes: false });
                        self.buffers.len() - 1
                    }
                }
            }
        };
        let binding = &mut self.buffers[index];
        if writes && !binding.memory().is_writable() {
            return Err(Error::ReadOnly { buffer_type: binding.buffer.buffer_type().name().to_owned() });
        }
        binding.writes |= writes;
        Ok(index)
    }
}
