//! Steps put together: tensors found in memory, parameters written, scratch memory handed out.
//!
//! The same code answers whether a device supports a node: a builder without memory gives every tensor the address 0.
//!
//! Invariants: an address comes from [`Builder::tensor`], which checked that the whole tensor is inside its buffer on this
//! card and starts where its type may start, or from [`Builder::scratch`]. A source that overlaps the result in a way that
//! kernels do not expect is copied aside first.

use std::sync::Arc;

use oxcart_backend::{Buffer, Error, Usage, Work};
use oxcart_tensor::{DType, Layout, TensorRef};
use zerocopy::{Immutable, IntoBytes};

use super::Step;
use crate::card::Card;
use crate::driver::{Address, CardInfo, Shape, TileMap};
use crate::images::Family;
use crate::memory::CudaBuffer;

/// A tensor as kernels see it; `Tensor` of `base.cuh`.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Tensor {
    pub(crate) data: u64,
    pub(crate) ne: [i64; 4],
    pub(crate) nb: [i64; 4],
    /// Its type, by the place of [`DType`] in its table.
    pub(crate) dtype: i32,
    pub(crate) unused: i32,
}

impl Tensor {
    /// No tensor at all.
    pub(crate) const NONE: Tensor = Tensor { data: 0, ne: [1; 4], nb: [0; 4], dtype: 0, unused: 0 };

    pub(crate) fn new(address: Address, layout: &Layout) -> Tensor {
        Tensor {
            data: address.0,
            ne: layout.ne().extents().map(|n| n as i64),
            nb: layout.nb().map(|n| n as i64),
            dtype: layout.dtype() as i32,
            unused: 0,
        }
    }

    /// The same memory, its rows counted in blocks instead of elements.
    pub(crate) fn in_blocks(mut self, dtype: DType) -> Tensor {
        self.ne[0] /= dtype.block_len() as i64;
        self
    }
}

/// Why a node has no steps.
#[derive(Debug)]
pub(crate) enum Refused {
    /// There is no kernel for it.
    Unsupported,
    /// Its memory is not as it should be.
    Failed(Error),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused::Failed(error)
    }
}

/// Whether steps were made.
pub(crate) type Done = Result<(), Refused>;

/// Words that a stream's kernels share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words {
    /// Where they report what is wrong with data.
    pub(crate) faults: Address,
    /// Zeros that they count up and leave as zeros, so many of them.
    pub(crate) counters: Address,
    pub(crate) count: usize,
}

/// Where memory comes from.
enum MemorySource<'w> {
    /// Nowhere: it is only asked whether there are kernels.
    Survey,
    /// From the buffers of some work.
    Work { card: &'w Arc<Card>, work: Work<'w>, words: Words, scratch: Option<Address> },
}

/// Puts steps together.
pub(crate) struct Builder<'w> {
    info: &'w CardInfo,
    overlaps: bool,
    exact: bool,
    memory: MemorySource<'w>,
    steps: Vec<Step>,
    buffers: Vec<Arc<dyn Buffer>>,
    /// Scratch memory of the node at hand, and the most that any needed.
    used: usize,
    needed: usize,
    /// Buffers that nodes of the work write to, once that was asked for.
    written: Option<Vec<Arc<dyn Buffer>>>,
}

/// Scratch areas start at multiples of this.
const SCRATCH_ALIGN: usize = 256;

impl<'w> Builder<'w> {
    /// A builder over the memory of some work. Scratch memory begins at `scratch`; without, its size is only counted. Where it is
    /// `exact`, results must not depend on what is computed beside them.
    pub(crate) fn new(
        card: &'w Arc<Card>,
        work: Work<'w>,
        words: Words,
        scratch: Option<Address>,
        exact: bool,
    ) -> Builder<'w> {
        let memory = MemorySource::Work { card, work, words, scratch };
        let (info, overlaps) = (&card.info, card.overlaps);
        Builder::over(info, (overlaps, exact), memory)
    }

    fn over(info: &'w CardInfo, (overlaps, exact): (bool, bool), memory: MemorySource<'w>) -> Builder<'w> {
        let (steps, buffers) = (Vec::new(), Vec::new());
        Builder { info, overlaps, exact, memory, steps, buffers, used: 0, needed: 0, written: None }
    }

    /// A builder that only looks whether there are kernels.
    pub(crate) fn survey(info: &'w CardInfo) -> Builder<'w> {
        let memory = MemorySource::Survey;
        let (overlaps, exact) = (false, false);
        Builder::over(info, (overlaps, exact), memory)
    }

    /// Whether results must not depend on what is computed beside them: the same kernels, cut the same way, for any number of
    /// columns and tokens, and nothing done on the way of something else.
    pub(crate) fn exact(&self) -> bool {
        self.exact
    }

    /// What is known about the card.
    pub(crate) fn info(&self) -> &'w CardInfo {
        self.info
    }

    /// Bytes of scratch memory that the hungriest node needs.
    pub(crate) fn scratch_bytes(&self) -> usize {
        self.needed
    }

    /// The steps, and the buffers they use.
    pub(crate) fn finish(self) -> (Vec<Step>, Vec<Arc<dyn Buffer>>) {
        (self.steps, self.buffers)
    }

    /// Begins with another node, which has all scratch memory to itself.
    pub(crate) fn begin_node(&mut self) {
        self.used = 0;
    }

    /// How many steps there are; [`take_back`](Builder::take_back) forgets those that were added since.
    pub(crate) fn step_count(&self) -> usize {
        self.steps.len()
    }

    /// Forgets steps.
    pub(crate) fn take_back(&mut self, count: usize) {
        self.steps.truncate(count);
    }

    /// Where kernels report what is wrong with data.
    pub(crate) fn faults(&self) -> u64 {
        match self.memory {
            MemorySource::Survey => 0,
            MemorySource::Work { words, .. } => words.faults.0,
        }
    }

    /// So many words that are zero before and after a kernel has counted with them; `None` if there are not as many.
    pub(crate) fn counters(&self, count: usize) -> Option<Address> {
        match self.memory {
            MemorySource::Survey => Some(Address(0)),
            MemorySource::Work { words, .. } => (count <= words.count).then_some(words.counters),
        }
    }

    /// Memory for what is needed between the steps of this node.
    pub(crate) fn scratch(&mut self, bytes: usize) -> Address {
        let at = self.used;
        self.used = (at + bytes).next_multiple_of(SCRATCH_ALIGN);
        self.needed = self.needed.max(self.used);
        match self.memory {
            MemorySource::Survey => Address(0),
            MemorySource::Work { scratch, .. } => scratch.unwrap_or_default().plus(at),
        }
    }

    /// Where a tensor is.
    pub(crate) fn address(&mut self, tensor: TensorRef<'_>) -> Result<Address, Refused> {
        let MemorySource::Work { card, work, .. } = self.memory else { return Ok(Address(0)) };
        if tensor.layout().is_empty() {
            return Ok(Address(0));
        }
        let missing = || Error::NotPlaced { id: tensor.id(), name: tensor.label() };
        let storage = tensor.storage().ok_or_else(missing)?;
        let buffer = work.buffers.get(storage.buffer)?;
        let foreign = || Error::Unsupported {
            device: card.name.clone(),
            what: format!("{} memory of {}", buffer.buffer_type().name(), tensor.label()),
        };
        let own = buffer.as_any().downcast_ref::<CudaBuffer>().ok_or_else(foreign)?;
        if !Arc::ptr_eq(own.card(), card) {
            return Err(foreign().into());
        }
        let address = own.range(storage.offset, tensor.byte_len())?;
        // What a kernel may assume about the start of a block: the largest power of two that divides its size.
        let size = tensor.dtype().block_bytes();
        let alignment = (size & size.wrapping_neg()).min(16);
        if !address.0.is_multiple_of(alignment as u64) {
            return Err(Error::Misaligned { buffer_type: tensor.label(), alignment }.into());
        }
        if !self.buffers.iter().any(|known| Arc::ptr_eq(known, buffer)) {
            self.buffers.push(Arc::clone(buffer));
        }
        Ok(address)
    }

    /// A tensor as kernels see it.
    pub(crate) fn tensor(&mut self, tensor: TensorRef<'_>) -> Result<Tensor, Refused> {
        Ok(Tensor::new(self.address(tensor)?, tensor.layout()))
    }

    /// A source of a node. One that overlaps the result, and is not the result element for element where the op allows it, is
    /// read from a copy.
    pub(crate) fn source(&mut self, node: TensorRef<'_>, slot: usize) -> Result<Tensor, Refused> {
        let source = node.source(slot).ok_or(Refused::Unsupported)?;
        let mut tensor = self.tensor(source)?;
        if matches!(self.memory, MemorySource::Survey) || source.layout().is_empty() {
            return Ok(tensor);
        }
        let (result, bytes) = (self.address(node)?, source.byte_len());
        let end = |start: u64, len: usize| start + len as u64;
        let apart = end(tensor.data, bytes) <= result.0 || end(result.0, node.byte_len()) <= tensor.data;
        let info = node.op().info();
        let same = tensor.data == result.0
            && source.layout() == node.layout()
            && (info.reuses.contains(&slot) || info.in_place && info.result_in == slot)
            && !info.also_writes.contains(&slot);
        if apart || same || self.is_target(node, source) {
            return Ok(tensor);
        }
        let aside = self.scratch(bytes);
        self.copy(aside, Address(tensor.data), bytes);
        tensor.data = aside.0;
        Ok(tensor)
    }

    /// Whether a source is there only to be written to, as the target of a copy is.
    fn is_target(&self, node: TensorRef<'_>, source: TensorRef<'_>) -> bool {
        node.view().is_some()
            && source.root().id() == node.root().id()
            && source.layout() == node.layout()
            && {
                use oxcart_tensor::Op;
                matches!(node.op(), Op::Cpy(_) | Op::SetRows(_) | Op::OptStepAdamw(_) | Op::OptStepSgd(_))
            }
    }

    /// Whether no step writes a tensor: a leaf in memory that holds weights, or that no node of the work writes to. What a
    /// client of a worker has there is not told to be weights.
    pub(crate) fn is_constant(&mut self, tensor: TensorRef<'_>) -> bool {
        let MemorySource::Work { work, .. } = self.memory else { return false };
        let Some(buffer) = work.buffers.buffer_of(tensor).ok().flatten() else { return false };
        if !tensor.root().is_leaf() {
            return false;
        }
        let written = self.written.get_or_insert_with(|| written(work));
        buffer.usage() == Usage::Weights || !written.iter().any(|other| Arc::ptr_eq(other, buffer))
    }

    /// The bytes by which a kernel names a matrix to the copy engine.
    pub(crate) fn tile_map(&self, map: &TileMap) -> Result<[u8; 128], Refused> {
        match self.memory {
            // There is no memory in a survey, nor while it is only counted.
            MemorySource::Work { card, scratch: Some(_), .. } => {
                Ok(card.with(|driver, _| driver.encode_tiles(map))?)
            }
            _ => Ok([0; 128]),
        }
    }

    /// Adds a copy.
    pub(crate) fn copy(&mut self, to: Address, from: Address, bytes: usize) {
        if bytes > 0 && to != from {
            self.steps.push(Step::Copy { to, from, bytes });
        }
    }

    /// Adds bytes of one value.
    pub(crate) fn fill(&mut self, to: Address, value: u8, bytes: usize) {
        if bytes > 0 {
            self.steps.push(Step::Fill { to, value, bytes });
        }
    }

    /// Adds a launch.
    pub(crate) fn launch<P: IntoBytes + Immutable>(
        &mut self,
        family: Family,
        name: impl Into<String>,
        (grid, block, shared): ([u32; 3], u32, u32),
        params: &P,
    ) {
        // Only a kernel may overlap the one before; what comes after a copy waits for it.
        let early = self.overlaps && matches!(self.steps.last(), Some(Step::Launch { .. }));
        let shape = Shape { grid, block: [block, 1, 1], shared, early };
        self.steps.push(Step::Launch {
            family,
            name: name.into(),
            shape,
            params: params.as_bytes().to_vec(),
        });
    }

    /// Adds a launch of a thread for each of so many pieces, or of fewer that take several.
    pub(crate) fn launch_each<P: IntoBytes + Immutable>(
        &mut self,
        family: Family,
        name: impl Into<String>,
        count: usize,
        block: u32,
        params: &P,
    ) {
        let most = self.info.multiprocessors as usize * 32;
        let blocks = count.div_ceil(block as usize).clamp(1, most) as u32;
        self.launch(family, name, ([blocks, 1, 1], block, 0), params);
    }

    /// Adds a launch of a block for each of so many rows, whose threads share the row's elements.
    pub(crate) fn launch_rows<P: IntoBytes + Immutable>(
        &mut self,
        family: Family,
        name: impl Into<String>,
        rows: usize,
        len: usize,
        most_threads: u32,
        params: &P,
    ) {
        let threads = (len.div_ceil(4).next_multiple_of(32) as u32).clamp(32, most_threads);
        let blocks = rows.clamp(1, i32::MAX as usize) as u32;
        self.launch(family, name, ([blocks, 1, 1], threads, 0), params);
    }
}

/// The buffers that nodes of some work write to.
fn written(work: Work<'_>) -> Vec<Arc<dyn Buffer>> {
    let mut written: Vec<Arc<dyn Buffer>> = Vec::new();
    let mut add = |tensor: TensorRef<'_>| {
        if let Ok(Some(buffer)) = work.buffers.buffer_of(tensor)
            && !written.iter().any(|known| Arc::ptr_eq(known, buffer))
        {
            written.push(Arc::clone(buffer));
        }
    };
    for node in work.nodes.nodes().iter().filter_map(|&id| work.nodes.graph().tensor(id).ok()) {
        add(node);
        for source in node.op().info().also_writes.iter().filter_map(|&slot| node.source(slot)) {
            add(source);
        }
    }
    written
}
