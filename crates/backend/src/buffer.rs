//! Memory of a device, and the kinds of it.
//!
//! Invariant: an implementation checks every byte range against its length before touching memory, so callers may
//! pass on what they were given. A buffer is freed when its last `Arc` is dropped.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use oxcart_tensor::TensorRef;

use crate::content::Content;
use crate::error::Error;
use crate::host::HostMemory;

/// What a buffer is for; schedulers keep work where weights are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Usage {
    /// Nothing in particular.
    #[default]
    Any,
    /// Weights, written once.
    Weights,
    /// Results of a graph.
    Compute,
}

/// A kind of memory. Two kinds are the same when they are the same `Arc`; see [`same_buffer_type`].
pub trait BufferType: Send + Sync + fmt::Debug {
    /// A name for people.
    fn name(&self) -> &str;

    /// Allocates zeroed memory. Call [`allocate`] instead, which also knows buffers of no bytes.
    fn allocate_bytes(self: Arc<Self>, size: usize) -> Result<Arc<dyn Buffer>, Error>;

    /// What offsets of tensors must be multiples of, a power of two.
    fn alignment(&self) -> usize;

    /// The largest buffer that can be allocated.
    fn max_size(&self) -> usize {
        usize::MAX
    }

    /// Bytes a tensor takes here, padding included; at least its byte length.
    fn alloc_size(&self, tensor: TensorRef<'_>) -> usize {
        tensor.byte_len()
    }

    /// Whether the bytes are in host memory, in the standard layout.
    fn is_host(&self) -> bool {
        false
    }
}

/// Whether two handles mean the same kind of memory.
pub fn same_buffer_type(a: &Arc<dyn BufferType>, b: &Arc<dyn BufferType>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b))
}

/// Allocates `size` zeroed bytes; none at all is a buffer too.
pub fn allocate(buffer_type: &Arc<dyn BufferType>, size: usize) -> Result<Arc<dyn Buffer>, Error> {
    if size == 0 {
        return Ok(Arc::new(EmptyBuffer { buffer_type: Arc::clone(buffer_type) }));
    }
    if size > buffer_type.max_size() {
        return Err(Error::OutOfMemory { buffer_type: buffer_type.name().to_owned(), size });
    }
    Arc::clone(buffer_type).allocate_bytes(size)
}

/// Memory that tensors lie in.
pub trait Buffer: Send + Sync + fmt::Debug {
    /// The kind of memory.
    fn buffer_type(&self) -> &Arc<dyn BufferType>;

    /// Number of bytes.
    fn len(&self) -> usize;

    /// Whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What it is for.
    fn usage(&self) -> Usage;

    /// Says what it is for.
    fn set_usage(&self, usage: Usage);

    /// Writes bytes.
    fn write(&self, offset: usize, data: &[u8]) -> Result<(), Error>;

    /// What these bytes are known by, where this memory may get them from elsewhere: for [`write_known`](Buffer::write_known), now and
    /// later. It costs a look at all of them.
    fn content_of(&self, _data: &[u8]) -> Option<Content> {
        None
    }

    /// Writes bytes that are known by their content. If the memory gets them from elsewhere, `data` is not looked at.
    fn write_known(&self, offset: usize, data: &[u8], _content: &Content) -> Result<(), Error> {
        self.write(offset, data)
    }

    /// Reads bytes.
    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Error>;

    /// Sets bytes to one value.
    fn fill(&self, offset: usize, len: usize, value: u8) -> Result<(), Error>;

    /// Sets all bytes to one value.
    fn clear(&self, value: u8) -> Result<(), Error> {
        self.fill(0, self.len(), value)
    }

    /// Prepares a tensor that was placed here; called once per tensor, views after what they look into.
    fn init_tensor(&self, _tensor: TensorRef<'_>) -> Result<(), Error> {
        Ok(())
    }

    /// Forgets what [`init_tensor`](Buffer::init_tensor) prepared.
    fn reset(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Copies bytes from another buffer if this kind of memory knows a direct way, and says whether it did.
    fn copy_from(
        &self,
        _offset: usize,
        _source: &dyn Buffer,
        _source_offset: usize,
        _len: usize,
    ) -> Result<bool, Error> {
        Ok(false)
    }

    /// The memory itself, where it is host memory.
    fn host(&self) -> Option<&HostMemory> {
        None
    }

    /// The buffers this one is made of, if it is several.
    fn parts(&self) -> &[Arc<dyn Buffer>] {
        &[]
    }

    /// The concrete buffer, for the device it belongs to.
    fn as_any(&self) -> &dyn Any;
}

/// Checks a byte range against a length.
pub(crate) fn check_range(what: &str, offset: usize, len: usize, size: usize) -> Result<(), Error> {
    if offset.checked_add(len).is_some_and(|end| end <= size) {
        return Ok(());
    }
    Err(Error::OutOfBounds { what: what.to_owned(), offset, len, size })
}

/// A buffer of no bytes, for graphs that need none.
#[derive(Debug)]
struct EmptyBuffer {
    buffer_type: Arc<dyn BufferType>,
}

impl Buffer for EmptyBuffer {
    fn buffer_type(&self) -> &Arc<dyn BufferType> {
        &self.buffer_type
    }

    fn len(&self) -> usize {
        0
    }

    fn usage(&self) -> Usage {
        Usage::Any
    }

    fn set_usage(&self, _usage: Usage) {}

    fn write(&self, offset: usize, data: &[u8]) -> Result<(), Error> {
        check_range(self.buffer_type.name(), offset, data.len(), 0)
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        check_range(self.buffer_type.name(), offset, out.len(), 0)
    }

    fn fill(&self, offset: usize, len: usize, _value: u8) -> Result<(), Error> {
        check_range(self.buffer_type.name(), offset, len, 0)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
