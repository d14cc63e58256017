//! Byte ranges of buffers, and copies between them by the best route there is.

use std::cell::Cell;
use std::sync::Arc;

use oxcart_tensor::graph::{BufferId, Storage};
use oxcart_tensor::{Graph, TensorId, TensorRef};

use crate::buffer::{Buffer, BufferType, allocate, check_range};
use crate::error::Error;
use crate::host::{HostMemory, copy_bytes};
use crate::table::Buffers;

/// Some bytes of a buffer.
#[derive(Clone, Debug)]
pub struct Place {
    /// The buffer.
    pub buffer: Arc<dyn Buffer>,
    /// First byte.
    pub offset: usize,
    /// Number of bytes.
    pub len: usize,
}

impl Place {
    /// Some of its bytes.
    pub fn part(&self, offset: usize, len: usize) -> Result<Place, Error> {
        check_range("the place", offset, len, self.len)?;
        Ok(Place { buffer: Arc::clone(&self.buffer), offset: self.offset + offset, len })
    }

    /// Writes its first bytes.
    pub fn write(&self, data: &[u8]) -> Result<(), Error> {
        check_range("the place", 0, data.len(), self.len)?;
        self.buffer.write(self.offset, data)
    }

    /// Reads its first bytes.
    pub fn read(&self, out: &mut [u8]) -> Result<(), Error> {
        check_range("the place", 0, out.len(), self.len)?;
        self.buffer.read(self.offset, out)
    }

    /// All its bytes.
    pub fn bytes(&self) -> Result<Vec<u8>, Error> {
        // Checked first, so that a place that cannot exist allocates nothing.
        check_range("the buffer", self.offset, self.len, self.buffer.len())?;
        let mut out = vec![0; self.len];
        self.read(&mut out)?;
        Ok(out)
    }

    /// Whether both are in one buffer.
    fn shares_buffer(&self, other: &Place) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.buffer), Arc::as_ptr(&other.buffer))
    }

    /// Whether both start at the same byte, so that a copy between them has nothing to do.
    pub(crate) fn starts_with(&self, other: &Place) -> bool {
        self.shares_buffer(other) && self.offset == other.offset
    }
}

/// How bytes went from one buffer to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// The target's memory copied them itself.
    Direct,
    /// They were in host memory and were written to the target.
    HostSource,
    /// They were read straight into host memory.
    HostTarget,
    /// Through a piece of host memory in between.
    Staged,
}

/// Bytes that a staged copy holds at a time.
const STAGE: usize = 1 << 20;

/// Checks that all bytes of `source` fit into `target`, and that both are within their buffers.
pub(crate) fn check_copy(source: &Place, target: &Place) -> Result<(), Error> {
    check_range("the target", 0, source.len, target.len)?;
    check_range("the source buffer", source.offset, source.len, source.buffer.len())?;
    check_range("the target buffer", target.offset, source.len, target.buffer.len())
}

/// Copies all bytes of `source` to the start of `target` and says which way they went. The places may overlap.
pub fn copy_place(source: &Place, target: &Place) -> Result<Route, Error> {
    check_copy(source, target)?;
    let len = source.len;
    if source.starts_with(target) {
        return Ok(Route::Direct);
    }
    if target.buffer.copy_from(target.offset, &*source.buffer, source.offset, len)? {
        return Ok(Route::Direct);
    }
    match (source.buffer.host(), target.buffer.host()) {
        (Some(from), Some(to)) => {
            let read_only = || Error::ReadOnly { buffer_type: target.buffer.buffer_type().name().to_owned() };
            copy_bytes(from, source.offset..source.offset + len, to, target.offset).ok_or_else(read_only)?;
            Ok(Route::HostSource)
        }
        (Some(memory), None) => {
            target.buffer.write(target.offset, &memory.read()[source.offset..source.offset + len])?;
            Ok(Route::HostSource)
        }
        (None, to) => {
            let Some(mut memory) = to.and_then(HostMemory::write) else { return copy_staged(source, target) };
            source.buffer.read(source.offset, &mut memory[target.offset..target.offset + len])?;
            Ok(Route::HostTarget)
        }
    }
}

/// Copies piece by piece, in the direction in which an overlap is read before it is overwritten.
fn copy_staged(source: &Place, target: &Place) -> Result<Route, Error> {
    thread_local! {
        /// Kept, so that copying again and again allocates nothing.
        static KEPT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    }
    let mut stage = KEPT.take();
    stage.resize(stage.len().max(source.len.min(STAGE)), 0);
    let copy = |start: usize| {
        let piece = &mut stage[..(source.len - start).min(STAGE)];
        source.buffer.read(source.offset + start, piece)?;
        target.buffer.write(target.offset + start, piece)
    };
    let mut starts = (0..source.len).step_by(STAGE);
    let copied = if source.shares_buffer(target) && source.offset < target.offset {
        starts.rev().try_for_each(copy)
    } else {
        starts.try_for_each(copy)
    };
    KEPT.set(stage);
    copied.map(|()| Route::Staged)
}

/// Copies the contents of a tensor to another one of the same layout, in the same graph or another.
pub fn copy_tensor(
    (source, source_buffers): (TensorRef<'_>, &Buffers),
    (target, target_buffers): (TensorRef<'_>, &Buffers),
) -> Result<Route, Error> {
    if source.layout() != target.layout() {
        let (from, to) = (source.layout().to_string(), target.layout().to_string());
        return Err(Error::LayoutMismatch { from, to });
    }
    copy_place(&source_buffers.place_of(source)?, &target_buffers.place_of(target)?)
}

/// Tensors that will share a buffer, each with its offset.
#[derive(Default)]
struct Batch {
    size: usize,
    tensors: Vec<(TensorId, usize)>,
}

/// Gives every listed tensor that has no memory a place of its own, in as few buffers as the buffer type's largest
/// size allows, and adds them to the table. Views follow what they look into. When it fails, nothing has changed.
pub fn place_all(
    graph: &mut Graph,
    tensors: &[TensorId],
    buffer_type: &Arc<dyn BufferType>,
    buffers: &mut Buffers,
) -> Result<Vec<BufferId>, Error> {
    let batches = batch(graph, tensors, buffer_type)?;
    let memory =
        batches.iter().map(|batch| allocate(buffer_type, batch.size)).collect::<Result<Vec<_>, _>>()?;
    let before = buffers.len();
    let ids: Vec<_> = memory.into_iter().map(|buffer| buffers.add(buffer)).collect();
    let done = bind_all(graph, &batches, &ids, buffers).and_then(|()| init_views(graph, tensors, buffers));
    if let Err(error) = done {
        for &(id, _) in batches.iter().flat_map(|batch| &batch.tensors) {
            graph.unbind(id)?;
        }
        buffers.truncate(before);
        return Err(error);
    }
    Ok(ids)
}

/// Lays tensors out one after another, starting a new batch when one is full.
fn batch(
    graph: &Graph,
    tensors: &[TensorId],
    buffer_type: &Arc<dyn BufferType>,
) -> Result<Vec<Batch>, Error> {
    let (align, max_size) = (buffer_type.alignment(), buffer_type.max_size());
    let mut batches: Vec<Batch> = Vec::new();
    let mut placed = vec![false; graph.len()];
    for &id in tensors {
        let tensor = graph.tensor(id)?;
        let placed = &mut placed[id.index()];
        if *placed || tensor.view().is_some() || tensor.storage().is_some() {
            continue;
        }
        *placed = true;
        let size = buffer_type.alloc_size(tensor).max(tensor.layout().byte_len());
        if size > max_size {
            return Err(Error::OutOfMemory { buffer_type: buffer_type.name().to_owned(), size });
        }
        let offset_in = |batch: &Batch| {
            let offset = batch.size.checked_next_multiple_of(align)?;
            offset.checked_add(size).filter(|&end| end <= max_size).map(|_| offset)
        };
        let offset = batches.last().and_then(offset_in);
        if offset.is_none() {
            batches.push(Batch::default());
        }
        if let Some(batch) = batches.last_mut() {
            let offset = offset.unwrap_or(0);
            batch.tensors.push((id, offset));
            batch.size = offset + size;
        }
    }
    Ok(batches)
}

fn bind_all(graph: &mut Graph, batches: &[Batch], ids: &[BufferId], buffers: &Buffers) -> Result<(), Error> {
    for (batch, &buffer) in batches.iter().zip(ids) {
        for &(tensor, offset) in &batch.tensors {
            graph.bind(tensor, Storage { buffer, offset }, batch.size)?;
            buffers.init_tensor(graph.tensor(tensor)?)?;
        }
    }
    Ok(())
}

/// Prepares those of the tensors that are views of something with memory.
fn init_views(graph: &Graph, tensors: &[TensorId], buffers: &Buffers) -> Result<(), Error> {
    for &id in tensors {
        let tensor = graph.tensor(id)?;
        if tensor.view().is_some() && tensor.storage().is_some() {
            buffers.init_tensor(tensor)?;
        }
    }
    Ok(())
}
