//! The buffers that the ids in a graph mean.

use std::sync::Arc;

use oxcart_tensor::TensorRef;
use oxcart_tensor::graph::BufferId;

use crate::buffer::Buffer;
use crate::error::Error;
use crate::place::Place;

/// Buffers by id. Clones share the buffers.
#[derive(Clone, Debug, Default)]
pub struct Buffers {
    buffers: Vec<Arc<dyn Buffer>>,
}

impl Buffers {
    /// A table without buffers.
    pub fn new() -> Buffers {
        Buffers::default()
    }

    /// Adds a buffer and gives it an id.
    pub fn add(&mut self, buffer: Arc<dyn Buffer>) -> BufferId {
        self.buffers.push(buffer);
        BufferId(u32::try_from(self.buffers.len() - 1).unwrap_or_else(|_| unreachable!("memory ends first")))
    }

    /// The buffer of an id.
    pub fn get(&self, id: BufferId) -> Result<&Arc<dyn Buffer>, Error> {
        self.buffers.get(id.0 as usize).ok_or(Error::NoSuchBuffer { id })
    }

    /// Puts another buffer where an id points.
    pub fn replace(&mut self, id: BufferId, buffer: Arc<dyn Buffer>) -> Result<(), Error> {
        *self.buffers.get_mut(id.0 as usize).ok_or(Error::NoSuchBuffer { id })? = buffer;
        Ok(())
    }

    /// Forgets the buffers that were added last.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.buffers.truncate(len);
    }

    /// All buffers, in the order of their ids.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<dyn Buffer>> {
        self.buffers.iter()
    }

    /// Number of buffers.
    pub fn len(&self) -> usize {
        self.buffers.len()
    }

    /// Bytes of memory that the table itself holds.
    pub fn held_bytes(&self) -> usize {
        self.buffers.capacity() * size_of::<Arc<dyn Buffer>>()
    }

    /// Whether there are no buffers.
    pub fn is_empty(&self) -> bool {
        self.buffers.is_empty()
    }

    /// The buffer a tensor lies in, if it lies in one.
    pub fn buffer_of(&self, tensor: TensorRef<'_>) -> Result<Option<&Arc<dyn Buffer>>, Error> {
        tensor.buffer().map(|buffer| self.get(buffer)).transpose()
    }

    /// Where a tensor's bytes are.
    pub fn place_of(&self, tensor: TensorRef<'_>) -> Result<Place, Error> {
        let missing = || Error::NotPlaced { id: tensor.id(), name: tensor.label() };
        let storage = tensor.storage().ok_or_else(missing)?;
        let buffer = Arc::clone(self.get(storage.buffer)?);
        Ok(Place { buffer, offset: storage.offset, len: tensor.layout().byte_len() })
    }

    /// Where some bytes of a tensor are.
    pub fn part_of(&self, tensor: TensorRef<'_>, offset: usize, len: usize) -> Result<Place, Error> {
        let place = self.place_of(tensor)?;
        if offset.checked_add(len).is_none_or(|end| end > place.len) {
            return Err(Error::OutOfBounds { what: tensor.label(), offset, len, size: place.len });
        }
        Ok(Place { offset: place.offset + offset, len, ..place })
    }

    /// Lets a tensor's buffer prepare it, once it has a place; a view after what it looks into.
    pub fn init_tensor(&self, tensor: TensorRef<'_>) -> Result<(), Error> {
        let missing = || Error::NotPlaced { id: tensor.id(), name: tensor.label() };
        self.buffer_of(tensor)?.ok_or_else(missing)?.init_tensor(tensor)
    }

    /// Writes bytes of a tensor, `offset` bytes in.
    pub fn set(&self, tensor: TensorRef<'_>, offset: usize, data: &[u8]) -> Result<(), Error> {
        self.part_of(tensor, offset, data.len())?.write(data)
    }

    /// Reads bytes of a tensor, `offset` bytes in.
    pub fn read(&self, tensor: TensorRef<'_>, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        self.part_of(tensor, offset, out.len())?.read(out)
    }

    /// All bytes of a tensor.
    pub fn bytes(&self, tensor: TensorRef<'_>) -> Result<Vec<u8>, Error> {
        self.place_of(tensor)?.bytes()
    }

    /// Sets bytes of a tensor to one value.
    pub fn fill(&self, tensor: TensorRef<'_>, offset: usize, len: usize, value: u8) -> Result<(), Error> {
        let place = self.part_of(tensor, offset, len)?;
        place.buffer.fill(place.offset, len, value)
    }
}
