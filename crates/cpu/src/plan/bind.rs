//! Nodes to steps: kernels chosen, tensors found in memory, overlaps resolved.

use std::collections::HashMap;
use std::sync::Arc;

use oxcart_backend::{Buffer, Error, HostMemory, Work};
use oxcart_tensor::graph::{BufferId, Flags};
use oxcart_tensor::{Layout, Op, TensorId, TensorRef};

use super::no_scratch;
use super::unit::Unit;
use crate::device::NAME;
use crate::job::{Grain, Kernel, MAX_CUTS};
use crate::kernels::fuse;
use crate::pool::MAX_PIECES;
use crate::simd::Level;

/// Scratch areas start at multiples of this: a cache line, and the widest vector.
pub(super) const SCRATCH_ALIGN: usize = 64;

/// The buffer of tensors without elements.
pub(super) const NOWHERE: usize = usize::MAX;

/// Where a tensor is: which of the plan's buffers, how far in, and its layout.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operand {
    pub(super) buffer: usize,
    pub(super) offset: usize,
    pub(super) layout: Layout,
}

impl Operand {
    fn overlaps(&self, other: &Operand) -> bool {
        let end = |operand: &Operand| operand.offset.saturating_add(operand.layout.byte_len());
        self.buffer == other.buffer && self.offset < end(other) && other.offset < end(self)
    }

    fn is(&self, other: &Operand) -> bool {
        self.buffer == other.buffer && self.offset == other.offset && self.layout == other.layout
    }
}

/// What a source is to its step.
#[derive(Clone, Copy, Debug)]
pub(super) enum Role {
    /// Only read, and not written during the step.
    Read,
    /// The memory of the result, element for element.
    Result,
    /// Also written; perhaps another source is the same memory, element for element.
    Written { aliased: bool },
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
    /// Shares that any threads do, at least as many as there are threads.
    pub(super) shares: usize,
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
    /// How often all of it is gone through: once per phase, once more if sources are copied first.
    pub(super) fn phases(&self) -> usize {
        self.kernel.phases + usize::from(self.has_copies)
    }

    /// Whether a phase is for one thread.
    const fn is_alone(&self, phase: usize) -> bool {
        self.threads == 1 || self.kernel.first_alone && phase == self.has_copies as usize
    }
}

/// A phase of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) step: usize,
    pub(super) phase: usize,
    /// Shares that it is gone through in.
    pub(super) shares: usize,
}

/// What must be over before anything that comes after it begins.
#[derive(Debug)]
pub(super) struct Stage {
    /// A range of [`Binding::parts`].
    pub(super) parts: std::ops::Range<usize>,
    /// Whether its parts are done one after another by one thread; otherwise there is one, and threads take its shares.
    pub(super) is_alone: bool,
}

const _: () = assert!(MAX_CUTS <= MAX_PIECES);

/// Where an area of scratch ends that begins at `at`.
fn after(at: usize, bytes: usize) -> Result<usize, Error> {
    let end = at.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(SCRATCH_ALIGN));
    end.ok_or_else(|| no_scratch(usize::MAX))
}

/// The parts of steps, and stages of them: neighbouring parts for one thread are a stage, each of the others is one.
fn stages(steps: &[Step]) -> (Vec<Part>, Vec<Stage>) {
    let (mut parts, mut stages) = (Vec::new(), Vec::<Stage>::with_capacity(steps.len()));
    for (index, step) in steps.iter().enumerate() {
        for phase in 0..step.phases() {
            let (at, is_alone) = (parts.len(), step.is_alone(phase));
            // A step for one thread may be cut so that it can be stopped; a phase for one of several threads is not.
            let shares = if is_alone && step.threads > 1 { 1 } else { step.shares };
            parts.push(Part { step: index, phase, shares });
            match stages.last_mut() {
                Some(last) if is_alone && last.is_alone => last.parts.end = at + 1,
                _ => stages.push(Stage { parts: at..at + 1, is_alone }),
            }
        }
    }
    (parts, stages)
}

/// A buffer that the plan uses.
#[derive(Debug)]
pub(super) struct BufferBinding {
    pub(super) buffer: Arc<dyn Buffer>,
    pub(super) writes: bool,
}

impl BufferBinding {
    /// Its memory; that it has some was checked when it was bound.
    pub(super) fn memory(&self) -> &HostMemory {
        self.buffer.host().unwrap_or_else(|| unreachable!("only host buffers are bound"))
    }
}

fn unsupported(node: TensorRef<'_>) -> Error {
    Error::Unsupported { device: NAME.to_owned(), what: format!("{} ({})", node.op().label(), node.label()) }
}

fn refused(node: TensorRef<'_>, why: &str) -> Error {
    let what = format!("{} ({}): it {why}", node.op().label(), node.label());
    Error::Unsupported { device: NAME.to_owned(), what }
}

/// Steps and the memory they work on.
#[derive(Debug, Default)]
pub(crate) struct Binding {
    pub(super) steps: Vec<Step>,
    pub(super) parts: Vec<Part>,
    pub(super) stages: Vec<Stage>,
    pub(super) sources: Vec<Option<SourceBinding>>,
    /// Each buffer once.
    pub(super) buffers: Vec<BufferBinding>,
    /// Indices of `buffers` by id, until all are found. Two ids may be of one buffer.
    by_id: HashMap<BufferId, usize>,
    /// Indices of `buffers` by the address of what has their bytes, until all are found.
    by_memory: HashMap<usize, usize>,
    /// Indices of `buffers` in the order in which they are locked.
    pub(super) lock_order: Vec<usize>,
    pub(super) grain: Grain,
    scratch: usize,
}

impl Binding {
    /// Chooses kernels and finds memory for every node that computes something.
    pub(crate) fn new(
        work: Work<'_>,
        (level, grain): (Level, Grain),
        threads: usize,
    ) -> Result<Binding, Error> {
        let mut binding = Binding { grain, ..Binding::default() };
        let graph = work.nodes.graph();
        let mut nodes = Vec::with_capacity(work.nodes.nodes().len());
        for &id in work.nodes.nodes() {
            let node = graph.tensor(id)?;
            let skipped = !node.computes() || !node.has(Flags::COMPUTE) || node.layout().is_empty();
            if !skipped {
                nodes.push(node);
            }
        }
        let mut rest = nodes.as_slice();
        while let [node, ..] = rest {
            let unit = fuse(rest, level).filter(|unit| binding.suits(work, unit));
            let unit = match unit {
                Some(unit) => unit,
                None => Unit::single(*node, level).ok_or_else(|| unsupported(*node))?,
            };
            binding.add(work, &unit, threads)?;
            rest = &rest[unit.nodes..];
        }
        let mut order: Vec<_> = (0..binding.buffers.len()).collect();
        order.sort_by_key(|&index| std::ptr::from_ref(binding.buffers[index].memory()).addr());
        binding.lock_order = order;
        (binding.parts, binding.stages) = stages(&binding.steps);
        (binding.by_id, binding.by_memory) = (HashMap::new(), HashMap::new());
        Ok(binding)
    }

    /// Whether the tensors of a fused unit lie so that it may run: what it writes does not meet, and what it reads is
    /// either apart from that or, where threads read only rows that they write, the same elements.
    fn suits(&mut self, work: Work<'_>, unit: &Unit<'_>) -> bool {
        let mut place = |tensor, writes| self.operand(work, tensor, writes).ok();
        let Some(result) = place(unit.result, true) else { return false };
        let mut written = vec![result];
        let mut read = Vec::new();
        for (slot, source) in unit.sources().iter().enumerate() {
            let Some(source) = *source else { continue };
            let list = if unit.writes_to(slot) { &mut written } else { &mut read };
            let Some(operand) = place(source, unit.writes_to(slot)) else { return false };
            list.push(operand);
        }
        let apart = |i: usize| written[..i].iter().all(|other| !written[i].overlaps(other));
        let fits = |read: &Operand, written: &Operand| {
            !read.overlaps(written) || unit.is_row_local() && read.is(written)
        };
        (1..written.len()).all(apart)
            && read.iter().all(|read| written.iter().all(|written| fits(read, written)))
    }

    /// Bytes of memory that it holds.
    pub(super) fn held_bytes(&self) -> usize {
        self.steps.capacity() * size_of::<Step>()
            + self.parts.capacity() * size_of::<Part>()
            + self.stages.capacity() * size_of::<Stage>()
            + self.sources.capacity() * size_of::<Option<SourceBinding>>()
            + self.buffers.capacity() * size_of::<BufferBinding>()
            + self.lock_order.capacity() * size_of::<usize>()
    }

    /// Bytes of scratch that the hungriest step needs.
    pub(crate) const fn scratch_bytes(&self) -> usize {
        self.scratch
    }

    /// Adds a step for a unit of work.
    fn add(&mut self, work: Work<'_>, unit: &Unit<'_>, threads: usize) -> Result<(), Error> {
        let dst = self.operand(work, unit.result, true)?;
        let first = self.sources.len();
        let mut scratch = 0;
        for (slot, &source) in unit.sources().iter().enumerate() {
            let Some(source) = source else {
                self.sources.push(None);
                continue;
            };
            let written = unit.writes_to(slot);
            let operand = self.operand(work, source, written)?;
            let overlaps = operand.overlaps(&dst);
            let role = match () {
                () if written && overlaps => {
                    return Err(refused(unit.result, "writes the same memory twice"));
                }
                () if written => Role::Written { aliased: false },
                () if !overlaps => Role::Read,
                () if unit.may_share(slot) && operand.is(&dst) => Role::Result,
                () => {
                    let at = scratch;
                    scratch = after(at, operand.layout.byte_len())?;
                    Role::Copied(at)
                }
            };
            self.sources.push(Some(SourceBinding { operand, role }));
        }
        self.settle_written(first, unit)?;
        // Any thread may do a share, so all have scratch memory; but where there is one share, it is of one thread.
        let useful = unit.kernel.threads(self.grain);
        let areas = if useful == 1 { 1 } else { threads };
        let threads = useful.min(threads);
        let own_at = after(scratch, unit.kernel.shared)?;
        let own_stride = after(0, unit.kernel.own)?;
        let end = own_stride.checked_mul(areas).and_then(|own| own.checked_add(own_at));
        self.scratch = self.scratch.max(end.ok_or_else(|| no_scratch(usize::MAX))?);
        self.steps.push(Step {
            node: unit.result.id(),
            op: unit.op,
            kernel: unit.kernel,
            threads,
            shares: threads.max(unit.kernel.cuts(self.grain)),
            dst,
            sources: first..self.sources.len(),
            shared_at: scratch,
            own_at,
            own_stride,
            has_copies: scratch > 0,
        });
        Ok(())
    }

    /// Looks at sources that are written besides the result: another source that overlaps one must be the same
    /// elements, and its step must allow that.
    fn settle_written(&mut self, first: usize, unit: &Unit<'_>) -> Result<(), Error> {
        let is_written = |source: &SourceBinding| matches!(source.role, Role::Written { .. });
        for slot in first..self.sources.len() {
            let Some(written) = self.sources[slot].filter(is_written) else { continue };
            for other in (first..self.sources.len()).filter(|&other| other != slot) {
                let Some(source) = &mut self.sources[other] else { continue };
                if !source.operand.overlaps(&written.operand) {
                    continue;
                }
                if !unit.is_row_local() || is_written(source) || !source.operand.is(&written.operand) {
                    return Err(refused(unit.result, "writes a source that overlaps another"));
                }
                source.role = Role::Result;
                let aliased = SourceBinding { role: Role::Written { aliased: true }, ..written };
                self.sources[slot] = Some(aliased);
            }
        }
        Ok(())
    }

    /// Finds a tensor in memory and checks that kernels may use it there.
    fn operand(&mut self, work: Work<'_>, tensor: TensorRef<'_>, writes: bool) -> Result<Operand, Error> {
        if tensor.layout().is_empty() {
            // No bytes need no memory, and a buffer of none has none.
            return Ok(Operand { buffer: NOWHERE, offset: 0, layout: *tensor.layout() });
        }
        let missing = || Error::NotPlaced { id: tensor.id(), name: tensor.label() };
        let storage = tensor.storage().ok_or_else(missing)?;
        let buffer = self.buffer(work, storage.buffer, tensor, writes)?;
        let memory = self.buffers[buffer].memory();
        let (offset, len) = (storage.offset, tensor.byte_len());
        if offset.checked_add(len).is_none_or(|end| end > memory.len()) {
            return Err(Error::OutOfBounds { what: tensor.label(), offset, len, size: memory.len() });
        }
        let alignment = tensor.element_align();
        if !memory.read().as_ptr().addr().wrapping_add(offset).is_multiple_of(alignment) {
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
        let index = match self.by_id.get(&id) {
            Some(&index) => index,
            None => {
                let buffer = Arc::clone(work.buffers.get(id)?);
                if buffer.host().is_none() {
                    let what = format!("{} in {} memory", tensor.label(), buffer.buffer_type().name());
                    return Err(Error::Unsupported { device: NAME.to_owned(), what });
                }
                // Two ids of one buffer are one buffer, or it would be locked twice.
                let binding = BufferBinding { buffer, writes: false };
                let memory = std::ptr::from_ref(binding.memory()).addr();
                let index = *self.by_memory.entry(memory).or_insert_with(|| {
                    self.buffers.push(binding);
                    self.buffers.len() - 1
                });
                self.by_id.insert(id, index);
                index
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
