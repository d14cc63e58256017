//! Byte ranges of buffers, and copies between them by the best route there is.

use std::cell::Cell;
use std::sync::Arc;

use oxcart_tensor::graph::{BufferId, Storage};
use oxcart_tensor::{Graph, TensorId};

use crate::buffer::{Buffer, BufferType, allocate, check_range};
use crate::error::Error;
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

/// Copies all bytes of `source` to `target`, which has as many, and says which way they went.
pub fn copy_place(source: &Place, target: &Place) -> Result<Route, Error> {
    let len = source.len;
    check_range("the target", 0, len, target.len)?;
    check_range("the source buffer", source.offset, len, source.buffer.len())?;
    check_range("the target buffer", target.offset, len, target.buffer.len())?;
    if target.buffer.copy_from(target.offset, &*source.buffer, source.offset, len)? {
        return Ok(Route::Direct);
    }
    if let Some(memory) = source.buffer.host() {
        target.buffer.write(target.offset, &memory.read()[source.offset..source.offset + len])?;
        return Ok(Route::HostSource);
    }
    if let Some(mut memory) = target.buffer.host().and_then(|memory| memory.write()) {
        source.buffer.read(source.offset, &mut memory[target.offset..target.offset + len])?;
        return Ok(Route::HostTarget);
    }
    copy_staged(source, target)?;
    Ok(Route::Staged)
}

fn copy_staged(source: &Place, target: &Place) -> Result<(), Error> {
    thread_local! {
        /// Kept, so that copying again and again allocates nothing.
        static KEPT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    }
    let mut stage = KEPT.take();
    stage.resize(stage.len().max(source.len.min(STAGE)), 0);
    let mut pieces = (0..source.len).step_by(STAGE);
    let copied = pieces.try_for_each(|start| {
        let piece = &mut stage[..(source.len - start).min(STAGE)];
        source.buffer.read(source.offset + start, piece)?;
        target.buffer.write(target.offset + start, piece)
    });
    KEPT.set(stage);
    copied
}

/// Gives every listed tensor that has no memory a place of its own, in as few buffers as the buffer type's largest
/// size allows, and adds them to the table. Views follow what they look into.
pub fn place_all(
    graph: &mut Graph,
    tensors: &[TensorId],
    buffer_type: &Arc<dyn BufferType>,
    buffers: &mut Buffers,
) -> Result<Vec<BufferId>, Error> {
    let align = buffer_type.alignment();
    let mut batches: Vec<(usize, Vec<(TensorId, usize)>)> = Vec::new();
    for &id in tensors {
        let tensor = graph.tensor(id)?;
        if tensor.view().is_some() || tensor.storage().is_some() {
            continue;
        }
        let too_large = |size| Error::OutOfMemory { buffer_type: buffer_type.name().to_owned(), size };
        let size = buffer_type.alloc_size(tensor);
        let size = size.checked_next_multiple_of(align).ok_or_else(|| too_large(size))?;
        match batches.last_mut() {
            Some((end, batch)) if end.checked_add(size).is_some_and(|end| end <= buffer_type.max_size()) => {
                batch.push((id, *end));
                *end += size;
            }
            _ => batches.push((size, vec![(id, 0)])),
        }
    }
    let mut ids = Vec::with_capacity(batches.len());
    for (size, batch) in batches {
        let buffer = allocate(buffer_type, size)?;
        let id = buffers.add(Arc::clone(&buffer));
        for (tensor, offset) in batch {
            graph.bind(tensor, Storage { buffer: id, offset }, size)?;
            buffer.init_tensor(graph.tensor(tensor)?)?;
        }
        ids.push(id);
    }
    for &id in tensors {
        let tensor = graph.tensor(id)?;
        if tensor.view().is_some()
            && let Some(buffer) = buffers.buffer_of(tensor)?
        {
            buffer.init_tensor(tensor)?;
        }
    }
    Ok(ids)
}
